//! Changes that wait in several cubes: answers as of a sequential model, promises after any crash, and an fsync that takes nothing
//! of another cube along.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use floe_blockdev::{Event, MemDevice, Recorder};
use floe_ext4::alloc::Space as _;
use floe_ext4::fs::FileSystem as Layout;
use floe_format::BlockNr;
use floe_fs::{FsError, Limits, NullDisk, Store};
use floe_testkit::crash::{Effort, one_in};
use floe_testkit::tool;
use proptest::prelude::*;

use super::acts::{Act, Seen, act, find, run, same, tree};
use super::cubes::{judge_cubes, with_cubes};
use super::live::mounted;
use super::{SMALL, crash, outcome, story};

/// Two cubes, and a directory of the root cube.
const ZONES: [&str; 3] = ["a", "b", "c"];

/// A call below the directories of zones: that of the first path, and of the second one if there is one.
pub(crate) fn within_zone(act: &Act, one: &str, other: &str) -> Act {
    let first = |path: &String| format!("{one}/{path}");
    let second = |path: &String| format!("{other}/{path}");
    match act {
        Act::Create(path) => Act::Create(first(path)),
        Act::Mkdir(path) => Act::Mkdir(first(path)),
        Act::Symlink(path, len) => Act::Symlink(first(path), *len),
        Act::Link(from, to) => Act::Link(first(from), second(to)),
        Act::Unlink(path) => Act::Unlink(first(path)),
        Act::Rmdir(path) => Act::Rmdir(first(path)),
        Act::Rename(from, to) => Act::Rename(first(from), second(to)),
        Act::Chmod(path, mode) => Act::Chmod(first(path), *mode),
        Act::Times(path, seconds) => Act::Times(first(path), *seconds),
        Act::Write(path, at, len) => Act::Write(first(path), *at, *len),
        Act::Truncate(path, size) => Act::Truncate(first(path), *size),
        Act::Attribute(path, which, len) => Act::Attribute(first(path), *which, *len),
        Act::Read(path) => Act::Read(first(path)),
        Act::Fsync(path) => Act::Fsync(first(path)),
        Act::Sync => Act::Sync,
        Act::Tend => Act::Tend,
    }
}

/// The tree that programs see, without the directories of zones, whose owners and times differ.
fn seen<S: Store>(store: &S) -> BTreeMap<String, Seen> {
    let mut all = tree(store);
    for zone in ["", "/a", "/b", "/c"] {
        all.remove(zone);
    }
    all
}

/// Makes calls on a file system with cubes and on a model without; those across cubes are refused and change nothing.
fn compare<S: Store>(memory: &S, acts: &[(Act, usize, usize)]) -> Result<BTreeMap<String, Seen>> {
    let model = NullDisk::new(200, 2000);
    for zone in ZONES {
        run(&model, 0, &Act::Mkdir(zone.to_owned()))?;
    }
    run(memory, 0, &Act::Mkdir("c".to_owned()))?;
    for (turn, (act, one, other)) in (1..).zip(acts) {
        let has_two = matches!(act, Act::Link(..) | Act::Rename(..));
        let act = within_zone(act, ZONES[*one], ZONES[*other]);
        let got = run(memory, turn, &act);
        if has_two && one != other {
            ensure!(got.is_err(), "call {turn}, {act:?}: it crosses from one cube to another");
        } else {
            let wanted = outcome(&run(&model, turn, &act));
            ensure!(outcome(&got) == wanted, "call {turn}, {act:?}: {got:?}, not {wanted}");
        }
        same(&seen(memory), &seen(&model))
            .map_err(|why| anyhow::anyhow!("call {turn}, {act:?}: {why}"))?;
    }
    Ok(seen(&model))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

    /// Any calls in two cubes and the root: programs see what they would see without cubes and without a memory in between, and
    /// in the end the disk has it, which e2fsck approves.
    #[test]
    fn changes_that_wait_in_cubes_answer_like_the_model(
        acts in prop::collection::vec((act(), 0usize..3, 0usize..8), 1..60), small: bool,
    ) {
        if tool::missing() {
            return Ok(());
        }
        // Few cross from one to another.
        let acts: Vec<_> = acts
            .into_iter()
            .map(|(act, one, other)| (act, one, if other < 3 { other } else { one }))
            .collect();
        let limits = if small { SMALL } else { Limits::default() };
        let device = MemDevice::new(with_cubes().to_vec());
        let wanted = mounted(&device, limits, |memory| compare(memory, &acts));
        let wanted = wanted.map_err(|error| TestCaseError::fail(format!("{error:#}")))?;
        judge_cubes(&device, true).map_err(|error| TestCaseError::fail(format!("{error:#}")))?;
        let again = mounted(&device, limits, |memory| Ok(seen(memory))).unwrap();
        same(&again, &wanted).map_err(TestCaseError::fail)?;
    }
}

