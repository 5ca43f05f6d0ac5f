//! Checks of file systems in use: an ext4 image on XFS or Btrfs, mounted, with continuous writes.
//! Need root, loop devices and XFS; otherwise the tests are skipped with a message.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use floe_testkit::{build, tool};
use serde_json::Value;
use tempfile::TempDir;

use super::{Ran, floe, floe_on};

/// An ext4 file system, mounted from an image on another file system.
struct Mounts {
    folder: TempDir,
}

fn must(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = tool::command(program);
    command.args(arguments);
    tool::run(&command, 60)?.expect(program, &[0]).map(drop)
}

impl Mounts {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn new(below: &[&str], before_mount: &[&str]) -> anyhow::Result<Self> {
        let mounts = Self { folder: tempfile::tempdir()? };
        fs::create_dir(mounts.path("below"))?;
        fs::create_dir(mounts.path("mnt"))?;
        let disk = mounts.text("disk");
        File::create(&disk)?.set_len(400 << 20)?;
        must(below[0], &[&below[1..], &[&disk]].concat())?;
        must("mount", &["-o", "loop", &disk, &mounts.text("below")])?;
        let image = mounts.text("below/image");
        File::create(&image)?.set_len(64 << 20)?;
        build::mke2fs(Path::new(&image), &["-t", "ext4", "-b", "1024"])?;
        for command in before_mount {
            must("debugfs", &["-w", "-R", command, &image])?;
        }
        must("mount", &["-o", "loop", &image, &mounts.text("mnt")])?;
        Ok(mounts)
    }

