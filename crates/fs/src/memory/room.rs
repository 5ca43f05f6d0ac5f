//! Reservations: no change that waits in memory may fail for lack of space when it reaches the disk.
//!
//! Bounds are per object, not per change, so that 100,000 files that wait in one directory hold some thousand blocks: a
//! directory may need twice the bytes of its new entries, because blocks split in halves, and a few levels of its index;
//! content needs its blocks, and its map at worst one extent for each page.

use floe_format::InodeNr;

use super::lower::Facts;
use super::pages::PAGE_BYTES;
use super::record::{Action, BornKind, Record};
use crate::by_number::ByNumber;
use crate::store::Space;

/// Blocks of a directory that grows, besides those of its entries: levels of its index, and a first split.
const BLOCKS_PER_DIRECTORY: u64 = 5;
/// Blocks of a map of extents, besides its leaves.
const BLOCKS_PER_FILE: u64 = 5;
/// Pages of which a leaf of a map holds the extents, at least (blocks of 1 KiB have 84).
const PAGES_PER_LEAF: u64 = 64;
/// Blocks that nobody reserves: what several objects share.
const SLACK_BLOCKS: u64 = 64;
/// Targets of links below this many bytes lie in the inode.
const FAST_TARGET_BYTES: usize = 60;

/// Space that one record may take on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    blocks: u64,
    inodes: u64,
    name: Option<(InodeNr, u64)>,
}

impl Cost {
    pub(crate) fn of(record: &Record) -> Self {
        let (blocks, inodes) = match &record.action {
            Action::Create { kind: BornKind::Directory, .. } => (1, 1),
            Action::Create { kind: BornKind::Symlink(target), .. } => {
                (u64::from(target.len() >= FAST_TARGET_BYTES), 1)
            }
            Action::Create { .. } => (0, 1),
            // A block of attributes, or a copy of one that others use, too.
            Action::SetAttribute { .. } => (1, 0),
            _ => (0, 0),
        };
        Self { blocks, inodes, name: record.new_name() }
    }

    /// Blocks besides those of the directory.
    pub(crate) const fn own_blocks(&self) -> u64 {
        self.blocks
    }

    /// Blocks of so many bytes that the directory takes where nothing else waits.
    pub(crate) fn directory_blocks(&self, block_bytes: u32) -> u64 {
        self.most_blocks(block_bytes) - self.blocks
    }

    pub(crate) const fn inodes(&self) -> u64 {
        self.inodes
    }

    /// Blocks of so many bytes that it takes where nothing else waits.
    pub(crate) fn most_blocks(&self, block_bytes: u32) -> u64 {
        let entry = |bytes: u64| 2 * bytes / u64::from(block_bytes) + BLOCKS_PER_DIRECTORY + 1;
        self.blocks + self.name.map_or(0, |(_, bytes)| entry(bytes))
    }
}

/// Sizes that do not change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    block_bytes: u32,
    cluster_blocks: u64,
}

impl Sizes {
    pub(crate) const fn of(block_bytes: u32, facts: &Facts) -> Self {
        Self { block_bytes, cluster_blocks: facts.cluster_blocks as u64 }
    }

    /// Blocks to lease for something that may take so many.
    pub(crate) const fn to_lease(self, blocks: u64) -> u64 {
        (blocks + SLACK_BLOCKS) * self.cluster_blocks
    }

    /// Blocks to lease for so many pages of a file.
    pub(crate) fn blocks_for_pages(&self, pages: u64) -> u64 {
        self.to_lease(self.most_blocks_for_pages(pages))
    }

    fn blocks_per_page(&self) -> u64 {
        (PAGE_BYTES / u64::from(self.block_bytes)).max(self.cluster_blocks)
    }

    fn most_blocks_for_pages(&self, pages: u64) -> u64 {
        pages * self.blocks_per_page() + pages / PAGES_PER_LEAF + BLOCKS_PER_FILE + 1
    }
}

/// Space of a cube that is free, and space that waiting changes may take.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// As the disk said after the last flush: blocks and inodes; nothing before the first time.
    free: Option<(u64, u64)>,
    /// Blocks that content never gets, free or not.
    kept_blocks: u64,
    blocks: u64,
    inodes: u64,
    /// Bytes of entries that wait, by directory; none is 0.
    names: ByNumber<InodeNr, u64>,
    name_bytes: u64,
    /// Pages that wait. Those that a slot brought are added when it is merged, perhaps after they are on the disk.
    pub(crate) pages: i64,
    /// Files that have some.
    pub(crate) files: u64,
}

impl Room {
    /// Room for the changes of a slot, which has leased nothing yet.
    pub(crate) fn leased() -> Self {
        Self { free: Some((0, 0)), ..Self::default() }
    }

    /// Whether the disk never said what is free.
    pub(crate) const fn is_unknown(&self) -> bool {
        self.free.is_none()
    }

    /// More space is leased.
    pub(crate) const fn lease(&mut self, blocks: u64, inodes: u64) {
        let (before, inodes_before) = self.free();
        self.free = Some((before + blocks, inodes_before + inodes));
    }

    const fn free(&self) -> (u64, u64) {
        match self.free {
            Some(free) => free,
            None => (0, 0),
        }
    }

