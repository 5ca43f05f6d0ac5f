//! Options of a check.

use std::fmt;

use floe_blockdev::{ReadBlocks, ReadCounts};
use floe_exec::{CoreSource, Dealing, Policy, Progress};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::estimate::memory::{Plan, Ways};
use crate::evidence::accounting::Accounting;
use crate::evidence::choice::LinkChoice;
use crate::keeper::{Keeper, Parts};
use crate::volume::cubes::OneCube;
use crate::volume::journal::JournalUse;
use crate::volume::open::WhichSuperblock;

/// How a check is run.
#[derive(Clone, Copy)]
pub struct CheckOptions<'a> {
    /// Number of workers, at least 1. Two are 1.6 to 1.8 times as fast as one, sixteen by instructions 12 to 15 times
    /// (`docs/measurements/threads.md`).
    pub threads: usize,
    /// The superblock to use instead of the primary one.
    pub superblock: WhichSuperblock,
    /// How to treat a journal that holds transactions.
    pub journal: JournalUse,
    /// The device of an external journal.
    pub external_journal: Option<&'a dyn ReadBlocks>,
    /// Names in casefolded directories must be valid text even if the superblock does not demand it.
    pub check_encoding: bool,
    /// Seconds since 1970 that count as now: for timestamps in the future.
    pub now_seconds: i64,
    /// How much memory the check may take.
    pub memory: MemoryLimit,
    /// How cores are shared with other programs: workers beyond a minimum run only on idle cores. Pays beside
    /// other programs, which lose 2 % of their time instead of 55 % (`docs/measurements/checks.md`).
    pub cores: Option<SharedCores<'a>>,
    /// Ways to the same findings.
    pub tuning: Tuning,
    /// Those who are told how the check goes on.
    pub observer: Observer<'a>,
    /// Work that was done before, or is kept for later.
    pub checkpoints: Checkpoints<'a>,
    /// The cube whose lots alone the device shows ([`crate::cube`]).
    pub cube: Option<&'a OneCube>,
}

/// A limit of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Most memory that the process may take, in bytes: the check takes leaner structures, fewer
    /// threads or more sweeps, or refuses. `None`: no limit.
    pub limit_bytes: Option<u64>,
    /// Bytes of memory that the caller holds besides: they count for the limit.
    pub held_bytes: u64,
}

/// Ways to the same findings, which differ in time and memory.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// How cross-checks are proved. `Auto` takes fingerprints from 2^29 clusters on, or if a limit of memory has no room for
    /// exact accounting (`docs/fingerprint.md`).
    pub accounting: Accounting,
    /// The key of the random numbers of fingerprint accounting, which the maker of the file system must not
    /// know. `None`: each run draws its own from the system, and uses exact accounting if the system has no
    /// random numbers. Give one only to repeat a run, as in a test.
    pub key: Option<[u8; 16]>,
    /// Chooses the structure that counts links. `Auto` nearly always takes about the
    /// least memory; the others are those of lwFSCK (`docs/measurements/memory.md`, "Counting links").
    pub links: LinkChoice,
    /// How workers are shared between passes that could overlap. Overlapping pays with
    /// many threads (64 and more in the model of `docs/measurements/threads.md`); with two it costs 14 to 43 %.
    pub schedule: Policy,
    /// How each pass is split among the workers. With two workers neither way was
    /// measurably faster (`docs/measurements/threads.md`).
    pub dealing: Dealing,
    /// Whether inodes and directory blocks that are plainly in order are judged on a short path. It always pays, and only the
    /// tests of the promise that findings are the same switch it off.
    pub shortcuts: bool,
    /// Whether native file systems are swept lot by lot; off only where equal findings are tested.
    pub sweep: bool,
    /// Bytes that a sweep may hold, if not the usual number. Only tests set it.
    pub sweep_bytes: Option<u64>,
    /// Most groups whose claims are kept at once, when groups whose fingerprint failed are examined object by
    /// object. `None`: as many as fit the limit of memory. Only tests set it.
    pub groups_per_sweep: Option<u32>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            accounting: Accounting::Auto,
            key: None,
            links: LinkChoice::Auto,
            schedule: Policy::default(),
            dealing: Dealing::default(),
            shortcuts: true,
            sweep: true,
            sweep_bytes: None,
            groups_per_sweep: None,
        }
    }
}

