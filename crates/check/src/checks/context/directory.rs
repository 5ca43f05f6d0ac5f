//! Context of checks of directories: what they look at, and what one worker finds and keeps.

use std::collections::{BTreeMap, BTreeSet};

use floe_exec::{Accumulator, append};
use floe_format::ext::dirent::DirEntry;
use floe_format::ext::htree::HashVersion;
use floe_format::ext::inode::FileType;
use floe_format::ext::superblock::{ENCODING_STRICT, FLAG_UNSIGNED_HASH};
use floe_format::features::Incompat;
use floe_format::{BlockNr, InodeNr};

use crate::evidence::dir_index::DirIndex;
use crate::evidence::dirs::{DirFlags, Dirs};
use crate::evidence::fingerprint::{GroupSums, LinkAdder};
use crate::evidence::htree::HtreeEvidence;
use crate::evidence::inode_facts::{Facts, InodeFacts};
use crate::evidence::ledger::Ledger;
use crate::evidence::link_tally::LinkTally;
use crate::evidence::name_set::NameSet;
use crate::evidence::policies::Policies;
use crate::problem::{Findings, Sink};
use crate::saved::{Decoder, Encoder, Fault, Saved, cell};
use crate::scan::directory_blocks::{BlockScan, ReadRoom};
use crate::volume::Volume;

/// Input of the directory checks: the file system and the results of the inode pass.
#[derive(Clone, Copy)]
pub struct DirCx<'a> {
    /// The file system.
    pub volume: &'a Volume<'a>,
    /// The directories and their blocks, sorted.
    pub dirs: &'a Dirs,
    /// Ranks of the directories.
    pub index: &'a DirIndex,
    /// Types of all inodes.
    pub facts: &'a InodeFacts,
    /// Encryption policies, sorted.
    pub policies: &'a Policies,
    /// How many attributes use each inode that holds an attribute value.
    pub ea_references: &'a BTreeMap<InodeNr, u64>,
    /// Whether blocks have checksums.
    pub metadata_csum: bool,
    /// Whether entries hold types.
    pub filetype: bool,
    /// Whether names must be valid text in casefolded directories.
    pub strict_encoding: bool,
    /// Whether hashes are over unsigned characters.
    pub unsigned_hash: bool,
    /// Whether directories may have three levels of index.
    pub large_dir: bool,
    /// `s_hash_seed`.
    pub hash_seed: [u32; 4],
    default_hash: HashVersion,
    /// Inodes that no entry may name, besides reserved ones: quota files and the orphan file.
    hidden: [u32; 4],
    /// See [`Volume::ordinary_from`].
    ordinary_from: u32,
    /// `log2` of the blocks of a region.
    region_bits: u32,
    /// Facts of other inodes are not known yet: they are taken to be what entries say, and those that have to be
    /// proved later are noted ([`DirEvidence::assumed`]).
    pub assumes: bool,
}

/// A file system without directories: what checks look at before any was found.
#[derive(Debug, Default)]
pub struct Empty {
    dirs: Dirs,
    index: DirIndex,
    facts: InodeFacts,
    policies: Policies,
    ea_references: BTreeMap<InodeNr, u64>,
}

impl Empty {
    /// Nothing but the file system.
    pub(crate) fn cx<'a>(&'a self, volume: &'a Volume<'a>) -> DirCx<'a> {
        let Self { dirs, index, facts, policies, ea_references } = self;
        DirCx::new(volume, dirs, index, facts, policies, ea_references)
    }
}

