//! The same for names that are replaced, and for files that lose names in several threads.

use super::*;

/// Whoever asks only whether names are there, and of which sort they are, sees each rename as a whole: a name that is replaced is
/// there all the time, and one that moves has either name.
#[test]
fn names_are_there_whoever_replaces_what_they_lead_to() {
    // Refused, whatever is there.
    let is_there = |fs: &Fs, name| match apply(fs, OpKind::RemoveDirectory(place(name))) {
        Err(FsError::NotADirectory) => true,
        Err(FsError::NotFound) => false,
        other => panic!("{other:?}"),
    };
    shuttle::check_random(
        move || {
            let fs = memory();
            for name in ["a", "b", "c"] {
                create(&fs, name).expect("it is free");
            }
            together(
                fs,
                vec![
                    Box::new(|fs| {
                        rename(fs, "a", "b").expect("both are there");
                        rename(fs, "b", "d").expect("it is there");
                    }),
                    Box::new(move |fs| {
                        for _ in 0..3 {
                            let (replaced, moved) = (is_there(fs, "b"), is_there(fs, "d"));
                            assert!(replaced || moved || is_there(fs, "d"), "the file has no name");
                            assert!(!moved || !is_there(fs, "b"), "the file has both names");
                            assert!(is_there(fs, "c"));
                            assert!(matches!(rename(fs, "c", "c"), Ok(None)));
                        }
                    }),
                ],
            );
        },
        400,
    );
}

/// Threads remove the names of one file while others give it one and change it: its links are those of its names, and the disk has
/// them in the end, whatever was flushed in between.
#[test]
fn names_that_go_at_the_same_time_are_all_counted() {
    for last in [true, false] {
        shuttle::check_random(
            move || {
                let fs = memory();
                let inode = create(&fs, "a").expect("it is free").expect("it is created");
                create(&fs, "x").expect("it is free");
                let link =
                    move |fs: &Fs, name| apply(fs, OpKind::Link { inode, place: place(name) });
                link(&fs, "b").expect("it is free");
                if !last {
                    link(&fs, "c").expect("it is free");
                }
                let links = move |fs: &Fs| fs.attributes(inode).expect("it can be read").links;
                let fs = together(
                    fs,
                    vec![
                        Box::new(move |fs| {
                            let before = links(fs);
                            unlink(fs, "a").expect("it is there");
                            assert!(!last || links(fs) <= before, "one more name than before");
                        }),
                        Box::new(|fs| {
                            rename(fs, "x", "b").expect("both are there");
                        }),
                        Box::new(move |fs| {
                            let change =
                                floe_disk::ops::Change { uid: Some(5), ..Default::default() };
                            let kind = OpKind::Change { inode, size_bytes: None, change };
                            apply(fs, kind).expect("nothing forbids it");
                            if !last {
                                link(fs, "d").expect("the file has a name");
                            }
                        }),
                        Box::new(|fs| fs.sync_inode(InodeNr::ROOT).expect("nothing is lost")),
                    ],
                );
                assert_eq!(links(&fs), if last { 0 } else { 2 });
                fs.sync().expect("nothing is lost");
                assert_eq!(names(fs.lower()), names(&*fs));
                let stored = fs.lower().attributes(inode).expect("it can be read");
                assert_eq!((stored.links, stored.uid), (links(&fs), 5));
            },
            400,
        );
    }
}

/// A file that gets a name while another thread takes away the one that it has is never without one on the disk.
#[test]
fn a_link_beside_an_unlink_saves_the_file_or_is_refused() {
    shuttle::check_random(
        || {
            let fs = memory();
            let inode = create(&fs, "a").expect("it is free").expect("it is created");
            let link = move |fs: &Fs, name| apply(fs, OpKind::Link { inode, place: place(name) });
            link(&fs, "b").expect("it is free");
            let fs = together(
                fs,
                vec![
                    Box::new(|fs| {
                        unlink(fs, "a").expect("it is there");
                    }),
                    Box::new(|fs| {
                        unlink(fs, "b").expect("it is there");
                    }),
                    Box::new(move |fs| drop(link(fs, "c"))),
                    Box::new(|fs| fs.sync_inode(InodeNr::ROOT).expect("nothing is lost")),
                ],
            );
            let links = fs.attributes(inode).expect("it can be read").links;
            let is_named = fs.find(InodeNr::ROOT, b"c").expect("it can be read").is_some();
            assert_eq!(links, u32::from(is_named));
            fs.sync().expect("nothing is lost");
            assert_eq!(names(fs.lower()), names(&*fs));
        },
        400,
    );
}
