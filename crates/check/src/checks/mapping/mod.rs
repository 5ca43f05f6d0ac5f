//! Maps of files: extents and indirect blocks.

pub mod block_map;
pub mod extents;
pub mod mapper;
mod shape;
pub(crate) mod size_witness;
