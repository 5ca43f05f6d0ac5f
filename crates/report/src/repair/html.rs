//! The account of a repair as one HTML page, built from the same parts as that of a check.

use floe_check::Problem;
use floe_repair::describe::Tense;

use super::human::{LATER, heading, looks, lost_line, verdict_line};
use super::{Account, Change, Ending, Verdict, by_place, ranked_left};
use crate::html::{
    DiskMap, Headline, Html, Occasion, Tone, badge, by_kind, document, map, phases, tiles,
};
use crate::human::grouped;
use crate::place::Place;

/// Places shown before the rest is only counted.
const SHOWN_PLACES: usize = 200;
/// Changes shown per place, and findings per change, before the rest is only counted.
const SHOWN_CHANGES: usize = 12;
const SHOWN_CAUSES: usize = 4;
/// Losses of one kind, and findings left, shown before the rest is only counted.
const SHOWN_LOSSES: usize = 200;

/// The page of a repair made at `now_seconds` since 1970. `disk` shows the file system before it.
pub fn page(account: &Account<'_>, now_seconds: i64, disk: &DiskMap) -> String {
    let line = verdict_line(account);
    let sentence = line.split_once(": ").map_or(line.as_str(), |(_, sentence)| sentence);
    let sentence = capital(sentence);
    let headline = Headline { tone: tone(account), verdict: word(account), sentence: &sentence };
    let occasion = Occasion { device: &account.device, options: "", word: "", now_seconds };
    let before = account.before();
    document(before, &occasion, &headline, |html| {
        tiles(html, before, &account.cost);
        halted(html, account);
        losses(html, account);
        left(html, account);
        changes(html, account);
        written(html, account);
        by_kind(html, before);
        map(html, disk);
        phases(html, before, &account.cost);
    })
}

fn tone(account: &Account<'_>) -> Tone {
    match account.verdict() {
        Verdict::Clean => Tone::Good,
        Verdict::Repaired if account.losses().is_empty() => Tone::Good,
        Verdict::Repaired => Tone::Warning,
        Verdict::Left | Verdict::Halted => Tone::Bad,
    }
}

fn word(account: &Account<'_>) -> &'static str {
    let would = account.ending.tense() == Tense::Would;
    match account.verdict() {
        Verdict::Clean => "Clean",
        Verdict::Repaired if would => "Would be repaired",
        Verdict::Repaired => "Repaired",
        Verdict::Left if would => "Damage would be left",
        Verdict::Left => "Damage is left",
        Verdict::Halted => "Halted",
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

fn card(html: &mut Html, title: &str, inner: impl FnOnce(&mut Html)) {
    html.element("section", &[("class", "card")], |html| {
        html.leaf("h2", &[], title);
        inner(html);
    });
}

fn finding(html: &mut Html, account: &Account<'_>, problem: &Problem) {
    badge(html, problem.row());
    let path = problem.inode().and_then(|inode| account.path(inode));
    let path = path.map(|path| format!(" [{path}]")).unwrap_or_default();
    html.leaf("span", &[], &format!("{problem}{path}"));
}

fn more(html: &mut Html, all: usize, shown: usize, what: &str) {
    if let Some(more) = all.checked_sub(shown).filter(|more| *more > 0) {
        html.leaf("p", &[("class", "more")], &format!("and {} more {what}", grouped(more as u64)));
    }
}

fn halted(html: &mut Html, account: &Account<'_>) {
    let Some(problem) = &account.repair.halted else { return };
    card(html, "This needs a person", |html| {
        html.element("p", &[], |html| finding(html, account, problem));
        html.leaf("p", &[], problem.row().meaning);
        html.leaf("p", &[("class", "repair")], problem.row().repair);
    });
}

fn losses(html: &mut Html, account: &Account<'_>) {
    let lost = account.losses();
    if lost.is_empty() {
        return;
    }
    let title = match account.ending.tense() {
        Tense::Done => "Files affected",
        Tense::Would => "Files that would be affected",
    };
    card(html, title, |html| {
        html.element("ul", &[("class", "places")], |html| {
            for same in lost.chunk_by(|one, other| one.fate == other.fate) {
                html.element("li", &[], |html| {
                    let count = grouped(same.len() as u64);
                    let title = heading(same[0].fate, account.ending.tense());
                    html.leaf("h3", &[], &format!("{title} ({count})"));
                    html.element("ul", &[], |html| {
                        for lost in same.iter().take(SHOWN_LOSSES) {
                            html.element("li", &[], |html| {
                                html.leaf("span", &[], &lost_line(lost));
                            });
                        }
                    });
                    more(html, same.len(), SHOWN_LOSSES, "of them");
                });
            }
        });
    });
}

fn left(html: &mut Html, account: &Account<'_>) {
    let left = ranked_left(account);
    if left.is_empty() || account.repair.halted.is_some() {
        return;
    }
    card(html, "Not repaired", |html| {
        html.element("ul", &[("class", "places")], |html| {
            for (problem, reason) in left.iter().take(SHOWN_LOSSES) {
                html.element("li", &[], |html| {
                    html.element("p", &[], |html| finding(html, account, problem));
                    html.leaf("p", &[("class", "detail")], &capital(&reason.describe()));
                });
            }
        });
        more(html, left.len(), SHOWN_LOSSES, "findings");
    });
}

fn changes(html: &mut Html, account: &Account<'_>) {
    let all = account.changes();
    if all.is_empty() {
        return;
    }
    let tense = account.ending.tense();
    let places = by_place(&all);
    let title = match tense {
        Tense::Done => "Changes made",
        Tense::Would => "Changes that would be made",
    };
    card(html, title, |html| {
        html.element("ul", &[("class", "places")], |html| {
            for (place, here) in places.iter().take(SHOWN_PLACES) {
                html.element("li", &[], |html| {
                    html.leaf("h3", &[], &place.title(&|inode| account.path(inode)));
                    for change in here.iter().take(SHOWN_CHANGES) {
                        one_change(html, *place, change, tense);
                    }
                    more(html, here.len(), SHOWN_CHANGES, "changes");
                });
            }
        });
        more(html, places.len(), SHOWN_PLACES, "places, changed in the same ways");
    });
}

fn one_change(html: &mut Html, place: Place, change: &Change<'_>, tense: Tense) {
    html.element("ul", &[], |html| {
        for problem in change.causes.iter().take(SHOWN_CAUSES) {
            html.element("li", &[], |html| {
                if change.is_later {
                    html.leaf("span", &[("class", "badge remark")], LATER);
                } else {
                    badge(html, problem.row());
                }
                html.leaf("span", &[], &place.message(problem));
            });
        }
    });
    html.element("div", &[("class", "change")], |html| {
        more(html, change.causes.len(), SHOWN_CAUSES, "findings");
        html.element("p", &[], |html| {
            html.text("\u{2192} ").text(&change.deed.describe(tense));
        });
        for note in &change.deed.notes {
            html.leaf("p", &[("class", "detail")], note);
        }
    });
}

fn written(html: &mut Html, account: &Account<'_>) {
    let repair = account.repair;
    if repair.halted.is_some() {
        return;
    }
    let looks = looks(repair);
    card(html, "Details of the run", |html| {
        let written = super::human::written(account, account.ending.tense());
        let text = format!("Staged in memory and examined {looks}; {written}.");
        html.leaf("p", &[], &text);
        let why = match &account.ending {
            Ending::Planned { .. } => "To apply it: ",
            _ => "To undo it: ",
        };
        for command in &account.commands {
            html.element("p", &[], |html| {
                html.text(why).leaf("code", &[], command);
            });
        }
    });
}
