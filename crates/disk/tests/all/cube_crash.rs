//! Power fails at every write to a file system whose cubes have journals, and of the recovery that follows: what was acknowledged
//! in a cube is there, whatever became of the others, and a change of several journals is there as a whole or not at all.

use std::collections::BTreeMap;
use std::io;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use floe_blockdev::{Crash, MemDevice, ReadBlocks, Recorder, Trace, WriteBlocks};
use floe_check::{CheckOptions, check};
use floe_disk::ops::NewInode;
use floe_disk::recovery::recover;
use floe_ext4::fs::FileSystem;
use floe_format::ext::jbd2::{self, COMMIT_BLOCK, JournalFormat};
use floe_format::native::commit;
use floe_format::{GroupNr, InodeNr};
use floe_testkit::crash::{Effort, each_state, tears};

use crate::cube_journals::{base, create, cubes_of, make_cube};
use crate::cube_loans::{overwrite, plant};
use crate::journal_ops::{Mounted, Tree, tree, unmount};

/// The parts of a tree that become durable apart from each other.
type Areas = BTreeMap<&'static str, Tree>;

fn areas(device: &dyn ReadBlocks) -> Result<Areas> {
    let mut areas: Areas = [("a", Tree::new()), ("b", Tree::new()), ("root", Tree::new())].into();
    for (path, node) in tree(device)? {
        let inside = path.trim_start_matches('/').to_owned();
        let area = match inside.split('/').next() {
            // Files of the file system itself.
            Some(".cubes") => continue,
            Some("a") => "a",
            Some("b") => "b",
            // The root directory changes with what is made in it.
            _ => "root",
        };
        areas.get_mut(area).unwrap().insert(path, node);
    }
    Ok(areas)
}

/// A recorded run.
struct Run {
    trace: Trace,
    /// By area: what there was after each change of it, and how many events had ended when that began.
    history: BTreeMap<&'static str, Vec<(usize, Tree)>>,
    /// By area: numbers of events, and the state that was acknowledged by then.
    acknowledged: BTreeMap<&'static str, Vec<(usize, usize)>>,
    /// One state in so many is judged.
    one_in: usize,
}

struct Recording<'r, D: WriteBlocks> {
    recorder: &'r Recorder<MemDevice>,
    mounted: Mounted<D>,
    history: BTreeMap<&'static str, Vec<(usize, Tree)>>,
    acknowledged: BTreeMap<&'static str, Vec<(usize, usize)>>,
}

impl<'r, D: WriteBlocks> Recording<'r, D> {
    fn new(recorder: &'r Recorder<MemDevice>, device: D) -> Self {
        let mounted = Mounted::new(device).unwrap();
        let now = areas(&mounted.journal).unwrap();
        let history = now.into_iter().map(|(area, tree)| (area, vec![(0, tree)])).collect();
        let acknowledged = ["a", "b", "root"].map(|area| (area, vec![(0, 0)])).into();
        Self { recorder, mounted, history, acknowledged }
    }

    fn act(&mut self, act: impl FnOnce(&mut Mounted<D>)) {
        let began = self.recorder.trace().events.len();
        act(&mut self.mounted);
        for (area, tree) in areas(&self.mounted.journal).unwrap() {
            let known = self.history.get_mut(area).unwrap();
            if known.last().unwrap().1 != tree {
                known.push((began, tree));
            }
        }
    }

    fn fsync(&mut self, area: &'static str) {
        let cube = match area {
            "a" => 1,
            "b" => 2,
            _ => 0,
        };
        self.mounted.journal.commit_cube(cube).unwrap();
        self.acknowledge(area);
    }

    fn acknowledge(&mut self, area: &'static str) {
        let state = self.history[area].len() - 1;
        let events = self.recorder.trace().events.len();
        self.acknowledged.get_mut(area).unwrap().push((events, state));
    }

    fn end(mut self) -> Run {
        self.mounted.sync();
        ["a", "b", "root"].into_iter().for_each(|area| self.acknowledge(area));
        unmount(self.mounted).unwrap();
        let trace = self.recorder.trace();
        Run { trace, history: self.history, acknowledged: self.acknowledged, one_in: 1 }
    }
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
    let mut run = Recording::new(recorder, device);
    for round in 0..rounds {
        run.act(|mounted| create(mounted, &format!("a/new{round}")));
        run.act(|mounted| create(mounted, &format!("b/new{round}")));
        run.fsync("a");
        run.act(|mounted| {
            mounted.make(&format!("b/dir{round}"), &NewInode::directory(0o755)).unwrap();
        });
        run.act(|mounted| create(mounted, &format!("new{round}")));
        if round == 0 {
            run.act(|mounted| unlink(mounted, "a", "foo"));
        }
        run.fsync("b");
        if round % 3 == 1 {
            run.fsync("root");
            run.mounted.journal.checkpoint().unwrap();
        }
    }
    run.end()
}

impl Run {
    fn judge(&self, device: &dyn ReadBlocks, ended: usize) -> Result<()> {
        for (area, found) in areas(device)? {
            let after = self.acknowledged[area].iter().take_while(|(events, _)| *events <= ended);
            let least = after.last().map_or(0, |(_, state)| *state);
            let history = &self.history[area];
            let mut possible = history[least..].iter().take_while(|(began, _)| *began <= ended);
            ensure!(
                possible.any(|(_, tree)| *tree == found),
                "{area}: neither state {least} nor a later one: {:?}",
                found.keys()
            );
        }
        Ok(())
    }

