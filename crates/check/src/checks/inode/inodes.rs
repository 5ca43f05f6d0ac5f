//! Check: what an inode alone can prove.
//! Reads: the inode and its map nodes.  Keeps: type, links, claims, directory runs, quota use.
//! Emits: `Inode*`, `RootInode*`, `ReservedInode*`, and what the modules it calls emit.
//! Does not verify: names (`passes/directories.rs`), link counts (`checks/directory/link_counts.rs`), attribute blocks
//! (`checks/xattr/mod.rs`, after the pass), shared blocks (`checks/space/shared_blocks.rs`).

use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::ext::superblock::{OS_HURD, OS_LINUX};
use floe_format::features::{Compat, Incompat, RoCompat};
use floe_format::{InodeNr, LogicalBlock};

use crate::checks::context::inode::{InodeCx, InodeEvidence};
use crate::checks::inode::table_block::TableContext;
use crate::checks::inode::{
    inline_data, inode_sizes, inode_times, linux_refuses, special_files, symlinks,
};
use crate::checks::mapping::mapper::{Mapper, Mapping};
use crate::checks::mapping::{block_map, extents};
use crate::checks::system_files::reserved_inodes::{self, Role};
use crate::checks::xattr::{self, OfInode, encryption};
use crate::evidence::dirs::{DirFlags, DirInfo};
use crate::evidence::inode_facts::Facts;
use crate::evidence::quota_usage::Usage;
use crate::evidence::totals::Totals;
use crate::problem::{Findings, Problem, Sink};
use crate::volume::Volume;

/// Checks one inode and says what later passes must know of it.
pub fn check(cx: &InodeCx<'_>, table: TableContext<'_>, evidence: &mut InodeEvidence) -> Facts {
    let base = &cx.inode.base;
    let role = reserved_inodes::role_of(cx);
    if base.links_count == 0 && role == Role::Ordinary && is_zero(cx.inode.raw) {
        return Facts::default();
    }
    let checksum_ok = check_checksum(cx, evidence);
    if base.links_count > 0 && table.is_garbage(cx, checksum_ok) {
        let block = table.block();
        evidence.found.push(Problem::InodeBlockGarbage { inode: cx.number, block });
        return Facts::used(cx.inode.file_type()).with_bad();
    }
    // Among inodes with a role, only the orphan file may be deleted like an ordinary file.
    let deleted = base.links_count == 0 && !cx.volume.geometry.is_reserved(cx.number);
    match role {
        Role::Ordinary | Role::Root => check_named(cx, role, evidence),
        Role::OrphanFile if deleted => check_named(cx, Role::Ordinary, evidence),
        Role::BadBlocks => {
            check_dtime(cx, evidence);
            reserved_inodes::check_bad_blocks(cx, evidence);
            encryption::check_casefold(cx, evidence);
            Facts::used(None)
        }
        _ => {
            check_dtime(cx, evidence);
            // An unused inode with a role counts as deleted, unless it has a link.
            let in_use = reserved_inodes::check(cx, role, evidence);
            if in_use {
                linux_refuses::check(cx, role, evidence);
            }
            if in_use || base.links_count > 0 {
                // Whatever its mode says: no name leads to it, so it is no directory.
                let is_dir = cx.inode.file_type() == Some(FileType::Directory);
                let file_type = if is_dir { Some(FileType::Regular) } else { cx.inode.file_type() };
                check_body(cx, file_type, evidence);
            } else if role == Role::Journal
                && cx.inode.flags().contains(InodeFlags::EXTENTS)
                && !cx.volume.has_incompat(Incompat::EXTENTS)
            {
                // e2fsck looks at the mark of no other inode that is not in use.
                check_extents_flag(cx, evidence);
            }
            if in_use {
                // The inode that reserves blocks for growing is of as many bytes as its map could
                // reach, and counts for e2fsck like any file.
                count_large(cx, cx.inode.file_type(), &mut evidence.totals);
            }
            // Even where the rest is not looked at; the same finding twice is one.
            encryption::check_casefold(cx, evidence);
            inline_data::check_exclusive(cx, evidence);
            Facts::used(None)
        }
    }
}

