//! The state of a rebuild, and the order of its steps.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use floe_blockdev::ReadBlocks;
use floe_exec::Pool;
use floe_ext4::files::{FileMap, Files};
use floe_ext4::map::walk::has_map;
use floe_format::checksum_seed::inode_of;
use floe_format::{BlockNr, BlockRun, InodeNr};

use crate::Options;
use crate::bits::Bits;
use crate::evidence::{Evidence, OwnerKey};
use crate::frame::Frame;
use crate::free_blocks::freed;
use crate::summary::Summary;
use crate::workspace::Workspace;

/// A rebuild under way.
pub(crate) struct State<'d> {
    pub(crate) device: &'d dyn ReadBlocks,
    pub(crate) frame: &'d Frame,
    pub(crate) space: Workspace<'d>,
    pub(crate) evidence: Evidence,
    pub(crate) summary: Summary,
    /// Inodes in use: in place, from copies, and rebuilt.
    pub(crate) live: Bits,
    /// Blocks of the data of regular files in use.
    pub(crate) claimed: Bits,
    /// Blocks of directories in use.
    pub(crate) listed: Bits,
    /// Blocks of the journal, sorted.
    pub(crate) journal: Vec<BlockRun>,
    /// The owners of seeds that were found in blocks.
    pub(crate) owners: BTreeMap<OwnerKey, InodeNr>,
    /// Regular files whose map is damaged.
    pub(crate) broken: BTreeSet<InodeNr>,
}

impl<'d> State<'d> {
    pub(crate) fn new(
        device: &'d dyn ReadBlocks,
        frame: &'d Frame,
        evidence: Evidence,
        options: &Options<'_>,
    ) -> Self {
        let geometry = &frame.geometry;
        let mut summary = Summary::new(frame.origin, frame.seed().is_some());
        let unreadable = evidence.unreadable.iter().map(|run| run.len_blocks);
        summary.losses.unreadable_blocks = unreadable.sum();
        let used_bytes = geometry.offset_bytes(BlockNr(geometry.blocks_count));
        summary.losses.missing_bytes = used_bytes.saturating_sub(device.size_bytes());
        summary.losses.unreadable.clone_from(&evidence.unreadable);
        if summary.losses.missing_bytes > 0 {
            let first = BlockNr(device.size_bytes() / u64::from(geometry.block_size));
            let run = BlockRun::new(first, geometry.blocks_count - first.0);
            summary.losses.unreadable.push(run);
        }
        summary.inodes.in_place = evidence.in_place.len() as u64;
        let mut live = Bits::below(u64::from(geometry.inodes_count) + 1);
        for found in &evidence.in_place {
            live.insert(u64::from(found.inode.0));
        }
        Self {
            device,
            frame,
            space: Workspace::new(device, frame, options.overlay_bytes),
            summary,
            live,
            claimed: Bits::below(geometry.blocks_count),
            listed: Bits::below(geometry.blocks_count),
            journal: Vec::new(),
            owners: BTreeMap::new(),
            broken: BTreeSet::new(),
            evidence,
        }
    }

    /// Rebuilds everything.
    pub(crate) fn rebuild(&mut self, pool: &Pool<'_>) -> io::Result<()> {
        self.find_journal()?;
        self.claim_in_place();
        self.take_copies()?;
        self.correct_sizes()?;
        self.drop_stale_blocks();
        let listed = self.list(pool);
        for run in &listed.blocks {
            self.listed.insert_run(run.start.0, run.len_blocks);
        }
        self.join_directories();
        self.find_owners();
        let mut files = self.rebuild_files()?;
        files.extend(self.rebuild_by_headers()?);
        self.rebuild_directories(&files, &listed)
    }

    pub(crate) fn is_live(&self, inode: InodeNr) -> bool {
        self.live.contains(u64::from(inode.0))
    }

    pub(crate) fn is_number(&self, inode: InodeNr) -> bool {
        (1..=self.frame.geometry.inodes_count).contains(&inode.0)
    }

    pub(crate) fn is_in_journal(&self, block: BlockNr) -> bool {
        is_in(&self.journal, block)
    }

