//! Changes of a disk that is a table, made at once and in order.

use std::collections::{BTreeMap, BTreeSet};

use floe_disk::ops::{NewInode, NewKind, RenameMode, Reserved, SetMode};
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};

use super::{BLOCK_BYTES, File, SECTORS, Tables};
use crate::op::{Applied, Op, OpKind, Place};
use crate::{Attributes, FsError, Timestamp};

impl Tables {
    pub(super) fn file(&self, inode: InodeNr) -> Result<&File, FsError> {
        self.files.get(&inode).ok_or(FsError::NotFound)
    }

    fn file_mut(&mut self, inode: InodeNr) -> Result<&mut File, FsError> {
        self.files.get_mut(&inode).ok_or(FsError::NotFound)
    }

    fn directory(&mut self, inode: InodeNr) -> Result<&mut File, FsError> {
        let file = self.file_mut(inode)?;
        match file.attributes.kind {
            FileType::Directory if file.attributes.links > 0 => Ok(file),
            FileType::Directory => Err(FsError::NotFound),
            _ => Err(FsError::NotADirectory),
        }
    }

    fn find(&mut self, place: &Place<'_>) -> Result<Option<InodeNr>, FsError> {
        Ok(self.directory(place.directory)?.names.get(place.name).copied())
    }

    fn is_directory(&self, inode: InodeNr) -> Result<bool, FsError> {
        Ok(self.file(inode)?.attributes.kind == FileType::Directory)
    }

    /// A number near a directory: in its cube.
    pub(super) fn draw(&mut self, near: InodeNr) -> Result<InodeNr, FsError> {
        if let Some(cube) = near.0.saturating_sub(1).checked_div(self.inodes_per_cube) {
            self.next = self.next.max(12) % self.inodes_per_cube + cube * self.inodes_per_cube;
        }
        while self.files.contains_key(&InodeNr(self.next))
            || self.reserved.contains(&InodeNr(self.next))
        {
            self.next += 1;
        }
        self.next += 1;
        Ok(InodeNr(self.next - 1))
    }

    pub(super) fn add(
        &mut self,
        op: &Op<'_>,
        inode: InodeNr,
        generation: u32,
        new: &NewInode<'_>,
        parent: InodeNr,
    ) {
        let kind = new.kind.file_type();
        let bytes =
            if let NewKind::Symlink(target) = new.kind { target.to_vec() } else { Vec::new() };
        let is_directory = kind == FileType::Directory;
        let umask = if kind == FileType::Symlink { 0 } else { new.umask };
        let mapped = is_directory || kind == FileType::Regular || bytes.len() >= 60;
        let above = self.files.get(&parent).map(|parent| parent.attributes);
        let inherits = above.is_some_and(|above| above.permissions & 0o2000 != 0);
        let setgid = if inherits && is_directory { 0o2000 } else { 0 };
        let attributes = Attributes {
            inode,
            generation,
            kind,
            permissions: new.permissions & !umask | setgid,
            links: if is_directory { 2 } else { 1 },
            uid: op.uid,
            gid: above.filter(|_| inherits).map_or(op.gid, |above| above.gid),
            size_bytes: if is_directory { u64::from(BLOCK_BYTES) } else { bytes.len() as u64 },
            sectors: if is_directory || bytes.len() >= 60 { SECTORS } else { 0 },
            atime: op.time,
            mtime: op.time,
            ctime: op.time,
            crtime: Some(op.time),
            device: None,
            flags: if mapped { InodeFlags::EXTENTS } else { InodeFlags::empty() },
            project: 0,
        };
        let (names, pages, extended) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        self.files.insert(inode, File { attributes, names, parent, bytes, pages, extended });
        self.free_inodes = self.free_inodes.saturating_sub(1);
    }