/// Those who are told how a check goes on.
#[derive(Clone, Copy, Default)]
pub struct Observer<'a> {
    /// Called with the memory plan and its estimate, before the first inode is read.
    pub on_plan: Option<&'a (dyn Fn(&Plan) + Sync)>,
    /// Counts the work done, for progress output; made by [`crate::estimate::work::progress`].
    pub progress: Option<&'a Progress>,
    /// Returns the bytes read so far, for the times of the phases.
    pub reads: Option<&'a (dyn Fn() -> ReadCounts + Sync)>,
}

/// Work that was done before, or is kept for later.
#[derive(Clone, Copy, Default)]
pub struct Checkpoints<'a> {
    /// Keeps a checkpoint, from which a check that was ended continues. Costs 14 to 16 % more instructions
    /// (`docs/measurements/checkpoints.md`): it pays for checks of hours.
    pub keeper: Option<&'a dyn Keeper>,
    /// The parts of all shards of this check, which are merged instead of reading what shards have read. Their key
    /// and their time take the place of those given here.
    pub parts: Option<&'a dyn Parts>,
}

impl Checkpoints<'_> {
    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        self.keeper.is_some() || self.parts.is_some()
    }
}

/// Cores that are shared with other programs.
#[derive(Clone, Copy)]
pub struct SharedCores<'a> {
    /// Samples how busy the cores are.
    pub source: &'a dyn CoreSource,
    /// The number of workers that always run and compete for cores like any program. The others run
    /// only on cores that would be idle, which their threads decide when they start. 0: all others;
    /// one always works.
    pub minimum: usize,
}

impl fmt::Debug for SharedCores<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedCores").field("minimum", &self.minimum).finish_non_exhaustive()
    }
}

impl Default for CheckOptions<'_> {
    fn default() -> Self {
        Self {
            threads: 1,
            superblock: WhichSuperblock::default(),
            journal: JournalUse::Replay,
            external_journal: None,
            check_encoding: false,
            // The clock of a library's caller is not ours to read; 2038 is later than most damage.
            now_seconds: i64::from(i32::MAX),
            memory: MemoryLimit::default(),
            cores: None,
            tuning: Tuning::default(),
            observer: Observer::default(),
            checkpoints: Checkpoints::default(),
            cube: None,
        }
    }
}

impl From<&CheckOptions<'_>> for Ways {
    fn from(options: &CheckOptions<'_>) -> Self {
        Self {
            threads: options.threads,
            accounting: options.tuning.accounting,
            links: options.tuning.links,
            memory_bytes: options.memory.limit_bytes,
        }
    }
}

impl CheckOptions<'_> {
    /// These options for one run, with a key; exact accounting if none can be drawn.
    pub(crate) fn with_key(&self) -> ([u8; 16], Self) {
        match self.tuning.key.or_else(drawn_key) {
            Some(key) => (key, *self),
            // Exact accounting uses no key.
            None => ([0; 16], self.with_accounting(Accounting::Exact)),
        }
    }

    /// These options with another way of accounting.
    pub(crate) fn with_accounting(&self, accounting: Accounting) -> Self {
        Self { tuning: Tuning { accounting, ..self.tuning }, ..*self }
    }
}

/// 16 bytes from the kernel itself, as a container or an early initramfs may have no `/dev/urandom`;
/// `None` if it has no source of random bytes.
fn drawn_key() -> Option<[u8; 16]> {
    let mut key = [0; 16];
    // The kernel returns so few bytes in one piece.
    getrandom(&mut key, GetRandomFlags::empty()).ok().map(|_| key)
}
