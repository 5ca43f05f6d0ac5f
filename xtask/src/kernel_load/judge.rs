//! Judges what a kernel left behind: Floe must say what e2fsck says once the journal is replayed and the
//! orphans are gone, must replay to the same bytes, and must repair to the same files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use floe_format::ext::superblock::OFFSET_BYTES;
use floe_format::features::{Compat, Incompat};
use floe_format::{BlockNr, GroupNr};
use floe_testkit::compare::{self, Fault, ReadBy, Terms, same_but_times};
use floe_testkit::image::Contents;
use floe_testkit::oracle::{self, Verdict};
use floe_testkit::tool::{self, Outcome};
use floe_testkit::{Image, Volume, tree};

use crate::differential::{Names, findings_codes, name_of};

/// Seconds after which Floe is taken to hang.
const LIMIT_SECONDS: u32 = 60;
const SUPERBLOCK_BYTES: usize = 1024;
/// How many paths are named of files that differ.
const PATHS: usize = 5;

/// Who judges.
pub(super) struct Judge {
    pub(super) floe: PathBuf,
    pub(super) names: Names,
}

/// A file system as the kernel left it.
pub(super) struct Left<'a> {
    pub(super) image: &'a Image,
    /// Its external journal.
    pub(super) journal: Option<&'a Image>,
    /// Whether recovery must give a sound file system: after unmounting, or with a journal.
    pub(super) must_be_sound: bool,
    /// Lets the kernel recover the file system on an image (and journal), and unmount it.
    pub(super) kernel: &'a dyn Fn(&Image, Option<&Image>) -> Result<()>,
    /// Whether the kernel is asked even where e2fsck knows.
    pub(super) ask_kernel: bool,
}

/// What came of it.
#[derive(Default)]
pub(super) struct Judgement {
    /// What is wrong with Floe.
    pub(super) faults: Vec<String>,
    /// Damage where the kernel promises that there is none, for e2fsck as for Floe.
    pub(super) of_kernel: Vec<String>,
    /// Whether the recovered file system is sound.
    pub(super) sound: bool,
    /// Whether there was something to replay.
    pub(super) replayed: bool,
    /// What e2fsck said when it could not replay.
    pub(super) no_measure: Option<String>,
    /// Whether the kernel's recovery was compared.
    pub(super) kernel: bool,
}

impl Judge {
    pub(super) fn judge(&self, left: &Left<'_>) -> Result<Judgement> {
        let mut judgement = Judgement::default();
        let replayed = Copy::of(left)?;
        let replay = replayed.e2fsck(&["-y", "-E", "journal_only"])?;
        ensure!(replay.exit.is_some_and(|exit| exit < 8), "e2fsck: {}", replay.text);
        judgement.replayed = replay.text.contains("recovering journal");
        judgement.no_measure = no_measure(left, &replay)?;
        let recovered = if judgement.no_measure.is_none() {
            if let Some(replayed) = only_replayed(left, replayed, &replay)? {
                self.compare_replays(left, &replayed, &mut judgement)?;
            }
            Some(recovered_by_e2fsck(left)?)
        } else {
            None
        };
        judgement.kernel = recovered.is_none() || (left.ask_kernel && left.must_be_sound);
        let by_kernel = if judgement.kernel { Some(recovered_by_kernel(left)?) } else { None };
        for measure in [&recovered, &by_kernel].into_iter().flatten() {
            self.compare_verdicts(left, measure, &mut judgement)?;
        }
        self.compare_repairs(left, &recovered, &by_kernel, &mut judgement)?;
        Ok(judgement)
    }

