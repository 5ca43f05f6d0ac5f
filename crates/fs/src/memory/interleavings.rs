//! Explores interleavings of threads that change and read names in one directory while another flushes.

use floe_disk::ops::{NewInode, RenameMode};
use floe_format::InodeNr;
use floe_sync::shuttle;
use floe_sync::{Arc, thread};

mod names;

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

/// Whoever comes back from fsync has his change on the disk, whoever made it, and nobody waits for ever.
#[test]
fn fsyncs_that_are_made_together_each_have_their_changes() {
    shuttle::check_random(
        || {
            let make = |name: &'static str| {
                move |fs: &Fs| {
                    let made = create(fs, name).expect("it is free").expect("it is created");
                    for value in 1..=2 {
                        let kind = OpKind::Write { inode: made, offset_bytes: 0, bytes: &[value] };
                        apply(fs, kind).expect("there is room");
                        fs.sync_inode(made).expect("nothing is lost");
                        let found = fs.lower().find(InodeNr::ROOT, name.as_bytes());
                        assert_eq!(found.expect("it can be read"), Some(made));
                        let mut stored = [0];
                        fs.lower().read(made, 0, &mut stored).expect("it can be read");
                        assert_eq!(stored, [value]);
                    }
                }
            };
            together(memory(), vec![Box::new(make("a")), Box::new(make("b")), Box::new(make("c"))]);
        },
        300,
    );
}

/// If two directories are each to move into the other, only one does, and nothing is lost from the tree.
#[test]
fn directories_never_come_to_lie_below_themselves() {
    shuttle::check_random(
        || {
            let fs = memory();
            let mut made = Vec::new();
            for name in ["a", "b"] {
                let new = NewInode::directory(0o755);
                let kind = OpKind::Create { place: place(name), new };
                made.push(apply(&fs, kind).expect("it is free").expect("it is created"));
            }
            let (a, b) = (made[0], made[1]);
            let into = |fs: &Fs, name: &'static str, directory| {
                let (from, to) = (place(name), Place { directory, name: b"x" });
                let _ = apply(fs, OpKind::Rename { from, to, mode: RenameMode::Replace });
            };
            let fs = together(
                fs,
                vec![
                    Box::new(move |fs| into(fs, "a", b)),
                    Box::new(move |fs| into(fs, "b", a)),
                    Box::new(move |fs| fs.sync_inode(b).expect("nothing is lost")),
                ],
            );
            let left: Vec<InodeNr> = names(&*fs).into_iter().map(|(_, inode, _)| inode).collect();
            assert_eq!(left.len(), 1, "{left:?}");
            let moved = if left[0] == a { b } else { a };
            assert_eq!(fs.find(left[0], b"x").expect("it can be read"), Some(moved));
            assert_eq!(fs.parent(moved).expect("it can be read"), left[0]);
            fs.sync().expect("nothing is lost");
            assert_eq!(names(fs.lower()), names(&*fs));
        },
        400,
    );
}

/// Writes of different pages, a cut, a read and an fsync at the same time: every page is what one of the orders leaves, and
/// the disk has it in the end. Pages have 32 bytes here.
#[test]
fn pages_are_whole_whoever_cuts_the_file() {
    const PAGE: usize = super::pages::PAGE;
    shuttle::check_random(
        || {
            let fs = memory();
            let inode = create(&fs, "a").expect("it is free").expect("it is created");
            let write = move |fs: &Fs, page: usize, value: u8| {
                let offset_bytes = (page * PAGE) as u64;
                let kind = OpKind::Write { inode, offset_bytes, bytes: &[value; PAGE] };
                apply(fs, kind).expect("there is room");
            };
            write(&fs, 0, 1);
            write(&fs, 1, 1);
            fs.sync().expect("nothing is lost");
            let read = move |store: &dyn Store| {
                let mut bytes = [0xee; 3 * PAGE];
                let len = store.read(inode, 0, &mut bytes).expect("it can be read");
                assert!(len % PAGE == 0, "{len} bytes");
                let pages = bytes[..len].chunks(PAGE).map(|page| {
                    assert!(page.iter().all(|byte| *byte == page[0]), "a page is torn: {page:?}");
                    page[0]
                });
                pages.collect::<Vec<u8>>()
            };
            let fs = together(
                fs,
                vec![
                    Box::new(move |fs| write(fs, 0, 2)),
                    Box::new(move |fs| {
                        let (size_bytes, change) = (Some(PAGE as u64), Default::default());
                        apply(fs, OpKind::Change { inode, size_bytes, change }).expect("it is cut");
                        write(fs, 1, 3);
                    }),
                    Box::new(move |fs| {
                        let seen = read(fs);
                        let first = matches!(seen.first(), Some(1 | 2));
                        assert!(first && matches!(seen.get(1), None | Some(0 | 1 | 3)), "{seen:?}");
                    }),
                    Box::new(move |fs| fs.sync_inode(inode).expect("nothing is lost")),
                ],
            );
            assert_eq!(read(&*fs), [2, 3]);
            fs.sync().expect("nothing is lost");
            assert_eq!(read(fs.lower()), [2, 3]);
        },
        300,
    );
}

