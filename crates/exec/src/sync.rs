//! Threads, locks and atomics: from `std`, or from `shuttle` when interleavings are explored
//! (feature `shuttle`). The only place that names either.

// Shuttle's locks are poisoned with this one too.
pub use std::sync::PoisonError;
// Asks the system, not a scheduler: the same in both worlds.
pub use std::thread::available_parallelism;
// What is set once is either there or not; shuttle has no such cell and needs none to explore that.
pub use std::sync::OnceLock;

#[cfg(not(feature = "shuttle"))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, atomic};
#[cfg(not(feature = "shuttle"))]
pub use std::thread;

#[cfg(feature = "shuttle")]
pub use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, atomic};
#[cfg(feature = "shuttle")]
pub use shuttle::thread;
