//! Counts of what a mount has done, for monitoring: kept by the server, read as an attribute of the root, and shown in the
//! text format of Prometheus.

use std::fmt::Write as _;
use std::time::Duration;

use floe_sync::atomic::{AtomicU64, Ordering};

use crate::abi::Opcode;

/// An attribute of the root that no file system stores: the counts, as lines of a name, labels or `-`, and a number.
pub const METRICS: &[u8] = b"floe.metrics";

/// Numbers of requests are below this.
const MOST_OPCODES: usize = 64;

/// The figures that are shown: name, type and meaning.
const FAMILIES: &[(&str, &str, &str)] = &[
    ("requests_total", "counter", "Requests of the kernel, by operation."),
    ("read_bytes_total", "counter", "Bytes of files that the kernel read; it keeps them."),
    ("written_bytes_total", "counter", "Bytes of files that the kernel wrote."),
    ("sync_seconds_total", "counter", "Time of requests to make something durable."),
    ("faults_total", "counter", "Requests that failed by damage or by the device."),
    ("read_only", "gauge", "Whether nothing can be changed."),
    ("free_bytes", "gauge", "Free space that everybody may use."),
    ("free_inodes", "gauge", "Free inodes."),
];

/// Counts since the mount began.
#[derive(Debug)]
pub(crate) struct Metrics {
    requests: [AtomicU64; MOST_OPCODES],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    sync_nanoseconds: AtomicU64,
    faults: AtomicU64,
}

/// Figures of the moment.
pub(crate) struct Now {
    pub(crate) read_only: bool,
    pub(crate) free_bytes: u64,
    pub(crate) free_inodes: u64,
}

impl Default for Metrics {
    fn default() -> Self {
        let requests = std::array::from_fn(|_| AtomicU64::default());
        let (read_bytes, written_bytes, sync_nanoseconds, faults) = Default::default();
        Self { requests, read_bytes, written_bytes, sync_nanoseconds, faults }
    }
}

impl Metrics {
    pub(crate) fn add_request(&self, opcode: u32) {
        if let Some(count) = self.requests.get(opcode as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn add_read(&self, len_bytes: usize) {
        self.read_bytes.fetch_add(len_bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_written(&self, len_bytes: usize) {
        self.written_bytes.fetch_add(len_bytes as u64, Ordering::Relaxed);
    }

    /// Bytes that the kernel wrote.
    pub(crate) fn written(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn add_sync(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.sync_nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    pub(crate) fn add_fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// The value of the attribute.
    pub(crate) fn lines(&self, now: &Now) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let mut line = |name: &str, labels: &str, value: String| {
            let _ = writeln!(text, "{name} {labels} {value}");
        };
        for (number, count) in (0..).zip(&self.requests) {
            let count = count.load(Ordering::Relaxed);
            if let Some(opcode) = Opcode::of(number).filter(|_| count > 0) {
                let operation = format!("{opcode:?}").to_lowercase();
                line("requests_total", &format!("operation=\"{operation}\""), count.to_string());
            }
        }
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        line("read_bytes_total", "-", load(&self.read_bytes).to_string());
        line("written_bytes_total", "-", load(&self.written_bytes).to_string());
        let sync = Duration::from_nanos(load(&self.sync_nanoseconds));
        line("sync_seconds_total", "-", sync.as_secs_f64().to_string());
        line("faults_total", "-", load(&self.faults).to_string());
        line("read_only", "-", u8::from(now.read_only).to_string());
        line("free_bytes", "-", now.free_bytes.to_string());
        line("free_inodes", "-", now.free_inodes.to_string());
        text
    }
}

/// The text that Prometheus reads, from the value of [`METRICS`] and the path of the mount point. Lines of unknown names,
/// which a newer server may send, are left out.
pub fn prometheus(lines: &str, mount_point: &str) -> String {
    let escaped = mount_point.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let mut text = String::new();
    for (name, kind, help) in FAMILIES {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP floe_mount_{name} {help}\n# TYPE floe_mount_{name} {kind}");
        for line in lines.lines() {
            let mut words = line.split(' ');
            let (Some(found), Some(labels), Some(value)) =
                (words.next(), words.next(), words.next())
            else {
                continue;
            };
            if found == *name {
                let more = if labels == "-" { String::new() } else { format!(",{labels}") };
                let _ = writeln!(text, "floe_mount_{name}{{mount=\"{escaped}\"{more}}} {value}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_shown_as_prometheus_reads_them() {
        let metrics = Metrics::default();
        metrics.add_request(Opcode::Lookup as u32);
        metrics.add_request(Opcode::Lookup as u32);
        metrics.add_request(1 << 20);
        metrics.add_written(4096);
        metrics.add_sync(Duration::from_millis(1500));
        let now = Now { read_only: true, free_bytes: 10, free_inodes: 3 };
        let lines = metrics.lines(&now) + "unknown - 3\nbroken\n";
        let text = prometheus(&lines, "/mnt/\"x\"");
        for line in [
            r#"floe_mount_requests_total{mount="/mnt/\"x\"",operation="lookup"} 2"#,
            r#"floe_mount_written_bytes_total{mount="/mnt/\"x\""} 4096"#,
            r#"floe_mount_sync_seconds_total{mount="/mnt/\"x\""} 1.5"#,
            r#"floe_mount_read_only{mount="/mnt/\"x\""} 1"#,
            "# TYPE floe_mount_free_bytes gauge",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
        assert!(!text.contains("unknown") && !text.contains("broken"));
        assert!(FAMILIES.iter().all(|(name, ..)| lines.contains(name)), "each has a figure");
    }
}
