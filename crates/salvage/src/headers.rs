//! Maps of files in rext3, whose indirect blocks say whose they are and at which level (`docs/rext3.md`): of files without an
//! inode, and of files whose map is damaged. The first 12 blocks of a file are named by its inode alone.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

use floe_ext4::map::walk::push_joined;
use floe_format::ext::extent::Extent;
use floe_format::ext::indirect::{DIRECT, PointerRun, SINGLE, pointer_runs, pointers};
use floe_format::ext::inode::OwnedInode;
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use crate::evidence::{Headed, OwnerKey};
use crate::maps::NewFile;
use crate::state::State;
use crate::summary::Provenance;

/// A map rebuilt from indirect blocks.
#[derive(Debug, Default)]
struct Rebuilt {
    extents: Vec<Extent>,
    /// Logical blocks below indirect blocks that are named and were not found.
    lost: Vec<Range<u64>>,
}

impl State<'_> {
    /// Gives directory blocks that an indirect block names to the directory whose indirect block it is.
    pub(crate) fn join_directories(&mut self) {
        let firsts = self.evidence.directory_blocks.iter().filter(|found| found.dot.0 != 0);
        let owner_of: BTreeMap<InodeNr, OwnerKey> =
            firsts.map(|found| (found.dot, found.owner)).collect();
        let mut owners: BTreeMap<BlockNr, OwnerKey> = BTreeMap::new();
        for node in self.evidence.headed.iter().filter(|node| node.level == 1) {
            if let Some(owner) = owner_of.get(&node.inode) {
                let below = self.pointers_of(node.block).into_iter();
                owners.extend(below.filter(|word| *word != 0).map(|word| (at(word), *owner)));
            }
        }
        for found in self.evidence.directory_blocks.iter_mut().filter(|found| found.dot.0 == 0) {
            if let Some(owner) = owners.get(&found.block) {
                found.owner = *owner;
            }
        }
        self.evidence.directory_blocks.sort_unstable();
    }

    /// Rebuilds the files of all indirect blocks. Returns those with inodes that were lost.
    pub(crate) fn rebuild_by_headers(&mut self) -> io::Result<Vec<NewFile>> {
        let headed = std::mem::take(&mut self.evidence.headed);
        let (mut files, directories) = (Vec::new(), self.directory_evidence());
        for nodes in headed.chunk_by(|one, other| one.inode == other.inode) {
            let Some(number) = nodes.first().map(|node| node.inode) else { continue };
            if directories.contains(&number) {
                continue;
            }
            if !self.is_live(number) {
                files.extend(self.file_of_headers(number, nodes)?);
            } else if self.broken.contains(&number) {
                self.mend_by_headers(number, nodes)?;
            }
        }
        Ok(files)
    }

    /// Inodes that are directories by what their blocks say.
    fn directory_evidence(&self) -> BTreeSet<InodeNr> {
        let named = self.evidence.directory_blocks.iter().map(|found| found.dot);
        named.filter(|dot| dot.0 != 0).chain(self.evidence.directories.iter().copied()).collect()
    }

    fn pointers_of(&self, node: BlockNr) -> Vec<u32> {
        let bytes = self.block_or_zeroes(node);
        pointers(self.frame.geometry.indirect().body(&bytes)).collect()
    }

    /// Joins the indirect blocks of an inode. Those that no other names hang on the inode: one of each level.
    fn join_headed(&self, nodes: &[Headed]) -> Rebuilt {
        let form = self.frame.geometry.indirect();
        let found: BTreeMap<BlockNr, u8> =
            nodes.iter().map(|node| (node.block, node.level)).collect();
        let mut named: BTreeSet<BlockNr> = BTreeSet::new();
        for node in nodes.iter().filter(|node| node.level > 1) {
            let below = self.pointers_of(node.block).into_iter().map(at);
            named.extend(below.filter(|block| found.get(block) == Some(&(node.level - 1))));
        }
        let mut rebuilt = Rebuilt::default();
        for level in 1..=3u8 {
            let is_top = |node: &&Headed| node.level == level && !named.contains(&node.block);
            let root = form.root_slot(SINGLE + usize::from(level) - 1);
            if let (Some(top), Some((base, _))) = (nodes.iter().find(is_top), root) {
                self.follow(top.block, level, base.0, &found, &mut rebuilt);
            }
        }
        rebuilt
    }

    /// Adds the data below an indirect block, whose first logical block is `base`.
    fn follow(
        &self,
        node: BlockNr,
        level: u8,
        base: u64,
        found: &BTreeMap<BlockNr, u8>,
        rebuilt: &mut Rebuilt,
    ) {
        let form = self.frame.geometry.indirect();
        let bytes = self.block_or_zeroes(node);
        let span = form.span_blocks(u32::from(level) - 1);
        for PointerRun { slot, first, len } in pointer_runs(form.body(&bytes)) {
            let logical = base + u64::from(slot) * span;
            if level == 1 {
                let run = BlockRun::new(at(first), u64::from(len));
                let extent = Extent { logical: LogicalBlock(logical), run, unwritten: false };
                push_joined(&mut rebuilt.extents, extent);
                continue;
            }
            for step in 0..len {
                let (below, base) = (at(first + step), logical + u64::from(step) * span);
                match found.get(&below) == Some(&(level - 1)) {
                    true => self.follow(below, level - 1, base, found, rebuilt),
                    false => rebuilt.lost.push(base..base + span),
                }
            }
        }
    }

    /// Makes a file of the indirect blocks of an inode that is lost.
    fn file_of_headers(
        &mut self,
        number: InodeNr,
        nodes: &[Headed],
    ) -> io::Result<Option<NewFile>> {
        let mut rebuilt = self.join_headed(nodes);
        if !self.are_unclaimed(&rebuilt.extents) || !self.make_file(number, &rebuilt.extents)? {
            return Ok(None);
        }
        rebuilt.lost.push(0..DIRECT);
        self.summary.files_numbered += 1;
        self.summary.lose(number, rebuilt.lost);
        let provenance = Provenance::Extents { is_partial: true, is_named: true };
        self.summary.provenance.insert(number, provenance);
        Ok(Some(NewFile { inode: number, name: format!("#{}", number.0) }))
    }

    /// Rebuilds the damaged map of a file in use, if that finds any block more.
    fn mend_by_headers(&mut self, number: InodeNr, nodes: &[Headed]) -> io::Result<()> {
        let Some(mut inode) = self.space.inode(number) else { return Ok(()) };
        let mut rebuilt = self.join_headed(nodes);
        let mut extents = self.direct_extents(&inode);
        extents.append(&mut rebuilt.extents);
        let before = self.space.files().map_of(&inode);
        let blocks = |extents: &[Extent]| extents.iter().map(|one| one.run.len_blocks).sum::<u64>();
        if blocks(&extents) <= blocks(&before.extents) {
            return Ok(());
        }
        if self.space.put_map(&mut inode, &extents)?.is_some() {
            self.summary.maps_rebuilt += 1;
            let is_partial = self.summary.lose(number, rebuilt.lost);
            self.summary.provenance.insert(number, Provenance::Map { is_partial });
        }
        Ok(())
    }

    /// The first blocks of a file, which its inode names.
    fn direct_extents(&self, inode: &OwnedInode) -> Vec<Extent> {
        let words = pointers(&inode.base.block).take(SINGLE).map(at);
        let mut extents = Vec::new();
        for (logical, block) in (0..).map(LogicalBlock).zip(words) {
            if block.0 != 0 && self.frame.geometry.contains(block) {
                let run = BlockRun::new(block, 1);
                push_joined(&mut extents, Extent { logical, run, unwritten: false });
            }
        }
        extents
    }
}

fn at(word: u32) -> BlockNr {
    BlockNr(u64::from(word))
}
