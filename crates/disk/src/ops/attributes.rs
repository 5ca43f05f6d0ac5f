//! Extended attributes: in the inode, else in a block. Blocks that inodes share are copied before they change.

use floe_ext4::map::file;
use floe_ext4::tx::{Refusal, Tx};
use floe_format::ext::inline_data::ATTRIBUTE_NAME;
use floe_format::ext::inode::{InodeFlags, OwnedInode, TimeField};
use floe_format::ext::xattr::value_inode::is_of_lustre;
use floe_format::ext::xattr::{
    self, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, INDEX_ENCRYPTION, INDEX_SYSTEM, NewValue, NewXattr,
    XattrArea, XattrHeader, acl, acl_valid, has_hash_of_inode, split_name, value_inode,
    write_block, write_block_checksum, write_inode,
};
use floe_format::features::{Compat, Incompat};
use floe_format::{BlockNr, BlockRun, InodeNr};

use super::credits::Reach;
use super::staged::Op;
use super::{Caller, OpError};
use crate::volume::Volume;

pub(super) const DAMAGED: OpError = OpError::Refused(Refusal::Damaged("an inode's attributes"));

/// Whether an attribute must, may or must not exist before it is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetMode {
    /// It is created or replaced.
    #[default]
    Any,
    /// It must not be there (XATTR_CREATE).
    Create,
    /// It must be there (XATTR_REPLACE).
    Replace,
}

/// An attribute as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    name_index: u8,
    name: Vec<u8>,
    pub(super) value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Here(Vec<u8>),
    /// In an inode of its own.
    Inode(Held),
}

/// A value in an inode of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) inode: InodeNr,
    pub(super) size_bytes: u32,
    /// The hash of the value, as that inode remembers it.
    pub(super) hash: u32,
    /// That inode counts its users. Those of an old Lustre have one.
    pub(super) is_counted: bool,
}

impl Stored {
    fn is(&self, name_index: u8, name: &[u8]) -> bool {
        self.name_index == name_index && self.name == name
    }

    /// The inode that holds the value.
    const fn held(&self) -> Option<Held> {
        match self.value {
            Value::Inode(held) => Some(held),
            Value::Here(_) => None,
        }
    }

    fn as_new(&self) -> NewXattr<'_> {
        let value = match &self.value {
            Value::Here(value) => NewValue::Here(value),
            &Value::Inode(Held { inode, size_bytes, hash, .. }) => {
                NewValue::Inode { inode, size_bytes, hash }
            }
        };
        NewXattr { name_index: self.name_index, name: &self.name, value }
    }
}

impl Volume {
    /// The value of an attribute by its whole name. Access lists have the form that programs use.
    ///
    /// # Errors
    /// [`OpError::NotFound`], [`OpError::Unsupported`] for a prefix that ext4 does not have, or it cannot be read.
    pub fn attribute(
        &mut self,
        tx: &mut dyn Tx,
        inode: InodeNr,
        name: &[u8],
    ) -> Result<Vec<u8>, OpError> {
        let (index, value) = self.op(tx, &Caller::system(Default::default()), |op| {
            let (index, name) = split(name)?;
            let inode = op.inode(inode)?;
            let found = op.in_inode(&inode)?.into_iter().find(|one| one.is(index, name));
            let found = match found {
                Some(found) => Some(found),
                None => op.in_block(&inode)?.into_iter().find(|one| one.is(index, name)),
            };
            let found = found.ok_or(OpError::NotFound("attribute"))?;
            Ok((index, op.bytes_of(&inode, &found.value)?))
        })?;
        if matches!(index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT) {
            let entries = acl::decode(&value).map_err(|_| DAMAGED)?;
            return Ok(acl::encode_for_programs(&entries));
        }
        Ok(value)
    }

