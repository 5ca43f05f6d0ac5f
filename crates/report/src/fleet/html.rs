//! The report of a fleet as one self-contained HTML page.

use super::human::{changes, reason, replaced, sentence};
use super::{Change, Run, State, Totals, Trend, to_look_at, trend};
use crate::html::{Headline, Html, Tone, counted, frame, tile};
use crate::human::{grouped, size};

/// Images listed before the rest is only counted.
const SHOWN_IMAGES: usize = 500;
/// Images named beside a kind of findings.
const SHOWN_PLACES: usize = 5;

/// The page of the last of `runs`, which are in the order of time. `now_seconds`: seconds since 1970.
pub fn page(runs: &[Run], now_seconds: i64) -> String {
    let empty = Run::default();
    let run = runs.last().unwrap_or(&empty);
    let (totals, trend) = (Totals::of(run), trend(runs));
    let (tone, verdict) = match State::ALL.into_iter().find(|state| totals.count(*state) > 0) {
        Some(State::AtRisk) => (Tone::Bad, "Data at risk"),
        Some(State::Incomplete) => (Tone::Bad, "Incomplete"),
        Some(State::Damaged) => (Tone::Warning, "Damaged"),
        Some(State::Clean) | None => (Tone::Good, "Clean"),
    };
    let sentence = match runs {
        [.., before, _] => format!("{}; {}.", sentence(&totals), changes(&trend, &before.name)),
        _ => format!("{}.", sentence(&totals)),
    };
    let sentence = match replaced(run) {
        Some(more) => format!("{sentence} {more}."),
        None => sentence,
    };
    let subject = format!("{}, reported {}", run.name, crate::html::date(now_seconds));
    frame(&subject, &Headline { tone, verdict, sentence: &sentence }, |html| {
        tiles(html, &totals);
        images(html, runs, run, &trend);
        kinds(html, run, &totals);
        history(html, runs);
        slowest(html, run);
    })
}

fn tiles(html: &mut Html, totals: &Totals) {
    let share = |count: u64| Some(count as f64 / totals.all().max(1) as f64);
    html.element("section", &[("class", "tiles"), ("aria-label", "Figures")], |html| {
        for state in State::ALL.into_iter().rev() {
            let count = totals.count(state);
            let detail = format!("of {}", counted(totals.all(), "image"));
            tile(html, title(state), &grouped(count), &detail, share(count));
        }
        let seconds = format!("{:.1} s", totals.seconds.0);
        let detail =
            format!("{:.2} s the longest, {} read", totals.seconds.1, size(totals.bytes_read));
        tile(html, "Time of all checks", &seconds, &detail, None);
    });
}

const fn title(state: State) -> &'static str {
    match state {
        State::AtRisk => "Data at risk",
        State::Incomplete => "Not checked completely",
        State::Damaged => "Damaged",
        State::Clean => "Clean",
    }
}

fn badge(html: &mut Html, state: State) {
    let class = match state {
        State::AtRisk | State::Incomplete => "badge risk",
        State::Damaged => "badge damage",
        State::Clean => "badge done",
    };
    html.leaf("span", &[("class", class)], state.name());
}

/// A card with a table: its columns by title, those of numbers marked.
fn table(html: &mut Html, name: &str, columns: &[(&str, bool)], rows: impl FnOnce(&mut Html)) {
    html.element("section", &[("class", "card")], |html| {
        html.leaf("h2", &[], name);
        html.element("table", &[], |html| {
            html.element("thead", &[], |html| {
                html.element("tr", &[], |html| {
                    for (column, number) in columns {
                        let class: &[_] = if *number { &[("class", "number")] } else { &[] };
                        let scope = [("scope", "col")];
                        html.leaf("th", &[&scope[..], class].concat(), column);
                    }
                });
            });
            html.element("tbody", &[], rows);
        });
    });
}

fn number(html: &mut Html, text: &str) {
    html.leaf("td", &[("class", "number")], text);
}

