//! `floe mkfs`: makes an ext2, ext3 or ext4 file system.

mod filled;
mod report;
mod target;

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use floe_blockdev::Window;
use floe_disk::mkfs::tree::Time;
use floe_disk::mkfs::{Fresh, FsType, Options, Params, Plan, WriteOptions, size, uuid, write_with};

use crate::clock;
use crate::exit::Outcome;
use crate::random::random_bytes;

use filled::Source;
use target::Target;

/// Make an ext2, ext3 or ext4 file system.
///
/// The options are those of mke2fs, and so is what they make: Linux and e2fsprogs cannot tell the
/// difference. Defaults are built in, and equal to Debian's mke2fs.conf. The layout is planned
/// before anything is written, and the superblock is written last, so that a run that was cut off
/// leaves no file system behind that looks whole.
///
/// A device that is in use, or that holds something already, is refused unless -F is given.
///
/// --from and -d fill it with files, without root and without a mount: the same source gives the
/// same bytes (--seed, --epoch), with any number of threads.
///
/// Exit codes: 0 made, 8 not possible, 16 wrong command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Block device, or image file: made if there is none and SIZE is given
    device: PathBuf,
    /// Size: KiB, or blocks if -b is given; with a suffix k, m, g or t, bytes times that
    size: Option<String>,
    /// ext2, ext3 or ext4 (default: ext4)
    #[arg(short = 't', value_name = "TYPE")]
    fs_type: Option<String>,
    /// What it is for: floppy, small, default, big, huge, news, largefile, largefile4
    #[arg(short = 'T', value_name = "USAGE")]
    usage: Option<String>,
    /// Bytes of a block: 1024 to 65536
    #[arg(short = 'b', value_name = "BYTES")]
    block_size: Option<String>,
    /// Bytes of a cluster, with -O bigalloc
    #[arg(short = 'C', value_name = "BYTES")]
    cluster_size: Option<String>,
    /// Blocks of a group
    #[arg(short = 'g', value_name = "BLOCKS")]
    blocks_per_group: Option<String>,
    /// Groups whose tables lie together
    #[arg(short = 'G', value_name = "GROUPS")]
    flex_groups: Option<String>,
    /// Number of inodes
    #[arg(short = 'N', value_name = "COUNT")]
    inodes: Option<String>,
    /// Bytes of the file system for each inode
    #[arg(short = 'i', value_name = "BYTES")]
    inode_ratio: Option<String>,
    /// Bytes of an inode
    #[arg(short = 'I', value_name = "BYTES")]
    inode_size: Option<String>,
    /// Percent of the blocks that only root may use (default: 5)
    #[arg(short = 'm', value_name = "PERCENT")]
    reserved: Option<String>,
    /// Label: 16 bytes at most
    #[arg(short = 'L', value_name = "LABEL")]
    label: Option<String>,
    /// UUID; "clear", "random" or "time"
    #[arg(short = 'U', value_name = "UUID")]
    uuid: Option<String>,
    /// Where it claims to have been mounted last
    #[arg(short = 'M', value_name = "FOLDER")]
    last_mounted: Option<String>,
    /// Features to switch on, or off with a ^ before the name; "none" switches all off
    #[arg(short = 'O', value_name = "[^]FEATURE,...", allow_hyphen_values = true)]
    features: Vec<String>,
    /// Rarer properties, such as stride=, resize=, root_owner=, hash_seed=, offset= (docs/mkfs.md)
    #[arg(short = 'E', value_name = "KEY[=VALUE],...")]
    extended: Vec<String>,
    /// With a journal
    #[arg(short = 'j')]
    journal: bool,
    /// The journal: size=MIB, location=BLOCK, fast_commit_size=KIB
    #[arg(short = 'J', value_name = "KEY=VALUE,...")]
    journal_options: Option<String>,
    /// What Linux does on errors: continue, remount-ro or panic
    #[arg(short = 'e', value_name = "BEHAVIOUR")]
    errors: Option<String>,
    /// Creator: linux, hurd, ...
    #[arg(short = 'o', value_name = "SYSTEM")]
    creator: Option<String>,
    /// Revision: 1, or 0 for what Linux 1.0 could read
    #[arg(short = 'r', value_name = "REVISION")]
    revision: Option<String>,
    /// Show what would be made, and write nothing
    #[arg(short = 'n')]
    dry_run: bool,
    /// Say nothing but errors
    #[arg(short = 'q')]
    quiet: bool,
    /// Show where every group has its tables
    #[arg(short = 'v')]
    verbose: bool,
    /// Even if the device holds something; twice: even if it is in use
    #[arg(short = 'F', action = clap::ArgAction::Count)]
    force: u8,
    /// Do not discard what the device holds (as -E nodiscard)
    #[arg(short = 'K')]
    keep: bool,
    /// Fill it: dir:FOLDER
    #[arg(long, value_name = "SOURCE", conflicts_with = "folder")]
    from: Option<std::ffi::OsString>,
    /// Fill it from a folder (as --from dir:FOLDER)
    #[arg(short = 'd', value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// As few blocks as hold the source; +N% makes it larger by so much
    #[arg(
        long,
        value_name = "+N%",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "+0%",
        value_parser = percent,
        conflicts_with = "size"
    )]
    fit: Option<u32>,
    /// UUID and hash seed, so that two runs give the same bytes
    #[arg(long, value_name = "UUID")]
    seed: Option<String>,
    /// The time of the run, in seconds since 1970; files changed later get it, too
    #[arg(long, value_name = "SECONDS")]
    epoch: Option<i64>,
    /// Owner and group of all files of the source
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    owner: Option<(u32, u32)>,
    /// Leave extended attributes of the source out
    #[arg(long)]
    no_xattrs: bool,
    /// Workers that write (default: as many as there are cores)
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    /// Accepted for mke2fs's sake: writes go through the page cache all the same
    #[arg(short = 'D', hide = true)]
    direct: bool,
    /// Called by a name of mke2fs, which stands for this type: a device that holds something is refused on a terminal only.
    #[arg(long, hide = true, value_name = "TYPE")]
    as_mke2fs: Option<String>,
}

