//! Values of attributes in inodes of their own: their space comes back, whatever room a change has for them.

use floe_blockdev::MemDevice;
use floe_disk::ops::{Caller, NewInode, OpError, SetMode, Step};
use floe_disk::volume::Volume;
use floe_ext4::tx::DirectTx;
use floe_format::InodeNr;
use floe_format::ext::inode::InodeFlags;
use floe_testkit::kernel::Mounted;
use floe_testkit::{Profile, build, kernel, tool};

use super::model::time;
use super::{device_of, image_of, judge};

const CALLER: Caller = Caller { uid: 0, gid: 0, time: time(9), may_use_reserve: true };
const ROOT: InodeNr = InodeNr::ROOT;

struct Made<'d> {
    device: &'d MemDevice,
    volume: Volume,
    tx: DirectTx<'d, MemDevice>,
}

impl<'d> Made<'d> {
    fn new(device: &'d MemDevice) -> Self {
        let mut volume = Volume::open(device).unwrap();
        let mut tx = DirectTx::new(device, volume.geometry().clone());
        volume.begin_writing(&mut tx, time(1)).unwrap();
        Self { device, volume, tx }
    }

    fn file(&mut self, name: &str) -> InodeNr {
        let new = NewInode::regular(0o644);
        self.volume.create(&mut self.tx, &CALLER, ROOT, name.as_bytes(), &new).unwrap()
    }

    fn set(&mut self, inode: InodeNr, name: &str, value: &[u8]) -> Result<(), OpError> {
        let (tx, name) = (&mut self.tx, name.as_bytes());
        self.volume.set_attribute(tx, &CALLER, inode, name, value, SetMode::Any)
    }

    fn remove(&mut self, inode: InodeNr, name: &str) -> Result<(), OpError> {
        self.volume.remove_attribute(&mut self.tx, &CALLER, inode, name.as_bytes())
    }

    fn delete(&mut self, name: &str) {
        let removed = self.volume.unlink(&mut self.tx, &CALLER, ROOT, name.as_bytes()).unwrap();
        assert!(removed.last);
        self.finish(removed.inode);
    }

    fn finish(&mut self, orphan: InodeNr) -> usize {
        let mut steps = 1;
        let step = |made: &mut Self| {
            made.volume.finish_orphan(&mut made.tx, made.device, &CALLER, orphan).unwrap()
        };
        while step(self) == Step::More {
            steps += 1;
        }
        steps
    }

    /// Free blocks and inodes, once what was freed is durable.
    fn room(&mut self) -> (u64, u64) {
        let epoch = self.volume.end_epoch();
        self.tx.commit().unwrap();
        self.volume.durable(epoch);
        let room = self.volume.room();
        (room.free_blocks, room.free_inodes)
    }

    /// Lets no free blocks be neighbours.
    fn scatter_free_blocks(&mut self) {
        let files = [self.file("kept"), self.file("gone")];
        let is_full = |made: &mut Self, file, at| {
            let written = made.volume.write(&mut made.tx, made.device, &CALLER, file, at, b"data");
            matches!(written, Err(OpError::NoSpace))
        };
        let mut blocks = (0u64..).flat_map(|block| files.map(|file| (file, block * 2048)));
        assert!(blocks.any(|(file, at)| is_full(self, file, at)));
        self.delete("gone");
        self.room();
        // The few that still are go to these, because they fit best.
        for name in ["user.1", "user.2", "user.3"] {
            self.set(files[0], name, &value(60_000, 0)).unwrap();
        }
    }

    fn leave(mut self, what: &str) {
        self.volume.end_writing(&mut self.tx, time(2)).unwrap();
        self.tx.commit().unwrap();
        judge(&image_of(self.device), what);
    }
}

fn value(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at / 3) as u8 ^ seed).collect()
}

