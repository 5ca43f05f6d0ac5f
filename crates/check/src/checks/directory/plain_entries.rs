//! The plain case of a directory block: entries that are all in order, in a directory that is neither
//! encrypted nor casefolded nor the root. It is judged in one go, without the general path.
//! Reads: the block, and what the inode pass knows of the inodes it names.
//! Keeps: what `checks/directory/dirents.rs` would keep: links of files, parents of directories, the target of
//! `..`, the range of hashes of a leaf.
//! Emits: nothing. A block that is not plain leaves nothing here and goes the general path.

use std::collections::BTreeSet;

use floe_format::InodeNr;
use floe_format::ext::dirent::{DirCursor, DirEntry, DirTail, MIN_REC_LEN, TAIL_SIZE};
use floe_format::ext::inode::FileType;

use crate::checks::context::directory::{DirCx, DirEvidence};
use crate::checks::directory::dirents::Position;
use crate::checks::directory::htree::{self, LeafHashes, Role};
use crate::evidence::dirs::DirFlags;
use crate::evidence::fingerprint::LinkAdder;
use crate::evidence::inode_facts::{Facts, FactsCursor};
use crate::evidence::ledger::Ledger;
use crate::evidence::name_set::{NameSet, scan_name};
use crate::scan::directory_blocks::DirBlock;

/// The facts of other inodes that are available when a block is judged.
pub trait Others {
    /// The facts of an inode that an entry names with a file type.
    fn facts(&mut self, inode: InodeNr, named_as: u8) -> Facts;
    /// Whether links of the inode asked for last are kept one by one.
    fn is_kept(&self) -> bool;
    /// The number by which evidence knows a directory; `None` if there is none of that inode.
    fn rank(&self, dir: InodeNr) -> Option<u32>;
}

/// The facts of all inodes, once the inode pass is complete.
struct Settled<'a> {
    cx: &'a DirCx<'a>,
    facts: FactsCursor<'a>,
}

impl Others for Settled<'_> {
    #[inline]
    fn facts(&mut self, inode: InodeNr, named_as: u8) -> Facts {
        self.facts.get(inode, named_as)
    }
    #[inline]
    fn is_kept(&self) -> bool {
        self.facts.is_kept()
    }
    #[inline]
    fn rank(&self, dir: InodeNr) -> Option<u32> {
        self.cx.index.get(dir)
    }
}

/// Facts that are assumed before any inode is known.
struct Assumed<'a> {
    cx: &'a DirCx<'a>,
    assumed: &'a mut BTreeSet<(InodeNr, u8)>,
    met: &'a mut Ledger,
    /// The group at hand: its first inode, how many it has, and whether facts of it are kept.
    first: u32,
    len: u32,
    kept: bool,
}

impl Others for Assumed<'_> {
    #[inline]
    fn facts(&mut self, inode: InodeNr, named_as: u8) -> Facts {
        if inode.0.wrapping_sub(self.first) >= self.len {
            let place = self.cx.volume.geometry.place_of(inode);
            (self.first, self.len) = place.map_or((inode.0, 1), |(_, at)| {
                (inode.0 - at, self.cx.volume.geometry.inodes_per_group)
            });
            self.kept = self.cx.must_prove(inode);
            self.met.note(self.first, self.first.saturating_add(self.len - 1));
        }
        if self.kept {
            self.assumed.insert((inode, named_as));
        }
        Facts::used(FileType::of_entry(named_as))
    }
    #[inline]
    fn is_kept(&self) -> bool {
        self.kept
    }
    #[inline]
    fn rank(&self, dir: InodeNr) -> Option<u32> {
        self.cx.index.get(dir)
    }
}

/// A plain block before it is noted: most of what it leaves is in the worker's [`Room`], the rest at
/// the ends of lists.
///
/// [`Room`]: crate::checks::context::directory::Room
#[derive(Debug)]
pub struct Plain {
    /// Entries that stay, without `.` and `..`.
    entries: u64,
    role: Role,
    hashes: LeafHashes,
    /// Lengths of `named` and `dotdots` before.
    named: usize,
    dotdots: usize,
}

