//! Power fails at every write to a file system whose cubes have journals, and of the recovery that follows: what was acknowledged
//! in a cube is there, whatever became of the others, and a change of several journals is there as a whole or not at all.

use std::io;
use std::sync::OnceLock;

use anyhow::{Result, ensure};
use floe_blockdev::{MemDevice, ReadBlocks, Recorder, WriteBlocks};
use floe_check::check;
use floe_disk::journal::Dependencies;
use floe_disk::ops::NewInode;
use floe_disk::recovery::recover;
use floe_ext4::fs::FileSystem;
use floe_format::InodeNr;
use floe_format::ext::jbd2::{self, COMMIT_BLOCK, JournalFormat};
use floe_format::native::commit;
use floe_testkit::crash::{Effort, each_state};

use crate::areas::{Parts, Recording, Run, cannot_be, options};
use crate::cube_journals::{base, create, cubes_of, make_cube};
use crate::cube_loans::{overwrite, plant};
use crate::journal_ops::{Mounted, Tree, tree, unmount};

/// The parts of a tree that become durable apart from each other: those of both cubes, and the rest.
fn areas(device: &dyn ReadBlocks, names: &[String]) -> Result<Vec<Tree>> {
    let mut areas = vec![Tree::new(); names.len()];
    for (path, node) in tree(device)? {
        let inside = path.trim_start_matches('/').to_owned();
        let first = inside.split('/').next().unwrap_or_default();
        // Files of the file system itself.
        if first == ".cubes" {
            continue;
        }
        // The root directory changes with what is made in it.
        let at = names.iter().position(|name| name == first).unwrap_or(names.len() - 1);
        areas[at].insert(path, node);
    }
    Ok(areas)
}

fn parts() -> Parts {
    Parts {
        names: ["a", "b", "root"].map(str::to_owned).into(),
        of: areas,
        dependencies: Dependencies::Listed,
    }
}

/// Makes a part durable, by its name.
fn fsync<D: WriteBlocks>(run: &mut Recording<'_, D>, part: &str) {
    let at = parts().names.iter().position(|name| name == part).unwrap();
    // The root cube is the last part, and has number 0.
    run.mounted.journal.commit_cube([1, 2, 0][at]).unwrap();
    run.acknowledge(at);
}

fn unlink<D: WriteBlocks>(mounted: &mut Mounted<D>, dir: &str, name: &str) {
    let dir = mounted.find(dir).unwrap();
    let gone = mounted
        .run(|volume, tx, _, caller| volume.unlink(tx, caller, dir, name.as_bytes()))
        .unwrap();
    if gone.last {
        mounted.finish_orphan(gone.inode).unwrap();
    }
}

/// Changes of three areas, some of them acknowledged.
fn changes<D: WriteBlocks>(recorder: &Recorder<MemDevice>, device: D, rounds: usize) -> Run {
    let mut run = Recording::new(recorder, device, &parts());
    for round in 0..rounds {
        run.act(|mounted| create(mounted, &format!("a/new{round}")));
        run.act(|mounted| create(mounted, &format!("b/new{round}")));
        fsync(&mut run, "a");
        run.act(|mounted| {
            mounted.make(&format!("b/dir{round}"), &NewInode::directory(0o755)).unwrap();
        });
        run.act(|mounted| create(mounted, &format!("new{round}")));
        if round == 0 {
            run.act(|mounted| unlink(mounted, "a", "foo"));
        }
        fsync(&mut run, "b");
        if round % 3 == 1 {
            fsync(&mut run, "root");
            run.mounted.journal.checkpoint().unwrap();
        }
    }
    run.end(base())
}

/// Bytes at which backups of the superblock begin.
fn backups() -> &'static [u64] {
    static BACKUPS: OnceLock<Vec<u64>> = OnceLock::new();
    BACKUPS.get_or_init(|| crate::areas::backups(&MemDevice::new(base().to_vec())))
}

const EFFORT: Effort = Effort { random_per_epoch: 1, seed: 1 };

