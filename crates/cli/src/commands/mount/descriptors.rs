//! Descriptors of the server: those that its caller left open are closed, and a mount that would run out of them is refused.

use std::fs::{self, File};
use std::os::fd::RawFd;

use anyhow::{Result, bail};
use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors besides those of threads that answer: the connection, signals, the watcher, a program that is run, files that are
/// looked into for a moment.
const OTHERS: usize = 24;

/// Descriptors behind standard error that were open when this program began. To be called while there are none of ours.
pub(super) fn of_the_caller() -> Vec<RawFd> {
    let all = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    let numbers: Vec<RawFd> = numbers.filter(|number| *number > 2).collect();
    // Ours are closed when another program begins, as is that of the list itself.
    numbers.into_iter().filter(|number| outlives_exec(*number)).collect()
}

/// Whether a descriptor stays open when another program begins.
fn outlives_exec(number: RawFd) -> bool {
    const CLOEXEC: u32 = 0o2_000_000;
    let told = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
    let flags = told.lines().find_map(|line| line.strip_prefix("flags:"));
    flags
        .and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok())
        .is_some_and(|flags| flags & CLOEXEC == 0)
}

/// Closes descriptors of the caller, whose locks and pipes would last as long as the mount.
pub(super) fn close(numbers: &[RawFd]) {
    for number in numbers {
        let _ = nix::unistd::close(*number);
    }
}

/// Refuses a limit of open files (`ulimit -n`) that leaves too few for a server with so many threads that answer, after it was
/// raised as far as it may be.
pub(super) fn judge(threads: usize) -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // The descriptors that are left are counted in any case.
    let _ = setrlimit(Resource::Nofile, limit);
    let needed = OTHERS + threads;
    let got = (0..needed).map_while(|_| File::open("/dev/null").ok()).collect::<Vec<_>>().len();
    if got == needed {
        return Ok(());
    }
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    bail!(
        "too few files may be open: the limit is {limit} (`ulimit -n`), and the server needs {} more. Raise the limit",
        needed - got
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_descriptors_are_not_those_of_the_caller() {
        use std::os::fd::AsRawFd;
        let ours = File::open("/dev/null").unwrap();
        let inherited = rustix::io::dup(&ours).unwrap();
        assert!(!outlives_exec(ours.as_raw_fd()) && outlives_exec(inherited.as_raw_fd()));
        assert!(of_the_caller().contains(&inherited.as_raw_fd()));
    }
}
