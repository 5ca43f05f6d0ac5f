//! The plain case: a file or directory of a few extents in its inode, with no attributes but in the
//! inode, in the way that nearly all are. It is judged in one go, and what it leaves is noted without the general path.
//! Reads: the inode.  Keeps: claims, directory runs, totals; the caller keeps type and links.
//! Emits: nothing. An inode that is not plain in every way that is tested here may be sound or not:
//! `checks/inode/inodes.rs` says. A plain one leaves exactly what it would leave there
//! (`tests/all/shortcuts.rs`).

use floe_format::ext::extent::{Extent, ExtentNode, MAGIC, MAX_INIT_LEN};
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::ext::inode256::Inode256;
use floe_format::ext::superblock::OS_LINUX;
use floe_format::features::{Compat, Incompat, RoCompat};
use floe_format::native::backpointer::EXTRA_ISIZE;
use floe_format::{BlockRun, InodeNr};

use crate::checks::context::inode::InodeEvidence;
use crate::checks::inode::inode_times;
use crate::checks::mapping::extents::LOGICAL_LIMIT;
use crate::checks::mapping::mapper::last_dir_block;
use crate::checks::xattr;
use crate::evidence::dirs::{DirFlags, DirInfo, DirRun};
use crate::evidence::inode_facts::Facts;
use crate::evidence::quota_usage::Usage;
use crate::evidence::region::Region;
use crate::volume::Volume;

/// Extents that fit in an inode.
const IN_INODE: u16 = 4;

/// Flags that no check asks for.
const HARMLESS: InodeFlags = InodeFlags::SYNC
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::JOURNAL_DATA)
    .union(InodeFlags::NOTAIL)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR);

/// The rules by which an inode of one file system counts as plain.
#[derive(Clone, Copy)]
pub struct PlainInodes<'v> {
    volume: &'v Volume<'v>,
    with_checksums: bool,
    /// Flags that a plain directory may have besides those of a file.
    dir_flags: InodeFlags,
    /// Sectors of 512 bytes in a block.
    sectors_per_block: u64,
    /// `log2` of the block size.
    block_bits: u32,
    /// The last logical block that a directory may have.
    dir_limit: u64,
    /// First block that a file may have; blocks from `blocks_end` on are outside.
    blocks_start: u64,
    blocks_end: u64,
    /// Whether it is counted what each owner uses.
    with_quota: bool,
    /// Whether projects are such owners.
    with_projects: bool,
    /// Inodes above the reserved ones that have a role.
    with_role: [u32; 2],
    /// See [`Volume::ordinary_from`].
    ordinary_from: u32,
}

/// A plain inode: what it leaves.
#[derive(Clone, Copy, Debug)]
pub struct PlainInode<'a> {
    inode: Inode256<'a>,
    number: InodeNr,
    file_type: FileType,
    blocks: u64,
    fragments: u64,
}

impl<'v> PlainInodes<'v> {
    /// The rules of a file system; `None` where every inode needs the general path.
    pub fn of(volume: &'v Volume<'v>) -> Option<Self> {
        let geometry = &volume.geometry;
        let sb = &volume.superblock;
        let usual = volume.mode.shortcuts
            && geometry.inode_size == 256
            && geometry.cluster_bits == 0
            && volume.has_incompat(Incompat::EXTENTS)
            && sb.creator_os == OS_LINUX
            && volume.orphans.is_empty();
        let indexed = volume.has_compat(Compat::DIR_INDEX);
        let with_role = [sb.orphan_file_inum, sb.prj_quota_inum];
        usual.then_some(Self {
            volume,
            with_checksums: volume.features().metadata_csum(),
            dir_flags: if indexed { InodeFlags::INDEX } else { InodeFlags::empty() },
            sectors_per_block: u64::from(geometry.block_size / 512),
            block_bits: geometry.block_size.trailing_zeros(),
            // Plenty for a plain one with large_dir, too.
            dir_limit: last_dir_block(volume),
            // Block 0 is nobody's, whatever the first data block.
            blocks_start: geometry.first_data_block.0.max(1),
            blocks_end: geometry.blocks_count,
            with_quota: volume.has_ro_compat(RoCompat::QUOTA),
            with_projects: volume.has_ro_compat(RoCompat::PROJECT),
            with_role,
            ordinary_from: volume.ordinary_from(&with_role),
        })
    }

