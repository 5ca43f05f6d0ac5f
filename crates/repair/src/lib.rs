//! Repairs damaged ext2, ext3 and ext4 file systems.
//!
//! A repair is planned from the findings of a check, staged in memory, checked again until it is
//! clean, and only then written; an undo file saves the old blocks first.
//!
//! [`repair()`] plans and stages, asking a [`policy::Policy`] for decisions; it never writes to the
//! device. The returned [`Repair`] lists every change with its cost, and the findings left. The
//! crate `floe-report` prints it, [`Repair::commit`] writes it, and [`undo::undo`] reverts it.
//!
//! ```
//! use floe_blockdev::MemDevice;
//! use floe_repair::policy::Preen;
//! use floe_repair::{RepairError, RepairOptions, repair};
//!
//! let noise = MemDevice::new(vec![0x5a; 1 << 20]);
//! let answer = repair(&noise, &RepairOptions::default(), &mut Preen);
//! assert!(matches!(answer, Err(RepairError::Check(_))));
//! ```

#![warn(clippy::print_stderr, clippy::print_stdout)] // messages are the program's

mod attribute_value;
mod better_edits;
pub mod commit;
pub mod cube;
pub mod deed;
pub mod describe;
pub mod edit;
pub mod escalation;
pub mod extras;
pub mod failure;
pub mod file_map;
pub mod fixes;
pub mod identifiers;
mod moves;
pub mod multi_mount;
pub mod plan;
pub mod plan_file;
pub mod policy;
mod proof;
pub mod safety;
mod second_finding;
pub mod session;
mod shared_owners;
pub mod stage;
pub mod undo;

pub use deed::{Deed, Fate, Reason};
pub use edit::Edit;
pub use extras::Extras;
pub use moves::{Left, Moves, Stays};
pub use session::left::{FileLeft, Place};
pub use session::{
    BadBlocks, Moving, Repair, RepairError, RepairOptions, Skip, repair, repair_unless,
};
pub use shared_owners::{Owner, SharedBlocks, SharedGroup};
