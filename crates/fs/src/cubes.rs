//! Cubes of a file system in use (`docs/cubes.md`): one gate each, which counts the calls inside and turns others away once the
//! cube has failed.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use floe_format::native::cube::{FsyncMode, JournalMode, OnError, Policies, Recovery};
use floe_format::{Geometry, GroupNr, InodeNr};
use floe_sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
use floe_sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, thread, thread_number};

use crate::FsError;
use by_cube::ByCube;
use desk::Desk;
pub(crate) use desk::Job;
use pins::Pins;

mod bounds;
pub(crate) mod by_cube;
mod call;
mod desk;
pub(crate) mod pins;
mod shut;

pub use call::{CubeCall, Settings, Which};

/// Counters of a gate: threads that run at the same time seldom share one.
const COUNTERS: usize = 8;
/// How long a cube that is to be taken away waits for the calls inside.
const MOST_WAIT: Duration = Duration::from_secs(10);
/// How often a thread that waits at a gate looks again.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How a cube is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// As a file system is.
    Serving = 0,
    /// A failure was met: nothing is changed any more.
    ReadOnly = 1,
    /// A failure was met: nothing is answered any more.
    Failed = 2,
    /// It is checked: nothing is changed meanwhile.
    Checked = 3,
    /// It is repaired: nothing is answered meanwhile.
    Away = 4,
}

impl Mode {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::ReadOnly => "read-only after a failure",
            Self::Failed => "failed",
            Self::Checked => "being checked",
            Self::Away => "being repaired",
        }
    }

    const fn of(number: u8) -> Self {
        match number {
            0 => Self::Serving,
            1 => Self::ReadOnly,
            2 => Self::Failed,
            3 => Self::Checked,
            _ => Self::Away,
        }
    }
}

/// The end of changes that wait in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// They reach the disk: they were accepted, also where the cube failed since.
    Written,
    /// The cube is checked or repaired: they wait until it is served again.
    Held,
    /// The cube failed, and its policy is to drop what is not durable.
    Dropped,
}

/// A counter on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counter(AtomicI64);

/// The gate of a cube.
#[derive(Debug, Default)]
struct Gate {
    mode: AtomicU8,
    /// Each change reaches the disk at once.
    at_once: AtomicBool,
    running: [Counter; COUNTERS],
    about: Mutex<About>,
}

/// Policies, failure and last report of a cube.
#[derive(Clone, Debug, Default)]
struct About {
    policies: Policies,
    /// The failure, in words.
    why: Option<String>,
    /// It waits for a repair: of its descriptors, or of its log, as which what lies in its lots is not.
    waits: bool,
    /// The result of the last check or repair.
    report: Option<String>,
}

impl Gate {
    fn mode(&self) -> Mode {
        Mode::of(self.mode.load(Ordering::SeqCst))
    }

    fn running(&self) -> i64 {
        self.running.iter().map(|counter| counter.0.load(Ordering::SeqCst)).sum()
    }

    fn about(&self) -> MutexGuard<'_, About> {
        self.about.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call inside a cube, until it is dropped.
pub(crate) struct Inside<'g>(&'g Counter);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Sizes by which inodes and blocks lie in lots.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Groups of a lot; 0 where there are no lots.
    lot_groups: u32,
    inodes_per_group: u32,
    blocks_per_group: u32,
}

