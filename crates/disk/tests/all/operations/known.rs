//! Faults that other writers of ext4 are known for, and images that Linux filled.

use floe_blockdev::MemDevice;
use floe_disk::ops::{Caller, NewInode, OpError, Step};
use floe_disk::volume::Volume;
use floe_ext4::tx::{Block, DirectTx, Tx};
use floe_format::InodeNr;
use floe_format::ext::extent::ExtentNode;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_testkit::{Image, Profile, build, oracle, tool, tree};

use super::model::time;
use super::{device_of, image_of, judge, writable};

const CALLER: Caller = Caller { uid: 0, gid: 0, time: time(1_700_000_000), may_use_reserve: true };

struct Open<'d> {
    device: &'d MemDevice,
    volume: Volume,
    tx: DirectTx<'d, MemDevice>,
}

impl<'d> Open<'d> {
    fn new(device: &'d MemDevice) -> Self {
        let mut volume = Volume::open(device).unwrap();
        let mut tx = DirectTx::new(device, volume.geometry().clone());
        volume.begin_writing(&mut tx, time(1)).unwrap();
        Self { device, volume, tx }
    }

    fn commit(&mut self) {
        let epoch = self.volume.end_epoch();
        self.tx.commit().unwrap();
        self.volume.durable(epoch);
    }

    fn create(&mut self, dir: InodeNr, name: &[u8], new: &NewInode<'_>) -> InodeNr {
        self.volume.create(&mut self.tx, &CALLER, dir, name, new).unwrap()
    }

    fn finish(&mut self, inode: InodeNr) {
        while self.volume.finish_orphan(&mut self.tx, self.device, &CALLER, inode).unwrap()
            == Step::More
        {
            self.commit();
        }
    }

    fn finish_all(&mut self) {
        while let Some(&orphan) = self.volume.orphans().first() {
            self.finish(orphan);
        }
    }

    fn leave(&mut self) -> Image {
        self.volume.end_writing(&mut self.tx, time(2)).unwrap();
        self.commit();
        image_of(self.device)
    }
}

/// Everything that the base images hold (made by mke2fs, debugfs and the like: inline data, shared attribute blocks, values
/// in inodes, deep trees, holes) can be deleted, and then nothing is left in use.
#[test]
fn what_others_made_can_be_deleted() {
    if tool::missing() {
        return;
    }
    for profile in writable() {
        let image = build::base(profile).unwrap();
        let paths = tree::stored(&image).unwrap();
        let device = device_of(&image);
        let mut open = Open::new(&device);
        let before = open.volume.room();
        let (mut left, mut dirs) = (0, vec![InodeNr::ROOT]);
        // Below before above: the longest paths first.
        let mut all: Vec<_> = paths.iter().filter(|(path, _)| path.as_slice() != b"/").collect();
        all.sort_by_key(|(path, _)| {
            std::cmp::Reverse((path.iter().filter(|b| **b == b'/').count(), path.len()))
        });
        for (path, node) in all {
            let at = path.iter().rposition(|byte| *byte == b'/').unwrap();
            let (parent, name) = (if at == 0 { &b"/"[..] } else { &path[..at] }, &path[at + 1..]);
            let Some(parent) = paths.get(parent) else { continue };
            dirs.push(parent.inode);
            let removed = if node.is_dir() {
                open.volume.rmdir(&mut open.tx, &CALLER, parent.inode, name)
            } else {
                open.volume.unlink(&mut open.tx, &CALLER, parent.inode, name)
            };
            match removed {
                Ok(removed) if removed.last => open.finish(removed.inode),
                Ok(_) => {}
                // Encrypted directories, and immutable files, stay with what is above them.
                Err(OpError::Unsupported(_) | OpError::NotPermitted(_) | OpError::NotEmpty) => {
                    left += 1
                }
                Err(error) => panic!("{profile}: {}: {error}", String::from_utf8_lossy(path)),
            }
        }
        open.finish_all();
        let after = open.volume.room();
        assert!(after.free_inodes > before.free_inodes && after.free_blocks > before.free_blocks);
        let image = open.leave();
        judge(&image, profile.name());
        let rest = tree::stored(&image).unwrap();
        assert_eq!(rest.len(), left + 1, "{profile}: {:?}", rest.keys());
    }
}

