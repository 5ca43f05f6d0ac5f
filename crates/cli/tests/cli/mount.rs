//! Compares `floe mount` with Linux's own mount of the same image.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use floe_testkit::tree::mounted;
use floe_testkit::{Image, Profile, build, kernel, oracle, tool};
use rustix::fs::{AtFlags, FallocateFlags, SeekFrom, StatxFlags, fallocate, seek, statvfs, statx};
use rustix::process::{Pid, Signal};

use super::{Fsck, disk_with_partition, floe, image, ran};

/// A floe mount, unmounted on drop.
pub(super) struct Ours(tempfile::TempDir);

impl Ours {
    pub(super) fn new(image: &Path, options: &[&str]) -> Self {
        Self::told(image, options).0
    }

    /// The same, with what the mount has said.
    pub(super) fn told(image: &Path, options: &[&str]) -> (Self, String) {
        let folder = tool::scratch("floe-ours-").unwrap();
        let (image, place) = (image.to_str().unwrap(), folder.path().to_str().unwrap());
        let ran = floe(&[&["mount", image, place], options].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        (Self(folder), ran.err)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn unmount(&self) {
        assert_eq!(self.end(), (0, String::new()));
    }

    /// Unmounts what has no server any more, which is told.
    pub(super) fn unmount_dead(&self) {
        let (code, err) = self.end();
        assert!(code == 8 && err.contains("its server had ended before"), "{code}: {err}");
    }

    /// Unmounts; returns the exit code and the messages.
    pub(super) fn end(&self) -> (i32, String) {
        // A program that another test starts has files of this process, and so of the mount, until its
        // exec: the mount is busy for that time.
        let mut ran = floe(&["umount", self.path().to_str().unwrap()]);
        for _ in 0..100 {
            if ran.code == 0 || !ran.err.contains("busy") {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
            ran = floe(&["umount", self.path().to_str().unwrap()]);
        }
        (ran.code, ran.err)
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        // After a failed test; otherwise it is already unmounted.
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}

/// Whether a mount test can run; prints the reason if not.
pub(super) fn can_mount() -> bool {
    let device = fs::metadata("/dev/fuse").is_ok_and(|found| found.file_type().is_char_device());
    if !device || File::options().read(true).write(true).open("/dev/fuse").is_err() {
        eprintln!("skipped: /dev/fuse cannot be opened");
        return false;
    }
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: comparing with the kernel's mount takes root");
        return false;
    }
    !tool::missing()
}

/// Where the kernel says whether it offers rings.
const RINGS: &str = "/sys/module/fuse/parameters/enable_uring";

/// An option for each transport that a mount can have here. Prints what is left out.
pub(super) fn transports() -> &'static [&'static str] {
    if fs::read_to_string(RINGS).is_ok_and(|switch| switch.starts_with('Y')) {
        return &["transport=dev", "transport=ring"];
    }
    eprintln!("skipped with io_uring: {RINGS} is off");
    &["transport=dev"]
}

/// All results of `statx` and SEEK_DATA for the files below a folder, by path.
fn facts(folder: &Path) -> BTreeMap<PathBuf, String> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![PathBuf::new()]);
    found.insert(PathBuf::from("."), fact(folder));
    while let Some(below) = folders.pop() {
        for entry in fs::read_dir(folder.join(&below)).unwrap() {
            let entry = entry.unwrap();
            let path = below.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                folders.push(path.clone());
            }
            found.insert(path.clone(), fact(&folder.join(&path)));
        }
    }
    found
}

fn fact(path: &Path) -> String {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = statx(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted).unwrap();
    let device = (stat.stx_rdev_major, stat.stx_rdev_minor);
    let times = [stat.stx_mtime, stat.stx_ctime, stat.stx_btime].map(|at| (at.tv_sec, at.tv_nsec));
    let born = stat.stx_mask & StatxFlags::BTIME.bits();
    let mut text = format!(
        "{:o} {} links {}:{} {} bytes {} sectors {device:?} {times:?} {born:x} {:x}",
        stat.stx_mode,
        stat.stx_nlink,
        stat.stx_uid,
        stat.stx_gid,
        stat.stx_size,
        stat.stx_blocks,
        (stat.stx_attributes & stat.stx_attributes_mask).bits() & 0x0010_0874,
    );
    if stat.stx_mode & 0o170_000 == 0o100_000 {
        text.push_str(&format!(" data {:?}", data(path)));
    }
    text
}

