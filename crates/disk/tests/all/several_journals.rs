//! Several journals of the root cube (`docs/journal.md`): each block in the journal of its lot, fsyncs that write one journal, changes
//! of several that are there as a whole or not at all, whenever power fails, and what others make of such images.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use anyhow::{Result, ensure};
use floe_blockdev::{
    Event, MemDevice, Model, Modelled, ReadBlocks, Recorder, Striped, WriteBlocks,
};
use floe_check::check;
use floe_disk::journal::{Dependencies, Journal, JournalError};
use floe_disk::ops::{NewInode, RenameMode};
use floe_disk::recovery::recover;
use floe_ext4::fs::FileSystem;
use floe_ext4::inode_table::inode_place;
use floe_ext4::journal::{self, CubeJournal};
use floe_ext4::tx::Tx;
use floe_format::ext::jbd2::{
    self, COMMIT_BLOCK, DESCRIPTOR_BLOCK, JournalFormat, JournalSuperblock,
};
use floe_format::native::{commit, is_locked};
use floe_format::{BlockNr, InodeNr};
use floe_testkit::crash::{Effort, each_state};
use floe_testkit::kernel::Mounted as LinuxMount;
use floe_testkit::{Image, kernel, tool};

use crate::areas::{Parts, Recording, Run, e2fsck_finds_nothing, options, sound};
use crate::cube_journals::{LOT_GROUPS, create, make_cube};
use crate::journal_ops::{Mounted, Tree, native, tree, unmount};
use crate::traced::{BaseBytes, located};

/// An empty file system of five lots of 4 MiB, dealt to so many journals.
pub(crate) fn empty(journals: u32) -> Vec<u8> {
    let mut mounted = Mounted::new(native(20 << 20)).unwrap();
    let mut made = Vec::new();
    for number in 1..journals {
        let new =
            mounted.run(|volume, tx, _, caller| volume.make_further_journal(tx, caller, number));
        made.push(new.unwrap());
    }
    for lot in journals..5 {
        let Some(journal) = (lot % journals).checked_sub(1).map(|at| made[at as usize]) else {
            continue;
        };
        mounted
            .run(|volume, tx, _, caller| volume.give_to_journal(tx, caller, lot, journal))
            .unwrap();
    }
    unmount(mounted).unwrap().to_vec()
}

/// The further journals.
pub(crate) fn further(device: &dyn ReadBlocks) -> Vec<CubeJournal> {
    let fs = FileSystem::open(device).unwrap();
    let groups = fs.space.groups.descs();
    let found = journal::find_cubes(device, &fs.superblock, fs.geometry(), groups);
    assert!(found.unusable.is_empty(), "{:?}", found.unusable);
    found.usable.into_iter().filter(|own| own.cube == 0).collect()
}

fn lot_of(device: &dyn ReadBlocks, inode: InodeNr) -> u32 {
    let fs = FileSystem::open(device).unwrap();
    fs.geometry().place_of(inode).unwrap().0.0 / LOT_GROUPS
}

/// The journal of a lot: 0 for that of inode 8.
fn log_of(device: &dyn ReadBlocks, lot: u32) -> usize {
    let position = further(device).iter().position(|own| own.lots.contains(&lot));
    position.map_or(0, |at| at + 1)
}

/// A file system with a directory for each journal, in a lot that it logs, and a file `foo` in each. The names of the directories
/// come back, too.
pub(crate) fn base(journals: u32) -> (Vec<u8>, Vec<String>) {
    let mut mounted = Mounted::new(MemDevice::new(empty(journals))).unwrap();
    let mut names = BTreeMap::new();
    for number in 0..40 {
        let name = format!("d{number}");
        let made = mounted.make(&name, &NewInode::directory(0o755)).unwrap();
        let log = log_of(&mounted.journal, lot_of(&mounted.journal, made));
        names.entry(log).or_insert(name);
    }
    let names: Vec<String> = names.into_values().collect();
    assert_eq!(names.len(), journals as usize);
    for name in &names {
        for file in ["foo", "bar"] {
            let file = mounted.make(&format!("{name}/{file}"), &NewInode::regular(0o644)).unwrap();
            mounted.write(file, 0, &[0xaa; 3000]).unwrap();
        }
    }
    (unmount(mounted).unwrap().to_vec(), names)
}

