//! Directory blocks and their entries.

use floe_format::ext::dirent::{DirCursor, DirTail};
use floe_format::ext::htree::DxBlock;
use floe_format::ext::inode::InodeFlags;
use floe_format::{InodeNr, LogicalBlock};

use crate::edit::{DirectoryEdit, Edit, EntryEdit};
use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::fixes::{Made, inline_data};
use crate::stage::{InodeImage, Stage};
use floe_ext4::dir::{self as directory, AreaForm, DirFormat, Directory, inline};

const IMPOSSIBLE: Failure = Failure::NotNow("the entry has changed since it was examined");

/// A directory that is being edited.
pub(super) struct OpenDir {
    pub(super) image: InodeImage,
    pub(super) map: FileMap,
    pub(super) dir: Directory,
    pub(super) format: DirFormat,
}

impl OpenDir {
    /// Opens a directory. Its parent counts as the root until the tree is examined.
    pub(super) fn new(stage: &Stage<'_>, inode: InodeNr) -> Result<Self, Failure> {
        let image = stage.read_inode(inode)?;
        let mut map = FileMap::load(stage, &image);
        map.sort();
        let flags = image.flags();
        let dir = Directory {
            inode,
            parent: InodeNr::ROOT,
            generation: image.base.generation,
            encrypted: flags.contains(InodeFlags::ENCRYPT),
            casefolded: flags.contains(InodeFlags::CASEFOLD),
        };
        let format = DirFormat::of(stage.superblock(), &stage.geometry);
        Ok(Self { image, map, dir, format })
    }

    pub(super) fn is_inline(&self) -> bool {
        self.image.flags().contains(InodeFlags::INLINE_DATA)
    }

    pub(super) fn is_indexed(&self) -> bool {
        self.image.flags().contains(InodeFlags::INDEX)
    }

    /// A block of the directory, as stored.
    pub(super) fn read(
        &self,
        stage: &Stage<'_>,
        logical: LogicalBlock,
    ) -> Result<Vec<u8>, Failure> {
        let block =
            self.map.find_in_order(logical).ok_or(Failure::NotNow("the block is not mapped"))?;
        stage.read_block(block)
    }

    /// Stages a block of the directory with its checksum.
    pub(super) fn write(
        &self,
        stage: &Stage<'_>,
        logical: LogicalBlock,
        mut bytes: Vec<u8>,
    ) -> Result<(), Failure> {
        let block =
            self.map.find_in_order(logical).ok_or(Failure::NotNow("the block is not mapped"))?;
        // A block without room for a checksum is left to the next examination.
        directory::seal(&mut bytes, self.dir.inode_seed(&self.format));
        stage.write_block(block, &bytes)
    }

    /// Edits the entries of a block, or of one part of an inline directory.
    pub(super) fn edit(
        &mut self,
        stage: &Stage<'_>,
        logical: LogicalBlock,
        edit: impl FnOnce(&mut [u8], AreaForm) -> Option<()>,
    ) -> Result<(), Failure> {
        if self.is_inline() {
            let form = self.dir.inline_form(&self.format);
            if logical.0 == 0 {
                edit(inline::first_part(&mut self.image.base.block), form).ok_or(IMPOSSIBLE)?;
            } else {
                let mut value = inline_data::value(&self.image).ok_or(IMPOSSIBLE)?;
                edit(inline::second_part(&mut value), form).ok_or(IMPOSSIBLE)?;
                inline_data::set_value(&mut self.image, Some(&value))?;
            }
            return stage.write_inode(&self.image);
        }
        let mut bytes = self.read(stage, logical)?;
        let mut form = self.dir.form(&self.format);
        // Without a checksum tail, entries extend to the end of the block; a later rebuild makes
        // room for a tail.
        form.tail &= DirTail::of(&bytes).is_some();
        edit(&mut bytes, form).ok_or(IMPOSSIBLE)?;
        self.write(stage, logical, bytes)
    }

    /// The inode that `..` names; the root if there is no `..`.
    pub(super) fn parent(&self, stage: &Stage<'_>) -> InodeNr {
        if self.is_inline() {
            return inline::parent(&self.image.base.block);
        }
        let Ok(bytes) = self.read(stage, LogicalBlock(0)) else { return InodeNr::ROOT };
        DirCursor::new(&bytes)
            .map_while(Result::ok)
            .take(2)
            .find(|entry| entry.name == b"..")
            .map_or(InodeNr::ROOT, |entry| entry.inode)
    }
}

/// Makes all edits of one directory: of its blocks and of its entries.
pub(super) fn apply_all(stage: &mut Stage<'_>, dir: InodeNr, edits: &[Edit]) -> Vec<Made> {
    let mut filled = holes(edits);
    let mut open = None;
    let mut made = Vec::with_capacity(edits.len());
    for edit in edits {
        let opened = open.take().map_or_else(|| OpenDir::new(stage, dir), Ok);
        let result = opened.and_then(|mut opened| {
            if !filled.is_empty() {
                fill(stage, &mut opened, &std::mem::take(&mut filled))?;
            }
            apply(stage, &mut opened, edit)?;
            // After a failure the directory is opened again, because the cached state may differ
            // from the staged one.
            open = Some(opened);
            Ok(())
        });
        made.push((result, stage.take_notes()));
    }
    made
}

/// Logical blocks that are to be allocated.
fn holes(edits: &[Edit]) -> Vec<LogicalBlock> {
    let hole = |edit: &Edit| match *edit {
        Edit::Directory { logical, edit: DirectoryEdit::Fill, .. } => Some(logical),
        _ => None,
    };
    edits.iter().filter_map(hole).collect()
}