    /// Sets an attribute by its whole name. Access lists have the form that programs use; the permissions follow one.
    ///
    /// # Errors
    /// [`OpError::Exists`] and [`OpError::NotFound`] as `mode` says, [`OpError::NoRoom`] if it does not fit beside the
    /// others, nor in an inode of its own, [`OpError::Unsupported`] for an unknown prefix, [`OpError::Invalid`] for a list that
    /// is none, [`OpError::NoSpace`], [`OpError::QuotaExceeded`], [`OpError::NotPermitted`].
    pub fn set_attribute(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        inode: InodeNr,
        name: &[u8],
        value: &[u8],
        mode: SetMode,
    ) -> Result<(), OpError> {
        self.op_of(Reach::One, tx, caller, |op| {
            let mut inode = op.inode(inode)?;
            judge_changeable(&inode)?;
            let (index, name) = split(name)?;
            let value = stored_value(index, value)?;
            if index == INDEX_ACL_ACCESS {
                op.set_access_list(&mut inode, value, mode)?;
            } else {
                op.set(&mut inode, index, name, Some(value), mode)?;
            }
            op.touch(&mut inode, &[TimeField::Change]);
            op.put(&mut inode)
        })
    }

    /// Removes an attribute by its whole name.
    ///
    /// # Errors
    /// [`OpError::NotFound`], [`OpError::Unsupported`], [`OpError::NotPermitted`].
    pub fn remove_attribute(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        inode: InodeNr,
        name: &[u8],
    ) -> Result<(), OpError> {
        self.op_of(Reach::One, tx, caller, |op| {
            let mut inode = op.inode(inode)?;
            judge_changeable(&inode)?;
            let (index, name) = split(name)?;
            op.set(&mut inode, index, name, None, SetMode::Replace)?;
            op.touch(&mut inode, &[TimeField::Change]);
            op.put(&mut inode)
        })
    }
}

fn split(name: &[u8]) -> Result<(u8, &[u8]), OpError> {
    let (index, rest) = split_name(name).ok_or(OpError::Unsupported("attributes of this kind"))?;
    if rest.len() > usize::from(u8::MAX) {
        return Err(OpError::NameTooLong);
    }
    let hidden = index == INDEX_ENCRYPTION || index == INDEX_SYSTEM;
    if hidden { Err(OpError::Unsupported("attributes of this kind")) } else { Ok((index, rest)) }
}

fn judge_changeable(inode: &OwnedInode) -> Result<(), OpError> {
    if inode.flags().intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
        return Err(OpError::NotPermitted("it is immutable or append-only"));
    }
    Ok(())
}

/// A value as it is stored: access lists in their own form.
fn stored_value(index: u8, value: &[u8]) -> Result<Vec<u8>, OpError> {
    if !matches!(index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT) {
        return Ok(value.to_vec());
    }
    let entries = acl::decode_for_programs(value);
    let entries = entries.map_err(|_| OpError::Invalid("it is not an access list"))?;
    acl_valid::fault(&entries)
        .map_or(Ok(acl::encode(&entries)), |fault| Err(OpError::Invalid(fault)))
}