/// Ranges of data in a file.
fn data(path: &Path) -> Vec<(u64, u64)> {
    let file = File::open(path).unwrap();
    let (mut stretches, mut at) = (Vec::new(), 0);
    while let Ok(from) = seek(&file, SeekFrom::Data(at)) {
        at = seek(&file, SeekFrom::Hole(from)).unwrap();
        stretches.push((from, at));
    }
    stretches
}

/// Ignores the order of attribute names, and access times, which reading changes.
fn assert_same(profile: &str, image: &Image, theirs: kernel::Mounted) {
    let ours = Ours::new(image.path(), &["-o", "ro"]);
    let (our_facts, their_facts) = (facts(ours.path()), facts(theirs.path()));
    assert!(our_facts.len() > 20, "{profile}: {our_facts:?}");
    for (path, fact) in &their_facts {
        assert_eq!(our_facts.get(path), Some(fact), "{profile}: {}", path.display());
    }
    assert_eq!(our_facts.len(), their_facts.len(), "{profile}: names that Linux does not show");
    let (our_tree, their_tree) = (mounted(ours.path()).unwrap(), mounted(theirs.path()).unwrap());
    for (path, node) in &their_tree {
        let path_text = String::from_utf8_lossy(path);
        assert_eq!(our_tree.get(path), Some(node), "{profile}: {path_text}");
    }
    let sizes = |path: &Path| {
        let found = statvfs(path).unwrap();
        (found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)
    };
    assert_eq!(sizes(ours.path()), sizes(theirs.path()), "{profile}: df");
    ours.unmount();
    theirs.unmount().unwrap();
}

#[test]
fn every_profile_shows_the_tree_that_linux_shows() {
    if !can_mount() {
        return;
    }
    if let Err(reason) = kernel::mount_available() {
        eprintln!("skipped: {reason}");
        return;
    }
    let mut compared = 0;
    for &profile in Profile::ALL {
        let image = build::base(profile).unwrap();
        match kernel::Mounted::new(image.path(), "ro,noload") {
            Ok(theirs) => assert_same(profile.name(), &image, theirs),
            Err(reason) => {
                eprintln!("{profile} skipped: Linux refuses it here: {reason:#}");
                continue;
            }
        }
        compared += 1;
    }
    assert!(compared > 20, "{compared} profiles");
}

