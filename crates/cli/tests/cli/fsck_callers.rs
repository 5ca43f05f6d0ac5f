//! The callers of `fsck.ext4`: util-linux's `fsck`, systemd-fsck, installers, image builders.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use floe_testkit::{build, tool};

use super::{Fsck, Ran, image, ran};

/// Runs a shell command for which `fsck` finds our `fsck.ext4` first, with the image as `$1`.
fn shell(line: &str, image: &Path) -> Option<(Ran, Fsck)> {
    let fsck = Fsck::new("fsck.ext4");
    let found =
        Command::new("sh").args(["-c", "PATH=$PATH:/sbin:/usr/sbin command -v fsck"]).output();
    if !found.unwrap().status.success() {
        eprintln!("skipped: util-linux's fsck is not here");
        return None;
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}:/sbin:/usr/sbin", fsck.folder.path().display());
    let mut command = Command::new("sh");
    command.args(["-c", line, "sh"]).arg(image).env("PATH", path).env("E2FSCK_CONFIG", "/dev/null");
    command.current_dir(fsck.folder.path()).stdin(Stdio::null());
    Some((ran(&command.output().unwrap()), fsck))
}

/// The progress lines: pass, now, all, name.
fn lines(text: &str) -> Vec<(u32, u64, u64)> {
    text.lines()
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [pass, now, all, name] = fields[..] else { panic!("{line:?}") };
            assert!(!name.is_empty(), "{line:?}");
            (pass.parse().unwrap(), now.parse().unwrap(), all.parse().unwrap())
        })
        .collect()
}

/// systemd-fsck and installers must compute growing percentages from the lines.
fn grows(text: &str) {
    let lines = lines(text);
    assert!(!lines.is_empty());
    assert!(lines.is_sorted(), "{text}");
    assert!(lines.iter().all(|&(pass, now, all)| (1..=5).contains(&pass) && now <= all), "{text}");
    assert_eq!(lines.last().unwrap().0, 5, "{text}");
}

#[test]
fn fsck_of_util_linux_runs_us() {
    let Some(image) = image("ext4-1k") else { return };
    let Some((ran, _)) = shell("fsck -t ext4 -a \"$1\"", image.path()) else { return };
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains(": clean, 118/1024 files, 2746/8192 blocks"), "{}", ran.out);
    // Damage that is safe to repair, then damage that is not.
    build::debugfs(&image, "ssv state 0\nsif <2> links_count 9\n").unwrap();
    let (ran, _) = shell("fsck -t ext4 -a \"$1\"", image.path()).unwrap();
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    build::debugfs(&image, "ssv state 0\nunlink /lost+found\n").unwrap();
    let (ran, _) = shell("fsck -t ext4 -a \"$1\"", image.path()).unwrap();
    assert_eq!(ran.code, 4, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("THIS NEEDS A PERSON"), "{}", ran.out);
    let (ran, _) = shell("fsck -t ext4 \"$1\" -- -y", image.path()).unwrap();
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    let (ran, _) = shell("fsck -t ext4 -r \"$1\" -- -fn", image.path()).unwrap();
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let (ran, _) = shell("fsck -t ext4 \"$1\" -- -Q", image.path()).unwrap();
    assert_eq!(ran.code, 16, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("there is no option -Q"), "{}", ran.err);
}

#[test]
fn systemd_fsck_reads_progress() {
    let Some(image) = image("ext4-1k") else { return };
    build::debugfs(&image, "ssv state 0\n").unwrap();
    // Like systemd-fsck, with the write end of a pipe as descriptor 4.
    let line = "{ fsck -a -T -l -M -t ext4 -C4 \"$1\" 4>&1 >&2; echo \"code $?\" >&2; } | cat";
    let Some((ran, _)) = shell(line, image.path()) else { return };
    assert!(ran.err.contains("code 1"), "{}{}", ran.out, ran.err);
    grows(&ran.out);
    // Skipped: no progress.
    let (ran, _) = shell(line, image.path()).unwrap();
    assert!(ran.err.contains("code 0") && ran.err.contains(": clean, "), "{}", ran.err);
    assert_eq!(ran.out, "");
}

#[test]
fn progress_of_repairs_grows_too() {
    let Some(image) = image("ext4-1k") else { return };
    build::debugfs(&image, "ssv state 0\nsif <2> links_count 9\nunlink /lost+found\n").unwrap();
    let (ran, fsck) = shell("fsck.ext4 -y -C 7 \"$1\" 7>progress", image.path()).unwrap();
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    grows(&fs::read_to_string(fsck.folder.path().join("progress")).unwrap());
}

