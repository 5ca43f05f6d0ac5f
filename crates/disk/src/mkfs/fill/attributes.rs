//! Extended attributes: divides them between the inode and a block, and with the feature ea_inode inodes that hold large values.

use floe_format::ext::inode::FileType;
use floe_format::ext::xattr::{
    IBODY_HEADER_SIZE, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, NewValue, NewXattr, XattrHeader,
    needed_bytes, split_name, write_block, write_inode,
};
use floe_format::ext::xattr::{acl, acl_valid, value_inode};
use floe_format::features::Incompat;
use floe_format::{BlockNr, InodeNr};

use super::values::Values;
use super::{TreePlan, inline};
use crate::mkfs::params::PlanError;
use crate::mkfs::plan::Plan;
use crate::mkfs::tree::{MOST_NAME_BYTES, Tree, Xattr};

/// An attribute as it is stored.
#[derive(Clone, Debug)]
struct Stored {
    name_index: u8,
    name: Box<[u8]>,
    value: Box<[u8]>,
    /// The value lies in an inode of its own.
    held: Option<Held>,
}

/// A value in an inode of its own.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// Its place among all values.
    at: usize,
    /// The inode, once it is known.
    inode: InodeNr,
    hash: u32,
}

impl Stored {
    fn new_xattr(&self) -> NewXattr<'_> {
        let value = match self.held {
            // At most 65,536 bytes.
            Some(Held { inode, hash, .. }) => {
                NewValue::Inode { inode, size_bytes: self.value.len() as u32, hash }
            }
            None => NewValue::Here(&self.value),
        };
        NewXattr { name_index: self.name_index, name: &self.name, value }
    }

    /// Bytes of the value beside the entries.
    fn here(&self) -> usize {
        if self.held.is_some() { 0 } else { self.value.len() }
    }

    /// Gives the value an inode of its own.
    fn hold(&mut self, plan: &Plan, values: &mut Values) {
        let hash = value_inode::value_hash(plan.superblock().seed(), &self.value);
        let at = values.add(&self.value, hash);
        self.held = Some(Held { at, inode: InodeNr(0), hash });
    }
}

/// How a set of attributes is stored with every inode that has it.
#[derive(Clone, Debug, Default)]
pub(super) struct SetForm {
    /// The bytes behind the inode's extra fields; empty if there are no attributes in the inode.
    pub(super) in_inode: Vec<u8>,
    /// The attributes in the inode.
    beside_data: Vec<Stored>,
    /// Bytes available behind the inode's extra fields.
    spare: usize,
    /// Bytes of `system.data` for which the inode has space; `None`: not even for an empty one.
    pub(super) room_behind: Option<usize>,
    /// The attributes in a block.
    in_block: Vec<Stored>,
    /// Why the set cannot be stored.
    fault: Option<String>,
}

impl SetForm {
    /// Whether an inode with this set needs a block.
    pub(super) fn needs_block(&self) -> bool {
        !self.in_block.is_empty()
    }

    /// The bytes behind the inode's extra fields for an inode with inline data, with `data` as
    /// `system.data`. `data` must be no longer than [`SetForm::room_behind`].
    pub(super) fn with_data(&self, data: &[u8]) -> Vec<u8> {
        let mut list: Vec<_> = self.beside_data.iter().map(Stored::new_xattr).collect();
        list.push(inline::attribute(data));
        let mut area = vec![0; self.spare];
        // The sizes were checked before.
        let _ = write_inode(&mut area, &list);
        area
    }

    /// The values that lie in inodes of their own, by their places among all values.
    pub(super) fn values(&self) -> impl Iterator<Item = usize> {
        let all = self.beside_data.iter().chain(&self.in_block);
        all.filter_map(|one| Some(one.held?.at))
    }

    /// Notes the inodes of values, and encodes the attributes in the inode, which were found to fit.
    pub(super) fn settle(&mut self, inode_of: impl Fn(usize) -> InodeNr) {
        let all = self.beside_data.iter_mut().chain(&mut self.in_block);
        all.filter_map(|one| one.held.as_mut()).for_each(|held| held.inode = inode_of(held.at));
        let list: Vec<_> = self.beside_data.iter().map(Stored::new_xattr).collect();
        if !list.is_empty() {
            self.in_inode = vec![0; self.spare];
            let _ = write_inode(&mut self.in_inode, &list);
        }
    }

    /// Why no inode of this type can have this set.
    fn fault_with(&self, file_type: FileType) -> Option<&str> {
        let all = || self.beside_data.iter().chain(&self.in_block);
        let has = |index| all().any(|one| one.name_index == index);
        let default = has(INDEX_ACL_DEFAULT);
        let fault = match file_type {
            FileType::Directory => None,
            FileType::Symlink => {
                (default || has(INDEX_ACL_ACCESS)).then_some("symbolic links have no access lists")
            }
            _ => default.then_some("only directories have a default access list"),
        };
        self.fault.as_deref().or(fault)
    }
}

/// The forms of all sets of a tree, by their index, and the values that need inodes of their own.
pub(super) fn forms(plan: &Plan, tree: &Tree) -> Result<(Vec<SetForm>, Values), PlanError> {
    let (mut forms, mut values) = (Vec::with_capacity(tree.xattr_sets()), Values::default());
    for set in tree.all_xattrs() {
        forms.push(form_of(plan, set, &mut values));
    }
    Ok((forms, values))
}

