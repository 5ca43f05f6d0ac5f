//! Several journals of the root cube: damage of one is told, nothing is written over it, and the repair of the whole file system
//! leaves one that is served.

use floe_blockdev::{MemDevice, ReadBlocks, WriteBlocks};
use floe_ext4::alloc::Space as _;
use floe_ext4::files::{Files, Follow};
use floe_ext4::fs::FileSystem as Layout;
use floe_ext4::inode_table::inode_place;
use floe_ext4::journal::CubeJournal;
use floe_format::InodeNr;
use floe_format::ext::jbd2;
use floe_format::native::identity::Identity;
use floe_fs::{Disk, FileSystem, Live, MemFs, NewInode, now};
use floe_repair::escalation::{Allowance, Stage, escalate};
use floe_repair::policy::Policy;
use floe_repair::{RepairOptions, repair};

use super::journals::{damage, descriptors, ids, journals, repaired};
use super::struck::{BLOCK, find, make, used, write};
use crate::memory::with_journals;

/// As many as are dealt to both journals, wherever the first one lies.
const NAMES: [&str; 12] = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12"];

fn further(device: &dyn ReadBlocks) -> Vec<CubeJournal> {
    let found = journals(device);
    assert!(found.unusable.is_empty(), "{:?}", found.unusable);
    found.usable.into_iter().filter(|own| own.cube == 0).collect()
}

/// Directories with a file that fsync has made durable, as a crash or an unmount leaves them.
fn left(locked: bool) -> MemDevice {
    let device = MemDevice::new(with_journals(2).to_vec());
    let ((), closed) = used(&device, |fs| {
        NAMES.iter().for_each(|name| {
            make(fs, InodeNr::ROOT, name, NewInode::directory(0o755)).unwrap();
        });
    });
    closed.unwrap();
    if !locked {
        return device;
    }
    let (disk, volume) = Disk::open(&device).unwrap();
    let files = disk.files().unwrap();
    let live = Live::new(&disk, &files, volume, now()).unwrap();
    let fs = FileSystem::new(MemFs::new(live, Default::default()));
    for (name, round) in NAMES.iter().flat_map(|name| [(name, "first"), (name, "second")]) {
        let top = find(&fs, InodeNr::ROOT, name).unwrap();
        let file = make(&fs, top, round, NewInode::regular(0o644)).unwrap();
        write(&fs, file, 0, round.as_bytes()).unwrap();
        fs.sync_inode(file, None).unwrap();
        fs.sync_inode(top, None).unwrap();
    }
    device.clone()
}

/// All directories are served for writes, and nothing is wrong afterwards.
fn serves(device: &MemDevice) {
    let ((), closed) = used(device, |fs| {
        for name in NAMES {
            let top = find(fs, InodeNr::ROOT, name).unwrap();
            for at in 0..4 {
                let file = make(fs, top, &format!("new{at}"), NewInode::regular(0o644)).unwrap();
                write(fs, file, 0, &[at; 9000]).unwrap();
                fs.sync_inode(file, None).unwrap();
            }
        }
    });
    closed.unwrap();
    assert!(damage(device).is_empty(), "{:?}", damage(device));
}

fn refuses(device: &MemDevice) {
    let before = device.to_vec();
    assert!(Disk::open(device).is_err(), "it is mounted");
    assert!(device.holds(&before), "something was written");
}

/// Nor by a repair that may lose nothing: to empty a log loses what it holds.
fn keeps_without_loss(device: &MemDevice) {
    let nothing = Allowance { things: Some(0), bytes: Some(0) };
    for stages in [&[Stage::Safe][..], &[Stage::Preen, Stage::Safe, Stage::All]] {
        let stage = |policy: &mut dyn Policy| repair(device, &RepairOptions::default(), policy);
        let repair = escalate(stages, &nothing, device, stage).unwrap().repair;
        assert!(!repair.is_clean() && !repair.changes(), "{stages:?}: {:?}", repair.deeds);
    }
}

#[test]
fn a_damaged_log_of_the_root_cube_is_replayed_up_to_the_damage_by_a_repair() {
    // Which directories are dealt to which journal is a matter of luck.
    let (device, transactions) = (0..30)
        .map(|_| {
            let device = left(true);
            let transactions = descriptors(&device, &further(&device)[0]);
            (device, transactions)
        })
        .find(|(_, transactions)| transactions.len() > 2)
        .unwrap();
    let last = transactions[transactions.len() - 1];
    device.write_at(last + BLOCK + 100, b"damage of a logged block").unwrap();
    assert!(ids(&damage(&device)).contains(&"cube-journal-damaged"));
    refuses(&device);
    keeps_without_loss(&device);
    repaired(&device);
    assert_eq!(further(&device).len(), 1);
    serves(&device);
}

