//! Exit codes of `fsck.ext4` beside those of e2fsck: faults of the superblock and the journal, by options. Each difference stands in
//! a table, with its reason.

use std::fs;
use std::path::Path;

use floe_testkit::{Image, build, tool};

use super::Fsck;

/// A fault, and how it is made.
struct Fault {
    name: &'static str,
    /// Commands of debugfs.
    script: &'static str,
    /// The primary superblock is lost.
    lost: bool,
    /// The journal holds a copy of the primary superblock.
    logged: bool,
}

const fn fault(name: &'static str, script: &'static str) -> Fault {
    Fault { name, script, lost: false, logged: false }
}

const FAULTS: &[Fault] = &[
    fault("good", ""),
    fault("journal lost", "clri <8>\n"),
    fault("number of the journal", "ssv journal_inum 9\n"),
    fault("extra size", "ssv min_extra_isize 200\n"),
    fault("no kind of hash", "ssv flags 0\n"),
    fault("mounted later", "ssv mtime 20360101000000\n"),
    fault("mounted later, interval", "ssv mtime 20360101000000\nssv checkinterval 1000000000\n"),
    fault("for tests", "ssv flags 5\n"),
    fault("checksum of the journal's inode", "sif <8> checksum 0x1234\n"),
    fault("root of the journal's map", "sif <8> block[1] 90\n"),
    fault("map of the journal", "sif <8> block[5] 99999999\n"),
    fault("count of directories", "set_bg 0 used_dirs_count 28689\nset_bg 0 checksum calc\n"),
    fault("count of free blocks", "set_bg 1 free_blocks_count 8193\nset_bg 1 checksum calc\n"),
    fault("count of free inodes", "set_bg 1 free_inodes_count 99999\nset_bg 1 checksum calc\n"),
    fault("unused inodes", "set_bg 1 itable_unused 99999\nset_bg 1 checksum calc\n"),
    fault("total of free blocks", "ssv free_blocks_count 32767\n"),
    fault("extents off", "feature ^extent\n"),
    fault("links", "sif <2> links_count 9\n"),
    fault("links, not unmounted", "sif <2> links_count 9\nssv state 0\n"),
    Fault { lost: true, ..fault("superblock lost", "") },
    Fault { logged: true, ..fault("superblock logged", "") },
    Fault { lost: true, logged: true, ..fault("superblock lost and logged", "") },
];

/// Options for all faults.
const OPTIONS: &[&str] = &["-n", "-p", "-y", "-f -n", "-f -p", "-f -y", "-f -y -D"];

/// Those for faults that debugfs does not make, and for none.
const MORE_OPTIONS: &[&str] = &[
    "-p -D",
    "-f -p -l LIST",
    "-y -l WRONG",
    "-y -E bmap2extent",
    "-n -E journal_only",
    "-n -E fragcheck",
    "-y -j /nonexistent",
    "-n -j /nonexistent",
    "-y -b 1",
    "-f -y -b 8193",
    "-f -n -b 8193",
    "-f -y -b 5000",
];

/// Where the codes differ: fault (`*`: any), options, e2fsck's code, Floe's, and why. `docs/e2fsck-options.md` has the classes.
const DIFFERENT: &[(&str, &str, i32, i32, &str)] = &[
    ("*", "-f -n -b 8193", 4, 0, "e2fsck judges by descriptors as old as the backup"),
    ("*", "-y -l WRONG", 9, 8, "nothing was written"),
    ("journal lost", "*", 12, 4, "e2fsck gives up; Floe looks at all"),
    ("number of the journal", "*", 12, 4, "likewise"),
    ("checksum of the journal's inode", "*", 12, 4, "likewise"),
    ("root of the journal's map", "*", 12, 4, "likewise"),
    ("map of the journal", "*", 12, 4, "likewise"),
    ("unused inodes", "-n", 0, 4, "e2fsck forgets what it may not mend before its passes"),
    ("unused inodes", "-f -n", 0, 4, "likewise"),
    ("unused inodes", "*", 0, 1, "e2fsck does not count what it mends before its passes"),
    ("superblock lost", "-p", 8, 4, "what to do is said"),
    ("superblock lost", "-p -D", 8, 4, "likewise"),
    ("superblock lost", "-f -p", 8, 4, "likewise"),
    ("superblock lost", "-f -p -l LIST", 8, 4, "likewise"),
    (
        "superblock lost",
        "-n -E journal_only",
        0,
        4,
        "nothing was mended, and Linux does not mount it",
    ),
    ("superblock lost and logged", "-p", 8, 1, "the journal has the superblock"),
    ("superblock lost and logged", "-p -D", 8, 1, "likewise"),
    ("superblock lost and logged", "-f -p", 8, 1, "likewise"),
    ("superblock lost and logged", "-f -p -l LIST", 8, 1, "likewise"),
    ("superblock lost and logged", "-n -E journal_only", 0, 4, "as without a log"),
];

fn is_known(fault: &str, options: &str, theirs: i32, ours: i32) -> bool {
    DIFFERENT.iter().any(|(of, with, their, our, _)| {
        (*of == "*" || *of == fault)
            && (*with == "*" || *with == options)
            && (theirs, ours) == (*their, *our)
    })
}

