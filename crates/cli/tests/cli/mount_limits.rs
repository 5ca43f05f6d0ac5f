//! `floe mount` where something runs out or breaks: space, inodes, names, links, metadata.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt as _, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use floe_format::ext::quota::QuotaKind;
use floe_testkit::quota::set_limits;
use floe_testkit::recipe::{Recipe, inode, superblock};
use floe_testkit::{Image, build, kernel, oracle, tool};
use rustix::io::Errno;

use super::floe;
use super::loop_device::Loop;
use super::mount::{Ours, can_mount};

/// The number of a failure.
fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<Errno> {
    Errno::from_io_error(&result.unwrap_err())
}

fn made(size_bytes: u64, options: &[&str]) -> Image {
    let image = Image::empty(size_bytes).unwrap();
    build::mke2fs(image.path(), &[&["-q", "-t", "ext4"], options].concat()).unwrap();
    image
}

/// Writes until nothing fits, and returns the number of bytes.
fn fill(path: &Path) -> u64 {
    let mut file = File::create(path).unwrap();
    let mut bytes = 0;
    loop {
        match file.write(&[b'x'; 65536]) {
            Ok(len) => bytes += len as u64,
            Err(error) => {
                assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSPC));
                return bytes;
            }
        }
    }
}

#[test]
fn a_full_disk_has_its_space_again_when_files_go() {
    if !can_mount() {
        return;
    }
    let image = made(24 << 20, &["-m", "0"]);
    // So that each write says what it meets.
    let ours = Ours::new(image.path(), &["-o", "nowriteback_cache"]);
    let top = ours.path();
    let first = fill(&top.join("a"));
    assert!(first > 15 << 20, "{first} bytes");
    fs::remove_file(top.join("a")).unwrap();
    assert_eq!(fill(&top.join("b")), first);
    File::options().write(true).open(top.join("b")).unwrap().set_len(100).unwrap();
    // A file of 100 bytes has one block.
    assert!(fill(&top.join("c")) + 65536 > first);
    ours.unmount();
    assert!(oracle::e2fsck(&image).unwrap().clean());
}

/// Data that the kernel keeps are refused when it writes them back: whoever closes, syncs or goes on writing is told.
#[test]
fn a_full_disk_is_told_to_writers_of_the_kernels_cache() {
    if !can_mount() {
        return;
    }
    let image = made(24 << 20, &["-m", "0"]);
    let ours = Ours::new(image.path(), &[]);
    let [mut a, mut file] = ["a", "b"].map(|name| File::create(ours.path().join(name)).unwrap());
    a.write_all(&vec![1; 1 << 20]).unwrap();
    a.sync_all().unwrap();
    a.write_all(&vec![2; 40 << 20]).unwrap();
    assert_eq!(errno(a.sync_all()), Some(Errno::NOSPC));
    drop(a);
    let piece = vec![3; 1 << 20];
    // Far more than the kernel keeps for a file system of this kind.
    let ended = (0..8192).find_map(|_| file.write_all(&piece).err());
    assert_eq!(ended.and_then(|error| Errno::from_io_error(&error)), Some(Errno::NOSPC));
    drop(file);
    assert_eq!(fs::read(ours.path().join("a")).unwrap()[..1 << 20], vec![1; 1 << 20]);
    // The kernel still knows that it dropped what it could not write; so do the programs.
    ours.unmount();
    assert!(oracle::e2fsck(&image).unwrap().clean());
}

/// The kernel keeps a hundredth of the memory for a mount, if nobody says otherwise: more than a small disk has, perhaps.
#[test]
fn a_small_disk_is_told_to_be_full_soon_after_it_is() {
    if !can_mount() {
        return;
    }
    let limits = |one: fs::DirEntry| one.path().join("max_bytes").exists();
    if !fs::read_dir("/sys/class/bdi").is_ok_and(|all| all.flatten().any(limits)) {
        eprintln!("skipped: Linux takes a limit in bytes from 6.2 on");
        return;
    }
    let image = made(64 << 20, &["-m", "0"]);
    let ours = Ours::new(image.path(), &[]);
    let path = ours.path().join("all");
    // On a busy machine the server may look later than after two of its turns.
    let is_told = (0..10).any(|_| {
        std::thread::sleep(Duration::from_millis(300));
        let free = rustix::fs::statvfs(ours.path()).unwrap();
        let accepted = fill(&path);
        fs::remove_file(&path).unwrap();
        accepted < free.f_bavail * free.f_frsize + (16 << 20)
    });
    assert!(is_told, "far more is accepted than there is room for");
    ours.unmount();
    assert!(oracle::e2fsck(&image).unwrap().clean());
}

