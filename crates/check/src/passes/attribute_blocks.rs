//! The step after the inode pass: each attribute block and each block of a long symlink, once, in disk
//! order, in parallel.
//! Emits: `XattrBlockUnreadable`, `XattrBlockRefcountWrong`, `SymlinkInvalid`, `UnreadableBlock`, those
//! of `in_block` and `EncryptFlagWithoutContext` of encrypted inodes whose context is not in the block either.

use floe_blockdev::{Batch, JoinLimits, ReadPlan};
use floe_exec::{Accumulator, Pool};
use floe_format::ext::xattr::{XattrArea, XattrEntry};
use floe_format::{BlockNr, BlockRun, InodeNr};

use crate::checks::context::inode::InodeEvidence;
use crate::checks::inode::symlinks;
use crate::checks::xattr::value_inode::{self, Home};
use crate::checks::xattr::{encryption, in_block};
use crate::evidence::attributes::{AttributeEvidence, BlockUse, LongSymlink, PlainBlock};
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
    /// Attributes, of which only some uses are known.
    Content(BlockNr),
    /// The target of a symlink.
    Target(LongSymlink),
}

/// Reads each attribute block that an inode uses once, in disk order, and adds to `evidence` what it
/// says: findings, claims of the blocks, policies, references to EA inodes. Reads the targets of long
/// symlinks too. Blocks that shards found plain are not read again. Run it after the inode pass and
/// before anything that needs complete claims, policies or references.
pub fn check(volume: &Volume<'_>, evidence: &mut InodeEvidence, pool: &Pool) {
    let symlinks = std::mem::take(&mut evidence.attributes.long_symlinks);
    let mut uses = std::mem::take(&mut evidence.attributes.block_uses);
    if symlinks.is_empty() && uses.is_empty() {
        return;
    }
    uses.sort_unstable();
    let plain = agreed(std::mem::take(&mut evidence.attributes.plain_blocks));
    let mut plain = plain.iter().copied().peekable();
    let mut unread = Vec::new();
    for uses in uses.chunk_by(|left, right| left.block == right.block) {
        let block = uses[0].block;
        while plain.next_if(|known| known.block < block).is_some() {}
        match plain.next_if(|known| known.block == block) {
            Some(known) if !uses.iter().any(|of| of.wants_context) => {
                let InodeEvidence { found, claims, .. } = &mut *evidence;
                claims.claim_attribute_blocks(&volume.geometry, volume.sums(), uses);
                check_refcount(known, uses, found);
            }
            _ => unread.push((block, Wanted::Attributes(uses))),
        }
    }
    read(volume, &unread, &symlinks, evidence, pool);
    evidence.attributes.block_uses = uses;
}

/// The same, of a shard, which knows only some uses of each block: notes which blocks are plain, and leaves all
/// others to the merge. Reads the targets of long symlinks, which concern nobody else.
pub(crate) fn check_share(volume: &Volume<'_>, evidence: &mut InodeEvidence, pool: &Pool) {
    let symlinks = std::mem::take(&mut evidence.attributes.long_symlinks);
    evidence.attributes.block_uses.sort_unstable();
    let uses = evidence.attributes.block_uses.iter();
    let mut blocks: Vec<_> = uses.map(|of| of.block).collect();
    blocks.dedup();
    let wanted: Vec<_> = blocks.into_iter().map(|block| (block, Wanted::Content(block))).collect();
    read(volume, &wanted, &symlinks, evidence, pool);
    evidence.attributes.plain_blocks.sort_unstable();
}

/// Blocks that are plain, in order. If two shards read different reference counts, the block is left out: to be
/// read again.
fn agreed(mut plain: Vec<PlainBlock>) -> Vec<PlainBlock> {
    plain.sort_unstable();
    plain.dedup();
    let same = plain.chunk_by(|left, right| left.block == right.block);
    same.filter_map(|known| if let [known] = known { Some(*known) } else { None }).collect()
}

/// Reads attribute blocks, each of which is there once, and targets of symlinks.
fn read(
    volume: &Volume<'_>,
    blocks: &[(BlockNr, Wanted<'_>)],
    symlinks: &[LongSymlink],
    evidence: &mut InodeEvidence,
    pool: &Pool,
) {
    if blocks.is_empty() && symlinks.is_empty() {
        return;
    }
    let blocks = blocks.iter().map(|(block, wanted)| (BlockRun::new(*block, 1), *wanted));
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
            Wanted::Content(block) => check_content(volume, block, part.bytes, readable, outcome),
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
    let before = outcome.found.0.len();
    let (header, sound) = in_block::check(home, bytes, &mut outcome.region, &mut outcome.found);
    if sound {
        note_unreadable_values(uses, before, &mut outcome.found);
    } else {
        // Every user loses its attributes, so each one is a finding of its own, mended in the same round.
        for of in &uses[1..] {
            let home = Home { inode: of.inode, ..home };
            in_block::check(home, bytes, &mut outcome.region, &mut outcome.found);
        }
    }
    value_inode::count_references(volume, &area, |inode| {
        outcome.attributes.add_reference(inode, 1);
    });
    if sound {
        check_refcount(PlainBlock { block, refcount: header.refcount }, uses, &mut outcome.found);
    }
}

/// A value that cannot be read is missing in each file that uses the block: names them all. `before`: how many findings there
/// were before the block was judged for its first user.
fn note_unreadable_values(uses: &[BlockUse], before: usize, found: &mut Findings) {
    let of_values = found.0.iter().skip(before).filter_map(|problem| match problem {
        Problem::XattrValueUnreadable { .. } => Some(problem.clone()),
        _ => None,
    });
    let of_values: Vec<Problem> = of_values.collect();
    for problem in of_values {
        for of in &uses[1..] {
            let mut problem = problem.clone();
            if let Problem::XattrValueUnreadable { inode, .. } = &mut problem {
                *inode = of.inode;
            }
            found.push(problem);
        }
    }
}

/// Compares the reference count of a block with all of its uses.
fn check_refcount(known: PlainBlock, uses: &[BlockUse], found: &mut Findings) {
    // An inode uses a block once, so this is at most the number of inodes: 32 bits.
    let (PlainBlock { block, refcount: stored }, counted) = (known, uses.len() as u32);
    if stored != counted {
        found.push(Problem::XattrBlockRefcountWrong { block, stored, counted });
    }
}

/// Notes a block as plain, if it is.
fn check_content(
    volume: &Volume<'_>,
    block: BlockNr,
    bytes: &[u8],
    readable: bool,
    outcome: &mut BlockOutcome,
) {
    let area = Some(bytes).filter(|_| readable).and_then(XattrArea::of_block);
    let Some(area) = area else { return };
    // The merge names the users, if there is anything to say.
    let (home, mut found) = (Home { volume, inode: InodeNr(0), block }, Findings::default());
    let (header, sound) = in_block::check(home, bytes, &mut outcome.region, &mut found);
    let elsewhere = |entry: XattrEntry<'_>| entry.value_inode.is_some();
    let all_here = !area.entries().map_while(Result::ok).any(elsewhere);
    if sound && found.0.is_empty() && all_here {
        outcome.attributes.plain_blocks.push(PlainBlock { block, refcount: header.refcount });
    }
}

#[cfg(test)]
mod laws {
    use super::*;
    use crate::problem::Sink;

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
