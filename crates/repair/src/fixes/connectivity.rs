//! The tree of directories: the root, lost+found, and what has no place.

use floe_format::ext::dirent::DirCursor;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::{InodeNr, LogicalBlock};

use super::dirents::OpenDir;
use super::{htree, inline_data};
use crate::build::directory::{self, DirFormat, Directory, Entry, inline};
use crate::edit::TreeEdit;
use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::stage::{InodeImage, Stage};

const NAME: &[u8] = b"lost+found";
/// A directory that everybody may read, and one for the administrator alone.
const MODE_ROOT: u16 = 0o040_755;
const MODE_LOST_FOUND: u16 = 0o040_700;

pub(super) fn apply(stage: &mut Stage<'_>, edit: TreeEdit) -> Result<(), Failure> {
    match edit {
        TreeEdit::CreateRoot => create(stage, InodeNr::ROOT, InodeNr::ROOT, MODE_ROOT),
        TreeEdit::CreateLostFound => create_lost_found(stage),
        TreeEdit::UnlinkLostFound => unlink_name(stage, InodeNr::ROOT, NAME),
        TreeEdit::Unlink { dir, child } => unlink_inode(stage, dir, child),
        TreeEdit::Reconnect(dir) => {
            let lost_found = attach_to_lost_found(stage, dir)?;
            set_parent(stage, dir, lost_found)
        }
        TreeEdit::Parent { dir, parent } => set_parent(stage, dir, parent),
    }
}

