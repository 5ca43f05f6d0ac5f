//! Limits of memory that a control group sets (containers, `MemoryMax=` of systemd). Beyond them the kernel ends the server, and what
//! was not durable is lost.

use std::fs;
use std::path::{Path, PathBuf};

/// Where control groups are found.
const FOLDER: &str = "/sys/fs/cgroup";

/// The lowest limit of this process's control groups, in bytes; `None` without one.
pub(super) fn memory_limit_bytes() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    lowest_limit(&own, Path::new(FOLDER))
}

/// The same for lines of `/proc/self/cgroup`: `0::PATH` in version 2, `N:memory:PATH` in version 1. Limits of the groups above count,
/// too. In a container the path may be that of the host, where only the folder itself is there.
fn lowest_limit(own: &str, folder: &Path) -> Option<u64> {
    let limits = own.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (kind, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let (top, name) = match kind {
            "" => (folder.to_owned(), "memory.max"),
            kind if kind.split(',').any(|kind| kind == "memory") => {
                (folder.join("memory"), "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        let groups = Path::new(path.trim_start_matches('/')).ancestors();
        let files: Vec<PathBuf> = groups.map(|group| top.join(group).join(name)).collect();
        files.iter().filter_map(|file| limit_of(file)).collect()
    });
    limits.min()
}

/// `max` is no limit.
fn limit_of(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_counts() {
        let folder = tempfile::tempdir().unwrap();
        let limit = |own: &str| lowest_limit(own, folder.path());
        let put = |file: &str, text: &str| {
            let file = folder.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        assert_eq!(limit("0::/a/b\n"), None);
        put("a/b/memory.max", "max\n");
        assert_eq!(limit("0::/a/b\n"), None);
        put("a/memory.max", "3000\n");
        put("memory.max", "4000\n");
        assert_eq!(limit("0::/a/b\n"), Some(3000));
        assert_eq!(limit("0::/elsewhere\n"), Some(4000));
        put("memory/c/memory.limit_in_bytes", "2000\n");
        assert_eq!(limit("4:cpu:/c\n3:memory:/c\n0::/a\n"), Some(2000));
        assert_eq!(limit("4:cpu:/c\n"), None);
    }
}
