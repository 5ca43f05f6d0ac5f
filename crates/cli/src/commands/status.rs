//! `floe status`: describes how a mount is served.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use floe_fuse::{METRICS, STATUS, prometheus};

use super::umount::attribute;
use crate::exit::Outcome;

/// Show how a mount of `floe mount` is served: version, process, threads, mode.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Mount point
    directory: OsString,
    /// Show counts of requests, bytes and faults since the mount began, in the text format of Prometheus
    #[arg(long)]
    prometheus: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<Outcome> {
        let directory = Path::new(&self.directory);
        if self.prometheus {
            let lines = attribute(directory, METRICS)?;
            // The same name from everywhere.
            let shown = std::path::absolute(directory).context("cannot find the folder")?;
            write!(out, "{}", prometheus(&lines, &shown.to_string_lossy()))?;
        } else {
            write!(out, "{}", attribute(directory, STATUS)?)?;
        }
        Ok(Outcome::CLEAN)
    }
}
