//! Limits of the server's address space (`ulimit -v`, `LimitAS=` of systemd). A server that gets no memory ends in the middle of its work,
//! and what was not durable is lost; so a mount that may need more than the limit is refused.

use anyhow::{Result, bail};
use floe_fs::Limits;
use rustix::process::{Resource, getrlimit};

/// Address space of a thread: its stack, and what the allocator sets aside for it.
const THREAD_BYTES: u64 = 72 << 20;
/// Threads besides those that answer: signals, commits, watching.
const OTHER_THREADS: u64 = 5;
/// The program, journals and groups.
const REST_BYTES: u64 = 64 << 20;

/// Refuses a limit that is too low for a mount with this `memory=` and so many threads that answer.
pub(super) fn judge(memory_bytes: Option<u64>, threads: usize) -> Result<()> {
    match getrlimit(Resource::As).current {
        Some(limit) => {
            judge_limit(limit, memory_bytes.unwrap_or(Limits::DEFAULT_MEMORY_BYTES), threads as u64)
        }
        None => Ok(()),
    }
}

fn judge_limit(limit_bytes: u64, memory_bytes: u64, threads: u64) -> Result<()> {
    let of_threads = (threads + OTHER_THREADS).saturating_mul(THREAD_BYTES);
    let needed = REST_BYTES.saturating_add(of_threads).saturating_add(memory_bytes);
    if limit_bytes >= needed {
        return Ok(());
    }
    let [limit, needed, memory] = [limit_bytes, needed, memory_bytes].map(|bytes| bytes >> 20);
    bail!(
        "the address space is limited to {limit} MiB (`ulimit -v`), and the server may need {needed} MiB: \
         it would end in the middle of its work. Raise the limit, or let it need less by `-o memory=` \
         (now {memory}M) and `-o threads=` (now {threads})"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_must_leave_room_for_memory_and_threads() {
        let fits = |limit_mib: u64, memory_mib: u64, threads| {
            judge_limit(limit_mib << 20, memory_mib << 20, threads).is_ok()
        };
        assert!(fits(1224, 512, 4) && !fits(1223, 512, 4));
        assert!(fits(513, 17, 1) && !fits(513, 18, 1));
        assert!(!fits(4096, 1 << 40, 4));
    }
}
