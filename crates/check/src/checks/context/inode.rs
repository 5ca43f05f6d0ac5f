//! Context of checks of inodes: the inode at hand, and what one worker finds and keeps.

use floe_exec::{Accumulator, append};
use floe_format::ext::inode::Inode;
use floe_format::{BlockNr, BlockRun, InodeNr};

use crate::evidence::attributes::AttributeEvidence;
use crate::evidence::claims::Claims;
use crate::evidence::dirs::Dirs;
use crate::evidence::fingerprint::PartialSums;
use crate::evidence::inode_facts::{Facts, FactsParts};
use crate::evidence::policies::Policies;
use crate::evidence::quota_usage::QuotaUsage;
use crate::evidence::region::Region;
use crate::evidence::totals::Totals;
use crate::problem::Findings;
use crate::saved::{Decoder, Encoder, Fault, Saved};
use crate::scan::inode_tables::Room;
use crate::scan::map_reads::MapReads;
use crate::volume::Volume;

/// Everything one worker finds and keeps while it reads inodes.
#[derive(Debug, Default)]
pub struct InodeEvidence {
    /// Findings.
    pub found: Findings,
    /// Types and link counts.
    pub facts: FactsParts,
    /// Clusters claimed by inodes (not by static metadata).
    pub claims: Claims,
    /// Directories and their blocks.
    pub dirs: Dirs,
    /// Extended attributes whose proof needs other objects.
    pub attributes: AttributeEvidence,
    /// Space and inodes used by each user, group and project.
    pub quota: QuotaUsage,
    /// Encryption policies.
    pub policies: Policies,
    /// Files by kind, and what the superblock must announce.
    pub totals: Totals,
    /// Blocks that were looked into although the inode does not claim them.
    pub looked_into: Vec<(InodeNr, BlockNr)>,
    /// Sums of what is not kept object by object. (Those of claims are in [`Self::claims`].)
    pub sums: PartialSums,
    /// Buffers that live as long as the worker.
    pub buffers: Buffers,
}

impl Accumulator for InodeEvidence {
    fn merge(&mut self, other: Self) {
        let Self {
            found,
            facts,
            claims,
            dirs,
            attributes,
            quota,
            policies,
            totals,
            looked_into,
            sums,
            buffers: _,
        } = other;
        self.found.merge(found);
        self.facts.merge(facts);
        self.claims.merge(claims);
        self.dirs.merge(dirs);
        self.attributes.merge(attributes);
        self.quota.merge(quota);
        self.policies.merge(policies);
        self.totals.merge(totals);
        append(&mut self.looked_into, looked_into);
        self.sums.merge(sums);
    }
}

impl Saved for InodeEvidence {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self {
            found,
            facts,
            claims,
            dirs,
            attributes,
            quota,
            policies,
            totals,
            sums,
            looked_into,
            buffers: _,
        } = self;
        found.save(to);
        facts.save(to);
        claims.save(to);
        dirs.save(to);
        attributes.save(to);
        quota.save(to);
        policies.save(to);
        totals.save(to);
        sums.save(to);
        looked_into.save(to);
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let mut all = Self::default();
        all.load_more(from)?;
        Ok(all)
    }

    fn load_more(&mut self, from: &mut Decoder<'_>) -> Result<(), Fault> {
        let found = Saved::load(from)?;
        let facts = Saved::load(from)?;
        // Their sums go where they are added in the end.
        let (claims, of_claims) = Claims::load(from)?;
        self.dirs.load_more(from)?;
        let attributes = Saved::load(from)?;
        let quota = Saved::load(from)?;
        let policies = Saved::load(from)?;
        let totals = Saved::load(from)?;
        let mut sums: PartialSums = Saved::load(from)?;
        sums.clusters.merge(of_claims);
        self.merge(Self {
            found,
            facts,
            claims,
            // They were read to where they stay.
            dirs: Dirs::default(),
            attributes,
            quota,
            policies,
            totals,
            sums,
            looked_into: Saved::load(from)?,
            buffers: Buffers::default(),
        });
        Ok(())
    }
}

