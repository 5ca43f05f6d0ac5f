//! Re-examines the inodes near edited ones instead of all inodes. Used for examinations in the
//! middle of a repair, whose findings lead to the next edits and are no verdict.
//!
//! Findings and evidence of the earlier inode pass are carried over, except for the parts of inode
//! tables that edits concern. The evidence of those parts is determined before the edits
//! ([`Before`]) and subtracted, and their new evidence is added. The result is that of a pass over
//! all inodes, because every changed block is known, and `Since::carry_over` ensures that no other
//! inode's evidence depends on one. If that is not certain, all inodes are read: after damage that
//! makes inodes depend on each other (blocks claimed twice), with attribute values in inodes, with
//! encryption, and after changes to the superblock or the descriptors.
//!
//! All other passes always run in full.

use std::collections::{BTreeMap, BTreeSet};

use floe_exec::{Accumulator, Pool, take_back};
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::superblock::Superblock;
use floe_format::{BlockNr, BlockRun, Geometry, InodeNr};

use crate::checks::context::inode::{Buffers, InodeEvidence};
use crate::evidence::attributes::{AttributeEvidence, BlockUse, LongSymlink};
use crate::evidence::claims::Claims;
use crate::evidence::dirs::Dirs;
use crate::evidence::fingerprint::PartialSums;
use crate::evidence::inode_facts::InodeFacts;
use crate::evidence::policies::Policies;
use crate::evidence::quota_usage::QuotaUsage;
use crate::evidence::totals::Totals;
use crate::passes::inodes;
use crate::passes::pipeline::Examination;
use crate::problem::{Findings, Problem};
use crate::scan::inode_tables::{self, TablePart};
use crate::volume::{Doubts, Volume};

/// Findings of inodes that are kept; with more of them, everything is looked at again.
const MOST_FINDINGS: usize = 1 << 15;

/// Evidence of the inode pass that an examination keeps only for a later rescan.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The findings of the pass.
    found: Vec<Problem>,
    long_symlinks: Vec<LongSymlink>,
    looked_into: Vec<(InodeNr, BlockNr)>,
}

impl Kept {
    /// The evidence of a pass that just ended. `None`: it is too large, or inodes depend on each
    /// other.
    pub(crate) fn of(volume: &Volume<'_>, inodes: &InodeEvidence) -> Option<Self> {
        let separate = volume.mode.scope.is_all()
            && volume.mode.tables.is_none()
            && inodes.policies.is_empty()
            && inodes.attributes.ea_references.is_empty();
        (separate && inodes.found.0.len() <= MOST_FINDINGS).then(|| {
            let found = inodes.found.0.clone();
            let long_symlinks = inodes.attributes.long_symlinks.clone();
            Self { found, long_symlinks, looked_into: inodes.looked_into.clone() }
        })
    }
}

/// Parts of inode tables, and what they left before they were edited.
#[derive(Debug)]
pub struct Before {
    parts: Parts,
    left: InodeEvidence,
}

/// Parts of inode tables, in order.
#[derive(Debug)]
struct Parts {
    parts: Vec<TablePart>,
    /// First inode and number of each, ascending.
    inodes: Vec<(u32, u32)>,
    chunks: BTreeSet<u32>,
}

impl Parts {
    /// The parts among `all` that hold `inodes`. `None` if one of them is in no part.
    fn of(geometry: &Geometry, all: Vec<TablePart>, inodes: &BTreeSet<InodeNr>) -> Option<Self> {
        let first = |part: &TablePart| geometry.inode_at(part.group, part.first);
        let within = |part: &TablePart| {
            let first = first(part);
            first..InodeNr(first.0.saturating_add(part.count))
        };
        let mut held = 0;
        let mut parts = all;
        parts.retain(|part| {
            let inside = inodes.range(within(part)).count();
            held += inside;
            inside > 0
        });
        (held == inodes.len()).then(|| Self {
            inodes: parts.iter().map(|part| (first(part).0, part.count)).collect(),
            chunks: parts.iter().map(|part| part.index(geometry)).collect(),
            parts,
        })
    }

    fn contains(&self, inode: InodeNr) -> bool {
        let behind = self.inodes.partition_point(|(first, _)| *first <= inode.0);
        let before = behind.checked_sub(1).and_then(|at| self.inodes.get(at));
        before.is_some_and(|(first, count)| inode.0 - first < *count)
    }

    /// The blocks of the tables in which the parts lie, ascending.
    fn blocks(&self, volume: &Volume<'_>) -> Vec<BlockRun> {
        let per_block = volume.geometry.block_size / volume.geometry.inode_size;
        let run = |part: &TablePart| {
            let start = volume.group(part.group).inode_table.0;
            let (first, end) =
                (part.first / per_block, (part.first + part.count).div_ceil(per_block));
            BlockRun::new(BlockNr(start.saturating_add(first.into())), u64::from(end - first))
        };
        let mut runs: Vec<BlockRun> = self.parts.iter().map(run).collect();
        runs.sort_unstable_by_key(|run| run.start);
        runs
    }
}

