//! One file per command, each with its arguments and `run`.

use std::io::Write;

use clap::Subcommand;

use crate::commands::mount::watch::{WATCHER, WatcherArgs};
use crate::exit::Outcome;
use crate::input::files::Judged;
use crate::input::lazy_args::Lazy;
use crate::online::freeze::{HOLDER, HolderArgs};

pub(crate) mod cat;
pub(crate) mod check;
pub(crate) mod cp;
pub(crate) mod cube;
pub(crate) mod dump;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod fsck;
pub(crate) mod info;
pub(crate) mod ls;
pub(crate) mod mkfs;
pub(crate) mod mount;
pub(crate) mod problems;
pub(crate) mod repair;
pub(crate) mod report;
pub(crate) mod salvage;
pub(crate) mod status;
pub(crate) mod umount;
pub(crate) mod undo;

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check a file system and report what is wrong
    Check(Lazy<check::Args>),
    /// Repair a file system
    Repair(Lazy<repair::Args>),
    /// Restore the state before a repair
    Undo(Lazy<undo::Args>),
    /// Check with e2fsck's command line (see `floe fsck` without arguments)
    #[command(disable_help_flag = true)]
    Fsck(fsck::Args),
    /// Show the superblock, features and layout, and estimate the cost of a check
    Info(Lazy<info::Args>),
    /// Create a file system
    Mkfs(Box<Lazy<mkfs::Args>>),
    /// Show any structure of a file system, field by field
    Dump(Lazy<dump::Args>),
    /// List files of an image, without a mount
    Ls(Lazy<ls::Args>),
    /// Write the content of files of an image to standard output
    Cat(Lazy<cat::Args>),
    /// Copy files out of an image
    Cp(Lazy<cp::Args>),
    /// Write files of an image as a tar archive
    Export(Lazy<export::Args>),
    /// Rebuild files whose inodes, directories or superblock are lost, and copy them out
    Salvage(Lazy<salvage::Args>),
    /// Create, list, change and remove cubes of a native file system
    Cube(Lazy<cube::Args>),
    /// Mount an image or a device, without the kernel's ext4 and without root
    Mount(Box<Lazy<mount::Args>>),
    /// Unmount, and wait until the server has exited
    Umount(Lazy<umount::Args>),
    /// Show how a mount is served
    Status(Lazy<status::Args>),
    /// List every condition that a check can report
    Problems(Lazy<problems::Args>),
    /// Explain a condition, and its repair
    Explain(Lazy<explain::Args>),
    /// Report on a fleet: count the results of many checks, and compare them with earlier runs
    Report(Lazy<report::Args>),
    /// Freeze a file system for `floe check --online`, and thaw it in any case
    #[command(name = HOLDER, hide = true)]
    HoldFreeze(HolderArgs),
    /// Watch over a mount whose server may be killed
    #[command(name = WATCHER, hide = true)]
    WatchMount(WatcherArgs),
    /// Write man pages and completions
    #[cfg(feature = "generate")]
    #[command(hide = true)]
    Generate(crate::generate::Args),
}

impl Command {
    /// Whether the result of the command is its work, so that its output only tells about that.
    pub(crate) fn does_work(&self) -> bool {
        match self {
            Self::Repair(Lazy(args)) => !args.only_looks(),
            Self::Salvage(Lazy(args)) => args.copies(),
            _ => matches!(self, Self::Undo(_) | Self::Fsck(_) | Self::Mkfs(_)),
        }
    }

    /// Runs the command after its paths were judged, with output to `out`.
    pub(crate) fn run(self, files: &Judged, out: &mut impl Write) -> anyhow::Result<Outcome> {
        match self {
            Self::Check(Lazy(args)) => args.run(files, out),
            Self::Repair(Lazy(args)) => args.run(out),
            Self::Undo(Lazy(args)) => args.run(out),
            Self::Fsck(args) => fsck::run("floe fsck", &args.arguments, out),
            Self::Info(Lazy(args)) => args.run(out),
            Self::Mkfs(args) => args.0.run(out),
            Self::Dump(Lazy(args)) => args.run(out),
            Self::Ls(Lazy(args)) => args.run(out),
            Self::Cat(Lazy(args)) => args.run(out),
            Self::Cp(Lazy(args)) => args.run(files, out),
            Self::Export(Lazy(args)) => args.run(out),
            Self::Salvage(Lazy(args)) => args.run(files, out),
            Self::Cube(Lazy(args)) => args.run(out),
            Self::Mount(args) => args.0.run(),
            Self::Umount(Lazy(args)) => args.run(out),
            Self::Status(Lazy(args)) => args.run(out),
            Self::Problems(Lazy(args)) => args.run(out),
            Self::Explain(Lazy(args)) => args.run(out),
            Self::Report(Lazy(args)) => args.run(out),
            Self::HoldFreeze(args) => args.run(),
            Self::WatchMount(args) => args.run(),
            #[cfg(feature = "generate")]
            Self::Generate(args) => args.run(out),
        }
    }
}
