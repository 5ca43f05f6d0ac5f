//! Lost inodes: the journal's own, from its copy in the superblock, and others, from copies that the
//! sweep found elsewhere.

use std::cmp::Reverse;
use std::io;

use floe_ext4::files::FileMap;
use floe_ext4::map::walk::has_map;
use floe_format::ext::extent::MAGIC;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::{BlockNr, BlockRun, InodeNr};

use crate::evidence::{InPlace, InodeCopy};
use crate::sizes::is_too_large;
use crate::state::{State, claim};
use crate::summary::Provenance;

/// `s_jnl_backup_type`: the superblock holds the map and size of the journal's inode.
const HAS_JOURNAL_MAP: u8 = 1;

impl State<'_> {
    /// Finds the blocks of the journal, from its inode or from the copy in the superblock.
    pub(crate) fn find_journal(&mut self) -> io::Result<()> {
        let superblock = &self.space.superblock;
        let number = InodeNr(superblock.journal_inum);
        if !self.is_number(number) {
            return Ok(());
        }
        if !self.is_live(number) && superblock.jnl_backup_type == HAS_JOURNAL_MAP {
            let words = superblock.jnl_blocks;
            let Some(mut inode) = self.space.new_inode(number, FileType::Regular.mode(0o600), 0)
            else {
                return Ok(());
            };
            for (place, word) in inode.base.block.chunks_exact_mut(4).zip(words) {
                place.copy_from_slice(&word.to_le_bytes());
            }
            inode.base.size_high = words[15];
            inode.base.size_lo = words[16];
            let has_extents = inode.base.block.starts_with(&MAGIC.to_le_bytes());
            inode.set_flags(InodeFlags::EXTENTS, has_extents);
            if self.space.put_inode(&mut inode)?.is_none() {
                return Ok(());
            }
            self.live.insert(u64::from(number.0));
        }
        let files = self.space.files();
        let Ok(node) = files.node(number) else { return Ok(()) };
        if has_map(&node.inode().base) {
            let extents = files.map(&node).extents;
            let mut end = 0;
            let in_order = extents.iter().take_while(|extent| {
                let follows = extent.logical.0 == end;
                end += extent.run.len_blocks;
                follows
            });
            let log: Vec<BlockRun> = in_order.map(|extent| extent.run).collect();
            self.find_logged_inodes(&log);
            self.journal = extents.iter().map(|extent| extent.run).collect();
            self.journal.sort_unstable();
        }
        Ok(())
    }

    /// Puts the newest copy of each lost inode in its place, unless the file was deleted, or other
    /// files own its blocks.
    pub(crate) fn take_copies(&mut self) -> io::Result<()> {
        let copies = std::mem::take(&mut self.evidence.copies);
        let mut newest: Vec<InodeCopy> = Vec::new();
        // Sorted by inode and stamp: the last of each inode counts.
        for copy in copies {
            match newest.last_mut() {
                Some(last) if last.inode == copy.inode => *last = copy,
                _ => newest.push(copy),
            }
        }
        newest.retain(|copy| {
            copy.in_use
                && !self.is_live(copy.inode)
                && self.evidence.deleted.binary_search(&copy.inode).is_err()
        });
        newest.sort_unstable_by_key(|copy| (Reverse(copy.stamp), copy.inode));
        let files = self.space.files();
        for copy in newest {
            let Some(mut inode) = self.space.inode_at(copy.inode, copy.offset_bytes) else {
                continue;
            };
            let is_mapped = inode.file_type() == Some(FileType::Regular) && has_map(&inode.base);
            let map = is_mapped.then(|| files.map_of(&inode));
            let is_anothers = |map: &FileMap| {
                let mut runs = map.extents.iter().map(|extent| extent.run);
                runs.any(|run| self.claimed.meets_run(run.start.0, run.len_blocks))
            };
            if map.as_ref().is_some_and(is_anothers) {
                self.summary.inodes.copies_refused += 1;
                continue;
            }
            if self.space.put_inode(&mut inode)?.is_none() {
                continue;
            }
            if let Some(map) = &map {
                if is_too_large(inode.size_bytes(), inode.flags(), &self.frame.geometry) {
                    self.evidence.doubtful_sizes.push(inode.number);
                }
                claim(map, inode.number, &mut self.claimed, &mut self.broken);
            }
            if inode.file_type() == Some(FileType::Directory) {
                self.evidence.directories.push(inode.number);
            }
            self.live.insert(u64::from(inode.number.0));
            let seed = self.frame.seed().map_or(0, |seed| inode.seed(seed));
            self.evidence.in_place.push(InPlace { seed, inode: inode.number });
            self.summary.inodes.from_copies += 1;
            self.summary.provenance.insert(inode.number, Provenance::Copy);
        }
        self.evidence.in_place.sort_unstable();
        self.evidence.directories.sort_unstable();
        Ok(())
    }

    /// Reads a block; zeroes if it cannot be read.
    pub(crate) fn block_or_zeroes(&self, block: BlockNr) -> Vec<u8> {
        let size = self.frame.geometry.block_size as usize;
        self.space.block(block).unwrap_or_else(|_| vec![0; size])
    }
}
