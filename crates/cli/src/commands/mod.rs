//! One file per command, each with its arguments and `run`.

use std::io::Write;

use clap::Subcommand;

use crate::exit::Outcome;
use crate::files::Judged;
use crate::later::Later;
use crate::online::freeze::{HOLDER, HolderArgs};

pub(crate) mod cat;
pub(crate) mod check;
pub(crate) mod cp;
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
pub(crate) mod status;
pub(crate) mod umount;
pub(crate) mod undo;

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check a file system and report what is wrong
    Check(Later<check::Args>),
    /// Repair a file system
    Repair(Later<repair::Args>),
    /// Restore the state before a repair
    Undo(Later<undo::Args>),
    /// Check with e2fsck's command line (see `floe fsck` without arguments)
    #[command(disable_help_flag = true)]
    Fsck(fsck::Args),
    /// Show the superblock, features and layout, and estimate the cost of a check
    Info(Later<info::Args>),
    /// Create a file system
    Mkfs(Box<Later<mkfs::Args>>),
    /// Show any structure of a file system, field by field
    Dump(Later<dump::Args>),
    /// List files of an image, without a mount
    Ls(Later<ls::Args>),
    /// Write the content of files of an image to standard output
    Cat(Later<cat::Args>),
    /// Copy files out of an image
    Cp(Later<cp::Args>),
    /// Write files of an image as a tar archive
    Export(Later<export::Args>),
    /// Mount an image or a device, without the kernel's ext4 and without root
    Mount(Box<Later<mount::Args>>),
    /// Unmount, and wait until the server has exited
    Umount(Later<umount::Args>),
    /// Show how a mount is served
    Status(Later<status::Args>),
    /// List every condition that a check can report
    Problems(Later<problems::Args>),
    /// Explain a condition, and its repair
    Explain(Later<explain::Args>),
    /// Freeze a file system for `floe check --online`, and thaw it in any case
    #[command(name = HOLDER, hide = true)]
    HoldFreeze(HolderArgs),
    /// Write man pages and completions
    #[cfg(feature = "generate")]
    #[command(hide = true)]
    Generate(crate::generate::Args),
}

impl Command {
    /// Runs the command after its paths were judged, with output to `out`.
    pub(crate) fn run(self, files: &Judged, out: &mut impl Write) -> anyhow::Result<Outcome> {
        match self {
            Self::Check(Later(args)) => args.run(files, out),
            Self::Repair(Later(args)) => args.run(out),
            Self::Undo(Later(args)) => args.run(out),
            Self::Fsck(args) => fsck::run("floe fsck", &args.arguments, out),
            Self::Info(Later(args)) => args.run(out),
            Self::Mkfs(args) => args.0.run(out),
            Self::Dump(Later(args)) => args.run(out),
            Self::Ls(Later(args)) => args.run(out),
            Self::Cat(Later(args)) => args.run(out),
            Self::Cp(Later(args)) => args.run(files, out),
            Self::Export(Later(args)) => args.run(out),
            Self::Mount(args) => args.0.run(),
            Self::Umount(Later(args)) => args.run(),
            Self::Status(Later(args)) => args.run(out),
            Self::Problems(Later(args)) => args.run(out),
            Self::Explain(Later(args)) => args.run(out),
            Self::HoldFreeze(args) => args.run(),
            #[cfg(feature = "generate")]
            Self::Generate(args) => args.run(out),
        }
    }
}
