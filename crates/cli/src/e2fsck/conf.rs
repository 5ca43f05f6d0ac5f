//! `e2fsck.conf`: sections of relations, as e2fsck.conf(5) describes them.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Path, unless `E2FSCK_CONFIG` overrides it.
const PLACE: &str = "/etc/e2fsck.conf";

/// Settings for one kind of finding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OfProblem {
    /// Whether -p repairs it.
    pub(crate) preen_ok: Option<bool>,
    /// Never repair it.
    pub(crate) force_no: bool,
    /// It does not count as damage if it is left.
    pub(crate) no_ok: bool,
    /// Its repair does not count as one.
    pub(crate) not_a_fix: bool,
    /// -p does not report its repair.
    pub(crate) preen_nomessage: bool,
    /// Maximum findings of this kind to show.
    pub(crate) max_count: Option<usize>,
}

/// The settings, with e2fsck's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // relations of a file
pub(crate) struct Conf {
    pub(crate) accept_time_fudge: bool,
    pub(crate) allow_cancellation: bool,
    pub(crate) broken_system_clock: bool,
    pub(crate) clear_test_fs_flag: bool,
    pub(crate) defer_check_on_battery: bool,
    pub(crate) log_dir: Option<PathBuf>,
    pub(crate) log_dir_fallback: Option<PathBuf>,
    pub(crate) log_filename: Option<String>,
    pub(crate) max_count_problems: Option<usize>,
    pub(crate) no_optimize_extents: bool,
    pub(crate) problem_log_filename: Option<String>,
    pub(crate) report_features: bool,
    pub(crate) report_time: bool,
    pub(crate) report_verbose: bool,
    pub(crate) undo_dir: Option<PathBuf>,
    pub(crate) scratch_dir: Option<PathBuf>,
    /// By code.
    pub(crate) problems: BTreeMap<u32, OfProblem>,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            accept_time_fudge: true,
            allow_cancellation: false,
            broken_system_clock: false,
            clear_test_fs_flag: true,
            defer_check_on_battery: true,
            log_dir: None,
            log_dir_fallback: None,
            log_filename: None,
            max_count_problems: None,
            no_optimize_extents: false,
            problem_log_filename: None,
            report_features: false,
            report_time: false,
            report_verbose: false,
            undo_dir: None,
            scratch_dir: None,
            problems: BTreeMap::new(),
        }
    }
}

