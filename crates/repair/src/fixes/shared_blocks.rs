//! Blocks with more than one owner: every owner but the last gets its own copy.

use std::collections::BTreeMap;

use floe_check::Problem;
use floe_format::ext::dirent::DirCursor;
use floe_format::ext::inode::FileType;
use floe_format::ext::xattr;
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun, Geometry, InodeNr, LogicalBlock};

use crate::failure::Failure;
use crate::file_map::{FileMap, has_map};
use crate::stage::{InodeImage, Stage};

/// Who still claims which shared cluster, while one after the other lets go.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedLedger {
    /// Claims left of each shared cluster; those of a list of bad blocks or of metadata never go.
    claims: BTreeMap<u64, u64>,
    /// Attribute blocks that were cloned: other inodes that used the same block follow.
    attributes: BTreeMap<BlockNr, BlockNr>,
}

impl SharedLedger {
    /// The ledger as an examination found it.
    pub(crate) fn of(found: &[Problem], geometry: &Geometry) -> Self {
        let mut claims: BTreeMap<u64, u64> = BTreeMap::new();
        for problem in found {
            let run = match *problem {
                Problem::MultiplyClaimedBlock { block, .. } => BlockRun::new(block, 1),
                Problem::MultiplyClaimedRange { block, len, .. } => BlockRun::new(block, len),
                _ => continue,
            };
            if run.len_blocks == 0 || !geometry.contains(run.start) {
                continue;
            }
            let first = geometry.cluster_of(run.start);
            let last = geometry.cluster_of(BlockNr(run.end().0 - 1));
            for cluster in first..=last {
                *claims.entry(cluster).or_default() += 1;
            }
        }
        // A cluster that only one inode lists is shared with what never lets go.
        claims.values_mut().filter(|count| **count == 1).for_each(|count| *count = u64::MAX);
        Self { claims, attributes: BTreeMap::new() }
    }

    /// Whether an owner of a cluster needs its own copy.
    fn must_clone(&self, cluster: u64) -> bool {
        self.claims.get(&cluster).is_some_and(|&count| count > 1)
    }

    /// Whether all others that claim a cluster are going to let go of it.
    fn is_left_to(&self, cluster: u64) -> bool {
        self.claims.get(&cluster).is_some_and(|&count| count != u64::MAX)
    }

    fn let_go(&mut self, cluster: u64) {
        if let Some(count) = self.claims.get_mut(&cluster).filter(|count| **count != u64::MAX) {
            *count = count.saturating_sub(1);
        }
    }
}

/// Copies the shared clusters of one inode.
pub(super) fn clone(stage: &mut Stage<'_>, inode: InodeNr) -> Result<(), Failure> {
    let mut ledger = stage.take_ledger();
    let cloned = clone_with(stage, inode, &mut ledger);
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
    if has_map(&image) {
        copies += clone_map(stage, &mut image, ledger)?;
    }
    copies += clone_attributes(stage, &mut image, ledger)?;
    if copies > 0 {
        stage.write_inode(&image)?;
        let blocks = if copies == 1 { "block" } else { "blocks" };
        stage.note(format!("{inode} has its own copies of {copies} {blocks}"));
    }
    Ok(())
}

/// Whether a cluster must be copied: others claim it, or metadata has it.
fn must_clone(stage: &Stage<'_>, ledger: &SharedLedger, cluster: u64) -> bool {
    let metadata = &stage.evidence.volume.metadata;
    ledger.must_clone(cluster) || metadata.contains(cluster)
}

