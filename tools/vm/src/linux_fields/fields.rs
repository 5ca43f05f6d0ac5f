//! The fields to change, and the values.

use anyhow::Result;
use floe_format::ext::superblock::OFFSET_BYTES;
use floe_format::{GroupNr, InodeNr, LogicalBlock};
use floe_testkit::recipe::{Edit, Recipe, inode, journal_superblock};
use floe_testkit::{Profile, Volume, build};

/// Inode fields: name, byte offset, size in bytes (2 or 4). Each change updates the checksum.
const INODE: &[(&str, usize, usize)] = &[
    ("i_mode", 0x0, 2),
    ("i_uid", 0x2, 2),
    ("i_size_lo", 0x4, 4),
    ("i_atime", 0x8, 4),
    ("i_ctime", 0xc, 4),
    ("i_mtime", 0x10, 4),
    ("i_dtime", 0x14, 4),
    ("i_gid", 0x18, 2),
    ("i_links_count", 0x1a, 2),
    ("i_blocks_lo", 0x1c, 4),
    ("i_version", 0x24, 4),
    ("eh_magic", 0x28, 2),
    ("eh_entries", 0x2a, 2),
    ("eh_max", 0x2c, 2),
    ("eh_depth", 0x2e, 2),
    ("eh_generation", 0x30, 4),
    ("ee_block", 0x34, 4),
    ("ee_len", 0x38, 2),
    ("ee_start_hi", 0x3a, 2),
    ("ee_start_lo", 0x3c, 4),
    ("ee_block[1]", 0x40, 4),
    ("ee_len[1]", 0x44, 2),
    ("i_block[8]", 0x48, 4),
    ("i_block[12]", 0x58, 4),
    ("i_block[13]", 0x5c, 4),
    ("i_block[14]", 0x60, 4),
    ("i_generation", 0x64, 4),
    ("i_file_acl_lo", 0x68, 4),
    ("i_size_high", 0x6c, 4),
    ("i_faddr", 0x70, 4),
    ("i_blocks_high", 0x74, 2),
    ("i_file_acl_high", 0x76, 2),
    ("i_reserved", 0x7e, 2),
    ("i_extra_isize", 0x80, 2),
    ("i_ctime_extra", 0x84, 4),
    ("i_crtime_extra", 0x94, 4),
    ("i_version_hi", 0x98, 4),
    ("i_projid", 0x9c, 4),
    ("attribute magic", 0xa0, 4),
    ("attribute entry", 0xa4, 4),
    ("attribute size", 0xac, 4),
];
const FLAGS: usize = 0x20;
/// Offset of `s_maxlen` in the journal superblock.
const JOURNAL_LENGTH: usize = 0x10;
/// The fewest blocks of a journal.
const SHORTEST_LOG: u32 = 1024;
/// Inodes with a special role, and files of the base images.
const OBJECTS: &[&str] = &[
    "/",
    "<3>",
    "<4>",
    "<7>",
    "<8>",
    "<11>",
    "<12>",
    "<13>",
    "/file",
    "/empty",
    "/dir",
    "/big",
    "/fragmented",
    "/unwritten",
    "/fast-link",
    "/slow-link",
    "/char",
    "/fifo",
    "/ea",
    "/ea-block",
];

/// A change and its name.
pub(super) struct Change {
    pub(super) name: String,
    pub(super) recipe: Recipe,
}

/// Odd values for a field with the value `old`.
fn odd_values(old: u32, width: usize) -> Vec<u32> {
    let most = if width == 2 { 0xffff } else { u32::MAX };
    let top = most / 2 + 1;
    let mut values =
        vec![0, 1, 7, top - 1, top, most, old ^ 1, old.wrapping_add(4) & most, old ^ top];
    values.retain(|&value| value != old);
    values.sort_unstable();
    values.dedup();
    values
}

fn value_at(bytes: &[u8], at: usize, width: usize) -> Option<u32> {
    let field = bytes.get(at..at + width)?;
    Some(field.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte)))
}

fn put(bytes: &mut [u8], at: usize, width: usize, value: u32) {
    bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
}

/// All changes of the base image of a profile.
pub(super) fn changes(profile: Profile) -> Result<Vec<Change>> {
    let image = build::base(profile)?;
    let volume = Volume::open(&image)?;
    let mut all = Vec::new();
    let mut seen = Vec::new();
    for &path in OBJECTS {
        let Ok(number) = volume.lookup(path) else { continue };
        // A number and a path may denote the same inode.
        if seen.contains(&number) {
            continue;
        }
        seen.push(number);
        of_inode(profile, path, &volume.inode_bytes(number)?, &mut all);
    }
    of_superblock(profile, &volume, &mut all)?;
    of_descriptor(profile, &volume, &mut all)?;
    of_journal(profile, &volume, &mut all)?;
    Ok(all)
}

