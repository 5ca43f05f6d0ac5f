//! `floe umount` of mounts that do not end with it.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use floe_blockdev::{Use, mounted_at};
use floe_fuse::abi::{InHeader, InitFlags, InitOut, Opcode, OutHeader};
use floe_fuse::mount::{MountOptions, MountPoint, mount};
use floe_fuse::{Carrier, Channel, Synchronous, Transport, open_abort};
use floe_testkit::{Image, oracle, tool};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::mount::{Ours, can_mount, transports};
use super::{floe, image};

fn must(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).status().is_ok_and(|status| status.success())
}

/// Mounts again: everything that was written is there, and the image is sound.
fn assert_complete(image: &Image, options: &str) {
    let again = Ours::new(image.path(), &[]);
    assert_eq!(fs::read(again.path().join("kept/last")).unwrap(), b"written", "{options}");
    again.unmount();
    assert!(oracle::e2fsck(image).unwrap().clean(), "{options}");
}

fn write_last(ours: &Ours) {
    let folder = ours.path().join("kept");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("last"), b"written").unwrap();
}

/// Waits until a server has let go of the image.
fn wait_until_free(image: &Image) {
    let path = image.path().to_str().unwrap();
    let begin = Instant::now();
    while floe(&["repair", "--yes", path]).code == 8 {
        assert!(begin.elapsed() < Duration::from_secs(20), "{path} is still claimed");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn an_unmount_says_that_the_mount_is_also_elsewhere() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4") else { return };
    let ours = Ours::new(image.path(), &[]);
    write_last(&ours);
    let other = tool::scratch("floe-bound-").unwrap();
    let (place, bound) = (ours.path().to_str().unwrap(), other.path().to_str().unwrap());
    assert!(must("mount", &["--bind", place, bound]));
    let begin = Instant::now();
    let ran = floe(&["umount", "--timeout", "2", place]);
    let took = begin.elapsed();
    assert_eq!(floe(&["status", bound]).code, 0, "the other one serves");
    assert!(must("umount", &[bound]));
    assert_eq!(ran.code, 32, "{}", ran.err);
    assert!(ran.err.contains(&format!("still mounted on {bound}")), "{}", ran.err);
    assert!(ran.err.lines().next().is_some_and(|line| line.ends_with("; waiting")), "{}", ran.err);
    assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(9), "{took:?}");
    wait_until_free(&image);
    assert_complete(&image, "bind mount");
}

/// A process in a mount namespace of its own, which has copies of all mounts.
struct Apart(Child);

