//! `floe mount`: flags of files and extended attributes, beside what Linux makes of them.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use floe_testkit::{Image, build, kernel, oracle};
use rustix::fs::{
    FallocateFlags, IFlags, XattrFlags, ioctl_getflags, ioctl_setflags, removexattr, setxattr,
};
use rustix::io::Errno;

use super::mount::{Ours, can_mount};

fn made(options: &[&str]) -> Image {
    let image = Image::empty(32 << 20).unwrap();
    build::mke2fs(image.path(), &[&["-q", "-t", "ext4"], options].concat()).unwrap();
    image
}

/// A new flag changes `st_ctime`, for files as far as the kernel asks (docs/mount.md).
#[test]
fn a_flag_changes_the_time_of_change() {
    if !can_mount() {
        return;
    }
    let image = made(&[]);
    for options in ["rw", "nowriteback_cache"] {
        let ours = Ours::new(image.path(), &["-o", options]);
        let (dir, file) = (ours.path().join("dir"), ours.path().join("file"));
        fs::create_dir(&dir).unwrap();
        fs::write(&file, "").unwrap();
        for path in [&dir, &file] {
            let changed = || fs::metadata(path).map(|of| (of.ctime(), of.ctime_nsec())).unwrap();
            let before = changed();
            // The clock of the kernel's time stamps has ticked.
            std::thread::sleep(std::time::Duration::from_millis(20));
            let opened = File::open(path).unwrap();
            let flags = ioctl_getflags(&opened).unwrap();
            ioctl_setflags(&opened, flags | IFlags::NODUMP).unwrap();
            if path == &dir || options != "rw" {
                assert!(changed() > before, "{options}: {}", path.display());
            }
        }
        fs::remove_dir(dir).unwrap();
        fs::remove_file(file).unwrap();
        ours.unmount();
    }
}

/// The kernel keeps what programs write, and writes back whole pages: bytes before the end of an append-only file too, and bytes
/// that were written before the file became immutable.
#[test]
fn append_only_and_immutable_files_keep_what_was_written() {
    if !can_mount() {
        return;
    }
    for options in ["rw", "nodelalloc", "nowriteback_cache", "open=fast"] {
        let image = made(&[]);
        let ours = Ours::new(image.path(), &["-o", options]);
        let set = |file: &File, flag: IFlags| {
            let before = ioctl_getflags(file).unwrap();
            ioctl_setflags(file, before | flag).unwrap();
        };
        let (log, fixed) = (ours.path().join("log"), ours.path().join("fixed"));
        let mut file = File::create(&log).unwrap();
        file.write_all(b"one\n").unwrap();
        set(&file, IFlags::APPEND);
        for line in [b"two\n".as_slice(), &[b'3'; 5000], b"four\n"] {
            let mut log = File::options().append(true).open(&log).unwrap();
            log.write_all(line).unwrap();
            log.sync_all().unwrap();
        }
        // A file that is open for writing may be written anywhere, as on Linux.
        file.write_all_at(b"ONE", 0).unwrap();
        drop(file);
        let assert_protected = |path| {
            // The kernel asks nobody with open=fast.
            let opened = File::options().write(true).open(path).map(drop);
            let error = opened.err().and_then(|error| Errno::from_io_error(&error));
            let expected = Some(Errno::PERM).filter(|_| options != "open=fast");
            assert_eq!(error, expected, "{options}");
        };
        assert_protected(&log);
        let mut file = File::create(&fixed).unwrap();
        file.write_all(&[5; 10_000]).unwrap();
        set(&file, IFlags::IMMUTABLE);
        drop(file);
        assert_protected(&fixed);
        ours.unmount();
        let ours = Ours::new(image.path(), &["-o", "ro"]);
        let expected = [b"ONE\ntwo\n".as_slice(), &[b'3'; 5000], b"four\n"].concat();
        assert!(fs::read(ours.path().join("log")).unwrap() == expected, "{options}");
        assert!(fs::read(ours.path().join("fixed")).unwrap() == [5; 10_000], "{options}");
        ours.unmount();
        assert!(oracle::e2fsck(&image).unwrap().clean(), "{options}");
    }
}

