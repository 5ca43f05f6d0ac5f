//! The findings, by kind and by place.

use std::collections::BTreeMap;

use floe_check::Report;
use floe_check::problem::{Problem, Row, Severity, Weight};

use super::markup::Html;
use super::{counted, grouped};
use crate::place::Place;
use crate::rank::Rank;

/// Places shown before the rest is only counted.
const SHOWN_PLACES: usize = 200;
/// Findings of one kind shown per place before the rest is only counted.
const SHOWN_PER_KIND: usize = 8;

/// Writes the coloured label of a finding.
pub fn badge(html: &mut Html, row: &Row) {
    let (class, word) = match (row.weight, row.severity) {
        (Weight::Remark, _) => ("badge remark", "remark"),
        (Weight::Fatal, _) => ("badge risk", "fatal"),
        (Weight::Damage, Severity::DataRisk | Severity::Fatal) => ("badge risk", "data at risk"),
        (Weight::Damage, Severity::Metadata | Severity::Cosmetic) => ("badge damage", "damage"),
    };
    html.leaf("span", &[("class", class)], word);
}

/// The findings of a report by kind, worst first: their number, meaning and repair.
pub fn by_kind(html: &mut Html, report: &Report) {
    if report.found.is_empty() {
        return;
    }
    // The first finding of each kind, and their number.
    let mut kinds: BTreeMap<u32, (&Problem, u64)> = BTreeMap::new();
    for problem in &report.found {
        kinds.entry(problem.row().code).or_insert((problem, 0)).1 += 1;
    }
    let mut kinds: Vec<_> = kinds.into_values().collect();
    kinds.sort_by_key(|(first, count)| {
        (Rank::of(first), std::cmp::Reverse(*count), first.row().code)
    });
    html.element("section", &[("class", "card")], |html| {
        html.leaf("h2", &[], "Findings by kind");
        html.element("table", &[("class", "kinds")], |html| {
            html.raw(
                "<thead><tr><th scope=\"col\">Kind</th><th scope=\"col\" class=\"number\">Findings\
                 </th><th scope=\"col\">What it means, and what a repair does</th></tr></thead>",
            );
            html.element("tbody", &[], |html| {
                for (first, count) in kinds {
                    kind(html, first, count);
                }
            });
        });
    });
}

fn kind(html: &mut Html, first: &Problem, count: u64) {
    let row = first.row();
    let example = match count {
        1 => first.to_string(),
        _ => format!("{first}, and {} more of this kind", grouped(count - 1)),
    };
    html.element("tr", &[], |html| {
        html.element("th", &[("scope", "row")], |html| {
            badge(html, row);
            html.leaf("span", &[("class", "id")], row.id);
            html.leaf("span", &[("class", "code")], &format!("{:#08x}", row.code));
        });
        html.leaf("td", &[("class", "number")], &grouped(count));
        html.element("td", &[], |html| {
            html.leaf("p", &[("class", "example")], &example);
            html.leaf("p", &[], row.meaning);
            html.leaf("p", &[("class", "repair")], row.repair);
        });
    });
}

/// The findings of a report by place, worst places first.
pub fn by_place(html: &mut Html, report: &Report) {
    if report.found.is_empty() {
        return;
    }
    let mut places: BTreeMap<Place, Vec<&Problem>> = BTreeMap::new();
    for problem in &report.found {
        places.entry(Place::of(problem)).or_default().push(problem);
    }
    let mut places: Vec<_> = places.into_iter().collect();
    // Stable sort: places of equal rank keep their order.
    places.sort_by_key(|(_, problems)| Rank::of_all(problems.iter().copied()));
    html.element("section", &[("class", "card")], |html| {
        html.leaf("h2", &[], "Findings by place");
        html.element("ul", &[("class", "places")], |html| {
            for (place, problems) in places.iter().take(SHOWN_PLACES) {
                one_place(html, report, *place, problems);
            }
        });
        if let Some(more) = places.len().checked_sub(SHOWN_PLACES).filter(|more| *more > 0) {
            let text = format!(
                "{} with findings of the kinds above; floe check --verbose lists them all.",
                counted(more as u64, "more place"),
            );
            html.leaf("p", &[("class", "more")], &text);
        }
    });
}

fn one_place(html: &mut Html, report: &Report, place: Place, problems: &[&Problem]) {
    let mut problems = problems.to_vec();
    problems.sort_by_key(|problem| Rank::of(problem));
    html.element("li", &[], |html| {
        html.leaf("h3", &[], &place.title(&|inode| report.path(inode)));
        html.element("ul", &[], |html| {
            for same in problems.chunk_by(|one, other| one.row().code == other.row().code) {
                for problem in same.iter().take(SHOWN_PER_KIND) {
                    html.element("li", &[], |html| {
                        badge(html, problem.row());
                        html.leaf("span", &[], &place.message_of(report, problem));
                    });
                }
                if let Some(more) = same.len().checked_sub(SHOWN_PER_KIND).filter(|more| *more > 0)
                {
                    let text = format!("and {} more of this kind", grouped(more as u64));
                    html.leaf("li", &[("class", "more")], &text);
                }
            }
        });
    });
}