#[test]
fn after_any_crash_each_cube_has_what_was_acknowledged() {
    let recorder = Recorder::new(MemDevice::new(base().to_vec()));
    let run = changes(&recorder, &recorder, 2);
    let states = run.explore(EFFORT, 7, 25).unwrap();
    eprintln!("{states} states of {} events", run.trace.events.len());
    assert!(states > 150, "{states}");
}

/// Changes of a cube that are longer than its log allows, between others of it and of another one.
fn long_changes(recorder: &Recorder<MemDevice>, rounds: u8) -> Run {
    let mut run = Recording::new(recorder, recorder, &parts());
    run.act(plant);
    fsync(&mut run, "a");
    for round in 0..rounds {
        run.act(|mounted| create(mounted, &format!("a/before{round}")));
        run.act(|mounted| create(mounted, &format!("b/new{round}")));
        run.act(|mounted| overwrite(mounted, 2 + round));
        if round % 2 == 1 {
            fsync(&mut run, "a");
        }
        run.act(|mounted| create(mounted, &format!("a/after{round}")));
        run.act(|mounted| create(mounted, &format!("new{round}")));
        fsync(&mut run, if round % 3 == 0 { "b" } else { "a" });
    }
    assert_eq!(run.mounted.journal.loans(), u64::from(rounds));
    run.end(base())
}

#[test]
fn changes_that_are_too_long_for_the_log_of_their_cube_survive_any_crash() {
    let recorder = Recorder::new(MemDevice::new(base().to_vec()));
    let run = long_changes(&recorder, 3);
    let states = run.explore(EFFORT, 5, 25).unwrap();
    eprintln!("{states} states of {} events", run.trace.events.len());
    assert!(states > 150, "{states}");
}

/// Thousands of states, by hand: `cargo xtask crash`.
#[test]
#[ignore = "minutes"]
fn thousands_of_states_of_cubes() {
    for long in [false, true] {
        let recorder = Recorder::new(MemDevice::new(base().to_vec()));
        let run = if long { long_changes(&recorder, 8) } else { changes(&recorder, &recorder, 12) };
        let states = run.explore(Effort { random_per_epoch: 6, seed: 2 }, 1, 40).unwrap();
        eprintln!("{states} states of {} events", run.trace.events.len());
    }
}

/// Which cubes there are, by the records of lots, by their names, and by their journals.
fn cubes(device: &dyn ReadBlocks) -> (Vec<u32>, Vec<String>) {
    let fs = FileSystem::open(device).unwrap();
    let owners = floe_disk::volume::cubes::owners(device, &fs.superblock, fs.geometry(), &[]);
    let mut owners: Vec<u32> = owners.into_values().collect();
    owners.dedup();
    let names = tree(device).unwrap();
    let is_top = |path: &&String| !path.trim_start_matches('/').contains(['/', '.']);
    (owners, names.keys().filter(is_top).cloned().collect())
}

/// A cube is made, used, and removed: the change that both journals have is there as a whole or not at all.
fn make_and_remove<D: WriteBlocks>(device: D) -> Vec<(Vec<u32>, Vec<String>)> {
    let mut mounted = Mounted::new(device).unwrap();
    let mut states = vec![cubes(&mounted.journal)];
    make_cube(&mut mounted, "/c");
    states.push(cubes(&mounted.journal));
    mounted.sync();
    create(&mut mounted, "c/new");
    mounted.journal.commit_cube(3).unwrap();
    unlink(&mut mounted, "c", "new");
    mounted.journal.commit_cube(3).unwrap();
    let place = Some((InodeNr::ROOT, &b"c"[..]));
    mounted.run(|volume, tx, _, caller| volume.remove_cube(tx, caller, 3, place)).unwrap();
    states.push(cubes(&mounted.journal));
    mounted.sync();
    for orphan in mounted.volume.orphans() {
        mounted.finish_orphan(orphan).unwrap();
    }
    unmount(mounted).unwrap();
    states
}

