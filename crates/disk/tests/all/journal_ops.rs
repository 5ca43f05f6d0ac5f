//! Operations of a volume through the journal, and power that fails at every write: all pairs of operations, each with its
//! own commit or without (the bounded workloads of ACE), recovered as a mount does it, orphans included.

use std::collections::{BTreeMap, VecDeque};
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use floe_blockdev::{Crash, MemDevice, ReadBlocks, Recorder, SECTOR_BYTES, Trace, WriteBlocks};
use floe_check::{CheckOptions, check};
use floe_disk::journal::{Barriers, Journal, TransactionId};
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_disk::ops::{Caller, NewInode, OpError, RenameMode, SetMode, Step};
use floe_disk::recovery::recover;
use floe_disk::space::Epoch;
use floe_disk::volume::{Volume, seal};
use floe_ext4::files::{self, Files};
use floe_ext4::fs::FileSystem;
use floe_ext4::tx::Tx;
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, Timestamp};
use floe_format::native::identity::Identity;
use floe_testkit::crash::{Effort, each_state, one_in, tears};
use floe_testkit::{Image, build, oracle, tool};

pub(crate) const NOW: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 5 };
const CREDITS: u32 = 30;

/// Paths with type, links, size and content.
pub(crate) type Tree = BTreeMap<String, (Option<FileType>, u16, u64, Vec<u8>)>;

/// An operation on the files of [`base`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Create,
    Mkdir,
    Link,
    Unlink,
    Rmdir,
    Rename,
    RenameOver,
    RenameDirectory,
    Overwrite,
    Append,
    Truncate,
    Grow,
    /// Attributes whose values need inodes of their own, where there can be such.
    SetValue,
    ReplaceValue,
    RemoveValue,
}

const ACTS: [Act; 12] = [
    Act::Create,
    Act::Mkdir,
    Act::Link,
    Act::Unlink,
    Act::Rmdir,
    Act::Rename,
    Act::RenameOver,
    Act::RenameDirectory,
    Act::Overwrite,
    Act::Append,
    Act::Truncate,
    Act::Grow,
];

/// Those that concern values of attributes.
const ACTS_OF_VALUES: [Act; 5] =
    [Act::SetValue, Act::ReplaceValue, Act::RemoveValue, Act::Unlink, Act::RenameOver];

/// A volume and its journal.
pub(crate) struct Mounted<D: WriteBlocks> {
    pub(crate) journal: Journal<D>,
    pub(crate) volume: Volume,
    freed: VecDeque<(TransactionId, Epoch)>,
}

impl<D: WriteBlocks> Mounted<D> {
    pub(crate) fn new(device: D) -> Result<Self> {
        Self::with(device, Barriers::Two)
    }

    /// With one barrier for each transaction, which has content, too; or with two.
    pub(crate) fn with(device: D, barriers: Barriers) -> Result<Self> {
        let recovered = recover(&device)?;
        let journal = Journal::open_recovered(device, &recovered, barriers)?;
        let mut volume = Volume::open_journaled(&journal)?;
        volume.log_content(barriers == Barriers::One);
        let mut mounted = Self { journal, volume, freed: VecDeque::new() };
        mounted.run(|volume, tx, _, _| volume.begin_writing(tx, NOW))?;
        for orphan in mounted.volume.orphans() {
            mounted.finish_orphan(orphan)?;
        }
        Ok(mounted)
    }

    /// One operation in a transaction of its own; returns its result. One that fails changes nothing.
    pub(crate) fn run<T>(
        &mut self,
        act: impl FnOnce(&mut Volume, &mut dyn Tx, &Journal<D>, &Caller) -> Result<T, OpError>,
    ) -> Result<T, OpError> {
        let caller = Caller::system(NOW);
        let mut tx = self.journal.begin(CREDITS).unwrap();
        let done = act(&mut self.volume, &mut tx, &self.journal, &caller);
        let epoch = self.volume.end_epoch();
        self.freed.push_back((tx.finish().unwrap(), epoch));
        done
    }

    pub(crate) fn finish_orphan(&mut self, inode: InodeNr) -> Result<(), OpError> {
        while self.run(|volume, tx, data, caller| volume.finish_orphan(tx, data, caller, inode))?
            == Step::More
        {}
        Ok(())
    }

    pub(crate) fn sync(&mut self) {
        self.journal.sync().unwrap();
        while self.freed.front().is_some_and(|(id, _)| self.journal.is_durable(*id)) {
            let (_, epoch) = self.freed.pop_front().unwrap();
            self.volume.durable(epoch);
        }
    }