/// Makes a file durable, or a directory.
pub(crate) fn fsync<D: WriteBlocks>(mounted: &mut Mounted<D>, path: &str) {
    let inode = mounted.find(path).unwrap();
    let fs = FileSystem::open(&mounted.journal).unwrap();
    let place = inode_place(inode, fs.geometry(), fs.space.groups.descs());
    mounted.journal.commit_inode_for(0, place.unwrap().0, 1).unwrap();
}

/// The logs that are written behind the first `from` events, their superblocks aside: 0 for that of inode 8.
pub(crate) fn logs_written(device: &Recorder<MemDevice>, from: usize) -> Vec<usize> {
    let mut logs = vec![located(device)];
    logs.extend(further(device).into_iter().map(|own| own.journal));
    let places: Vec<BTreeSet<u64>> = logs
        .iter()
        .map(|log| (0..log.blocks).filter_map(|at| log.offset_bytes(at)).collect())
        .collect();
    let mut written = BTreeSet::new();
    for event in &device.trace().events[from..] {
        let Event::Write { offset_bytes, bytes } = event else { continue };
        let log = places.iter().position(|log| log.contains(&(offset_bytes / 4096 * 4096)));
        written.extend(log.filter(|_| bytes.len() > 1024));
    }
    written.into_iter().collect()
}

#[test]
fn r1_each_block_is_logged_in_the_journal_that_its_lot_was_dealt_to() {
    let (image, names) = base(4);
    let device = Recorder::new(MemDevice::new(image));
    let mut mounted = Mounted::new(&device).unwrap();
    for round in 0..4 {
        for name in &names {
            create(&mut mounted, &format!("{name}/new{round}"));
        }
        create(&mut mounted, &format!("new{round}"));
        mounted.sync();
    }
    let all = further(&device);
    assert_eq!(all.len(), 3);
    let mut logs = vec![located(&device)];
    logs.extend(all.iter().map(|own| own.journal.clone()));
    let fs = FileSystem::open(&device).unwrap();
    let mut seen = BTreeSet::new();
    for event in device.trace().events {
        let Event::Write { offset_bytes, bytes } = event else { continue };
        let is_in = |log: &journal::Journal| {
            (0..log.blocks).any(|at| log.offset_bytes(at) == Some(offset_bytes))
        };
        let Some(log) = logs.iter().position(is_in) else { continue };
        for block in bytes.chunks_exact(4096) {
            if jbd2::header(block).is_none_or(|header| header.blocktype != DESCRIPTOR_BLOCK) {
                continue;
            }
            for tag in logs[0].superblock.format().tags(block) {
                assert!(tag.block > 0, "a superblock is logged");
                let lot = fs.geometry().group_of(BlockNr(tag.block)).unwrap().0 / LOT_GROUPS;
                assert_eq!(log_of(&device, lot), log, "{} in log {log}", tag.block);
                seen.insert(log);
            }
        }
    }
    assert_eq!(seen.len(), 4);
    unmount(mounted).unwrap();
}

