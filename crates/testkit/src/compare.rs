//! Judges a repair: the program under test and e2fsck each repair a copy of a damaged image. The
//! program's result must be clean for e2fsck, must not change in a second run, and must hold
//! everything that e2fsck saved.

mod losses;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::{BlockNr, GroupNr};

use crate::image::Image;
use crate::tool::Outcome;
use crate::tree::{self, Tree};
use crate::volume::Volume;
use crate::{kernel, oracle};

pub use losses::{Loss, LossKind, losses};

/// Maximum runs of e2fsck until it finds nothing more.
const ORACLE_RUNS: usize = 3;

/// Method of reading the files of repaired images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBy {
    /// With testkit's own reader, without special privileges.
    Testkit,
    /// Through a mount; with testkit's own reader if the kernel refuses one of the two images.
    Kernel,
}

/// Terms of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// Method of reading files.
    pub read_by: ReadBy,
    /// The image before the damage. Data that a repair restores to this state is not a loss,
    /// whatever e2fsck's result is; and e2fsck is told the backup superblock of this image if it
    /// finds none.
    pub original: Option<&'a Image>,
}

/// Faults of a repair, worst first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The program crashed; its exit status.
    Crash {
        /// Exit status; `None` after a signal.
        exit: Option<i32>,
    },
    /// The program exceeded its time limit.
    Timeout,
    /// Data that e2fsck saved is missing or different.
    Lost(Loss),
    /// e2fsck still finds damage, or the program gave up although e2fsck does not.
    Unclean {
        /// Exit status of the program.
        ours: Option<i32>,
        /// Exit status of `e2fsck -fn` on the result.
        theirs: Option<i32>,
        /// Codes of its findings.
        codes: BTreeSet<u32>,
    },
    /// A second run of the program finds or writes something.
    NotFixpoint {
        /// Its exit status.
        exit: Option<i32>,
        /// Whether it changed more than times and counts in the superblock.
        changed: bool,
    },
    /// Linux refuses to mount the result or to read part of it; with its message.
    Refused(String),
    /// Permissions, owner, attributes or hard links differ from e2fsck's result.
    Metadata(Loss),
}

impl Fault {
    /// One line for a group of faults with the same cause; `name` returns the id of a code.
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
            Self::Refused(said) => {
                let mark = said.find("EXT4-fs").unwrap_or(0);
                let words = said[mark..]
                    .split_whitespace()
                    .filter(|word| word.chars().all(|c| !c.is_ascii_digit()));
                format!("Linux: {}", words.take(12).collect::<Vec<_>>().join(" "))
            }
            Self::Metadata(loss) => format!("metadata: {}", loss.cause()),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(loss) | Self::Metadata(loss) => loss.fmt(f),
            Self::Refused(said) => write!(f, "Linux: {said}"),
            other => f.write_str(&other.cause(&|code| format!("{code:#08x}"))),
        }
    }
}

/// A judged repair.
#[derive(Debug)]
pub struct Judgement {
    /// Its faults, worst first.
    pub faults: Vec<Fault>,
    /// Why e2fsck's own repair cannot serve as reference, if so: then nothing counts as lost, and
    /// the program may give up too.
    pub no_measure: Option<String>,
    /// Whether e2fsck needed the location of a backup superblock. The program under test, which
    /// gets no such hint, may then give up.
    pub hinted: bool,
    /// The image that e2fsck repaired.
    pub theirs: Image,
    /// The image that the program repaired.
    pub ours: Image,
    /// Whether the program claims to have repaired everything.
    pub done: bool,
    /// Output of the program's first run.
    pub said: String,
    /// Codes of the problems that e2fsck repaired.
    pub codes: BTreeSet<u32>,
}

/// Lets the program and e2fsck each repair a copy of `image`, and compares the results. `program`
/// repairs the image at a path, like `e2fsck -fy`.
///
/// # Errors
/// A program cannot be started, or there is no space for copies.
pub fn judge(
    image: &Image,
    terms: &Terms<'_>,
    program: &dyn Fn(&Path) -> Result<Outcome>,
) -> Result<Judgement> {
    let Measure { image: theirs, codes, none: no_measure, hinted, .. } = by_oracle(image, terms)?;
    let ours = image.copy()?;
    let first = program(ours.path())?;
    let mut judgement = Judgement {
        faults: Vec::new(),
        no_measure,
        hinted,
        theirs,
        ours,
        done: matches!(first.exit, Some(0..=3)),
        said: first.text.clone(),
        codes,
    };
    match crash(&first) {
        Some(fault) => judgement.faults.push(fault),
        None => judge_result(&mut judgement, &first, terms, program)?,
    }
    judgement.faults.sort();
    Ok(judgement)
}

