//! Copies that are made ahead of everything else. A block of a file that lies in the place of metadata is lost once a repair writes
//! that metadata: superblock, descriptors and inode tables come before the phase of shared blocks. e2fsck writes them last.

use std::collections::BTreeSet;

use floe_check::{Examination, Problem};
use floe_format::InodeNr;

use super::Session;
use super::in_place::InPlace;
use crate::edit::{Edit, GroupEdit, InodeEdit, Phase, SuperblockEdit};
use crate::plan::Wanted;
use crate::stage;

/// Edits that were made ahead of others.
#[derive(Default)]
pub(super) struct Ahead {
    /// Each is tried once. One that did not work is tried again in its phase.
    tried: BTreeSet<Edit>,
    /// This round makes nothing else.
    pub(super) is_now: bool,
}

impl Session<'_> {
    /// Leaves only the copies of files that lie in the place of metadata, and repairs of their maps before that, if something that
    /// comes before the copies may write there.
    pub(super) fn copies_ahead(
        &mut self,
        examination: &Examination<'_>,
        mut wanted: Wanted,
    ) -> Wanted {
        self.attempts.ahead.is_now = false;
        let may_write = wanted.keys().any(|edit| edit.phase() < Phase::SharedBlocks);
        if !may_write || wanted.keys().any(moves_metadata) {
            return wanted;
        }
        let mut in_the_way = on_metadata(examination);
        let of_files = InPlace::of(examination, &in_the_way);
        // An inode that lies in the place of a file's block waits until that block is copied.
        in_the_way.retain(|inode| {
            wanted.contains_key(&Edit::CloneShared { inode: *inode }) && !of_files.holds(*inode)
        });
        let is_of = |edit: &Edit, inodes: &BTreeSet<InodeNr>| {
            edit.inode().is_some_and(|inode| inodes.contains(&inode))
        };
        let unsettled: BTreeSet<InodeNr> = wanted
            .keys()
            .filter(|edit| !keeps_map(edit) && is_of(edit, &in_the_way))
            .filter_map(Edit::inode)
            .collect();
        let tried = &self.attempts.ahead.tried;
        let is_new = |edit: &&Edit| is_of(edit, &in_the_way) && !tried.contains(*edit);
        let copies = |edit: &&Edit| matches!(edit, Edit::CloneShared { inode } if !unsettled.contains(inode));
        let settles =
            |edit: &&Edit| edit.phase() == Phase::Inodes && !keeps_map(edit) && !deletes(edit);
        let mut first: BTreeSet<Edit> =
            wanted.keys().filter(is_new).filter(copies).cloned().collect();
        if first.is_empty() {
            first = wanted.keys().filter(is_new).filter(settles).cloned().collect();
        }
        if !first.is_empty() {
            wanted.retain(|edit, _| first.contains(edit));
            self.attempts.ahead.is_now = true;
            self.attempts.ahead.tried.extend(first);
        }
        wanted
    }
}

/// The files with a block in the place of metadata. The journal and other system files are judged, and made anew, elsewhere.
pub(super) fn on_metadata(examination: &Examination<'_>) -> BTreeSet<InodeNr> {
    let (volume, geometry) = (&examination.volume, &examination.report.geometry);
    let is_file = |inode: &InodeNr| *inode == InodeNr::ROOT || !geometry.is_reserved(*inode);
    let lies_there = |problem: &Problem| {
        let (first, behind) = stage::clusters_of(problem, geometry)?;
        let is_clear = volume.metadata.is_clear_in(first, behind - first);
        problem.inode().filter(is_file).filter(|_| !is_clear)
    };
    examination.report.found.iter().filter_map(lies_there).collect()
}

/// Whether metadata may turn out to lie elsewhere, so that the files are not in their way.
const fn moves_metadata(edit: &Edit) -> bool {
    matches!(
        edit,
        Edit::Superblock(
            SuperblockEdit::FirstMetaBg(_)
                | SuperblockEdit::DropMetaBg
                | SuperblockEdit::Revision1
                | SuperblockEdit::NoReservedDescriptors
                | SuperblockEdit::DropResizeInodeFeature
        ) | Edit::Group { edit: GroupEdit::InodeTableFromBackup, .. }
    )
}

/// Whether an edit leaves the map of its inode as it is, so that the map can be copied before that.
const fn keeps_map(edit: &Edit) -> bool {
    match edit {
        Edit::Map { edit, .. } => edit.keeps_entries(),
        Edit::Inode { edit: InodeEdit::Size(_), .. } => true,
        Edit::Inode { .. } => edit.is_quiet(),
        _ => true,
    }
}

/// Whether an edit deletes its inode, which another one may make needless.
const fn deletes(edit: &Edit) -> bool {
    matches!(
        edit,
        Edit::Inode { edit: InodeEdit::Clear | InodeEdit::Zero | InodeEdit::ZeroBase, .. }
    )
}
