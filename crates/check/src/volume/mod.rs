//! The file system under check: its device, superblock, geometry and descriptors.

pub mod cubes;
pub mod descriptors;
pub mod journal;
pub mod layout_map;
pub mod open;

use std::io;
use std::ops::ControlFlow;

use floe_blockdev::ReadBlocks;
use floe_ext4::files::{Files, Node};
use floe_format::crc::Seed;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::ext::superblock::Superblock;
use floe_format::features::{Compat, Features, Incompat, RoCompat};
use floe_format::native::identity::Identity;
use floe_format::native::lot::is_desc_size;
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr, InodeNr};
use floe_sync::Arc;

use crate::evidence::backpointers::Backpointers;
use crate::evidence::bits;
use crate::evidence::choice::LinkStructure;
use crate::evidence::fingerprint::Tables;
use crate::evidence::run_set::RunSet;
use crate::evidence::scope::Scope;
use crate::problem::{Findings, Problem};
use crate::volume::cubes::CubeMap;
use crate::volume::open::Opened;

/// Bytes of one read of blocks that follow each other, but whose number may be any.
const SMALL_READ_BYTES: u32 = 32 << 10;

/// A file system whose superblock and descriptors were read; what every check looks at.
pub struct Volume<'d> {
    /// The device, with the journal already replayed over it where there was one.
    pub device: &'d dyn ReadBlocks,
    /// The superblock in use: the primary one or a backup.
    pub superblock: Superblock,
    /// The geometry derived from it.
    pub geometry: Geometry,
    /// All descriptors.
    pub groups: Vec<GroupDesc>,
    /// The start of all metadata checksums.
    pub seed: Seed,
    /// Clusters of static metadata: superblocks, descriptors, bitmaps, inode tables, MMP block.
    pub metadata: RunSet,
    /// Inodes on the orphan list or in the orphan file that recovery will delete or truncate;
    /// sorted. Empty if recovery must not run (errors recorded) or the list is damaged.
    pub orphans: Vec<InodeNr>,
    /// Seconds since 1970 that count as now.
    pub now_seconds: i64,
    /// Parts that are not trusted.
    pub doubts: Doubts,
    /// How this check works and accounts.
    pub mode: CheckMode,
    /// Compares names with what inodes say, until the directories were read; `None` but in native file systems that are
    /// read as a whole.
    pub backpointers: Option<Backpointers>,
    /// The cubes of a native file system that has some.
    pub cubes: Option<Arc<CubeMap>>,
}

/// Parts of a file system that are not trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doubts {
    /// The block of the superblock in use, if it is a backup.
    pub used_backup: Option<BlockNr>,
    /// The flags of its descriptors: what was never written when it was made.
    pub backup_flags: Vec<u16>,
    /// Blocks of inode tables that are listed as bad: what is in them counts as unreadable; sorted.
    pub bad_table_blocks: Vec<BlockNr>,
    /// Groups whose descriptors fail their checksums; sorted.
    pub distrusted: Vec<GroupNr>,
}

/// How a check works: its shortcuts, and the groups that it accounts for object by object or by sums.
#[derive(Default)]
pub struct CheckMode {
    /// See [`crate::Tuning::shortcuts`].
    pub shortcuts: bool,
    /// Checksums of inodes are looked at many at a time, unless all is to be exact, as for repairs (`docs/fingerprint.md`).
    pub sums_together: bool,
    /// See [`crate::CheckOptions::check_encoding`].
    pub check_encoding: bool,
    /// The groups of which evidence is kept object by object: all, unless sums prove the others.
    pub scope: Scope,
    /// The groups of which claims of clusters are kept one by one: likewise.
    pub claim_scope: Scope,
    /// If a group's fingerprint fails, re-examine both its clusters and its inodes, because a
    /// repair rewrites both bitmaps.
    pub keeps_whole_groups: bool,
    /// The structure that counts links.
    pub links: LinkStructure,
    /// The random numbers of the sums, where there are sums.
    pub tables: Option<Arc<Tables>>,
}

/// Whether a block lies past the end of a device of so many bytes, at least in part.
pub(crate) fn is_absent(geometry: &Geometry, device_bytes: u64, block: BlockNr) -> bool {
    block.0 >= device_bytes / u64::from(geometry.block_size)
}

