//! Group descriptors.

pub mod descriptor;
