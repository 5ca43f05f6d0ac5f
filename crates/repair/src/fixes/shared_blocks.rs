//! Multiply-claimed blocks: every owner but the last gets its own copy.

use std::collections::BTreeMap;

use floe_format::ext::dirent::DirCursor;
use floe_format::ext::extent::Extent;
use floe_format::ext::inode::FileType;
use floe_format::ext::xattr;
use floe_format::features::Incompat;
use floe_format::words::agree;
use floe_format::{BlockNr, BlockRun, Geometry, InodeNr, LogicalBlock};

use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::stage::{InodeImage, SharedLedger, Stage};
use floe_ext4::map::walk::has_map;

/// Clones the shared clusters of one inode.
pub(super) fn clone(stage: &mut Stage<'_>, inode: InodeNr) -> Result<(), Failure> {
    let mut ledger = stage.take_ledger();
    let cloned = clone_with(stage, inode, &mut ledger);
    if matches!(cloned, Err(Failure::NoSpace(_))) {
        // Out of space. Stop allocating: if one owner is deleted, the others may not need copies.
        stage.hand_out_no_more();
    }
    stage.put_ledger(ledger);
    cloned
}

fn clone_with(
    stage: &mut Stage<'_>,
    inode: InodeNr,
    ledger: &mut SharedLedger,
) -> Result<(), Failure> {
    let mut image = stage.read_inode(inode)?;
    let mut copies = 0;
    if has_map(&image.base) {
        copies += clone_map(stage, &mut image, ledger)?;
    }
    copies += clone_attributes(stage, &mut image, ledger)?;
    if copies > 0 {
        stage.write_inode(&image)?;
        let blocks = if copies == 1 { "block" } else { "blocks" };
        stage.note(format!("{inode} got its own copies of {copies} {blocks}"));
    }
    Ok(())
}

/// Whether a block of an inode must be cloned: other inodes or metadata claim its cluster, or it belongs to another cube.
fn must_clone(stage: &Stage<'_>, ledger: &SharedLedger, inode: InodeNr, block: BlockNr) -> bool {
    let metadata = &stage.evidence.volume.metadata;
    let cluster = stage.geometry.cluster_of(block);
    ledger.must_clone(cluster)
        || metadata.contains(cluster)
        || stage.is_outside(inode, BlockRun::new(block, 1))
}

/// Destination of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    /// The cluster that begins at this block.
    To(BlockNr),
    /// One of the clusters still to be allocated, by index.
    New(usize),
}

/// A block of a map that is copied.
#[derive(Clone, Copy)]
struct Move {
    logical: LogicalBlock,
    from: BlockNr,
    target: Target,
}

/// The space that the copies of a file need, computed before any is made.
#[derive(Default)]
struct Moves {
    /// Preferred location of each new cluster.
    goals: Vec<BlockNr>,
    /// Blocks to move, in map order.
    to_copy: Vec<Move>,
    /// Clusters that the file releases.
    left: Vec<u64>,
    /// Destination of each logical cluster, keyed with the cluster it replaces.
    targets: BTreeMap<(u64, u64), Target>,
    /// Destination of the first block of each logical cluster: all its other blocks must go there.
    homes: BTreeMap<u64, Target>,
}

/// Moves data and nodes of a map to new clusters. Blocks in one cluster move together if their
/// offsets in it match the map. Allocates everything or, if space is short, nothing.
fn clone_map(
    stage: &mut Stage<'_>,
    image: &mut InodeImage,
    ledger: &mut SharedLedger,
) -> Result<u64, Failure> {
    let mut map = FileMap::load(stage, image);
    if map.goes_on_unseen {
        // Exclude the file's own data from the allocation.
        map.runs.iter().try_for_each(|extent| stage.withhold(extent.run))?;
    }
    let Moves { mut goals, to_copy, left, .. } = plan_moves(stage, ledger, image, &map)?;
    let shared_nodes: Vec<bool> =
        map.nodes.iter().map(|&node| must_clone(stage, ledger, image.number, node)).collect();
    let of_nodes = map.nodes.iter().zip(&shared_nodes).filter(|(_, shared)| **shared);
    let of_data = goals.len();
    goals.extend(of_nodes.map(|(node, _)| *node));
    for goal in &mut goals {
        *goal = stage.goal_of_copy(image.number, *goal);
    }
    let mut new = stage.allocate_all(&goals)?;
    let new_nodes = new.split_off(of_data);
    let mut copies = to_copy.len() as u64;
    if copies > 0 {
        map.runs = copied(stage, image.number, &map.runs, &to_copy, &new)?;
        note_zeroes(stage, image.number, &to_copy);
    }
    left.into_iter().for_each(|cluster| ledger.let_go(cluster));
    let mut new_nodes = new_nodes.into_iter();
    for (node, _) in map.nodes.iter_mut().zip(shared_nodes).filter(|(_, shared)| *shared) {
        // The node is rewritten in a block of its own.
        ledger.let_go(stage.geometry.cluster_of(*node));
        *node = new_nodes.next().unwrap_or(*node);
        copies += 1;
    }
    if copies > 0 {
        map.store(stage, image)?;
    }
    Ok(copies)
}

