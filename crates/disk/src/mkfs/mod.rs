//! Makes file systems: [`Params`] describe one, [`Plan`] computes its whole layout and writes
//! nothing, [`write()`] writes it. [`tree`] is the tree of files to fill it with.

mod block_map;
mod fill;
mod frame;
mod inode;
mod map;
mod native;
mod options;
mod params;
mod plan;
mod rext3;
mod space;
mod system;
mod tables;
pub mod tree;
mod usage;
mod write;

pub use block_map::{BLOCK_MAP_HEAD, block_map};
pub use fill::{FillError, FillOptions, TreePlan, fill, fill_progress};
pub use native::NativeParams;
pub use options::{Fresh, OptionError, Options, RootOptions, size, uuid};
pub use params::{InodeCount, JournalParams, Params, PlanError, Reserved};
pub use plan::Plan;
pub use rext3::Rext3Params;
pub use usage::FsType;
pub use write::{WriteError, WriteOptions, write, write_with};
