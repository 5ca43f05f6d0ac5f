//! Damage aimed at weaknesses found in trials, which random damage hardly ever hits: bits of
//! several inodes of one table block, fields of reserved inodes, blocks that collide with metadata,
//! maps that lead to nothing, flags of special files, and users of a shared attribute block.

use anyhow::{Context, Result};
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::{BlockNr, GroupNr, InodeNr};

use super::{fields_of, other_value};
use crate::rng::Rng;
use crate::volume::{Place, Volume};

/// Seeds from here on denote aimed damage; lower seeds keep their old meaning.
pub const AIMED_FROM: u64 = 1 << 40;

const EXTENTS: u32 = InodeFlags::EXTENTS.bits();
/// Offset of `i_block` in an inode.
const MAP: usize = 0x28;

/// Makes one aimed damage; returns its description.
pub(super) fn event(volume: &Volume<'_>, rng: &mut Rng) -> Result<String> {
    match rng.below(6) {
        0 => bits_of_a_table_block(volume, rng),
        1 => field_of_a_reserved_inode(volume, rng),
        2 => collision(volume, rng),
        3 => empty_map(volume, rng),
        4 => flags_of_a_special_file(volume, rng),
        _ => users_of_an_attribute_block(volume, rng),
    }
}

/// The used, unreserved inodes that `wanted` selects.
fn inodes(volume: &Volume<'_>, wanted: impl Fn(&Inode<'_>) -> bool) -> Result<Vec<InodeNr>> {
    let mut picked = Vec::new();
    for number in volume.used_inodes()? {
        let raw = volume.inode_bytes(number)?;
        let inode = Inode::decode(&raw).context("inodes have 128 bytes")?;
        if !volume.geometry.is_reserved(number) && inode.base.links_count > 0 && wanted(&inode) {
            picked.push(number);
        }
    }
    Ok(picked)
}

/// Changes an inode, and updates its checksum half of the time.
fn change(
    volume: &Volume<'_>,
    number: InodeNr,
    rng: &mut Rng,
    edit: impl FnOnce(&mut Vec<u8>, &mut Rng) -> String,
) -> Result<String> {
    let mut raw = volume.inode_bytes(number)?;
    let mut line = format!("{number}: {}", edit(&mut raw, rng));
    volume.put_inode(number, &raw)?;
    if rng.chance(2) {
        volume.fix_inode(number)?;
        line.push_str(", checksum set right");
    }
    Ok(line)
}

fn bits_of_a_table_block(volume: &Volume<'_>, rng: &mut Rng) -> Result<String> {
    let geometry = &volume.geometry;
    let per_block = geometry.block_size / geometry.inode_size;
    let all = inodes(volume, |_| true)?;
    let one = rng.pick(&all).context("files")?;
    let first = (one.0 - 1) / per_block * per_block + 1;
    let mut lines = Vec::new();
    let hit = 1 + rng.below(u64::from(per_block));
    for _ in 0..hit {
        let number = InodeNr(first + rng.below(u64::from(per_block)) as u32);
        let mut raw = volume.inode_bytes(number)?;
        for _ in 0..=rng.below(3) {
            let bit = rng.index(raw.len() * 8);
            raw[bit / 8] ^= 1 << (bit % 8);
            lines.push(format!("{number} byte {:#x} bit {}", bit / 8, bit % 8));
        }
        volume.put_inode(number, &raw)?;
    }
    Ok(format!("flipped: {}", lines.join(", ")))
}

fn field_of_a_reserved_inode(volume: &Volume<'_>, rng: &mut Rng) -> Result<String> {
    let sb = &volume.superblock;
    let more = [sb.orphan_file_inum, sb.prj_quota_inum, sb.usr_quota_inum, sb.grp_quota_inum];
    // Used ones more often.
    let numbers: Vec<u32> = (1..=10)
        .chain([2, 7, 8, 7, 8])
        .chain(more.into_iter().filter(|&number| number != 0))
        .collect();
    let number = InodeNr(*rng.pick(&numbers).context("numbers")?);
    change(volume, number, rng, |raw, rng| {
        let fields = fields_of(Place::Inode(number), raw);
        let Some(field) = rng.pick(&fields) else { return "nothing".to_owned() };
        let old = field.get(raw);
        let new = other_value(volume, field, old, raw, rng);
        field.put(raw, new);
        format!("{} {old:#x} -> {:#x}", field.name, field.get(raw))
    })
}

/// A block of metadata, or of the journal.
fn metadata(volume: &Volume<'_>, rng: &mut Rng) -> Result<BlockNr> {
    let group = GroupNr(rng.below(u64::from(volume.geometry.group_count)) as u32);
    let desc = volume.desc(group)?;
    let within = rng.below(u64::from(volume.geometry.inode_table_blocks.max(1)));
    Ok(match rng.below(6) {
        0 => desc.block_bitmap,
        1 => desc.inode_bitmap,
        2 => BlockNr(desc.inode_table.0 + within),
        3 => volume.geometry.first_data_block,
        4 => BlockNr(volume.geometry.first_data_block.0 + 1),
        _ => volume
            .map(InodeNr::JOURNAL)
            .ok()
            .and_then(|map| map.data.values().nth(3).copied())
            .unwrap_or(desc.inode_table),
    })
}

