//! `floe status`: describes how a mount is served.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use crate::exit::Outcome;

/// Show how a mount of `floe mount` is served: version, process, threads, mode.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Mount point
    directory: OsString,
}

impl Args {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<Outcome> {
        write!(out, "{}", super::umount::status(Path::new(&self.directory))?)?;
        Ok(Outcome::CLEAN)
    }
}