/// The gates of all cubes. Nothing that a call reads here is written while cubes are neither made nor removed, so that calls
/// of different threads pass no cache line to each other.
pub struct Gates {
    sizes: Sizes,
    /// Names and blocks may lead from one cube into another: a system that does not know cubes has written.
    coupled: AtomicBool,
    /// The inodes of `/.cubes`, whose names lead into all cubes, and of `/.cubes/super` and `/.cubes/fence`, whose blocks lie in
    /// all.
    own_files: [AtomicU32; 3],
    /// The owner of each lot; 0: the root cube.
    owners: Box<[AtomicU32]>,
    /// A lot has an owner besides the root cube.
    has_cubes: AtomicBool,
    /// Gates by number. The root cube has none.
    gates: ByCube<Gate>,
    /// Directories above cubes.
    pins: RwLock<Arc<Pins>>,
    /// Renames of such directories, each counted while nobody else changes anything.
    renames: AtomicU64,
    /// Cubes that fail together, each with the smallest number among them; 0: the root cube.
    couples: RwLock<BTreeMap<u32, u32>>,
    desk: Mutex<Desk>,
    waiting: AtomicUsize,
    /// Threads that may wait at gates at the same time, so that others are left to serve.
    most_waiting: AtomicUsize,
}

impl fmt::Debug for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gates").finish_non_exhaustive()
    }
}

impl Gates {
    /// Gates of a file system whose lots have so many groups; 0 where there are no lots.
    pub(crate) fn new(lot_groups: u32, geometry: &Geometry) -> Self {
        let groups = geometry.group_count;
        let lots = groups.checked_div(lot_groups).map_or(0, |_| groups.div_ceil(lot_groups));
        Self {
            sizes: Sizes {
                lot_groups,
                inodes_per_group: geometry.inodes_per_group,
                blocks_per_group: geometry.blocks_per_group,
            },
            coupled: AtomicBool::new(false),
            own_files: Default::default(),
            owners: (0..lots).map(|_| AtomicU32::new(0)).collect(),
            has_cubes: AtomicBool::new(false),
            gates: ByCube::new(lots > 0),
            pins: RwLock::default(),
            renames: AtomicU64::new(0),
            couples: RwLock::default(),
            desk: Mutex::default(),
            waiting: AtomicUsize::new(0),
            most_waiting: AtomicUsize::new(0),
        }
    }

    /// Sets who owns lots; those that are left out belong to the root cube.
    pub(crate) fn set_owners(&self, by_lot: &BTreeMap<u32, u32>) {
        for (lot, owner) in (0..).zip(&self.owners) {
            owner.store(by_lot.get(&lot).copied().unwrap_or(0), Ordering::Release);
        }
        self.has_cubes.store(!by_lot.is_empty(), Ordering::Release);
    }

    /// Whether there is a cube besides the root cube.
    pub(crate) fn has_cubes(&self) -> bool {
        self.has_cubes.load(Ordering::Acquire)
    }

    /// How many threads may wait until a cube is served again; all others are told that it is busy.
    pub fn let_wait(&self, threads: usize) {
        self.most_waiting.store(threads, Ordering::Relaxed);
    }

    /// The cube of a group; 0: the root cube.
    pub(crate) fn of_group(&self, group: GroupNr) -> u32 {
        let lot = group.0.checked_div(self.sizes.lot_groups);
        let owner = lot.and_then(|lot| self.owners.get(lot as usize));
        owner.map_or(0, |owner| owner.load(Ordering::Acquire))
    }

    /// The cube of an inode.
    pub fn of_inode(&self, inode: InodeNr) -> u32 {
        if !self.has_cubes.load(Ordering::Acquire) {
            return 0;
        }
        let group = inode.0.saturating_sub(1).checked_div(self.sizes.inodes_per_group);
        group.map_or(0, |group| self.of_group(GroupNr(group)))
    }

    /// The gate of a cube; `None` for the root cube, and numbers that no cube has.
    fn known(&self, cube: u32) -> Option<&Gate> {
        self.gates.of_other(cube)
    }

    /// Sets what is known of a cube. `failed`: a failure is recorded on the disk.
    pub(crate) fn know(&self, cube: u32, policies: Policies, failed: bool) {
        if let Some(gate) = self.known(cube) {
            gate.about().policies = policies;
            // Content that is logged reaches the log as programs wrote it.
            let at_once = policies.journal_mode == JournalMode::Data;
            gate.at_once.store(at_once, Ordering::SeqCst);
        }
        if failed {
            self.fail(cube, "a failure was recorded before".to_owned());
        }
    }

