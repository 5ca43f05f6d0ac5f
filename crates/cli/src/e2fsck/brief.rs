//! The output of `-p`: a line per change, each with the name of the file system, for consoles and
//! logs of many file systems at once.

use std::collections::BTreeMap;
use std::io::{self, Write};

use floe_check::Problem;
use floe_check::report::JournalState;
use floe_report::human::grouped;
use floe_report::repair::Account;

use super::conf::Conf;

/// Changes with the same cause listed before the rest is only counted.
const MOST_OF_A_KIND: usize = 50;

/// Writes the changes, the losses and the findings left.
pub(crate) fn write(
    out: &mut impl Write,
    name: &str,
    account: &Account<'_>,
    conf: &Conf,
) -> io::Result<()> {
    let repair = account.repair;
    if let Some(problem) = &repair.halted {
        writeln!(out, "{name}: {}", with_path(account, problem))?;
        let row = problem.row();
        writeln!(out, "{name}: {}", row.meaning)?;
        return writeln!(
            out,
            "{name}: THIS NEEDS A PERSON. Nothing was repaired; run fsck by hand (without -a or \
             -p). `floe repair --dry-run` shows what would be done."
        );
    }
    if let JournalState::Replayed { transactions, .. } = repair.journal {
        writeln!(out, "{name}: journal replayed ({} transactions)", grouped(transactions))?;
    }
    let mut told: BTreeMap<u32, usize> = BTreeMap::new();
    for change in account.changes() {
        let deed = change.deed.describe(account.ending.tense());
        let Some(problem) = change.causes.first() else {
            // Without a finding, the object of the change must be named.
            let of = change.deed.inode().map(|inode| {
                account.path(inode).unwrap_or_else(|| format!("inode {}", inode.0)) + ": "
            });
            writeln!(out, "{name}: {}{deed}", of.unwrap_or_default())?;
            continue;
        };
        let code = problem.row().code;
        let of_code = conf.problems.get(&code);
        if of_code.is_some_and(|of| of.preen_nomessage) {
            continue;
        }
        let most = of_code
            .and_then(|of| of.max_count)
            .or(conf.max_count_problems)
            .unwrap_or(MOST_OF_A_KIND);
        let count = told.entry(code).or_default();
        *count += 1;
        if *count <= most {
            writeln!(out, "{name}: {}: {deed}", with_path(account, problem))?;
        } else if *count == most + 1 {
            let id = problem.row().id;
            writeln!(out, "{name}: more of this kind ({id}) are repaired and not listed")?;
        }
    }
    for (problem, reason) in &repair.left {
        writeln!(out, "{name}: {}: left: {}", with_path(account, problem), reason.describe())?;
    }
    Ok(())
}

fn with_path(account: &Account<'_>, problem: &Problem) -> String {
    let path = problem.inode().and_then(|inode| account.path(inode));
    let path = path.map(|path| format!(" [{path}]")).unwrap_or_default();
    format!("{problem}{path}")
}
