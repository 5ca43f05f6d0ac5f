//! The step after the inode pass: each attribute block and each block of a long symlink, once, in disk
//! order, in parallel.
//! Emits: `XattrBlockUnreadable`, `XattrBlockRefcountWrong`, `SymlinkInvalid`, `UnreadableBlock`, those
//! of `in_block` and `EncryptFlagWithoutContext` of encrypted inodes whose context is not in the block either.

use floe_blockdev::{Batch, JoinLimits, ReadPlan};
use floe_exec::{Accumulator, Pool};
use floe_format::ext::xattr::XattrArea;
use floe_format::{BlockNr, BlockRun};

use crate::checks::context::inode::InodeEvidence;
use crate::checks::inode::symlinks;
use crate::checks::xattr::value_inode::{self, Home};
use crate::checks::xattr::{encryption, in_block};
use crate::evidence::attributes::{AttributeEvidence, BlockUse, LongSymlink};
use crate::evidence::claims::Claims;
use crate::evidence::policies::Policies;
use crate::evidence::region::Region;
use crate::problem::{Findings, Problem, Sink};
use crate::volume::Volume;

/// Bytes of one read, at most.
const READ_BYTES: u64 = 1 << 20;
/// Unwanted bytes between two blocks that are read along: cheaper than another request.
const GAP_BYTES: u64 = 32 << 10;

/// The evidence of one worker.
#[derive(Debug, Default)]
struct BlockOutcome {
    found: Findings,
    claims: Claims,
    policies: Policies,
    attributes: AttributeEvidence,
    region: Region,
    buffer: Vec<u8>,
}

impl Accumulator for BlockOutcome {
    fn merge(&mut self, other: Self) {
        let Self { found, claims, policies, attributes, region: _, buffer: _ } = other;
        self.found.merge(found);
        self.claims.merge(claims);
        self.policies.merge(policies);
        self.attributes.merge(attributes);
    }
}

/// The reason why a block is read.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    /// Attributes; all uses of the block, at least one.
    Attributes(&'a [BlockUse]),
    /// The target of a symlink.
    Target(LongSymlink),
}

/// Reads each attribute block that an inode uses once, in disk order, and adds to `evidence` what it
/// says: findings, claims of the blocks, policies, references to EA inodes. Reads the targets of long
/// symlinks too. Run it after the inode pass and before anything that needs complete claims,
/// policies or references.
pub fn check(volume: &Volume<'_>, evidence: &mut InodeEvidence, pool: &Pool) {
    let symlinks = std::mem::take(&mut evidence.attributes.long_symlinks);
    let mut uses = std::mem::take(&mut evidence.attributes.block_uses);
    if symlinks.is_empty() && uses.is_empty() {
        return;
    }
    uses.sort_unstable();
    let blocks = uses
        .chunk_by(|left, right| left.block == right.block)
        .map(|uses| (BlockRun::new(uses[0].block, 1), Wanted::Attributes(uses)));
    let targets = symlinks.iter().map(|link| (BlockRun::new(link.block, 1), Wanted::Target(*link)));
    let block_size = u64::from(volume.geometry.block_size);
    let limits = JoinLimits {
        max_blocks: (READ_BYTES / block_size).max(1),
        max_gap_blocks: GAP_BYTES / block_size,
        // Blocks behind the end of the device are tried, and found unreadable.
        end: BlockNr(volume.geometry.blocks_count),
    };
    let plan = ReadPlan::new(blocks.chain(targets), limits);
    let batches: Vec<_> = plan.batches().collect();
    let outcome: BlockOutcome =
        pool.run(&batches, |outcome, batch| check_batch(volume, batch, outcome));
    evidence.found.merge(outcome.found);
    evidence.claims.merge(outcome.claims);
    evidence.policies.merge(outcome.policies);
    evidence.attributes.merge(outcome.attributes);
    evidence.attributes.block_uses = uses;
}

/// Reads the targets of long symlinks alone, which concern nobody else, and leaves attribute blocks for later.
pub(crate) fn check_targets(volume: &Volume<'_>, evidence: &mut InodeEvidence, pool: &Pool) {
    let uses = std::mem::take(&mut evidence.attributes.block_uses);
    check(volume, evidence, pool);
    evidence.attributes.block_uses = uses;
}