/// e2fsck's repair, the reference.
struct Measure {
    /// The repaired image.
    image: Image,
    /// Codes found in all runs.
    codes: BTreeSet<u32>,
    /// Why it cannot serve as reference.
    none: Option<String>,
    /// Whether it needed the location of a backup superblock.
    hinted: bool,
    /// Exit status of its last run.
    exit: Option<i32>,
}

/// Repairs with e2fsck; if it gives up, again with a backup superblock.
fn by_oracle(image: &Image, terms: &Terms<'_>) -> Result<Measure> {
    let alone = repaired_by_oracle(image, None)?;
    let backup = terms.original.and_then(backup_of);
    // 8: an operational error, not always because of the superblock.
    let gave_up = alone.exit.is_some_and(|exit| exit & 8 != 0);
    if gave_up && let Some(backup) = backup {
        let hinted = repaired_by_oracle(image, Some(backup))?;
        if hinted.none.is_none() {
            return Ok(hinted);
        }
    }
    Ok(alone)
}

/// Block number and block size of the first backup superblock.
fn backup_of(original: &Image) -> Option<(BlockNr, u32)> {
    let geometry = Volume::open(original).ok()?.geometry;
    let backup = (1..geometry.group_count).find_map(|nr| geometry.superblock_of(GroupNr(nr)))?;
    Some((backup, geometry.block_size))
}

fn repaired_by_oracle(image: &Image, backup: Option<(BlockNr, u32)>) -> Result<Measure> {
    let copy = image.copy()?;
    let mut codes = BTreeSet::new();
    let hinted = backup.is_some();
    let mut hint: Vec<String> = match backup {
        Some((block, size)) => {
            ["-b".into(), block.0.to_string(), "-B".into(), size.to_string()].into()
        }
        None => Vec::new(),
    };
    let mut last = None;
    for _ in 0..ORACLE_RUNS {
        let mut args = vec!["-fy"];
        args.extend(hint.iter().map(String::as_str));
        let verdict = oracle::run(copy.path(), &args)?;
        // The primary superblock is valid after the first run.
        hint.clear();
        codes.extend(verdict.codes());
        last = verdict.exit;
        if verdict.timed_out {
            let none = Some("e2fsck exceeds the time limit".to_owned());
            return Ok(Measure { image: copy, codes, none, hinted, exit: last });
        }
        if last == Some(0) {
            // e2fsck may forget a finding while repairing that it still reports with -n.
            let after = oracle::e2fsck(&copy)?;
            let why = "e2fsck -n finds damage after e2fsck -y ended with 0".to_owned();
            let none = (!after.clean()).then_some(why);
            return Ok(Measure { image: copy, codes, none, hinted, exit: last });
        }
    }
    let none = Some(format!("e2fsck ends with {last:?} after {ORACLE_RUNS} runs"));
    Ok(Measure { image: copy, codes, none, hinted, exit: last })
}

fn crash(outcome: &Outcome) -> Option<Fault> {
    match outcome.exit {
        _ if outcome.timed_out => Some(Fault::Timeout),
        exit @ None => Some(Fault::Crash { exit }),
        // A panic gives 101, a signal more than 128.
        exit @ Some(100..) => Some(Fault::Crash { exit }),
        Some(_) => None,
    }
}

fn judge_result(
    judgement: &mut Judgement,
    first: &Outcome,
    terms: &Terms<'_>,
    program: &dyn Fn(&Path) -> Result<Outcome>,
) -> Result<()> {
    // 2 asks for a reboot, which happens only for a root device.
    let done = matches!(first.exit, Some(0..=3));
    // A program without the hint may give up.
    let wanted = judgement.no_measure.is_none() && !judgement.hinted;
    if done || wanted {
        let after = oracle::e2fsck(&judgement.ours)?;
        if !done || !after.clean() {
            judgement.faults.push(Fault::Unclean {
                ours: first.exit,
                theirs: after.exit,
                codes: after.codes(),
            });
        }
    }
    if wanted || (done && judgement.no_measure.is_none()) {
        let Trees { theirs, ours, original } = trees(&judgement.theirs, &judgement.ours, terms)?;
        judgement.faults.extend(losses(&theirs, &ours, &original).into_iter().map(|loss| {
            if loss.kind.is_of_metadata() { Fault::Metadata(loss) } else { Fault::Lost(loss) }
        }));
    }
    let before = judgement.ours.copy()?;
    let second = program(judgement.ours.path())?;
    match crash(&second) {
        Some(fault) => judgement.faults.push(fault),
        None => {
            let changed = !same_but_times(&before, &judgement.ours)?;
            // Damage that neither can repair may stay.
            let unfinished = second.exit != Some(0) && (done || wanted);
            if changed || unfinished {
                judgement.faults.push(Fault::NotFixpoint { exit: second.exit, changed });
            }
        }
    }
    Ok(())
}