    /// `floe check` of what was left against e2fsck's verdict on what became of it.
    fn compare_verdicts(
        &self,
        left: &Left<'_>,
        recovered: &Copy,
        judgement: &mut Judgement,
    ) -> Result<()> {
        let verdict = recovered.e2fsck(&["-fn"])?;
        judgement.sound = verdict.clean();
        if left.must_be_sound && !verdict.clean() {
            let found = verdict.codes();
            judgement.of_kernel.push(format!("damage after recovery: {}", self.list(&found)));
        }
        let mut args = vec!["check", "--json"];
        let journal = left.journal.map(|journal| text(journal.path())).transpose()?;
        if let Some(journal) = &journal {
            args.extend(["--external-journal", journal]);
        }
        let before = Contents::read(left.image.path())?;
        let ours = self.floe(&args, left.image.path())?;
        if !Contents::read(left.image.path())?.same_as(&before) {
            judgement.faults.push("floe check changed the image".to_owned());
        }
        match (ours.exit, verdict.exit) {
            (Some(0), Some(0)) => {}
            (Some(4), Some(exit)) if exit & 4 != 0 => {}
            (exit, theirs) => {
                let found = findings_codes(&ours.text);
                judgement.faults.push(format!(
                    "verdicts differ: floe {exit:?} ({}), e2fsck {theirs:?} ({})",
                    found.map_or_else(|| ours.text.clone(), |codes| self.list(&codes)),
                    self.list(&verdict.codes()),
                ));
            }
        }
        Ok(())
    }

    /// What the journal holds must end in the same bytes, but for the superblock: times, and totals that
    /// the kernel left stale and that e2fsck leaves so for a later pass.
    fn compare_replays(
        &self,
        left: &Left<'_>,
        theirs: &Copy,
        judgement: &mut Judgement,
    ) -> Result<()> {
        let ours = Copy::of(left)?;
        let said = self.repair(&ours, &["-y", "-E", "journal_only"])?;
        if !matches!(said.exit, Some(0 | 1)) {
            let (exit, text) = (said.exit, said.text.trim());
            judgement.faults.push(format!("floe fsck -E journal_only ended with {exit:?}: {text}"));
            return Ok(());
        }
        ignore_copies(&theirs.image, &ours.image)?;
        if !same_but_times(&ours.image, &theirs.image)? {
            let ours = Contents::read(ours.image.path())?;
            let at = ours.differences(&Contents::read(theirs.image.path())?);
            judgement.faults.push(format!("replays differ at {at:x?} (bytes, in pieces of 4 KiB)"));
        }
        Ok(())
    }

    /// What Floe makes of a copy must be clean, and of a sound file system it must be the same files
    /// that the others recover.
    fn compare_repairs(
        &self,
        left: &Left<'_>,
        recovered: &Option<Copy>,
        by_kernel: &Option<Copy>,
        judgement: &mut Judgement,
    ) -> Result<()> {
        let ours = Copy::of(left)?;
        let said = self.repair(&ours, &["-fy"])?;
        let after = ours.e2fsck(&["-fn"])?;
        if !matches!(said.exit, Some(0 | 1)) || !after.clean() {
            judgement.faults.push(format!(
                "repair ended with {:?}: {}; e2fsck: {}",
                said.exit,
                said.text.trim(),
                after.text.trim()
            ));
        }
        if judgement.sound {
            for measure in [recovered, by_kernel].into_iter().flatten() {
                compare_trees(&measure.image, &ours.image, judgement)?;
            }
            return Ok(());
        }
        let terms = Terms { read_by: ReadBy::Testkit, original: None };
        let repaired =
            compare::judge(left.image, &terms, &|path| self.floe(&["fsck", "-fy"], path))?;
        // What gets lost on the way is for `differential --repair`, which knows what there was before: here
        // e2fsck's own slips would count, such as zeroes in data that it took for block numbers.
        let of_loss = |fault: &&Fault| matches!(fault, Fault::Lost(_) | Fault::Metadata(_));
        for fault in repaired.faults.iter().filter(|fault| !of_loss(fault)) {
            let cause = fault.cause(&|code| name_of(&self.names, code));
            judgement.faults.push(format!("repair: {cause}: {fault}"));
        }
        Ok(())
    }

