//! Examinations in the middle of a repair: those whose findings lead to the next edits. Most rounds edit
//! a few inodes, and only those and their neighbours are read again (`floe_check::rescan`, which makes
//! sure that nothing else could have changed). The proof, the examination after which nothing is left to
//! do, is always a look at everything; and once one that was meant to be the proof found more to do, all
//! others are, too.

use std::collections::BTreeSet;

use floe_blockdev::{Overlay, ReadBlocks};
use floe_check::Examination;
use floe_check::rescan::{Before, Earlier, Since};
use floe_format::InodeNr;

use crate::edit::{Edit, TreeEdit};

/// What is known for the next examination.
#[derive(Default)]
pub(super) struct Again {
    /// See [`crate::RepairOptions::rescan_percent`].
    most_percent: u32,
    /// The inodes that are edited, before that.
    before: Option<Before>,
    /// What was kept of the last examination.
    earlier: Option<Box<Earlier>>,
    /// An examination was or will be the proof.
    proving: bool,
    /// Parts of tables that each short examination read.
    pub(super) rescans: Vec<u32>,
}

impl Again {
    pub(super) fn new(most_percent: u32) -> Self {
        Self { most_percent, ..Self::default() }
    }

    /// Notes how an examination was made.
    pub(super) fn note(&mut self, examination: &Examination<'_>) {
        self.rescans.extend(examination.rescanned_parts);
    }

    /// From now on everything is looked at.
    pub(super) fn prove(&mut self) {
        self.proving = true;
    }

    /// Looks at the inodes that `edits` will change, and watches what is staged from now on.
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

    /// What the next examination can take over from the last one, of which nothing else is kept.
    pub(super) fn keep(&mut self, examination: Examination<'_>) {
        let before = self.before.take();
        self.earlier = before.and_then(|before| Earlier::new(examination, before));
    }

    /// What was kept of the last examination and what was staged since, once nothing more is staged before
    /// the next one.
    pub(super) fn since(&mut self, staged: &Overlay<&dyn ReadBlocks>) -> Option<Since> {
        let (earlier, changed) = (self.earlier.take(), staged.take_changed());
        earlier.zip(changed).map(|(earlier, changed)| Since { earlier, changed })
    }
}

/// What an edit changes of inodes, of their maps and of their data. Only where to look: what is staged
/// tells what was changed.
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
        // Blocks of attributes and bitmaps are read in whole each time.
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
        | Edit::OrphanFile(_)
        | Edit::Backups => Changed::Anything,
    }
}