#[test]
fn an_fsync_writes_the_journal_of_the_file_alone_unless_a_change_concerns_others() {
    let (image, names) = base(2);
    let device = Recorder::new(MemDevice::new(image));
    let mut mounted = Mounted::new(&device).unwrap();
    mounted.sync();
    let [one, other] = &names[..] else { panic!("two directories") };
    create(&mut mounted, &format!("{one}/new"));
    create(&mut mounted, &format!("{other}/new"));
    let from = device.trace().events.len();
    fsync(&mut mounted, &format!("{other}/new"));
    assert_eq!(logs_written(&device, from), [1]);
    let crashed = MemDevice::new(device.base_bytes());
    assert!(is_locked(&FileSystem::open(&crashed).unwrap().superblock));
    recover(&crashed).unwrap();
    let names_there = tree(&crashed).unwrap();
    let has = |name: &str| names_there.keys().any(|path| path.ends_with(name));
    assert!(has(&format!("{other}/new")) && !has(&format!("{one}/new")));
    let from = device.trace().events.len();
    fsync(&mut mounted, &format!("{one}/new"));
    assert_eq!(logs_written(&device, from), [0]);
    // A change of both.
    let places = [one, other].map(|name| mounted.find(name).unwrap());
    let from = device.trace().events.len();
    mounted
        .run(|volume, tx, _, caller| {
            let (from, to) = ((places[0], &b"foo"[..]), (places[1], &b"moved"[..]));
            volume.rename(tx, caller, from, to, RenameMode::Replace)
        })
        .unwrap();
    fsync(&mut mounted, &format!("{other}/moved"));
    assert_eq!(logs_written(&device, from), [0, 1]);
    unmount(mounted).unwrap();
}

/// All that is waited for by an fsync of the root cube as a whole.
#[test]
fn a_commit_of_the_root_cube_writes_all_its_journals() {
    let (image, names) = base(4);
    let device = Recorder::new(MemDevice::new(image));
    let mut mounted = Mounted::new(&device).unwrap();
    mounted.sync();
    names.iter().for_each(|name| create(&mut mounted, &format!("{name}/new")));
    let from = device.trace().events.len();
    mounted.journal.commit_cube(0).unwrap();
    assert_eq!(logs_written(&device, from), [0, 1, 2, 3]);
    assert!(mounted.journal.ended_cubes().is_empty());
    unmount(mounted).unwrap();
}

/// The parts of the tree that become durable apart from each other: those below the directories, without counts of links.
fn areas(device: &dyn ReadBlocks, names: &[String]) -> Result<Vec<Tree>> {
    let mut areas = vec![Tree::new(); names.len()];
    for (path, mut node) in tree(device)? {
        let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        let Some(at) = names.iter().position(|name| name == first) else { continue };
        node.1 = 0;
        areas[at].insert(path, node);
    }
    Ok(areas)
}

pub(crate) fn rename<D: WriteBlocks>(
    mounted: &mut Mounted<D>,
    from: (&str, &str),
    to: (&str, &str),
) {
    let places = [from.0, to.0].map(|name| mounted.find(name).unwrap());
    mounted
        .run(|volume, tx, _, caller| {
            let (from, to) = ((places[0], from.1.as_bytes()), (places[1], to.1.as_bytes()));
            volume.erasing(|volume| volume.rename(tx, caller, from, to, RenameMode::Replace))
        })
        .unwrap();
}

/// Changes of each directory alone, and of two at a time, some of them acknowledged.
pub(crate) fn changes<D: WriteBlocks>(
    recorder: &Recorder<MemDevice>,
    device: D,
    (image, names): (&[u8], &[String]),
    dependencies: Dependencies,
    rounds: usize,
) -> Run {
    let parts = Parts { names: names.to_vec(), of: areas, dependencies };
    let mut run = Recording::new(recorder, device, &parts);
    let synced = |run: &mut Recording<'_, D>, area: usize| {
        fsync(&mut run.mounted, &names[area]);
        run.acknowledge(area);
    };
    let count = names.len();
    for round in 0..rounds {
        for name in names {
            run.act(|mounted| create(mounted, &format!("{name}/new{round}")));
        }
        synced(&mut run, round % count);
        // From each into the next one: all become one circle.
        for area in 0..count {
            let next = (area + 1) % count;
            run.act(|mounted| {
                let (new, moved) = (format!("new{round}"), format!("from{area}-{round}"));
                rename(mounted, (&names[area], &new), (&names[next], &moved));
            });
            if area == round % count {
                synced(&mut run, next);
            }
        }
        run.act(|mounted| {
            let file = mounted.find(&format!("{}/foo", names[round % count])).unwrap();
            // Behind its end: in place content is not written as a whole.
            mounted
                .write(file, 3000 + 1500 * (round / count) as u64, &[round as u8; 1500])
                .unwrap();
        });
        run.act(|mounted| {
            let path = format!("{}/dir{round}", names[(round + 1) % count]);
            mounted.make(&path, &NewInode::directory(0o755)).unwrap();
        });
        if round == 1 {
            // Content of a file of one in blocks of its own, and gone.
            run.act(|mounted| rename(mounted, (&names[0], "bar"), (&names[1], "bar")));
            synced(&mut run, 0);
            run.mounted.journal.checkpoint().unwrap();
        }
    }
    run.end(image)
}

