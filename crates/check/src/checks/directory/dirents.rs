//! Check: the entries of one directory block.
//! Reads: the block, and what the inode pass knows of the inodes it names.
//! Keeps: links of files, parents of directories, targets of `..`, hashes of indexed directories.
//! Emits: 0x020001-0x02001D, 0x020024, 0x020027-0x020030, 0x020043, 0x020046, 0x020047,
//! 0x02004C, 0x02004D, 0x020053; and by its helpers (`dot_entries`, `entry_rules`) the others of
//! pass 2 about entries.
//! Does not verify: that a directory has one name and the right parent (`checks/directory/connectivity.rs`),
//! link counts (`checks/directory/link_counts.rs`), index blocks (`checks/directory/htree.rs`).
//!
//! An entry that a repair would clear is reported and counts for nothing; what follows from it is
//! not reported again. The verdict is the same, the list of findings is that of causes.

use floe_format::InodeNr;
use floe_format::ext::casefold;
use floe_format::ext::dirent::{
    DirCursor, DirEntry, DirFault, DirTail, TAIL_SIZE, TailState, tail_state,
};
use floe_format::ext::htree::DxBlock;
use floe_format::ext::inode::FileType;
use floe_format::features::Compat;

use crate::checks::context::directory::{DirCx, DirEvidence};
use crate::checks::directory::entry_rules::{Crossing, accept};
use crate::checks::directory::{dot_entries, htree, plain_entries};
use crate::evidence::dirs::DirFlags;
use crate::evidence::inode_facts::Facts;
use crate::evidence::name_set::scan_name;
use crate::problem::{Name, Problem, Sink, Weight};
use crate::scan::directory_blocks::DirBlock;

/// The checksum of a block, as its form says where it is.
enum Checksum {
    /// Right, or the file system has none.
    Good,
    /// Wrong.
    Bad { stored: u32, expected: u32 },
}

/// How far the entries of a block may reach, and what its checksum says.
struct Frame {
    end: usize,
    checksum: Checksum,
    /// A linear block should have a tail and has none.
    tail_missing: bool,
}

/// Checks one block that was read.
pub fn check_block(cx: &DirCx<'_>, block: &DirBlock<'_>, evidence: &mut DirEvidence) {
    evidence.met.go_to(cx.region_of(block.block));
    if plain_entries::check(cx, block, evidence) {
        return;
    }
    let index = htree::begin(cx, block);
    let frame = frame(cx, block, index.is_leaf());
    let before = evidence.found.0.len();
    let mut hashes = index.leaf_hashes(cx, block);
    let dirty = check_entries(cx, block, frame.end, &mut hashes, evidence);
    // If another repair rewrites the block, it renews the checksum as well.
    let sound = !dirty
        && evidence
            .found
            .0
            .get(before..)
            .unwrap_or(&[])
            .iter()
            .all(|problem| problem.row().weight == Weight::Remark);
    match (frame.checksum, index.is_leaf()) {
        (Checksum::Bad { stored, expected }, true) if sound && !frame.tail_missing => {
            evidence.found.push(Problem::DirBlockChecksumBad {
                dir: block.dir,
                logical: block.logical(),
                stored,
                expected,
            });
        }
        _ => {}
    }
    if frame.tail_missing && !dirty {
        evidence.found.push(Problem::DirBlockChecksumTailMissing {
            dir: block.dir,
            logical: block.logical(),
        });
        evidence.htree.dropped.push(block.dir);
    }
    index.finish(cx, block, hashes, evidence);
}

