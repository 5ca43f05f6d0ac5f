//! The account for people: changes by object, then losses, findings left, and the verdict.

use std::collections::BTreeMap;
use std::io::{self, Write};

use floe_check::Problem;
use floe_check::problem::Weight;
use floe_check::report::JournalState;
use floe_format::InodeNr;
use floe_format::words::agree;
use floe_repair::describe::Tense;
use floe_repair::edit::{Edit, JournalEdit};
use floe_repair::plan::{Plan, plan};
use floe_repair::{Fate, Repair};

use super::{Account, Change, Ending, Lost, Verdict, by_place, ranked_left};
pub use crate::human::Style;
use crate::human::{cost, grouped, identity, plural, size, tag};
use crate::place::Place;

/// Changes of one kind shown per place before the rest is only counted.
const SHOWN_PER_KIND: usize = 10;
/// Findings shown for one change before the rest is only counted.
const SHOWN_CAUSES: usize = 5;
/// Places with the same kinds of changes shown before the rest is only counted.
const SHOWN_ALIKE: usize = 10;
/// Losses of one kind listed before the rest is only counted.
const SHOWN_LOSSES: usize = 50;
/// Remarks listed before the rest is only counted.
const SHOWN_REMARKS: usize = 10;
/// Findings left that are listed before the rest is only counted.
const SHOWN_LEFT: usize = 50;

/// The label of findings that only earlier changes brought to light.
pub(super) const LATER: &str = "later";

/// Maximum length of a list: `short`, or unlimited in verbose mode.
const fn most(style: Style, short: usize) -> usize {
    if style.verbose { usize::MAX } else { short }
}

/// Writes the whole account.
///
/// # Errors
/// A write error of `out`.
pub fn write(out: &mut impl Write, account: &Account<'_>, style: Style) -> io::Result<()> {
    identity(out, account.before())?;
    let tense = account.ending.tense();
    journal(out, account, tense)?;
    if account.verdict() == Verdict::Halted {
        halted(out, account, style)?;
    } else {
        changes(out, account, tense, style)?;
        losses(out, account, tense, style)?;
        left(out, account, style)?;
        remarks(out, account, style)?;
    }
    writeln!(out)?;
    summary(out, account, tense)?;
    writeln!(out, "{}", verdict_line(account))
}

fn journal(out: &mut impl Write, account: &Account<'_>, tense: Tense) -> io::Result<()> {
    match account.repair.journal {
        // After a halt the staged changes are discarded.
        _ if account.verdict() == Verdict::Halted => Ok(()),
        JournalState::None | JournalState::Clean | JournalState::Ignored => Ok(()),
        JournalState::Replayed { transactions, blocks } => writeln!(
            out,
            "The journal {} replayed: {} transaction{}, {} block{}.",
            tense.was(),
            grouped(transactions),
            plural(transactions),
            grouped(blocks),
            plural(blocks),
        ),
        JournalState::Unusable => writeln!(
            out,
            "Warning: the journal cannot be replayed: the file system was repaired without it."
        ),
    }
}