    /// Blocks and inodes that are free and that no waiting change may take.
    pub(crate) fn left(&self, sizes: Sizes) -> (u64, u64) {
        let kept = self.reserved_blocks(sizes) + self.kept_blocks;
        let (blocks, inodes) = self.free();
        (blocks.saturating_sub(kept), inodes.saturating_sub(self.inodes))
    }

    /// The disk has changed: what is free in the cube, and how many blocks there content never gets.
    pub(crate) const fn note(&mut self, (space, kept_blocks): (Space, u64)) {
        self.free = Some((space.available_blocks, space.free_inodes));
        self.kept_blocks = kept_blocks;
    }

    /// Nothing waits any more.
    pub(crate) fn forget_waiting(&mut self) {
        let (free, kept_blocks) = (self.free, self.kept_blocks);
        *self = Self { free, kept_blocks, ..Self::default() };
    }

    /// Blocks that waiting changes may take.
    pub(crate) fn reserved_blocks(&self, sizes: Sizes) -> u64 {
        let entries = 2 * self.name_bytes / u64::from(sizes.block_bytes);
        let directories = self.names.len() as u64 * BLOCKS_PER_DIRECTORY;
        let pages = self.pages.max(0).cast_unsigned();
        let content = pages * sizes.blocks_per_page();
        let maps = pages / PAGES_PER_LEAF + self.files * BLOCKS_PER_FILE;
        content + (self.blocks + entries + directories + maps) * sizes.cluster_blocks
    }

    /// Inodes that waiting changes may take.
    pub(crate) const fn reserved_inodes(&self) -> u64 {
        self.inodes
    }

    /// Whether there is room for `blocks` more, and for `inodes`.
    pub(crate) fn has(&self, sizes: Sizes, blocks: u64, inodes: u64) -> bool {
        let (free_blocks, free_inodes) = self.free();
        let kept = self.reserved_blocks(sizes) + self.kept_blocks;
        let wanted = kept + sizes.to_lease(blocks);
        wanted <= free_blocks && self.inodes + inodes <= free_inodes
    }

    /// Whether there is room for a record besides what waits.
    pub(crate) fn has_for(&self, sizes: Sizes, cost: &Cost) -> bool {
        self.has(sizes, cost.most_blocks(sizes.block_bytes), cost.inodes)
    }

    /// Whether there is room for so many more pages of a file.
    pub(crate) fn has_for_pages(&self, sizes: Sizes, pages: u64) -> bool {
        self.has(sizes, sizes.most_blocks_for_pages(pages), 0)
    }

    /// Bytes of entries that wait for a directory.
    pub(crate) fn waiting_name_bytes(&self, directory: InodeNr) -> u64 {
        self.names.get(&directory).copied().unwrap_or_default()
    }

    pub(crate) fn take(&mut self, cost: &Cost) {
        self.blocks += cost.blocks;
        self.inodes += cost.inodes;
        if let Some((directory, bytes)) = cost.name {
            *self.names.entry(directory).or_default() += bytes;
            self.name_bytes += bytes;
        }
    }

    pub(crate) fn release(&mut self, cost: &Cost) {
        self.blocks -= cost.blocks;
        self.inodes -= cost.inodes;
        if let Some((directory, bytes)) = cost.name
            && let Some(waiting) = self.names.get_mut(&directory)
        {
            *waiting -= bytes;
            self.name_bytes -= bytes;
            if *waiting == 0 {
                self.names.remove(&directory);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use floe_disk::ops::Reserved;
    use floe_format::ext::superblock::Superblock;

    use super::super::record::OwnedPlace;
    use super::*;
    use crate::{NameHash, Timestamp};

    #[test]
    fn creations_that_wait_hold_little_space_and_give_it_back() {
        let facts = Facts {
            hash: NameHash::of(&Superblock::decode(&[0; 1024])),
            extents: true,
            has_crtime: true,
            cluster_blocks: 1,
            inodes_per_group: 8192,
            quotas: super::super::quotas::Quotas::None,
            immediate: None,
        };
        let (sizes, mut room) = (Sizes::of(4096, &facts), Room::default());
        let costs: Vec<Cost> = (0..100_000u32)
            .map(|number| {
                let name = format!("file number {number:06}").as_bytes().into();
                let action = Action::Create {
                    place: OwnedPlace { directory: InodeNr(2), name },
                    kind: BornKind::Regular,
                    permissions: 0,
                    umask: 0,
                    reserved: Reserved { inode: InodeNr(number), generation: 0 },
                };
                Cost::of(&Record { uid: 0, gid: 0, time: Timestamp::default(), action })
            })
            .collect();
        costs.iter().for_each(|cost| room.take(cost));
        // Issue 22: below 100 MB.
        assert!(room.reserved_blocks(sizes) * 4096 < 100_000_000);
        assert!(
            room.reserved_blocks(sizes) * 4096 > 2 * 100_000 * 26,
            "blocks that split in halves"
        );
        assert_eq!(room.reserved_inodes(), 100_000);
        costs.iter().for_each(|cost| room.release(cost));
        assert_eq!(room.reserved_blocks(sizes), 0);
    }
}
