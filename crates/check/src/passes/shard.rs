//! One check by many machines (`docs/fleet.md`): the passes of a shard, and the steps that are left to the merge of
//! all parts.
//!
//! A shard is a range of groups. It judges their inodes; and where sums prove what entries name, the directories among
//! these and the bitmaps. A shard does not know the inodes of others. An entry's inode is taken to be of the type that the
//! entry says, as it is where one machine checks by sums; only inodes whose facts are kept (the groups of reserved inodes)
//! have to be compared with that in the end, and if one is not what was assumed, the blocks that name any of them are
//! judged once more.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::ops::Range;

use floe_blockdev::ReadBlocks;
use floe_exec::{Accumulator, Pool};
use floe_format::ext::inode::FileType;
use floe_format::{BlockRun, GroupNr, InodeNr};

use super::pipeline::{Made, Setting, Start, begin_sums, on_recovered};
use super::registry::{DIRECTORIES, Evidence, INODES, Pass};
use super::results::Scan;
use super::{attribute_blocks, inodes, overlap, refine};
use crate::checkpoint::{Found, Part, PartEvidence, Share};
use crate::checks::context::directory::{DirCx, DirEvidence};
use crate::checks::context::inode::Buffers;
use crate::checks::directory::{dirents, inline_dirs};
use crate::checks::space::bitmaps;
use crate::checks::system_files::bad_blocks;
use crate::error::CheckError;
use crate::evidence::claims::Claims;
use crate::evidence::dir_index::DirIndex;
use crate::evidence::dirs::{DirFlags, DirRun};
use crate::evidence::inode_facts::{Facts, InodeFacts};
use crate::evidence::pairs::sort_pairs;
use crate::evidence::policies::Policies;
use crate::options::{CheckOptions, Checkpoints};
use crate::problem::Findings;
use crate::scan::directory_blocks::{DirBlock, scan_runs_if};
use crate::scan::inode_reader::InodeReader;
use crate::scan::inode_tables::{TablePart, blocks_of, table_parts};
use crate::volume::Volume;

/// The weight of a group's bitmaps, in inodes.
const GROUP_WEIGHT: u64 = 8;
/// The weight of a directory's blocks, in inodes.
const DIRECTORY_WEIGHT: u64 = 3;

/// The passes of a shard, in order.
pub const PASSES: [Pass; 4] = [
    Pass {
        name: "superblock",
        reads: "the inode of bad blocks",
        keeps: Evidence::Layout,
        needs: &[],
        estimate: None,
        weight: None,
        run: begin,
    },
    Pass { estimate: None, run: judge_inodes, ..INODES },
    Pass { estimate: None, run: judge_directories, ..DIRECTORIES },
    Pass {
        name: "bitmaps",
        reads: "bitmaps",
        keeps: Evidence::Space,
        needs: &[Evidence::Inodes],
        estimate: None,
        weight: None,
        run: judge_bitmaps,
    },
];

/// Runs one shard of a check of the file system on `device`. Nothing is written. The key of `options`, their time and
/// all that changes what is found must be the same for all shards; `options.checkpoints.keeper` and `options.checkpoints.parts` are not
/// regarded.
///
/// # Errors
/// As [`check`](super::pipeline::check).
pub fn check_shard(
    device: &dyn ReadBlocks,
    options: &CheckOptions<'_>,
    share: Share,
) -> Result<Part, CheckError> {
    let options = CheckOptions { checkpoints: Checkpoints::default(), ..*options };
    let start = |held_bytes| Start::Shard(held_bytes, share);
    let part = on_recovered(device, &options, start, |made| {
        let Made { volume, scan, header, .. } = made;
        let groups = groups_of(&volume, share);
        let parts = parts_of(&volume, &groups);
        let places: Vec<BlockRun> = parts.iter().map(|part| blocks_of(&volume, *part)).collect();
        let evidence = scan.shards.merged.unwrap_or_default();
        let found = Found::Shard(Box::new(evidence));
        let header = header.map(|header| header.in_shards(share.count()));
        header.map(|header| Part::new(header, share, &volume, &places, found))
    })?;
    // A shard has a header.
    part.ok_or(CheckError::Stopped)
}