/// Values in inodes of their own count in `i_blocks` of their owners, and each block of attributes counts as a user of them.
#[test]
fn large_values_are_removed_and_replaced() {
    if !can_mount() || kernel::mount_available().is_err() {
        return;
    }
    for size in ["-I256", "-I128"] {
        let image = made(&["-O", "ea_inode", size]);
        let theirs = kernel::Mounted::new(image.path(), "").unwrap();
        let names = ["removed", "replaced", "deleted", "other", "kept"];
        for name in names {
            let path = theirs.path().join(name);
            File::create(&path).unwrap();
            // Equal values, which Linux keeps once, and equal blocks of attributes, if the inodes have no room.
            for (name, value) in [("user.a", [1; 5000].as_slice()), ("user.b", &[2; 9000])] {
                setxattr(&path, name, value, XattrFlags::empty()).unwrap();
            }
        }
        theirs.unmount().unwrap();
        assert!(oracle::e2fsck(&image).unwrap().clean());
        let ours = Ours::new(image.path(), &[]);
        let path = |name| ours.path().join(name);
        removexattr(path("removed"), "user.a").unwrap();
        setxattr(path("replaced"), "user.b", b"small", XattrFlags::empty()).unwrap();
        fs::remove_file(path("deleted")).unwrap();
        setxattr(path("other"), "user.c", b"another", XattrFlags::empty()).unwrap();
        ours.unmount();
        let told = oracle::e2fsck(&image).unwrap();
        assert!(told.clean(), "{size}: {told:?}");
        let theirs = kernel::Mounted::new(image.path(), "ro").unwrap();
        let has = |name: &str, attribute: &str| {
            let mut value = vec![0; 10_000];
            let found = rustix::fs::getxattr(theirs.path().join(name), attribute, &mut value[..]);
            found.map(|len| value[..len].to_vec())
        };
        let (a, b) = (Ok(vec![1; 5000]), Ok(vec![2; 9000]));
        assert_eq!((has("removed", "user.a"), has("removed", "user.b")), (Err(Errno::NODATA), b));
        assert_eq!(has("replaced", "user.a"), a);
        assert_eq!(has("replaced", "user.b"), Ok(b"small".to_vec()));
        assert_eq!(has("other", "user.c"), Ok(b"another".to_vec()));
        for name in ["other", "kept"] {
            assert_eq!(has(name, "user.a"), Ok(vec![1; 5000]), "{name}");
            assert_eq!(has(name, "user.b"), Ok(vec![2; 9000]), "{name}");
        }
        theirs.unmount().unwrap();
    }
}

/// Whoever may write to a file but does not own it takes its set-user-ID and set-group-ID away by writing.
#[test]
fn a_write_by_somebody_else_ends_set_ids() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    for options in ["rw", "nowriteback_cache", "open=fast"] {
        let image = made(&[]);
        let ours = Ours::new(image.path(), &["-o", options]);
        fs::set_permissions(ours.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let path = ours.path().join("program");
        fs::write(&path, b"content").unwrap();
        chown(&path, Some(1000), Some(1000)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        let stranger = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(arguments).current_dir(ours.path()).uid(1001).gid(1001);
            command.output().unwrap().status.success()
        };
        let refused = "import os; os.chown('program', -1, -1)";
        let refuses = !stranger("python3", &["-c", refused]);
        assert!(refuses, "{options}: nobody but the owner may do so without writing");
        let dd = ["if=/dev/zero", "of=program", "bs=1", "count=3", "conv=notrunc"];
        assert!(stranger("dd", &dd), "{options}");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "{options}");
        ours.unmount();
    }
}

/// Root takes the capabilities of a file away by writing to it, as on Linux, and nothing else.
#[test]
fn a_write_by_root_ends_capabilities_and_keeps_set_ids() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    for options in ["rw", "nodelalloc", "nowriteback_cache", "open=fast"] {
        let image = made(&[]);
        let ours = Ours::new(image.path(), &["-o", options]);
        let path = ours.path().join("program");
        let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
        for how in ["write", "truncate", "fallocate"] {
            fs::write(&path, b"content").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
            let capabilities = [&[1, 0, 0, 2, 0, 32, 0, 0], &[0; 12][..]].concat();
            let name = "security.capability";
            setxattr(&path, name, &capabilities, XattrFlags::empty()).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            match how {
                "write" => file.write_all_at(b"C", 0).unwrap(),
                "truncate" => file.set_len(3).unwrap(),
                _ => rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 9000).unwrap(),
            }
            drop(file);
            assert_eq!(mode(), 0o6755, "{options}, {how}");
            let left = rustix::fs::getxattr(&path, name, &mut [0u8; 20][..]);
            assert_eq!(left, Err(Errno::NODATA), "{options}, {how}");
        }
        // A new owner is another matter.
        chown(&path, Some(0), Some(0)).unwrap();
        assert_eq!(mode(), 0o755, "{options}");
        ours.unmount();
    }
}

