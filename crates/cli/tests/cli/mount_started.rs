//! How a server begins: with few descriptors, without those of its caller, on a connection that somebody else has mounted.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use floe_blockdev::mounted_at;
use floe_testkit::{oracle, tool};

use super::image;
use super::mount::{Ours, can_mount};
use super::unmounts::watcher_of;

fn shell(script: &str, image: &Path, place: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_floe")]).arg(image).arg(place);
    command
}

/// A limit of open files either lets a mount work, with its watcher, or is named before anything is mounted.
#[test]
fn few_descriptors_are_enough_or_nothing_is_mounted() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4") else { return };
    let folder = tool::scratch("floe-few-").unwrap();
    let mut worked = 0;
    for limit in (4..44).step_by(3).chain([9, 17, 20]) {
        let script = format!("ulimit -n {limit}; exec \"$0\" mount \"$1\" \"$2\"");
        let ran = shell(&script, image.path(), folder.path()).output().unwrap();
        let told = String::from_utf8_lossy(&ran.stderr).into_owned();
        let code = ran.status.code();
        if code != Some(0) {
            let mounted = mounted_at(folder.path());
            let _ =
                Command::new("umount").arg("-l").arg(folder.path()).stderr(Stdio::null()).status();
            assert!(mounted.is_none(), "{limit}: a dead mount is left: {told}");
            // Below 8 the system may not even begin the program.
            let is_told = told.contains("Too many open files") || told.contains("ulimit -n");
            assert!(
                limit < 8 || matches!(code, Some(2 | 32)) && is_told,
                "{limit}: {code:?}: {told}"
            );
            continue;
        }
        worked += 1;
        let status = super::floe(&["status", folder.path().to_str().unwrap()]).out;
        let server = status.lines().find_map(|line| line.strip_prefix("process: ")).unwrap();
        watcher_of(server);
        fs::write(folder.path().join("new"), limit.to_string()).unwrap();
        let ended = super::floe(&["umount", folder.path().to_str().unwrap()]);
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{limit}");
    }
    assert!(worked > 0, "none of the limits is enough");
    assert!(oracle::e2fsck(&image).unwrap().clean());
}

/// A lock, a pipe and a file of the caller are not those of the server and its watcher.
#[test]
fn a_server_keeps_no_descriptor_of_its_caller() {
    if !can_mount() {
        return;
    }
    for options in ["rw", "ro"] {
        let Some(image) = image("ext4") else { return };
        let folder = tool::scratch("floe-apart-").unwrap();
        let lock = tool::scratch("floe-lock-").unwrap();
        let lock = lock.path().join("lock");
        // The reader of the pipe waits for the end of all that could write.
        let script = format!(
            "exec 9>'{0}' 8>/dev/null; flock 9; (\"$0\" mount \"$1\" \"$2\" -o {options}; echo $?) 7>&1 2>&1 | cat",
            lock.display()
        );
        let begin = Instant::now();
        let mut child =
            shell(&script, image.path(), folder.path()).stdout(Stdio::piped()).spawn().unwrap();
        while child.try_wait().unwrap().is_none() && begin.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let is_over = child.try_wait().unwrap().is_some();
        let free = Command::new("flock").arg("-n").arg(&lock).arg("true").status().unwrap();
        let ended = super::floe(&["umount", folder.path().to_str().unwrap()]);
        let out = child.wait_with_output().unwrap().stdout;
        assert!(is_over, "{options}: a pipe is still open");
        assert!(free.success(), "{options}: the lock is still held");
        assert_eq!((ended.code, String::from_utf8_lossy(&out).trim()), (0, "0"), "{options}");
    }
}

/// Mounts by itself, as a container's keeper does, and gives the descriptor to the server.
const GIVES: &str = "
import ctypes, os, subprocess, sys
floe, image, place = sys.argv[1:]
fd = os.open('/dev/fuse', os.O_RDWR)
data = 'fd=%d,rootmode=40000,user_id=0,group_id=0,default_permissions' % fd
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mount(b'x', place.encode(), b'fuse.floe', 0, data.encode()) == 0
sys.exit(subprocess.call([floe, 'mount', image, '/dev/fd/%d' % fd], pass_fds=[fd]))
";

#[test]
fn a_connection_that_somebody_else_has_mounted_is_served() {
    let has_python =
        Command::new("python3").arg("-V").output().is_ok_and(|ran| ran.status.success());
    if !can_mount() || !has_python {
        return;
    }
    let Some(image) = image("ext4") else { return };
    let folder = tool::scratch("floe-given-").unwrap();
    let mut python = Command::new("python3");
    python.args(["-c", GIVES, env!("CARGO_BIN_EXE_floe")]).arg(image.path()).arg(folder.path());
    let ran = python.output().unwrap();
    let is_served =
        ran.status.success() && fs::write(folder.path().join("new"), b"content").is_ok();
    let ended = super::floe(&["umount", folder.path().to_str().unwrap()]);
    let _ = Command::new("umount").arg("-l").arg(folder.path()).stderr(Stdio::null()).status();
    assert!(is_served, "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    let again = Ours::new(image.path(), &[]);
    assert_eq!(fs::read(again.path().join("new")).unwrap(), b"content");
    again.unmount();
}
