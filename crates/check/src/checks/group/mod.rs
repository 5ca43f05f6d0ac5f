//! Group descriptors.

pub(crate) mod cubes;
pub mod descriptor;
pub mod lots;
pub mod reservations;