/// The content of both images, read in the same way.
struct Trees {
    theirs: Tree,
    ours: Tree,
    original: Tree,
}

fn trees(theirs: &Image, ours: &Image, terms: &Terms<'_>) -> Result<Trees> {
    if terms.read_by == ReadBy::Kernel {
        let through_mount = |image: &Image| -> Result<Tree> {
            let mount = kernel::Mounted::new(image.path(), "ro,noload")?;
            let tree = tree::mounted(mount.path())?;
            mount.unmount()?;
            Ok(tree)
        };
        let original = terms.original.map_or_else(|| Ok(Tree::new()), through_mount);
        if let (Ok(theirs), Ok(ours), Ok(original)) =
            (through_mount(theirs), through_mount(ours), original)
        {
            return Ok(Trees { theirs, ours, original });
        }
    }
    let theirs = tree::stored(theirs).context("reading the image that e2fsck repaired")?;
    // An unreadable result counts as total loss.
    let ours = tree::stored(ours).unwrap_or_default();
    let original = terms.original.map(tree::stored).transpose()?.unwrap_or_default();
    Ok(Trees { theirs, ours, original })
}

/// Superblock fields that any run may change: times, mount and write counts, and the checksum.
const TIMES: [Range<usize>; 5] = [0x2c..0x36, 0x40..0x44, 0x178..0x180, 0x274..0x27a, 0x3fc..0x400];

/// Whether two images differ only in superblock fields that any run may change, and in the MMP
/// block.
///
/// # Errors
/// The images cannot be read.
pub fn same_but_times(before: &Image, after: &Image) -> Result<bool> {
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
    use crate::recipe::{Recipe, inode};
    use crate::{Profile, build, tool};

    const TERMS: Terms<'_> = Terms { read_by: ReadBy::Testkit, original: None };

    fn e2fsck(path: &Path) -> Result<Outcome> {
        let mut command = tool::command("e2fsck");
        command.arg("-fy").arg(path);
        tool::run(&command, 60)
    }

    /// Faults of a repair whose result `spoil` then modifies.
    fn faults_after(spoil: fn(&Path)) -> Vec<Fault> {
        let (image, _) = damaged_image(Profile::Ext4K1, 3).expect("an image");
        let judgement = judge(&image, &TERMS, &|path| {
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
        if tool::missing() {
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
        if tool::missing() {
            return;
        }
        let (image, _) = damaged_image(Profile::Ext4K1, 3).expect("an image");
        let ended =
            |exit, timed_out| move |_: &Path| Ok(Outcome { exit, timed_out, text: String::new() });
        let faults = |program: &dyn Fn(&Path) -> Result<Outcome>| {
            judge(&image, &TERMS, program).expect("e2fsck runs").faults
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

    /// Data restored to its original state is no loss; anything else is.
    #[test]
    fn the_undamaged_image_is_as_good_as_e2fscks_repair() {
        if tool::missing() {
            return;
        }
        let original = build::base(Profile::Ext4K1).expect("a clean image");
        let recipe = Recipe::new("a magic")
            .edit(inode("/fragmented").raw(|raw| raw[0x28] = 0))
            .edit(inode("/dir/file").base(|base| base.uid_lo = 77));
        let image = recipe.build().expect("an image");
        let give_back = |path: &Path| {
            let bytes = original.to_vec()?;
            fs::write(path, bytes)?;
            Ok(Outcome { exit: Some(0), timed_out: false, text: String::new() })
        };
        let terms = Terms { original: Some(&original), ..TERMS };
        assert_eq!(judge(&image, &terms, &give_back).expect("e2fsck runs").faults, []);
    }

    #[test]
    fn a_backup_of_the_superblock_makes_e2fsck_a_measure() {
        if tool::missing() {
            return;
        }
        let original = build::base(Profile::Ext4K1).expect("a clean image");
        let image = original.copy().expect("a copy");
        image.write(OFFSET_BYTES, &[0; 1024]).expect("a superblock");
        let give_up =
            |_: &Path| Ok(Outcome { exit: Some(8), timed_out: false, text: String::new() });
        let judged = |original| {
            let judgement = judge(&image, &Terms { original, ..TERMS }, &give_up);
            let judgement = judgement.expect("e2fsck runs");
            (judgement.no_measure.is_some(), judgement.hinted, judgement.faults)
        };
        assert_eq!(judged(None), (true, false, vec![]));
        assert_eq!(judged(Some(&original)), (false, true, vec![]));
    }
}
