//! Large images and loads for benchmarks and tests: file systems of any number of files written
//! directly ([`fill`]), aged by random changes ([`fill::aged`]), and a load that changes a mounted
//! file system ([`load`]). Never a dependency of a product crate.

pub mod fill;
pub mod load;