impl Before {
    /// Looks at the parts of tables that hold `inodes`, as they are now: `earlier` is what was found of
    /// the same device, which is about to be edited. `None` if a later look at these parts alone could
    /// not be trusted, or if they are more than `most_percent` of all parts.
    pub fn look(
        earlier: &Examination<'_>,
        inodes: &BTreeSet<InodeNr>,
        most_percent: u32,
        threads: usize,
    ) -> Option<Self> {
        let volume = &earlier.volume;
        earlier.kept.as_ref()?;
        let all = inode_tables::table_parts(volume);
        let most = (all.len() as u64).saturating_mul(most_percent.into()) / 100;
        let parts = Parts::of(&volume.geometry, all, inodes)?;
        // Facts from attribute blocks about other inodes are more recent than `kept`.
        let alone = earlier.attributes.ea_references.is_empty();
        if !alone || parts.parts.len() as u64 > most {
            return None;
        }
        let mut left = inodes::run_over(volume, &parts.parts, &Pool::new(threads));
        left.buffers = Buffers::default();
        let apart =
            left.claims.shared().is_empty() && !left.claims.used().meets(earlier.claims.shared());
        apart.then_some(Self { parts, left })
    }

    /// Number of parts.
    pub fn parts(&self) -> usize {
        self.parts.parts.len()
    }
}

/// Evidence of an earlier examination that a later one can carry over.
pub struct Earlier {
    before: Before,
    kept: Kept,
    superblock: Superblock,
    groups: Vec<GroupDesc>,
    orphans: Vec<InodeNr>,
    doubts: Doubts,
    facts: InodeFacts,
    claims: Claims,
    dirs: Dirs,
    block_uses: Vec<BlockUse>,
    quota: QuotaUsage,
    totals: Totals,
}

/// An earlier examination's evidence, and the changes since.
pub struct Since {
    /// The evidence.
    pub earlier: Box<Earlier>,
    /// Bytes of the device at which all blocks begin that were changed since [`Before::look`].
    pub changed: Vec<u64>,
}

impl Since {
    /// The evidence that an examination of `volume`, the file system after the edits, can carry
    /// over; `None` if all inodes must be read.
    pub(crate) fn carry_over(self, volume: &Volume<'_>) -> Option<CarriedOver> {
        let Self { earlier, changed } = self;
        let certain =
            earlier.is_same_ground(volume) && earlier.changed_only_parts(volume, &changed);
        if certain { earlier.without_parts(volume) } else { None }
    }
}

impl Earlier {
    /// Combines an examination with the scan made before the edits. `None`: nothing was kept.
    pub fn new(examination: Examination<'_>, before: Before) -> Option<Box<Self>> {
        let Examination { report, volume, facts, claims, dirs, attributes, quota, kept, .. } =
            examination;
        Some(Box::new(Self {
            before,
            kept: kept?,
            superblock: volume.superblock,
            groups: volume.groups,
            orphans: volume.orphans,
            doubts: volume.doubts,
            facts,
            claims,
            dirs,
            block_uses: attributes.block_uses,
            quota,
            totals: report.totals,
        }))
    }

    /// All but what the parts left. `None` if that cannot be told from what others left.
    fn without_parts(mut self: Box<Self>, volume: &Volume<'_>) -> Option<CarriedOver> {
        self.take_back_later_claims(volume)?;
        let Before { parts, left } = self.before;
        let known =
            self.claims.take_back(&left.claims) && take_back(&mut self.kept.found, left.found.0);
        if !known {
            return None;
        }
        let others = |inode: InodeNr| !parts.contains(inode);
        self.dirs.infos.retain(|info| others(info.inode));
        self.dirs.runs.retain(|run| others(run.dir));
        self.dirs.inline.retain(|dir| others(*dir));
        self.block_uses.retain(|of| others(of.inode));
        self.kept.long_symlinks.retain(|link| others(link.inode));
        self.kept.looked_into.retain(|(inode, _)| others(*inode));
        self.quota.take_back(&left.quota);
        self.totals.take_back(&left.totals);
        let attributes = AttributeEvidence {
            block_uses: self.block_uses,
            long_symlinks: self.kept.long_symlinks,
            // There were none, or nothing would have been kept.
            ea_references: BTreeMap::new(),
            plain_blocks: Vec::new(),
        };
        let evidence = InodeEvidence {
            found: Findings(self.kept.found),
            facts: self.facts.into_parts(|chunk| parts.chunks.contains(&chunk)),
            claims: self.claims,
            dirs: self.dirs,
            attributes,
            quota: self.quota,
            policies: Policies::default(),
            totals: self.totals,
            looked_into: self.kept.looked_into,
            // Exact accounting has no fingerprints.
            sums: PartialSums::default(),
            buffers: Buffers::default(),
        };
        Some(CarriedOver { parts, evidence })
    }