pub(crate) fn explore(
    (journals, dependencies): (u32, Dependencies),
    rounds: usize,
    effort: Effort,
    one_in: usize,
    deep: usize,
) -> usize {
    let (image, names) = base(journals);
    let recorder = Recorder::new(MemDevice::new(image.clone()));
    let run = changes(&recorder, &recorder, (&image, &names), dependencies, rounds);
    let states = run.explore(effort, one_in, deep).unwrap();
    eprintln!("{journals} journals: {states} states of {} events", run.trace.events.len());
    states
}

pub(crate) const EFFORT: Effort = Effort { random_per_epoch: 1, seed: 1 };

#[test]
fn after_any_crash_two_journals_have_what_was_acknowledged_and_changes_of_both_whole() {
    assert!(explore((2, Dependencies::Listed), 2, EFFORT, 43, 8) > 150);
}

#[test]
fn after_any_crash_four_journals_have_what_was_acknowledged_and_changes_of_several_whole() {
    assert!(explore((4, Dependencies::Listed), 2, EFFORT, 101, 6) > 150);
}

/// The formats of all logs.
fn formats(device: &dyn ReadBlocks) -> Vec<JournalFormat> {
    let further = further(device).into_iter().map(|own| own.journal.superblock.format());
    further.chain([located(device).superblock.format()]).collect()
}

/// A commit block without its list of dependencies; `None` for anything else.
fn without_dependencies(formats: &[JournalFormat], block: &[u8]) -> Option<Vec<u8>> {
    let is_commit = jbd2::header(block).is_some_and(|header| header.blocktype == COMMIT_BLOCK);
    let format = formats.iter().find(|format| format.commit_ok(block));
    let format = format.filter(|_| is_commit && !commit::of(block).is_empty())?;
    let mut bytes = block.to_vec();
    bytes[commit::OFFSET..].fill(0);
    format.seal_commit(&mut bytes);
    Some(bytes)
}

/// A fault of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Commit blocks have no dependencies.
    Forgets,
    /// Flushes behind the first commit are left out: whoever waits for the end of a commit is told too early.
    LosesFlushes,
    /// A write to a further journal fails, with all that follow in it.
    Fails,
    /// The tails of further journals stay where they are.
    KeepsTails,
}

pub(crate) struct Faulty<'d> {
    inner: &'d Recorder<MemDevice>,
    formats: Vec<JournalFormat>,
    fault: Fault,
    flushes: std::sync::atomic::AtomicUsize,
    fails: std::sync::atomic::AtomicBool,
    log: std::ops::Range<u64>,
    /// Bytes at which the superblocks of further journals lie, those of which are in use.
    tails: std::sync::Mutex<BTreeMap<u64, bool>>,
}

impl<'d> Faulty<'d> {
    fn new(inner: &'d Recorder<MemDevice>, fault: Fault) -> Self {
        let log = &further(inner)[0].journal;
        let start = log.offset_bytes(0).unwrap();
        let log = start..start + u64::from(log.blocks) * 4096;
        let all = further(inner).into_iter();
        let tails = all.map(|own| (own.journal.offset_bytes(0).unwrap(), false)).collect();
        Self {
            inner,
            formats: formats(inner),
            fault,
            flushes: 0.into(),
            fails: false.into(),
            log,
            tails: std::sync::Mutex::new(tails),
        }
    }
}

