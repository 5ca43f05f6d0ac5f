//! One damaged image for each problem of the table: built by a recipe, judged by Floe with 1 and 3
//! workers, and by e2fsck.
//!
//! A problem without a recipe must stand in `docs/problems-without-recipe.tsv` with the reason.

#![allow(clippy::panic)] // a test may

mod attributes;
mod bad_blocks;
mod bitmaps;
mod block_maps;
mod connectivity;
mod directories;
mod edits;
mod extents;
mod external;
mod groups;
mod htrees;
mod index_roots;
mod inodes;
mod journals;
mod orphans;
mod quotas;
mod shared_blocks;
mod superblocks;
mod unreadable;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use floe_blockdev::{Fault, Faulty};
use floe_check::problem::{ROWS, Row};
use floe_check::{CheckError, CheckOptions, JournalUse, Problem, check};
use floe_format::BlockNr;
use floe_testkit::recipe::Recipe;
use floe_testkit::volume::Volume;
use floe_testkit::{Image, oracle, tool};

/// A recipe, and how its image is judged.
struct Case {
    recipe: Recipe,
    /// Why e2fsck's verdict differs from ours, where it does.
    unlike_e2fsck: Option<&'static str>,
    /// Why e2fsck's verdict is not asked for, where it cannot be had.
    not_by_e2fsck: Option<&'static str>,
    /// Whether the journal is replayed first; e2fsck's `-n` never does.
    journal: JournalUse,
    /// Whether e2fsck must find all of what is expected, too.
    same_codes: bool,
    /// What counts as now; `None`: far in the future.
    now_seconds: Option<i64>,
    /// The device of the journal.
    external_journal: Option<Image>,
    /// Blocks that cannot be read.
    unreadable: Option<FindBlocks>,
}

