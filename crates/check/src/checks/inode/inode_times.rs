//! Check: timestamps whose extra words cannot be right.
//! Reads: the inode.  Keeps: nothing.  Emits: `InodeTimeEpochMisencoded`, `TimestampNanosecondsBad`.

use crate::checks::context::inode::{InodeCx, InodeEvidence};
use crate::problem::{Problem, Sink};

/// From this time on (2242) dates with both epoch bits are near, so they prove nothing.
const EPOCH_TEST_ENDS: i64 = 1 << 33;

/// Whether the extra word of a timestamp needs a closer look. One test for all that can be wrong:
/// nanoseconds use the upper 30 bits, so a sound word with both epoch bits set is rare, and no sound
/// word is as large as 4 * 10^9.
#[inline]
fn is_doubtful(extra: u32) -> bool {
    (extra & 3 == 3) | (extra >= 4_000_000_000)
}

/// Whether one of some extra words needs a closer look. All are looked at: hardly any does.
#[inline]
pub(crate) fn any_is_doubtful(extras: [u32; 4]) -> bool {
    extras.iter().fold(false, |any, &extra| any | is_doubtful(extra))
}

/// Checks the timestamps of an inode in use.
#[inline]
pub fn check(cx: &InodeCx<'_>, evidence: &mut InodeEvidence) {
    let (base, extra) = (&cx.inode.base, &cx.inode.extra);
    let times = [
        ("i_ctime", 0x08, base.ctime, extra.ctime_extra),
        ("i_mtime", 0x0c, base.mtime, extra.mtime_extra),
        ("i_atime", 0x10, base.atime, extra.atime_extra),
        ("i_crtime", 0x18, extra.crtime, extra.crtime_extra),
    ];
    if !any_is_doubtful(times.map(|(_, _, _, extra)| extra)) {
        return;
    }
    let inode = cx.number;
    for (field, end, seconds, extra) in times {
        if !cx.inode.has_extra(end) {
            continue;
        }
        if cx.volume.now_seconds < EPOCH_TEST_ENDS && extra & 3 == 3 && seconds >> 31 == 1 {
            evidence.found.push(Problem::InodeTimeEpochMisencoded { inode, field, seconds, extra });
        }
        let value = extra >> 2;
        if value >= 1_000_000_000 {
            evidence.found.push(Problem::TimestampNanosecondsBad { inode, field, value });
        }
    }
}
