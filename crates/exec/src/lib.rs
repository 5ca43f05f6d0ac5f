//! How work is shared between threads. Knows nothing of file systems.

pub mod accumulate;
mod board;
pub mod budget;
pub mod cores;
pub mod eta;
pub mod idle_class;
pub mod interrupt;
#[cfg(any(test, feature = "laws"))]
pub mod laws;
pub mod pool;
pub mod progress;
pub mod queue;
pub mod scheduler;
pub mod split;
pub mod stage;
pub mod sync;

pub use accumulate::{Accumulator, append};
pub use board::{Counts, StageCounts};
pub use budget::{MemoryBudget, OverBudget, Reservation, default_threads};
pub use cores::{CoreSample, CoreSource, ProcCores};
pub use idle_class::enter_idle_class;
pub use interrupt::{Hold, Interrupt, Interrupted};
pub use pool::Pool;
pub use progress::{Phase, PhaseState, Progress, Shape, Snapshot};
pub use queue::{Entry, Limits};
pub use scheduler::Policy;
pub use stage::{Found, Outcome, Pipeline, Schedule, StageId};