impl ReadBlocks for Faulty<'_> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset_bytes, into)
    }
}

impl WriteBlocks for Faulty<'_> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        let fails = self.fails.load(std::sync::atomic::Ordering::SeqCst);
        if self.fault == Fault::Fails && fails && self.log.contains(&offset_bytes) {
            return Err(io::Error::other("the part with this journal is broken"));
        }
        if let Some(is_used) = self.tails.lock().unwrap().get_mut(&offset_bytes)
            && self.fault == Fault::KeepsTails
            && std::mem::replace(
                is_used,
                *is_used || JournalSuperblock::decode(from.first_chunk().unwrap()).start > 0,
            )
        {
            return Ok(());
        }
        match without_dependencies(&self.formats, from).filter(|_| self.fault == Fault::Forgets) {
            Some(bytes) => self.inner.write_at(offset_bytes, &bytes),
            None => self.inner.write_at(offset_bytes, from),
        }
    }

    fn flush(&self) -> io::Result<()> {
        let number = self.flushes.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let is_lost = number > 6;
        if self.fault == Fault::LosesFlushes && is_lost {
            return Ok(());
        }
        self.inner.flush()
    }
}

pub(crate) fn caught(
    fault: Fault,
    (journals, dependencies): (u32, Dependencies),
    one_in: usize,
) -> String {
    let (image, names) = base(journals);
    let recorder = Recorder::new(MemDevice::new(image.clone()));
    let device = Faulty::new(&recorder, fault);
    let run = changes(&recorder, &device, (&image, &names), dependencies, 1);
    let effort = Effort { random_per_epoch: 4, seed: 3 };
    format!("{:#}", run.explore(effort, one_in, usize::MAX).unwrap_err())
}

#[test]
fn canary_commit_blocks_without_dependencies_are_caught() {
    eprintln!("{}", caught(Fault::Forgets, (2, Dependencies::Listed), 1));
}

#[test]
fn canary_an_fsync_that_is_told_before_its_transactions_are_stable_is_caught() {
    eprintln!("{}", caught(Fault::LosesFlushes, (2, Dependencies::Listed), 1));
}

/// Recovery that keeps a transaction although one on which it depends is missing: the lists are taken out of the logs before it.
#[test]
fn canary_recovery_that_ignores_dependencies_is_caught() {
    let (image, names) = base(2);
    let recorder = Recorder::new(MemDevice::new(image.clone()));
    let run = changes(&recorder, &recorder, (&image, &names), Dependencies::Listed, 1);
    let formats = formats(&recorder);
    let result = each_state(&run.trace, &run.image, EFFORT, |device, crash| {
        if run.cannot_be(crash) {
            return Ok(());
        }
        let mut block = vec![0; 4096];
        for at in (0..device.size_bytes()).step_by(4096) {
            device.read_at(at, &mut block)?;
            if let Some(bytes) = without_dependencies(&formats, &block) {
                device.write_at(at, &bytes)?;
            }
        }
        recover(&device)?;
        run.judge(&device, crash.issued)?;
        sound(&device)
    });
    eprintln!("{:#}", result.unwrap_err());
}