#[test]
fn a_directory_of_five_thousand_names_is_read_once_each() {
    if !can_mount() {
        return;
    }
    let (folder, image) = (tool::scratch("floe-names-").unwrap(), Image::empty(64 << 20).unwrap());
    fs::create_dir(folder.path().join("many")).unwrap();
    let names: Vec<String> = (0..5000).map(|number| format!("a name of {number}")).collect();
    for name in &names {
        File::create(folder.path().join("many").join(name)).unwrap();
    }
    let source = folder.path().to_str().unwrap();
    build::mke2fs(image.path(), &["-q", "-t", "ext4", "-N", "6000", "-d", source]).unwrap();
    let ours = Ours::new(image.path(), &[]);
    let mut seen: Vec<String> = fs::read_dir(ours.path().join("many"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    seen.sort();
    let mut expected = names;
    expected.sort();
    assert_eq!(seen, expected);
    ours.unmount();
}

#[test]
fn packed_images_and_partitions_mount() {
    if !can_mount() {
        return;
    }
    let Some(plain) = image("ext4") else { return };
    let folder = tool::scratch("floe-packed-").unwrap();
    let disk = folder.path().join("disk");
    fs::write(&disk, disk_with_partition(&plain.to_vec().unwrap())).unwrap();
    let ours = Ours::new(&disk, &["--partition", "1"]);
    assert_eq!(fs::read(ours.path().join("file")).unwrap().len(), 1500);
    ours.unmount();
    let ours = Ours::new(&disk, &["-o", "offset=1M"]);
    assert_eq!(fs::read(ours.path().join("file")).unwrap().len(), 1500);
    ours.unmount();
}

#[test]
fn nothing_is_written_and_the_server_is_gone_after_umount() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4") else { return };
    let before = image.to_vec().unwrap();
    let ours = Ours::new(image.path(), &["-o", "ro"]);
    let place = ours.path().to_str().unwrap().to_owned();
    let refused = fs::write(ours.path().join("new"), b"x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    let status = floe(&["status", &place]);
    assert_eq!(status.code, 0);
    let process = status.out.lines().find_map(|line| line.strip_prefix("process: ")).unwrap();
    // Only a running process has an executable.
    let program = PathBuf::from("/proc").join(process).join("exe");
    assert!(fs::read_link(&program).is_ok());
    // Locked against writers.
    let repair = floe(&["repair", "--yes", image.path().to_str().unwrap()]);
    assert_eq!(repair.code, 8, "{}", repair.err);
    let busy = File::open(ours.path().join("file")).unwrap();
    assert_eq!(floe(&["umount", &place]).code, 8, "it is in use");
    drop(busy);
    ours.unmount();
    assert!(fs::read_link(&program).is_err());
    assert!(image.to_vec().unwrap() == before);
    assert_eq!(floe(&["status", &place]).code, 8);
}

/// Adds a transaction to the log that holds the first block of the root directory: `file` is `life` there.
fn leave_in_journal(image: &Image) {
    let mut debugfs = tool::command("debugfs");
    let debugfs = debugfs.args(["-R", "blocks /"]).arg(image.path());
    let listed = String::from_utf8(debugfs.output().unwrap().stdout).unwrap();
    let block = listed.split_whitespace().next().unwrap();
    let folder = tool::scratch("floe-block-").unwrap();
    let (file, size) = (folder.path().join("block"), Profile::Ext4.block_size());
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    image.read(block.parse::<u64>().unwrap() * size, &mut bytes).unwrap();
    // The block's checksum is then wrong, so the image has none.
    let at = bytes.windows(4).position(|window| window == b"file").unwrap();
    bytes[at..at + 4].copy_from_slice(b"life");
    fs::write(&file, &bytes).unwrap();
    build::debugfs(image, &format!("jo\njw -b {block} {}\njc\n", file.display())).unwrap();
}

/// A replay writes, so it must not come before the judgement.
#[test]
fn the_journal_of_what_may_not_be_written_is_not_replayed_to_the_disk() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4") else { return };
    leave_in_journal(&image);
    let mut debugfs = tool::command("debugfs");
    debugfs.args(["-w", "-R", "feature read-only"]).arg(image.path());
    assert!(tool::run(&debugfs, 60).unwrap().text.contains("read-only"));
    let before = image.to_vec().unwrap();
    let folder = tool::scratch("floe-try-").unwrap();
    let (path, place) = (image.path().to_str().unwrap(), folder.path().to_str().unwrap());
    assert_eq!(floe(&["mount", path, place, "-o", "rw"]).code, 32);
    let ours = Ours::new(image.path(), &[]);
    assert!(ours.path().join("life").exists());
    ours.unmount();
    assert!(image.to_vec().unwrap() == before);
}

#[test]
fn a_dirty_journal_is_replayed_in_memory() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4") else { return };
    leave_in_journal(&image);
    let before = image.to_vec().unwrap();
    let names = |options: &[&str]| {
        let ours = Ours::new(image.path(), options);
        let names: Vec<_> = fs::read_dir(ours.path())
            .unwrap()
            .filter_map(|entry| Some(entry.ok()?.file_name().as_bytes().to_vec()))
            .collect();
        ours.unmount();
        names
    };
    assert!(names(&["-o", "ro"]).contains(&b"life".to_vec()));
    assert!(names(&["-o", "norecovery"]).contains(&b"file".to_vec()));
    assert!(image.to_vec().unwrap() == before, "the replay stays in memory");
}

#[test]
fn mount_calls_us_by_our_links() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4") else { return };
    let folder = tool::scratch("floe-link-").unwrap();
    let place = folder.path().to_str().unwrap();
    let link = Fsck::new("mount.fuse.floe");
    let run = |options: &[&str]| {
        let mut command = Command::new(link.path());
        ran(&command.arg(image.path()).arg(place).args(options).output().unwrap())
    };
    assert_eq!(run(&["-o", "rw,colour=blue"]).code, 32);
    assert_eq!(run(&["-f", "-o", "ro"]).code, 0, "a fake mount");
    assert_eq!(floe(&["status", place]).code, 8);
    let mounted = run(&["-n", "-s", "-o", "ro,nofail,x-systemd.automount,colour=blue"]);
    assert_eq!((mounted.code, mounted.err.as_str()), (0, ""));
    assert_eq!(fs::metadata(folder.path().join("file")).unwrap().size(), 1500);
    // As umount(8) calls it, which then waits as `floe umount` does: the image has no other user.
    let link = Fsck::new("umount.fuse.floe");
    let output = Command::new(link.path()).args([place, "-n", "-t", "fuse.floe"]).output().unwrap();
    let unmounted = ran(&output);
    assert_eq!((unmounted.code, unmounted.err.as_str()), (0, ""));
    assert_eq!(floe(&["status", place]).code, 8);
}