/// Gives data and nodes of a map new clusters. Blocks of a file in one cluster move together if they
/// stand in it as the map says.
fn clone_map(
    stage: &mut Stage<'_>,
    image: &mut InodeImage,
    ledger: &mut SharedLedger,
) -> Result<u64, Failure> {
    let geometry = stage.geometry.clone();
    let mut map = FileMap::load(stage, image);
    if map.goes_on_unseen {
        // No copy goes to where its own data may be.
        map.runs.iter().try_for_each(|extent| stage.withhold(extent.run))?;
    }
    let mut copies = 0;
    // The new cluster of each logical cluster, by what it replaces.
    let mut moved: BTreeMap<(u64, u64), BlockNr> = BTreeMap::new();
    let blocks: Vec<(LogicalBlock, BlockNr)> = map
        .runs
        .iter()
        .flat_map(|extent| {
            (0..extent.run.len_blocks).map(move |at| {
                (LogicalBlock(extent.logical.0 + at), BlockNr(extent.run.start.0 + at))
            })
        })
        .collect();
    let size = u64::from(geometry.cluster_blocks);
    let own = first_block_of_its_own(stage, image, &map);
    // The cluster that the first block of each logical cluster has: all others belong there.
    let mut homes: BTreeMap<u64, BlockNr> = BTreeMap::new();
    for (logical, block) in blocks {
        if !geometry.contains(block) {
            continue;
        }
        let (place, cluster) = (logical.0 % size, geometry.cluster_of(block));
        let aligned = place == (block.0 - geometry.first_data_block.0) % size;
        let home = homes.get(&(logical.0 / size)).copied();
        let at_home = home.is_none_or(|start| start.0 + place == block.0);
        let key = (logical.0 / size, cluster);
        let start = match moved.get(&key) {
            Some(&start) => start,
            None if own == Some(block) && logical.0 == 0 && ledger.is_left_to(cluster) => continue,
            None if aligned && at_home && !must_clone(stage, ledger, cluster) => {
                homes.insert(key.0, BlockNr(block.0 - place));
                continue;
            }
            None => {
                let start = match home {
                    Some(start) => start,
                    None => stage.allocate(block)?,
                };
                moved.insert(key, start);
                homes.insert(key.0, start);
                start
            }
        };
        let to = BlockNr(start.0 + place);
        copy(stage, block, to)?;
        map.replace(logical, to);
        copies += 1;
    }
    for (_, cluster) in moved.into_keys() {
        ledger.let_go(cluster);
    }
    let mut kept = Vec::new();
    for node in std::mem::take(&mut map.nodes) {
        let cluster = geometry.cluster_of(node);
        if must_clone(stage, ledger, cluster) {
            // The node is written anew in a block of its own.
            ledger.let_go(cluster);
            kept.push(stage.allocate(node)?);
            copies += 1;
        } else {
            kept.push(node);
        }
    }
    map.nodes = kept;
    if copies > 0 {
        map.store(stage, image)?;
    }
    Ok(copies)
}

/// The first block of a directory, if its `.` names that directory: whoever claims it too gets a copy, so
/// that names in it lead where they always did. In a cluster, blocks move together.
fn first_block_of_its_own(stage: &Stage<'_>, image: &InodeImage, map: &FileMap) -> Option<BlockNr> {
    let is_dir = FileType::of_mode(image.base.mode) == Some(FileType::Directory);
    let block = map.find(LogicalBlock(0)).filter(|&block| stage.geometry.contains(block))?;
    if !is_dir || stage.geometry.cluster_blocks > 1 || stage.evidence.volume.is_metadata(block) {
        return None;
    }
    let bytes = stage.read_block(block).ok()?;
    let dot = DirCursor::new(&bytes).next()?.ok()?;
    (dot.name == b"." && dot.inode == image.number).then_some(block)
}

fn copy(stage: &Stage<'_>, from: BlockNr, to: BlockNr) -> Result<(), Failure> {
    // What cannot be read is a finding of its own; the copy holds zeroes there.
    let bytes = stage.read_block(from).unwrap_or_else(|_| vec![0; stage.block_size()]);
    stage.write_block(to, &bytes)
}

/// The same for the attribute block, which several inodes may use together.
fn clone_attributes(
    stage: &mut Stage<'_>,
    image: &mut InodeImage,
    ledger: &mut SharedLedger,
) -> Result<u64, Failure> {
    let high = if stage.geometry.features.incompat.contains(Incompat::BIT64) {
        image.base.file_acl_high
    } else {
        0
    };
    let block = BlockNr(u64::from(image.base.file_acl_lo) | u64::from(high) << 32);
    if block.0 == 0 || !stage.geometry.contains(block) {
        return Ok(0);
    }
    let cluster = stage.geometry.cluster_of(block);
    let to = match ledger.attributes.get(&block) {
        Some(&to) => {
            ledger.let_go(cluster);
            to
        }
        None if must_clone(stage, ledger, cluster) => {
            let to = stage.allocate(block)?;
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
