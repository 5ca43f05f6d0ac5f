//! Damage as somebody makes it who looks for faults of a repair: one fault thousands of times,
//! structures exchanged or moved, all copies of a structure lost at once, objects at the end of
//! their table, orphans that are none, and directories that name each other.

use anyhow::{Context, Result};
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::{BlockNr, GroupNr, InodeNr};

use super::{fields_of, other_value};
use crate::rng::Rng;
use crate::volume::{Place, Volume};

/// Seeds from here on denote hostile damage.
pub const HOSTILE_FROM: u64 = 1 << 41;

/// Offset of `i_block` in an inode, and its length.
const MAP: std::ops::Range<usize> = 0x28..0x64;

/// Makes one hostile damage; returns its description.
pub(super) fn event(volume: &Volume<'_>, places: &[Place], rng: &mut Rng) -> Result<String> {
    match rng.below(12) {
        0 => everywhere(volume, places, rng, |place| matches!(place, Place::Inode(_))),
        1 => everywhere(volume, places, rng, |place| matches!(place, Place::DirBlock(..))),
        2 => everywhere(volume, places, rng, |place| matches!(place, Place::Descriptor(_))),
        3 => exchanged(volume, places, rng),
        4 => shifted(volume, places, rng),
        5 => last_inode(volume, rng),
        6 => index_blocks(volume, places, rng),
        7 => flags(volume, places, rng),
        8 => false_orphans(volume, rng),
        9 => one_place_for_two(volume, rng),
        10 => all_lost(volume, places, rng),
        _ => one_for_all(volume, places, rng),
    }
}

/// The bytes of a place, if damage has not moved it away.
fn bytes_of(volume: &Volume<'_>, place: Place) -> Option<(u64, Vec<u8>)> {
    let (at, len) = volume.range_of(place).ok()?;
    let mut bytes = vec![0; len];
    volume.image.read(at, &mut bytes).ok()?;
    Some((at, bytes))
}

/// Writes a place, and updates its checksum if `seal`.
fn put(volume: &Volume<'_>, place: Place, at: u64, bytes: &[u8], seal: bool) -> Result<()> {
    volume.image.write(at, bytes)?;
    if seal {
        // Fails if damage moved structures; then the checksum stays wrong.
        let _ = volume.fix(place);
    }
    Ok(())
}

fn sealed(seal: bool) -> &'static str {
    if seal { ", checksums updated" } else { "" }
}

/// Whether an inode is reserved.
fn is_reserved(volume: &Volume<'_>, place: Place) -> bool {
    matches!(place, Place::Inode(number) if volume.geometry.is_reserved(number))
}

/// The same change of the same field in every structure of a kind, or in every second or third.
fn everywhere(
    volume: &Volume<'_>,
    places: &[Place],
    rng: &mut Rng,
    wanted: impl Fn(&Place) -> bool,
) -> Result<String> {
    let alike: Vec<Place> = places
        .iter()
        .copied()
        .filter(|place| wanted(place) && !is_reserved(volume, *place))
        .collect();
    let Some(&one) = rng.pick(&alike) else { return Ok("nothing of that kind".to_owned()) };
    let (_, bytes) = bytes_of(volume, one).context("an undamaged structure")?;
    let fields = fields_of(one, &bytes);
    let Some(field) = rng.pick(&fields) else { return Ok("no field".to_owned()) };
    let (step, seal, same) = (1 + rng.index(3), rng.chance(2), rng.chance(2));
    let value = other_value(volume, field, field.get(&bytes), &bytes, rng);
    let flipped = 1u64 << rng.below(8 * field.size as u64);
    for place in alike.iter().step_by(step) {
        let Some((at, mut bytes)) = bytes_of(volume, *place) else { continue };
        let value = if same { value } else { field.get(&bytes) ^ flipped };
        field.put(&mut bytes, value);
        put(volume, *place, at, &bytes, seal)?;
    }
    let kind = format!("{one:?}");
    let kind = kind.split('(').next().unwrap_or_default();
    let what = if same { format!("{value:#x}") } else { format!("^ {flipped:#x}") };
    Ok(format!("every {step}. {kind}: {} {what}{}", field.name, sealed(seal)))
}