    pub(super) fn create(
        &mut self,
        op: &Op<'_>,
        place: &Place<'_>,
        new: &NewInode<'_>,
        reserved: Option<Reserved>,
    ) -> Result<InodeNr, FsError> {
        if self.find(place)?.is_some() {
            return Err(FsError::Exists);
        }
        if self.free_inodes == 0 {
            return Err(FsError::NoSpace);
        }
        let (inode, generation) = match reserved {
            Some(reserved) => (reserved.inode, reserved.generation),
            None => (self.draw(place.directory)?, 0),
        };
        if self.files.contains_key(&inode) {
            return Err(FsError::Ended(format!("{inode} is in use")));
        }
        self.reserved.remove(&inode);
        self.add(op, inode, generation, new, place.directory);
        let more = u32::from(new.kind == NewKind::Directory);
        let directory = self.directory(place.directory)?;
        directory.attributes.links += more;
        directory.names.insert(place.name.into(), inode);
        self.touch(place.directory, op.time)?;
        Ok(inode)
    }

    fn touch(&mut self, inode: InodeNr, time: Timestamp) -> Result<(), FsError> {
        let attributes = &mut self.file_mut(inode)?.attributes;
        (attributes.mtime, attributes.ctime) = (time, time);
        Ok(())
    }

    /// Takes a name away; returns what lost its last one.
    fn lose(&mut self, inode: InodeNr, time: Timestamp) -> Result<Option<InodeNr>, FsError> {
        let is_directory = self.is_directory(inode)?;
        let attributes = &mut self.file_mut(inode)?.attributes;
        attributes.links = if is_directory { 0 } else { attributes.links - 1 };
        attributes.ctime = time;
        Ok((attributes.links == 0).then_some(inode))
    }

    fn unlink(
        &mut self,
        op: &Op<'_>,
        place: &Place<'_>,
        directory: bool,
    ) -> Result<Option<InodeNr>, FsError> {
        let inode = self.find(place)?.ok_or(FsError::NotFound)?;
        match (directory, self.is_directory(inode)?) {
            (false, true) => return Err(FsError::IsADirectory),
            (true, false) => return Err(FsError::NotADirectory),
            (true, true) if !self.file(inode)?.names.is_empty() => return Err(FsError::NotEmpty),
            _ => {}
        }
        let from = self.directory(place.directory)?;
        from.names.remove(place.name);
        from.attributes.links -= u32::from(directory);
        self.touch(place.directory, op.time)?;
        self.lose(inode, op.time)
    }

    fn rename(
        &mut self,
        op: &Op<'_>,
        from: &Place<'_>,
        to: &Place<'_>,
        mode: RenameMode,
    ) -> Result<Option<InodeNr>, FsError> {
        let moved = self.find(from)?.ok_or(FsError::NotFound)?;
        let target = self.find(to)?;
        if target.is_some() && mode == RenameMode::NoReplace {
            return Err(FsError::Exists);
        }
        if !matches!(mode, RenameMode::Replace | RenameMode::NoReplace) {
            return Err(FsError::Unsupported("this mode of a rename"));
        }
        if target == Some(moved) {
            return Ok(None);
        }
        let is_directory = self.is_directory(moved)?;
        let mut at = to.directory;
        while is_directory && at != InodeNr::ROOT {
            if at == moved {
                return Err(FsError::Invalid);
            }
            at = self.file(at)?.parent;
        }
        if let Some(target) = target {
            match (is_directory, self.is_directory(target)?) {
                (true, false) => return Err(FsError::NotADirectory),
                (false, true) => return Err(FsError::IsADirectory),
                (true, true) if !self.file(target)?.names.is_empty() => {
                    return Err(FsError::NotEmpty);
                }
                _ => {}
            }
        }
        self.directory(from.directory)?.names.remove(from.name);
        self.directory(to.directory)?.names.insert(to.name.into(), moved);
        if is_directory {
            self.directory(from.directory)?.attributes.links -= 1;
            self.directory(to.directory)?.attributes.links += u32::from(target.is_none());
            self.file_mut(moved)?.parent = to.directory;
        }
        self.touch(from.directory, op.time)?;
        self.touch(to.directory, op.time)?;
        self.file_mut(moved)?.attributes.ctime = op.time;
        target.map_or(Ok(None), |target| self.lose(target, op.time))
    }

