//! The report as one self-contained HTML page for people, on screen or paper. It needs no network
//! and no script; everything from the disk is escaped ([`Html`]).
//!
//! The page of a repair ([`crate::repair::html`]) uses the same parts.

mod disk;
mod findings;
mod map;
mod markup;
mod phases;

pub use disk::DiskMap;
pub use findings::{badge, by_kind, by_place};
pub use map::map;
pub(crate) use markup::misleads;
pub use markup::{Attributes, Html};
pub use phases::phases;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use floe_check::problem::{Severity, Weight};
use floe_check::report::{Cost, JournalState, Report, Verdict};

use super::calendar;
use super::human::{grouped, plural, size};

/// Tone of a verdict, which selects its style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// The file system is clean.
    Good,
    /// There are findings, or some are left, but no file is at risk.
    Warning,
    /// Files are at risk, or the run could not be completed.
    Bad,
}

impl Tone {
    const fn class(self) -> &'static str {
        match self {
            Self::Good => "verdict good",
            Self::Warning => "verdict warning",
            Self::Bad => "verdict bad",
        }
    }

    /// A symbol for readers who cannot distinguish the colours.
    const fn sign(self) -> &'static str {
        match self {
            Self::Good => "\u{2713}",
            Self::Warning => "!",
            Self::Bad => "\u{2715}",
        }
    }
}

/// The headline of a page.
#[derive(Clone, Debug)]
pub struct Headline<'a> {
    /// Its style.
    pub tone: Tone,
    /// The verdict in one or two words.
    pub verdict: &'a str,
    /// An explanation of one or two sentences.
    pub sentence: &'a str,
}

/// Time and subject of a run.
#[derive(Clone, Debug)]
pub struct Occasion<'a> {
    /// The device, as the user named it.
    pub device: &'a str,
    /// The device name quoted for a shell, for recommended commands.
    pub word: &'a str,
    /// Options that locate the file system on the device, each followed by a space.
    pub options: &'a str,
    /// Seconds since 1970.
    pub now_seconds: i64,
}

/// The page of a check.
pub fn page(report: &Report, cost: &Cost, occasion: &Occasion<'_>, disk: &DiskMap) -> String {
    let headline =
        Headline { tone: tone(report), verdict: word(report), sentence: &sentence(report) };
    document(report, occasion, &headline, |html| {
        tiles(html, report, cost);
        advice(html, report, occasion);
        by_kind(html, report);
        map(html, disk);
        by_place(html, report);
        phases(html, report, cost);
    })
}

/// A complete page: head, verdict and identity, then the output of `body`, then the foot.
pub fn document(
    report: &Report,
    occasion: &Occasion<'_>,
    headline: &Headline<'_>,
    body: impl FnOnce(&mut Html),
) -> String {
    frame(occasion.device, headline, |html| {
        identity(html, report, occasion);
        body(html);
    })
}

/// A complete page about `subject`: head and verdict, then the output of `body`, then the foot.
pub fn frame(subject: &str, headline: &Headline<'_>, body: impl FnOnce(&mut Html)) -> String {
    let mut html = Html::new();
    html.raw("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>");
    html.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>");
    html.raw("<meta name=\"color-scheme\" content=\"light dark\"/>");
    html.leaf("title", &[], &format!("{}: {subject}", headline.verdict));
    html.raw("<style>").raw(include_str!("style.css")).raw("</style></head>\n<body><main>\n");
    html.element("header", &[("class", headline.tone.class())], |html| {
        html.leaf("span", &[("class", "sign"), ("aria-hidden", "true")], headline.tone.sign());
        html.element("div", &[], |html| {
            html.leaf("p", &[("class", "device")], subject);
            html.leaf("h1", &[], headline.verdict);
            html.leaf("p", &[], headline.sentence);
        });
    });
    body(&mut html);
    let version = env!("CARGO_PKG_VERSION");
    html.leaf(
        "footer",
        &[],
        &format!("Floe {version}. Self-contained page: loads no resources, runs no scripts."),
    );
    html.raw("</main></body></html>\n");
    html.into_string()
}

