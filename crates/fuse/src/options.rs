//! How a file system is served.

use std::time::Duration;

use floe_fs::AccessTimes;

/// Threads that answer, at least: some may wait for the disk or for the kernel.
const LEAST_THREADS: usize = 4;
/// As Linux's `commit=`.
const COMMIT_EVERY: Duration = Duration::from_secs(5);

/// Which changes are durable when their call returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Synchronous {
    /// Those of names (`dirsync`).
    pub names: bool,
    /// Those of content and attributes (`sync`). The kernel sees to what it keeps of files.
    pub data: bool,
}

impl Synchronous {
    /// All changes.
    pub const ALL: Self = Self { names: true, data: true };
}

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
    /// The kernel keeps what programs write to files, until they are closed or made durable, or for half a minute.
    pub writeback: bool,
    /// Files are used without opening them: faster, but one that was immutable when it was opened can be written, and
    /// programs that close a file are told nothing of changes that are lost.
    pub open_fast: bool,
    /// When reading changes the time of the last access, and whether it does for directories.
    pub access_times: (AccessTimes, bool),
    /// Changes are durable when their call returns.
    pub synchronous: Synchronous,
    /// New files get the group of their directory, as with BSD.
    pub group_of_directory: bool,
    /// The mount may be mounted again with mapped ids (Linux 6.12). Nobody is root to the server then: not for the blocks that
    /// are reserved for root, nor for calls that the kernel does not judge. The kernel must judge permissions.
    pub mapped_ids: bool,
    /// The kernel judges who may do what. If not, everybody may do everything, and the kernel is not told that there are access
    /// lists, because it judges wherever it knows of them (`FUSE_POSIX_ACL`).
    pub judged: bool,
}

impl Default for ServeOptions {
    fn default() -> Self {
        let threads = floe_sync::available_parallelism()
            .map_or(1, |count| count.get().clamp(LEAST_THREADS, 16));
        Self {
            threads,
            keep: Duration::MAX,
            commit_every: COMMIT_EVERY,
            debug: false,
            writeback: true,
            open_fast: false,
            access_times: (AccessTimes::Never, true),
            synchronous: Synchronous::default(),
            group_of_directory: false,
            mapped_ids: false,
            judged: true,
        }
    }
}
