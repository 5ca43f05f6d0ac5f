//! The reads of a check, in order and by thread, recorded with strace.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// One read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Read {
    /// The range extended to multiples of `align` bytes.
    pub(super) fn aligned(self, align: u64) -> Self {
        let offset = self.offset / align * align;
        let end = (self.offset + self.len).next_multiple_of(align);
        Self { offset, len: end - offset }
    }
}

/// The reads of one thread, or of several that lived one after another.
pub(super) type Lane = Vec<Read>;

/// The reads of a check.
pub(super) struct Recorded {
    /// Reads of each thread.
    pub(super) lanes: Vec<Lane>,
    /// All reads in order of completion.
    pub(super) all: Lane,
}

/// Runs `check` under strace, and returns its reads of `image`. strace cannot see reads by
/// io_uring, so the check is told that io_uring is unavailable and reads with threads.
pub(super) fn record(check: &[String], image: &Path) -> Result<Recorded> {
    let folder = tempfile::tempdir()?;
    let calls = folder.path().join("calls");
    let status = Command::new("strace")
        .args(["--follow-forks", "--quiet=all", "--seccomp-bpf", "--string-limit=0"])
        .args(["--trace=pread64,io_uring_setup", "--inject=io_uring_setup:error=ENOSYS"])
        .arg("--decode-fds=path")
        .arg(format!("--output={}", calls.display()))
        .args(check)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .context("strace is needed, which the Debian package strace has")?;
    ensure!(status.success(), "floe or strace ended with {status}");
    let calls = String::from_utf8_lossy(&std::fs::read(&calls)?).into_owned();
    let calls = of_image(&calls, image);
    let lanes = lanes(&calls);
    ensure!(!lanes.is_empty(), "strace saw no reads");
    Ok(Recorded { lanes, all: calls.lines().filter_map(read_of).collect() })
}

/// The lines about reads of the image, because the dynamic loader reads libraries before a second
/// thread exists. The second half of an interrupted line does not name the file.
fn of_image(calls: &str, image: &Path) -> String {
    let name = format!("<{}>", image.display());
    let of_image = |line: &&str| !line.contains("pread64(") || line.contains(&name);
    let lines = calls.lines().filter(|line| line.contains("pread64")).filter(of_image);
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// The reads of one thread, and the lines where it started and ended.
#[derive(Default)]
struct Life {
    first: usize,
    last: usize,
    reads: Vec<Read>,
}

/// The reads by thread. Each pass of a check has its own threads: a thread that started after
/// another one ended continues that one's list, so that there are no more lists than concurrent
/// threads.
fn lanes(calls: &str) -> Vec<Lane> {
    let mut lives: BTreeMap<u32, Life> = BTreeMap::new();
    for (at, line) in calls.lines().enumerate().filter(|(_, line)| line.contains("pread64")) {
        let Some(thread) = thread_of(line) else { continue };
        let life = lives.entry(thread).or_insert(Life { first: at, ..Life::default() });
        life.last = at;
        life.reads.extend(read_of(line));
    }
    let mut lives: Vec<Life> = lives.into_values().filter(|life| !life.reads.is_empty()).collect();
    lives.sort_by_key(|life| life.first);
    let mut lanes: Vec<Life> = Vec::new();
    for life in lives {
        match lanes.iter_mut().find(|lane| lane.last < life.first) {
            Some(lane) => {
                lane.last = life.last;
                lane.reads.extend(life.reads);
            }
            None => lanes.push(life),
        }
    }
    lanes.into_iter().map(|lane| lane.reads).collect()
}

/// The thread that made the call on a line.
pub(crate) fn thread_of(line: &str) -> Option<u32> {
    line.split_whitespace().next()?.parse().ok()
}

/// The read whose completion a line reports: `17 pread64(3, ""..., 32768, 4096) = 32768`, or its
/// second half if lines of other threads interrupted it. `None` for failed and empty reads.
pub(crate) fn read_of(line: &str) -> Option<Read> {
    let (call, result) = line.rsplit_once(" = ")?;
    let len = result.trim().parse().ok().filter(|&len: &u64| len > 0)?;
    let arguments = call.trim_end().strip_suffix(')')?;
    let offset = arguments.rsplit_once(", ")?.1.parse().ok()?;
    Some(Read { offset, len })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(offset: u64, len: u64) -> Read {
        Read { offset, len }
    }

    #[test]
    fn lines_are_read() {
        let of = read_of;
        assert_eq!(of("17 pread64(3, \"\"..., 4096, 512)       = 4096"), Some(read(512, 4096)));
        assert_eq!(of("17 <... pread64 resumed>\"\"..., 8, 7) = 8"), Some(read(7, 8)));
        assert_eq!(
            of("17 pread64(3, \"\"..., 4096, 512) = 100"),
            Some(read(512, 100)),
            "what came"
        );
        assert_eq!(of("17 pread64(3, \"\", 4096, 1 << 20) = 0"), None, "the end");
        assert_eq!(of("17 pread64(3, 0x1, 512, 0) = -1 EIO (Input/output error)"), None);
        assert_eq!(of("17 pread64(3,  <unfinished ...>"), None);
    }

    #[test]
    fn reads_keep_their_order_and_what_is_read_twice_stays_twice() {
        let calls = "17 pread64(3, \"\"..., 10, 50) = 10\n\
                     17 pread64(3, \"\"..., 10, 0)  = 10\n\
                     17 pread64(3, \"\"..., 10, 50) = 10\n";
        assert_eq!(lanes(calls), [[read(50, 10), read(0, 10), read(50, 10)]]);
    }

    #[test]
    fn threads_of_one_time_have_lanes_of_their_own() {
        let calls = "17 pread64(3, \"\"..., 1, 0)  = 1\n\
                     18 pread64(3,  <unfinished ...>\n\
                     17 pread64(3, \"\"..., 1, 1)  = 1\n\
                     18 <... pread64 resumed>\"\"..., 1, 10) = 1\n\
                     19 pread64(4, \"\"..., 1, 20) = 1\n\
                     17 pread64(3, \"\"..., 1, 2)  = 1\n";
        let main = vec![read(0, 1), read(1, 1), read(2, 1)];
        assert_eq!(lanes(calls), [main, vec![read(10, 1), read(20, 1)]], "19 follows 18");
    }

    #[test]
    fn reads_of_other_files_are_left_out() {
        let calls = "17 io_uring_setup(256, 0x1) = -1 ENOSYS (INJECTED)\n\
                     17 pread64(3</lib/libc.so.6>, \"\"..., 784, 64) = 784\n\
                     17 pread64(4</a/b.img>, \"\"..., 512, 0) = 512\n\
                     18 pread64(4</a/b.img>,  <unfinished ...>\n\
                     18 <... pread64 resumed>\"\"..., 8, 7) = 8\n";
        let left = of_image(calls, Path::new("/a/b.img"));
        let all: Lane = left.lines().filter_map(read_of).collect();
        assert_eq!(all, [read(0, 512), read(7, 8)]);
    }

    #[test]
    fn alignment_is_outwards() {
        assert_eq!(read(0, 4096).aligned(4096), read(0, 4096));
        assert_eq!(read(1024, 1024).aligned(4096), read(0, 4096));
        assert_eq!(read(4000, 200).aligned(4096), read(0, 8192));
    }
}
