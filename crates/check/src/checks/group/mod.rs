//! Group descriptors.

pub mod descriptor;
pub mod lots;
pub mod reservations;