    /// Lets `floe fsck` write on a copy.
    fn repair(&self, copy: &Copy, args: &[&str]) -> Result<Outcome> {
        let mut args = copy.arguments(args)?;
        args.insert(0, "fsck".to_owned());
        self.floe(&args.iter().map(String::as_str).collect::<Vec<_>>(), copy.image.path())
    }

    fn floe(&self, args: &[&str], image: &Path) -> Result<Outcome> {
        let mut command = tool::command(&text(&self.floe)?);
        command.args(args).arg(image);
        tool::run(&command, LIMIT_SECONDS)
    }

    fn list(&self, codes: &BTreeSet<u32>) -> String {
        let names: Vec<String> = codes.iter().map(|&code| name_of(&self.names, code)).collect();
        names.join(" ")
    }
}

/// The file system after e2fsck's recovery: journal and orphans, as a mount does it; nothing of one
/// without a journal, which may need repair.
fn recovered_by_e2fsck(left: &Left<'_>) -> Result<Copy> {
    let copy = Copy::of(left)?;
    if !left.must_be_sound {
        return Ok(copy);
    }
    // Without -f it looks no further once these are done, unless it has a reason to.
    let said = copy.e2fsck(&["-p"])?;
    if !said.text.contains("check forced") {
        return Ok(copy);
    }
    let copy = Copy::of(left)?;
    copy.e2fsck(&["-y", "-E", "journal_only"])?;
    if Volume::open(left.image)?.geometry.features.compat.contains(Compat::ORPHAN_FILE) {
        // Left for a later pass.
        super::debugfs(&copy.image, "feature -orphan_present")?;
    }
    Ok(copy)
}

/// Why e2fsck's recovery is no measure for others.
fn no_measure(left: &Left<'_>, replay: &Verdict) -> Result<Option<String>> {
    // It ends with 0 even then.
    let failed = replay.text.lines().find(|line| line.contains("while recovering journal"));
    if let Some(line) = failed {
        return Ok(Some(line.split(" of ").next().unwrap_or(line).to_owned()));
    }
    // 1.47 does not know where a log with fast commits turns back to its first block, and then leaves
    // out the last transaction.
    let geometry = Volume::open(left.image)?.geometry;
    let fast_commits = geometry.features.compat.contains(Compat::FAST_COMMIT);
    Ok(fast_commits.then(|| "its end of a log with fast commits is not that of Linux".to_owned()))
}

/// The file system with its journal replayed and nothing else done: `replayed` if e2fsck had no orphans
/// to see to besides, else what debugfs makes of it; `None` where there is no such measure.
fn only_replayed(left: &Left<'_>, replayed: Copy, said: &Verdict) -> Result<Option<Copy>> {
    let orphans = |line: &str| line.contains("orphan") || line.starts_with("Truncating");
    if !said.text.lines().any(orphans) {
        return Ok(Some(replayed));
    }
    // It wants other commands for an external journal.
    if left.journal.is_some() {
        return Ok(None);
    }
    let copy = Copy::of(left)?;
    super::debugfs(&copy.image, "jr")?;
    // It opens nothing whose bitmaps are older than their checksums, which is what a journal is for.
    let refused = Volume::open(&copy.image)?.geometry.features.incompat.contains(Incompat::RECOVER);
    Ok((!refused).then_some(copy))
}

/// Makes the same of both images what a tool writes anew whenever it closes a file system: the superblock,
/// and with meta_bg all copies of group descriptors.
fn ignore_copies(theirs: &Image, ours: &Image) -> Result<()> {
    let same = |offset_bytes, len: usize| -> Result<()> {
        let mut bytes = vec![0; len];
        theirs.read(offset_bytes, &mut bytes)?;
        ours.write(offset_bytes, &bytes)
    };
    same(OFFSET_BYTES, SUPERBLOCK_BYTES)?;
    let geometry = Volume::open(theirs)?.geometry;
    if !geometry.features.incompat.contains(Incompat::META_BG) {
        return Ok(());
    }
    let primary: BTreeSet<_> =
        (0..geometry.desc_blocks).map(|index| geometry.primary_desc_block(index)).collect();
    for group in (0..geometry.group_count).map(GroupNr) {
        let run = geometry.group_desc_run(group);
        for block in (0..run.len_blocks).map(|at| BlockNr(run.start.0 + at)) {
            if !primary.contains(&block) {
                same(geometry.offset_bytes(block), geometry.block_size as usize)?;
            }
        }
    }
    Ok(())
}

