//! The file system's own files: root, lost+found, journal, resize inode, quota files, orphan file,
//! and the block of multiple-mount protection.

use std::collections::{BTreeMap, BTreeSet};

use floe_ext4::dir::{Directory, Entry, empty_block, first_block, insert, seal};
use floe_ext4::make::journal_superblock::{EmptyJournal, JournalSize, default_size};
use floe_ext4::make::quota_file::{self, Limits, Usage};
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::ext::jbd2::MIN_JOURNAL_BLOCKS;
use floe_format::ext::mmp::{self, Mmp};
use floe_format::ext::orphan_file;
use floe_format::ext::quota::QuotaKind;
use floe_format::features::{Compat, Incompat, RoCompat};
use floe_format::native::backpointer::Backpointer;
use floe_format::{BlockNr, BlockRun, GroupNr, InodeNr};

use super::frame::set_quota_inode;
use super::inode::NewInode;
use super::map;
use super::native;
use super::params::PlanError;
use super::plan::Plan;

/// Inode of lost+found: the first that is not reserved.
pub(super) const LOST_FOUND: InodeNr = InodeNr(11);

/// Blocks of an orphan file, at most.
const MOST_ORPHAN_BLOCKS: u64 = 512;

/// Order in which mke2fs writes the blocks of 1 KiB of a quota file with a single id.
const QUOTA_ORDER: [u64; 6] = [0, 2, 3, 4, 5, 1];

/// Blocks of lost+found: 16 KiB, but at least two blocks, and at most the number of direct
/// pointers.
pub(super) fn lost_found_blocks(plan: &Plan) -> u64 {
    let block_size = u64::from(plan.geometry.block_size);
    let blocks = (16384 / block_size).clamp(2, 12);
    // With inline data, mke2fs starts from an inline directory, which has no first block.
    blocks - u64::from(plan.params.incompat(Incompat::INLINE_DATA))
}

fn directory(inode: InodeNr) -> Directory {
    Directory { inode, parent: InodeNr::ROOT, generation: 0, encrypted: false, casefolded: false }
}

/// Adds a directory with this content.
fn make_directory(
    plan: &mut Plan,
    inode: InodeNr,
    content: Vec<u8>,
) -> Result<NewInode, PlanError> {
    let block_size = u64::from(plan.geometry.block_size);
    let goal = goal_of(plan, inode);
    let data = plan.metadata(inode, goal, content.len() as u64 / block_size)?;
    let mut new = NewInode::new(FileType::Directory.mode(0o700), plan.time());
    new.size = content.len() as u64;
    new.links = 2;
    map::attach(plan, inode, &mut new, &data, &map::Nodes::Behind)?;
    plan.put(&data, content);
    Ok(new)
}

/// Where the blocks of an inode are sought first: in its group, or at the beginning of its flexible group.
fn goal_of(plan: &Plan, inode: InodeNr) -> BlockNr {
    let group = plan.geometry.place_of(inode).map_or(0, |(group, _)| group.0);
    let flex = 1u32 << plan.superblock.log_groups_per_flex.min(31);
    plan.geometry.group_start(GroupNr(group - group % flex))
}

/// The root of an empty file system.
pub(super) fn root(plan: &mut Plan) -> Result<(), PlanError> {
    let dir = directory(InodeNr::ROOT);
    let format = plan.dir_format.clone();
    let mut content = first_block(&format, &dir);
    let entry = Entry::new(LOST_FOUND, &b"lost+found"[..], FileType::Directory as u8);
    insert(&mut content, dir.form(&format), &entry).ok_or(PlanError::Internal("root block"))?;
    if let Some(entry) = native::home_entry(plan) {
        insert(&mut content, dir.form(&format), &entry).ok_or(PlanError::Internal("root block"))?;
    }
    seal(&mut content, dir.inode_seed(&format));
    let mut root = make_directory(plan, InodeNr::ROOT, content)?;
    root.mode = FileType::Directory.mode(plan.params.root_mode);
    (root.uid, root.gid) = plan.params.root_owner;
    root.links = 3 + u16::from(plan.params.native.is_some());
    plan.add_inode(InodeNr::ROOT, root);
    Ok(())
}