    /// Marks the data of files in place as theirs, and finds damaged maps.
    fn claim_in_place(&mut self) {
        for run in std::mem::take(&mut self.evidence.claims) {
            self.claimed.insert_run(run.start.0, run.len_blocks);
        }
        let files = self.space.files();
        for inode in std::mem::take(&mut self.evidence.deep) {
            if let Some(map) = map_of_file(&files, inode) {
                claim(&map, inode, &mut self.claimed, &mut self.broken);
            }
        }
    }

    /// Drops nodes and directory blocks that were freed, or whose place now holds data of a file.
    /// Those in the journal stay, because they are old copies of blocks that may be lost.
    fn drop_stale_blocks(&mut self) {
        let nodes = self.evidence.nodes.iter().map(|node| node.block);
        let headed = self.evidence.headed.iter().map(|node| node.block);
        let directories = self.evidence.directory_blocks.iter().map(|found| found.block);
        let mut blocks: Vec<BlockNr> = nodes.chain(headed).chain(directories).collect();
        blocks.sort_unstable();
        let freed = freed(self.device, self.frame, &blocks);
        let journal = &self.journal;
        let claimed = &self.claimed;
        let stays = |block: BlockNr| {
            is_in(journal, block)
                || !claimed.contains(block.0) && freed.binary_search(&block).is_err()
        };
        self.evidence.nodes.retain(|node| stays(node.block));
        self.evidence.headed.retain(|node| stays(node.block));
        self.evidence.directory_blocks.retain(|found| stays(found.block));
    }

    /// Finds the inodes of seeds: those in use, the entry `.` of directories, and generation 0.
    fn find_owners(&mut self) {
        let nodes = self.evidence.nodes.iter().map(|node| node.owner);
        let directories = self.evidence.directory_blocks.iter().map(|found| found.owner);
        let keys: BTreeSet<OwnerKey> = nodes.chain(directories).collect();
        for found in &self.evidence.in_place {
            let key = OwnerKey::of_seed(found.seed);
            if self.frame.seed().is_some() && keys.contains(&key) {
                self.owners.insert(key, found.inode);
            }
        }
        let mut owned: BTreeSet<InodeNr> = BTreeSet::new();
        // First blocks at their own places count before old copies in the journal.
        for of_journal in [false, true] {
            for found in &self.evidence.directory_blocks {
                let is_new = found.dot.0 != 0
                    && self.is_in_journal(found.block) == of_journal
                    && !self.is_live(found.dot)
                    && !self.owners.contains_key(&found.owner)
                    && !owned.contains(&found.dot);
                if is_new {
                    owned.insert(found.dot);
                    self.owners.insert(found.owner, found.dot);
                }
            }
        }
        let Some(file_system) = self.frame.seed() else { return };
        for key in keys {
            let Some(seed) = key.seed().filter(|_| !self.owners.contains_key(&key)) else {
                continue;
            };
            let inode = inode_of(seed, 0, file_system);
            if self.is_number(inode) && !self.is_live(inode) && !owned.contains(&inode) {
                self.owners.insert(key, inode);
            }
        }
    }
}

/// Whether one of these runs, which are sorted, contains a block.
fn is_in(runs: &[BlockRun], block: BlockNr) -> bool {
    let before = runs.partition_point(|run| run.start <= block).checked_sub(1);
    before.and_then(|at| runs.get(at)).is_some_and(|run| run.contains(block))
}

/// The map of a regular file; `None` if its content is in the inode.
fn map_of_file(files: &Files<'_>, inode: InodeNr) -> Option<FileMap> {
    let node = files.node(inode).ok()?;
    has_map(&node.inode().base).then(|| files.map(&node))
}

/// Marks the data of a regular file as its own, and notes whether its map is damaged.
pub(crate) fn claim(
    map: &FileMap,
    inode: InodeNr,
    claimed: &mut Bits,
    broken: &mut BTreeSet<InodeNr>,
) {
    if !map.faults.is_empty() {
        broken.insert(inode);
    }
    for extent in &map.extents {
        claimed.insert_run(extent.run.start.0, extent.run.len_blocks);
    }
}
