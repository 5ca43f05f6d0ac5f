//! Partial examinations in the middle of a repair, whose findings lead to the next edits. Most
//! rounds edit a few inodes, so only those and their neighbours are read again
//! (`floe_check::rescan` verifies that nothing else can have changed). The final examination, after
//! which nothing is left to do, is always a full one. Once an examination intended as final has
//! found more to do, all later ones are full.

use std::collections::BTreeSet;

use floe_blockdev::{Overlay, ReadBlocks};
use floe_check::Examination;
use floe_check::rescan::{Before, Earlier, Since};
use floe_format::InodeNr;

use crate::edit::{Edit, TreeEdit};

/// State for the next examination.
#[derive(Default)]
pub(super) struct PartialExaminations {
    /// See [`crate::RepairOptions::rescan_percent`].
    most_percent: u32,
    /// The inodes to be edited, as they were before.
    before: Option<Before>,
    /// Evidence kept from the last examination.
    earlier: Option<Box<Earlier>>,
    /// An examination was or will be the final one.
    proving: bool,
    /// Inode table chunks that each partial examination read.
    pub(super) rescans: Vec<u32>,
}

impl PartialExaminations {
    pub(super) fn new(most_percent: u32) -> Self {
        Self { most_percent, ..Self::default() }
    }

    /// Records the scope of an examination.
    pub(super) fn note(&mut self, examination: &Examination<'_>) {
        self.rescans.extend(examination.rescanned_parts);
    }

    /// Makes all later examinations full ones.
    pub(super) fn prove(&mut self) {
        self.proving = true;
    }

    /// Records the inodes that `edits` will change, and tracks staged writes from now on.
    pub(super) fn look<'e>(
        &mut self,
        staged: &Overlay<&dyn ReadBlocks>,
        examination: &Examination<'_>,
        edits: impl IntoIterator<Item = &'e Edit>,
        threads: usize,
    ) {
        self.before = None;
        let blocks_are_pages =
            staged.page_bytes() == u64::from(examination.volume.geometry.block_size);
        if self.proving || self.most_percent == 0 || !blocks_are_pages {
            return;
        }
        let lost_found = examination.entries.lost_found.map(|entry| entry.inode);
        let mut inodes = BTreeSet::new();
        for edit in edits {
            match changed_by(edit) {
                Changed::Inodes(of_edit) => inodes.extend(of_edit.into_iter().flatten()),
                Changed::InodeAndLostFound(inode) => {
                    inodes.extend(lost_found.into_iter().chain([inode]))
                }
                Changed::Anything => return,
            }
        }
        self.before = Before::look(examination, &inodes, self.most_percent, threads);
        if self.before.is_some() {
            staged.watch();
        }
    }

    /// Keeps the evidence that the next examination can reuse, and drops the rest.
    pub(super) fn keep(&mut self, examination: Examination<'_>) {
        let before = self.before.take();
        self.earlier = before.and_then(|before| Earlier::new(examination, before));
    }

    /// The evidence kept from the last examination and the pages staged since. To be called after
    /// the last staged write of the round.
    pub(super) fn since(&mut self, staged: &Overlay<&dyn ReadBlocks>) -> Option<Since> {
        let (earlier, changed) = (self.earlier.take(), staged.take_changed());
        earlier.zip(changed).map(|(earlier, changed)| Since { earlier, changed })
    }
}

/// The part of inodes, maps and data that an edit changes. Only a hint where to look: the staged
/// pages tell what actually changed.
enum Changed {
    Inodes([Option<InodeNr>; 1]),
    InodeAndLostFound(InodeNr),
    Anything,
}

fn changed_by(edit: &Edit) -> Changed {
    let of = |inode: InodeNr| Changed::Inodes([Some(inode)]);
    match edit {
        Edit::Inode { inode, .. }
        | Edit::Map { inode, .. }
        | Edit::CloneShared { inode }
        | Edit::RebuildExtents { inode }
        | Edit::Release { inode }
        | Edit::LinkCount { inode, .. } => of(*inode),
        Edit::Directory { dir, .. }
        | Edit::Entry { dir, .. }
        | Edit::RebuildDirectory { dir }
        | Edit::Tree(TreeEdit::Unlink { dir, .. } | TreeEdit::Parent { dir, .. }) => of(*dir),
        Edit::Attach { inode } | Edit::Tree(TreeEdit::Reconnect(inode)) => {
            Changed::InodeAndLostFound(*inode)
        }
        // Attribute blocks and bitmaps are re-read completely each time.
        Edit::AttributeBlock { .. } | Edit::GroupMaps { .. } | Edit::Totals => {
            Changed::Inodes([None])
        }
        Edit::Superblock(_)
        | Edit::Group { .. }
        | Edit::Journal(_)
        | Edit::CleanMmp
        | Edit::Orphans(_)
        | Edit::RecreateResizeInode
        | Edit::BadBlocks { .. }
        | Edit::NotBad { .. }
        | Edit::Tree(
            TreeEdit::CreateRoot | TreeEdit::CreateLostFound | TreeEdit::UnlinkLostFound,
        )
        | Edit::QuotaFile { .. }
        | Edit::Backpointers
        | Edit::OwnDirectories
        | Edit::Reservation { .. }
        | Edit::Cube { .. }
        | Edit::MoveInode { .. }
        | Edit::MoveHome { .. }
        | Edit::OrphanFile(_)
        | Edit::Backups => Changed::Anything,
    }
}
