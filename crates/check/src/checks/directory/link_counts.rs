//! Check: every inode in use is named, as often as it says.
//! Reads: link counts of inodes, entries counted by the directory pass, the tree of directories,
//! uses of attribute values.  Keeps: nothing.
//! Emits: 0x040001, 0x040002, 0x040003, 0x040005-0x040008.
//! Does not verify: that directories are connected (`checks/directory/connectivity.rs`).
//!
//! Counts are those that follow once the findings about directories are repaired.

use floe_exec::Pool;
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::features::{Compat, RoCompat};

use crate::checks::context::directory::{DirCx, DirEvidence};
use crate::checks::directory::connectivity::DirTree;
use crate::evidence::inode_facts::{Facts, FactsChunk};
use crate::problem::{Findings, Problem, Sink};
use crate::scan::inode_reader::InodeReader;
use crate::volume::open::{orphan_inode, quota_inode};

/// Most links that are counted (`EXT4_LINK_MAX`); a directory with more has a count of 1.
pub(crate) const LINK_MAX: u32 = 65_000;
/// Magic number of attributes in an inode.
const XATTR_MAGIC: u32 = 0xea02_0000;
/// Chunks of inodes of one unit of work.
const UNIT: usize = 16;

/// Compares all link counts.
pub fn check(cx: &DirCx<'_>, evidence: &DirEvidence, tree: &DirTree, pool: &Pool) -> Findings {
    let units: Vec<_> = (0..cx.facts.chunk_count()).step_by(UNIT).collect();
    let judge = Judge {
        cx,
        evidence,
        tree,
        dir_nlink: cx.volume.has_ro_compat(RoCompat::DIR_NLINK),
        imagic: cx.volume.has_compat(Compat::IMAGIC_INODES),
    };
    pool.run(&units, |found: &mut Findings, &first| {
        let mut reader = InodeReader::default();
        for index in first..first + UNIT {
            let Some((start, chunk)) = cx.facts.chunk(index) else { continue };
            judge.chunk(start, chunk, &mut reader, found);
        }
    })
}

struct Judge<'a> {
    cx: &'a DirCx<'a>,
    evidence: &'a DirEvidence,
    tree: &'a DirTree,
    dir_nlink: bool,
    imagic: bool,
}

