//! The account of a repair in JSON. `docs/json-schema.md` describes it; [`VERSION`] counts its
//! changes.

use floe_check::{Problem, Report};
use floe_repair::describe::Tense;
use serde_json::{Value, json};

use super::{Account, Change, Ending, Lost};
use crate::json::{cost, counts, failure_in, filesystem, finding, journal, memory};

/// Schema version. Raised when a member is removed or changes its meaning; new members may appear
/// without that.
pub const VERSION: u32 = 1;

/// The whole account as one JSON object.
///
/// `exit_code` is the exit code of the command.
pub fn account(account: &Account<'_>, exit_code: u8) -> Value {
    let repair = account.repair;
    let one =
        |problem: &Problem| finding(problem, problem.inode().and_then(|inode| account.path(inode)));
    let left = repair.left.iter().map(|(problem, reason)| {
        json!({ "reason": reason.name(), "text": reason.describe(), "finding": one(problem) })
    });
    json!({
        "schema": "floe-repair",
        "version": VERSION,
        "floe": env!("CARGO_PKG_VERSION"),
        "device": account.device,
        "verdict": account.verdict().name(),
        "exit_code": exit_code,
        "written": account.ending.tense() == Tense::Done,
        "filesystem": filesystem(account.before()),
        "journal": journal(repair.journal),
        "counts": counts(account.before()),
        "findings": account.before().found.iter().map(one).collect::<Vec<_>>(),
        "changes": account.changes().iter().map(|each| change(account, each)).collect::<Vec<_>>(),
        "losses": account.losses().iter().map(lost).collect::<Vec<_>>(),
        "left": left.collect::<Vec<_>>(),
        "halted": repair.halted.as_ref().map(one),
        "rounds": repair.rounds,
        "rounds_in_part": repair.rescans.len(),
        "changed_bytes": account.changed_bytes,
        "ending": ending(account),
        "cost": with_memory(cost(&account.cost), &repair.after),
    })
}

/// Adds the memory plan of the last examination, which proves the result.
fn with_memory(mut cost: Value, last: &Report) -> Value {
    cost["memory"] = last.plan.as_ref().map(memory).into();
    cost
}

/// A repair that could not be planned or written, in the same schema: an error instead of an
/// account.
pub fn failure(device: &str, error: &str, findings: &[Problem], exit_code: u8) -> Value {
    failure_in(("floe-repair", VERSION), device, error, findings, exit_code)
}

fn change(account: &Account<'_>, change: &Change<'_>) -> Value {
    let deed = change.deed;
    let inode = deed.inode();
    let codes = change.causes.iter().map(|problem| format!("{:#08x}", problem.row().code));
    json!({
        "round": deed.round,
        "phase": deed.edit.phase().name(),
        "inode": inode.map(|inode| inode.0),
        "path": inode.and_then(|inode| account.path(inode)),
        "text": deed.describe(account.ending.tense()),
        "loss": deed.fate().map_or("none", |_| deed.loss.name()),
        "notes": deed.notes,
        "codes": codes.collect::<Vec<_>>(),
        "messages": change.causes.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn lost(lost: &Lost) -> Value {
    json!({
        "fate": lost.fate.name(),
        "inode": lost.inode.map(|inode| inode.0),
        "path": lost.path,
        "name": lost.entry,
        "former_parent": lost.parent,
        "now": lost.now,
    })
}

fn ending(account: &Account<'_>) -> Value {
    let commands = &account.commands;
    match &account.ending {
        Ending::DryRun => json!({ "kind": "dry-run" }),
        Ending::Planned { file } => {
            json!({ "kind": "planned", "plan": file, "commands": commands })
        }
        Ending::Written { undo, not_saved, bytes } => json!({
            "kind": "written",
            "undo_file": undo.as_ref().map(|(file, _)| file),
            "written_bytes": bytes,
            "undo_bytes": undo.as_ref().map_or(0, |(_, bytes)| *bytes),
            "not_saved": not_saved,
            "commands": commands,
        }),
    }
}