/// Looks for the checksum tail of a block and compares the checksum.
fn frame(cx: &DirCx<'_>, block: &DirBlock<'_>, is_leaf: bool) -> Frame {
    let bytes = block.bytes;
    let whole = Frame { end: bytes.len(), checksum: Checksum::Good, tail_missing: false };
    if !cx.metadata_csum || !is_leaf || block.flags.contains(DirFlags::INLINE) {
        return whole;
    }
    let top = bytes.len().saturating_sub(TAIL_SIZE);
    let seed = cx.volume.seed.of_inode(block.dir, block.generation);
    if let Some(tail) = DirTail::of(bytes) {
        // Whether the entries lead to it is seen when they are followed; if they do not, that is
        // what gets reported, or `bare_frame` says otherwise.
        let expected = DirTail::compute_checksum(seed, bytes);
        if tail.checksum == expected {
            return Frame { end: top, ..whole };
        }
        if tail_state(bytes) == TailState::Present {
            let checksum = Checksum::Bad { stored: tail.checksum, expected };
            return Frame { end: top, checksum, ..whole };
        }
    }
    bare_frame(bytes, seed, whole)
}

/// The frame of a linear block whose tail is not where it should be.
#[cold]
fn bare_frame(bytes: &[u8], seed: u32, whole: Frame) -> Frame {
    match tail_state(bytes) {
        TailState::Present | TailState::ChainBroken => whole,
        TailState::Missing => {
            // The form of an index block with the right checksum, in a directory without an index:
            // its '..' or its one entry covers the place of the tail, which is damage.
            let is_index = DxBlock::detect(bytes).is_some_and(|(_, index)| index.checksum_ok(seed));
            if is_index {
                return Frame { end: whole.end.saturating_sub(TAIL_SIZE), ..whole };
            }
            Frame { tail_missing: true, ..whole }
        }
    }
}

/// Follows the entries of a block and checks each. Returns whether the chain of entries is broken.
fn check_entries(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    end: usize,
    hashes: &mut htree::LeafHashes,
    evidence: &mut DirEvidence,
) -> bool {
    let mut room = std::mem::take(&mut evidence.room.salvaged);
    let mut position = Position::of(block);
    evidence.note_assumed(cx, block.dir, FileType::Directory as u8);
    evidence.room.names.begin(block.bytes.len());
    let mut twice = false;
    let broken = walk(cx, block, end, &mut room, |bytes, entry| {
        let at = position;
        position = at.next();
        evidence.met.note(entry.inode.0, entry.inode.0);
        evidence.note_assumed(cx, entry.inode, entry.file_type);
        match at {
            Position::Dot => dot_entries::check_dot(cx, block, entry, evidence),
            Position::Dotdot => dot_entries::check_dotdot(cx, block, entry, evidence),
            Position::Other => {
                if !entry.in_use() {
                    return;
                }
                let crossing = Crossing::of(cx, block, entry);
                if crossing == Crossing::Allowed {
                    report_entangled(cx, block, entry, evidence);
                }
                let found = Some(&mut evidence.found);
                let Some(facts) = accept(cx, block, entry, crossing, found) else { return };
                check_type(cx, block, entry, facts, evidence);
                hashes.add(cx, block, entry);
                if !twice {
                    twice = check_duplicate(cx, block, bytes, entry, evidence);
                }
                count(cx, block, entry, facts, evidence);
            }
        }
    });
    if let Some(fault) = broken {
        report_fault(block, fault, evidence);
    }
    dot_entries::check_ended(block, position == Position::Dotdot, evidence);
    evidence.room.salvaged = room;
    broken.is_some()
}

/// Which entry of a directory comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The first entry of block 0.
    Dot,
    /// The second one.
    Dotdot,
    /// Any other.
    Other,
}

impl Position {
    /// The first entry of a block.
    #[inline]
    pub fn of(block: &DirBlock<'_>) -> Self {
        // In an inline directory both are implied.
        if block.logical == 0 && !block.flags.contains(DirFlags::INLINE) {
            Self::Dot
        } else {
            Self::Other
        }
    }

    /// The entry behind.
    #[must_use]
    #[inline]
    pub fn next(self) -> Self {
        if self == Self::Dot { Self::Dotdot } else { Self::Other }
    }
}