/// The root cube is served as a whole, or not: an error of one of its journals ends all.
#[test]
fn r10_an_error_of_one_journal_ends_all_of_the_root_cube() {
    let (image, names) = base(4);
    let recorder = Recorder::new(MemDevice::new(image));
    let device = Faulty::new(&recorder, Fault::Fails);
    let mut mounted = Mounted::new(&device).unwrap();
    names.iter().for_each(|name| create(&mut mounted, &format!("{name}/kept")));
    mounted.sync();
    let kept = areas(&mounted.journal, &names).unwrap();
    device.fails.store(true, std::sync::atomic::Ordering::SeqCst);
    create(&mut mounted, &format!("{}/lost", names[1]));
    assert!(mounted.journal.commit_cube(0).is_err());
    assert!(!mounted.journal.is_sound());
    assert!(mounted.journal.ended_cubes().is_empty(), "it is no cube of its own");
    for log in 0..4 {
        let why = mounted.journal.begin(8).map(drop).unwrap_err();
        assert!(matches!(why, JournalError::Aborted { .. }), "{log}: {why}");
    }
    let crashed = MemDevice::new(recorder.base_bytes());
    recover(&crashed).unwrap();
    assert_eq!(areas(&crashed, &names).unwrap(), kept);
    sound(&crashed).unwrap();
}

/// A crash with changes in all journals, and one of the copies in the first further log damaged.
fn damaged() -> (MemDevice, Vec<String>) {
    let (image, names) = base(2);
    let recorder = Recorder::new(MemDevice::new(image));
    let mut mounted = Mounted::new(&recorder).unwrap();
    for round in 0..2 {
        names.iter().for_each(|name| create(&mut mounted, &format!("{name}/new{round}")));
        mounted.sync();
    }
    drop(mounted);
    let device = MemDevice::new(recorder.base_bytes());
    let log = &further(&device)[0].journal;
    // Behind the superblock of the log: a descriptor, and the first copy.
    let at = log.offset_bytes(log.superblock.start + 1).unwrap() + 100;
    device.write_at(at, &[0x5a; 8]).unwrap();
    (device, names)
}

#[test]
fn a_damaged_journal_of_the_root_cube_is_told_and_nothing_is_written_until_it_is_repaired() {
    let (device, _) = damaged();
    let before = device.to_vec();
    let why = recover(&device).unwrap_err();
    assert!(matches!(why, JournalError::Cube { cube: 0, .. }), "{why}");
    assert!(device.holds(&before), "something was written");
    let report = check(&device, &options()).unwrap();
    let ids: Vec<&str> = report.found.iter().map(|one| one.row().id).collect();
    assert!(ids.contains(&"cube-journal-damaged"), "{ids:?}");
}

/// Whoever unmounts such a file system leaves one that everybody can use.
#[test]
fn linux_mounts_what_was_unmounted_and_e2fsck_finds_nothing() {
    for journals in [2, 4] {
        let (image, names) = base(journals);
        let mut mounted = Mounted::new(MemDevice::new(image)).unwrap();
        names.iter().for_each(|name| create(&mut mounted, &format!("{name}/new")));
        rename(&mut mounted, (&names[0], "new"), (&names[1], "moved"));
        let device = unmount(mounted).unwrap();
        assert!(!is_locked(&FileSystem::open(&device).unwrap().superblock));
        e2fsck_finds_nothing(&device).unwrap();
        let report = check(&device, &options()).unwrap();
        assert!(report.is_clean(), "{:?}", report.found);
        if tool::missing() || kernel::mount_available().is_err() {
            continue;
        }
        let image = Image::of(&device).unwrap();
        let linux = LinuxMount::new(image.path(), "").unwrap();
        let file = linux.path().join(&names[1]).join("moved");
        std::fs::write(&file, vec![1; 5000]).unwrap();
        std::fs::write(linux.path().join("by-linux"), b"linux").unwrap();
        linux.unmount().unwrap();
        let device = MemDevice::new(image.to_vec().unwrap());
        let mut mounted = Mounted::new(device).unwrap();
        create(&mut mounted, &format!("{}/later", names[1]));
        fsync(&mut mounted, &names[1]);
        let device = unmount(mounted).unwrap();
        let tree = tree(&device).unwrap();
        let size =
            |name: &str| tree.iter().find(|(path, _)| path.ends_with(name)).map(|(_, node)| node.2);
        assert_eq!((size("/moved"), size("by-linux")), (Some(5000), Some(5)));
        e2fsck_finds_nothing(&device).unwrap();
        assert_eq!(further(&device).len() + 1, journals as usize);
    }
}