    /// Which of at most 64 inodes in a row, from `first` on, have the right checksum, or need none: the
    /// first one's is the lowest bit. Their bytes are as before in the end.
    #[inline]
    pub fn checksums_ok(&self, first: InodeNr, raws: &mut [u8]) -> u64 {
        let seed = self.volume.seed;
        if !self.with_checksums {
            u64::MAX
        } else if self.volume.mode.sums_together {
            Inode256::checksums_ok_together(raws, seed, first)
        } else {
            Inode256::checksums_ok(raws, seed, first)
        }
    }

    /// The inode, if it is plain. Its checksum was found right ([`Self::checksums_ok`]); `region` is room to
    /// work in.
    #[inline]
    pub fn judge<'a>(
        &self,
        number: InodeNr,
        raw: &'a [u8; 256],
        region: &mut Region,
    ) -> Option<PlainInode<'a>> {
        let inode = Inode256::new(raw);
        let file_type = FileType::of_mode(inode.mode())?;
        let is_dir = file_type == FileType::Directory;
        if !is_dir && file_type != FileType::Regular {
            return None;
        }
        let allowed = if is_dir { HARMLESS.union(self.dir_flags) } else { HARMLESS };
        let plain = inode.links_count() != 0
            && InodeFlags::from_bits_retain(inode.flags()).difference(allowed)
                == InodeFlags::EXTENTS
            && inode.rarely_set() == 0
            && inode.size_lo() < 1 << 31
            // Those of Linux, and those with room for a backpointer.
            && matches!(inode.extra_isize(), 28 | 32 | EXTRA_ISIZE)
            && !inode_times::any_is_doubtful(inode.extra_times())
            && (number.0 >= self.ordinary_from || self.is_ordinary(number));
        if !plain {
            return None;
        }
        let (blocks, fragments) = self.judge_extents(&inode, is_dir)?;
        if self.volume.cubes.is_some() && self.leaves_its_cube(number, &inode) {
            return None;
        }
        let sound = u64::from(inode.blocks_lo()) == blocks * self.sectors_per_block
            && (!inode.has_xattrs() || xattr::are_plain(number, inode.xattr_area(), region));
        sound.then_some(PlainInode { inode, number, file_type, blocks, fragments })
    }

    /// Whether some extent lies in another cube than the inode.
    #[cold]
    fn leaves_its_cube(&self, number: InodeNr, inode: &Inode256<'_>) -> bool {
        let (Some(cubes), Some(root)) = (&self.volume.cubes, ExtentNode::new(inode.block())) else {
            return true;
        };
        let mut runs = (0..root.header().entries).map(|at| root.extent(at).run);
        runs.any(|run| cubes.left_by(&self.volume.geometry, number, run).is_some())
    }

    /// Whether an inode is neither reserved nor has a role.
    fn is_ordinary(&self, number: InodeNr) -> bool {
        !self.volume.geometry.is_reserved(number) && !self.with_role.contains(&number.0)
    }

    /// Blocks and fragments of an inode, if its extents and its size are in order.
    #[inline]
    fn judge_extents(&self, inode: &Inode256<'_>, is_dir: bool) -> Option<(u64, u64)> {
        let root = ExtentNode::new(inode.block())?;
        let header = root.header();
        let usual = header.magic == MAGIC && header.max == IN_INODE && header.depth == 0;
        if !usual || header.entries > IN_INODE {
            return None;
        }
        let (mut blocks, mut fragments) = (0, 0);
        let (mut floor, mut written_end, mut adjacent) = (0, 0, 0);
        for at in 0..header.entries {
            let Extent { logical, run, unwritten } = root.extent(at);
            let inside = run.start.0 >= self.blocks_start && run.end().0 <= self.blocks_end;
            let in_place =
                if is_dir { logical.0 == floor && !unwritten } else { logical.0 >= floor };
            if run.len_blocks == 0 || !inside || !in_place {
                return None;
            }
            blocks += run.len_blocks;
            fragments += u64::from(run.start.0 != adjacent);
            adjacent = run.end().0;
            floor = logical.0 + run.len_blocks;
            if !unwritten {
                written_end = floor;
            }
        }
        let size = u64::from(inode.size_lo());
        if floor > LOGICAL_LIMIT {
            return None;
        }
        let size_fits = if is_dir {
            size == floor << self.block_bits && floor != 0 && floor <= self.dir_limit
        } else {
            // The last written block may be partly behind the end, as e2fsck has it.
            size >= written_end.saturating_sub(1) << self.block_bits
        };
        size_fits.then_some((blocks, fragments))
    }
}