impl Args {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<Outcome> {
        let options = match self.options() {
            Ok(options) => options,
            Err(error) => {
                eprintln!("floe mkfs: {error:#}");
                return Ok(Outcome::USAGE);
            }
        };
        let fresh = self.fresh()?;
        match &self.source()? {
            Some(source) => filled::run(&self, &options, &fresh, source, out),
            None => self.empty(&options, &fresh, out),
        }
    }

    /// An empty file system.
    fn empty(
        &self,
        options: &Options,
        fresh: &Fresh,
        out: &mut impl Write,
    ) -> anyhow::Result<Outcome> {
        let size_blocks = self.size_blocks(options)?;
        let target = self.target(options, size_blocks)?;
        let mut params = self.params(options, fresh, &target, size_blocks)?;
        let mut plan = Plan::new(&params)?;
        if !self.tell(&plan, out)? {
            return Ok(Outcome::CLEAN);
        }
        let device = target.open()?;
        let zeroed = options.discard() && !self.keep && target.discard(plan.bytes())?;
        if !zeroed && options.lazy_tables().is_none() && target.is_block_device && kernel_zeroes() {
            params.lazy_tables = true;
            plan = Plan::new(&params)?;
        }
        let window = Window::new(&device, options.offset_bytes(), Some(plan.bytes()))?;
        write_with(&plan, &window, WriteOptions { reads_as_zeroes: zeroed })
            .with_context(|| self.device.display().to_string())?;
        Ok(Outcome::CLEAN)
    }

    /// SIZE in blocks, or in KiB if no block size was given.
    fn size_blocks(&self, options: &Options) -> anyhow::Result<Option<u64>> {
        let Some(text) = &self.size else { return Ok(None) };
        wanted(text, options.block_size()).context("SIZE is not a size").map(Some)
    }

    /// What the file system is made on, unless that is refused.
    fn target(&self, options: &Options, size_blocks: Option<u64>) -> anyhow::Result<Target> {
        let unit = u64::from(options.block_size().unwrap_or(1024));
        let wanted_bytes = size_blocks.map(|blocks| blocks.saturating_mul(unit));
        let target = Target::look_at(&self.device, wanted_bytes, options.offset_bytes())?;
        target.refuse_if_used(self.force, self.as_mke2fs.is_some())?;
        Ok(target)
    }

