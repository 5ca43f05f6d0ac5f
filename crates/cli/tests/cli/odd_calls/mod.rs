//! Odd calls of programs, and what Linux's own ext4 answers: the same from `floe mount`, whatever its options.
//!
//! `table.txt` has a line for each case, with the answers that Linux gives, and where Floe cannot give these, its own. Where this machine can mount through a loop
//! device, one test compares the table with Linux; the other compares it with Floe. With `FLOE_WRITE_TABLE` set, the first one
//! writes the answers anew: look at the difference.

mod calls;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use floe_testkit::{Image, build, kernel};

use super::mount::{Ours, can_mount};
use calls::Program;

/// The files that cases begin with, as far as they name them.
const FIXTURE: &[(&str, &str)] = &[
    ("f s dang loop", "open f rw|creat; append 5; close; setx f user.one 1; setx f security.own s"),
    ("f", "setx f trusted.own t"),
    ("g", "open g rw|creat; append 3; close"),
    ("d ds", "mkdir d 755; open d/x w|creat; close; setx d user.one 1"),
    ("e", "mkdir e 755"),
    ("s", "symlink f s"),
    ("ds", "symlink d ds"),
    ("dang", "symlink nowhere dang"),
    ("loop", "symlink loop loop"),
    ("p", "mknod p fifo 644"),
    ("open", "mkdir open 755; chmod open 777"),
    (
        "sticky",
        "mkdir sticky 755; open sticky/root w|creat; close; open sticky/mine w|creat; close",
    ),
    ("sticky", "chown sticky/mine 1000 1000; chmod sticky 1777"),
    ("mine", "mkdir mine 755; chown mine 1000 1000"),
    ("mf", "open mf w|creat; append 4; close; chown mf 1000 1000"),
    ("su", "open su w|creat; append 4; close; chown su 1000 1000; chmod su 6755"),
    ("sg", "open sg w|creat; append 4; close; chown sg 1000 1000; chmod sg 2644"),
    ("sgd", "mkdir sgd 755; chown sgd 0 1000; chmod sgd 2777"),
    ("imm", "open imm w|creat; append 4; setflags 0x80010; close"),
    ("app", "open app w|creat; append 4; setflags 0x80020; close"),
    ("immd", "mkdir immd 755; open immd/x w|creat; close; open immd r; setflags 0x80010; close"),
    ("appd", "mkdir appd 755; open appd/x w|creat; close; open appd r; setflags 0x80020; close"),
];

const TABLE: &str = include_str!("table.txt");

/// A line of calls, the answers of Linux, and perhaps other answers that Floe may give (behind `~>`).
struct Case {
    calls: &'static str,
    linux: &'static str,
    or_else: Option<&'static str>,
}

fn cases() -> Vec<Case> {
    let lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let case = |line: &'static str| {
        let (calls, answers) = line.split_once(" => ").unwrap_or((line, ""));
        match answers.split_once(" ~> ") {
            Some((linux, other)) => Case { calls, linux, or_else: Some(other) },
            None => Case { calls, linux: answers, or_else: None },
        }
    };
    lines.map(case).collect()
}

/// The answer to each case in a directory of its own.
fn answers(top: &Path) -> Vec<String> {
    let answer = |(number, case): (usize, Case)| {
        let directory = format!("{}/{number}", top.display());
        fs::create_dir(&directory).unwrap();
        let mut program = Program::new(directory.clone());
        let words = case.calls.split([' ', ';']).map(|word| word.split('/').next().unwrap());
        let named: BTreeSet<&str> = words.collect();
        for (names, calls) in FIXTURE {
            if names.split(' ').any(|name| named.contains(name)) {
                let done = program.run(calls);
                assert!(!done.contains('E'), "{calls}: {done}");
            }
        }
        // A thread of its own, because the user of one changes for good.
        std::thread::scope(|scope| scope.spawn(|| program.run(case.calls)).join().unwrap())
    };
    cases().into_iter().enumerate().map(answer).collect()
}

fn empty() -> Image {
    let image = Image::empty(96 << 20).unwrap();
    let options = ["-q", "-t", "ext4", "-b", "4096", "-I", "256", "-N", "20000", "-m", "0"];
    build::mke2fs(image.path(), &options).unwrap();
    image
}

/// Lines about the answers that neither Linux gives nor the table allows.
fn wrong(what: &str, answers: &[String], may_differ: bool) -> Vec<String> {
    let is_wrong = |(case, found): &(Case, &String)| {
        let other = case.or_else.filter(|_| may_differ);
        case.linux != *found && other != Some(found)
    };
    let all = cases().into_iter().zip(answers).filter(is_wrong);
    let line = |(case, found): (Case, &String)| {
        format!("{}\n    Linux: {}\n    {what}: {found}", case.calls, case.linux)
    };
    all.map(line).collect()
}

#[test]
fn the_table_of_odd_calls_is_what_linux_answers() {
    if !can_mount() {
        return;
    }
    if let Err(reason) = kernel::mount_available() {
        eprintln!("skipped: {reason}");
        return;
    }
    let image = empty();
    let mounted = kernel::Mounted::new(image.path(), "rw").unwrap();
    let answers = answers(mounted.path());
    mounted.unmount().unwrap();
    if std::env::var_os("FLOE_WRITE_TABLE").is_some() {
        let mut answers = answers.into_iter();
        let lines = TABLE.lines().map(|line| match line {
            line if line.is_empty() || line.starts_with('#') => format!("{line}\n"),
            line => {
                let (line, other) = line.split_once(" ~> ").unwrap_or((line, ""));
                let calls = line.split_once(" => ").map_or(line, |(calls, _)| calls);
                let other = if other.is_empty() { String::new() } else { format!(" ~> {other}") };
                format!("{calls} => {}{other}\n", answers.next().unwrap())
            }
        });
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/odd_calls/table.txt");
        fs::write(path, lines.collect::<String>()).unwrap();
        return;
    }
    let wrong = wrong("Linux now", &answers, false);
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), answers.len(), wrong.join("\n"));
}

#[test]
fn odd_calls_are_answered_as_by_linux() {
    if !can_mount() {
        return;
    }
    let (mut all, mut differ) = (Vec::new(), BTreeSet::new());
    for options in ["rw", "nowriteback_cache,nodelalloc"] {
        let image = empty();
        let ours = Ours::new(image.path(), &["-o", options]);
        let answers = answers(ours.path());
        all.extend(wrong(options, &answers, true));
        let found = cases().into_iter().zip(answers);
        differ
            .extend(found.filter(|(case, found)| case.linux != found).map(|(case, _)| case.calls));
        ours.end();
        assert!(floe_testkit::oracle::e2fsck(&image).unwrap().clean(), "{options}");
    }
    assert!(all.is_empty(), "{}:\n{}", all.len(), all.join("\n"));
    for case in cases().iter().filter(|case| case.or_else.is_some()) {
        assert!(differ.contains(case.calls), "Floe answers as Linux: {}", case.calls);
    }
}