/// A service of systemd with `Type=notify`.
#[test]
fn systemd_is_told_when_the_mount_serves_and_when_it_ends() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4") else { return };
    let folder = tool::scratch("floe-notify-").unwrap();
    let (socket_path, place) = (folder.path().join("socket"), folder.path().join("mnt"));
    fs::create_dir(&place).unwrap();
    let socket = UnixDatagram::bind(&socket_path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.args(["mount", "-f"]).arg(image.path()).arg(&place).env("NOTIFY_SOCKET", &socket_path);
    let mut server = command.spawn().unwrap();
    let told = || {
        let mut bytes = [0; 200];
        let len = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    let first = told();
    assert!(first.starts_with(&format!("READY=1\nMAINPID={}\n", server.id())), "{first}");
    assert!(place.join("file").exists());
    rustix::process::kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert!(told().starts_with("STOPPING=1\n"));
    assert!(server.wait().unwrap().success());
}

#[test]
fn a_signal_asks_for_the_status_and_a_lock_file_stays_as_long_as_the_server() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4") else { return };
    let folder = tool::scratch("floe-usr1-").unwrap();
    let (place, lock) = (folder.path().join("mnt"), folder.path().join("lock"));
    fs::create_dir(&place).unwrap();
    let options = format!("transport=dev,lockfile={}", lock.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.args(["mount", "-f", "-o", &options]).arg(image.path()).arg(&place);
    let mut server = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let path = place.to_str().unwrap();
    while floe(&["status", path]).code != 0 {
        std::thread::sleep(Duration::from_millis(20));
        assert!(server.try_wait().unwrap().is_none(), "the server ended");
    }
    assert!(lock.exists());
    let refused = floe(&["mount", image.path().to_str().unwrap(), path, "-o", &options]);
    assert_eq!(refused.code, 32, "{}", refused.err);
    rustix::process::kill_process(Pid::from_child(&server), Signal::USR1).unwrap();
    let mut said = BufReader::new(server.stderr.take().unwrap()).lines();
    let line = said.find(|line| line.as_ref().unwrap().contains("transport: /dev/fuse"));
    assert!(line.unwrap().unwrap().contains("faults_total - 0"));
    assert_eq!(floe(&["umount", path]).code, 0);
    assert!(server.wait().unwrap().success());
    assert!(!lock.exists());
}

/// Changes of every kind, below a folder of the mount.
fn change_everything(top: &Path) {
    let folder = top.join("changed");
    fs::create_dir(&folder).unwrap();
    for number in 0..60 {
        let name = folder.join(format!("a file with a name that is long enough, number {number}"));
        fs::write(&name, vec![b'x'; number * 37]).unwrap();
    }
    let big = folder.join("big");
    let file = File::options().read(true).write(true).create_new(true).open(&big).unwrap();
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
    file.write_all_at(&bytes, 0).unwrap();
    file.write_all_at(b"behind a hole", 900_000).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(b"over", 1000).unwrap();
    file.set_len(800_000).unwrap();
    let mut back = vec![0; 300_000];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back[..1000] == bytes[..1000] && &back[1000..1004] == b"over");
    fs::hard_link(&big, folder.join("second name")).unwrap();
    symlink("big", folder.join("fast")).unwrap();
    symlink("x".repeat(200), folder.join("slow")).unwrap();
    fs::set_permissions(&big, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&big, Some(1000), Some(100)).unwrap();
    // Files without extents cannot reserve blocks: on Linux neither.
    let _ = fallocate(&file, FallocateFlags::KEEP_SIZE, 800_000, 100_000);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 100_000, 50_000).unwrap();
    let mut punched = [1; 50_000];
    file.read_exact_at(&mut punched, 100_000).unwrap();
    assert!(punched.iter().all(|byte| *byte == 0));
    fs::create_dir(folder.join("inner")).unwrap();
    fs::rename(folder.join("inner"), top.join("moved")).unwrap();
    fs::rename(folder.join("fast"), top.join("moved/fast")).unwrap();
    fs::write(folder.join("victim"), b"victim").unwrap();
    let victim = File::open(folder.join("victim")).unwrap();
    fs::rename(folder.join("second name"), folder.join("victim")).unwrap();
    let mut kept = [0; 6];
    victim.read_exact_at(&mut kept, 0).unwrap();
    assert_eq!(&kept, b"victim", "it stays while it is open");
    fs::remove_dir_all(top.join("dir")).unwrap();
    // Its index stays when its names are gone.
    fs::remove_dir_all(top.join("big")).unwrap();
    fs::remove_file(top.join("fragmented")).unwrap();
}