/// Two structures of a kind exchange their contents.
fn exchanged(volume: &Volume<'_>, places: &[Place], rng: &mut Rng) -> Result<String> {
    let first = *rng.pick(places).context("places")?;
    let alike: Vec<Place> = places
        .iter()
        .copied()
        .filter(|other| std::mem::discriminant(other) == std::mem::discriminant(&first))
        .collect();
    let second = *rng.pick(&alike).context("the place itself")?;
    let seal = rng.chance(2);
    if let (Some((at, bytes)), Some((other_at, other))) =
        (bytes_of(volume, first), bytes_of(volume, second))
        && bytes.len() == other.len()
    {
        put(volume, first, at, &other, seal)?;
        put(volume, second, other_at, &bytes, seal)?;
    }
    Ok(format!("{first:?} and {second:?} exchanged{}", sealed(seal)))
}

/// The content of a structure moves by some bytes.
fn shifted(volume: &Volume<'_>, places: &[Place], rng: &mut Rng) -> Result<String> {
    let blocks: Vec<Place> = places
        .iter()
        .copied()
        .filter(|place| !matches!(place, Place::Superblock | Place::Backup(_)))
        .collect();
    let place = *rng.pick(&blocks).context("places")?;
    let Some((at, mut bytes)) = bytes_of(volume, place) else {
        return Ok(format!("{place:?} out of reach"));
    };
    let by = [1, 4, 8, 64, 128][rng.index(5)] % bytes.len();
    let seal = rng.chance(2);
    if rng.chance(2) {
        bytes.rotate_right(by);
    } else {
        bytes.rotate_left(by);
    }
    put(volume, place, at, &bytes, seal)?;
    Ok(format!("{place:?} rotated by {by}{}", sealed(seal)))
}

/// The last inode of a table, or of the file system, becomes a copy of another, in use or not
/// according to bitmap and descriptor.
fn last_inode(volume: &Volume<'_>, rng: &mut Rng) -> Result<String> {
    let geometry = &volume.geometry;
    let group = if rng.chance(2) {
        GroupNr(geometry.group_count - 1)
    } else {
        GroupNr(rng.below(u64::from(geometry.group_count)) as u32)
    };
    let last = geometry.inode_at(group, geometry.inodes_per_group - 1);
    let used = volume.used_inodes()?;
    let from = *rng.pick(&used).context("inodes in use")?;
    let mut raw = volume.inode_bytes(from)?;
    let own_map = rng.chance(2);
    if own_map {
        raw[MAP].fill(0);
        raw[0x1c..0x20].fill(0);
    }
    volume.put_inode(last, &raw)?;
    let seal = rng.chance(3);
    if !seal {
        volume.fix_inode(last)?;
    }
    let mut desc = volume.desc(group)?;
    let marked = rng.chance(2);
    if marked {
        let bit = u64::from(geometry.inodes_per_group - 1);
        let mut bitmap = volume.block(desc.inode_bitmap)?;
        bitmap[(bit / 8) as usize] |= 1 << (bit % 8);
        volume.put_block(desc.inode_bitmap, &bitmap)?;
    }
    if rng.chance(2) {
        desc.itable_unused = 0;
        desc.flags &= !1;
        volume.put_desc(group, &desc)?;
    }
    let _ = volume.fix_bitmaps(group);
    Ok(format!("{last}: a copy of {from}, own map: {own_map}, marked: {marked}"))
}

/// Fields of index roots and nodes.
fn index_blocks(volume: &Volume<'_>, places: &[Place], rng: &mut Rng) -> Result<String> {
    let indexes: Vec<Place> =
        places.iter().copied().filter(|place| matches!(place, Place::DirIndex(..))).collect();
    if indexes.is_empty() {
        return shifted(volume, places, rng);
    }
    let mut lines = Vec::new();
    let seal = !rng.chance(4);
    for _ in 0..=rng.below(4) {
        let Some(&place) = rng.pick(&indexes) else { break };
        let Some((at, mut bytes)) = bytes_of(volume, place) else { continue };
        let fields = fields_of(place, &bytes);
        let Some(field) = rng.pick(&fields) else { continue };
        let (old, other) = (field.get(&bytes), rng.pick(&fields).unwrap_or(field).get(&bytes));
        // The value of another entry: two that lead to one leaf, or are out of order.
        let new = if rng.chance(2) { other } else { other_value(volume, field, old, &bytes, rng) };
        field.put(&mut bytes, new);
        put(volume, place, at, &bytes, seal)?;
        lines.push(format!("{place:?} {} {old:#x} -> {:#x}", field.name, field.get(&bytes)));
    }
    Ok(format!("{}{}", lines.join(", "), sealed(seal)))
}

