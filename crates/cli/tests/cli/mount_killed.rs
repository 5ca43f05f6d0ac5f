//! The server of a mount is killed: all that programs made durable is there, by whichever call they did.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use floe_blockdev::{Use, mounted_at};
use floe_fuse::open_abort;
use floe_testkit::{Image, kernel, oracle, tool};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, SeekFrom, linkat, open, seek};

use super::mount::{Ours, can_mount};
use super::{floe, image};

/// Writes to three pages of a mapped file, lets them be durable, says so, and waits.
const MAPS: &str = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(fd, 3 * 4096)
mapped = mmap.mmap(fd, 3 * 4096)
mapped[0:5] = b'first'
mapped[8190:8194] = b'over'
mapped.flush()
print('durable', flush=True)
mapped[100:105] = b'later'
sys.stdin.read()
";

/// A program that maps a file; `None` without Python.
fn mapping(path: &Path) -> Option<Child> {
    let mut python = Command::new("python3");
    python.arg("-c").arg(MAPS).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut child) = python.spawn() else {
        eprintln!("skipped: no python3 to map a file");
        return None;
    };
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "durable\n");
    Some(child)
}

/// A file without a name in a folder.
fn unnamed(folder: &Path, content: &[u8]) -> File {
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let file = File::from(open(folder, flags, Mode::from_raw_mode(0o640)).unwrap());
    file.write_all_at(content, 0).unwrap();
    file
}

fn name(file: &File, path: &Path) {
    linkat(file, "", CWD, path, AtFlags::EMPTY_PATH).unwrap();
}

pub(super) fn kill(ours: &Ours) {
    let status = floe(&["status", ours.path().to_str().unwrap()]).out;
    let process = status.lines().find_map(|line| line.strip_prefix("process: ")).unwrap();
    assert!(Command::new("kill").args(["-9", process]).status().unwrap().success());
}

/// Makes files durable in several ways, and kills the server.
fn use_and_kill(ours: &Ours) -> bool {
    let folder = ours.path().join("kept");
    fs::create_dir(&folder).unwrap();
    let first = unnamed(&folder, b"named, then synced");
    name(&first, &folder.join("one"));
    first.sync_all().unwrap();
    let second = unnamed(&folder, b"synced, then named");
    second.sync_all().unwrap();
    name(&second, &folder.join("two"));
    File::open(&folder).unwrap().sync_all().unwrap();
    let third = unnamed(&folder, b"never named");
    third.sync_all().unwrap();
    let data = File::create(folder.join("data")).unwrap();
    data.write_all_at(b"some", 0).unwrap();
    data.sync_data().unwrap();
    data.write_all_at(b" and more", 4).unwrap();
    data.sync_data().unwrap();
    let mapped = mapping(&folder.join("mapped"));
    kill(ours);
    let has_mapped = mapped.is_some();
    if let Some(mut child) = mapped {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    drop((first, second, third, data));
    // The mount of a dead server is taken away, too.
    ours.unmount_dead();
    has_mapped
}

/// The files of a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let all = fs::read_dir(folder).unwrap().map(Result::unwrap);
    all.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect()
}

/// The files that a mount of the image shows in the folder.
fn recovered(image: &Image, by_linux: bool) -> BTreeMap<String, Vec<u8>> {
    if by_linux {
        let theirs = kernel::Mounted::new(image.path(), "").unwrap();
        let seen = files(&theirs.path().join("kept"));
        theirs.unmount().unwrap();
        return seen;
    }
    let again = Ours::new(image.path(), &[]);
    let seen = files(&again.path().join("kept"));
    again.unmount();
    seen
}

/// A careless program replaces a file by one that it has still open, without fsync; then another file is made durable.
#[test]
fn a_file_that_was_replaced_is_whole_whoever_has_the_new_one_open() {
    if !can_mount() {
        return;
    }
    for options in ["rw", "rw,transport=dev", "nowriteback_cache", "open=fast"] {
        let Some(image) = image("ext4") else { return };
        let ours = Ours::new(image.path(), &["-o", options]);
        let folder = ours.path().join("kept");
        fs::create_dir(&folder).unwrap();
        let (old, new) = (vec![1; 30_000], vec![2; 50_000]);
        let mut open = Vec::new();
        for name in ["durable", "not"] {
            let file = File::create(folder.join(name)).unwrap();
            file.write_all_at(&old, 0).unwrap();
            if name == "durable" {
                file.sync_all().unwrap();
            }
            let next = File::create(folder.join("new")).unwrap();
            next.write_all_at(&new, 0).unwrap();
            fs::rename(folder.join("new"), folder.join(name)).unwrap();
            open.extend([file, next]);
        }
        File::create(folder.join("other")).unwrap().sync_all().unwrap();
        kill(&ours);
        drop(open);
        ours.unmount_dead();
        let seen = recovered(&image, false);
        for name in ["durable", "not"] {
            let whole = seen.get(name).is_some_and(|bytes| *bytes == old || *bytes == new);
            assert!(whole, "{options}: {name} has {:?} bytes", seen.get(name).map(Vec::len));
        }
        assert!(oracle::e2fsck(&image).unwrap().clean(), "{options}");
    }
}

