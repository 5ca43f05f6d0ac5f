//! Content against a plain buffer, and seeks against a map of what is there.

use std::cell::RefCell;

use proptest::prelude::*;

use super::*;
use crate::memory::status::Status;

#[derive(Clone, Debug)]
enum Act {
    Write(u64, usize),
    Resize(u64),
    TakeOff,
    Land,
    /// Reads before what a read of these bytes, or a write of them, needs.
    Bring(u64, usize, bool),
}

fn act() -> impl Strategy<Value = Act> {
    let offset = prop_oneof![0u64..40_000, (0u64..10).prop_map(|page| page * PAGE_BYTES)];
    prop_oneof![
        4 => (offset.clone(), 1usize..10_000).prop_map(|(at, len)| Act::Write(at, len)),
        2 => offset.prop_map(Act::Resize),
        1 => Just(Act::TakeOff),
        2 => Just(Act::Land),
        2 => (0u64..40_000, 1usize..10_000, any::<bool>())
            .prop_map(|(at, len, writes)| Act::Bring(at, len, writes)),
    ]
}

/// Lets the disk, a plain buffer, have a flight.
fn land(disk: &RefCell<Vec<u8>>, flight: &Flight) {
    let mut disk = disk.borrow_mut();
    if let Some(cut) = flight.cut
        && (cut as usize) < disk.len()
    {
        disk.truncate(cut as usize);
    }
    for run in &flight.runs {
        let (at, end, bytes) = (run.offset_bytes as usize, run.end() as usize, run.bytes());
        if disk.len() < end {
            disk.resize(end, 0);
        }
        disk[at..end].copy_from_slice(bytes);
    }
    disk.resize(flight.size_bytes as usize, 0);
}