/// Names of a directory that grows are found through its index: each costs the same, however many there are.
#[test]
fn many_names_cost_the_same_each() {
    if tool::missing() {
        return;
    }
    let image = Image::empty(96 << 20).unwrap();
    let args = ["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "90000", "-O", "^has_journal"];
    build::mke2fs(image.path(), &args).unwrap();
    let device = device_of(&image);
    let mut open = Open::new(&device);
    let dir = open.create(InodeNr::ROOT, b"dir", &NewInode::directory(0o755));
    let file = open.create(dir, b"first", &NewInode::regular(0o644));
    let (mut reads, mut links) = (Vec::new(), 1u32);
    let mut target = file;
    for part in 0..4 {
        let mut counted = Counted { tx: &mut open.tx, reads: 0 };
        for at in 0..10_000 {
            // An inode has 65,000 links at most, and the inode table is not what is measured.
            if links >= 30_000 {
                (target, links) = (file, 1);
            }
            let name = format!("name-{part}-{at}");
            open.volume.link(&mut counted, &CALLER, target, dir, name.as_bytes()).unwrap();
            links += 1;
        }
        reads.push(counted.reads);
        open.commit();
    }
    // The second level of the index comes on the way, and costs one block more.
    assert!(reads[3] < reads[1] * 3 / 2, "{reads:?}");
    for at in (0..10_000).step_by(997) {
        let name = format!("name-2-{at}");
        let named = open.volume.lookup(&mut open.tx, dir, name.as_bytes()).unwrap().unwrap();
        assert_eq!(named.inode, file);
    }
    judge(&open.leave(), "40,000 names");
}

/// Counts the blocks that are read.
struct Counted<'t, 'd> {
    tx: &'t mut DirectTx<'d, MemDevice>,
    reads: u64,
}

impl Tx for Counted<'_, '_> {
    fn block(&mut self, block: floe_format::BlockNr) -> Result<Block, floe_ext4::tx::Refusal> {
        self.reads += 1;
        self.tx.block(block)
    }

    fn block_mut(
        &mut self,
        block: floe_format::BlockNr,
    ) -> Result<&mut [u8], floe_ext4::tx::Refusal> {
        self.tx.block_mut(block)
    }

    fn zeroed(&mut self, block: floe_format::BlockNr) -> Result<&mut [u8], floe_ext4::tx::Refusal> {
        self.tx.zeroed(block)
    }

    fn revoke(&mut self, run: floe_format::BlockRun) {
        self.tx.revoke(run);
    }
}

/// A directory has more subdirectories than its link count can say (dir_nlink): it says 1, and goes on.
#[test]
fn a_directory_has_more_subdirectories_than_links() {
    if tool::missing() {
        return;
    }
    let image = Image::empty(200 << 20).unwrap();
    let args = ["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "70000", "-O", "^has_journal"];
    build::mke2fs(image.path(), &args).unwrap();
    let device = device_of(&image);
    let mut open = Open::new(&device);
    let dir = open.create(InodeNr::ROOT, b"dir", &NewInode::directory(0o755));
    for at in 0..65_010 {
        open.create(dir, at.to_string().as_bytes(), &NewInode::directory(0o755));
        if at % 1000 == 0 {
            open.commit();
        }
    }
    let links =
        |open: &mut Open<'_>| open.volume.inode(&mut open.tx, dir).unwrap().base.links_count;
    assert_eq!(links(&mut open), 1);
    let removed = open.volume.rmdir(&mut open.tx, &CALLER, dir, b"7").unwrap();
    open.finish(removed.inode);
    assert_eq!(links(&mut open), 1);
    judge(&open.leave(), "65,009 subdirectories");
}

/// A file of single blocks far apart: its tree has two levels of nodes below the root, and goes again when it is cut.
#[test]
fn trees_get_deep_and_go_again() {
    if tool::missing() {
        return;
    }
    for profile in [Profile::Ext4K1, Profile::NoExtents, Profile::BigallocK1] {
        let device = device_of(&build::empty(profile).unwrap());
        let mut open = Open::new(&device);
        let before = open.volume.room();
        let file = open.create(InodeNr::ROOT, b"file", &NewInode::regular(0o644));
        let count: u64 = if profile == Profile::BigallocK1 { 1000 } else { 1500 };
        for at in 0..count {
            let place = at * 16 * 1024;
            let bytes = at.to_le_bytes();
            open.volume.write(&mut open.tx, &device, &CALLER, file, place, &bytes).unwrap();
        }
        let inode = open.volume.inode(&mut open.tx, file).unwrap();
        if inode.flags().contains(InodeFlags::EXTENTS) {
            assert_eq!(ExtentNode::new(&inode.base.block).unwrap().header().depth, 2);
        }
        let mut word = [0; 8];
        for at in 0..count {
            let volume = &open.volume;
            volume.read(&mut open.tx, &device, &inode, at * 16 * 1024, &mut word).unwrap();
            assert_eq!(u64::from_le_bytes(word), at);
        }
        open.commit();
        let mut steps = 0;
        while open.volume.truncate(&mut open.tx, &device, &CALLER, file, 5).unwrap() == Step::More {
            steps += 1;
            assert!(open.volume.last_changed_blocks() < 200);
            if steps == 1 {
                // As a crash leaves it: e2fsck cuts it to its size.
                open.commit();
                let image = image_of(&device);
                let repaired = oracle::e2fsck_repair(&image).unwrap().1;
                judge(&repaired, "cut off");
                assert_eq!(tree::stored(&repaired).unwrap()[&b"/file"[..]].size_bytes, 5);
            }
            open.commit();
        }
        assert!(steps > 1, "{profile}: {steps}");
        let removed = open.volume.unlink(&mut open.tx, &CALLER, InodeNr::ROOT, b"file").unwrap();
        open.finish(removed.inode);
        assert_eq!(open.volume.room(), before, "{profile}");
        judge(&open.leave(), profile.name());
    }
}

/// Cutting an open file that has no name any more takes steps, too, and does not delete it.
#[test]
fn cutting_an_open_file_without_a_name_keeps_it() {
    if tool::missing() {
        return;
    }
    let device = device_of(&build::empty(Profile::Ext4K1).unwrap());
    let mut open = Open::new(&device);
    let before = open.volume.room();
    let file = open.create(InodeNr::ROOT, b"file", &NewInode::regular(0o644));
    for at in 0..200u64 {
        open.volume.write(&mut open.tx, &device, &CALLER, file, at * 4096, b"x").unwrap();
    }
    assert!(open.volume.unlink(&mut open.tx, &CALLER, InodeNr::ROOT, b"file").unwrap().last);
    let first = open.volume.truncate(&mut open.tx, &device, &CALLER, file, 1).unwrap();
    assert_eq!(first, Step::More);
    let step = |open: &mut Open<'_>| {
        open.volume.continue_cut(&mut open.tx, &device, &CALLER, file).unwrap()
    };
    while step(&mut open) == Step::More {
        open.commit();
    }
    let mut byte = [0];
    let inode = open.volume.inode(&mut open.tx, file).unwrap();
    assert_eq!(open.volume.read(&mut open.tx, &device, &inode, 0, &mut byte).unwrap(), 1);
    assert_eq!((byte, open.volume.orphans()), (*b"x", vec![file]));
    open.finish(file);
    assert_eq!(open.volume.room(), before);
    judge(&open.leave(), "cut without a name");
}

/// Blocks that a transaction freed are not handed out before the caller says that it is durable (R7).
#[test]
fn freed_space_waits_until_it_is_durable() {
    if tool::missing() {
        return;
    }
    let device = device_of(&build::empty(Profile::Ext4K1).unwrap());
    let mut open = Open::new(&device);
    let file = open.create(InodeNr::ROOT, b"file", &NewInode::regular(0o644));
    open.volume.write(&mut open.tx, &device, &CALLER, file, 0, &[1; 5000]).unwrap();
    let place = |open: &mut Open<'_>, file| {
        let inode = open.volume.inode(&mut open.tx, file).unwrap();
        open.volume.segment(&mut open.tx, &inode, 0).unwrap().unwrap().kind
    };
    let first = place(&mut open, file);
    open.commit();
    let removed = open.volume.unlink(&mut open.tx, &CALLER, InodeNr::ROOT, b"file").unwrap();
    open.finish(removed.inode);
    let epoch = open.volume.end_epoch();
    assert!(open.volume.holds_back());
    let new = |open: &mut Open<'_>, name: &[u8]| {
        let file = open.create(InodeNr::ROOT, name, &NewInode::regular(0o644));
        open.volume.write(&mut open.tx, &device, &CALLER, file, 0, &[2; 5000]).unwrap();
        (file, place(open, file))
    };
    let second = new(&mut open, b"second");
    assert!(second.0 != file && second.1 != first);
    open.tx.commit().unwrap();
    open.volume.durable(epoch);
    assert!(!open.volume.holds_back());
    assert_eq!(new(&mut open, b"third").0, file);
    // A file that takes all that is left has the blocks, too.
    let whole = open.create(InodeNr::ROOT, b"whole", &NewInode::regular(0o644));
    let mut at = 0;
    while open.volume.write(&mut open.tx, &device, &CALLER, whole, at, &[3; 1024]).is_ok() {
        at += 1024;
    }
    let inode = open.volume.inode(&mut open.tx, whole).unwrap();
    let segment = |at| open.volume.segment(&mut open.tx, &inode, at).unwrap().unwrap().kind;
    assert!((0..at).step_by(1024).map(segment).any(|kind| kind == first));
    judge(&open.leave(), "reuse");
}

