//! Check: directories whose entries lie in the inode.
//! Reads: the inodes.  Keeps: as `checks/directory/dirents.rs`.
//! Emits: 0x02004E, 0x020020 (the inode cannot be read), and what `checks/directory/dirents.rs` does.
//! Does not verify: that the inode has inline data at all (the inode pass).

use floe_exec::Pool;
use floe_format::ext::inline_data::{
    IN_BLOCK_SIZE, InlineData, InlineDirSize, PARENT_SIZE, judge_dir_size,
};
use floe_format::ext::inode::{FileType, Inode};
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use crate::checks::context::directory::{DirCx, DirEvidence};
use crate::checks::directory::dirents;
use crate::checks::xattr::encryption::is_encrypted;
use crate::evidence::dirs::DirFlags;
use crate::problem::{Name, Problem, Sink};
use crate::scan::directory_blocks::DirBlock;
use crate::scan::inode_reader::InodeReader;

/// Inodes of one unit of work.
const UNIT: usize = 256;

/// Checks all inline directories.
pub fn run(cx: &DirCx<'_>, pool: &Pool) -> DirEvidence {
    run_over(cx, &cx.dirs.inline, pool)
}

/// Checks some inline directories.
pub(crate) fn run_over(cx: &DirCx<'_>, dirs: &[InodeNr], pool: &Pool) -> DirEvidence {
    let units: Vec<_> = dirs.chunks(UNIT).collect();
    pool.run(&units, |evidence: &mut DirEvidence, unit: &&[InodeNr]| {
        let mut reader = InodeReader::default();
        for &dir in *unit {
            check_one(cx, dir, &mut reader, evidence);
        }
    })
}

fn check_one(cx: &DirCx<'_>, dir: InodeNr, reader: &mut InodeReader, evidence: &mut DirEvidence) {
    let Some(rank) = cx.index.get(dir) else { return };
    let Some(inode) = reader.read(cx.volume, dir) else {
        let (logical, block) = (LogicalBlock(0), BlockNr(0));
        evidence.found.push(Problem::DirBlockReadError { dir, logical, block });
        return;
    };
    // Without usable inline data there is nothing to look at; the inode pass has said so.
    let Some(data) = InlineData::of(&inode) else { return };
    check_parent(cx, dir, rank, data.parent(), evidence);
    let size = data.capacity_bytes() as u64;
    if judge_dir_size(size) != InlineDirSize::Good {
        evidence.found.push(Problem::InlineDirectorySizeBad { dir, size });
    }
    for_each_part(&inode, dir, rank, |block| dirents::check_block(cx, &block, evidence));
}

/// Hands out the parts of an inline directory as blocks: the first without its parent field.
pub(crate) fn for_each_part(
    inode: &Inode<'_>,
    dir: InodeNr,
    rank: u32,
    mut each: impl FnMut(DirBlock<'_>),
) {
    let Some(data) = InlineData::of(inode) else { return };
    let base = DirBlock {
        dir,
        rank,
        generation: inode.base.generation,
        logical: 0,
        block: BlockNr(0),
        flags: flags_of(dir, inode),
        bytes: &[],
    };
    each(DirBlock { bytes: data.in_block.get(PARENT_SIZE..IN_BLOCK_SIZE).unwrap_or(&[]), ..base });
    // A rest that no entry fits into was reported with the size.
    let rest = data.in_xattr.get(..data.in_xattr.len() & !3).unwrap_or(&[]);
    if rest.len() >= 12 {
        each(DirBlock { bytes: rest, logical: 1, ..base });
    }
}

fn flags_of(dir: InodeNr, inode: &Inode<'_>) -> DirFlags {
    use floe_format::ext::inode::InodeFlags;
    let flags = inode.flags();
    let mut known = DirFlags::INLINE;
    known.set(DirFlags::ENCRYPTED, is_encrypted(dir, flags));
    known.set(DirFlags::CASEFOLD, flags.contains(InodeFlags::CASEFOLD));
    known
}

/// Judges the parent that stands for `..`.
fn check_parent(
    cx: &DirCx<'_>,
    dir: InodeNr,
    rank: u32,
    parent: InodeNr,
    evidence: &mut DirEvidence,
) {
    let logical = LogicalBlock(0);
    if parent.0 == 0 {
        evidence.found.push(Problem::DotdotEntryMissing { dir, logical });
        return;
    }
    let (offset_bytes, inode_named) = (0, parent);
    let name = || Name::new(b"..");
    if cx.is_illegal(parent) {
        let name = name();
        evidence.found.push(Problem::DirentInodeIllegal {
            dir,
            logical,
            offset_bytes,
            inode_named,
            name,
        });
        return;
    }
    evidence.note_assumed(cx, parent, FileType::Directory as u8);
    evidence.note_assumed(cx, dir, FileType::Directory as u8);
    let facts = cx.facts_of(parent, FileType::Directory as u8);
    if facts.is_bad() {
        return;
    }
    if !facts.is_used() {
        let name = name();
        evidence.found.push(Problem::DirentInodeUnused {
            dir,
            logical,
            offset_bytes,
            inode_named,
            name,
        });
        return;
    }
    evidence.dotdots.push((rank, parent));
    // `.` is implied.
    evidence.note_link(cx, dir, FileType::Directory);
    evidence.note_link(cx, parent, FileType::Directory);
}
