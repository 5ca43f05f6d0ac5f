//! Deeds: changes that were staged, what each costs, and why a finding is left.

use floe_check::Problem;
use floe_check::problem::Evidence;
use floe_format::InodeNr;

use crate::describe::Tense;
use crate::edit::{Edit, Loss, TreeEdit};

/// One change that was staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deed {
    /// The first finding that asked for it; `None` for what follows from other deeds.
    pub problem: Option<Problem>,
    /// The change.
    pub edit: Edit,
    /// What it costs.
    pub loss: Loss,
    /// Path of the inode it is about, as bytes, if it was known.
    pub path: Option<Vec<u8>>,
    /// What else there is to say.
    pub notes: Vec<String>,
    /// The round it was made in, from 1 on.
    pub round: u32,
    /// No damage asked for it: it is part of [`crate::RepairOptions::extras`], or follows from one.
    pub extra: bool,
}

/// Why a finding is still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The policy refused.
    Refused,
    /// No repair is possible.
    Impossible(&'static str),
    /// The repair failed.
    Failed(String),
    /// The repair was made, and did not help.
    CameBack,
}

/// What happened to something that a user would miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// A file or directory is gone.
    Deleted,
    /// A part of a file is gone.
    Cut,
    /// A file shared blocks with others: each has its own now, and one of them foreign data.
    Cloned,
    /// Extended attributes are gone.
    Attributes,
    /// A name is gone or changed.
    Name,
    /// It is in lost+found.
    Moved,
}

impl Fate {
    /// All fates, the worst first.
    pub const ALL: [Self; 6] =
        [Self::Deleted, Self::Cut, Self::Cloned, Self::Attributes, Self::Name, Self::Moved];

    /// The name in reports for programs.
    pub const fn name(self) -> &'static str {
        match self {
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
    /// What a user would miss, if anything.
    pub fn fate(&self) -> Option<Fate> {
        // An empty file without a name is nobody's.
        if matches!(self.problem, Some(Problem::UnattachedEmptyInode { .. })) {
            return None;
        }
        match (self.loss, &self.edit) {
            (Loss::None, _) => None,
            (Loss::Moved, _) => Some(Fate::Moved),
            (Loss::Name, _) => Some(Fate::Name),
            (Loss::Attributes, _) => Some(Fate::Attributes),
            (Loss::Data, Edit::CloneShared { .. }) => Some(Fate::Cloned),
            (Loss::Data, _) => Some(Fate::Cut),
            (Loss::File, _) => Some(Fate::Deleted),
        }
    }

    /// What was done, as a sentence without its full stop.
    pub fn describe(&self, tense: Tense) -> String {
        match self.edit {
            // The last owner of shared blocks has nothing to copy.
            Edit::CloneShared { .. } if self.notes.is_empty() => match tense {
                Tense::Done => "it keeps its blocks: whoever claimed them too got copies",
                Tense::Would => "it keeps its blocks: whoever claims them too would get copies",
            }
            .to_owned(),
            _ => self.edit.describe(tense),
        }
    }

    /// The inode that it changed, or that its finding is about.
    pub fn inode(&self) -> Option<InodeNr> {
        let of_problem = || self.problem.as_ref().and_then(Problem::inode);
        self.edit.inode().or_else(of_problem).filter(|inode| inode.0 != 0)
    }

    /// The name of the directory entry that it is about, safe to print.
    pub fn entry_name(&self) -> Option<String> {
        let Edit::Entry { .. } = self.edit else { return None };
        let evidence = self.problem.as_ref()?.evidence();
        evidence.into_iter().find_map(|(field, value)| match value {
            Evidence::Text(text) if field == "name" => Some(text),
            _ => None,
        })
    }

    /// The directory that `..` of a directory without a name leads to.
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
    /// The inode that it changes, if it changes one.
    pub const fn inode(&self) -> Option<InodeNr> {
        match self {
            Self::Inode { inode, .. }
            | Self::Map { inode, .. }
            | Self::CloneShared { inode }
            | Self::RebuildExtents { inode }
            | Self::Attach { inode }
            | Self::Release { inode }
            | Self::LinkCount { inode, .. }
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
    /// Why a finding is left, for a person.
    pub fn describe(&self) -> String {
        match self {
            Self::Refused => "its repair was refused".to_owned(),
            Self::Impossible(why) => format!("it cannot be repaired: {why}"),
            Self::Failed(why) => format!("its repair failed: {why}"),
            Self::CameBack => {
                "its repair was made, and did not help: please report this".to_owned()
            }
        }
    }

    /// The name in reports for programs.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Impossible(_) => "impossible",
            Self::Failed(_) => "failed",
            Self::CameBack => "came-back",
        }
    }
}