/// Calls from a seed, in all zones by turns.
fn in_zones(seed: u8, len: usize) -> Vec<Act> {
    let acts = story(seed, len);
    let zone = |at: usize| ZONES[(at * 7 + usize::from(seed)) % 3];
    let acts = acts.iter().enumerate().map(|(at, act)| within_zone(act, zone(at), zone(at)));
    [Act::Mkdir("c".to_owned())].into_iter().chain(acts).collect()
}

fn explore(seeds: std::ops::Range<u8>, len: usize, effort: Effort) -> usize {
    let one = |seed: u8| {
        let limits = if seed.is_multiple_of(2) { SMALL } else { Limits::default() };
        let recorder = Recorder::new(MemDevice::new(with_cubes().to_vec()));
        let acts = in_zones(seed, len);
        let base = with_cubes().to_vec();
        let recorded = crash::record_on(&recorder, base, &acts, limits, |memory, turn, act| {
            run(memory, turn, act)
        });
        let states = recorded.and_then(|recorded| recorded.explore(effort, 100));
        states.unwrap_or_else(|error| panic!("seed {seed}: {error:#}"))
    };
    seeds.map(one).sum()
}

#[test]
fn any_calls_in_cubes_survive_any_crash() {
    if tool::missing() {
        return;
    }
    let states = explore(60..62, 14, Effort { random_per_epoch: 1, seed: 7 });
    eprintln!("{states} states");
    assert!(states > 30);
}

/// Thousands of states: `cargo xtask crash`.
#[test]
#[ignore = "minutes; run by cargo xtask crash"]
fn many_calls_in_cubes_survive_any_crash() {
    let states = explore(62..92, 30, Effort { random_per_epoch: 2, seed: 8 });
    eprintln!("{states} states");
    assert!(states * one_in() > 3000);
}

/// Changes and content of one cube wait on while another makes its own durable.
#[test]
fn an_fsync_writes_nothing_of_another_cube() {
    let device = Recorder::new(MemDevice::new(with_cubes().to_vec()));
    let layout = Layout::open(&device).unwrap();
    let lot_blocks = {
        let superblock = &layout.superblock;
        u64::from(superblock.blocks_per_group) << superblock.log_groups_per_flex
    };
    let lot_of = |offset: u64| offset / 4096 / lot_blocks;
    mounted(&device, Limits::default(), |memory| {
        let lots = ["a", "b"].map(|path| {
            let inode = find(memory, path).unwrap();
            let (group, _) = layout.geometry().place_of(inode).unwrap();
            let start: BlockNr = layout.space.groups().geometry().group_start(group);
            lot_of(start.0 * 4096)
        });
        // The first change of a cube keeps others out by a bit in all backups of the superblock.
        for zone in ["a", "b"] {
            run(memory, 1, &Act::Create(format!("{zone}/first")))?;
        }
        memory.sync()?;
        for zone in ["a", "b"] {
            run(memory, 1, &Act::Create(format!("{zone}/file")))?;
            run(memory, 1, &Act::Write(format!("{zone}/file"), 0, 100_000))?;
        }
        let from = device.trace().events.len();
        run(memory, 2, &Act::Fsync("b/file".to_owned()))?;
        let trace = device.trace();
        let written: Vec<u64> = trace.events[from..]
            .iter()
            .filter_map(|event| match event {
                Event::Write { offset_bytes, .. } => Some(lot_of(*offset_bytes)),
                Event::Flush => None,
            })
            .collect();
        assert!(written.contains(&lots[1]), "{written:?}");
        assert!(!written.contains(&lots[0]), "{written:?}, {lots:?}");
        assert_eq!(memory.waiting_records(), 1, "the creation in the other cube");
        Ok(())
    })
    .unwrap();
}

