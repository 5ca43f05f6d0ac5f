//! Accounts of repairs: everything that a repair did or would do as one value, in several formats.
//!
//! Only [`Cost`] depends on the number of threads.

use std::collections::{BTreeMap, BTreeSet};

use floe_blockdev::ReadBlocks;
use floe_check::problem::{Object, Weight};
use floe_check::reader::{Reader, paths};
use floe_check::report::{Cost, display_path};
use floe_check::{Problem, Report};
use floe_format::InodeNr;
use floe_repair::describe::Tense;
use floe_repair::edit::Edit;
use floe_repair::plan::{Plan, plan};
use floe_repair::{Deed, Fate, Reason, Repair};

use crate::place::Place;
use crate::rank::Rank;

pub mod html;
pub mod human;
pub mod json;

/// Maximum directory blocks read to find former paths.
const PATH_BLOCKS: u64 = 1 << 20;

/// The fate of the staged blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// They were shown and discarded.
    DryRun,
    /// They were saved in a plan file, to be written later.
    Planned {
        /// The plan file, as the user named it.
        file: String,
    },
    /// They were written to the device.
    Written {
        /// The undo file as the user named it, and its size in bytes; `None` without one, or if no
        /// byte differed.
        undo: Option<(String, u64)>,
        /// Device offsets of blocks whose old content could not be read, and therefore not be
        /// saved.
        not_saved: Vec<u64>,
        /// All bytes that were written to the device.
        bytes: u64,
    },
}

impl Ending {
    /// The tense for describing the changes.
    pub const fn tense(&self) -> Tense {
        match self {
            Self::DryRun | Self::Planned { .. } => Tense::Would,
            Self::Written { .. } => Tense::Done,
        }
    }
}

/// Result of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There was nothing to repair.
    Clean,
    /// Everything was repaired.
    Repaired,
    /// Some damage is left.
    Left,
    /// The repair halted at a finding that needs a person, and changed nothing.
    Halted,
}

impl Verdict {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Repaired => "repaired",
            Self::Left => "damaged",
            Self::Halted => "halted",
        }
    }
}

/// A repair with all data for its report.
pub struct Account<'r> {
    /// The repair.
    pub repair: &'r Repair<'r>,
    /// The device, as the user named it.
    pub device: String,
    /// The fate of its staged blocks.
    pub ending: Ending,
    /// Commands, quoted for a shell, that undo the commit or apply the plan; provided by the
    /// caller, who knows the program's options.
    pub commands: Vec<String>,
    /// Bytes that differ from the device before the repair.
    pub changed_bytes: u64,
    /// Paths of inodes before the repair, as bytes.
    pub former_paths: BTreeMap<InodeNr, Vec<u8>>,
    /// For each inode, the path from the first change that has one.
    deed_paths: BTreeMap<InodeNr, &'r [u8]>,
    /// Its cost.
    pub cost: Cost,
}

impl<'r> Account<'r> {
    /// Builds the account of a repair. `device` must still be unmodified, because former paths are
    /// read from it and changed bytes are counted against it.
    pub fn new(
        repair: &'r Repair<'r>,
        device: &dyn ReadBlocks,
        name: String,
        ending: Ending,
    ) -> Self {
        Self {
            repair,
            device: name,
            changed_bytes: changed_bytes(repair, device),
            former_paths: former_paths(repair, device),
            deed_paths: deed_paths(repair),
            ending,
            commands: Vec::new(),
            cost: Cost::default(),
        }
    }

    /// The result of the repair.
    pub fn verdict(&self) -> Verdict {
        if self.repair.halted.is_some() {
            Verdict::Halted
        } else if !self.repair.is_clean() || !self.repair.left.is_empty() {
            Verdict::Left
        } else if self.repair.repaired() {
            Verdict::Repaired
        } else {
            Verdict::Clean
        }
    }

