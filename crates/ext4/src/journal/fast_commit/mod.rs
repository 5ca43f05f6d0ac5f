//! Fast commits: small records behind the last full commit, replayed one by one.
//!
//! The result is what the records mean, not what one implementation makes of them: e2fsck 1.47
//! leaves the inode of a removed name unattached and fails when a directory must grow; the kernel
//! miscounts links and blocks of directories. Here removed files are freed, directories grow, and
//! counts follow.

mod directory;
mod editor;
mod extents;
mod inodes;
mod scan;

use std::collections::BTreeSet;

use floe_blockdev::{Overlay, ReadBlocks};
use floe_format::ext::extent::Extent;
use floe_format::ext::fast_commit::{FcDentry, FcRecords, FcTag};
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::{Geometry, InodeNr, LogicalBlock};

use self::directory::Directory;
use self::editor::{Editor, Impossible};
use self::extents::ExtentList;
use super::event::{JournalEvent, RecoveryFault};

pub(crate) use scan::{FastCommits, scan};

/// Replays fast commits over the overlay; the number of tags replayed comes back. It stops at the
/// first record that cannot be replayed, as the kernel does; what was done before stays. `opened` is what
/// the file system was opened with.
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
    let Ok(mut editor) = Editor::open(overlay, opened) else {
        fail(InodeNr(0));
        return 0;
    };
    let inode_size = editor.geo.inode_size;
    let tags = || {
        let blocks = commits.blocks.iter();
        let tags = blocks.flat_map(move |block| FcRecords::new(block, inode_size));
        tags.map(|record| record.tag).take(usize::try_from(commits.tags).unwrap_or(usize::MAX))
    };
    editor.reserved = tags()
        .filter_map(|tag| match tag {
            FcTag::AddRange { extent, .. } => Some(extent.run),
            _ => None,
        })
        .collect();
    let mut replayer =
        Replayer { editor, open: None, touched: BTreeSet::new(), recount: BTreeSet::new() };
    let mut done = 0;
    for tag in tags() {
        if replayer.apply(&tag).is_err() {
            fail(inode_of(&tag));
            break;
        }
        done += 1;
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
    editor: Editor<'a, D>,
    /// The inode whose ranges are being changed; its tree is written when another comes.
    open: Option<(InodeNr, ExtentList)>,
    touched: BTreeSet<InodeNr>,
    /// Directories that gained or lost a subdirectory. An INODE record has the count at the end of
    /// its fast commit, whatever names come behind it; so these are counted anew at the end.
    recount: BTreeSet<InodeNr>,
}

