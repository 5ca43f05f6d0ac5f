//! The report of a fleet as text.

use std::io::{self, Write};

use super::{Change, Run, State, Totals, slowest, to_look_at, trend};
use crate::html::misleads;
use crate::human::{grouped, plural, size};

/// Images named before the rest is only counted.
const SHOWN_IMAGES: usize = 20;

/// Writes the report of the last of `runs`, which are in the order of time, and how it differs from the one before.
///
/// # Errors
/// Those of writing to `out`.
pub fn write(out: &mut impl Write, runs: &[Run]) -> io::Result<()> {
    let Some(run) = runs.last() else { return Ok(()) };
    let (totals, trend) = (Totals::of(run), trend(runs));
    writeln!(out, "{}: {}", printable(&run.name), sentence(&totals))?;
    if let [.., before, _] = runs {
        writeln!(out, "{}", printable(&changes(&trend, &before.name)))?;
    }
    if let Some(text) = replaced(run) {
        writeln!(out, "{text}")?;
    }
    for (at, (device, image)) in to_look_at(run).into_iter().enumerate() {
        if at == SHOWN_IMAGES {
            let more = run.images.len() as u64 - totals.count(State::Clean) - at as u64;
            writeln!(out, "  ... and {} more", grouped(more))?;
            break;
        }
        let broken = match trend.changes.get(device) {
            Some(Change::Broken) => ", clean before",
            _ => "",
        };
        writeln!(out, "  {}: {}{broken}", printable(device), reason(image))?;
    }
    for (_, kind, images) in totals.kinds_by_importance() {
        let (s, findings) = (plural(images), grouped(kind.findings));
        let remark = if kind.remark { ", a remark" } else { "" };
        writeln!(
            out,
            "{} image{s}: {} ({findings} found{remark})",
            grouped(images),
            printable(&kind.id)
        )?;
    }
    writeln!(
        out,
        "{:.1} s of checks, {:.2} s the longest{}; {} read",
        totals.seconds.0,
        totals.seconds.1,
        slowest(run)
            .first()
            .map(|(device, _)| format!(" ({})", printable(device)))
            .unwrap_or_default(),
        size(totals.bytes_read)
    )
}

/// How many results of this run do not count, if any.
pub(super) fn replaced(run: &Run) -> Option<String> {
    let count = grouped(run.replaced);
    match run.replaced {
        0 => None,
        1 => Some("1 result was replaced by a later one of the same image".to_owned()),
        _ => Some(format!("{count} results were replaced by later ones of the same images")),
    }
}

/// The counts of a run as a sentence without a stop.
pub(super) fn sentence(totals: &Totals) -> String {
    let all = totals.all();
    let counts: Vec<String> = State::ALL
        .into_iter()
        .rev()
        .filter(|state| totals.count(*state) > 0)
        .map(|state| format!("{} {}", grouped(totals.count(state)), state.words()))
        .collect();
    format!("{} image{}: {}", grouped(all), plural(all), counts.join(", "))
}

/// The changes since a run as a sentence without a stop.
pub(super) fn changes(trend: &super::Trend, before: &str) -> String {
    let count = |change| grouped(trend.count(change) as u64);
    format!(
        "since {before}: {} no longer clean, {} mended, {} added, {} missing",
        count(Change::Broken),
        count(Change::Mended),
        count(Change::Added),
        count(Change::Missing)
    )
}

/// Why an image is in the list, in a few words.
pub(super) fn reason(image: &super::Image) -> String {
    let damage = image.damage();
    let worst = image.worst().map(|kind| format!(", among them {}", printable(&kind.id)));
    let worst = worst.unwrap_or_default();
    let found = format!("{} finding{}{worst}", grouped(damage), plural(damage));
    match (image.error.as_str(), damage) {
        ("", 0) => image.state.words().to_owned(),
        ("", _) => format!("{}: {found}", image.state.words()),
        (error, _) => printable(error),
    }
}

/// Text from elsewhere on one line, without characters that steer a terminal or hide what stands there.
fn printable(text: &str) -> String {
    let steers = |char: char| char.is_control() || misleads(char);
    text.chars().map(|char| if steers(char) { ' ' } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::read::tests::results;
    use super::*;

    /// Results come from machines that somebody else may have.
    #[test]
    fn nothing_in_results_steers_a_terminal() {
        let lines = results("vol", 2, 2).replace("inode-", "\\u001b[2Jinode-\\u202e");
        let mut text = Vec::new();
        write(&mut text, &[Run::read("run\u{1b}\n", (lines.clone() + &lines).as_bytes()).unwrap()])
            .unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("[2Jinode- "), "{text}");
        assert!(text.contains("3 results were replaced by later ones"), "{text}");
        assert!(
            !text.contains(['\u{1b}', '\u{202e}']) && text.lines().all(|line| !line.is_empty()),
            "{text}"
        );
    }

    #[test]
    fn a_run_is_told_with_what_changed() {
        let run = |name: &str, damaged| {
            Run::read(name, results("vol\u{1b}", 30, damaged).as_bytes()).unwrap()
        };
        let mut text = Vec::new();
        write(&mut text, &[run("one.jsonl", 23), run("two.jsonl", 25)]).unwrap();
        let text = String::from_utf8(text).unwrap();
        for line in [
            "two.jsonl: 31 images: 5 clean, 1 not checked completely, 25 damaged with data at risk",
            "since one.jsonl: 2 no longer clean, 0 mended, 0 added, 0 missing",
            "  ... and 6 more",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.contains("25 images: ") && !text.contains('\u{1b}'), "{text}");
        assert!(text.contains("vol -24: ") || text.contains(", clean before"), "{text}");
    }
}
