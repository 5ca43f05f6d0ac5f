//! Compares two examinations, which must agree.

use floe_check::Examination;
use floe_format::InodeNr;

/// All that an examination leaves, as text; what has no order is sorted.
pub(crate) fn describe(of: &Examination<'_>) -> String {
    let (mut named, mut dotdots) = (of.entries.named.clone(), of.entries.dotdots.clone());
    let mut htree = of.entries.htree.clone();
    named.sort_unstable();
    dotdots.sort_unstable();
    htree.leaves.sort_unstable();
    htree.nodes.sort_unstable();
    htree.dropped.sort_unstable();
    let inodes = 1..=of.volume.geometry.inodes_count;
    let facts: Vec<_> = inodes
        .map(InodeNr)
        .map(|inode| (of.facts.get(inode), of.facts.links(inode), of.entries.links.get(inode)))
        .collect();
    format!(
        "{:#?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}",
        of.report.found,
        of.report.totals,
        (of.claims.used().runs(), of.claims.shared().runs()),
        of.dirs,
        (named, dotdots, htree, of.entries.lost_found),
        of.entries.entries,
        [0, 1, 2].map(|kind| of.quota.of_kind(kind)),
        facts,
        of.attributes,
        of.report.paths,
    )
}