/// Cubes get lots of inode 8 and of a further journal, and give them back to inode 8. After any crash the records of lots tell whose
/// each is, and nothing is wrong.
#[test]
fn lots_of_further_journals_become_those_of_cubes_and_back() {
    lots_become_those_of_cubes_and_back(Dependencies::Listed);
}

pub(crate) fn lots_become_those_of_cubes_and_back(dependencies: Dependencies) {
    let image = empty(2);
    let device = Recorder::new(MemDevice::new(image.clone()));
    let mut mounted = Mounted::new(&device).unwrap();
    mounted.journal.set_dependencies(dependencies);
    let owners = |device: &dyn ReadBlocks| {
        let fs = FileSystem::open(device).unwrap();
        floe_disk::volume::cubes::owners(device, &fs.superblock, fs.geometry(), &[])
    };
    let mut states = vec![owners(&mounted.journal)];
    let logs_before = further(&device)[0].lots.clone();
    for path in ["/a", "/b"] {
        make_cube(&mut mounted, path);
        states.push(owners(&mounted.journal));
        mounted.sync();
        create(&mut mounted, &format!("{}/new", &path[1..]));
        create(&mut mounted, &format!("beside-{}", &path[1..]));
        mounted.sync();
    }
    let taken: Vec<u32> =
        states[2].keys().copied().filter(|lot| logs_before.contains(lot)).collect();
    assert!(!taken.is_empty(), "{states:?} of {logs_before:?}");
    for (cube, path) in [(2, "b"), (1, "a")] {
        let top = mounted.find(path).unwrap();
        mounted.run(|volume, tx, _, caller| volume.unlink(tx, caller, top, b"new")).unwrap();
        for orphan in mounted.volume.orphans() {
            mounted.finish_orphan(orphan).unwrap();
        }
        let place = Some((InodeNr::ROOT, path.as_bytes()));
        mounted.run(|volume, tx, _, caller| volume.remove_cube(tx, caller, cube, place)).unwrap();
        states.push(owners(&mounted.journal));
        mounted.sync();
        for orphan in mounted.volume.orphans() {
            mounted.finish_orphan(orphan).unwrap();
        }
    }
    unmount(mounted).unwrap();
    let left = further(&device)[0].lots.clone();
    assert!(left.iter().all(|lot| !taken.contains(lot)), "{left:?}: inode 8 logs them now");
    let trace = device.trace();
    let mut at = 0;
    let explored = each_state(&trace, &image, EFFORT, |device, crash| {
        at += 1;
        if at % 7 != 0 || crate::journal_ops::cannot_be(&trace, crash) {
            return Ok(());
        }
        if crash.torn_bytes.is_some() || !crash.lost_sectors.is_empty() {
            // Backups of the superblock may be torn.
            return Ok(());
        }
        recover(&device)?;
        let found = owners(&device);
        ensure!(states.contains(&found), "{found:?} is none of {states:?}");
        sound(&device)?;
        let device = unmount(Mounted::new(device)?)?;
        let report = check(&device, &options())?;
        ensure!(report.is_clean(), "{:?}", report.found);
        Ok(())
    });
    assert!(explored.unwrap() > 200);
}

