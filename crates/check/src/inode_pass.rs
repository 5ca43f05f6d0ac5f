//! The inode pass: every inode table, in parallel; what an inode alone can prove is checked at once,
//! the rest is kept as evidence.

use floe_exec::{Accumulator, Phase, Pool, WorkItem, append};
use floe_format::ext::inode::Inode;
use floe_format::{BlockNr, BlockRun, Geometry, InodeNr};
use floe_sync::Arc;

use crate::checkpoint::{Legs, Session};
use crate::checks;
use crate::checks::inode_block::TableBlock;
pub use crate::checks::inode_block::TableContext;
use crate::checks::plain_inodes::{self, PlainInodes};
use crate::error::CheckError;
use crate::evidence::claims::Claims;
use crate::evidence::column::Column;
use crate::evidence::common_claims::CommonClaims;
use crate::evidence::dirs::Dirs;
use crate::evidence::fingerprint::PartialSums;
use crate::evidence::inode_facts::{Facts, FactsChunk, FactsParts};
use crate::evidence::published_facts::PublishedFacts;
use crate::evidence::saved::{Decoder, Encoder, Fault, Saved};
use crate::inode_tables::{self, Ahead, Room, TablePart, blocks_of, table_parts};
use crate::problem::{Findings, Problem, Sink};
use crate::volume::Volume;
use crate::work::MapReads;

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
    pub attributes: checks::xattrs::AttributeEvidence,
    /// Space and inodes used by each user, group and project.
    pub quota: crate::evidence::quota_usage::QuotaUsage,
    /// Encryption policies.
    pub policies: crate::evidence::policies::Policies,
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
        self.found.merge(other.found);
        self.facts.merge(other.facts);
        self.claims.merge(other.claims);
        self.dirs.merge(other.dirs);
        self.attributes.merge(other.attributes);
        self.quota.merge(other.quota);
        self.policies.merge(other.policies);
        self.totals.merge(other.totals);
        append(&mut self.looked_into, other.looked_into);
        self.sums.merge(other.sums);
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
        let found = Saved::load(from)?;
        let facts = Saved::load(from)?;
        // Their sums go where they are added in the end.
        let (claims, of_claims) = Claims::load(from)?;
        let dirs = Saved::load(from)?;
        let attributes = Saved::load(from)?;
        let quota = Saved::load(from)?;
        let policies = Saved::load(from)?;
        let totals = Saved::load(from)?;
        let mut sums: PartialSums = Saved::load(from)?;
        sums.clusters.merge(of_claims);
        let (looked_into, buffers) = (Saved::load(from)?, Buffers::default());
        Ok(Self {
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
            buffers,
        })
    }
}

/// Counts of the inode pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Inodes in use.
    pub inodes_used: u64,
    /// Inodes by type, indexed by `FileType as usize`; index 0: undefined.
    pub by_type: [u64; 8],
    /// Blocks of data and of their maps.
    pub blocks_mapped: u64,
    /// Regular files of 2 GiB or more, with the reserved inodes in use.
    pub large_files: u64,
    /// Fragments: runs of adjacent blocks of files.
    pub fragments: u64,
    /// Inodes with more than one fragment that would fit into a group.
    pub fragmented: u64,
}

impl Totals {
    /// Notes an inode with `blocks` blocks in `fragments` fragments. What cannot lie in one group
    /// does not count as fragmented, as for e2fsck.
    #[inline]
    pub fn add_fragments(&mut self, fragments: u64, blocks: u64, geometry: &Geometry) {
        self.fragments += fragments;
        let fits = blocks < u64::from(geometry.blocks_per_group);
        self.fragmented += u64::from(fragments > 1 && fits);
    }
}

impl Totals {
    /// Takes back the counts of some inodes, which were added before.
    pub fn take_back(&mut self, other: &Self) {
        let less = |mine: &mut u64, theirs: u64| *mine = mine.saturating_sub(theirs);
        less(&mut self.inodes_used, other.inodes_used);
        self.by_type.iter_mut().zip(other.by_type).for_each(|(mine, theirs)| less(mine, theirs));
        less(&mut self.blocks_mapped, other.blocks_mapped);
        less(&mut self.large_files, other.large_files);
        less(&mut self.fragments, other.fragments);
        less(&mut self.fragmented, other.fragmented);
    }
}

impl Accumulator for Totals {
    fn merge(&mut self, other: Self) {
        self.inodes_used += other.inodes_used;
        self.by_type.iter_mut().zip(other.by_type).for_each(|(mine, theirs)| *mine += theirs);
        self.blocks_mapped += other.blocks_mapped;
        self.large_files += other.large_files;
        self.fragments += other.fragments;
        self.fragmented += other.fragmented;
    }
}