/// An empty lost+found.
pub(super) fn lost_found(plan: &mut Plan) -> Result<(), PlanError> {
    let dir = directory(LOST_FOUND);
    let mut content = first_block(&plan.dir_format, &dir);
    for _ in 1..lost_found_blocks(plan) {
        content.extend(empty_block(&plan.dir_format, &dir));
    }
    let mut found = make_directory(plan, LOST_FOUND, content)?;
    found.backpointer = Some(Backpointer::new(InodeNr::ROOT, b"lost+found"));
    plan.add_inode(LOST_FOUND, found);
    Ok(())
}

/// The resize inode: a map of the reserved descriptor blocks and their copies.
pub(super) fn resize_inode(plan: &mut Plan) -> Result<(), PlanError> {
    if !plan.params.compat(Compat::RESIZE_INODE) {
        return Ok(());
    }
    let geometry = plan.geometry.clone();
    let per_block = geometry.block_size / 4;
    let reserved = geometry.reserved_gdt_run(GroupNr(0));
    let mut new = NewInode::new(FileType::Regular.mode(0o600), plan.time());
    let apb = u64::from(per_block);
    new.size = (12 + apb + apb * apb) * u64::from(geometry.block_size);
    if new.size >= 1 << 31 && !plan.params.old_revision {
        plan.params.features.ro_compat |= RoCompat::LARGE_FILE;
        plan.superblock.feature_ro_compat = plan.params.features.ro_compat.bits();
    }
    // It gets its mapping block even if nothing is reserved.
    let tables = 2
        + geometry.first_data_block.0
        + reserved.len_blocks
        + u64::from(geometry.desc_blocks)
        + u64::from(geometry.inode_table_blocks);
    let double = plan.allocate(BlockNr(tables), 1)?;
    // Linux and e2fsck count from the primary, also where backups lie a block before that place
    // (bigalloc with blocks of 1 KiB).
    let copies: Vec<u64> = (1..geometry.group_count)
        .filter(|group| geometry.reserved_gdt_run(GroupNr(*group)).len_blocks > 0)
        .map(|group| u64::from(group) * u64::from(geometry.blocks_per_group))
        .collect();
    let mut top = vec![0; geometry.block_size as usize];
    for at in 0..reserved.len_blocks {
        let block = BlockNr(reserved.start.0 + at);
        put_pointer(&mut top, (u64::from(geometry.desc_blocks) + at) % apb, block);
        let mut below = vec![0; geometry.block_size as usize];
        for (index, copy) in (0..apb).zip(&copies) {
            put_pointer(&mut below, index, BlockNr(block.0 + copy));
        }
        plan.put(&[BlockRun::new(block, 1)], below);
    }
    put_pointer(&mut new.block, 13, double[0].start);
    // Each block counts as a whole cluster.
    new.blocks =
        u64::from(geometry.cluster_blocks) * (1 + reserved.len_blocks * (1 + copies.len() as u64));
    plan.put(&double, top);
    plan.add_inode(InodeNr::RESIZE, new);
    Ok(())
}

fn put_pointer(bytes: &mut [u8], index: u64, block: BlockNr) {
    let (words, _) = bytes.as_chunks_mut::<4>();
    // The features limit such a file system to 2^32 blocks, which the map can reach.
    if let Some(word) = words.get_mut(index as usize) {
        *word = (block.0 as u32).to_le_bytes();
    }
}