fn form_of(plan: &Plan, set: &[Xattr], values: &mut Values) -> SetForm {
    let faulty = |fault: &str| SetForm { fault: Some(fault.to_owned()), ..SetForm::default() };
    if plan.params.old_revision && !set.is_empty() {
        return faulty("revision 0 has no extended attributes");
    }
    let mut stored = Vec::with_capacity(set.len());
    for xattr in set {
        let Some((name_index, name)) = split_name(&xattr.name) else {
            return faulty("ext4 cannot store an attribute of this name");
        };
        if xattr.name.len() > MOST_NAME_BYTES {
            return faulty("the name of an attribute is longer than 255 bytes");
        }
        let value = match name_index {
            INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT => match list(name_index, &xattr.value) {
                Ok(value) => value.into(),
                Err(fault) => return faulty(&fault),
            },
            _ => xattr.value.clone(),
        };
        if value.len() > value_inode::MOST_VALUE_BYTES {
            return faulty("the value of an attribute is longer than 64 KiB");
        }
        let mut one = Stored { name_index, name: name.into(), value, held: None };
        if is_large(plan, one.value.len()) {
            one.hold(plan, values);
        }
        stored.push(one);
    }
    let spare = plan.form.size.saturating_sub(128 + usize::from(plan.form.extra_size));
    let room = spare.saturating_sub(IBODY_HEADER_SIZE);
    // Small ones first, because they are read most often (labels, ACLs).
    stored.sort_by_key(|one| (one.name.len() + one.here(), one.name_index));
    let (mut in_inode, mut in_block): (Vec<Stored>, Vec<Stored>) = Default::default();
    for one in stored {
        let mut with: Vec<_> = in_inode.iter().map(Stored::new_xattr).collect();
        with.push(one.new_xattr());
        if needed_bytes(&with) <= room { in_inode.push(one) } else { in_block.push(one) }
    }
    let mut form = SetForm { in_block, spare, ..SetForm::default() };
    let mut list: Vec<_> = in_inode.iter().map(Stored::new_xattr).collect();
    list.push(inline::attribute(&[]));
    // Values are padded to 4 bytes.
    form.room_behind = room.checked_sub(needed_bytes(&list)).map(|bytes| bytes & !3);
    form.beside_data = in_inode;
    let block = plan.geometry.block_size as usize - XattrHeader::SIZE;
    let needed =
        |all: &[Stored]| needed_bytes(&all.iter().map(Stored::new_xattr).collect::<Vec<_>>());
    while !form.in_block.is_empty() && needed(&form.in_block) > block {
        let largest =
            form.in_block.iter_mut().filter(|one| one.here() > 0).max_by_key(|one| one.here());
        match largest.filter(|_| plan.params.incompat(Incompat::EA_INODE)) {
            Some(one) => one.hold(plan, values),
            None => return faulty("its extended attributes need more than one block"),
        }
    }
    form
}

/// An access list as it is stored; an error says why it is none.
fn list(name_index: u8, value: &[u8]) -> Result<Vec<u8>, String> {
    let which = if name_index == INDEX_ACL_DEFAULT { "default access list" } else { "access list" };
    let Ok(entries) = acl::decode_for_programs(value) else {
        return Err(format!("its {which} is damaged"));
    };
    match acl_valid::fault(&entries) {
        Some(fault) => Err(format!("its {which} is invalid: {fault}")),
        None => Ok(acl::encode(&entries)),
    }
}

/// Whether a value of so many bytes lies in an inode of its own, whatever room there is.
fn is_large(plan: &Plan, bytes: usize) -> bool {
    let block = plan.geometry.block_size as usize;
    plan.params.incompat(Incompat::EA_INODE) && value_inode::is_large(block, bytes)
}

impl TreePlan<'_> {
    /// Refuses attributes that the node at an index of the order cannot have.
    pub(super) fn judge_attributes(&self, at: usize) -> Result<(), PlanError> {
        let file_type = self.tree.node(self.order[at]).file_type();
        match self.set_of(at).and_then(|set| set.fault_with(file_type)) {
            Some(fault) => Err(self.refuse(self.order[at], fault)),
            None => Ok(()),
        }
    }

    /// The form of the attributes of the node at an index of the order.
    pub(super) fn set_of(&self, at: usize) -> Option<&SetForm> {
        self.sets.get(self.tree.xattrs_of(self.order[at]).index())
    }

    /// The attribute block of the node at an index of the order, and its bytes.
    pub(super) fn attribute_block(&self, at: usize) -> Option<(BlockNr, Vec<u8>)> {
        let block = *self.attribute_blocks.get(&(at as u32))?;
        let list: Vec<_> = self.set_of(at)?.in_block.iter().map(Stored::new_xattr).collect();
        let mut bytes = vec![0; self.plan.geometry.block_size as usize];
        // The sizes were checked before.
        let native = self.plan.params.native.is_some();
        let hint = if native { self.number_at(at) } else { InodeNr(0) };
        let _ = write_block(&mut bytes, &list, self.plan.form.seed, block, hint);
        Some((block, bytes))
    }
}
