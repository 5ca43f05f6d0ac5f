//! Names in inline directories.

use floe_blockdev::ReadBlocks;
use floe_format::InodeNr;
use floe_format::ext::dirent::DirCursor;
use floe_format::ext::inline_data::InlineData;
use floe_format::ext::inode::{Inode, InodeFlags, OwnedInode};
use floe_format::features::Incompat;

use super::changing::{Changing, Impossible};
use super::directory::Directory;
use super::shape;
use crate::dir::{self, AreaForm, Entry, inline};
use crate::map::runs::BlockMap;
use crate::tx::Tx;

/// The value of `system.data`.
fn value(image: &OwnedInode) -> Vec<u8> {
    let inode = Inode::decode(&image.raw);
    let data = inode.as_ref().and_then(InlineData::of);
    data.map(|data| data.in_xattr.to_vec()).unwrap_or_default()
}

/// Puts a value of the same length back.
fn set_value(image: &mut OwnedInode, new: &[u8]) -> Option<()> {
    let at = {
        let inode = Inode::decode(&image.raw)?;
        let old = InlineData::of(&inode)?.in_xattr;
        if old.is_empty() {
            return Some(());
        }
        old.as_ptr().addr().checked_sub(image.raw.as_ptr().addr())?
    };
    image.raw.get_mut(at..at.checked_add(new.len())?)?.copy_from_slice(new);
    Some(())
}

/// Edits the parts, the first one in which `edit` finds what it looks for.
fn edit<T>(image: &mut OwnedInode, mut edit: impl FnMut(&mut [u8]) -> Option<T>) -> Option<T> {
    let mut second = value(image);
    if let Some(done) = edit(inline::first_part(&mut image.base.block)) {
        return Some(done);
    }
    let done = edit(inline::second_part(&mut second))?;
    set_value(image, &second)?;
    Some(done)
}

/// The place of a name in a part, and the inode that it leads to.
fn find(area: &[u8], name: &[u8]) -> Option<(u32, InodeNr)> {
    let mut entries = DirCursor::new(area).map_while(Result::ok);
    let entry = entries.find(|entry| entry.in_use() && entry.name == name)?;
    Some((entry.offset, entry.inode))
}

/// Removes a name. Returns whether it existed (and named `inode`).
pub(super) fn remove(image: &mut OwnedInode, form: AreaForm, name: &[u8], inode: InodeNr) -> bool {
    let removed = edit(image, |area| {
        let (offset, found) = find(area, name)?;
        if found == inode { dir::remove(area, form, offset) } else { None }
    });
    removed.is_some()
}

/// Adds a name, replacing an entry of the same name. Returns whether it is new; `None` if there is no room.
pub(super) fn add(image: &mut OwnedInode, form: AreaForm, entry: &Entry<'_>) -> Option<bool> {
    let replaced = edit(image, |area| {
        let (offset, found) = find(area, &entry.name)?;
        dir::set_inode(area, offset, entry.inode)?;
        if form.filetype {
            dir::set_type(area, offset, entry.file_type)?;
        }
        Some(found != entry.inode)
    });
    replaced.or_else(|| edit(image, |area| dir::insert(area, form, entry)).map(|_| true))
}

/// Makes it a directory without names.
pub(super) fn start(image: &mut OwnedInode, parent: InodeNr) {
    image.base.block = inline::fresh(parent);
    let second = inline::fresh_second(value(image).len());
    // As long as the old one.
    let _ = set_value(image, &second);
}

/// All names.
pub(super) fn entries(image: &OwnedInode, form: AreaForm) -> Vec<Entry<'static>> {
    let second = value(image);
    let all = inline::gather(&image.base.block, &second, form);
    let owned = |one: Entry<'_>| Entry {
        name: one.name.into_owned().into(),
        ..Entry::new(one.inode, &b""[..], one.file_type)
    };
    all.into_iter().map(owned).collect()
}

impl Directory {
    pub(super) fn is_inline(&self) -> bool {
        self.image.flags().contains(InodeFlags::INLINE_DATA)
    }

    /// Converts an inline directory to blocks.
    pub(super) fn convert<D: ReadBlocks>(
        &mut self,
        on: &mut Changing<'_, D>,
    ) -> Result<(), Impossible> {
        self.own.parent = inline::parent(&self.image.base.block);
        let second = value(&self.image);
        let built = inline::to_blocks(&self.image.base.block, &second, &self.format, &self.own);
        let has_extents = on.geometry().features.incompat.contains(Incompat::EXTENTS);
        self.image.set_flags(shape::SHAPE, false);
        self.image.set_flags(InodeFlags::EXTENTS, has_extents);
        self.image.base.block = shape::no_map(self.image.flags());
        self.image.set_size_bytes(0);
        shape::drop_inline_data(&mut self.image);
        self.map = BlockMap::default();
        for (logical, content) in (0..).zip(built.content.chunks(self.format.block_size)) {
            let block = self.fill_in(on, logical)?;
            on.tx.zeroed(block)?.copy_from_slice(content);
        }
        Ok(())
    }
}
