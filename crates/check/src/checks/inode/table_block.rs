//! Check: a block of an inode table of which more than half is garbage.
//! Reads: the block.  Keeps: nothing.  Emits: nothing itself: `checks/inode/inodes.rs` asks, for an inode
//! that looks wrong, and reports `inode-block-garbage`.  Costs nothing until asked.

use std::cell::OnceCell;

use floe_format::ext::extent::ExtentNode;
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::{BlockNr, InodeNr};

use crate::checks::context::inode::InodeCx;
use crate::volume::Volume;

/// A block of an inode table. Judged once, when the first of its inodes asks.
#[derive(Debug)]
pub struct TableBlock<'a> {
    bytes: &'a [u8],
    block: BlockNr,
    first: InodeNr,
    garbage: OnceCell<bool>,
}

impl<'a> TableBlock<'a> {
    /// The bytes of a block whose first inode is `first`.
    #[inline]
    pub const fn new(block: BlockNr, first: InodeNr, bytes: &'a [u8]) -> Self {
        Self { bytes, block, first, garbage: OnceCell::new() }
    }
}

/// Facts about an inode that follow from its block of the inode table.
#[derive(Clone, Copy)]
pub struct TableContext<'a> {
    /// The file system.
    pub volume: &'a Volume<'a>,
    /// The block.
    pub table: &'a TableBlock<'a>,
    /// The checksum of the inode is known to be right. `false` says nothing.
    pub checksum_ok: bool,
}

impl TableContext<'_> {
    /// The block.
    pub const fn block(&self) -> BlockNr {
        self.table.block
    }

    /// Whether an inode of the block looks like garbage, and so do more than half of the block's
    /// inodes (problem `inode-block-garbage`). A sound inode is never called garbage for the company
    /// that it keeps: it can be saved.
    #[inline]
    pub(crate) fn is_garbage(&self, cx: &InodeCx<'_>, checksum_ok: bool) -> bool {
        (!checksum_ok || maps_garbage(self.volume, cx.inode)) && self.garbage_block()
    }

    /// Whether more than half of the block's inodes are garbage; the first call judges them all. Counts only
    /// inodes that may be in use, because bytes behind the used part of a table are nobody's; half is that of
    /// the whole block all the same. A block of a single inode has no majority.
    #[cold]
    fn garbage_block(&self) -> bool {
        *self.table.garbage.get_or_init(|| {
            let inode_size = self.volume.geometry.inode_size as usize;
            let inodes = self.table.bytes.chunks_exact(inode_size.max(1));
            let count = inodes.len();
            let bad = inodes
                .zip(self.table.first.0..)
                .take(self.inodes_in_reach())
                .filter(|(raw, number)| is_garbage(self.volume, InodeNr(*number), raw))
                .count();
            count > 1 && bad > count / 2
        })
    }

    /// Inodes of the block that lie in the part of the table that may be in use.
    fn inodes_in_reach(&self) -> usize {
        let Some((group, index)) = self.volume.geometry.place_of(self.table.first) else {
            return 0;
        };
        self.volume.used_inodes_bound(group).saturating_sub(index) as usize
    }
}

/// Whether an inode by itself looks like garbage: its checksum, its extent root, or more than half
/// of its block pointers. An inode of zeroes never does.
fn is_garbage(volume: &Volume<'_>, number: InodeNr, raw: &[u8]) -> bool {
    let Some(inode) = Inode::decode(raw) else { return false };
    if raw.iter().all(|&byte| byte == 0) {
        return false;
    }
    let checksum_bad = volume.features().metadata_csum() && !inode.checksum_ok(volume.seed, number);
    checksum_bad || maps_garbage(volume, &inode)
}

/// Whether the extent root of an inode, or more than half of its block pointers, are garbage. The pointers of a
/// deleted inode say nothing: what was an extent root may lie there. Devices, pipes and sockets have no map,
/// whatever their flags say.
#[inline]
fn maps_garbage(volume: &Volume<'_>, inode: &Inode<'_>) -> bool {
    use FileType::{BlockDevice, CharDevice, Fifo, Socket};
    if matches!(inode.file_type(), Some(CharDevice | BlockDevice | Fifo | Socket)) {
        return false;
    }
    if inode.flags().contains(InodeFlags::EXTENTS) {
        return !ExtentNode::new(&inode.base.block).is_some_and(|root| root.header_ok());
    }
    if inode.base.links_count == 0 || !crate::checks::inode::symlinks::maps_blocks(volume, inode) {
        return false;
    }
    let outside = (0..15)
        .filter_map(|word| inode.block_word(word))
        .filter(|&word| word != 0 && !volume.geometry.contains(BlockNr(u64::from(word))))
        .count();
    outside > 15 / 2
}