/// A new directory in an inode, with one block.
fn create(
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
    let block = stage.allocate(geometry.group_start(group))?;
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

fn create_lost_found(stage: &mut Stage<'_>) -> Result<(), Failure> {
    let inode = stage.allocate_inode(InodeNr::ROOT)?;
    create(stage, inode, InodeNr::ROOT, MODE_LOST_FOUND)?;
    link(stage, InodeNr::ROOT, inode, NAME, FileType::Directory)?;
    stage.edit_inode(InodeNr::ROOT, |root| {
        root.base.links_count = root.base.links_count.saturating_add(1);
    })?;
    stage.set_lost_found(inode);
    stage.note(format!("lost+found was made ({inode})"));
    Ok(())
}

/// Enters an inode without a name in lost+found, as `#` and its number. Says where that is.
pub(super) fn attach(stage: &mut Stage<'_>, inode: InodeNr) -> Result<(), Failure> {
    attach_to_lost_found(stage, inode).map(|_| ())
}

fn attach_to_lost_found(stage: &mut Stage<'_>, inode: InodeNr) -> Result<InodeNr, Failure> {
    let lost_found = stage.lost_found().ok_or(Failure::NotNow("there is no lost+found"))?;
    let image = stage.read_inode(inode)?;
    let file_type =
        FileType::of_mode(image.base.mode).ok_or(Failure::NotNow("it has no type yet"))?;
    let name = free_name(stage, lost_found, inode)?;
    link(stage, lost_found, inode, name.as_bytes(), file_type)?;
    stage.note(format!("{inode} is /lost+found/{name} now"));
    Ok(lost_found)
}

/// `#` and the number; with a tail where that name is taken.
fn free_name(stage: &Stage<'_>, dir: InodeNr, inode: InodeNr) -> Result<String, Failure> {
    let open = OpenDir::new(stage, dir)?;
    let plain = format!("#{inode_number}", inode_number = inode.0);
    let mut name = plain.clone();
    for tail in 0..u32::MAX {
        let mut taken = false;
        for logical in 0..open.map.end() {
            let Ok(bytes) = open.read(stage, LogicalBlock(logical)) else { continue };
            taken |= DirCursor::new(&bytes)
                .map_while(Result::ok)
                .any(|entry| entry.in_use() && entry.name == name.as_bytes());
        }
        if !taken {
            return Ok(name);
        }
        name = format!("{plain}~{tail}");
    }
    Err(Failure::NoSpace("name"))
}

/// Enters a name in a directory, which grows if it has no room.
fn link(
    stage: &mut Stage<'_>,
    dir: InodeNr,
    inode: InodeNr,
    name: &[u8],
    file_type: FileType,
) -> Result<(), Failure> {
    let mut open = OpenDir::new(stage, dir)?;
    let file_type = if open.format.filetype { file_type as u8 } else { 0 };
    let entry = Entry::new(inode, name, file_type);
    if open.is_inline() {
        if insert_inline(stage, &mut open, &entry)? {
            return Ok(());
        }
        to_blocks(stage, &mut open)?;
        open = OpenDir::new(stage, dir)?;
    }
    let form = open.dir.form(&open.format);
    // Blocks of an index hold one empty record, which is no room for names.
    let first = u64::from(open.is_indexed());
    for logical in (first..open.map.end()).map(LogicalBlock) {
        let Ok(mut bytes) = open.read(stage, logical) else { continue };
        if open.is_indexed() && is_index_node(&bytes) {
            continue;
        }
        if directory::insert(&mut bytes, form, &entry).is_some() {
            open.write(stage, logical, bytes)?;
            return reindex(stage, &open, dir);
        }
    }
    let logical = LogicalBlock(open.map.end());
    let block = open.map.block_for(stage, logical)?;
    open.map.insert(logical, block);
    open.map.store(stage, &mut open.image)?;
    open.image.set_size_bytes((logical.0 + 1) * u64::from(stage.geometry.block_size));
    let total = open.map.blocks();
    super::inodes::set_blocks(stage, &mut open.image, total);
    stage.write_inode(&open.image)?;
    let mut bytes = directory::empty_block(&open.format, &open.dir);
    directory::insert(&mut bytes, form, &entry).ok_or(Failure::NoSpace("room for a name"))?;
    open.write(stage, logical, bytes)?;
    reindex(stage, &open, dir)
}

/// Whether a block looks like one of an index: a single unused record from end to end.
fn is_index_node(bytes: &[u8]) -> bool {
    let mut entries = DirCursor::new(bytes);
    matches!(entries.next(), Some(Ok(first)) if !first.in_use() && first.rec_len as usize == bytes.len())
}

/// A name that was entered anywhere is not where an index looks for it.
fn reindex(stage: &mut Stage<'_>, open: &OpenDir, dir: InodeNr) -> Result<(), Failure> {
    if open.is_indexed() { htree::rebuild(stage, dir) } else { Ok(()) }
}

fn insert_inline(
    stage: &Stage<'_>,
    open: &mut OpenDir,
    entry: &Entry<'_>,
) -> Result<bool, Failure> {
    let form = open.dir.inline_form(&open.format);
    let mut value = inline_data::value(&open.image).unwrap_or_default();
    if inline::insert(&mut open.image.base.block, &mut value, form, entry).is_none() {
        return Ok(false);
    }
    inline_data::set_value(&mut open.image, Some(&value))?;
    stage.write_inode(&open.image)?;
    Ok(true)
}

/// An inline directory gets blocks of its own.
fn to_blocks(stage: &mut Stage<'_>, open: &mut OpenDir) -> Result<(), Failure> {
    open.dir.parent = open.parent(stage);
    let value = inline_data::value(&open.image).unwrap_or_default();
    let rebuilt = inline::to_blocks(&open.image.base.block, &value, &open.format, &open.dir);
    inline_data::remove(&mut open.image)?;
    open.map = FileMap::empty(stage);
    htree::write(stage, open, &rebuilt)
}

/// Makes `..` of a directory name its parent.
fn set_parent(stage: &mut Stage<'_>, dir: InodeNr, parent: InodeNr) -> Result<(), Failure> {
    let mut open = OpenDir::new(stage, dir)?;
    if open.is_inline() {
        inline::set_parent(&mut open.image.base.block, parent);
        return stage.write_inode(&open.image);
    }
    open.edit(stage, LogicalBlock(0), |area, _| directory::set_parent(area, parent).map(|_| ()))
}

/// Clears the entries of a directory that `matches` names.
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

fn unlink_inode(stage: &Stage<'_>, dir: InodeNr, child: InodeNr) -> Result<(), Failure> {
    clear_entries(stage, dir, |inode, _| inode == child)
}

/// Whether an inode can serve as lost+found.
pub(crate) fn serves_as_lost_found(image: &InodeImage) -> bool {
    let unfit = InodeFlags::ENCRYPT | InodeFlags::INLINE_DATA;
    FileType::of_mode(image.base.mode) == Some(FileType::Directory)
        && !image.flags().intersects(unfit)
}