/// The images that are not clean, the worst first.
fn images(html: &mut Html, runs: &[Run], run: &Run, trend: &Trend) {
    let all = to_look_at(run);
    if all.is_empty() {
        return;
    }
    let columns = [("Image", false), ("Result", false), ("Findings", true), ("Since", false)];
    table(html, "Images that are not clean", &columns, |html| {
        for (device, image) in all.iter().take(SHOWN_IMAGES) {
            html.element("tr", &[], |html| {
                html.element("th", &[("scope", "row")], |html| {
                    badge(html, image.state);
                    html.leaf("code", &[], device);
                    if !image.label.is_empty() {
                        html.raw(" ").leaf("span", &[("class", "detail")], &image.label);
                    }
                });
                html.leaf("td", &[], &reason(image));
                number(html, &grouped(image.damage()));
                html.leaf("td", &[], &since(runs, device, trend));
            });
        }
        if let Some(more) = all.len().checked_sub(SHOWN_IMAGES).filter(|more| *more > 0) {
            let text = format!("{} not shown", counted(more as u64, "more image"));
            html.element("tr", &[], |html| {
                html.leaf("td", &[("colspan", "4"), ("class", "more")], &text);
            });
        }
    });
}

/// Since which run an image is not clean.
fn since(runs: &[Run], device: &str, trend: &Trend) -> String {
    let name = |at: &usize| runs.get(*at).map(|run| run.name.as_str());
    match (trend.changes.get(device), trend.since.get(device).and_then(name)) {
        (_, _) if runs.len() < 2 => String::new(),
        (Some(Change::Broken | Change::Added), _) => "this run".to_owned(),
        (_, Some(name)) => name.to_owned(),
        (_, None) => String::new(),
    }
}

/// The kinds of findings, with the images that have most of each.
fn kinds(html: &mut Html, run: &Run, totals: &Totals) {
    if totals.kinds.is_empty() {
        return;
    }
    let columns =
        [("Kind", false), ("Images", false), ("Findings", true), ("Meaning and repair", false)];
    table(html, "Findings by kind", &columns, |html| {
        for (code, kind, images) in totals.kinds_by_importance() {
            html.element("tr", &[], |html| {
                html.element("th", &[("scope", "row")], |html| {
                    let (class, word) = match (kind.remark, kind.at_risk()) {
                        (true, _) => ("badge remark", "remark"),
                        (_, true) => ("badge risk", "data at risk"),
                        (_, false) => ("badge damage", "damage"),
                    };
                    html.leaf("span", &[("class", class)], word);
                    html.leaf("span", &[("class", "id")], &kind.id).raw(" ");
                    html.leaf("span", &[("class", "code")], code);
                });
                html.element("td", &[], |html| places(html, run, code, images));
                number(html, &grouped(kind.findings));
                html.element("td", &[], |html| match kind.row() {
                    Some(row) => {
                        html.leaf("p", &[], row.meaning);
                        html.leaf("p", &[("class", "repair")], row.repair);
                    }
                    None => {
                        html.leaf("p", &[], "Found by another version of Floe.");
                    }
                });
            });
        }
    });
}

/// How many images have a kind of findings, and the names of some.
fn places(html: &mut Html, run: &Run, code: &str, images: u64) {
    html.text(&grouped(images));
    let mut found: Vec<(u64, &str)> = run
        .images
        .iter()
        .filter_map(|(device, image)| Some((image.kinds.get(code)?.findings, device.as_str())))
        .collect();
    found.sort_by_key(|(findings, device)| (std::cmp::Reverse(*findings), *device));
    for (findings, device) in found.iter().take(SHOWN_PLACES) {
        html.raw("<br>").leaf("code", &[], device);
        html.text(&format!(" {}", grouped(*findings)));
    }
    if let Some(more) = found.len().checked_sub(SHOWN_PLACES).filter(|more| *more > 0) {
        html.raw("<br>").text(&format!("and {} more", grouped(more as u64)));
    }
}