/// Whoever unmounts an image that nobody can reach any more learns that.
#[test]
fn an_image_that_is_deleted_while_mounted_is_told() {
    if !can_mount() {
        return;
    }
    let image = made(24 << 20, &[]);
    let ours = Ours::new(image.path(), &[]);
    fs::write(ours.path().join("file"), "lost").unwrap();
    fs::remove_file(image.path()).unwrap();
    let ran = floe(&["umount", ours.path().to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("its image was deleted while it was mounted"), "{}", ran.err);
}

/// The same for one that was cut off, whether or not something was to be written.
#[test]
fn an_image_that_is_cut_off_while_mounted_is_told() {
    if !can_mount() {
        return;
    }
    for writes in [false, true] {
        let image = made(24 << 20, &[]);
        let ours = Ours::new(image.path(), &[]);
        let file = File::options().write(true).open(image.path()).unwrap();
        file.set_len(20 << 20).unwrap();
        if writes {
            let lost = File::create(ours.path().join("file")).unwrap();
            lost.write_all_at(b"lost", 0).unwrap();
            assert!(lost.sync_all().is_err());
        }
        let ran = floe(&["umount", ours.path().to_str().unwrap()]);
        assert_eq!(ran.code, 8, "{}", ran.err);
        assert!(ran.err.contains("its image was cut off while it was mounted"), "{}", ran.err);
    }
}

/// Linux mounts no file system that is longer than its device, and so nothing is written to one here; its files can be rescued.
#[test]
fn an_image_shorter_than_its_file_system_is_only_read() {
    if !can_mount() {
        return;
    }
    let native = Image::empty(0).unwrap();
    let path = native.path().to_str().unwrap();
    let words = "mkfs -q -F -t native -E lot_size=16m --cube /c1";
    assert_eq!(floe(&words.split(' ').chain([path, "128m"]).collect::<Vec<_>>()).code, 0);
    for (image, bytes) in [(made(64 << 20, &[]), 40 << 20), (native, 100 << 20)] {
        let ours = Ours::new(image.path(), &[]);
        fs::write(ours.path().join("file"), "kept").unwrap();
        ours.unmount();
        File::options().write(true).open(image.path()).unwrap().set_len(bytes).unwrap();
        let before = fs::read(image.path()).unwrap();
        let place = tempfile::tempdir().unwrap();
        let (path, folder) = (image.path().to_str().unwrap(), place.path().to_str().unwrap());
        let refused = floe(&["mount", "-o", "rw", path, folder]);
        assert_eq!(refused.code, 32, "{}", refused.err);
        assert!(refused.err.contains("cannot be mounted read-write"), "{}", refused.err);
        let mounted = floe(&["mount", path, folder]);
        assert_eq!(mounted.code, 0, "{}", mounted.err);
        // Descriptors may lead behind the end, which is told, too.
        let first = mounted.err.lines().next().unwrap_or_default();
        assert!(first.contains("mounting read-only: the device ends"), "{}", mounted.err);
        let file = place.path().join("file");
        assert_eq!(fs::read(&file).unwrap(), b"kept");
        assert!(fs::write(&file, "new").is_err());
        assert_eq!(floe(&["umount", folder]).code, 0);
        assert!(fs::read(image.path()).unwrap() == before, "it was written");
    }
}

/// A shell looks at nothing but write: what does not fit is refused there, and what it was told is what is there.
#[test]
fn a_full_disk_refuses_what_shells_write() {
    if !can_mount() {
        return;
    }
    let image = made(24 << 20, &["-m", "0"]);
    let ours = Ours::new(image.path(), &[]);
    let path = |name: &str| ours.path().join(name);
    fs::write(path("kept"), [1; 5000]).unwrap();
    let before = fs::metadata(path("kept")).unwrap().modified().unwrap();
    copied_by_root(&path("large"));
    // Room that directories and maps had reserved.
    (0..).find(|at| fs::write(path(&format!("small{at}")), [2; 4096]).is_err()).unwrap();
    let shell = |script: &str| {
        let status = Command::new("sh").current_dir(ours.path()).args(["-c", script]).status();
        status.unwrap().success()
    };
    let script =
        "i=0; while [ $i -lt 200 ]; do echo a line of something important; i=$((i+1)); done";
    assert!(!shell(&format!("({script}) > new 2>/dev/null || exit 1; test $(wc -l < new) = 200")));
    assert!(!shell("printf %9000s x >> kept"), "it was told that 9,000 bytes are there");
    // In place there is room.
    let file = File::options().write(true).open(path("kept")).unwrap();
    file.write_all_at(&[3; 10], 20).unwrap();
    let seen: Vec<Vec<u8>> = ["kept", "new"].map(|name| fs::read(path(name)).unwrap()).into();
    assert_eq!(seen[0][..40], [[1; 20].as_slice(), &[3; 10], &[1; 10]].concat());
    drop(file);
    fs::remove_file(path("large")).unwrap();
    assert!(shell("printf %9000s x > later"));
    ours.unmount();
    assert!(oracle::e2fsck(&image).unwrap().clean());
    let ours = Ours::new(image.path(), &[]);
    for (name, seen) in ["kept", "new"].iter().zip(seen) {
        assert!(fs::read(ours.path().join(name)).unwrap() == seen, "{name}");
    }
    assert_eq!(fs::read(ours.path().join("later")).unwrap().len(), 9000);
    assert!(fs::metadata(ours.path().join("kept")).unwrap().modified().unwrap() > before);
    ours.unmount();
}

/// A server that gets no memory would end, and lose what is not durable.
#[test]
fn a_limit_of_the_address_space_is_told_before_the_mount() {
    if !can_mount() {
        return;
    }
    let image = made(24 << 20, &[]);
    let folder = tool::scratch("floe-limited-").unwrap();
    let place = folder.path().to_str().unwrap();
    let mount = |options: &str| {
        let mut shell = Command::new("sh");
        let script = "ulimit -v 300000; exec \"$0\" mount -o \"$1\" \"$2\" \"$3\"";
        shell.args(["-c", script, env!("CARGO_BIN_EXE_floe"), options]).arg(image.path());
        super::ran(&shell.arg(place).output().unwrap())
    };
    let refused = mount("threads=4");
    assert_eq!(refused.code, 32, "{}", refused.err);
    assert!(refused.err.contains("limited to 292 MiB (`ulimit -v`)"), "{}", refused.err);
    assert!(refused.err.contains("as `memory=` is not given"), "{}", refused.err);
    assert!(refused.err.contains("or give `-o memory=156M`"), "{}", refused.err);
    let mounted = mount("threads=4,memory=32M");
    assert_eq!(mounted.code, 0, "{}", mounted.err);
    for at in 0..40 {
        fs::write(folder.path().join(at.to_string()), vec![b'x'; 400_000]).unwrap();
    }
    assert_eq!(floe(&["umount", place]).code, 0);
    assert!(oracle::e2fsck(&image).unwrap().clean());
}

/// Whether the server can have the kernel forget a file.
fn kernel_forgets() -> bool {
    let version = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = version.split('.').filter_map(|part| part.parse::<u32>().ok());
    let forgets = (numbers.next(), numbers.next()) >= (Some(6), Some(18));
    if !forgets {
        eprintln!("skipped: Linux takes FUSE_NOTIFY_PRUNE from 6.18 on");
    }
    forgets
}

/// Whether something becomes true within five seconds.
fn soon(is_true: impl Fn() -> bool) -> bool {
    (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        is_true()
    })
}

