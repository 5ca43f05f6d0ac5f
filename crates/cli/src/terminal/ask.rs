//! The dialogue of a repair: a person reviews the findings before anything is staged, and so long
//! before anything is written.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};

use floe_check::problem::{Evidence, Row, Severity};
use floe_check::{Problem, Report};
use floe_repair::describe::Tense;
use floe_repair::edit::Loss;
use floe_repair::plan::{Plan, plan};
use floe_repair::policy::{Decision, Policy, Sharing};
use floe_repair::{Owner, SharedGroup};
use floe_report::human::{grouped, plural, tag, wrapped};

/// Paths shown of a group before the questions begin.
const SHOWN: usize = 5;

const HELP: &str = "\
  y  yes, repair this one            a  yes to this and all others of this kind
  n  no, leave this one as it is     N  no to this and all others of this kind
  e  explain: what it means and what a repair does
  d  details: the evidence, and each change
  Y  yes to everything from here on
  q  quit; nothing is written
";

const SHARING_HELP: &str = "\
  c  clone: each file gets its own copy; nothing is deleted, and some hold another file's data
  d  drop the culprit: delete the file that the evidence convicts, and keep the others whole
  l  leave the blocks shared: the damage stays
  Y  clone these, and yes to everything from here on
  q  quit; nothing is written
";

/// Asks a person, through any pair of streams.
pub(crate) struct Ask<R, W> {
    input: R,
    output: W,
    /// Accept everything from now on.
    everything: bool,
    /// The answers for all findings of a kind.
    kinds: BTreeMap<u32, bool>,
    /// A repair was accepted, so later findings may be its consequences.
    accepted: bool,
}

/// A person's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    This(bool),
    Kind(bool),
    Everything,
    Quit,
}

impl<R: BufRead, W: Write> Ask<R, W> {
    pub(crate) fn new(input: R, output: W) -> Self {
        Self { input, output, everything: false, kinds: BTreeMap::new(), accepted: false }
    }

    /// Whether a finding is a harmless consequence of accepted repairs: counts and bitmaps after
    /// files were deleted or moved. Nobody wants to confirm each of these.
    fn follows(&self, row: &Row) -> bool {
        self.accepted && row.preen && row.severity <= Severity::Metadata
    }

    fn review(&mut self, problems: &[Problem], report: &Report) -> io::Result<Option<Vec<bool>>> {
        let follows_before = self.accepted;
        let mut answers = vec![None; problems.len()];
        let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (index, problem) in problems.iter().enumerate() {
            groups.entry(problem.row().code).or_default().push(index);
        }
        let mut consequences = 0;
        for (code, members) in groups {
            let row = problems[members[0]].row();
            if follows_before && self.follows(row) && !self.kinds.contains_key(&code) {
                consequences += members.len() as u64;
                members.iter().for_each(|&index| answers[index] = Some(true));
                continue;
            }
            if !self.everything && !self.kinds.contains_key(&code) {
                self.introduce(row, &members, problems, report)?;
            }
            for (at, &index) in members.iter().enumerate() {
                let known = self.kinds.get(&code).copied();
                let answer = match known.or(self.everything.then_some(true)) {
                    Some(answer) => answer,
                    None => match self.ask(&problems[index], (at + 1, members.len()), report)? {
                        Answer::This(answer) => answer,
                        Answer::Kind(answer) => {
                            self.kinds.insert(code, answer);
                            answer
                        }
                        Answer::Everything => {
                            self.everything = true;
                            true
                        }
                        Answer::Quit => return Ok(None),
                    },
                };
                self.accepted |= answer;
                answers[index] = Some(answer);
            }
        }
        if consequences > 0 && !self.everything {
            writeln!(
                self.output,
                "\n{} finding{} that follow{} from these repairs, in counts and bitmaps, {} \
                 repaired with them.",
                grouped(consequences),
                plural(consequences),
                if consequences == 1 { "s" } else { "" },
                if consequences == 1 { "is" } else { "are" },
            )?;
        }
        Ok(Some(answers.into_iter().map(|answer| answer.unwrap_or(false)).collect()))
    }