/// Flags of inodes of any kind.
fn flags(volume: &Volume<'_>, places: &[Place], rng: &mut Rng) -> Result<String> {
    let all = [
        InodeFlags::EXTENTS.bits(),
        InodeFlags::INLINE_DATA.bits(),
        InodeFlags::INDEX.bits(),
        // Encrypted, case-folded, verity, value of an attribute, huge file, compressed.
        0x800,
        0x4000_0000,
        0x10_0000,
        0x20_0000,
        0x4_0000,
        0x4,
    ];
    let inodes: Vec<InodeNr> = places
        .iter()
        .filter_map(|place| match place {
            Place::Inode(number) => Some(*number),
            _ => None,
        })
        .collect();
    let mut lines = Vec::new();
    let seal = !rng.chance(4);
    for _ in 0..=rng.below(4) {
        let Some(&number) = rng.pick(&inodes) else { break };
        let mut raw = volume.inode_bytes(number)?;
        let mut flags = u32::from_le_bytes([raw[0x20], raw[0x21], raw[0x22], raw[0x23]]);
        flags ^= all[rng.index(all.len())];
        raw[0x20..0x24].copy_from_slice(&flags.to_le_bytes());
        volume.put_inode(number, &raw)?;
        if seal {
            volume.fix_inode(number)?;
        }
        lines.push(format!("{number} i_flags {flags:#x}"));
    }
    Ok(format!("{}{}", lines.join(", "), sealed(seal)))
}

/// Inodes in use, reserved ones, and numbers of none, in the list or the file of orphans.
fn false_orphans(volume: &Volume<'_>, rng: &mut Rng) -> Result<String> {
    let used = volume.used_inodes()?;
    let any = |rng: &mut Rng| match rng.below(5) {
        0 => rng.below(14) as u32,
        1 => volume.geometry.inodes_count + rng.below(3) as u32,
        _ => rng.pick(&used).map_or(12, |number| number.0),
    };
    let list: Vec<u32> = (0..=rng.below(4)).map(|_| any(rng)).collect();
    let (unlinked, seal) = (rng.chance(2), !rng.chance(4));
    for (at, &number) in list.iter().enumerate() {
        let next = list.get(at + 1).copied().unwrap_or_else(|| {
            // The end, or a loop.
            if rng.chance(3) { list[0] } else { 0 }
        });
        let number = InodeNr(number);
        let Ok(mut raw) = volume.inode_bytes(number) else { continue };
        raw[0x14..0x18].copy_from_slice(&next.to_le_bytes());
        if unlinked && !volume.geometry.is_reserved(number) {
            raw[0x1a..0x1c].fill(0);
        }
        volume.put_inode(number, &raw)?;
        if seal {
            volume.fix_inode(number)?;
        }
    }
    let file = InodeNr(volume.superblock.orphan_file_inum);
    let block = if file.0 == 0 { None } else { volume.map(file)?.data.values().next().copied() };
    match block {
        Some(block) if rng.chance(2) => {
            let mut bytes = volume.block(block)?;
            for (slot, number) in bytes.chunks_exact_mut(4).zip(&list) {
                slot.copy_from_slice(&number.to_le_bytes());
            }
            volume.put_block(block, &bytes)?;
            volume.fix_orphan_block(file, block)?;
            let mut superblock = [0; 1024];
            volume.image.read(1024, &mut superblock)?;
            // orphan_present, of the read-only compatible features.
            superblock[0x66] |= 1;
            volume.image.write(1024, &superblock)?;
        }
        _ => volume.image.write(1024 + 0xe8, &list[0].to_le_bytes())?,
    }
    volume.fix_superblock()?;
    Ok(format!("orphans {list:?}, unlinked: {unlinked}{}", sealed(seal)))
}