/// Hands each entry of a block to `each`, with the block as mended so far: where the chain breaks,
/// it is mended in `room` as a repair would and followed further. Returns the first break.
pub fn walk(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    end: usize,
    room: &mut Vec<u8>,
    mut each: impl FnMut(&[u8], &DirEntry<'_>),
) -> Option<DirFault> {
    let hashed = block.hashed();
    let mut previous = None;
    let first = follow(block.bytes, end, 0, hashed, &mut previous, &mut each)?;
    room.clear();
    room.extend_from_slice(block.bytes);
    let mut fault = first;
    // Each step shortens what is left by 4 bytes at least; the bound is for entries that stay too
    // short for their hash whatever is done.
    for _ in 0..=end / 4 {
        let at = fault.offset as usize;
        let inodes_count = cx.volume.geometry.inodes_count;
        let at = floe_ext4::dir::mend::mend(room, at, end, previous, inodes_count);
        match follow(room, end, at, hashed, &mut previous, &mut each) {
            Some(next) => fault = next,
            None => break,
        }
    }
    Some(first)
}

/// Hands out entries from byte `at` on until the end or a break.
#[inline]
fn follow(
    bytes: &[u8],
    end: usize,
    at: usize,
    hashed: bool,
    previous: &mut Option<usize>,
    each: &mut impl FnMut(&[u8], &DirEntry<'_>),
) -> Option<DirFault> {
    for item in DirCursor::new(bytes).ending_at(end).starting_at(at).hashed(hashed) {
        match item {
            Ok(entry) => {
                *previous = Some(entry.offset as usize);
                each(bytes, &entry);
            }
            Err(fault) => return Some(fault),
        }
    }
    None
}

/// Where the entries of a block end, for a second look at it.
pub fn end_of(cx: &DirCx<'_>, block: &DirBlock<'_>) -> usize {
    frame(cx, block, htree::begin(cx, block).is_leaf()).end
}

#[cold]
fn report_fault(block: &DirBlock<'_>, fault: DirFault, evidence: &mut DirEvidence) {
    let name_len = block.bytes.get(fault.offset as usize + 6).copied().unwrap_or(0);
    evidence.found.push(Problem::DirentStructureCorrupt {
        dir: block.dir,
        logical: block.logical(),
        offset_bytes: fault.offset,
        record_len: fault.rec_len,
        name_len,
    });
}

/// Compares the type byte of an entry with the type of its inode.
#[inline]
pub(crate) fn check_type(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    entry: &DirEntry<'_>,
    facts: Facts,
    evidence: &mut DirEvidence,
) {
    let expected = if cx.filetype { facts.file_type().map_or(0, |kind| kind as u8) } else { 0 };
    if entry.file_type != expected {
        report_type(cx, block, entry, expected, evidence);
    }
}

#[cold]
fn report_type(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    entry: &DirEntry<'_>,
    expected: u8,
    evidence: &mut DirEvidence,
) {
    let (dir, logical, offset_bytes) = (block.dir, block.logical(), entry.offset);
    let (inode_named, name, stored) = (entry.inode, Name::new(entry.name), entry.file_type);
    evidence.found.push(if !cx.filetype {
        Problem::DirentTypeUnsupported { dir, logical, offset_bytes, inode_named, name, stored }
    } else if stored == 0 {
        Problem::DirentTypeUnset { dir, logical, offset_bytes, inode_named, name, expected }
    } else {
        Problem::DirentTypeWrong { dir, logical, offset_bytes, inode_named, name, stored, expected }
    });
}

/// Reports a name that leads into another cube.
#[cold]
fn report_entangled(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    entry: &DirEntry<'_>,
    evidence: &mut DirEvidence,
) {
    let (Some(cubes), geometry) = (&cx.volume.cubes, &cx.volume.geometry) else { return };
    let (dir, logical, offset_bytes) = (block.dir, block.logical(), entry.offset);
    let inode_named = entry.inode;
    let (cube, other) = (cubes.of_inode(geometry, dir), cubes.of_inode(geometry, inode_named));
    evidence.found.push(Problem::CubeEntangledName {
        dir,
        logical,
        offset_bytes,
        inode_named,
        cube,
        other,
    });
}

/// Judges the bytes of a name and looks for it among those before it in the block. Returns whether
/// it was there: one such finding a block is enough to have the directory rebuilt.
fn check_duplicate(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    bytes: &[u8],
    entry: &DirEntry<'_>,
    evidence: &mut DirEvidence,
) -> bool {
    let encrypted = block.flags.contains(DirFlags::ENCRYPTED);
    let folds = block.flags.contains(DirFlags::CASEFOLD) && !encrypted;
    let mut scan = scan_name(entry.name);
    let is_text = !(folds && cx.strict_encoding) || check_encoding(block, entry, evidence);
    if is_text && scan.illegal && !encrypted {
        report_illegal(block, entry, evidence);
        return false;
    }
    if folds && let Ok(folded) = casefold::fold(entry.name) {
        scan.hash = scan_name(&folded).hash;
    }
    let name_at = |other: u32| {
        let other = other as usize;
        let len = usize::from(bytes.get(other + 6).copied().unwrap_or(0));
        bytes.get(other + 8..other + 8 + len).unwrap_or(&[])
    };
    let first = evidence.room.names.insert(scan.hash, entry.offset, |other| {
        let other = name_at(other);
        other == entry.name || (folds && casefold::same_name(other, entry.name))
    });
    let Some(first) = first else { return false };
    let first_inode = bytes
        .get(first as usize..)
        .and_then(<[u8]>::first_chunk)
        .map_or(0, |bytes| u32::from_le_bytes(*bytes));
    evidence.found.push(Problem::DirentDuplicateInBlock {
        dir: block.dir,
        logical: block.logical(),
        offset_bytes: entry.offset,
        inode_named: entry.inode,
        name: Name::new(entry.name),
        first_inode: InodeNr(first_inode),
    });
    evidence.htree.dropped.push(block.dir);
    true
}

#[cold]
fn report_illegal(block: &DirBlock<'_>, entry: &DirEntry<'_>, evidence: &mut DirEvidence) {
    evidence.found.push(Problem::DirentNameIllegalChar {
        dir: block.dir,
        logical: block.logical(),
        offset_bytes: entry.offset,
        inode_named: entry.inode,
        name: Name::new(entry.name),
    });
}

/// With the strict flag, a name in a casefolded directory must be valid text. Returns whether it is.
fn check_encoding(block: &DirBlock<'_>, entry: &DirEntry<'_>, evidence: &mut DirEvidence) -> bool {
    let is_text = casefold::validate(entry.name).is_ok();
    if !is_text {
        evidence.found.push(Problem::CasefoldNameInvalidEncoding {
            dir: block.dir,
            logical: block.logical(),
            offset_bytes: entry.offset,
            inode_named: entry.inode,
            name: Name::new(entry.name),
        });
    }
    is_text
}

/// Notes what an entry that stays leads to.
#[inline]
fn count(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    entry: &DirEntry<'_>,
    facts: Facts,
    evidence: &mut DirEvidence,
) {
    evidence.entries += 1;
    if block.dir == InodeNr::ROOT {
        note_in_root(cx, block, entry, evidence);
    }
    if facts.is_dir()
        && let Some(child) = cx.index.get(entry.inode)
    {
        evidence.named.push((child, block.rank));
    } else if cx.volume.keeps(entry.inode) {
        evidence.links_in(cx).add(entry.inode);
    }
    if let Some(file_type) = FileType::of_entry(entry.file_type) {
        evidence.note_link(cx, entry.inode, file_type);
    }
}

/// Notes what only the root directory holds: lost+found, and on old file systems the journal.
#[cold]
fn note_in_root(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    entry: &DirEntry<'_>,
    evidence: &mut DirEvidence,
) {
    if entry.name == b"lost+found" {
        evidence.note_lost_found(block.logical, entry);
    }
    // A reserved inode is refused before: no name may lead to it.
    let journal = cx.volume.superblock.journal_inum;
    if entry.inode.0 == journal && cx.volume.has_compat(Compat::HAS_JOURNAL) {
        let (inode, name) = (entry.inode, Name::new(entry.name));
        evidence.found.push(Problem::JournalFileVisible { inode, name });
    }
}