/// Notes what a block leaves if it is plain; `false`, and nothing noted, if it is not.
pub fn check(cx: &DirCx<'_>, block: &DirBlock<'_>, evidence: &mut DirEvidence) -> bool {
    let mut met = std::mem::take(&mut evidence.met);
    if cx.assumes {
        let mut assumed = std::mem::take(&mut evidence.assumed);
        let (met_here, assumed_here) = (&mut met, &mut assumed);
        let mut others =
            Assumed { cx, assumed: assumed_here, met: met_here, first: 0, len: 0, kept: false };
        let plain = judge(cx, &mut others, block, evidence);
        (evidence.met, evidence.assumed) = (met, assumed);
        return note_if(cx, block, plain, evidence);
    }
    let facts = FactsCursor::new(cx.facts, &cx.volume.geometry, &cx.volume.mode.scope, &mut met);
    let plain = judge(cx, &mut Settled { cx, facts }, block, evidence);
    evidence.met = met;
    note_if(cx, block, plain, evidence)
}

/// Notes what a block leaves if it is plain; whether it is.
#[inline]
fn note_if(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    plain: Option<Plain>,
    evidence: &mut DirEvidence,
) -> bool {
    let is_plain = plain.is_some();
    if let Some(plain) = plain {
        plain.note(cx, block, evidence);
    }
    is_plain
}

/// Whether a directory's blocks can be plain at all.
#[inline]
pub(crate) fn may_be_plain(cx: &DirCx<'_>, dir: InodeNr, flags: DirFlags) -> bool {
    cx.volume.mode.shortcuts
        && cx.filetype
        && dir != InodeNr::ROOT
        && DirFlags::INDEXED.contains(flags)
}

/// Judges a block by what is known of `others`. A plain one is to be noted, or withdrawn, before the
/// next one is judged.
pub fn judge(
    cx: &DirCx<'_>,
    others: &mut impl Others,
    block: &DirBlock<'_>,
    evidence: &mut DirEvidence,
) -> Option<Plain> {
    let role = htree::begin(cx, block);
    if !may_be_plain(cx, block.dir, block.flags) || !role.is_leaf() {
        return None;
    }
    let end = entries_end(cx, block)?;
    let mut targets = std::mem::take(&mut evidence.room.targets);
    targets.clear();
    evidence.room.links.clear();
    let (named, dotdots) = (evidence.named.len(), evidence.dotdots.len());
    let mut hashes = role.leaf_hashes(cx, block);
    let entries = check_entries(cx, others, block, end, &mut targets, &mut hashes, evidence);
    evidence.room.targets = targets;
    if entries.is_none() {
        evidence.named.truncate(named);
        evidence.dotdots.truncate(dotdots);
    }
    Some(Plain { entries: entries?, role, hashes, named, dotdots })
}

impl Plain {
    /// Notes what the block leaves.
    #[inline]
    pub fn note(self, cx: &DirCx<'_>, block: &DirBlock<'_>, evidence: &mut DirEvidence) {
        evidence.entries += self.entries;
        let targets = std::mem::take(&mut evidence.room.targets);
        evidence.links_in(cx).add_all(&targets);
        evidence.room.targets = targets;
        if let Some(tables) = &cx.volume.mode.tables {
            let mut adder = LinkAdder::new(tables);
            for &(inode, file_type) in &evidence.room.links {
                adder.add(&mut evidence.sums, inode, file_type);
            }
            adder.flush(&mut evidence.sums);
        }
        self.role.finish(cx, block, self.hashes, evidence);
    }

    /// Takes back what is at the ends of lists; comes back with the inode that `..` names, if the
    /// block has one, and the smallest and largest hash of a leaf.
    pub(crate) fn withdraw(
        self,
        evidence: &mut DirEvidence,
    ) -> (Option<InodeNr>, Option<(u32, u32)>) {
        evidence.named.truncate(self.named);
        let dotdot = evidence.dotdots.get(self.dotdots).map(|(_, inode)| *inode);
        evidence.dotdots.truncate(self.dotdots);
        (dotdot, (self.role == Role::Leaf).then(|| self.hashes.range()))
    }
}

