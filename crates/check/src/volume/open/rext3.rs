//! Whether a file system is rext3, and how large its regions are, where the copies of its superblock disagree about that, or one of them with
//! the disk (`docs/rext3.md`). By a wrong answer headers are taken for pointers, or regions for free space of files, so copies are not
//! believed for their place: what lies on the disk decides, then how many copies say the same.

use std::collections::BTreeSet;

use floe_blockdev::ReadBlocks;
use floe_ext4::inode_table::read_inode;
use floe_format::ext::bitmap;
use floe_format::ext::dirent::DirCursor;
use floe_format::ext::indirect::{Header, IndirectForm, SINGLE, pointers};
use floe_format::ext::inode::Inode;
use floe_format::ext::superblock::{MAGIC, Superblock};
use floe_format::features::{Compat, Incompat, RoCompat};
use floe_format::rext3::{Record, node_header, region_blocks, region_of, usual_region_blocks};
use floe_format::{BlockNr, Geometry, GroupNr, InodeNr};

use super::Opened;
use super::contradicted::Contradicted;

/// Copies of the superblock that are asked at most.
const MOST_COPIES: usize = 16;
/// Groups that are looked at to tell the size of regions, at most, and blocks of each.
const MOST_GROUPS: u32 = 64;
const MOST_BLOCKS: usize = 64;
/// The field that is named where the record is wrong.
const REGION_FIELD: &str = "rext3 region_blocks";

/// The superblock as it must be, if what makes it one of rext3 is lost, there without a reason, or wrong.
pub(super) fn find(device: &dyn ReadBlocks, opened: &Opened) -> Option<Contradicted> {
    let superblock = &opened.superblock;
    let has_bit = superblock.features().incompat.contains(Incompat::REXT3);
    match (has_bit, Record::of(superblock)) {
        (true, Some(record)) => {
            let expected = settled(device, opened, Some(record.region_blocks))?;
            let mut right = superblock.clone();
            Record::new(expected).put(&mut right);
            (expected != record.region_blocks).then_some(Contradicted {
                field: REGION_FIELD,
                stored: record.region_blocks.into(),
                expected: expected.into(),
                superblock: right,
                is_harmless: false,
            })
        }
        (false, Some(record)) => {
            let blocks = settled(device, opened, Some(record.region_blocks));
            Some(with_bit(superblock, blocks.unwrap_or(record.region_blocks)))
        }
        (false, None) if can_be(superblock) => {
            let blocks = settled(device, opened, None)?;
            // Where the journal says otherwise, backups are those of another time.
            (journal_has_headers(device, opened) != Some(false))
                .then(|| with_bit(superblock, blocks))
        }
        _ => None,
    }
}

/// The record that counts, where a backup is in use: the others may say that it is the one that is wrong.
pub(super) fn settle_backup(device: &dyn ReadBlocks, opened: &mut Opened) {
    let Some(own) = region_blocks(&opened.superblock) else { return };
    if let Some(blocks) = settled(device, opened, Some(own)) {
        Record::new(blocks).put(&mut opened.superblock);
    }
}

/// A primary superblock that has the feature without a record, which no backup has either, and whose journal has no header where each one of
/// rext3 has: a flipped bit of another file system. `opened` is that superblock without the bit.
pub(super) fn is_stray_bit(device: &dyn ReadBlocks, opened: &Opened) -> bool {
    let copies = copies(device, opened);
    let is_alone = !copies.is_empty() && copies.iter().all(|copy| !has_trace(copy));
    is_alone && (!can_be(&opened.superblock) || journal_has_headers(device, opened) == Some(false))
}

/// Whether a superblock says in any way that it is of rext3.
fn has_trace(superblock: &Superblock) -> bool {
    superblock.features().incompat.contains(Incompat::REXT3) || Record::of(superblock).is_some()
}

/// Whether the other features are those of rext3, so that only it may be what is lost. Others are not made to pay for a look at a backup.
fn can_be(superblock: &Superblock) -> bool {
    let features = superblock.features();
    features.compat.contains(Compat::HAS_JOURNAL)
        && !features.compat.contains(Compat::RESIZE_INODE)
        && !features.incompat.intersects(Incompat::EXTENTS | Incompat::META_BG)
        && !features.ro_compat.contains(RoCompat::METADATA_CSUM)
}

fn with_bit(superblock: &Superblock, region_blocks: u32) -> Contradicted {
    let stored = superblock.feature_incompat;
    let expected = stored | Incompat::REXT3.bits();
    let mut right = Superblock { feature_incompat: expected, ..superblock.clone() };
    Record::new(region_blocks).put(&mut right);
    Contradicted {
        field: "s_feature_incompat",
        stored: stored.into(),
        expected: expected.into(),
        superblock: right,
        is_harmless: false,
    }
}

/// The other copies of the superblock of this file system.
pub(super) fn copies(device: &dyn ReadBlocks, opened: &Opened) -> Vec<Superblock> {
    let geometry = &opened.geometry;
    let backups = (1..geometry.group_count).filter_map(|at| geometry.superblock_of(GroupNr(at)));
    let others = backups.filter(|block| Some(*block) != opened.used_backup);
    let read = |block| copy_at(device, opened, geometry.offset_bytes(block));
    others.take(MOST_COPIES).filter_map(read).collect()
}

