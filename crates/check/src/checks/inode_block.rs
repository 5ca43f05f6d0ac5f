//! Check: a block of an inode table of which more than half is garbage.
//! Reads: the block.  Keeps: nothing.  Emits: nothing itself (`checks/inodes.rs` does, for each inode).

use floe_format::InodeNr;

use crate::inode_pass::TableContext;
use crate::volume::Volume;

/// Judges a block of the table by its inodes (problem `inode-block-garbage`).
pub fn judge(_volume: &Volume<'_>, _first: InodeNr, _block: &[u8]) -> TableContext {
    TableContext::default()
}