impl Op<'_> {
    /// The block of attributes of an inode; `None` if it has none. One in another cube is damage.
    pub(super) fn attribute_block(&self, inode: &OwnedInode) -> Result<Option<BlockNr>, OpError> {
        let bit64 = self.volume.geometry().features.incompat.contains(Incompat::BIT64);
        let block = Some(inode.file_acl(bit64)).filter(|block| block.0 != 0);
        if let Some(block) = block {
            self.volume.fs.space.judge_own(inode.number, BlockRun::new(block, 1))?;
        }
        Ok(block)
    }

    fn gather(
        &mut self,
        owner: &OwnedInode,
        area: Option<XattrArea<'_>>,
    ) -> Result<Vec<Stored>, OpError> {
        let Some(area) = area else { return Ok(Vec::new()) };
        area.check().map_err(|_| DAMAGED)?;
        let mut all = Vec::new();
        for entry in area.entries() {
            let entry = entry.map_err(|_| DAMAGED)?;
            let value = match entry.value_inode {
                None => Value::Here(area.value(&entry).ok_or(DAMAGED)?.to_vec()),
                Some(inode) => {
                    let holder = self.inode(inode)?;
                    let hash = value_inode::stored_hash(&holder.base);
                    let is_counted = has_hash_of_inode(&entry, hash)
                        || !is_of_lustre(&holder.base, (owner.number, owner.base.generation));
                    let size_bytes = entry.value_size;
                    Value::Inode(Held { inode, size_bytes, hash, is_counted })
                }
            };
            let (name_index, name) = (entry.name_index, entry.name.to_vec());
            all.push(Stored { name_index, name, value });
        }
        Ok(all)
    }

    fn in_inode(&mut self, inode: &OwnedInode) -> Result<Vec<Stored>, OpError> {
        let bytes = inode.attributes().to_vec();
        self.gather(inode, XattrArea::of_inode(&bytes))
    }

    fn in_block(&mut self, inode: &OwnedInode) -> Result<Vec<Stored>, OpError> {
        let Some(block) = self.attribute_block(inode)? else { return Ok(Vec::new()) };
        let bytes = self.tx.block(block)?;
        let header = bytes.first_chunk().map(XattrHeader::decode).ok_or(DAMAGED)?;
        let seed = self.volume.fs.seed();
        if header.magic != xattr::MAGIC {
            return Err(DAMAGED);
        }
        if !seed.is_none_or(|seed| xattr::block_checksum_ok(seed, block, &bytes)) {
            return Err(OpError::Refused(Refusal::Checksum("a block of attributes")));
        }
        self.gather(inode, XattrArea::of_block(&bytes))
    }

    /// The value of an attribute that has no name besides its prefix; `None` if it is not there.
    pub(super) fn stored_value(
        &mut self,
        inode: &OwnedInode,
        index: u8,
    ) -> Result<Option<Vec<u8>>, OpError> {
        let mut all = self.in_inode(inode)?;
        all.extend(self.in_block(inode)?);
        let found = all.into_iter().find(|one| one.is(index, b""));
        found.map(|one| self.bytes_of(inode, &one.value)).transpose()
    }

    /// Sets or removes an attribute. The inode is the caller's to write.
    pub(super) fn set(
        &mut self,
        inode: &mut OwnedInode,
        index: u8,
        name: &[u8],
        value: Option<Vec<u8>>,
        mode: SetMode,
    ) -> Result<(), OpError> {
        // Values count for their owners before anything of them changes.
        self.weigh(inode.number)?;
        let (mut inner, mut outer) = (self.in_inode(inode)?, self.in_block(inode)?);
        let (inner_before, outer_before) = (inner.clone(), outer.clone());
        // Values of a block that others use count once for the block, which stays as it is.
        let block = self.attribute_block(inode)?;
        let is_shared =
            block.map_or(Ok(false), |block| Ok::<_, OpError>(self.sharers(block)? > 1))?;
        let has = inner.iter().chain(&outer).any(|one| one.is(index, name));
        match (mode, has) {
            (SetMode::Create, true) => return Err(OpError::Exists),
            (SetMode::Replace, false) => return Err(OpError::NotFound("attribute")),
            _ => {}
        }
        inner.retain(|one| !one.is(index, name));
        outer.retain(|one| !one.is(index, name));
        let copied: Vec<Held> = outer.iter().filter_map(Stored::held).collect();
        if let Some(value) = value {
            self.allow_attributes()?;
            let new = Stored { name_index: index, name: name.to_vec(), value: Value::Here(value) };
            self.place(inode, new, (&mut inner, &mut outer))?;
        }
        if inner != inner_before {
            self.write_inner(inode, &inner)?;
        }
        if outer != outer_before {
            self.write_outer(inode, &outer)?;
        }
        let (before, after) =
            (inner_before.iter().chain(&outer_before), inner.iter().chain(&outer));
        let units = self.volume.geometry().count_units(inode.flags()).cast_signed();
        let change = units * (self.value_blocks(after) - self.value_blocks(before));
        inode.set_blocks(inode.blocks().saturating_add_signed(change));
        if outer != outer_before && is_shared {
            for value in copied {
                // There may be as many of them as a block has entries.
                self.reach = Reach::Steps;
                self.count_value(value, 1)?;
            }
        }
        let own = inner_before.iter().chain(if is_shared { &[][..] } else { &outer_before });
        for value in own.filter(|one| one.is(index, name)).filter_map(Stored::held) {
            self.count_value(value, -1)?;
        }
        Ok(())
    }

    /// Puts an attribute into the inode or, where that has no room, into the block: as it is, or with its value in an inode of
    /// its own, where that is large or fits nowhere else.
    fn place(
        &mut self,
        inode: &OwnedInode,
        mut new: Stored,
        (inner, outer): (&mut Vec<Stored>, &mut Vec<Stored>),
    ) -> Result<(), OpError> {
        let value = match &new.value {
            Value::Here(value) if self.has_value_inodes() && !value.is_empty() => value.clone(),
            _ => Vec::new(),
        };
        let mut is_here = !self.is_large(&value);
        loop {
            inner.push(new.clone());
            if is_here && self.fits_inode(inode, inner) {
                return Ok(());
            }
            inner.pop();
            outer.push(new.clone());
            if is_here && self.fits_block(outer) {
                return Ok(());
            }
            outer.pop();
            if value.is_empty() || matches!(new.value, Value::Inode(..)) {
                return Err(OpError::NoRoom);
            }
            (new.value, is_here) = (self.new_value(inode, &value)?, true);
        }
    }

    /// Sets the feature that attributes need.
    fn allow_attributes(&mut self) -> Result<(), OpError> {
        let superblock = self.volume.superblock();
        if superblock.features().compat.contains(Compat::EXT_ATTR) {
            return Ok(());
        }
        if superblock.rev_level == 0 {
            return Err(OpError::Unsupported("attributes in a file system of revision 0"));
        }
        self.edit_superblock(|sb| sb.feature_compat |= Compat::EXT_ATTR.bits())
    }

    fn fits_inode(&self, inode: &OwnedInode, all: &[Stored]) -> bool {
        let new: Vec<NewXattr<'_>> = all.iter().map(Stored::as_new).collect();
        let room = inode.attributes().len();
        room > 0 && xattr::needed_bytes(&new) + xattr::IBODY_HEADER_SIZE <= room
    }

    fn fits_block(&self, all: &[Stored]) -> bool {
        let new: Vec<NewXattr<'_>> = all.iter().map(Stored::as_new).collect();
        let room = self.volume.geometry().block_size as usize - XattrHeader::SIZE;
        xattr::needed_bytes(&new) <= room
    }

    fn write_inner(&mut self, inode: &mut OwnedInode, all: &[Stored]) -> Result<(), OpError> {
        let new: Vec<NewXattr<'_>> = all.iter().map(Stored::as_new).collect();
        write_inode(inode.attributes_mut(), &new).map_err(|_| OpError::NoRoom)
    }

    /// Writes the attributes that lie in the block; a block without any is freed, a shared one is left to the others.
    fn write_outer(&mut self, inode: &mut OwnedInode, all: &[Stored]) -> Result<(), OpError> {
        let old = self.attribute_block(inode)?;
        let own = match old {
            Some(block) if self.sharers(block)? == 1 => Some(block),
            _ => None,
        };
        if all.is_empty() || own.is_none() {
            self.drop_block(inode)?;
        }
        if all.is_empty() {
            return Ok(());
        }
        let block = match own {
            Some(block) => block,
            None => {
                let geo = self.volume.geometry();
                let home = geo.place_of(inode.number).map(|(group, _)| geo.group_start(group));
                let near = old.filter(|old| self.is_own(inode.number, *old));
                let goal = near.or(home).unwrap_or_default();
                let block = self.volume.fs.space.block_of_other(&mut self.tx, goal)?;
                file::count(&self.volume.fs, inode, 1);
                inode.set_file_acl(block);
                block
            }
        };
        let seed = self.volume.fs.seed();
        let new: Vec<NewXattr<'_>> = all.iter().map(Stored::as_new).collect();
        let hint = if self.volume.fs.is_native() { inode.number } else { InodeNr(0) };
        let written = write_block(self.tx.zeroed(block)?, &new, seed, block, hint);
        written.map_err(|_| OpError::NoRoom)
    }

    /// Moves the block of attributes into the cube of its inode, if it lies in another one. Returns whether it did.
    pub(super) fn move_attributes(&mut self, inode: &mut OwnedInode) -> Result<bool, OpError> {
        let Some(block) = self.attribute_block(inode)? else { return Ok(false) };
        if self.is_own(inode.number, block) {
            return Ok(false);
        }
        let outer = self.in_block(inode)?;
        self.drop_block(inode)?;
        self.write_outer(inode, &outer)?;
        Ok(true)
    }

    /// Whether a block lies in the cube of an inode.
    pub(super) fn is_own(&self, inode: InodeNr, block: BlockNr) -> bool {
        let space = &self.volume.fs.space;
        let group = self.volume.geometry().group_of(block);
        group.is_some_and(|group| space.cube_of_group(group) == space.cube_of(inode))
    }

    /// Inodes that use a block of attributes.
    fn sharers(&mut self, block: BlockNr) -> Result<u32, OpError> {
        let bytes = self.tx.block(block)?;
        Ok(bytes.first_chunk().map(XattrHeader::decode).ok_or(DAMAGED)?.refcount)
    }

    /// Takes the block of attributes away from an inode, which goes on without it.
    fn drop_block(&mut self, inode: &mut OwnedInode) -> Result<(), OpError> {
        let Some(block) = self.attribute_block(inode)? else { return Ok(()) };
        let sharers = self.sharers(block)?;
        if sharers > 1 {
            let seed = self.volume.fs.seed();
            let bytes = self.tx.block_mut(block)?;
            let head = bytes.first_chunk_mut().ok_or(DAMAGED)?;
            let mut header = XattrHeader::decode(head);
            header.refcount = sharers - 1;
            header.encode_into(head);
            if let Some(seed) = seed {
                write_block_checksum(seed, block, bytes);
            }
        } else {
            self.release_metadata(BlockRun::new(block, 1))?;
        }
        file::count(&self.volume.fs, inode, -1);
        inode.set_file_acl(BlockNr(0));
        Ok(())
    }

    /// Takes all attributes away from an inode that is deleted, those with large values one by one; returns whether none are
    /// left, or a further step has to go on. The inode is the caller's to write.
    pub(crate) fn drop_attributes(&mut self, inode: &mut OwnedInode) -> Result<bool, OpError> {
        self.weigh(inode.number)?;
        loop {
            let mut own = self.in_inode(inode)?;
            if let Some(block) = self.attribute_block(inode)? {
                // Values of a block that others use stay: they count once for the block.
                if self.sharers(block)? <= 1 {
                    own.extend(self.in_block(inode)?);
                }
            }
            let Some(one) = own.into_iter().find(|one| one.held().is_some()) else { break };
            if self.is_half_full() {
                return Ok(false);
            }
            self.set(inode, one.name_index, &one.name, None, SetMode::Replace)?;
        }
        self.drop_block(inode)?;
        Ok(true)
    }

    /// Removes the attribute that continues inline data.
    pub(crate) fn drop_inline_attribute(&mut self, inode: &mut OwnedInode) -> Result<(), OpError> {
        let mut all = self.in_inode(inode)?;
        all.retain(|one| !one.is(INDEX_SYSTEM, ATTRIBUTE_NAME));
        self.write_inner(inode, &all)
    }
}