    /// Verifies that the file system accepts writes, so it is not frozen.
    fn assert_thawed(&self) {
        let mut writer = Command::new("touch").arg(self.path("mnt/probe")).spawn().unwrap();
        for _ in 0..100 {
            if writer.try_wait().unwrap().is_some() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = must("fsfreeze", &["--unfreeze", &self.text("mnt")]);
        writer.wait().unwrap();
        panic!("the file system is still frozen");
    }

    /// Starts a check with a snapshot command, and waits until that runs, while the file system is
    /// frozen.
    fn start(&self, command: &str) -> Child {
        let started = self.path("started");
        let _ = fs::remove_file(&started);
        let command = format!("echo $FLOE_ACTION >> {}; {command}", self.text("log"));
        let command = format!("touch {}; {command}", started.display());
        let child = Command::new(env!("CARGO_BIN_EXE_floe"))
            .args(["check", "--online", "--freeze-limit", "60", "--snapshot-command", &command])
            .arg(self.path("mnt"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let begin = Instant::now();
        while !started.exists() {
            assert!(begin.elapsed().as_secs() < 30, "the command was not started");
            std::thread::sleep(Duration::from_millis(10));
        }
        child
    }

    fn actions(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for name in ["mnt", "below"] {
            if must("umount", &[&self.text(name)]).is_err() {
                // Only after a failed test: detach as soon as it is unused.
                let _ = must("umount", &["-l", &self.text(name)]);
            }
        }
    }
}

fn mounts(before_mount: &[&str]) -> Option<Mounts> {
    mounts_on(&["mkfs.xfs", "-q", "-m", "reflink=1"], before_mount)
}

fn mounts_on(below: &[&str], before_mount: &[&str]) -> Option<Mounts> {
    match Mounts::new(below, before_mount) {
        Ok(mounts) => Some(mounts),
        Err(error) => {
            eprintln!(
                "skipped: no ext4 on a file system of {} can be mounted: {error:#}",
                below[0]
            );
            None
        }
    }
}

fn check(mounts: &Mounts, more: &[&str]) -> Ran {
    floe_on(&[&["check", "--online"], more].concat(), &mounts.path("mnt"))
}

/// Writes, renames and deletes until stopped; counts its operations.
fn write_on(folder: &Path, stop: &AtomicBool, done: &AtomicUsize) {
    for round in 0usize.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let folder = folder.join(format!("d{}", round % 23));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join(format!("f{}", round % 61));
        fs::write(&file, vec![round as u8; round * 977 % 30_000]).unwrap();
        let _ = fs::rename(&file, folder.join("renamed"));
        if round % 5 == 0 {
            let _ = fs::remove_dir_all(&folder);
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_file_system_under_load_is_clean_and_goes_on() {
    let Some(mounts) = mounts(&[]) else { return };
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| write_on(&mounts.path("mnt"), &stop, &done));
        let checked = std::panic::catch_unwind(|| {
            let mut before = 0;
            for _ in 0..5 {
                while done.load(Ordering::Relaxed) < before + 50 {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let ran = check(&mounts, &["--json"]);
                assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
                let report: Value = serde_json::from_str(&ran.out).unwrap();
                assert_eq!(report["snapshot"]["method"], "reflink");
                assert!(report["snapshot"]["frozen_seconds"].as_f64().unwrap() < 10.0);
                // The freeze completed all writes, so there is no journal to replay.
                assert_eq!(report["journal"]["state"], "clean", "{}", ran.out);
                before = done.load(Ordering::Relaxed);
                // The image as that of a virtual machine: not frozen, so its journal is replayed.
                let ran = floe_on(&["check", "--online"], &mounts.path("below/image"));
                assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
            }
        });
        stop.store(true, Ordering::Relaxed);
        checked.unwrap();
    });
    mounts.assert_thawed();
    let left = fs::read_dir(mounts.path("below")).unwrap().count();
    assert_eq!(left, 1, "the snapshots are gone");
}

#[test]
fn damage_is_found_in_a_mounted_file_system() {
    let Some(mounts) = mounts(&["set_inode_field lost+found links_count 7"]) else { return };
    let ran = check(&mounts, &[]);
    assert_eq!(ran.code, 4, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("lost+found") && ran.out.contains("snapshot"), "{}", ran.out);
}

#[test]
fn btrfs_clones_images_too() {
    let Some(mounts) = mounts_on(&["mkfs.btrfs", "-q"], &[]) else { return };
    fs::write(mounts.path("mnt/file"), b"x").unwrap();
    let ran = check(&mounts, &["--json"]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["snapshot"]["method"], "reflink");
    assert_eq!(report["totals"]["files"], 1);
    mounts.assert_thawed();
}

#[test]
fn without_reflinks_the_reason_is_said() {
    let Some(mounts) = mounts(&[]) else { return };
    // ext4 on ext4 on XFS.
    let inner = mounts.text("mnt/image");
    File::create(&inner).unwrap().set_len(8 << 20).unwrap();
    build::mke2fs(Path::new(&inner), &["-t", "ext4"]).unwrap();
    let point = mounts.text("inner");
    fs::create_dir(&point).unwrap();
    must("mount", &["-o", "loop", &inner, &point]).unwrap();
    let ran = floe(&["check", "--online", &point]);
    must("umount", &[&point]).unwrap();
    assert_eq!(ran.code, 8, "{}", ran.out);
    assert!(ran.err.contains("no reflinks"), "{}", ran.err);
    for (path, word) in [("below", "xfs"), ("", "not a mount point")] {
        let ran = floe_on(&["check", "--online"], &mounts.path(path));
        assert_eq!(ran.code, 8, "{}", ran.out);
        assert!(ran.err.contains(word), "{}", ran.err);
    }
    must("mount", &["-o", "remount,ro", &mounts.text("mnt")]).unwrap();
    let ran = check(&mounts, &[]);
    assert!(ran.code == 8 && ran.err.contains("read-only"), "{}{}", ran.out, ran.err);
}

#[test]
fn a_snapshot_command_is_run_frozen_and_once_more_to_drop() {
    let Some(mounts) = mounts(&[]) else { return };
    let command = format!(
        "echo $FLOE_ACTION $FLOE_MOUNT_POINT $FLOE_SNAPSHOT >> {log}; case $FLOE_ACTION in \
         create) cp --reflink=always {below}/image {below}/copy; echo noise; echo {below}/copy;; \
         drop) rm $FLOE_SNAPSHOT;; esac",
        log = mounts.text("log"),
        below = mounts.text("below")
    );
    let ran = check(&mounts, &["--snapshot-command", &command]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("command") && ran.out.contains("writers waited"), "{}", ran.out);
    let (point, copy) = (mounts.text("mnt"), mounts.text("below/copy"));
    assert_eq!(
        mounts.actions(),
        [format!("create {point}"), format!("drop {point} {copy}")]
            .map(|line| line.replace("  ", " "))
    );
    assert!(!mounts.path("below/copy").exists());
    let ran = check(&mounts, &["--snapshot-command", "echo oops >&2; exit 3"]);
    assert!(ran.code == 8 && ran.err.contains("oops"), "{}{}", ran.out, ran.err);
    let ran = check(&mounts, &["--snapshot-command", "true"]);
    assert!(ran.code == 8 && ran.err.contains("printed no path"), "{}{}", ran.out, ran.err);
    mounts.assert_thawed();
}

/// The path of a snapshot is known only after its creation, and is an input like any other.
#[test]
fn a_snapshot_where_an_output_goes_is_refused() {
    let Some(mounts) = mounts(&[]) else { return };
    let copy = mounts.text("below/copy");
    let command = format!("cp --reflink=always {}/image {copy}; echo {copy}", mounts.text("below"));
    for option in ["--html", "--metrics", "--checkpoint"] {
        let online = ["check", "--online", "--snapshot-command", &command, &mounts.text("mnt")];
        let mut line = online.to_vec();
        line.extend([option, &copy]);
        let ran = floe(&line);
        assert_eq!(ran.code, 16, "{option}: {}{}", ran.out, ran.err);
        if option != "--checkpoint" {
            assert!(ran.err.contains("the snapshot"), "{option}: {}", ran.err);
            assert!(fs::metadata(&copy).unwrap().len() > 1 << 20, "{option}");
            fs::remove_file(&copy).unwrap();
        }
    }
    mounts.assert_thawed();
}

#[test]
fn a_snapshot_that_takes_too_long_is_given_up() {
    let Some(mounts) = mounts(&[]) else { return };
    let command = format!(
        "echo $FLOE_ACTION >> {}; [ $FLOE_ACTION = drop ] || {{ sleep 3; echo {}; }}",
        mounts.text("log"),
        mounts.text("below/image")
    );
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // A writer waits only up to the limit, not for the command.
            std::thread::sleep(Duration::from_millis(700));
            fs::write(mounts.path("mnt/file"), b"x").unwrap();
            assert!(begin.elapsed() < Duration::from_millis(2800), "{:?}", begin.elapsed());
        });
        let ran = check(&mounts, &["--freeze-limit", "1", "--snapshot-command", &command]);
        assert_eq!(ran.code, 8, "{}", ran.out);
        assert!(ran.err.contains("--freeze-limit"), "{}", ran.err);
    });
    assert_eq!(mounts.actions(), ["create", "drop"]);
}

