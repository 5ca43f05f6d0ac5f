//! The places where a file system is mounted, in all mount namespaces that can be seen.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::PathBuf;

use super::tables::{Mount, lines_of};
use crate::stack::DeviceNumber;

/// A place where a file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The mount point, as its namespace sees it.
    pub mount_point: PathBuf,
    /// A process of its mount namespace, unless that is the caller's.
    pub process: Option<u32>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mount_point.display())?;
        self.process
            .map_or(Ok(()), |process| write!(f, " (in the mount namespace of process {process})"))
    }
}

/// All places where the file system with this device number is mounted. Namespaces of processes into which the caller may not look
/// are left out, and so are those that no process is in.
pub fn places_of(device: DeviceNumber) -> Vec<Place> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let mut places = Vec::new();
    let mut add = |process: Option<u32>, table: &str| {
        let mounts = lines_of(table).into_iter().filter_map(|line| Mount::parse(&line));
        let here = mounts.filter(|mount| mount.device == device);
        places.extend(here.map(|Mount { mount_point, .. }| Place { mount_point, process }));
    };
    add(None, "/proc/self/mountinfo");
    let mut seen: BTreeSet<PathBuf> = namespace("self").into_iter().collect();
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = names.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for process in processes {
        if namespace(&process.to_string()).is_some_and(|found| seen.insert(found)) {
            add(Some(process), &format!("/proc/{process}/mountinfo"));
        }
    }
    places
}
