//! Directories, as far as all operations on names need them.

use floe_ext4::dir::{DirFormat, Directory, Entry, inline};
use floe_ext4::tx::{Refusal, Tx};
use floe_format::ext::casefold;
use floe_format::ext::dirent::MAX_NAME_LEN;
use floe_format::ext::inline_data::InlineData;
use floe_format::ext::inode::{FileType, Inode, InodeFlags, OwnedInode, TimeField};
use floe_format::ext::superblock::ENCODING_STRICT;
use floe_format::features::RoCompat;
use floe_format::{BlockRun, InodeNr, LogicalBlock};

use super::OpError;
use super::names::Named;
use super::staged::Op;

/// Links an inode may have (`EXT4_LINK_MAX`).
pub(crate) const MOST_LINKS: u16 = 65_000;

/// Bytes that no name may have.
fn judge_bytes(name: &[u8]) -> Result<(), OpError> {
    if name.len() > MAX_NAME_LEN {
        return Err(OpError::NameTooLong);
    }
    let bad = name.is_empty() || name.iter().any(|byte| matches!(byte, b'/' | 0));
    if bad || matches!(name, b"." | b"..") { Err(OpError::BadName) } else { Ok(()) }
}

/// Whether an inode may not be unlinked, renamed or linked.
pub(crate) fn judge_fixed(inode: &OwnedInode) -> Result<(), OpError> {
    if inode.flags().intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
        return Err(OpError::NotPermitted("it is immutable or append-only"));
    }
    Ok(())
}

/// The type byte of an entry for an inode.
pub(crate) fn type_byte(inode: &OwnedInode) -> u8 {
    inode.file_type().map_or(0, |kind| kind as u8)
}

