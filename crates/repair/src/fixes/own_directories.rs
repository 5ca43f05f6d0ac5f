//! The directories of a native file system, `/.cubes` and `/.cubes/c0` (`docs/native.md`).

use std::collections::BTreeSet;

use floe_check::Problem;
use floe_check::checks::group::reservations::{OwnFiles, is_own_directory, reservations_in};
use floe_ext4::journal::find_cubes;
use floe_format::ext::dirent::DirCursor;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::native::cube::{FENCE_NAME, SUPER_NAME, further_journal_name, journal_name};
use floe_format::native::identity::{HOME_NAME, Identity, ROOT_CUBE_NAME};
use floe_format::{InodeNr, LogicalBlock};

use super::{connectivity, names};
use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::stage::Stage;

/// Puts the directories in their places: those that lost their names, else new ones. Files of `/.cubes` get their names back;
/// a later round names the reservation files.
pub(super) fn make(stage: &mut Stage<'_>) -> Result<(), Failure> {
    let own = OwnFiles::of(&stage.evidence.volume);
    let own = own.ok_or(Failure::NotNow("the directories above cannot be read"))?;
    let identity = Identity::of(stage.superblock());
    let identity = identity.ok_or(Failure::NotNow("the file system has no identity yet"))?;
    if own.is_taken {
        return Err(Failure::NotNow(
            "the name /.cubes is that of a file or directory of somebody else: rename it first",
        ));
    }
    let home = match own.home {
        Some(home) => home,
        None => {
            let old = InodeNr(identity.home_inode);
            restore_type(stage, old)?;
            let kept =
                is_own(stage, old) && reservations_in(&stage.evidence.volume, old).is_empty();
            put(stage, InodeNr::ROOT, HOME_NAME, kept.then_some(old), old)?
        }
    };
    // One that lost its name alone may name all others.
    let in_home = OwnFiles::of(&stage.evidence.volume).filter(|own| own.home == Some(home));
    let own = in_home.ok_or(Failure::NotNow("the directory /.cubes cannot be read"))?;
    if own.cube.is_none() {
        let kept = cube_directory(stage);
        put(stage, home, ROOT_CUBE_NAME, kept, home)?;
    }
    name_files(stage, &own, home, &identity)?;
    Identity { home_inode: home.0, ..identity }.put(stage.superblock_mut());
    stage.write_backups();
    Ok(())
}

/// Whether an inode is a directory that Floe made for itself.
fn is_own(stage: &Stage<'_>, inode: InodeNr) -> bool {
    let volume = &stage.evidence.volume;
    !stage.geometry.is_reserved(inode)
        && volume.files().node(inode).is_ok_and(|node| is_own_directory(&node))
}

/// Makes an inode a directory again that Floe made immutable, and whose first block names it as one.
fn restore_type(stage: &Stage<'_>, inode: InodeNr) -> Result<(), Failure> {
    if !stage.evidence.volume.is_own_file(inode) {
        return Ok(());
    }
    let mut image = stage.read_inode(inode)?;
    let first = FileMap::load(stage, &image).find(LogicalBlock(0));
    let bytes = first.and_then(|block| stage.read_block(block).ok()).unwrap_or_default();
    let dot = DirCursor::new(&bytes).next().and_then(Result::ok);
    if dot.is_some_and(|dot| dot.name == b"." && dot.inode == inode) {
        image.base.mode = connectivity::MODE_LOST_FOUND;
        stage.write_inode(&image)?;
    }
    Ok(())
}

/// Lets a name in `parent` lead to a directory: `kept`, else a new one, near an inode.
fn put(
    stage: &mut Stage<'_>,
    parent: InodeNr,
    name: &[u8],
    kept: Option<InodeNr>,
    near: InodeNr,
) -> Result<InodeNr, Failure> {
    let inode = match kept {
        Some(inode) => inode,
        None => {
            let near = if stage.geometry.place_of(near).is_some() { near } else { parent };
            let inode = stage.allocate_inode(near)?;
            connectivity::create(stage, inode, parent, connectivity::MODE_LOST_FOUND)?;
            stage.edit_inode(inode, |image| {
                image.base.flags |= InodeFlags::IMMUTABLE.bits();
            })?;
            inode
        }
    };
    names::point_to(stage, parent, name, inode, FileType::Directory)?;
    connectivity::set_parent(stage, inode, parent)?;
    leave_lost_found(stage, inode)?;
    Ok(inode)
}

/// The directory of the root cube, if it lost its name: one of Floe's that names reservation files.
fn cube_directory(stage: &Stage<'_>) -> Option<InodeNr> {
    let volume = &stage.evidence.volume;
    let mut candidates: BTreeSet<InodeNr> = BTreeSet::new();
    for problem in &stage.evidence.report.found {
        if let Problem::DirectoryUnconnected { dir, .. } = problem {
            candidates.insert(*dir);
        }
    }
    if let Some(lost_found) = stage.lost_found() {
        let files = volume.files();
        let listing = files.node(lost_found).and_then(|node| files.list(&node));
        let entries = listing.map(|listing| listing.entries).unwrap_or_default();
        candidates.extend(entries.into_iter().map(|entry| entry.inode));
    }
    candidates.into_iter().find(|inode| !reservations_in(volume, *inode).is_empty())
}

/// Gives the files of `/.cubes` the names that are missing there.
fn name_files(
    stage: &mut Stage<'_>,
    own: &OwnFiles,
    home: InodeNr,
    identity: &Identity,
) -> Result<(), Failure> {
    let mut files = vec![
        (SUPER_NAME.to_vec(), InodeNr(identity.super_inode)),
        (FENCE_NAME.to_vec(), InodeNr(identity.fence_inode)),
    ];
    if let Some(cubes) = &stage.evidence.volume.cubes {
        let subs = cubes.numbers().into_iter().filter_map(|cube| cubes.current(cube));
        files.extend(subs.map(|sub| (journal_name(sub.cube), InodeNr(sub.journal.inode))));
    }
    for (name, inode) in further_journals(stage) {
        if !own.in_home.contains_key(&name) {
            names::point(stage, home, &name, inode)?;
            leave_lost_found(stage, inode)?;
        }
    }
    for (name, inode) in files {
        if !own.in_home.contains_key(&name) && stage.evidence.volume.is_own_file(inode) {
            names::point(stage, home, &name, inode)?;
            leave_lost_found(stage, inode)?;
        }
    }
    Ok(())
}

/// Further journals of the root cube, whose names count from 1 on.
fn further_journals(stage: &Stage<'_>) -> Vec<(Vec<u8>, InodeNr)> {
    let volume = &stage.evidence.volume;
    let found = find_cubes(stage.overlay, &volume.superblock, &volume.geometry, &volume.groups);
    let further = found.usable.into_iter().filter(|own| own.cube == 0);
    (1..).zip(further).map(|(number, own)| (further_journal_name(number), own.inode)).collect()
}

/// Removes the names that an earlier repair gave an inode in lost+found.
pub(super) fn leave_lost_found(stage: &Stage<'_>, inode: InodeNr) -> Result<(), Failure> {
    match stage.lost_found_of(stage.home_of(inode)) {
        Some(lost_found) => connectivity::unlink_inode(stage, lost_found, inode),
        None => Ok(()),
    }
}
