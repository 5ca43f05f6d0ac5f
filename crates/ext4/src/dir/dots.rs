//! Writes the first two entries of a directory, `.` and `..`, over any content.

use floe_format::InodeNr;
use floe_format::ext::dirent::{HEADER_SIZE, MIN_REC_LEN};

use super::area::{inode_at, is_named, rec_len_at, set_inode, set_rec_len, write_empty};
use super::salvage::{salvage, salvage_first};
use super::{AreaForm, dir_type};

const DOT_LEN: usize = MIN_REC_LEN as usize;

/// Writes `.` over the first entry. If that entry is longer than 12 bytes, the rest becomes an
/// entry of its own, see [`split_dot`].
pub fn write_dot(area: &mut [u8], form: AreaForm, dir: InodeNr) -> Option<()> {
    write_dots(area, form, 0, dir, b".")?;
    split_dot(area, form)
}

/// Shortens an overlong `.` (`dot-entry-oversized`) to 12 bytes. The bytes behind become an unused
/// entry, unless a complete `..` lies there already; then that entry and all that follow it become
/// visible again.
pub fn split_dot(area: &mut [u8], form: AreaForm) -> Option<()> {
    let whole = rec_len_at(area, 0)?.min(form.end(area.len()));
    let least = form.least().max(DOT_LEN + 1);
    let Some(rest) = whole.checked_sub(DOT_LEN).filter(|rest| *rest >= least) else {
        return Some(());
    };
    // If one of the two steps is impossible, nothing may change.
    area.get(..2 * DOT_LEN)?;
    let hidden = is_named(area, DOT_LEN, b"..")
        && rec_len_at(area, DOT_LEN)
            .is_some_and(|len| (DOT_LEN..=rest).contains(&len) && len.is_multiple_of(4));
    if !hidden {
        write_empty(area, DOT_LEN, rest)?;
    }
    set_rec_len(area, 0, DOT_LEN)
}

/// Writes `..` over the second entry, whose length stays. If the first entry leaves no space for a
/// second one, it is shortened.
pub fn write_dotdot(area: &mut [u8], form: AreaForm, parent: InodeNr) -> Option<()> {
    let end = form.end(area.len());
    let first = rec_len_at(area, 0)?;
    let fits = first >= DOT_LEN && first.is_multiple_of(4) && first + DOT_LEN <= end;
    if fits {
        return write_dots(area, form, first, parent, b"..");
    }
    let rest = end.checked_sub(DOT_LEN).filter(|rest| *rest >= DOT_LEN)?;
    area.get(..2 * DOT_LEN)?;
    write_empty(area, DOT_LEN, rest)?;
    set_rec_len(area, 0, DOT_LEN)?;
    write_dots(area, form, DOT_LEN, parent, b"..")
}

/// Repairs the first block of a directory: `.`, then the chain of entries, then `..`, which names
/// `parent` if there was none. The order matters: repairing the chain first would overwrite entries
/// that an overlong `.` hides and that [`split_dot`] makes visible. `None` if there is no space for
/// both.
pub fn mend_first_block(
    area: &mut [u8],
    form: AreaForm,
    dir: InodeNr,
    parent: InodeNr,
    inodes_count: u32,
) -> Option<()> {
    salvage_first(area, form, inodes_count);
    if is_dots(area, form, 0, b".") {
        set_inode(area, 0, dir)?;
        split_dot(area, form)?;
    } else {
        write_dot(area, form, dir)?;
    }
    salvage(area, form, inodes_count);
    // Salvage may have merged broken bytes behind `.` into it.
    split_dot(area, form)?;
    salvage(area, form, inodes_count);
    let second = rec_len_at(area, 0)?;
    if is_dots(area, form, second, b"..") { Some(()) } else { write_dotdot(area, form, parent) }
}

/// Whether a name of dots lies at an offset, with its zero byte and an inode.
fn is_dots(area: &[u8], form: AreaForm, at: usize, name: &[u8]) -> bool {
    at + DOT_LEN <= form.end(area.len())
        && is_named(area, at, name)
        && area.get(at + HEADER_SIZE + name.len()) == Some(&0)
        && inode_at(area, at).is_some_and(|inode| inode.0 != 0)
}

/// Makes `..` name another directory and returns the inode it named; also in the root of an index.
/// `None` if the second entry is not `..`.
pub fn set_parent(area: &mut [u8], parent: InodeNr) -> Option<InodeNr> {
    let at = rec_len_at(area, 0)?;
    if !is_named(area, at, b"..") {
        return None;
    }
    let old = inode_at(area, at)?;
    set_inode(area, u32::try_from(at).ok()?, parent)?;
    Some(old)
}