/// The bitmap or table of a group lies where another structure lies.
fn one_place_for_two(volume: &Volume<'_>, rng: &mut Rng) -> Result<String> {
    let geometry = &volume.geometry;
    let group = |rng: &mut Rng| GroupNr(rng.below(u64::from(geometry.group_count)) as u32);
    let (mine, other) = (group(rng), group(rng));
    let (mut desc, theirs) = (volume.desc(mine)?, volume.desc(other)?);
    let files = volume.used_inodes()?;
    let data = rng
        .pick(&files)
        .and_then(|file| volume.map(*file).ok()?.data.values().next().copied())
        .unwrap_or(theirs.inode_table);
    let place = match rng.below(5) {
        0 => theirs.block_bitmap,
        1 => theirs.inode_bitmap,
        2 => theirs.inode_table,
        3 => BlockNr(theirs.inode_table.0 + 1),
        _ => data,
    };
    let what = match rng.below(3) {
        0 => {
            desc.block_bitmap = place;
            "block bitmap"
        }
        1 => {
            desc.inode_bitmap = place;
            "inode bitmap"
        }
        _ => {
            desc.inode_table = place;
            "inode table"
        }
    };
    volume.put_desc(mine, &desc)?;
    let seal = !rng.chance(4);
    if seal {
        volume.fix_desc(mine)?;
    }
    Ok(format!("{what} of {mine:?} at {place}{}", sealed(seal)))
}

/// All structures of a kind are lost: zeroed, or noise.
fn all_lost(volume: &Volume<'_>, places: &[Place], rng: &mut Rng) -> Result<String> {
    let wanted: fn(&Place) -> bool = match rng.below(8) {
        0 => |place| matches!(place, Place::BlockBitmap(..)),
        1 => |place| matches!(place, Place::InodeBitmap(..)),
        2 => |place| matches!(place, Place::BlockBitmap(..) | Place::InodeBitmap(..)),
        3 => |place| matches!(place, Place::Descriptor(_)),
        4 => |place| matches!(place, Place::Backup(_)),
        5 => |place| matches!(place, Place::XattrBlock(..)),
        6 => |place| matches!(place, Place::DirIndex(..)),
        _ => |place| matches!(place, Place::JournalSuperblock(_) | Place::Mmp(_)),
    };
    let noise = rng.chance(2);
    let mut kind = String::new();
    for place in places.iter().filter(|place| wanted(place)) {
        let Some((at, mut bytes)) = bytes_of(volume, *place) else { continue };
        if noise {
            rng.fill(&mut bytes);
        } else {
            bytes.fill(0);
        }
        volume.image.write(at, &bytes)?;
        kind = format!("{place:?}").split('(').next().unwrap_or_default().to_owned();
    }
    Ok(format!("every {kind} {}", if noise { "filled with noise" } else { "zeroed" }))
}

/// Many entries name one inode, or many inodes have the map of one.
fn one_for_all(volume: &Volume<'_>, places: &[Place], rng: &mut Rng) -> Result<String> {
    let used = volume.used_inodes()?;
    let one = *rng.pick(&used).context("inodes in use")?;
    let raw = volume.inode_bytes(one)?;
    let (few, seal) = (1 + rng.below(12), !rng.chance(4));
    if rng.chance(2) {
        let mut others = 0;
        for &number in used.iter().filter(|number| !volume.geometry.is_reserved(**number)) {
            if !rng.chance(few) {
                continue;
            }
            let mut other = volume.inode_bytes(number)?;
            other[MAP].copy_from_slice(&raw[MAP]);
            // With flags and size, so that the map means the same.
            other[0x20..0x24].copy_from_slice(&raw[0x20..0x24]);
            other[0x04..0x08].copy_from_slice(&raw[0x04..0x08]);
            volume.put_inode(number, &other)?;
            if seal {
                volume.fix_inode(number)?;
            }
            others += 1;
        }
        return Ok(format!("{others} inodes have the map of {one}{}", sealed(seal)));
    }
    let file_type = Inode::decode(&raw).and_then(|inode| inode.file_type());
    let mut changed = 0;
    for &place in places.iter().filter(|place| matches!(place, Place::DirBlock(..))) {
        let Some((at, mut bytes)) = bytes_of(volume, place) else { continue };
        let fields = fields_of(place, &bytes);
        for pair in fields.iter().filter(|field| field.name.ends_with(" inode")) {
            let is_free = pair.get(&bytes) == 0;
            if is_free || !rng.chance(few) {
                continue;
            }
            pair.put(&mut bytes, u64::from(one.0));
            if volume.geometry.features.incompat.contains(floe_format::features::Incompat::FILETYPE)
            {
                let type_at = pair.at + 7;
                if let (Some(byte), Some(file_type)) = (bytes.get_mut(type_at), file_type) {
                    *byte = if file_type == FileType::Directory { 2 } else { file_type as u8 };
                }
            }
            changed += 1;
        }
        put(volume, place, at, &bytes, seal)?;
    }
    Ok(format!("{changed} entries name {one}{}", sealed(seal)))
}