/// Finds blocks of an image.
type FindBlocks = Box<dyn Fn(&Volume<'_>) -> Vec<BlockNr> + Send + Sync>;

impl From<Recipe> for Case {
    fn from(recipe: Recipe) -> Self {
        Self {
            recipe,
            unlike_e2fsck: None,
            not_by_e2fsck: None,
            journal: JournalUse::Ignore,
            same_codes: false,
            now_seconds: None,
            external_journal: None,
            unreadable: None,
        }
    }
}

impl Case {
    /// e2fsck 1.47 judges the image otherwise, for this reason.
    fn unlike_e2fsck(mut self, reason: &'static str) -> Self {
        self.unlike_e2fsck = Some(reason);
        self
    }

    /// Expected problems that e2fsck does not find.
    fn other_codes(&self, codes: &BTreeSet<u32>) -> Vec<String> {
        let of = |id: &str| ROWS.iter().find(|row| row.id == id).map(|row| row.code);
        self.recipe
            .expected()
            .iter()
            .filter(|id| of(id).is_none_or(|code| !codes.contains(&code)))
            .map(|id| format!("{}: e2fsck does not find {id}: {codes:x?}", self.recipe.name()))
            .collect()
    }

    /// e2fsck asks about it before its first pass, and forgets the answer no: `-n` exits with 0.
    fn forgotten(self) -> Self {
        self.unlike_e2fsck("it forgets what it was not allowed to repair before its first pass")
    }

    /// Judge the file system as it is after recovery, which e2fsck does only while it repairs.
    fn recovered(mut self) -> Self {
        self.journal = JournalUse::Replay;
        self.not_by_e2fsck = Some("it recovers only while it repairs");
        self
    }

    /// Judge the times by this clock.
    fn at(mut self, now_seconds: i64) -> Self {
        self.now_seconds = Some(now_seconds);
        self
    }

    /// The journal lies on this device.
    fn with_journal(mut self, device: Image) -> Self {
        self.external_journal = Some(device);
        self.not_by_e2fsck = Some("it finds journals among the devices of the machine only");
        self
    }

    /// Some blocks cannot be read.
    fn unreadable(
        mut self,
        find: impl Fn(&Volume<'_>) -> Vec<BlockNr> + Send + Sync + 'static,
    ) -> Self {
        self.unreadable = Some(Box::new(find));
        self.not_by_e2fsck = Some("files can be read");
        self
    }

    /// e2fsck, too, must find each problem that is expected; and nothing expected means no damage.
    fn same_codes(mut self) -> Self {
        self.same_codes = true;
        self
    }

    /// What is wrong with this case; empty if it does what it says.
    fn run(&self) -> Vec<String> {
        let name = self.recipe.name();
        let image = match self.recipe.build() {
            Ok(image) => image,
            Err(error) => return vec![format!("{name}: cannot be built: {error:#}")],
        };
        let blocks = match &self.unreadable {
            Some(find) => find(&Volume::open(&image).expect("the image is whole")),
            None => Vec::new(),
        };
        let block_bytes = u32::try_from(self.recipe.profile().block_size()).expect("small");
        let judge = |threads| {
            let faults = blocks.iter().map(|&block| (block, Fault::Unreadable));
            let device = Faulty::new(&image, block_bytes, faults);
            let mut options = CheckOptions { threads, journal: self.journal, ..Default::default() };
            options.now_seconds = self.now_seconds.unwrap_or(options.now_seconds);
            options.external_journal = self.external_journal.as_ref().map(|device| device as _);
            match check(&device, &options) {
                Ok(report) => report.found,
                Err(CheckError::Fatal { problem }) => vec![problem],
                Err(CheckError::NoSuperblock { problems, .. }) => problems,
                Err(error) => panic!("{name}: {error}"),
            }
        };
        let found = judge(1);
        let mut faults = Vec::new();
        if found != judge(3) {
            faults.push(format!("{name}: 3 workers find something else than 1"));
        }
        let ids: BTreeSet<_> = found.iter().map(|problem| problem.row().id).collect();
        for id in self.recipe.expected() {
            if !ids.contains(id) {
                faults.push(format!("{name}: {id} is not in {ids:?}"));
            }
        }
        if self.not_by_e2fsck.is_some() {
            return faults;
        }
        let verdict = oracle::e2fsck(&image).expect("e2fsck runs");
        let ours = found.iter().any(is_damage);
        if self.same_codes {
            faults.extend(self.other_codes(&verdict.codes()));
            if ours && self.recipe.expected().is_empty() {
                faults.push(format!("{name}: a false alarm: {ids:?}"));
            }
        }
        if std::env::var_os("FLOE_SHOW_CODES").is_some() {
            show_codes(name, &found, &verdict);
        }
        if (ours == verdict.clean()) != self.unlike_e2fsck.is_some() {
            faults.push(format!(
                "{name}: damaged for us: {ours} ({ids:?}), for e2fsck: {} ({:x?}), expected to \
                 differ: {:?}",
                !verdict.clean(),
                verdict.codes(),
                self.unlike_e2fsck
            ));
        }
        faults
    }
}

/// Prints in which problems we and e2fsck differ.
fn show_codes(name: &str, found: &[Problem], verdict: &oracle::Verdict) {
    let theirs: BTreeSet<_> = verdict
        .codes()
        .into_iter()
        .map(|code| match ROWS.iter().find(|row| row.code == code) {
            Some(row) => row.id.to_owned(),
            None => format!("{code:#08x}"),
        })
        .collect();
    let ours: BTreeSet<_> = found.iter().map(|problem| problem.row().id.to_owned()).collect();
    let (more, less): (Vec<_>, Vec<_>) =
        (ours.difference(&theirs).collect(), theirs.difference(&ours).collect());
    eprintln!("SHOW {name}: only ours {more:?}, only e2fsck's {less:?}");
}

fn is_damage(problem: &Problem) -> bool {
    problem.row().weight > floe_check::problem::Weight::Remark
}

fn cases() -> Vec<Case> {
    [
        attributes::cases(),
        bad_blocks::cases(),
        bitmaps::cases(),
        block_maps::cases(),
        connectivity::cases(),
        directories::cases(),
        extents::cases(),
        external::cases(),
        groups::cases(),
        htrees::cases(),
        index_roots::cases(),
        inodes::cases(),
        journals::cases(),
        orphans::cases(),
        quotas::cases(),
        shared_blocks::cases(),
        superblocks::cases(),
        unreadable::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[test]
fn every_recipe_raises_its_problems() {
    if let Err(reason) = tool::available() {
        eprintln!("skipped: {reason}");
        return;
    }
    let cases = cases();
    // To look at one case: a part of its name.
    let wanted = std::env::var("FLOE_CASE").ok();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut faults = Vec::new();
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            if wanted.as_ref().is_none_or(|part| case.recipe.name().contains(part)) {
                faults.extend(case.run());
            }
        }
        faults
    };
    let faults: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no case panics")).collect()
    });
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn every_problem_has_an_image() {
    let with: BTreeSet<_> =
        cases().iter().flat_map(|case| case.recipe.expected().to_vec()).collect();
    let listed = include_str!("../../../../docs/problems-without-recipe.tsv");
    let without: BTreeSet<_> = listed
        .lines()
        .filter_map(|line| line.split('\t').next())
        .filter(|id| *id != "id")
        .collect();
    let missing: Vec<_> = ROWS
        .iter()
        .map(|row: &Row| row.id)
        .filter(|id| !with.contains(id) && !without.contains(id))
        .collect();
    assert!(missing.is_empty(), "{} problems have no recipe: {missing:?}", missing.len());
    let both: Vec<_> = with.intersection(&without).collect();
    assert!(both.is_empty(), "listed as without a recipe, but have one: {both:?}");
}