fn changes(
    out: &mut impl Write,
    account: &Account<'_>,
    tense: Tense,
    style: Style,
) -> io::Result<()> {
    let all = account.changes();
    let mut alike: BTreeMap<Vec<u32>, (Place, usize)> = BTreeMap::new();
    for (place, here) in by_place(&all) {
        if !style.verbose && !matches!(place, Place::Filesystem(_)) {
            let kinds = here.iter().flat_map(|change| change.causes.iter());
            let mut kinds: Vec<u32> = kinds.map(|problem| problem.row().code).collect();
            kinds.sort_unstable();
            kinds.dedup();
            let (_, count) = alike.entry(kinds).or_insert((place, 0));
            *count += 1;
            if *count > SHOWN_ALIKE {
                continue;
            }
        }
        writeln!(out, "\n{}", place.title(&|inode| account.path(inode)))?;
        let mut shown: BTreeMap<&'static str, usize> = BTreeMap::new();
        for change in here {
            let kind = change.causes.first().map_or("", |problem| problem.row().id);
            let count = shown.entry(kind).or_default();
            *count += 1;
            if *count <= most(style, SHOWN_PER_KIND) {
                one_change(out, place, change, tense, style)?;
            }
        }
        for (kind, count) in shown.iter().filter(|(_, count)| **count > most(style, SHOWN_PER_KIND))
        {
            let more = grouped((count - SHOWN_PER_KIND) as u64);
            writeln!(out, "  ... and {more} more changes like these ({kind})")?;
        }
    }
    for (first, count) in alike.into_values().filter(|(_, count)| *count > SHOWN_ALIKE) {
        let more = grouped((count - SHOWN_ALIKE) as u64);
        let (what, first) = match first {
            Place::Group(group) => ("groups", group.to_string()),
            Place::Inode(inode) => ("inodes", inode.to_string()),
            Place::Filesystem(_) => continue,
        };
        writeln!(out, "\n... and {more} more {what} like {first}; --verbose shows all")?;
    }
    let gone = account.gone_with_the_rest();
    if style.verbose && !gone.is_empty() {
        writeln!(out, "\nAlso resolved by the changes above")?;
        for problem in gone {
            writeln!(out, "  {}: {problem}", tag(problem))?;
        }
    }
    Ok(())
}

fn one_change(
    out: &mut impl Write,
    place: Place,
    change: &Change<'_>,
    tense: Tense,
    style: Style,
) -> io::Result<()> {
    let shown = change.causes.len().min(most(style, SHOWN_CAUSES));
    for problem in &change.causes[..shown] {
        let label = if change.is_later { LATER } else { tag(problem) };
        writeln!(out, "  {label}: {}", place.message(problem))?;
        if style.verbose {
            let row = problem.row();
            writeln!(out, "      {:#08x} {}", row.code, row.id)?;
        }
    }
    if shown < change.causes.len() {
        let more = (change.causes.len() - shown) as u64;
        writeln!(out, "  ... and {} more finding{}", grouped(more), plural(more))?;
    }
    write!(out, "      -> {}", change.deed.describe(tense))?;
    if style.verbose {
        let (phase, round) = (change.deed.edit.phase().name(), change.deed.round);
        write!(out, " (round {round}, {phase})")?;
    }
    writeln!(out)?;
    for note in &change.deed.notes {
        // The worth of the states of a damaged log does not follow from the change.
        let follows = tense == Tense::Would
            && change.deed.edit != Edit::Journal(JournalEdit::LoseTransactions);
        writeln!(out, "         {}{note}", if follows { "then " } else { "" })?;
    }
    Ok(())
}

pub(super) fn heading(fate: Fate, tense: Tense) -> String {
    let were = tense.were();
    match fate {
        Fate::Transactions => "The log is damaged, so the latest changes may be lost".to_owned(),
        Fate::Deleted => format!("These {were} deleted"),
        Fate::Cut => format!("These {were} truncated: part of the content is lost"),
        Fate::Cloned => {
            "These shared blocks: each gets its own copy, and some hold another file's data. \
             Compare them with a backup"
                .to_owned()
        }
        Fate::Attributes => format!("These {were} left without some extended attributes"),
        Fate::Name => format!("These names {were} removed or changed"),
        Fate::Moved => format!("These {were} connected to lost+found"),
    }
}

fn losses(
    out: &mut impl Write,
    account: &Account<'_>,
    tense: Tense,
    style: Style,
) -> io::Result<()> {
    let lost = account.losses();
    for same in lost.chunk_by(|one, other| one.fate == other.fate) {
        let shown = same.len().min(most(style, SHOWN_LOSSES));
        let count = grouped(same.len() as u64);
        writeln!(out, "\n{} ({count})", heading(same[0].fate, tense))?;
        for lost in &same[..shown] {
            writeln!(out, "  {}", lost_line(lost))?;
        }
        if shown < same.len() {
            writeln!(out, "  ... and {} more", grouped((same.len() - shown) as u64))?;
        }
    }
    Ok(())
}

