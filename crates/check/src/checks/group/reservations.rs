//! Check: reservation files of native file systems (`docs/native.md`) hold free blocks of their regions, and nothing else.
//! Reads: the root, `/.cubes` and `/.cubes/c0`, the inode and map of each reservation file, the bitmaps of regions.
//! Keeps: nothing.  Emits: `LotRecordWrong`, `ReservationFileMissing`, `ReservationFileUnnamed`, `ReservationFileWrong`,
//! `RegionNotReserved`.
//! Does not verify: that blocks have one owner (shared blocks), that bitmaps are right (`checks/space/bitmaps/`).

use std::collections::BTreeMap;

use floe_ext4::files::{Files, Node};
use floe_format::ext::bitmap;
use floe_format::ext::group_desc::{DescChecksum, GroupDesc};
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::native::cube::SUPER_NAME;
use floe_format::native::identity::{FLAG_RESERVED, HOME_NAME, Identity, ROOT_CUBE_NAME};
use floe_format::native::lot::LotRecord;
use floe_format::{BlockNr, BlockRun, GroupNr, InodeNr};

use crate::problem::{Findings, Problem, Sink};
use crate::volume::Volume;
use crate::volume::cubes::is_sealed;

/// The directories and reservation files of a native file system, found by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnFiles {
    /// `/.cubes`; `None` if there is no such directory, or it is somebody else's.
    pub home: Option<InodeNr>,
    /// Whether the name `.cubes` in the root leads to something else.
    pub is_taken: bool,
    /// `/.cubes/c0`; `None` if there is no such directory.
    pub cube: Option<InodeNr>,
    /// All names in `/.cubes`.
    pub in_home: BTreeMap<Vec<u8>, InodeNr>,
    /// The reservation file of each lot that has one, `/.cubes/c0/region.LOT`.
    pub by_lot: BTreeMap<u32, InodeNr>,
}

impl OwnFiles {
    /// Looks the names up. `None` if one of the directories is damaged, so that a missing name proves nothing.
    pub fn of(volume: &Volume<'_>) -> Option<Self> {
        let files = volume.files();
        let mut own = Self::default();
        let Some(home) = named(&files, &names(&files, InodeNr::ROOT)?, HOME_NAME)? else {
            return Some(own);
        };
        let in_home = if home.is_directory() { names(&files, home.number)? } else { Names::new() };
        if !is_own_directory(&home) && !holds_own_files(volume, &files, &in_home)? {
            // If it is Floe's, its type is damaged.
            own.is_taken = !volume.is_own_file(home.number);
            return Some(own);
        }
        own.home = Some(home.number);
        own.in_home = in_home;
        let cube = named(&files, &own.in_home, ROOT_CUBE_NAME)?;
        own.cube = cube.filter(Node::is_directory).map(|cube| cube.number);
        if let Some(cube) = own.cube {
            own.by_lot = by_lot(names(&files, cube)?);
        }
        Some(own)
    }

    /// `/.cubes/super`; `None` if there is no such name.
    pub fn super_file(&self) -> Option<InodeNr> {
        self.in_home.get(SUPER_NAME).copied()
    }
}

/// The reservation files that a directory names, by their lots.
fn by_lot(names: Names) -> BTreeMap<u32, InodeNr> {
    let lot = |name: &[u8]| {
        let lot = name.strip_prefix(b"region.").and_then(|lot| std::str::from_utf8(lot).ok());
        lot.and_then(|lot| lot.parse().ok())
    };
    names.into_iter().filter_map(|(name, inode)| Some((lot(&name)?, inode))).collect()
}

/// The reservation files that a directory of a native file system names, by their lots; empty if it is none, or somebody else's.
pub fn reservations_in(volume: &Volume<'_>, inode: InodeNr) -> BTreeMap<u32, InodeNr> {
    let files = volume.files();
    let is_own = files.node(inode).is_ok_and(|node| is_own_directory(&node));
    let names = if is_own { names(&files, inode) } else { None };
    names.map(by_lot).unwrap_or_default()
}

/// Whether a directory belongs to the file system: Floe makes its own immutable, for root.
pub fn is_own_directory(node: &Node) -> bool {
    node.in_use()
        && node.is_directory()
        && node.uid() == 0
        && node.flags().contains(InodeFlags::IMMUTABLE)
}

