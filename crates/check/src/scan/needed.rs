//! Tells which blocks of a lot later passes read again, when its inodes were judged. Among the blocks in use of its region those are
//! not needed that hold maps of files whose layers add up ([`Layers`]): all of their blocks were met, and with their inodes. Names are
//! read again, and maps of files that have blocks in other lots, or are damaged: those are followed wherever they lead.

use std::collections::BTreeMap;

use floe_ext4::map::walk::has_map;
use floe_format::checksum_seed::SeedFinder;
use floe_format::crc::Seed;
use floe_format::ext::extent::{ExtentNode, MAX_DEPTH};
use floe_format::ext::indirect::{SINGLE, pointers};
use floe_format::ext::inode::{Inode, InodeFlags};
use floe_format::{BlockNr, BlockRun, Geometry, InodeNr, rext3};

use crate::evidence::layers::Layers;

/// The blocks of one level of a map.
#[derive(Debug, Default)]
struct Named {
    level: u16,
    blocks: Vec<BlockNr>,
}

/// A lot, or a group of rext3, that passes through memory.
pub(super) struct Passing<'a, F> {
    pub(super) geometry: &'a Geometry,
    /// Where checksums start, if there are any.
    pub(super) seed: Option<Seed>,
    /// The blocks that are in memory.
    pub(super) block: F,
    /// The tables: their first inodes, and what is in use of them.
    pub(super) tables: Vec<(InodeNr, BlockRun)>,
    /// The blocks of the region that are in use.
    pub(super) used: Vec<BlockNr>,
}

impl<F: Fn(BlockNr) -> Option<Vec<u8>>> Passing<'_, F> {
    /// The blocks that are needed again.
    pub(super) fn needed(&self) -> Vec<BlockNr> {
        let (mut layers, mut owners) = (Layers::default(), BTreeMap::new());
        for (first, table) in &self.tables {
            self.note_table(*first, *table, &mut layers, &mut owners);
        }
        let finder = SeedFinder::new();
        let mut nodes = BTreeMap::new();
        for at in &self.used {
            let Some(bytes) = (self.block)(*at) else { continue };
            let Some((owner, level, below)) = self.node(&bytes, &finder, &owners) else { continue };
            layers.find(owner, level, *at);
            below.into_iter().for_each(|block| layers.name(owner, level - 1, block));
            nodes.insert(*at, owner);
        }
        let open = layers.open();
        let is_done = |block: &BlockNr| nodes.get(block).is_some_and(|owner| !open.contains(owner));
        self.used.iter().copied().filter(|block| !is_done(block)).collect()
    }

    /// Notes what the inodes of a table name, and the seeds of those that have maps.
    fn note_table(
        &self,
        first: InodeNr,
        table: BlockRun,
        layers: &mut Layers,
        owners: &mut BTreeMap<u32, InodeNr>,
    ) {
        let size = self.geometry.inode_size as usize;
        let mut number = first.0;
        for at in table.start.0..table.end().0 {
            let Some(bytes) = (self.block)(BlockNr(at)) else {
                number = number.saturating_add(self.geometry.block_size / self.geometry.inode_size);
                continue;
            };
            for raw in bytes.chunks_exact(size) {
                let own = InodeNr(number);
                number = number.saturating_add(1);
                let Some(inode) = Inode::decode(raw).filter(|inode| inode.base.links_count > 0)
                else {
                    continue;
                };
                for Named { level, blocks } in self.named(&inode) {
                    blocks.into_iter().for_each(|block| layers.name(own, level, block));
                    if let Some(seed) = self.seed {
                        owners.insert(seed.of_inode(own, inode.base.generation), own);
                    }
                }
            }
        }
    }

    /// The blocks of maps that an inode names, by their level.
    fn named(&self, inode: &Inode<'_>) -> Vec<Named> {
        if !has_map(&inode.base) {
            return Vec::new();
        }
        if !inode.flags().contains(InodeFlags::EXTENTS) {
            let words = pointers(&inode.base.block).skip(SINGLE).zip(1..);
            let levels = words.filter(|(word, _)| *word != 0);
            return levels
                .map(|(word, level)| Named { level, blocks: vec![BlockNr(word.into())] })
                .collect();
        }
        let root = ExtentNode::new(&inode.base.block).filter(ExtentNode::header_ok);
        let below = root.and_then(|root| Some((root, root.header().depth.checked_sub(1)?)));
        let Some((root, level)) = below else { return Vec::new() };
        let blocks = (0..root.header().entries).map(|at| root.index(at).node).collect();
        vec![Named { level, blocks }]
    }

    /// The file, the level and the blocks below of a block that says whose map it is part of.
    fn node(
        &self,
        bytes: &[u8],
        finder: &SeedFinder,
        owners: &BTreeMap<u32, InodeNr>,
    ) -> Option<(InodeNr, u16, Vec<BlockNr>)> {
        let form = self.geometry.indirect();
        if form.has_header() {
            let header = rext3::node_header(self.geometry, bytes)?;
            let below = pointers(form.body(bytes)).filter(|word| *word != 0 && header.level > 1);
            let below = below.map(|word| BlockNr(word.into())).collect();
            return Some((InodeNr(header.inode), u16::try_from(header.level).ok()?, below));
        }
        let node = ExtentNode::new(bytes).filter(ExtentNode::header_ok)?;
        let header = node.header();
        let owner = match self.seed {
            Some(_) => *owners.get(&finder.of_extent_node(&node)?)?,
            // No more than a hint.
            None => InodeNr(header.generation),
        };
        let entries = if header.depth == 0 { 0 } else { header.entries };
        let below = (0..entries).map(|at| node.index(at).node).collect();
        (header.depth <= MAX_DEPTH).then_some((owner, header.depth, below))
    }
}