/// The kernel shows a file as programs wrote it, even if it could not be written, until it forgets the file.
#[test]
fn a_file_that_was_refused_in_part_soon_looks_as_it_is() {
    if !can_mount() {
        return;
    }
    if !kernel_forgets() {
        return;
    }
    let image = made(24 << 20, &["-m", "0"]);
    let ours = Ours::new(image.path(), &[]);
    let path = |name: &str| ours.path().join(name);
    let [full, far] = ["full", "far"].map(|name| File::create(path(name)).unwrap());
    full.write_all_at(&vec![1; 40 << 20], 0).unwrap();
    assert_eq!(errno(full.sync_all()), Some(Errno::NOSPC));
    // Behind the largest size of a file.
    far.write_all_at(b"x", 17 << 40).unwrap();
    assert_eq!(errno(far.sync_all()), Some(Errno::FBIG));
    let len = |name: &str| fs::metadata(path(name)).unwrap().len();
    assert_eq!((len("full"), len("far")), (40 << 20, (17 << 40) + 1), "the writers have them open");
    drop((full, far));
    let is_true = || len("full") < 24 << 20 && len("far") == 0;
    assert!(soon(is_true));
    let seen = fs::read(path("full")).unwrap();
    ours.unmount();
    assert!(oracle::e2fsck(&image).unwrap().clean());
    let ours = Ours::new(image.path(), &[]);
    assert!(fs::read(ours.path().join("full")).unwrap() == seen);
    ours.unmount();
}

