//! Native file systems: geometry in lots, each with a region for metadata, and a seal (`docs/native.md`).

mod files;
mod lots;
mod numbers;
mod options;
mod params;

pub(super) use files::{directories, home_entry, reservation_files};
pub(super) use lots::{Lots, place};
pub(super) use numbers::Numbers;
pub(super) use params::BLOCK_SIZE;
pub use params::NativeParams;
