//! Names of this machine and of its present start, for marks on shared devices.

use std::fs;

/// The host's name; empty where the system does not tell.
pub fn host_name() -> String {
    line("/proc/sys/kernel/hostname").unwrap_or_default()
}

/// A random name of the kernel's present start: equal for all programs until it ends, in all containers. `None` where the system does
/// not tell.
pub fn this_boot() -> Option<String> {
    line("/proc/sys/kernel/random/boot_id").map(|name| name.replace('-', ""))
}

fn line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}