/// Orphans that a crash leaves, in the list and in the orphan file, are finished by e2fsck and by the next to open.
#[test]
fn orphans_are_finished_after_a_crash() {
    if tool::missing() {
        return;
    }
    for profile in [Profile::Ext4K1, Profile::OrphanFile, Profile::Ext2K1] {
        let device = device_of(&build::empty(profile).unwrap());
        let mut open = Open::new(&device);
        let before = open.volume.room();
        for at in 0..20u32 {
            let name = at.to_string();
            let file = open.create(InodeNr::ROOT, name.as_bytes(), &NewInode::regular(0o644));
            open.volume.write(&mut open.tx, &device, &CALLER, file, 0, &[1; 3000]).unwrap();
            let removed = open.volume.unlink(&mut open.tx, &CALLER, InodeNr::ROOT, name.as_bytes());
            assert!(removed.unwrap().last);
        }
        // From the middle, too.
        let middle = open.volume.orphans()[7];
        open.finish(middle);
        assert_eq!(open.volume.orphans().len(), 19);
        open.commit();
        let (_, repaired) = oracle::e2fsck_repair(&image_of(&device)).unwrap();
        judge(&repaired, profile.name());
        let mut again = Open::new(&device);
        assert_eq!(again.volume.orphans().len(), 19);
        again.finish_all();
        assert_eq!(again.volume.room(), before);
        judge(&again.leave(), profile.name());
    }
}

