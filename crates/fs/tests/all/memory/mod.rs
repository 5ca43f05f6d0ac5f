//! The file system in memory against a sequential model, whatever is flushed when: answers, what the disk has, and what `fsync`
//! promises.

mod acts;
mod beside;
mod budget;
pub(crate) mod crash;
mod cube_queues;
mod cubes;
mod device_faults;
mod discards;
mod erased;
mod limits;
mod live;
mod long_changes;
mod losses;
mod odd_values;
mod open_files;
mod opening;
mod overlaps;
mod passing;
mod patterns;
mod read_errors;

pub(crate) use cubes::with_journals;
use std::collections::BTreeSet;

use floe_blockdev::MemDevice;
use floe_format::InodeNr;
use floe_fs::{FsError, Limits, MemFs, NullDisk, Store};
use floe_testkit::crash::{Effort, one_in};
use floe_testkit::tool;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use live::Base;

use acts::{Act, act, consistent, find, run, same, tree};

fn outcome(result: &Result<(), FsError>) -> String {
    format!("{:?}", result.as_ref().map_err(ToString::to_string))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// Any calls, with little that may wait: programs see what they would see without a memory in between; the disk is
    /// consistent after every call, has what was fsynced, never loses it, and has all at the end.
    #[test]
    fn memory_answers_like_the_disk_and_keeps_the_promises(
        acts in prop::collection::vec(act(), 1..60),
        records in prop::sample::select(vec![3usize, 20, 1000]),
        content_bytes in prop::sample::select(vec![4096u64, 1 << 20]),
        clean_inodes in prop::sample::select(vec![0usize, 1000]),
        immediate in prop::bool::weighted(0.1),
    ) {
        let model = NullDisk::new(1000, 100_000);
        let clean_bytes = content_bytes;
        let limits =
            Limits { records, content_bytes, clean_inodes, clean_names: 1000, clean_bytes, immediate };
        let memory = MemFs::new(NullDisk::new(1000, 100_000), limits);
        let mut durable: BTreeSet<InodeNr> = BTreeSet::new();
        for (turn, act) in (0..).zip(&acts) {
            let wanted = run(&model, turn, act);
            let got = run(&memory, turn, act);
            prop_assert_eq!(outcome(&got), outcome(&wanted), "call {}: {:?}", turn, act);
            let (seen, model) = (tree(&memory), tree(&model));
            same(&seen, &model).map_err(|why| TestCaseError::fail(format!("call {turn}: {why}")))?;
            let disk = tree(memory.lower());
            consistent(&disk).map_err(TestCaseError::fail)?;
            let on_disk = |inode| disk.values().find(|seen| seen.inode == inode);
            if let (Act::Fsync(path), Ok(())) = (act, &got) {
                let inode = find(&memory, path).unwrap();
                durable.insert(inode);
                let now = seen.values().find(|seen| seen.inode == inode).unwrap();
                prop_assert_eq!(on_disk(inode), Some(now), "fsync of {}", path);
                let names = |store: &dyn Fn(InodeNr) -> Vec<Box<[u8]>>| store(inode);
                if now.state.starts_with("Directory") {
                    let list = |store: &dyn Store| -> Vec<Box<[u8]>> {
                        let names = store.directory(inode).unwrap();
                        names.behind(0).map(|(_, entry)| entry.name.clone()).collect()
                    };
                    prop_assert_eq!(
                        names(&|_| list(memory.lower())), names(&|_| list(&memory)), "fsync of {}", path
                    );
                }
            }
            durable.retain(|inode| seen.values().any(|seen| seen.inode == *inode));
            for inode in &durable {
                prop_assert!(on_disk(*inode).is_some(), "call {} lost {}", turn, inode);
            }
        }
        memory.sync().unwrap();
        prop_assert_eq!(memory.waiting_records(), 0);
        let wanted = tree(&model);
        same(&tree(memory.lower()), &wanted).map_err(TestCaseError::fail)?;
        let (disk, lost) = memory.finish().unwrap();
        lost.unwrap();
        same(&tree(&disk), &wanted).map_err(TestCaseError::fail)?;
    }
}