/// A file without a name is deleted at the unmount, if somebody has it open until then; its values go with it.
#[test]
fn values_of_files_that_are_open_until_the_unmount_go_too() {
    if !can_mount() || kernel::mount_available().is_err() {
        return;
    }
    for features in ["ea_inode", "ea_inode,^metadata_csum", "ea_inode,^has_journal"] {
        let image = made(&["-O", features]);
        let theirs = kernel::Mounted::new(image.path(), "").unwrap();
        let path = theirs.path().join("file");
        File::create(&path).unwrap();
        setxattr(&path, "user.a", &[1; 5000], XattrFlags::empty()).unwrap();
        theirs.unmount().unwrap();
        let ours = Ours::new(image.path(), &[]);
        let open = File::open(ours.path().join("file")).unwrap();
        fs::remove_file(ours.path().join("file")).unwrap();
        let place = ours.path().to_str().unwrap();
        let ran = super::floe(&["umount", "--lazy", place]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        drop(open);
        let told = || oracle::e2fsck(&image).unwrap();
        let ends = (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            told().clean()
        });
        assert!(ends, "{features}: {:?}", told());
    }
}

/// The blocks of a value count in `i_blocks` of a symlink whose target lies in the inode.
#[test]
fn a_short_symlink_with_a_large_value_is_sound() {
    if kernel::mount_available().is_err() {
        return;
    }
    let image = made(&["-O", "ea_inode"]);
    let theirs = kernel::Mounted::new(image.path(), "").unwrap();
    for (name, target) in [("short", "f1"), ("longer", "/a/target/below/sixty/bytes")] {
        let path = theirs.path().join(name);
        symlink(target, &path).unwrap();
        let value = [3; 7000];
        rustix::fs::lsetxattr(&path, "trusted.x", &value, XattrFlags::empty()).unwrap();
    }
    theirs.unmount().unwrap();
    let checked = super::floe(&["check", image.path().to_str().unwrap()]);
    assert_eq!(checked.code, 0, "{}", checked.out);
}

/// Ways to make a file system in whose attributes large values fit.
const WITH_VALUES: [&[&str]; 8] = [
    &["-O", "ea_inode"],
    &["-O", "ea_inode", "-I128"],
    &["-O", "ea_inode", "-b1024"],
    &["-O", "ea_inode,^metadata_csum"],
    &["-O", "ea_inode,^has_journal"],
    &["-O", "ea_inode,^extents,^64bit"],
    &["-O", "ea_inode,bigalloc", "-C16384"],
    &["-O", "ea_inode,quota"],
];

fn value(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((at + seed) / 5) as u8).collect()
}

/// The value of an attribute; empty if it is not there.
fn read(path: &Path, name: &str) -> Vec<u8> {
    let mut value = vec![0; 65_536];
    match rustix::fs::lgetxattr(path, name, &mut value[..]) {
        Ok(len) => value[..len].to_vec(),
        Err(Errno::NODATA) => Vec::new(),
        Err(error) => panic!("{name}: {error}"),
    }
}

