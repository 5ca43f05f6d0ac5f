//! What to do about a damaged ext2, ext3 or ext4 file system: the only crate that edits one.
//!
//! A repair is planned from the findings of a check, staged in memory, checked again until it is
//! clean, and only then written: old blocks go to an undo file first.
//!
//! [`repair()`] stages, asking a [`policy::Policy`] what may be done; it reads the device and never
//! writes to it. The [`Repair`] that it gives knows every change, what each costs, and what is left;
//! the crate `floe-report` tells of it, and [`commit::commit`] writes it. [`undo::undo`] takes it back.
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

mod alloc;
pub mod commit;
mod culprit;
pub mod deed;
pub mod describe;
pub mod edit;
pub mod extras;
pub mod failure;
pub mod file_map;
pub mod fixes;
pub mod identifiers;
mod informed;
pub mod ladder;
pub mod plan;
pub mod plan_file;
pub mod policy;
mod proof;
pub mod safety;
pub mod session;
pub mod stage;
pub mod undo;

pub use culprit::{Owner, SharedBlocks, SharedGroup};
pub use deed::{Deed, Fate, Reason};
pub use edit::Edit;
pub use extras::Extras;
pub use session::{BadBlocks, Repair, RepairError, RepairOptions, repair};
