//! `floe salvage`: rebuilds files whose metadata are lost, and copies them out.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use floe_archive::Writer;
use floe_blockdev::{Counted, FileDevice, ReadBlocks};
use floe_check::JournalUse;
use floe_exec::Progress;
use floe_format::{BlockNr, InodeNr};
use floe_report::salvage::Account;
use floe_salvage::{Options, PHASES, SalvageError, Salvaged, salvage};

use super::export::{archive_tree, is_closed_pipe};
use crate::exit::{Ended, Outcome};
use crate::image_files::copy::{Copier, Keep};
use crate::image_files::{Complaints, ImageArgs, place};
use crate::input::block_devices;
use crate::input::device::InUse;
use crate::input::files::{Judged, not_empty};
use crate::terminal::progress::{Watch, When};
use crate::terminal::{failure, signals};

/// Bytes copied at once.
const PIECE_BYTES: usize = 1 << 20;
/// Messages on standard error, at most; the report counts everything.
const MOST_MESSAGES: u32 = 20;

/// Rebuild files whose inodes, directories or superblock are lost, and copy them out.
///
/// Reads the whole device once and never writes to it. Checksums of extent blocks and directory
/// blocks say whose they are, and old copies of inodes and directories in the journal are used
/// (docs/salvage.md). Objects without a name appear in lost+found, by inode number or checksum
/// seed. Exits with 0 if everything is whole, with 4 if something is lost or uncertain.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Copy everything into DIR, which must be empty or not exist yet; tar:FILE writes a new tar
    /// archive, - writes one to standard output. By default only reports
    #[arg(long, value_name = "TARGET", value_parser = not_empty())]
    to: Option<OsString>,
    /// Write the report as JSON
    #[arg(long)]
    json: bool,
    /// Number of threads; by default all processors. The result does not depend on it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Progress display
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    progress: When,
}

/// The place of the copies.
enum Target {
    Nowhere,
    Folder(PathBuf),
    Archive(PathBuf),
    StandardOutput,
}

impl Target {
    fn of(text: Option<&OsString>) -> Self {
        let Some(text) = text else { return Self::Nowhere };
        let bytes = place::bytes(text);
        match bytes.strip_prefix(b"tar:") {
            Some(b"-") => Self::StandardOutput,
            Some(_) => Self::Archive(PathBuf::from(os_string(&bytes[4..]))),
            None if bytes == b"-" => Self::StandardOutput,
            None => Self::Folder(PathBuf::from(text)),
        }
    }
}

fn os_string(bytes: &[u8]) -> OsString {
    std::os::unix::ffi::OsStringExt::from_vec(bytes.to_vec())
}

impl Args {
    /// Whether it makes more than a report.
    pub(crate) fn copies(&self) -> bool {
        self.to.is_some()
    }

