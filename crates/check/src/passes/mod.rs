//! The passes of a check and their order (`pipeline`).

pub mod attribute_blocks;
mod clock;
pub mod directories;
pub mod inodes;
pub mod overlap;
pub mod pipeline;
pub mod recovery;
pub mod refine;
pub mod refine_shard;
pub mod registry;
pub mod rescan;
mod results;
mod several;
pub mod shard;
mod swept;
mod weighed;