impl Saved for Totals {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self { inodes_used, by_type, blocks_mapped, large_files, fragments, fragmented } = self;
        let counts = [inodes_used, blocks_mapped, large_files, fragments, fragmented];
        counts.into_iter().chain(by_type).for_each(|count| count.save(to));
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let mut all = Self::default();
        let Self { inodes_used, by_type, blocks_mapped, large_files, fragments, fragmented } =
            &mut all;
        let counts = [inodes_used, blocks_mapped, large_files, fragments, fragmented];
        for count in counts.into_iter().chain(by_type) {
            *count = Saved::load(from)?;
        }
        Ok(all)
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
    pub region: checks::xattrs::Region,
    /// Anything else of one block.
    pub block: Vec<u8>,
    /// Blocks of plain inodes that are not claimed yet: the next ones are often adjacent.
    pub pending: BlockRun,
    /// Maps with blocks of their own were met in the part at hand.
    pub met_trees: bool,
    /// Blocks of maps that were read and not yet told of in the progress.
    pub maps: MapReads,
    /// They were in the last part: the device is told of those to come.
    pub(crate) read_ahead: bool,
    rows: Rows,
}

/// What is known of the inodes of the part at hand, before it is packed.
#[derive(Debug, Default)]
struct Rows {
    facts: Vec<Facts>,
    links: Vec<u16>,
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

/// Reads and checks all inodes; those that are left if there is a checkpoint.
///
/// # Errors
/// [`CheckError::Stopped`] if that was asked for.
pub fn run(
    volume: &Volume<'_>,
    pool: &Pool,
    session: Option<&mut Session<'_>>,
) -> Result<InodeEvidence, CheckError> {
    match session {
        None => Ok(run_parts(volume, &table_parts(volume), true, pool)),
        Some(session) => run_in_legs(volume, pool, session),
    }
}

/// Reads and checks the inodes of some parts of the tables.
pub fn run_over(volume: &Volume<'_>, parts: &[TablePart], pool: &Pool) -> InodeEvidence {
    run_parts(volume, parts, false, pool)
}

/// Reads and checks the inodes of some parts of the tables, or of all.
fn run_parts(volume: &Volume<'_>, parts: &[TablePart], whole: bool, pool: &Pool) -> InodeEvidence {
    let plain = PlainInodes::of(volume);
    let weight = |part: &TablePart| inodes_in_use(volume, part);
    let common = claims_in_common(pool.threads());
    let mut all = pool.run_dealt(parts, weight, |evidence: &mut InodeEvidence, item| {
        evidence.claims.join(common.as_ref());
        let part = *item.unit();
        let mut next = || item.next_unit().copied();
        let ahead = Ahead::of_pool(pool, whole, &mut next);
        scan_part(volume, plain.as_ref(), part, None, ahead, evidence);
        tell(volume, pool, evidence);
    });
    all.claims.settle();
    all
}

/// Where workers claim clusters, if there are several.
pub fn claims_in_common(threads: usize) -> Option<Arc<CommonClaims>> {
    (threads > 1).then(Arc::default)
}

/// Says in the progress what was met in a part.
fn tell(volume: &Volume<'_>, pool: &Pool, evidence: &mut InodeEvidence) {
    if !evidence.found.0.is_empty() {
        pool.note_found();
    }
    tell_maps(volume, pool.phase(), evidence);
}

/// Says in a phase which blocks of maps were read since the last call.
pub fn tell_maps(volume: &Volume<'_>, phase: Option<&Phase>, evidence: &mut InodeEvidence) {
    let met = evidence.buffers.maps.take(volume);
    if let (Some(phase), Some(met)) = (phase, met) {
        phase.met(&met);
    }
}

/// Inodes in use of a part, if those of its group are spread evenly, and a little for each that is read.
fn inodes_in_use(volume: &Volume<'_>, part: &TablePart) -> u64 {
    let bound = u64::from(volume.used_inodes_bound(part.group)).max(1);
    let per_group = volume.geometry.inodes_per_group;
    let used = per_group.saturating_sub(volume.group(part.group).free_inodes_count);
    let count = u64::from(part.count);
    (u64::from(used) * count / bound).min(count) + count / 16
}

/// Reads and checks the inodes that are left of a check with a checkpoint.
fn run_in_legs(
    volume: &Volume<'_>,
    pool: &Pool,
    session: &mut Session<'_>,
) -> Result<InodeEvidence, CheckError> {
    let (plain, mut begun) = (PlainInodes::of(volume), session.inodes());
    if let Some(tables) = &volume.tables {
        // As where parts were read, even if none is left.
        begun.evidence.claims.sum_up(tables, &volume.claim_scope);
    }
    let parts = table_parts(volume);
    let rest = parts.get(begun.done..).unwrap_or(&[]);
    let common = claims_in_common(pool.threads());
    let work = |evidence: &mut InodeEvidence, item: &mut WorkItem<'_, '_, TablePart>| {
        evidence.claims.join(common.as_ref());
        let part = *item.unit();
        let mut next = || item.next_unit().copied();
        let ahead = Ahead::of_pool(pool, true, &mut next);
        scan_part(volume, plain.as_ref(), part, None, ahead, evidence);
        tell(volume, pool, evidence);
    };
    let done = |count| begun.done + count;
    let legs = Legs::of_inodes(volume, pool, &done);
    let settle = |evidence: &mut InodeEvidence| evidence.claims.settle();
    session.run(&legs, begun.evidence, rest, work, settle, |part| blocks_of(volume, *part))
}

/// Reads one part of a table and checks its inodes. Their facts are `published`, too, for who judges
/// directories meanwhile.
pub fn scan_part(
    volume: &Volume<'_>,
    plain: Option<&PlainInodes<'_>>,
    part: TablePart,
    published: Option<&PublishedFacts>,
    ahead: Ahead<'_>,
    evidence: &mut InodeEvidence,
) {
    let mut rows = std::mem::take(&mut evidence.buffers.rows);
    rows.facts.clear();
    rows.facts.resize(part.count as usize, Facts::default());
    rows.links.clear();
    rows.links.resize(part.count as usize, 0);
    let mut any = false;
    let index = part.index(&volume.geometry);
    evidence.buffers.read_ahead = std::mem::take(&mut evidence.buffers.met_trees);
    evidence.claims.begin_part(index);
    if let Some(tables) = &volume.tables {
        evidence.claims.sum_up(tables, &volume.claim_scope);
    }
    let first = volume.geometry.inode_at(part.group, part.first);
    for_each_slot(volume, part, plain, ahead, evidence, |evidence, at, raw, context| {
        let number = InodeNr(first.0.wrapping_add(at));
        let Some(raw) = raw else {
            // Nobody knows what is there: names that lead to it are not to be cleared as unused.
            any = true;
            rows.facts[at as usize] = Facts::default().with_bad();
            return;
        };
        if let (Some(rules), Ok(raw)) = (plain.filter(|_| context.checksum_ok), raw.try_into())
            && let Some(inode) = rules.judge(number, raw, &mut evidence.buffers.region)
        {
            any = true;
            rows.facts[at as usize] = inode.facts();
            rows.links[at as usize] = inode.links();
            inode.note(rules, evidence);
        } else if let Some(inode) = Inode::decode(raw) {
            let cx = InodeCx { volume, number, inode: &inode };
            let of_inode = checks::inodes::check(&cx, context, evidence);
            if of_inode.is_used() {
                any = true;
                rows.facts[at as usize] = of_inode;
                rows.links[at as usize] = inode.base.links_count;
            }
        }
    });
    plain_inodes::claim_pending(volume, evidence);
    if let (true, Some(tables)) = (any, &volume.tables) {
        evidence.sums.note_inodes(tables, part.group, part.first, &rows.facts, &rows.links);
    }
    if any && volume.scope.contains(part.group) {
        let (facts, links) = (Column::pack(&rows.facts), Column::pack(&rows.links));
        let chunk = Arc::new(FactsChunk { facts, links });
        if let Some(published) = published {
            published.publish(index, &chunk);
        }
        evidence.facts.0.push((index, chunk));
    }
    evidence.buffers.rows = rows;
}

/// Calls `each` with every inode of a part, without judging anything: for a second look.
pub fn for_each_inode(
    volume: &Volume<'_>,
    part: TablePart,
    evidence: &mut InodeEvidence,
    mut each: impl FnMut(&mut InodeEvidence, InodeNr, &Inode<'_>),
) {
    let mut next = || None;
    let ahead = Ahead::in_order(1, false, &mut next);
    for_each_slot(volume, part, None, ahead, evidence, |evidence, at, raw, _| {
        if let Some(inode) = raw.and_then(Inode::decode) {
            each(evidence, volume.geometry.inode_at(part.group, part.first + at), &inode);
        }
    });
}

/// Reads the part and calls `each` with the index in the part, the bytes of the inode, and what its
/// block says. Blocks that cannot be read are reported; their inodes have no bytes.
fn for_each_slot(
    volume: &Volume<'_>,
    part: TablePart,
    plain: Option<&PlainInodes<'_>>,
    ahead: Ahead<'_>,
    evidence: &mut InodeEvidence,
    mut each: impl FnMut(&mut InodeEvidence, u32, Option<&[u8]>, TableContext<'_>),
) {
    let geometry = &volume.geometry;
    inode_tables::for_each_piece(volume, part, ahead, evidence, |evidence, piece, read, table| {
        for index in 0..piece.blocks {
            let place = TableBlockPlace {
                part,
                block: BlockNr(piece.run(volume).start.0 + u64::from(index)),
                index: piece.first + index,
            };
            let bytes = index as usize * geometry.block_size as usize;
            let Some(slot) = table.get_mut(bytes..bytes + geometry.block_size as usize) else {
                continue;
            };
            // A failed read is repeated block by block: only those that fail are lost.
            let readable =
                read || volume.device.read_at(geometry.offset_bytes(place.block), slot).is_ok();
            let good = readable && volume.bad_table_blocks.binary_search(&place.block).is_err();
            if !readable && !volume.is_absent(place.block) {
                let (group, block) = (part.group, place.block);
                evidence.found.push(Problem::UnreadableInodeTable { group, block });
            }
            slots_of_block(volume, place, plain, slot, good, evidence, &mut each);
        }
    });
}

/// A block of a part of an inode table.
#[derive(Clone, Copy)]
struct TableBlockPlace {
    part: TablePart,
    block: BlockNr,
    /// Its index in the table.
    index: u32,
}

/// Calls `each` with the inodes of one block that belong to the part.
fn slots_of_block(
    volume: &Volume<'_>,
    place: TableBlockPlace,
    plain: Option<&PlainInodes<'_>>,
    bytes: &mut [u8],
    good: bool,
    evidence: &mut InodeEvidence,
    each: &mut impl FnMut(&mut InodeEvidence, u32, Option<&[u8]>, TableContext<'_>),
) {
    let TableBlockPlace { part, block, index } = place;
    let inode_size = volume.geometry.inode_size;
    let begin = index * (volume.geometry.block_size / inode_size);
    let first = volume.geometry.inode_at(part.group, begin);
    // Before any of them is judged, which wants the bytes of the block for itself.
    let sums = plain.map(|rules| SumsOk::of_block(rules, first, bytes)).unwrap_or_default();
    let table = TableBlock::new(block, first, bytes);
    // Those before the part and behind it are others' business.
    let before = part.first.saturating_sub(begin);
    let at = begin + before - part.first;
    let raws = bytes.chunks_exact(inode_size as usize).zip(0..).skip(before as usize);
    for (at, (raw, slot)) in (at..part.count).zip(raws) {
        let context = TableContext { volume, table: &table, checksum_ok: sums.get(slot) };
        each(evidence, at, good.then_some(raw), context);
    }
}

/// Which inodes of 256 bytes in a block of a table are known to have the right checksum: a bit each. The largest
/// blocks, of 64 KiB, have 256.
#[derive(Default)]
struct SumsOk([u64; 4]);

impl SumsOk {
    /// Of the block whose first inode is `first`. The bytes are as before in the end.
    fn of_block(rules: &PlainInodes<'_>, first: InodeNr, bytes: &mut [u8]) -> Self {
        let mut all = Self::default();
        for ((word, raws), at) in all.0.iter_mut().zip(bytes.chunks_mut(64 * 256)).zip(0..) {
            *word = rules.checksums_ok(InodeNr(first.0.wrapping_add(64 * at)), raws);
        }
        all
    }

    fn get(&self, slot: usize) -> bool {
        self.0.get(slot / 64).is_some_and(|word| word >> (slot % 64) & 1 != 0)
    }
}

#[cfg(test)]
mod laws {
    mod totals {
        use super::super::*;
        use crate::evidence::saved::tests::same;

        floe_exec::accumulator_laws!(
            Totals,
            (0usize..8, 0u64..1000),
            |all: &mut Totals, (kind, blocks): (usize, u64)| {
                all.inodes_used += 1;
                all.by_type[kind] += 1;
                all.blocks_mapped += blocks;
                all.large_files += blocks / 900;
                all.fragments += blocks % 7;
                all.fragmented += blocks % 2;
            },
            |all: Totals| same(all, |all| all)
        );
    }

    mod evidence {
        use super::super::*;
        use crate::checks::xattrs::BlockUse;
        use crate::evidence::dirs::DirInfo;
        use crate::evidence::quota_usage::Usage;
        use crate::evidence::saved::tests::same;
        use crate::report::in_order;

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
            all.quota.add(0, value, Usage { space_bytes: 1, inodes: 1 });
            all.policies.add(inode, None);
            all.totals.inodes_used += 1;
        }

        floe_exec::accumulator_laws!(
            InodeEvidence,
            (1u32..99, 0u32..9),
            note,
            |all: InodeEvidence| same(all, |mut all: InodeEvidence| {
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
        );
    }
}