/// The counts of all runs, with a bar each.
fn history(html: &mut Html, runs: &[Run]) {
    if runs.len() < 2 {
        return;
    }
    let columns = [
        ("Run", false),
        ("Images", true),
        ("Clean", true),
        ("Damaged", true),
        ("At risk", true),
        ("Incomplete", true),
        ("Seconds", true),
        ("Not clean", false),
    ];
    let all: Vec<(&Run, Totals)> = runs.iter().map(|run| (run, Totals::of(run))).collect();
    let bad = |totals: &Totals| totals.all() - totals.count(State::Clean);
    let most = all.iter().map(|(_, totals)| bad(totals)).max().unwrap_or(0).max(1);
    table(html, "Runs", &columns, |html| {
        for (run, totals) in &all {
            html.element("tr", &[], |html| {
                html.leaf("th", &[("scope", "row")], &run.name);
                number(html, &grouped(totals.all()));
                for state in [State::Clean, State::Damaged, State::AtRisk, State::Incomplete] {
                    number(html, &grouped(totals.count(state)));
                }
                number(html, &format!("{:.1}", totals.seconds.0));
                html.element("td", &[], |html| bar(html, bad(totals) as f64 / most as f64));
            });
        }
    });
}

/// The checks that took longest.
fn slowest(html: &mut Html, run: &Run) {
    let images = super::slowest(run);
    let Some((_, first)) = images.first() else { return };
    let longest = first.seconds;
    let columns = [
        ("Image", false),
        ("Seconds", true),
        ("Read", true),
        ("File system", true),
        ("Share of the longest", false),
    ];
    table(html, "Slowest checks", &columns, |html| {
        for (device, image) in &images {
            html.element("tr", &[], |html| {
                html.element("th", &[("scope", "row")], |html| {
                    html.leaf("code", &[], device);
                });
                number(html, &format!("{:.2}", image.seconds));
                number(html, &size(image.bytes_read));
                number(html, &size(image.bytes));
                html.element("td", &[], |html| bar(html, image.seconds / longest));
            });
        }
    });
}

/// A bar; `share` is from 0 to 1.
fn bar(html: &mut Html, share: f64) {
    let width = format!("{:.2}", (share * 100.0).clamp(0.0, 100.0));
    let viewport = [
        ("viewBox", "0 0 100 8"),
        ("preserveAspectRatio", "none"),
        ("class", "gauge"),
        ("aria-hidden", "true"),
    ];
    html.element("svg", &viewport, |html| {
        html.empty("rect", &[("width", "100"), ("height", "8"), ("class", "track")]);
        html.empty("rect", &[("width", &width), ("height", "8"), ("class", "fill")]);
    });
}

#[cfg(test)]
mod tests {
    use super::super::read::tests::results;
    use super::*;

    #[test]
    fn a_page_shows_what_changed_and_escapes_names() {
        let run = |name: &str, damaged| {
            Run::read(name, results("<b>vol", 40, damaged).as_bytes()).unwrap()
        };
        let text = page(&[run("monday", 1), run("tuesday", 3)], 0);
        assert!(text.starts_with("<!DOCTYPE html>") && text.ends_with("</html>\n"));
        assert!(!text.contains("<b>vol") && text.contains("&lt;b&gt;vol-2"), "{text}");
        assert!(text.contains("2 no longer clean"), "{text}");
        for (device, since) in [("&lt;b&gt;vol-0", "monday"), ("&lt;b&gt;vol-2", "this run")] {
            let at = text.find(&format!("<code>{device}</code>")).unwrap();
            let row = &text[at..at + text[at..].find("</tr>").unwrap()];
            assert!(row.ends_with(&format!("<td>{since}</td>")), "{row}");
        }
        // The slowest of 40 checks took 40 ms; the image that could not be examined has no time.
        let slowest = &text[text.find("Slowest checks").unwrap()..];
        assert!(slowest.find("vol-39").unwrap() < slowest.find("vol-38").unwrap());
        assert!(!slowest.contains("vol-0<") && !slowest.contains("lost"));
        // A kind of findings names some of its images.
        let kinds = &text[text.find("Findings by kind").unwrap()..text.find(">Runs<").unwrap()];
        assert!(kinds.contains("<td>3<br><code>&lt;b&gt;vol-0</code> "), "{kinds}");
        let many = page(&[run("monday", 9)], 0);
        assert!(many.contains("vol-4</code>") && many.contains("and 4 more"), "{many}");
        // A single run has no history.
        let alone = page(&[Run::read("x", results("v", 2, 0).as_bytes()).unwrap()], 0);
        assert!(text.contains(">Runs<") && !alone.contains(">Runs<"), "{alone}");
    }
}