/// Claims attribute blocks without reading them, for a refinement, which needs only their claims. Returns `false`,
/// and nothing is claimed, if their content matters to other inodes.
pub(crate) fn claim_unread(volume: &Volume<'_>, evidence: &mut InodeEvidence) -> bool {
    let uses = &mut evidence.attributes.block_uses;
    if uses.iter().any(|of| of.wants_context) {
        return false;
    }
    uses.sort_unstable();
    evidence.claims.claim_attribute_blocks(&volume.geometry, volume.sums(), uses);
    true
}

fn check_batch(volume: &Volume<'_>, batch: &Batch<'_, Wanted<'_>>, outcome: &mut BlockOutcome) {
    let mut buffer = std::mem::take(&mut outcome.buffer);
    // Not addressable is impossible: a batch lies inside the file system and is at most READ_BYTES
    // long, or one block.
    let _ = batch.read(volume.device, volume.geometry.block_size, &mut buffer, |part| {
        let readable = part.unreadable.is_empty();
        match part.part.tag {
            Wanted::Attributes(uses) => {
                check_attributes(volume, uses, readable.then_some(part.bytes), outcome);
            }
            Wanted::Target(link) => check_target(link, readable.then_some(part.bytes), outcome),
        }
    });
    outcome.buffer = buffer;
}

fn check_target(link: LongSymlink, bytes: Option<&[u8]>, outcome: &mut BlockOutcome) {
    let Some(bytes) = bytes else {
        // Nothing is known against the symlink.
        outcome.found.push(Problem::UnreadableBlock { inode: link.inode, block: link.block });
        return;
    };
    let fault = symlinks::text_fault(bytes, u64::from(link.size_bytes), link.encrypted);
    if let Some(reason) = fault {
        let size = u64::from(link.size_bytes);
        outcome.found.push(Problem::SymlinkInvalid { inode: link.inode, size, reason });
    }
}

fn check_attributes(
    volume: &Volume<'_>,
    uses: &[BlockUse],
    bytes: Option<&[u8]>,
    outcome: &mut BlockOutcome,
) {
    let Some(&BlockUse { block, inode, .. }) = uses.first() else { return };
    outcome.claims.claim_attribute_blocks(&volume.geometry, volume.sums(), uses);
    let area = bytes.and_then(XattrArea::of_block);
    for of in uses.iter().filter(|of| of.wants_context) {
        match bytes {
            Some(_) => {
                encryption::note_context(of.inode, area, &mut outcome.policies, &mut outcome.found);
            }
            // An unreadable block tells nothing about the policy of its owner.
            None => outcome.policies.add(of.inode, None),
        }
    }
    let (Some(bytes), Some(area)) = (bytes, area) else {
        for of in uses {
            outcome.found.push(Problem::XattrBlockUnreadable { inode: of.inode, block });
        }
        return;
    };
    let home = Home { volume, inode, block };
    let (header, sound) = in_block::check(home, bytes, &mut outcome.region, &mut outcome.found);
    if !sound {
        // Every user loses its attributes, so each one is a finding of its own, mended in the same round.
        for of in &uses[1..] {
            let home = Home { inode: of.inode, ..home };
            in_block::check(home, bytes, &mut outcome.region, &mut outcome.found);
        }
    }
    value_inode::count_references(volume, &area, |inode| {
        outcome.attributes.add_reference(inode, 1);
    });
    // An inode uses a block once, so this is at most the number of inodes: 32 bits.
    let (stored, counted) = (header.refcount, uses.len() as u32);
    if sound && stored != counted {
        outcome.found.push(Problem::XattrBlockRefcountWrong { block, stored, counted });
    }
}

#[cfg(test)]
mod laws {
    use super::*;
    use crate::problem::Sink;
    use floe_format::InodeNr;

    floe_exec::accumulator_laws!(
        BlockOutcome,
        (1u32..9, 0u32..9),
        |all: &mut BlockOutcome, (number, value): (u32, u32)| {
            let inode = InodeNr(number);
            all.found.push(Problem::InodeFaddrNonzero { inode, value });
            all.claims.claim_clusters(u64::from(number), u64::from(value));
            all.policies.add(inode, None);
            all.attributes.add_reference(inode, u64::from(value));
        },
        |all: BlockOutcome| {
            let claims = (all.claims.used().runs(), all.claims.shared().runs());
            (crate::report::in_order(all.found), claims, all.attributes.ea_references)
        }
    );
}
