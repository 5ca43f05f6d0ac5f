//! Connects unattached inodes to lost+found.

use std::collections::{BTreeMap, HashSet};

use floe_format::InodeNr;
use floe_format::ext::inode::FileType;

use super::names::Names;
use super::{Made, connectivity, cube_top};
use crate::failure::Failure;
use crate::stage::Stage;

/// Connects inodes to lost+found under the name `#` and their number, and returns the results; those of a cube to the one in the
/// directory of their cube. Handles all inodes of a round at once, because there may be a million, and the directory grows
/// as large. `after` completes the work for an inode that now has a name; it is given the number of
/// lost+found.
pub(super) fn enter_all(
    stage: &mut Stage<'_>,
    inodes: &[InodeNr],
    after: impl Fn(&Stage<'_>, InodeNr, InodeNr) -> Result<(), Failure>,
) -> Vec<Made> {
    let mut by_home: BTreeMap<InodeNr, Vec<InodeNr>> = BTreeMap::new();
    for inode in inodes {
        by_home.entry(stage.home_of(*inode)).or_default().push(*inode);
    }
    let mut made: BTreeMap<InodeNr, Made> = BTreeMap::new();
    for (home, own) in by_home {
        let results = enter_some(stage, home, &own, &after);
        made.extend(own.into_iter().zip(results));
    }
    let mut take = |inode| made.remove(inode).unwrap_or((Ok(()), Vec::new()));
    inodes.iter().map(&mut take).collect()
}

/// The same for inodes with the same lost+found.
fn enter_some(
    stage: &mut Stage<'_>,
    home: InodeNr,
    inodes: &[InodeNr],
    after: &impl Fn(&Stage<'_>, InodeNr, InodeNr) -> Result<(), Failure>,
) -> Vec<Made> {
    let mut made = Vec::with_capacity(inodes.len());
    let mut lost_found = match LostFound::open(stage, home) {
        Ok(open) => open,
        Err(failure) => {
            made.resize_with(inodes.len(), || (Err(failure.again()), Vec::new()));
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
        made.iter_mut().for_each(|one| *one = (Err(failure.again()), Vec::new()));
    }
    made
}

struct LostFound {
    inode: InodeNr,
    /// The path of its directory; empty for the root.
    above: String,
    names: Names,
    taken: HashSet<Vec<u8>>,
}

/// The path of the directory of a cube, as its sub-superblock has it; empty for the root.
fn above(stage: &Stage<'_>, home: InodeNr) -> String {
    let cubes = stage.evidence.volume.cubes.as_ref();
    let known = cubes.and_then(|cubes| cubes.current(cubes.of_inode(&stage.geometry, home)));
    let sub = stage.cube().map(|cube| cube.sub.clone()).or(known);
    let path = sub.filter(|_| home != InodeNr::ROOT).map_or_else(Vec::new, |sub| sub.path);
    String::from_utf8_lossy(&path).into_owned()
}

impl LostFound {
    fn open(stage: &mut Stage<'_>, home: InodeNr) -> Result<Self, Failure> {
        let home = cube_top::standing(stage, home)?;
        let inode = match (stage.lost_found_of(home), home) {
            (Some(inode), _) => inode,
            (None, InodeNr::ROOT) => return Err(Failure::NotNow("there is no lost+found")),
            (None, top) => connectivity::create_lost_found(stage, top)?,
        };
        let above = above(stage, home);
        let names = Names::open(stage, inode)?;
        let taken = names.stored(stage).into_iter().collect();
        Ok(Self { inode, above, names, taken })
    }

    fn enter(&mut self, stage: &mut Stage<'_>, inode: InodeNr) -> Result<(), Failure> {
        let image = stage.read_inode(inode)?;
        let file_type =
            FileType::of_mode(image.base.mode).ok_or(Failure::NotNow("it has no type yet"))?;
        let name = self.free_name(inode)?;
        self.names.enter(stage, inode, name.as_bytes(), file_type)?;
        let above = &self.above;
        stage.note(format!("{inode} is {above}/lost+found/{name} now"));
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