/// Profiles that cannot be written say why and are mounted read-only; all others are changed, and e2fsck and Linux agree
/// with the result.
#[test]
fn linux_and_e2fsck_see_the_changes_of_every_profile() {
    if !can_mount() || kernel::mount_available().is_err() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let mut changed = 0;
    for &profile in Profile::ALL {
        let image = build::base(profile).unwrap();
        let (path, refused) = (image.path().to_str().unwrap(), "cannot be mounted read-write");
        let folder = tool::scratch("floe-try-").unwrap();
        let tried = floe(&["mount", path, folder.path().to_str().unwrap(), "-o", "rw"]);
        if tried.code == 32 {
            assert!(tried.err.contains(refused), "{profile}: {}", tried.err);
            continue;
        }
        let ours = Ours(folder);
        assert_eq!((tried.code, tried.err.as_str()), (0, ""), "{profile}");
        change_everything(ours.path());
        let tree = mounted(ours.path()).unwrap();
        ours.unmount();
        let verdict = oracle::e2fsck(&image).unwrap();
        assert!(verdict.clean(), "{profile}: {verdict:?}");
        let theirs = match kernel::Mounted::new(image.path(), "ro") {
            Ok(theirs) => theirs,
            Err(reason) => {
                eprintln!("{profile} not compared: Linux refuses it here: {reason:#}");
                continue;
            }
        };
        let their_tree = mounted(theirs.path()).unwrap();
        for (path, node) in &their_tree {
            assert_eq!(tree.get(path), Some(node), "{profile}: {}", String::from_utf8_lossy(path));
        }
        assert_eq!(tree.len(), their_tree.len(), "{profile}");
        theirs.unmount().unwrap();
        changed += 1;
    }
    assert!(changed > 20, "{changed} profiles were changed");
}

/// The server is killed: Linux replays its journal, and what fsync acknowledged is there.
#[test]
fn linux_recovers_what_a_killed_server_leaves() {
    if !can_mount() || kernel::mount_available().is_err() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let Some(image) = image("ext4") else { return };
    let ours = Ours::new(image.path(), &[]);
    let folder = ours.path().join("kept");
    fs::create_dir(&folder).unwrap();
    let file = File::create(folder.join("file")).unwrap();
    file.write_all_at(b"acknowledged", 0).unwrap();
    file.sync_all().unwrap();
    fs::write(folder.join("later"), b"perhaps").unwrap();
    let status = floe(&["status", ours.path().to_str().unwrap()]).out;
    let process = status.lines().find_map(|line| line.strip_prefix("process: ")).unwrap();
    drop(file);
    let killed = Command::new("kill").args(["-9", process]).status().unwrap();
    assert!(killed.success());
    // The mount of a dead server is named, and taken away.
    let ran = floe(&["mount", image.path().to_str().unwrap(), ours.path().to_str().unwrap()]);
    assert!(
        ran.code == 32 && ran.err.contains("whose server is gone"),
        "{}: {}",
        ran.code,
        ran.err
    );
    ours.unmount_dead();
    let theirs = kernel::Mounted::new(image.path(), "").unwrap();
    assert_eq!(fs::read(theirs.path().join("kept/file")).unwrap(), b"acknowledged");
    theirs.unmount().unwrap();
    assert!(oracle::e2fsck(&image).unwrap().clean());
}

