//! `floe problems`: the table of conditions.

use std::io::Write;

use floe_check::problem::{ROWS, Row};
use floe_report::json;
use serde_json::{Value, json};

use crate::exit::Outcome;

/// List every condition that a check can report.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Output JSON
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Output the Markdown page docs/problems.md
    #[arg(long)]
    markdown: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<Outcome> {
        if self.json {
            let rows: Vec<Value> = ROWS.iter().map(value).collect();
            let table = json!({ "schema": "floe-problems", "version": 1, "problems": rows });
            writeln!(out, "{table:#}")?;
        } else if self.markdown {
            markdown(out)?;
        } else {
            for row in ROWS {
                writeln!(
                    out,
                    "{:#08x}  {:<9} {:<7} {:<41} {}",
                    row.code,
                    row.severity.name(),
                    json::weight(row.weight),
                    row.id,
                    row.object.name(),
                )?;
            }
        }
        Ok(Outcome::CLEAN)
    }
}

/// A row as JSON.
pub(crate) fn value(row: &Row) -> Value {
    json!({
        "code": format!("{:#08x}", row.code),
        "id": row.id,
        "severity": row.severity.name(),
        "weight": json::weight(row.weight),
        "preen": row.preen,
        "object": row.object.name(),
        "meaning": row.meaning,
        "repair": row.repair,
    })
}

const INTRODUCTION: &str = "\
# Problems

Every condition that `floe check` can report. Made by `floe problems --markdown`; a test keeps this
page current.

Codes and ids are permanent. Those below 0x070000 are e2fsck's numbers for the same condition, so
that reports can be compared; the rest are Floe's own. `docs/problems-not-raised.tsv` lists
e2fsck's conditions that a read-only check of an image cannot meet, with the reason.

- **Severity**: `cosmetic` (harmless), `metadata` (redundant or repairable; no user's data at
  stake), `data-risk` (the damage or its repair can lose or change files, names or attributes),
  `fatal` (the check cannot go on).
- **Weight**: a `remark` leaves the verdict at clean, `damage` makes it damaged (exit bit 4),
  `fatal` ends the check (exit bit 8).
- **Unattended**: whether e2fsck's preen mode may act on it without a person.
";

fn markdown(out: &mut impl Write) -> std::io::Result<()> {
    write!(out, "{INTRODUCTION}")?;
    for row in ROWS {
        write!(
            out,
            "\n## {:#08x} {}\n\n{} · {} · {} · unattended: {}\n\n{}\n\nRepair: {}\n",
            row.code,
            row.id,
            row.object.name(),
            row.severity.name(),
            json::weight(row.weight),
            if row.preen { "yes" } else { "no" },
            row.meaning,
            row.repair,
        )?;
    }
    Ok(())
}
