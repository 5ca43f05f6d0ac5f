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
    /// Workers; at least 1.
    pub threads: usize,
    /// The superblock to use instead of the primary one: a block number counted in
    /// [`CheckOptions::block_size`].
    pub superblock: Option<BlockNr>,
    /// Bytes of a block, where the superblock cannot say (1024 to 65536).
    pub block_size: Option<u32>,
    /// How to treat a journal that holds transactions.
    pub journal: JournalUse,
    /// The device of an external journal.
    pub external_journal: Option<&'a dyn ReadBlocks>,
    /// Names in casefolded directories must be valid text even where the superblock does not say so.
    pub check_encoding: bool,
    /// Seconds since 1970 that count as now: for timestamps in the future.
    pub now_seconds: i64,
    /// Whether inodes and directory blocks that are plainly in order are judged on a short path.
    /// Findings are the same without: it is off only where that is tested.
    pub shortcuts: bool,
    /// How cross-checks are proved. Findings are the same either way.
    pub accounting: Accounting,
    /// Chooses the structure that counts links. Findings are the same.
    pub links: LinkChoice,
    /// Most memory that the process may take, in bytes: the check takes leaner structures, fewer
    /// threads or more sweeps, or refuses. `None`: no limit.
    pub memory_bytes: Option<u64>,
    /// Bytes of memory that the caller holds besides: they count for the budget.
    pub held_bytes: u64,
    /// Groups of which claims are kept at once, at most, where sums leave some to be looked at object
    /// by object; `None`: as many as fit the budget. Findings are the same: set where that is tested.
    pub groups_per_sweep: Option<u32>,
    /// Is told how the check is made and what that takes, before the first inode is read.
    pub on_plan: Option<&'a (dyn Fn(&Plan) + Sync)>,
    /// The key of the random numbers of fingerprint accounting. Whoever made the file system must not
    /// know it. `None`: each run draws its own from the system, and accounts for everything exactly where
    /// the system has none. To be given only where a run must be made again as it was, as in a test.
    pub key: Option<[u8; 16]>,
    /// How workers are shared between passes that could overlap. Findings are the same.
    pub schedule: Policy,
    /// How each pass is dealt to the workers. Findings are the same.
    pub dealing: Dealing,
    /// How cores are shared with other programs: then no more workers are busy than there are cores for
    /// them, but for a minimum. Findings are the same.
    pub cores: Option<SharedCores<'a>>,
    /// Is told how far the check is; made by [`crate::estimate::work::progress`].
    pub progress: Option<&'a Progress>,
    /// Keeps a checkpoint, from which a check that was cut off goes on.
    pub checkpoint: Option<&'a dyn Keeper>,
    /// The parts of all shards of this check, which are merged instead of reading what shards have read. Their key
    /// and their time take the place of those given here.
    pub parts: Option<&'a dyn Parts>,
    /// Tells what was read so far, for the times of the phases.
    pub reads: Option<&'a (dyn Fn() -> ReadCounts + Sync)>,
    /// The cube whose lots alone the device shows ([`crate::cube`]).
    pub cube: Option<&'a OneCube>,
}

/// Cores that are shared with other programs.
#[derive(Clone, Copy)]
pub struct SharedCores<'a> {
    /// Tells how busy the cores are.
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
    /// These options for one run: with a key, and by sums only with one that nobody can know.
    pub(crate) fn with_key(&self) -> ([u8; 16], Self) {
        match self.key.or_else(drawn_key) {
            Some(key) => (key, *self),
            // Without sums it is of no importance.
            None => ([0; 16], Self { accounting: Accounting::Exact, ..*self }),
        }
    }
}

/// 16 bytes from the kernel itself, as a container or an early initramfs may have no `/dev/urandom`;
/// `None` if it has no source of random bytes.
fn drawn_key() -> Option<[u8; 16]> {
    let mut key = [0; 16];
    // So few come at once and whole.
    getrandom(&mut key, GetRandomFlags::empty()).ok().map(|_| key)
}