/// Whether an inode was never used: all its bytes are zero.
#[inline]
fn is_zero(raw: &[u8]) -> bool {
    raw.chunks_exact(8).all(|word| word == [0; 8])
}

/// Problem `inode-checksum-bad`; an inode of zeroes passes. Returns whether it passes.
#[inline]
fn check_checksum(cx: &InodeCx<'_>, evidence: &mut InodeEvidence) -> bool {
    let volume = cx.volume;
    if !volume.features().metadata_csum() {
        return true;
    }
    let (stored, expected) =
        (cx.inode.stored_checksum(), cx.inode.compute_checksum(volume.seed, cx.number));
    let passes = stored == expected || is_zero(cx.inode.raw);
    if !passes {
        evidence.found.push(Problem::InodeChecksumBad { inode: cx.number, stored, expected });
    }
    passes
}

/// Checks the root or an inode that is not reserved.
fn check_named(cx: &InodeCx<'_>, role: Role, evidence: &mut InodeEvidence) -> Facts {
    let base = &cx.inode.base;
    let orphan = cx.volume.is_orphan(cx.number);
    if !orphan {
        check_dtime(cx, evidence);
    }
    if base.links_count == 0 && !orphan {
        if base.dtime == 0 && base.mode != 0 && role == Role::Ordinary {
            evidence.found.push(Problem::DeletedInodeDtimeMissing { inode: cx.number });
        }
        return Facts::default();
    }
    let file_type = cx.inode.file_type();
    if role == Role::Root && file_type != Some(FileType::Directory) {
        let mode = base.mode;
        evidence.found.push(Problem::RootInodeNotDirectory { inode: cx.number, mode });
    }
    count(cx, file_type, &mut evidence.totals);
    check_fields(cx, evidence);
    inode_times::check(cx, evidence);
    if !matches!(file_type, Some(FileType::Directory | FileType::Regular | FileType::Symlink)) {
        check_type(cx, file_type, evidence);
        special_files::check(cx, evidence);
    }
    // Entries of a directory that recovery deletes, `.` and `..`, are no names any more.
    let body_type = if is_leaving(cx) { Some(FileType::Regular) } else { file_type };
    let of_attributes = check_body(cx, body_type, evidence);
    encryption::check(cx, evidence);
    inline_data::check(cx, &of_attributes, evidence);
    if file_type == Some(FileType::Symlink) {
        symlinks::check(cx, &of_attributes, evidence);
    }
    let mut facts = Facts::used(file_type);
    if orphan {
        facts = facts.with_orphan();
    }
    let flags = cx.inode.flags();
    if flags.contains(InodeFlags::EA_INODE) && file_type == Some(FileType::Regular) {
        facts = facts.with_ea_inode();
    }
    if encryption::is_encrypted(cx.number, flags) {
        facts = facts.with_encrypted();
    }
    facts
}

/// Whether an inode is a directory that was removed while open, and that recovery deletes.
fn is_leaving(cx: &InodeCx<'_>) -> bool {
    cx.inode.base.links_count == 0
        && cx.inode.file_type() == Some(FileType::Directory)
        && cx.volume.is_orphan(cx.number)
}

fn count(cx: &InodeCx<'_>, file_type: Option<FileType>, totals: &mut Totals) {
    totals.inodes_used += 1;
    totals.by_type[file_type.map_or(0, |file_type| file_type as usize)] += 1;
    count_large(cx, file_type, totals);
}

/// Counts an inode whose size Linux only allows with the feature `large_file`.
fn count_large(cx: &InodeCx<'_>, file_type: Option<FileType>, totals: &mut Totals) {
    let large = file_type == Some(FileType::Regular) && cx.inode.size_bytes() >= 1 << 31;
    totals.large_files += u64::from(large);
}

