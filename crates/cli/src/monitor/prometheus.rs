//! The text format of Prometheus, for its textfile collector.

use std::fmt::{Display, Write as _};
use std::path::Path;

use floe_check::report::Verdict;

use super::{Checked, Sample};
use crate::input::files::{self, METRICS_HEAD};

/// Writes the metrics to `file` completely or not at all, so that nobody reads a partial file.
pub(super) fn write(file: &Path, sample: &Sample) -> anyhow::Result<()> {
    files::replace(file, 0o644, METRICS_HEAD, text(sample).as_bytes())?;
    Ok(())
}

/// The metric families in the order of the documentation. Unknown values are omitted.
fn text(sample: &Sample) -> String {
    let mut page = Page { text: String::new(), device: escaped(&sample.device) };
    let checked = sample.checked.as_ref();
    let is = |verdict| checked.is_some_and(|checked| checked.verdict == verdict);
    let complete = is(Verdict::Clean) || is(Verdict::Damaged);
    page.one("complete", "Whether the check was complete.", u8::from(complete));
    page.one("clean", "Whether nothing needs repair.", u8::from(is(Verdict::Clean)));
    page.one("exit_code", "Exit code of the check, like e2fsck's.", sample.exit_code);
    page.one("end_timestamp_seconds", "Time of the end of the check.", sample.end_seconds);
    page.one("duration_seconds", "Duration of the check.", sample.elapsed.as_secs_f64());
    if let Some(checked) = checked {
        page.checked(checked);
    }
    page.text
}

/// Escapes a label value.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

struct Page {
    text: String,
    device: String,
}

impl Page {
    fn checked(&mut self, checked: &Checked) {
        let (label, uuid) = (escaped(&checked.label), &checked.uuid);
        let labels = format!(",label=\"{label}\",uuid=\"{uuid}\"");
        let version = env!("CARGO_PKG_VERSION");
        self.family("info", "The file system, and the version of Floe; always 1.");
        self.value("info", &format!("{labels},version=\"{version}\""), 1);
        self.family("findings", "Findings by severity, remarks included.");
        for (severity, count) in checked.severities {
            self.value("findings", &format!(",severity=\"{}\"", severity.name()), count);
        }
        self.one("damage", "Findings that need repair.", checked.damage);
        self.one("read_bytes", "Bytes read from the device.", checked.cost.bytes_read);
        self.one("reads", "Reads of the device.", checked.cost.reads);
        self.one("threads", "Number of threads.", checked.cost.threads);
        if let Some(bytes) = checked.cost.peak_memory_bytes {
            self.one("peak_memory_bytes", "Largest resident memory.", bytes);
        }
        self.family("phase_duration_seconds", "Duration of each phase.");
        for (phase, time) in &checked.phases {
            let labels = format!(",phase=\"{}\"", escaped(phase));
            self.value("phase_duration_seconds", &labels, time.as_secs_f64());
        }
        self.one("inodes", "Total inodes.", checked.inodes);
        self.one("inodes_used", "Inodes in use.", checked.inodes_used);
        self.one("block_size_bytes", "Block size in bytes.", checked.block_bytes);
        self.one("blocks", "Total blocks.", checked.blocks);
        self.one("blocks_used", "Blocks in use.", checked.blocks_used);
        if let Some((method, frozen)) = checked.snapshot {
            self.family("snapshot_info", "Method of the snapshot; always 1.");
            self.value("snapshot_info", &format!(",method=\"{method}\""), 1);
            if let Some(frozen) = frozen {
                let help = "How long writers waited for the snapshot.";
                self.one("snapshot_frozen_seconds", help, frozen.as_secs_f64());
            }
        }
    }

    fn family(&mut self, name: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ =
            writeln!(self.text, "# HELP floe_check_{name} {help}\n# TYPE floe_check_{name} gauge");
    }

    fn value(&mut self, name: &str, labels: &str, value: impl Display) {
        let device = &self.device;
        let _ = writeln!(self.text, "floe_check_{name}{{device=\"{device}\"{labels}}} {value}");
    }

    fn one(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, help);
        self.value(name, "", value);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::monitor::sample;

    #[test]
    fn figures_are_written_as_prometheus_reads_them() {
        let text = text(&sample());
        for line in [
            r#"floe_check_clean{device="/mnt/a \"b\"\\\n"} 0"#,
            r#"floe_check_complete{device="/mnt/a \"b\"\\\n"} 1"#,
            r#"floe_check_exit_code{device="/mnt/a \"b\"\\\n"} 4"#,
            r#"floe_check_duration_seconds{device="/mnt/a \"b\"\\\n"} 1.75"#,
            r#"floe_check_findings{device="/mnt/a \"b\"\\\n",severity="metadata"} 2"#,
            r#"floe_check_phase_duration_seconds{device="/mnt/a \"b\"\\\n",phase="inodes"} 1"#,
            r#"floe_check_snapshot_frozen_seconds{device="/mnt/a \"b\"\\\n"} 0.02"#,
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
        // Each family must occur once, described before its values.
        let mut family = "";
        let mut seen = std::collections::BTreeSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                family = rest.split(' ').next().unwrap();
                assert!(seen.insert(family), "{family} comes twice");
            } else if !line.starts_with("# TYPE ") {
                assert!(line.starts_with(&format!("{family}{{")), "{line}");
                assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
            }
        }
    }

    #[test]
    fn every_family_is_documented_and_no_other() {
        let text = text(&sample());
        let families: std::collections::BTreeSet<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next())
            .collect();
        let page = include_str!("../../../../docs/monitoring.md");
        let documented: std::collections::BTreeSet<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `floe_check_").map(|_| &line[3..]))
            .filter_map(|line| line.split(['`', '{']).next())
            .collect();
        assert_eq!(families, documented);
    }

    #[test]
    fn a_check_that_failed_is_not_clean_and_has_no_figures() {
        let text = text(&Sample { checked: None, exit_code: 8, ..sample() });
        assert!(text.contains("floe_check_complete{device=") && text.contains("} 8\n"), "{text}");
        assert!(!text.contains("} 1\n") && !text.contains("inodes"), "{text}");
    }

    #[test]
    fn the_file_is_replaced_and_can_be_read_by_others() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("floe.prom");
        std::fs::write(&file, "old").unwrap();
        write(&file, &sample()).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text(&sample()));
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(write(&folder.path().join("none/floe.prom"), &sample()).is_err());
    }
}
