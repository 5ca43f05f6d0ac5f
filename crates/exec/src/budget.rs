//! The resources that a run may use: cores and memory.

use std::fs;

use floe_sync::Arc;
use floe_sync::atomic::{AtomicU64, Ordering};

/// The default number of workers: the processors that this process may use, at least 1. Affinity
/// (`taskset`) and CPU quotas of control groups are respected.
pub fn default_threads() -> usize {
    floe_sync::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Bytes of memory that this process may still use: `MemAvailable`, or less if the limit of a
/// control group is lower. `None` if the system does not say.
pub fn available_memory_bytes() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_available(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group_directories(&groups).into_iter().filter_map(|group| group.headroom_bytes());
    system.into_iter().chain(group).min()
}

/// `MemAvailable` of the text of `/proc/meminfo`, in bytes.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

/// The directory of a memory control group, and the names of its files.
#[derive(Debug, PartialEq, Eq)]
struct GroupDirectory {
    path: String,
    limit: &'static str,
    usage: &'static str,
}

impl GroupDirectory {
    fn headroom_bytes(&self) -> Option<u64> {
        let read = |name| fs::read_to_string(format!("{}/{name}", self.path)).ok();
        // "max" does not parse, and means no limit. A missing usage counts as 0.
        let limit: u64 = read(self.limit)?.trim().parse().ok()?;
        let used = read(self.usage).and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        Some(limit.saturating_sub(used))
    }
}

/// The memory control groups of a process, innermost first, from its `/proc/self/cgroup`.
fn group_directories(cgroup: &str) -> Vec<GroupDirectory> {
    let mut found = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, limit, usage) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max", "memory.current")
        } else if controllers.split(',').any(|name| name == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
        } else {
            continue;
        };
        // The limit of any ancestor applies, too. "/" is the mount point itself: in a container,
        // that is the container's own group.
        let mut path = path.trim_end_matches('/');
        loop {
            found.push(GroupDirectory { path: format!("{root}{path}"), limit, usage });
            let Some(parent) = path.rfind('/') else { break };
            path = &path[..parent];
        }
    }
    found
}

/// There is not enough memory for a purpose.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{purpose} needs {need_bytes} bytes; {free_bytes} of a budget of {limit_bytes} are left")]
pub struct OverBudget {
    /// The use of the memory.
    pub purpose: &'static str,
    /// Bytes requested.
    pub need_bytes: u64,
    /// Bytes that were free.
    pub free_bytes: u64,
    /// Bytes of the whole budget.
    pub limit_bytes: u64,
}

/// A hard limit on the memory of a run. Before a large allocation, code reserves the memory, and
/// takes a leaner way if that fails. Clones share the budget.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limit_bytes: u64,
    used_bytes: AtomicU64,
}

/// Reserved memory; dropping it returns the memory to the budget.
#[derive(Debug)]
#[must_use = "dropping the reservation returns the memory to the budget"]
pub struct Reservation {
    budget: MemoryBudget,
    bytes: u64,
}

impl MemoryBudget {
    /// A budget of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Self {
        Self { shared: Arc::new(Shared { limit_bytes, used_bytes: AtomicU64::new(0) }) }
    }

    /// Half of the memory available now; the rest is left to the page cache and to other programs.
    /// 1 GiB if the system does not say.
    pub fn of_this_machine() -> Self {
        Self::new(available_memory_bytes().map_or(1 << 30, |bytes| bytes / 2))
    }

    /// Bytes of the whole budget.
    pub fn limit_bytes(&self) -> u64 {
        self.shared.limit_bytes
    }

    /// Bytes reserved now.
    pub fn used_bytes(&self) -> u64 {
        // Relaxed, here and below: the counter orders no other memory.
        self.shared.used_bytes.load(Ordering::Relaxed)
    }

    /// Reserves `bytes` for `purpose`.
    ///
    /// # Errors
    /// [`OverBudget`] if fewer are free; nothing is reserved then.
    pub fn reserve(&self, purpose: &'static str, bytes: u64) -> Result<Reservation, OverBudget> {
        let limit_bytes = self.shared.limit_bytes;
        let grown = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= limit_bytes);
        match self.shared.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown) {
            Ok(_) => Ok(Reservation { budget: self.clone(), bytes }),
            Err(used) => Err(OverBudget {
                purpose,
                need_bytes: bytes,
                free_bytes: limit_bytes.saturating_sub(used),
                limit_bytes,
            }),
        }
    }
}

impl Reservation {
    /// Bytes reserved.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reserves `bytes` more for `purpose`.
    ///
    /// # Errors
    /// [`OverBudget`] if fewer are free; the earlier reservation stays.
    pub fn grow(&mut self, purpose: &'static str, bytes: u64) -> Result<(), OverBudget> {
        let mut more = self.budget.reserve(purpose, bytes)?;
        // Both fit the limit together, so the sum does not overflow. `more` must not return its
        // bytes when it is dropped.
        self.bytes += std::mem::take(&mut more.bytes);
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.shared.used_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn reservations_never_exceed_the_budget_and_are_given_back() {
        let budget = MemoryBudget::new(100);
        let mut first = budget.reserve("a map", 60).unwrap();
        let error = budget.clone().reserve("a table", 41).unwrap_err();
        assert_eq!((error.free_bytes, error.need_bytes, error.limit_bytes), (40, 41, 100));
        assert!(error.to_string().contains("a table needs 41 bytes"));
        assert!(budget.reserve("all", u64::MAX).is_err());
        first.grow("more map", 40).unwrap();
        first.grow("too much", 1).unwrap_err();
        assert_eq!((first.bytes(), budget.used_bytes()), (100, 100));
        drop(first);
        assert_eq!(budget.used_bytes(), 0);
        assert_eq!(budget.reserve("all", 100).unwrap().bytes(), 100);
    }

    #[test]
    fn the_machine_says_something() {
        assert!(default_threads() >= 1);
        assert!(MemoryBudget::of_this_machine().limit_bytes() > 1 << 20);
    }

    #[test]
    fn meminfo_and_control_groups_are_read() {
        let meminfo = "MemTotal:       24684096 kB\nMemAvailable:   12345678 kB\n";
        assert_eq!(mem_available(meminfo), Some(12_345_678 * 1024));
        assert_eq!(mem_available("MemAvailable: lots\n"), None);
        let paths = |text| group_directories(text).into_iter().map(|g| g.path).collect::<Vec<_>>();
        assert_eq!(
            paths("0::/a/b\n"),
            ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"]
        );
        assert_eq!(paths("0::/\n"), ["/sys/fs/cgroup"]);
        assert_eq!(
            paths("5:cpu,cpuacct:/x\n4:memory:/x\nnonsense\n"),
            ["/sys/fs/cgroup/memory/x", "/sys/fs/cgroup/memory"]
        );
        assert!(paths("").is_empty());
    }
}