    pub(crate) fn find(&mut self, path: &str) -> Option<InodeNr> {
        let mut inode = InodeNr::ROOT;
        for name in path.split('/') {
            let found = self.run(|volume, tx, _, _| volume.lookup(tx, inode, name.as_bytes()));
            inode = found.ok()??.inode;
        }
        Some(inode)
    }

    pub(crate) fn make(&mut self, path: &str, new: &NewInode<'_>) -> Result<InodeNr, OpError> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = if dir.is_empty() { InodeNr::ROOT } else { self.find(dir).unwrap() };
        self.run(|volume, tx, _, caller| volume.create(tx, caller, dir, name.as_bytes(), new))
    }

    pub(crate) fn write(&mut self, inode: InodeNr, at: u64, bytes: &[u8]) -> Result<(), OpError> {
        self.run(|volume, tx, data, caller| volume.write(tx, data, caller, inode, at, bytes))
    }

    fn truncate(&mut self, inode: InodeNr, size: u64) -> Result<(), OpError> {
        while self.run(|volume, tx, data, caller| volume.truncate(tx, data, caller, inode, size))?
            == Step::More
        {}
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), OpError> {
        let Some(dir) = self.find("a") else { return Ok(()) };
        let renamed = self.run(|volume, tx, _, caller| {
            let places = ((dir, from.as_bytes()), (InodeNr::ROOT, to.as_bytes()));
            // Whatever is replaced goes at once; a file that `Act::Unlink` removes is an orphan before.
            volume.erasing(|volume| {
                volume.rename(tx, caller, places.0, places.1, RenameMode::Replace)
            })
        })?;
        assert!(renamed.replaced.is_none() || self.volume.orphans().is_empty());
        Ok(())
    }

    /// Does what an act says; an act whose files are gone does nothing.
    fn act(&mut self, act: Act) -> Result<(), OpError> {
        let (dir, file) = (self.find("a").unwrap(), self.find("a/foo"));
        let with = |file: Option<InodeNr>| file.ok_or(OpError::NotFound("file"));
        match act {
            Act::Create => self.make("a/new", &NewInode::regular(0o644)).map(|_| ()),
            Act::Mkdir => self.make("a/sub", &NewInode::directory(0o755)).map(|_| ()),
            Act::Link => {
                let file = with(file)?;
                self.run(|volume, tx, _, caller| volume.link(tx, caller, file, dir, b"link"))
            }
            Act::Unlink => {
                let gone =
                    self.run(|volume, tx, _, caller| volume.unlink(tx, caller, dir, b"foo"))?;
                if gone.last { self.finish_orphan(gone.inode) } else { Ok(()) }
            }
            Act::Rmdir => {
                let gone = self.run(|volume, tx, _, caller| {
                    volume.erasing(|volume| volume.rmdir(tx, caller, dir, b"empty"))
                })?;
                assert!(gone.last && self.volume.orphans().is_empty());
                Ok(())
            }
            Act::Rename => self.rename("foo", "moved"),
            Act::RenameOver => self.rename("foo", "bar"),
            Act::RenameDirectory => self.rename("empty", "moved-dir"),
            Act::Overwrite => self.write(with(file)?, 100, &[0xbb; 1500]),
            Act::Append => self.write(with(file)?, 3000, &[0xcc; 5000]),
            Act::Truncate => self.truncate(with(file)?, 700),
            Act::Grow => self.truncate(with(file)?, 90_000),
            Act::SetValue => self.set_value(with(file)?, "user.new", 7000),
            Act::ReplaceValue => self.set_value(with(file)?, "user.old", 3000),
            Act::RemoveValue => {
                let file = with(file)?;
                self.run(|volume, tx, _, caller| {
                    volume.remove_attribute(tx, caller, file, b"user.old")
                })
            }
        }
    }

    fn set_value(&mut self, file: InodeNr, name: &str, bytes: usize) -> Result<(), OpError> {
        let value: Vec<u8> = (0..bytes).map(|at| (at / 7) as u8).collect();
        self.run(|volume, tx, _, caller| {
            volume.set_attribute(tx, caller, file, name.as_bytes(), &value, SetMode::Any)
        })
    }
}

/// The file systems that operations run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    /// ext4 as mke2fs makes it.
    Stock,
    /// The same, with one barrier for each transaction.
    OneBarrier,
    /// Three lots of 4 MiB, with metadata regions.
    Native,
    /// The same, with one barrier for each transaction.
    NativeOneBarrier,
    /// ext4 with values of attributes in inodes of their own.
    Values,
}

