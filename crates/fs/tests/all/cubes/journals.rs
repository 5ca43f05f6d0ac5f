//! Damaged journals of cubes, and lists of orphans that name something of another cube: found, kept from harm, and repaired.

use floe_blockdev::{Fault, Faulty, MemDevice, ReadBlocks, WriteBlocks};
use floe_check::problem::Weight;
use floe_check::{CheckOptions, Problem, check};
use floe_ext4::alloc::Space as _;
use floe_ext4::fs::FileSystem as Layout;
use floe_ext4::journal::{CubeJournal, CubeJournals, find_cubes};
use floe_format::ext::jbd2;
use floe_format::ext::orphan_file::OrphanBlock;
use floe_format::native::cube::Policies;
use floe_format::{BlockNr, InodeNr};
use floe_fs::{Disk, FileSystem, FsError, Live, MemFs, Mode, NewInode, Store as _, now};
use floe_repair::commit::{CommitOptions, Seen};
use floe_repair::policy::Yes;
use floe_repair::{RepairOptions, repair};

use super::edit;
use super::struck::{BLOCK, Tenants, find, laid_out, load, make, read, used, write};

pub(super) fn journals(device: &dyn ReadBlocks) -> CubeJournals {
    let layout = Layout::open(device).unwrap();
    let descs = layout.space.groups().descs();
    find_cubes(device, &layout.superblock, layout.geometry(), descs)
}

fn of_a(device: &dyn ReadBlocks) -> CubeJournal {
    journals(device).usable.into_iter().find(|own| own.cube == 1).unwrap()
}

pub(super) fn damage(device: &dyn ReadBlocks) -> Vec<Problem> {
    let mut all = check(device, &CheckOptions::default()).unwrap().found;
    all.retain(|problem| problem.row().weight > Weight::Remark);
    all
}

pub(super) fn ids(found: &[Problem]) -> Vec<&'static str> {
    found.iter().map(|problem| problem.row().id).collect()
}

/// Repairs all, after which nothing is left.
pub(super) fn repaired(device: &MemDevice) {
    let seen = Seen::of(device);
    let planned = repair(device, &RepairOptions::default(), &mut Yes).unwrap();
    assert!(planned.left.is_empty(), "{:?}", planned.left);
    let options = CommitOptions::of(&seen);
    planned.commit(device, &options).unwrap();
    drop(planned);
    assert!(damage(device).is_empty(), "{:?}", damage(device));
}

/// Both tenants are served for writes, and nothing is wrong afterwards.
fn serves(device: &MemDevice) {
    let ((), closed) = used(device, |fs| {
        for name in ["a", "b"] {
            let top = find(fs, InodeNr::ROOT, name).unwrap();
            let failed = load(fs, top, 7);
            assert!(failed.is_empty(), "{name}: {failed:?}");
        }
    });
    closed.unwrap();
    assert!(damage(device).is_empty(), "{:?}", damage(device));
}

/// Files of `/a` and `/b` that fsync has made durable, in a file system that nobody unmounts.
fn crashed() -> MemDevice {
    let device = MemDevice::new(laid_out(Tenants::Apart, Policies::default()));
    let (disk, volume) = Disk::open(&device).unwrap();
    let files = disk.files().unwrap();
    let live = Live::new(&disk, &files, volume, now()).unwrap();
    let fs = FileSystem::new(MemFs::new(live, Default::default()));
    for top in ["a", "b"] {
        let top = find(&fs, InodeNr::ROOT, top).unwrap();
        for name in ["first", "second", "third"] {
            let file = make(&fs, top, name, NewInode::regular(0o644)).unwrap();
            write(&fs, file, 0, name.as_bytes()).unwrap();
            fs.sync_inode(file, None).unwrap();
            fs.sync_inode(top, None).unwrap();
        }
    }
    let bytes = device.to_vec();
    drop(fs);
    MemDevice::new(bytes)
}

/// The blocks of a log with descriptors of transactions, in their order.
pub(super) fn descriptors(device: &dyn ReadBlocks, own: &CubeJournal) -> Vec<u64> {
    let mut block = vec![0; BLOCK as usize];
    let mut all: Vec<(u32, u64)> = Vec::new();
    for at in 1..own.journal.blocks {
        let offset = own.journal.offset_bytes(at).unwrap();
        device.read_at(offset, &mut block).unwrap();
        let header = jbd2::header(&block);
        let is_new =
            |header: &jbd2::BlockHeader| header.sequence >= own.journal.superblock.sequence;
        if let Some(header) = header.filter(is_new)
            && header.blocktype == jbd2::DESCRIPTOR_BLOCK
        {
            all.push((header.sequence, offset));
        }
    }
    all.sort_unstable();
    all.into_iter().map(|(_, offset)| offset).collect()
}