impl Op<'_> {
    /// A directory that has not been removed.
    pub(crate) fn directory(&mut self, number: InodeNr) -> Result<OwnedInode, OpError> {
        let dir = self.inode(number)?;
        if dir.file_type() != Some(FileType::Directory) {
            return Err(OpError::NotADirectory);
        }
        if dir.base.links_count == 0 { Err(OpError::NotFound("directory")) } else { Ok(dir) }
    }

    /// A directory whose names may be changed, as far as its inode says. An inline one gets blocks.
    pub(crate) fn open_directory(&mut self, number: InodeNr) -> Result<OwnedInode, OpError> {
        let mut dir = self.directory(number)?;
        if dir.flags().contains(InodeFlags::ENCRYPT) {
            return Err(OpError::Unsupported("changing an encrypted directory"));
        }
        if dir.flags().contains(InodeFlags::IMMUTABLE) {
            return Err(OpError::NotPermitted("the directory is immutable"));
        }
        self.spill_directory(&mut dir)?;
        Ok(dir)
    }

    /// Judges a new name of a directory.
    pub(crate) fn judge_name(&self, dir: &OwnedInode, name: &[u8]) -> Result<(), OpError> {
        judge_bytes(name)?;
        let strict = self.volume.superblock().encoding_flags & ENCODING_STRICT != 0;
        let text = strict && dir.flags().contains(InodeFlags::CASEFOLD);
        if text && casefold::validate(name).is_err() { Err(OpError::BadName) } else { Ok(()) }
    }

    /// Looks a name up; `.` and `..` too. A name that leads into another cube is damage.
    pub(crate) fn lookup(
        &mut self,
        dir: &mut OwnedInode,
        name: &[u8],
    ) -> Result<Option<Named>, OpError> {
        let found = self.lookup_stored(dir, name)?;
        if let Some(found) = found.filter(|_| !matches!(name, b"." | b"..")) {
            self.judge_named(dir.number, name, found.inode)?;
        }
        Ok(found)
    }

    /// Refuses a name that leads into another cube, unless the inode says that this is its name: then the records of lots may be
    /// wrong.
    fn judge_named(&mut self, dir: InodeNr, name: &[u8], named: InodeNr) -> Result<(), OpError> {
        if self.volume.fs.space.may_name(dir, named) {
            return Ok(());
        }
        let inode = self.inode(named).ok();
        match inode.and_then(|inode| inode.backpointer()).is_some_and(|own| own.fits(dir, name)) {
            true => Ok(()),
            false => Err(Refusal::Damaged("a name, which leads into another cube,").into()),
        }
    }

    fn lookup_stored(
        &mut self,
        dir: &mut OwnedInode,
        name: &[u8],
    ) -> Result<Option<Named>, OpError> {
        if name.len() > MAX_NAME_LEN {
            return Err(OpError::NameTooLong);
        }
        if dir.flags().contains(InodeFlags::INLINE_DATA) {
            return self.lookup_inline(dir, name);
        }
        let found = self.names(dir)?.find(name)?;
        Ok(found.map(|found| Named {
            inode: found.inode,
            file_type: FileType::of_entry(found.file_type),
        }))
    }

    fn lookup_inline(
        &mut self,
        dir: &mut OwnedInode,
        name: &[u8],
    ) -> Result<Option<Named>, OpError> {
        let (in_block, value, about, format) = self.inline_parts(dir)?;
        let kind = Some(FileType::Directory);
        match name {
            b"." => return Ok(Some(Named { inode: dir.number, file_type: kind })),
            b".." => return Ok(Some(Named { inode: about.parent, file_type: kind })),
            _ => {}
        }
        let folds = about.casefolded && !about.encrypted;
        let same = |other: &[u8]| other == name || folds && casefold::same_name(other, name);
        let entries = inline::gather(&in_block, &value, about.inline_form(&format));
        let found = entries.into_iter().find(|entry| same(&entry.name));
        Ok(found.map(|entry| Named {
            inode: entry.inode,
            file_type: FileType::of_entry(entry.file_type),
        }))
    }

    /// The parts of an inline directory, and what its blocks would need to know.
    fn inline_parts(
        &mut self,
        dir: &mut OwnedInode,
    ) -> Result<(Vec<u8>, Vec<u8>, Directory, DirFormat), OpError> {
        let seed = self.volume.fs.seed();
        let raw = dir.seal(seed);
        let decoded = Inode::decode(raw);
        let inline = decoded.as_ref().and_then(InlineData::of);
        let inline = inline.ok_or(super::content::DAMAGED)?;
        let (in_block, value) = (inline.in_block.to_vec(), inline.in_xattr.to_vec());
        let about = self.about(dir, inline::parent(&in_block));
        let format = DirFormat::of(&self.volume.fs.superblock, self.volume.geometry());
        Ok((in_block, value, about, format))
    }

    /// A directory, as far as its blocks are concerned.
    pub(crate) fn about(&self, dir: &OwnedInode, parent: InodeNr) -> Directory {
        let flags = dir.flags();
        Directory {
            inode: dir.number,
            parent,
            generation: dir.base.generation,
            encrypted: flags.contains(InodeFlags::ENCRYPT),
            casefolded: flags.contains(InodeFlags::CASEFOLD),
        }
    }

    /// Gives an inline directory blocks; any other stays as it is.
    pub(crate) fn spill_directory(&mut self, dir: &mut OwnedInode) -> Result<(), OpError> {
        if !dir.flags().contains(InodeFlags::INLINE_DATA) {
            return Ok(());
        }
        let (in_block, value, about, format) = self.inline_parts(dir)?;
        let rebuilt = inline::to_blocks(&in_block, &value, &format, &about);
        self.drop_inline(dir)?;
        self.fill_directory(dir, &rebuilt.content)
    }

    /// Writes whole blocks as the content of a directory that has none.
    pub(crate) fn fill_directory(
        &mut self,
        dir: &mut OwnedInode,
        content: &[u8],
    ) -> Result<(), OpError> {
        let size = self.volume.geometry().block_size as usize;
        for (at, bytes) in content.chunks(size).enumerate() {
            let run = self.allocate(dir, LogicalBlock(at as u64), 1)?;
            self.map_run(dir, LogicalBlock(at as u64), run, false)?;
            self.tx.zeroed(run.start)?.copy_from_slice(bytes);
        }
        dir.set_size_bytes(content.len() as u64);
        self.put(dir)
    }

    /// Adds a name for an inode, which was looked for before. The directory is written.
    pub(crate) fn add_name(
        &mut self,
        dir: &mut OwnedInode,
        name: &[u8],
        inode: &OwnedInode,
    ) -> Result<(), OpError> {
        let entry = Entry::new(inode.number, name, type_byte(inode));
        self.names(dir)?.insert(&entry)?;
        self.touch(dir, &[TimeField::Modification, TimeField::Change]);
        self.put(dir)
    }

    /// Takes a name away that is there. The directory is written.
    pub(crate) fn take_name(&mut self, dir: &mut OwnedInode, name: &[u8]) -> Result<(), OpError> {
        self.names(dir)?.remove(name)?.ok_or(OpError::NotFound("name"))?;
        self.touch(dir, &[TimeField::Modification, TimeField::Change]);
        self.put(dir)
    }

    /// Lets `..` of a directory lead elsewhere. The directory is the caller's to write.
    pub(crate) fn set_parent(
        &mut self,
        dir: &mut OwnedInode,
        parent: InodeNr,
    ) -> Result<(), OpError> {
        if dir.flags().contains(InodeFlags::INLINE_DATA) {
            inline::set_parent(&mut dir.base.block, parent).ok_or(super::content::DAMAGED)?;
            return Ok(());
        }
        let kind = FileType::Directory as u8;
        let before = self.names(dir)?.replace(b"..", parent, kind)?;
        before.map(drop).ok_or(OpError::NotFound("entry for the parent directory"))
    }

    /// Whether a directory has names besides `.` and `..`.
    pub(crate) fn has_names(&mut self, dir: &mut OwnedInode) -> Result<bool, OpError> {
        if dir.flags().contains(InodeFlags::INLINE_DATA) {
            let (in_block, value, about, format) = self.inline_parts(dir)?;
            let entries = inline::gather(&in_block, &value, about.inline_form(&format));
            return Ok(!entries.is_empty());
        }
        Ok(self.names(dir)?.has_names()?)
    }

    /// Counts one subdirectory more. A directory with too many for its count says 1 (dir_nlink).
    pub(crate) fn add_subdirectory(&self, dir: &mut OwnedInode) -> Result<(), OpError> {
        let features = self.volume.geometry().features;
        let links = dir.base.links_count;
        if links == 1 {
            return Ok(());
        }
        if links < MOST_LINKS {
            dir.base.links_count += 1;
        } else if features.ro_compat.contains(RoCompat::DIR_NLINK)
            && dir.flags().contains(InodeFlags::INDEX)
        {
            dir.base.links_count = 1;
        } else {
            return Err(OpError::TooManyLinks);
        }
        Ok(())
    }

    /// Counts one subdirectory less.
    pub(crate) const fn drop_subdirectory(&self, dir: &mut OwnedInode) {
        if dir.base.links_count > 2 {
            dir.base.links_count -= 1;
        }
    }

    /// Makes an inode whose data are in `i_block` one with an empty map. Its attribute `system.data` goes.
    pub(crate) fn drop_inline(&mut self, inode: &mut OwnedInode) -> Result<(), OpError> {
        self.drop_inline_attribute(inode)?;
        inode.set_flags(InodeFlags::INLINE_DATA, false);
        self.empty_map(inode);
        Ok(())
    }

    /// Forgets that a directory's block run is data: its blocks are metadata.
    pub(crate) fn release_metadata(&mut self, run: BlockRun) -> Result<(), OpError> {
        let volume = &mut *self.volume;
        floe_ext4::alloc::Allocate::release(&mut volume.fs.space, &mut self.tx, run)?;
        Ok(())
    }
}