/// Claims the blocks of plain inodes that were not claimed yet.
pub(crate) fn claim_pending(volume: &Volume<'_>, evidence: &mut InodeEvidence) {
    let run = std::mem::take(&mut evidence.buffers.pending);
    evidence.claims.claim(&volume.geometry, run);
}

impl PlainInode<'_> {
    /// `i_links_count`.
    #[inline]
    pub fn links(&self) -> u16 {
        self.inode.links_count()
    }

    /// The facts that later passes need about it.
    #[inline]
    pub fn facts(&self) -> Facts {
        Facts::used(Some(self.file_type))
    }

    /// Notes what the inode leaves.
    #[inline]
    pub fn note(&self, rules: &PlainInodes<'_>, evidence: &mut InodeEvidence) {
        let is_dir = self.file_type == FileType::Directory;
        let totals = &mut evidence.totals;
        totals.inodes_used += 1;
        totals.by_type[self.file_type as usize] += 1;
        totals.blocks_mapped += self.blocks;
        totals.add_fragments(self.fragments, self.blocks, &rules.volume.geometry);
        if rules.with_quota {
            let [user, group] = self.inode.owners();
            let counts_project = rules.with_projects && self.inode.extra_isize() >= 32;
            let project = if counts_project { self.inode.projid() } else { 0 };
            let space_bytes = self.blocks << rules.block_bits;
            evidence
                .quota
                .add_to([user, group, project], Usage { space_bytes, inodes: 1, inline_links: 0 });
        }
        let Some(root) = ExtentNode::new(self.inode.block()) else { return };
        for at in 0..root.header().entries {
            let extent = root.extent(at);
            if evidence.buffers.pending.end() == extent.run.start {
                evidence.buffers.pending.len_blocks += extent.run.len_blocks;
            } else {
                claim_pending(rules.volume, evidence);
                evidence.buffers.pending = extent.run;
            }
            if is_dir {
                self.note_dir_run(&extent, evidence);
            }
        }
        if is_dir {
            // A directory without holes: as many blocks as its size says.
            let size_blocks = self.inode.size_lo() >> rules.block_bits;
            evidence.dirs.infos.push(DirInfo { inode: self.number, size_blocks });
        }
    }

    fn note_dir_run(&self, extent: &Extent, evidence: &mut InodeEvidence) {
        let BlockRun { start, len_blocks } = extent.run;
        let mut flags = DirFlags::default();
        let indexed = InodeFlags::from_bits_retain(self.inode.flags()).contains(InodeFlags::INDEX);
        flags.set(DirFlags::INDEXED, indexed);
        evidence.dirs.runs.push(DirRun {
            block: start,
            dir: self.number,
            generation: self.inode.generation(),
            // Below the limit of a directory; an extent has at most 32,768 blocks.
            logical: extent.logical.0 as u32,
            len_blocks: (len_blocks as u16).min(MAX_INIT_LEN),
            flags,
            judged: false,
        });
    }
}
