//! Runs killed while they write a file: an incomplete file never has the final name, and repeating
//! the command gives the result of an uninterrupted run.
//!
//! The kernel kills a process (SIGXFSZ) that exceeds its file size limit, which ends it at any
//! chosen offset of the output.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use floe_testkit::problems::cases;
use floe_testkit::{Image, build, tool};

use super::loop_device::Loop;
use super::{Ran, image, ran};

const SIGXFSZ: i32 = 25;

/// The repair writes several blocks of several kinds.
fn damaged() -> Option<(Image, tempfile::TempDir)> {
    let image = image("ext4-1k")?;
    build::debugfs(&image, "clri <12>\nclri <13>\nclri <20>\nsif <15> links_count 7\n").unwrap();
    Some((image, tool::scratch("floe-killed-").unwrap()))
}

fn command(line: &[&str], limit_half_kib: Option<usize>) -> Command {
    let limit = limit_half_kib.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let mut command = Command::new("sh");
    // Without a core dump.
    command.args(["-c", "ulimit -c 0; ulimit -f $0; exec \"$@\"", &limit]);
    command.arg(env!("CARGO_BIN_EXE_floe")).args(line).env("E2FSCK_TIME", "1704067200");
    if limit_half_kib.is_some() {
        // Otherwise the limit is an error like others.
        command.env("FLOE_END_AT_SIZE_LIMIT", "1");
    }
    command
}

fn killed(line: &[&str], limit_half_kib: usize) -> ExitStatus {
    command(line, Some(limit_half_kib)).output().unwrap().status
}