impl<'a> DirCx<'a> {
    /// Collects what the checks look at. `dirs` and `policies` are sorted; `index` is that of
    /// `dirs`.
    pub fn new(
        volume: &'a Volume<'a>,
        dirs: &'a Dirs,
        index: &'a DirIndex,
        facts: &'a InodeFacts,
        policies: &'a Policies,
        ea_references: &'a BTreeMap<InodeNr, u64>,
    ) -> Self {
        let sb = &volume.superblock;
        let unsigned_hash = sb.flags & FLAG_UNSIGNED_HASH != 0;
        let hidden = [sb.usr_quota_inum, sb.grp_quota_inum, sb.prj_quota_inum, sb.orphan_file_inum];
        Self {
            volume,
            dirs,
            index,
            facts,
            policies,
            ea_references,
            metadata_csum: volume.features().metadata_csum(),
            filetype: volume.has_incompat(Incompat::FILETYPE),
            strict_encoding: volume.mode.check_encoding || sb.encoding_flags & ENCODING_STRICT != 0,
            unsigned_hash,
            large_dir: volume.has_incompat(Incompat::LARGEDIR),
            hash_seed: sb.hash_seed,
            default_hash: HashVersion::of_root(sb.def_hash_version, unsigned_hash)
                .filter(|version| *version != HashVersion::SipHash)
                .unwrap_or(HashVersion::HalfMd4),
            hidden,
            ordinary_from: volume.ordinary_from(&hidden),
            // At most 2^14 regions, whatever the size of the file system.
            region_bits: volume.geometry.blocks_count.max(1).ilog2().saturating_sub(13).max(9),
            assumes: false,
        }
    }

    /// The same, for who does not know facts of inodes yet.
    #[must_use]
    pub(crate) fn assuming(self) -> Self {
        Self { assumes: true, ..self }
    }

    /// The region of the disk in which a block lies, for the note of who is named where.
    #[inline]
    pub(crate) fn region_of(&self, block: BlockNr) -> u32 {
        u32::try_from(block.0 >> self.region_bits).unwrap_or(u32::MAX)
    }

    /// Whether the facts of an inode are kept, so that an assumption about it must be verified. Inodes
    /// outside the file system may not be named at all.
    #[inline]
    pub(crate) fn must_prove(&self, inode: InodeNr) -> bool {
        self.volume.geometry.place_of(inode).is_some() && self.volume.keeps(inode)
    }

    /// The facts of an inode that an entry or a `..` names with this file type. Where facts are not
    /// kept, the fingerprints prove that the inode is in use and has that type.
    #[inline]
    pub(crate) fn facts_of(&self, inode: InodeNr, named_as: u8) -> Facts {
        if self.volume.keeps(inode) && !self.assumes {
            self.facts.get(inode)
        } else {
            Facts::used(FileType::of_entry(named_as))
        }
    }

    /// Whether a name in a directory does not lead out of its cube, or may.
    #[inline]
    pub fn stays_in_cube(&self, dir: InodeNr, inode: InodeNr) -> bool {
        let geometry = &self.volume.geometry;
        self.volume.cubes.as_ref().is_none_or(|cubes| cubes.may_name(geometry, dir, inode))
    }

    /// Whether no directory entry may name an inode: reserved, outside the file system, or one of
    /// the file system's own files.
    #[inline]
    pub(crate) fn is_illegal(&self, inode: InodeNr) -> bool {
        inode.0 > self.volume.geometry.inodes_count
            || (inode.0 < self.ordinary_from && self.is_reserved_or_hidden(inode))
    }

    fn is_reserved_or_hidden(&self, inode: InodeNr) -> bool {
        let reserved = self.volume.geometry.is_reserved(inode) && inode != InodeNr::ROOT;
        reserved || self.hidden.contains(&inode.0)
    }

    /// The hash that a directory most likely has: its root, which says so, may be read later. Most
    /// directories of a file system have the one it names; others are looked at again.
    #[inline]
    pub(crate) fn usual_hash(&self, flags: DirFlags) -> HashVersion {
        if flags.contains(DirFlags::ENCRYPTED.union(DirFlags::CASEFOLD)) {
            HashVersion::SipHash
        } else {
            self.default_hash
        }
    }

    /// Blocks of the directory of a rank, as its size says.
    pub fn size_blocks(&self, rank: u32) -> u32 {
        let place = match self.index.is_by_inode() {
            true => self.dirs.index_of(InodeNr(rank)),
            false => Some(rank as usize),
        };
        place.and_then(|place| self.dirs.infos.get(place)).map_or(0, |info| info.size_blocks)
    }

    /// Whether a directory is too large for two levels of index.
    pub(crate) fn needs_three_levels(&self, rank: u32) -> bool {
        let entries = u64::from(self.volume.geometry.block_size / 8);
        u64::from(self.size_blocks(rank)) >= (entries - 1) * (entries - 2)
    }
}

