//! Damage and failing devices below a file system in use: each object's fault stays its own, is recorded in the
//! superblock, and nothing wrong is written.

use std::io;

use floe_blockdev::{Fault, Faulty, MemDevice, ReadBlocks, WriteBlocks};
use floe_check::problem::ROWS;
use floe_ext4::fs::FileSystem as Layout;
use floe_ext4::inode_table::inode_offset;
use floe_format::ext::superblock::{STATE_ERROR, Superblock};
use floe_format::{BlockNr, InodeNr};
use floe_fs::{
    Attributes, Caller, Disk, FileSystem, FsError, Limits, Live, MemFs, NewInode, OnError, Op,
    OpKind, Place, SetMode, Store, now,
};
use floe_sync::Arc;
use floe_sync::atomic::{AtomicBool, Ordering};
use floe_testkit::problems::Recipes;
use floe_testkit::recipe::{Recipe, dir_block};
use floe_testkit::{Image, Profile, Volume, build, oracle, tool};

const ROOT: InodeNr = InodeNr::ROOT;

fn create(name: &[u8]) -> Op<'_> {
    let kind =
        OpKind::Create { place: Place { directory: ROOT, name }, new: NewInode::regular(0o644) };
    Op { uid: 0, gid: 0, time: now(), kind }
}

fn find<S: Store>(fs: &FileSystem<S>, name: &[u8]) -> Result<Attributes, FsError> {
    fs.look_up(&Caller::Judged, ROOT, name)
}

/// Uses the file system of a device until `run` is done; returns its superblock after that, and what the end said.
fn used<D: WriteBlocks>(
    device: D,
    on_error: OnError,
    run: impl FnOnce(&FileSystem<Live<'_, '_, D>>),
) -> Result<(), String> {
    let (disk, volume) = Disk::open(device).unwrap();
    let finished = {
        let files = disk.files().unwrap();
        let live = Live::new(&disk, &files, volume, now()).unwrap().on_error(on_error);
        let fs = FileSystem::new(live);
        run(&fs);
        fs.into_store().finish(now()).map_err(|error| error.to_string())
    };
    finished.and(disk.close().map_err(|error| error.to_string()))
}

fn superblock(device: &impl ReadBlocks) -> Superblock {
    let mut bytes = [0; 1024];
    device.read_at(1024, &mut bytes).unwrap();
    Superblock::decode(&bytes)
}

/// A file system whose file `broken` has an inode with a wrong checksum; returns the number of the inode, too.
fn damaged() -> (MemDevice, InodeNr) {
    let image = build::empty(Profile::Ext4).unwrap();
    let device = MemDevice::new(image.to_vec().unwrap());
    let mut broken = None;
    used(&device, OnError::Continue, |fs| {
        broken = fs.apply(&create(b"broken")).unwrap();
    })
    .unwrap();
    let inode = broken.unwrap().inode;
    let layout = Layout::open(&device).unwrap();
    let at = inode_offset(inode, layout.geometry(), layout.space.groups.descs()).unwrap();
    device.write_at(at + 8, &[0x55]).unwrap();
    (device, inode)
}

fn judged(device: &MemDevice) -> Image {
    let image = Image::empty(0).unwrap();
    std::fs::write(image.path(), device.to_vec()).unwrap();
    image
}