/// A file that is replaced while a program has it open keeps its content until that closes it.
#[test]
fn a_file_that_is_open_outlives_its_name() {
    if tool::missing() {
        return;
    }
    let device = device_of(&build::empty(Profile::Ext4).unwrap());
    let mut open = Open::new(&device);
    let old = open.create(InodeNr::ROOT, b"old", &NewInode::regular(0o644));
    open.volume.write(&mut open.tx, &device, &CALLER, old, 0, b"old content").unwrap();
    open.create(InodeNr::ROOT, b"new", &NewInode::regular(0o644));
    let (from, to) = ((InodeNr::ROOT, &b"new"[..]), (InodeNr::ROOT, &b"old"[..]));
    let renamed = open.volume.rename(&mut open.tx, &CALLER, from, to, Default::default()).unwrap();
    assert_eq!(renamed.replaced.map(|one| (one.inode, one.last)), Some((old, true)));
    open.commit();
    let inode = open.volume.inode(&mut open.tx, old).unwrap();
    assert_eq!(inode.file_type(), Some(FileType::Regular));
    let mut bytes = [0; 20];
    let len = open.volume.read(&mut open.tx, &device, &inode, 0, &mut bytes).unwrap();
    assert_eq!(&bytes[..len], b"old content");
    open.finish(old);
    judge(&open.leave(), "replaced while open");
}
