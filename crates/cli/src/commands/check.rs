//! `floe check`: checks a file system.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use clap::ValueEnum;
use floe_blockdev::Caching;
use floe_check::cube::CubeName;
use floe_check::evidence::choice::{LinkChoice, LinkStructure};
use floe_check::problem::Severity;
use floe_check::{Accounting, JournalUse};

use crate::exit::Outcome;
use crate::image_files::place;
use crate::input::block_devices;
use crate::input::device::{InUse, Source};
use crate::input::files::{InputPath, Judged, OutputPath, Refused};
use crate::input::scheduling::SharingArgs;
use crate::input::size::bytes;
use crate::message::message;
use crate::monitor::{Monitor, MonitorArgs};
use crate::online::{self, OnlineArgs, Snapshot};
use crate::run::check::Run;
use crate::run::checkpoint::CheckpointArgs;
use crate::run::shards::ShardArgs;
use crate::terminal::failure::with_causes;
use crate::terminal::progress::{Watch, When};

/// Check a file system and report what is wrong.
///
/// Never writes to the device. Transactions in the journal are replayed in memory, so the verdict
/// is the one after recovery.
#[derive(Debug, clap::Args)]
// The generated line has DEVICE last, where it would count as a part.
#[command(
    override_usage = "floe check [OPTIONS] <DEVICE>\n       floe check [OPTIONS] <DEVICE> --merge <PART>..."
)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// Number of threads; by default all processors
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    #[command(flatten)]
    sharing: SharingArgs,
    /// Report as JSON (see docs/json-schema.md)
    #[arg(long)]
    json: bool,
    /// Also write the report as an HTML page with a map of the disk to FILE, replacing an earlier
    /// one
    #[arg(long, value_name = "FILE")]
    html: Option<OutputPath>,
    /// Show every finding with its evidence and repair, and the time of each phase
    #[arg(long, short)]
    verbose: bool,
    /// Exit with 4 only for findings of at least this severity; by default for those that need
    /// repair
    #[arg(long, value_name = "SEVERITY")]
    fail_on: Option<FailOn>,
    /// The external journal: a device or file
    #[arg(long, short = 'j', value_name = "PATH")]
    external_journal: Option<InputPath>,
    /// Check the disk as it is, without replaying the journal
    #[arg(long)]
    ignore_journal: bool,
    /// Method of the cross-checks: per object (`exact`), by random fingerprints per group, which
    /// need less memory (`fingerprint`), or chosen by the size of the file system (`auto`).
    /// Findings are the same
    #[arg(long, value_name = "HOW", default_value = "auto")]
    accounting: How,
    /// Limit the memory to this size (units K, M, G and T): uses leaner structures, fewer threads
    /// or more sweeps. Prints an estimate first; fails if even the leanest plan exceeds the limit.
    /// Findings are the same (see docs/memory.md)
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory: Option<u64>,
    /// Structure for counting links: one bit per inode, an array of counters, the two trees of
    /// lwFSCK, or a choice of the last two by lwFSCK's equations from the group descriptors
    /// (`adaptive`). `auto`: bits, unless the memory limit requires another. Findings are the same
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    link_counts: Links,
    /// Drop pages from the page cache after reading them; keep pages that other programs use.
    /// Slower from a disk, as fast from the cache (Linux before 6.14 also drops other programs'
    /// pages of the device)
    #[arg(long)]
    drop_cache: bool,
    /// Bypass the page cache with direct I/O (O_DIRECT): for fast devices. Prefetches into at most
    /// 12 MiB of memory. Slower if the image is cached (see docs/memory.md)
    #[arg(long, conflicts_with = "drop_cache")]
    direct: bool,
    /// Read holes of sparse files and images instead of trusting the underlying file system, which
    /// may wrongly report holes for data that it has not written back yet
    #[arg(long)]
    read_holes: bool,
    /// Progress display: a bar on a terminal, nothing, or JSON lines
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    progress: When,
    /// Check even if the device is mounted or otherwise in use
    #[arg(long)]
    force: bool,
    /// Check one cube alone (a directory in the image, or `cube:` and its number): reads its lots, the
    /// descriptors of the others, and nothing else (see docs/cubes.md)
    #[arg(
        long,
        value_name = "CUBE",
        conflicts_with_all = ["html", "checkpoint", "shard", "merge", "superblock", "external_journal"]
    )]
    cube: Option<OsString>,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    #[command(flatten)]
    shards: ShardArgs,
    #[command(flatten)]
    online: OnlineArgs,
    #[command(flatten)]
    monitor: MonitorArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FailOn {
    Cosmetic,
    Metadata,
    DataRisk,
    Fatal,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum How {
    Exact,
    Fingerprint,
    Auto,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Links {
    #[default]
    Auto,
    Adaptive,
    Bits,
    Array,
    TwinTree,
}

impl Links {
    const fn choice(self) -> LinkChoice {
        match self {
            Self::Auto => LinkChoice::Auto,
            Self::Adaptive => LinkChoice::Adaptive,
            Self::Bits => LinkChoice::Always(LinkStructure::Bits),
            Self::Array => LinkChoice::Always(LinkStructure::Array),
            Self::TwinTree => LinkChoice::Always(LinkStructure::TwinTree),
        }
    }
}

impl From<How> for Accounting {
    fn from(how: How) -> Self {
        match how {
            How::Exact => Self::Exact,
            How::Fingerprint => Self::Fingerprint,
            How::Auto => Self::Auto,
        }
    }
}

impl From<FailOn> for Severity {
    fn from(fail_on: FailOn) -> Self {
        match fail_on {
            FailOn::Cosmetic => Self::Cosmetic,
            FailOn::Metadata => Self::Metadata,
            FailOn::DataRisk => Self::DataRisk,
            FailOn::Fatal => Self::Fatal,
        }
    }
}

impl Args {
    pub(crate) fn run(mut self, files: &Judged, out: &mut impl Write) -> anyhow::Result<Outcome> {
        self.source.read_holes = self.read_holes;
        self.source.caching = match (self.drop_cache, self.direct) {
            (true, _) => Caching::Preserve,
            (_, true) => Caching::Direct,
            _ => Caching::Shared,
        };
        let monitor = Monitor::new(&self.monitor);
        let result = self.check(files, &monitor, out);
        if result.as_ref().is_err_and(anyhow::Error::is::<Refused>) {
            // The metrics file might be the device itself.
            return result;
        }
        monitor.tell(self.source.name(), result)
    }

    fn check(
        &self,
        files: &Judged,
        monitor: &Monitor<'_>,
        out: &mut impl Write,
    ) -> anyhow::Result<Outcome> {
        let snapshot = if self.online.online {
            Some(online::take(&self.source, &self.online, files)?)
        } else {
            None
        };
        // No other program uses a snapshot.
        let in_use = snapshot.is_none()
            && self.source.mind_users(if self.force { InUse::Warn } else { InUse::Refuse })?;
        let sharing = self.sharing.enter();
        let watch = Watch::new(self.progress);
        let checkpoint = self.checkpoint.keeper();
        let parts = self.shards.merge();
        let cube = self.cube.as_deref().map(|name| CubeName::of(place::bytes(name)));
        let named = self.external_journal.as_deref();
        let journal = match snapshot {
            // The snapshot needs no other device: its journal is ignored, or in it.
            Some(_) => named.map(Path::to_owned),
            None => block_devices::journal_of(&self.source, named)?,
        };
        let run = Run {
            source: &self.source,
            threads: self.threads.map_or_else(floe_exec::default_threads, usize::from),
            sharing: &sharing,
            journal: if self.ignore_journal { JournalUse::Ignore } else { JournalUse::Replay },
            external_journal: journal.as_deref(),
            accounting: self.shards.accounting(self.accounting.into()),
            links: self.link_counts.choice(),
            memory_bytes: self.memory,
            json: self.json,
            verbose: self.verbose,
            fail_on: self.fail_on.map(Into::into),
            tolerated: &[],
            in_use,
            front: None,
            snapshot: snapshot.as_ref(),
            monitor: Some(monitor),
            watch: &watch,
            html: self.html.as_deref(),
            checkpoint: checkpoint.as_ref(),
            parts: parts.as_ref(),
            cube: cube.as_ref(),
        };
        if let Some(shard) = self.shards.shard(files)? {
            return run.run_shard(&shard, out);
        }
        let outcome = run.run(out)?;
        match snapshot.map(Snapshot::remove) {
            Some(Err(error)) => {
                message!("floe: {}", with_causes(&error));
                Ok(Outcome { failed: true, ..outcome })
            }
            _ => Ok(outcome),
        }
    }
}
