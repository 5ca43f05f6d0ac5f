//! Shares work between threads. Knows nothing of file systems.
//!
//! A [`Pool`] hands units of work to workers. Each worker fills an [`Accumulator`] of its own;
//! these are merged at the end, so no result depends on the speed of a worker. A [`Pipeline`] has
//! several stages with queues between them. [`Progress`] counts work done, and
//! [`Interrupt`] defers signals while something must not be cut off.
//! `examples/zeroes.rs` reads a file with all cores.
//!
//! ```
//! use floe_exec::{Accumulator, Pool};
//!
//! #[derive(Default)]
//! struct Sum(u64);
//!
//! impl Accumulator for Sum {
//!     fn merge(&mut self, other: Self) {
//!         self.0 += other.0;
//!     }
//! }
//!
//! let units: Vec<u64> = (1..=100).collect();
//! let sum: Sum = Pool::new(4).run(&units, |sum: &mut Sum, unit| sum.0 += unit);
//! assert_eq!(sum.0, 5050);
//! ```

#![warn(clippy::print_stderr, clippy::print_stdout)] // messages are the program's

pub mod accumulate;
pub mod core_share;
pub mod cores;
mod dispatcher;
pub mod eta;
pub mod idle_class;
pub mod interrupt;
#[cfg(any(test, feature = "laws"))]
pub mod laws;
mod placement;
pub mod pool;
pub mod progress;
pub mod queue;
pub mod scheduler;
pub mod split;
pub mod stage;
mod work_item;

pub use accumulate::{Accumulator, append, take_back};
pub use core_share::CoreShare;
pub use cores::{CoreSample, CoreSource, ProcCores, default_threads};
pub use dispatcher::{Counts, StageCounts};
pub use idle_class::{enter_idle_class, try_idle_class};
pub use interrupt::{Hold, Interrupt, Interrupted};
pub use pool::{Dealing, Pool};
pub use progress::{Phase, PhaseState, Progress, Shape, Snapshot, Work};
pub use queue::{Entry, Limits};
pub use scheduler::Policy;
pub use stage::{Found, Outcome, Pipeline, Schedule, StageId};
pub use work_item::WorkItem;