/// The journal, and its copy in the superblock.
pub(super) fn journal(plan: &mut Plan) -> Result<(), PlanError> {
    if !plan.params.compat(Compat::HAS_JOURNAL) {
        return Ok(());
    }
    let Some(size) = journal_size(plan)? else { return Ok(()) };
    // In rext3 its indirect blocks lie in regions, not among its blocks.
    let is_apart = plan.params.incompat(Incompat::EXTENTS) || plan.params.rext3.is_some();
    let count = u64::from(size.blocks);
    let mut new = NewInode::new(FileType::Regular.mode(0o600), plan.time());
    new.size = count * u64::from(plan.geometry.block_size);
    let full = PlanError::Journal { blocks: count };
    // The journal of a native file system belongs to the root cube, whose lots are the first; that of ext3 lies there, too.
    let is_first = plan.params.native.is_some() || plan.params.rext3.is_some();
    let usual = || if is_first { BlockNr(0) } else { middle(plan) };
    let goal = plan.params.journal.location.map_or_else(usual, BlockNr);
    let data = if is_apart {
        let data = plan.allocate(goal, count).map_err(|_| full.clone())?;
        map::attach(plan, InodeNr::JOURNAL, &mut new, &data, &map::Nodes::Before)?;
        data
    } else {
        map::interleaved(plan, InodeNr::JOURNAL, &mut new, count).map_err(|_| full)?
    };
    let journal = EmptyJournal {
        block_size: plan.geometry.block_size,
        size,
        sequence: 1,
        uuid: Some(plan.params.uuid),
    };
    let mut first = journal.superblock().to_vec();
    first.resize(plan.geometry.block_size as usize, 0);
    plan.zero.extend(&data);
    plan.put(&[BlockRun::new(data[0].start, 1)], first);
    let sb = &mut plan.superblock;
    sb.journal_inum = InodeNr::JOURNAL.0;
    sb.jnl_backup_type = 1;
    for (word, bytes) in sb.jnl_blocks.iter_mut().zip(new.block.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    sb.jnl_blocks[15] = (new.size >> 32) as u32;
    sb.jnl_blocks[16] = (new.size & 0xffff_ffff) as u32;
    plan.overhead += count.div_ceil(u64::from(plan.geometry.cluster_blocks));
    plan.add_inode(InodeNr::JOURNAL, new);
    Ok(())
}

/// Blocks of the journal; 0 if there is none.
pub(super) fn journal_blocks(plan: &Plan) -> u64 {
    let wanted = plan.params.compat(Compat::HAS_JOURNAL);
    let usual = default_size(plan.geometry.blocks_count, plan.params.compat(Compat::FAST_COMMIT));
    let Some(usual) = usual.filter(|_| wanted) else { return 0 };
    let asked = plan.params.journal.blocks;
    asked.map_or(u64::from(usual.blocks), |asked| {
        u64::from(asked) + u64::from(fast_commit_blocks(plan, &usual))
    })
}

/// Blocks for fast commits, if the file system has the feature: as many as the usual journal has,
/// however large this one is, if nothing else is asked for.
fn fast_commit_blocks(plan: &Plan, usual: &JournalSize) -> u32 {
    let asked = plan.params.journal.fast_commit_blocks;
    asked.filter(|_| plan.params.compat(Compat::FAST_COMMIT)).unwrap_or(usual.fast_commit_blocks)
}

/// The size of the journal. `None`: the file system is too small for one, and loses the feature.
fn journal_size(plan: &mut Plan) -> Result<Option<JournalSize>, PlanError> {
    let fast = plan.params.compat(Compat::FAST_COMMIT);
    let blocks = plan.geometry.blocks_count;
    let Some(usual) = default_size(blocks, fast) else {
        if plan.params.native.is_some() {
            return Err(PlanError::TooSmall { blocks });
        }
        plan.params.features.compat.remove(Compat::HAS_JOURNAL | Compat::ORPHAN_FILE);
        plan.superblock.feature_compat = plan.params.features.compat.bits();
        return Ok(None);
    };
    let Some(asked) = plan.params.journal.blocks else { return Ok(Some(usual)) };
    if asked < MIN_JOURNAL_BLOCKS || u64::from(asked) > blocks / 2 || asked > 10_240_000 {
        return Err(PlanError::Journal { blocks: u64::from(asked) });
    }
    let fast_commit_blocks = fast_commit_blocks(plan, &usual);
    Ok(Some(JournalSize { blocks: asked + fast_commit_blocks, fast_commit_blocks }))
}

/// The start of a journal: the middle group, or the next one if that has more free blocks; never
/// inside a flexible group's tables.
fn middle(plan: &Plan) -> BlockNr {
    let geometry = &plan.geometry;
    let groups = geometry.group_count;
    let flex = 1u32 << plan.superblock.log_groups_per_flex.min(31);
    let half = BlockNr((geometry.blocks_count - geometry.first_data_block.0) / 2);
    let half = geometry.group_of(half).map_or(0, |group| group.0);
    let (first, last) = if flex > 1 && half > flex {
        let aligned = half - half % flex;
        let open = (aligned..groups).find(|&group| plan.free_clusters(GroupNr(group)) > 0);
        let group = open.unwrap_or(0);
        (group, group + 1)
    } else {
        (half.saturating_sub(1), half + 1)
    };
    let mut best = first;
    for one in first..=last.min(groups - 1) {
        if plan.free_clusters(GroupNr(one)) > plan.free_clusters(GroupNr(best)) {
            best = one;
        }
    }
    geometry.group_start(GroupNr(best))
}

/// The block of multiple-mount protection.
pub(super) fn mmp_block(plan: &mut Plan) -> Result<(), PlanError> {
    if !plan.params.incompat(Incompat::MMP) {
        return Ok(());
    }
    let at = plan.allocate(BlockNr(0), 1)?;
    let mut bytes = [0; Mmp::SIZE];
    let mut new = Mmp::decode(&bytes);
    (new.magic, new.seq) = (mmp::MAGIC, mmp::SEQ_CLEAN);
    new.time = plan.params.now.seconds.max(0) as u64;
    new.check_interval = plan.params.mmp_interval.max(5);
    new.encode_into(&mut bytes);
    if plan.params.ro_compat(RoCompat::METADATA_CSUM) {
        new.checksum = Mmp::compute_checksum(plan.superblock.seed(), &bytes);
        new.encode_into(&mut bytes);
    }
    let mut block = bytes.to_vec();
    block.resize(plan.geometry.block_size as usize, 0);
    plan.superblock.mmp_block = at[0].start.0;
    plan.put(&at, block);
    Ok(())
}

/// The kinds of quota files in the file system.
pub(super) fn quota_kinds(plan: &Plan) -> Vec<QuotaKind> {
    if !plan.params.ro_compat(RoCompat::QUOTA) {
        return Vec::new();
    }
    QuotaKind::ALL.into_iter().filter(|kind| plan.params.quotas.contains(kind)).collect()
}

/// A quota file whose blocks are allocated.
#[derive(Clone, Debug)]
pub(super) struct QuotaPlace {
    pub(super) kind: QuotaKind,
    data: Vec<BlockRun>,
}

impl QuotaPlace {
    /// Sets the content of the file, replacing any earlier content.
    pub(super) fn fill(&self, plan: &mut Plan, mut content: Vec<u8>) -> Result<(), PlanError> {
        let block_size = u64::from(plan.geometry.block_size);
        let blocks: u64 = self.data.iter().map(|run| run.len_blocks).sum();
        if (content.len() as u64).div_ceil(block_size) != blocks {
            return Err(PlanError::Internal("a quota file changed its size"));
        }
        content.resize((blocks * block_size) as usize, 0);
        let old: BTreeSet<BlockNr> = self.data.iter().map(|run| run.start).collect();
        plan.pieces.retain(|piece| !old.contains(&piece.block));
        plan.put(&self.data, content);
        Ok(())
    }
}

/// Adds a quota file with the usage of each id of a kind.
pub(super) fn quota_file(
    plan: &mut Plan,
    kind: QuotaKind,
    usage: &BTreeMap<u32, Usage>,
) -> Result<QuotaPlace, PlanError> {
    let block_size = u64::from(plan.geometry.block_size);
    let content = quota_file::build(kind, &Limits::default(), usage)
        .ok_or(PlanError::Internal("quota file"))?;
    let inode = match kind {
        QuotaKind::User => InodeNr::USER_QUOTA,
        QuotaKind::Group => InodeNr::GROUP_QUOTA,
        QuotaKind::Project => plan.next_inode()?,
    };
    let mut new = NewInode::new(FileType::Regular.mode(0o600), plan.time());
    new.size = content.len() as u64;
    new.flags = InodeFlags::IMMUTABLE;
    let got = plan.allocate(BlockNr(0), new.size.div_ceil(block_size))?;
    let mut data = in_one_by_one(&got);
    // Within a cluster there is no choice.
    if new.size == QUOTA_ORDER.len() as u64 * 1024 && plan.geometry.cluster_blocks == 1 {
        data = in_order_of_writing(&data, block_size);
    }
    map::attach(plan, inode, &mut new, &data, &map::Nodes::Behind)?;
    set_quota_inode(&mut plan.superblock, kind, inode.0);
    plan.add_inode(inode, new);
    let place = QuotaPlace { kind, data };
    place.fill(plan, content)?;
    Ok(place)
}

fn in_one_by_one(runs: &[BlockRun]) -> Vec<BlockRun> {
    runs.iter()
        .flat_map(|run| (0..run.len_blocks).map(|at| BlockRun::new(BlockNr(run.start.0 + at), 1)))
        .collect()
}

/// The blocks of a file whose parts were written in [`QUOTA_ORDER`], each to the next free block.
fn in_order_of_writing(blocks: &[BlockRun], block_size: u64) -> Vec<BlockRun> {
    let mut placed: Vec<Option<BlockRun>> = vec![None; blocks.len()];
    let mut next = blocks.iter();
    for part in QUOTA_ORDER {
        let at = (part * 1024 / block_size) as usize;
        if let Some(slot @ None) = placed.get_mut(at) {
            *slot = next.next().copied();
        }
    }
    placed.into_iter().flatten().collect()
}

/// Blocks of the orphan file; 0 if there is none.
pub(super) fn orphan_blocks(plan: &Plan) -> u64 {
    if !plan.params.compat(Compat::ORPHAN_FILE) || !plan.params.compat(Compat::HAS_JOURNAL) {
        return 0;
    }
    match (plan.params.orphan_file_bytes, plan.geometry.blocks_count) {
        (Some(bytes), _) => {
            bytes.div_ceil(u64::from(plan.geometry.block_size)).clamp(1, MOST_ORPHAN_BLOCKS)
        }
        (None, 0..131_072) => 32,
        (None, all @ 131_072..2_097_152) => all / 4096,
        (None, _) => MOST_ORPHAN_BLOCKS,
    }
}

/// Adds an empty orphan file.
pub(super) fn orphan_file(plan: &mut Plan) -> Result<(), PlanError> {
    if orphan_blocks(plan) == 0 {
        return Ok(());
    }
    let block_size = u64::from(plan.geometry.block_size);
    let blocks = orphan_blocks(plan);
    let inode = plan.next_inode()?;
    let mut new = NewInode::new(FileType::Regular.mode(0o600), plan.time());
    new.size = blocks * block_size;
    let data = if plan.params.incompat(Incompat::EXTENTS) {
        // A check reads it: in a native file system it lies with what else it reads, where that leaves room for directories.
        let fits =
            plan.lots.regions.first().is_some_and(|region| region.run.len_blocks / 4 >= blocks);
        let data = match fits {
            true => plan.metadata(inode, BlockNr(0), blocks)?,
            false => plan.allocate(BlockNr(0), blocks)?,
        };
        map::attach(plan, inode, &mut new, &data, &map::Nodes::Behind)?;
        data
    } else {
        map::interleaved(plan, inode, &mut new, blocks)?
    };
    let seed = plan.form.seed.map(|seed| seed.of_inode(inode, 0));
    for block in in_one_by_one(&data) {
        let mut bytes = vec![0; block_size as usize];
        orphan_file::encode_clean(&mut bytes, seed, block.start);
        plan.put(&[block], bytes);
    }
    plan.superblock.orphan_file_inum = inode.0;
    plan.add_inode(inode, new);
    Ok(())
}