#[test]
fn damage_of_one_object_is_recorded_once_and_leaves_the_others_alone() {
    if tool::missing() {
        return;
    }
    let (device, inode) = damaged();
    used(&device, OnError::Continue, |fs| {
        for _ in 0..3 {
            let Err(FsError::Damaged { inode: found, what, .. }) = find(fs, b"broken") else {
                panic!("it was read");
            };
            assert_eq!(found, inode);
            let row =
                ROWS.iter().find(|row| what.starts_with(&format!("{} {:#08x}:", row.id, row.code)));
            assert!(row.is_some(), "{what}: it begins with the finding of a check");
        }
        fs.apply(&create(b"new")).unwrap();
        assert!(!fs.is_read_only());
    })
    .unwrap();
    let found = superblock(&device);
    assert_eq!((found.error_count, found.first_error_ino), (1, inode.0));
    // A wrong checksum (EFSBADCRC).
    assert_eq!((found.first_error_errcode, found.last_error_errcode), (4, 4));
    assert_ne!(found.state & STATE_ERROR, 0);
    assert_ne!(found.first_error_time, 0);
    // Debugfs reads the record as Linux writes it.
    let image = judged(&device);
    let shown = tool::run(tool::command("dumpe2fs").arg("-h").arg(image.path()), 60).unwrap();
    let shown = format!("{shown:?}");
    for line in ["FS Error count:           1", "First error function:     floe mount: damage"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    // The damage is still there: nothing has sealed it.
    let verdict = oracle::e2fsck(&image).unwrap();
    assert!(!verdict.clean(), "{}", verdict.text);
}

/// Entries of a block with a wrong checksum may lead to the files of another directory, as they do after a misdirected write.
/// As Linux: EUCLEAN for the one attribute, whose name is still listed; the others can be read and set.
#[test]
fn a_value_whose_bytes_have_another_hash_is_not_given_out_and_hides_no_other() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::EaInode).unwrap().copy().unwrap();
    let before = image.to_vec().unwrap();
    let recipes = Recipes::new();
    assert!(recipes.apply("value with other bytes", &Volume::open(&image).unwrap()));
    assert_ne!(image.to_vec().unwrap(), before);
    let (big, small) = (&b"user.big"[..], &b"user.small"[..]);
    let (whole, device) = (MemDevice::new(before), MemDevice::new(image.to_vec().unwrap()));
    used(&whole, OnError::Continue, |fs| {
        let inode = find(fs, b"ea-big").unwrap().inode;
        assert!(!fs.extended_attribute(inode, big).unwrap().is_empty());
    })
    .unwrap();
    let mut owner = ROOT;
    used(&device, OnError::Continue, |fs| {
        owner = find(fs, b"ea-big").unwrap().inode;
        let set =
            OpKind::SetAttribute { inode: owner, name: small, value: b"v", mode: SetMode::Any };
        fs.apply(&Op { uid: 0, gid: 0, time: now(), kind: set }).unwrap();
        for _ in 0..2 {
            let read = fs.extended_attribute(owner, big);
            assert!(
                matches!(read, Err(FsError::Damaged { inode, .. }) if inode == owner),
                "{read:?}"
            );
            assert_eq!(fs.extended_attribute(owner, small).unwrap(), b"v");
        }
        assert_eq!(fs.extended_attribute_names(owner).unwrap(), [big, small]);
        assert!(!fs.is_read_only());
    })
    .unwrap();
    let found = superblock(&device);
    assert_eq!((found.error_count, found.first_error_ino), (1, owner.0));
    // In memory, too, as a mount has it.
    let (disk, volume) = Disk::open(&device).unwrap();
    let files = disk.files_of(&volume).unwrap();
    let live = Live::new(&disk, &files, volume, now()).unwrap();
    let memory = MemFs::new(live, Limits::default());
    assert!(memory.extended_attribute(owner, big).is_err());
    assert_eq!(memory.extended_attribute(owner, small).unwrap().unwrap(), b"v");
    assert_eq!(memory.extended_attribute_names(owner).unwrap(), [big, small]);
}

/// Where there is no such feature, it is `ENOSPC`.
#[test]
fn a_large_value_gets_an_inode_of_its_own() {
    if tool::missing() {
        return;
    }
    for (profile, has_feature) in [(Profile::EaInode, true), (Profile::Ext4K1, false)] {
        let device = MemDevice::new(build::empty(profile).unwrap().to_vec().unwrap());
        used(&device, OnError::Continue, |fs| {
            let inode = fs.apply(&create(b"new")).unwrap().unwrap().inode;
            let set = |value| {
                let (name, mode) = (&b"user.big"[..], SetMode::Any);
                let kind = OpKind::SetAttribute { inode, name, value, mode };
                fs.apply(&Op { uid: 0, gid: 0, time: now(), kind }).map(drop)
            };
            set(&[1; 500]).unwrap();
            let done = set(&[2; 5000]);
            assert_eq!(done.is_ok(), has_feature, "{done:?}");
            assert_eq!(matches!(done, Err(FsError::NoSpace)), !has_feature, "{done:?}");
            let value = fs.extended_attribute(inode, b"user.big").unwrap();
            assert!(value == if has_feature { vec![2; 5000] } else { vec![1; 500] });
            // More than programs can ask for.
            assert!(matches!(set(&[3; 65_537]), Err(FsError::NoSpace)));
        })
        .unwrap();
        assert!(oracle::e2fsck(&judged(&device)).unwrap().clean());
    }
}

