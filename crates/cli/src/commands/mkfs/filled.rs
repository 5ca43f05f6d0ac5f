//! A file system that is filled while it is made.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::{Context, bail};
use floe_blockdev::Window;
use floe_disk::mkfs::source::{Folder, Overrides};
use floe_disk::mkfs::tree::{Contents, Time, Tree};
use floe_disk::mkfs::{FillOptions, Fresh, Options, Params, TreePlan, WriteOptions, fill};
use floe_exec::default_threads;

use super::Args;
use crate::exit::Outcome;

/// What the usage types go by where the size is not known yet.
const USUAL_BYTES: u64 = 1 << 30;

/// Where the files come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Folder(PathBuf),
}

impl Source {
    /// `dir:FOLDER`.
    pub(super) fn parse(text: &OsStr) -> anyhow::Result<Self> {
        match text.as_bytes().strip_prefix(b"dir:") {
            Some(path) if !path.is_empty() => Ok(Self::Folder(OsStr::from_bytes(path).into())),
            _ => bail!("--from {}: dir:FOLDER is wanted", text.display()),
        }
    }
}

/// Reads the source, plans, and writes.
pub(super) fn run(
    args: &Args,
    options: &Options,
    fresh: &Fresh,
    source: &Source,
    out: &mut impl Write,
) -> anyhow::Result<Outcome> {
    let latest = args.epoch.or_else(source_date_epoch).map(|secs| Time { secs, nanos: 0 });
    let overrides = Overrides { owner: args.owner, latest, no_xattrs: args.no_xattrs };
    match source {
        Source::Folder(path) => {
            let (folder, tree) = Folder::scan(path, &overrides)?;
            make(args, options, fresh, &tree, &folder.contents(&tree), out)
        }
    }
}

/// `SOURCE_DATE_EPOCH`.
fn source_date_epoch() -> Option<i64> {
    std::env::var("SOURCE_DATE_EPOCH").ok()?.trim().parse().ok()
}

fn make(
    args: &Args,
    options: &Options,
    fresh: &Fresh,
    tree: &Tree,
    contents: &dyn Contents,
    out: &mut impl Write,
) -> anyhow::Result<Outcome> {
    let (plan, target) = match args.fit {
        Some(spare_percent) => {
            let params = without_reserve(options, options.params(USUAL_BYTES, None, fresh)?);
            let plan = TreePlan::fitted(&params, tree, spare_percent)?;
            let unit = u64::from(options.block_size().unwrap_or(1024));
            let target = args.target(options, Some(plan.plan().bytes().div_ceil(unit)))?;
            (plan, target)
        }
        None => {
            let size_blocks = args.size_blocks(options)?;
            let target = args.target(options, size_blocks).context("(--fit needs no SIZE)")?;
            let params = args.params(options, fresh, &target, size_blocks)?;
            (TreePlan::new(&params, tree)?, target)
        }
    };
    if !args.quiet {
        writeln!(out, "{} files, {} directories included", tree.len(), directories(&plan))?;
    }
    if !args.tell(plan.plan(), out)? {
        return Ok(Outcome::CLEAN);
    }
    let device = target.open()?;
    let bytes = plan.plan().bytes();
    let zeroed = options.discard() && !args.keep && target.discard(bytes)?;
    let window = Window::new(&device, options.offset_bytes(), Some(bytes))?;
    let threads = args.threads.unwrap_or_else(default_threads);
    let write = WriteOptions { reads_as_zeroes: zeroed };
    fill(&plan, contents, &window, FillOptions { threads, write })
        .with_context(|| args.device.display().to_string())?;
    Ok(Outcome::CLEAN)
}

/// An image that fits keeps nothing back for root, unless -m asks for it.
fn without_reserve(options: &Options, mut params: Params) -> Params {
    if !options.has_reserve() {
        params.reserved_blocks = floe_disk::mkfs::Reserved::Percent(0.0);
    }
    params
}

fn directories(plan: &TreePlan<'_>) -> u64 {
    plan.plan().directories()
}
