//! Repairs the image of each recipe in the problem table. The result must be clean for Floe and for
//! e2fsck, hold everything that e2fsck's repair saves, and stay unchanged by a second repair.
//!
//! `FLOE_CASE=part cargo test -p floe-repair --test all problems -- --nocapture` runs the cases with
//! `part` in their names, and prints the changes.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use floe_blockdev::{Fault, Faulty, ReadBlocks};
use floe_check::{CheckOptions, JournalUse};
use floe_repair::describe::Tense;
use floe_repair::policy::Yes;
use floe_repair::{Deed, Repair, RepairError, RepairOptions, repair};
use floe_testkit::Image;
use floe_testkit::compare::{ReadBy, Terms, judge};
use floe_testkit::problems::{Case, cases};
use floe_testkit::tool::{self, Outcome};

/// A case that is not repaired like the others.
struct Exception {
    name: &'static str,
    why: &'static str,
    /// Parts of the expected faults: each part must occur in a fault, and each fault must contain a
    /// part.
    faults: &'static [&'static str],
}

const fn exception(
    name: &'static str,
    why: &'static str,
    faults: &'static [&'static str],
) -> Exception {
    Exception { name, why, faults }
}

const NO_JOURNAL_DEVICE: &str = "only a person knows the right journal device";
const NEWER: &str = "only a newer tool knows its meaning";
const NO_BACKUP: &str = "the file system is too small for a backup; e2fsck gives up, too";
const CUT_OFF: &str = "the part past the end may be intact: nothing is repaired, and the \
                       file system is not marked clean";
const LISTS: &str = "e2fsck leaves a list that Linux cannot read or misreads";
const UNREADABLE: &str = "a copy of the device may recover the block: everything that does not \
                          depend on it is repaired, and the file system is not marked clean";

/// A refused repair stages nothing: it returns an error instead.
const EXCEPTIONS: &[Exception] = &[
    exception("journal not given", NO_JOURNAL_DEVICE, &["which was not found"]),
    exception("no journal", NO_JOURNAL_DEVICE, &["does not hold a journal"]),
    exception(
        "another's journal",
        NO_JOURNAL_DEVICE,
        &["another UUID than the file system expects"],
    ),
    exception("shared journal", NO_JOURNAL_DEVICE, &["is shared by 2 file systems"]),
    exception("journal ro feature", NEWER, &["journal-unknown-rocompat-feature"]),
    exception("journal feature", NEWER, &["journal-unknown-incompat-feature"]),
    exception("journal version", NEWER, &["journal-version-unknown"]),
    exception("revision", NEWER, &["the unknown revision 9"]),
    exception("encoding", NEWER, &["the unknown encoding 7"]),
    exception(
        "mmp fsck",
        "another machine may be at work on the file system",
        &["another machine or checker is at work"],
    ),
    exception(
        "extents: freed pointers past a size that sectors confirm",
        "e2fsck believes the map; size and sectors agree that the file is shorter",
        &["/fragmented (Content, Regular)"],
    ),
    exception("no superblock", NO_BACKUP, &["no usable superblock"]),
    exception("block size", NO_BACKUP, &["no usable superblock"]),
    exception("superblock checksum", NO_BACKUP, &["no usable superblock"]),
    exception("first data block", NO_BACKUP, &["data begins at block 0"]),
    exception("cut off", CUT_OFF, &["filesystem-exceeds-device"]),
    exception("block maps: an attribute block cut off", CUT_OFF, &["filesystem-exceeds-device"]),
    exception("block maps: an indirect block cut off", CUT_OFF, &["filesystem-exceeds-device"]),
    exception("unreadable inode", UNREADABLE, &["unreadable-inode-table"]),
    exception("unreadable table", UNREADABLE, &["unreadable-inode-table"]),
    exception(
        "to a value",
        "e2fsck rejects names of value inodes since 1.47.4; 1.47.0 leaves them",
        &["/dir/file (Gone, Regular)"],
    ),
    exception(
        "block maps: a directory far behind",
        "the directory shares its map with a file, whose blocks Floe keeps and e2fsck frees",
        &["/far (Content, Regular)"],
    ),
    exception(
        "journal with a name",
        "Floe hides the journal, whatever its name was; e2fsck leaves it as a file of this name",
        &["/empty (Gone, Regular)"],
    ),
    exception("access list of another version", LISTS, &["/acl (Owner, Regular)"]),
    exception("access list without room for another", LISTS, &["/acl (Owner, Regular)"]),
    exception("access list with others in front", LISTS, &["/acl (Xattr, Regular)"]),
    exception("access list without others", LISTS, &["/acl (Owner, Regular)"]),
    exception("default access list without the group", LISTS, &["/dir (Xattr, Directory)"]),
    exception("default access list with an unknown entry", LISTS, &["/dir (Xattr, Directory)"]),
];