/// A change that is longer than a further log allows is inode 8's, which has the lots until the next change.
#[test]
fn r11_a_change_that_is_too_long_for_a_further_log_is_logged_by_inode_8() {
    let device = Recorder::new(MemDevice::new(empty(2)));
    let journal = Journal::open(&device).unwrap();
    // At the end of lot 3, where nothing is.
    let blocks: Vec<BlockNr> = (4020..4090).map(BlockNr).collect();
    let change = |count: usize, to: u8| {
        let mut tx = journal.begin(8).unwrap();
        blocks[..count].iter().for_each(|block| tx.zeroed(*block).unwrap().fill(to));
        let from = device.trace().events.len();
        let id = tx.finish().unwrap();
        journal.commit(id).unwrap();
        logs_written(&device, from)
    };
    let holds = |to: u8| {
        let crashed = MemDevice::new(device.base_bytes());
        recover(&crashed).unwrap();
        let mut byte = [0];
        crashed.read_at(blocks[0].0 * 4096 + 7, &mut byte).unwrap();
        assert_eq!(byte, [to]);
    };
    assert_eq!((change(3, 1), journal.loans()), (vec![1], 0));
    holds(1);
    assert_eq!((change(70, 2), journal.loans()), (vec![0], 1));
    holds(2);
    assert_eq!((change(3, 3), journal.loans()), (vec![1], 1));
    holds(3);
    assert_eq!(journal.log_of(0, blocks[0]), Some(1));
    journal.close().unwrap();
}

/// A change that found an inode in one lot and changed others alone, as of a block of its map, is durable with the inode.
#[test]
fn an_fsync_waits_for_changes_that_only_read_the_inode() {
    let device = Recorder::new(MemDevice::new(empty(2)));
    let journal = Journal::open(&device).unwrap();
    // In lots 2 and 3.
    let (changed, read) = (BlockNr(3000), BlockNr(4020));
    let mut tx = journal.begin(8).unwrap();
    tx.block(read).unwrap();
    tx.zeroed(changed).unwrap().fill(7);
    let id = tx.finish().unwrap();
    assert!(!journal.is_durable(id));
    let from = device.trace().events.len();
    journal.commit_inode_for(0, read, 1).unwrap();
    assert!(journal.is_durable(id));
    assert_eq!(logs_written(&device, from), [0]);
    journal.close().unwrap();
}

/// Two devices in stripes of a lot, so that each has the lots of one of two journals: an fsync flushes the device that its transaction
/// was written to, twice, and the other one not at all; a change of both flushes both.
#[test]
fn r12_an_fsync_flushes_only_the_device_of_its_journal() {
    let (image, names) = base(2);
    let part = || {
        let memory = MemDevice::new(vec![0; image.len().div_ceil(8 << 20) * (4 << 20)]);
        Modelled::new(memory, &Model::flushes(Duration::ZERO))
    };
    let device = Striped::new(vec![part(), part()], 4 << 20).unwrap();
    device.write_at(0, &image).unwrap();
    device.flush().unwrap();
    let mut mounted = Mounted::new(&device).unwrap();
    // The bit that keeps others out is set, and no log is empty.
    names.iter().for_each(|name| create(&mut mounted, &format!("{name}/first")));
    mounted.sync();
    let flushes = || device.devices().map(Modelled::flushes).collect::<Vec<_>>();
    let made = |mounted: &mut Mounted<_>, path: &str| {
        let before = flushes();
        fsync(mounted, path);
        flushes().into_iter().zip(before).map(|(now, before)| now - before).collect::<Vec<_>>()
    };
    for (log, expected) in [(0, [2, 0]), (1, [0, 2]), (0, [2, 0])] {
        let path = format!("{}/new", names[log]);
        if mounted.find(&path).is_none() {
            create(&mut mounted, &path);
        } else {
            let file = mounted.find(&path).unwrap();
            mounted.write(file, 0, &[7; 3000]).unwrap();
        }
        assert_eq!(made(&mut mounted, &path), expected, "{path}");
    }
    rename(&mut mounted, (&names[0], "new"), (&names[1], "moved"));
    assert_eq!(made(&mut mounted, &format!("{}/moved", names[1])), [2, 2]);
    unmount(mounted).unwrap();
}

/// Thousands of states, by hand: `cargo xtask crash`.
#[test]
#[ignore = "minutes"]
fn thousands_of_states_of_several_journals() {
    for journals in [2, 4] {
        explore(
            (journals, Dependencies::Listed),
            6,
            Effort { random_per_epoch: 4, seed: 2 },
            1,
            60,
        );
    }
}
