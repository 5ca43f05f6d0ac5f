//! A log that is damaged in the middle, of a cube, of inode 8 or a further one of the root cube, over home blocks of each age that a
//! crash may leave: what fsync acknowledged stays, in other cubes at any rate.

use std::collections::BTreeSet;

use floe_blockdev::{Crash, MemDevice, ReadBlocks, Recorder, WriteBlocks};
use floe_check::Problem;
use floe_disk::volume::Volume;
use floe_ext4::alloc::Space as _;
use floe_ext4::fs::FileSystem as Layout;
use floe_ext4::journal::{self, CubeJournal, Journal};
use floe_format::ext::jbd2::{self, COMMIT_BLOCK, DESCRIPTOR_BLOCK};
use floe_format::native::commit::{self, Dependency};
use floe_format::native::cube::Policies;
use floe_format::native::identity::Identity;
use floe_format::{GroupNr, InodeNr};
use floe_fs::{Disk, DiskError, FileSystem, Live, MemFs, Mode, NewInode, Store as _, now};
use floe_repair::policy::{Preen, Yes};
use floe_repair::{RepairOptions, repair};
use floe_testkit::crash::{Effort, crashes};

use super::journals::{damage, journals};
use super::struck::{BLOCK, Tenants, find, laid_out, make, read, used, write};
use crate::memory::crash::cannot_be;
use crate::memory::with_journals;

pub(super) const ROUNDS: usize = 6;
const SIZE: usize = BLOCK as usize;

/// A file system in which each directory got a synced file in each round; nobody unmounts it.
pub(super) struct Grown {
    pub(super) tops: &'static [&'static str],
    pub(super) crashed: Vec<u8>,
    /// After recovery of what each round left: everything is at home.
    states: Vec<Vec<u8>>,
    /// Blocks that the logs have.
    logged: Vec<usize>,
}

fn name(round: usize) -> String {
    format!("synced{round}")
}

fn content(round: usize) -> Vec<u8> {
    vec![round as u8 + 1; 3000]
}

/// The logs with something in them, each with the number of its cube and its inode.
pub(super) fn logs(device: &dyn ReadBlocks) -> Vec<(u32, InodeNr, Journal)> {
    let layout = Layout::open(&device).unwrap();
    let (superblock, geometry) = (&layout.superblock, layout.geometry());
    let groups = layout.space.groups().descs();
    let (root, _) = journal::find(device, superblock, geometry, groups, None);
    let further = journals(device).usable.into_iter().map(|own| (own.cube, own.inode, own.journal));
    [(0, InodeNr(8), root.unwrap())].into_iter().chain(further).collect()
}

/// How a file system is opened.
type Opened<'d> = Result<(Disk<&'d MemDevice>, Volume), DiskError>;

pub(super) fn grown(base: Vec<u8>, tops: &'static [&'static str]) -> Grown {
    grown_by(|device| Disk::open(device), base, tops)
}

pub(super) fn grown_by(
    open: impl for<'d> FnOnce(&'d MemDevice) -> Opened<'d>,
    base: Vec<u8>,
    tops: &'static [&'static str],
) -> Grown {
    let device = MemDevice::new(base);
    let mut snapshots = Vec::new();
    {
        let (disk, mut volume) = open(&device).unwrap();
        volume.draw_by_seed(crate::layout_seed());
        let files = disk.files().unwrap();
        let live = Live::new(&disk, &files, volume, now()).unwrap();
        let fs = FileSystem::new(MemFs::new(live, Default::default()));
        for round in 0..ROUNDS {
            for top in tops {
                let top = find(&fs, InodeNr::ROOT, top).unwrap();
                let file = make(&fs, top, &name(round), NewInode::regular(0o644)).unwrap();
                write(&fs, file, 0, &content(round)).unwrap();
                fs.sync_inode(file, None).unwrap();
                fs.sync_inode(top, None).unwrap();
            }
            snapshots.push(device.to_vec());
        }
    }
    let states = snapshots.iter().map(|bytes| {
        let device = MemDevice::new(bytes.clone());
        floe_disk::recovery::recover(&device).unwrap();
        device.to_vec()
    });
    let states: Vec<Vec<u8>> = states.collect();
    let crashed = snapshots.pop().unwrap();
    let logged = logged(&crashed, states.last().unwrap());
    Grown { tops, crashed, states, logged }
}

