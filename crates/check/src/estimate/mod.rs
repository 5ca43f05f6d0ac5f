//! What a check will take, told before it begins: memory by a formula, work for the progress.

pub mod memory;
pub mod work;