#[test]
fn space_of_values_comes_back() {
    if tool::missing() {
        return;
    }
    for profile in [Profile::EaInode, Profile::InlineEaInode, Profile::BigallocMore] {
        let device = device_of(&build::empty(profile).unwrap());
        let mut made = Made::new(&device);
        let (file, other) = (made.file("file"), made.file("other"));
        let before = made.room();
        for (at, bytes) in [1100, 5000, 65_536].into_iter().enumerate() {
            let name = format!("user.{at}");
            made.set(file, &name, &value(bytes, 1)).unwrap();
            // Replaced by another, by a small one, and by a large one again.
            made.set(file, &name, &value(bytes, 2)).unwrap();
            let read = made.volume.attribute(&mut made.tx, file, name.as_bytes()).unwrap();
            assert!(read == value(bytes, 2), "{profile} {bytes}");
            made.set(file, &name, b"small").unwrap();
            made.set(file, &name, &value(bytes, 3)).unwrap();
            assert_ne!(made.room(), before);
            made.remove(file, &name).unwrap();
            assert_eq!(made.room(), before, "{profile} {bytes}");
        }
        assert!(matches!(made.set(file, "user.x", &value(65_537, 1)), Err(OpError::NoRoom)));
        for at in 0..20 {
            made.set(other, &format!("user.{at}"), &value(3000, at)).unwrap();
        }
        made.delete("other");
        made.delete("file");
        let (file, other) = (made.file("file"), made.file("other"));
        assert_eq!(made.room(), before, "{profile}: {file} {other}");
        assert_eq!(made.volume.unused_values(), []);
        made.leave(profile.name());
    }
}

/// Where the journal has room for little, values become orphans first, and a file loses them in steps.
#[test]
fn values_go_in_steps_where_there_is_little_room() {
    if tool::missing() {
        return;
    }
    let device = device_of(&build::empty(Profile::EaInode).unwrap());
    let mut made = Made::new(&device);
    let (file, many) = (made.file("file"), made.file("many"));
    made.scatter_free_blocks();
    let before = made.room();
    made.set(file, "user.a", &value(60_000, 1)).unwrap();
    for at in 0..30 {
        made.set(many, &format!("user.{at}"), &value(3000, at)).unwrap();
    }
    // Its blocks are more pieces than one step frees.
    made.volume.limit_changes(20);
    made.remove(file, "user.a").unwrap();
    let [value] = made.volume.unused_values()[..] else { panic!("one value is unused") };
    assert_eq!(made.volume.orphans(), [value]);
    // Linux mounts no file system cleanly that has an orphan with this flag. Its blocks are revoked all the same.
    let flags = made.volume.inode(&mut made.tx, value).unwrap().flags();
    assert!(!flags.contains(InodeFlags::EA_INODE) && flags.contains(InodeFlags::JOURNAL_DATA));
    made.tx.commit().unwrap();
    linux_deletes_orphans(&device);
    made.finish(value);
    assert_eq!(made.volume.orphans(), []);
    let removed = made.volume.unlink(&mut made.tx, &CALLER, ROOT, b"many").unwrap();
    assert!(made.finish(removed.inode) > 1, "it takes steps");
    for value in made.volume.unused_values() {
        made.finish(value);
    }
    assert_eq!(made.volume.orphans(), []);
    made.volume.limit_changes(usize::MAX);
    made.file("another");
    assert_eq!(made.room(), before);
    made.leave("in steps");
}

/// After a crash, a mount of Linux deletes such a value as it deletes any orphan.
fn linux_deletes_orphans(device: &MemDevice) {
    if let Err(reason) = kernel::mount_available() {
        eprintln!("skipped: {reason:#}");
        return;
    }
    let image = image_of(device);
    Mounted::new(image.path(), "").unwrap().unmount().unwrap();
    let left = Volume::open(&image).unwrap().superblock().last_orphan;
    assert_eq!(left, 0);
    judge(&image, "mounted by Linux");
}

/// A file that is being cut and loses its last name is deleted when nobody has it open, not cut alone.
#[test]
fn a_file_that_was_being_cut_is_deleted() {
    if tool::missing() {
        return;
    }
    let device = device_of(&build::empty(Profile::Ext4K1).unwrap());
    let mut made = Made::new(&device);
    let before = made.room();
    let file = made.file("file");
    // Every second block, so that it has many extents.
    for block in 0..200 {
        let (tx, at) = (&mut made.tx, block * 2048);
        made.volume.write(tx, made.device, &CALLER, file, at, b"data").unwrap();
    }
    let step = made.volume.truncate(&mut made.tx, made.device, &CALLER, file, 0).unwrap();
    assert_eq!(step, Step::More);
    let removed = made.volume.unlink(&mut made.tx, &CALLER, ROOT, b"file").unwrap();
    made.finish(removed.inode);
    assert_eq!(made.volume.orphans(), []);
    let step = made.volume.continue_cut(&mut made.tx, made.device, &CALLER, file).unwrap();
    assert_eq!(step, Step::Done);
    assert_eq!(made.room(), before);
    made.leave("cut and removed");
}