/// The home blocks that the logs have: by what a crash left, and recovery made of it.
pub(crate) fn logged(crashed: &[u8], home: &[u8]) -> Vec<usize> {
    let device = MemDevice::new(crashed.to_vec());
    let of_logs = logs(&device).into_iter().flat_map(|(_, _, log)| {
        let blocks = (0..log.blocks).map(move |at| log.offset_bytes(at).unwrap() / BLOCK);
        blocks.collect::<Vec<u64>>()
    });
    // The superblock says that the logs are in use.
    let own: BTreeSet<usize> = of_logs.map(|block| block as usize).chain([0]).collect();
    let differs = |at: &usize| {
        let range = at * SIZE..(at + 1) * SIZE;
        !own.contains(at) && crashed[range.clone()] != home[range]
    };
    (0..crashed.len() / SIZE).filter(differs).collect()
}

impl Grown {
    /// Home blocks as the crash left them, or (some) as they are behind a round.
    pub(super) fn with_home(&self, age: impl Fn(usize) -> Option<usize>) -> MemDevice {
        let mut bytes = self.crashed.clone();
        for (nr, at) in self.logged.iter().enumerate() {
            let range = at * SIZE..(at + 1) * SIZE;
            if let Some(age) = age(nr) {
                bytes[range.clone()].copy_from_slice(&self.states[age][range]);
            }
        }
        MemDevice::new(bytes)
    }

    /// Bytes of the device at which blocks of a kind lie in a log, in the order of their transactions.
    pub(super) fn control(&self, log: &Journal, kind: u32) -> Vec<u64> {
        let mut all = Vec::new();
        for at in log.superblock.first..log.blocks {
            let offset = log.offset_bytes(at).unwrap();
            let header = jbd2::header(&self.crashed[offset as usize..][..SIZE]);
            let is_new = |header: &jbd2::BlockHeader| header.sequence >= log.superblock.sequence;
            if let Some(header) = header.filter(is_new).filter(|header| header.blocktype == kind) {
                all.push((header.sequence, offset));
            }
        }
        all.sort_unstable();
        all.into_iter().map(|(_, offset)| offset).collect()
    }

    /// The files of a directory that are right.
    pub(super) fn right<D: WriteBlocks>(&self, device: D) -> Vec<usize> {
        let (right, closed) = used(device, |fs| {
            let of = |top: &&str| {
                let Ok(top) = find(fs, InodeNr::ROOT, top) else { return 0 };
                let is_right = |round: &usize| {
                    let file = find(fs, top, &name(*round));
                    file.is_ok_and(|file| {
                        read(fs, file, 9000).is_ok_and(|bytes| bytes == content(*round))
                    })
                };
                (0..ROUNDS).filter(is_right).count()
            };
            self.tops.iter().map(of).collect()
        });
        drop(closed);
        right
    }

    /// Right files behind a repair that a person asked for, and what it told of the damaged log. Unattended nothing is written. A mount
    /// writes nothing either where the log is one of the root cube; beside that of another cube it serves all but this one, after which
    /// a repair tells the same.
    fn mended(&self, device: &MemDevice, cube: u32, context: &str) -> (Vec<usize>, Vec<String>) {
        let mounted = device.clone();
        if cube == 0 {
            assert!(Disk::open(&mounted).is_err(), "{context}: it is mounted");
            assert!(mounted.to_vec() == device.to_vec(), "{context}: the mount wrote something");
            return self.repaired(device, context);
        }
        // A part of the damages is enough.
        if !context.contains("mixed") {
            return self.repaired(device, context);
        }
        self.serve_others(&mounted, cube, context);
        let (right, told) = self.repaired(device, context);
        let (after, told_after) = self.repaired(&mounted, context);
        assert_eq!(after, right, "{context}: {told_after:?} instead of {told:?}");
        let states =
            |told: &[String]| told.iter().map(|one| one.contains("would")).collect::<Vec<_>>();
        assert_eq!(states(&told_after), states(&told), "{context}: {told_after:?}, {told:?}");
        (right, told)
    }