pub(super) fn lost_line(lost: &Lost) -> String {
    let inode = lost.inode.map(|InodeNr(number)| format!("inode {number}")).unwrap_or_default();
    let what = match (&lost.path, &lost.parent, &lost.entry) {
        (Some(path), _, Some(entry)) => format!("\"{entry}\" in {path} ({inode})"),
        (None, _, Some(entry)) => format!("\"{entry}\" in {inode}"),
        (Some(path), _, None) => format!("{path} ({inode})"),
        (None, Some(parent), None) => format!("{inode}, formerly in {parent}"),
        (None, None, None) if inode.is_empty() => "the file system".to_owned(),
        (None, None, None) => format!("{inode}, whose path is unknown"),
    };
    match lost.now.as_slice() {
        [] => what,
        now => format!("{what}: {}", now.join("; ")),
    }
}

fn left(out: &mut impl Write, account: &Account<'_>, style: Style) -> io::Result<()> {
    let left = ranked_left(account);
    if left.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nNot repaired")?;
    let shown = left.len().min(most(style, SHOWN_LEFT));
    for (problem, reason) in &left[..shown] {
        writeln!(out, "  {}", with_path(account, problem))?;
        writeln!(out, "      {}", reason.describe())?;
    }
    if shown < left.len() {
        writeln!(out, "  ... and {} more findings", grouped((left.len() - shown) as u64))?;
    }
    Ok(())
}

/// Remarks that the repair leaves, a part of the device that cannot be read among them: whoever only repairs never runs a check.
fn remarks(out: &mut impl Write, account: &Account<'_>, style: Style) -> io::Result<()> {
    // Writing the repair settles some of them.
    let stays = |problem: &&Problem| {
        problem.row().weight == Weight::Remark && plan(problem) != Plan::AtTheEnd
    };
    let all = || account.repair.after.found.iter().filter(stays);
    let count = all().count();
    if count == 0 {
        return Ok(());
    }
    writeln!(out, "\nRemarks")?;
    let shown = count.min(most(style, SHOWN_REMARKS));
    for problem in all().take(shown) {
        writeln!(out, "  {}", with_path(account, problem))?;
    }
    if shown < count {
        writeln!(out, "  ... and {} more remarks", grouped((count - shown) as u64))?;
    }
    Ok(())
}

fn with_path(account: &Account<'_>, problem: &Problem) -> String {
    let path = problem.inode().and_then(|inode| account.path(inode));
    let path = path.map(|path| format!(" [{path}]")).unwrap_or_default();
    format!("{}: {problem}{path}", tag(problem))
}

fn halted(out: &mut impl Write, account: &Account<'_>, style: Style) -> io::Result<()> {
    let Some(problem) = &account.repair.halted else { return Ok(()) };
    writeln!(out, "\nThis needs a person:")?;
    writeln!(out, "  {}", with_path(account, problem))?;
    let row = problem.row();
    crate::human::wrapped(out, row.meaning)?;
    crate::human::wrapped(out, &format!("Repair: {}", row.repair))?;
    if style.verbose {
        writeln!(out, "\nAll findings")?;
        for problem in &account.before().found {
            writeln!(out, "  {}", with_path(account, problem))?;
        }
    }
    Ok(())
}

/// The number of examinations, as text.
pub(super) fn looks(repair: &Repair<'_>) -> String {
    let (looks, in_part) = (u64::from(repair.rounds), repair.rescans.len() as u64);
    let mut text = format!("{looks} time{}", plural(looks));
    if in_part > 0 {
        text.push_str(&format!(", {in_part} of them in part"));
    }
    text
}

/// The amount written, as text; also if only routine fields changed.
pub(super) fn written(account: &Account<'_>, tense: Tense) -> String {
    if account.changed_bytes == 0 {
        return format!("nothing {} written", tense.was());
    }
    let (bytes, were) = (size(account.changed_bytes), tense.were());
    let replayed = matches!(account.repair.journal, JournalState::Replayed { .. });
    if account.repair.moves_files() {
        return match &account.ending {
            Ending::Written { bytes: all, .. } => {
                let all = size(*all);
                format!("{bytes} {were} changed, and {all} written in all, through the journals")
            }
            _ => {
                let moves = size(account.repair.bytes_of_moves());
                format!("{bytes} {were} changed, and {moves} written through the journals")
            }
        };
    }
    match (account.repair.deeds.is_empty(), replayed) {
        (false, _) => format!("{bytes} {were} written"),
        (true, false) => {
            let was = tense.was();
            format!("the superblock's record of this check {was} written ({bytes})")
        }
        (true, true) => {
            format!(
                "the replayed transactions and the record of this check {were} written ({bytes})"
            )
        }
    }
}