/// A file system whose log of inode 8 holds several transactions, and their first blocks.
fn left_in_inode_8() -> (MemDevice, Vec<u64>) {
    let mut tries = (0..30).map(|_| {
        let device = left(true);
        let layout = Layout::open(&device).unwrap();
        let (superblock, geometry) = (&layout.superblock, layout.geometry());
        let groups = layout.space.groups().descs();
        let (journal, _) = floe_ext4::journal::find(&device, superblock, geometry, groups, None);
        let mut root = further(&device).remove(0);
        root.journal = journal.unwrap();
        let transactions = descriptors(&device, &root);
        (device, transactions)
    });
    tries.find(|(_, transactions)| transactions.len() > 2).unwrap()
}

/// The log of inode 8, which repairs of file systems without cubes replay up to the damage: of a logged block, of the tags of a
/// descriptor (by which the rest of the log is not found), of its header.
#[test]
fn damage_in_the_log_of_inode_8_is_no_dead_end() {
    let (sound, transactions) = left_in_inode_8();
    let last = transactions[transactions.len() - 1];
    for (inside, what) in
        [(BLOCK + 100, "a logged block"), (12, "tags"), (24, "tags"), (0, "header")]
    {
        let device = sound.clone();
        device.write_at(last + inside, b"damage, damage and damage").unwrap();
        assert!(!damage(&device).is_empty(), "{what}");
        refuses(&device);
        keeps_without_loss(&device);
        repaired(&device);
        assert_eq!(further(&device).len(), 1, "{what}");
        serves(&device);
    }
}

/// One byte of a header is damaged, of a commit block or a descriptor, and sound transactions follow: the log does not end there.
#[test]
fn a_damaged_header_is_not_the_end_where_commits_follow() {
    let (sound, transactions) = left_in_inode_8();
    let middle = transactions.len() / 2;
    let mut block = [0; BLOCK as usize];
    let mut at = transactions[middle];
    let commit = loop {
        sound.read_at(at, &mut block).unwrap();
        if jbd2::header(&block).is_some_and(|header| header.blocktype == jbd2::COMMIT_BLOCK) {
            break at;
        }
        at += BLOCK;
    };
    for (offset, byte) in [(commit, 3), (commit, 11), (transactions[middle], 3)] {
        let device = sound.clone();
        let mut own = [0];
        device.read_at(offset + byte, &mut own).unwrap();
        device.write_at(offset + byte, &[own[0] + 9]).unwrap();
        assert!(!damage(&device).is_empty(), "{byte}");
        refuses(&device);
        keeps_without_loss(&device);
        repaired(&device);
        assert_eq!(further(&device).len(), 1, "{byte}");
        serves(&device);
    }
}

#[test]
fn a_journal_of_the_root_cube_that_cannot_be_used_is_made_anew() {
    for locked in [false, true] {
        let device = left(locked);
        let own = further(&device).remove(0);
        device.write_at(own.journal.offset_bytes(0).unwrap(), &[0xa5; 1024]).unwrap();
        let id = if locked { "journal-superblock-lost" } else { "cube-journal-damaged" };
        assert!(ids(&damage(&device)).contains(&id), "{:?}", damage(&device));
        refuses(&device);
        repaired(&device);
        let after = further(&device);
        assert_eq!((after.len(), after[0].inode), (1, own.inode));
        serves(&device);
    }
}

#[test]
fn lots_of_a_journal_whose_inode_is_lost_are_logged_by_inode_8() {
    for locked in [false, true] {
        let device = left(locked);
        let own = further(&device).remove(0);
        let layout = Layout::open(&device).unwrap();
        let descs = layout.space.groups().descs();
        let (block, at) = inode_place(own.inode, layout.geometry(), descs).unwrap();
        let offset = layout.geometry().offset_bytes(block) + at as u64;
        device.write_at(offset, &[0; 256]).unwrap();
        repaired(&device);
        assert!(further(&device).is_empty());
        serves(&device);
    }
}

/// The names of the files in `/.cubes` go with it.
#[test]
fn journals_of_the_root_cube_outlive_the_directory_that_names_them() {
    let device = left(false);
    let own = further(&device).remove(0);
    let layout = Layout::open(&device).unwrap();
    let home = InodeNr(Identity::of(&layout.superblock).unwrap().home_inode);
    let (block, at) = inode_place(home, layout.geometry(), layout.space.groups().descs()).unwrap();
    device.write_at(layout.geometry().offset_bytes(block) + at as u64, &[0; 256]).unwrap();
    repaired(&device);
    assert_eq!(further(&device)[0].inode, own.inode);
    let layout = Layout::open(&device).unwrap();
    let descs = layout.space.groups().descs().to_vec();
    let geometry = layout.geometry().clone();
    let files = Files::new(&device, layout.superblock, geometry, descs);
    let named = files.lookup(b"/.cubes/journal.0.1", Follow::Last).unwrap();
    assert_eq!(named.number, own.inode);
    serves(&device);
}