    /// Mounts, writes to the other cube and the root, and unmounts, and again, with a crash in between. Nothing in lots of the cube whose
    /// log waits is written, and nothing of it is answered.
    fn serve_others(&self, device: &MemDevice, cube: u32, context: &str) {
        let own = journals(device).usable.into_iter().find(|own| own.cube == cube).unwrap();
        let before = lots_of(device, &own);
        let (top, other) = (self.tops[cube as usize - 1], self.tops[2 - cube as usize]);
        for turn in 0..3 {
            let crashed = device.clone();
            let ((), closed) = used(&crashed, |fs| {
                let gates = fs.store().gates().unwrap();
                assert_eq!(gates.state(cube).0, Mode::Failed, "{context}");
                let top = find(fs, InodeNr::ROOT, top).unwrap();
                assert!(find(fs, top, &name(0)).is_err(), "{context}: it is answered");
                assert!(make(fs, top, "new", NewInode::regular(0o644)).is_err(), "{context}");
                for place in [find(fs, InodeNr::ROOT, other).unwrap(), InodeNr::ROOT] {
                    let name = format!("beside{turn}");
                    let file = make(fs, place, &name, NewInode::regular(0o644)).unwrap();
                    write(fs, file, 0, &[7; 9000]).unwrap();
                    fs.sync_inode(file, None).unwrap();
                    fs.sync_inode(place, None).unwrap();
                }
                fs.sync().unwrap();
                if turn == 1 {
                    device.write_at(0, &crashed.to_vec()).unwrap();
                }
            });
            closed.unwrap();
            if turn != 1 {
                device.write_at(0, &crashed.to_vec()).unwrap();
            }
            assert!(lots_of(device, &own) == before, "{context}: the cube was written");
            let is_recorded = |one: &Problem| matches!(one, Problem::CubeFailureRecorded { .. });
            assert!(damage(device).iter().any(is_recorded), "{context}");
        }
    }

    fn repaired(&self, device: &MemDevice, context: &str) -> (Vec<usize>, Vec<String>) {
        // Whoever copies files, salvage too, says that they may lack changes.
        let lacks = floe_check::view(device, &Default::default(), |files, found| {
            found.iter().any(|one| floe_check::lacks_changes(one, files.superblock()))
        });
        assert!(lacks.unwrap(), "{context}");
        let preened = repair(device, &RepairOptions::default(), &mut Preen).unwrap();
        assert!(!preened.changes() && !preened.is_clean(), "{context}: {:?}", preened.deeds);
        drop(preened);
        let planned = repair(device, &RepairOptions::default(), &mut Yes).unwrap();
        let told = planned.before.found.iter().filter(|problem| {
            matches!(
                problem,
                Problem::DamagedLogWeighed { .. } | Problem::DamagedLogOtherwise { .. }
            )
        });
        let told: Vec<String> = told.map(ToString::to_string).collect();
        assert!(told.len() > 1, "{context}: {:?}", planned.before.found);
        let notes = planned.deeds.iter().flat_map(|deed| &deed.notes);
        assert!(notes.clone().any(|note| told.contains(note)), "{context}");
        drop(planned);
        super::journals::repaired(device);
        assert!(damage(device).is_empty(), "{context}");
        (self.right(device), told)
    }
}

