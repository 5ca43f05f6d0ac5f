//! Options of a check.

use std::fmt;

use floe_blockdev::{ReadBlocks, ReadCounts};
use floe_exec::{CoreSource, Dealing, Policy, Progress};
use floe_format::BlockNr;
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
    /// Number of workers, at least 1. Two are 1.6 to 1.8 times as fast as one, sixteen by instructions 10 to 14 times
    /// (`docs/measurements/threads.md`).
    pub threads: usize,
    /// The superblock to use instead of the primary one: a block number counted in
    /// [`CheckOptions::block_size`].
    pub superblock: Option<BlockNr>,
    /// Bytes of a block (1024 to 65536), if the superblock cannot be read at its usual place.
    pub block_size: Option<u32>,
    /// How to treat a journal that holds transactions.
    pub journal: JournalUse,
    /// The device of an external journal.
    pub external_journal: Option<&'a dyn ReadBlocks>,
    /// Names in casefolded directories must be valid text even if the superblock does not demand it.
    pub check_encoding: bool,
    /// Seconds since 1970 that count as now: for timestamps in the future.
    pub now_seconds: i64,
    /// Whether inodes and directory blocks that are plainly in order are judged on a short path. Findings are
    /// the same without it; it always pays, and only the tests of that promise switch it off.
    pub shortcuts: bool,
    /// Whether native file systems are swept lot by lot. Findings are the same without: it is off only where that is tested.
    pub sweep: bool,
    /// How cross-checks are proved; findings are the same either way. `Auto` takes fingerprints from
    /// 2^29 clusters on, or if a memory budget has no room for exact accounting (`docs/fingerprint.md`).
    pub accounting: Accounting,
    /// Chooses the structure that counts links; findings are the same. `Auto` nearly always takes about the
    /// least memory; the others are those of lwFSCK (`docs/measurements/memory.md`, "Counting links").
    pub links: LinkChoice,
    /// Most memory that the process may take, in bytes: the check takes leaner structures, fewer
    /// threads or more sweeps, or refuses. `None`: no limit.
    pub memory_bytes: Option<u64>,
    /// Bytes of memory that the caller holds besides: they count for the budget.
    pub held_bytes: u64,
    /// Most groups whose claims are kept at once, when groups whose fingerprint failed are examined object by
    /// object. `None`: as many as fit the budget. Findings are the same; only tests set it.
    pub groups_per_sweep: Option<u32>,
    /// Called with the memory plan and its estimate, before the first inode is read.
    pub on_plan: Option<&'a (dyn Fn(&Plan) + Sync)>,
    /// The key of the random numbers of fingerprint accounting, which the maker of the file system must not
    /// know. `None`: each run draws its own from the system, and uses exact accounting if the system has no
    /// random numbers. Give one only to repeat a run, as in a test.
    pub key: Option<[u8; 16]>,
    /// How workers are shared between passes that could overlap; findings are the same. Overlapping pays with
    /// many threads (64 and more in the model of `docs/measurements/threads.md`); with two it costs 14 to 43 %.
    pub schedule: Policy,
    /// How each pass is split among the workers; findings are the same. With two workers neither way was
    /// measurably faster (`docs/measurements/threads.md`).
    pub dealing: Dealing,
    /// How cores are shared with other programs: workers beyond a minimum run only on idle cores. Pays beside
    /// other programs, which lose 2 % of their time instead of 55 % (`docs/measurements/checks.md`).
    pub cores: Option<SharedCores<'a>>,
    /// Counts the work done, for progress output; made by [`crate::estimate::work::progress`].
    pub progress: Option<&'a Progress>,
    /// Keeps a checkpoint, from which a check that was ended continues. Costs 14 to 16 % more instructions
    /// (`docs/measurements/checkpoints.md`): it pays for checks of hours.
    pub checkpoint: Option<&'a dyn Keeper>,
    /// The parts of all shards of this check, which are merged instead of reading what shards have read. Their key
    /// and their time take the place of those given here.
    pub parts: Option<&'a dyn Parts>,
    /// Returns the bytes read so far, for the times of the phases.
    pub reads: Option<&'a (dyn Fn() -> ReadCounts + Sync)>,
    /// The cube whose lots alone the device shows ([`crate::cube`]).
    pub cube: Option<&'a OneCube>,
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
            superblock: None,
            block_size: None,
            journal: JournalUse::Replay,
            external_journal: None,
            check_encoding: false,
            // The clock of a library's caller is not ours to read; 2038 is later than most damage.
            now_seconds: i64::from(i32::MAX),
            shortcuts: true,
            sweep: true,
            accounting: Accounting::Auto,
            links: LinkChoice::Auto,
            memory_bytes: None,
            held_bytes: 0,
            groups_per_sweep: None,
            on_plan: None,
            key: None,
            schedule: Policy::default(),
            dealing: Dealing::default(),
            cores: None,
            progress: None,
            checkpoint: None,
            parts: None,
            reads: None,
            cube: None,
        }
    }
}

impl From<&CheckOptions<'_>> for WhichSuperblock {
    fn from(options: &CheckOptions<'_>) -> Self {
        Self { block: options.superblock, block_size: options.block_size }
    }
}

impl From<&CheckOptions<'_>> for Ways {
    fn from(options: &CheckOptions<'_>) -> Self {
        Self {
            threads: options.threads,
            accounting: options.accounting,
            links: options.links,
            memory_bytes: options.memory_bytes,
        }
    }
}

impl CheckOptions<'_> {
    /// These options for one run, with a key; exact accounting if none can be drawn.
    pub(crate) fn with_key(&self) -> ([u8; 16], Self) {
        match self.key.or_else(drawn_key) {
            Some(key) => (key, *self),
            // Exact accounting uses no key.
            None => ([0; 16], Self { accounting: Accounting::Exact, ..*self }),
        }
    }
}

/// 16 bytes from the kernel itself, as a container or an early initramfs may have no `/dev/urandom`;
/// `None` if it has no source of random bytes.
fn drawn_key() -> Option<[u8; 16]> {
    let mut key = [0; 16];
    // The kernel returns so few bytes in one piece.
    getrandom(&mut key, GetRandomFlags::empty()).ok().map(|_| key)
}