#[test]
fn whatever_a_program_made_durable_survives_the_server() {
    if !can_mount() {
        return;
    }
    let linux = kernel::mount_available().is_ok();
    for (options, by_linux) in
        [("rw", linux), ("rw", false), ("nowriteback_cache,nodelalloc", linux)]
    {
        let Some(image) = image("ext4") else { return };
        let ours = Ours::new(image.path(), &["-o", options]);
        let has_mapped = use_and_kill(&ours);
        let seen = recovered(&image, by_linux);
        let content = |name: &str| {
            let found = seen.get(name);
            found.unwrap_or_else(|| panic!("{options}: {name} is lost: {:?}", seen.keys()))
        };
        assert_eq!(content("one"), b"named, then synced", "{options}");
        assert_eq!(content("two"), b"synced, then named", "{options}");
        assert_eq!(content("data"), b"some and more", "{options}");
        if has_mapped {
            let bytes = content("mapped");
            assert_eq!((&bytes[..5], &bytes[8190..8194]), (&b"first"[..], &b"over"[..]));
        }
        assert!(oracle::e2fsck(&image).unwrap().clean(), "{options}");
    }
}

/// With `-o sync` every change is durable when its call returns, with `dirsync` every change of names; without either, what
/// nobody made durable may be lost, or this test would show nothing.
#[test]
fn changes_of_synchronous_mounts_survive_the_server() {
    if !can_mount() {
        return;
    }
    for (options, names, data) in
        [("sync", true, true), ("dirsync", true, false), ("commit=600", false, false)]
    {
        let Some(image) = image("ext4") else { return };
        let ours = Ours::new(image.path(), &["-o", options]);
        let folder = ours.path().join("kept");
        fs::create_dir(&folder).unwrap();
        let file = File::create(folder.join("first")).unwrap();
        file.write_all_at(b"content", 0).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
        fs::rename(folder.join("first"), folder.join("second")).unwrap();
        fs::write(folder.join("gone"), b"").unwrap();
        fs::remove_file(folder.join("gone")).unwrap();
        kill(&ours);
        drop(file);
        ours.unmount_dead();
        let again = Ours::new(image.path(), &[]);
        let seen = fs::read_dir(again.path().join("kept")).map(|all| all.count());
        assert_eq!(seen.ok(), names.then_some(1), "{options}");
        if names {
            let second = again.path().join("kept/second");
            let mode = second.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(fs::read(&second).unwrap() == b"content", data, "{options}");
            assert!(!data || mode == 0o640, "{options}: {mode:o}");
        }
        again.unmount();
        assert!(oracle::e2fsck(&image).unwrap().clean(), "{options}");
    }
}

/// Renames open files over others and looks for holes in them, until the server answers no more: for both it has the kernel write back.
fn write_and_replace(folder: &Path, thread: u32) -> io::Result<()> {
    for round in 0.. {
        let place = |name: char| folder.join(format!("{name}{thread}.{}", round % 5));
        let file = File::create(place('a'))?;
        file.write_all_at(&[1; 60_000], 0)?;
        fs::rename(place('a'), place('b'))?;
        file.write_all_at(&[2; 3_000], 60_000)?;
        if round % 2 == 0 {
            seek(&file, SeekFrom::Hole(0))?;
        }
        if round % 3 == 0 {
            file.sync_all()?;
        }
    }
    Ok(())
}

/// Whether the image can be mounted within a few seconds.
fn is_free_soon(image: &Image) -> bool {
    let folder = tool::scratch("floe-again-").unwrap();
    let (image, place) = (image.path().to_str().unwrap(), folder.path().to_str().unwrap());
    (0..50).any(|_| {
        let mounted = floe(&["mount", image, place]).code == 0;
        if mounted {
            assert_eq!(floe(&["umount", place]).code, 0);
        } else {
            std::thread::sleep(Duration::from_millis(100));
        }
        mounted
    })
}

/// A thread of the server waits in the kernel for what other threads were to answer; SIGKILL does not end that.
#[test]
fn a_server_that_is_killed_while_the_kernel_writes_back_leaves_nothing_behind() {
    if !can_mount() {
        return;
    }
    for options in ["rw", "rw", "nodelalloc", "rw,transport=dev", "rw,threads=2"] {
        let Some(image) = image("ext4") else { return };
        let ours = Ours::new(image.path(), &["-o", options]);
        let Some(Use::Mounted { device, .. }) = mounted_at(ours.path()) else { panic!("no mount") };
        let mut abort = open_abort(device.minor).unwrap();
        let free = std::thread::scope(|scope| {
            let folder = ours.path();
            for thread in 0..6 {
                scope.spawn(move || write_and_replace(folder, thread));
            }
            std::thread::sleep(Duration::from_millis(800));
            kill(&ours);
            let free = is_free_soon(&image);
            if !free {
                // The threads of this test would not end.
                abort.write_all(b"1").unwrap();
            }
            free
        });
        assert!(free, "{options}: the image is still claimed");
        ours.unmount_dead();
        assert!(oracle::e2fsck(&image).unwrap().clean(), "{options}");
    }
}