/// The next check must not skip what was damaged before the mount, which checks nothing.
#[test]
fn what_was_not_clean_before_the_mount_is_not_clean_after_it() {
    if !can_mount() {
        return;
    }
    for (profile, state) in
        [(Profile::Ext2K1, 1), (Profile::Ext2K1, 0), (Profile::Ext4, 1), (Profile::Ext4, 0)]
    {
        let image = build::base(profile).unwrap();
        build::debugfs(&image, &format!("ssv state {state}\n")).unwrap();
        let folder = tool::scratch("floe-try-").unwrap();
        let mounted =
            floe(&["mount", image.path().to_str().unwrap(), folder.path().to_str().unwrap()]);
        let ours = Ours(folder);
        assert_eq!(mounted.code, 0, "{}", mounted.err);
        assert_eq!(mounted.err.contains("not unmounted cleanly"), state == 0, "{}", mounted.err);
        fs::write(ours.path().join("new"), b"").unwrap();
        ours.unmount();
        let bytes = image.to_vec().unwrap();
        // `s_state`: bit 0 says that it is clean.
        assert_eq!(
            u16::from_le_bytes([bytes[1024 + 58], bytes[1024 + 59]]) & 1,
            state,
            "{profile}"
        );
    }
}

#[test]
fn what_could_answer_nobody_is_not_mounted() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4") else { return };
    let path = image.path().to_str().unwrap();
    let folder = tool::scratch("floe-try-").unwrap();
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    let ran = floe(&["mount", path, file.to_str().unwrap()]);
    assert_eq!(ran.code, 32, "{}", ran.err);
    assert!(ran.err.contains("is not a directory"), "{}", ran.err);
    build::debugfs(&image, "clri <2>\n").unwrap();
    let ran = floe(&["mount", path, folder.path().to_str().unwrap()]);
    assert_eq!(ran.code, 32, "{}", ran.err);
    assert!(ran.err.contains("root"), "{}", ran.err);
}

/// The server cannot tell an unmount that it failed, so `floe umount` asks before.
#[test]
fn umount_says_that_the_last_changes_are_lost() {
    if !can_mount() {
        return;
    }
    let full = tool::scratch("floe-full-").unwrap();
    let mut command = Command::new("mount");
    command.args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"]).arg(full.path());
    if !command.status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: no tmpfs can be mounted");
        return;
    }
    let image = full.path().join("image");
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let mut make = tool::command("mke2fs");
    make.args(["-q", "-F", "-t", "ext4", "-b", "1024", "-J", "size=1", "-E", "nodiscard"]);
    tool::run(make.arg(&image), 60).unwrap().expect("mke2fs", &[0]).unwrap();
    let folder = tool::scratch("floe-try-").unwrap();
    let (path, place) = (image.to_str().unwrap(), folder.path().to_str().unwrap());
    let mounted = floe(&["mount", path, place, "-o", "commit=600"]);
    assert_eq!(mounted.code, 0, "{}", mounted.err);
    // Nothing is left for the blocks of the log, which are holes of the image.
    let _ = fs::write(full.path().join("fill"), vec![1; 8 << 20]);
    for at in 0..200 {
        let _ = fs::create_dir(folder.path().join(format!("dir {at}")));
    }
    let ran = floe(&["umount", place]);
    let _ = Command::new("umount").arg("-l").arg(full.path()).status();
    assert_eq!(ran.code, 8, "{}", ran.err);
    assert!(ran.err.contains("could not be written"), "{}", ran.err);
}

/// The kernel says who asks with every request, not only with those that create something.
#[test]
fn root_sees_its_attributes_and_has_the_reserved_blocks() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4") else { return };
    // So that each write says what it meets, and on whose behalf it came.
    let ours = Ours::new(image.path(), &["-o", "nowriteback_cache"]);
    let file = ours.path().join("file");
    fs::write(&file, b"").unwrap();
    let mut set = Command::new("setfattr");
    set.args(["-n", "trusted.key", "-v", "value"]).arg(&file);
    match set.status() {
        Ok(status) => {
            assert!(status.success());
            let mut names = [0; 100];
            let len = rustix::fs::listxattr(&file, &mut names).unwrap();
            assert_eq!(&names[..len], b"trusted.key\0");
        }
        Err(error) => eprintln!("no setfattr, so attributes are not tried: {error}"),
    }
    let available = statvfs(ours.path()).unwrap();
    assert!(available.f_bfree > available.f_bavail, "some blocks are reserved");
    let mut whole = File::create(ours.path().join("all")).unwrap();
    while whole.write_all(&[1; 4096]).is_ok() {}
    drop(whole);
    let left = statvfs(ours.path()).unwrap().f_bfree;
    assert!(left < available.f_bfree - available.f_bavail, "{left} blocks are left");
    ours.unmount();
    assert!(oracle::e2fsck(&image).unwrap().clean());
}

