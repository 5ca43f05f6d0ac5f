//! Cubes with journals below the file system in memory: an fsync waits for the journal of its cube, and one flush serves all.

use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Result, ensure};
use floe_blockdev::{Event, Fault, Faulty, MemDevice, Model, Modelled, ReadBlocks, Recorder};
use floe_check::{CheckOptions, Problem, check};
use floe_disk::ops::{Caller, NewCube};
use floe_ext4::fs::FileSystem as Layout;
use floe_ext4::journal;
use floe_format::native::cube::Policies;
use floe_format::{BlockNr, InodeNr};
use floe_fs::{Disk, FsError, Limits, Live, Store};
use floe_sync::thread;
use floe_testkit::{Image, oracle};

use super::SMALL;
use super::acts::{Act, find, run};
use super::live::{NOW, mounted, native};

/// Five lots of 4 MiB, of which the cubes `a` and `b` have one each, with a journal of 64 blocks.
pub(crate) fn with_cubes() -> &'static [u8] {
    static BASE: OnceLock<Vec<u8>> = OnceLock::new();
    BASE.get_or_init(|| with_cubes_on(native(20 << 20, "lot_size=4m", "256")))
}

/// Five lots of 4 MiB, dealt to 2 or 4 journals.
pub(crate) fn with_journals(count: u32) -> &'static [u8] {
    static BASES: [OnceLock<Vec<u8>>; 2] = [const { OnceLock::new() }; 2];
    BASES[usize::from(count > 2)].get_or_init(|| {
        let device = MemDevice::new(native(20 << 20, "lot_size=4m", "400"));
        let (disk, mut volume) = Disk::open(&device).unwrap();
        volume.draw_by_seed(crate::layout_seed());
        {
            let files = disk.files().unwrap();
            let live = Live::new(&disk, &files, volume, NOW).unwrap();
            live.make_journals(&Caller::system(NOW), count).unwrap();
            live.finish(NOW).unwrap();
        }
        disk.close().unwrap();
        device.to_vec()
    })
}

/// A native file system with the cubes `a` and `b`, which have a journal of 64 blocks.
pub(crate) fn with_cubes_on(native: Vec<u8>) -> Vec<u8> {
    let device = MemDevice::new(native);
    let (disk, mut volume) = Disk::open(&device).unwrap();
    volume.draw_by_seed(crate::layout_seed());
    {
        let files = disk.files().unwrap();
        let live = Live::new(&disk, &files, volume, NOW).unwrap();
        for path in ["/a", "/b"] {
            let new = NewCube {
                parent: InodeNr::ROOT,
                name: &path.as_bytes()[1..],
                path: path.as_bytes(),
                permissions: 0o755,
                journal_blocks: 64,
                policies: Policies::default(),
            };
            live.create_cube(&Caller::system(NOW), &new).unwrap();
        }
        live.finish(NOW).unwrap();
    }
    disk.close().unwrap();
    device.to_vec()
}

/// Whether nothing is wrong but that a failure is recorded, in the superblock or for a cube (whose own copy of the record may not be
/// writable then).
pub(crate) fn judge_cubes(device: &MemDevice, by_e2fsck: bool) -> Result<()> {
    let report = check(device, &CheckOptions::default())?;
    let is_failure = |one: &Problem| matches!(one, Problem::CubeFailureRecorded { .. });
    let has_failed = report.found.iter().any(is_failure);
    let wrong = report.found.iter().filter(|one| match one {
        Problem::KernelRecordedErrors { .. } | Problem::NotCleanlyUnmounted { .. } => false,
        // Regions of a cube that has failed are left to its repair.
        Problem::CubeCopyDamaged { .. } | Problem::RegionNotReserved { .. } => !has_failed,
        one => !is_failure(one),
    });
    let wrong: Vec<_> = wrong.collect();
    ensure!(wrong.is_empty(), "{wrong:?}");
    if by_e2fsck {
        let image = Image::of(&device)?;
        let verdict = oracle::e2fsck(&image)?;
        ensure!(verdict.clean(), "e2fsck: {}", verdict.text);
    }
    Ok(())
}

/// Which log a byte of the device lies in: a cube's, or (0) that of inode 8.
fn log_at(device: &dyn ReadBlocks) -> impl Fn(u64) -> Option<u32> + use<> {
    let layout = Layout::open(&device).unwrap();
    let (geometry, groups) = (layout.geometry().clone(), layout.space.groups.descs());
    let (main, _) = journal::find(device, &layout.superblock, &geometry, groups, None);
    let cubes = journal::find_cubes(device, &layout.superblock, &geometry, groups);
    let mut logs = vec![(0, main.unwrap())];
    logs.extend(cubes.usable.into_iter().map(|own| (own.cube, own.journal)));
    let blocks: std::collections::BTreeMap<u64, u32> = logs
        .iter()
        .flat_map(|(cube, log)| (0..log.blocks).map(|at| (log.offset_bytes(at).unwrap(), *cube)))
        .collect();
    move |offset| blocks.get(&(offset / 4096 * 4096)).copied()
}

