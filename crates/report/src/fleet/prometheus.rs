//! The counts of a fleet in the text format of Prometheus. `docs/fleet.md` lists the families.

use std::fmt::{Display, Write as _};

use super::{Change, Run, State, Totals, slowest, to_look_at, trend};

/// The first bytes of the text.
pub const HEAD: &str = "# HELP floe_fleet_";

/// The metrics of the last of `runs`, which are in the order of time. Images are named only if they are not clean.
pub fn text(runs: &[Run]) -> String {
    let mut page = Page(String::new());
    let Some(run) = runs.last() else { return page.0 };
    let (totals, trend) = (Totals::of(run), trend(runs));
    page.family("images", "Images by the result of their check.");
    for state in State::ALL {
        page.value("images", &[("state", state.name())], totals.count(state));
    }
    page.family("finding_images", "Images that have findings of a kind.");
    for (code, kind, images) in totals.kinds_by_importance() {
        page.value("finding_images", &labels(code, kind), images);
    }
    page.family("findings", "Findings of a kind in all images.");
    for (code, kind, _) in totals.kinds_by_importance() {
        page.value("findings", &labels(code, kind), kind.findings);
    }
    page.family("image_damage", "Findings that need repair in each image that is not clean.");
    for (device, image) in to_look_at(run) {
        let labels = [("device", device), ("label", &image.label), ("state", image.state.name())];
        page.value("image_damage", &labels, image.damage());
    }
    page.family("check_seconds", "Duration of all checks together.");
    page.value("check_seconds", &[], totals.seconds.0);
    page.family("longest_check_seconds", "Duration of the longest check.");
    page.value("longest_check_seconds", &[], totals.seconds.1);
    page.family("slow_check_seconds", "Durations of the checks that took longest.");
    for (device, image) in slowest(run) {
        let labels = [("device", device), ("label", &image.label)];
        page.value("slow_check_seconds", &labels, image.seconds);
    }
    page.family("read_bytes", "Bytes read by all checks.");
    page.value("read_bytes", &[], totals.bytes_read);
    if runs.len() > 1 {
        page.family("changes", "Images by how their result differs from the run before.");
        for (name, change) in [
            ("no-longer-clean", Change::Broken),
            ("mended", Change::Mended),
            ("added", Change::Added),
            ("missing", Change::Missing),
        ] {
            page.value("changes", &[("change", name)], trend.count(change));
        }
    }
    page.0
}

fn labels<'a>(code: &'a str, kind: &'a super::Kind) -> [(&'static str, &'a str); 3] {
    [("code", code), ("id", &kind.id), ("severity", &kind.severity)]
}

struct Page(String);

impl Page {
    fn family(&mut self, name: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP floe_fleet_{name} {help}\n# TYPE floe_fleet_{name} gauge");
    }

    fn value(&mut self, name: &str, labels: &[(&'static str, &str)], value: impl Display) {
        let escaped =
            |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let all: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let all = if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) };
        let _ = writeln!(self.0, "floe_fleet_{name}{all} {value}");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::read::tests::results;
    use super::*;

    #[test]
    fn families_are_whole_and_all_of_them_are_documented() {
        let run = |damaged| Run::read("r", results("a\"\\\n", 9, damaged).as_bytes()).unwrap();
        let text = text(&[run(2), run(3)]);
        assert!(text.starts_with(HEAD), "{text}");
        for line in [
            r#"floe_fleet_images{state="at-risk"} 3"#,
            r#"floe_fleet_images{state="clean"} 6"#,
            r#"floe_fleet_images{state="incomplete"} 1"#,
            r#"floe_fleet_changes{change="no-longer-clean"} 1"#,
            r#"floe_fleet_slow_check_seconds{device="a\"\\\n-8",label="demo"} 0.009"#,
            r#"floe_fleet_image_damage{device="a\"\\\n-<lost>",label="",state="incomplete"} 0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
        let (mut family, mut seen) = ("", BTreeSet::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                family = rest.split(' ').next().unwrap();
                assert!(seen.insert(family), "{family} comes twice");
            } else if !line.starts_with("# TYPE ") {
                assert!(line.starts_with(family), "{line}");
                assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
            }
        }
        let page = include_str!("../../../../docs/fleet.md");
        let documented: BTreeSet<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `floe_fleet_").map(|_| &line[3..]))
            .filter_map(|line| line.split(['`', '{']).next())
            .collect();
        assert_eq!(seen, documented);
    }
}