/// Options for the repair of a case.
fn options<'a>(case: &Case, journal: Option<&'a Image>) -> RepairOptions<'a> {
    let check = CheckOptions {
        threads: 2,
        journal: JournalUse::Replay,
        external_journal: journal.map(|device| device as &dyn ReadBlocks),
        now_seconds: case.now_seconds.unwrap_or(i64::from(tool::NOW)),
        ..CheckOptions::default()
    };
    RepairOptions { check, random: [7; 16], ..RepairOptions::default() }
}

/// Writes the staged blocks over the image at `path`.
fn commit(repair: &Repair<'_>, path: &Path) -> Result<()> {
    Image::open(path)?.write_staged(&repair.staged)
}

/// The findings that a repair left, with reasons.
fn left(repair: &Repair<'_>) -> Vec<String> {
    repair
        .left
        .iter()
        .map(|(problem, reason)| format!("{}: {reason:?}", problem.row().id))
        .collect()
}

/// The words around one that is said twice, in what a report says of a change.
fn doubled_word(deed: &Deed) -> Option<String> {
    let said = [
        deed.edit.describe(Tense::Done),
        deed.problem.as_ref().map(ToString::to_string).unwrap_or_default(),
    ];
    let twice = |text: &String| {
        let words: Vec<&str> = text.split_whitespace().collect();
        let is_word = |word: &str| word.bytes().all(|byte| byte.is_ascii_alphabetic());
        words.windows(2).any(|pair| pair[0] == pair[1] && is_word(pair[0]))
    };
    let text = said.into_iter().find(twice)?;
    Some(format!("says a word twice: {text}"))
}

/// Faults in the repair of a device that e2fsck cannot examine.
fn faults_alone(case: &Case, image: &Image) -> Result<Vec<String>, RepairError> {
    let journal = case.external_journal.as_ref();
    let mut options = options(case, journal);
    // The test `unreadable` covers the behaviour without permission.
    options.overwrite_unreadable = case.has_unreadable_blocks();
    let block_bytes = u32::try_from(case.recipe.profile().block_size()).unwrap_or(1024);
    let unreadable = case.unreadable_blocks(image);
    let device = Faulty::new(
        image,
        block_bytes,
        unreadable.into_iter().map(|block| (block, Fault::Unreadable)),
    );
    let first = repair(&device, &options, &mut Yes)?;
    let mut faults = Vec::new();
    if !first.is_clean() {
        faults.push(format!("is left damaged: {:?}", left(&first)));
    }
    let superblock = 0..u64::from(block_bytes.max(2048));
    let written = first.staged.staged_ranges();
    if first.deeds.is_empty() && written.iter().any(|range| range.end > superblock.end) {
        faults.push(format!("{written:?} are written, although nothing was repaired"));
    }
    if let Some(journal) = &first.staged_journal {
        options.check.external_journal = Some(journal);
    }
    let second = repair(&first.staged, &options, &mut Yes)?;
    if !second.deeds.is_empty() {
        faults.push(format!("a second repair does {:?}", second.deeds));
    }
    Ok(faults)
}