    /// The path that an inode had, or else has now, escaped for printing.
    pub fn path(&self, inode: InodeNr) -> Option<String> {
        let Repair { before, after, .. } = self.repair;
        let path = self
            .former_paths
            .get(&inode)
            .or_else(|| before.paths.get(&inode))
            .map(Vec::as_slice)
            .or_else(|| self.deed_paths.get(&inode).copied())
            .or_else(|| after.paths.get(&inode).map(Vec::as_slice))?;
        Some(display_path(path))
    }

    /// The changes in the order in which they were made, each with the findings that required it.
    pub fn changes(&self) -> Vec<Change<'r>> {
        let mut asked: BTreeMap<&Edit, Vec<&Problem>> =
            self.repair.deeds.iter().map(|deed| (&deed.edit, Vec::new())).collect();
        for problem in &self.repair.before.found {
            let Plan::Edits(edits) = plan(problem) else { continue };
            for edit in &edits {
                if let Some(causes) = asked.get_mut(edit) {
                    causes.push(problem);
                }
            }
        }
        let first: BTreeSet<&Problem> = self.repair.before.found.iter().collect();
        let of = |deed: &'r Deed| {
            // If an edit was made twice, only the findings of the first examination count. Later
            // findings of the same kind (with another count) describe a half-repaired file system
            // and would contradict them.
            let mut causes = asked.remove(&deed.edit).unwrap_or_default();
            let code = |problem: &Problem| problem.row().code;
            let is_new =
                |problem: &&Problem| causes.iter().all(|cause| code(cause) != code(problem));
            let own = deed.problem.iter().find(is_new);
            causes.extend(own);
            let is_later = !causes.is_empty() && !causes.iter().any(|cause| first.contains(cause));
            Change { deed, causes, is_later }
        };
        self.repair.deeds.iter().map(of).collect()
    }

    /// Damage from the first examination that no change names, yet is resolved.
    pub(crate) fn gone_with_the_rest(&self) -> Vec<&'r Problem> {
        let changes = self.changes();
        let named: BTreeSet<&Problem> =
            changes.iter().flat_map(|change| change.causes.iter().copied()).collect();
        let left: BTreeSet<&Problem> =
            self.repair.left.iter().map(|(problem, _)| problem).collect();
        let gone = |problem: &&Problem| {
            problem.row().weight > Weight::Remark
                && !named.contains(problem)
                && !left.contains(problem)
        };
        self.repair.before.found.iter().filter(gone).collect()
    }

    /// Losses that the user would notice: each object once, worst first, then by inode.
    pub fn losses(&self) -> Vec<Lost> {
        let deeds = self.repair.deeds.iter();
        let mut lost: Vec<Lost> = deeds.filter_map(|deed| self.lost(deed)).collect();
        lost.sort();
        lost.dedup();
        lost
    }

    fn lost(&self, deed: &Deed) -> Option<Lost> {
        let fate = deed.fate()?;
        let inode = deed.inode();
        let path = inode.and_then(|inode| self.path(inode));
        let entry = deed.entry_name();
        // An inode without a path was in some directory, and its `..` may still name it.
        let parent = match (&path, fate) {
            (None, Fate::Moved) => deed.parent(),
            _ => None,
        };
        let parent = parent.and_then(|parent| self.path(parent));
        let now = if fate == Fate::Moved { deed.notes.clone() } else { Vec::new() };
        Some(Lost { fate, inode, path, entry, parent, now })
    }

    /// The report of the first examination.
    pub const fn before(&self) -> &'r Report {
        &self.repair.before
    }
}

/// A change and the findings that required it.
pub struct Change<'r> {
    /// The change.
    pub deed: &'r Deed,
    /// The findings, in order.
    pub causes: Vec<&'r Problem>,
    /// The first examination found none of them: they follow from earlier changes, or were hidden by what those mended.
    pub is_later: bool,
}

