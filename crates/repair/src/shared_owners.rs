//! Identifies the owner of shared blocks whose claims are wrong, if the evidence does.

use std::collections::{BTreeMap, BTreeSet};

use floe_check::{Problem, Report};
use floe_format::InodeNr;

/// Policy for blocks that several inodes claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedBlocks {
    /// Gives every owner its own copy. Nothing is deleted, and one of the owners has foreign data.
    #[default]
    Clone,
    /// Deletes an owner that has other damage too, if none of those it shares blocks with has any;
    /// else as `Clone`.
    DropCulprit,
    /// Asks the policy for each group of owners.
    Ask,
}

/// One of several inodes that claim the same blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its number.
    pub inode: InodeNr,
    /// Its blocks that something else claims too.
    pub shared_blocks: u64,
    /// Whether some of these hold metadata of the file system.
    pub with_metadata: bool,
    /// Ids of findings that cast doubt on its claims, in alphabetical order.
    pub doubts: Vec<&'static str>,
    /// Whether the evidence convicts it: its claims are in doubt, and those of the inodes that it
    /// shares blocks with are not.
    pub culprit: bool,
}

/// Inodes that share blocks with each other, directly or through others, by inode number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedGroup {
    /// At least one: blocks may be shared with metadata, or be claimed twice by one file.
    pub owners: Vec<Owner>,
}

impl SharedGroup {
    /// The owners that the evidence convicts.
    pub fn culprits(&self) -> impl Iterator<Item = &Owner> {
        self.owners.iter().filter(|owner| owner.culprit)
    }
}

/// Findings about inodes and their maps, from all examinations of a repair. They are repaired
/// before shared blocks are judged, but still count as evidence.
#[derive(Clone, Debug, Default)]
pub(crate) struct Doubts(BTreeMap<InodeNr, BTreeSet<&'static str>>);

impl Doubts {
    /// Adds the findings of a report.
    pub(crate) fn note(&mut self, report: &Report) {
        for problem in report.found.iter().filter(|problem| casts_doubt(problem)) {
            if let Some(inode) = problem.inode() {
                self.0.entry(inode).or_default().insert(problem.row().id);
            }
        }
    }

    /// Inodes that share blocks and have damaged maps or checksums, while no other owner does, so
    /// that their claims are not trusted.
    pub(crate) fn culprits(&self, report: &Report) -> BTreeSet<InodeNr> {
        let mut sharers: BTreeMap<InodeNr, bool> = BTreeMap::new();
        for problem in &report.found {
            if let Problem::MultiplyClaimedSharer { inode, sharer } = problem {
                *sharers.entry(*inode).or_insert(true) &= !self.0.contains_key(sharer);
            }
        }
        let convicted = |(inode, others_sound): (InodeNr, bool)| {
            let may_go = !report.geometry.is_reserved(inode) && inode != InodeNr::ROOT;
            (others_sound && may_go && self.0.contains_key(&inode)).then_some(inode)
        };
        sharers.into_iter().filter_map(convicted).collect()
    }

    /// Explains to the user why an inode that shares blocks is deleted: there is no free space for
    /// copies, or its claims are in doubt.
    pub(crate) fn why_it_goes(&self, inode: InodeNr, no_room: bool) -> String {
        let doubts: Vec<&str> = self.0.get(&inode).into_iter().flatten().copied().collect();
        let why = match (no_room, doubts.is_empty()) {
            (true, true) => "no other evidence exists, and it shares the most blocks",
            (true, false) => "its claims are in doubt",
            (false, _) => "its claims are in doubt and those of the others are not",
        };
        let found = if doubts.is_empty() {
            String::new()
        } else {
            format!(" (findings: {})", doubts.join(", "))
        };
        let room =
            if no_room { "there is no free space to give every owner its own copy; " } else { "" };
        format!("{inode} shares blocks with others: {room}{why}{found}")
    }

    /// The groups of inodes that share blocks, ordered by their smallest inode.
    pub(crate) fn groups(&self, report: &Report) -> Vec<SharedGroup> {
        let culprits = self.culprits(report);
        let mut owners: BTreeMap<InodeNr, Owner> = BTreeMap::new();
        let mut neighbours: BTreeMap<InodeNr, BTreeSet<InodeNr>> = BTreeMap::new();
        for problem in &report.found {
            match *problem {
                Problem::MultiplyClaimedFile { inode, shared_blocks, .. } => {
                    let of_inode = |ids: &BTreeSet<&'static str>| ids.iter().copied().collect();
                    let owner = Owner {
                        inode,
                        shared_blocks,
                        with_metadata: false,
                        doubts: self.0.get(&inode).map(of_inode).unwrap_or_default(),
                        culprit: culprits.contains(&inode),
                    };
                    owners.insert(inode, owner);
                }
                Problem::MultiplyClaimedSharer { inode, sharer } => {
                    neighbours.entry(inode).or_default().insert(sharer);
                    neighbours.entry(sharer).or_default().insert(inode);
                }
                _ => {}
            }
        }
        for problem in &report.found {
            if let Problem::MultiplyClaimedWithMetadata { inode } = problem
                && let Some(owner) = owners.get_mut(inode)
            {
                owner.with_metadata = true;
            }
        }
        let mut groups = Vec::new();
        while let Some((first, owner)) = owners.pop_first() {
            let mut group = vec![owner];
            let mut to_visit = vec![first];
            while let Some(inode) = to_visit.pop() {
                for other in neighbours.get(&inode).into_iter().flatten() {
                    if let Some(owner) = owners.remove(other) {
                        group.push(owner);
                        to_visit.push(*other);
                    }
                }
            }
            group.sort_by_key(|owner| owner.inode);
            groups.push(SharedGroup { owners: group });
        }
        groups
    }
}

/// Whether a finding says that an inode or its map holds garbage.
fn casts_doubt(problem: &Problem) -> bool {
    matches!(
        problem,
        Problem::InodeChecksumBad { .. }
            | Problem::ExtentBlockChecksumBad { .. }
            | Problem::ExtentStartOutOfRange { .. }
            | Problem::ExtentEndOutOfRange { .. }
            | Problem::ExtentNodeHeaderCorrupt { .. }
            | Problem::ExtentsOutOfOrder { .. }
            | Problem::ExtentOverlapsPrevious { .. }
            | Problem::BlockMapBlockOutOfRange { .. }
            | Problem::BlockMapTooManyBadBlocks { .. }
            | Problem::InodeModeIllegal { .. }
            | Problem::InodeBlockGarbage { .. }
    )
}