#[test]
fn large_values_are_written_as_linux_reads_them() {
    if !can_mount() || kernel::mount_available().is_err() {
        return;
    }
    for options in WITH_VALUES {
        for mount in [&["-o", "rw"][..], &["-o", "nodelalloc"]] {
            let image = made(options);
            let ours = Ours::new(image.path(), mount);
            let at = |name: &str| ours.path().join(name);
            for name in ["file", "other"] {
                fs::write(at(name), b"content").unwrap();
            }
            fs::create_dir(at("dir")).unwrap();
            // A target that lies in the inode is another test's: e2fsck reads it wrong.
            symlink("t".repeat(70), at("link")).unwrap();
            let set = |name: &str, attribute: &str, value: &[u8]| {
                rustix::fs::lsetxattr(at(name), attribute, value, XattrFlags::empty()).unwrap();
            };
            set("file", "user.most", &value(65_536, 1));
            set("file", "user.large", &value(9000, 2));
            set("file", "user.small", b"small");
            set("file", "user.large", &value(12_345, 3));
            set("dir", "user.large", &value(12_345, 3));
            set("link", "trusted.large", &value(6000, 4));
            set("other", "user.gone", &value(20_000, 5));
            set("other", "user.shrunk", &value(20_000, 6));
            fs::hard_link(at("file"), at("hard")).unwrap();
            removexattr(at("other"), "user.gone").unwrap();
            set("other", "user.shrunk", b"now small");
            let no = setxattr(at("file"), "user.large", b"x", XattrFlags::CREATE);
            assert_eq!(no, Err(Errno::EXIST));
            let expected = [
                ("file", "user.most", value(65_536, 1)),
                ("hard", "user.large", value(12_345, 3)),
                ("hard", "user.small", b"small".to_vec()),
                ("dir", "user.large", value(12_345, 3)),
                ("link", "trusted.large", value(6000, 4)),
                ("other", "user.gone", Vec::new()),
                ("other", "user.shrunk", b"now small".to_vec()),
            ];
            let compare = |top: &Path, whose: &str| {
                for (name, attribute, value) in &expected {
                    let found = read(&top.join(name), attribute) == *value;
                    assert!(found, "{options:?} {mount:?} {whose}: {name} {attribute}");
                }
            };
            compare(ours.path(), "ours");
            ours.unmount();
            let told = oracle::e2fsck(&image).unwrap();
            assert!(told.clean(), "{options:?} {mount:?}: {told:?}");
            // Not every kernel counts quotas.
            let Ok(theirs) = kernel::Mounted::new(image.path(), "") else {
                let theirs = kernel::Mounted::new(image.path(), "ro").unwrap();
                compare(theirs.path(), "Linux");
                theirs.unmount().unwrap();
                continue;
            };
            compare(theirs.path(), "Linux");
            // Linux changes what Floe wrote.
            removexattr(theirs.path().join("file"), "user.most").unwrap();
            fs::remove_file(theirs.path().join("link")).unwrap();
            theirs.unmount().unwrap();
            let told = oracle::e2fsck(&image).unwrap();
            assert!(told.clean(), "{options:?} {mount:?}, after Linux: {told:?}");
            let ours = Ours::new(image.path(), &["-o", "ro"]);
            assert!(read(&ours.path().join("hard"), "user.large") == value(12_345, 3));
            ours.unmount();
        }
    }
}

/// Values of removed files and attributes give their space back before the unmount.
#[test]
fn space_of_large_values_comes_back_at_once() {
    if !can_mount() {
        return;
    }
    for options in WITH_VALUES {
        for mount in [&["-o", "rw"][..], &["-o", "nodelalloc"]] {
            let image = made(options);
            let ours = Ours::new(image.path(), mount);
            let path = ours.path().join("file");
            // Its own block of the directory and of quota files stays.
            fs::write(ours.path().join("kept"), b"content").unwrap();
            let free = || {
                let file_system = File::open(ours.path()).unwrap();
                file_system.sync_all().unwrap();
                let told = rustix::fs::fstatvfs(&file_system).unwrap();
                (told.f_bfree, told.f_ffree)
            };
            let before = free();
            fs::write(&path, b"content").unwrap();
            for at in 0..8 {
                let name = format!("user.{at}");
                setxattr(&path, &*name, &value(30_000, at), XattrFlags::empty()).unwrap();
            }
            assert!(free().1 < before.1 - 8, "{options:?}: values are inodes");
            removexattr(&path, "user.0").unwrap();
            setxattr(&path, "user.1", b"small", XattrFlags::empty()).unwrap();
            assert_eq!(before.1 - free().1, 7, "{options:?} {mount:?}: the file and six values");
            fs::remove_file(&path).unwrap();
            // A deletion waits for the next flush.
            let is_back = (0..300).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(50));
                let after = free();
                // Blocks that waiting changes had reserved come back, too.
                after.0 >= before.0 && after.1 == before.1
            });
            assert!(is_back, "{options:?} {mount:?}: {before:?} and {:?}", free());
            ours.unmount();
            assert!(oracle::e2fsck(&image).unwrap().clean(), "{options:?} {mount:?}");
        }
    }
}

