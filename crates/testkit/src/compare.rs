//! Judges a repair: the program under test and e2fsck repair a copy each of one damaged image, and
//! what the program made must be clean for e2fsck, must stay as it is in a second run, and must hold
//! everything that e2fsck saved.

mod losses;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};

use crate::image::Image;
use crate::tool::Outcome;
use crate::tree::{self, Tree};
use crate::{kernel, oracle};

pub use losses::{Loss, LossKind, losses};

/// Runs of e2fsck until it must find nothing more.
const ORACLE_RUNS: usize = 3;

/// How the files of repaired images are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBy {
    /// By testkit's own reader, which needs no rights.
    Testkit,
    /// Through a mount; by testkit's own reader where the kernel refuses one of the two images.
    Kernel,
}

/// What is wrong with a repair, the worst first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The program crashed; its exit status.
    Crash {
        /// Exit status; `None` after a signal.
        exit: Option<i32>,
    },
    /// The program did not end in time.
    Timeout,
    /// What e2fsck saved is gone or different.
    Lost(Loss),
    /// e2fsck still finds something, or the program gave up where e2fsck does not.
    Unclean {
        /// Exit status of the program.
        ours: Option<i32>,
        /// Exit status of `e2fsck -fn` on the result.
        theirs: Option<i32>,
        /// What it found.
        codes: BTreeSet<u32>,
    },
    /// A second run of the program has something to say or to write.
    NotFixpoint {
        /// Its exit status.
        exit: Option<i32>,
        /// Whether it changed anything besides times and counts of the superblock.
        changed: bool,
    },
    /// Permissions, owner, attributes or hard links differ from e2fsck's.
    Metadata(Loss),
}

impl Fault {
    /// One line for a group of faults with the same cause; `name` gives the id of a code.
    pub fn cause(&self, name: &dyn Fn(u32) -> String) -> String {
        match self {
            Self::Crash { exit } => format!("crash: exit status {exit:?}"),
            Self::Timeout => "timeout".to_owned(),
            Self::Lost(loss) => format!("lost: {}", loss.cause()),
            Self::Unclean { ours, theirs, codes } => {
                let codes: Vec<String> = codes.iter().map(|&code| name(code)).collect();
                let codes = codes.join(" ");
                format!("unclean: exit status {ours:?}, then e2fsck's {theirs:?}: {codes}")
            }
            Self::NotFixpoint { exit, changed } => {
                format!("a second run: exit status {exit:?}, changed: {changed}")
            }
            Self::Metadata(loss) => format!("metadata: {}", loss.cause()),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(loss) | Self::Metadata(loss) => loss.fmt(f),
            other => f.write_str(&other.cause(&|code| format!("{code:#08x}"))),
        }
    }
}

/// A judged repair.
#[derive(Debug)]
pub struct Judgement {
    /// What is wrong with it, the worst first.
    pub faults: Vec<Fault>,
    /// Why e2fsck's own repair is no measure, if it is none: then nothing can be called lost, and
    /// the program may give up, too.
    pub no_measure: Option<String>,
    /// What e2fsck made of the image.
    pub theirs: Image,
    /// What the program made of the image.
    pub ours: Image,
    /// What the program said in its first run.
    pub said: String,
    /// Codes of what e2fsck repaired.
    pub codes: BTreeSet<u32>,
}

/// Lets the program and e2fsck repair a copy each of `image` and compares. `program` repairs the
/// image at a path, as `e2fsck -fy` does.
///
/// # Errors
/// A program cannot be started, or there is no room for copies.
pub fn judge(
    image: &Image,
    read_by: ReadBy,
    program: &dyn Fn(&Path) -> Result<Outcome>,
) -> Result<Judgement> {
    let (theirs, codes, no_measure) = by_oracle(image)?;
    let ours = image.copy()?;
    let first = program(ours.path())?;
    let mut judgement =
        Judgement { faults: Vec::new(), no_measure, theirs, ours, said: first.text.clone(), codes };
    match crash(&first) {
        Some(fault) => judgement.faults.push(fault),
        None => judge_result(&mut judgement, &first, read_by, program)?,
    }
    judgement.faults.sort();
    Ok(judgement)
}

