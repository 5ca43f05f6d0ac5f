//! Explores interleavings of threads that change and read names in one directory while another flushes.

use floe_disk::ops::{NewInode, RenameMode};
use floe_format::InodeNr;
use floe_sync::shuttle;
use floe_sync::{Arc, thread};

use super::{Limits, MemFs, NullDisk};
use crate::op::{Op, OpKind, Place};
use crate::store::Store;
use crate::{FsError, Timestamp};

type Fs = MemFs<NullDisk>;

fn place(name: &'static str) -> Place<'static> {
    Place { directory: InodeNr::ROOT, name: name.as_bytes() }
}

fn apply(fs: &Fs, kind: OpKind<'_>) -> Result<Option<InodeNr>, FsError> {
    Ok(fs.apply(&Op { uid: 0, gid: 0, time: Timestamp::default(), kind })?.created)
}

fn create(fs: &Fs, name: &'static str) -> Result<Option<InodeNr>, FsError> {
    apply(fs, OpKind::Create { place: place(name), new: NewInode::regular(0o644) })
}

fn rename(fs: &Fs, from: &'static str, to: &'static str) -> Result<Option<InodeNr>, FsError> {
    let (from, to, mode) = (place(from), place(to), RenameMode::Replace);
    apply(fs, OpKind::Rename { from, to, mode })
}

fn unlink(fs: &Fs, name: &'static str) -> Result<Option<InodeNr>, FsError> {
    apply(fs, OpKind::Unlink(place(name)))
}

/// Names, what they lead to, and how many links that has.
fn names(store: &impl Store) -> Vec<(Box<[u8]>, InodeNr, u32)> {
    let names = store.directory(InodeNr::ROOT).expect("it is there");
    let links = |inode| store.attributes(inode).expect("it has a name").links;
    let all = names.behind(0).map(|(_, entry)| (entry.name.clone(), entry.inode));
    all.map(|(name, inode)| (name, inode, links(inode))).collect()
}

fn together(fs: Fs, threads: Vec<Box<dyn FnOnce(&Fs) + Send>>) -> Arc<Fs> {
    let fs = Arc::new(fs);
    let begin = |work: Box<dyn FnOnce(&Fs) + Send>| {
        let fs = Arc::clone(&fs);
        thread::spawn(move || work(&fs))
    };
    let threads: Vec<_> = threads.into_iter().map(begin).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
    fs
}

fn memory() -> Fs {
    MemFs::new(NullDisk::new(1000, 10_000), Limits::default())
}

/// The changes of all slots, in the order of their stamps, have the effects on the disk that they had in memory. The flush
/// compares links, too, and ends writing where they differ.
#[test]
fn merged_changes_lead_to_what_memory_has() {
    shuttle::check_random(
        || {
            let fs = memory();
            let one = create(&fs, "a").expect("it is free").expect("it is created");
            create(&fs, "b").expect("it is free");
            let fs = together(
                fs,
                vec![
                    Box::new(|fs| {
                        let _ = rename(fs, "a", "b");
                        let _ = create(fs, "a");
                        let _ = rename(fs, "c", "a");
                    }),
                    Box::new(move |fs| {
                        let _ = apply(fs, OpKind::Link { inode: one, place: place("c") });
                        let _ = unlink(fs, "b");
                        let _ = rename(fs, "a", "c");
                    }),
                    Box::new(|fs| fs.sync_inode(InodeNr::ROOT).expect("nothing is lost")),
                ],
            );
            fs.sync().expect("nothing is lost");
            assert_eq!(names(fs.lower()), names(&*fs));
        },
        400,
    );
}

/// A name that is replaced is never missing, and a file that moves is always there.
#[test]
fn readers_see_renames_whole() {
    shuttle::check_random(
        || {
            let fs = memory();
            for name in ["a", "b"] {
                create(&fs, name).expect("it is free");
            }
            let before = fs.find(InodeNr::ROOT, b"a").expect("it can be read");
            together(
                fs,
                vec![
                    Box::new(|fs| {
                        rename(fs, "a", "b").expect("both are there");
                    }),
                    Box::new(move |fs| {
                        for _ in 0..3 {
                            let b = fs.find(InodeNr::ROOT, b"b").expect("it can be read");
                            assert!(b.is_some(), "the name that is replaced is missing");
                            let a = fs.find(InodeNr::ROOT, b"a").expect("it can be read");
                            assert!(b != before || a.is_none(), "the file has both names");
                        }
                    }),
                ],
            );
        },
        400,
    );
}

/// A directory that is removed has no names, whoever creates one at the same time.
#[test]
fn nothing_is_created_in_a_directory_that_goes() {
    shuttle::check_random(
        || {
            let fs = memory();
            let new = NewInode::directory(0o755);
            let made = apply(&fs, OpKind::Create { place: place("d"), new });
            let directory = made.expect("it is free").expect("it is created");
            let fs = together(
                fs,
                vec![
                    Box::new(|fs| {
                        let _ = apply(fs, OpKind::RemoveDirectory(place("d")));
                    }),
                    Box::new(move |fs| {
                        let place = Place { directory, name: b"x" };
                        let new = NewInode::regular(0o644);
                        let _ = apply(fs, OpKind::Create { place, new });
                    }),
                ],
            );
            let is_there = fs.find(InodeNr::ROOT, b"d").expect("it can be read").is_some();
            let inside = fs.find(directory, b"x").expect("it can be read").is_some();
            assert_eq!(is_there, inside);
            fs.sync().expect("nothing is lost");
        },
        400,
    );
}