impl Base {
    fn empty(self) -> MemDevice {
        if !self.is_native() {
            let image = Image::empty(3 << 20).unwrap();
            let features = if self == Self::Values { "ea_inode" } else { "^ea_inode" };
            let args = ["-t", "ext4", "-b", "1024", "-J", "size=1", "-N", "64", "-O", features];
            build::mke2fs(image.path(), &args).unwrap();
            return MemDevice::new(image.to_vec().unwrap());
        }
        native(9 << 20)
    }

    const fn is_native(self) -> bool {
        matches!(self, Self::Native | Self::NativeOneBarrier)
    }

    const fn barriers(self) -> Barriers {
        if matches!(self, Self::OneBarrier | Self::NativeOneBarrier) {
            Barriers::One
        } else {
            Barriers::Two
        }
    }
}

/// An empty native file system with lots of 4 MiB.
pub(crate) fn native(size_bytes: usize) -> MemDevice {
    let mut options = Options::of_type(FsType::Native);
    for (letter, value) in [('E', "lot_size=4m"), ('J', "size=4"), ('N', "256")] {
        options.set(letter, value).unwrap();
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: NOW };
    let device = MemDevice::new(vec![0; size_bytes]);
    let params = options.params(device.size_bytes(), None, &fresh).unwrap();
    mkfs::write(&Plan::new(&params).unwrap(), &device).unwrap();
    device
}

/// A small file system with `a/foo` (3,000 bytes), the empty directory `a/empty`, and `bar` (2,000 bytes). Where there can be
/// values in inodes of their own, both files have one.
fn base(kind: Base) -> &'static [u8] {
    static BASES: [OnceLock<Vec<u8>>; 5] = [const { OnceLock::new() }; 5];
    BASES[kind as usize].get_or_init(|| {
        let mut mounted = Mounted::new(kind.empty()).unwrap();
        mounted.make("a", &NewInode::directory(0o755)).unwrap();
        mounted.make("a/empty", &NewInode::directory(0o755)).unwrap();
        for (path, size) in [("a/foo", 3000), ("bar", 2000)] {
            let file = mounted.make(path, &NewInode::regular(0o644)).unwrap();
            mounted.write(file, 0, &vec![0xaa; size]).unwrap();
            if kind == Base::Values {
                mounted.set_value(file, "user.old", 2 * size).unwrap();
            }
        }
        unmount(mounted).unwrap().to_vec()
    })
}

pub(crate) fn unmount<D: WriteBlocks>(mut mounted: Mounted<D>) -> Result<D> {
    let lots = mounted.volume.lots_to_reserve();
    if !lots.is_empty() {
        mounted.sync();
        for &lot in &lots {
            mounted.run(|volume, tx, _, _| volume.reserve_lot(tx, NOW, lot))?;
        }
        mounted.sync();
        mounted.volume.back_up_descriptors(&mounted.journal, &lots)?;
    }
    mounted.run(|volume, tx, _, _| volume.end_writing(tx, NOW))?;
    let device = mounted.journal.close()?;
    seal(&device)?;
    let superblock = FileSystem::open(&device)?.superblock;
    let is_native = Identity::of(&superblock).is_some();
    ensure!(!is_native || Identity::is_sealed(&superblock), "it is not sealed");
    Ok(device)
}

/// Everything that the root directory leads to.
pub(crate) fn tree(device: &dyn ReadBlocks) -> Result<Tree> {
    let fs = FileSystem::open(device)?;
    let groups = fs.space.groups.descs().to_vec();
    let files = Files::new(device, fs.superblock.clone(), fs.geometry().clone(), groups);
    let mut tree = Tree::new();
    for step in files.walk(files.node(InodeNr::ROOT)?) {
        let visit = match step {
            files::Step::Visit(visit) => visit,
            files::Step::Leave { .. } => continue,
            other => anyhow::bail!("{other:?}"),
        };
        let node = visit.node;
        let mut bytes = Vec::new();
        // Sparse, of 256 MiB; its blocks are compared by those who read cubes.
        let is_super = visit.path.ends_with(b".cubes/super");
        if node.file_type() == Some(FileType::Regular) && !is_super {
            let (content, mut faults) = files.content(&node)?;
            bytes.resize(usize::try_from(content.size_bytes())?, 0);
            content.read_at(0, &mut bytes, &mut faults);
            ensure!(faults.is_empty(), "{faults:?}");
        }
        let (attributes, faults) = files.attributes(&node);
        ensure!(faults.is_empty(), "{faults:?}");
        for one in attributes {
            bytes.extend([one.name, one.value].concat());
        }
        let path = String::from_utf8_lossy(&visit.path).into_owned();
        tree.insert(path, (node.file_type(), node.links(), node.size_bytes(), bytes));
    }
    Ok(tree)
}