impl Conf {
    /// Reads the file named by the environment, or the default one; returns defaults if it does not
    /// exist.
    ///
    /// # Errors
    /// A description of the fault in the file.
    pub(crate) fn load() -> Result<Self, String> {
        let path = std::env::var_os("E2FSCK_CONFIG").unwrap_or_else(|| PLACE.into());
        let path = Path::new(&path);
        match std::fs::read(path) {
            Ok(bytes) => Self::parse(&String::from_utf8_lossy(&bytes))
                .map_err(|why| format!("{}: {why}", path.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// # Errors
    /// The invalid line, and the fault.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut conf = Self::default();
        for (number, relation) in relations(text)? {
            conf.take(&relation).map_err(|why| format!("line {number}: {why}"))?;
        }
        Ok(conf)
    }

    /// Ignores unknown relations, like e2fsck: another version may know them.
    fn take(&mut self, relation: &Relation) -> Result<(), String> {
        let Relation { section, group, tag, value } = relation;
        match (section.as_str(), group) {
            ("options", None) => self.option(tag, value),
            ("defaults", None) if tag == "undo_dir" => {
                self.undo_dir = Some(value.into()).filter(|dir| dir != Path::new("none"));
                Ok(())
            }
            ("scratch_files", None) if tag == "directory" => {
                self.scratch_dir = Some(value.into());
                Ok(())
            }
            ("problems", Some(code)) => {
                let code = code
                    .strip_prefix("0x")
                    .and_then(|digits| u32::from_str_radix(digits, 16).ok())
                    .ok_or_else(|| format!("{code:?} is not a problem code such as 0x040002"))?;
                let of = self.problems.entry(code).or_default();
                match tag.as_str() {
                    "preen_ok" => of.preen_ok = Some(boolean(tag, value)?),
                    "force_no" => of.force_no = boolean(tag, value)?,
                    "no_ok" => of.no_ok = boolean(tag, value)?,
                    "not_a_fix" => of.not_a_fix = boolean(tag, value)?,
                    "preen_nomessage" => of.preen_nomessage = boolean(tag, value)?,
                    "max_count" => of.max_count = Some(number(tag, value)?),
                    _ => {}
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn option(&mut self, tag: &str, value: &str) -> Result<(), String> {
        let flag = match tag {
            "accept_time_fudge" | "buggy_init_scripts" => &mut self.accept_time_fudge,
            "allow_cancellation" => &mut self.allow_cancellation,
            "broken_system_clock" => &mut self.broken_system_clock,
            "clear_test_fs_flag" => &mut self.clear_test_fs_flag,
            "defer_check_on_battery" => &mut self.defer_check_on_battery,
            "no_optimize_extents" => &mut self.no_optimize_extents,
            "report_features" => &mut self.report_features,
            "report_time" => &mut self.report_time,
            "report_verbose" => &mut self.report_verbose,
            "log_dir" => {
                self.log_dir = Some(value.into());
                return Ok(());
            }
            "log_dir_fallback" => {
                self.log_dir_fallback = Some(value.into());
                return Ok(());
            }
            "log_filename" => {
                self.log_filename = Some(value.to_owned());
                return Ok(());
            }
            "problem_log_filename" => {
                self.problem_log_filename = Some(value.to_owned());
                return Ok(());
            }
            "max_count_problems" => {
                self.max_count_problems = Some(number(tag, value)?);
                return Ok(());
            }
            _ => return Ok(()),
        };
        *flag = boolean(tag, value)?;
        Ok(())
    }
}

/// One `tag = value`.
#[derive(Debug, PartialEq, Eq)]
struct Relation {
    section: String,
    /// Its subsection.
    group: Option<String>,
    tag: String,
    value: String,
}

/// All relations with their line numbers.
fn relations(text: &str) -> Result<Vec<(usize, Relation)>, String> {
    let mut section = None;
    let mut group = None;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let wrong = |why: &str| Err(format!("line {number}: {why}"));
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let Some((name, _)) = rest.split_once(']') else {
                return wrong("a section has no ]");
            };
            (section, group) = (Some(name.trim().to_owned()), None);
            continue;
        }
        if line.starts_with('}') {
            // Tolerate a surplus brace: e2fsck's own example has one.
            group = None;
            continue;
        }
        let Some(section) = &section else { return wrong("a relation is outside of all sections") };
        let Some((tag, value)) = line.split_once('=') else {
            return wrong("this is neither a section nor a relation (name = value)");
        };
        let (tag, value) = (tag.trim().to_owned(), value.trim());
        if tag.is_empty() {
            return wrong("a relation has no name");
        }
        if value.starts_with('{') {
            if group.is_some() {
                return wrong("a subsection is nested in another");
            }
            group = Some(tag);
            continue;
        }
        let value = plain_text(value).map_err(|why| format!("line {number}: {why}"))?;
        let (section, group) = (section.clone(), group.clone());
        found.push((number, Relation { section, group, tag, value }));
    }
    Ok(found)
}

/// A value without quotation marks.
fn plain_text(value: &str) -> Result<String, String> {
    let Some(quoted) = value.strip_prefix('"') else { return Ok(value.to_owned()) };
    let mut text = String::new();
    let mut chars = quoted.chars();
    while let Some(char) = chars.next() {
        match char {
            '"' => return Ok(text),
            '\\' => text.push(match chars.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('b') => '\u{8}',
                Some(other) => other,
                None => break,
            }),
            char => text.push(char),
        }
    }
    Err("a quotation is not closed".to_owned())
}

fn boolean(tag: &str, value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "y" | "yes" | "true" | "t" | "1" | "on" => Ok(true),
        "n" | "no" | "false" | "nil" | "0" | "off" => Ok(false),
        _ => Err(format!("{tag} is true or false, not {value:?}")),
    }
}

fn number(tag: &str, value: &str) -> Result<usize, String> {
    value.parse().map_err(|_| format!("{tag} is a number, not {value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relations_and_subsections() {
        let text = "# a comment\n[options]\n  broken_system_clock = 1\n\taccept_time_fudge = no\n\
                    max_count_problems=16\nlog_filename = \"e2fsck %N.log\"\n ; another\n\
                    unknown_to_us = 7\n[problems]\n 0x040002 = {\n preen_ok = true\n\
                    description = \"@u @i %i.  \"\n }\n 0x05000f = {\n force_no = y\n max_count = 3\n }\n\
                    [defaults]\n undo_dir = /var/undo\n}\n[scratch_files]\n directory = /scratch\n";
        let conf = Conf::parse(text).unwrap();
        assert!(conf.broken_system_clock && !conf.accept_time_fudge);
        assert_eq!(conf.max_count_problems, Some(16));
        assert_eq!(conf.log_filename.as_deref(), Some("e2fsck %N.log"));
        assert_eq!(conf.problems[&0x04_0002].preen_ok, Some(true));
        assert_eq!(
            conf.problems[&0x05_000f],
            OfProblem { force_no: true, max_count: Some(3), ..OfProblem::default() }
        );
        assert_eq!(conf.undo_dir, Some("/var/undo".into()));
        assert_eq!(conf.scratch_dir, Some("/scratch".into()));
        let none = Conf::parse("[defaults]\nundo_dir = none").unwrap();
        assert_eq!(none, Conf::default());
    }

    #[test]
    fn what_cannot_be_read_is_told_by_line() {
        for (text, line) in [
            ("a = b", "line 1"),
            ("[options]\nnonsense", "line 2"),
            ("[options", "line 1"),
            ("[options]\n\nreport_time = perhaps", "line 3"),
            ("[options]\nmax_count_problems = many", "line 2"),
            ("[problems]\nx = {\npreen_ok = true\n}", "line 3"),
            ("[options]\nlog_dir = \"/var", "line 2"),
            ("[options]\n= 3", "line 2"),
        ] {
            let why = Conf::parse(text).unwrap_err();
            assert!(why.contains(line), "{text:?}: {why}");
        }
    }
}
