//! The inode pass: every inode table, in parallel; what an inode alone can prove is checked at once,
//! the rest is kept as evidence.

use floe_exec::{Phase, Pool, WorkItem};
use floe_format::InodeNr;
use floe_format::ext::inode::Inode;
use floe_sync::Arc;

use crate::checkpoint::{Legs, Session};
use crate::checks::context::inode::{InodeCx, InodeEvidence};
use crate::checks::inode::plain_inodes::{self, PlainInodes};
use crate::checks::inode::{inodes, slots};
use crate::error::CheckError;
use crate::estimate::work;
use crate::evidence::column::Column;
use crate::evidence::common_claims::CommonClaims;
use crate::evidence::inode_facts::{Facts, FactsChunk};
use crate::evidence::published_facts::PublishedFacts;
use crate::problem::Findings;
use crate::scan::inode_tables::{Ahead, TablePart, blocks_of, part_count, table_parts};
use crate::volume::Volume;

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

/// Reads and checks the inodes of a share of all parts of the tables.
pub(crate) fn run_share(volume: &Volume<'_>, parts: &[TablePart], pool: &Pool) -> InodeEvidence {
    run_parts(volume, parts, true, pool)
}

/// Reads and checks the inodes of some parts of the tables.
pub(crate) fn run_over(volume: &Volume<'_>, parts: &[TablePart], pool: &Pool) -> InodeEvidence {
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
pub(crate) fn claims_in_common(threads: usize) -> Option<Arc<CommonClaims>> {
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
pub(crate) fn tell_maps(volume: &Volume<'_>, phase: Option<&Phase>, evidence: &mut InodeEvidence) {
    let met = work::take_maps(&mut evidence.buffers.maps, volume);
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
    if let Some(tables) = &volume.mode.tables {
        // As where parts were read, even if none is left.
        begun.evidence.claims.sum_up(tables, &volume.mode.claim_scope);
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

/// Judges one inode by itself, without a scan.
pub fn look_at(volume: &Volume<'_>, inode: InodeNr) -> Findings {
    let mut evidence = InodeEvidence::default();
    if let Some((group, first)) = volume.geometry.place_of(inode) {
        let part = TablePart { group, first, count: 1 };
        let mut next = || None;
        let ahead = Ahead::in_order(1, false, &mut next);
        slots::for_each(volume, part, None, ahead, &mut evidence, |evidence, _, raw, context| {
            if let Some(found) = raw.and_then(Inode::decode) {
                inodes::check(&InodeCx { volume, number: inode, inode: &found }, context, evidence);
            }
        });
    }
    evidence.found
}

/// Reads one part of a table and checks its inodes. Their facts are `published`, too, for who judges
/// directories meanwhile.
pub(crate) fn scan_part(
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
    evidence.claims.begin_part(index, part_count(&volume.geometry));
    if let Some(tables) = &volume.mode.tables {
        evidence.claims.sum_up(tables, &volume.mode.claim_scope);
    }
    let first = volume.geometry.inode_at(part.group, part.first);
    slots::for_each(volume, part, plain, ahead, evidence, |evidence, at, raw, context| {
        let number = InodeNr(first.0.wrapping_add(at));
        let Some(raw) = raw else {
            // Nobody knows what is there: names that lead to it are not to be cleared as unused.
            any = true;
            rows.facts[at as usize] = Facts::default().with_bad();
            return;
        };
        if let Some(backpointers) = &volume.backpointers {
            backpointers.note_inode(number, raw);
        }
        if let (Some(rules), Ok(raw)) = (plain.filter(|_| context.checksum_ok), raw.try_into())
            && let Some(inode) = rules.judge(number, raw, &mut evidence.buffers.region)
        {
            any = true;
            rows.facts[at as usize] = inode.facts();
            rows.links[at as usize] = inode.links();
            inode.note(rules, evidence);
        } else if let Some(inode) = Inode::decode(raw) {
            let cx = InodeCx { volume, number, inode: &inode };
            let of_inode = inodes::check(&cx, context, evidence);
            if of_inode.is_used() {
                any = true;
                rows.facts[at as usize] = of_inode;
                rows.links[at as usize] = inode.base.links_count;
            }
        }
    });
    plain_inodes::claim_pending(volume, evidence);
    if let (true, Some(tables)) = (any, &volume.mode.tables) {
        evidence.sums.note_inodes(tables, part.group, part.first, &rows.facts, &rows.links);
    }
    if any && volume.mode.scope.contains(part.group) {
        let (facts, links) = (Column::pack(&rows.facts), Column::pack(&rows.links));
        let chunk = Arc::new(FactsChunk { facts, links });
        if let Some(published) = published {
            published.publish(index, &chunk);
        }
        evidence.facts.0.push((index, chunk));
    }
    evidence.buffers.rows = rows;
}