    /// Shows the kind of a group, the possible loss of its repair, and its first findings.
    fn introduce(
        &mut self,
        row: &Row,
        members: &[usize],
        problems: &[Problem],
        report: &Report,
    ) -> io::Result<()> {
        let count = members.len() as u64;
        writeln!(self.output, "\n{} ({} finding{})", row.id, grouped(count), plural(count))?;
        wrapped(&mut self.output, row.meaning)?;
        wrapped(&mut self.output, &format!("Repair: {}", row.repair))?;
        let loss = members.iter().map(|&index| loss(&problems[index])).max();
        wrapped(&mut self.output, &format!("At stake: {}.", stake(loss.unwrap_or(Loss::None))))?;
        if members.len() > 1 {
            for &index in members.iter().take(SHOWN) {
                writeln!(self.output, "  {}", line(&problems[index], report))?;
            }
            if members.len() > SHOWN {
                let more = grouped((members.len() - SHOWN) as u64);
                writeln!(self.output, "  ... and {more} more")?;
            }
        }
        Ok(())
    }

    /// Asks one question until it is answered. End of input means "quit".
    fn ask(
        &mut self,
        problem: &Problem,
        (number, count): (usize, usize),
        report: &Report,
    ) -> io::Result<Answer> {
        let place = if count > 1 { format!("[{number}/{count}] ") } else { String::new() };
        writeln!(self.output, "{place}{}", line(problem, report))?;
        loop {
            write!(self.output, "Repair? [y/a/n/N/e/d/Y/q, ? for help] ")?;
            self.output.flush()?;
            let mut text = String::new();
            if self.input.read_line(&mut text)? == 0 {
                writeln!(self.output)?;
                return Ok(Answer::Quit);
            }
            return Ok(match text.trim() {
                "y" | "yes" => Answer::This(true),
                "a" => Answer::Kind(true),
                "n" | "no" => Answer::This(false),
                "N" => Answer::Kind(false),
                "Y" => Answer::Everything,
                "q" => Answer::Quit,
                "e" => {
                    let row = problem.row();
                    writeln!(self.output, "{:#08x} {}", row.code, row.id)?;
                    wrapped(&mut self.output, row.meaning)?;
                    wrapped(&mut self.output, &format!("Repair: {}", row.repair))?;
                    continue;
                }
                "d" => {
                    self.details(problem)?;
                    continue;
                }
                _ => {
                    write!(self.output, "{HELP}")?;
                    continue;
                }
            });
        }
    }

    /// Asks about files that share blocks until the question is answered.
    fn ask_sharing(&mut self, group: &SharedGroup, report: &Report) -> io::Result<Sharing> {
        writeln!(self.output, "\nThese claim the same blocks ({}):", grouped_owners(group))?;
        for owner in &group.owners {
            writeln!(self.output, "  {}", owner_line(owner, report))?;
        }
        let culprits: Vec<String> =
            group.culprits().map(|owner| format!("inode {}", owner.inode.0)).collect();
        let told = if culprits.is_empty() {
            "The evidence does not tell whose they are: compare the files with a backup.".to_owned()
        } else {
            format!(
                "The evidence is against {}, whose claims are in doubt, while nothing else is wrong \
                 with those it shares blocks with.",
                culprits.join(" and "),
            )
        };
        wrapped(&mut self.output, &told)?;
        let keys = if culprits.is_empty() { "c/l/Y/q" } else { "c/d/l/Y/q" };
        loop {
            write!(self.output, "Shared blocks? [{keys}, ? for help] ")?;
            self.output.flush()?;
            let mut text = String::new();
            if self.input.read_line(&mut text)? == 0 {
                writeln!(self.output)?;
                return Ok(Sharing::Quit);
            }
            return Ok(match text.trim() {
                "c" | "clone" => Sharing::Clone,
                "d" | "drop" if !culprits.is_empty() => Sharing::DropCulprit,
                "l" | "leave" => Sharing::Leave,
                "Y" => {
                    self.everything = true;
                    Sharing::Clone
                }
                "q" => Sharing::Quit,
                _ => {
                    write!(self.output, "{SHARING_HELP}")?;
                    continue;
                }
            });
        }
    }

    fn details(&mut self, problem: &Problem) -> io::Result<()> {
        for (name, value) in problem.evidence() {
            let text = match value {
                Evidence::Inode(inode) => inode.0.to_string(),
                Evidence::Block(block) => block.0.to_string(),
                Evidence::Logical(block) => block.0.to_string(),
                Evidence::Group(group) => group.0.to_string(),
                Evidence::Number(number) => number.to_string(),
                Evidence::Signed(number) => number.to_string(),
                Evidence::Text(text) => format!("{text:?}"),
            };
            writeln!(self.output, "      {name}: {text}")?;
        }
        if let Plan::Edits(edits) = plan(problem) {
            for edit in edits {
                writeln!(self.output, "      -> {}", edit.describe(Tense::Would))?;
            }
        }
        Ok(())
    }
}

