//! Limits of the server's address space (`ulimit -v`, `LimitAS=` of systemd). A server that gets no memory ends in the middle of its work,
//! and what was not durable is lost; so a mount that may need more than the limit is refused.

use std::env;

use anyhow::{Result, bail};
use rustix::process::{Resource, getrlimit};

use super::memory::Memory;

/// Address space that glibc's allocator sets aside for each thread, up to a number of threads.
const ARENA_BYTES: u64 = 64 << 20;
/// The variable with that number; with 1 all threads share what the program has.
const ARENAS: &str = "MALLOC_ARENA_MAX";
/// Address space of a thread besides.
const STACK_BYTES: u64 = 8 << 20;
/// Threads besides those that answer: signals, commits, watching.
const OTHER_THREADS: u64 = 5;
/// The program, journals and groups.
const REST_BYTES: u64 = 64 << 20;
/// Below this limit the server shares one arena: its threads wait for each other a little, and need far less.
const SCARCE_BYTES: u64 = 4 << 30;

/// The environment of a server in the background.
pub(super) fn environment() -> Option<(&'static str, &'static str)> {
    let is_scarce = getrlimit(Resource::As).current.is_some_and(|limit| limit < SCARCE_BYTES);
    (is_scarce && env::var_os(ARENAS).is_none()).then_some((ARENAS, "1"))
}

/// Refuses a limit that is too low for a mount with so much memory and so many threads that answer.
pub(super) fn judge(memory: Memory, threads: usize) -> Result<()> {
    let arenas = env::var(ARENAS).ok().and_then(|most| most.parse().ok()).filter(|most| *most > 0);
    let need = Need { memory, threads: threads as u64, arenas: arenas.unwrap_or(u64::MAX) };
    getrlimit(Resource::As).current.map_or(Ok(()), |limit| need.judge(limit))
}

/// Decides how much address space a server may need.
#[derive(Clone, Copy, Debug)]
struct Need {
    memory: Memory,
    threads: u64,
    /// Arenas at most.
    arenas: u64,
}

impl Need {
    /// Address space that it may need besides the memory for the file system.
    fn base_bytes(self) -> u64 {
        let threads = self.threads + OTHER_THREADS;
        let arenas = if self.arenas == 1 { 0 } else { threads.min(self.arenas) };
        REST_BYTES + threads.saturating_mul(STACK_BYTES) + arenas.saturating_mul(ARENA_BYTES)
    }

    fn judge(self, limit_bytes: u64) -> Result<()> {
        let needed = self.base_bytes().saturating_add(self.memory.bytes());
        if limit_bytes >= needed {
            return Ok(());
        }
        bail!(
            "the address space is limited to {} MiB (`ulimit -v`), and the server may need {} MiB, {} of them for {}: \
             it would end in the middle of its work. {}",
            limit_bytes >> 20,
            needed >> 20,
            self.memory.bytes() >> 20,
            self.memory,
            self.advice(limit_bytes)
        );
    }

    /// A way out that works: less memory, one arena, fewer threads, a higher limit.
    fn advice(self, limit_bytes: u64) -> String {
        let room = |need: Self| limit_bytes.saturating_sub(need.base_bytes()) >> 20;
        let (shared, alone) = (Self { arenas: 1, ..self }, Self { arenas: 1, threads: 1, ..self });
        let raise = "Raise the limit";
        if room(self) > 0 {
            return format!("{raise}, or give `-o memory={}M`", room(self));
        }
        if room(shared) > 0 {
            let memory = room(shared).min(self.memory.bytes() >> 20).max(1);
            return format!(
                "{raise}, or start it with `{ARENAS}=1` in its environment and `-o memory={memory}M`"
            );
        }
        if room(alone) > 0 {
            let memory = room(alone).min(self.memory.bytes() >> 20).max(1);
            return format!(
                "{raise}, or start it with `{ARENAS}=1` in its environment and `-o threads=1,memory={memory}M`"
            );
        }
        format!("{raise}: no options let it need less than {} MiB", (alone.base_bytes() >> 20) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(memory_mib: u64, threads: u64, arenas: u64) -> Need {
        Need { memory: Memory::Given(memory_mib << 20), threads, arenas }
    }

    #[test]
    fn a_limit_must_leave_room_for_memory_and_threads() {
        let fits = |limit_mib: u64, memory_mib: u64, threads, arenas| {
            need(memory_mib, threads, arenas).judge(limit_mib << 20).is_ok()
        };
        assert!(fits(1224, 512, 4, u64::MAX) && !fits(1223, 512, 4, u64::MAX));
        assert!(fits(513, 17, 1, u64::MAX) && !fits(513, 18, 1, u64::MAX));
        assert!(fits(144, 8, 4, 1) && !fits(143, 8, 4, 1));
        assert!(!fits(4096, 1 << 40, 4, u64::MAX));
    }

    /// Whoever follows the advice is served, or is told that nothing but a higher limit helps.
    #[test]
    fn advice_helps() {
        for (limit_mib, memory_mib, threads, arenas) in [
            (900, 512, 4, 99),
            (600, 512, 4, 99),
            (500, 100, 4, 99),
            (130, 512, 4, 99),
            (120, 512, 60, 1),
        ] {
            let error =
                need(memory_mib, threads, arenas).judge(limit_mib << 20).unwrap_err().to_string();
            let option = |name: &str| {
                let behind = error.rsplit_once(name)?.1;
                let digits: String = behind.chars().take_while(char::is_ascii_digit).collect();
                digits.parse::<u64>().ok()
            };
            let memory = option("memory=").unwrap_or(memory_mib);
            let arenas = option("MALLOC_ARENA_MAX=").unwrap_or(arenas);
            let advised = need(memory, option("threads=").unwrap_or(threads), arenas);
            assert!(advised.judge(limit_mib << 20).is_ok(), "{error}");
        }
        let error = need(1, 1, 1).judge(100 << 20).unwrap_err().to_string();
        assert!(
            error.ends_with("Raise the limit: no options let it need less than 113 MiB"),
            "{error}"
        );
    }

    #[test]
    fn whose_memory_it_is_is_told() {
        let said = |memory| need(0, 4, 1).with(memory).judge(0).unwrap_err().to_string();
        assert!(said(Memory::Given(8 << 20)).contains("8 of them for `memory=`:"));
        assert!(
            said(Memory::Usual)
                .contains("512 of them for files and changes, as `memory=` is not given:")
        );
        assert!(
            said(Memory::Half(20 << 20))
                .contains("20 of them for half of the limit of its control group")
        );
    }

    impl Need {
        fn with(self, memory: Memory) -> Self {
            Self { memory, ..self }
        }
    }
}