    fn resize(&mut self, op: &Op<'_>, inode: InodeNr, size: u64) -> Result<(), FsError> {
        let file = self.file_mut(inode)?;
        let len = usize::try_from(size).map_err(|_| FsError::TooLarge)?;
        let bytes = &mut file.bytes;
        bytes.try_reserve(len.saturating_sub(bytes.len())).map_err(|_| FsError::TooLarge)?;
        bytes.resize(len, 0);
        file.attributes.size_bytes = size;
        file.pages.split_off(&size.div_ceil(u64::from(BLOCK_BYTES)));
        file.count_sectors();
        self.touch(inode, op.time)
    }

    pub(super) fn apply(&mut self, op: &Op<'_>) -> Result<Applied, FsError> {
        let (mut created, mut nameless) = (None, None);
        match &op.kind {
            OpKind::Create { place, new } => created = Some(self.create(op, place, new, None)?),
            OpKind::CreateUnnamed { directory, new } => {
                let inode = self.draw(*directory)?;
                self.add(op, inode, 0, new, *directory);
                self.file_mut(inode)?.attributes.links = 0;
                created = Some(inode);
            }
            OpKind::Link { inode, place } => {
                if self.find(place)?.is_some() {
                    return Err(FsError::Exists);
                }
                let attributes = &mut self.file_mut(*inode)?.attributes;
                attributes.links += 1;
                attributes.ctime = op.time;
                self.directory(place.directory)?.names.insert(place.name.into(), *inode);
                self.touch(place.directory, op.time)?;
            }
            OpKind::Unlink(place) => nameless = self.unlink(op, place, false)?,
            OpKind::RemoveDirectory(place) => nameless = self.unlink(op, place, true)?,
            OpKind::Rename { from, to, mode } => nameless = self.rename(op, from, to, *mode)?,
            OpKind::Change { inode, size_bytes, change } => {
                if let Some(size) = size_bytes {
                    self.resize(op, *inode, *size)?;
                }
                let attributes = &mut self.file_mut(*inode)?.attributes;
                attributes.permissions = change.permissions.unwrap_or(attributes.permissions);
                attributes.uid = change.uid.unwrap_or(attributes.uid);
                attributes.gid = change.gid.unwrap_or(attributes.gid);
                attributes.atime = change.accessed.unwrap_or(attributes.atime);
                attributes.mtime = change.modified.unwrap_or(attributes.mtime);
                if *change != Default::default() {
                    attributes.ctime = op.time;
                }
            }
            OpKind::Write { inode, offset_bytes, bytes } => {
                let end = offset_bytes + bytes.len() as u64;
                let size = self.file(*inode)?.attributes.size_bytes;
                self.resize(op, *inode, size.max(end))?;
                // Inside what was resized.
                let place = *offset_bytes as usize..end as usize;
                let file = self.file_mut(*inode)?;
                file.bytes[place].copy_from_slice(bytes);
                let block = u64::from(BLOCK_BYTES);
                file.pages.extend(offset_bytes / block..end.div_ceil(block));
                file.count_sectors();
            }
            OpKind::SetAttribute { inode, name, value, mode } => {
                let extended = &mut self.file_mut(*inode)?.extended;
                match (mode, extended.contains_key(*name)) {
                    (SetMode::Create, true) => return Err(FsError::Exists),
                    (SetMode::Replace, false) => return Err(FsError::NoAttribute),
                    _ => extended.insert(name.to_vec(), value.to_vec()),
                };
                self.file_mut(*inode)?.attributes.ctime = op.time;
            }
            OpKind::RemoveAttribute { inode, name } => {
                let extended = &mut self.file_mut(*inode)?.extended;
                extended.remove(*name).ok_or(FsError::NoAttribute)?;
                self.file_mut(*inode)?.attributes.ctime = op.time;
            }
            OpKind::Range { .. } => return Err(FsError::Unsupported("this change")),
        }
        Ok(Applied { created, nameless })
    }
}