/// Whether names that only `/.cubes` has lead to what Floe made; `None` if that cannot be read.
fn holds_own_files(volume: &Volume<'_>, files: &Files<'_>, in_home: &Names) -> Option<bool> {
    let cube = named(files, in_home, ROOT_CUBE_NAME)?;
    let own_super = in_home.get(SUPER_NAME).is_some_and(|file| volume.is_own_file(*file));
    Some(own_super || cube.is_some_and(|cube| is_own_directory(&cube)))
}

type Names = BTreeMap<Vec<u8>, InodeNr>;

/// The names in a directory; `None` if part of it is damaged.
fn names(files: &Files<'_>, directory: InodeNr) -> Option<Names> {
    let node = files.node(directory).ok()?;
    let listing = files.list(&node).ok()?;
    let is_sound = node.checksum_ok && listing.faults.is_empty();
    is_sound.then(|| listing.entries.into_iter().map(|entry| (entry.name, entry.inode)).collect())
}

/// The inode in use with a name; `Some(None)` if there is none, `None` if it is damaged.
fn named(files: &Files<'_>, names: &Names, name: &[u8]) -> Option<Option<Node>> {
    let Some(&inode) = names.get(name) else { return Some(None) };
    let node = files.node(inode).ok()?;
    if !node.in_use() {
        return Some(None);
    }
    node.checksum_ok.then_some(Some(node))
}

/// Checks the reservation file of each lot in `records`, which are right otherwise.
pub(super) fn check(
    volume: &Volume<'_>,
    identity: &Identity,
    own: &OwnFiles,
    records: &[LotRecord],
    found: &mut Findings,
) {
    let files = volume.files();
    let per_lot = volume.geometry.descs_per_block();
    let is_sealed = is_sealed(volume);
    for record in records.iter().filter(|record| record.region_blocks > 0) {
        let (group, inode) = (GroupNr(record.lot * per_lot), InodeNr(record.region_inode));
        if own.by_lot.get(&record.lot) != Some(&inode) {
            if own.cube.is_some() {
                let is_there = is_reservation_file(volume, record.lot, inode);
                found.push(match is_there {
                    true => Problem::ReservationFileUnnamed { group, inode },
                    false => Problem::ReservationFileMissing { group, inode },
                });
            }
            continue;
        }
        let Ok(node) = files.node(inode) else { continue };
        if !node.checksum_ok {
            // Another check reports that.
            continue;
        }
        if is_contradicted(volume, record, &files, &node) {
            let reason =
                "its region is neither that of its reservation file nor that of its backups";
            found.push(Problem::LotRecordWrong { group, reason });
            continue;
        }
        let held = match node.in_use() {
            true => held(&files, &node, region(record)),
            false => Err("it has no links"),
        };
        match held {
            Err(reason) => {
                found.push(Problem::ReservationFileWrong { inode, group, reason });
            }
            Ok(held) => {
                let reserves = identity.flags & FLAG_RESERVED != 0;
                let blocks = lacking(volume, record, &held, reserves, is_sealed);
                if blocks > 0 {
                    found.push(Problem::RegionNotReserved { inode, group, blocks });
                }
            }
        }
    }
}

/// Whether an inode can be the reservation file of a lot: an immutable file of root in the lot, without data. Where a name and a
/// record disagree, this tells which of them is wrong: the file that the wrong one names may be anybody's.
pub fn is_reservation_file(volume: &Volume<'_>, lot: u32, inode: InodeNr) -> bool {
    let per_lot = volume.geometry.descs_per_block();
    let home = volume.geometry.place_of(inode).map(|(group, _)| group.0 / per_lot);
    let everywhere = BlockRun::new(BlockNr(0), volume.geometry.blocks_count);
    let files = volume.files();
    let is_good =
        |node: &Node| node.in_use() && node.checksum_ok && held(&files, node, everywhere).is_ok();
    home == Some(lot)
        && !volume.geometry.is_reserved(inode)
        && files.node(inode).is_ok_and(|node| is_good(&node))
}

/// The metadata region of a lot.
pub fn region(record: &LotRecord) -> BlockRun {
    BlockRun::new(BlockNr(record.region_start), u64::from(record.region_blocks))
}

