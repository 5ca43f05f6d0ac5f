//! Extended attributes, with names and values as `getxattr` returns them.

use floe_format::ext::inline_data::ATTRIBUTE_NAME;
use floe_format::ext::inode::InodeFlags;
use floe_format::ext::xattr::{
    self, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, INDEX_ENCRYPTION, INDEX_SYSTEM, MAX_VALUE_SIZE,
    XattrArea, XattrEntry, acl,
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
        let mut found = Found { files: self, attributes: Vec::new(), faults: Vec::new() };
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

struct Found<'f, 'd> {
    files: &'f Files<'d>,
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
            if self.attributes.iter().any(|one| one.name == name) {
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
            Some(holder) => self.value_in(holder, entry.value_size)?,
            None => area.value(entry)?.to_vec(),
        };
        if matches!(entry.name_index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT) {
            return acl::decode(&stored).ok().map(|entries| acl::encode_for_programs(&entries));
        }
        Some(stored)
    }

    /// The value stored in an inode of its own.
    fn value_in(&mut self, holder: InodeNr, value_size: u32) -> Option<Vec<u8>> {
        let node = self.files.node(holder).ok()?;
        let is_holder = node.flags().contains(InodeFlags::EA_INODE);
        if !is_holder || value_size > MAX_VALUE_SIZE || node.size_bytes() < u64::from(value_size) {
            return None;
        }
        let (content, mut faults) = self.files.stored(&node, false);
        let mut value = vec![0; value_size as usize];
        let len = content.read_at(0, &mut value, &mut faults);
        (len == value.len() && faults.is_empty()).then_some(value)
    }
}