/// The kernel sends what lies side by side as one write: the part that a file can have is kept.
#[test]
fn what_lies_before_the_largest_size_is_kept_beside_what_lies_behind_it() {
    if !can_mount() {
        return;
    }
    let image = made(64 << 20, &["-b", "4096"]);
    let most = ((1_u64 << 32) - 1) * 4096;
    for (options, crossing) in [("rw", 100), ("nowriteback_cache", 1)] {
        let ours = Ours::new(image.path(), &["-o", options]);
        let path = ours.path().join("file");
        let file = File::create(&path).unwrap();
        file.write_all_at(&[7; 100], most - 4096).unwrap();
        assert_eq!(file.write_at(&[8; 100], most - 1).unwrap(), crossing, "{options}");
        assert_eq!(file.sync_all().is_err(), options == "rw", "{options}");
        drop(file);
        ours.unmount();
        let ours = Ours::new(image.path(), &[]);
        let file = File::open(ours.path().join("file")).unwrap();
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, most - 4096).unwrap();
        assert!(bytes[..100] == [7; 100] && bytes[4095] == 8, "{options}");
        drop(file);
        fs::remove_file(ours.path().join("file")).unwrap();
        ours.unmount();
    }
    assert!(oracle::e2fsck(&image).unwrap().clean());
}

