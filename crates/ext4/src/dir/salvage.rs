//! Repairs broken chains of entries on the disk, by the same steps by which the checker reads past
//! them.

use super::mend::mend;
use floe_format::ext::dirent::{DirCursor, DirFault};

use super::AreaForm;
use super::area::write_empty;

/// Repairs an area until its entries can be followed to the end (`dirent-structure-corrupt`), and
/// returns the number of steps. An area that is too short for any entry, or whose length is not a
/// multiple of 4, is not repaired.
pub fn salvage(area: &mut [u8], form: AreaForm, inodes_count: u32) -> u32 {
    let end = form.end(area.len());
    let (mut at, mut previous, mut steps) = (0, None, 0);
    while let Some(fault) = follow(area, form, at, &mut previous) {
        // Each step shortens the rest by at least 4 bytes, except for entries that are too short
        // for their hash even after it; the bound ends the loop for those.
        if steps as usize > end / 4 {
            let _ = write_empty(area, fault.offset as usize, end - fault.offset as usize);
            break;
        }
        at = mend(area, fault.offset as usize, end, previous, inodes_count);
        steps += 1;
    }
    steps
}

/// Repairs only the first entry, as far as its own record allows.
pub(super) fn salvage_first(area: &mut [u8], form: AreaForm, inodes_count: u32) {
    let end = form.end(area.len());
    for _ in 0..=end / 4 {
        match DirCursor::new(area).ending_at(end).hashed(form.hashed).next() {
            Some(Err(_)) => mend(area, 0, end, None, inodes_count),
            _ => break,
        };
    }
}

/// Follows the entries from offset `at` on to the first break; `previous` is the last valid one.
fn follow(
    area: &[u8],
    form: AreaForm,
    at: usize,
    previous: &mut Option<usize>,
) -> Option<DirFault> {
    let cursor =
        DirCursor::new(area).ending_at(form.end(area.len())).starting_at(at).hashed(form.hashed);
    for item in cursor {
        match item {
            Ok(entry) => *previous = Some(entry.offset as usize),
            Err(fault) => return Some(fault),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_area_ends_up_whole(
            mut area in proptest::collection::vec(
                prop_oneof![any::<u8>(), Just(0), Just(8), Just(12), Just(16), Just(20)], 32..400),
            tail: bool, hashed: bool,
        ) {
            area.truncate(area.len() / 4 * 4);
            let form = AreaForm { tail, hashed, filetype: true };
            let end = form.end(area.len());
            let behind = area[end..].to_vec();
            salvage(&mut area, form, 100);
            let whole = |area: &[u8]| {
                DirCursor::new(area).ending_at(end).hashed(hashed).all(|item| item.is_ok())
            };
            prop_assert!(whole(&area), "{:?}", area);
            prop_assert_eq!(&area[end..], &behind[..], "the tail was touched");
            let before = area.clone();
            prop_assert_eq!(salvage(&mut area, form, 100), 0);
            prop_assert_eq!(before, area);
        }

        #[test]
        fn short_areas_do_not_panic(
            mut area in proptest::collection::vec(any::<u8>(), 0..30), tail: bool, hashed: bool,
        ) {
            salvage(&mut area, AreaForm { tail, hashed, filetype: true }, 100);
        }
    }
}
