//! Fast commits: small records after the last full commit, replayed one by one.
//!
//! The replay follows the meaning of the records rather than one implementation: e2fsck 1.47 leaves
//! the inode of a removed name unattached, and fails if a directory must grow; the kernel miscounts
//! links and blocks of directories. Here removed files are freed, directories grow, and counts are
//! updated. A file that was inline gets its blocks, of which the kernel (6.18) loses all; one without
//! extents, which stops the kernel, gets them, too.

mod ahead;
mod changing;
mod directory;
mod inline;
mod inodes;
mod scan;
mod shape;

use std::collections::BTreeSet;
use std::ops::Range;

use floe_blockdev::{Overlay, ReadBlocks};
use floe_format::ext::extent::Extent;
use floe_format::ext::fast_commit::{FcDentry, FcRecords, FcTag};
use floe_format::ext::inode::{FileType, InodeFlags, OwnedInode};
use floe_format::{Geometry, InodeNr, LogicalBlock};

use self::changing::{Changing, Impossible};
use self::directory::Directory;
use super::event::{JournalEvent, RecoveryFault};
use crate::map::walk::has_map;

pub(crate) use scan::{FastCommits, scan};

/// Replays fast commits over the overlay; returns the number of tags replayed. Like the kernel, it
/// goes on behind a record that cannot be replayed, but leaves ranges and fields of its inode as
/// they are. `opened` is the geometry with which the file system was opened.
pub(crate) fn replay<D: ReadBlocks>(
    overlay: &Overlay<D>,
    opened: &Geometry,
    commits: &FastCommits,
    events: &mut Vec<JournalEvent>,
) -> u64 {
    if commits.tags == 0 {
        return 0;
    }
    let mut fail = |inode| {
        let fault = RecoveryFault::FastCommitImpossible { inode };
        events.push(JournalEvent::RecoveryFailed(fault));
    };
    let Ok(mut on) = Changing::open(overlay, opened) else {
        fail(InodeNr(0));
        return 0;
    };
    let inode_size = on.geometry().inode_size;
    let records = commits.blocks.iter().flat_map(|block| FcRecords::new(block, inode_size));
    let count = usize::try_from(commits.tags).unwrap_or(usize::MAX);
    let tags: Vec<FcTag<'_>> = records.map(|record| record.tag).take(count).collect();
    // Blocks that later records claim must not be allocated before.
    on.fs.space.withhold(tags.iter().filter_map(|tag| match tag {
        FcTag::AddRange { extent, .. } => Some(extent.run),
        _ => None,
    }));
    let mut replayer = Replayer {
        on,
        open: None,
        touched: BTreeSet::new(),
        recount: BTreeSet::new(),
        failed: BTreeSet::new(),
    };
    let mut done = 0;
    for (tag, flags) in tags.iter().zip(ahead::flags(&tags)) {
        let inode = inode_of(tag);
        let is_name = matches!(tag, FcTag::Creat(_) | FcTag::Link(_) | FcTag::Unlink(_));
        if !is_name && replayer.failed.contains(&inode) {
            continue;
        }
        if replayer.apply(tag, flags).is_ok() {
            done += 1;
            continue;
        }
        if replayer.failed.insert(inode) {
            fail(inode);
        }
    }
    if replayer.finish().is_err() {
        fail(InodeNr(0));
    }
    done
}

fn inode_of(tag: &FcTag<'_>) -> InodeNr {
    match tag {
        FcTag::AddRange { inode, .. }
        | FcTag::DelRange { inode, .. }
        | FcTag::Inode { inode, .. } => *inode,
        FcTag::Creat(dentry) | FcTag::Link(dentry) | FcTag::Unlink(dentry) => dentry.inode,
        FcTag::Pad | FcTag::Tail { .. } | FcTag::Head { .. } => InodeNr(0),
    }
}

struct Replayer<'a, D> {
    on: Changing<'a, D>,
    /// The inode whose ranges are being changed; it is written before another one is opened.
    open: Option<OwnedInode>,
    touched: BTreeSet<InodeNr>,
    /// Directories that gained or lost a subdirectory. The INODE record has the link count at the
    /// end of its fast commit, even if name records follow it, so these are counted again at the
    /// end.
    recount: BTreeSet<InodeNr>,
    /// Inodes with a record that could not be replayed.
    failed: BTreeSet<InodeNr>,
}