#[test]
fn a_damaged_log_of_a_cube_is_replayed_up_to_the_damage() {
    let device = crashed();
    let own = of_a(&device);
    let transactions = descriptors(&device, &own);
    assert!(transactions.len() > 2, "{transactions:?}");
    let last = transactions[transactions.len() - 1];
    device.write_at(last + BLOCK + 100, b"damage of a logged block").unwrap();
    let problems = damage(&device);
    let is_wanted = |problem: &Problem| matches!(problem, Problem::CubeJournalDamaged { cube: 1, inode, .. } if *inode == own.inode);
    assert!(problems.iter().any(is_wanted), "{problems:?}");
    // A mount serves the other cube, and this one only for reading.
    let ((), _) = used(&device.clone(), |fs| {
        let b = find(fs, InodeNr::ROOT, "b").unwrap();
        let failed = load(fs, b, 7);
        assert!(failed.is_empty(), "{failed:?}");
        let a = find(fs, InodeNr::ROOT, "a").unwrap();
        assert!(make(fs, a, "new", NewInode::regular(0o644)).is_err());
    });
    repaired(&device);
    let ((), closed) = used(&device, |fs| {
        for (top, names) in [("a", &["first", "second"][..]), ("b", &["first", "second", "third"])]
        {
            let top = find(fs, InodeNr::ROOT, top).unwrap();
            for name in names {
                let file = find(fs, top, name).unwrap();
                assert_eq!(read(fs, file, 90).unwrap(), name.as_bytes());
            }
        }
    });
    closed.unwrap();
    serves(&device);
}

/// Cubes as a crash or an unmount leaves them.
fn left(locked: bool) -> MemDevice {
    if locked { crashed() } else { MemDevice::new(laid_out(Tenants::Apart, Policies::default())) }
}

#[test]
fn a_journal_of_a_cube_that_cannot_be_used_is_made_anew() {
    for locked in [false, true] {
        let device = left(locked);
        let own = of_a(&device);
        device.write_at(own.journal.offset_bytes(0).unwrap(), &[0xa5; 1024]).unwrap();
        let problems = damage(&device);
        let id = if locked { "journal-superblock-lost" } else { "cube-journal-damaged" };
        assert!(ids(&problems).contains(&id), "{problems:?}");
        repaired(&device);
        let after = journals(&device);
        assert!(after.unusable.is_empty() && after.usable.len() == 2, "{after:?}");
        serves(&device);
    }
}

/// A cube whose journal cannot be used takes no changes: none is accepted that could only be lost later.
#[test]
fn a_cube_whose_journal_cannot_be_used_is_only_read() {
    for locked in [false, true] {
        let device = left(locked);
        let own = of_a(&device);
        let unread = [(BlockNr(own.journal.offset_bytes(0).unwrap() / BLOCK), Fault::Unreadable)];
        let faulty = Faulty::new(device.clone(), BLOCK as u32, unread);
        device.write_at(own.journal.offset_bytes(0).unwrap(), &[0xa5; 1024]).unwrap();
        let mounted = device.clone();
        if locked {
            // Its log can be found again: it waits for the repair.
            let (mode, closed) = used(&mounted, |fs| fs.store().gates().unwrap().state(1).0);
            closed.unwrap();
            assert_eq!(mode, Mode::Failed);
        } else {
            only_a_is_read(&mounted);
            assert!(!damage(&mounted).is_empty());
        }
        only_a_is_read(&faulty);
        repaired(&mounted);
        repaired(&device);
        serves(&device);
    }
}

/// Also if the inode of its file is lost: the journal that the administrator gave it is gone.
#[test]
fn a_cube_whose_journal_lost_its_inode_is_only_read() {
    let device = left(false);
    edit(&device, of_a(&device).inode, |inode| inode.base.flags &= !0x10);
    only_a_is_read(&device.clone());
    repaired(&device);
    serves(&device);
}

fn only_a_is_read(device: &dyn WriteBlocks) {
    let ((), closed) = used(device, |fs| {
        let gates = fs.store().gates().unwrap();
        assert_eq!((gates.state(1).0, gates.state(2).0), (Mode::ReadOnly, Mode::Serving));
        let a = find(fs, InodeNr::ROOT, "a").unwrap();
        let refused = make(fs, a, "new", NewInode::regular(0o644));
        assert!(matches!(refused, Err(FsError::ReadOnly)), "{refused:?}");
        assert!(fs.sync_inode(a, None).is_err());
        let b = find(fs, InodeNr::ROOT, "b").unwrap();
        let failed = load(fs, b, 7);
        assert!(failed.is_empty(), "{failed:?}");
        // Nothing is lost: nothing of it was changed.
        fs.sync().unwrap();
    });
    closed.unwrap();
}

/// A program that only looks at the others unmounts without an error.
#[test]
fn an_unmount_beside_a_cube_that_is_only_read_is_no_error() {
    let device = left(false);
    edit(&device, of_a(&device).inode, |inode| inode.base.flags &= !0x10);
    let (failures, closed) = used(&device, |fs| fs.store().gates().unwrap().failures());
    closed.unwrap();
    assert!(matches!(&failures[..], [(1, Mode::ReadOnly, _)]), "{failures:?}");
}