    pub(crate) fn run(self, judged: &Judged, out: &mut impl Write) -> anyhow::Result<Outcome> {
        let target = Target::of(self.to.as_ref());
        if matches!(&target, Target::Archive(path) if path.as_os_str().is_empty()) {
            return Err(Ended::usage("--to tar: needs the name of an archive behind it"));
        }
        let source = &self.image.source;
        if self.json && matches!(target, Target::StandardOutput) {
            return Err(Ended::usage("--json and --to - both write to standard output"));
        }
        if let Target::Archive(path) | Target::Folder(path) = &target {
            judged.refuse_output("--to", path)?;
            source.refuse_own_mount("--to", path)?;
        } else if matches!(target, Target::StandardOutput) {
            source.refuse_own_mount_of_stdout()?;
        }
        source.mind_users(InUse::WarnReader)?;
        signals::end_at_once(match &target {
            Target::Nowhere => "the image was not changed",
            Target::Folder(_) => "files copied so far are kept; the image was not changed",
            _ => "the archive is incomplete; the image was not changed",
        })?;
        let device = Counted::new(source.open()?);
        let created = match &target {
            Target::Folder(folder) => NewFolder::prepare(folder)?,
            _ => NewFolder(None),
        };
        let journal = block_devices::journal_of(source, self.image.external_journal.as_deref())?;
        let journal = journal.as_deref().map(FileDevice::open).transpose()?;
        let watch = Watch::over(Progress::new(&PHASES), self.progress);
        let options = Options {
            threads: self.threads.map_or_else(floe_exec::default_threads, usize::from),
            superblock: source.superblock.map(BlockNr),
            block_size: source.block_size,
            journal: if self.image.ignore_journal {
                JournalUse::Ignore
            } else {
                JournalUse::Replay
            },
            external_journal: journal.as_ref().map(|device| device as &dyn ReadBlocks),
            progress: watch.progress(),
            ..Options::default()
        };
        let salvaged = watch.during(&|| device.counts().bytes, || {
            salvage(&device, &options, |found| {
                let account = Account::of(found);
                created.keep();
                self.copy(found, &target).map(|outcome| (account, outcome))
            })
        });
        let (account, mut outcome) = match salvaged {
            // The reader of the pipe closed it. Like tar, fail without a message.
            Ok(Err(error)) if is_closed_pipe(&error) => return Ok(Outcome::FAILED),
            Ok(result) => result?,
            Err(error) => return Err(described(error, &device, &source.name())),
        };
        outcome.damaged |= account.has_losses();
        match (&target, self.json) {
            (_, true) => writeln!(out, "{:#}", account.json(&source.name(), outcome.code()))?,
            (Target::StandardOutput, false) => {
                // As any message: lost where it cannot be written.
                let _ = account.write(&mut io::stderr());
            }
            (_, false) => account.write(out)?,
        }
        Ok(outcome)
    }

    fn copy(&self, found: &Salvaged<'_>, target: &Target) -> anyhow::Result<Outcome> {
        let complaints = Complaints::limited(self.image.source.name(), MOST_MESSAGES);
        for problem in &found.lost {
            complaints.finding(problem, true);
        }
        let archive_to = |file: File| {
            let root = found.files.node(InodeNr::ROOT)?;
            let archive = Writer::new(BufWriter::with_capacity(PIECE_BYTES, file));
            archive_tree(&found.files, &complaints, b"/", root, archive)
        };
        match target {
            Target::Nowhere => {}
            Target::Folder(folder) => {
                let root = found.files.node(InodeNr::ROOT)?;
                Copier::new(&found.files, &complaints, b"/", Keep::All, None, true)
                    .run_into(root, folder)
                    .with_context(|| folder.display().to_string())?;
            }
            Target::Archive(path) => {
                let file = File::create_new(path);
                let file =
                    file.with_context(|| format!("{}: cannot be created", path.display()))?;
                archive_to(file).with_context(|| {
                    format!("{}: it is incomplete: it ends amid the files", path.display())
                })?;
            }
            Target::StandardOutput => {
                let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
                archive_to(file).context("standard output")?;
            }
        }
        Ok(complaints.outcome())
    }
}

/// A target folder that this run created. Dropping it removes the folder while it is empty.
struct NewFolder(Option<PathBuf>);

impl NewFolder {
    /// Creates the target, or makes sure that it is an empty folder.
    fn prepare(folder: &Path) -> anyhow::Result<Self> {
        match fs::read_dir(folder) {
            Ok(mut entries) => match entries.next() {
                None => Ok(Self(None)),
                Some(_) => bail!("{}: is not empty. Choose a new folder", folder.display()),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir(folder)
                    .with_context(|| format!("{}: cannot be created", folder.display()))?;
                Ok(Self(Some(folder.to_owned())))
            }
            Err(error) => {
                Err(error).with_context(|| format!("{}: cannot be used", folder.display()))
            }
        }
    }

    /// Keeps the folder, even if nothing is copied into it.
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if let Some(folder) = &self.0 {
            // A folder that somebody else has used by now stays.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Why nothing was rebuilt, in words.
fn described(error: SalvageError, device: &dyn ReadBlocks, name: &str) -> anyhow::Error {
    match error {
        SalvageError::Elsewhere { start_bytes, .. } => {
            Ended::failed(failure::of_other_start(device, name, start_bytes))
        }
        SalvageError::Open(error) => {
            Ended::failed(failure::of_check(&error, device, name, "--memory="))
        }
        SalvageError::Temporary(_) => error.into(),
    }
}
