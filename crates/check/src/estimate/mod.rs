//! Estimates made before a check begins: memory by a formula, work for the progress display.

pub mod memory;
pub mod work;