#[test]
fn a_cube_whose_journal_lost_its_file_has_none_afterwards() {
    let device = MemDevice::new(laid_out(Tenants::Apart, Policies::default()));
    let own = of_a(&device);
    edit(&device, own.inode, |inode| inode.base.flags &= !0x10);
    assert_eq!(ids(&damage(&device)), ["cube-journal-damaged"]);
    repaired(&device);
    let after = journals(&device);
    assert!(after.unusable.is_empty() && after.usable.len() == 1, "{after:?}");
    serves(&device);
}

#[test]
fn a_list_of_orphans_deletes_nothing_of_another_cube() {
    let device = MemDevice::new(laid_out(Tenants::Apart, Policies::default()));
    let name = format!("file3{}", "-".repeat(180));
    let (victim, closed) =
        used(&device, |fs| find(fs, find(fs, InodeNr::ROOT, "b").unwrap(), &name).unwrap());
    closed.unwrap();
    let own = of_a(&device);
    let mut block = vec![0; BLOCK as usize];
    device.read_at(own.orphan_block.0 * BLOCK, &mut block).unwrap();
    block[..4].copy_from_slice(&victim.0.to_le_bytes());
    let sum = OrphanBlock::new(&block).unwrap();
    let sum = sum.compute_checksum(own.seed.unwrap(), own.orphan_block);
    let end = block.len();
    block[end - 4..].copy_from_slice(&sum.to_le_bytes());
    device.write_at(own.orphan_block.0 * BLOCK, &block).unwrap();
    let problems = damage(&device);
    assert_eq!(ids(&problems), ["cube-orphan-outside"], "{problems:?}");
    let ((), closed) = used(&device, |fs| {
        let gates = fs.store().gates().unwrap();
        assert_eq!((gates.state(1).0, gates.state(2).0), (Mode::ReadOnly, Mode::Serving));
        let b = find(fs, InodeNr::ROOT, "b").unwrap();
        let failed = load(fs, b, 8);
        assert!(failed.is_empty(), "{failed:?}");
    });
    closed.unwrap();
    repaired(&device);
    serves(&device);
}

/// A damaged list of orphans of one cube is a finding of that cube alone, and so is its repair.
#[test]
fn a_damaged_list_of_orphans_concerns_its_cube_alone() {
    for locked in [false, true] {
        let device = left(locked);
        let own = of_a(&device);
        device.write_at(own.orphan_block.0 * BLOCK + 40, b"damage").unwrap();
        let problems = damage(&device);
        let reason = "the list of its orphans";
        let expected = Problem::CubeJournalDamaged { cube: 1, inode: own.inode, reason };
        assert_eq!(problems, [expected]);
        let ((), closed) = used(&device.clone(), |fs| {
            let gates = fs.store().gates().unwrap();
            assert_eq!((gates.state(1).0, gates.state(2).0), (Mode::ReadOnly, Mode::Serving));
            let b = find(fs, InodeNr::ROOT, "b").unwrap();
            let failed = load(fs, b, 7);
            assert!(failed.is_empty(), "{failed:?}");
        });
        closed.unwrap();
        repaired(&device);
        serves(&device);
    }
}

/// A list of orphans that cannot be read: its cube has a finding, nothing of it is written over, and the rest is repaired.
#[test]
fn an_unreadable_list_of_orphans_concerns_its_cube_alone() {
    for locked in [false, true] {
        let device = left(locked);
        let own = of_a(&device);
        // Damage elsewhere, which is to be repaired.
        edit(&device, InodeNr::ROOT, |inode| inode.base.links_count += 3);
        let bytes = device.to_vec();
        let (page, unread) = (BLOCK as u32, (own.orphan_block, Fault::Unreadable));
        let faulty = Faulty::new(MemDevice::new(bytes), page, [unread]);
        let problem = Problem::UnreadableBlock { inode: own.inode, block: own.orphan_block };
        assert!(damage(&faulty).contains(&problem), "{:?}", damage(&faulty));
        let planned = repair(&faulty, &RepairOptions::default(), &mut Yes).unwrap();
        let left: Vec<&Problem> = planned.left.iter().map(|(problem, _)| problem).collect();
        assert_eq!(left, [&problem]);
        let at = own.orphan_block.0 * BLOCK;
        let writes = planned.staged.staged_ranges();
        assert!(!writes.is_empty());
        assert!(writes.iter().all(|range| range.end <= at || range.start >= at + BLOCK));
        // With a copy of the device that can be read, the same repair leaves nothing.
        let seen = Seen::of(&device);
        let options = CommitOptions::of(&seen);
        planned.commit(&device, &options).unwrap();
        drop(planned);
        assert!(damage(&device).is_empty(), "{:?}", damage(&device));
        serves(&device);
    }
}
