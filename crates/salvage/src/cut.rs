//! A piece that an image lost from its middle, so that everything behind it lies too early by one same distance.
//!
//! Without a look at that, files behind the cut would be called whole and have the bytes of others. Their metadata tell: each copy of the
//! superblock says in which group it is, the first block of a directory which inode it belongs to, whose map says where it should be,
//! and inodes with checksums say which inodes they are. All of them agree on one distance, or nothing is concluded.

use std::collections::BTreeMap;
use std::ops::Range;

use floe_blockdev::{Gapped, ReadBlocks, SECTOR_BYTES};
use floe_ext4::files::Files;
use floe_ext4::inode_table::inode_offset;
use floe_format::ext::inode::Inode;
use floe_format::ext::superblock::{MAGIC, Superblock, has_magic};
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr, InodeNr};

use crate::frame::{Frame, first_dot};

/// Bytes read at once.
const CHUNK_BYTES: u64 = 1 << 20;
/// Structures that must agree on a distance other than the length that the device lacks.
const WITNESSES: usize = 2;

/// A piece that an image lost from its middle. Bytes are counted in the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Bytes that are missing.
    pub missing_bytes: u64,
    /// Everything before this byte is in its place.
    pub begins_behind_bytes: u64,
    /// Everything from this byte on lies too early. The piece lies between the two.
    pub ends_before_bytes: u64,
}

impl Cut {
    /// The gap that is read in place of the piece: its latest possible place.
    pub(crate) const fn gap(&self) -> Range<u64> {
        self.ends_before_bytes - self.missing_bytes..self.ends_before_bytes
    }

    /// The blocks before the gap whose content may be that of others, because the cut may be before them.
    pub(crate) fn doubtful(&self, geometry: &Geometry) -> BlockRun {
        let size = u64::from(geometry.block_size);
        let (first, end) = (self.begins_behind_bytes / size, self.gap().start.div_ceil(size));
        BlockRun::new(BlockNr(first), end.saturating_sub(first))
    }
}

/// Looks for a cut. Only a device that is shorter than its file system is looked at, once as a whole.
pub(crate) fn find(device: &dyn ReadBlocks, frame: &Frame) -> Option<Cut> {
    let geometry = &frame.geometry;
    let whole = geometry.offset_bytes(BlockNr(geometry.blocks_count));
    let lacks = whole.checked_sub(device.size_bytes()).filter(|lacks| *lacks > 0)?;
    if !frame.has_tables() {
        return None;
    }
    let seen = Seen::on(device, frame);
    let votes = seen.votes(device, frame);
    let most = votes.iter().max_by_key(|(_, votes)| **votes).map(|(distance, _)| *distance);
    let mut tried = most.into_iter().filter(|most| *most < lacks).chain([lacks]);
    tried.find_map(|distance| seen.cut(device, frame, distance, distance == lacks))
}

/// Structures that tell where they belong, with the bytes of the device at which they lie.
#[derive(Default)]
struct Seen {
    /// Copies of the superblock: the byte at which each belongs.
    copies: Vec<(u64, u64)>,
    /// First blocks of directories.
    directories: Vec<(InodeNr, u64)>,
}

impl Seen {
    fn on(device: &dyn ReadBlocks, frame: &Frame) -> Self {
        let mut seen = Self::default();
        let mut chunk = Vec::new();
        for start in (0..device.size_bytes()).step_by(CHUNK_BYTES as usize) {
            let len = CHUNK_BYTES.min(device.size_bytes() - start);
            // At most 1 MiB.
            chunk.resize(len as usize, 0);
            if device.is_hole(start, len) || device.read_at(start, &mut chunk).is_err() {
                continue;
            }
            // A piece of any number of sectors may be missing.
            for (bytes, at) in chunk.chunks_exact(SECTOR_BYTES).zip((start..).step_by(SECTOR_BYTES))
            {
                if has_magic(bytes) {
                    seen.copies.extend(place_of_copy(device, frame, at).map(|place| (place, at)));
                }
                let is_inode = |dot: &InodeNr| dot.0 <= frame.geometry.inodes_count;
                seen.directories.extend(first_dot(bytes).filter(is_inode).map(|dot| (dot, at)));
            }
        }
        seen
    }

    /// How many structures lie too early by each distance, as far as inodes are in their places.
    fn votes(&self, device: &dyn ReadBlocks, frame: &Frame) -> BTreeMap<u64, usize> {
        let files = files(device, frame);
        let directories = self.directories.iter();
        let places = directories.filter_map(|(dot, at)| Some((first_block(&files, *dot)?, *at)));
        let mut votes = BTreeMap::new();
        for (place, at) in self.copies.iter().copied().chain(places) {
            if let Some(distance) = place.checked_sub(at).filter(|distance| *distance > 0) {
                *votes.entry(distance).or_default() += 1;
            }
        }
        votes
    }

