//! Odd values that programs of the library give: the same is seen before and after the next mount, and Linux's errors.

use floe_blockdev::MemDevice;
use floe_format::InodeNr;
use floe_fs::{
    Attributes, Caller, Change, Disk, FileSystem, FsError, Limits, Live, MemFs, NewInode, Op,
    OpKind, Place, SetMode, Store, Timestamp, now,
};
use floe_testkit::{Image, build, tool};

use super::live::NOW;

/// Mounts a device for a program.
fn used<T>(
    device: &MemDevice,
    work: impl FnOnce(&FileSystem<MemFs<Live<'_, '_, &MemDevice>>>) -> T,
) -> T {
    let (disk, volume) = Disk::open(device).unwrap();
    let value = {
        let files = disk.files_of(&volume).unwrap();
        let live = Live::new(&disk, &files, volume, NOW).unwrap();
        let fs = FileSystem::new(MemFs::new(live, Limits::default()));
        let value = work(&fs);
        let (live, lost) = fs.into_store().finish().unwrap();
        lost.unwrap();
        live.finish(NOW).unwrap();
        value
    };
    disk.close().unwrap();
    value
}

fn empty(inode_bytes: &str) -> MemDevice {
    let image = Image::empty(4 << 20).unwrap();
    build::mke2fs(image.path(), &["-q", "-t", "ext4", "-b", "1024", "-I", inode_bytes]).unwrap();
    MemDevice::new(image.to_vec().unwrap())
}

fn apply<S: Store>(fs: &FileSystem<S>, kind: OpKind<'_>) -> Result<Option<Attributes>, FsError> {
    fs.apply(&Op { uid: 0, gid: 0, time: now(), kind })
}

fn find<S: Store>(fs: &FileSystem<S>, name: &[u8]) -> Attributes {
    fs.look_up(&Caller::Judged, InodeNr::ROOT, name).unwrap()
}

#[test]
fn times_are_the_same_before_and_after_a_mount() {
    if tool::missing() {
        return;
    }
    for inode_bytes in ["128", "256"] {
        let device = empty(inode_bytes);
        let times = [
            (-1, 999_999_999),
            (i64::MIN, 5),
            (i64::MAX, 5),
            (-2_147_483_649, 1),
            (2_147_483_648, 999_999_999),
            (15_032_385_535, 1),
        ];
        let names: Vec<String> = (0..times.len()).map(|number| format!("n{number}")).collect();
        let before = used(&device, |fs| {
            for (name, (seconds, nanoseconds)) in names.iter().zip(times) {
                let place = Place { directory: InodeNr::ROOT, name: name.as_bytes() };
                let new = NewInode::regular(0o644);
                let inode = apply(fs, OpKind::Create { place, new }).unwrap().unwrap().inode;
                let time = Some(Timestamp { seconds, nanoseconds });
                let change = Change { accessed: time, modified: time, ..Change::default() };
                apply(fs, OpKind::Change { inode, size_bytes: None, change }).unwrap();
            }
            let seen = names.iter().map(|name| find(fs, name.as_bytes()));
            seen.collect::<Vec<Attributes>>()
        });
        let after = used(&device, |fs| {
            let seen = names.iter().map(|name| find(fs, name.as_bytes()));
            seen.collect::<Vec<Attributes>>()
        });
        for (before, after) in before.iter().zip(&after) {
            let times = |one: &Attributes| (one.atime, one.mtime, one.ctime, one.crtime);
            assert_eq!(times(before), times(after), "inodes of {inode_bytes} bytes");
        }
    }
}

#[test]
fn attributes_that_cannot_be_have_the_errors_of_linux() {
    if tool::missing() {
        return;
    }
    used(&empty("256"), |fs| {
        let place = Place { directory: InodeNr::ROOT, name: b"file" };
        let new = NewInode::regular(0o644);
        let inode = apply(fs, OpKind::Create { place, new }).unwrap().unwrap().inode;
        let set = |name: &'static [u8], value: &'static [u8]| {
            let mode = SetMode::Any;
            apply(fs, OpKind::SetAttribute { inode, name, value, mode }).map(|_| ())
        };
        let remove =
            |name: &'static [u8]| apply(fs, OpKind::RemoveAttribute { inode, name }).map(|_| ());
        let get = |name: &[u8]| fs.extended_attribute(inode, name).map(|_| ());
        for name in [&b"user."[..], b"trusted.", b"security."] {
            assert!(matches!(set(name, b"1"), Err(FsError::Invalid)));
            assert!(matches!(remove(name), Err(FsError::Invalid)));
            assert!(matches!(get(name), Err(FsError::Invalid)));
        }
        for name in [&b"user"[..], b"a", b"system.a", b"os2.a"] {
            assert!(matches!(set(name, b"1"), Err(FsError::Unsupported(_))));
            assert!(matches!(remove(name), Err(FsError::Unsupported(_))));
            assert!(matches!(get(name), Err(FsError::Unsupported(_))));
        }
        assert!(matches!(get(b"user.none"), Err(FsError::NoAttribute)));
        assert!(matches!(remove(b"user.none"), Err(FsError::NoAttribute)));
        for name in [&b"system.posix_acl_access"[..], b"system.posix_acl_default"] {
            remove(name).unwrap();
            set(name, b"").unwrap();
            set(name, &[2, 0, 0, 0]).unwrap();
            assert!(matches!(get(name), Err(FsError::NoAttribute)));
        }
    });
}
