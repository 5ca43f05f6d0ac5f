//! Programs that work at the same time, in one directory that all share and in directories of their own.

use std::collections::BTreeMap;

use floe_blockdev::MemDevice;
use floe_format::InodeNr;
use floe_fs::{Limits, NullDisk, Store};
use floe_sync::atomic::{AtomicBool, Ordering};
use floe_sync::thread;
use floe_testkit::tool;

use super::acts::{Act, Seen, run, same, tree};
use super::{SMALL, live, outcome, story};

const PROGRAMS: u8 = 3;

/// The paths of a program: its names in the shared directory end with its number.
fn path(program: u8, path: &str) -> String {
    let (first, rest) = path.split_at(1);
    format!("shared/{first}{program}{rest}")
}

fn acts(program: u8, seed: u8, len: usize) -> Vec<Act> {
    let at = |old: &String| path(program, old);
    let moved = |act: &Act| match act {
        Act::Create(old) => Act::Create(at(old)),
        Act::Mkdir(old) => Act::Mkdir(at(old)),
        Act::Symlink(old, len) => Act::Symlink(at(old), *len),
        Act::Link(from, to) => Act::Link(at(from), at(to)),
        Act::Unlink(old) => Act::Unlink(at(old)),
        Act::Rmdir(old) => Act::Rmdir(at(old)),
        Act::Rename(from, to) => Act::Rename(at(from), at(to)),
        Act::Chmod(old, mode) => Act::Chmod(at(old), *mode),
        Act::Times(old, time) => Act::Times(at(old), *time),
        Act::Write(old, offset, len) => Act::Write(at(old), *offset, *len),
        Act::Truncate(old, size) => Act::Truncate(at(old), *size),
        Act::Attribute(old, which, len) => Act::Attribute(at(old), *which, *len),
        Act::Read(old) => Act::Read(at(old)),
        Act::Fsync(old) => Act::Fsync(at(old)),
        Act::Sync => Act::Sync,
        Act::Tend => Act::Tend,
    };
    story(seed, len).iter().map(moved).collect()
}

/// A program's view of its own files.
fn own(program: u8, all: BTreeMap<String, Seen>) -> BTreeMap<String, Seen> {
    let is_own = |path: &str| {
        let name = path.strip_prefix("/shared/").and_then(|rest| rest.chars().nth(1));
        name == Some(char::from(b'0' + program))
    };
    all.into_iter().filter(|(path, _)| is_own(path)).collect()
}

/// Each program gets the answers that it would get alone, whatever the others do, and the disk has everything in the end.
fn work_beside<S: Store>(memory: &S, seed: u8, len: usize) -> BTreeMap<String, Seen> {
    run(memory, 0, &Act::Mkdir("shared".to_owned())).unwrap();
    let over = AtomicBool::new(false);
    let models: Vec<NullDisk> = thread::scope(|scope| {
        scope.spawn(|| {
            let mut turns = 0;
            while !over.load(Ordering::SeqCst) {
                turns += 1;
                memory.sync_inode(InodeNr(11 + turns % 30)).unwrap();
                memory.tend().unwrap();
            }
        });
        let program = |program: u8| {
            let model = NullDisk::new(1000, 10_000);
            run(&model, 0, &Act::Mkdir("shared".to_owned())).unwrap();
            let seed = seed.wrapping_mul(PROGRAMS).wrapping_add(program);
            for (turn, act) in (1..).zip(acts(program, seed, len)) {
                let wanted = outcome(&run(&model, turn, &act));
                let got = outcome(&run(memory, turn, &act));
                assert_eq!(got, wanted, "{seed}, program {program}, call {turn}: {act:?}");
            }
            model
        };
        let programs: Vec<_> =
            (0..PROGRAMS).map(|number| scope.spawn(move || program(number))).collect();
        let models: Vec<_> = programs.into_iter().map(|program| program.join()).collect();
        over.store(true, Ordering::SeqCst);
        models.into_iter().map(|model| model.expect("a program's answers are wrong")).collect()
    });
    let mut all = BTreeMap::new();
    for (program, model) in (0..).zip(&models) {
        let wanted = own(program, tree(model));
        same(&own(program, tree(memory)), &wanted).unwrap_or_else(|why| panic!("{seed}: {why}"));
        all.extend(wanted);
    }
    all
}

/// Ends the loops of other threads, also when an assertion fails.
struct SetAtEnd<'o>(&'o AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn programs_do_not_disturb_each_other() {
    for seed in 0..20 {
        let limits = if seed % 2 == 0 { SMALL } else { Limits::default() };
        let memory = floe_fs::MemFs::new(NullDisk::new(3000, 100_000), limits);
        let wanted = work_beside(&memory, seed, 400);
        memory.sync().unwrap();
        let (disk, lost) = memory.finish().unwrap();
        lost.unwrap();
        for program in 0..PROGRAMS {
            same(&own(program, tree(&disk)), &own(program, wanted.clone())).unwrap();
        }
    }
}

#[test]
fn programs_on_a_disk_do_not_disturb_each_other() {
    if tool::missing() {
        return;
    }
    for seed in 20..26 {
        let limits = if seed % 2 == 0 { SMALL } else { Limits::default() };
        let device = MemDevice::new(live::base().to_vec());
        let wanted =
            live::mounted(&device, limits, |memory| Ok(work_beside(memory, seed, 120))).unwrap();
        live::judge(&device, true).unwrap();
        let again = live::mounted(&device, limits, |memory| Ok(tree(memory))).unwrap();
        for program in 0..PROGRAMS {
            same(&own(program, again.clone()), &own(program, wanted.clone())).unwrap();
        }
    }
}

/// Flushes run beside the calls of programs, which see what they would see without.
#[test]
fn flushes_beside_calls_change_nothing() {
    if tool::missing() {
        return;
    }
    for seed in 100..112u8 {
        let limits = if seed % 2 == 0 { SMALL } else { Limits::default() };
        let model = NullDisk::new(100, 1000);
        let device = MemDevice::new(live::base().to_vec());
        let known = |mut all: BTreeMap<_, _>| {
            all.remove("");
            all
        };
        live::mounted(&device, limits, |memory| {
            let over = AtomicBool::new(false);
            thread::scope(|scope| {
                let flusher = scope.spawn(|| {
                    let mut turns = 0;
                    while !over.load(Ordering::SeqCst) {
                        turns += 1;
                        memory.sync_inode(InodeNr(11 + turns % 20)).unwrap();
                        memory.tend().unwrap();
                        if turns % 3 == 0 {
                            memory.sync().unwrap();
                        }
                    }
                    turns
                });
                let over = SetAtEnd(&over);
                for (turn, act) in (0..).zip(story(seed, 400)) {
                    let wanted = outcome(&run(&model, turn, &act));
                    assert_eq!(outcome(&run(memory, turn, &act)), wanted, "{seed}: {turn} {act:?}");
                    same(&known(tree(memory)), &known(tree(&model)))
                        .unwrap_or_else(|why| panic!("{seed}, call {turn}, {act:?}: {why}"));
                }
                drop(over);
                assert!(flusher.join().unwrap() > 3, "it ran beside the calls");
            });
            Ok(())
        })
        .unwrap();
        live::judge(&device, true).unwrap();
        let again = live::mounted(&device, limits, |memory| Ok(known(tree(memory)))).unwrap();
        same(&again, &known(tree(&model))).unwrap();
    }
}
