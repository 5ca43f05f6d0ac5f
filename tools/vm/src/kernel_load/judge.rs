//! Judges the file system that a kernel left: Floe's verdict must match e2fsck's after journal
//! replay and orphan processing, its replay must produce the same bytes, and its repair the same
//! files.

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

use crate::findings::{Names, findings_codes, name_of};

/// Time limit in seconds, after which Floe counts as hung.
const LIMIT_SECONDS: u32 = 60;
const SUPERBLOCK_BYTES: usize = 1024;
/// Maximum number of differing files to list.
const PATHS: usize = 5;

/// The judge.
pub(super) struct Judge {
    pub(super) floe: PathBuf,
    pub(super) names: Names,
}

/// A file system as the kernel left it.
pub(super) struct Left<'a> {
    pub(super) image: &'a Image,
    /// The external journal.
    pub(super) journal: Option<&'a Image>,
    /// Whether recovery must yield a clean file system: after an unmount, or with a journal.
    pub(super) must_be_sound: bool,
    /// Lets the kernel recover the file system on an image (and journal), and unmounts it.
    pub(super) kernel: &'a dyn Fn(&Image, Option<&Image>) -> Result<()>,
    /// Whether to use the kernel even if e2fsck can serve as reference.
    pub(super) ask_kernel: bool,
}

/// The verdict.
#[derive(Default)]
pub(super) struct Judgement {
    /// Faults of Floe.
    pub(super) faults: Vec<String>,
    /// Damage that the kernel must not leave, according to both e2fsck and Floe.
    pub(super) of_kernel: Vec<String>,
    /// Whether the recovered file system is clean.
    pub(super) sound: bool,
    /// Whether the journal had transactions to replay.
    pub(super) replayed: bool,
    /// e2fsck's message if it could not replay.
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

    /// Compares `floe check` of the unrecovered file system with e2fsck's verdict on the recovered
    /// one.
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

    /// Replay must produce the same bytes, except in the superblock: times, and totals that the
    /// kernel left stale and that e2fsck corrects only in a later pass.
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
            judgement
                .faults
                .push(format!("replays differ at {at:x?} (byte offsets of 4 KiB chunks)"));
        }
        Ok(())
    }

    /// Floe's repair of a copy must be clean; for an undamaged file system it must hold the same
    /// files as the other recoveries.
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
        // Losses are a matter for `differential --repair`, which knows the original state: here
        // e2fsck's own mistakes would count, such as zeroed data that it took for block numbers.
        let of_loss = |fault: &&Fault| matches!(fault, Fault::Lost(_) | Fault::Metadata(_));
        for fault in repaired.faults.iter().filter(|fault| !of_loss(fault)) {
            let cause = fault.cause(&|code| name_of(&self.names, code));
            judgement.faults.push(format!("repair: {cause}: {fault}"));
        }
        Ok(())
    }

    /// Runs `floe fsck` on a copy.
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

/// The file system after e2fsck's recovery of journal and orphans, as a mount does it. A file
/// system without a journal may need a repair, and is left alone.
fn recovered_by_e2fsck(left: &Left<'_>) -> Result<Copy> {
    let copy = Copy::of(left)?;
    if !left.must_be_sound {
        return Ok(copy);
    }
    // Without -f it stops after these steps, unless it finds a reason to continue.
    let said = copy.e2fsck(&["-p"])?;
    if !said.text.contains("check forced") {
        return Ok(copy);
    }
    let copy = Copy::of(left)?;
    copy.e2fsck(&["-y", "-E", "journal_only"])?;
    if Volume::open(left.image)?.geometry.features.compat.contains(Compat::ORPHAN_FILE) {
        // e2fsck leaves this flag to a later pass.
        super::debugfs(&copy.image, "feature -orphan_present")?;
    }
    Ok(copy)
}

/// The reason why e2fsck's recovery cannot serve as reference.
fn no_measure(left: &Left<'_>, replay: &Verdict) -> Result<Option<String>> {
    // e2fsck exits with 0 even then.
    let failed = replay.text.lines().find(|line| line.contains("while recovering journal"));
    if let Some(line) = failed {
        return Ok(Some(line.split(" of ").next().unwrap_or(line).to_owned()));
    }
    // 1.47 wraps logs with a fast commit area at the wrong block, and then loses the last
    // transaction.
    let geometry = Volume::open(left.image)?.geometry;
    let fast_commits = geometry.features.compat.contains(Compat::FAST_COMMIT);
    Ok(fast_commits
        .then(|| "it wraps logs with fast commits at another block than Linux".to_owned()))
}

/// The file system after journal replay only: `replayed` if e2fsck had no orphans to process, else
/// the result of debugfs; `None` if neither applies.
fn only_replayed(left: &Left<'_>, replayed: Copy, said: &Verdict) -> Result<Option<Copy>> {
    let orphans = |line: &str| line.contains("orphan") || line.starts_with("Truncating");
    if !said.text.lines().any(orphans) {
        return Ok(Some(replayed));
    }
    // debugfs has other commands for an external journal.
    if left.journal.is_some() {
        return Ok(None);
    }
    let copy = Copy::of(left)?;
    super::debugfs(&copy.image, "jr")?;
    // debugfs refuses to open a file system whose bitmap checksums are stale before replay.
    let refused = Volume::open(&copy.image)?.geometry.features.incompat.contains(Incompat::RECOVER);
    Ok((!refused).then_some(copy))
}

/// Equalises the structures that a tool rewrites whenever it closes a file system: the superblock,
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

/// Both trees must hold the same files.
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

/// A copy of an image and its external journal, for programs that write.
struct Copy {
    image: Image,
    journal: Option<Image>,
}

impl Copy {
    fn of(left: &Left<'_>) -> Result<Self> {
        let journal = left.journal.map(Image::copy).transpose()?;
        Ok(Self { image: left.image.copy()?, journal })
    }

    /// `args` with the location of the journal added.
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

    /// Judges a program with a constant answer, on an image whose inode 12 may have a wrong mode.
    fn faults_of(program: &str, damaged: bool, must_be_sound: bool) -> Vec<String> {
        let image = build::base(Profile::Ext4K1).expect("a clean image");
        if damaged {
            build::debugfs(&image, "sif <12> mode 0\n").expect("debugfs writes");
        }
        let judge = Judge { floe: PathBuf::from(program), names: Names::new() };
        let kernel = |_: &Image, _: Option<&Image>| anyhow::bail!("the kernel must not be used");
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