#[test]
fn a_mount_counts_what_it_does() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4") else { return };
    let ours = Ours::new(image.path(), &[]);
    let mut file = File::create(ours.path().join("counted")).unwrap();
    file.write_all(&[7; 5000]).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let place = ours.path().to_str().unwrap();
    let shown = floe(&["status", "--prometheus", place]).out;
    for (name, count) in [("written_bytes_total", 5000), ("faults_total", 0), ("read_only", 0)] {
        let line = format!("floe_mount_{name}{{mount=\"{place}\"}} {count}");
        assert!(shown.lines().any(|found| found == line), "{shown}");
    }
    let fsync = format!("floe_mount_requests_total{{mount=\"{place}\",operation=\"fsync\"}} 1");
    assert!(shown.lines().any(|found| found == fsync), "{shown}");
    ours.unmount();
}

/// The time of access of what is read is stored, and no other time changes. Linux shows the same after the unmount.
#[test]
fn times_of_access_reach_the_disk() {
    if !can_mount() {
        return;
    }
    for options in ["relatime", "strictatime,nodelalloc", "noatime", "relatime,nodiratime"] {
        let image = Image::empty(16 << 20).unwrap();
        build::mke2fs(image.path(), &["-q", "-t", "ext4"]).unwrap();
        let ours = Ours::new(image.path(), &[]);
        let top = ours.path();
        fs::write(top.join("file"), b"content").unwrap();
        fs::create_dir(top.join("folder")).unwrap();
        symlink("file", top.join("link")).unwrap();
        ours.unmount();
        let ours = Ours::new(image.path(), &["-o", options]);
        let names = ["file", "folder", "link"];
        let shown = |top: &Path| {
            names.map(|name| {
                let meta = fs::symlink_metadata(top.join(name)).unwrap();
                let nanoseconds = |seconds, rest| seconds * 1_000_000_000 + rest;
                let change = nanoseconds(meta.ctime(), meta.ctime_nsec());
                let modified = nanoseconds(meta.mtime(), meta.mtime_nsec());
                (nanoseconds(meta.atime(), meta.atime_nsec()), modified, change)
            })
        };
        let before = shown(ours.path());
        std::thread::sleep(Duration::from_millis(20));
        fs::read(ours.path().join("file")).unwrap();
        fs::read_dir(ours.path().join("folder")).unwrap().for_each(drop);
        fs::read_link(ours.path().join("link")).unwrap();
        let after = shown(ours.path());
        for ((name, before), after) in names.iter().zip(before).zip(after) {
            let kept =
                options.contains("noatime") || options.contains("nodiratime") && *name == "folder";
            assert_eq!(after.0 > before.0, !kept, "{options}: {name}");
            assert_eq!((after.1, after.2), (before.1, before.2), "{options}: {name}");
        }
        ours.unmount();
        assert!(oracle::e2fsck(&image).unwrap().clean(), "{options}");
        if kernel::mount_available().is_ok() {
            let theirs = kernel::Mounted::new(image.path(), "ro").unwrap();
            let seen = shown(theirs.path());
            theirs.unmount().unwrap();
            assert_eq!(seen, after, "{options}");
        }
    }
}

/// The kernel keeps the times of files that are written, and tells the server nothing where a write falls into the tick of the
/// creation; the content comes later. The disk has what programs saw.
#[test]
fn times_of_what_was_written_stay_when_the_kernel_forgets_them() {
    if !can_mount() {
        return;
    }
    for options in ["rw", "nodelalloc", "nowriteback_cache", "open=fast"] {
        let image = Image::empty(16 << 20).unwrap();
        build::mke2fs(image.path(), &["-q", "-t", "ext4"]).unwrap();
        let ours = Ours::new(image.path(), &["-o", options]);
        let names: Vec<String> = (0..12).map(|number| format!("file {number}")).collect();
        for (number, name) in names.iter().enumerate() {
            let path = ours.path().join(name);
            let file = File::create(&path).unwrap();
            match number % 3 {
                0 => fallocate(&file, FallocateFlags::empty(), 0, 9000).unwrap(),
                _ => file.write_all_at(&[7; 5000], 0).unwrap(),
            }
            // A tick or more.
            std::thread::sleep(Duration::from_millis(12));
            if number % 3 == 2 {
                file.sync_all().unwrap();
                file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
            }
        }
        let shown = |top: &Path| -> Vec<_> {
            let times = |name: &String| {
                let meta = fs::metadata(top.join(name)).unwrap();
                ((meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec()))
            };
            names.iter().map(times).collect()
        };
        let before = shown(ours.path());
        ours.unmount();
        let ours = Ours::new(image.path(), &["-o", "ro"]);
        assert_eq!(shown(ours.path()), before, "{options}");
        ours.unmount();
        assert!(oracle::e2fsck(&image).unwrap().clean(), "{options}");
    }
}