#[test]
fn an_fsync_through_the_mount_writes_the_journal_of_its_cube_alone() {
    let recorder = Recorder::new(MemDevice::new(with_cubes().to_vec()));
    let log = log_at(&recorder);
    mounted(&recorder, Limits::default(), |memory| {
        let turn = |number, acts: &[Act]| {
            let from = recorder.trace().events.len();
            for act in acts {
                run(memory, number, act).unwrap();
            }
            let mut logs: Vec<u32> = recorder.trace().events[from..]
                .iter()
                .filter_map(|event| match event {
                    Event::Write { offset_bytes, .. } => log(*offset_bytes),
                    Event::Flush => None,
                })
                .collect();
            logs.sort_unstable();
            logs.dedup();
            logs
        };
        let create = |path: &str| Act::Create(path.to_owned());
        let fsync = |path: &str| Act::Fsync(path.to_owned());
        turn(1, &[create("a/one"), create("b/one"), create("one"), Act::Sync]);
        let changes = [create("a/two"), create("b/two"), create("two")];
        assert_eq!(turn(2, &changes), [] as [u32; 0]);
        assert_eq!(turn(3, &[fsync("a/two")]), [1]);
        assert_eq!(turn(3, &[fsync("a/two")]), [] as [u32; 0], "it is durable");
        assert_eq!(turn(4, &[fsync("b")]), [2]);
        assert_eq!(turn(5, &[create("b/three"), fsync("two")]), [0]);
        assert_eq!(turn(6, &[Act::Sync]), [2]);
        Ok(())
    })
    .unwrap();
}

/// Workers in three cubes that fsync at the same time.
#[test]
fn one_flush_serves_the_fsyncs_of_all_cubes() {
    let model = Model::flushes(Duration::from_millis(2));
    let device = Modelled::new(MemDevice::new(with_cubes().to_vec()), &model).waiting();
    mounted(&device, Limits::default(), |memory| {
        let files = ["a/f", "b/f", "f"];
        for path in files {
            run(memory, 1, &Act::Create(path.to_owned())).unwrap();
        }
        memory.sync().unwrap();
        let (before, rounds) = (device.flushes(), 15);
        thread::scope(|scope| {
            for path in files {
                scope.spawn(move || {
                    for turn in 0..rounds {
                        run(memory, turn, &Act::Chmod(path.to_owned(), 0o600 + turn as u16))
                            .unwrap();
                        memory.sync_inode(find(memory, path).unwrap()).unwrap();
                    }
                });
            }
        });
        let flushes = device.flushes() - before;
        eprintln!("{flushes} flushes for {} fsyncs", 3 * rounds);
        // Alone, each takes two.
        assert!(flushes < u64::from(3 * rounds) * 3 / 2, "{flushes}");
        Ok(())
    })
    .unwrap();
}

/// The log of a cube cannot be written: the cube fails, and its fsyncs say so; the others go on.
#[test]
fn a_cube_whose_journal_ends_says_so_and_the_others_go_on() {
    let memory = MemDevice::new(with_cubes().to_vec());
    let log = log_at(&memory);
    let blocks = (0..memory.size_bytes() / 4096).filter(|block| log(block * 4096) == Some(1));
    let faults = blocks.map(|block| (BlockNr(block), Fault::Unwritable));
    let device = Faulty::new(memory, 4096, faults);
    mounted(&device, Limits::default(), |fs| {
        let fsync = |path: &str| run(fs, 1, &Act::Fsync(path.to_owned()));
        let create = |path: &str| run(fs, 1, &Act::Create(path.to_owned()));
        create("b/one")?;
        create("a/one")?;
        fsync("b/one")?;
        for _ in 0..2 {
            let lost = fsync("a/one");
            assert!(matches!(lost, Err(FsError::CubeFailed { cube: 1 })), "{lost:?}");
        }
        create("b/two")?;
        assert!(matches!(fs.sync(), Err(FsError::CubeFailed { cube: 1 })), "once");
        fs.sync()?;
        assert!(create("a/two").is_err() && !fs.is_read_only());
        create("b/three")?;
        fsync("b/three")?;
        Ok(())
    })
    .unwrap();
    // The image is locked, and recovered on a sound device.
    let left = device.inner().clone();
    mounted(&left, Limits::default(), |fs| {
        for name in ["b/one", "b/two", "b/three"] {
            find(fs, name)?;
        }
        assert!(find(fs, "a/one").is_err() && find(fs, "a/two").is_err());
        Ok(())
    })
    .unwrap();
    judge_cubes(&left, true).unwrap();
}

/// The same where nobody asks for an fsync: the log of the cube is full, and a change needs room there.
#[test]
fn a_cube_whose_full_log_cannot_be_written_fails_alone() {
    for limits in [SMALL, Limits::default()] {
        let memory = MemDevice::new(with_cubes().to_vec());
        let log = log_at(&memory);
        let blocks = (0..memory.size_bytes() / 4096).filter(|block| log(block * 4096) == Some(1));
        let faults = blocks.map(|block| (BlockNr(block), Fault::Unwritable));
        let device = Faulty::new(memory, 4096, faults);
        mounted(&device, limits, |fs| {
            run(fs, 1, &Act::Create("b/one".to_owned()))?;
            let mut refused = 0;
            for at in 0..100 {
                let made = run(fs, 1, &Act::Mkdir(format!("a/{at}")))
                    .and_then(|()| run(fs, 1, &Act::Create(format!("a/{at}/file"))));
                refused += usize::from(made.is_err());
                // As whoever tends a mount does, who is told what is lost.
                let _ = fs.tend();
            }
            assert!(refused > 0 && !fs.is_read_only(), "{refused} refused");
            run(fs, 1, &Act::Create("b/two".to_owned()))?;
            run(fs, 1, &Act::Fsync("b/two".to_owned()))?;
            run(fs, 1, &Act::Create("three".to_owned()))?;
            run(fs, 1, &Act::Fsync("three".to_owned()))?;
            // That the cube failed, and that changes are lost, is told once each.
            while fs.sync().is_err() {}
            Ok(())
        })
        .unwrap();
        let left = device.inner().clone();
        mounted(&left, Limits::default(), |fs| {
            for name in ["b/one", "b/two", "three"] {
                find(fs, name)?;
            }
            Ok(())
        })
        .unwrap();
        judge_cubes(&left, true).unwrap();
    }
}