/// Many changes that wait take as many transactions of a small journal of a cube as they need.
#[test]
fn changes_of_many_blocks_fit_the_journal_of_their_cube() {
    let device = MemDevice::new(with_cubes().to_vec());
    let wanted = mounted(&device, Limits::default(), |memory| {
        for at in 0..25 {
            run(memory, at, &Act::Mkdir(format!("a/dir{at}")))?;
            run(memory, at, &Act::Create(format!("a/dir{at}/file")))?;
            run(memory, at, &Act::Write(format!("a/dir{at}/file"), 0, 9000))?;
        }
        ensure!(memory.waiting_records() >= 20, "{} wait", memory.waiting_records());
        memory.sync()?;
        Ok(seen(memory))
    })
    .unwrap();
    judge_cubes(&device, false).unwrap();
    let again = mounted(&device, Limits::default(), |memory| Ok(seen(memory))).unwrap();
    same(&again, &wanted).unwrap();
}

/// Two cubes and the root fill the disk by turns: what was accepted is there, whoever took the last lot.
#[test]
fn cubes_that_fill_the_disk_lose_nothing_that_was_accepted() {
    if tool::missing() {
        return;
    }
    for len in [30_000usize, 300_000] {
        let device = MemDevice::new(with_cubes().to_vec());
        let wanted = mounted(&device, Limits::default(), |memory| {
            run(memory, 0, &Act::Mkdir("c".to_owned()))?;
            let (mut full, mut turn) = ([false; 3], 0);
            while full != [true; 3] {
                turn += 1;
                let zone = turn as usize % 3;
                let path = format!("{}/{turn}", ZONES[zone]);
                let made = run(memory, turn, &Act::Create(path.clone()))
                    .and_then(|()| run(memory, turn, &Act::Write(path, 0, len)));
                match made {
                    Ok(()) => {}
                    Err(error) if error.is_no_space() => full[zone] = true,
                    Err(error) => return Err(error.into()),
                }
            }
            ensure!(turn as usize * len > 3 << 20, "only {turn} files");
            memory.sync()?;
            for zone in ZONES {
                let late = memory.late_error(find(memory, zone)?, None, false);
                ensure!(late.is_ok(), "{late:?}");
            }
            Ok(seen(memory))
        })
        .unwrap();
        judge_cubes(&device, true).unwrap();
        let again = mounted(&device, Limits::default(), |memory| Ok(seen(memory))).unwrap();
        same(&again, &wanted).unwrap();
    }
}

/// The directory of a cube stays where it is, and nothing crosses; what waits on both sides stays as it is.
#[test]
fn nothing_crosses_from_one_cube_to_another_while_changes_wait() {
    let device = MemDevice::new(with_cubes().to_vec());
    mounted(&device, Limits::default(), |memory| {
        let act = |act: Act| run(memory, 1, &act);
        let two = |from: &str, to: &str| (from.to_owned(), to.to_owned());
        act(Act::Create("a/file".to_owned()))?;
        act(Act::Mkdir("b/dir".to_owned()))?;
        let waiting = memory.waiting_records();
        for (from, to) in [two("a/file", "b/file"), two("a/file", "file"), two("b/dir", "dir")] {
            let crossed = act(Act::Rename(from, to));
            assert!(matches!(crossed, Err(FsError::CrossProject)), "{crossed:?}");
        }
        assert_eq!(memory.waiting_records(), waiting, "a refused rename lets all of it wait");
        let linked = act(Act::Link("a/file".to_owned(), "b/file".to_owned()));
        assert!(matches!(linked, Err(FsError::CrossProject)), "{linked:?}");
        for moved in [act(Act::Rename("a".to_owned(), "d".to_owned())), act(Act::Rmdir("b".into()))]
        {
            let refused = matches!(moved, Err(FsError::NotPermitted | FsError::NotEmpty));
            assert!(refused, "{moved:?}");
        }
        Ok(())
    })
    .unwrap();
    judge_cubes(&device, false).unwrap();
}