fn summary(out: &mut impl Write, account: &Account<'_>, tense: Tense) -> io::Result<()> {
    let repair = account.repair;
    if account.verdict() != Verdict::Halted {
        let saved = match &account.ending {
            Ending::Written { undo: Some((_, bytes)), .. } => {
                format!(", the old content saved ({})", size(*bytes))
            }
            _ => String::new(),
        };
        let deeds = repair.deeds.len() as u64;
        let changes = match deeds {
            0 => "Nothing to change,".to_owned(),
            _ => format!("{} change{}, staged and", grouped(deeds), plural(deeds)),
        };
        let (looks, written) = (looks(repair), written(account, tense));
        writeln!(out, "{changes} examined {looks}; {written}{saved}")?;
    }
    match &account.ending {
        Ending::Written { not_saved, .. } => {
            for command in &account.commands {
                writeln!(out, "To undo this: {command}")?;
            }
            if let Some(first) = not_saved.first() {
                let blocks = format!("{} blocks", not_saved.len());
                writeln!(
                    out,
                    "Warning: {} could not be read before being overwritten, the first at byte \
                     {first}: the old content cannot be restored.",
                    agree(&blocks)
                )?;
            }
        }
        Ending::Planned { file: _ } => {
            for command in &account.commands {
                writeln!(out, "To apply this repair: {command}")?;
            }
        }
        Ending::DryRun => {}
    }
    cost(out, &account.cost)
}

/// The last line: the verdict.
pub(crate) fn verdict_line(account: &Account<'_>) -> String {
    let repair = account.repair;
    let found = account.before().damage_count() as u64;
    let left = repair.left.len() as u64;
    let (findings, would) = (
        format!("{} finding{}", grouped(found), plural(found)),
        account.ending.tense() == Tense::Would,
    );
    let unchanged = if would { " Nothing was changed." } else { "" };
    match account.verdict() {
        Verdict::Clean => format!("CLEAN: nothing needs repair.{unchanged}"),
        // Only journal replay, stale backups, or optional work such as indexes.
        Verdict::Repaired if found == 0 => {
            let replays = usize::from(matches!(repair.journal, JournalState::Replayed { .. }));
            let count = repair.deeds.len() + replays;
            let (word, verb) = match (would, count) {
                (true, _) => ("WOULD BE MODIFIED", "would be"),
                (false, 1) => ("MODIFIED", "was"),
                (false, _) => ("MODIFIED", "were"),
            };
            let changes = if count == 1 { "change" } else { "changes" };
            format!("{word}: no damage was found, but the {changes} above {verb} made.{unchanged}")
        }
        Verdict::Repaired if would => {
            format!("WOULD BE REPAIRED: {findings}; then the file system is clean.{unchanged}")
        }
        Verdict::Repaired => format!("REPAIRED: {findings}; the file system is clean."),
        Verdict::Left => {
            let left = format!("{} finding{}", grouped(left), plural(left));
            let would_be = if would { "would be " } else { "" };
            format!("DAMAGE LEFT: {left} of {} {would_be}left.{unchanged}", grouped(found))
        }
        Verdict::Halted if would => {
            format!("HALTED: {findings}, not all of which may be repaired unattended.{unchanged}")
        }
        // Beside a damaged log.
        Verdict::Halted if !repair.changes() => format!(
            "HALTED: {findings}, not all of which may be repaired unattended. Nothing was changed."
        ),
        Verdict::Halted => format!(
            "HALTED: {findings}, not all of which may be repaired unattended. Nothing was \
             repaired; the superblock is now marked as having errors."
        ),
    }
}
