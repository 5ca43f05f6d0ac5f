//! How work is shared between threads. Knows nothing of file systems.

pub mod accumulate;
pub mod pool;
pub mod sync;

pub use accumulate::Accumulator;
pub use pool::Pool;
