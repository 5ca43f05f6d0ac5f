//! Group descriptors.

pub mod descriptor;
pub mod lots;
