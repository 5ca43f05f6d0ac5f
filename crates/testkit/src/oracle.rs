//! e2fsck's verdict on an image: its exit status and the codes of the problems it found.
//!
//! e2fsck writes a *problem log* if its configuration file names one (`e2fsck.conf(5)`, `[options]
//! problem_log_filename`), with the permanent code of every problem and the affected objects.
//! Unlike messages, the codes can be compared with ours.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::Image;
use crate::tool;

/// Time limit in seconds, after which e2fsck counts as hung.
const LIMIT_SECONDS: u32 = 60;

/// A problem in e2fsck's log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Logged {
    /// Its permanent code, `0x010001` and so on.
    pub code: u32,
    /// All other attributes: `ino`, `ino2`, `dir`, `blk`, `blk2`, `num`, `group`, `str`, `answer`
    /// (`1` yes, `0` no), `fixed`.
    pub attributes: BTreeMap<String, String>,
}

impl Logged {
    /// A numeric attribute, such as `ino`.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.attributes.get(name)?.parse().ok()
    }
}

/// e2fsck's verdict.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Exit status (bits 1 fixed, 4 left unfixed, 8 operational error); `None` after a signal.
    pub exit: Option<i32>,
    /// Whether it was killed at the time limit.
    pub timed_out: bool,
    /// Problems, in the order of the log.
    pub problems: Vec<Logged>,
    /// Its output.
    pub text: String,
}

impl Verdict {
    /// Codes of all problems.
    pub fn codes(&self) -> BTreeSet<u32> {
        self.problems.iter().map(|problem| problem.code).collect()
    }

    /// Whether nothing was found and nothing changed.
    pub fn clean(&self) -> bool {
        self.exit == Some(0)
    }

    /// Whether the file system is damaged, or could not be checked.
    pub fn damaged(&self) -> bool {
        !self.clean()
    }
}

/// Runs e2fsck on the file `image` with `args`, such as `["-fn"]`.
///
/// # Errors
/// e2fsck cannot be started. Damage is a [`Verdict`], and so is a crash of e2fsck.
pub fn run(image: &Path, args: &[&str]) -> Result<Verdict> {
    run_within(image, args, LIMIT_SECONDS)
}

/// The same, with another time limit: for large images.
///
/// # Errors
/// As [`run`].
pub fn run_within(image: &Path, args: &[&str], limit_seconds: u32) -> Result<Verdict> {
    let folder = tool::scratch("floe-oracle-")?;
    let config = folder.path().join("e2fsck.conf");
    let log = folder.path().join("problems");
    fs::write(
        &config,
        format!(
            "[options]\nlog_dir = {}\nproblem_log_filename = problems\n",
            folder.path().display()
        ),
    )?;
    let mut command = tool::command("e2fsck");
    command.args(args).arg(image).env("E2FSCK_CONFIG", &config);
    let outcome = tool::run(&command, limit_seconds)?;
    let problems = match fs::read(&log) {
        Ok(log) => parse_log(&String::from_utf8_lossy(&log)),
        // Without problems, or after an early exit, there may be no log.
        Err(_) => Vec::new(),
    };
    Ok(Verdict { exit: outcome.exit, timed_out: outcome.timed_out, problems, text: outcome.text })
}

/// The verdict of `e2fsck -fn` on an image, which stays unchanged.
///
/// # Errors
/// As [`run`].
pub fn e2fsck(image: &Image) -> Result<Verdict> {
    run(image.path(), &["-fn"])
}

/// Repairs a copy with `e2fsck -fy`: its verdict and the repaired copy.
///
/// # Errors
/// As [`run`]; or there is no space for the copy.
pub fn e2fsck_repair(image: &Image) -> Result<(Verdict, Image)> {
    let copy = image.copy()?;
    let verdict = run(copy.path(), &["-fy"])?;
    Ok((verdict, copy))
}

/// Parses a problem log: lines `<problem code="0x010001" ino="12" .../>`. Ignores everything else
/// (the invocation, pass headers).
pub fn parse_log(log: &str) -> Vec<Logged> {
    log.lines().filter_map(|line| parse_problem(line.trim())).collect()
}

fn parse_problem(line: &str) -> Option<Logged> {
    let mut rest = line.strip_prefix("<problem ")?;
    let mut attributes = BTreeMap::new();
    while let Some((name, behind)) = rest.split_once("=\"") {
        let (value, behind) = behind.split_once('"')?;
        attributes.insert(name.trim().to_owned(), value.to_owned());
        rest = behind;
    }
    let code = attributes.remove("code")?;
    let code = u32::from_str_radix(code.trim_start_matches("0x"), 16).ok()?;
    Some(Logged { code, attributes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read() {
        let log = "<?xml version=\"1.0\"?>\n<header code=\"0x010000\"/>\n\
                   <problem code=\"0x040003\" answer=\"0\" ino=\"2\" num=\"3\"/>\n";
        let problems = parse_log(log);
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].code, 0x04_0003);
        assert_eq!(problems[0].number("ino"), Some(2));
        assert_eq!(problems[0].number("answer"), Some(0));
        assert_eq!(problems[0].number("blk"), None);
    }

    #[test]
    fn e2fsck_logs_codes_and_repairs() {
        if tool::missing() {
            return;
        }
        let image = crate::build::base(crate::Profile::Ext4).expect("a clean image");
        assert!(e2fsck(&image).expect("e2fsck runs").clean());
        let volume = crate::Volume::open(&image).expect("a clean image");
        let inode = volume.lookup("/dir/sub/deep/file").expect("it is in every image");
        let mut bytes = volume.inode_bytes(inode).expect("it exists");
        bytes[0x1a] = 7;
        volume.put_inode(inode, &bytes).expect("it exists");
        volume.fix_inode(inode).expect("it exists");
        let verdict = e2fsck(&image).expect("e2fsck runs");
        assert_eq!(verdict.exit, Some(4));
        assert_eq!(verdict.codes().into_iter().collect::<Vec<_>>(), [0x04_0003]);
        assert_eq!(verdict.problems[0].number("ino"), Some(u64::from(inode.0)));
        let (repair, repaired) = e2fsck_repair(&image).expect("e2fsck runs");
        assert_eq!(repair.exit, Some(1));
        assert!(e2fsck(&repaired).expect("e2fsck runs").clean());
    }
}