/// The entry `lost+found` of the root directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LostFound {
    /// Block and byte of the entry.
    pub place: (u32, u32),
    /// The inode it names.
    pub inode: InodeNr,
}

/// Everything one worker finds and keeps while it reads directories.
#[derive(Debug, Default)]
pub struct DirEvidence {
    /// Findings.
    pub found: Findings,
    /// Entries that name each inode that is no directory. (A directory has one name, and the
    /// checks of the tree know which.)
    pub links: LinkTally,
    /// Each directory that an entry names, and the directory that holds the entry, as ranks. In no
    /// order.
    pub named: Vec<(u32, u32)>,
    /// The inode that `..` names, for each directory (as a rank) that has a usable one. In no
    /// order.
    pub dotdots: Vec<(u32, InodeNr)>,
    /// Indexes of directories.
    pub htree: HtreeEvidence,
    /// The first entry `lost+found` of the root.
    pub lost_found: Option<LostFound>,
    /// Entries that stay, without `.` and `..`.
    pub entries: u64,
    /// Sums of all links that entries are, `.` and `..` among them, where there are sums.
    pub sums: GroupSums,
    /// Which inodes the entries of each region of the disk name; see `DirCx::region_of`.
    pub met: Ledger,
    /// Inodes that are kept one by one, as something named them before their facts were known: each with the
    /// type that it was taken to have.
    pub assumed: BTreeSet<(InodeNr, u8)>,
    /// Buffers that live as long as the worker.
    pub room: Room,
}

impl DirEvidence {
    /// The links counted, in the structure that the check takes.
    #[inline]
    pub(crate) fn links_in(&mut self, cx: &DirCx<'_>) -> &mut LinkTally {
        self.links.taking(cx.volume.mode.links)
    }

    /// Notes a link to an inode as one of this type.
    pub(crate) fn note_link(&mut self, cx: &DirCx<'_>, inode: InodeNr, file_type: FileType) {
        if let Some(tables) = &cx.volume.mode.tables {
            let mut adder = LinkAdder::new(tables);
            adder.add(&mut self.sums, inode, file_type);
            adder.flush(&mut self.sums);
        }
    }

    /// Notes that an inode is taken to be what something names it as, where facts are not known yet.
    #[inline]
    pub(crate) fn note_assumed(&mut self, cx: &DirCx<'_>, inode: InodeNr, named_as: u8) {
        if cx.assumes && cx.must_prove(inode) {
            self.assumed.insert((inode, named_as));
        }
    }

    /// Whether all ranks are those of a file system with so many directories.
    pub fn fits(&self, directories: usize) -> bool {
        let inside = |rank: u32| (rank as usize) < directories;
        self.named.iter().all(|&(child, parent)| inside(child) && inside(parent))
            && self.dotdots.iter().all(|&(rank, _)| inside(rank))
            && self.htree.nodes.iter().all(|node| inside(node.rank))
            && self.htree.leaves.iter().all(|leaf| inside(leaf.rank))
    }

    /// Notes an entry `lost+found` of the root.
    #[cold]
    pub(crate) fn note_lost_found(&mut self, logical: u32, entry: &DirEntry<'_>) {
        let new = LostFound { place: (logical, entry.offset), inode: entry.inode };
        self.lost_found = Some(self.lost_found.map_or(new, |old| old.min(new)));
    }
}

impl Accumulator for DirEvidence {
    fn merge(&mut self, other: Self) {
        let Self {
            found,
            links,
            named,
            dotdots,
            htree,
            lost_found,
            entries,
            sums,
            met,
            mut assumed,
            room: _,
        } = other;
        self.found.merge(found);
        self.links.merge(links);
        append(&mut self.named, named);
        append(&mut self.dotdots, dotdots);
        self.htree.merge(htree);
        self.lost_found = match (self.lost_found, lost_found) {
            (Some(mine), Some(theirs)) => Some(mine.min(theirs)),
            (mine, theirs) => mine.or(theirs),
        };
        self.entries = self.entries.saturating_add(entries);
        self.sums.merge(sums);
        self.met.merge(met);
        // One by one where few are added, because `append` builds the whole set anew.
        if self.assumed.len() < assumed.len() {
            std::mem::swap(&mut self.assumed, &mut assumed);
        }
        self.assumed.extend(assumed);
    }
}

