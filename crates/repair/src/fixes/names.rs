//! Adds names to directories.

use floe_format::ext::dirent::DirCursor;
use floe_format::ext::inode::FileType;
use floe_format::native::backpointer::Backpointer;
use floe_format::{InodeNr, LogicalBlock};

use super::dirents::OpenDir;
use super::{htree, inline_data};
use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::stage::Stage;
use floe_ext4::dir::{self as directory, Entry, inline};

/// Adds a name to a directory, which grows if it has no room.
pub(super) fn link(
    stage: &mut Stage<'_>,
    dir: InodeNr,
    inode: InodeNr,
    name: &[u8],
    file_type: FileType,
) -> Result<(), Failure> {
    let mut names = Names::open(stage, dir)?;
    names.enter(stage, inode, name, file_type)?;
    names.close(stage)
}

/// Lets a name in a directory lead to a file, whether the directory has the name already or not. A file to which the name led
/// keeps its other names.
pub(super) fn point(
    stage: &mut Stage<'_>,
    dir: InodeNr,
    name: &[u8],
    file: InodeNr,
) -> Result<(), Failure> {
    point_to(stage, dir, name, file, FileType::Regular)
}

/// The same for any type.
pub(super) fn point_to(
    stage: &mut Stage<'_>,
    dir: InodeNr,
    name: &[u8],
    inode: InodeNr,
    file_type: FileType,
) -> Result<(), Failure> {
    if redirect(stage, dir, name, inode)? {
        return Ok(());
    }
    link(stage, dir, inode, name, file_type)
}

/// Lets a name that is in a directory lead to another inode; `false` if the directory has no such name.
fn redirect(
    stage: &mut Stage<'_>,
    dir: InodeNr,
    name: &[u8],
    inode: InodeNr,
) -> Result<bool, Failure> {
    let mut open = OpenDir::new(stage, dir)?;
    for logical in (0..open.map.end()).map(LogicalBlock) {
        let Ok(bytes) = open.read(stage, logical) else { continue };
        let mut entries = DirCursor::new(&bytes).map_while(Result::ok);
        let Some(at) = entries.find(|entry| entry.in_use() && entry.name == name) else { continue };
        let place = at.offset as usize;
        open.edit(stage, logical, |area, _| {
            *area.get_mut(place..)?.first_chunk_mut()? = inode.0.to_le_bytes();
            Some(())
        })?;
        return Ok(true);
    }
    Ok(false)
}

/// A directory to which names are added one after the other.
pub(super) struct Names {
    open: OpenDir,
    /// The first block that may have room; earlier blocks are full.
    at: LogicalBlock,
    /// Its bytes, with names that are not staged yet.
    entered: Option<Vec<u8>>,
}

impl Names {
    pub(super) fn open(stage: &Stage<'_>, dir: InodeNr) -> Result<Self, Failure> {
        let open = OpenDir::new(stage, dir)?;
        let at = first_leaf(&open);
        Ok(Self { open, at, entered: None })
    }