impl<R: BufRead, W: Write> Policy for Ask<R, W> {
    fn decide(&mut self, problems: &[Problem], report: &Report) -> Decision {
        // An I/O error counts as no consent.
        match self.review(problems, report) {
            Ok(Some(answers)) => Decision::Each(answers),
            Ok(None) | Err(_) => Decision::Quit,
        }
    }

    fn share(&mut self, group: &SharedGroup, report: &Report) -> Sharing {
        if self.everything {
            return Sharing::Clone;
        }
        let answer = self.ask_sharing(group, report).unwrap_or(Sharing::Quit);
        self.accepted |= matches!(answer, Sharing::Clone | Sharing::DropCulprit);
        answer
    }

    fn may_delete(&mut self, problem: &Problem) -> bool {
        if self.everything {
            return true;
        }
        let question = format!(
            "\nThere is no space for copies of the blocks that this file shares with others:\n  \
             {problem}\nDelete it to keep the others whole? [y/n] "
        );
        let mut text = String::new();
        let asked = self
            .output
            .write_all(question.as_bytes())
            .and_then(|()| self.output.flush())
            .and_then(|()| self.input.read_line(&mut text));
        asked.is_ok() && matches!(text.trim(), "y" | "yes")
    }
}

/// A finding with its path.
fn line(problem: &Problem, report: &Report) -> String {
    let path = report.path_of(problem).map(|path| format!(" [{path}]")).unwrap_or_default();
    format!("{}: {problem}{path}", tag(problem))
}

fn grouped_owners(group: &SharedGroup) -> String {
    let count = group.owners.len() as u64;
    format!("{} file{}", grouped(count), plural(count))
}

/// An owner with its number of shared blocks and the evidence against it.
fn owner_line(owner: &Owner, report: &Report) -> String {
    let Owner { inode, shared_blocks, with_metadata, doubts, .. } = owner;
    let path = report.path(*inode).map(|path| format!(" {path}")).unwrap_or_default();
    let metadata = if *with_metadata { ", some with metadata of the file system" } else { "" };
    let doubts = match doubts.as_slice() {
        [] => "nothing else was wrong with it".to_owned(),
        doubts => format!("its claims are in doubt: {}", doubts.join(", ")),
    };
    let blocks = grouped(*shared_blocks);
    format!("inode {}{path}: {blocks} shared blocks{metadata}; {doubts}", inode.0)
}

/// The greatest possible loss of a finding's repair.
fn loss(problem: &Problem) -> Loss {
    match plan(problem) {
        Plan::Edits(edits) => edits.iter().map(floe_repair::Edit::loss).max(),
        _ => None,
    }
    .unwrap_or(Loss::None)
}