/// Writes a name of dots over the entry at an offset, and raises its length to at least 12.
fn write_dots(
    area: &mut [u8],
    form: AreaForm,
    at: usize,
    inode: InodeNr,
    name: &[u8],
) -> Option<()> {
    let end = form.end(area.len());
    let left = end.checked_sub(at).filter(|left| *left >= DOT_LEN)?;
    let rec_len = rec_len_at(area, at)?;
    if rec_len < DOT_LEN {
        set_rec_len(area, at, DOT_LEN)?;
    } else if rec_len > left || !rec_len.is_multiple_of(4) {
        set_rec_len(area, at, left)?;
    }
    set_inode(area, u32::try_from(at).ok()?, inode)?;
    let bytes = area.get_mut(at + 6..at + DOT_LEN)?;
    let (lengths, text) = bytes.split_at_mut(HEADER_SIZE - 6);
    // At most two dots. The zero byte behind them is required.
    lengths.copy_from_slice(&[u8::try_from(name.len()).ok()?, dir_type(form.filetype)]);
    text.fill(0);
    text.get_mut(..name.len())?.copy_from_slice(name);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::{Entry, insert, salvage};
    use floe_format::ext::dirent::{DirCursor, write_entry};
    use proptest::prelude::*;

    const FORM: AreaForm = AreaForm { tail: false, hashed: false, filetype: true };

    fn entries(area: &[u8], form: AreaForm) -> Vec<(u32, String, u32)> {
        DirCursor::new(area)
            .ending_at(form.end(area.len()))
            .hashed(form.hashed)
            .map(Result::unwrap)
            .map(|e| (e.inode.0, String::from_utf8_lossy(e.name).into_owned(), e.rec_len))
            .collect()
    }

    fn block(first: &[u8], first_len: u32, second: &[u8], second_len: u32) -> Vec<u8> {
        let mut area = vec![0; 1024];
        write_entry(&mut area, InodeNr(20), first_len, first, 2, 1024).unwrap();
        let at = first_len as usize;
        write_entry(&mut area[at..], InodeNr(21), second_len, second, 2, 1024).unwrap();
        let at = at + second_len as usize;
        if at < 1024 {
            let rest = (1024 - at) as u32;
            write_entry(&mut area[at..], InodeNr(22), rest, b"file", 1, 1024).unwrap();
        }
        area
    }

    #[test]
    fn a_first_name_becomes_dot_and_what_is_left_of_it_is_free() {
        let mut area = block(b"a name of some length", 64, b"..", 12);
        write_dot(&mut area, FORM, InodeNr(20)).unwrap();
        let all = entries(&area, FORM);
        assert_eq!(all[0], (20, ".".into(), 12));
        assert_eq!(all[1], (0, String::new(), 52));
        assert_eq!(all[3].1, "file");
        // 24 bytes are too short to split.
        let mut area = block(b"abc", 24, b"..", 12);
        write_dot(&mut area, FORM, InodeNr(20)).unwrap();
        assert_eq!(entries(&area, FORM)[0], (20, ".".into(), 24));
    }

    #[test]
    fn a_hidden_dotdot_comes_to_light() {
        let whole = block(b".", 12, b"..", 12);
        let mut area = whole.clone();
        set_rec_len(&mut area, 0, 1024).unwrap();
        split_dot(&mut area, FORM).unwrap();
        assert_eq!(area, whole);
        write_dot(&mut area, FORM, InodeNr(20)).unwrap();
        assert_eq!(area, whole);
    }

    #[test]
    fn what_an_overlong_dot_hides_is_not_written_into() {
        let whole = block(b".", 12, b"..", 12);
        for len in (28..1024).step_by(4) {
            let mut area = whole.clone();
            set_rec_len(&mut area, 0, len).unwrap();
            mend_first_block(&mut area, FORM, InodeNr(20), InodeNr(2), 100).unwrap();
            assert_eq!(area, whole, "{len}");
        }
    }

    #[test]
    fn dotdot_is_written_over_the_second_entry() {
        let mut area = block(b".", 12, b"victim", 20);
        write_dotdot(&mut area, FORM, InodeNr(2)).unwrap();
        assert_eq!(entries(&area, FORM)[1], (2, "..".into(), 20));
        assert_eq!(entries(&area, FORM)[2].1, "file");
        assert_eq!(set_parent(&mut area, InodeNr(30)), Some(InodeNr(2)));
        assert_eq!(entries(&area, FORM)[1].0, 30);
        let mut lonely = vec![0; 1024];
        write_entry(&mut lonely, InodeNr(20), 1024, b".", 2, 1024).unwrap();
        assert_eq!(set_parent(&mut lonely, InodeNr(2)), None);
        write_dotdot(&mut lonely, FORM, InodeNr(2)).unwrap();
        assert_eq!(entries(&lonely, FORM).len(), 2);
        assert_eq!(entries(&lonely, FORM)[1], (2, "..".into(), 1012));
    }

    proptest! {
        /// Both can be written over any chain that can be followed, and it can still be followed.
        #[test]
        fn any_block_gets_its_dots(
            mut area in proptest::collection::vec(
                prop_oneof![any::<u8>(), Just(0), Just(12), Just(16)], 48..300),
            tail: bool, hashed: bool,
        ) {
            let form = AreaForm { tail, hashed, filetype: true };
            area.truncate(area.len() / 4 * 4);
            let mut at_once = area.clone();
            // Without salvage before: no panic.
            let mut raw = area.clone();
            let _ = (write_dot(&mut raw, form, InodeNr(9)), write_dotdot(&mut raw, form, InodeNr(2)));
            let _ = (set_parent(&mut raw, InodeNr(3)), split_dot(&mut raw, form));
            salvage(&mut area, form, 100);
            write_dot(&mut area, form, InodeNr(9)).unwrap();
            // A `..` that became visible may lead to further broken entries.
            salvage(&mut area, form, 100);
            write_dotdot(&mut area, form, InodeNr(2)).unwrap();
            mend_first_block(&mut at_once, form, InodeNr(9), InodeNr(2), 100).unwrap();
            let mended = at_once.clone();
            mend_first_block(&mut at_once, form, InodeNr(9), InodeNr(2), 100).unwrap();
            prop_assert_eq!(&mended, &at_once, "a second time changes nothing");
            let (all, other) = (entries(&area, form), entries(&mended, form));
            prop_assert_eq!((all[0].0, all[0].1.as_str()), (9, "."));
            prop_assert_eq!((all[1].0, all[1].1.as_str()), (2, ".."));
            prop_assert_eq!((other[0].0, other[0].1.as_str()), (9, "."));
            prop_assert_eq!(other[1].1.as_str(), "..");
            let _ = insert(&mut area, form, &Entry::new(InodeNr(5), &b"x"[..], 1));
            entries(&area, form);
        }
    }
}