/// Deletion times of inodes that are no pending orphans.
#[inline]
fn check_dtime(cx: &InodeCx<'_>, evidence: &mut InodeEvidence) {
    let (inode, dtime) = (cx.number, cx.inode.base.dtime);
    if dtime == 0 {
        return;
    }
    let sb = &cx.volume.superblock;
    let inodes = cx.volume.geometry.inodes_count;
    // A clock that near to 1970 makes honest deletion times look like list members.
    let odd_clock =
        [sb.wtime, sb.mtime, sb.mkfs_time].iter().any(|&time| time != 0 && time < inodes);
    if dtime < inodes && !odd_clock {
        evidence.found.push(Problem::InodeDtimeLooksLikeOrphanLink { inode, dtime });
    }
    if cx.inode.base.links_count == 0 {
        return;
    }
    // `tune2fs` makes files of the file system itself of deleted inodes, and leaves the time.
    let may_have_one = match reserved_inodes::role_of(cx) {
        Role::Ordinary | Role::Root => false,
        Role::OrphanFile => cx.volume.has_compat(Compat::ORPHAN_FILE),
        Role::Quota("project") => cx.volume.has_ro_compat(RoCompat::QUOTA),
        Role::BadBlocks | Role::Journal | Role::Quota(_) | Role::Reserved => true,
    };
    if !may_have_one {
        evidence.found.push(if inode == InodeNr::ROOT {
            Problem::RootInodeDtimeSet { inode, dtime }
        } else {
            Problem::InodeInUseDtimeSet { inode, dtime }
        });
    }
}

/// Fields that must be zero, and flags that need a feature.
fn check_fields(cx: &InodeCx<'_>, evidence: &mut InodeEvidence) {
    let inode = cx.number;
    let base = &cx.inode.base;
    let found = &mut evidence.found;
    let volume = cx.volume;
    if base.faddr != 0 {
        found.push(Problem::InodeFaddrNonzero { inode, value: base.faddr });
    }
    match volume.superblock.creator_os {
        OS_LINUX if base.blocks_high != 0 && !volume.has_ro_compat(RoCompat::HUGE_FILE) => {
            found.push(Problem::InodeBlocksHighNonzero { inode, value: base.blocks_high });
        }
        OS_HURD => {
            let [frag, fsize] = base.blocks_high.to_le_bytes();
            if frag != 0 {
                found.push(Problem::InodeFragNonzero { inode, value: frag });
            }
            if fsize != 0 {
                found.push(Problem::InodeFsizeNonzero { inode, value: fsize });
            }
        }
        _ => {}
    }
    let flags = cx.inode.flags();
    let is_dir = cx.inode.file_type() == Some(FileType::Directory);
    if is_dir && base.size_high != 0 && !volume.has_incompat(Incompat::LARGEDIR) {
        found.push(Problem::DirectorySizeHighNonzero { inode, value: base.size_high });
    }
    if flags.contains(InodeFlags::IMAGIC) && !volume.has_compat(Compat::IMAGIC_INODES) {
        found.push(Problem::ImagicFlagUnsupported { inode });
    }
    if flags.contains(InodeFlags::EA_INODE) && cx.inode.file_type() != Some(FileType::Regular) {
        found.push(Problem::EaInodeFlagOnNonRegular { inode });
    }
}

/// The flag of indexed directories, on reserved inodes too.
fn check_index_flag(cx: &InodeCx<'_>, is_dir: bool, found: &mut Findings) {
    let inode = cx.number;
    if !cx.inode.flags().contains(InodeFlags::INDEX) {
        return;
    }
    if !is_dir {
        found.push(Problem::IndexFlagOnNonDirectory { inode });
    } else if !cx.volume.has_compat(Compat::DIR_INDEX) {
        found.push(Problem::IndexFlagWithoutDirIndex { inode });
    } else if cx.inode.flags().contains(InodeFlags::INLINE_DATA) {
        // Linux lists its names by the index that there is no block for.
        let reason = "its entries lie in the inode";
        found.push(Problem::HtreeRootInvalid { inode, reason });
    }
}