/// Buffers of a worker.
#[derive(Debug, Default)]
pub struct Buffers {
    /// Pieces of inode tables.
    pub(crate) tables: Room,
    /// One extent node or indirect block for each level of a tree.
    pub nodes: Vec<Vec<u8>>,
    /// The nodes read for the inode at hand, in order: a tree that meets one again is not a tree.
    pub nodes_seen: Vec<BlockNr>,
    /// Blocks that will be read, to be announced.
    pub ahead: Vec<BlockNr>,
    /// Which bytes of an attribute area are taken.
    pub region: Region,
    /// Anything else of one block.
    pub block: Vec<u8>,
    /// Blocks of plain inodes that are not claimed yet: the next ones are often adjacent.
    pub pending: BlockRun,
    /// Maps with blocks of their own were met in the part at hand.
    pub met_trees: bool,
    /// Blocks of maps that were read and not yet told of in the progress.
    pub maps: MapReads,
    /// Maps with blocks of their own were met in the last part: the device is told of those to come.
    pub(crate) read_ahead: bool,
    /// Facts of the inodes of the current chunk.
    pub rows: Rows,
}

/// Facts of the inodes of the current chunk, before they are packed.
#[derive(Debug, Default)]
pub struct Rows {
    /// Facts of each.
    pub facts: Vec<Facts>,
    /// Stored link counts of each.
    pub links: Vec<u16>,
}

/// One inode under check.
#[derive(Clone, Copy)]
pub struct InodeCx<'a> {
    /// The file system.
    pub volume: &'a Volume<'a>,
    /// Its number.
    pub number: InodeNr,
    /// Its fields and bytes.
    pub inode: &'a Inode<'a>,
}

impl InodeCx<'_> {
    /// The start of the checksums of the inode's extent nodes and directory blocks.
    pub fn checksum_seed(&self) -> u32 {
        self.volume.seed.of_inode(self.number, self.inode.base.generation)
    }
}

#[cfg(test)]
mod laws {
    use super::*;
    use floe_exec::Pool;
    use floe_sync::Arc;

    use crate::evidence::attributes::BlockUse;
    use crate::evidence::column::Column;
    use crate::evidence::dirs::DirInfo;
    use crate::evidence::inode_facts::FactsChunk;
    use crate::evidence::quota_usage::Usage;
    use crate::problem::{Problem, Sink};
    use crate::report::in_order;
    use crate::saved::tests::same;

    /// One of everything that an inode may leave.
    fn note(all: &mut InodeEvidence, (number, value): (u32, u32)) {
        let inode = InodeNr(number);
        all.found.push(Problem::InodeFaddrNonzero { inode, value });
        let (facts, links) = (Column::pack(&[Facts::default()]), Column::pack(&[0]));
        all.facts.0.push((number, Arc::new(FactsChunk { facts, links })));
        all.claims.claim_clusters(u64::from(number), u64::from(value));
        all.dirs.infos.push(DirInfo { inode, size_blocks: value });
        let block = BlockNr(u64::from(value));
        all.attributes.block_uses.push(BlockUse { block, inode, wants_context: false });
        all.quota.add(0, value, Usage { space_bytes: 1, inodes: 1, inline_links: 0 });
        all.policies.add(inode, None);
        all.totals.inodes_used += 1;
    }

    floe_exec::accumulator_laws!(InodeEvidence, (1u32..99, 0u32..9), note, |all: InodeEvidence| {
        same(all, |mut all: InodeEvidence| {
            all.dirs.sort(&Pool::new(1));
            all.policies.sort();
            all.attributes.block_uses.sort_unstable();
            all.facts.0.sort_by_key(|(index, _)| *index);
            (
                in_order(all.found),
                all.facts.0.into_iter().map(|(index, _)| index).collect::<Vec<_>>(),
                (all.claims.used().runs(), all.claims.shared().runs()),
                all.dirs.infos,
                all.attributes.block_uses,
                all.quota.of_kind(0),
                all.totals,
            )
        })
    });
}
