//! `floe mkfs`: creates an ext2, ext3 or ext4 file system.

mod block_map;
mod cubes;
mod fill;
mod from;
mod journals;
mod report;
mod target;

use std::io::Write;

use anyhow::Context;
use floe_blockdev::{ReadBlocks, Window, WriteBlocks};
use floe_disk::mkfs::tree::Timestamp;
use floe_disk::mkfs::{Fresh, FsType, Options, Plan, WriteOptions, size, write_with};

use crate::exit::Outcome;
use crate::input::clock;
use crate::input::files::{InputPath, OutputPath};
use crate::input::random::random_bytes;
use crate::message::message;
use crate::terminal::failure::with_causes;
use crate::terminal::progress::When;

use from::FromArgs;
use target::Target;

/// Create an ext2, ext3 or ext4 file system.
///
/// Options and results match mke2fs: Linux and e2fsprogs cannot tell the difference. Defaults are
/// built in and equal Debian's mke2fs.conf. The layout is planned before anything is written, and
/// the superblock is written last, so that an interrupted run leaves no seemingly complete file
/// system.
///
/// A device that is in use, or that holds data, is refused without -F.
///
/// Exit codes: 0 created, 8 failed, 16 usage error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Block device or image file; a file is created if SIZE is given
    device: InputPath,
    /// Size: in KiB, or in blocks with -b; with a suffix k, m, g or t, that many bytes
    size: Option<String>,
    /// ext2, ext3, ext4, native or rext3 (default: ext4)
    #[arg(short = 't', value_name = "TYPE")]
    fs_type: Option<String>,
    /// Usage type: floppy, small, default, big, huge, news, largefile, largefile4
    #[arg(short = 'T', value_name = "USAGE")]
    usage: Option<String>,
    /// Block size in bytes: 1024 to 65536
    #[arg(short = 'b', value_name = "BYTES")]
    block_size: Option<String>,
    /// Cluster size in bytes, with -O bigalloc
    #[arg(short = 'C', value_name = "BYTES")]
    cluster_size: Option<String>,
    /// Blocks per group
    #[arg(short = 'g', value_name = "BLOCKS")]
    blocks_per_group: Option<String>,
    /// Groups per flexible block group
    #[arg(short = 'G', value_name = "GROUPS")]
    flex_groups: Option<String>,
    /// Number of inodes
    #[arg(short = 'N', value_name = "COUNT")]
    inodes: Option<String>,
    /// Bytes per inode (inode ratio)
    #[arg(short = 'i', value_name = "BYTES")]
    inode_ratio: Option<String>,
    /// Inode size in bytes
    #[arg(short = 'I', value_name = "BYTES")]
    inode_size: Option<String>,
    /// Percentage of blocks reserved for root (default: 5)
    #[arg(short = 'm', value_name = "PERCENT")]
    reserved: Option<String>,
    /// Volume label: at most 16 bytes
    #[arg(short = 'L', value_name = "LABEL")]
    label: Option<String>,
    /// UUID, or "clear", "random" or "time"
    #[arg(short = 'U', value_name = "UUID")]
    uuid: Option<String>,
    /// Last mount point to record
    #[arg(short = 'M', value_name = "FOLDER")]
    last_mounted: Option<String>,
    /// Features to enable, or to disable with a ^ before the name; "none" disables all
    #[arg(short = 'O', value_name = "[^]FEATURE,...", allow_hyphen_values = true)]
    features: Vec<String>,
    /// Extended options, such as stride=, resize=, root_owner=, hash_seed=, offset= (docs/mkfs.md)
    #[arg(short = 'E', value_name = "KEY[=VALUE],...")]
    extended: Vec<String>,
    /// Make a cube of a native file system, an empty directory with a lot of its own; settings are max_size=SIZE,
    /// on_error=ro|crash|repair, recovery=manual|online (docs/cubes.md)
    #[arg(long = "cube", value_name = "DIR[:SETTINGS]", value_parser = cubes::parse, conflicts_with = "from")]
    cubes: Vec<cubes::CubeOption>,
    /// Create a journal
    #[arg(short = 'j')]
    journal: bool,
    /// Journal options: size=MIB, location=BLOCK, fast_commit_size=KIB
    #[arg(short = 'J', value_name = "KEY=VALUE,...")]
    journal_options: Option<String>,
    /// Behaviour of Linux on errors: continue, remount-ro or panic
    #[arg(short = 'e', value_name = "BEHAVIOUR")]
    errors: Option<String>,
    /// Creator OS: linux, hurd, ...
    #[arg(short = 'o', value_name = "SYSTEM")]
    creator: Option<String>,
    /// Revision: 1, or 0 for Linux 1.0
    #[arg(short = 'r', value_name = "REVISION")]
    revision: Option<String>,
    /// Show the layout, and write nothing
    #[arg(short = 'n')]
    dry_run: bool,
    /// Print only errors
    #[arg(short = 'q')]
    quiet: bool,
    /// Show the layout of every group
    #[arg(short = 'v')]
    verbose: bool,
    /// Proceed even if the device holds data; twice: even if it is in use
    #[arg(short = 'F', action = clap::ArgAction::Count)]
    force: u8,
    /// Do not discard the device first (same as -E nodiscard)
    #[arg(short = 'K')]
    keep: bool,
    /// Accepted for compatibility with mke2fs: writes use the page cache anyway
    #[arg(short = 'D', hide = true)]
    direct: bool,
    #[command(flatten)]
    from: FromArgs,
    /// Write a block map for bmaptool to FILE: the blocks that must be copied
    #[arg(long, value_name = "FILE")]
    bmap: Option<OutputPath>,
    /// When to show progress
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    progress: When,
    /// Called by a name of mke2fs, which implies this type: data on the device is protected only on
    /// a terminal.
    #[arg(long, hide = true, value_name = "TYPE")]
    as_mke2fs: Option<String>,
}