const fn stake(loss: Loss) -> &'static str {
    match loss {
        Loss::None => "no user data",
        Loss::Moved => "the name; the object goes to lost+found",
        Loss::Name => "a name",
        Loss::Attributes => "extended attributes",
        Loss::Data => "part of a file's content",
        Loss::File => "a file or directory",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_check::CheckOptions;
    use floe_format::{GroupNr, InodeNr};
    use floe_testkit::{Profile, build, tool};

    fn link_count(inode: u32) -> Problem {
        Problem::InodeLinkCountWrong { inode: InodeNr(inode), stored: 3, counted: 2 }
    }

    fn unattached(inode: u32) -> Problem {
        Problem::UnattachedInode { inode: InodeNr(inode), links: 1 }
    }

    fn free_count(group: u32) -> Problem {
        Problem::GroupFreeBlockCountWrong { group: GroupNr(group), stored: 1, counted: 2 }
    }

    /// A report with paths.
    fn report() -> Option<Report> {
        if tool::missing() {
            return None;
        }
        let image = build::base(Profile::by_name("ext2-1k").unwrap()).unwrap();
        Some(floe_check::check(&image, &CheckOptions::default()).unwrap())
    }

    /// The decision, and the output.
    fn decide(answers: &str, problems: &[Problem]) -> Option<(Decision, String)> {
        let report = report()?;
        let mut printed = Vec::new();
        let decision = Ask::new(answers.as_bytes(), &mut printed).decide(problems, &report);
        Some((decision, String::from_utf8(printed).unwrap()))
    }

    #[test]
    fn one_by_one() {
        let problems = [link_count(12), link_count(13), unattached(14)];
        let Some((decision, text)) = decide("y\nn\ny\n", &problems) else { return };
        // In code order: the unattached file first.
        assert_eq!(decision, Decision::Each(vec![false, true, true]));
        assert!(text.contains("inode-link-count-wrong (2 findings)"), "{text}");
        assert!(text.contains("[2/2] damage: inode 13"), "{text}");
        assert!(text.contains("At stake: the name; the object goes to lost+found."));
    }

    #[test]
    fn all_of_a_kind() {
        let problems = [link_count(12), link_count(13), unattached(14), unattached(15)];
        let Some((decision, _)) = decide("a\nN\n", &problems) else { return };
        assert_eq!(decision, Decision::Each(vec![false, false, true, true]));
    }

    #[test]
    fn everything_from_here_on() {
        let problems = [unattached(14), link_count(12), link_count(13)];
        let Some((decision, _)) = decide("n\nY\n", &problems) else { return };
        assert_eq!(decision, Decision::Each(vec![false, true, true]));
    }

    #[test]
    fn quitting_and_the_end_of_the_input() {
        for answers in ["y\nq\n", "y\n", ""] {
            let Some((decision, _)) = decide(answers, &[unattached(14), link_count(12)]) else {
                return;
            };
            assert_eq!(decision, Decision::Quit, "{answers:?}");
        }
    }

    #[test]
    fn explanations_and_help_do_not_answer() {
        let Some((decision, text)) = decide("e\nd\n?\nwhat\ny\n", &[link_count(12)]) else {
            return;
        };
        assert_eq!(decision, Decision::Each(vec![true]));
        assert!(text.contains("0x040003 inode-link-count-wrong"), "{text}");
        assert!(text.contains("counted: 2"), "{text}");
        assert!(text.contains("-> the link count would be set to 2"), "{text}");
        assert_eq!(text.matches("yes to everything from here on").count(), 2, "{text}");
    }

    #[test]
    fn shared_blocks_are_asked_for_by_group() {
        let Some(report) = report() else { return };
        let owner = |inode: u32, culprit: bool| Owner {
            inode: InodeNr(inode),
            shared_blocks: 1234,
            with_metadata: inode == 13,
            doubts: if culprit { vec!["inode-checksum-bad"] } else { vec![] },
            culprit,
        };
        let share = |answers: &str, convicted: bool| {
            let mut printed = Vec::new();
            let group = SharedGroup { owners: vec![owner(12, convicted), owner(13, false)] };
            let sharing = Ask::new(answers.as_bytes(), &mut printed).share(&group, &report);
            (sharing, String::from_utf8(printed).unwrap())
        };
        for (answers, convicted, expected) in [
            ("c\n", false, Sharing::Clone),
            ("d\n", true, Sharing::DropCulprit),
            // There is no culprit to drop.
            ("d\nl\n", false, Sharing::Leave),
            ("?\nl\n", true, Sharing::Leave),
            ("Y\n", true, Sharing::Clone),
            ("q\n", true, Sharing::Quit),
            ("", true, Sharing::Quit),
        ] {
            let (sharing, text) = share(answers, convicted);
            assert_eq!(sharing, expected, "{answers:?}: {text}");
        }
        let (_, text) = share("c\n", true);
        for words in [
            "(2 files)",
            "inode 12",
            "1,234 shared blocks; its claims are in doubt: inode-checksum-bad",
            "some with metadata of the file system; nothing else was wrong with it",
            "against inode 12",
        ] {
            assert!(text.contains(words), "{words:?} is missing: {text}");
        }
        assert!(share("c\n", false).1.contains("does not tell"));
    }

    #[test]
    fn consequences_are_not_asked_for() {
        let Some(report) = report() else { return };
        let mut printed = Vec::new();
        let mut ask = Ask::new(&b"y\n"[..], &mut printed);
        assert_eq!(ask.decide(&[unattached(14)], &report), Decision::Each(vec![true]));
        assert_eq!(ask.decide(&[free_count(0)], &report), Decision::Each(vec![true]));
        // Before any repair is accepted there are no consequences: end of input quits.
        let mut ask = Ask::new(&b"n\n"[..], io::sink());
        assert_eq!(ask.decide(&[unattached(14)], &report), Decision::Each(vec![false]));
        assert_eq!(ask.decide(&[free_count(0)], &report), Decision::Quit);
        assert!(String::from_utf8(printed).unwrap().contains("1 finding that follows"));
    }
}