const SMALL: Limits = Limits {
    records: 5,
    content_bytes: 8192,
    clean_inodes: 3,
    clean_names: 10,
    clean_bytes: 4096,
    immediate: false,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// The same over a disk: what programs see is what the model has, and in the end the disk has it, which e2fsck approves.
    #[test]
    fn memory_over_a_disk_answers_like_the_model(
        acts in prop::collection::vec(act(), 1..60), small: bool,
    ) {
        if tool::missing() {
            return Ok(());
        }
        let limits = if small { SMALL } else { Limits::default() };
        let model = NullDisk::new(100, 1000);
        let device = MemDevice::new(live::base().to_vec());
        let known = |mut all: std::collections::BTreeMap<_, _>| {
            // mke2fs chose its owner and times.
            all.remove("");
            all
        };
        let done = live::mounted(&device, limits, |memory| {
            for (turn, act) in (0..).zip(&acts) {
                let wanted = outcome(&run(&model, turn, act));
                let got = outcome(&run(memory, turn, act));
                anyhow::ensure!(got == wanted, "call {turn}, {act:?}: {got}, not {wanted}");
                same(&known(tree(memory)), &known(tree(&model)))
                    .map_err(|why| anyhow::anyhow!("call {turn}, {act:?}: {why}"))?;
            }
            Ok(())
        });
        done.map_err(|error| TestCaseError::fail(format!("{error:#}")))?;
        live::judge(&device, true).map_err(|error| TestCaseError::fail(format!("{error:#}")))?;
        let again = live::mounted(&device, limits, |memory| Ok(known(tree(memory)))).unwrap();
        same(&again, &known(tree(&model))).map_err(TestCaseError::fail)?;
    }
}

/// Any calls, from a seed.
fn story(seed: u8, len: usize) -> Vec<Act> {
    let seed = [seed; 32];
    let rng = proptest::test_runner::TestRng::from_seed(
        proptest::test_runner::RngAlgorithm::ChaCha,
        &seed,
    );
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    let strategy = prop::collection::vec(act(), len);
    strategy.new_tree(&mut runner).unwrap().current()
}

#[test]
fn patterns_of_programs_survive_any_crash() {
    if tool::missing() {
        return;
    }
    let mut states = 0;
    for (name, acts) in patterns::patterns() {
        for limits in [SMALL, Limits::default()] {
            let run = crash::record(&acts, limits, false).unwrap();
            let effort = Effort { random_per_epoch: 1, seed: 3 };
            states += run.explore(effort, 100).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        }
    }
    eprintln!("{states} states");
    assert!(states > 500);
}

fn explore(seeds: std::ops::Range<u8>, effort: Effort) -> usize {
    seeds
        .map(|seed| {
            let limits = if seed % 2 == 0 { SMALL } else { Limits::default() };
            let run = crash::record(&story(seed, 30), limits, false).unwrap();
            run.explore(effort, 100).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"))
        })
        .sum()
}

#[test]
fn any_calls_survive_any_crash() {
    if tool::missing() {
        return;
    }
    let states = explore(0..4, Effort { random_per_epoch: 1, seed: 4 });
    eprintln!("{states} states");
    assert!(states > 200);
}

/// Changes wait over file systems with quotas and with metadata regions, too, and keep the promises there.
#[test]
fn any_calls_survive_any_crash_with_quotas_and_regions() {
    if tool::missing() {
        return;
    }
    for (seed, kind) in [(40, Base::Quota), (41, Base::Quota), (42, Base::Native)] {
        let acts = story(seed, if kind == Base::Native { 15 } else { 30 });
        let run = crash::record_over(kind, &acts, Limits::default(), false).unwrap();
        let effort = Effort { random_per_epoch: 1, seed: 6 };
        let states = run.explore(effort, 100).unwrap_or_else(|error| panic!("{kind:?}: {error:#}"));
        assert!(states > 10, "{kind:?}: {states} states");
    }
}