fn kill(signal: &str, process: u32) {
    must("kill", &[signal, &process.to_string()]).unwrap();
}

#[test]
fn a_killed_check_leaves_nothing_frozen() {
    let Some(mounts) = mounts(&[]) else { return };
    let mut child = mounts.start("sleep 6");
    kill("-KILL", child.id());
    child.wait().unwrap();
    mounts.assert_thawed();
}

#[test]
fn a_killed_holder_leaves_nothing_frozen() {
    let Some(mounts) = mounts(&[]) else { return };
    let child = mounts.start("[ $FLOE_ACTION = drop ] || { sleep 1; echo /dev/null; }");
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let children = fs::read_to_string(children).unwrap();
    let is_holder = |id: &&str| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("hold-freeze")
    };
    let holder = children.split_whitespace().find(is_holder).expect("a holder");
    // SIGTERM has no effect.
    kill("-TERM", holder.parse().unwrap());
    kill("-KILL", holder.parse().unwrap());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(8), "{said}");
    assert!(said.contains("thawed too early"), "{said}");
    mounts.assert_thawed();
    assert_eq!(mounts.actions(), ["create", "drop"]);
}

#[test]
fn an_interrupted_check_drops_its_snapshot() {
    let Some(mounts) = mounts(&[]) else { return };
    // The snapshot is made only after the signal is sent, however busy the machine is.
    let go = mounts.text("below/go");
    let child = mounts.start(&format!(
        "[ $FLOE_ACTION = drop ] || {{ until [ -e {go} ]; do sleep 0.05; done; sleep 1; echo {}; }}",
        mounts.text("below/image")
    ));
    // SIGINT may be ignored if the tests run in the background of a shell.
    kill("-TERM", child.id());
    fs::write(&go, "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(32), "{output:?}");
    mounts.assert_thawed();
    assert_eq!(mounts.actions(), ["create", "drop"]);
}

#[test]
fn options_of_snapshots_are_refused_elsewhere() {
    for line in [
        &["check", "--snapshot-command", "x", "y"][..],
        &["check", "--online", "--no-freeze", "y"],
        &["check", "--online", "--force", "y"],
        &["check", "--online", "--freeze-limit", "0", "y"],
    ] {
        assert_eq!(floe(line).code, 16, "{line:?}");
    }
    assert_eq!(floe(&["check", "--online", "/nowhere/at/all"]).code, 8);
}