fn identity(html: &mut Html, report: &Report, occasion: &Occasion<'_>) {
    let (superblock, geometry) = (&report.superblock, &report.geometry);
    let bytes = geometry.size_bytes();
    let label = match superblock.label() {
        label if label.is_empty() => "none".to_owned(),
        label => label,
    };
    let mut rows = vec![
        ("Label", label),
        ("UUID", superblock.uuid_text()),
        (
            "Size",
            format!(
                "{}: {} blocks of {} bytes in {} group{}",
                size(bytes),
                grouped(geometry.blocks_count),
                geometry.block_size,
                grouped(u64::from(geometry.group_count)),
                plural(u64::from(geometry.group_count)),
            ),
        ),
        ("Journal", journal(report.journal)),
        ("Looked at", date(occasion.now_seconds)),
    ];
    if let Some(block) = report.used_backup {
        rows.push((
            "Superblock",
            format!("the backup at {block}, which may be older than the data"),
        ));
    }
    html.element("dl", &[("class", "identity")], |html| {
        for (name, value) in rows {
            html.element("div", &[], |html| {
                html.leaf("dt", &[], name).leaf("dd", &[], &value);
            });
        }
    });
}

fn journal(state: JournalState) -> String {
    match state {
        JournalState::None => "none".to_owned(),
        JournalState::Clean => "holds no transactions to replay".to_owned(),
        JournalState::Replayed { transactions, blocks } => format!(
            "{} transaction{}, {} block{}, replayed",
            grouped(transactions),
            plural(transactions),
            grouped(blocks),
            plural(blocks),
        ),
        JournalState::Ignored => "holds transactions that were ignored".to_owned(),
        JournalState::Unusable => "cannot be replayed".to_owned(),
    }
}

fn tone(report: &Report) -> Tone {
    match (report.verdict(), report.worst_damage()) {
        (Verdict::Clean, _) => Tone::Good,
        (Verdict::Damaged, Some(Severity::Cosmetic | Severity::Metadata)) => Tone::Warning,
        _ => Tone::Bad,
    }
}

fn word(report: &Report) -> &'static str {
    match report.verdict() {
        Verdict::Clean => "Clean",
        Verdict::Damaged => "Damaged",
        Verdict::Incomplete => "Incomplete",
    }
}

fn sentence(report: &Report) -> String {
    let damage = report.damage_count() as u64;
    let remarks = report.found.len() as u64 - damage;
    let remarked = match remarks {
        0 => String::new(),
        _ => format!(
            " There {} {}.",
            if remarks == 1 { "is" } else { "are" },
            counted(remarks, "remark")
        ),
    };
    let found = counted(damage, "finding");
    match (report.verdict(), tone(report)) {
        (Verdict::Clean, _) => format!("Nothing needs repair.{remarked}"),
        (Verdict::Incomplete, _) => format!("The check could not be completed: {found}.{remarked}"),
        (Verdict::Damaged, Tone::Bad) => {
            format!("{found}, and files, names or attributes are at risk.{remarked}")
        }
        (Verdict::Damaged, _) => {
            format!(
                "{found}, none of which is known to put files, names or attributes at risk.\
                 {remarked}"
            )
        }
    }
}

/// A number with its noun.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), plural(count))
}

