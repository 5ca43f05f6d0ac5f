//! Threads, locks and atomics: from `std`, or from `shuttle` when interleavings are explored
//! (feature `shuttle`). The only place that names either.

// Shuttle's locks are poisoned with this one too.
pub use std::sync::PoisonError;
// Asks the system, not a scheduler: the same in both worlds.
pub use std::thread::available_parallelism;

#[cfg(not(feature = "shuttle"))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, atomic};
#[cfg(not(feature = "shuttle"))]
pub use std::thread;

#[cfg(feature = "shuttle")]
pub use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, atomic};
#[cfg(feature = "shuttle")]
pub use shuttle::thread;