/// Where the entries of a block end; `None` unless its checksum is where it should be, and right.
fn entries_end(cx: &DirCx<'_>, block: &DirBlock<'_>) -> Option<usize> {
    let len = block.bytes.len();
    if !cx.metadata_csum {
        return Some(len);
    }
    let seed = cx.volume.seed.of_inode(block.dir, block.generation);
    (DirTail::checksum_ok(seed, block.bytes) == Some(true)).then(|| len.saturating_sub(TAIL_SIZE))
}

/// Judges all entries and collects what they lead to; returns how many stay, without `.` and `..`.
/// `None` at the first one that is not plain.
fn check_entries(
    cx: &DirCx<'_>,
    others: &mut impl Others,
    block: &DirBlock<'_>,
    end: usize,
    targets: &mut Vec<InodeNr>,
    hashes: &mut LeafHashes,
    evidence: &mut DirEvidence,
) -> Option<u64> {
    let DirEvidence { named, dotdots, room, .. } = evidence;
    let summed = cx.volume.mode.tables.is_some();
    let mut entries = 0;
    let directory = Facts::used(Some(FileType::Directory));
    let mut cursor = DirCursor::new(block.bytes).ending_at(end);
    if Position::of(block) == Position::Dot {
        let dot = cursor.next()?.ok()?;
        let dotdot = cursor.next()?.ok()?;
        let plain = dot_is_plain(block, &dot)
            && dotdot_is_plain(&dotdot)
            && others.facts(dotdot.inode, dotdot.file_type) == directory
            && !cx.is_illegal(dotdot.inode);
        plain.then_some(())?;
        dotdots.push((block.rank, dotdot.inode));
        if summed {
            room.links.extend([block.dir, dotdot.inode].map(|dir| (dir, FileType::Directory)));
        }
    }
    room.names.begin(block.bytes.len());
    for entry in cursor {
        let entry = entry.ok()?;
        if !entry.in_use() {
            continue;
        }
        let facts = others.facts(entry.inode, entry.file_type);
        let plain = facts.is_plain_as(entry.file_type)
            && entry.inode != block.dir
            && entry.inode != InodeNr::ROOT
            && (entry.name.len() > 2 || !matches!(entry.name, b"" | b"." | b".."))
            && !cx.is_illegal(entry.inode)
            && cx.stays_in_cube(block.dir, entry.inode);
        plain.then_some(())?;
        name_is_new(&entry, &mut room.names).then_some(())?;
        hashes.add(cx, block, &entry);
        entries += 1;
        if facts == directory {
            // Each directory has a rank.
            named.push((others.rank(entry.inode)?, block.rank));
        } else if others.is_kept() {
            targets.push(entry.inode);
        }
        if summed {
            room.links.push((entry.inode, facts.file_type()?));
        }
    }
    Some(entries)
}

/// Whether the first entry of a directory is in order.
fn dot_is_plain(block: &DirBlock<'_>, entry: &DirEntry<'_>) -> bool {
    entry.inode == block.dir
        && entry.name == b"."
        && entry.record.get(9) == Some(&0)
        && entry.file_type == FileType::Directory as u8
        && entry.rec_len <= 2 * MIN_REC_LEN
}

/// Whether the second entry of a directory is in order, but for the inode that it names.
fn dotdot_is_plain(entry: &DirEntry<'_>) -> bool {
    entry.in_use()
        && entry.name == b".."
        && entry.record.get(10) == Some(&0)
        && entry.file_type == FileType::Directory as u8
}

/// Whether a name has only bytes that a name may have, and is not met for the second time.
#[inline]
fn name_is_new(entry: &DirEntry<'_>, names: &mut NameSet) -> bool {
    let scan = scan_name(entry.name);
    // Whether the names are the same is for the general path to find out.
    !scan.illegal && names.insert(scan.hash, entry.offset, |_| true).is_none()
}
