//! How a file system is served.

use std::time::Duration;

/// As Linux's `commit=`.
const COMMIT_EVERY: Duration = Duration::from_secs(5);

/// How a file system is served.
#[derive(Clone, Copy, Debug)]
pub struct ServeOptions {
    /// Threads that answer, at least 1.
    pub threads: usize,
    /// How long the kernel may keep names and attributes.
    pub keep: Duration,
    /// How often all changes are made durable without anybody asking for it.
    pub commit_every: Duration,
    /// Every request gets a line in the log.
    pub debug: bool,
}

impl Default for ServeOptions {
    fn default() -> Self {
        let threads =
            floe_sync::available_parallelism().map_or(1, |count| count.get().clamp(2, 16));
        Self { threads, keep: Duration::MAX, commit_every: COMMIT_EVERY, debug: false }
    }
}