/// Waiting changes over quotas and regions are counted and placed rightly, as e2fsck and Floe's check judge.
#[test]
fn changes_wait_over_quotas_and_regions() {
    if tool::missing() {
        return;
    }
    for (seed, kind) in [(50, Base::Quota), (51, Base::Native)] {
        let model = NullDisk::new(100, 1000);
        let device = MemDevice::new(live::base_of(kind).to_vec());
        let most = live::mounted(&device, Limits::default(), |memory| {
            let mut most = 0;
            for (turn, act) in (0..).zip(story(seed, 150)) {
                let wanted = outcome(&run(&model, turn, &act));
                anyhow::ensure!(
                    outcome(&run(memory, turn, &act)) == wanted,
                    "call {turn}: {act:?}"
                );
                most = most.max(memory.waiting_records());
            }
            Ok(most)
        })
        .unwrap();
        assert!(most > 5, "{kind:?}: at most {most} changes waited");
        live::judge(&device, true).unwrap();
        let mut again =
            live::mounted(&device, Limits::default(), |memory| Ok(tree(memory))).unwrap();
        let mut wanted = tree(&model);
        // mkfs chose the root's owner, and native images have a directory of their own.
        again.remove("");
        wanted.remove("");
        again.retain(|path, _| !path.starts_with("/.cubes"));
        same(&again, &wanted).unwrap();
    }
}

/// Tens of thousands of states: `cargo xtask crash`.
#[test]
#[ignore = "minutes; run by cargo xtask crash"]
fn many_calls_survive_any_crash() {
    let states = explore(10..240, Effort { random_per_epoch: 3, seed: 5 });
    eprintln!("{states} states");
    assert!(states * one_in() > 20_000);
}

/// Accepted content can be written, and hardly anything is refused that fits.
#[test]
fn a_full_disk_says_so_at_the_call() {
    if tool::missing() {
        return;
    }
    for (what, len) in [("inodes", 10usize), ("blocks", 100_000)] {
        let device = MemDevice::new(live::base().to_vec());
        let count = live::mounted(&device, Limits::default(), |memory| {
            let (mut turn, before) = (0, memory.space());
            let refused = loop {
                let path = format!("{what} {turn}");
                let made = run(memory, turn, &Act::Create(path.clone()))
                    .and_then(|()| run(memory, turn, &Act::Write(path, 0, len)));
                turn += 1;
                if let Err(error) = made {
                    break error;
                }
            };
            anyhow::ensure!(refused.is_no_space(), "{refused}");
            memory.sync()?;
            let after = memory.space();
            let full = after.free_inodes == 0 || after.available_blocks < before.blocks / 20;
            anyhow::ensure!(full, "{after:?}");
            run(memory, turn, &Act::Unlink(format!("{what} 0")))?;
            run(memory, turn, &Act::Create("again".to_owned()))?;
            run(memory, turn, &Act::Write("again".to_owned(), 0, len))?;
            Ok(tree(memory))
        })
        .unwrap();
        live::judge(&device, true).unwrap();
        let again = live::mounted(&device, Limits::default(), |memory| Ok(tree(memory))).unwrap();
        same(&again, &count).unwrap();
    }
}

/// The canary: an fsync that does nothing is found out.
#[test]
fn an_fsync_that_does_nothing_is_found() {
    if tool::missing() {
        return;
    }
    for (name, acts) in patterns::patterns() {
        let run = crash::record(&acts, Limits::default(), true).unwrap();
        let found = run.explore(Effort { random_per_epoch: 1, seed: 3 }, 1000);
        assert!(found.is_err(), "{name}");
    }
}
