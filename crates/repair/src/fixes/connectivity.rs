//! The directory tree: the root, lost+found, and unconnected directories.

use floe_format::ext::dirent::DirCursor;
use floe_format::ext::inode::FileType;
use floe_format::{InodeNr, LogicalBlock};

use super::dirents::OpenDir;
use super::names::link;
use super::{Made, inline_data, lost_found};
use crate::edit::TreeEdit;
use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::stage::Stage;
use floe_ext4::dir::{self as directory, DirFormat, Directory, inline};

const NAME: &[u8] = b"lost+found";
/// A directory that everybody may read, and one for the administrator alone.
const MODE_ROOT: u16 = 0o040_755;
pub(super) const MODE_LOST_FOUND: u16 = 0o040_700;

pub(super) fn apply(stage: &mut Stage<'_>, edit: TreeEdit) -> Result<(), Failure> {
    match edit {
        TreeEdit::CreateRoot => create(stage, InodeNr::ROOT, InodeNr::ROOT, MODE_ROOT),
        TreeEdit::CreateLostFound => create_lost_found(stage, InodeNr::ROOT).map(drop),
        TreeEdit::UnlinkLostFound => unlink_name(stage, InodeNr::ROOT, NAME),
        TreeEdit::Unlink { dir, child } => unlink_inode(stage, dir, child),
        // `reconnect` handles all of these edits together.
        TreeEdit::Reconnect(_) => Ok(()),
        TreeEdit::Parent { dir, parent } => set_parent(stage, dir, parent),
    }
}

/// Creates a directory of one block in an inode.
pub(super) fn create(
    stage: &mut Stage<'_>,
    inode: InodeNr,
    parent: InodeNr,
    mode: u16,
) -> Result<(), Failure> {
    let geometry = stage.geometry.clone();
    let mut image = stage.new_inode(inode, mode)?;
    image.base.links_count = 2;
    image.extra.crtime = stage.now32();
    let (group, _) = geometry.place_of(inode).ok_or(Failure::NoSpace("inode"))?;
    let block = stage.allocate_metadata(inode, geometry.group_start(group))?;
    let mut map = FileMap::empty(stage);
    map.insert(LogicalBlock(0), block);
    map.store(stage, &mut image)?;
    image.set_size_bytes(u64::from(geometry.block_size));
    super::inodes::set_blocks(stage, &mut image, map.blocks());
    stage.write_inode(&image)?;
    let format = DirFormat::of(stage.superblock(), &geometry);
    let dir = Directory {
        inode,
        parent,
        generation: image.base.generation,
        encrypted: false,
        casefolded: false,
    };
    stage.write_block(block, &directory::first_block(&format, &dir))
}

/// Creates a lost+found in a directory: the root, or that of a cube.
pub(super) fn create_lost_found(
    stage: &mut Stage<'_>,
    parent: InodeNr,
) -> Result<InodeNr, Failure> {
    let inode = stage.allocate_inode(parent)?;
    create(stage, inode, parent, MODE_LOST_FOUND)?;
    link(stage, parent, inode, NAME, FileType::Directory)?;
    stage.edit_inode(parent, |root| {
        root.base.links_count = root.base.links_count.saturating_add(1);
    })?;
    stage.set_lost_found(parent, inode);
    stage.note(format!("lost+found was created ({inode})"));
    Ok(inode)
}

/// Connects unconnected directories to lost+found.
pub(super) fn reconnect(stage: &mut Stage<'_>, dirs: &[InodeNr]) -> Vec<Made> {
    lost_found::enter_all(stage, dirs, set_parent)
}

/// Makes `..` of a directory name `parent`.
pub(super) fn set_parent(stage: &Stage<'_>, dir: InodeNr, parent: InodeNr) -> Result<(), Failure> {
    let mut open = OpenDir::new(stage, dir)?;
    if open.is_inline() {
        inline::set_parent(&mut open.image.base.block, parent);
        return stage.write_inode(&open.image);
    }
    open.edit(stage, LogicalBlock(0), |area, _| directory::set_parent(area, parent).map(|_| ()))
}

/// Clears the entries of a directory for which `matches` returns true.
fn clear_entries(
    stage: &Stage<'_>,
    dir: InodeNr,
    matches: impl Fn(InodeNr, &[u8]) -> bool,
) -> Result<(), Failure> {
    let mut open = OpenDir::new(stage, dir)?;
    let parts = if open.is_inline() { 2 } else { open.map.end() };
    for logical in (0..parts).map(LogicalBlock) {
        if logical.0 == 1 && open.is_inline() && inline_data::value(&open.image).is_none() {
            break;
        }
        if !open.is_inline() && open.map.find(logical).is_none() {
            continue;
        }
        let skip = usize::from(logical.0 == 0 && !open.is_inline()) * 2;
        open.edit(stage, logical, |area, _| {
            let offsets: Vec<u32> = DirCursor::new(area)
                .map_while(Result::ok)
                .skip(skip)
                .filter(|entry| entry.in_use() && matches(entry.inode, entry.name))
                .map(|entry| entry.offset)
                .collect();
            offsets.into_iter().try_for_each(|offset| directory::clear(area, offset))
        })?;
    }
    Ok(())
}

fn unlink_name(stage: &Stage<'_>, dir: InodeNr, name: &[u8]) -> Result<(), Failure> {
    clear_entries(stage, dir, |_, other| other == name)
}

pub(super) fn unlink_inode(stage: &Stage<'_>, dir: InodeNr, child: InodeNr) -> Result<(), Failure> {
    clear_entries(stage, dir, |inode, _| inode == child)
}
