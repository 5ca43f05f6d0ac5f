//! Threads and atomics: from `std`, or from `shuttle` when interleavings are explored (feature
//! `shuttle`). The only place that names either.

#[cfg(not(feature = "shuttle"))]
pub use std::sync::{Mutex, atomic};
#[cfg(not(feature = "shuttle"))]
pub use std::thread;

#[cfg(feature = "shuttle")]
pub use shuttle::sync::{Mutex, atomic};
#[cfg(feature = "shuttle")]
pub use shuttle::thread;