/// Groups changes by place: places with losses first, worst first, then the others, and bitmaps and
/// counts last.
fn by_place<'a, 'r>(all: &'a [Change<'r>]) -> Vec<(Place, Vec<&'a Change<'r>>)> {
    let mut places: BTreeMap<Place, Vec<&Change<'_>>> = BTreeMap::new();
    for change in all {
        places.entry(place(change.deed)).or_default().push(change);
    }
    let fate = |change: &&Change<'_>| change.deed.fate();
    let standing = |here: &[&Change<'_>]| {
        let worst = here.iter().filter_map(fate).min();
        let causes = here.iter().flat_map(|change| change.causes.iter().copied());
        (worst.is_none(), worst, Rank::of_all(causes))
    };
    let mut places: Vec<_> = places.into_iter().collect();
    // Stable sort: places of equal rank keep their order.
    places.sort_by_key(|(_, here)| standing(here));
    places
}

/// The findings left, in report order.
fn ranked_left<'r>(account: &Account<'r>) -> Vec<&'r (Problem, Reason)> {
    let mut left: Vec<_> = account.repair.left.iter().collect();
    left.sort_by_key(|(problem, _)| Rank::of(problem));
    left
}

/// The place of a change in the report.
fn place(deed: &Deed) -> Place {
    match (&deed.problem, &deed.edit) {
        (Some(problem), _) => Place::of(problem),
        (None, Edit::Group { group, .. } | Edit::GroupMaps { group }) => Place::Group(*group),
        (None, Edit::Journal(_)) => Place::Filesystem(Object::Journal),
        (None, edit) => edit.inode().map_or(Place::Filesystem(Object::Superblock), Place::Inode),
    }
}

/// A loss that the user would notice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lost {
    /// Kind of loss.
    pub fate: Fate,
    /// The inode; for a name, that of the directory.
    pub inode: Option<InodeNr>,
    /// The former path, escaped for printing.
    pub path: Option<String>,
    /// The removed or changed name, escaped for printing.
    pub entry: Option<String>,
    /// The path of the former directory, if the object has no path of its own.
    pub parent: Option<String>,
    /// The current locations, in words.
    pub now: Vec<String>,
}

/// Former paths of all changed inodes, and of the former directories of those without a name.
fn former_paths(repair: &Repair<'_>, device: &dyn ReadBlocks) -> BTreeMap<InodeNr, Vec<u8>> {
    let known = |inode: &InodeNr| repair.before.paths.contains_key(inode);
    let wanted: BTreeSet<InodeNr> = repair
        .deeds
        .iter()
        .flat_map(|deed| deed.inode().into_iter().chain(deed.parent()))
        .filter(|inode| inode.0 != 0 && !known(inode))
        .collect();
    // Orphans have no path; and to look for that of one that is cut would take longer than the rest of such a run.
    if wanted.is_empty() || repair.skipped {
        return BTreeMap::new();
    }
    let block_size = repair.before.geometry.block_size;
    // Without a usable superblock there are no paths, but still an account.
    Reader::open(device, repair.before.used_backup, Some(block_size))
        .map(|reader| paths(&reader, &wanted, PATH_BLOCKS))
        .unwrap_or_default()
}

/// Paths recorded with the changes.
fn deed_paths<'r>(repair: &'r Repair<'_>) -> BTreeMap<InodeNr, &'r [u8]> {
    let mut paths = BTreeMap::new();
    for deed in &repair.deeds {
        if let (Some(inode), Some(path)) = (deed.inode(), &deed.path) {
            paths.entry(inode).or_insert(path.as_slice());
        }
    }
    paths
}

/// Number of staged bytes that differ from the device. Unreadable pages count as different.
fn changed_bytes(repair: &Repair<'_>, device: &dyn ReadBlocks) -> u64 {
    let (mut staged, mut old) = (Vec::new(), Vec::new());
    let page_bytes = repair.staged.page_bytes();
    let mut changed = 0;
    for offset in repair.staged.staged_offsets() {
        // At most a page, whose size came from 32 bits.
        let len = page_bytes.min(device.size_bytes().saturating_sub(offset)) as usize;
        staged.resize(len, 0);
        old.resize(len, 0);
        let read = repair.staged.read_at(offset, &mut staged);
        let same = read.is_ok() && device.read_at(offset, &mut old).is_ok() && staged == old;
        changed += if same { 0 } else { len as u64 };
    }
    changed
}
