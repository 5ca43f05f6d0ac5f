//! The state of every rebuilt object, by its path.

use floe_ext4::files::{FileFault, Step};
use floe_format::InodeNr;
use floe_format::ext::inode::FileType;

use crate::{Provenance, Salvaged};

/// How much is known of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Inode and map are intact. (Data blocks carry no checksums in ext4, so their content is never
    /// proved.)
    Whole,
    /// Everything was rebuilt, but something about it is uncertain: an old copy of the inode, an
    /// unknown size, an unknown mode.
    Unsure,
    /// Parts of the content are lost, and read as zeroes.
    Partial,
    /// Only the name is left.
    NameOnly,
}

impl State {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Whole, Self::Unsure, Self::Partial, Self::NameOnly];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Unsure => "unsure",
            Self::Partial => "partial",
            Self::NameOnly => "name-only",
        }
    }
}

/// One object of the rebuilt tree.
#[derive(Debug)]
pub struct Object {
    /// Its path, without a leading `/`.
    pub path: Vec<u8>,
    /// Its inode; `None` if only the name is left.
    pub inode: Option<InodeNr>,
    /// Its type; `None` if unknown.
    pub file_type: Option<FileType>,
    /// How much is known of it.
    pub state: State,
    /// Where it came from, unless it is simply in its place.
    pub provenance: Option<Provenance>,
    /// What is lost of it. Unreadable data is found only by reading it.
    pub faults: Vec<FileFault>,
}

impl Salvaged<'_> {
    /// Calls `look` with every object below the root, parents first, names sorted. Reads metadata
    /// only.
    pub fn inventory(&self, mut look: impl FnMut(Object)) {
        let Ok(root) = self.files.node(InodeNr::ROOT) else { return };
        for step in self.files.walk(root) {
            match step {
                Step::Visit(visit) if !visit.path.is_empty() => {
                    let number = visit.node.number;
                    let file_type = visit.node.file_type();
                    let provenance = self.summary.provenance.get(&number).copied();
                    let faults = match file_type {
                        Some(FileType::Regular) => {
                            let content = self.files.content(&visit.node);
                            content.map(|(_, faults)| faults).unwrap_or_default()
                        }
                        _ => Vec::new(),
                    };
                    let state = state_of(provenance, &faults);
                    let (path, inode) = (visit.path, Some(number));
                    look(Object { path, inode, file_type, state, provenance, faults });
                }
                Step::Lost { path, .. } => look(Object {
                    path,
                    inode: None,
                    file_type: None,
                    state: State::NameOnly,
                    provenance: None,
                    faults: Vec::new(),
                }),
                _ => {}
            }
        }
    }
}

fn state_of(provenance: Option<Provenance>, faults: &[FileFault]) -> State {
    let is_partial = matches!(
        provenance,
        Some(Provenance::Map { is_partial: true } | Provenance::Extents { is_partial: true, .. })
    );
    if is_partial || !faults.is_empty() {
        return State::Partial;
    }
    match provenance {
        None | Some(Provenance::Extended | Provenance::Map { .. }) => State::Whole,
        Some(Provenance::Copy | Provenance::Extents { .. } | Provenance::Directory) => {
            State::Unsure
        }
    }
}
