//! Connects unattached inodes to lost+found.

use std::borrow::Cow;
use std::collections::HashSet;

use floe_format::InodeNr;
use floe_format::ext::inode::FileType;

use super::names::Names;
use super::{Made, connectivity};
use crate::failure::Failure;
use crate::stage::Stage;

/// Connects inodes to lost+found under the name `#` and their number, and returns the results.
/// Handles all inodes of a round at once, because there may be a million, and the directory grows
/// as large. `after` completes the work for an inode that now has a name; it is given the number of
/// lost+found.
pub(super) fn enter_all(
    stage: &mut Stage<'_>,
    inodes: &[InodeNr],
    after: impl Fn(&Stage<'_>, InodeNr, InodeNr) -> Result<(), Failure>,
) -> Vec<Made> {
    let mut made = Vec::with_capacity(inodes.len());
    let mut lost_found = match LostFound::open(stage) {
        Ok(open) => open,
        Err(failure) => {
            let text = failure.to_string();
            made.resize_with(inodes.len(), || (Err(Failure::Together(text.clone())), Vec::new()));
            return made;
        }
    };
    for &inode in inodes {
        let entered =
            lost_found.enter(stage, inode).and_then(|()| after(stage, inode, lost_found.inode));
        made.push((entered, stage.take_notes()));
    }
    if let Err(failure) = lost_found.names.close(stage) {
        // Without the directory none of them can be linked.
        let text = failure.to_string();
        made.iter_mut().for_each(|one| *one = (Err(Failure::Together(text.clone())), Vec::new()));
    }
    made
}

struct LostFound {
    inode: InodeNr,
    names: Names,
    taken: HashSet<Vec<u8>>,
}

impl LostFound {
    fn open(stage: &mut Stage<'_>) -> Result<Self, Failure> {
        let inode = match (stage.lost_found(), stage.cube()) {
            (Some(inode), _) => inode,
            (None, Some(cube)) => connectivity::create_lost_found(stage, cube.top())?,
            (None, None) => return Err(Failure::NotNow("there is no lost+found")),
        };
        let names = Names::open(stage, inode)?;
        let taken = names.stored(stage).into_iter().collect();
        Ok(Self { inode, names, taken })
    }

    fn enter(&mut self, stage: &mut Stage<'_>, inode: InodeNr) -> Result<(), Failure> {
        let image = stage.read_inode(inode)?;
        let file_type =
            FileType::of_mode(image.base.mode).ok_or(Failure::NotNow("it has no type yet"))?;
        let name = self.free_name(inode)?;
        self.names.enter(stage, inode, name.as_bytes(), file_type)?;
        let top = stage.cube().map_or(Cow::Borrowed(""), |cube| {
            String::from_utf8_lossy(&cube.sub.path).into_owned().into()
        });
        stage.note(format!("{inode} is {top}/lost+found/{name} now"));
        self.taken.insert(name.into_bytes());
        Ok(())
    }

    /// `#` and the number, with a suffix if that name exists.
    fn free_name(&self, inode: InodeNr) -> Result<String, Failure> {
        let plain = format!("#{inode_number}", inode_number = inode.0);
        let with_tail = (0..u32::MAX).map(|tail| format!("{plain}~{tail}"));
        std::iter::once(plain.clone())
            .chain(with_tail)
            .find(|name| !self.taken.contains(name.as_bytes()))
            .ok_or(Failure::NoSpace("name"))
    }
}
