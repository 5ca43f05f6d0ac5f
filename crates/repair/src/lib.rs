//! What to do about a damaged ext2, ext3 or ext4 file system: the only crate that edits one.
//!
//! A repair is planned from the findings of a check, staged in memory, checked again until it is
//! clean, and only then written: old blocks go to an undo file first.

mod alloc;
pub mod build;
pub mod commit;
mod culprit;
pub mod describe;
pub mod edit;
pub mod extras;
pub mod failure;
pub mod file_map;
pub mod fixes;
mod informed;
pub mod ladder;
pub mod plan;
pub mod plan_file;
pub mod policy;
pub mod report;
pub mod safety;
pub mod session;
pub mod stage;
pub mod undo;

pub use culprit::{Owner, SharedBlocks, SharedGroup};
pub use edit::Edit;
pub use extras::Extras;
pub use session::{BadBlocks, Deed, Reason, Repair, RepairError, RepairOptions, repair};
