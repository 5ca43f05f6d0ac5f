//! Directories above cubes: every one is destroyed, and the cube is read and written all the same; a path follows a rename, and is
//! looked for once.

use std::io;

use floe_blockdev::{MemDevice, ReadBlocks, WriteBlocks};
use floe_check::cube::{CubeName, check_cube};
use floe_check::problem::Weight;
use floe_check::{CheckOptions, check};
use floe_ext4::alloc::Space as _;
use floe_ext4::fs::FileSystem as Volume;
use floe_ext4::inode_table::inode_place;
use floe_format::InodeNr;
use floe_fs::{Caller, CubeCall, NewInode, OpKind, Place, RenameMode, Settings};
use floe_sync::atomic::{AtomicU64, Ordering};

use super::struck::{BLOCK, at, find, image, make, native, op, read, used, write};
use super::{blocks, names};
use floe_format::native::cube::Policies;

/// An image with cubes at `/home/bob/one` and `/home/bob/two`, and the inodes of the directories above them.
fn deep() -> (Vec<u8>, [InodeNr; 3]) {
    let device = MemDevice::new(image(Policies::default()));
    let (above, closed) = used(&device, |fs| {
        let home = make(fs, InodeNr::ROOT, "home", NewInode::directory(0o755)).unwrap();
        let bob = make(fs, home, "bob", NewInode::directory(0o755)).unwrap();
        for name in [&b"one"[..], b"two"] {
            let call = CubeCall::Create { parent: bob, name, settings: Settings::default() };
            fs.cube_call(&call).unwrap();
            let top = find(fs, bob, std::str::from_utf8(name).unwrap()).unwrap();
            let file = make(fs, top, "file", NewInode::regular(0o644)).unwrap();
            write(fs, file, 0, &[5; 9000]).unwrap();
        }
        [InodeNr::ROOT, home, bob]
    });
    closed.unwrap();
    (device.to_vec(), above)
}

/// Writes garbage over an inode, or over the blocks of a directory.
fn destroy(device: &dyn WriteBlocks, directory: InodeNr, whole: bool) {
    let content = blocks(device, directory);
    if whole {
        let volume = Volume::open(device).unwrap();
        let descs = volume.space.groups().descs();
        let (block, at) = inode_place(directory, volume.geometry(), descs).unwrap();
        device.write_at(block.0 * BLOCK + at as u64, &[0xa5; 128]).unwrap();
    }
    for (_, block) in content {
        device.write_at(block * BLOCK, &[0x5a; BLOCK as usize]).unwrap();
    }
}

#[test]
fn a_cube_is_used_although_every_directory_above_it_is_destroyed() {
    let (bytes, above) = deep();
    for (destroyed, whole) in
        [(0..3, true), (0..3, false), (0..1, true), (1..2, true), (2..3, true)]
    {
        let device = MemDevice::new(bytes.clone());
        for directory in &above[destroyed.clone()] {
            destroy(&device, *directory, whole);
        }
        let ((), closed) = used(&device, |fs| {
            for cube in ["one", "two"] {
                let top = at(fs, &format!("/home/bob/{cube}")).unwrap();
                assert!(names(fs, top).contains(&"file".to_owned()));
                let file = find(fs, top, "file").unwrap();
                assert_eq!(read(fs, file, 9999).unwrap(), [5; 9000]);
                let new = make(fs, top, "new", NewInode::regular(0o644)).unwrap();
                write(fs, new, 0, &[6; 5000]).unwrap();
                fs.sync_inode(new, None).unwrap();
            }
            let bob = at(fs, "/home/bob").unwrap();
            assert!(fs.attributes(bob).is_ok() && fs.attributes(InodeNr::ROOT).is_ok());
            assert!(names(fs, bob).contains(&"two".to_owned()), "{:?}", names(fs, bob));
            let other = fs.look_up(&Caller::Judged, bob, b"other");
            assert!(other.is_err(), "only cubes are found");
        });
        closed.unwrap_or_else(|error| panic!("{destroyed:?}: {error}"));
        for number in [3, 4] {
            let options = CheckOptions::default();
            let (report, _) = check_cube(&device, &options, &CubeName::Number(number)).unwrap();
            // The path in its sub-superblock leads nowhere any more.
            let damage = report.found.iter().filter(|one| one.row().weight > Weight::Remark);
            assert_eq!(damage.count(), 0, "{destroyed:?}: {:?}", report.found);
        }
        let ((), _) = used(&device, |fs| {
            let new = at(fs, "/home/bob/one/new").unwrap();
            assert_eq!(read(fs, new, 9999).unwrap(), [6; 5000]);
        });
    }
}

