//! Check: blocks claimed more than once (e2fsck's passes 1B to 1D).
//! Reads: if some cluster is claimed twice, the parts of the inode tables again that claim anything near
//! it (`evidence/ledger.rs`).  Keeps: who claims what.
//! Emits: `MultiplyClaimed*`.

use floe_exec::{Accumulator, Pool};
use floe_format::ext::inode::Inode;
use floe_format::features::RoCompat;
use floe_format::{BlockNr, Geometry, InodeNr};

use claimants::{Claimants, SharedWith};

use crate::checks::context::inode::{InodeCx, InodeEvidence};
use crate::checks::inode::{inodes, slots};
use crate::evidence::attributes::BlockUse;
use crate::evidence::block_set::{BlockSet, bit_runs, word_mask};
use crate::evidence::claims::Claims;
use crate::evidence::dirs::DirFlags;
use crate::evidence::inode_facts::InodeFacts;
use crate::problem::{Findings, Problem, Sink};
use crate::scan::inode_tables::table_parts;
use crate::volume::Volume;

mod claimants;

/// Runs of shared clusters, each with an inode that claims it.
#[derive(Debug, Default)]
struct Sharers {
    runs: Vec<(InodeNr, u64, u64)>,
    scratch: InodeEvidence,
}

impl Accumulator for Sharers {
    fn merge(&mut self, other: Self) {
        let Self { mut runs, scratch: _ } = other;
        self.runs.append(&mut runs);
    }
}

/// Finds the inodes that claim clusters of `claims.shared()`. `attribute_uses` are the attribute
/// blocks and the inodes that use them.
pub fn check(
    volume: &Volume<'_>,
    facts: &InodeFacts,
    claims: &Claims,
    attribute_uses: &[BlockUse],
    pool: &Pool,
) -> Findings {
    let mut found = Findings::default();
    let shared = claims.shared();
    if shared.is_empty() || volume.has_ro_compat(RoCompat::SHARED_BLOCKS) {
        return found;
    }
    let claiming = claims.parts_claiming(shared);
    let mut parts = table_parts(volume);
    parts.retain(|part| claiming.binary_search(&part.index(&volume.geometry)).is_ok());
    let mut sharers: Sharers = pool.run(&parts, |own: &mut Sharers, part| {
        let Sharers { runs, scratch } = own;
        slots::for_each_inode(volume, *part, scratch, |scratch, number, inode| {
            // Where facts are not kept, the fingerprints prove that the inodes are plain ones.
            let kept = volume.keeps(number);
            let used = if kept { facts.get(number).is_used() } else { inode.base.links_count > 0 };
            if used && number != InodeNr::BAD_BLOCKS {
                collect(volume, number, inode, shared, scratch, runs);
            }
        });
        scratch.found.0.clear();
    });
    let geometry = &volume.geometry;
    for &BlockUse { block, inode, .. } in attribute_uses {
        if geometry.contains(block) && shared.contains(geometry.cluster_of(block)) {
            sharers.runs.push((inode, geometry.cluster_of(block), 1));
        }
    }
    sharers.runs.sort_unstable();
    report(volume, &sharers.runs, &mut found);
    found
}

/// Adds the shared clusters that one inode claims.
fn collect(
    volume: &Volume<'_>,
    number: InodeNr,
    inode: &Inode<'_>,
    shared: &BlockSet,
    scratch: &mut InodeEvidence,
    runs: &mut Vec<(InodeNr, u64, u64)>,
) {
    let cx = InodeCx { volume, number, inode };
    scratch.claims = Claims::recording();
    inodes::map(&cx, inode.file_type(), DirFlags::default(), scratch);
    scratch.dirs.runs.clear();
    for (start, len) in scratch.claims.take_recorded() {
        let end = start + len;
        for at in (start..end).step_by(64) {
            let word = shared.word(at) & word_mask(0, (end - at).min(64));
            for (from, len) in bit_runs(word) {
                match runs.last_mut() {
                    Some(last) if last.0 == number && last.1 + last.2 == at + from => last.2 += len,
                    _ => runs.push((number, at + from, len)),
                }
            }
        }
    }
}

/// First block of a cluster.
fn block_of(geometry: &Geometry, cluster: u64) -> BlockNr {
    BlockNr(geometry.first_data_block.0 + (cluster << geometry.cluster_bits))
}

/// Reports each inode's shared runs, and who shares them.
fn report(volume: &Volume<'_>, runs: &[(InodeNr, u64, u64)], found: &mut Findings) {
    let geometry = &volume.geometry;
    let mut claimants = Claimants::of(runs);
    for of_inode in runs.chunk_by(|left, right| left.0 == right.0) {
        let Some(&(inode, ..)) = of_inode.first() else { continue };
        let (mut blocks, mut on_metadata) = (0, false);
        for &(_, start, len) in of_inode {
            let block = block_of(geometry, start);
            let len_blocks = len << geometry.cluster_bits;
            found.push(if len == 1 {
                Problem::MultiplyClaimedBlock { inode, block }
            } else {
                Problem::MultiplyClaimedRange { inode, block, len: len_blocks }
            });
            blocks += len_blocks;
            on_metadata |= !volume.metadata.is_clear_in(start, len);
        }
        if inode == InodeNr::RESIZE {
            continue;
        }
        let SharedWith { count, first } = claimants.sharers(inode, of_inode);
        let sharers = u32::try_from(count).unwrap_or(u32::MAX);
        found.push(Problem::MultiplyClaimedFile { inode, shared_blocks: blocks, sharers });
        if on_metadata {
            found.push(Problem::MultiplyClaimedWithMetadata { inode });
        }
        // Thousands of inodes on one block would make millions of pairs.
        for sharer in first {
            found.push(Problem::MultiplyClaimedSharer { inode, sharer });
        }
    }
}

#[cfg(test)]
mod laws {
    use super::*;

    floe_exec::accumulator_laws!(
        Sharers,
        (1u32..9, 0u64..99, 1u64..9),
        |all: &mut Sharers, (inode, start, len): (u32, u64, u64)| {
            all.runs.push((InodeNr(inode), start, len));
        },
        |mut all: Sharers| {
            all.runs.sort_unstable();
            all.runs
        }
    );
}