impl<D: ReadBlocks> Replayer<'_, D> {
    fn apply(&mut self, tag: &FcTag<'_>) -> Result<(), Impossible> {
        match tag {
            FcTag::AddRange { inode, extent } => {
                if !self.editor.is_inside(extent.run) || extent.run.len_blocks == 0 {
                    return Err(Impossible);
                }
                let (start, end) = (extent.logical.0, extent.logical.0 + extent.run.len_blocks);
                self.change_range(*inode, start, end, Some(*extent))
            }
            FcTag::DelRange { inode, start: LogicalBlock(start), len_blocks } => {
                self.change_range(*inode, *start, start + u64::from(*len_blocks), None)
            }
            FcTag::Inode { inode, raw } => {
                self.close()?;
                self.touched.insert(*inode);
                inodes::take_over(&mut self.editor, *inode, raw)
            }
            FcTag::Creat(dentry) => self.create(dentry),
            FcTag::Link(dentry) => self.link(dentry),
            FcTag::Unlink(dentry) => self.unlink(dentry),
            FcTag::Pad | FcTag::Tail { .. } | FcTag::Head { .. } => Ok(()),
        }
    }

    fn change_range(
        &mut self,
        inode: InodeNr,
        start: u64,
        end: u64,
        extent: Option<Extent>,
    ) -> Result<(), Impossible> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != inode) {
            self.close()?;
            let raw = self.editor.read_inode(inode)?;
            let list = ExtentList::read(&mut self.editor, &Inode::decode(&raw).ok_or(Impossible)?)?;
            self.touched.insert(inode);
            self.open = Some((inode, list));
        }
        let Some((_, list)) = &mut self.open else { return Err(Impossible) };
        self.editor.charge(1 + list.extents.len() as u64 / 16)?;
        for run in list.runs_in(start, end) {
            self.editor.set_blocks(run, false)?;
        }
        match extent {
            Some(extent) => {
                self.editor.set_blocks(extent.run, true)?;
                list.insert(extent);
            }
            None => list.remove(start, end),
        }
        if self.editor.geo.cluster_bits > 0 {
            // A cluster just freed may hold other blocks of the file.
            self.editor.charge(list.extents.len() as u64)?;
            for run in list.runs() {
                self.editor.set_blocks(run, true)?;
            }
        }
        Ok(())
    }

    /// Writes the tree of the inode whose ranges were changed.
    fn close(&mut self) -> Result<(), Impossible> {
        let Some((inode, mut list)) = self.open.take() else { return Ok(()) };
        let mut raw = self.editor.read_inode(inode)?;
        list.write(&mut self.editor, inode, &mut raw)?;
        inodes::recount(&self.editor, &mut raw, &list)?;
        self.editor.write_inode(inode, &mut raw)
    }

    fn create(&mut self, dentry: &FcDentry<'_>) -> Result<(), Impossible> {
        self.close()?;
        let kind = self.kind_of(dentry.inode)?;
        if kind == FileType::Directory {
            Directory::open(&mut self.editor, dentry.inode)?
                .start(&mut self.editor, dentry.parent)?;
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
            inodes::link(&self.editor, dentry.inode, true)?;
        }
        Ok(())
    }

    fn unlink(&mut self, dentry: &FcDentry<'_>) -> Result<(), Impossible> {
        self.close()?;
        self.touched.insert(dentry.parent);
        let mut directory = Directory::open(&mut self.editor, dentry.parent)?;
        if !directory.remove(&mut self.editor, dentry.name, dentry.inode)? {
            return Ok(());
        }
        // An inode that an INODE record already freed has nothing left to count.
        if !self.editor.inode_used(dentry.inode)? {
            return Ok(());
        }
        if self.kind_of(dentry.inode)? == FileType::Directory {
            self.recount.insert(dentry.parent);
            return inodes::free(&mut self.editor, dentry.inode);
        }
        match inodes::link(&self.editor, dentry.inode, false)? {
            0 => inodes::free(&mut self.editor, dentry.inode),
            _ => Ok(()),
        }
    }

    fn add_name(&mut self, dentry: &FcDentry<'_>, kind: FileType) -> Result<bool, Impossible> {
        self.touched.insert(dentry.parent);
        let mut directory = Directory::open(&mut self.editor, dentry.parent)?;
        let entry_type = inodes::entry_type(&self.editor, kind);
        directory.add(&mut self.editor, dentry.name, dentry.inode, entry_type)
    }

    fn kind_of(&self, inode: InodeNr) -> Result<FileType, Impossible> {
        let raw = self.editor.read_inode(inode)?;
        Inode::decode(&raw).and_then(|inode| inode.file_type()).ok_or(Impossible)
    }

    /// Marks once more what the changed inodes use: a block freed by one may be another's by now.
    fn finish(mut self) -> Result<(), Impossible> {
        let closed = self.close();
        for inode in std::mem::take(&mut self.recount) {
            if self.editor.inode_used(inode)? {
                let subdirectories =
                    Directory::open(&mut self.editor, inode)?.subdirectories(&mut self.editor)?;
                inodes::set_dir_links(&self.editor, inode, subdirectories)?;
            }
        }
        for inode in std::mem::take(&mut self.touched) {
            if !self.editor.inode_used(inode)? {
                continue;
            }
            let raw = self.editor.read_inode(inode)?;
            let decoded = Inode::decode(&raw).ok_or(Impossible)?;
            if decoded.flags().contains(InodeFlags::EXTENTS) {
                for run in ExtentList::read(&mut self.editor, &decoded)?.runs() {
                    self.editor.set_blocks(run, true)?;
                }
            }
        }
        self.editor.finish()?;
        closed
    }
}