/// A directory above cubes is renamed: the paths follow, at once for whoever asks and with the unmount on the disk, so that the next mount
/// keeps the way that leads there.
#[test]
fn the_path_of_a_cube_follows_a_rename_above_it() {
    let (bytes, [_, home, bob]) = deep();
    let device = MemDevice::new(bytes);
    let shown = |number| CubeCall::Number(number);
    let ((), closed) = used(&device, |fs| {
        let from = Place { directory: home, name: b"bob" };
        let to = Place { directory: InodeNr::ROOT, name: b"alice" };
        fs.apply(&op(OpKind::Rename { from, to, mode: RenameMode::Replace })).unwrap();
        fs.sync_inode(bob, None).unwrap();
        let text = String::from_utf8(fs.cube_call(&shown(3)).unwrap()).unwrap();
        assert!(text.contains("\tpath=/alice/one\t"), "{text}");
    });
    closed.unwrap();
    let found = check(&device, &CheckOptions::default()).unwrap().found;
    assert!(found.is_empty(), "{found:?}");
    destroy(&device, bob, true);
    let ((), _) = used(&device, |fs| {
        let text = String::from_utf8(fs.cube_call(&shown(4)).unwrap()).unwrap();
        assert!(text.contains("\tpath=/alice/two\t"), "{text}");
        let file = at(fs, "/alice/two/file").unwrap();
        assert_eq!(read(fs, file, 9999).unwrap(), [5; 9000]);
        assert!(at(fs, "/home/bob").is_err());
    });
}

/// A device that counts reads of a range of blocks.
struct Watched {
    base: MemDevice,
    from: u64,
    count: AtomicU64,
}

impl ReadBlocks for Watched {
    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        let at = self.from * BLOCK;
        if offset_bytes <= at && at < offset_bytes + into.len() as u64 {
            self.count.fetch_add(1, Ordering::SeqCst);
        }
        self.base.read_at(offset_bytes, into)
    }
}

impl WriteBlocks for Watched {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        self.base.write_at(offset_bytes, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.base.flush()
    }
}

/// Fifty cubes in one directory: the mount reads that once, a listing of all cubes not at all, and the unmount only if a directory above was
/// renamed, however many cubes there are.
#[test]
fn directories_above_many_cubes_are_read_once() {
    const CUBES: usize = 50;
    let device = native(4 * (CUBES as u64 + 8), "lot_size=4m", "2000");
    let (home, closed) = used(&device, |fs| {
        let home = make(fs, InodeNr::ROOT, "home", NewInode::directory(0o755)).unwrap();
        let other = make(fs, InodeNr::ROOT, "other", NewInode::directory(0o755)).unwrap();
        make(fs, other, "inner", NewInode::directory(0o755)).unwrap();
        for number in 0..CUBES {
            let (parent, name, settings) = (home, format!("cube{number}"), Settings::default());
            fs.cube_call(&CubeCall::Create { parent, name: name.as_bytes(), settings }).unwrap();
        }
        home
    });
    closed.unwrap();
    let [(_, from)] = blocks(&device, home)[..] else { panic!("one block") };
    let device = Watched { base: device, from, count: AtomicU64::new(0) };
    let since = || device.count.swap(0, Ordering::SeqCst);
    for (renamed, home) in
        [(None, "home"), (Some(("other", "another")), "home"), (Some(("home", "alice")), "alice")]
    {
        let mut listing = 0;
        let (asked, closed) = used(&device, |fs| {
            since();
            if let Some((from, to)) = renamed {
                let at =
                    |name: &'static str| Place { directory: InodeNr::ROOT, name: name.as_bytes() };
                fs.apply(&op(OpKind::Rename {
                    from: at(from),
                    to: at(to),
                    mode: RenameMode::Replace,
                }))
                .unwrap();
                fs.sync().unwrap();
            }
            since();
            for number in fs.cube_call(&CubeCall::List).unwrap().split(|byte| *byte == b' ') {
                let number = std::str::from_utf8(number).unwrap().parse().unwrap();
                let text =
                    String::from_utf8(fs.cube_call(&CubeCall::Number(number)).unwrap()).unwrap();
                assert!(text.contains(&format!("\tpath=/{home}/cube{}\t", number - 1)), "{text}");
                listing += 1;
            }
            since()
        });
        closed.unwrap();
        // To look for the old way, and for the new one.
        let most = 2 * u64::from(renamed.is_some_and(|(from, _)| from == "home"));
        assert_eq!(listing, CUBES);
        assert!(asked <= most, "{asked} reads for a listing after {renamed:?}");
        assert!(since() <= most, "read again at the unmount after {renamed:?}");
    }
    let found = check(&device.base, &CheckOptions::default()).unwrap().found;
    assert!(found.is_empty(), "{found:?}");
}