/// e2fsck's repair, what it found in all runs, and why it is no measure, if it is none.
fn by_oracle(image: &Image) -> Result<(Image, BTreeSet<u32>, Option<String>)> {
    let copy = image.copy()?;
    let mut codes = BTreeSet::new();
    let mut last = None;
    for _ in 0..ORACLE_RUNS {
        let verdict = oracle::run(copy.path(), &["-fy"])?;
        codes.extend(verdict.codes());
        last = verdict.exit;
        if verdict.timed_out {
            return Ok((copy, codes, Some("e2fsck does not end in time".to_owned())));
        }
        if last == Some(0) {
            // What it forgets while it repairs, it may still find while it only looks.
            let after = oracle::e2fsck(&copy)?;
            let why = "e2fsck finds something in what it calls clean".to_owned();
            return Ok((copy, codes, (!after.clean()).then_some(why)));
        }
    }
    let why = format!("e2fsck ends with {last:?} after {ORACLE_RUNS} runs");
    Ok((copy, codes, Some(why)))
}

fn crash(outcome: &Outcome) -> Option<Fault> {
    match outcome.exit {
        _ if outcome.timed_out => Some(Fault::Timeout),
        exit @ None => Some(Fault::Crash { exit }),
        // A panic is 101, a signal more than 128.
        exit @ Some(100..) => Some(Fault::Crash { exit }),
        Some(_) => None,
    }
}

fn judge_result(
    judgement: &mut Judgement,
    first: &Outcome,
    read_by: ReadBy,
    program: &dyn Fn(&Path) -> Result<Outcome>,
) -> Result<()> {
    // 2: the machine should be restarted, which is only ever said of a root device.
    let done = matches!(first.exit, Some(0..=3));
    let measured = judgement.no_measure.is_none();
    if done || measured {
        let after = oracle::e2fsck(&judgement.ours)?;
        if !done || !after.clean() {
            judgement.faults.push(Fault::Unclean {
                ours: first.exit,
                theirs: after.exit,
                codes: after.codes(),
            });
        }
    }
    if measured {
        let (theirs, ours) = trees(&judgement.theirs, &judgement.ours, read_by)?;
        judgement.faults.extend(losses(&theirs, &ours).into_iter().map(|loss| {
            if loss.kind.is_of_metadata() { Fault::Metadata(loss) } else { Fault::Lost(loss) }
        }));
    }
    let before = judgement.ours.copy()?;
    let second = program(judgement.ours.path())?;
    match crash(&second) {
        Some(fault) => judgement.faults.push(fault),
        None => {
            let changed = !same_but_times(&before, &judgement.ours)?;
            // What neither of the two can repair stays as it is.
            let unfinished = second.exit != Some(0) && (done || measured);
            if changed || unfinished {
                judgement.faults.push(Fault::NotFixpoint { exit: second.exit, changed });
            }
        }
    }
    Ok(())
}

/// Both trees, read in the same way.
fn trees(theirs: &Image, ours: &Image, read_by: ReadBy) -> Result<(Tree, Tree)> {
    if read_by == ReadBy::Kernel {
        let through_mount = |image: &Image| -> Result<Tree> {
            let mount = kernel::Mounted::new(image.path(), "ro,noload")?;
            let tree = tree::mounted(mount.path())?;
            mount.unmount()?;
            Ok(tree)
        };
        if let (Ok(theirs), Ok(ours)) = (through_mount(theirs), through_mount(ours)) {
            return Ok((theirs, ours));
        }
    }
    let theirs = tree::stored(theirs).context("reading what e2fsck calls clean")?;
    // Nothing to read is everything lost.
    Ok((theirs, tree::stored(ours).unwrap_or_default()))
}

/// Fields of the superblock that any run may change: times, counts of mounts and written data, and
/// its checksum.
const TIMES: [Range<usize>; 5] = [0x2c..0x36, 0x40..0x44, 0x178..0x180, 0x274..0x27a, 0x3fc..0x400];