fn recovered_by_kernel(left: &Left<'_>) -> Result<Copy> {
    let copy = Copy::of(left)?;
    (left.kernel)(&copy.image, copy.journal.as_ref())?;
    Ok(copy)
}

/// Nothing may get lost and nothing may be added.
fn compare_trees(theirs: &Image, ours: &Image, judgement: &mut Judgement) -> Result<()> {
    let (theirs, ours) = (tree::stored(theirs)?, tree::stored(ours)?);
    let paths: BTreeSet<_> = theirs.keys().chain(ours.keys()).collect();
    let differing: Vec<_> =
        paths.into_iter().filter(|path| theirs.get(*path) != ours.get(*path)).collect();
    if !differing.is_empty() {
        let some: Vec<_> = differing
            .iter()
            .take(PATHS)
            .map(|path| {
                let name = String::from_utf8_lossy(path);
                format!("{name}: {:?} against {:?}", theirs.get(*path), ours.get(*path))
            })
            .collect();
        let (count, some) = (differing.len(), some.join("\n"));
        judgement.faults.push(format!("{count} files differ after recovery, such as {some}"));
    }
    Ok(())
}

/// A copy of an image and of its external journal, for programs that write.
struct Copy {
    image: Image,
    journal: Option<Image>,
}

impl Copy {
    fn of(left: &Left<'_>) -> Result<Self> {
        let journal = left.journal.map(Image::copy).transpose()?;
        Ok(Self { image: left.image.copy()?, journal })
    }

    /// `args`, and where the journal is.
    fn arguments(&self, args: &[&str]) -> Result<Vec<String>> {
        let mut all: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        if let Some(journal) = &self.journal {
            all.extend(["-j".to_owned(), text(journal.path())?]);
        }
        Ok(all)
    }

    fn e2fsck(&self, args: &[&str]) -> Result<Verdict> {
        let args = self.arguments(args)?;
        oracle::run(self.image.path(), &args.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

fn text(path: &Path) -> Result<String> {
    Ok(path.to_str().context("a path that is not UTF-8")?.to_owned())
}

#[cfg(test)]
mod tests {
    use floe_testkit::{Profile, build};

    use super::*;

    /// What a program says to everything is judged on an image whose inode 12 has a wrong mode.
    fn faults_of(program: &str, damaged: bool, must_be_sound: bool) -> Vec<String> {
        let image = build::base(Profile::Ext4K1).expect("a clean image");
        if damaged {
            build::debugfs(&image, "sif <12> mode 0\n").expect("debugfs writes");
        }
        let judge = Judge { floe: PathBuf::from(program), names: Names::new() };
        let kernel = |_: &Image, _: Option<&Image>| anyhow::bail!("nobody is to be asked");
        let left = Left {
            image: &image,
            journal: None,
            must_be_sound,
            kernel: &kernel,
            ask_kernel: false,
        };
        judge.judge(&left).expect("the image can be read").faults
    }

    #[test]
    fn programs_that_are_always_content_or_never_are_found_out() {
        if tool::missing() {
            return;
        }
        assert_eq!(faults_of("true", false, true), [""; 0]);
        let content = faults_of("true", true, false);
        assert!(content.iter().any(|fault| fault.starts_with("verdicts differ")), "{content:?}");
        assert!(content.iter().any(|fault| fault.starts_with("repair ended")), "{content:?}");
        let never = faults_of("false", false, true);
        assert!(never.iter().any(|fault| fault.starts_with("verdicts differ")), "{never:?}");
    }
}
