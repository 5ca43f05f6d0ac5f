//! Extended attributes, with names and values as `getxattr` returns them.

use floe_format::ext::inline_data::ATTRIBUTE_NAME;
use floe_format::ext::inode::InodeFlags;
use floe_format::ext::xattr::value_inode::{is_of_lustre, stored_hash, value_hash};
use floe_format::ext::xattr::{
    self, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, INDEX_ENCRYPTION, INDEX_SYSTEM, MAX_VALUE_SIZE,
    XattrArea, XattrEntry, acl, has_hash_of_inode,
};
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun, InodeNr};

use super::{FileFault, Files, Node, printable};

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// The whole name, such as `user.comment`.
    pub name: Vec<u8>,
    /// The value. Access control lists have the form that system calls use (version 2), not the
    /// stored one.
    pub value: Vec<u8>,
}

impl Files<'_> {
    /// The attributes of an inode, sorted by name, including values stored in inodes of their own.
    /// Inline data and encryption contexts, which programs do not see as attributes, are omitted.
    pub fn attributes(&self, node: &Node) -> (Vec<Attribute>, Vec<FileFault>) {
        self.attributes_of(node, Wanted::All)
    }

    /// The attribute of an inode with this name, if there is one. Faults of other attributes' values are not met.
    pub fn attribute(&self, node: &Node, name: &[u8]) -> (Option<Attribute>, Vec<FileFault>) {
        let (mut found, faults) = self.attributes_of(node, Wanted::Only(name));
        (found.pop(), faults)
    }

    /// The names of the attributes of an inode, sorted, those among them whose values cannot be read.
    pub fn attribute_names(&self, node: &Node) -> (Vec<Vec<u8>>, Vec<FileFault>) {
        let (found, faults) = self.attributes_of(node, Wanted::Names);
        (found.into_iter().map(|attribute| attribute.name).collect(), faults)
    }

    fn attributes_of(&self, node: &Node, wanted: Wanted<'_>) -> (Vec<Attribute>, Vec<FileFault>) {
        let (attributes, faults) = (Vec::new(), Vec::new());
        let mut found = Found { files: self, owner: node, wanted, attributes, faults };
        let inode = node.inode();
        if let Some(area) = XattrArea::of_inode(inode.xattr_area()) {
            found.take(&area);
        }
        let bit64 = self.geometry.features.incompat.contains(Incompat::BIT64);
        let block = BlockNr(inode.file_acl(bit64));
        if block.0 != 0 && !self.may_have(node.number, BlockRun::new(block, 1)) {
            found.faults.push(FileFault::AttributesOfAnother { block });
        } else if block.0 != 0 {
            match self.block(block) {
                Ok(bytes) => found.take_block(block, &bytes),
                Err(source) => {
                    found.faults.push(FileFault::AttributesUnreadable { block, source });
                }
            }
        }
        found.attributes.sort_by(|one, other| one.name.cmp(&other.name));
        (found.attributes, found.faults)
    }
}

/// The attributes that are looked for.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    All,
    /// The one with this name.
    Only(&'a [u8]),
    /// All, but not their values.
    Names,
}

struct Found<'f, 'd> {
    files: &'f Files<'d>,
    owner: &'f Node,
    wanted: Wanted<'f>,
    attributes: Vec<Attribute>,
    faults: Vec<FileFault>,
}

impl Found<'_, '_> {
    fn take_block(&mut self, block: BlockNr, bytes: &[u8]) {
        let files = self.files;
        let header = bytes.first_chunk().map(xattr::XattrHeader::decode);
        let is_block = header.is_some_and(|header| header.magic == xattr::MAGIC);
        let seed = files.superblock.seed();
        let sum_ok = !files.checksums() || xattr::block_checksum_ok(seed, block, bytes);
        if !is_block || !sum_ok {
            self.faults.push(FileFault::AttributesDamaged);
        }
        if is_block && let Some(area) = XattrArea::of_block(bytes) {
            self.take(&area);
        }
    }

    fn take(&mut self, area: &XattrArea<'_>) {
        for entry in area.entries() {
            let Ok(entry) = entry else {
                self.faults.push(FileFault::AttributesDamaged);
                return;
            };
            let inline = entry.name_index == INDEX_SYSTEM && entry.name == ATTRIBUTE_NAME;
            if inline || entry.name_index == INDEX_ENCRYPTION {
                continue;
            }
            let mut name = match xattr::prefix(entry.name_index) {
                Some(prefix) => prefix.as_bytes().to_vec(),
                None => format!("{}.", entry.name_index).into_bytes(),
            };
            name.extend(entry.name);
            // As in Linux, attributes in the inode take precedence over those in the block.
            let is_wanted = !matches!(self.wanted, Wanted::Only(wanted) if wanted != name);
            if !is_wanted || self.attributes.iter().any(|one| one.name == name) {
                continue;
            }
            if matches!(self.wanted, Wanted::Names) {
                self.attributes.push(Attribute { name, value: Vec::new() });
                continue;
            }
            match self.value(area, &entry) {
                Some(value) => self.attributes.push(Attribute { name, value }),
                None => {
                    self.faults.push(FileFault::AttributeValue { name: printable(&name) });
                }
            }
        }
    }

    fn value(&mut self, area: &XattrArea<'_>, entry: &XattrEntry<'_>) -> Option<Vec<u8>> {
        let stored = match entry.value_inode {
            Some(holder) => self.value_in(holder, entry)?,
            None => area.value(entry)?.to_vec(),
        };
        if matches!(entry.name_index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT) {
            return acl::decode(&stored).ok().map(|entries| acl::encode_for_programs(&entries));
        }
        Some(stored)
    }

    /// The value stored in an inode of its own. As in Linux, its hash must be that which the inode remembers, and the entry
    /// must have the hash that follows from it; values of old Lustre have none.
    fn value_in(&mut self, holder: InodeNr, entry: &XattrEntry<'_>) -> Option<Vec<u8>> {
        let node = self.files.node(holder).ok()?;
        let is_holder = node.flags().contains(InodeFlags::EA_INODE);
        let size = entry.value_size;
        if !is_holder || size > MAX_VALUE_SIZE || node.size_bytes() != u64::from(size) {
            return None;
        }
        let (content, mut faults) = self.files.value(&node);
        let mut value = vec![0; size as usize];
        let len = content.read_at(0, &mut value, &mut faults);
        let base = node.inode().base;
        let hash = stored_hash(&base);
        let is_proved = || {
            value_hash(self.files.superblock.seed(), &value) == hash
                && has_hash_of_inode(entry, hash)
        };
        let owner = (self.owner.number, self.owner.inode().base.generation);
        let is_whole = len == value.len() && faults.is_empty();
        let is_value = is_whole && (is_of_lustre(&base, owner) || is_proved());
        is_value.then_some(value)
    }
}