/// Whether a record has another region than its reservation file says, which the backups of the descriptors have, too. The file alone
/// proves nothing.
fn is_contradicted(
    volume: &Volume<'_>,
    record: &LotRecord,
    files: &Files<'_>,
    node: &Node,
) -> bool {
    let block_bytes = u64::from(volume.geometry.block_size);
    let size_bytes = node.size_bytes();
    let map = files.map(node);
    let is_sound = node.file_type() == Some(FileType::Regular)
        && node.flags().contains(InodeFlags::IMMUTABLE | InodeFlags::EXTENTS)
        && map.faults.is_empty()
        && size_bytes.is_multiple_of(block_bytes);
    if !is_sound {
        return false;
    }
    // Logical blocks of the file count from the beginning of the region.
    let mut starts =
        map.extents.iter().map(|extent| extent.run.start.0.checked_sub(extent.logical.0));
    let len_blocks = size_bytes / block_bytes;
    let Some(start) = starts.next().unwrap_or(Some(record.region_start)) else { return false };
    let stated = BlockRun::new(BlockNr(start), len_blocks);
    if stated == region(record) || !starts.all(|other| other == Some(start)) {
        return false;
    }
    let backups = backups(volume, record.lot);
    !backups.is_empty() && backups.iter().all(|backup| region(backup) == stated)
}

/// The records in the backups of a lot's first descriptor, as far as their checksums are right.
fn backups(volume: &Volume<'_>, lot: u32) -> Vec<LotRecord> {
    let geometry = &volume.geometry;
    let per_lot = geometry.descs_per_block();
    let first = GroupNr(lot * per_lot);
    let checksum = DescChecksum::of(&volume.superblock);
    let mut bytes = Vec::new();
    let groups = [1, per_lot - 1].map(|at| GroupNr(first.0.saturating_add(at)));
    let inside = groups.into_iter().filter(|group| group.0 < geometry.group_count);
    let record = |group: GroupNr| {
        let copy = geometry.group_desc_run(group);
        let is_read = copy.len_blocks > 0 && volume.read_block(copy.start, &mut bytes).is_ok();
        let raw = bytes.get(..geometry.desc_size as usize).filter(|_| is_read)?;
        let fits = checksum.compute(first, raw) == Some(GroupDesc::of(raw).checksum);
        LotRecord::of(raw).filter(|record| fits && record.lot == lot)
    };
    inside.filter_map(record).collect()
}

/// The blocks that a reservation file holds, or why it is none.
fn held(files: &Files<'_>, node: &Node, region: BlockRun) -> Result<Vec<BlockRun>, &'static str> {
    let flags = InodeFlags::IMMUTABLE | InodeFlags::EXTENTS;
    if node.file_type() != Some(FileType::Regular) || !node.flags().contains(flags) {
        return Err("it is not an immutable file with extents");
    }
    if node.uid() != 0 {
        return Err("it does not belong to root");
    }
    let map = files.map(node);
    if !map.faults.is_empty() {
        return Err("its map is damaged");
    }
    for extent in &map.extents {
        if !extent.unwritten {
            return Err("it holds data");
        }
        if extent.run.start < region.start || extent.run.end() > region.end() {
            return Err("it holds blocks outside the region");
        }
    }
    Ok(map.extents.iter().map(|extent| extent.run).collect())
}

/// Blocks that a reservation file lacks. While `reserves` is set, it holds all blocks from `region_used` on, because nobody
/// but Floe empties it. While the seal holds, nobody has freed other blocks either.
fn lacking(
    volume: &Volume<'_>,
    record: &LotRecord,
    held: &[BlockRun],
    reserves: bool,
    is_sealed: bool,
) -> u64 {
    if !reserves {
        return 0;
    }
    let region = region(record);
    let tail = BlockNr(region.start.0 + u64::from(record.region_used.min(record.region_blocks)));
    let held_in_tail: u64 =
        held.iter().map(|run| run.end().0.saturating_sub(run.start.max(tail).0)).sum();
    let of_tail = (region.end().0 - tail.0).saturating_sub(held_in_tail);
    if of_tail > 0 || !is_sealed { of_tail } else { free_in(volume, region) }
}

/// Blocks of a region that the bitmaps call free, in groups whose bitmaps can be read.
fn free_in(volume: &Volume<'_>, region: BlockRun) -> u64 {
    let geometry = &volume.geometry;
    let mut free = 0;
    let mut bytes = Vec::new();
    let mut at = region.start;
    while at < region.end() {
        let Some(group) = geometry.group_of(at) else { break };
        let home = geometry.blocks_of(group);
        let end = region.end().min(home.end());
        let is_read = !volume.block_bitmap_computed(group)
            && volume.read_block(volume.group(group).block_bitmap, &mut bytes).is_ok();
        if is_read {
            // Both lie in the group, and native file systems have no clusters.
            let bits = (at.0 - home.start.0) as u32..(end.0 - home.start.0) as u32;
            free += u64::from(bits.end - bits.start - bitmap::count(&bytes, bits));
        }
        at = end;
    }
    free
}