/// Whether two images differ at most in fields of the primary superblock that any run may change,
/// and in the block of multiple-mount protection.
fn same_but_times(before: &Image, after: &Image) -> Result<bool> {
    let (mut before, mut after) = (before.to_vec()?, after.to_vec()?);
    if before.len() != after.len() {
        return Ok(false);
    }
    for bytes in [&mut before, &mut after] {
        let start = usize::try_from(OFFSET_BYTES)?;
        let Some(raw) = bytes.get_mut(start..).and_then(|rest| rest.first_chunk_mut()) else {
            continue;
        };
        let superblock = Superblock::decode(raw);
        for field in TIMES {
            raw[field].fill(0);
        }
        let block_bytes = 1024u64 << superblock.log_block_size.min(6);
        let mmp = superblock.mmp_block.saturating_mul(block_bytes);
        if superblock.mmp_block != 0
            && let Ok(mmp) = usize::try_from(mmp)
            && let Some(block) = bytes.get_mut(mmp..mmp.saturating_add(1024))
        {
            block.fill(0);
        }
    }
    Ok(before == after)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::damage::damaged_image;
    use crate::{Profile, tool};

    fn e2fsck(path: &Path) -> Result<Outcome> {
        let mut command = tool::command("e2fsck");
        command.arg("-fy").arg(path);
        tool::run(&command, 60)
    }

    /// What is wrong with a repair of a damaged image that `spoil` follows.
    fn faults_after(spoil: fn(&Path)) -> Vec<Fault> {
        let (image, _) = damaged_image(Profile::Ext4K1, 3).expect("an image");
        let judgement = judge(&image, ReadBy::Testkit, &|path| {
            let outcome = e2fsck(path)?;
            spoil(path);
            Ok(outcome)
        });
        judgement.expect("e2fsck runs").faults
    }

    fn debugfs(path: &Path, request: &str) {
        let args = ["-w", "-R", request];
        let mut command = tool::command("debugfs");
        command.args(args).arg(path);
        tool::run(&command, 60).expect("debugfs runs");
    }

    #[test]
    fn e2fsck_itself_is_without_fault_and_spoilt_repairs_are_not() {
        if let Err(reason) = tool::available() {
            eprintln!("skipped: {reason}");
            return;
        }
        assert_eq!(faults_after(|_| ()), []);
        let lost = faults_after(|path| {
            debugfs(path, "rm /dir/file");
            e2fsck(path).expect("e2fsck runs");
        });
        let is_lost =
            |fault: &Fault| matches!(fault, Fault::Lost(loss) if loss.path.contains("file"));
        assert!(lost.iter().any(is_lost), "{lost:?}");
        let unclean = faults_after(|path| debugfs(path, "sif /dir/file links_count 9"));
        assert!(unclean.iter().any(|fault| matches!(fault, Fault::Unclean { .. })), "{unclean:?}");
        let owner = faults_after(|path| debugfs(path, "sif /dir/file uid 9"));
        assert!(owner.iter().any(|fault| matches!(fault, Fault::Metadata(_))), "{owner:?}");
    }

    #[test]
    fn programs_that_fail_or_go_on_changing_are_found() {
        if let Err(reason) = tool::available() {
            eprintln!("skipped: {reason}");
            return;
        }
        let (image, _) = damaged_image(Profile::Ext4K1, 3).expect("an image");
        let ended =
            |exit, timed_out| move |_: &Path| Ok(Outcome { exit, timed_out, text: String::new() });
        let faults = |program: &dyn Fn(&Path) -> Result<Outcome>| {
            judge(&image, ReadBy::Testkit, program).expect("e2fsck runs").faults
        };
        assert_eq!(faults(&ended(Some(101), false)), [Fault::Crash { exit: Some(101) }]);
        assert_eq!(faults(&ended(Some(137), true)), [Fault::Timeout]);
        let restless = faults(&|path| {
            let outcome = e2fsck(path)?;
            // The boot block counts the runs.
            let mut bytes = fs::read(path)?;
            bytes[7] += 1;
            fs::write(path, bytes)?;
            Ok(outcome)
        });
        assert_eq!(restless, [Fault::NotFixpoint { exit: Some(0), changed: true }]);
    }
}