/// Whoever reads a file while others write to it, and goes on when those were refused, sees what is there.
#[test]
fn readers_of_a_file_that_was_refused_in_part_see_what_is_there() {
    if !can_mount() || !kernel_forgets() {
        return;
    }
    let image = made(24 << 20, &["-m", "0"]);
    let ours = Ours::new(image.path(), &[]);
    let path = ours.path().join("sparse");
    let file = File::create(&path).unwrap();
    file.set_len(4 << 20).unwrap();
    let reader = File::open(&path).unwrap();
    fill(&ours.path().join("fill"));
    file.write_all_at(&vec![1; 4 << 20], 0).unwrap();
    assert_eq!(errno(file.sync_all()), Some(Errno::NOSPC));
    drop(file);
    let read = || {
        let mut bytes = vec![0; 4 << 20];
        reader.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    assert!(soon(|| read().contains(&0)));
    let seen = read();
    drop(reader);
    ours.unmount();
    let ours = Ours::new(image.path(), &[]);
    assert!(fs::read(ours.path().join("sparse")).unwrap() == seen);
    ours.unmount();
}

/// A hole that needs a block of a full disk is refused when its edges are zeroes already: programs see these at once.
#[test]
fn a_range_that_was_cleared_in_part_is_shown_as_it_is() {
    if !can_mount() {
        return;
    }
    for options in [&[][..], &["-o", "nowriteback_cache"]] {
        let image = made(24 << 20, &["-m", "0"]);
        let ours = Ours::new(image.path(), options);
        let path = ours.path().join("sparse");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        // More than goes through the log.
        file.write_all_at(&vec![1; 1 << 20], 0).unwrap();
        file.set_len(64 << 20).unwrap();
        file.sync_all().unwrap();
        copied_by_root(&ours.path().join("fill"));
        let read = |file: &File| {
            let mut bytes = vec![0; 8192];
            file.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        assert_eq!(read(&file), [1; 8192]);
        let zero = rustix::fs::FallocateFlags::ZERO_RANGE;
        let refused = rustix::fs::fallocate(&file, zero, 5000, 60 << 20);
        assert_eq!(refused, Err(Errno::NOSPC));
        let seen = read(&file);
        drop(file);
        ours.unmount();
        let ours = Ours::new(image.path(), &[]);
        let there = read(&File::open(ours.path().join("sparse")).unwrap());
        assert!(seen == there, "{options:?}: {} and {}", seen[5000], there[5000]);
        ours.unmount();
    }
}

/// The kernel keeps the old time where a path is truncated to the size that it has.
#[test]
fn a_file_that_is_truncated_to_its_own_size_has_one_time() {
    if !can_mount() || !kernel_forgets() {
        return;
    }
    let image = made(24 << 20, &[]);
    let ours = Ours::new(image.path(), &[]);
    let path = |name: &str| ours.path().join(name);
    fs::write(path("some"), "hello\n").unwrap();
    fs::write(path("none"), "").unwrap();
    let times =
        || ["some", "none"].map(|name| fs::metadata(path(name)).unwrap().modified().unwrap());
    let before = times();
    std::thread::sleep(Duration::from_millis(50));
    for (name, size) in [("some", 6), ("none", 0)] {
        // By path, as `truncate` of the shell does not: who has the file open tells the kernel the time.
        let mut perl = Command::new("perl");
        perl.args(["-e", "truncate($ARGV[0], $ARGV[1]) or die $!"]).arg(path(name));
        let done = perl.arg(size.to_string()).status();
        assert!(done.unwrap().success());
    }
    assert!(soon(|| times().iter().zip(&before).all(|(now, before)| now > before)));
    let seen = times();
    ours.unmount();
    let ours = Ours::new(image.path(), &[]);
    let path = |name: &str| ours.path().join(name);
    let after = ["some", "none"].map(|name| fs::metadata(path(name)).unwrap().modified().unwrap());
    assert_eq!(after, seen);
    ours.unmount();
}

/// Fills the disk with a file, whose writer is told.
fn copied_by_root(to: &Path) -> String {
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/zero", "bs=1M", "conv=fsync"]).arg(format!("of={}", to.display()));
    String::from_utf8(dd.output().unwrap().stderr).unwrap()
}

#[test]
fn without_free_inodes_nothing_new_is_made_until_one_is_free() {
    if !can_mount() {
        return;
    }
    let image = made(16 << 20, &["-N", "64"]);
    let ours = Ours::new(image.path(), &[]);
    let path = |number: usize| ours.path().join(number.to_string());
    let free = rustix::fs::statvfs(ours.path()).unwrap().f_ffree;
    let count = usize::try_from(free).unwrap();
    for number in 0..count {
        File::create(path(number)).unwrap();
    }
    assert_eq!(errno(File::create(path(count))), Some(Errno::NOSPC));
    assert_eq!(errno(fs::create_dir(path(count))), Some(Errno::NOSPC));
    fs::remove_file(path(3)).unwrap();
    File::create(path(count)).unwrap();
    ours.unmount();
    assert!(oracle::e2fsck(&image).unwrap().clean());
}

#[test]
fn the_longest_names_and_deep_paths_work() {
    if !can_mount() {
        return;
    }
    let image = made(32 << 20, &[]);
    let ours = Ours::new(image.path(), &[]);
    let name = |len: usize| "n".repeat(len);
    File::create(ours.path().join(name(255))).unwrap();
    assert_eq!(errno(File::create(ours.path().join(name(256)))), Some(Errno::NAMETOOLONG));
    // Longer than PATH_MAX, so step by step.
    let mut at = File::open(ours.path()).unwrap();
    for _ in 0..100 {
        rustix::fs::mkdirat(&at, name(100), rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        let below = rustix::fs::openat(&at, name(100), flags, rustix::fs::Mode::empty()).unwrap();
        at = File::from(below);
    }
    drop(at);
    ours.unmount();
    assert!(oracle::e2fsck(&image).unwrap().clean());
}

/// Above 64,998 subdirectories the count is 1, which stands for "many" (dir_nlink).
#[test]
#[ignore = "takes minutes; run by hand with --ignored"]
fn a_directory_with_more_subdirectories_than_links_counts_one() {
    if !can_mount() || kernel::mount_available().is_err() {
        return;
    }
    let image = made(1 << 30, &["-N", "80000"]);
    let ours = Ours::new(image.path(), &[]);
    for number in 0..65_100 {
        fs::create_dir(ours.path().join(number.to_string())).unwrap();
    }
    assert_eq!(fs::metadata(ours.path()).unwrap().nlink(), 1);
    ours.unmount();
    assert!(oracle::e2fsck(&image).unwrap().clean());
    let theirs = kernel::Mounted::new(image.path(), "ro").unwrap();
    assert_eq!(fs::read_dir(theirs.path()).unwrap().count(), 65_101);
    theirs.unmount().unwrap();
}

/// An inode with a wrong checksum: its reader gets EIO, and with `errors=remount-ro` nothing is changed any more.
#[test]
fn damage_ends_writing_if_the_mount_says_so() {
    if !can_mount() {
        return;
    }
    for (option, after) in [("errors=continue", None), ("errors=remount-ro", Some(Errno::ROFS))] {
        // The owner changes, and the checksum stays.
        let edit = inode("/file").base(|base| base.uid_lo ^= 1).stale();
        let image = Recipe::new("stale").edit(edit).build().unwrap();
        let ours = Ours::new(image.path(), &["-o", option]);
        assert_eq!(errno(fs::metadata(ours.path().join("file"))), Some(Errno::IO));
        let made = fs::create_dir(ours.path().join("new"));
        assert_eq!(made.as_ref().err().and_then(Errno::from_io_error), after, "{option}");
        assert_eq!(made.is_ok(), after.is_none());
        ours.unmount();
        let bytes = image.to_vec().unwrap();
        // `s_error_count`.
        assert_eq!(bytes[1024 + 0x194], 1, "{option}");
    }
}

/// A loop device of a read-only file is like a write-protected disk.
#[test]
fn what_is_write_protected_is_mounted_read_only() {
    if !can_mount() {
        return;
    }
    let image = made(16 << 20, &[]);
    let before = image.to_vec().unwrap();
    let Some(device) = Loop::over(image.path(), &["--read-only"]) else { return };
    let folder = tool::scratch("floe-protected-").unwrap();
    let refused = floe(&["mount", device.name(), folder.path().to_str().unwrap(), "-o", "rw"]);
    let ours = Ours::new(device.as_ref(), &[]);
    let tried = File::create(ours.path().join("new"));
    ours.unmount();
    drop(device);
    assert_eq!(refused.code, 32);
    assert!(refused.err.contains("write-protected"), "{}", refused.err);
    assert_eq!(errno(tried), Some(Errno::ROFS));
    assert!(image.to_vec().unwrap() == before);
}

const USER: u32 = 4321;
/// The limit of the user, who has an empty file.
const MOST_KIB: u64 = 2048;

/// An image with quotas of all kinds, in which a user may use so much.
fn limited() -> Image {
    let options = ["-O", "quota,project", "-E", "quotatype=usrquota:grpquota:prjquota"];
    let image = made(48 << 20, &options);
    let ours = Ours::new(image.path(), &[]);
    File::create(ours.path().join("first")).unwrap();
    chown(ours.path().join("first"), Some(USER), Some(USER)).unwrap();
    fs::create_dir(ours.path().join("all")).unwrap();
    fs::set_permissions(ours.path().join("all"), fs::Permissions::from_mode(0o777)).unwrap();
    ours.unmount();
    set_limits(&image, QuotaKind::User, USER, (100, 50), |entry| {
        entry.block_hard_limit_kib = MOST_KIB;
    })
    .unwrap();
    image
}

/// Copies zeroes to a file as the user, and says what dd says.
fn copied(to: &Path, options: &[&str]) -> String {
    let mut dd = Command::new("dd");
    dd.uid(USER).gid(USER).arg("if=/dev/zero").arg(format!("of={}", to.display())).args(options);
    let output = dd.output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// To the block, and with the right error, whether the kernel keeps what is written, changes wait, or neither.
#[test]
fn a_user_can_write_up_to_the_limit_and_no_further() {
    if !can_mount() {
        return;
    }
    for options in [
        "usrquota,grpquota,prjquota",
        "usrquota,nowriteback_cache",
        "usrquota,nodelalloc",
        "usrquota,nodelalloc,nowriteback_cache",
    ] {
        let image = limited();
        let ours = Ours::new(image.path(), &["-o", options]);
        let (one, two) = (ours.path().join("all/one"), ours.path().join("all/two"));
        let said = copied(&one, &["bs=100k", "count=40", "conv=fsync"]);
        assert!(said.contains("quota exceeded"), "{options}: {said}");
        let kib = |path: &Path| fs::metadata(path).unwrap().blocks() / 2;
        assert_eq!(kib(&one), MOST_KIB, "{options}");
        let said = copied(&two, &["bs=1", "count=1", "conv=fsync"]);
        assert!(said.contains("quota exceeded"), "{options}: {said}");
        // Something comes back, and can be used again. The kernel writes back in any order, so nobody knows how much.
        File::options().write(true).open(&one).unwrap().set_len(1 << 20).unwrap();
        let said = copied(&two, &["bs=4k", "count=800", "conv=fsync"]);
        assert!(said.contains("quota exceeded"), "{options}: {said}");
        assert_eq!(kib(&one) + kib(&two), MOST_KIB, "{options}");
        // Root passes limits.
        fs::write(ours.path().join("first"), vec![1; 100_000]).unwrap();
        ours.unmount();
        assert!(oracle::e2fsck(&image).unwrap().clean(), "{options}");
    }
}

/// As a disk without quotas: nothing is left, and no accepted byte is lost.
#[test]
fn a_disk_can_be_filled_to_the_last_block() {
    if !can_mount() {
        return;
    }
    for options in ["rw", "nowriteback_cache", "nodelalloc"] {
        let image = made(24 << 20, &["-m", "0"]);
        let ours = Ours::new(image.path(), &["-o", options]);
        let path = ours.path().join("file");
        let said = copied_by_root(&path);
        assert!(said.contains("No space left"), "{options}: {said}");
        let left = rustix::fs::statvfs(ours.path()).unwrap().f_bfree;
        assert_eq!(left, 0, "{options}: blocks are left");
        ours.unmount();
        assert!(oracle::e2fsck(&image).unwrap().clean(), "{options}");
    }
}

/// With `-o discard` that takes nobody who asks for it.
#[test]
fn what_is_deleted_is_discarded_by_itself() {
    if !can_mount() {
        return;
    }
    let image = made(48 << 20, &["-m", "0"]);
    let kept_bytes = || image.path().metadata().unwrap().blocks() * 512;
    let ours = Ours::new(image.path(), &["-o", "discard,commit=1"]);
    let top = ours.path();
    let content: Vec<u8> = (0..1u32 << 20).flat_map(|at| at.to_le_bytes()).collect();
    for name in ["kept", "gone", "cut"] {
        fs::write(top.join(name), &content).unwrap();
        File::open(top.join(name)).unwrap().sync_all().unwrap();
    }
    let before = kept_bytes();
    fs::remove_file(top.join("gone")).unwrap();
    File::options().write(true).open(top.join("cut")).unwrap().set_len(4097).unwrap();
    // A file goes once the kernel has forgotten it, and its blocks once that is durable.
    for _ in 0..100 {
        if kept_bytes() + (7 << 20) < before {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(kept_bytes() + (7 << 20) < before, "{before} and {}", kept_bytes());
    ours.unmount();
    assert!(oracle::e2fsck(&image).unwrap().clean());
    let ours = Ours::new(image.path(), &["-o", "ro"]);
    assert!(fs::read(ours.path().join("kept")).unwrap() == content);
    assert!(fs::read(ours.path().join("cut")).unwrap() == content[..4097]);
    ours.unmount();
}

/// The image file is as small again as it was before the files came, and what is used stays.
#[test]
fn fstrim_gives_the_space_of_deleted_files_back() {
    if !can_mount() || !Path::new(&tool::locate("fstrim")).exists() {
        return;
    }
    for options in [&["-m", "0"][..], &["-m", "0", "-O", "^has_journal"], &["-b", "1024"]] {
        let image = made(48 << 20, options);
        let kept_bytes = || image.path().metadata().unwrap().blocks() * 512;
        let ours = Ours::new(image.path(), &[]);
        let top = ours.path();
        let content: Vec<u8> = (0..1u32 << 20).flat_map(|at| at.to_le_bytes()).collect();
        for name in ["kept", "gone", "also gone"] {
            fs::write(top.join(name), &content).unwrap();
            File::open(top.join(name)).unwrap().sync_all().unwrap();
        }
        let before = kept_bytes();
        fs::remove_file(top.join("gone")).unwrap();
        fs::remove_file(top.join("also gone")).unwrap();
        let trim = || {
            let out = Command::new(tool::locate("fstrim")).arg("-v").arg(top).output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        };
        trim();
        // A file goes once the kernel has forgotten it, which it tells some time after the unlink.
        for _ in 0..100 {
            if kept_bytes() + (7 << 20) < before {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
            trim();
        }
        assert!(kept_bytes() + (7 << 20) < before, "{options:?}: {before} and {}", kept_bytes());
        // Discarded blocks can be used again, and used ones are not discarded.
        fs::write(top.join("new"), &content).unwrap();
        trim();
        ours.unmount();
        assert!(oracle::e2fsck(&image).unwrap().clean(), "{options:?}");
        let ours = Ours::new(image.path(), &["-o", "ro"]);
        for name in ["kept", "new"] {
            assert!(fs::read(ours.path().join(name)).unwrap() == content, "{options:?}: {name}");
        }
        ours.unmount();
    }
}

#[test]
fn a_file_system_whose_journal_is_elsewhere_is_only_read() {
    if !can_mount() {
        return;
    }
    let sb = superblock(|sb| (sb.journal_inum, sb.journal_uuid) = (0, [7; 16]));
    let image = Recipe::new("journal elsewhere").edit(sb).build().unwrap();
    let ran = floe(&["mount", image.path().to_str().unwrap(), "/mnt", "-o", "rw"]);
    assert!(ran.code == 32 && ran.err.contains("--external-journal"), "{}", ran.err);
    let ours = Ours::new(image.path(), &[]);
    assert!(fs::read_dir(ours.path()).unwrap().count() > 0);
    ours.unmount();
}

/// Whoever asks below a directory with a project sees what the project may use, as with Linux.
#[test]
fn the_space_of_a_project_is_its_limit() {
    if !can_mount() {
        return;
    }
    let options = ["-O", "quota,project", "-E", "quotatype=prjquota"];
    let image = made(48 << 20, &options);
    let ours = Ours::new(image.path(), &[]);
    let top = ours.path().join("tenant");
    fs::create_dir(&top).unwrap();
    let chattr = Command::new("chattr").args(["-p", "77", "+P"]).arg(&top).output().unwrap();
    assert!(chattr.status.success(), "{chattr:?}");
    ours.unmount();
    set_limits(&image, QuotaKind::Project, 77, (100, 50), |entry| {
        (entry.block_hard_limit_kib, entry.inode_soft_limit) = (4096, 10);
    })
    .unwrap();
    for options in ["prjquota", "prjquota,nodelalloc"] {
        let ours = Ours::new(image.path(), &["-o", options]);
        let top = ours.path().join("tenant");
        let told = || rustix::fs::statvfs(&top).unwrap();
        let before = told();
        assert_eq!(before.f_blocks * before.f_frsize, 4 << 20, "{options}");
        assert_eq!((before.f_files, before.f_ffree), (10, 9), "{options}");
        let file = File::create(top.join("file")).unwrap();
        (&file).write_all(&vec![1; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        let after = told();
        assert_eq!(before.f_bavail - after.f_bavail, (1 << 20) / before.f_frsize, "{options}");
        assert_eq!(after.f_ffree, 8, "{options}");
        let all = rustix::fs::statvfs(ours.path()).unwrap();
        assert!(all.f_blocks * all.f_frsize > 30 << 20, "{options}");
        fs::remove_file(top.join("file")).unwrap();
        drop(file);
        ours.unmount();
    }
    let ours = Ours::new(image.path(), &[]);
    let told = rustix::fs::statvfs(ours.path().join("tenant")).unwrap();
    assert!(told.f_blocks * told.f_frsize > 30 << 20, "without prjquota");
    ours.unmount();
}