    /// Forgets a cube that is removed.
    pub(crate) fn forget(&self, cube: u32) {
        if let Some(gate) = self.known(cube) {
            *gate.about() = About::default();
            gate.at_once.store(false, Ordering::SeqCst);
            gate.mode.store(Mode::Serving as u8, Ordering::SeqCst);
        }
    }

    /// Lets a call into a cube.
    ///
    /// # Errors
    /// [`FsError::ReadOnly`], [`FsError::CubeFailed`], [`FsError::CubeBusy`].
    pub(crate) fn enter(&self, cube: u32, changes: bool) -> Result<Option<Inside<'_>>, FsError> {
        let Some(gate) = self.known(cube) else { return Ok(None) };
        let counter = &gate.running[thread_number() % COUNTERS];
        let mut waits = None;
        loop {
            // The count first: whoever sets the mode looks at the counts afterwards.
            counter.0.fetch_add(1, Ordering::SeqCst);
            let inside = Inside(counter);
            match gate.mode() {
                Mode::Serving => return Ok(Some(inside)),
                Mode::ReadOnly if changes => return Err(FsError::ReadOnly),
                Mode::Failed => return Err(FsError::CubeFailed { cube }),
                Mode::Checked if changes => {}
                Mode::ReadOnly | Mode::Checked => return Ok(Some(inside)),
                Mode::Away => {}
            }
            drop(inside);
            if waits.is_none() {
                waits = Some(Waiting::begin(self).ok_or(FsError::CubeBusy { cube })?);
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Notes a failure of a cube. `Some` if it is the first one: how it is served from now on.
    pub(crate) fn fail(&self, cube: u32, why: String) -> Option<Mode> {
        let gate = self.known(cube)?;
        let mut about = gate.about();
        if about.why.is_some() {
            return None;
        }
        let mode = mode_after_failure(&about);
        self.tell(format!("cube {cube}: {}: {why}", mode.name()));
        about.why = Some(why);
        // While it is taken away its mode stays; it comes back as a failed one.
        if !matches!(gate.mode(), Mode::Checked | Mode::Away) {
            gate.mode.store(mode as u8, Ordering::SeqCst);
        }
        Some(mode)
    }

    /// Whether fsync of something in a cube waits for nothing.
    pub(crate) fn ignores_fsync(&self, cube: u32) -> bool {
        self.known(cube).is_some_and(|gate| gate.about().policies.fsync_mode == FsyncMode::Off)
    }

    /// How a cube is repaired.
    pub(crate) fn recovery(&self, cube: u32) -> Recovery {
        self.known(cube).map_or(Recovery::Manual, |gate| gate.about().policies.recovery)
    }

    /// Whether a cube has failed.
    pub(crate) fn has_failed(&self, cube: u32) -> bool {
        self.known(cube).is_some_and(|gate| gate.about().why.is_some())
    }

    /// Whether changes of a cube may wait in memory. Not once it has failed: whoever gets past the gate is told by the disk.
    pub(crate) fn lets_wait(&self, cube: u32) -> bool {
        self.known(cube)
            .is_none_or(|gate| gate.mode() == Mode::Serving && !gate.at_once.load(Ordering::SeqCst))
    }

    /// The end of changes that wait.
    pub(crate) fn fate(&self, cube: u32) -> Fate {
        let Some(gate) = self.known(cube) else { return Fate::Written };
        let mode = gate.mode();
        if mode == Mode::Serving {
            return Fate::Written;
        }
        let about = gate.about();
        if about.why.is_some() && about.policies.on_error == OnError::Crash {
            return Fate::Dropped;
        }
        if matches!(mode, Mode::Checked | Mode::Away) { Fate::Held } else { Fate::Written }
    }

    /// Whether names and blocks may lead from one cube into another.
    pub(crate) fn is_coupled(&self) -> bool {
        self.coupled.load(Ordering::Acquire)
    }

    /// Blocks and inodes of a whole lot.
    pub(crate) fn lot(&self) -> (u64, u64) {
        let of = |each: u32| u64::from(self.sizes.lot_groups) * u64::from(each);
        (of(self.sizes.blocks_per_group), of(self.sizes.inodes_per_group))
    }

    /// Whether there are lots, and so can be cubes.
    pub(crate) fn has_lots(&self) -> bool {
        !self.owners.is_empty()
    }

    /// How a cube is served, and why it is not served as usual.
    pub fn state(&self, cube: u32) -> (Mode, Option<String>) {
        let Some(gate) = self.known(cube) else { return (Mode::Serving, None) };
        let why = gate.about().why.clone();
        (gate.mode(), why)
    }

    /// The cubes that have failed, and why.
    pub fn failures(&self) -> Vec<(u32, Mode, String)> {
        let failed = self
            .gates
            .all()
            .filter_map(|(cube, gate)| Some((cube, gate.mode(), gate.about().why.clone()?)));
        failed.collect()
    }

    /// Takes a cube away from its users, and waits until nobody is inside.
    ///
    /// # Errors
    /// [`FsError::CubeBusy`]: a call does not end. The cube is served as before then.
    pub(crate) fn take(&self, cube: u32, mode: Mode) -> Result<(), FsError> {
        let gate = self.known(cube).ok_or(FsError::NotFound)?;
        gate.mode.store(mode as u8, Ordering::SeqCst);
        let since = Instant::now();
        while gate.running() > 0 {
            if since.elapsed() > MOST_WAIT {
                self.bring_back(cube, false);
                return Err(FsError::CubeBusy { cube });
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Serves a cube again, as its state says: after a failure as its policy wants. `is_mended`: there is no failure any more.
    pub(crate) fn bring_back(&self, cube: u32, is_mended: bool) {
        let Some(gate) = self.known(cube) else { return };
        let mut about = gate.about();
        if is_mended {
            about.why = None;
        }
        let failed = about.why.is_some();
        let mode = if failed { mode_after_failure(&about) } else { Mode::Serving };
        gate.mode.store(mode as u8, Ordering::SeqCst);
    }

    /// Notes that a cube was not repaired while the others are served, and why.
    pub(crate) fn note_refused(&self, cube: u32, why: &str) {
        let Some(gate) = self.known(cube) else { return };
        let text = format!(
            "its repair while mounted was refused: {why}; unmount the file system, and run `floe repair`"
        );
        self.tell(format!("cube {cube}: {text}"));
        if let Some(known) = &mut gate.about().why
            && !known.contains(&text)
        {
            known.push_str("; ");
            known.push_str(&text);
        }
    }

    /// Sets which cubes fail together: each with the smallest number among them.
    pub(crate) fn set_couples(&self, couples: BTreeMap<u32, u32>) {
        *self.couples.write().unwrap_or_else(PoisonError::into_inner) = couples;
    }

    /// The cubes that fail together with one, in order, without it; 0: the root cube.
    pub(crate) fn coupled_with(&self, cube: u32) -> Vec<u32> {
        let couples = self.couples.read().unwrap_or_else(PoisonError::into_inner);
        let Some(least) = couples.get(&cube) else { return Vec::new() };
        let own = couples.iter().filter(|(other, first)| **other != cube && *first == least);
        let own: Vec<u32> = own.map(|(other, _)| *other).collect();
        // The root cube is in no list.
        (*least == 0).then_some(0).into_iter().chain(own).collect()
    }

    pub(crate) fn set_report(&self, cube: u32, report: String) {
        if let Some(gate) = self.known(cube) {
            gate.about().report = Some(report);
        }
    }

    /// The result of the last check or repair of a cube; `None` while it runs.
    pub(crate) fn report(&self, cube: u32) -> Option<String> {
        self.known(cube)?.about().report.clone()
    }
}

/// A thread that waits at a gate.
struct Waiting<'g>(&'g Gates);

impl<'g> Waiting<'g> {
    /// `None` if too many wait already.
    fn begin(gates: &'g Gates) -> Option<Self> {
        let most = gates.most_waiting.load(Ordering::Relaxed);
        let before = gates.waiting.fetch_add(1, Ordering::SeqCst);
        let waiting = Self(gates);
        (before < most).then_some(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

const fn mode_after_failure(about: &About) -> Mode {
    match about.policies.on_error {
        OnError::ReadOnly if !about.waits => Mode::ReadOnly,
        _ => Mode::Failed,
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use floe_format::ext::superblock::Superblock;
    use floe_format::geometry::Strictness;

    /// 20 groups of 32 inodes.
    fn geometry() -> Geometry {
        let mut superblock = Superblock::decode(&[0; 1024]);
        (superblock.magic, superblock.rev_level, superblock.inode_size) = (0xef53, 1, 128);
        (superblock.log_block_size, superblock.blocks_per_group) = (2, 1000);
        (superblock.clusters_per_group, superblock.log_cluster_size) = (1000, 2);
        (superblock.blocks_count_lo, superblock.first_ino) = (20_000, 11);
        (superblock.inodes_per_group, superblock.inodes_count) = (32, 640);
        Geometry::new(&superblock, Strictness::Relaxed).expect("a sound geometry")
    }

    fn gates(on_error: OnError) -> Gates {
        let gates = Gates::new(4, &geometry());
        gates.set_owners(&BTreeMap::from([(2, 1), (3, 2)]));
        gates.know(1, Policies { on_error, ..Policies::default() }, false);
        gates
    }

    #[test]
    fn inodes_and_groups_belong_to_the_cube_of_their_lot() {
        let gates = gates(OnError::ReadOnly);
        assert_eq!(
            [1, 256, 257, 384, 385, 512, 513].map(|inode| gates.of_inode(InodeNr(inode))),
            [0, 0, 1, 1, 2, 2, 0]
        );
        assert_eq!([7, 8, 11, 12, 16].map(|group| gates.of_group(GroupNr(group))), [0, 1, 1, 2, 0]);
    }

    #[test]
    fn a_failed_cube_turns_calls_away_as_its_policy_says() {
        for (on_error, mode) in
            [(OnError::ReadOnly, Mode::ReadOnly), (OnError::Crash, Mode::Failed)]
        {
            let gates = gates(on_error);
            assert!(gates.enter(1, true).is_ok());
            assert_eq!(gates.fail(1, "first".to_owned()), Some(mode));
            assert_eq!(gates.fail(1, "second".to_owned()), None);
            assert!(gates.enter(1, true).is_err());
            assert_eq!(gates.enter(1, false).is_ok(), mode == Mode::ReadOnly);
            assert!(gates.enter(2, true).is_ok(), "another cube");
            assert_eq!(gates.state(1), (mode, Some("first".to_owned())));
            gates.bring_back(1, true);
            assert!(gates.enter(1, true).is_ok());
        }
    }

    #[test]
    fn a_cube_is_taken_once_nobody_is_inside() {
        let gates = Arc::new(gates(OnError::ReadOnly));
        let inside = gates.enter(1, true).unwrap();
        let taking = Arc::clone(&gates);
        let taken = thread::spawn(move || taking.take(1, Mode::Away).is_ok());
        while gates.state(1).0 != Mode::Away {
            thread::sleep(LOOK_EVERY);
        }
        assert!(matches!(gates.enter(1, false), Err(FsError::CubeBusy { cube: 1 })));
        assert!(!taken.is_finished());
        drop(inside);
        assert!(taken.join().unwrap());
        gates.let_wait(1);
        let waiting = Arc::clone(&gates);
        let waited = thread::spawn(move || waiting.enter(1, true).is_ok());
        gates.bring_back(1, false);
        assert!(waited.join().unwrap());
    }
}
