//! Structures of native file systems: ext4 with lots, regions and a seal (`docs/native.md`). They lie
//! where ext4, e2fsck and Linux keep bytes that they do not know.

pub mod backpointer;
pub mod commit;
pub mod cube;
pub mod identity;
pub mod lot;

use crate::ext::superblock::Superblock;
use identity::Identity;

/// Bit of `s_feature_incompat` that no other program knows: journals besides inode 8 may hold changes, which only Floe can
/// recover. Set in the primary superblock and all backups before the first such change.
pub const LOCK: u32 = 0x4000_0000;

/// Whether a native file system has the bit [`LOCK`].
pub fn is_locked(superblock: &Superblock) -> bool {
    superblock.feature_incompat & LOCK != 0 && Identity::of(superblock).is_some()
}
