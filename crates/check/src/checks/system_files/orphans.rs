//! Check: the orphan list and the orphan file, which recovery empties.
//! Reads: the superblock, the list, the orphan file.  Keeps: the orphans.
//! Emits: `OrphanInodeProcessed`, `OrphanList*`, `OrphanFile*InRecovery`, `OrphansPending`,
//! `CubeOrphanOutside`.
//! Does not verify: the orphan file as a file (`checks/system_files/orphan_file.rs`).

use floe_blockdev::ReadBlocks;
use floe_format::ext::inode::Inode;
use floe_format::ext::orphan_file::OrphanBlock;
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use crate::problem::{Findings, Problem, Sink};
use crate::volume::journal::JournalUse;
use crate::volume::open::Opened;
use floe_ext4::inode_table::read_inode;
use floe_ext4::journal::{JournalEvent, OrphanFault, find_orphans};
use floe_ext4::map::runs::BlockMap;

/// The inodes that recovery will delete or truncate, sorted. Empty if recovery was not asked for or
/// must not run (errors are recorded).
pub fn find(
    device: &dyn ReadBlocks,
    opened: &Opened,
    journal: JournalUse,
    found: &mut Findings,
) -> Vec<InodeNr> {
    let Opened { superblock, geometry, groups, .. } = opened;
    let (orphans, events) = find_orphans(device, superblock, geometry, groups);
    if journal != JournalUse::Replay {
        if !orphans.is_empty() {
            // Inode numbers have 32 bits, and each is listed once.
            found.push(Problem::OrphansPending { inodes: orphans.len() as u32 });
        }
        return Vec::new();
    }
    for event in events {
        match event {
            JournalEvent::Orphan { inode } => {
                let raw = read_inode(inode, device, geometry, groups).unwrap_or_default();
                let (links, size) = Inode::decode(&raw)
                    .map_or((0, 0), |orphan| (orphan.base.links_count, orphan.size_bytes()));
                found.push(Problem::OrphanInodeProcessed { inode, links, size });
            }
            JournalEvent::OrphansDamaged(fault) => {
                found.0.extend(problem_of(device, fault, opened));
            }
            _ => {}
        }
    }
    orphans
}

fn problem_of(device: &dyn ReadBlocks, fault: OrphanFault, opened: &Opened) -> Option<Problem> {
    let inode = InodeNr(opened.superblock.orphan_file_inum);
    Some(match fault {
        OrphanFault::Head(head) => Problem::OrphanListHeadInvalid { value: head.0 },
        OrphanFault::Next { inode, next } => {
            Problem::OrphanListNextInvalid { inode, value: next.0 }
        }
        OrphanFault::Loop(inode) => Problem::OrphanListNextInvalid { inode, value: inode.0 },
        OrphanFault::Stray { cube, inode } => Problem::CubeOrphanOutside { cube, inode },
        OrphanFault::Slot(slot) => Problem::OrphanListNextInvalid { inode, value: slot.0 },
        // The inode pass says what is wrong with it.
        OrphanFault::Unreadable(_) => return None,
        OrphanFault::Hole(logical) => Problem::OrphanFileHoleInRecovery { inode, logical },
        OrphanFault::Magic(block) => {
            let of_block = OfBlock::read(device, opened, block);
            let (logical, stored) = (of_block.logical, of_block.magic);
            Problem::OrphanFileBlockMagicBad { inode, logical, block, stored }
        }
        OrphanFault::Checksum(block) => {
            let OfBlock { logical, stored, expected, .. } = OfBlock::read(device, opened, block);
            Problem::OrphanFileBlockChecksumBad { inode, logical, block, stored, expected }
        }
        OrphanFault::Unaligned { size_bytes } => {
            Problem::OrphanFileSizeUnalignedInRecovery { inode, size: size_bytes }
        }
    })
}

/// The problems of one block of the orphan file, as the report names them.
#[derive(Default)]
struct OfBlock {
    logical: LogicalBlock,
    magic: u32,
    stored: u32,
    expected: u32,
}

impl OfBlock {
    /// Reads it again; zeroes where that fails.
    fn read(device: &dyn ReadBlocks, opened: &Opened, block: BlockNr) -> Self {
        Self::try_read(device, opened, block).unwrap_or_default()
    }

    fn try_read(device: &dyn ReadBlocks, opened: &Opened, block: BlockNr) -> Option<Self> {
        let Opened { superblock, geometry, groups, .. } = opened;
        let inode = InodeNr(superblock.orphan_file_inum);
        let raw = read_inode(inode, device, geometry, groups)?;
        let file = Inode::decode(&raw)?;
        let blocks = file.size_bytes() / u64::from(geometry.block_size);
        let map = BlockMap::of(&file, device, geometry, blocks).ok()?;
        let logical = (0..blocks.min(map.blocks_without_hole()))
            .find(|&logical| map.block(logical) == Some(block))?;
        let mut bytes = vec![0; geometry.block_size as usize];
        device.read_at(geometry.offset_bytes(block), &mut bytes).ok()?;
        let orphans = OrphanBlock::new(&bytes)?;
        let seed = superblock.seed().of_inode(inode, file.base.generation);
        Some(Self {
            logical: LogicalBlock(logical),
            magic: orphans.magic(),
            stored: orphans.stored_checksum(),
            expected: orphans.compute_checksum(seed, block),
        })
    }
}