#[test]
fn a_negative_descriptor_is_silent_until_a_signal() {
    let Some(image) = image("ext4-1k") else { return };
    let line = "fsck.ext4 -fn -C -3 \"$1\" 3>progress";
    let (ran, fsck) = shell(line, image.path()).unwrap();
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert_eq!(fs::read(fsck.folder.path().join("progress")).unwrap(), b"");
    // A configuration read from a pipe delays it until the signals are sent.
    for (signals, speaks) in [(&["-USR1"][..], true), (&["-USR1", "-USR2"], false)] {
        let kills: String =
            signals.iter().map(|signal| format!("kill {signal} $pid; sleep 0.2\n")).collect();
        let line = format!(
            "mkfifo conf\nE2FSCK_CONFIG=conf fsck.ext4 -fn -C -3 \"$1\" 3>progress & pid=$!\n\
                            exec 5>conf\n{kills}exec 5>&-\nwait $pid"
        );
        let (ran, fsck) = shell(&line, image.path()).unwrap();
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        let text = fs::read_to_string(fsck.folder.path().join("progress")).unwrap();
        assert_eq!(!text.is_empty(), speaks, "{signals:?}: {text}");
        if speaks {
            grows(&text);
        }
    }
}

#[test]
fn a_descriptor_that_is_not_open_is_refused() {
    let Some(image) = image("ext2-1k") else { return };
    let ran = Fsck::new("e2fsck").run(&["-fn", "-C", "77"], image.path(), &[]);
    assert_eq!(ran.code, 8, "{}", ran.out);
    assert!(ran.err.contains("-C 77"), "{}", ran.err);
}

/// All times in a superblock that a repair may write.
fn times(image: &Path) -> Vec<String> {
    let output = tool::command("dumpe2fs").arg("-h").arg(image).env("TZ", "UTC").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .filter(|line| line.starts_with("Last write") || line.starts_with("Last checked"))
        .map(|line| line.split_once(':').unwrap().1.trim().to_owned())
        .collect()
}

#[test]
fn source_date_epoch_is_the_time_of_all_that_is_written() {
    let Some(image) = image("ext4-1k") else { return };
    build::debugfs(&image, "ssv state 0\nsif <2> links_count 9\nunlink /lost+found\n").unwrap();
    let again = image.copy().unwrap();
    let fsck = Fsck::new("fsck.ext4");
    for image in [&image, &again] {
        let epoch = [("SOURCE_DATE_EPOCH", "1500000000"), ("E2FSCK_CONFIG", "/dev/null")];
        let ran = fsck.run(&["-fy"], image.path(), &epoch);
        assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    }
    assert_eq!(times(image.path()), vec!["Fri Jul 14 02:40:00 2017"; 2]);
    assert!(image.to_vec().unwrap() == again.to_vec().unwrap(), "two repairs differ");
    let ran = fsck.run(&["-fy"], image.path(), &[("SOURCE_DATE_EPOCH", "1500000001")]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert_eq!(times(image.path()), vec!["Fri Jul 14 02:40:01 2017"; 2]);
}

#[test]
fn without_a_terminal_and_a_mode_it_looks() {
    let Some(image) = image("ext4-1k") else { return };
    build::debugfs(&image, "ssv state 0\nsif <2> links_count 9\n").unwrap();
    let before = image.to_vec().unwrap();
    let ran = Fsck::new("fsck.ext4").run(&[], image.path(), &[]);
    assert_eq!(ran.code, 4, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("nothing was repaired: there is no terminal"), "{}", ran.out);
    assert!(image.to_vec().unwrap() == before);
    // Answers through a pipe require an explicit option, as for e2fsck.
    let mut child = Command::new(Fsck::new("fsck.ext4").path().read_link().unwrap())
        .args(["fsck", "-f"])
        .arg(image.path())
        .env("E2FSCK_FORCE_INTERACTIVE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"Y\n").unwrap();
    let ran = super::ran(&child.wait_with_output().unwrap());
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
}

#[test]
fn a_terminal_gets_a_bar_and_then_the_report() {
    let Some(image) = image("ext4-1k") else { return };
    // `script` runs it on its own terminal.
    let line = "command -v script >/dev/null || exit 77; \
                script -qec \"fsck.ext4 -fn -C 0 '$1'\" /dev/null </dev/null";
    let (ran, _) = shell(line, image.path()).unwrap();
    if ran.code == 77 {
        eprintln!("skipped: there is no script(1)");
        return;
    }
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("|  0.0%"), "{:?}", ran.out);
    // The bar is erased where the report begins.
    assert!(ran.out.contains("\r\x1b[KFile system without a label"), "{:?}", ran.out);
}