/// The key figures of a run.
pub(crate) fn tiles(html: &mut Html, report: &Report, cost: &Cost) {
    // Only findings to repair: with the remarks the parts would not add up to the figure.
    let damage = report.found.iter().filter(|problem| problem.row().weight > Weight::Remark);
    let mut of_severity: BTreeMap<Reverse<Severity>, u64> = BTreeMap::new();
    damage
        .for_each(|problem| *of_severity.entry(Reverse(problem.row().severity)).or_default() += 1);
    let by_severity: Vec<String> = of_severity
        .iter()
        .map(|(Reverse(severity), count)| format!("{} {}", grouped(*count), severity.name()))
        .collect();
    let files = report.inodes().len() as u64;
    let geometry = &report.geometry;
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    html.element("section", &[("class", "tiles"), ("aria-label", "Figures")], |html| {
        let damage = grouped(report.damage_count() as u64);
        let detail = match by_severity.as_slice() {
            [] => "nothing".to_owned(),
            parts => parts.join(", "),
        };
        tile(html, "Findings to repair", &damage, &detail, None);
        let detail = "files and directories with findings";
        tile(html, "Inodes affected", &grouped(files), detail, None);
        let inodes = u64::from(geometry.inodes_count);
        let used = report.totals.inodes_used;
        let detail = format!("of {}", counted(inodes, "inode"));
        tile(html, "Inodes in use", &grouped(used), &detail, Some(share(used, inodes)));
        let used = report.blocks_used();
        let block_size = u64::from(geometry.block_size);
        let all = size(geometry.size_bytes());
        let space = size(used.saturating_mul(block_size));
        let detail = format!("of {all}");
        tile(html, "Space in use", &space, &detail, Some(share(used, geometry.blocks_count)));
        let seconds = format!("{:.2} s", cost.elapsed.as_secs_f64());
        let memory = cost.peak_memory_bytes.map(|bytes| format!(", {} of memory", size(bytes)));
        let detail = format!(
            "{}, {} read{}",
            counted(cost.threads as u64, "thread"),
            size(cost.bytes_read),
            memory.unwrap_or_default(),
        );
        tile(html, "Time", &seconds, &detail, None);
    });
}

/// One figure; `share`, from 0 to 1, is shown as a bar.
pub(crate) fn tile(html: &mut Html, name: &str, value: &str, detail: &str, share: Option<f64>) {
    html.element("div", &[("class", "tile")], |html| {
        html.leaf("h2", &[], name).leaf("p", &[("class", "value")], value);
        if let Some(share) = share {
            let width = format!("{:.1}", (share * 100.0).clamp(0.0, 100.0));
            let viewport = [("viewBox", "0 0 100 4"), ("preserveAspectRatio", "none")];
            html.element(
                "svg",
                &[&viewport[..], &[("class", "gauge"), ("aria-hidden", "true")]].concat(),
                |html| {
                    let rect = [("width", "100"), ("height", "4"), ("rx", "2"), ("class", "track")];
                    html.empty("rect", &rect);
                    html.empty(
                        "rect",
                        &[("width", &width), ("height", "4"), ("rx", "2"), ("class", "fill")],
                    );
                },
            );
        }
        html.leaf("p", &[("class", "detail")], detail);
    });
}

fn advice(html: &mut Html, report: &Report, occasion: &Occasion<'_>) {
    let Occasion { word, options, .. } = occasion;
    let device = format!("{options}{word}");
    let copy = format!("{options}copy.img");
    let steps: Vec<(&str, String)> = match tone(report) {
        Tone::Good => return,
        Tone::Warning => vec![
            (
                "Preview a repair without writing anything:",
                format!("floe repair --dry-run {device}"),
            ),
            ("Repair, with an undo file:", format!("floe repair --yes --undo undo.file {device}")),
        ],
        Tone::Bad => vec![
            (
                "Copy the device first, and work on the copy:",
                format!("ddrescue {word} copy.img copy.map"),
            ),
            ("Preview a repair without writing anything:", format!("floe repair --dry-run {copy}")),
            ("Repair, with an undo file:", format!("floe repair --yes --undo undo.file {copy}")),
        ],
    };
    html.element("section", &[("class", "card advice")], |html| {
        html.leaf("h2", &[], "Next steps");
        html.element("ol", &[], |html| {
            for (why, command) in steps {
                html.element("li", &[], |html| {
                    html.leaf("span", &[], why).raw(" ").leaf("code", &[], &command);
                });
            }
        });
    });
}

/// A time as date and time in UTC.
pub fn date(seconds: i64) -> String {
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = calendar::date(days);
    let (hour, minute) = (of_day / 3600, of_day / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400 + 3661), "2000-02-29 01:01 UTC");
        assert_eq!(date(1_795_286_399), "2026-11-21 18:39 UTC");
        assert_eq!(date(-1), "1969-12-31 23:59 UTC");
    }
}