fn whole(line: &[&str]) -> Ran {
    ran(&command(line, None).output().unwrap())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Path of a file while it is being written.
fn unfinished(path: &Path) -> PathBuf {
    path.with_extension("unfinished")
}

#[test]
fn a_repair_that_was_killed_while_it_saved_the_old_content_can_be_made_anew() {
    let Some((image, folder)) = damaged() else { return };
    let undo = folder.path().join("undo");
    let before = image.to_vec().unwrap();
    let line = ["repair", "--yes", "--undo", text(&undo), text(image.path())];
    assert_eq!(whole(&line).code, 1);
    let (after, saved) = (image.to_vec().unwrap(), fs::read(&undo).unwrap());
    let (mut while_saving, mut while_writing) = (0, 0);
    let most = saved.len() / 512 + 2;
    for limit in (0..most).step_by(most / 12).chain([most]) {
        fs::remove_file(&undo).unwrap();
        image.write(0, &before).unwrap();
        let status = killed(&line, limit);
        assert_eq!(status.signal(), Some(SIGXFSZ), "limit {limit}: {status}");
        if unfinished(&undo).exists() {
            while_saving += 1;
            assert!(!undo.exists() && image.to_vec().unwrap() == before, "limit {limit}");
        } else {
            while_writing += 1;
            assert!(fs::read(&undo).unwrap() == saved, "limit {limit}");
        }
        let again = whole(&line);
        assert_eq!(again.code, 1, "limit {limit}: {}{}", again.out, again.err);
        assert!(image.to_vec().unwrap() == after, "limit {limit}: not the same repair");
        assert!(!unfinished(&undo).exists());
        let back = whole(&["undo", text(&undo), text(image.path())]);
        assert_eq!(back.code, 0, "{}", back.err);
        assert!(image.to_vec().unwrap() == before, "limit {limit}: not the original bytes");
    }
    assert!(while_saving > 5 && while_writing > 0, "{while_saving} and {while_writing}");
}

/// HTML pages, metrics and plans: the old file stays until the new one is complete.
#[test]
fn an_output_is_the_old_one_or_the_new_one() {
    let Some((image, folder)) = damaged() else { return };
    let before = image.to_vec().unwrap();
    for (command, option, code) in
        [("check", "--html", 4), ("check", "--metrics", 4), ("repair", "--plan", 1)]
    {
        let file = folder.path().join("file");
        let yes = if command == "repair" { &["--yes"][..] } else { &[] };
        let line = [&[command][..], yes, &[option, text(&file), text(image.path())]].concat();
        let first = whole(&line);
        assert_eq!(first.code, code, "{}", first.err);
        let mut made = fs::read(&file).unwrap();
        let end = if option == "--metrics" { None } else { made.last_chunk::<4>().copied() };
        let mut kills = 0;
        for limit in (0..made.len() / 512).step_by(1 + made.len() / 512 / 4) {
            // A plan is never replaced.
            if option == "--plan" {
                fs::remove_file(&file).unwrap();
            }
            let status = killed(&line, limit);
            assert_eq!(status.signal(), Some(SIGXFSZ), "{option} {limit}: {status}");
            kills += 1;
            assert_eq!(file.exists(), option != "--plan");
            assert!(option == "--plan" || fs::read(&file).unwrap() == made, "{option} {limit}");
            let again = whole(&line);
            assert_eq!(again.code, code, "{option} {limit}: {}", again.err);
            // Only the time differs.
            made = fs::read(&file).unwrap();
            assert!(end.is_none() || made.last_chunk() == end.as_ref(), "{option} {limit}");
            assert!(!unfinished(&file).exists());
        }
        assert!(kills > 1, "{option}: {kills}");
        fs::remove_file(&file).unwrap();
    }
    assert!(image.to_vec().unwrap() == before);
}

/// An output that cannot be created is reported before the long work.
#[test]
fn what_cannot_be_written_is_told_at_the_start() {
    let Some((image, folder)) = damaged() else { return };
    let (before, device) = (image.to_vec().unwrap(), text(image.path()));
    let nowhere = folder.path().join("no/such/folder/file");
    let taken = folder.path().join("taken");
    fs::write(unfinished(&taken), "precious").unwrap();
    for (file, expected) in [(&nowhere, "No such file"), (&taken, "in the way")] {
        for line in [
            &["check", "--html", text(file), device][..],
            &["repair", "--dry-run", "--html", text(file), device],
            &["repair", "--yes", "--undo", text(file), device],
            &["repair", "--yes", "--plan", text(file), device],
            &["fsck", "-fy", "-z", text(file), device],
        ] {
            let ran = whole(line);
            assert_eq!(ran.code, 8, "{line:?}: {}{}", ran.out, ran.err);
            assert!(ran.err.contains(expected), "{line:?}: {}", ran.err);
            // The device was not examined yet.
            assert!(!ran.out.contains("ext4"), "{line:?}: {}", ran.out);
        }
    }
    assert_eq!(fs::read(unfinished(&taken)).unwrap(), b"precious");
    assert!(image.to_vec().unwrap() == before);
}

/// An attribute of the file forbids writing to root, too: the message names it, and what takes it away.
#[test]
fn a_protected_file_is_named_as_such() {
    let Some((image, _folder)) = damaged() else { return };
    let set = |flag: &str| Command::new("chattr").arg(flag).arg(image.path()).status();
    for (letter, kind) in [("i", "immutable"), ("a", "append-only")] {
        if !set(&format!("+{letter}")).is_ok_and(|status| status.success()) {
            eprintln!("skipped: no right to make a file {kind}");
            return;
        }
        let lines = [&["repair", "--yes"][..], &["fsck", "-fy"]];
        let all = lines.map(|line| whole(&[line, &[text(image.path())]].concat()));
        assert!(set(&format!("-{letter}")).unwrap().success());
        for ran in all {
            assert_eq!(ran.code, 8, "{}{}", ran.out, ran.err);
            assert!(ran.err.contains(kind) && ran.err.contains("chattr -"), "{}", ran.err);
            assert!(!ran.err.contains("root"), "{}", ran.err);
        }
    }
}

/// A loop device of a read-only file, like a write-protected disk, can still be opened for writing.
#[test]
fn a_read_only_device_is_noticed_before_the_work() {
    let Some((image, folder)) = damaged() else { return };
    let undo = folder.path().join("undo");
    let Some(device) = Loop::over(image.path(), &["--read-only"]) else { return };
    let before = image.to_vec().unwrap();
    let lines = [
        &["repair", "--yes", "--undo", text(&undo), device.name()][..],
        &["repair", "--yes", device.name()],
        &["fsck", "-fy", device.name()],
    ];
    let all: Vec<Ran> = lines.iter().map(|line| whole(line)).collect();
    for (ran, line) in all.iter().zip(lines) {
        assert_eq!(ran.code, 8, "{line:?}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains("read-only"), "{line:?}: {}", ran.err);
        assert!(!ran.err.contains("half done") && ran.out.is_empty(), "{}{}", ran.out, ran.err);
    }
    assert!(!undo.exists() && image.to_vec().unwrap() == before);
}

/// A page that cannot be written is told before anything is repaired, and nothing is.
#[test]
fn a_page_that_cannot_be_made_is_told_before_the_repair() {
    let Some((image, folder)) = damaged() else { return };
    let (before, undo) = (image.to_vec().unwrap(), folder.path().join("undo"));
    let page = folder.path().join("nowhere/page");
    let line = ["repair", "--yes", "--undo", text(&undo), "--html", text(&page)];
    let ran = whole(&[&line[..], &[text(image.path())]].concat());
    assert_eq!(ran.code, 8, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("nowhere/page") && ran.out.is_empty(), "{}{}", ran.out, ran.err);
    assert!(image.to_vec().unwrap() == before && !undo.exists());
}

/// The changes of a journal on another device have an undo file of their own, and are no part of a plan.
#[test]
fn changes_of_an_external_journal_are_undone_and_not_planned() {
    if tool::missing() {
        return;
    }
    let with_journal = cases()
        .into_iter()
        .filter(|case| case.external_journal.is_some() && !case.has_unreadable_blocks());
    let mut written = 0;
    for case in with_journal {
        let name = case.recipe.name().to_owned();
        let (image, journal) = (case.recipe.build().unwrap(), case.external_journal.unwrap());
        let folder = tool::scratch("floe-journal-").unwrap();
        let at = |name: &str| folder.path().join(name);
        let before = (image.to_vec().unwrap(), journal.to_vec().unwrap());
        let (plan, undo) = (at("plan"), at("undo"));
        let devices = ["--external-journal", text(journal.path()), text(image.path())];
        let planned = whole(&[&["repair", "--yes", "--plan", text(&plan)][..], &devices].concat());
        let ran = whole(&[&["repair", "--yes", "--undo", text(&undo)][..], &devices].concat());
        let own = at("undo.journal");
        if journal.to_vec().unwrap() == before.1 {
            assert!(!own.exists(), "{name}");
            continue;
        }
        written += 1;
        assert!(
            !plan.exists() && planned.err.contains("another device"),
            "{name}: {}",
            planned.err
        );
        assert!(ran.out.contains("undo.journal"), "{name}: {}", ran.out);
        let pairs = [(&own, &journal), (&undo, &image)];
        for (undo, device) in pairs.into_iter().filter(|(undo, _)| undo.exists()) {
            let ran = whole(&["undo", text(undo), text(device.path())]);
            assert_eq!(ran.code, 0, "{name}: {}{}", ran.out, ran.err);
        }
        assert!(journal.to_vec().unwrap() == before.1, "{name}: the journal is another");
        assert!(image.to_vec().unwrap() == before.0, "{name}: the file system is another");
    }
    assert!(written > 0, "no repair writes to the journal");
}
