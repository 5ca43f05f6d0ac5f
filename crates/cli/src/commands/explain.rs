//! `floe explain`: explains one condition.

use std::io::Write;

use floe_check::problem::{ROWS, Row, Weight};

use super::problems;
use crate::exit::{Ended, Outcome};

/// Explain a condition, and its repair.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Code (0x040003) or id (inode-link-count-wrong)
    condition: String,
    /// Output JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<Outcome> {
        let Some(row) = find(&self.condition) else {
            let near = near(&self.condition);
            let advice = if near.is_empty() {
                "`floe problems` lists all.".to_owned()
            } else {
                format!("Similar ids: {}", near.join(", "))
            };
            let text = format!("there is no condition {:?}\n{advice}", self.condition);
            return Err(Ended::usage(text));
        };
        if self.json {
            writeln!(out, "{:#}", problems::value(row))?;
            return Ok(Outcome::CLEAN);
        }
        writeln!(out, "{:#08x} {}", row.code, row.id)?;
        writeln!(out, "  About:      {}", row.object.name())?;
        writeln!(out, "  Severity:   {}", row.severity.name())?;
        writeln!(out, "  Verdict:    {}", weight(row.weight))?;
        writeln!(out, "  Meaning:    {}", row.meaning)?;
        writeln!(out, "  Repair:     {}", row.repair)?;
        let preen = if row.preen { "may be repaired unattended" } else { "needs a decision" };
        writeln!(out, "  Unattended: {preen}")?;
        Ok(Outcome::CLEAN)
    }
}

const fn weight(weight: Weight) -> &'static str {
    match weight {
        Weight::Remark => "remark; the file system still counts as clean",
        Weight::Damage => "damage (exit bit 4)",
        Weight::Fatal => "the check ends here (exit bit 8)",
    }
}

fn find(condition: &str) -> Option<&'static Row> {
    let condition = condition.trim().to_ascii_lowercase();
    let code = condition
        .strip_prefix("0x")
        .map_or_else(|| condition.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok());
    ROWS.iter().find(|row| row.id == condition || Some(row.code) == code)
}

/// Ids with the most words in common with `condition`.
fn near(condition: &str) -> Vec<&'static str> {
    let words: Vec<_> = condition.split(['-', '_', ' ']).filter(|word| word.len() > 2).collect();
    let common = |row: &Row| words.iter().filter(|&&word| row.id.contains(word)).count();
    let most = ROWS.iter().map(common).max().filter(|&most| most > 0);
    let best = ROWS.iter().filter(|row| Some(common(row)) == most);
    best.map(|row| row.id).take(8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_in_hex_and_decimal_and_ids_are_found() {
        for text in ["0x040003", "0x40003", "262147", "inode-link-count-wrong", "0X040003"] {
            assert_eq!(find(text).map(|row| row.code), Some(0x04_0003), "{text}");
        }
        assert!(find("0xffffff").is_none());
        assert!(find("").is_none());
        assert!(near("link-count").contains(&"inode-link-count-wrong"));
        assert!(near("").is_empty());
    }
}