/// The bytes of the lots that a journal logs.
fn lots_of(device: &dyn ReadBlocks, own: &CubeJournal) -> Vec<u8> {
    let layout = Layout::open(device).unwrap();
    let mut all = Vec::new();
    for lot in &own.lots {
        for group in lot * own.lot_groups..(lot + 1) * own.lot_groups {
            let blocks = layout.geometry().blocks_of(GroupNr(group));
            let mut bytes = vec![0; (blocks.len_blocks * BLOCK) as usize];
            device.read_at(blocks.start.0 * BLOCK, &mut bytes).unwrap();
            all.extend(bytes);
        }
    }
    all
}

pub(super) type Ages = (&'static str, fn(usize) -> Option<usize>);

pub(super) const HOMES: [Ages; 3] = [
    ("old", |_| None),
    ("new", |_| Some(ROUNDS - 1)),
    ("mixed", |nr| (nr % 3 > 0).then_some(nr * 7 % ROUNDS)),
];

/// The damage of each log, with what the repair keeps for it.
fn each_damage(grown: &Grown, judge: impl Fn(&MemDevice, (u32, InodeNr), &str, &str)) {
    let device = MemDevice::new(grown.crashed.clone());
    for (cube, inode, log) in logs(&device) {
        let descriptors = grown.control(&log, DESCRIPTOR_BLOCK);
        let commits = grown.control(&log, COMMIT_BLOCK);
        if descriptors.len() < 4 {
            continue;
        }
        for (home, age) in HOMES {
            for (kind, at) in [("descriptor", descriptors[1]), ("commit", commits[1])] {
                // The header anyhow, the content over each age.
                for byte in if home == "mixed" { &[1, 11, 40][..] } else { &[40] } {
                    let byte = *byte;
                    let device = grown.with_home(age);
                    let mut own = [0];
                    device.read_at(at + byte, &mut own).unwrap();
                    device.write_at(at + byte, &[own[0] ^ 0x10]).unwrap();
                    if kind == "commit" && byte == 40 {
                        // The second half of its time: still whole where it is torn.
                        continue;
                    }
                    let context = format!("cube {cube}, {inode}, {kind}, byte {byte}, home {home}");
                    judge(&device, (cube, inode), home, &context);
                }
            }
            let device = grown.with_home(age);
            device.write_at(descriptors[1], &[0xa5; SIZE]).unwrap();
            let context = format!("cube {cube}, {inode}, no descriptor, home {home}");
            judge(&device, (cube, inode), home, &context);
            // Nothing tells where the next transaction begins.
            let device = grown.with_home(age);
            device.write_at(commits[1], &[0; SIZE]).unwrap();
            device.write_at(descriptors[2], &[0; SIZE]).unwrap();
            let context = format!("cube {cube}, {inode}, no commit nor descriptor, home {home}");
            judge(&device, (cube, inode), home, &context);
        }
    }
}

#[test]
fn damage_of_the_log_of_a_cube_costs_others_nothing_and_itself_little() {
    let grown = grown(laid_out(Tenants::Apart, Policies::default()), &["a", "b"]);
    each_damage(&grown, |device, (cube, _), home, context| {
        let (right, told) = grown.mended(device, cube, context);
        let whole = vec![ROUNDS; 2];
        if context.contains("byte") || home == "new" || cube == 0 {
            assert_eq!(right, whole, "{context}: {told:?}");
            let is_whole = told.iter().any(|one| one.contains("and all transactions count"));
            assert_eq!(is_whole, context.contains("byte"), "{context}: {told:?}");
        } else {
            assert_eq!(right[2 - cube as usize], ROUNDS, "{context}");
            // Two transactions are damaged at most, of two in a round.
            let least = if context.contains("nor") { ROUNDS - 2 } else { 1 };
            assert!(right[cube as usize - 1] >= least, "{context}: {right:?}");
        }
    });
}

#[test]
fn damage_of_one_of_several_logs_of_the_root_cube_costs_little() {
    const TOPS: [&str; 6] = ["1", "2", "3", "4", "5", "6"];
    let device = MemDevice::new(with_journals(2).to_vec());
    let ((), closed) = used(&device, |fs| {
        for top in TOPS {
            make(fs, InodeNr::ROOT, top, NewInode::directory(0o755)).unwrap();
        }
    });
    closed.unwrap();
    let grown = grown(device.to_vec(), &TOPS);
    each_damage(&grown, |device, (cube, _), home, context| {
        let (right, told) = grown.mended(device, cube, context);
        let whole = vec![ROUNDS; TOPS.len()];
        if context.contains("byte") || home == "new" {
            assert_eq!(right, whole, "{context}: {told:?}");
            let is_whole = told.iter().any(|one| one.contains("and all transactions count"));
            assert_eq!(is_whole, context.contains("byte"), "{context}: {told:?}");
        } else {
            // Before the damage there is one round at least in some directory.
            assert!(right.iter().sum::<usize>() > 0, "{context}: {right:?}, {told:?}");
        }
    });
}

/// No crash leaves a commit block without its descriptor, not even the last one: no recovery has erased it.
#[test]
fn the_last_transaction_without_its_descriptor_is_damage() {
    const TOPS: [&str; 2] = ["a", "b"];
    let shared = grown(laid_out(Tenants::Shared, Policies::default()), &TOPS);
    let apart = grown(laid_out(Tenants::Apart, Policies::default()), &TOPS);
    let mut logs_tried = 0;
    for grown in [shared, apart] {
        for (cube, inode, log) in logs(&MemDevice::new(grown.crashed.clone())) {
            let Some(last) = grown.control(&log, DESCRIPTOR_BLOCK).pop() else { continue };
            logs_tried += 1;
            for (home, age) in HOMES {
                let device = grown.with_home(age);
                device.write_at(last, &[0; SIZE]).unwrap();
                let context = format!("cube {cube}, {inode}, home {home}");
                let (right, told) = grown.mended(&device, cube, &context);
                let lost = ROUNDS * TOPS.len() - right.iter().sum::<usize>();
                assert!(lost <= usize::from(home != "new"), "{context}: {right:?}, {told:?}");
            }
        }
    }
    assert_eq!(logs_tried, 3);
}

/// Power fails while the others are served beside a log that waits: a repair finds it as it was, and what fsync has acknowledged.
#[test]
fn a_log_that_waits_survives_crashes_of_a_mount() {
    let grown = grown(laid_out(Tenants::Apart, Policies::default()), &["a", "b"]);
    let base = grown.with_home(HOMES[2].1);
    let own = journals(&base).usable.into_iter().find(|own| own.cube == 1).unwrap();
    let hit = grown.control(&own.journal, DESCRIPTOR_BLOCK)[1];
    let mut byte = [0];
    base.read_at(hit + 40, &mut byte).unwrap();
    base.write_at(hit + 40, &[byte[0] ^ 0x10]).unwrap();
    let before = lots_of(&base, &own);
    let recorder = Recorder::new(MemDevice::new(base.to_vec()));
    let (acknowledged, closed) = used(&recorder, |fs| {
        let b = find(fs, InodeNr::ROOT, "b").unwrap();
        let file = make(fs, b, "beside", NewInode::regular(0o644)).unwrap();
        write(fs, file, 0, &[7; 9000]).unwrap();
        fs.sync_inode(file, None).unwrap();
        fs.sync_inode(b, None).unwrap();
        recorder.trace().events.len()
    });
    closed.unwrap();
    let trace = recorder.trace();
    let all = crashes(&trace, Effort::default()).into_iter();
    let all: Vec<Crash> = all.filter(|crash| !cannot_be(&trace, crash)).step_by(23).collect();
    assert!(all.len() > 10, "{}", all.len());
    for crash in &all {
        let device = MemDevice::new(base.to_vec());
        trace.replay(crash, &device).unwrap();
        assert!(lots_of(&device, &own) == before, "{crash:?}: the cube was written");
        super::journals::repaired(&device);
        assert_eq!(grown.right(&device), [ROUNDS; 2], "{crash:?}");
        let (is_there, closed) = used(&device, |fs| {
            let b = find(fs, InodeNr::ROOT, "b").unwrap();
            find(fs, b, "beside").is_ok()
        });
        closed.unwrap();
        assert!(is_there || crash.issued < acknowledged, "{crash:?}");
    }
}

/// Free blocks of the other cubes are fenced while a log waits: any number of mounts takes the fence back, and the repair finds the log as
/// it was.
#[test]
fn a_fence_is_made_and_taken_back_beside_a_log_that_waits() {
    let grown = grown(laid_out(Tenants::Apart, Policies::default()), &["a", "b"]);
    for is_repaired_fenced in [false, true] {
        let device = grown.with_home(HOMES[2].1);
        let own = journals(&device).usable.into_iter().find(|own| own.cube == 1).unwrap();
        let hit = grown.control(&own.journal, DESCRIPTOR_BLOCK)[1];
        let mut byte = [0];
        device.read_at(hit + 40, &mut byte).unwrap();
        device.write_at(hit + 40, &[byte[0] ^ 0x10]).unwrap();
        let before = lots_of(&device, &own);
        let (disk, mut volume) = Disk::open(&device).unwrap();
        volume.draw_by_seed(crate::layout_seed());
        {
            let files = disk.files().unwrap();
            let live = Live::new(&disk, &files, volume, now()).unwrap();
            live.ask_for_fence();
            let fs = FileSystem::new(MemFs::new(live, Default::default()));
            let (live, lost) = fs.into_store().finish().unwrap();
            live.finish(now()).unwrap();
            lost.unwrap();
        }
        disk.close().unwrap();
        let fence = Identity::of(&Layout::open(&device).unwrap().superblock).unwrap().fence_inode;
        assert!(fence > 0);
        if !is_repaired_fenced {
            grown.serve_others(&device, 1, "fenced");
        }
        assert!(lots_of(&device, &own) == before, "the cube was written");
        super::journals::repaired(&device);
        assert_eq!(grown.right(&device), [ROUNDS; 2]);
    }
}

/// Half a change must not go home: where a transaction of the damaged log and one of another log depend on each other, the mount is refused.
#[test]
fn a_damaged_log_that_others_depend_on_has_the_mount_refused() {
    let grown = grown(laid_out(Tenants::Apart, Policies::default()), &["a", "b"]);
    let device = MemDevice::new(grown.crashed.clone());
    let logs = logs(&device);
    let of = |cube| logs.iter().find(|(own, ..)| *own == cube).unwrap();
    let (root, a, b) = (of(0), of(1), of(2));
    let damaged = || {
        let device = grown.with_home(HOMES[0].1);
        device.write_at(grown.control(&a.2, DESCRIPTOR_BLOCK)[1], &[0xa5; SIZE]).unwrap();
        device
    };
    // In which log the list stands, and which transaction it names: the first one that is not home, or the one before.
    let cases = [(a, root, 0), (a, b, 0), (b, a, 0), (a, root, 1), (b, a, 1)];
    for (from, to, back) in cases {
        let device = damaged();
        let at = *grown.control(&from.2, COMMIT_BLOCK).last().unwrap();
        let mut block = [0; SIZE];
        device.read_at(at, &mut block).unwrap();
        let sequence = to.2.superblock.sequence - back;
        commit::put(&mut block, &[Dependency { journal_inode: to.1.0, sequence }]);
        from.2.superblock.format().seal_commit(&mut block);
        device.write_at(at, &block).unwrap();
        let before = device.to_vec();
        let opened = Disk::open(&device).map(drop);
        assert_eq!(opened.is_ok(), back == 1, "{} on {}: {opened:?}", from.0, to.0);
        assert!(back == 1 || device.holds(&before), "something was written");
    }
}
