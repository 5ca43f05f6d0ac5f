//! How threads are shared between the passes of a check, and the cores with other programs.

use clap::ValueEnum;
use floe_check::SharedCores;
use floe_exec::{Dealing, Policy, ProcCores, enter_idle_class, try_idle_class};

/// Options of every command that checks.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct SharingArgs {
    /// How threads are shared between the passes over inodes and directories: one pass after the
    /// other, in equal parts, or by the work that waits. Findings are the same
    #[arg(long, value_name = "POLICY", value_enum)]
    schedule: Option<How>,
    /// How a pass is split between threads: piece by piece in the order of the disk, or in a stretch of the
    /// disk for each thread with as many inodes in use. Findings are the same
    #[arg(long, value_name = "HOW", value_enum)]
    split: Option<Split>,
    /// Leave cores to other programs: MIN threads (1 if not given) compete for them as any program does;
    /// further threads run only where a core would be idle, and there are no more of them than such cores,
    /// counted ten times a second. With 0 all threads give way: the check then waits while all cores are busy
    #[arg(long, value_name = "MIN", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    share_cores: Option<usize>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum How {
    /// One pass after the other, each by all threads
    Data,
    /// As many threads for inodes as for directories, at the same time
    SplitEqual,
    /// Threads in proportion to the work that waits, at the same time
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
    /// All threads together go through the disk in order
    InOrder,
    /// Each thread has a stretch of the disk, and takes half of another's when it is done
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

/// What was asked for, in force.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    pub(crate) policy: Policy,
    pub(crate) dealing: Dealing,
    cores: Option<(ProcCores, usize)>,
}

impl Sharing {
    /// How the cores are shared, if they are.
    pub(crate) fn cores(&self) -> Option<SharedCores<'_>> {
        let (source, minimum) = self.cores.as_ref()?;
        Some(SharedCores { source, minimum: *minimum })
    }
}

impl SharingArgs {
    /// Puts the options in force; to be called before any thread is started. What the system refuses is
    /// said, and does without.
    pub(crate) fn enter(&self) -> Sharing {
        let mut sharing = Sharing::default();
        if let Some(how) = self.schedule {
            sharing.policy = how.into();
        }
        if let Some(split) = self.split {
            sharing.dealing = split.into();
        }
        if let Some(minimum) = self.share_cores {
            // Without a minimum the whole program gives way; otherwise threads do that are started later.
            let entered = if minimum == 0 { enter_idle_class() } else { try_idle_class() };
            if let Err(error) = entered {
                eprintln!(
                    "floe: --share-cores: the system does not let this program run only where a core is \
                     idle ({error}); it goes on with the usual priority"
                );
            }
            sharing.cores = Some((ProcCores::new(), minimum));
        }
        sharing
    }
}
