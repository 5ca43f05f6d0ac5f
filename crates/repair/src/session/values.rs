//! The order of edits where attributes go whose values cannot be read.

use std::collections::BTreeSet;

use floe_check::Problem;
use floe_format::{BlockNr, InodeNr};

use crate::edit::{AttributeBlockEdit, Edit, InodeEdit};
use crate::plan::Wanted;

/// Attributes of an inode (block 0), or of a block (inode 0).
type Area = (InodeNr, BlockNr);

/// Defers edits that remove attributes from an area in which a value cannot be read, as long as something else is to be done to
/// the inode with that value: then it may be read again.
pub(super) fn without_values_in_doubt(mut wanted: Wanted) -> Wanted {
    let values = wanted.values().flatten().filter_map(value_of);
    let values: Vec<(Area, InodeNr)> = values.collect();
    if values.is_empty() {
        return wanted;
    }
    let is_of_value =
        |cause: &Option<Problem>| cause.as_ref().is_some_and(|problem| value_of(problem).is_some());
    let mended = wanted.iter().filter(|(_, cause)| !is_of_value(cause));
    let mended: BTreeSet<InodeNr> = mended.filter_map(|(edit, _)| edit.inode()).collect();
    let in_doubt = values.into_iter().filter(|(_, value)| mended.contains(value));
    let in_doubt: BTreeSet<Area> = in_doubt.map(|(area, _)| area).collect();
    wanted.retain(|edit, cause| {
        // Else the whole area goes, or its list.
        let by_cause = || cause.as_ref().and_then(value_of).map(|(area, _)| area);
        !salvaged_area(edit).or_else(by_cause).is_some_and(|area| in_doubt.contains(&area))
    });
    wanted
}

/// Keeps the first of the edits that remove attributes from one area: it moves the others to other places.
pub(super) fn one_removal_of_each_area(mut wanted: Wanted) -> Wanted {
    let mut seen = BTreeSet::new();
    wanted.retain(|edit, _| salvaged_area(edit).is_none_or(|area| seen.insert(area)));
    wanted
}

/// The attributes some of which an edit removes.
const fn salvaged_area(edit: &Edit) -> Option<Area> {
    match edit {
        Edit::AttributeBlock { block, edit: AttributeBlockEdit::Salvage { .. } } => {
            Some((InodeNr(0), *block))
        }
        Edit::Inode { inode, edit: InodeEdit::SalvageAttributes { .. } } => {
            Some((*inode, BlockNr(0)))
        }
        _ => None,
    }
}

/// The attributes among which one is whose value cannot be read, and the inode with the value.
fn value_of(problem: &Problem) -> Option<(Area, InodeNr)> {
    match *problem {
        Problem::XattrValueUnreadable { inode, block: BlockNr(0), value_inode, .. } => {
            Some(((inode, BlockNr(0)), value_inode))
        }
        Problem::XattrValueUnreadable { block, value_inode, .. } => {
            Some(((InodeNr(0), block), value_inode))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use floe_check::problem::Name;

    use super::*;

    fn unreadable(value: u32) -> Option<Problem> {
        Some(Problem::XattrValueUnreadable {
            inode: InodeNr(12),
            block: BlockNr(0),
            offset_bytes: 0,
            value_inode: InodeNr(value),
            name: Name::new(b"user.a"),
            reason: "",
        })
    }

    fn salvage(at: u32) -> Edit {
        let edit = InodeEdit::SalvageAttributes { doubted: Some(at) };
        Edit::Inode { inode: InodeNr(12), edit }
    }

    #[test]
    fn a_value_that_is_mended_first_is_not_given_up() {
        let mend = Edit::Inode { inode: InodeNr(13), edit: InodeEdit::Size(7) };
        let of = |value: u32| -> Wanted {
            [(salvage(0), unreadable(value)), (mend.clone(), None)].into_iter().collect()
        };
        let left = without_values_in_doubt(of(13));
        assert_eq!(left.keys().collect::<Vec<_>>(), [&mend]);
        assert_eq!(without_values_in_doubt(of(14)).len(), 2);
    }

    #[test]
    fn places_move_so_one_attribute_goes_at_a_time() {
        let all = [(salvage(0), unreadable(13)), (salvage(24), unreadable(14))];
        let left = one_removal_of_each_area(all.into_iter().collect());
        assert_eq!(left.keys().collect::<Vec<_>>(), [&salvage(0)]);
    }
}
