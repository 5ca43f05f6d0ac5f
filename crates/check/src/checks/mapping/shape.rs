//! Check: whether an extent tree could be smaller.
//! Reads: what the walk counted of each level.  Keeps: nothing.
//! Emits: `ExtentTreeCollapsible`, `ExtentTreeNarrowable`: remarks, never damage.
//! Does not verify: anything else of the tree (`extents.rs`).

use floe_format::InodeNr;

use crate::problem::Problem;

/// Space and use of one level of a tree.
#[derive(Clone, Copy, Default)]
pub(super) struct Level {
    pub(super) entries: u64,
    pub(super) room: u64,
}

/// The remark about a tree with these levels. `too_deep`: deeper than any file needs.
pub(super) fn judge(
    inode: InodeNr,
    levels: &[Level],
    too_deep: bool,
    block_size: u32,
) -> Option<Problem> {
    let per_node = u64::from((block_size - 12) / 12);
    let collapses = levels
        .iter()
        .enumerate()
        .find(|(at, level)| levels[..*at].iter().any(|above| level.entries < above.room));
    if let Some((at, _)) = collapses.or(too_deep.then_some((0, &levels[0]))) {
        return Some(Problem::ExtentTreeCollapsible { inode, depth: at as u16 });
    }
    let narrows =
        levels.iter().position(|level| level.room.saturating_sub(level.entries) > per_node);
    narrows.map(|at| Problem::ExtentTreeNarrowable { inode, depth: at as u16 })
}