/// The groups of a shard: as many as have its share of the inodes in use, as descriptors tell.
pub(super) fn groups_of(volume: &Volume<'_>, share: Share) -> Range<u32> {
    let count = volume.geometry.group_count;
    let weight = |group: u32| {
        let (bound, desc) =
            (volume.used_inodes_bound(GroupNr(group)), volume.group(GroupNr(group)));
        let used = volume.geometry.inodes_per_group.saturating_sub(desc.free_inodes_count);
        let used = used.min(bound);
        let directories = desc.used_dirs_count.min(used);
        GROUP_WEIGHT + u64::from(used) + DIRECTORY_WEIGHT * u64::from(directories)
    };
    let all: u64 = (0..count).map(weight).sum();
    // Shards and weights are far below 2^64 each.
    let bound = |index: u32| u128::from(all) * u128::from(index) / u128::from(share.count());
    let (from, to) = (bound(share.index()), bound(share.index() + 1));
    let (mut before, mut groups) = (0u128, 0..0);
    for group in 0..count {
        // A group belongs to the shard in whose stretch its first inode lies.
        if before < from {
            groups = group + 1..group + 1;
        } else if before < to {
            groups.end = group + 1;
        }
        before += u128::from(weight(group));
    }
    groups
}

/// The parts of inode tables of some groups.
fn parts_of(volume: &Volume<'_>, groups: &Range<u32>) -> Vec<TablePart> {
    let mut parts = table_parts(volume);
    parts.retain(|part| groups.contains(&part.group.0));
    parts
}

/// Whether the bitmaps of a group are judged by its shard: where nothing has to be known of others. To be asked
/// before any group is looked at closely.
pub(super) fn has_bitmaps_of(volume: &Volume<'_>, group: GroupNr) -> bool {
    let kept = volume.mode.scope.contains(group) || volume.mode.claim_scope.contains(group);
    volume.mode.tables.is_some() && !kept
}

fn begin(
    volume: &mut Volume<'_>,
    setting: &mut Setting<'_, '_, '_>,
    scan: &mut Scan,
) -> Result<(), CheckError> {
    // The merge reports faults of the layout.
    volume.doubts.bad_table_blocks = bad_blocks::check(volume, &mut Findings::default());
    begin_sums(volume, setting);
    scan.shards.merged = Some(PartEvidence::default());
    Ok(())
}

fn judge_inodes(
    volume: &mut Volume<'_>,
    setting: &mut Setting<'_, '_, '_>,
    scan: &mut Scan,
) -> Result<(), CheckError> {
    let parts = parts_of(volume, &setting.groups(volume));
    let mut all = inodes::run_share(volume, &parts, setting.pool);
    attribute_blocks::check_share(volume, &mut all, setting.pool);
    all.dirs.sort(&setting.pool.watched(None));
    all.policies.sort();
    all.buffers = Buffers::default();
    scan.inodes = all;
    Ok(())
}

fn judge_directories(
    volume: &mut Volume<'_>,
    setting: &mut Setting<'_, '_, '_>,
    scan: &mut Scan,
) -> Result<(), CheckError> {
    if volume.mode.tables.is_none() {
        return Ok(());
    }
    let (index, facts) = (DirIndex::by_inode(), InodeFacts::default());
    let (policies, references) = (Policies::default(), BTreeMap::new());
    let dirs = &scan.inodes.dirs;
    let cx = DirCx::new(volume, dirs, &index, &facts, &policies, &references).assuming();
    let known = DirIndex::made_by(setting.pool, &dirs.infos);
    let mine = |run: &DirRun| !needs_all(run) && known.get(run.dir).is_some();
    let each = |evidence: &mut DirEvidence, block: DirBlock<'_>| {
        dirents::check_block(&cx, &block, evidence);
    };
    let mut found = scan_runs_if(volume, &index, &dirs.runs, mine, setting.pool, each);
    let (left, inline) = inline_of(volume, scan);
    found.merge(inline_dirs::run_over(&cx, &inline, setting.pool));
    // In order they take few bytes, and the merge, which must look up each, finds them near each other.
    sort_pairs(&mut found.named);
    sort_pairs(&mut found.dotdots);
    if let Some(merged) = &mut scan.shards.merged {
        (merged.directories, merged.left_inline) = (found, left);
    }
    Ok(())
}

