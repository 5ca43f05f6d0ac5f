//! Extended attributes: divides them between the inode and a block.

use floe_format::ext::xattr::acl;
use floe_format::ext::xattr::{
    IBODY_HEADER_SIZE, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, NewValue, NewXattr, XattrHeader,
    needed_bytes, split_name, write_block, write_inode,
};
use floe_format::{BlockNr, InodeNr};

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
}

impl Stored {
    fn new_xattr(&self) -> NewXattr<'_> {
        NewXattr {
            name_index: self.name_index,
            name: &self.name,
            value: NewValue::Here(&self.value),
        }
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
    fault: Option<&'static str>,
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

    /// Why no inode can have this set.
    pub(super) fn fault(&self) -> Option<&'static str> {
        self.fault
    }
}

/// The forms of all sets of a tree, by their index.
pub(super) fn forms(plan: &Plan, tree: &Tree) -> Result<Vec<SetForm>, PlanError> {
    let mut forms = Vec::with_capacity(tree.xattr_sets());
    for set in tree.all_xattrs() {
        forms.push(form_of(plan, set));
    }
    Ok(forms)
}

fn form_of(plan: &Plan, set: &[Xattr]) -> SetForm {
    let faulty = |fault| SetForm { fault: Some(fault), ..SetForm::default() };
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
            INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT => match acl::decode_for_programs(&xattr.value) {
                Ok(entries) => acl::encode(&entries).into(),
                Err(_) => return faulty("its access control list is damaged"),
            },
            _ => xattr.value.clone(),
        };
        stored.push(Stored { name_index, name: name.into(), value });
    }
    let spare = plan.form.size.saturating_sub(128 + usize::from(plan.form.extra_size));
    let room = spare.saturating_sub(IBODY_HEADER_SIZE);
    // Small ones first, because they are read most often (labels, ACLs).
    stored.sort_by_key(|one| (one.name.len() + one.value.len(), one.name_index));
    let (mut in_inode, mut in_block): (Vec<Stored>, Vec<Stored>) = Default::default();
    for one in stored {
        let mut with: Vec<_> = in_inode.iter().map(Stored::new_xattr).collect();
        with.push(one.new_xattr());
        if needed_bytes(&with) <= room { in_inode.push(one) } else { in_block.push(one) }
    }
    let mut form = SetForm { in_block, spare, ..SetForm::default() };
    let mut list: Vec<_> = in_inode.iter().map(Stored::new_xattr).collect();
    if !in_inode.is_empty() {
        form.in_inode = vec![0; spare];
        if write_inode(&mut form.in_inode, &list).is_err() {
            return faulty("its attributes do not fit in the inode");
        }
    }
    list.push(inline::attribute(&[]));
    // Values are padded to 4 bytes.
    form.room_behind = room.checked_sub(needed_bytes(&list)).map(|bytes| bytes & !3);
    form.beside_data = in_inode;
    let list: Vec<_> = form.in_block.iter().map(Stored::new_xattr).collect();
    let block = plan.geometry.block_size as usize - XattrHeader::SIZE;
    if !list.is_empty() && needed_bytes(&list) > block {
        return faulty("its extended attributes need more than one block");
    }
    form
}

impl TreePlan<'_> {
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