/// Makes a pointer or an extent of a file lead to metadata.
fn collision(volume: &Volume<'_>, rng: &mut Rng) -> Result<String> {
    let mapped = inodes(volume, |inode| {
        matches!(inode.file_type(), Some(FileType::Regular | FileType::Directory))
            && !inode.flags().contains(InodeFlags::INLINE_DATA)
    })?;
    let number = *rng.pick(&mapped).context("a file with blocks")?;
    let block = metadata(volume, rng)?;
    change(volume, number, rng, |raw, rng| {
        let flags = u32::from_le_bytes([raw[0x20], raw[0x21], raw[0x22], raw[0x23]]);
        let at = if flags & EXTENTS == 0 {
            MAP + 4 * rng.index(15)
        } else {
            // The low half of the start in an entry, of an extent or an index.
            let entries = usize::from(raw[MAP + 2]).clamp(1, 4);
            let depth = raw[MAP + 6];
            MAP + 12 + 12 * rng.index(entries) + if depth == 0 { 8 } else { 4 }
        };
        raw[at..at + 4].copy_from_slice(&(block.0 as u32).to_le_bytes());
        format!("byte {at:#x} leads to {block}")
    })
}

/// Gives a file or directory a map with one node without entries.
fn empty_map(volume: &Volume<'_>, rng: &mut Rng) -> Result<String> {
    let mapped = inodes(volume, |inode| {
        matches!(inode.file_type(), Some(FileType::Regular | FileType::Directory))
            && !inode.flags().contains(InodeFlags::INLINE_DATA)
    })?;
    let number = *rng.pick(&mapped).context("a file with blocks")?;
    let node = BlockNr(volume.geometry.blocks_count - 2 - rng.below(8));
    volume.put_block(node, &vec![0; volume.block_bytes()])?;
    change(volume, number, rng, |raw, rng| {
        let size = if rng.chance(2) { 0 } else { volume.geometry.block_size };
        raw[0x04..0x08].copy_from_slice(&size.to_le_bytes());
        let flags = u32::from_le_bytes([raw[0x20], raw[0x21], raw[0x22], raw[0x23]]);
        if flags & EXTENTS != 0 && rng.chance(2) {
            // No entries.
            raw[MAP + 2..MAP + 4].fill(0);
            return format!("no extents, {size} bytes");
        }
        raw[0x20..0x24].copy_from_slice(&(flags & !EXTENTS).to_le_bytes());
        let word = 12 + rng.index(3);
        raw[MAP..MAP + 60].fill(0);
        raw[MAP + 4 * word..MAP + 4 * word + 4].copy_from_slice(&(node.0 as u32).to_le_bytes());
        format!("word {word} leads to the empty {node}, {size} bytes")
    })
}

fn flags_of_a_special_file(volume: &Volume<'_>, rng: &mut Rng) -> Result<String> {
    let special = inodes(volume, |inode| {
        !matches!(inode.file_type(), Some(FileType::Regular | FileType::Directory))
    })?;
    let number = *rng.pick(&special).context("a special file")?;
    change(volume, number, rng, |raw, rng| {
        let all =
            [0x8_0000, 0x1000_0000, 0x1000, 0x800, 0x10, 0x20, 0x4000_0000, 0x20_0000, 0x4_0000];
        let mut flags = u32::from_le_bytes([raw[0x20], raw[0x21], raw[0x22], raw[0x23]]);
        for _ in 0..=rng.below(2) {
            flags |= all[rng.index(all.len())];
        }
        raw[0x20..0x24].copy_from_slice(&flags.to_le_bytes());
        format!("i_flags {flags:#x}")
    })
}

/// Makes one or all inodes that share an attribute block unusable.
fn users_of_an_attribute_block(volume: &Volume<'_>, rng: &mut Rng) -> Result<String> {
    let with_block = inodes(volume, |inode| inode.base.file_acl_lo != 0)?;
    let mut lines = Vec::new();
    for _ in 0..=rng.below(3) {
        let Some(&number) = rng.pick(&with_block) else { break };
        let line = change(volume, number, rng, |raw, rng| match rng.below(4) {
            0 => {
                raw[0x00..0x02].copy_from_slice(&[0xa4, 0xb1]);
                "an illegal mode".to_owned()
            }
            1 => {
                raw[0x1a..0x1c].fill(0);
                "no links".to_owned()
            }
            2 => {
                rng.fill(&mut raw[MAP..MAP + 60]);
                "a map of noise".to_owned()
            }
            _ => {
                raw[0x68..0x6c].fill(0);
                "no attribute block".to_owned()
            }
        })?;
        lines.push(line);
    }
    Ok(lines.join(", "))
}