/// A recorded pair of acts.
struct Run {
    base: Base,
    trace: Trace,
    /// The tree after each transaction that changed it, and the number of events that had ended when its act began.
    history: Vec<(usize, Tree)>,
    /// By the number of events that had ended: the state that was acknowledged.
    acknowledged: Vec<(usize, usize)>,
    /// A file was overwritten in place, or the rest of its last block was zeroed: until that is acknowledged, its content
    /// may be a mixture, as in Linux's ordered mode.
    overwrites: bool,
}

fn record(kind: Base, acts: [Act; 2], sync_between: bool) -> Run {
    let recorder = Recorder::new(MemDevice::new(base(kind).to_vec()));
    let mut mounted = Mounted::with(&recorder, kind.barriers()).unwrap();
    let mut history = vec![(0, tree(&mounted.journal).unwrap())];
    let mut acknowledged = vec![(0, 0)];
    for (index, act) in acts.into_iter().enumerate() {
        let began = recorder.trace().events.len();
        match mounted.act(act) {
            Ok(()) | Err(OpError::NotFound(_) | OpError::Exists) => {}
            Err(error) => panic!("{acts:?}: {error}"),
        }
        history.push((began, tree(&mounted.journal).unwrap()));
        if sync_between || index == 1 {
            mounted.sync();
            acknowledged.push((recorder.trace().events.len(), history.len() - 1));
        }
    }
    unmount(mounted).unwrap();
    let overwrites =
        acts.iter().any(|act| matches!(act, Act::Overwrite | Act::Append | Act::Truncate));
    // Content that is logged is there as a whole or not at all.
    let overwrites = overwrites && kind != Base::OneBarrier;
    Run { base: kind, trace: recorder.trace(), history, acknowledged, overwrites }
}

/// The tree without the content of files.
fn without_content(tree: &Tree) -> BTreeMap<&String, (Option<FileType>, u16, u64)> {
    tree.iter().map(|(path, (kind, links, size, _))| (path, (*kind, *links, *size))).collect()
}

impl Run {
    fn judge(&self, found: &Tree, ended: usize) -> Result<()> {
        let after = self.acknowledged.iter().take_while(|(events, _)| *events <= ended);
        let least = after.last().map_or(0, |(_, state)| *state);
        let possible = || self.history[least..].iter().take_while(|(began, _)| *began <= ended);
        let all_is_over = least + 1 == self.history.len();
        let same = possible().any(|(_, tree)| {
            tree == found
                || self.overwrites
                    && !all_is_over
                    && without_content(tree) == without_content(found)
        });
        ensure!(same, "neither state {least} nor a later one: {:?}", without_content(found));
        Ok(())
    }

    /// Every state of the run, recovered and mounted again; every `by_e2fsck`-th one by e2fsck, too.
    fn explore(&self, effort: Effort, by_e2fsck: usize) -> Result<usize> {
        let mut at = 0;
        each_state(&self.trace, base(self.base), effort, |device, crash| {
            if cannot_be(&self.trace, crash) {
                return Ok(());
            }
            at += 1;
            if at % by_e2fsck == 0 {
                let image = Image::of(&device)?;
                let verdict = oracle::run(image.path(), &["-fy"])?;
                ensure!(matches!(verdict.exit, Some(0 | 1)), "e2fsck: {}", verdict.text);
                self.judge(&tree(&image)?, crash.issued).context("recovered by e2fsck")?;
            }
            recover(&device)?;
            self.judge(&tree(&device)?, crash.issued)?;
            let device = unmount(Mounted::with(device, self.base.barriers())?)?;
            self.judge(&tree(&device)?, crash.issued).context("mounted again")?;
            let report = check(&device, &CheckOptions { threads: 1, ..CheckOptions::default() })?;
            ensure!(report.is_clean(), "{:?}", report.found);
            Ok(())
        })
    }
}

/// Whether a crash tore a sector, or the superblock: neither is expected of devices (docs/journal.md).
pub(crate) fn cannot_be(trace: &Trace, crash: &Crash) -> bool {
    let torn_sector = crash.torn_bytes.is_some_and(|bytes| !bytes.is_multiple_of(SECTOR_BYTES));
    torn_sector || tears(trace, crash, 1024..2048)
}

/// All pairs, each with a commit in between and without.
fn workloads() -> impl Iterator<Item = ([Act; 2], bool)> {
    let pairs = ACTS.into_iter().flat_map(|first| ACTS.map(|second| [first, second]));
    pairs.flat_map(|acts| [(acts, true), (acts, false)])
}