/// Notes how many blocks of a file hold zeroes now, because they were blocks of another cube.
fn note_zeroes(stage: &mut Stage<'_>, inode: InodeNr, to_copy: &[Move]) {
    let is_foreign = |one: &&Move| stage.is_outside(inode, BlockRun::new(one.from, 1));
    let zeroes = to_copy.iter().filter(is_foreign).count();
    if zeroes > 0 {
        let blocks = format!("{zeroes} blocks");
        let blocks = agree(&blocks);
        stage.note(format!(
            "{blocks} of {inode} became zeroes, because they belong to another cube"
        ));
    }
}

/// Decides which blocks of a map move, and where to. Running out of space is detected as fast as a
/// success.
fn plan_moves(
    stage: &mut Stage<'_>,
    ledger: &SharedLedger,
    image: &InodeImage,
    map: &FileMap,
) -> Result<Moves, Failure> {
    let geometry = stage.geometry.clone();
    let mut room = None;
    let own = first_block_of_its_own(stage, image, map);
    let mut moves = Moves::default();
    for extent in &map.runs {
        if geometry.cluster_blocks == 1 && is_clear_in(stage, ledger, image.number, extent.run) {
            continue;
        }
        for at in 0..extent.run.len_blocks {
            let (logical, block) =
                (LogicalBlock(extent.logical.0 + at), BlockNr(extent.run.start.0 + at));
            if !geometry.contains(block) {
                continue;
            }
            let cluster = geometry.cluster_of(block);
            let is_own = own == Some(block) && logical.0 == 0 && ledger.is_left_to(cluster);
            let must_clone = !is_own && must_clone(stage, ledger, image.number, block);
            if geometry.cluster_blocks > 1 {
                moves.place_in_cluster(&geometry, logical, block, must_clone);
            } else if must_clone {
                let target = moves.new_cluster(block);
                moves.to_copy.push(Move { logical, from: block, target });
                moves.left.push(cluster);
            }
            let wanted = moves.goals.len() as u64;
            if wanted > room.unwrap_or(0) && wanted > *room.insert(stage.free_clusters()?) {
                return Err(Failure::NoSpace("block"));
            }
        }
    }
    Ok(moves)
}

impl Moves {
    fn new_cluster(&mut self, goal: BlockNr) -> Target {
        self.goals.push(goal);
        Target::New(self.goals.len() - 1)
    }

    /// Decides for a block if clusters have several blocks: it moves with the other blocks of its
    /// cluster, or to the cluster that holds the rest of its logical cluster.
    fn place_in_cluster(
        &mut self,
        geometry: &Geometry,
        logical: LogicalBlock,
        block: BlockNr,
        must_clone: bool,
    ) {
        let size = u64::from(geometry.cluster_blocks);
        let (place, cluster) = (logical.0 % size, geometry.cluster_of(block));
        let aligned = place == (block.0 - geometry.first_data_block.0) % size;
        let home = self.homes.get(&(logical.0 / size)).copied();
        let start = block.0.checked_sub(place).map(|start| Target::To(BlockNr(start)));
        let at_home = home.is_none() || home == start;
        let key = (logical.0 / size, cluster);
        let target = match (self.targets.get(&key), start) {
            (Some(&target), _) => target,
            (None, Some(start)) if aligned && at_home && !must_clone => {
                self.homes.insert(key.0, start);
                return;
            }
            _ => {
                let target = home.unwrap_or_else(|| self.new_cluster(block));
                self.targets.insert(key, target);
                self.homes.insert(key.0, target);
                self.left.push(cluster);
                target
            }
        };
        self.to_copy.push(Move { logical, from: block, target });
    }
}

/// Whether no other owner claims any block of a run, for clusters of one block.
fn is_clear_in(stage: &Stage<'_>, ledger: &SharedLedger, inode: InodeNr, run: BlockRun) -> bool {
    let geometry = &stage.geometry;
    let last = BlockNr(run.end().0.saturating_sub(1));
    !stage.is_outside(inode, run)
        && geometry.contains(run.start)
        && geometry.contains(last)
        && ledger.is_clear_in(geometry.cluster_of(run.start), run.len_blocks)
        && stage
            .evidence
            .volume
            .metadata
            .is_clear_in(geometry.cluster_of(run.start), run.len_blocks)
}

