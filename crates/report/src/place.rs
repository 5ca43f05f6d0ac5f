//! The places by which reports group findings.

use floe_check::Report;
use floe_check::problem::{Object, Problem};
use floe_format::{GroupNr, InodeNr};

/// The place of a finding, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The file system as a whole.
    Filesystem(Object),
    /// A group.
    Group(GroupNr),
    /// An inode.
    Inode(InodeNr),
}

impl Place {
    /// The prefix of messages about the place, which its title already contains.
    fn prefix(self) -> Option<String> {
        match self {
            Self::Filesystem(_) => None,
            Self::Group(group) => Some(format!("{group}: ")),
            Self::Inode(inode) => Some(format!("{inode}: ")),
        }
    }

    /// The message of a finding, without the prefix that the title of its place contains.
    pub fn message(self, problem: &Problem) -> String {
        let message = problem.to_string();
        let short = self.prefix().and_then(|prefix| message.strip_prefix(&prefix));
        short.map_or_else(|| message.clone(), str::to_owned)
    }

    /// The same, with the paths of other inodes added.
    pub(crate) fn message_of(self, report: &Report, problem: &Problem) -> String {
        let mut message = self.message(problem);
        for other in problem.others() {
            if let Some(path) = report.path(other) {
                message.push_str(&format!(" [{other} is {path}]"));
            }
        }
        message
    }

    /// The place that a finding is about.
    pub fn of(problem: &Problem) -> Self {
        let row = problem.row();
        match (row.object, problem.inode(), problem.group()) {
            (Object::Group | Object::Bitmap, _, Some(group)) => Self::Group(group),
            // Inode 0 means "no inode".
            (_, Some(inode), _) if inode.0 != 0 => Self::Inode(inode),
            (_, _, Some(group)) => Self::Group(group),
            (object, ..) => Self::Filesystem(object),
        }
    }

    /// The title of the place. `path` returns the paths of inodes, escaped for printing.
    pub fn title(self, path: &dyn Fn(InodeNr) -> Option<String>) -> String {
        match self {
            Self::Filesystem(object) => match object {
                Object::Device => "Device".to_owned(),
                Object::Journal => "Journal".to_owned(),
                Object::Quota => "Quotas".to_owned(),
                Object::Orphan => "Orphans".to_owned(),
                Object::Mmp => "Multiple-mount protection".to_owned(),
                Object::Xattr => "Extended attributes".to_owned(),
                Object::Superblock | Object::Group | Object::Bitmap => "Superblock".to_owned(),
                _ => "File system".to_owned(),
            },
            Self::Group(group) => format!("Group {}", group.0),
            Self::Inode(inode) => match (path(inode), reserved_name(inode)) {
                (Some(path), _) => format!("Inode {}: {path}", inode.0),
                (None, Some(name)) => format!("Inode {} ({name})", inode.0),
                (None, None) => format!("Inode {}", inode.0),
            },
        }
    }
}

fn reserved_name(inode: InodeNr) -> Option<&'static str> {
    Some(match inode {
        InodeNr::BAD_BLOCKS => "the bad block list",
        InodeNr::ROOT => "the root directory",
        InodeNr::USER_QUOTA => "the user quota file",
        InodeNr::GROUP_QUOTA => "the group quota file",
        InodeNr::RESIZE => "the resize inode",
        InodeNr::JOURNAL => "the journal",
        _ => return None,
    })
}