/// Mounts a mount again with ids from 0 on as 100000 and so on, says who owns a file there, and makes another one.
const MAP_IDS: &str = "
import ctypes, os, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    got = libc.syscall(number, *args)
    if got < 0:
        sys.exit(f'refused: {ctypes.get_errno()}')
    return got
top, place = sys.argv[1:]
user = subprocess.Popen(['unshare', '-U', 'sleep', '60'])
while os.readlink(f'/proc/{user.pid}/ns/user') == os.readlink('/proc/self/ns/user'):
    time.sleep(0.01)
for kind in ('uid', 'gid'):
    open(f'/proc/{user.pid}/{kind}_map', 'w').write('0 100000 1000')
space = os.open(f'/proc/{user.pid}/ns/user', os.O_RDONLY)
user.kill()
tree = call(428, -100, top.encode(), 1 | os.O_CLOEXEC)
call(442, tree, b'', 0x1000, (ctypes.c_uint64 * 4)(0x100000, 0, 0, space), 32)
call(429, tree, b'', -100, place.encode(), 4)
print(os.stat(place + '/kept').st_uid, flush=True)
os.setegid(100006), os.seteuid(100005)
open(place + '/folder/new', 'w').write('content')
os.seteuid(0)
os.chown(place + '/folder/new', 100007, 100008)
os.chdir('/')
libc.umount2(place.encode(), 2)
";

#[test]
fn ids_are_mapped_where_that_was_asked_for() {
    if !can_mount() {
        return;
    }
    let version = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = version.split('.').filter_map(|part| part.parse::<u32>().ok());
    let is_new = (numbers.next(), numbers.next()) >= (Some(6), Some(12));
    let there = |tool| Path::new(&tool::locate(tool)).exists();
    if !is_new || !there("python3") || !there("unshare") {
        eprintln!("skipped: mapping ids takes Linux 6.12, python3 and unshare");
        return;
    }
    for (options, maps) in [("idmap", true), ("rw", false)] {
        let image = Image::empty(16 << 20).unwrap();
        build::mke2fs(image.path(), &["-q", "-t", "ext4"]).unwrap();
        let ours = Ours::new(image.path(), &["-o", options]);
        fs::write(ours.path().join("kept"), b"content").unwrap();
        let folder = ours.path().join("folder");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let place = tool::scratch("floe-mapped-").unwrap();
        let mut python = Command::new("python3");
        let out = python.args(["-c", MAP_IDS]).args([ours.path(), place.path()]).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.success(), maps, "{options}: {said}");
        if maps {
            assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "100000");
            let meta = folder.join("new").metadata().unwrap();
            assert_eq!((meta.uid(), meta.gid(), meta.len()), (7, 8, 7));
        } else {
            assert!(said.contains("refused: 22"), "{said}");
        }
        ours.unmount();
        assert!(oracle::e2fsck(&image).unwrap().clean(), "{options}");
    }
}

/// Where there is no file system, nothing is said of how it would be mounted.
#[test]
fn something_that_is_no_file_system_is_refused_in_one_message() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), vec![7; 3 << 20]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ran = floe(&["mount", file.path().to_str().unwrap(), folder.path().to_str().unwrap()]);
    assert_eq!(ran.code, 32, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("superblock") && !ran.err.contains("mounting"), "{}", ran.err);
    let place = folder.path().to_str().unwrap();
    let ran = floe(&["mount", "-o", "rw", file.path().to_str().unwrap(), place]);
    assert_eq!(ran.code, 32, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("no ext2, ext3 or ext4 file system was found"), "{}", ran.err);
}