/// The superblock of this file system that lies at a byte of the device.
pub(super) fn copy_at(device: &dyn ReadBlocks, opened: &Opened, at: u64) -> Option<Superblock> {
    let mut bytes = [0; Superblock::SIZE];
    device.read_at(at, &mut bytes).ok()?;
    let copy = Superblock::decode(&bytes);
    (copy.magic == MAGIC && copy.uuid == opened.superblock.uuid).then_some(copy)
}

/// The size of regions that the disk contradicts least, of those that `own` and the copies have; of several the one that most of them have.
/// `None` if no copy says that it is rext3 and neither does `own`.
fn settled(device: &dyn ReadBlocks, opened: &Opened, own: Option<u32>) -> Option<u32> {
    let copies = copies(device, opened);
    let said: Vec<u32> = own.into_iter().chain(copies.iter().filter_map(region_blocks)).collect();
    let values: BTreeSet<u32> = said.iter().copied().collect();
    if values.len() < 2 {
        return values.first().copied();
    }
    let places = places(device, opened, &values);
    let votes = |value: u32| said.iter().filter(|said| **said == value).count();
    let usual = usual_region_blocks(opened.geometry.blocks_per_group);
    values.into_iter().min_by_key(|&value| {
        let misplaced = places.iter().filter(|place| !place.fits(value)).count();
        (misplaced, usize::MAX - votes(value), value != usual)
    })
}

/// A block in use behind the inode table of a group.
struct Place {
    /// Blocks between it and the table.
    behind: u64,
    is_metadata: bool,
    /// Blocks of its group, of those of a whole one.
    group_blocks: u64,
    whole_blocks: u64,
}

impl Place {
    /// Whether regions of so many blocks in a whole group have it on the right side of their end.
    fn fits(&self, region_blocks: u32) -> bool {
        let share = u64::from(region_blocks) * self.group_blocks / self.whole_blocks.max(1);
        (self.behind < share) == self.is_metadata
    }
}

/// Blocks by which sizes of regions differ: those in use behind the smallest, and before the end of the largest.
fn places(device: &dyn ReadBlocks, opened: &Opened, values: &BTreeSet<u32>) -> Vec<Place> {
    let geometry = &opened.geometry;
    let (Some(&least), Some(&most)) = (values.first(), values.last()) else { return Vec::new() };
    let mut places = Vec::new();
    let mut bytes = vec![0; geometry.block_size as usize];
    for (group, desc) in (0..MOST_GROUPS).map(GroupNr).zip(&opened.groups) {
        let (low, high) =
            (region_of(geometry, group, desc, least), region_of(geometry, group, desc, most));
        let home = geometry.blocks_of(group);
        let is_read = high.len_blocks > low.len_blocks
            && geometry.contains(desc.block_bitmap)
            && device.read_at(geometry.offset_bytes(desc.block_bitmap), &mut bytes).is_ok();
        if !is_read {
            continue;
        }
        // Both lie in the group, whose blocks are no clusters.
        let bit = |block: BlockNr| (block.0 - home.start.0) as u32;
        let mut bits = bit(low.end())..bit(high.end());
        let mut used = Vec::new();
        while let Some(at) =
            bitmap::first_set(&bytes, bits.clone()).filter(|_| used.len() < MOST_BLOCKS)
        {
            used.push(BlockNr(home.start.0 + u64::from(at)));
            bits.start = at + 1;
        }
        for block in used {
            if device.read_at(geometry.offset_bytes(block), &mut bytes).is_ok() {
                places.push(Place {
                    behind: block.0 - high.start.0,
                    is_metadata: is_metadata(geometry, &bytes),
                    group_blocks: home.len_blocks,
                    whole_blocks: geometry.blocks_per_group.into(),
                });
            }
        }
    }
    places
}

/// Whether a block looks like an indirect block with a header, or like one of a directory.
fn is_metadata(geometry: &Geometry, bytes: &[u8]) -> bool {
    if node_header(geometry, bytes).is_some() {
        return true;
    }
    let mut entries = 0;
    let is_sound = DirCursor::new(bytes).all(|entry| {
        entries += 1;
        entry.is_ok_and(|entry| entry.inode.0 <= geometry.inodes_count)
    });
    is_sound && entries > 0
}

/// Whether the indirect block of the journal begins with a header, as each one of rext3 does; `None` if it cannot be told. As pointers of
/// ext3 the two words would lead to metadata of the first group.
fn journal_has_headers(device: &dyn ReadBlocks, opened: &Opened) -> Option<bool> {
    let geometry = &opened.geometry;
    let number = InodeNr(opened.superblock.journal_inum);
    let raw = read_inode(number, device, geometry, &opened.groups)?;
    let inode = Inode::decode(&raw)?;
    let block = BlockNr(u64::from(inode.block_word(SINGLE)?));
    let mut bytes = vec![0; geometry.block_size as usize];
    if !geometry.contains(block)
        || device.read_at(geometry.offset_bytes(block), &mut bytes).is_err()
    {
        return None;
    }
    let form = IndirectForm::with_header(geometry.block_size);
    if form.header(&bytes) == Some(Header { inode: number.0, level: 1 }) {
        return Some(true);
    }
    // Data blocks of a journal that others made follow the block that names them.
    let mut named = pointers(&bytes).take(2);
    let is_data = |word: Option<u32>| word.is_some_and(|word| u64::from(word) > desc_end(geometry));
    let is_plain = is_data(named.next()) && is_data(named.next());
    is_plain.then_some(false)
}

/// The last block of the descriptors of the first group.
fn desc_end(geometry: &Geometry) -> u64 {
    geometry.first_data_block.0 + u64::from(geometry.desc_blocks)
}