    fn params(
        &self,
        options: &Options,
        fresh: &Fresh,
        target: &Target,
        size_blocks: Option<u64>,
    ) -> anyhow::Result<Params> {
        let params = options.params(target.usable_bytes, size_blocks, fresh)?;
        if params.blocks > target.usable_bytes / u64::from(params.block_size.max(1)) {
            anyhow::bail!("{} is smaller than the file system would be", self.device.display());
        }
        Ok(params)
    }

    /// Prints the plan; `false`: that was all that was asked for.
    fn tell(&self, plan: &Plan, out: &mut impl Write) -> anyhow::Result<bool> {
        if !self.quiet {
            report::tell(&self.device, plan, self.verbose, out)?;
            if self.dry_run {
                writeln!(out, "Nothing was written.")?;
            }
        }
        Ok(!self.dry_run)
    }

    /// Identifiers and the time, from the options or made up.
    fn fresh(&self) -> anyhow::Result<Fresh> {
        let now = self.epoch.unwrap_or_else(clock::now_seconds);
        let (uuid, hash_seed) = match &self.seed {
            Some(text) => {
                let seed = uuid(text).context("--seed is not a UUID")?;
                (seed, seed)
            }
            None => (version_4(random_bytes()?), version_4(random_bytes()?)),
        };
        Ok(Fresh { uuid, hash_seed, now: Time { secs: now, nanos: 0 } })
    }

    /// What the file system is filled from.
    fn source(&self) -> anyhow::Result<Option<Source>> {
        match (&self.from, &self.folder) {
            (Some(text), _) => Source::parse(text).map(Some),
            (None, Some(folder)) => Ok(Some(Source::Folder(folder.clone()))),
            (None, None) => Ok(None),
        }
    }

    fn options(&self) -> anyhow::Result<Options> {
        let named = self.as_mke2fs.as_deref().and_then(FsType::by_name);
        let mut options = Options::of_type(named.unwrap_or(FsType::Ext4));
        let given = [
            ('t', &self.fs_type),
            ('T', &self.usage),
            ('b', &self.block_size),
            ('C', &self.cluster_size),
            ('g', &self.blocks_per_group),
            ('G', &self.flex_groups),
            ('N', &self.inodes),
            ('i', &self.inode_ratio),
            ('I', &self.inode_size),
            ('m', &self.reserved),
            ('L', &self.label),
            ('U', &self.uuid),
            ('M', &self.last_mounted),
            ('J', &self.journal_options),
            ('e', &self.errors),
            ('o', &self.creator),
            ('r', &self.revision),
        ];
        for (letter, value) in given {
            if let Some(value) = value {
                options.set(letter, value)?;
            }
        }
        for list in &self.features {
            options.set('O', list)?;
        }
        for list in &self.extended {
            options.set('E', list)?;
        }
        if self.journal {
            options.with_journal();
        }
        Ok(options)
    }
}

/// SIZE in blocks of `block_size`, or in KiB if none was given.
fn wanted(text: &str, block_size: Option<u32>) -> Option<u64> {
    match text.parse() {
        Ok(blocks) => Some(blocks),
        Err(_) => Some(size(text)? / u64::from(block_size.unwrap_or(1024).max(1))),
    }
}

/// `+N%`.
fn percent(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let digits = digits.strip_suffix('%').unwrap_or(digits);
    let percent = digits.parse().ok().filter(|percent| *percent <= 10_000);
    percent.ok_or_else(|| "a percentage such as +10% is wanted".to_owned())
}

/// `UID:GID`.
fn owner(text: &str) -> Result<(u32, u32), String> {
    let parts =
        text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    parts.ok_or_else(|| "UID:GID is wanted".to_owned())
}

/// Random bytes as a UUID of version 4.
fn version_4(mut bytes: [u8; 16]) -> [u8; 16] {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// Whether the kernel zeroes inode tables that mkfs left as they were.
fn kernel_zeroes() -> bool {
    std::path::Path::new("/sys/fs/ext4/features/lazy_itable_init").exists()
}