/// An inode that is no file, directory or link: its type may be undefined, or the type may have
/// been overwritten while the first block still holds a directory.
fn check_type(cx: &InodeCx<'_>, file_type: Option<FileType>, evidence: &mut InodeEvidence) {
    let (inode, mode) = (cx.number, cx.inode.base.mode);
    if crate::checks::inode::lost_directory::is_really_directory(cx, file_type, evidence) {
        evidence.found.push(Problem::InodeIsReallyDirectory { inode, mode });
    }
    if file_type.is_none() {
        evidence.found.push(Problem::InodeModeIllegal { inode, mode });
    }
}

/// Attributes, mapping, sizes and use of an inode.
fn check_body(
    cx: &InodeCx<'_>,
    file_type: Option<FileType>,
    evidence: &mut InodeEvidence,
) -> OfInode {
    let of_attributes = xattr::check(cx, evidence);
    let flags = cx.inode.flags();
    let is_dir = file_type == Some(FileType::Directory);
    check_index_flag(cx, is_dir || is_leaving(cx), &mut evidence.found);
    let dir_flags = if is_dir { dir_flags(cx) } else { DirFlags::default() };
    let mapping = map(cx, file_type, dir_flags, evidence);
    let ratio = u64::from(cx.volume.geometry.cluster_blocks);
    let clusters =
        mapping.clusters + of_attributes.clusters + of_attributes.ea_inode_blocks.div_ceil(ratio);
    evidence.totals.blocks_mapped += mapping.clusters * ratio;
    let blocks = mapping.clusters * ratio;
    evidence.totals.add_fragments(mapping.fragments, blocks, &cx.volume.geometry);
    if is_dir {
        add_dir(cx, dir_flags, evidence);
        if !flags.contains(InodeFlags::INLINE_DATA) && !mapping.lost && mapping.last.is_none() {
            let dir = cx.number;
            evidence.found.push(if clusters == 0 {
                Problem::DirectoryWithoutBlocks { inode: dir }
            } else {
                // Nodes of its map, or an attribute block, lead to nothing: not even `.` has a place.
                Problem::DirectoryHole { dir, logical: LogicalBlock(0) }
            });
        }
    }
    if !mapping.lost {
        inode_sizes::check_size(cx, file_type, &mapping, &mut evidence.found);
        inode_sizes::check_block_count(cx, clusters, &mut evidence.found);
    }
    add_usage(cx, clusters, of_attributes.ea_inodes, evidence);
    of_attributes
}

/// Walks the mapping of an inode, whatever its kind; nothing for one that has no blocks.
pub(crate) fn map(
    cx: &InodeCx<'_>,
    file_type: Option<FileType>,
    dir_flags: DirFlags,
    evidence: &mut InodeEvidence,
) -> Mapping {
    let flags = cx.inode.flags();
    let with_extents = cx.volume.has_incompat(Incompat::EXTENTS);
    let inode = cx.number;
    let live = matches!(file_type, Some(FileType::Regular | FileType::Directory));
    if flags.contains(InodeFlags::EXTENTS) && !with_extents {
        // Other reserved inodes without links hold nothing: e2fsck looks at no map that the flag hides.
        let held = cx.inode.base.links_count > 0
            || !cx.volume.geometry.is_reserved(inode)
            || [InodeNr::ROOT, InodeNr::JOURNAL].contains(&inode);
        if !held || !check_extents_flag(cx, evidence) {
            return Mapping { lost: true, ..Mapping::default() };
        }
    }
    if !symlinks::maps_blocks(cx.volume, cx.inode) {
        return Mapping::default();
    }
    if flags.contains(InodeFlags::EXTENTS) {
        return extents::walk(&mut Mapper::new(*cx, file_type, dir_flags, evidence));
    }
    if with_extents && live && !flags.contains(InodeFlags::INLINE_DATA) && extents::root_ok(cx) {
        evidence.found.push(Problem::ExtentsFlagMissing { inode });
        return extents::walk(&mut Mapper::new(*cx, file_type, dir_flags, evidence));
    }
    let mapping = block_map::walk(&mut Mapper::new(*cx, file_type, dir_flags, evidence));
    let bigalloc = cx.volume.has_ro_compat(RoCompat::BIGALLOC);
    let ordinary = inode == InodeNr::ROOT || !cx.volume.geometry.is_reserved(inode);
    if bigalloc && ordinary && live && mapping.clusters > 0 {
        evidence.found.push(Problem::BigallocBlockMappedFile { inode });
    }
    mapping
}