impl<D: ReadBlocks> Replayer<'_, D> {
    /// `flags`: those that the inode of a range is about to have, if a record says so.
    fn apply(&mut self, tag: &FcTag<'_>, flags: Option<InodeFlags>) -> Result<(), Impossible> {
        match tag {
            FcTag::AddRange { inode, extent } => {
                if !self.on.is_inside(extent.run) || extent.run.len_blocks == 0 {
                    return Err(Impossible);
                }
                self.open(*inode, flags)?;
                let (start, end) = (extent.logical.0, extent.logical.0 + extent.run.len_blocks);
                self.change_range(start..end, Some(*extent))
            }
            FcTag::DelRange { inode, start: LogicalBlock(start), len_blocks } => {
                self.open(*inode, flags)?;
                self.change_range(*start..start + u64::from(*len_blocks), None)
            }
            FcTag::Inode { inode, raw } => {
                self.close()?;
                self.touched.insert(*inode);
                inodes::take_over(&mut self.on, *inode, raw)
            }
            FcTag::Creat(dentry) => self.create(dentry),
            FcTag::Link(dentry) => self.link(dentry),
            FcTag::Unlink(dentry) => self.unlink(dentry),
            FcTag::Pad | FcTag::Tail { .. } | FcTag::Head { .. } => Ok(()),
        }
    }

    /// Opens an inode for changes of its ranges.
    fn open(&mut self, inode: InodeNr, flags: Option<InodeFlags>) -> Result<(), Impossible> {
        if self.open.as_ref().is_none_or(|open| open.number != inode) {
            self.close()?;
            self.touched.insert(inode);
            let mut image = self.on.inode(inode)?;
            if let Some(flags) = flags {
                shape::adapt(&mut self.on, &mut image, flags)?;
            }
            if image.file_type().is_none() || !has_map(&image.base) {
                return Err(Impossible);
            }
            self.on.map_of(&image)?;
            self.open = Some(image);
        }
        Ok(())
    }

    /// Changes ranges of the open inode.
    fn change_range(
        &mut self,
        range: Range<u64>,
        extent: Option<Extent>,
    ) -> Result<(), Impossible> {
        // A change that fails in its middle is not written.
        let Some(mut image) = self.open.take() else { return Err(Impossible) };
        for run in self.on.remove(&mut image, range)? {
            self.on.mark(run, false)?;
        }
        if let Some(extent) = extent {
            self.on.mark(extent.run, true)?;
            self.on.insert(&mut image, extent)?;
        }
        if self.on.geometry().cluster_bits > 0 {
            // A cluster that was just freed may contain other blocks of the file.
            for run in self.on.map_of(&image)?.all_runs() {
                self.on.mark(run, true)?;
            }
        }
        self.open = Some(image);
        Ok(())
    }

    /// Writes the inode whose ranges were changed.
    fn close(&mut self) -> Result<(), Impossible> {
        let Some(mut image) = self.open.take() else { return Ok(()) };
        let map = self.on.map_of(&image)?;
        inodes::recount(&self.on, &mut image, &map);
        self.on.put_inode(&mut image)
    }

    fn create(&mut self, dentry: &FcDentry<'_>) -> Result<(), Impossible> {
        self.close()?;
        let kind = self.kind_of(dentry.inode)?;
        if kind == FileType::Directory {
            Directory::open(&mut self.on, dentry.inode)?.start(&mut self.on, dentry.parent)?;
        }
        self.add_name(dentry, kind)?;
        if kind == FileType::Directory {
            self.recount.extend([dentry.parent, dentry.inode]);
        }
        Ok(())
    }

    fn link(&mut self, dentry: &FcDentry<'_>) -> Result<(), Impossible> {
        self.close()?;
        let kind = self.kind_of(dentry.inode)?;
        if self.add_name(dentry, kind)? {
            inodes::link(&mut self.on, dentry.inode, true)?;
        }
        Ok(())
    }

    fn unlink(&mut self, dentry: &FcDentry<'_>) -> Result<(), Impossible> {
        self.close()?;
        self.touched.insert(dentry.parent);
        let mut directory = Directory::open(&mut self.on, dentry.parent)?;
        if !directory.remove(&mut self.on, dentry.name, dentry.inode)? {
            return Ok(());
        }
        // If an INODE record already freed the inode, there is nothing to update.
        if !self.on.is_used(dentry.inode)? {
            return Ok(());
        }
        if self.kind_of(dentry.inode)? == FileType::Directory {
            self.recount.insert(dentry.parent);
            return inodes::free(&mut self.on, dentry.inode);
        }
        match inodes::link(&mut self.on, dentry.inode, false)? {
            0 => inodes::free(&mut self.on, dentry.inode),
            _ => Ok(()),
        }
    }

    fn add_name(&mut self, dentry: &FcDentry<'_>, kind: FileType) -> Result<bool, Impossible> {
        self.touched.insert(dentry.parent);
        let mut directory = Directory::open(&mut self.on, dentry.parent)?;
        let entry_type = inodes::entry_type(&self.on, kind);
        directory.add(&mut self.on, dentry.name, dentry.inode, entry_type)
    }

    fn kind_of(&mut self, inode: InodeNr) -> Result<FileType, Impossible> {
        self.on.inode(inode)?.file_type().ok_or(Impossible)
    }

    /// Stages all changes, also if the last of them was impossible.
    fn finish(mut self) -> Result<(), Impossible> {
        let closed = self.close();
        let settled = self.settle();
        self.on.finish()?;
        closed.and(settled)
    }

    /// Recounts the links of directories, and marks the blocks of all changed inodes as used again,
    /// because one inode may have freed a block that another one now uses.
    fn settle(&mut self) -> Result<(), Impossible> {
        for inode in std::mem::take(&mut self.recount) {
            if self.on.is_used(inode)? {
                let subdirectories =
                    Directory::open(&mut self.on, inode)?.subdirectories(&mut self.on)?;
                inodes::set_dir_links(&mut self.on, inode, subdirectories)?;
            }
        }
        for inode in std::mem::take(&mut self.touched) {
            if !self.on.is_used(inode)? {
                continue;
            }
            let image = self.on.inode(inode)?;
            for run in self.on.map_of(&image)?.all_runs() {
                self.on.mark(run, true)?;
            }
        }
        Ok(())
    }
}