/// Faults in the repair of an image, compared with that of e2fsck.
fn faults_against_e2fsck(case: &Case, image: &Image) -> Result<Vec<String>> {
    let runs = Cell::new(0);
    let of_floe = std::cell::RefCell::new(Vec::new());
    let program = |path: &Path| -> Result<Outcome> {
        runs.set(runs.get() + 1);
        let device = Image::open(path)?;
        let repair = match repair(&device, &options(case, None), &mut Yes) {
            Ok(repair) => repair,
            Err(error) => {
                of_floe.borrow_mut().push(format!("run {}: {error}", runs.get()));
                return Ok(Outcome { exit: Some(8), timed_out: false, text: error.to_string() });
            }
        };
        commit(&repair, path)?;
        of_floe.borrow_mut().extend(repair.deeds.iter().filter_map(doubled_word));
        if !repair.is_clean() {
            let left = left(&repair);
            of_floe.borrow_mut().push(format!("run {}: is left damaged: {left:?}", runs.get()));
        }
        let exit = match (repair.is_clean(), repair.repaired()) {
            (false, _) => 4,
            (true, true) => 1,
            (true, false) => 0,
        };
        Ok(Outcome { exit: Some(exit), timed_out: false, text: format!("{:?}", repair.deeds) })
    };
    let original = case.recipe.base()?;
    let terms = Terms { read_by: ReadBy::Testkit, original: Some(&original) };
    let judgement = judge(image, &terms, &program)?;
    if std::env::var_os("FLOE_CASE").is_some() {
        eprintln!("{}: {}", case.recipe.name(), judgement.said);
    }
    let mut faults = of_floe.into_inner();
    faults.extend(judgement.faults.iter().map(ToString::to_string));
    Ok(faults)
}

/// Faults in the repair of a case.
fn faults(case: &Case) -> Vec<String> {
    let image = match case.recipe.build() {
        Ok(image) => image,
        Err(error) => return vec![format!("cannot be built: {error:#}")],
    };
    if case.has_unreadable_blocks() || case.external_journal.is_some() {
        return faults_alone(case, &image).unwrap_or_else(|error| vec![error.to_string()]);
    }
    faults_against_e2fsck(case, &image).unwrap_or_else(|error| vec![format!("{error:#}")])
}

/// Judges all cases, two at a time: returns the names of all, and the faults of those with any.
fn judge_all(cases: &[Case]) -> Vec<(String, Vec<String>)> {
    let wanted = std::env::var("FLOE_CASE").ok();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut judged = Vec::new();
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = case.recipe.name();
            if wanted.as_ref().is_none_or(|part| name.contains(part)) {
                judged.push((name.to_owned(), faults(case)));
            }
        }
        judged
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no case panics")).collect()
    })
}

#[test]
fn every_problem_is_mended() {
    if tool::missing() {
        return;
    }
    let mut wrong = Vec::new();
    for (name, faults) in judge_all(&cases()) {
        let Some(exception) = EXCEPTIONS.iter().find(|exception| exception.name == name) else {
            if !faults.is_empty() {
                wrong.push(format!("{name} => {}", faults.join("; ")));
            }
            continue;
        };
        let known = |fault: &String| exception.faults.iter().any(|part| fault.contains(part));
        let missing = |part: &&&str| !faults.iter().any(|fault| fault.contains(**part));
        let unknown: Vec<&String> = faults.iter().filter(|fault| !known(fault)).collect();
        let missing: Vec<&&str> = exception.faults.iter().filter(missing).collect();
        if !unknown.is_empty() || !missing.is_empty() {
            let why = exception.why;
            wrong.push(format!("{name} ({why}) => new: {unknown:?}; not found: {missing:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn names_of_cases_are_names_of_cases() {
    let all: Vec<String> = cases().iter().map(|case| case.recipe.name().to_owned()).collect();
    let known: BTreeSet<&str> = all.iter().map(String::as_str).collect();
    let twice: Vec<&String> =
        all.iter().filter(|name| all.iter().filter(|other| other == name).count() > 1).collect();
    assert!(twice.is_empty(), "several cases have one name: {twice:?}");
    let unknown: Vec<&str> = EXCEPTIONS
        .iter()
        .map(|exception| exception.name)
        .filter(|name| !known.contains(name))
        .collect();
    assert!(unknown.is_empty(), "no such cases: {unknown:?}");
}
