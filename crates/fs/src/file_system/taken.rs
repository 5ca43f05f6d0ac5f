//! Changes as file systems of this kind take them: what Linux's own code above and in ext4 makes of odd arguments.

use std::borrow::Cow;

use floe_format::ext::xattr::acl::{ACCESS, DEFAULT, decode_for_programs};
use floe_format::ext::xattr::acl_valid;

use super::FileSystem;
use crate::op::{Op, OpKind};
use crate::store::Store;
use crate::{FsError, Timestamp};

/// Attributes that hold access lists. One that is empty or goes is no list at all, whether there was one or not.
const LISTS: [&[u8]; 2] = [ACCESS, DEFAULT];
/// An access list without entries: its version alone.
const NO_ENTRIES: &[u8] = &[2, 0, 0, 0];
/// The namespaces in which every name is allowed, but for the empty one.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// `Err` for a name that no extended attribute can have.
///
/// # Errors
/// [`FsError::Invalid`] for a namespace without a name, [`FsError::Unsupported`] for no namespace.
pub(super) fn judge_attribute_name(name: &[u8]) -> Result<(), FsError> {
    if NAMESPACES.contains(&name) {
        return Err(FsError::Invalid);
    }
    let known = LISTS.contains(&name) || NAMESPACES.iter().any(|space| name.starts_with(space));
    if known { Ok(()) } else { Err(FsError::Unsupported("attributes of this kind")) }
}

/// `Err` for an access list that no program can set.
///
/// # Errors
/// [`FsError::Invalid`].
fn judge_list(name: &[u8], value: &[u8]) -> Result<(), FsError> {
    if !LISTS.contains(&name) || value.is_empty() || value == NO_ENTRIES {
        return Ok(());
    }
    match decode_for_programs(value) {
        Ok(entries) if acl_valid::fault(&entries).is_none() => Ok(()),
        _ => Err(FsError::Invalid),
    }
}

/// Whether a change takes an access list away, which succeeds without one, too.
pub(super) fn ends_list(kind: &OpKind<'_>) -> bool {
    matches!(kind, OpKind::RemoveAttribute { name, .. } if LISTS.contains(name))
}

impl<S: Store> FileSystem<S> {
    /// Nanoseconds between two times that inodes can tell: 1, or a second in inodes of 128 bytes.
    pub fn time_steps_ns(&self) -> u32 {
        let odd = Timestamp { seconds: 1, nanoseconds: 1 };
        if self.store.kept_time(odd) == odd { 1 } else { 1_000_000_000 }
    }

    /// The change that is made: with times that inodes can tell, and without access lists that are empty.
    pub(super) fn taken<'o, 'a>(&self, op: &'o Op<'a>) -> Result<Cow<'o, Op<'a>>, FsError> {
        let kept = |time: Timestamp| self.store.kept_time(time);
        let time = kept(op.time);
        if let OpKind::SetAttribute { name, .. } | OpKind::RemoveAttribute { name, .. } = op.kind {
            // The format has a number for `system.richacl`, which no Linux takes.
            judge_attribute_name(name)?;
        }
        if let OpKind::SetAttribute { name, value, .. } = op.kind {
            judge_list(name, value)?;
        }
        let kind = match op.kind {
            OpKind::Change { inode, size_bytes, mut change } => {
                change.accessed = change.accessed.map(kept);
                change.modified = change.modified.map(kept);
                OpKind::Change { inode, size_bytes, change }
            }
            OpKind::SetAttribute { inode, name, value, .. }
                if LISTS.contains(&name) && (value.is_empty() || value == NO_ENTRIES) =>
            {
                OpKind::RemoveAttribute { inode, name }
            }
            _ if time == op.time => return Ok(Cow::Borrowed(op)),
            ref kind => kind.clone(),
        };
        Ok(Cow::Owned(Op { time, kind, ..*op }))
    }
}

/// The times that inodes of ext4 tell, as Linux keeps them: `wide` ones have two more bits of seconds, and nanoseconds.
pub(crate) fn kept_time(time: Timestamp, wide: bool) -> Timestamp {
    let (first, last) = (i64::from(i32::MIN), if wide { LAST_WIDE } else { i64::from(i32::MAX) });
    let whole = !wide || time.seconds <= first || time.seconds >= last;
    let nanoseconds = if whole { 0 } else { time.nanoseconds };
    Timestamp { seconds: time.seconds.clamp(first, last), nanoseconds }
}

/// In the year 2446.
const LAST_WIDE: i64 = i32::MAX as i64 + (3 << 32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_cut_to_what_inodes_tell() {
        let at = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
        for (time, wide, narrow) in [
            (at(5, 7), at(5, 7), at(5, 0)),
            (at(-5, 7), at(-5, 7), at(-5, 0)),
            (at(1 << 40, 7), at(15_032_385_535, 0), at(2_147_483_647, 0)),
            (at(15_032_385_534, 7), at(15_032_385_534, 7), at(2_147_483_647, 0)),
            (at(i64::MIN, 7), at(-2_147_483_648, 0), at(-2_147_483_648, 0)),
        ] {
            assert_eq!((kept_time(time, true), kept_time(time, false)), (wide, narrow), "{time:?}");
        }
    }
}