/// Content that a write of a part of a page needs is read outside: it is not kept where somebody else wrote the page meanwhile and
/// the disk has that, although memory has forgotten it again. Pages have 32 bytes here.
#[test]
fn what_was_read_outside_is_not_older_than_the_disk() {
    // One thread stays behind while the others go on to their end.
    shuttle::check_pct(
        || {
            let limits = Limits { clean_bytes: 0, ..Limits::default() };
            let fs = MemFs::new(NullDisk::new(1000, 10_000), limits);
            let inode = create(&fs, "a").expect("it is free").expect("it is created");
            let write = move |fs: &Fs, offset_bytes: u64, bytes: &[u8]| {
                apply(fs, OpKind::Write { inode, offset_bytes, bytes }).expect("there is room");
            };
            write(&fs, 0, &[1; 64]);
            fs.sync().expect("nothing is lost");
            fs.state_mut().evict(&fs.limits);
            let read = move |store: &dyn Store| {
                let mut bytes = [0xee; 65];
                assert_eq!(store.read(inode, 0, &mut bytes).expect("it can be read"), 64);
                bytes
            };
            let fs = together(
                fs,
                vec![
                    Box::new(move |fs| write(fs, 3, &[2; 4])),
                    Box::new(move |fs| {
                        write(fs, 10, &[3; 4]);
                        fs.sync_inode(inode).expect("nothing is lost");
                        fs.state_mut().evict(&fs.limits);
                    }),
                    Box::new(move |fs| assert!([1, 3].contains(&read(fs)[10]))),
                ],
            );
            let wanted = |at: usize| match at {
                3..7 => 2,
                10..14 => 3,
                _ => 1,
            };
            let is_whole = |bytes: [u8; 65]| (0..64).all(|at| bytes[at] == wanted(at));
            assert!(is_whole(read(&*fs)), "{:?}", read(&*fs));
            fs.sync().expect("nothing is lost");
            assert!(is_whole(read(fs.lower())));
        },
        1500,
        2,
    );
}

/// An attribute has its old value or a new one, and the disk has the last one in the end.
#[test]
fn attributes_have_the_last_value() {
    shuttle::check_random(
        || {
            let fs = memory();
            let inode = create(&fs, "a").expect("it is free").expect("it is created");
            let set = move |fs: &Fs, name: &'static [u8], value: u8| {
                let mode = floe_disk::ops::SetMode::Any;
                apply(fs, OpKind::SetAttribute { inode, name, value: &[value], mode })
                    .expect("it fits");
            };
            set(&fs, b"user.a", 1);
            let fs = together(
                fs,
                vec![
                    Box::new(move |fs| set(fs, b"user.a", 2)),
                    Box::new(move |fs| set(fs, b"user.b", 3)),
                    Box::new(move |fs| {
                        let seen = fs.extended_attribute(inode, b"user.a").expect("it can be read");
                        assert!(seen == Some(vec![1]) || seen == Some(vec![2]), "{seen:?}");
                    }),
                    Box::new(move |fs| fs.sync_inode(inode).expect("nothing is lost")),
                ],
            );
            fs.sync().expect("nothing is lost");
            let all =
                |store: &dyn Store| store.extended_attributes(inode).expect("they can be read");
            assert_eq!(all(&*fs).len(), 2);
            assert_eq!(all(fs.lower()), all(&*fs));
        },
        300,
    );
}

/// Two cubes change and fsync while one of them fails, whose policy keeps or drops what waits: the other one loses nothing, nobody
/// waits for ever, and in the end memory has what the disk has.
#[test]
fn a_cube_that_fails_ends_its_own_changes_alone() {
    use floe_format::native::cube::OnError;
    for on_error in [OnError::Crash, OnError::ReadOnly] {
        shuttle::check_random(
            move || {
                let disk = NullDisk::with_cubes(on_error).expect("two directories");
                let fs = MemFs::new(disk, Limits::default());
                let (a, b) = (NullDisk::top(1), NullDisk::top(2));
                let make = |fs: &Fs, directory, name: &'static [u8]| {
                    let place = Place { directory, name };
                    let new = NewInode::regular(0o644);
                    apply(fs, OpKind::Create { place, new }).expect("it is free")
                };
                make(&fs, a, b"one");
                make(&fs, b, b"one");
                let fs = together(
                    fs,
                    vec![
                        Box::new(move |fs| {
                            make(fs, a, b"two");
                            fs.sync_inode(a).expect("nobody ends for all");
                        }),
                        Box::new(move |fs| {
                            let made = make(fs, b, b"two").expect("it is created");
                            fs.sync_inode(made).expect("nothing is lost");
                            let there = fs.lower().find(b, b"two").expect("it can be read");
                            assert_eq!(there, Some(made));
                        }),
                        Box::new(|fs| {
                            let gates = fs.lower().gates().expect("there are cubes");
                            gates.fail(1, "it was told to".to_owned());
                            fs.sync().expect("nobody ends for all");
                        }),
                    ],
                );
                fs.sync().expect("nobody ends for all");
                assert_eq!(fs.waiting_records(), 0);
                for directory in [a, b] {
                    let all = |store: &dyn Store| {
                        let names = store.directory(directory).expect("it can be read");
                        let all = names.behind(0).map(|(_, entry)| entry.name.clone());
                        all.collect::<Vec<_>>()
                    };
                    assert_eq!(all(fs.lower()), all(&*fs));
                    let whole = directory == b || on_error == OnError::ReadOnly;
                    assert!(all(&*fs).len() == 2 || !whole, "{:?}", all(&*fs));
                }
            },
            300,
        );
    }
}