impl Apart {
    fn new() -> Option<Self> {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private", "sleep", "60"]);
        let child = unshare.spawn().ok()?;
        let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
        let begin = Instant::now();
        while namespace(&child.id().to_string()) == namespace("self") {
            if begin.elapsed() > Duration::from_secs(5) {
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // It shares them until its namespace is private.
        std::thread::sleep(Duration::from_millis(200));
        Some(Self(child))
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_unmount_says_that_another_namespace_has_the_mount() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4") else { return };
    let ours = Ours::new(image.path(), &[]);
    write_last(&ours);
    let Some(apart) = Apart::new() else {
        eprintln!("skipped: unshare makes no mount namespace");
        return;
    };
    let ran = floe(&["umount", "--timeout", "2", ours.path().to_str().unwrap()]);
    let wanted = format!("in the mount namespace of process {}", apart.0.id());
    drop(apart);
    assert!(ran.code == 32 && ran.err.contains(&wanted), "{}: {}", ran.code, ran.err);
    wait_until_free(&image);
    assert_complete(&image, "namespace");
}

#[test]
fn a_lazy_unmount_says_that_the_image_is_still_in_use() {
    if !can_mount() {
        return;
    }
    for timeout in [None, Some("1")] {
        let Some(image) = image("ext4") else { return };
        let ours = Ours::new(image.path(), &[]);
        write_last(&ours);
        let file = File::open(ours.path().join("kept/last")).unwrap();
        let place = ours.path().to_str().unwrap();
        let limit = timeout.map_or_else(Vec::new, |seconds| vec!["--timeout", seconds]);
        let ran = floe(&[&["umount", "--lazy", place], &limit[..]].concat());
        assert!(!Path::new(place).join("kept").exists(), "it is detached");
        assert_eq!(ran.code, if timeout.is_some() { 32 } else { 0 }, "{}", ran.err);
        assert!(ran.err.contains("programs still use it"), "{}", ran.err);
        drop(file);
        wait_until_free(&image);
        assert_complete(&image, "lazy");
        // Without users it ends at once, and nothing is told.
        let unused = Ours::new(image.path(), &[]);
        let ran = floe(&["umount", "--lazy", unused.path().to_str().unwrap()]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
        assert!(oracle::e2fsck(&image).unwrap().clean());
    }
}

fn server_of(ours: &Ours) -> String {
    let status = floe(&["status", ours.path().to_str().unwrap()]).out;
    status.lines().find_map(|line| line.strip_prefix("process: ")).unwrap().to_owned()
}

/// The process that watches over a mount.
pub(super) fn watcher_of(server: &str) -> String {
    let children = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children"));
    let threads = || fs::read_dir(format!("/proc/{server}/task")).unwrap().flatten();
    let begin = Instant::now();
    loop {
        let all: String = threads().flat_map(children).collect();
        if let Some(watcher) = all.split_whitespace().next() {
            return watcher.to_owned();
        }
        assert!(begin.elapsed() < Duration::from_secs(5), "{server} has no watcher");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Nothing is said to be over that is not: a server that is stopped has the image, until it goes on or is killed.
#[test]
fn a_mount_whose_server_does_not_answer_can_be_ended() {
    if !can_mount() {
        return;
    }
    let ends = [("-CONT", "rw"), ("-KILL", "ro")];
    let all = transports().iter().flat_map(|transport| ends.map(|end| (*transport, end)));
    for (transport, (signal, options)) in all {
        let Some(image) = image("ext4") else { return };
        let first = Ours::new(image.path(), &[]);
        write_last(&first);
        first.unmount();
        let options = format!("{options},{transport}");
        let ours = Ours::new(image.path(), &["-o", &options]);
        let place = ours.path().to_str().unwrap();
        let process = server_of(&ours);
        if options.starts_with("rw") {
            fs::write(ours.path().join("kept/other"), b"written when it goes on").unwrap();
        }
        assert!(must("kill", &["-STOP", &process]));
        let (code, err, _) = limited(&["umount", "--force", place]);
        let told = ["does not answer", "still has the image", &format!("kill -CONT {process}")];
        let is_told = told.iter().all(|words| err.contains(words));
        let is_there = mounted_at(ours.path()).is_some();
        let repaired = floe(&["repair", "--yes", image.path().to_str().unwrap()]).code;
        assert!(must("kill", &[signal, &process]));
        assert!(code == 32 && is_told, "{options}: {code}: {err}");
        assert!(!err.contains("programs still use it"), "{options}: {err}");
        assert_eq!(repaired, 8, "{options}: the image is not claimed");
        assert!(!is_there, "{options}: it is still mounted");
        wait_until_free(&image);
        assert_complete(&image, &options);
    }
}

/// Negotiates, answers one request with an error, and takes the others without an answer, until the connection ends.
fn answer_once(control: &mut dyn Channel, error: Errno) -> bool {
    let mut is_answered = false;
    loop {
        let asked = match control.receive() {
            Ok(Some(request)) => InHeader::decode(request.first_chunk().unwrap()),
            Ok(None) => return is_answered,
            Err(error) => panic!("{error}"),
        };
        let is_first = Opcode::of(asked.opcode) == Some(Opcode::Init);
        let mut body = [0; InitOut::SIZE];
        let offer = InitOut {
            major: 7,
            minor: 31,
            max_readahead: 0,
            flags: InitFlags::BIG_WRITES.bits() as u32,
            max_background: 1,
            congestion_threshold: 1,
            max_write: 4096,
            time_gran: 1,
            max_pages: 1,
            flags2: 0,
        };
        offer.encode_into(&mut body);
        let (error, body) = match is_first {
            true => (0, &body[..]),
            false if is_answered => continue,
            false => (error.raw_os_error().wrapping_neg().cast_unsigned(), &[][..]),
        };
        is_answered |= !is_first;
        let mut head = [0; OutHeader::SIZE];
        let len = (OutHeader::SIZE + body.len()) as u32;
        OutHeader { len, error, unique: asked.unique }.encode_into(&mut head);
        control.send(&head, body).unwrap();
    }
}

/// The threads of a server that is killed end one after the other. One that the kernel keeps waiting has the image, and ends with the
/// connection alone; a request that an earlier one was to get from its ring says that this was `ECANCELED`.
#[test]
fn a_forced_unmount_ends_the_connection_although_a_part_of_the_server_is_gone() {
    if !can_mount() {
        return;
    }
    for error in [Errno::CANCELED, Errno::NOTCONN] {
        let folder = tool::scratch("floe-dying-").unwrap();
        let options = MountOptions {
            fsname: "none".into(),
            subtype: "floe".to_owned(),
            read_only: false,
            allow_other: true,
            no_suid: true,
            no_devices: true,
            no_exec: true,
            no_atime: true,
            synchronous: Synchronous::default(),
            judged: true,
            transport: Transport::Device,
        };
        let device = mount(&MountPoint::of(folder.path()), &options).unwrap();
        let Some(Use::Mounted { device: number, .. }) = mounted_at(folder.path()) else {
            panic!("it is not mounted")
        };
        let mut abort = open_abort(number.minor).unwrap();
        let (ran, has_ended) = std::thread::scope(|scope| {
            let server = scope.spawn(|| answer_once(&mut *device.control(), error));
            // It is in use, so that the unmount does not end it.
            let user = rustix::fs::open(folder.path(), OFlags::PATH, Mode::empty()).unwrap();
            let ran =
                limited(&["umount", "--force", "--timeout", "2", folder.path().to_str().unwrap()]);
            let is_over = |_| {
                std::thread::sleep(Duration::from_millis(10));
                server.is_finished()
            };
            let has_ended = (0..100).any(is_over);
            // Else this test would not end.
            let _ = abort.write_all(b"1");
            drop(user);
            assert!(server.join().unwrap(), "nothing was asked");
            (ran, has_ended)
        });
        assert!(has_ended, "{error}: {ran:?}");
        // This process still has it.
        assert_eq!(ran.0, 32, "{error}: {ran:?}");
        assert!(mounted_at(folder.path()).is_none(), "{error}: {ran:?}");
    }
}

#[test]
fn a_watcher_that_is_stopped_does_not_keep_the_image() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4") else { return };
    let ours = Ours::new(image.path(), &[]);
    write_last(&ours);
    let watcher = watcher_of(&server_of(&ours));
    assert!(must("kill", &["-STOP", &watcher]));
    let ran = floe(&["umount", "--timeout", "20", ours.path().to_str().unwrap()]);
    let is_there = Path::new(&format!("/proc/{watcher}")).exists();
    if is_there {
        assert!(must("kill", &["-KILL", &watcher]));
    }
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(!is_there, "the watcher outlives its mount");
    assert_complete(&image, "stopped watcher");
}

/// A mount of a dead server leaves the tree although programs have files of it open.
#[test]
fn a_busy_mount_without_a_server_can_be_detached() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4") else { return };
    let ours = Ours::new(image.path(), &[]);
    write_last(&ours);
    let file = File::open(ours.path().join("kept/last")).unwrap();
    file.sync_all().unwrap();
    super::mount_killed::kill(&ours);
    let place = ours.path().to_str().unwrap();
    let plain = floe(&["umount", place]);
    assert!(plain.code == 8 && plain.err.contains("busy"), "{}: {}", plain.code, plain.err);
    let ran = floe(&["umount", "--force", place]);
    assert!(ran.code == 8 && ran.err.contains("it is detached"), "{}: {}", ran.code, ran.err);
    assert!(ran.err.contains("its server had ended before"), "{}", ran.err);
    assert!(mounted_at(ours.path()).is_none(), "it is still in the tree");
    drop(file);
    assert_complete(&image, "busy");
}

/// Runs the program, but not without end: the exit code is 124 then.
fn limited(arguments: &[&str]) -> (i32, String, Duration) {
    let begin = Instant::now();
    let mut command = Command::new("timeout");
    command.args(["20", env!("CARGO_BIN_EXE_floe")]).args(arguments);
    let ran = command.output().unwrap();
    let text = String::from_utf8(ran.stderr).unwrap();
    (ran.status.code().unwrap_or(-1), text, begin.elapsed())
}

/// Nothing that the kernel asks of a stopped server keeps a command that has a limit.
#[test]
fn an_unmount_with_a_limit_ends_although_the_server_is_stopped() {
    if !can_mount() {
        return;
    }
    let all: [(&[&str], u64); 4] = [
        (&["--timeout", "3"], 3),
        (&["--lazy", "--timeout", "2"], 2),
        (&["--lazy"], 3),
        (&["--force", "--timeout", "2"], 2),
    ];
    let all = transports().iter().flat_map(|transport| all.map(|one| (*transport, one)));
    for (transport, (options, limit)) in all {
        let Some(image) = image("ext4") else { return };
        let ours = Ours::new(image.path(), &["-o", transport]);
        write_last(&ours);
        File::open(ours.path().join("kept/last")).unwrap().sync_all().unwrap();
        let place = ours.path().to_str().unwrap();
        let process = server_of(&ours);
        assert!(must("kill", &["-STOP", &process]));
        let (code, text, took) = limited(&[&["umount"], options, &[place]].concat());
        let is_there = mounted_at(ours.path()).is_some();
        assert!(must("kill", &["-CONT", &process]));
        assert_eq!(code, 32, "{transport} {options:?}: {text}");
        let wanted = Duration::from_secs(limit)..Duration::from_secs(limit + 3);
        assert!(wanted.contains(&took), "{transport} {options:?}: {took:?}");
        assert!(text.contains(&format!("process {process}")), "{options:?}: {text}");
        assert_eq!(is_there, options == ["--timeout", "3"], "{options:?}: {text}");
        if is_there {
            ours.unmount();
        }
        wait_until_free(&image);
        assert_complete(&image, options[0]);
    }
}

/// A mount may have the number of one that has ended, and whose server is stopped: that process is not named.
#[test]
fn the_server_of_a_mount_that_had_the_same_number_is_not_named() {
    if !can_mount() {
        return;
    }
    let Some((first, second)) = image("ext4").zip(image("ext4")) else { return };
    let stopped = |image: &Image| {
        let ours = Ours::new(image.path(), &[]);
        let server = server_of(&ours);
        assert!(must("kill", &["-STOP", &server]));
        (ours, server)
    };
    let (old, old_server) = stopped(&first);
    let detached = limited(&["umount", "--lazy", old.path().to_str().unwrap()]);
    let (ours, server) = stopped(&second);
    let place = ours.path().to_str().unwrap();
    let (code, text, _) = limited(&["umount", "--lazy", "--timeout", "2", place]);
    assert!(must("kill", &["-CONT", &old_server, &server]));
    assert!(detached.0 == 32 && code == 32, "{detached:?}, {code}: {text}");
    assert!(text.contains(&format!("process {server}")), "{old_server}, {server}: {text}");
    wait_until_free(&first);
    wait_until_free(&second);
}

/// Mounts in the foreground, and is the parent of what the server leaves: so the kernel has no reason to continue a stopped watcher.
const ADOPT: &str = "
import ctypes, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1)
subprocess.Popen(sys.argv[1:])
time.sleep(60)
";

#[test]
fn a_stopped_watcher_of_a_dead_server_ends_with_the_mount() {
    let has_python = Command::new("python3").arg("-V").output().is_ok();
    if !can_mount() || !has_python {
        return;
    }
    let Some(image) = image("ext4") else { return };
    let folder = tool::scratch("floe-adopted-").unwrap();
    let place = folder.path().to_str().unwrap();
    let mut python = Command::new("python3");
    python.args(["-c", ADOPT, env!("CARGO_BIN_EXE_floe"), "mount", "--foreground"]);
    let mut adopting = python.arg(image.path()).arg(place).spawn().unwrap();
    let begin = Instant::now();
    let process = loop {
        let status = floe(&["status", place]).out;
        if let Some(process) = status.lines().find_map(|line| line.strip_prefix("process: ")) {
            break process.to_owned();
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "it is not mounted");
        std::thread::sleep(Duration::from_millis(20));
    };
    let watcher = watcher_of(&process);
    // It has to have its name and its descriptors.
    std::thread::sleep(Duration::from_millis(300));
    let state = || fs::read_to_string(format!("/proc/{watcher}/stat")).unwrap_or_default();
    assert!(must("kill", &["-STOP", &watcher]));
    assert!(must("kill", &["-KILL", &process]));
    std::thread::sleep(Duration::from_millis(300));
    let was_stopped = state().contains(") T");
    let (code, text, _) = limited(&["umount", "--force", place]);
    let is_there = state().contains(") T");
    if is_there {
        assert!(must("kill", &["-KILL", &watcher]));
    }
    adopting.kill().unwrap();
    adopting.wait().unwrap();
    assert!(was_stopped, "the watcher was not stopped");
    assert_eq!(code, 8, "{text}");
    assert!(!is_there, "the watcher outlives its mount");
    wait_until_free(&image);
}
