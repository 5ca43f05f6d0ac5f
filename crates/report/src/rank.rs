//! The order in which reports list findings.

use floe_check::problem::{Object, Problem, Row, Severity, Weight};

/// Importance of a finding to the user; the lowest value is reported first. Bitmaps and counts,
/// which a repair recomputes without loss, come after all other damage, however many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The check ended at this finding.
    Fatal,
    /// Files, names or attributes may be lost.
    AtRisk,
    /// Metadata is wrong, but no user data depends on it.
    Damage,
    /// Bitmaps and counts, which follow from everything else.
    Bookkeeping,
    /// Nothing needs repair.
    Remark,
}

/// The code class of bitmaps and counts: e2fsck's pass 5.
const BITMAPS_AND_COUNTS: u32 = 5;

impl Rank {
    /// The rank of a kind of findings.
    pub(crate) fn of_row(row: &Row) -> Self {
        match (row.weight, row.severity) {
            (Weight::Fatal, _) => Self::Fatal,
            (Weight::Remark, _) => Self::Remark,
            _ if row.object == Object::Bitmap || row.code >> 16 == BITMAPS_AND_COUNTS => {
                Self::Bookkeeping
            }
            (Weight::Damage, Severity::Fatal | Severity::DataRisk) => Self::AtRisk,
            (Weight::Damage, Severity::Metadata | Severity::Cosmetic) => Self::Damage,
        }
    }

    /// The rank of a finding.
    pub fn of(problem: &Problem) -> Self {
        Self::of_row(problem.row())
    }

    /// The rank of a place with these findings: that of the most important one.
    pub(crate) fn of_all<'p>(problems: impl IntoIterator<Item = &'p Problem>) -> Self {
        problems.into_iter().map(Self::of).min().unwrap_or(Self::Remark)
    }
}

#[cfg(test)]
mod tests {
    use floe_format::{BlockNr, GroupNr, InodeNr};

    use super::*;
    use crate::html::{Html, by_kind, by_place};
    use crate::human;
    use crate::place::Place;
    use crate::sample::sample;
    use floe_check::problem::ROWS;
    use floe_check::report::Cost;

    /// A lost file is listed before the bitmaps of thousands of groups, in text and HTML.
    #[test]
    fn bitmaps_do_not_hide_what_is_lost() {
        let mut report = sample();
        report.found.retain(|problem| Place::of(problem) == Place::Inode(InodeNr(13)));
        assert!(!report.found.is_empty());
        let leaked = |group| Problem::BlockBitmapMissingBlock {
            group: GroupNr(group),
            block: BlockNr(u64::from(group)),
        };
        report.found.extend((0..3000).map(leaked));
        let mut text = Vec::new();
        human::write(&mut text, &report, &Cost::default(), human::Style::default()).unwrap();
        let mut page = Html::new();
        by_kind(&mut page, &report);
        by_place(&mut page, &report);
        for text in [String::from_utf8(text).unwrap(), page.into_string()] {
            let first = |word: &str| text.find(word).unwrap_or_else(|| panic!("no {word}: {text}"));
            assert!(first("Inode 13") < first("Group 0"), "{text}");
        }
    }

    #[test]
    fn what_follows_from_all_else_comes_behind_damage() {
        let rank = |code| ROWS.iter().find(|row| row.code == code).map(Rank::of_row);
        // A dangling name, a wrong link count, a block wrongly marked as free, a total.
        let ranks = [0x02_0003, 0x04_0003, 0x05_0005].map(rank);
        let expected = [Rank::AtRisk, Rank::Damage, Rank::Bookkeeping].map(Some);
        assert_eq!(ranks, expected);
        assert!(ROWS.iter().any(|row| Rank::of_row(row) == Rank::Fatal));
    }
}
