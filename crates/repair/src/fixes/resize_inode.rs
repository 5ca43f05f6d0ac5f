//! Recreates the resize inode.

use floe_format::ext::indirect;
use floe_format::features::Compat;
use floe_format::{BlockNr, GroupNr, InodeNr};

use crate::failure::Failure;
use crate::stage::{MODE_PRIVATE, Stage};

/// Index in `i_block` of the double-indirect block.
const DOUBLE: usize = 13;

/// Lists every reserved GDT block of group 0 in a double-indirect block, each with its backups in
/// other groups.
pub(super) fn apply(stage: &mut Stage<'_>) -> Result<(), Failure> {
    if stage.superblock().feature_compat & Compat::RESIZE_INODE.bits() == 0 {
        return Ok(());
    }
    let geometry = stage.geometry.clone();
    let old = stage.read_inode(InodeNr::RESIZE)?;
    let word = |at: usize| indirect::pointers(&old.base.block).nth(at).unwrap_or(0);
    let double = BlockNr(u64::from(word(DOUBLE)));
    let reusable = geometry.contains(double)
        && !stage.evidence.volume.is_metadata(double)
        && !stage.evidence.claims.shared().contains(geometry.cluster_of(double));
    let double = if reusable { double } else { stage.allocate(geometry.first_data_block)? };
    let per_block = geometry.indirect().pointers_per_block();
    let first = geometry.group_desc_run(GroupNr(0)).end().0;
    let groups: Vec<GroupNr> = (1..geometry.group_count)
        .map(GroupNr)
        .filter(|&group| geometry.has_superblock(group))
        .take(per_block as usize)
        .collect();
    let mut table = vec![0; stage.block_size()];
    let mut blocks = 1u64;
    for index in 0..u64::from(geometry.reserved_gdt_blocks) {
        let reserved = first + index;
        let slot = ((u64::from(geometry.desc_blocks) + index) % per_block) as usize * 4;
        put(&mut table, slot, reserved)?;
        let mut copies = vec![0; stage.block_size()];
        for (at, group) in groups.iter().enumerate() {
            let copy = reserved + u64::from(group.0) * u64::from(geometry.blocks_per_group);
            put(&mut copies, at * 4, copy)?;
            blocks += 1;
        }
        stage.write_block(BlockNr(reserved), &copies)?;
        blocks += 1;
    }
    stage.write_block(double, &table)?;
    let mut image = stage.new_inode(InodeNr::RESIZE, MODE_PRIVATE)?;
    put(&mut image.base.block, DOUBLE * 4, double.0)?;
    // The reach of a double-indirect map.
    let reach = 12 + per_block + per_block * per_block;
    image.set_size_bytes(reach * u64::from(geometry.block_size));
    super::inodes::set_blocks(stage, &mut image, blocks);
    stage.write_inode(&image)
}

/// Stores a 32-bit block number at a byte offset.
fn put(bytes: &mut [u8], at: usize, block: u64) -> Result<(), Failure> {
    let word = u32::try_from(block).map_err(|_| Failure::NotNow("block numbers have 64 bits"))?;
    if let Some(slot) = bytes.get_mut(at..at + 4) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    Ok(())
}
