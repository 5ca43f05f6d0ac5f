//! Access lists and what directories hand down, beside the kernel: the same calls on both.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use floe_blockdev::MemDevice;
use floe_disk::ops::{Caller, Change, NewInode, OpError, SetMode};
use floe_disk::volume::Volume;
use floe_ext4::tx::DirectTx;
use floe_format::InodeNr;
use floe_format::ext::inode::InodeFlags;
use floe_format::ext::xattr::acl::{AclEntry, AclWho, encode_for_programs};
use floe_testkit::{Image, Profile, build, kernel, tool};
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};

use super::model::time;
use super::{device_of, image_of, judge};

const CALLER: Caller = Caller { uid: 0, gid: 0, time: time(9), may_use_reserve: true };
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

fn list(entries: &[(AclWho, u16)]) -> Vec<u8> {
    let entry = |&(who, permissions): &(AclWho, u16)| AclEntry { who, permissions };
    encode_for_programs(&entries.iter().map(entry).collect::<Vec<_>>())
}

/// Lists with a mask, and one that says no more than permissions.
fn lists() -> [Vec<u8>; 3] {
    use AclWho::{Group, Mask, Other, Owner, OwningGroup, User};
    [
        list(&[(Owner, 7), (User(7), 6), (OwningGroup, 5), (Group(8), 7), (Mask, 7), (Other, 4)]),
        list(&[(Owner, 6), (OwningGroup, 7), (Other, 5)]),
        list(&[(Owner, 7), (User(9), 7), (OwningGroup, 7), (Mask, 1), (Other, 0)]),
    ]
}

/// Permissions and both lists.
type Seen = (u32, Option<Vec<u8>>, Option<Vec<u8>>);

fn seen_by_kernel(path: &Path) -> Seen {
    let list = |name: &str| {
        let mut value = vec![0; 4096];
        let len = lgetxattr(path, name, &mut value[..]).ok()?;
        value.truncate(len);
        Some(value)
    };
    (fs::symlink_metadata(path).unwrap().mode() & 0o7777, list(ACCESS), list(DEFAULT))
}

struct Ours<'d> {
    device: &'d MemDevice,
    volume: Volume,
    tx: DirectTx<'d, MemDevice>,
}

impl<'d> Ours<'d> {
    fn new(device: &'d MemDevice) -> Self {
        let mut volume = Volume::open(device).unwrap();
        let mut tx = DirectTx::new(device, volume.geometry().clone());
        volume.begin_writing(&mut tx, time(1)).unwrap();
        Self { device, volume, tx }
    }

    fn create(&mut self, dir: InodeNr, name: &str, new: &NewInode<'_>) -> InodeNr {
        self.volume.create(&mut self.tx, &CALLER, dir, name.as_bytes(), new).unwrap()
    }

    fn set(&mut self, inode: InodeNr, name: &str, value: &[u8]) {
        let (tx, name) = (&mut self.tx, name.as_bytes());
        self.volume.set_attribute(tx, &CALLER, inode, name, value, SetMode::Any).unwrap();
    }

    fn change(&mut self, inode: InodeNr, change: &Change) {
        self.volume.change(&mut self.tx, &CALLER, inode, change).unwrap();
    }

    fn seen(&mut self, inode: InodeNr) -> Seen {
        let mode = self.volume.inode(&mut self.tx, inode).unwrap().base.mode & 0o7777;
        let mut list =
            |name: &str| match self.volume.attribute(&mut self.tx, inode, name.as_bytes()) {
                Ok(value) => Some(value),
                Err(OpError::NotFound(_)) => None,
                Err(error) => panic!("{error}"),
            };
        (mode.into(), list(ACCESS), list(DEFAULT))
    }

    fn leave(mut self) {
        self.volume.end_writing(&mut self.tx, time(2)).unwrap();
        self.tx.commit().unwrap();
        judge(&image_of(self.device), "handed down");
    }
}

