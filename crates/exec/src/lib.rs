//! How work is shared between threads. Knows nothing of file systems.

pub mod accumulate;
pub mod budget;
pub mod interrupt;
#[cfg(any(test, feature = "laws"))]
pub mod laws;
pub mod pool;
pub mod progress;
pub mod sync;

pub use accumulate::{Accumulator, append};
pub use budget::{MemoryBudget, OverBudget, Reservation, default_threads};
pub use interrupt::{Hold, Interrupt, Interrupted};
pub use pool::Pool;
pub use progress::{Phase, PhaseState, Progress};
