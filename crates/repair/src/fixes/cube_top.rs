//! The directory of a cube, made anew where it is lost and files of the cube need one.

use floe_ext4::files::Follow;
use floe_format::InodeNr;
use floe_format::ext::inode::FileType;

use super::{connectivity, names};
use crate::failure::Failure;
use crate::stage::Stage;

/// Permissions of a directory whose own ones are lost: those of a new cube.
const MODE: u16 = 0o040_755;

/// The directory that serves as that of the cube with the directory `top`: itself. If its inode is not in use any more, it is made
/// anew under its old name, where that is free; else without a name, which the next round gives it. The root, if the inode is
/// something else now.
pub(super) fn standing(stage: &mut Stage<'_>, top: InodeNr) -> Result<InodeNr, Failure> {
    if top == InodeNr::ROOT || stage.cube().is_some() {
        return Ok(top);
    }
    let image = stage.read_inode(top)?;
    if image.base.links_count > 0 {
        let is_directory = FileType::of_mode(image.base.mode) == Some(FileType::Directory);
        return Ok(if is_directory { top } else { InodeNr::ROOT });
    }
    stage.claim_inode(top)?;
    let place = old_place(stage, top);
    let parent = place.as_ref().map_or(InodeNr::ROOT, |(parent, _)| *parent);
    connectivity::create(stage, top, parent, MODE)?;
    stage.note(format!("the directory of the cube was made anew ({top})"));
    if let Some((parent, name)) = place {
        names::link(stage, parent, top, &name, FileType::Directory)?;
        stage.edit_inode(parent, |image| {
            image.base.links_count = image.base.links_count.saturating_add(1);
        })?;
    }
    Ok(top)
}

/// The directory and the name of the directory of a cube, as its sub-superblock has them; `None` if that directory is not there, or
/// has the name.
fn old_place(stage: &Stage<'_>, top: InodeNr) -> Option<(InodeNr, Vec<u8>)> {
    let volume = &stage.evidence.volume;
    let cubes = volume.cubes.as_ref()?;
    let path = cubes.current(cubes.of_inode(&stage.geometry, top))?.path;
    let slash = path.iter().rposition(|byte| *byte == b'/')?;
    let (above, name) = (path.get(..slash)?, path.get(slash + 1..)?);
    let files = stage.files();
    let above = if above.is_empty() { b"/" } else { above };
    let parent = files.lookup(above, Follow::NotLast).ok()?;
    let names = files.list(&parent).ok()?.entries;
    let is_free = !name.is_empty() && names.iter().all(|entry| entry.name != name);
    is_free.then(|| (parent.number, name.to_vec()))
}