    /// All names stored in blocks of the directory.
    pub(super) fn stored(&self, stage: &Stage<'_>) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        for logical in (0..self.open.map.end()).map(LogicalBlock) {
            let Ok(bytes) = self.open.read(stage, logical) else { continue };
            let entries = DirCursor::new(&bytes).map_while(Result::ok);
            names.extend(entries.filter(|entry| entry.in_use()).map(|entry| entry.name.to_vec()));
        }
        names
    }

    /// Adds a name at least as long as those before. Only [`Names::close`] stages it.
    pub(super) fn enter(
        &mut self,
        stage: &mut Stage<'_>,
        inode: InodeNr,
        name: &[u8],
        file_type: FileType,
    ) -> Result<(), Failure> {
        self.note_in(stage, inode, name)?;
        let file_type = if self.open.format.filetype { file_type as u8 } else { 0 };
        let entry = Entry::new(inode, name, file_type);
        if self.open.is_inline() {
            if insert_inline(stage, &mut self.open, &entry)? {
                return Ok(());
            }
            to_blocks(stage, &mut self.open)?;
            *self = Self::open(stage, self.open.dir.inode)?;
        }
        let form = self.open.dir.form(&self.open.format);
        while self.at.0 < self.open.map.end() {
            if let Some(bytes) = &mut self.entered {
                if directory::insert(bytes, form, &entry).is_some() {
                    return Ok(());
                }
                self.stage_entered(stage)?;
            } else if let Ok(mut bytes) = self.open.read(stage, self.at) {
                let is_of_index = self.open.is_indexed() && is_index_node(&bytes);
                if !is_of_index && directory::insert(&mut bytes, form, &entry).is_some() {
                    self.entered = Some(bytes);
                    return Ok(());
                }
            }
            self.at.0 += 1;
        }
        self.grow(stage)?;
        let mut bytes = directory::empty_block(&self.open.format, &self.open.dir);
        directory::insert(&mut bytes, form, &entry).ok_or(Failure::NoSpace("room for a name"))?;
        self.entered = Some(bytes);
        Ok(())
    }

    /// Stores the name in the inode, too, in a native file system.
    fn note_in(&self, stage: &Stage<'_>, inode: InodeNr, name: &[u8]) -> Result<(), Failure> {
        if !stage.is_native() {
            return Ok(());
        }
        let mut image = stage.read_inode(inode)?;
        let own = Backpointer::new(self.open.dir.inode, name);
        Backpointer::store(Some(&own), &mut image.raw, image.extra.extra_isize);
        stage.write_inode(&image)
    }

    /// Appends an empty block.
    fn grow(&mut self, stage: &mut Stage<'_>) -> Result<(), Failure> {
        let (open, logical) = (&mut self.open, self.at);
        let block = open.map.block_for(stage, logical)?;
        open.map.insert(logical, block);
        if let Err(failure) = open.map.store(stage, &mut open.image) {
            open.map.remove(logical);
            return Err(failure);
        }
        open.image.set_size_bytes((logical.0 + 1) * u64::from(stage.geometry.block_size));
        let total = open.map.blocks();
        super::inodes::set_blocks(stage, &mut open.image, total);
        stage.write_inode(&open.image)?;
        let bytes = directory::empty_block(&open.format, &open.dir);
        open.write(stage, logical, bytes)
    }

    fn stage_entered(&mut self, stage: &Stage<'_>) -> Result<(), Failure> {
        match self.entered.take() {
            Some(bytes) => self.open.write(stage, self.at, bytes),
            None => Ok(()),
        }
    }

    /// Stages the added names. Drops the index, because it would not find a name that was added
    /// anywhere.
    pub(super) fn close(mut self, stage: &mut Stage<'_>) -> Result<(), Failure> {
        self.stage_entered(stage)?;
        let indexed = self.open.is_indexed();
        if indexed { htree::rebuild(stage, self.open.dir.inode) } else { Ok(()) }
    }
}

/// The first block that can hold names: index blocks contain one empty record that is not usable.
fn first_leaf(open: &OpenDir) -> LogicalBlock {
    LogicalBlock(u64::from(open.is_indexed()))
}

/// Whether a block looks like an index block: a single unused record that spans it.
fn is_index_node(bytes: &[u8]) -> bool {
    let mut entries = DirCursor::new(bytes);
    matches!(entries.next(), Some(Ok(first)) if !first.in_use() && first.rec_len as usize == bytes.len())
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

/// Moves the entries of an inline directory to a block.
fn to_blocks(stage: &mut Stage<'_>, open: &mut OpenDir) -> Result<(), Failure> {
    open.dir.parent = open.parent(stage);
    let value = inline_data::value(&open.image).unwrap_or_default();
    let rebuilt = inline::to_blocks(&open.image.base.block, &value, &open.format, &open.dir);
    inline_data::remove(&mut open.image)?;
    open.map = FileMap::empty(stage);
    htree::write(stage, open, &rebuilt)
}