/// Whether only the merge, which knows all inodes, can judge these blocks: the policies of other inodes decide
/// which of them an encrypted directory may name.
fn needs_all(run: &DirRun) -> bool {
    run.flags.contains(DirFlags::ENCRYPTED)
}

/// The inline directories that are left to the merge for the same reason, and the others.
fn inline_of(volume: &Volume<'_>, scan: &Scan) -> (Vec<InodeNr>, Vec<InodeNr>) {
    let inline = scan.inodes.dirs.inline.iter().copied();
    let inline = inline.filter(|dir| scan.inodes.dirs.index_of(*dir).is_some());
    let uses = &scan.inodes.attributes.block_uses;
    if scan.inodes.policies.is_empty() && !uses.iter().any(|of| of.wants_context) {
        return (Vec::new(), inline.collect());
    }
    let mut reader = InodeReader::default();
    inline.partition(|&dir| {
        use floe_format::ext::inode::InodeFlags;
        let inode = reader.read(volume, dir);
        inode.is_some_and(|inode| inode.flags().contains(InodeFlags::ENCRYPT))
    })
}

fn judge_bitmaps(
    volume: &mut Volume<'_>,
    setting: &mut Setting<'_, '_, '_>,
    scan: &mut Scan,
) -> Result<(), CheckError> {
    let mut merged = scan.shards.merged.take().unwrap_or_default();
    merged.inodes = take(&mut scan.inodes);
    if volume.mode.tables.is_some() {
        // The counts stay: whoever looks closer at a group needs them, too.
        let dirs = merged.inodes.sums.clone().take_dirs(&volume.geometry);
        let groups = setting.groups(volume);
        let mine = |group: GroupNr| groups.contains(&group.0) && has_bitmaps_of(volume, group);
        let (facts, claims) = (InodeFacts::default(), Claims::default());
        merged.bitmaps = bitmaps::check_where(volume, &facts, &claims, &dirs, setting.pool, mine);
    }
    scan.shards.merged = Some(merged);
    Ok(())
}

/// Completes the evidence of all directories: settles ranks and assumptions of `found`, the evidence of shards, now
/// that all inodes are known, and judges the directories that shards could not, `left_inline` among them.
pub(super) fn complete_directories(
    cx: &DirCx<'_>,
    found: DirEvidence,
    left_inline: &[InodeNr],
    pool: &Pool,
) -> DirEvidence {
    let mut all = found;
    overlap::settle_ranks(cx, &mut all);
    let assumed = take(&mut all.assumed);
    let is_so = |&(inode, named_as): &(InodeNr, u8)| {
        cx.facts.get(inode) == Facts::used(FileType::of_entry(named_as))
    };
    if !assumed.iter().all(is_so) {
        judge_again(cx, &mut all, left_inline, pool);
    }
    let left: Vec<DirRun> = cx.dirs.runs.iter().filter(|run| needs_all(run)).copied().collect();
    all.merge(refine::judge_some(cx, &left, &[], pool));
    let left: BTreeSet<InodeNr> = left_inline.iter().copied().collect();
    let left: Vec<InodeNr> = left.into_iter().filter(|dir| cx.index.get(*dir).is_some()).collect();
    all.merge(inline_dirs::run_over(cx, &left, pool));
    all
}

/// Judges the blocks again that name inodes of which facts are kept, as one of these is not what was assumed of it.
fn judge_again(cx: &DirCx<'_>, all: &mut DirEvidence, left_inline: &[InodeNr], pool: &Pool) {
    let volume = cx.volume;
    let groups: BTreeSet<GroupNr> = (0..volume.geometry.group_count)
        .map(GroupNr)
        .filter(|group| volume.mode.scope.contains(*group))
        .collect();
    let mut runs = refine::naming(cx, all, &groups);
    runs.retain(|run| !needs_all(run));
    let inline: Vec<InodeNr> =
        cx.dirs.inline.iter().copied().filter(|dir| !left_inline.contains(dir)).collect();
    let before = refine::judge_some(&cx.assuming(), &runs, &inline, pool);
    let now = refine::judge_some(cx, &runs, &inline, pool);
    for (group, sum) in before.sums.not_zero() {
        all.sums.add(group.0, sum.wrapping_neg());
    }
    all.sums.merge(now.sums.clone());
    // All that names an inode which is counted was judged again.
    all.links = now.links.emptied();
    refine::replace(all, before, now, &volume.geometry, &groups);
}
