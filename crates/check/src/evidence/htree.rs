//! Indexes of directories, as far as their trees are concerned: nodes, leaves, and what will be rebuilt.

use floe_exec::Accumulator;
use floe_format::InodeNr;
use floe_format::ext::htree::HashVersion;

use crate::saved::{Decoder, Encoder, Fault, Saved, cell};

/// Evidence of the passes over hash trees.
#[derive(Clone, Debug, Default)]
pub struct HtreeEvidence {
    /// Index blocks.
    pub nodes: Vec<Node>,
    /// Leaves.
    pub leaves: Vec<Leaf>,
    /// Directories that will be rebuilt anyway.
    pub dropped: Vec<InodeNr>,
}

impl Accumulator for HtreeEvidence {
    fn merge(&mut self, other: Self) {
        let Self { mut nodes, mut leaves, mut dropped } = other;
        self.nodes.append(&mut nodes);
        self.leaves.append(&mut leaves);
        self.dropped.append(&mut dropped);
    }
}

impl Saved for HtreeEvidence {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self { nodes, leaves, dropped } = self;
        nodes.save(to);
        to.put_rows(leaves.iter().map(|leaf| {
            let Leaf { rank, logical, min, max } = *leaf;
            [rank.into(), logical.into(), min.into(), max.into()]
        }));
        to.put_rows(dropped.iter().map(|dir| [dir.0.into()]));
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let nodes = Saved::load(from)?;
        let leaves = from.rows(|[rank, logical, min, max]| {
            let (rank, logical) = (cell(rank)?, cell(logical)?);
            Some(Leaf { rank, logical, min: cell(min)?, max: cell(max)? })
        })?;
        let dropped = from.rows(|[dir]| cell(dir).map(InodeNr))?;
        Ok(Self { nodes, leaves, dropped })
    }
}

impl Saved for Node {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self { rank, logical, root, entries } = self;
        rank.save(to);
        logical.save(to);
        root.save(to);
        to.put_rows(entries.iter().map(|&(hash, block)| [hash.into(), block.into()]));
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        Ok(Self {
            rank: Saved::load(from)?,
            logical: Saved::load(from)?,
            root: Saved::load(from)?,
            entries: from.rows(|[hash, block]| Some((cell(hash)?, cell(block)?)))?.into(),
        })
    }
}

impl Saved for Root {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self { version, levels } = self;
        (*version as u8).save(to);
        levels.save(to);
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let version = HashVersion::of(Saved::load(from)?).ok_or(Fault::Damaged)?;
        Ok(Self { version, levels: Saved::load(from)? })
    }
}

/// An index block, as far as the tree is concerned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    /// Rank of the directory.
    pub rank: u32,
    /// Which block of the directory; 0: the root.
    pub logical: u32,
    /// The root's information; `None` in other nodes.
    pub root: Option<Root>,
    /// Hash (low bit cleared) and block of each entry; the hash of the first is 0.
    pub entries: Box<[(u32, u32)]>,
}

/// Fields of the root that concern the whole index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Root {
    /// How names are hashed.
    pub version: HashVersion,
    /// Levels below the root.
    pub levels: u8,
}

/// A leaf: the smallest and the largest hash in it (`u32::MAX` and 0 if it holds no name).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leaf {
    /// Rank of the directory.
    pub rank: u32,
    /// Which block of the directory.
    pub logical: u32,
    /// Smallest hash.
    pub min: u32,
    /// Largest hash.
    pub max: u32,
}

#[cfg(test)]
mod laws {
    use super::*;
    use crate::saved::tests::same;

    fn root(number: u32) -> Option<Root> {
        let version = HashVersion::of(number as u8)?;
        Some(Root { version, levels: number as u8 / 2 })
    }

    floe_exec::accumulator_laws!(
        HtreeEvidence,
        (0u32..9, 0u32..9),
        |all: &mut HtreeEvidence, (rank, logical): (u32, u32)| {
            all.nodes.push(Node { rank, logical, root: root(rank), entries: Box::new([(0, 1)]) });
            all.leaves.push(Leaf { rank, logical, min: 0, max: 9 });
            all.dropped.push(InodeNr(rank));
        },
        |all: HtreeEvidence| same(all, |mut all: HtreeEvidence| {
            all.nodes.sort_unstable();
            all.leaves.sort_unstable();
            all.dropped.sort_unstable();
            (all.nodes, all.leaves, all.dropped)
        })
    );
}
