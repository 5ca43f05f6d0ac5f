//! Division of threads between the passes of a check, and of cores with other programs.

use clap::ValueEnum;
use floe_check::SharedCores;
use floe_check::Tuning;
use floe_exec::{Dealing, Policy, ProcCores, enter_idle_class, try_idle_class};

use crate::message::message;

/// Options of every command that checks.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct SharingArgs {
    /// How the passes over inodes and directories share threads: one pass after the other, in equal
    /// parts, or by pending work. Findings are the same
    #[arg(long, value_name = "POLICY", value_enum)]
    schedule: Option<How>,
    /// How a pass is divided among threads: chunk by chunk in on-disk order, or in one segment per
    /// thread with equal numbers of used inodes. Findings are the same
    #[arg(long, value_name = "HOW", value_enum)]
    split: Option<Split>,
    /// Yield cores to other programs: MIN threads (default 1) compete for cores as usual; further
    /// threads run only on idle cores, whose number is measured ten times per second. With 0 all
    /// threads yield: the check then waits while all cores are busy
    #[arg(long, value_name = "MIN", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    share_cores: Option<usize>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum How {
    /// One pass after the other, each with all threads
    Data,
    /// Equal numbers of threads for inodes and directories, concurrently
    SplitEqual,
    /// Threads in proportion to the pending work, concurrently
    Dynamic,
}

impl From<How> for Policy {
    fn from(how: How) -> Self {
        match how {
            How::Data => Self::Data,
            How::SplitEqual => Self::SplitEqual,
            How::Dynamic => Self::Dynamic,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Split {
    /// All threads process chunks in on-disk order
    InOrder,
    /// Each thread processes its own segment, then takes half of another's
    ByUse,
}

impl From<Split> for Dealing {
    fn from(split: Split) -> Self {
        match split {
            Split::InOrder => Self::InOrder,
            Split::ByUse => Self::Ranges,
        }
    }
}

/// The active settings.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    pub(crate) policy: Policy,
    pub(crate) dealing: Dealing,
    cores: Option<(ProcCores, usize)>,
}

impl Sharing {
    /// The core sharing, if enabled.
    pub(crate) fn cores(&self) -> Option<SharedCores<'_>> {
        let (source, minimum) = self.cores.as_ref()?;
        Some(SharedCores { source, minimum: *minimum })
    }

    /// How passes are shared among workers.
    pub(crate) fn tuning(&self) -> Tuning {
        Tuning { schedule: self.policy, dealing: self.dealing, ..Tuning::default() }
    }
}

impl SharingArgs {
    /// Applies the options; must be called before any thread is started. A refusal by the system is
    /// reported and otherwise ignored.
    pub(crate) fn enter(&self) -> Sharing {
        let mut sharing = Sharing::default();
        if let Some(how) = self.schedule {
            sharing.policy = how.into();
        }
        if let Some(split) = self.split {
            sharing.dealing = split.into();
        }
        if let Some(minimum) = self.share_cores {
            // Without a minimum the whole program yields; otherwise only threads that are started
            // later.
            let entered = if minimum == 0 { enter_idle_class() } else { try_idle_class() };
            if let Err(error) = entered {
                message!(
                    "floe: --share-cores: the system refuses the idle scheduling class ({error}); continuing \
                     with normal priority"
                );
            }
            sharing.cores = Some((ProcCores::new(), minimum));
        }
        sharing
    }
}