/// Flags of an immutable file and times of an append-only one are refused as Linux refuses them; `FS_IOC_GETVERSION` writes one word.
#[test]
fn protected_files_keep_their_flags_and_times() {
    if !can_mount() || kernel::mount_available().is_err() {
        eprintln!("skipped: it takes mounts by FUSE and by Linux");
        return;
    }
    const SCRIPT: &str = r"
import ctypes, fcntl, os, struct
def rc(call, *args):
    try:
        call(*args)
        return 'ok'
    except OSError as error:
        return os.strerror(error.errno)
def change(fd, flags):
    return rc(fcntl.ioctl, fd, 0x40086602, struct.pack('q', flags))
def flags(fd):
    return struct.unpack('i', fcntl.ioctl(fd, 0x80086601, b'\0' * 8)[:4])[0]
IMMUTABLE, APPEND, NOATIME, NODUMP, SYNC = 0x10, 0x20, 0x80, 0x40, 0x8
for kind in ('file', 'dir'):
    os.mkdir(kind) if kind == 'dir' else open(kind, 'w').close()
    fd = os.open(kind, os.O_RDONLY)
    own = flags(fd)
    print(kind, change(fd, own | IMMUTABLE))
    for more in (NOATIME, NODUMP, SYNC):
        print(kind, more, change(fd, own | IMMUTABLE | more), hex(flags(fd) & 0xf8))
    print(kind, change(fd, own | NOATIME), hex(flags(fd) & 0xf8))
    extended = bytearray(fcntl.ioctl(fd, 0x801c581f, bytes(28)))
    extended[1] |= 2
    print(kind, 'inherits', rc(fcntl.ioctl, fd, 0x401c5820, bytes(extended)), hex(flags(fd) & 0x20000000))
    extended[1] &= ~2
    extended[12] = 7
    print(kind, 'project', rc(fcntl.ioctl, fd, 0x401c5820, bytes(extended)))
    version = bytearray(b'\xaa' * 8)
    fcntl.ioctl(fd, 0x80087601, version)
    print(kind, 'version', bytes(version[4:]).hex())
    print(kind, change(fd, own | APPEND))
    libc, now, omit = ctypes.CDLL(None, use_errno=True), (1 << 30) - 1, (1 << 30) - 2
    for times in ((now, 5), (5, now), (omit, 5), (5, omit), (now, omit), (omit, now), (now, now), (5, 5)):
        pairs = (ctypes.c_long * 4)(*[word for one in times for word in ((0, one) if one > 5 else (one, 0))])
        done = libc.utimensat(-100, kind.encode(), pairs, 0)
        print(kind, times, os.strerror(ctypes.get_errno()) if done else 'ok', os.stat(kind).st_mtime < 100)
    change(fd, own)
    print(kind, rc(os.utime, kind, (5, 5)))
    os.close(fd)
";
    let run = |at: &Path| {
        let out = Command::new("python3").current_dir(at).args(["-c", SCRIPT]).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    for options in ["rw", "nowriteback_cache", "nodelalloc"] {
        let (image, linux) = (made(&[]), made(&[]));
        let ours = Ours::new(image.path(), &["-o", options]);
        let found = run(ours.path());
        ours.unmount();
        let theirs = kernel::Mounted::new(linux.path(), "").unwrap();
        let wanted = run(theirs.path());
        theirs.unmount().unwrap();
        assert_eq!(found, wanted, "{options}");
        assert!(oracle::e2fsck(&image).unwrap().clean());
    }
}

/// The kernel would judge where it knows of access lists.
#[test]
fn with_fakeroot_everybody_may_do_everything() {
    if !can_mount() {
        return;
    }
    let image = Image::empty(16 << 20).unwrap();
    build::mke2fs(image.path(), &["-q", "-t", "ext4"]).unwrap();
    let as_nobody = |script: &str, place: &Path| {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "sh",
            "-ec",
            script,
        ]);
        command.current_dir(place).stderr(Stdio::null()).status().unwrap().success()
    };
    let ours = Ours::new(image.path(), &[]);
    fs::set_permissions(ours.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(ours.path().join("private"), "root's").unwrap();
    fs::set_permissions(ours.path().join("private"), fs::Permissions::from_mode(0o600)).unwrap();
    let may = ["cat private", "mkdir new", "mv private moved", "chown 7:8 private", "rm private"];
    assert!(may.iter().all(|call| !as_nobody(call, ours.path())));
    ours.unmount();
    for transport in ["dev", "auto"] {
        let ours = Ours::new(image.path(), &["-o", &format!("fakeroot,transport={transport}")]);
        let calls = ["cat private", "mkdir new", "mv private moved", "chown 7:8 moved"];
        for call in calls.iter().chain(&["mv moved private", "rmdir new"]) {
            assert!(as_nobody(call, ours.path()), "{transport}: {call}");
        }
        let file = fs::metadata(ours.path().join("private")).unwrap();
        assert_eq!((file.uid(), file.gid()), (7, 8));
        ours.unmount();
    }
    assert!(oracle::e2fsck(&image).unwrap().clean());
}