fn explore(base: Base, workloads: impl Iterator<Item = ([Act; 2], bool)>, effort: Effort) -> usize {
    let mut states = 0;
    for (acts, sync_between) in workloads {
        let run = record(base, acts, sync_between);
        let explored = run.explore(effort, 40);
        states += explored.with_context(|| format!("{base:?} {acts:?}, {sync_between}")).unwrap();
    }
    states
}

/// Explores some workloads, which have more than a few states.
fn explore_some(base: Base, some: impl Iterator<Item = ([Act; 2], bool)>, effort: Effort) {
    if tool::missing() {
        return;
    }
    let states = explore(base, some, effort);
    eprintln!("{states} states");
    assert!(states > 200);
}

#[test]
fn pairs_of_operations_survive_any_crash() {
    let effort = Effort { random_per_epoch: 2, seed: 1 };
    explore_some(Base::Stock, workloads().step_by(47), effort);
}

#[test]
fn pairs_of_operations_with_one_barrier_survive_any_crash() {
    let effort = Effort { random_per_epoch: 5, seed: 4 };
    explore_some(Base::OneBarrier, workloads().skip(9).step_by(43), effort);
}

#[test]
fn pairs_of_operations_on_native_file_systems_survive_any_crash() {
    let effort = Effort { random_per_epoch: 2, seed: 3 };
    explore_some(Base::Native, workloads().skip(5).step_by(47), effort);
}

#[test]
fn pairs_of_operations_on_native_file_systems_with_one_barrier_survive_any_crash() {
    let effort = Effort { random_per_epoch: 3, seed: 5 };
    explore_some(Base::NativeOneBarrier, workloads().skip(7).step_by(61), effort);
}

/// All pairs of acts that concern values of attributes, each with a commit in between and without.
fn workloads_of_values() -> impl Iterator<Item = ([Act; 2], bool)> {
    let second = |first| ACTS_OF_VALUES.map(|second| [first, second]);
    ACTS_OF_VALUES.into_iter().flat_map(second).flat_map(|acts| [(acts, true), (acts, false)])
}

#[test]
fn pairs_of_changes_of_large_values_survive_any_crash() {
    let effort = Effort { random_per_epoch: 2, seed: 4 };
    explore_some(Base::Values, workloads_of_values().step_by(11), effort);
}

/// Tens of thousands of states: `cargo xtask crash`.
#[test]
#[ignore = "minutes; run by cargo xtask crash"]
fn all_pairs_of_operations_survive_any_crash() {
    let effort = Effort { random_per_epoch: 4, seed: 2 };
    let states = explore(Base::Values, workloads_of_values(), effort);
    eprintln!("values: {states} states of {} workloads", workloads_of_values().count());
    for base in [Base::Stock, Base::OneBarrier, Base::Native, Base::NativeOneBarrier] {
        let states = explore(base, workloads(), effort);
        eprintln!("{base:?}: {states} states of {} workloads", workloads().count());
        assert!(states * one_in() > 10_000);
    }
}

/// All acts of a volume in one journal, left there, and recovered by e2fsck: the tree that was seen.
#[test]
fn a_volume_in_a_journal_is_recovered_by_e2fsck() {
    if tool::missing() {
        return;
    }
    let of_values = ACTS_OF_VALUES.map(|act| (Base::Values, act));
    let others = [Base::Stock, Base::Native, Base::NativeOneBarrier];
    let others = others.map(|one| ACTS.map(|act| (one, act)));
    for (base_kind, act) in others.concat().into_iter().chain(of_values) {
        let device = MemDevice::new(base(base_kind).to_vec());
        let mut mounted = Mounted::with(&device, base_kind.barriers()).unwrap();
        mounted.act(act).unwrap();
        // Linux leaves the totals of the superblock alone while it is mounted, and e2fsck then counts them anew.
        mounted.run(|volume, tx, _, _| volume.settle(tx, NOW)).unwrap();
        mounted.sync();
        let seen = tree(&mounted.journal).unwrap();
        drop(mounted);
        let image = Image::of(&device).unwrap();
        let verdict = oracle::run(image.path(), &["-fy"]).unwrap();
        // e2fsck 1.47.0 says so of every image with an orphan file that was captured while it was mounted.
        let mounted = base_kind.is_native() && verdict.text.contains("orphan_present is set");
        let problems = verdict.problems.len() - usize::from(mounted);
        assert_eq!(problems, 0, "{base_kind:?} {act:?}: {}", verdict.text);
        assert_eq!(tree(&image).unwrap(), seen, "{act:?}");
    }
}
