//! Changes that a repair staged, what each one costs, and why a finding is left.

use floe_check::Problem;
use floe_check::problem::Evidence;
use floe_format::InodeNr;
use floe_format::words::agree;

use crate::describe::Tense;
use crate::edit::{Edit, Loss, TreeEdit};

/// One change that was staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deed {
    /// The first finding that required the change; `None` if the change follows from others.
    pub problem: Option<Problem>,
    /// The change.
    pub edit: Edit,
    /// Its cost for the user.
    pub loss: Loss,
    /// Path of the affected inode as bytes, if known.
    pub path: Option<Vec<u8>>,
    /// Further remarks for the report.
    pub notes: Vec<String>,
    /// The round that made the change, from 1.
    pub round: u32,
    /// The change repairs no damage: it is part of [`crate::RepairOptions::extras`] or follows from
    /// them.
    pub extra: bool,
}

/// Why a finding is still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The policy refused.
    Refused,
    /// No repair is possible.
    Impossible(&'static str),
    /// The repair was attempted and failed.
    Failed(String),
    /// The policy refused other repairs, and this one depends on them: it waits for them, or was made in vain.
    Waits {
        /// It was made.
        made: bool,
    },
    /// The repair was made, but the next examination found the same problem again.
    CameBack,
}

/// Data loss or change that a user would notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// The latest changes of the whole file system are lost with transactions that are damaged in the journal.
    Transactions,
    /// A file or directory is deleted.
    Deleted,
    /// Part of a file is lost.
    Cut,
    /// A file shared blocks with others: each owner now has a copy, and one of them has foreign
    /// data.
    Cloned,
    /// Extended attributes are lost.
    Attributes,
    /// A name is lost or changed.
    Name,
    /// A file or directory is in lost+found.
    Moved,
}

impl Fate {
    /// All fates, worst first.
    pub const ALL: [Self; 7] = [
        Self::Transactions,
        Self::Deleted,
        Self::Cut,
        Self::Cloned,
        Self::Attributes,
        Self::Name,
        Self::Moved,
    ];

    /// Name in machine-readable reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Transactions => "transactions",
            Self::Deleted => "deleted",
            Self::Cut => "cut",
            Self::Cloned => "cloned",
            Self::Attributes => "attributes",
            Self::Name => "name",
            Self::Moved => "moved",
        }
    }
}

impl Deed {
    /// The loss that a user would notice, if any.
    pub fn fate(&self) -> Option<Fate> {
        // An unattached empty file is nobody's loss.
        if matches!(self.problem, Some(Problem::UnattachedEmptyInode { .. })) {
            return None;
        }
        match (self.loss, &self.edit) {
            (Loss::None, _) => None,
            (Loss::Moved, _) => Some(Fate::Moved),
            (Loss::Name, _) => Some(Fate::Name),
            (Loss::Attributes, _) => Some(Fate::Attributes),
            (Loss::Data, Edit::CloneShared { .. }) => Some(Fate::Cloned),
            (Loss::Data, Edit::Journal(_)) => Some(Fate::Transactions),
            // A list of orphans that names inodes of others costs nothing.
            (Loss::Data, Edit::Cube { .. }) => {
                let is_log = matches!(self.problem, Some(Problem::CubeJournalDamaged { .. }));
                is_log.then_some(Fate::Transactions)
            }
            (Loss::Data, _) => Some(Fate::Cut),
            (Loss::File, _) => Some(Fate::Deleted),
        }
    }

    /// The change as a sentence without a full stop.
    pub fn describe(&self, tense: Tense) -> String {
        match self.edit {
            // The last owner of shared blocks keeps them and copies nothing.
            Edit::CloneShared { .. } if self.notes.is_empty() => match tense {
                Tense::Done => "it keeps its blocks, and the other owners got copies",
                Tense::Would => "it keeps its blocks, and the other owners would get copies",
            }
            .to_owned(),
            _ => agree(&self.edit.describe(tense)).into_owned(),
        }
    }

    /// The inode that was changed, or else the one that the finding is about.
    pub fn inode(&self) -> Option<InodeNr> {
        let of_problem = || self.problem.as_ref().and_then(Problem::inode);
        self.edit.inode().or_else(of_problem).filter(|inode| inode.0 != 0)
    }

    /// Name of the affected directory entry, escaped for printing.
    pub fn entry_name(&self) -> Option<String> {
        let Edit::Entry { .. } = self.edit else { return None };
        let evidence = self.problem.as_ref()?.evidence();
        evidence.into_iter().find_map(|(field, value)| match value {
            Evidence::Text(text) if field == "name" => Some(text),
            _ => None,
        })
    }

    /// The directory that `..` of an unattached directory names.
    pub fn parent(&self) -> Option<InodeNr> {
        match self.problem {
            Some(
                Problem::DirectoryUnconnected { parent, .. }
                | Problem::DirectoryLoop { parent, .. },
            ) => Some(parent),
            _ => None,
        }
    }
}

impl Edit {
    /// The inode that it changes, if any.
    pub const fn inode(&self) -> Option<InodeNr> {
        match self {
            Self::Inode { inode, .. }
            | Self::Map { inode, .. }
            | Self::CloneShared { inode }
            | Self::RebuildExtents { inode }
            | Self::Attach { inode }
            | Self::Release { inode }
            | Self::LinkCount { inode, .. }
            | Self::MoveInode { inode }
            | Self::MoveHome { inode }
            | Self::Directory { dir: inode, .. }
            | Self::Entry { dir: inode, .. }
            | Self::RebuildDirectory { dir: inode }
            | Self::Tree(
                TreeEdit::Unlink { dir: inode, .. }
                | TreeEdit::Reconnect(inode)
                | TreeEdit::Parent { dir: inode, .. },
            ) => Some(*inode),
            _ => None,
        }
    }
}

impl Reason {
    /// Why the finding is left, for a person.
    pub fn describe(&self) -> String {
        match self {
            Self::Refused => "its repair was refused".to_owned(),
            Self::Impossible(why) => format!("it cannot be repaired: {why}"),
            Self::Failed(why) => format!("its repair failed: {why}"),
            Self::Waits { made: false } => {
                "its repair waits for others, which were refused".to_owned()
            }
            Self::Waits { made: true } => {
                "its repair did not last, perhaps because others were refused".to_owned()
            }
            Self::CameBack => "its repair did not help: please report this as a bug".to_owned(),
        }
    }

    /// Name in machine-readable reports.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Impossible(_) => "impossible",
            Self::Failed(_) => "failed",
            Self::Waits { .. } => "waits",
            Self::CameBack => "came-back",
        }
    }
}