/// Nobody is left who would end the mount by himself.
#[test]
fn a_server_and_its_watcher_that_are_killed_together_leave_a_mount_that_can_be_ended() {
    if !can_mount() || !has_python() {
        return;
    }
    for options in ["rw", "nodelalloc", "rw,threads=2"] {
        let Some(image) = image("ext4") else { return };
        let ours = Ours::new(image.path(), &["-o", options]);
        let place = ours.path().to_str().unwrap();
        let status = floe(&["status", place]).out;
        let server = status.lines().find_map(|line| line.strip_prefix("process: ")).unwrap();
        let watcher = super::unmounts::watcher_of(server);
        // This process may hold no file of the mount: a program that it starts would wait for the dead server.
        let mut load = Command::new("python3")
            .arg("-c")
            .arg(LOAD)
            .arg(place)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(800));
        // The watcher is stopped before it hears of the server's end.
        for arguments in [["-STOP", &watcher], ["-KILL", server], ["-KILL", &watcher]] {
            assert!(Command::new("kill").args(arguments).status().unwrap().success());
        }
        let forced = floe(&["umount", "--force", place]);
        let free = is_free_soon(&image);
        load.kill().unwrap();
        load.wait().unwrap();
        assert!(free, "{options}: the image is still claimed");
        assert_eq!(forced.code, 8, "{options}: {}", forced.err);
        assert!(mounted_at(ours.path()).is_none(), "{options}: it is still in the tree");
        assert!(oracle::e2fsck(&image).unwrap().clean(), "{options}");
    }
}

fn has_python() -> bool {
    Command::new("python3").arg("-V").output().is_ok_and(|ran| ran.status.success())
}

/// As `write_and_replace`, in threads of a program of its own.
const LOAD: &str = "
import os, sys, threading
def load(thread):
    round = 0
    while True:
        a, b = (os.path.join(sys.argv[1], '%s%d.%d' % (c, thread, round % 5)) for c in 'ab')
        fd = os.open(a, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        os.pwrite(fd, bytes(60000), 0)
        os.rename(a, b)
        os.pwrite(fd, bytes(3000), 60000)
        if round % 2 == 0:
            os.lseek(fd, 0, os.SEEK_HOLE)
        if round % 3 == 0:
            os.fsync(fd)
        os.close(fd)
        round += 1
for thread in range(6):
    threading.Thread(target=load, args=(thread,)).start()
";

/// Runs a mount of a user in a namespace without fusectl, kills its server under load, and mounts again.
const WITHOUT_FUSECTL: &str = r#"
PATH=/usr/sbin:/usr/bin:/sbin:/bin
umount /sys/fs/fuse/connections 2>/dev/null
mount -t tmpfs none /mnt && mknod /mnt/fuse c 10 229 && chmod 666 /mnt/fuse && mount --bind /mnt/fuse /dev/fuse || exit 2
run() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
run "$FLOE" mount "$IMAGE" "$PLACE" || exit 3
server=$(run "$FLOE" status "$PLACE" | sed -n 's/^process: //p')
run python3 -c "$LOAD" "$PLACE" 2>/dev/null &
load=$!
sleep 0.8
kill -9 "$server"
free=4
for _ in $(seq 50); do
    run fusermount3 -uz "$PLACE" 2>/dev/null
    if run "$FLOE" mount "$IMAGE" "$PLACE" 2>/dev/null; then
        run "$FLOE" umount "$PLACE" && free=0
        break
    fi
    sleep 0.1
done
kill -9 "$load" 2>/dev/null
exit $free
"#;

/// Where the kernel's file system that ends connections is not there, the watcher answers what the dead server's threads wait for.
#[test]
fn a_server_of_a_user_who_has_no_fusectl_leaves_nothing_behind() {
    if !can_mount() {
        return;
    }
    let has_helper = Command::new("fusermount3").arg("-V").output().is_ok();
    if !has_helper || !has_python() {
        eprintln!("skipped: no fusermount3 or no python3");
        return;
    }
    for _ in 0..3 {
        let Some(image) = image("ext4") else { return };
        let folder = tool::scratch("floe-user-").unwrap();
        let first = Ours::new(image.path(), &[]);
        std::os::unix::fs::chown(first.path(), Some(65534), Some(65534)).unwrap();
        first.unmount();
        for path in [image.path(), image.path().parent().unwrap(), folder.path()] {
            std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
        }
        let mut script = Command::new("unshare");
        script.args(["--mount", "--propagation", "private", "sh", "-c", WITHOUT_FUSECTL]);
        script.env("FLOE", env!("CARGO_BIN_EXE_floe")).env("LOAD", LOAD);
        script.env("IMAGE", image.path()).env("PLACE", folder.path());
        let ended = script.status().unwrap();
        assert_eq!(ended.code(), Some(0), "the image is still claimed");
        assert!(oracle::e2fsck(&image).unwrap().clean());
    }
}
