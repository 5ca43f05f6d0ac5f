//! Time and reads of each phase.

use std::time::Duration;

use floe_check::Report;
use floe_check::report::Cost;

use super::counted;
use super::markup::Html;
use crate::human::{grouped, size};

/// Phases below this share of the total are merged into one line.
const LEAST_SHARE: f64 = 0.005;

/// One line of the chart.
struct Line {
    name: String,
    time: Duration,
    reads: u64,
    bytes: u64,
}

/// Writes time and reads of each phase.
pub fn phases(html: &mut Html, report: &Report, cost: &Cost) {
    let lines = lines(report);
    let longest = lines.iter().map(|line| line.time).max().unwrap_or_default().as_secs_f64();
    if longest == 0.0 {
        return;
    }
    let all: f64 = lines.iter().map(|line| line.time.as_secs_f64()).sum();
    html.element("section", &[("class", "card")], |html| {
        html.leaf("h2", &[], "Time and reads of each phase");
        let text = format!(
            "{} with {}; {} in {}.",
            seconds(cost.elapsed),
            counted(cost.threads as u64, "thread"),
            size(cost.bytes_read),
            counted(cost.reads, "read"),
        );
        html.leaf("p", &[("class", "detail")], &text);
        html.element("table", &[("class", "phases")], |html| {
            html.raw(
                "<thead><tr><th scope=\"col\">Phase</th><th scope=\"col\" class=\"number\">Time\
                 </th><th scope=\"col\" class=\"bar\"><span class=\"unseen\">Share of the longest\
                 </span></th><th scope=\"col\" class=\"number\">Share</th><th scope=\"col\" \
                 class=\"number\">Read</th><th scope=\"col\" class=\"number\">Reads</th></tr>\
                 </thead>",
            );
            html.element("tbody", &[], |html| {
                for line in &lines {
                    one_line(html, line, longest, all);
                }
            });
        });
    });
}

fn one_line(html: &mut Html, line: &Line, longest: f64, all: f64) {
    let time = line.time.as_secs_f64();
    let number = [("class", "number")];
    html.element("tr", &[], |html| {
        html.leaf("th", &[("scope", "row")], &line.name);
        html.leaf("td", &number, &seconds(line.time));
        html.element("td", &[("class", "bar")], |html| {
            let width = format!("{:.2}", (time / longest * 100.0).max(0.3));
            let viewport = [
                ("viewBox", "0 0 100 10"),
                ("preserveAspectRatio", "none"),
                ("aria-hidden", "true"),
            ];
            html.element("svg", &viewport, |html| {
                html.empty("rect", &[("width", &width), ("height", "10"), ("class", "fill")]);
            });
        });
        html.leaf("td", &number, &format!("{:.0} %", time / all * 100.0));
        html.leaf("td", &number, &size(line.bytes));
        html.leaf("td", &number, &grouped(line.reads));
    });
}

fn lines(report: &Report) -> Vec<Line> {
    let all: f64 = report.phases.iter().map(|phase| phase.time.as_secs_f64()).sum();
    let (mut lines, mut rest, mut short) = (Vec::new(), None::<Line>, Vec::new());
    for phase in &report.phases {
        let (reads, bytes) = (phase.reads.reads, phase.reads.bytes);
        if phase.time.as_secs_f64() >= all * LEAST_SHARE {
            lines.push(Line { name: phase.name.to_owned(), time: phase.time, reads, bytes });
        } else {
            short.push(phase.name);
            let rest = rest.get_or_insert(Line {
                name: String::new(),
                time: Duration::ZERO,
                reads: 0,
                bytes: 0,
            });
            rest.time += phase.time;
            rest.reads += reads;
            rest.bytes += bytes;
        }
    }
    lines.extend(rest.map(|rest| Line { name: short.join(", "), ..rest }));
    lines
}

fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds >= 10.0 => format!("{seconds:.1} s"),
        seconds if seconds >= 0.1 => format!("{seconds:.2} s"),
        seconds => format!("{:.1} ms", seconds * 1e3),
    }
}