    /// The cut of so many bytes, if it is proved.
    fn cut(
        &self,
        device: &dyn ReadBlocks,
        frame: &Frame,
        distance: u64,
        is_what_lacks: bool,
    ) -> Option<Cut> {
        let mut bounds = Bounds::new(frame, distance);
        for (place, at) in &self.copies {
            bounds.note(*place, Superblock::SIZE as u64, *at);
        }
        let shifted = Gapped::new(device, 0..distance);
        let views: [(&dyn ReadBlocks, u64); 2] = [(device, 0), (&shifted, distance)];
        let block = u64::from(frame.geometry.block_size);
        for (view, moved) in views {
            let files = files(view, frame);
            for (dot, at) in &self.directories {
                let Some(place) = first_block(&files, *dot) else { continue };
                let fits = bounds.note(place, block, *at);
                if let Some(place) =
                    inode_offset(*dot, &frame.geometry, &frame.groups).filter(|_| fits)
                {
                    bounds.note(place, 1, place.saturating_sub(moved));
                }
            }
            note_inodes(view, frame, moved, &mut bounds);
        }
        bounds.cut(is_what_lacks)
    }
}

/// How far structures are known to be in their places, and from where on they lie too early.
struct Bounds {
    distance: u64,
    unmoved_end: u64,
    moved_start: u64,
    /// Structures that lie too early.
    moved: usize,
}

impl Bounds {
    fn new(frame: &Frame, distance: u64) -> Self {
        let geometry = &frame.geometry;
        // The frame was read from there.
        let unmoved_end = geometry.offset_bytes(BlockNr(geometry.first_data_block.0 + 1));
        Self { distance, unmoved_end, moved_start: u64::MAX, moved: 0 }
    }

    /// Notes a structure that belongs to a byte and lies at another one. Returns whether it says anything.
    fn note(&mut self, place: u64, len_bytes: u64, at: u64) -> bool {
        if place == at {
            self.unmoved_end = self.unmoved_end.max(place + len_bytes);
        } else if place.checked_sub(at) == Some(self.distance) {
            self.moved_start = self.moved_start.min(place);
            self.moved += 1;
        } else {
            return false;
        }
        true
    }

    fn cut(&self, is_what_lacks: bool) -> Option<Cut> {
        let is_possible = self.unmoved_end.checked_add(self.distance)? <= self.moved_start;
        let is_proved = self.moved >= if is_what_lacks { 1 } else { WITNESSES };
        (is_possible && is_proved).then_some(Cut {
            missing_bytes: self.distance,
            begins_behind_bytes: self.unmoved_end,
            ends_before_bytes: self.moved_start,
        })
    }
}

/// Notes the blocks of inode tables in which a checksum says that an inode in use is that of its place, read as if everything lay too
/// early by `moved` bytes.
fn note_inodes(view: &dyn ReadBlocks, frame: &Frame, moved: u64, bounds: &mut Bounds) {
    let (Some(seed), geometry) = (frame.seed(), &frame.geometry) else { return };
    let size = geometry.inode_size as usize;
    let per_block = geometry.block_size / geometry.inode_size;
    let mut bytes = vec![0; geometry.block_size as usize];
    for (group, desc) in (0..geometry.group_count).map(GroupNr).zip(&frame.groups) {
        for index in 0..geometry.inode_table_blocks {
            let place =
                geometry.offset_bytes(BlockNr(desc.inode_table.0.saturating_add(index.into())));
            if view.read_at(place, &mut bytes).is_err() {
                continue;
            }
            let is_in_use = |(slot, raw): (u32, &[u8])| {
                let number = geometry.inode_at(group, index * per_block + slot);
                let inode = Inode::decode(raw);
                inode.is_some_and(|it| it.base.links_count > 0 && it.checksum_ok(seed, number))
            };
            if (0..).zip(bytes.chunks_exact(size)).any(is_in_use) {
                bounds.note(place, bytes.len() as u64, place.saturating_sub(moved));
            }
        }
    }
}

/// The byte at which a copy of the superblock belongs that lies at a byte of the device; `None` if it is none, or the primary one, of
/// which the journal has copies, too.
fn place_of_copy(device: &dyn ReadBlocks, frame: &Frame, at: u64) -> Option<u64> {
    let mut bytes = [0; Superblock::SIZE];
    device.read_at(at, &mut bytes).ok()?;
    let copy = Superblock::decode(&bytes);
    let group = GroupNr(copy.block_group_nr.into());
    let is_copy = copy.magic == MAGIC && copy.uuid == frame.superblock.uuid && group.0 > 0;
    let is_there = is_copy && group.0 < frame.geometry.group_count;
    let place = frame.geometry.superblock_of(group).filter(|_| is_there)?;
    Some(frame.geometry.offset_bytes(place))
}

fn files<'d>(device: &'d dyn ReadBlocks, frame: &'d Frame) -> Files<'d> {
    Files::new(device, frame.superblock.clone(), frame.geometry.clone(), &frame.groups)
}

/// The byte at which the first block of a directory belongs.
fn first_block(files: &Files<'_>, directory: InodeNr) -> Option<u64> {
    let node = files.node(directory).ok().filter(|node| node.is_directory())?;
    let map = files.map(&node);
    let first = map.extents.first().filter(|extent| extent.logical.0 == 0)?;
    Some(files.geometry().offset_bytes(first.run.start))
}
