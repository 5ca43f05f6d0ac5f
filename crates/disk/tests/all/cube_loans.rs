//! Changes that are longer than the log of their cube allows, which inode 8 logs; and how long a change can be.

use std::collections::BTreeSet;

use floe_blockdev::{MemDevice, ReadBlocks, Recorder, WriteBlocks};
use floe_check::{CheckOptions, check};
use floe_disk::journal::Journal;
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_disk::ops::NewInode;
use floe_disk::recovery::recover;
use floe_disk::volume::Volume;
use floe_format::BlockNr;

use crate::cube_journals::{base, create, logs_written};
use crate::journal_ops::{Mounted, NOW, tree, unmount};
use crate::traced::BaseBytes;

/// Blocks of the file that is changed at once: more than a quarter of a log of 64 blocks.
pub(crate) const LONG: u64 = 30;

/// Makes the file `large` of the cube `a`.
pub(crate) fn plant<D: WriteBlocks>(mounted: &mut Mounted<D>) {
    create(mounted, "a/large");
    let file = mounted.find("a/large").unwrap();
    mounted.write(file, 0, &[1; LONG as usize * 4096]).unwrap();
}

/// Changes all blocks of the file in one transaction, as if its content were metadata.
pub(crate) fn overwrite<D: WriteBlocks>(mounted: &mut Mounted<D>, byte: u8) {
    let file = mounted.find("a/large").unwrap();
    let changed = mounted.run(|volume, tx, _, _| {
        let inode = volume.inode(tx, file)?;
        for at in 0..LONG {
            let segment = volume.segment(tx, &inode, at * 4096)?.unwrap();
            let floe_disk::ops::SegmentKind::Data { device_bytes } = segment.kind else { panic!() };
            tx.block_mut(BlockNr(device_bytes / 4096))?.fill(byte);
        }
        Ok(())
    });
    changed.unwrap();
}

#[test]
fn a_change_that_is_too_long_for_the_log_of_its_cube_is_logged_by_inode_8() {
    let device = Recorder::new(MemDevice::new(base().to_vec()));
    let mut mounted = Mounted::new(&device).unwrap();
    plant(&mut mounted);
    mounted.sync();
    create(&mut mounted, "a/before");
    assert_eq!(mounted.journal.loans(), 0);
    let from = device.trace().events.len();
    overwrite(&mut mounted, 2);
    assert_eq!(mounted.journal.loans(), 1);
    assert_eq!(logs_written(&device, from), [1], "its own log is emptied first");
    let from = device.trace().events.len();
    mounted.journal.commit_cube(1).unwrap();
    assert_eq!(logs_written(&device, from), [0], "an fsync of the cube covers it");
    let before = tree(&mounted.journal).unwrap();
    let crashed = MemDevice::new(device.base_bytes());
    recover(&crashed).unwrap();
    let after = tree(&crashed).unwrap();
    let differs = |path: &&String| !path.starts_with(".cubes/") && before[*path] != after[*path];
    assert_eq!(before.keys().filter(differs).collect::<Vec<_>>(), [] as [&String; 0]);
    let from = device.trace().events.len();
    create(&mut mounted, "a/after");
    mounted.journal.commit_cube(1).unwrap();
    assert_eq!(logs_written(&device, from), [1], "its lots are back");
    assert_eq!(mounted.journal.loans(), 1);
    // Twice in a row, and with a lot that is to come back when all ends.
    overwrite(&mut mounted, 3);
    overwrite(&mut mounted, 4);
    assert_eq!(mounted.journal.loans(), 3);
    let device = unmount(mounted).unwrap();
    let report = check(device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.found);
    let mut again = Mounted::new(device).unwrap();
    let file = again.find("a/large").unwrap();
    let mut bytes = vec![0; LONG as usize * 4096];
    let inode = again.run(|volume, tx, _, _| volume.inode(tx, file)).unwrap();
    again.run(|volume, tx, data, _| volume.read(tx, data, &inode, 0, &mut bytes)).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 4));
}

/// A cube that is dropped after inode 8 logged a change of it keeps that change, which cannot be dropped alone, and the others go on.
#[test]
fn a_cube_that_is_abandoned_keeps_what_inode_8_logged_for_it() {
    let device = Recorder::new(MemDevice::new(base().to_vec()));
    let mut mounted = Mounted::new(&device).unwrap();
    plant(&mut mounted);
    mounted.sync();
    overwrite(&mut mounted, 2);
    assert!(mounted.journal.abandon_cube(1, "a test").unwrap());
    let aborted = mounted.make("a/new", &NewInode::regular(0o644));
    assert!(aborted.is_err(), "the log of its lots has ended");
    create(&mut mounted, "b/new");
    mounted.sync();
    let crashed = MemDevice::new(device.base_bytes());
    recover(&crashed).unwrap();
    let names = tree(&crashed).unwrap();
    assert!(names.keys().any(|path| path.ends_with("b/new")));
    let wanted = tree(&mounted.journal).unwrap();
    let large = |tree: &crate::journal_ops::Tree| {
        tree.iter().find(|(path, _)| path.ends_with("a/large")).map(|(_, node)| node.clone())
    };
    assert_eq!(large(&names), large(&wanted));
}

/// The longest change that cannot be divided fits a fifth of the smallest journal that is made for a file system, so that no
/// change that waits is lost for lack of room there.
#[test]
fn the_longest_change_fits_the_smallest_journals() {
    let mut seen = BTreeSet::new();
    for kind in [FsType::Ext4, FsType::Native] {
        for settings in [
            &[][..],
            &[('O', "quota,project")],
            &[('b', "1024"), ('O', "quota")],
            &[('b', "1024"), ('O', "large_dir,metadata_csum")],
            &[('O', "large_dir,quota")],
        ] {
            for size in [20 << 20, 100 << 20] {
                let mut options = Options::of_type(kind);
                let set =
                    settings.iter().try_for_each(|(letter, value)| options.set(*letter, value));
                set.unwrap();
                let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: NOW };
                let device = MemDevice::new(vec![0; size]);
                // Native file systems have blocks of 4 KiB and no quotas.
                let Ok(params) = options.params(device.size_bytes(), None, &fresh) else {
                    continue;
                };
                let Ok(plan) = Plan::new(&params) else { continue };
                mkfs::write(&plan, &device).unwrap();
                let journal = Journal::open(device).unwrap();
                let volume = Volume::open_journaled(&journal).unwrap();
                let (one, most) = (volume.most_of_one_change(), volume.most_changed_blocks());
                assert!(one <= most, "{kind:?} {settings:?}: {one} of {most} blocks");
                seen.insert((format!("{kind:?}"), one));
            }
        }
    }
    eprintln!("{seen:?}");
    assert!(seen.len() >= 4, "{seen:?}");
}
