//! The common part of `ls`, `cat`, `cp` and `export`: files of an image, without a mount.

pub(crate) mod copy;
pub(crate) mod long;
mod metadata;
pub(crate) mod place;

use std::cell::Cell;
use std::fmt::Display;

use floe_blockdev::{FileDevice, ReadBlocks};
use floe_check::{CheckOptions, JournalUse, Problem, lacks_changes, view};
use floe_ext4::files::{FileFault, Files, Step, printable};

use crate::exit::Outcome;
use crate::input::block_devices;
use crate::input::device::{InUse, Source};
use crate::input::files::InputPath;
use crate::message::message;
use crate::terminal::failure;
use crate::terminal::signals;

/// The message about a symbolic link whose target is empty or holds zero bytes.
pub(crate) const LOST_TARGET: &str = "the target of the symbolic link is lost; it is skipped";

/// Options for the image, and for the state of its content.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ImageArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    /// The external journal: a device or file
    #[arg(long, value_name = "PATH")]
    pub(crate) external_journal: Option<InputPath>,
    /// Read the disk as it is, without replaying the journal
    #[arg(long)]
    pub(crate) ignore_journal: bool,
}

/// Reports faults in reading and writing on standard error, one by one.
pub(crate) struct Complaints {
    image: String,
    damaged: Cell<bool>,
    failed: Cell<bool>,
    /// Messages that may still be printed.
    left: Cell<u32>,
}

impl Complaints {
    /// Complaints about an image, by its name.
    pub(crate) fn about(image: String) -> Self {
        Self::limited(image, u32::MAX)
    }

    /// Tells a finding about the image as a whole; `lacks_changes`: its files lack the latest changes.
    pub(crate) fn finding(&self, problem: &Problem, lacks_changes: bool) {
        message!("floe: {}: {problem}", self.image);
        if lacks_changes {
            self.damaged.set(true);
        }
    }

    /// The same, with at most `most` messages on standard error.
    pub(crate) fn limited(image: String, most: u32) -> Self {
        let (damaged, failed) = (Cell::new(false), Cell::new(false));
        Self { image, damaged, failed, left: Cell::new(most) }
    }

    /// Reports that part of the image is damaged.
    pub(crate) fn damage(&self, path: &[u8], what: impl Display) {
        self.damaged.set(true);
        self.tell(path, what);
    }

    /// The same for every fault in a list.
    pub(crate) fn faults(&self, path: &[u8], faults: &[FileFault]) {
        for fault in faults {
            self.damage(path, fault);
        }
    }

    /// Reports a failure that is not damage.
    pub(crate) fn failure(&self, path: &[u8], what: impl Display) {
        self.failed.set(true);
        self.tell(path, what);
    }

    /// Reports steps of a walk that lead to no object. `base` is the starting path of the walk.
    pub(crate) fn step(&self, base: &[u8], step: &Step) {
        match step {
            Step::Visit(_) | Step::Leave { .. } => {}
            Step::Faults { path, faults } => self.faults(&place::join(base, path), faults),
            Step::Lost { path, error } => self.damage(&place::join(base, path), error),
            Step::Again { path, inode } => {
                let what =
                    format!("directory {inode} was already visited; its entries are skipped");
                self.damage(&place::join(base, path), what);
            }
        }
    }

    fn tell(&self, path: &[u8], what: impl Display) {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        match left {
            0 => return,
            1 => message!("floe: {}: further messages are omitted", self.image),
            _ => {}
        }
        message!("floe: {}: {}: {what}", self.image, printable(path));
    }

    /// The outcome: 4 for damage, 8 for failures.
    pub(crate) fn outcome(&self) -> Outcome {
        Outcome { damaged: self.damaged.get(), failed: self.failed.get(), ..Outcome::CLEAN }
    }
}

impl ImageArgs {
    /// Opens the image and passes its files to `look`. The outcome is 4 if damage made something
    /// unreadable, 8 if something else failed.
    pub(crate) fn view(
        &self,
        look: impl FnOnce(&Files<'_>, &Complaints) -> anyhow::Result<()>,
    ) -> anyhow::Result<Outcome> {
        self.source.mind_users(InUse::WarnReader)?;
        signals::end_at_once("files copied so far are kept; the image was not changed")?;
        let device = self.source.open()?;
        let journal = block_devices::journal_of(&self.source, self.external_journal.as_deref())?;
        let journal = journal.as_deref().map(FileDevice::open).transpose()?;
        let options = CheckOptions {
            superblock: self.source.which(),
            external_journal: journal.as_ref().map(|device| device as &dyn ReadBlocks),
            journal: if self.ignore_journal { JournalUse::Ignore } else { JournalUse::Replay },
            ..CheckOptions::default()
        };
        let image = self.source.name();
        let complaints = Complaints::about(image);
        let looked = view(&device, &options, |files, found| {
            for problem in found {
                complaints.finding(problem, lacks_changes(problem, files.superblock()));
            }
            look(files, &complaints)
        });
        match looked {
            Ok(result) => result.map(|()| complaints.outcome()),
            Err(error) => {
                let name = self.source.name();
                message!("floe: {}", failure::of_check(&error, &device, &name, "--memory="));
                Ok(Outcome::FAILED)
            }
        }
    }
}