/// Makes one edit of a directory.
fn apply(stage: &mut Stage<'_>, open: &mut OpenDir, edit: &Edit) -> Result<(), Failure> {
    match *edit {
        Edit::Directory { logical, edit, .. } => apply_to_block(stage, open, logical, edit),
        Edit::Entry { logical, offset_bytes, edit, .. } => {
            open.edit(stage, logical, |area, _| match edit {
                EntryEdit::Clear => directory::clear(area, offset_bytes),
                EntryEdit::Type(file_type) => directory::set_type(area, offset_bytes, file_type),
                EntryEdit::LegalCharacters => directory::replace_illegal_bytes(area, offset_bytes),
                EntryEdit::ValidText => directory::replace_invalid_text(area, offset_bytes),
            })
        }
        _ => Ok(()),
    }
}

fn apply_to_block(
    stage: &Stage<'_>,
    open: &mut OpenDir,
    logical: LogicalBlock,
    edit: DirectoryEdit,
) -> Result<(), Failure> {
    let inode = open.dir.inode;
    match edit {
        DirectoryEdit::Salvage => salvage(stage, open, logical),
        DirectoryEdit::Fill => match open.map.find_in_order(logical) {
            // An extent that leads nowhere takes the place, and is to stay.
            Some(block) if !stage.geometry.contains(block) => Err(Failure::Misplaced(block)),
            Some(_) => Ok(()),
            None => Err(Failure::NoSpace("block")),
        },
        DirectoryEdit::Empty => {
            let bytes = fresh(open, logical);
            open.write(stage, logical, bytes)
        }
        DirectoryEdit::Checksum => open.edit(stage, logical, |_, _| Some(())),
        DirectoryEdit::MakeDot => {
            open.edit(stage, logical, |area, form| directory::write_dot(area, form, inode))
        }
        DirectoryEdit::MakeDotdot if open.is_inline() => {
            inline::set_parent(&mut open.image.base.block, InodeNr::ROOT).ok_or(IMPOSSIBLE)?;
            stage.write_inode(&open.image)
        }
        DirectoryEdit::MakeDotdot => open
            .edit(stage, logical, |area, form| directory::write_dotdot(area, form, InodeNr::ROOT)),
        DirectoryEdit::TrimDot => open.edit(stage, logical, directory::split_dot),
    }
}

/// Salvages broken records. A block without any entry is rewritten as an empty one, because one
/// empty record without a tail would look like an index node.
fn salvage(stage: &Stage<'_>, open: &mut OpenDir, logical: LogicalBlock) -> Result<(), Failure> {
    let inodes = stage.geometry.inodes_count;
    let inode = open.dir.inode;
    if leave_index(stage, open, logical)? {
        return Ok(());
    }
    if logical.0 == 0 && !open.is_inline() {
        return open.edit(stage, logical, |area, form| {
            directory::mend_first_block(area, form, inode, InodeNr::ROOT, inodes)
        });
    }
    let empty = (!open.is_inline()).then(|| directory::empty_block(&open.format, &open.dir));
    open.edit(stage, logical, |area, form| {
        directory::salvage(area, form, inodes);
        let nothing = !DirCursor::new(area).map_while(Result::ok).any(|entry| entry.in_use());
        if let Some(empty) = empty.filter(|empty| nothing && empty.len() == area.len()) {
            area.copy_from_slice(&empty);
        }
        Some(())
    })
}

/// Turns a block with the form of an index node into a linear block, for a directory that has no
/// index any more: its records overlap the place of the checksum tail. Returns whether it was one.
fn leave_index(stage: &Stage<'_>, open: &OpenDir, logical: LogicalBlock) -> Result<bool, Failure> {
    let Some(seed) = open.dir.inode_seed(&open.format) else { return Ok(false) };
    if open.is_inline() || open.is_indexed() {
        return Ok(false);
    }
    let mut bytes = open.read(stage, logical)?;
    if DxBlock::detect(&bytes).is_none() {
        return Ok(false);
    }
    let form = open.dir.form(&open.format);
    let (inode, inodes) = (open.dir.inode, stage.geometry.inodes_count);
    if logical.0 == 0 {
        directory::mend_first_block(&mut bytes, form, inode, InodeNr::ROOT, inodes)
            .ok_or(IMPOSSIBLE)?;
    } else {
        bytes = directory::empty_block(&open.format, &open.dir);
    }
    DirTail::write(seed, &mut bytes);
    open.write(stage, logical, bytes)?;
    Ok(true)
}

/// An empty block; the first block has `.` and `..`.
fn fresh(open: &OpenDir, logical: LogicalBlock) -> Vec<u8> {
    if logical.0 == 0 {
        directory::first_block(&open.format, &open.dir)
    } else {
        directory::empty_block(&open.format, &open.dir)
    }
}

/// Allocates empty blocks for the holes of a directory, as far as there is free space.
fn fill(stage: &mut Stage<'_>, open: &mut OpenDir, holes: &[LogicalBlock]) -> Result<(), Failure> {
    let mut filled = Vec::with_capacity(holes.len());
    for &logical in holes {
        if open.map.find_in_order(logical).is_some() {
            continue;
        }
        let Ok(block) = open.map.block_for(stage, logical) else { break };
        open.map.insert(logical, block);
        filled.push(logical);
    }
    let Some(&last) = filled.last() else { return Ok(()) };
    open.map.store(stage, &mut open.image)?;
    let end = (last.0 + 1) * u64::from(stage.geometry.block_size);
    if open.image.size_bytes() < end {
        open.image.set_size_bytes(end);
    }
    stage.write_inode(&open.image)?;
    for logical in filled {
        let bytes = fresh(open, logical);
        open.write(stage, logical, bytes)?;
    }
    Ok(())
}
