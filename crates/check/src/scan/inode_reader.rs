//! Single inodes, read again: for the few whose fields a later pass needs.

use floe_format::ext::inode::Inode;
use floe_format::{BlockNr, InodeNr};

use crate::volume::Volume;

/// Reads inodes one at a time and keeps the last block of a table, so that neighbours cost one
/// read.
#[derive(Clone, Debug, Default)]
pub struct InodeReader {
    block: Option<BlockNr>,
    bytes: Vec<u8>,
}

impl InodeReader {
    /// The inode, as it is on the disk; `None` outside the file system, or if it cannot be read.
    pub fn read(&mut self, volume: &Volume<'_>, inode: InodeNr) -> Option<Inode<'_>> {
        let geometry = &volume.geometry;
        let (group, at) = geometry.place_of(inode)?;
        let per_block = geometry.block_size / geometry.inode_size;
        let table = volume.group(group).inode_table;
        let block = BlockNr(table.0.checked_add(u64::from(at / per_block))?);
        if !geometry.contains(block) {
            return None;
        }
        if self.block != Some(block) {
            self.block = None;
            volume.read_block(block, &mut self.bytes).ok()?;
            self.block = Some(block);
        }
        let start = (at % per_block) as usize * geometry.inode_size as usize;
        Inode::decode(self.bytes.get(start..start + geometry.inode_size as usize)?)
    }
}