impl Saved for DirEvidence {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self {
            found,
            links,
            named,
            dotdots,
            htree,
            lost_found,
            entries,
            sums,
            met,
            assumed,
            room: _,
        } = self;
        found.save(to);
        links.save(to);
        to.put_rows(named.iter().map(|&(dir, parent)| [dir.into(), parent.into()]));
        to.put_rows(dotdots.iter().map(|&(dir, parent)| [dir.into(), parent.0.into()]));
        htree.save(to);
        lost_found.map(|LostFound { place, inode }| (place, inode)).save(to);
        entries.save(to);
        sums.save(to);
        met.save(to);
        let assumed: Vec<_> =
            assumed.iter().map(|&(inode, by)| [inode.0.into(), by.into()]).collect();
        to.put_rows(assumed.into_iter());
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let mut all = Self::default();
        all.load_more(from)?;
        Ok(all)
    }

    fn load_more(&mut self, from: &mut Decoder<'_>) -> Result<(), Fault> {
        let (found, links) = (Saved::load(from)?, Saved::load(from)?);
        from.more_rows(&mut self.named, |[dir, parent]| Some((cell(dir)?, cell(parent)?)))?;
        from.more_rows(&mut self.dotdots, |[dir, parent]| {
            Some((cell(dir)?, InodeNr(cell(parent)?)))
        })?;
        let htree = Saved::load(from)?;
        let lost_found: Option<((u32, u32), InodeNr)> = Saved::load(from)?;
        let lost_found = lost_found.map(|(place, inode)| LostFound { place, inode });
        let (entries, sums, met) = (Saved::load(from)?, Saved::load(from)?, Saved::load(from)?);
        let assumed = from.rows(|[inode, by]| Some((InodeNr(cell(inode)?), cell(by)?)))?;
        self.merge(Self {
            found,
            links,
            // These were read to where they stay.
            named: Vec::new(),
            dotdots: Vec::new(),
            htree,
            lost_found,
            entries,
            sums,
            met,
            assumed: assumed.into_iter().collect(),
            room: Room::default(),
        });
        Ok(())
    }
}

impl BlockScan for DirEvidence {
    fn room(&mut self) -> &mut ReadRoom {
        &mut self.room.read
    }
    fn sink(&mut self) -> &mut impl Sink {
        &mut self.found
    }
}

/// Buffers of a worker.
#[derive(Debug, Default)]
pub struct Room {
    /// Directory blocks as read.
    pub read: ReadRoom,
    /// A broken block, mended.
    pub salvaged: Vec<u8>,
    /// Names of one block.
    pub names: NameSet,
    /// Inodes that the entries of one block name, without directories.
    pub targets: Vec<InodeNr>,
    /// All links that the entries of one block are, where there are sums.
    pub links: Vec<(InodeNr, FileType)>,
}

#[cfg(test)]
mod laws {
    use super::*;
    use crate::problem::Problem;
    use crate::saved::tests::same;

    floe_exec::accumulator_laws!(
        DirEvidence,
        (1u32..9, 0u32..9),
        |all: &mut DirEvidence, (number, value): (u32, u32)| {
            let inode = InodeNr(number);
            all.found.push(Problem::InodeFaddrNonzero { inode, value });
            all.links.add(inode);
            all.named.push((number, value));
            all.dotdots.push((value, inode));
            all.htree.dropped.push(inode);
            let new = LostFound { place: (value, 0), inode };
            all.lost_found = Some(all.lost_found.map_or(new, |old| old.min(new)));
            all.entries += 1;
            all.assumed.insert((inode, 2));
        },
        |all: DirEvidence| same(all, |mut all: DirEvidence| {
            all.named.sort_unstable();
            all.dotdots.sort_unstable();
            all.htree.dropped.sort_unstable();
            (
                crate::report::in_order(all.found),
                (1..9).map(|inode| all.links.get(InodeNr(inode))).collect::<Vec<_>>(),
                (all.named, all.dotdots, all.htree.dropped),
                (all.lost_found, all.entries, all.assumed),
            )
        })
    );
}