proptest! {
    /// Whatever is written, cut and flushed in any order, reads see the content that a plain buffer has, and the disk
    /// has it after the last flush.
    #[test]
    fn reads_and_flushes_see_what_was_written(
        before in 0usize..30_000, acts in prop::collection::vec(act(), 1..40),
    ) {
        let mut model: Vec<u8> = (0..before).map(|at| (at % 251) as u8 + 1).collect();
        let disk = RefCell::new(model.clone());
        let below = |at: u64, into: &mut [u8]| {
            let disk = disk.borrow();
            let rest = disk.get(at as usize..).unwrap_or_default();
            let len = rest.len().min(into.len());
            into[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        };
        let (mut content, buffers) = (Content::default(), Arc::default());
        let (mut resized, mut flight, mut pages) = (Resized::default(), None::<Flight>, 0);
        let length = length(before as u64);
        let disk_bytes = before as u64;
        for (turn, act) in acts.into_iter().chain([Act::Land, Act::TakeOff, Act::Land]).enumerate() {
            match act {
                Act::Write(at, len) => {
                    let bytes = vec![(turn % 255) as u8 + 1; len];
                    let (offset_bytes, end) = (at, at + len as u64);
                    let grows = end > model.len() as u64;
                    let write = Write { offset_bytes, bytes: &bytes, grows, disk_bytes };
                    let (whole, brought) = content.write(&length, write, &below).unwrap();
                    prop_assert!(whole);
                    pages += brought.dirty;
                    if grows {
                        resized.resized = true;
                        length.set(end, length.get().1);
                    }
                    let end = at as usize + len;
                    if model.len() < end { model.resize(end, 0); }
                    model[at as usize..end].copy_from_slice(&bytes);
                }
                Act::Resize(size) => {
                    pages -= content.resize(&length, size, &mut resized);
                    model.resize(size as usize, 0);
                }
                Act::TakeOff if flight.is_none() => {
                    flight = Some(content.take_off(&length, &mut resized, &buffers));
                }
                Act::TakeOff => { content.drop_clean(); }
                Act::Bring(at, len, writes) => {
                    let bytes = at..at + len as u64;
                    let wanted = match writes {
                        true => content.absent_edge(&length, bytes),
                        false => content.absent(&length, bytes, 2),
                    };
                    if let Some(wanted) = wanted {
                        let (size, valid) = length.get();
                        let count = wanted.end - wanted.start;
                        prop_assert!((1..=2).contains(&count) && wanted.start * PAGE_BYTES < size);
                        let mut read = vec![0xee; (count * PAGE_BYTES) as usize];
                        let (start, valid) = (wanted.start * PAGE_BYTES, size.min(valid));
                        read_below(valid, start, &mut read, &below).unwrap();
                        let seen = length.version().seen();
                        let kept = content.keep_read(&length, seen, wanted.start, &read);
                        prop_assert!(kept > 0, "the first one was absent");
                        prop_assert_eq!(content.keep_read(&length, seen, wanted.start, &read), 0);
                    }
                }
                Act::Land => {
                    if let Some(flight) = flight.take() {
                        land(&disk, &flight);
                        pages -= content.landed(&length, &resized, &flight);
                    }
                }
            }
            let mut seen = vec![0xee; model.len() + 9];
            let (len, _) = content.read(&length, 0, &mut seen, &below).unwrap();
            seen.truncate(len);
            prop_assert!(seen == model, "turn {turn}");
            prop_assert_eq!(pages, content.counted_pages());
        }
        prop_assert!(!content.is_dirty() && !resized.resized && resized.cut.is_none());
        prop_assert_eq!(content.fresh_pages(), 0);
        prop_assert!(*disk.borrow() == model);
        prop_assert_eq!(content.drop_clean(), 0);
    }

    /// Written pages are data; elsewhere the disk says where it has holes.
    #[test]
    fn seeks_find_what_is_there(
        disk in prop::collection::vec(any::<bool>(), 0..12), written in prop::collection::vec(0u64..14, 0..5),
        size in 1u64..14, at in 0u64..14, cut in 0u64..14,
    ) {
        let page = |bit: u64| bit * PAGE_BYTES;
        let content = Content::default();
        let length = length(page(disk.len() as u64));
        let mut resized = Resized::default();
        let mut model = disk.clone();
        content.resize(&length, page(cut), &mut resized);
        model.resize(cut as usize, false);
        content.resize(&length, page(size), &mut resized);
        model.resize(size as usize, false);
        for one in written.into_iter().filter(|one| *one < size) {
            let (offset_bytes, bytes) = (page(one), &[1; PAGE][..]);
            let write = Write { offset_bytes, bytes, grows: false, disk_bytes: 0 };
            content.write(&length, write, &|_, into| Ok(into.len())).unwrap();
            model[one as usize] = true;
        }
        for (what, is_data) in [(SeekFor::Data, true), (SeekFor::Hole, false)] {
            let find = |map: &[bool], at: u64| {
                let found = (at as usize..map.len()).find(|one| map[*one] == is_data);
                match found {
                    _ if at as usize >= map.len() => Err(FsError::PastEnd),
                    Some(found) => Ok(page(found as u64)),
                    None if is_data => Err(FsError::PastEnd),
                    None => Ok(page(map.len() as u64)),
                }
            };
            let below = |at: u64, what: SeekFor| {
                assert_eq!(what == SeekFor::Data, is_data);
                find(&disk, at / PAGE_BYTES).map(|found| found.max(at))
            };
            let found = content.seek(&length, page(at), what, &below);
            prop_assert_eq!(format!("{found:?}"), format!("{:?}", find(&model, at)));
        }
    }
}

fn length(size_bytes: u64) -> Length {
    let image = floe_format::ext::inode::FileType::Regular;
    let attributes = crate::Attributes {
        inode: floe_format::InodeNr(12),
        generation: 0,
        kind: image,
        permissions: 0,
        links: 1,
        uid: 0,
        gid: 0,
        size_bytes,
        sectors: 0,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        crtime: None,
        device: None,
        flags: floe_format::ext::inode::InodeFlags::empty(),
        project: 0,
    };
    Status::new(&attributes, u64::MAX).length
}

/// A read of many pages leaves none behind, one of few does; a page that was written comes from memory among the others.
#[test]
fn large_reads_are_not_kept() {
    let bytes = 64 * PAGE_BYTES;
    let length = length(bytes);
    let content = Content::new(bytes);
    let below = |_: u64, into: &mut [u8]| {
        into.fill(1);
        Ok(into.len())
    };
    let write =
        Write { offset_bytes: 40 * PAGE_BYTES, bytes: &[2], grows: false, disk_bytes: bytes };
    assert!(content.write(&length, write, &below).unwrap().0);
    for (pages, wanted) in [(MOST_KEPT + 1, 0), (MOST_KEPT, MOST_KEPT), (64, 0)] {
        let mut into = vec![0; (pages * PAGE_BYTES) as usize];
        let (len, kept) = content.read(&length, 0, &mut into, &below).unwrap();
        assert_eq!((len, kept), (into.len(), wanted));
        let written = 40 * PAGE_BYTES as usize;
        assert!(into.iter().enumerate().all(|(at, byte)| *byte == 1 + u8::from(at == written)));
    }
    assert_eq!(content.kept_pages(), MOST_KEPT + 1);
}