    /// Whether inodes are where they were and are judged by the same rules.
    fn is_same_ground(&self, volume: &Volume<'_>) -> bool {
        let rules = |superblock: &Superblock| {
            // Fields that the inode pass never reads.
            let (free_blocks_count_lo, free_blocks_count_hi, free_inodes_count) = (0, 0, 0);
            let checksum = 0;
            Superblock {
                free_blocks_count_lo,
                free_blocks_count_hi,
                free_inodes_count,
                checksum,
                ..superblock.clone()
            }
        };
        let place = |desc: &GroupDesc| {
            let bitmaps = (desc.block_bitmap, desc.inode_bitmap);
            (bitmaps, desc.inode_table, desc.flags, desc.itable_unused)
        };
        rules(&self.superblock) == rules(&volume.superblock)
            && self.groups.iter().map(place).eq(volume.groups.iter().map(place))
            && self.orphans == volume.orphans
            && self.doubts == volume.doubts
    }

    /// Whether every block that was changed was read for inodes of the parts alone, or for none.
    fn changed_only_parts(&self, volume: &Volume<'_>, changed: &[u64]) -> bool {
        let geometry = &volume.geometry;
        let tables = self.before.parts.blocks(volume);
        let in_tables = |block: BlockNr| {
            let behind = tables.partition_point(|run| run.start <= block);
            behind.checked_sub(1).and_then(|at| tables.get(at)).is_some_and(|run| run.end() > block)
        };
        let looked_into = self.kept.looked_into.iter();
        let others_look_into: BTreeSet<BlockNr> = looked_into
            .filter(|(inode, _)| !self.before.parts.contains(*inode))
            .map(|(_, block)| *block)
            .collect();
        let mut of_metadata = BTreeSet::new();
        for &offset_bytes in changed {
            let block = BlockNr(offset_bytes / u64::from(geometry.block_size));
            if in_tables(block) {
                continue;
            }
            if !geometry.contains(block) || volume.is_metadata(block) {
                of_metadata.insert(block);
                continue;
            }
            let cluster = geometry.cluster_of(block);
            let own = self.before.left.claims.used().contains(cluster);
            let free = || !self.claims.used().contains(cluster);
            // Attribute blocks are all read again.
            let of_attributes =
                || self.block_uses.binary_search_by_key(&block, |of| of.block).is_ok();
            if others_look_into.contains(&block) || !(own || free() || of_attributes()) {
                return false;
            }
        }
        // The inode pass reads no bitmap. Superblock and descriptors were compared.
        for desc in &volume.groups {
            of_metadata.remove(&desc.block_bitmap);
            of_metadata.remove(&desc.inode_bitmap);
        }
        let superblock = BlockNr(1024 / u64::from(geometry.block_size));
        of_metadata.remove(&superblock);
        for at in 0..geometry.desc_blocks {
            of_metadata.remove(&geometry.primary_desc_block(at));
        }
        of_metadata.is_empty()
    }

    /// Takes the claims back that were made after the inode pass: those of static metadata and of
    /// attribute blocks. `None` if inodes claim them too.
    fn take_back_later_claims(&mut self, volume: &Volume<'_>) -> Option<()> {
        let mut later = Claims::default();
        later.claim_attribute_blocks(&volume.geometry, volume.sums(), &self.block_uses);
        let mut metadata = Claims::default();
        metadata.claim_metadata(&volume.metadata, volume.sums());
        (self.claims.take_back(&metadata) && self.claims.take_back(&later)).then_some(())
    }
}

/// The evidence carried over, and the parts of inode tables to read again.
pub(crate) struct CarriedOver {
    parts: Parts,
    evidence: InodeEvidence,
}

impl CarriedOver {
    /// Looks at the parts and adds what they leave: what a pass over all inodes would have kept, in
    /// another order. `None` if it would not be, because inodes depend on others now.
    pub(crate) fn complete(self, volume: &Volume<'_>, pool: &Pool) -> Option<(InodeEvidence, u32)> {
        let new = inodes::run_over(volume, &self.parts.parts, pool);
        let alone = new.policies.is_empty() && new.attributes.ea_references.is_empty();
        let mut evidence = self.evidence;
        evidence.merge(new);
        // Fewer parts than inodes.
        alone.then_some((evidence, self.parts.parts.len() as u32))
    }
}