#[test]
fn names_in_a_block_with_a_wrong_checksum_are_not_used_where_files_are_written() {
    if tool::missing() {
        return;
    }
    let edit = dir_block("/big", 2).put32(1020, 1).stale();
    let image = Recipe::new("names").edit(edit).build().unwrap();
    let device = MemDevice::new(image.to_vec().unwrap());
    let files = Volume::open(&image).unwrap();
    let inode = files.lookup("/big").unwrap();
    used(&device, OnError::Continue, |fs| {
        let mut names = Vec::new();
        let listed = fs.list(&Caller::Judged, inode, 0, |listed| {
            names.push(listed.name.to_vec());
            true
        });
        assert!(matches!(listed, Err(FsError::Damaged { .. })), "{listed:?}");
        assert!(names.len() > 20, "{} names of other blocks", names.len());
        let left_out = (0..180).map(|number| format!("entry-{number:04}-{}", "x".repeat(30)));
        let left_out = left_out.filter(|name| !names.contains(&name.clone().into_bytes()));
        let mut count = 0;
        for name in left_out {
            let found = fs.look_up(&Caller::Judged, inode, name.as_bytes());
            assert!(matches!(found, Err(FsError::Damaged { .. })), "{name}: {found:?}");
            count += 1;
        }
        assert!(count > 5, "{count} names of the block");
    })
    .unwrap();
    let found = superblock(&device);
    let record = (found.first_error_errcode, found.first_error_ino, found.first_error_block);
    assert_eq!(record, (4, inode.0, 2), "EFSBADCRC, the directory, its block");
}

#[test]
fn the_mount_is_read_only_after_damage_if_that_was_asked_for() {
    if tool::missing() {
        return;
    }
    let (device, _) = damaged();
    used(&device, OnError::ReadOnly, |fs| {
        fs.apply(&create(b"before")).unwrap();
        assert!(find(fs, b"broken").is_err());
        assert!(matches!(fs.apply(&create(b"after")), Err(FsError::ReadOnly)));
        assert!(find(fs, b"before").is_ok(), "it can be read");
        fs.sync().unwrap();
    })
    .unwrap();
    used(&device, OnError::Continue, |fs| {
        assert!(find(fs, b"before").is_ok() && find(fs, b"after").is_err());
    })
    .unwrap();
}

#[test]
fn nothing_is_written_after_a_shutdown() {
    if tool::missing() {
        return;
    }
    let (device, _) = damaged();
    let ended = used(&device, OnError::Shutdown, |fs| {
        assert!(find(fs, b"broken").is_err());
        assert!(matches!(fs.attributes(ROOT), Err(FsError::Ended(_))));
        assert!(fs.apply(&create(b"after")).is_err() && fs.sync().is_err());
    });
    assert!(ended.is_err());
    used(&device, OnError::Continue, |fs| assert!(find(fs, b"after").is_err())).unwrap();
}

/// A device that fails all writes from a moment on.
struct Failing {
    inner: MemDevice,
    fails: Arc<AtomicBool>,
}

impl ReadBlocks for Failing {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset_bytes, into)
    }
}

impl WriteBlocks for Failing {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(io::Error::other("the cable is out"));
        }
        self.inner.write_at(offset_bytes, from)
    }
    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[test]
fn a_device_that_stops_writing_ends_the_journal_and_says_so_at_fsync_and_at_the_end() {
    if tool::missing() {
        return;
    }
    let image = build::empty(Profile::Ext4).unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let inner = MemDevice::new(image.to_vec().unwrap());
    let device = Failing { inner, fails: Arc::clone(&fails) };
    let ended = used(device, OnError::Continue, |fs| {
        fs.apply(&create(b"durable")).unwrap();
        fs.sync().unwrap();
        fails.store(true, Ordering::Relaxed);
        let _ = fs.apply(&create(b"lost"));
        let error = fs.sync().unwrap_err();
        assert!(error.to_string().contains("the cable is out"), "{error}");
        assert!(fs.sync().is_err(), "a failed flush is not forgotten");
        assert!(matches!(fs.apply(&create(b"later")), Err(FsError::ReadOnly)));
        assert!(find(fs, b"durable").is_ok());
    });
    assert!(ended.unwrap_err().contains("the cable is out"));
}

/// A block of an inode table that cannot be read: its inodes fail, others do not.
#[test]
fn an_unreadable_block_of_inodes_fails_its_inodes_alone() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::Ext4).unwrap();
    let memory = MemDevice::new(image.to_vec().unwrap());
    let layout = Layout::open(&memory).unwrap();
    let geometry = layout.geometry().clone();
    let groups = layout.space.groups.descs().to_vec();
    let per_block = geometry.block_size / geometry.inode_size;
    let victim = InodeNr(1 + 4 * per_block);
    let block = inode_offset(victim, &geometry, &groups).unwrap() / u64::from(geometry.block_size);
    let device = Faulty::new(memory, geometry.block_size, [(BlockNr(block), Fault::Unreadable)]);
    used(device, OnError::Continue, |fs| {
        assert!(matches!(fs.attributes(victim), Err(FsError::Unreadable { .. })));
        assert!(fs.attributes(ROOT).is_ok());
    })
    .unwrap();
}