impl Args {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<Outcome> {
        let options = match self.options() {
            Ok(options) => options,
            Err(error) => {
                message!("floe mkfs: {}", with_causes(&error));
                return Ok(Outcome::USAGE);
            }
        };
        if let Some(why) = self.cannot_combine(&options) {
            message!("floe mkfs: {why}");
            return Ok(Outcome::USAGE);
        }
        let size_blocks = match &self.size {
            Some(text) => Some(wanted(text, options.block_size()).context("SIZE is not a size")?),
            None => None,
        };
        if self.from.is_given() {
            return self.filled(options, size_blocks, out);
        }
        let unit = u64::from(options.block_size().unwrap_or(1024));
        let wanted_bytes = size_blocks.map(|blocks| blocks.saturating_mul(unit));
        let target = Target::look_at(&self.device, wanted_bytes, options.offset_bytes())?;
        target.refuse_if_used(self.force, self.as_mke2fs.is_some())?;
        let fresh = Fresh {
            uuid: version_4(random_bytes()?),
            hash_seed: version_4(random_bytes()?),
            now: Timestamp { seconds: clock::now_seconds(), nanoseconds: 0 },
        };
        let mut params = options.params(target.usable_bytes, size_blocks, &fresh)?;
        if params.blocks > target.usable_bytes / u64::from(params.block_size.max(1)) {
            anyhow::bail!("{} is smaller than the file system would be", self.device.display());
        }
        params.lazy_tables = options.lazy_tables().unwrap_or(false);
        let mut plan = Plan::new(&params)?;
        report::warn(&options, &plan);
        if self.dry_run {
            if !self.quiet {
                report::tell(&self.device, &plan, self.verbose, out)?;
                writeln!(out, "Nothing was written.")?;
            }
            return Ok(Outcome::CLEAN);
        }
        let block_map = self.open_block_map()?;
        let device = target.open()?;
        let zeroed = options.discard() && !self.keep && target.discard(plan.bytes())?;
        if zeroed && params.lazy_tables {
            // They are zeroes already: nothing is left to the kernel.
            params.lazy_tables = false;
            plan = Plan::new(&params)?;
        }
        if !zeroed && options.lazy_tables().is_none() && target.is_block_device && kernel_zeroes() {
            params.lazy_tables = true;
            plan = Plan::new(&params)?;
        }
        let window = Window::new(&device, options.offset_bytes(), Some(plan.bytes()))?;
        debug_assert!(window.size_bytes() >= plan.bytes());
        write_with(&plan, &window, WriteOptions { reads_as_zeroes: zeroed })
            .with_context(|| self.device.display().to_string())
            .map_err(|error| target.give_up(error))?;
        self.furnish(&window, &options).with_context(|| self.device.display().to_string())?;
        if !self.quiet {
            report::tell(&self.device, &plan, self.verbose, out)?;
        }
        self.write_block_map(&plan, &device, block_map)
    }

    /// Makes further journals and cubes in the new file system.
    fn furnish(&self, device: &dyn WriteBlocks, options: &Options) -> anyhow::Result<()> {
        if options.journals() > 1 {
            journals::make(device, options.journals())?;
        }
        if !self.cubes.is_empty() {
            cubes::make(device, &self.cubes)?;
        }
        Ok(())
    }

    /// Why options exclude one another.
    fn cannot_combine(&self, options: &Options) -> Option<String> {
        if self.bmap.is_some() && options.offset_bytes() > 0 {
            // A block map describes the whole image, which may hold other data before the offset.
            return Some("--bmap cannot be combined with -E offset=".to_owned());
        }
        if self.from.is_given() && options.journals() > 1 {
            return Some("-E journals= cannot be combined with --from".to_owned());
        }
        let folder = self.from.folder_around(&self.device).filter(|_| !self.dry_run)?;
        let (device, folder) = (self.device.display(), folder.display());
        Some(format!("{device} lies in {folder}, and would become a part of itself"))
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
        if self.from.is_given() {
            if self.reserved.is_none() {
                // An image made to size needs no reserved blocks.
                options.set('m', "0")?;
            }
            if let Some(seed) = &self.from.seed {
                options.set('E', &format!("hash_seed={seed}"))?;
                if self.uuid.is_none() {
                    options.set('U', seed)?;
                }
            }
        }
        if self.journal {
            options.with_journal();
        }
        Ok(options)
    }
}

/// SIZE in blocks of `block_size`, or in KiB without one.
fn wanted(text: &str, block_size: Option<u32>) -> Option<u64> {
    match text.parse() {
        Ok(blocks) => Some(blocks),
        Err(_) => Some(size(text)? / u64::from(block_size.unwrap_or(1024).max(1))),
    }
}

/// Turns random bytes into a version 4 UUID.
fn version_4(mut bytes: [u8; 16]) -> [u8; 16] {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// Whether the kernel zeroes uninitialised inode tables later.
fn kernel_zeroes() -> bool {
    std::path::Path::new("/sys/fs/ext4/features/lazy_itable_init").exists()
}