    /// Every state, recovered; every `deep`-th recovery is cut off everywhere, too.
    fn explore(&self, effort: Effort, deep: usize) -> Result<usize> {
        let (mut at, mut nested) = (0, 0);
        let states = each_state(&self.trace, base(), effort, |device, crash| {
            if cannot_be(&self.trace, crash) {
                return Ok(());
            }
            at += 1;
            if at % self.one_in != 0 {
                return Ok(());
            }
            if at % deep == 0 {
                nested += self.cut_recovery_off(&device, crash.issued)?;
            }
            if at % 5 == 0 {
                // With all journals in memory.
                sound(&device).context("checked before recovery")?;
            }
            recover(&device)?;
            self.judge(&device, crash.issued)?;
            let device = unmount(Mounted::new(device)?)?;
            self.judge(&device, crash.issued).context("mounted again")?;
            let report = check(&device, &options())?;
            ensure!(report.is_clean(), "{:?}", report.found);
            Ok(())
        })?;
        Ok(states + nested)
    }

    fn cut_recovery_off(&self, crashed: &MemDevice, ended: usize) -> Result<usize> {
        let crashed = crashed.to_vec();
        let recorder = Recorder::new(MemDevice::new(crashed.clone()));
        recover(&recorder)?;
        let trace = recorder.trace();
        let effort = Effort { random_per_epoch: 1, seed: 5 };
        each_state(&trace, &crashed, effort, |device, crash| {
            if cannot_be(&trace, crash) {
                return Ok(());
            }
            recover(&device)?;
            self.judge(&device, ended)?;
            sound(&device)
        })
        .context("while recovery was cut off")
    }
}

fn options() -> CheckOptions<'static> {
    CheckOptions { threads: 1, ..CheckOptions::default() }
}

/// A check finds nothing but orphans, which the next mount deletes.
fn sound(device: &dyn ReadBlocks) -> Result<()> {
    let report = check(device, &options())?;
    let others = report.found.iter().filter(|one| !one.row().id.contains("orphan"));
    let others: Vec<_> = others.collect();
    ensure!(others.is_empty(), "{others:?}");
    Ok(())
}

/// Whether a crash tore a sector, the superblock or a backup of it: none of these is expected of devices (docs/journal.md).
fn cannot_be(trace: &Trace, crash: &Crash) -> bool {
    static BACKUPS: OnceLock<Vec<u64>> = OnceLock::new();
    let backups = BACKUPS.get_or_init(|| {
        let fs = FileSystem::open(&MemDevice::new(base().to_vec())).unwrap();
        let geo = fs.geometry();
        let blocks = (1..geo.group_count).filter_map(|group| geo.superblock_of(GroupNr(group)));
        blocks.map(|block| geo.offset_bytes(block)).collect()
    });
    crate::journal_ops::cannot_be(trace, crash)
        || backups.iter().any(|at| tears(trace, crash, *at..at + 1024))
}

const EFFORT: Effort = Effort { random_per_epoch: 1, seed: 1 };

#[test]
fn after_any_crash_each_cube_has_what_was_acknowledged() {
    let recorder = Recorder::new(MemDevice::new(base().to_vec()));
    let run = Run { one_in: 7, ..changes(&recorder, &recorder, 2) };
    let states = run.explore(EFFORT, 7 * 25).unwrap();
    eprintln!("{states} states of {} events", run.trace.events.len());
    assert!(states > 150, "{states}");
}

/// Changes of a cube that are longer than its log allows, between others of it and of another one.
fn long_changes(recorder: &Recorder<MemDevice>, rounds: u8) -> Run {
    let mut run = Recording::new(recorder, recorder);
    run.act(plant);
    run.fsync("a");
    for round in 0..rounds {
        run.act(|mounted| create(mounted, &format!("a/before{round}")));
        run.act(|mounted| create(mounted, &format!("b/new{round}")));
        run.act(|mounted| overwrite(mounted, 2 + round));
        if round % 2 == 1 {
            run.fsync("a");
        }
        run.act(|mounted| create(mounted, &format!("a/after{round}")));
        run.act(|mounted| create(mounted, &format!("new{round}")));
        run.fsync(if round % 3 == 0 { "b" } else { "a" });
    }
    assert_eq!(run.mounted.journal.loans(), u64::from(rounds));
    run.end()
}

#[test]
fn changes_that_are_too_long_for_the_log_of_their_cube_survive_any_crash() {
    let recorder = Recorder::new(MemDevice::new(base().to_vec()));
    let run = Run { one_in: 5, ..long_changes(&recorder, 3) };
    let states = run.explore(EFFORT, 5 * 25).unwrap();
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
        let states = run.explore(Effort { random_per_epoch: 6, seed: 2 }, 40).unwrap();
        eprintln!("{states} states of {} events", run.trace.events.len());
    }
}

/// Which cubes there are, by the records of lots, by their names, and by their journals.
fn cubes(device: &dyn ReadBlocks) -> (Vec<u32>, Vec<String>) {
    let fs = FileSystem::open(device).unwrap();
    let owners = floe_disk::volume::cubes::owners(device, &fs.superblock, fs.geometry());
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
        if cannot_be(&trace, crash) {
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
    let caught = run.explore(effort, usize::MAX).unwrap_err();
    eprintln!("{caught:#}");
}