/// Problems of an inode that is marked as mapped by extents, where that feature is off. Returns whether it is.
fn check_extents_flag(cx: &InodeCx<'_>, evidence: &mut InodeEvidence) -> bool {
    let (inode, known) = (cx.number, extents::root_ok(cx));
    evidence.found.push(if known {
        Problem::ExtentsFeatureMissing { inode }
    } else {
        Problem::ExtentsFlagUnsupported { inode }
    });
    known
}

/// The flags of a directory that the directory pass needs.
fn dir_flags(cx: &InodeCx<'_>) -> DirFlags {
    let flags = cx.inode.flags();
    let mut known = DirFlags::default();
    // Also where the feature is missing: index blocks are no lists of entries either way.
    known.set(DirFlags::INDEXED, flags.contains(InodeFlags::INDEX));
    known.set(DirFlags::ENCRYPTED, encryption::is_encrypted(cx.number, flags));
    let casefold = flags.contains(InodeFlags::CASEFOLD);
    known.set(DirFlags::CASEFOLD, casefold && cx.volume.has_incompat(Incompat::CASEFOLD));
    known.set(DirFlags::INLINE, flags.contains(InodeFlags::INLINE_DATA));
    known
}

fn add_dir(cx: &InodeCx<'_>, flags: DirFlags, evidence: &mut InodeEvidence) {
    let size_blocks = cx.inode.size_bytes() / u64::from(cx.volume.geometry.block_size);
    let size_blocks = u32::try_from(size_blocks).unwrap_or(u32::MAX);
    evidence.dirs.infos.push(DirInfo { inode: cx.number, size_blocks });
    if flags.contains(DirFlags::INLINE) {
        evidence.dirs.inline.push(cx.number);
    }
}

/// Adds what the inode uses to its owner, group and project.
fn add_usage(cx: &InodeCx<'_>, clusters: u64, ea_inodes: u64, evidence: &mut InodeEvidence) {
    let volume = cx.volume;
    if !volume.has_ro_compat(RoCompat::QUOTA) {
        return;
    }
    let sb = &volume.superblock;
    let ordinary = cx.number == InodeNr::ROOT || !volume.geometry.is_reserved(cx.number);
    let hidden = [sb.prj_quota_inum, sb.orphan_file_inum].contains(&cx.number.0)
        || cx.inode.flags().contains(InodeFlags::EA_INODE);
    if !ordinary || hidden {
        return;
    }
    let cluster_bytes =
        u64::from(volume.geometry.block_size) * u64::from(volume.geometry.cluster_blocks);
    let inodes = 1 + ea_inodes;
    let is_inline_link = cx.inode.flags().contains(InodeFlags::INLINE_DATA)
        && cx.inode.file_type() == Some(FileType::Symlink);
    let inline_links = if is_inline_link { inodes } else { 0 };
    let usage = Usage { space_bytes: clusters * cluster_bytes, inodes, inline_links };
    let project = if volume.has_ro_compat(RoCompat::PROJECT) && cx.inode.has_extra(32) {
        cx.inode.extra.projid
    } else {
        0
    };
    evidence.quota.add_to([cx.inode.uid(), cx.inode.gid(), project], usage);
}

/// Judges superblock fields that only the evidence of all inodes can disprove.
pub(crate) fn check_totals(volume: &Volume<'_>, totals: &Totals, found: &mut Findings) {
    if totals.large_files > 0 && !volume.has_ro_compat(RoCompat::LARGE_FILE) {
        found.push(Problem::LargeFileFeatureMissing);
    }
    if totals.large_files > 0 && volume.superblock.rev_level == 0 {
        found.push(Problem::RevisionZeroWithLargeFiles);
    }
}