fn explore_removal(
    recorder: &Recorder<MemDevice>,
    states: &[(Vec<u32>, Vec<String>)],
    one_in: usize,
) -> Result<usize> {
    let trace = recorder.trace();
    let mut at = 0;
    each_state(&trace, base(), EFFORT, |device, crash| {
        if cannot_be(&trace, crash, backups()) {
            return Ok(());
        }
        at += 1;
        if at % one_in != 0 {
            return Ok(());
        }
        recover(&device)?;
        let found = cubes(&device);
        ensure!(states.contains(&found), "{found:?} is none of {states:?}");
        let device = unmount(Mounted::new(device)?)?;
        ensure!(states.contains(&cubes(&device)), "mounted again");
        if at % 3 == 0 {
            let report = check(&device, &options())?;
            ensure!(report.is_clean(), "{:?}", report.found);
        }
        Ok(())
    })
}

#[test]
fn r3_a_change_of_two_journals_is_there_as_a_whole_or_not_at_all() {
    let recorder = Recorder::new(MemDevice::new(base().to_vec()));
    let states = make_and_remove(&recorder);
    assert_eq!(states[0], states[2]);
    let explored = explore_removal(&recorder, &states, 5).unwrap();
    eprintln!("{explored} states");
    assert!(explored > 100, "{explored}");
}

/// A device that takes the dependencies out of commit blocks.
struct ForgetsDependencies<'d> {
    inner: &'d Recorder<MemDevice>,
    formats: Vec<(u64, JournalFormat)>,
}

impl ReadBlocks for ForgetsDependencies<'_> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset_bytes, into)
    }
}

impl WriteBlocks for ForgetsDependencies<'_> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        let is_commit = jbd2::header(from).is_some_and(|header| header.blocktype == COMMIT_BLOCK);
        if !is_commit || commit::of(from).is_empty() {
            return self.inner.write_at(offset_bytes, from);
        }
        let mut bytes = from.to_vec();
        bytes[commit::OFFSET..].fill(0);
        let fits = |(_, format): &&(u64, JournalFormat)| format.commit_ok(from);
        let format = &self.formats.iter().find(fits).unwrap().1;
        format.seal_commit(&mut bytes);
        self.inner.write_at(offset_bytes, &bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[test]
fn canary_a_forgotten_dependency_is_caught() {
    // Journals of their own from the first write on, so that their checksums are known.
    let recorder = Recorder::new(MemDevice::new(base().to_vec()));
    let mut formats: Vec<(u64, JournalFormat)> = cubes_of(&recorder)
        .into_values()
        .map(|own| (own.journal.offset_bytes(0).unwrap(), own.journal.superblock.format()))
        .collect();
    formats.push((0, crate::traced::located(&recorder).superblock.format()));
    let device = ForgetsDependencies { inner: &recorder, formats };
    let states = {
        let mut mounted = Mounted::new(&device).unwrap();
        let mut states = vec![cubes(&mounted.journal)];
        unlink(&mut mounted, "a", "foo");
        mounted.sync();
        let place = Some((InodeNr::ROOT, &b"a"[..]));
        mounted.run(|volume, tx, _, caller| volume.remove_cube(tx, caller, 1, place)).unwrap();
        states.push(cubes(&mounted.journal));
        mounted.sync();
        states
    };
    let caught = explore_removal(&recorder, &states, 1).unwrap_err();
    eprintln!("{caught:#}");
}

/// A device that loses the flushes between log and commit blocks.
struct LosesFlushes<'d>(&'d Recorder<MemDevice>, std::sync::atomic::AtomicUsize, usize);

impl ReadBlocks for LosesFlushes<'_> {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset_bytes, into)
    }
}

impl WriteBlocks for LosesFlushes<'_> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        self.0.write_at(offset_bytes, from)
    }

    fn flush(&self) -> io::Result<()> {
        let number = self.1.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if number >= self.2 { Ok(()) } else { self.0.flush() }
    }
}

#[test]
fn canary_a_flush_that_is_left_out_is_caught() {
    let recorder = Recorder::new(MemDevice::new(base().to_vec()));
    // From the first commit of a cube on.
    let device = LosesFlushes(&recorder, 0.into(), 4);
    let run = changes(&recorder, &device, 1);
    let effort = Effort { random_per_epoch: 8, seed: 3 };
    let caught = run.explore(effort, 1, usize::MAX).unwrap_err();
    eprintln!("{caught:#}");
}
