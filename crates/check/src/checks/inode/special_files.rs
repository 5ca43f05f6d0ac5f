//! Check: devices, FIFOs and sockets.
//! Reads: the inode.  Keeps: nothing.  Emits: `SpecialFileImmutableFlag`, `SpecialFileSizeNonzero`,
//! `SpecialFileExtentsOrInlineFlag`, `CharDeviceInvalid`, `BlockDeviceInvalid`, `FifoInvalid`,
//! `SocketInvalid`.

use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::features::Incompat;

use crate::checks::context::inode::{InodeCx, InodeEvidence};
use crate::problem::{Problem, Sink};

/// Checks an inode in use that is a device, a FIFO or a socket; any other type passes.
pub fn check(cx: &InodeCx<'_>, evidence: &mut InodeEvidence) {
    let Some(invalid) = invalid_row(cx.inode.file_type()) else { return };
    let (inode, flags) = (cx.number, cx.inode.flags());
    let volume = cx.volume;
    let known =
        volume.has_incompat(Incompat::EXTENTS) || volume.has_incompat(Incompat::INLINE_DATA);
    if known && flags.contains(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA) {
        // Both at once are no proof of another type: they are dropped together.
        extents_or_inline(cx, evidence);
    } else if let Some(reason) = invalid_reason(cx) {
        evidence.found.push(invalid(inode, reason));
        return;
    } else if flags.contains(InodeFlags::INLINE_DATA) {
        extents_or_inline(cx, evidence);
    }
    check_immutable(cx, evidence);
    let size = cx.inode.size_bytes();
    if size != 0 {
        evidence.found.push(Problem::SpecialFileSizeNonzero { inode, size });
    }
}

/// Reports a special file that cannot be changed: e2fsck doubts such
/// flags there, but a file system with them is clean. (Symlinks: `checks/inode/symlinks.rs`.)
fn check_immutable(cx: &InodeCx<'_>, evidence: &mut InodeEvidence) {
    let flags = cx.inode.flags() & (InodeFlags::IMMUTABLE | InodeFlags::APPEND);
    if !flags.is_empty() {
        let (inode, flags) = (cx.number, flags.bits());
        evidence.found.push(Problem::SpecialFileImmutableFlag { inode, flags });
    }
}

fn extents_or_inline(cx: &InodeCx<'_>, evidence: &mut InodeEvidence) {
    let flags = cx.inode.flags() & (InodeFlags::EXTENTS | InodeFlags::INLINE_DATA);
    evidence
        .found
        .push(Problem::SpecialFileExtentsOrInlineFlag { inode: cx.number, flags: flags.bits() });
}

type Invalid = fn(InodeNr, &'static str) -> Problem;

/// The problem of an invalid inode of a type; `None` for the other types.
fn invalid_row(file_type: Option<FileType>) -> Option<Invalid> {
    Some(match file_type? {
        FileType::CharDevice => |inode, reason| Problem::CharDeviceInvalid { inode, reason },
        FileType::BlockDevice => |inode, reason| Problem::BlockDeviceInvalid { inode, reason },
        FileType::Fifo => |inode, reason| Problem::FifoInvalid { inode, reason },
        FileType::Socket => |inode, reason| Problem::SocketInvalid { inode, reason },
        FileType::Regular | FileType::Directory | FileType::Symlink => return None,
    })
}

/// Why an inode cannot be a special file, if it cannot.
fn invalid_reason(cx: &InodeCx<'_>) -> Option<&'static str> {
    let flags = cx.inode.flags();
    if flags.contains(InodeFlags::INDEX) {
        return Some("it has an index");
    }
    if flags.contains(InodeFlags::EXTENTS) {
        return Some("it has extents");
    }
    // Old kernels left rubbish in the words of `i_block` that a device does not use, so they alone
    // prove nothing; with flags that the kernel refuses to set on a device they do.
    let locked = flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
    let rubbish = cx.inode.base.block.iter().skip(16).any(|&byte| byte != 0);
    (locked && rubbish).then_some("it is immutable and has block pointers")
}
