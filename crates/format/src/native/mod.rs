//! Structures of native file systems: ext4 with lots, regions and a seal (`docs/native.md`). They lie
//! where ext4, e2fsck and Linux keep bytes that they do not know.

pub mod backpointer;
pub mod cube;
pub mod identity;
pub mod lot;