fn of_inode(profile: Profile, path: &str, raw: &[u8], all: &mut Vec<Change>) {
    if raw.iter().all(|&byte| byte == 0) {
        return;
    }
    let mut add = |field: String, at: usize, width: usize, value: u32| {
        let name = format!("{path} {field}={value:#x}");
        let edit = inode(path).raw(move |raw| put(raw, at, width, value));
        all.push(Change { recipe: Recipe::new(name.clone()).on(profile).edit(edit), name });
    };
    for &(field, at, width) in INODE {
        let Some(old) = value_at(raw, at, width) else { continue };
        odd_values(old, width)
            .into_iter()
            .for_each(|value| add(field.to_owned(), at, width, value));
    }
    let flags = value_at(raw, FLAGS, 4).unwrap_or(0);
    for bit in 0..32 {
        add(format!("flag {bit}"), FLAGS, 4, flags ^ 1 << bit);
    }
}

/// Offsets of `s_feature_compat`, `s_feature_incompat` and `s_feature_ro_compat` in the superblock.
const FEATURES: [usize; 3] = [0x5c, 0x60, 0x64];

/// Every used word of the superblock, except its checksum; and every feature on its own, because one may
/// need something that the file system lacks.
fn of_superblock(profile: Profile, volume: &Volume<'_>, all: &mut Vec<Change>) -> Result<()> {
    let mut raw = [0; 1024];
    volume.image.read(OFFSET_BYTES, &mut raw)?;
    for at in (0..0x288).step_by(4) {
        let Some(old) = value_at(&raw, at, 4) else { continue };
        let mut values = odd_values(old, 4);
        if FEATURES.contains(&at) {
            values.extend((0..32).map(|bit| old ^ 1 << bit));
        }
        for value in values {
            let name = format!("superblock {at:#x}={value:#x}");
            let edit = Edit::new(move |volume: &Volume<'_>| {
                let place = OFFSET_BYTES + at as u64;
                volume.image.write(place, &value.to_le_bytes())?;
                volume.fix_superblock()
            });
            all.push(Change { recipe: Recipe::new(name.clone()).on(profile).edit(edit), name });
        }
    }
    Ok(())
}

/// The fields of the second group's descriptor.
fn of_descriptor(profile: Profile, volume: &Volume<'_>, all: &mut Vec<Change>) -> Result<()> {
    const GROUP: GroupNr = GroupNr(1);
    let desc = volume.desc(GROUP)?;
    let mut add = |field: &'static str, old: u32, value: u32| {
        let name = format!("group 1 {field}={value:#x}");
        let edit = Edit::new(move |volume: &Volume<'_>| {
            let mut desc = volume.desc(GROUP)?;
            match field {
                "flags" => desc.flags = value as u16,
                "itable_unused" => desc.itable_unused = value,
                "free_inodes" => desc.free_inodes_count = value,
                "free_blocks" => desc.free_blocks_count = value,
                "used_dirs" => desc.used_dirs_count = value,
                "block_bitmap" => desc.block_bitmap.0 = u64::from(value),
                "inode_bitmap" => desc.inode_bitmap.0 = u64::from(value),
                _ => desc.inode_table.0 = u64::from(value),
            }
            volume.put_desc(GROUP, &desc)?;
            volume.fix_desc(GROUP)
        });
        if value != old {
            all.push(Change { recipe: Recipe::new(name.clone()).on(profile).edit(edit), name });
        }
    };
    let fields = [
        ("flags", u32::from(desc.flags), 2),
        ("itable_unused", desc.itable_unused, 2),
        ("free_inodes", desc.free_inodes_count, 2),
        ("free_blocks", desc.free_blocks_count, 2),
        ("used_dirs", desc.used_dirs_count, 2),
        ("block_bitmap", desc.block_bitmap.0 as u32, 4),
        ("inode_bitmap", desc.inode_bitmap.0 as u32, 4),
        ("inode_table", desc.inode_table.0 as u32, 4),
    ];
    for (field, old, width) in fields {
        odd_values(old, width).into_iter().for_each(|value| add(field, old, value));
    }
    Ok(())
}

/// Every used word of the journal superblock, except its checksum; also set to lengths that leave the log
/// just enough blocks, or just too few.
fn of_journal(profile: Profile, volume: &Volume<'_>, all: &mut Vec<Change>) -> Result<()> {
    let Some(block) = volume.map(InodeNr::JOURNAL)?.data.get(&LogicalBlock(0)).copied() else {
        return Ok(());
    };
    let raw = volume.block(block)?;
    let word_at = |at: usize| {
        let word = raw.get(at..at + 4)?;
        Some(word.iter().fold(0, |value, &byte| value << 8 | u32::from(byte)))
    };
    let blocks: u32 = word_at(JOURNAL_LENGTH).unwrap_or(0);
    let most = blocks.saturating_sub(SHORTEST_LOG);
    for at in (0..0x60).step_by(4) {
        let Some(old) = word_at(at) else { continue };
        let mut values = odd_values(old, 4);
        values.extend([
            most,
            most + 1,
            most + 2,
            SHORTEST_LOG - 1,
            SHORTEST_LOG,
            blocks,
            blocks + 1,
        ]);
        values.retain(|&value| value != old);
        for value in values {
            let name = format!("journal {at:#x}={value:#x}");
            let edit = journal_superblock().put(at, value.to_be_bytes());
            all.push(Change { recipe: Recipe::new(name.clone()).on(profile).edit(edit), name });
        }
    }
    Ok(())
}