#[test]
fn lists_are_handed_down_as_the_kernel_does() {
    if tool::missing() {
        return;
    }
    if let Err(reason) = kernel::mount_available() {
        eprintln!("skipped: {reason}");
        return;
    }
    let image = build::empty(Profile::Ext4).unwrap();
    let device = device_of(&image);
    let mount = kernel::Mounted::new(image.path(), "rw").unwrap();
    let mut ours = Ours::new(&device);
    for (at, default) in lists().iter().enumerate() {
        let name = format!("dir{at}");
        let path = mount.path().join(&name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o2755)).unwrap();
        lsetxattr(&path, DEFAULT, default, XattrFlags::empty()).unwrap();
        let dir = ours.create(InodeNr::ROOT, &name, &NewInode::directory(0o2755));
        ours.set(dir, DEFAULT, default);
        for mode in [0o600u16, 0o664, 0o777, 0o751] {
            let what = format!("list {at}, mode {mode:o}");
            // The default list counts, the umask does not.
            let (file, below) = (format!("file{mode:o}"), format!("below{mode:o}"));
            let (file_path, below_path) = (path.join(&file), path.join(&below));
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(mode.into()).open(&file_path).unwrap();
            DirBuilder::new().mode(mode.into()).create(&below_path).unwrap();
            let file =
                ours.create(dir, &file, &NewInode { umask: 0o022, ..NewInode::regular(mode) });
            let new = NewInode { umask: 0o022, ..NewInode::directory(mode) };
            let below = ours.create(dir, &below, &new);
            assert_eq!(ours.seen(file), seen_by_kernel(&file_path), "{what}");
            assert_eq!(ours.seen(below), seen_by_kernel(&below_path), "{what}");

            fs::set_permissions(&file_path, Permissions::from_mode(0o640)).unwrap();
            ours.change(file, &Change { permissions: Some(0o640), ..Change::default() });
            assert_eq!(ours.seen(file), seen_by_kernel(&file_path), "{what}");
            for access in lists() {
                lsetxattr(&file_path, ACCESS, &access, XattrFlags::empty()).unwrap();
                ours.set(file, ACCESS, &access);
                assert_eq!(ours.seen(file), seen_by_kernel(&file_path), "{what}");
            }
        }
    }
    mount.unmount().unwrap();
    ours.leave();
}

/// Group, project and flags of a directory come to what is created in it, as far as they fit its type.
#[test]
fn directories_hand_down_group_project_and_flags() {
    if tool::missing() {
        return;
    }
    let image = Image::empty(8 << 20).unwrap();
    let args = ["-q", "-F", "-t", "ext4", "-b", "1024", "-I", "256", "-O", "project"];
    build::mke2fs(image.path(), &args).unwrap();
    let device = device_of(&image);
    let mut ours = Ours::new(&device);
    let root = InodeNr::ROOT;
    let top = ours.create(root, "top", &NewInode::directory(0o2755));
    let before = ours.volume.inode(&mut ours.tx, top).unwrap().flags();
    let given = InodeFlags::NODUMP | InodeFlags::DIRSYNC | InodeFlags::PROJINHERIT;
    let flags = Some(before | given | InodeFlags::APPEND);
    ours.change(top, &Change { gid: Some(77), project: Some(5), flags, ..Change::default() });
    let other = ours.create(root, "other", &NewInode::regular(0o644));
    for (name, new, flags, mode) in [
        ("d", NewInode::directory(0o755), given, 0o2755),
        ("f", NewInode::regular(0o644), InodeFlags::NODUMP, 0o644),
        ("l", NewInode::symlink(b"t"), InodeFlags::NODUMP, 0o777),
    ] {
        let inode = ours.create(top, name, &new);
        let inode = ours.volume.inode(&mut ours.tx, inode).unwrap();
        assert_eq!(inode.flags() - InodeFlags::EXTENTS, flags, "{name}");
        assert_eq!((inode.gid(), inode.extra.projid), (77, 5), "{name}");
        assert_eq!(inode.base.mode & 0o7777, mode, "{name}");
    }
    // Inodes of another project stay out.
    let (volume, tx) = (&mut ours.volume, &mut ours.tx);
    let link = volume.link(tx, &CALLER, other, top, b"x");
    assert!(matches!(link, Err(OpError::CrossProject)));
    let moved = volume.rename(tx, &CALLER, (root, b"other"), (top, b"x"), Default::default());
    assert!(matches!(moved, Err(OpError::CrossProject)));
    // Nothing leaves a directory that only grows.
    let gone = volume.unlink(tx, &CALLER, top, b"f");
    assert!(matches!(gone, Err(OpError::NotPermitted(_))));
    ours.leave();
}