fn spoilt(good: &Image, fault: &Fault, folder: &Path) -> Image {
    let image = good.copy().unwrap();
    build::debugfs_that_tells(&image, fault.script).unwrap();
    if fault.logged {
        let mut superblock = vec![0; 1024];
        image.read(1024, &mut superblock).unwrap();
        let file = folder.join("superblock");
        fs::write(&file, superblock).unwrap();
        build::debugfs(&image, &format!("jo\njw -b 1 {}\njc\n", file.display())).unwrap();
    }
    if fault.lost {
        image.write(1024, &[0; 1024]).unwrap();
    }
    image
}

#[test]
fn the_same_exit_codes_as_e2fsck_or_a_reason() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-codes-").unwrap();
    let (list, wrong) = (folder.path().join("list"), folder.path().join("wrong"));
    fs::write(&list, "5001\n").unwrap();
    fs::write(&wrong, "5001\n-5\n").unwrap();
    let (list, wrong) = (list.to_str().unwrap(), wrong.to_str().unwrap());
    let good = Image::empty(9 << 20).unwrap();
    build::mke2fs(good.path(), &["-t", "ext4", "-b", "1024"]).unwrap();
    let mut faults = Vec::new();
    for fault in FAULTS {
        let image = spoilt(&good, fault, folder.path());
        let more = if fault.script.is_empty() { MORE_OPTIONS } else { &["-y -b 1"] };
        for options in OPTIONS.iter().chain(more) {
            let (theirs, ours) = (image.copy().unwrap(), image.copy().unwrap());
            let words: Vec<&str> = options
                .split(' ')
                .map(|word| match word {
                    "LIST" => list,
                    "WRONG" => wrong,
                    other => other,
                })
                .collect();
            let ran = tool::command("e2fsck").args(&words).arg(theirs.path()).output().unwrap();
            let code = ran.status.code().unwrap();
            let own = Fsck::new("fsck.ext4").run(&words, ours.path(), &[]);
            if own.code == 1 {
                let mut again = tool::command("e2fsck");
                let again = again.arg("-fn").arg(ours.path()).output().unwrap().status.code();
                assert_eq!(again, Some(0), "{} {options}: {}", fault.name, own.out);
            }
            if code != own.code && !is_known(fault.name, options, code, own.code) {
                faults.push(format!(
                    "{} {options}: e2fsck {code}, floe {}\n{}\n{}{}",
                    fault.name,
                    own.code,
                    String::from_utf8_lossy(&ran.stdout),
                    own.out,
                    own.err
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{} differences:\n{}", faults.len(), faults.join("\n"));
}

/// Extent trees that could be better are no damage: their repair changes the file system, and is none.
#[test]
fn a_tree_made_flatter_is_no_repair() {
    let Some(good) = super::image("ext4-1k") else { return };
    build::debugfs(&good, "punch /fragmented 3 100000\n").unwrap();
    for options in ["-fn", "-fp", "-fy", "-fyD"] {
        let (theirs, ours) = (good.copy().unwrap(), good.copy().unwrap());
        let ran = tool::command("e2fsck").arg(options).arg(theirs.path()).output().unwrap();
        let own = Fsck::new("fsck.ext4").run(&[options], ours.path(), &[]);
        assert_eq!(
            (ran.status.code(), own.code),
            (Some(0), 0),
            "{options}: {}{}",
            own.out,
            own.err
        );
        let was_made = own.out.contains("MODIFIED: no damage was found");
        assert_eq!(was_made, options.contains('y'), "{options}: {}", own.out);
    }
}

/// A lost primary superblock is damage, whoever finds the file system, and whatever mends it.
#[test]
fn a_lost_superblock_is_told_although_the_journal_has_it() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-codes-lost-").unwrap();
    let good = Image::empty(9 << 20).unwrap();
    build::mke2fs(good.path(), &["-t", "ext4", "-b", "1024"]).unwrap();
    for fault in FAULTS.iter().filter(|fault| fault.lost) {
        let image = spoilt(&good, fault, folder.path());
        for words in [&["check"][..], &["check", "-b", "8193"], &["repair", "--dry-run"]] {
            let ran = super::floe(&[words, &[image.path().to_str().unwrap()]].concat());
            assert_eq!(ran.code, if words[0] == "check" { 4 } else { 1 }, "{words:?} {}", ran.out);
            assert!(ran.out.contains("primary superblock"), "{words:?}: {}", ran.out);
        }
        let ran = Fsck::new("fsck.ext4").run(&["-fy"], image.path(), &[]);
        assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
        assert!(ran.out.contains("the primary superblock"), "{}", ran.out);
        assert_eq!(Fsck::new("fsck.ext4").run(&["-fn"], image.path(), &[]).code, 0);
    }
    let ran = Fsck::new("fsck.ext4").run(&["-fy", "-b", "5000"], good.path(), &[]);
    assert!(ran.err.contains("the superblock in block 5000"), "{}", ran.err);
    assert!(!ran.err.contains("primary"), "{}", ran.err);
}
