//! Resources used by this process.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Peak resident memory so far, in bytes; `None` if `/proc` is unavailable.
pub(crate) fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Current resident memory in bytes; `None` if `/proc` is unavailable.
pub(crate) fn memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Processor time of all threads so far, user and system.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Bytes read from devices for this process, excluding page cache hits; `None` if `/proc` is
/// unavailable.
pub(crate) fn bytes_from_device() -> Option<u64> {
    let io = std::fs::read_to_string("/proc/self/io").ok()?;
    io.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_uses_processors() {
        let before = processor_time();
        let mut sum = 0u64;
        while processor_time() == before {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(processor_time() > before && processor_time() < Duration::from_secs(100_000));
    }

    #[test]
    fn a_process_uses_memory() {
        let Some(bytes) = peak_memory_bytes() else {
            eprintln!("skipped: no /proc here");
            return;
        };
        assert!(bytes > 100_000, "{bytes}");
        let now = memory_bytes().unwrap();
        // Linux counts the two apart, and gathers the pages of each thread now and then.
        let peak = peak_memory_bytes().unwrap();
        assert!(now > 100_000 && now <= peak + (4 << 20), "{now} of at most {peak}");
    }
}
