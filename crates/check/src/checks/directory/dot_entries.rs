//! Check: the first two entries of a directory, `.` and `..`.
//! Reads: the entries.  Keeps: the target of `..`.
//! Emits: 0x020001, 0x020009-0x02000C, 0x020016, 0x020017, 0x020024, and what `..` shares with
//! other entries.
//! Does not verify: that `..` names the right directory (`checks/directory/connectivity.rs`).

use floe_format::ext::dirent::{DirEntry, MIN_REC_LEN};
use floe_format::ext::inode::FileType;

use crate::checks::context::directory::{DirCx, DirEvidence};
use crate::checks::directory::dirents::check_type;
use crate::checks::directory::entry_rules::unusable_inode;
use crate::evidence::inode_facts::Facts;
use crate::problem::{Name, Problem, Sink};
use crate::scan::directory_blocks::DirBlock;

/// Checks the first entry of a directory.
pub(crate) fn check_dot(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    entry: &DirEntry<'_>,
    evidence: &mut DirEvidence,
) {
    let (dir, logical, offset_bytes) = (block.dir, block.logical(), entry.offset);
    let inode_named = entry.inode;
    if !entry.in_use() {
        evidence.found.push(Problem::DotEntryMissing { dir, logical });
        return;
    }
    if entry.name != b"." {
        let name = Name::new(entry.name);
        evidence.found.push(Problem::FirstEntryNotDot {
            dir,
            logical,
            offset_bytes,
            inode_named,
            name,
        });
        return;
    }
    if entry.record.get(9) != Some(&0) {
        evidence.found.push(Problem::DotEntryNotTerminated { dir, logical });
    }
    if inode_named == dir {
        let facts = cx.facts_of(dir, FileType::Directory as u8);
        if !facts.is_bad() {
            check_type(cx, block, entry, facts, evidence);
        }
        evidence.note_link(cx, dir, FileType::Directory);
    } else {
        evidence.found.push(Problem::DotEntryWrongInode { dir, logical, inode_named });
    }
    if entry.rec_len > 2 * MIN_REC_LEN {
        let record_len = entry.rec_len;
        evidence.found.push(Problem::DotEntryOversized { dir, logical, record_len });
    }
}

/// Checks the second entry of a directory and notes what it names, if that can be the parent.
pub(crate) fn check_dotdot(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    entry: &DirEntry<'_>,
    evidence: &mut DirEvidence,
) {
    let (dir, logical, offset_bytes) = (block.dir, block.logical(), entry.offset);
    let inode_named = entry.inode;
    if !entry.in_use() {
        evidence.found.push(Problem::DotdotEntryMissing { dir, logical });
        return;
    }
    let name = || Name::new(entry.name);
    if entry.name != b".." {
        let name = name();
        evidence.found.push(Problem::SecondEntryNotDotdot {
            dir,
            logical,
            offset_bytes,
            inode_named,
            name,
        });
        return;
    }
    if entry.record.get(10) != Some(&0) {
        evidence.found.push(Problem::DotdotEntryNotTerminated { dir, logical });
    }
    if cx.is_illegal(inode_named) {
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
    // Whether an entry that leads out of the cube names the parent is for the tree to tell. The check of one cube cannot see
    // the inode, and the check of all says the same.
    let facts = match cx.stays_in_cube(dir, inode_named) {
        true => cx.facts_of(inode_named, entry.file_type),
        false => Facts::used(Some(FileType::Directory)),
    };
    if !facts.is_used() || facts.is_bad() {
        if let Some(Some(problem)) = unusable_inode(cx, block, entry, facts) {
            evidence.found.push(problem);
        }
        return;
    }
    check_type(cx, block, entry, facts, evidence);
    evidence.dotdots.push((block.rank, inode_named));
    if let Some(file_type) = FileType::of_entry(entry.file_type) {
        evidence.note_link(cx, inode_named, file_type);
    }
}

/// Reports a `..` that never came because `.` fills the block.
pub(crate) fn check_ended(block: &DirBlock<'_>, dotdot_expected: bool, evidence: &mut DirEvidence) {
    if dotdot_expected {
        let (dir, logical) = (block.dir, block.logical());
        evidence.found.push(Problem::DotdotEntryMissing { dir, logical });
    }
}