/// Copies blocks of a file to their new clusters, and returns the resulting runs.
fn copied(
    stage: &Stage<'_>,
    inode: InodeNr,
    runs: &[Extent],
    to_copy: &[Move],
    new: &[BlockNr],
) -> Result<Vec<Extent>, Failure> {
    let size = u64::from(stage.geometry.cluster_blocks);
    let mut to_copy = to_copy.iter().peekable();
    let mut moved: Vec<Extent> = Vec::with_capacity(runs.len());
    for extent in runs {
        if to_copy.peek().is_none_or(|next| !extent.run.contains(next.from)) {
            moved.push(*extent);
            continue;
        }
        for at in 0..extent.run.len_blocks {
            let logical = LogicalBlock(extent.logical.0 + at);
            let from = BlockNr(extent.run.start.0 + at);
            let mut block = from;
            if let Some(next) = to_copy.next_if(|next| (next.logical, next.from) == (logical, from))
            {
                let start = match next.target {
                    Target::To(start) => start,
                    Target::New(nr) => *new.get(nr).ok_or(Failure::NoSpace("block"))?,
                };
                block = BlockNr(start.0 + logical.0 % size);
                copy(stage, inode, from, block)?;
            }
            match moved.last_mut() {
                Some(last) if at > 0 && last.run.end() == block => last.run.len_blocks += 1,
                _ => moved.push(Extent { logical, run: BlockRun::new(block, 1), ..*extent }),
            }
        }
    }
    Ok(moved)
}

/// The first block of a directory, if its `.` names that directory. The other claimants get copies,
/// so that the entries in it stay valid. In a cluster, blocks move together.
fn first_block_of_its_own(stage: &Stage<'_>, image: &InodeImage, map: &FileMap) -> Option<BlockNr> {
    let is_dir = FileType::of_mode(image.base.mode) == Some(FileType::Directory);
    let block = map.find(LogicalBlock(0)).filter(|&block| stage.geometry.contains(block))?;
    if stage.is_outside(image.number, BlockRun::new(block, 1)) {
        return None;
    }
    if !is_dir || stage.geometry.cluster_blocks > 1 || stage.evidence.volume.is_metadata(block) {
        return None;
    }
    let bytes = stage.read_block(block).ok()?;
    let dot = DirCursor::new(&bytes).next()?.ok()?;
    (dot.name == b"." && dot.inode == image.number).then_some(block)
}

fn copy(stage: &Stage<'_>, inode: InodeNr, from: BlockNr, to: BlockNr) -> Result<(), Failure> {
    let zeroes = || vec![0; stage.block_size()];
    let bytes = match stage.is_outside(inode, BlockRun::new(from, 1)) {
        // Nobody gets to read what another tenant wrote.
        true => zeroes(),
        // An unreadable block has a finding of its own; its copy holds zeroes.
        false => stage.read_uncovered(from).unwrap_or_else(|_| zeroes()),
    };
    stage.write_block(to, &bytes)
}

/// The same for the attribute block, which several inodes may share.
fn clone_attributes(
    stage: &mut Stage<'_>,
    image: &mut InodeImage,
    ledger: &mut SharedLedger,
) -> Result<u64, Failure> {
    let block = stage.attribute_block(image);
    if block.0 == 0 || !stage.geometry.contains(block) {
        return Ok(0);
    }
    let cluster = stage.geometry.cluster_of(block);
    let is_foreign = stage.is_outside(image.number, BlockRun::new(block, 1));
    let to = match ledger.attributes.get(&block).filter(|_| !is_foreign) {
        Some(&to) => {
            ledger.let_go(cluster);
            to
        }
        None if is_foreign => {
            stage.note(format!(
                "{} has no block of attributes any more: it belongs to another cube",
                image.number
            ));
            ledger.let_go(cluster);
            BlockNr(0)
        }
        None if must_clone(stage, ledger, image.number, block) => {
            let to = stage.allocate(stage.goal_of_copy(image.number, block))?;
            let mut bytes = stage.read_block(block)?;
            if stage.checksummed() {
                xattr::write_block_checksum(stage.seed, to, &mut bytes);
            }
            stage.write_block(to, &bytes)?;
            ledger.attributes.insert(block, to);
            ledger.let_go(cluster);
            to
        }
        None => return Ok(0),
    };
    image.base.file_acl_lo = (to.0 & 0xffff_ffff) as u32;
    if stage.geometry.features.incompat.contains(Incompat::BIT64) {
        image.base.file_acl_high = (to.0 >> 32) as u16;
    }
    Ok(1)
}
