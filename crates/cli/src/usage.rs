//! What this process used of the machine.

/// Largest resident memory so far, in bytes; `None` where `/proc` does not tell.
pub(crate) fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Resident memory now, in bytes; `None` where `/proc` does not tell.
pub(crate) fn memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_uses_memory() {
        let Some(bytes) = super::peak_memory_bytes() else {
            eprintln!("skipped: no /proc here");
            return;
        };
        assert!(bytes > 100_000, "{bytes}");
        let now = super::memory_bytes().unwrap();
        assert!(now > 100_000 && now <= super::peak_memory_bytes().unwrap(), "{now}");
    }
}