impl Judge<'_> {
    /// Judges the inodes of a chunk, the first of which is `start`.
    fn chunk(
        &self,
        start: InodeNr,
        chunk: &FactsChunk,
        reader: &mut InodeReader,
        found: &mut impl Sink,
    ) {
        let mut judge = |at: usize, facts: Facts, stored: u16| {
            if facts.is_used() && !facts.is_bad() {
                // A chunk has few inodes, whose numbers fit.
                self.inode(InodeNr(start.0 + at as u32), facts, stored, reader, found);
            }
        };
        let Some(unusual) = chunk.unusual() else {
            let places = chunk.facts.iter().zip(chunk.links.iter());
            return places.enumerate().for_each(|(at, (facts, stored))| judge(at, facts, stored));
        };
        let len = chunk.facts.len();
        let mut each = |from: usize, to: usize| {
            for at in from..to {
                if let (Some(facts), Some(stored)) = (chunk.facts.get(at), chunk.links.get(at)) {
                    judge(at, facts, stored);
                }
            }
        };
        // Between the others are files that say they have one link, like nearly all: many at once.
        let mut next = 0;
        for place in unusual.chain([len]) {
            let run = place.saturating_sub(next);
            if run > 0 && !self.evidence.links.all_one(InodeNr(start.0 + next as u32), run) {
                each(next, place);
            }
            if place >= next && place < len {
                each(place, place + 1);
            }
            next = next.max(place + 1);
        }
    }

    #[inline]
    fn inode(
        &self,
        inode: InodeNr,
        facts: Facts,
        stored: u16,
        reader: &mut InodeReader,
        found: &mut impl Sink,
    ) {
        let rank = if facts.is_dir() { self.cx.index.get(inode) } else { None };
        let counted = match rank {
            Some(rank) => u64::from(self.tree.links(rank)),
            None => self.evidence.links.get(inode),
        };
        let fits = counted > 0 && counted <= u64::from(LINK_MAX) && counted == u64::from(stored);
        if fits && !facts.is_ea_inode() {
            return;
        }
        if (self.cx.is_illegal(inode) && !self.is_only_named(inode))
            || self.is_imagic(inode, reader)
        {
            return;
        }
        match rank {
            // At most one child a directory: fits 32 bits.
            Some(_) => self.directory(inode, stored, counted as u32, reader, found),
            None => self.file(inode, facts, stored, counted, reader, found),
        }
    }

    /// User and group quotas are in reserved inodes. Another number that the superblock names may stand
    /// in no directory, but is as ordinary an inode as any.
    fn is_only_named(&self, inode: InodeNr) -> bool {
        let sb = &self.cx.volume.superblock;
        let geometry = &self.cx.volume.geometry;
        [sb.usr_quota_inum, sb.grp_quota_inum].contains(&inode.0)
            && ![sb.prj_quota_inum, sb.orphan_file_inum].contains(&inode.0)
            && !geometry.is_reserved(inode)
            && inode.0 <= geometry.inodes_count
    }

    /// An inode of the AFS kind may be known by its number alone.
    fn is_imagic(&self, inode: InodeNr, reader: &mut InodeReader) -> bool {
        self.imagic
            && reader
                .read(self.cx.volume, inode)
                .is_some_and(|inode| inode.flags().contains(InodeFlags::IMAGIC))
    }

    #[cold]
    fn directory(
        &self,
        inode: InodeNr,
        stored: u16,
        counted: u32,
        reader: &mut InodeReader,
        found: &mut impl Sink,
    ) {
        let mut expected = counted;
        if counted > LINK_MAX {
            if !self.dir_nlink {
                found.push(Problem::DirNlinkFeatureMissing { inode, counted });
            }
            expected = 1;
        }
        if expected == u32::from(stored) {
            return;
        }
        let overflowed = stored == 1
            && expected > 1
            && reader
                .read(self.cx.volume, inode)
                .is_some_and(|inode| inode.flags().contains(InodeFlags::INDEX));
        found.push(if overflowed {
            Problem::DirectoryLinkCountOverflowStale { inode, counted: expected }
        } else {
            Problem::InodeLinkCountWrong { inode, stored, counted: expected }
        });
    }

    #[cold]
    fn file(
        &self,
        inode: InodeNr,
        facts: Facts,
        stored: u16,
        counted: u64,
        reader: &mut InodeReader,
        found: &mut impl Sink,
    ) {
        let mut expected = counted;
        if counted > 0 && facts.is_ea_inode() && !self.cx.ea_references.contains_key(&inode) {
            found.push(Problem::EaInodeFlagOnNamedFile { inode });
        }
        if counted == 0 {
            let references = self.cx.ea_references.get(&inode).copied().unwrap_or(0);
            if facts.is_ea_inode() && references == 0 {
                found.push(Problem::EaInodeFlagUnreferenced { inode });
                return;
            }
            if !facts.is_ea_inode() {
                if !facts.is_orphan() {
                    self.unattached(inode, stored, reader, found);
                }
                return;
            }
            expected = 1;
            if let Some(decoded) = reader.read(self.cx.volume, inode) {
                check_references(inode, &decoded, references, found);
            }
        }
        if expected != u64::from(stored) {
            let counted = u32::try_from(expected).unwrap_or(u32::MAX);
            found.push(Problem::InodeLinkCountWrong { inode, stored, counted });
        }
    }

    fn unattached(
        &self,
        inode: InodeNr,
        links: u16,
        reader: &mut InodeReader,
        found: &mut impl Sink,
    ) {
        let volume = self.cx.volume;
        let orphan_file = reader
            .read(volume, inode)
            .is_some_and(|decoded| orphan_inode::is_one(volume, inode, &decoded));
        if orphan_file {
            found.push(Problem::OrphanFileLost { inode });
            return;
        }
        let quota_file = reader
            .read(volume, inode)
            .is_some_and(|decoded| quota_inode::is_lost_project_file(volume, &decoded));
        if quota_file {
            found.push(Problem::QuotaFileLost { inode });
            return;
        }
        let is_empty = reader.read(volume, inode).is_some_and(|decoded| {
            let ordinary =
                matches!(decoded.file_type(), Some(FileType::Regular | FileType::Directory));
            ordinary && decoded.base.blocks_lo == 0 && !has_attributes(&decoded)
        });
        found.push(if is_empty {
            Problem::UnattachedEmptyInode { inode }
        } else {
            Problem::UnattachedInode { inode, links }
        });
    }
}

/// Whether the body of an inode has attributes.
fn has_attributes(inode: &Inode<'_>) -> bool {
    let magic = inode.xattr_area().first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    magic == Some(XATTR_MAGIC)
}

/// Compares the count of uses that an inode with an attribute value stores with those found. Old
/// Lustre inodes, with equal times, store none.
fn check_references(inode: InodeNr, decoded: &Inode<'_>, counted: u64, found: &mut impl Sink) {
    let base = &decoded.base;
    let stored = u64::from(base.ctime) << 32 | u64::from(base.version);
    if base.ctime != base.atime && stored != counted {
        found.push(Problem::EaInodeRefcountWrong { inode, stored, counted });
    }
}
