//! The files named on a command line, found by the types of its options.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Command};
use rustix::fs::FileType;

use super::identity::Identity;

use super::judge::{Judged, Refused, is_standard_output};
use super::{InputPath, OutputPath};
use crate::input::device::shown;

/// A file, and the option that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// Its spelling for messages: `--html`, or `DEVICE`.
    pub(super) option: String,
    pub(super) path: PathBuf,
}

/// All files on one command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Files {
    pub(super) inputs: Vec<Named>,
    pub(super) outputs: Vec<Named>,
    pub(super) streams: Vec<Stream>,
    /// A document goes to standard output (`--json`).
    pub(super) json: bool,
}

/// A stream that is already open for writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stream {
    pub(super) name: String,
    pub(super) file: Identity,
    /// Whether it is a block device.
    pub(super) is_device: bool,
}

impl Stream {
    /// `None` for pipes, terminals and the like, which store nothing.
    pub(super) fn new(name: &str, fd: impl AsFd) -> Option<Self> {
        let found = rustix::fs::fstat(fd).ok()?;
        let kind = FileType::from_raw_mode(found.st_mode);
        let holds = matches!(kind, FileType::RegularFile | FileType::BlockDevice);
        let file = Identity::Exists { dev: found.st_dev, ino: found.st_ino };
        let is_device = kind == FileType::BlockDevice;
        holds.then(|| Self { name: name.to_owned(), file, is_device })
    }
}

impl Files {
    /// The files in `matches`, by the options of `command` and of the called subcommand.
    pub(crate) fn of(command: &Command, matches: &ArgMatches) -> Self {
        let mut files = Self::default();
        files.collect(command, matches);
        files
    }

    fn collect(&mut self, command: &Command, matches: &ArgMatches) {
        for id in matches.ids() {
            let is_set = || matches.try_get_one::<bool>(id.as_str()).ok().flatten() == Some(&true);
            self.json |= id == "json" && is_set();
            let option = || spelled(command, id.as_str());
            // This returns an error for options of other types and for option groups.
            if let Ok(Some(paths)) = matches.try_get_many::<InputPath>(id.as_str()) {
                paths.for_each(|path| self.input(&option(), path));
            } else if let Ok(Some(paths)) = matches.try_get_many::<OutputPath>(id.as_str()) {
                paths.for_each(|path| self.output(&option(), path));
            }
        }
        if let Some((name, matches)) = matches.subcommand()
            && let Some(command) = command.find_subcommand(name)
        {
            self.collect(command, matches);
        }
    }

    /// The device or image of the command, as the user named it; empty if there is none.
    pub(crate) fn device(&self) -> String {
        let device = self.inputs.iter().find(|named| named.option == "DEVICE");
        device.map(|named| shown(&named.path)).unwrap_or_default()
    }

    /// Whether an output goes to standard output, called `-`, where then nothing else may go.
    pub(crate) fn has_streamed_output(&self) -> bool {
        self.outputs.iter().any(|output| is_standard_output(&output.path))
    }

    /// Adds an input.
    pub(crate) fn input(&mut self, option: &str, path: &Path) {
        self.inputs.push(Named { option: option.to_owned(), path: path.to_owned() });
    }

    /// Adds an output.
    pub(crate) fn output(&mut self, option: &str, path: &Path) {
        self.outputs.push(Named { option: option.to_owned(), path: path.to_owned() });
    }

    /// Adds a stream that is open for writing, such as a log. Unlike outputs, several streams may
    /// be one file.
    pub(crate) fn stream(&mut self, name: &str, fd: impl AsFd) {
        self.streams.extend(Stream::new(name, fd));
    }

    /// Resolves the paths; opens none of the files for writing.
    ///
    /// # Errors
    /// [`Refused`] if an output would destroy a file.
    pub(crate) fn judge(&self) -> Result<Judged, Refused> {
        Judged::new(self)
    }
}

/// The spelling of an option on the command line.
fn spelled(command: &Command, id: &str) -> String {
    let argument = command.get_arguments().find(|argument| argument.get_id() == id);
    match argument.and_then(clap::Arg::get_long) {
        Some(long) => format!("--{long}"),
        None => id.to_ascii_uppercase(),
    }
}
