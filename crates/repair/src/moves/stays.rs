//! Why files stay where another system has put them.

use floe_check::Problem;

/// A finding of a file that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The finding.
    pub problem: Problem,
    /// Why, and what ends it.
    pub why: Stays,
    /// A move was tried.
    pub is_tried: bool,
}

/// Why a file stays where another system has put it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stays {
    /// The policy refused, and mounts do the same.
    NextMount,
    /// The policy refused, and no mount does it.
    Refused,
    /// Its names lie in several cubes.
    SeveralCubes,
    /// There are no free blocks or inodes for it.
    NoRoom,
    /// Anything else.
    Because(String),
}

impl Stays {
    /// As a sentence.
    pub fn describe(&self) -> &str {
        match self {
            Self::NextMount => "the next mount moves what the cube has room for",
            Self::Refused => {
                "no mount moves what needs another inode number; a repair (--yes) does where all names of a file lie in one cube"
            }
            Self::SeveralCubes => {
                "names in several cubes keep a file from being moved, by mounts and by repairs; replace the names in all cubes \
                 but one by copies (cp -p, then mv) on a mount, then run floe repair"
            }
            Self::NoRoom => {
                "the cube has no room, so that neither mounts nor repairs can move more; delete files, so that it has free \
                 blocks or gets another lot, then run floe repair"
            }
            Self::Because(why) => why,
        }
    }
}