impl<'d> Volume<'d> {
    /// The volume of an opened file system, and what was found while opening it. `device` is the
    /// one it was opened on.
    pub fn new(device: &'d dyn ReadBlocks, opened: Opened, now_seconds: i64) -> (Self, Findings) {
        let Opened {
            superblock,
            geometry,
            groups,
            layout,
            used_backup,
            backup_flags,
            mut found,
            ..
        } = opened;
        found.0.extend(layout.found.0);
        let mut distrusted: Vec<GroupNr> = found.0.iter().filter_map(of_bad_descriptor).collect();
        distrusted.sort_unstable();
        let volume = Self {
            device,
            seed: superblock.seed(),
            superblock,
            geometry,
            groups,
            metadata: layout.clusters,
            orphans: Vec::new(),
            now_seconds,
            doubts: Doubts { used_backup, backup_flags, bad_table_blocks: Vec::new(), distrusted },
            mode: CheckMode { shortcuts: true, sums_together: true, ..CheckMode::default() },
            backpointers: None,
            cubes: None,
        };
        (volume, found)
    }

    /// Reads files by path and inode, as programs see them.
    pub fn files(&self) -> Files<'_> {
        let (superblock, geometry) = (self.superblock.clone(), self.geometry.clone());
        Files::new(self.device, superblock, geometry, &self.groups)
    }

    /// Whether an inode can be a file that Floe keeps for itself in a native file system: an immutable one of root. Names in
    /// `/.cubes` that lead to other inodes are damaged, because their files may be anybody's.
    pub fn is_own_file(&self, inode: InodeNr) -> bool {
        let is_own = |node: Node| {
            node.in_use()
                && node.uid() == 0
                && node.file_type() == Some(FileType::Regular)
                && node.flags().contains(InodeFlags::IMMUTABLE)
        };
        !self.geometry.is_reserved(inode) && self.files().node(inode).is_ok_and(is_own)
    }

    /// Whether a block of the file system lies past the end of the device, which is one finding of its own
    /// (`filesystem-exceeds-device`) and not one a block.
    pub(crate) fn is_absent(&self, block: BlockNr) -> bool {
        is_absent(&self.geometry, self.device.size_bytes(), block)
    }

    /// Whether all blocks of a group do.
    pub(crate) fn is_group_absent(&self, group: GroupNr) -> bool {
        self.is_absent(self.geometry.group_start(group))
    }

    /// The tables of the sums and the groups of which claims are kept all the same, where there are sums.
    pub fn sums(&self) -> Option<(&Arc<Tables>, &Scope)> {
        self.mode.tables.as_ref().map(|tables| (tables, &self.mode.claim_scope))
    }

    /// The feature words.
    #[inline]
    pub fn features(&self) -> &Features {
        &self.geometry.features
    }

    /// Whether Floe made the file system as a native one (`docs/native.md`).
    pub fn is_native(&self) -> bool {
        is_desc_size(self.geometry.desc_size) && Identity::of(&self.superblock).is_some()
    }

    /// Whether a compat feature is set.
    #[inline]
    pub fn has_compat(&self, feature: Compat) -> bool {
        self.geometry.features.compat.contains(feature)
    }

    /// Whether an incompat feature is set.
    #[inline]
    pub fn has_incompat(&self, feature: Incompat) -> bool {
        self.geometry.features.incompat.contains(feature)
    }

    /// Whether a ro_compat feature is set.
    #[inline]
    pub fn has_ro_compat(&self, feature: RoCompat) -> bool {
        self.geometry.features.ro_compat.contains(feature)
    }

    /// The descriptor of a group; a zeroed one outside the file system.
    #[inline]
    pub fn group(&self, group: GroupNr) -> GroupDesc {
        self.groups.get(group.0 as usize).copied().unwrap_or_default()
    }

    /// The number from which on no inode is reserved, and none is one of these, which have a role.
    pub(crate) fn ordinary_from(&self, with_role: &[u32]) -> u32 {
        let first = self.geometry.first_inode.0;
        with_role.iter().fold(first, |from, role| role.saturating_add(1).max(from))
    }

    /// Whether a group's block bitmap was never written, so that what it would hold is computed. A
    /// descriptor that fails its checksum is not believed: the bitmap is read, as by e2fsck.
    #[inline]
    pub fn block_bitmap_computed(&self, group: GroupNr) -> bool {
        self.group(group).block_uninit() && self.believes_uninit(group)
    }

    /// The implied block bitmap of a group whose bitmap was never written: the clusters of the
    /// group's own metadata. (Such a group must not hold metadata of other groups.) 64 clusters a
    /// word.
    pub fn computed_block_bitmap(&self, group: GroupNr) -> Vec<u64> {
        let geometry = &self.geometry;
        let desc = self.group(group);
        let first = u64::from(group.0) * u64::from(geometry.clusters_per_group);
        let clusters = u64::from(geometry.clusters_of(group));
        let mut words = vec![0u64; clusters.div_ceil(64) as usize];
        let start = geometry.group_start(group);
        let base_blocks = geometry.reserved_gdt_run(group).end().0.saturating_sub(start.0);
        let one = |block: BlockNr| BlockRun::new(block, 1);
        let own = [
            BlockRun::new(start, base_blocks),
            one(desc.block_bitmap),
            one(desc.inode_bitmap),
            BlockRun::new(desc.inode_table, u64::from(geometry.inode_table_blocks)),
        ];
        for run in own {
            if run.len_blocks == 0 || !geometry.contains(run.start) {
                continue;
            }
            let from = geometry.cluster_of(run.start).max(first);
            let last = geometry.cluster_of(BlockNr(run.end().0.saturating_sub(1)));
            // Clusters past the end belong to the next group.
            let end = last.saturating_add(1).min(first + clusters);
            self.mark_metadata(first, from, end.saturating_sub(from), &mut words);
        }
        words
    }

    /// Sets the bits of clusters `from..from + len` that are metadata; `words` begin with cluster
    /// `first`, which is not behind `from`.
    pub(crate) fn mark_metadata(&self, first: u64, from: u64, len: u64, words: &mut [u64]) {
        for (start, len) in self.metadata.runs_in(from, len) {
            // As large as `words` at most, or not set.
            bits::set(words, (start - first) as usize, (start - first + len) as usize);
        }
    }

    /// Whether a group's inode bitmap was never written; see [`Volume::block_bitmap_computed`].
    #[inline]
    pub(crate) fn inode_bitmap_computed(&self, group: GroupNr) -> bool {
        self.group(group).inode_uninit() && self.believes_uninit(group)
    }

    /// Where the bitmaps of blocks and of inodes of a group are that are read: many were never written.
    pub(crate) fn bitmaps_read(&self, group: GroupNr) -> [Option<BlockNr>; 2] {
        let desc = self.group(group);
        [
            (!self.block_bitmap_computed(group)).then_some(desc.block_bitmap),
            (!self.inode_bitmap_computed(group)).then_some(desc.inode_bitmap),
        ]
    }

    /// Whether by the backup in use a bitmap was never written. It may have been since: where the group holds nothing that it
    /// would mark, there is no telling, and no harm.
    pub(crate) fn was_unwritten(&self, group: GroupNr, flag: u16) -> bool {
        let flags = self.doubts.backup_flags.get(group.0 as usize).copied().unwrap_or(0);
        flags & flag != 0 && self.features().group_desc_csum()
    }

    /// Whether counts of free blocks and inodes and checksums of bitmaps are judged: only those of the primary superblock and its
    /// descriptors are kept up to date.
    pub(crate) const fn judges_counts(&self) -> bool {
        self.doubts.used_backup.is_none()
    }

    fn believes_uninit(&self, group: GroupNr) -> bool {
        self.features().group_desc_csum() && self.doubts.distrusted.binary_search(&group).is_err()
    }

    /// Reads one block into the first `block_size` bytes of `into`, which is resized to hold it.
    ///
    /// # Errors
    /// `UnexpectedEof` past the end of the device, or what the system said.
    pub fn read_block(&self, block: BlockNr, into: &mut Vec<u8>) -> io::Result<()> {
        self.read_run(BlockRun::new(block, 1), into)
    }

    /// Reads a run of blocks into `into`, which is resized to hold just them.
    ///
    /// # Errors
    /// `UnexpectedEof` past the end of the device, or what the system said.
    pub(crate) fn read_run(&self, run: BlockRun, into: &mut Vec<u8>) -> io::Result<()> {
        let block_size = u64::from(self.geometry.block_size);
        let too_far = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let offset = run.start.0.checked_mul(block_size).ok_or_else(too_far)?;
        let len = run.len_blocks.checked_mul(block_size).ok_or_else(too_far)?;
        into.resize(usize::try_from(len).map_err(|_| too_far())?, 0);
        self.device.read_at(offset, into)
    }

    /// Hands the blocks of a run to `each` in order, each with its bytes unless it cannot be read, until
    /// that breaks off. Several are read at once, into `room`.
    pub fn blocks_of<B>(
        &self,
        run: BlockRun,
        room: &mut Vec<u8>,
        mut each: impl FnMut(BlockNr, Option<&[u8]>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let size = self.geometry.block_size;
        let step = u64::from((SMALL_READ_BYTES / size).max(1));
        let mut done = 0;
        while done < run.len_blocks {
            let part = BlockRun::new(
                BlockNr(run.start.0.saturating_add(done)),
                step.min(run.len_blocks - done),
            );
            let blocks = (part.start.0..part.start.0.saturating_add(part.len_blocks)).map(BlockNr);
            if self.read_run(part, room).is_ok() {
                for (block, bytes) in blocks.zip(room.chunks_exact(size as usize)) {
                    each(block, Some(bytes))?;
                }
            } else {
                // Only those that fail are lost.
                for block in blocks {
                    let read = self.read_block(block, room).is_ok();
                    each(block, read.then_some(&room[..]))?;
                }
            }
            done += part.len_blocks;
        }
        ControlFlow::Continue(())
    }

    /// Whether a block belongs to static metadata (or shares a cluster with it).
    #[inline]
    pub fn is_metadata(&self, block: BlockNr) -> bool {
        self.geometry.contains(block) && self.metadata.contains(self.geometry.cluster_of(block))
    }

    /// Whether a run lies in the file system and no block of it belongs to static metadata.
    pub fn is_free_of_metadata(&self, run: BlockRun) -> bool {
        let (geometry, last) = (&self.geometry, BlockNr(run.end().0.saturating_sub(1)));
        if run.len_blocks == 0 || !geometry.contains(run.start) || !geometry.contains(last) {
            return false;
        }
        let first = geometry.cluster_of(run.start);
        self.metadata.is_clear_in(first, geometry.cluster_of(last) + 1 - first)
    }

    /// Whether what is found out of an inode is kept: not where sums prove it.
    #[inline]
    pub fn keeps(&self, inode: InodeNr) -> bool {
        self.mode.scope.is_all()
            || self
                .geometry
                .place_of(inode)
                .is_none_or(|(group, _)| self.mode.scope.contains(group))
    }

    /// Whether recovery will delete or truncate an inode.
    pub(crate) fn is_orphan(&self, inode: InodeNr) -> bool {
        self.orphans.binary_search(&inode).is_ok()
    }

    /// Inodes of a group's table that may be in use; see [`used_inodes_bound`].
    pub fn used_inodes_bound(&self, group: GroupNr) -> u32 {
        used_inodes_bound(&self.geometry, &self.group(group))
    }
}

/// Inodes of a group's table that may be in use: none if the table was never initialised, and without
/// the never-used tail, where descriptors have checksums that say so.
pub fn used_inodes_bound(geometry: &Geometry, desc: &GroupDesc) -> u32 {
    let per_group = geometry.inodes_per_group;
    if !geometry.features.group_desc_csum() {
        return per_group;
    }
    if desc.inode_uninit() {
        return 0;
    }
    per_group.checked_sub(desc.itable_unused).unwrap_or(per_group)
}

fn of_bad_descriptor(problem: &Problem) -> Option<GroupNr> {
    match problem {
        Problem::GroupDescriptorChecksumBad { group, .. } => Some(*group),
        _ => None,
    }
}
