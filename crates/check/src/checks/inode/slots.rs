//! Slots of inode tables: each inode of a part that is read, with what its block says of it.

use std::mem::take;

use floe_format::ext::inode::Inode;
use floe_format::{BlockNr, InodeNr};

use crate::checks::context::inode::InodeEvidence;
use crate::checks::inode::plain_inodes::PlainInodes;
use crate::checks::inode::table_block::{TableBlock, TableContext};
use crate::problem::{Problem, Sink};
use crate::scan::inode_tables::{self, Ahead, TablePart};
use crate::volume::Volume;

/// Calls `each` with every inode of a part, without judging anything: for a second look.
pub(crate) fn for_each_inode(
    volume: &Volume<'_>,
    part: TablePart,
    evidence: &mut InodeEvidence,
    mut each: impl FnMut(&mut InodeEvidence, InodeNr, &Inode<'_>),
) {
    let mut next = || None;
    let ahead = Ahead::in_order(1, false, &mut next);
    for_each(volume, part, None, ahead, evidence, |evidence, at, raw, _| {
        if let Some(inode) = raw.and_then(Inode::decode) {
            each(evidence, volume.geometry.inode_at(part.group, part.first + at), &inode);
        }
    });
}

/// Reads the part and calls `each` with the index in the part, the bytes of the inode, and what its
/// block says. Blocks that cannot be read are reported; their inodes have no bytes.
pub fn for_each(
    volume: &Volume<'_>,
    part: TablePart,
    plain: Option<&PlainInodes<'_>>,
    ahead: Ahead<'_>,
    evidence: &mut InodeEvidence,
    mut each: impl FnMut(&mut InodeEvidence, u32, Option<&[u8]>, TableContext<'_>),
) {
    let geometry = &volume.geometry;
    let mut room = take(&mut evidence.buffers.tables);
    let tells_maps = evidence.buffers.read_ahead;
    inode_tables::for_each_piece(
        volume,
        part,
        ahead,
        tells_maps,
        &mut room,
        |piece, read, table| {
            for index in 0..piece.blocks {
                let place = TableBlockPlace {
                    part,
                    block: BlockNr(piece.run(volume).start.0 + u64::from(index)),
                    index: piece.first + index,
                };
                let bytes = index as usize * geometry.block_size as usize;
                let Some(slot) = table.get_mut(bytes..bytes + geometry.block_size as usize) else {
                    continue;
                };
                // A failed read is repeated block by block: only those that fail are lost.
                let readable =
                    read || volume.device.read_at(geometry.offset_bytes(place.block), slot).is_ok();
                let good =
                    readable && volume.doubts.bad_table_blocks.binary_search(&place.block).is_err();
                if !readable && !volume.is_absent(place.block) {
                    let (group, block) = (part.group, place.block);
                    evidence.found.push(Problem::UnreadableInodeTable { group, block });
                }
                slots_of_block(volume, place, plain, slot, good, evidence, &mut each);
            }
        },
    );
    evidence.buffers.tables = room;
}

/// A block of a part of an inode table.
#[derive(Clone, Copy)]
struct TableBlockPlace {
    part: TablePart,
    block: BlockNr,
    /// Its index in the table.
    index: u32,
}

/// Calls `each` with the inodes of one block that belong to the part.
fn slots_of_block(
    volume: &Volume<'_>,
    place: TableBlockPlace,
    plain: Option<&PlainInodes<'_>>,
    bytes: &mut [u8],
    good: bool,
    evidence: &mut InodeEvidence,
    each: &mut impl FnMut(&mut InodeEvidence, u32, Option<&[u8]>, TableContext<'_>),
) {
    let TableBlockPlace { part, block, index } = place;
    let inode_size = volume.geometry.inode_size;
    let begin = index * (volume.geometry.block_size / inode_size);
    let first = volume.geometry.inode_at(part.group, begin);
    // Before any of them is judged, which wants the bytes of the block for itself.
    let sums = plain.map(|rules| SumsOk::of_block(rules, first, bytes)).unwrap_or_default();
    let table = TableBlock::new(block, first, bytes);
    // Other chunks cover the inodes before and after this one.
    let before = part.first.saturating_sub(begin);
    let at = begin + before - part.first;
    let raws = bytes.chunks_exact(inode_size as usize).zip(0..).skip(before as usize);
    for (at, (raw, slot)) in (at..part.count).zip(raws) {
        let context = TableContext { volume, table: &table, checksum_ok: sums.get(slot) };
        each(evidence, at, good.then_some(raw), context);
    }
}

/// Which inodes of 256 bytes in a block of a table are known to have the right checksum: a bit each. The largest
/// blocks, of 64 KiB, have 256.
#[derive(Default)]
struct SumsOk([u64; 4]);

impl SumsOk {
    /// Judges the block whose first inode is `first`. Leaves its bytes unchanged.
    fn of_block(rules: &PlainInodes<'_>, first: InodeNr, bytes: &mut [u8]) -> Self {
        let mut all = Self::default();
        for ((word, raws), at) in all.0.iter_mut().zip(bytes.chunks_mut(64 * 256)).zip(0..) {
            *word = rules.checksums_ok(InodeNr(first.0.wrapping_add(64 * at)), raws);
        }
        all
    }

    fn get(&self, slot: usize) -> bool {
        self.0.get(slot / 64).is_some_and(|word| word >> (slot % 64) & 1 != 0)
    }
}
