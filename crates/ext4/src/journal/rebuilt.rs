//! The superblock of a journal in use, made anew from the log: the superblock is lost, and the log may be sound.
//!
//! Reads: all blocks of the log, and home blocks of its transactions.  Keeps: a record per control block and copy.
//! Commit blocks with checksums prove each other: each tells the seed that its checksum began with (the checksum of the journal's UUID),
//! so nothing has to be known of the superblock. The log is followed backwards from its last transaction as far as it is whole.
//! Transactions before the first one that is not at home are left out: the log has let go of them.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use floe_blockdev::ReadBlocks;
use floe_format::ext::fast_commit::{FcRecords, FcTag};
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::jbd2::{
    self, CHECKSUM_CRC32, CHECKSUM_CRC32C, COMMIT_BLOCK, Checksums, CommitBlock, DESCRIPTOR_BLOCK,
    JournalCompat, JournalFormat, JournalIncompat, JournalSuperblock, LOG_PER_FAST_COMMIT_BLOCK,
    REVOKE_BLOCK, SUPERBLOCK_V2, TagFlags, leaves_room, uuid_of_seed,
};
use floe_format::ext::superblock::Superblock;
use floe_format::features::{Compat, Incompat};
use floe_format::{BlockNr, Geometry, InodeNr};

use super::event::JournalPlace;
use super::locate::{Journal, external_superblock};
use super::log::{Log, Ring, is_after};
use super::mended::{is_async, leads};
use super::mixed::hash;
use super::pieces::each_block;
use crate::inode_table::read_groups;

/// The fault of a superblock that a device has kept from an earlier time.
pub(super) const OLD: &str = "it is older than transactions in the log, because a write was lost";

/// A log without a superblock.
pub(super) struct Headless<'a> {
    /// The device that holds it.
    pub(super) device: &'a dyn ReadBlocks,
    /// That of the file system.
    pub(super) home: &'a dyn ReadBlocks,
    pub(super) geo: &'a Geometry,
    pub(super) sb: &'a Superblock,
    /// The bytes in the place of the superblock.
    pub(super) bytes: &'a [u8; 1024],
    /// With any superblock; its blocks are found by it.
    pub(super) journal: Journal,
}

/// A commit block.
#[derive(Clone, Copy)]
struct Commit {
    at: u32,
    /// The seed of its checksum of version 2 or 3.
    seed: u32,
    /// It has a checksum of version 1.
    is_v1: bool,
    /// It has none.
    is_bare: bool,
}

impl Commit {
    /// Whether its checksum is one of the log.
    fn fits(&self, format: &JournalFormat) -> bool {
        match format.checksums {
            Checksums::V1 => self.is_v1,
            Checksums::V2 | Checksums::V3 => self.seed == format.seed,
            Checksums::None => self.is_bare,
        }
    }
}

/// A transaction that is whole.
struct Whole {
    sequence: u32,
    /// Its first block.
    start: u32,
    /// The block behind its commit block.
    end: u32,
}

impl Headless<'_> {
    /// A superblock by which the log is read; one of an empty log where no transaction has to be replayed. `None`: nothing in the log is
    /// proved.
    pub(super) fn superblock(mut self) -> Option<JournalSuperblock> {
        let commits = self.commits();
        let kinds = self.kinds(&commits);
        let Some((ring, chain)) = self.find(kinds, &commits, 1) else { return self.empty() };
        let last = chain.last()?.sequence;
        let stored = JournalSuperblock::decode(self.bytes);
        if is_async(&stored) && stored.sequence == last.wrapping_add(1) {
            // The next transaction, of which nothing arrived.
            return None;
        }
        let first = chain.first()?.sequence;
        self.leading_to(ring, &chain, first)
    }

    /// Another superblock where a sound one (`stored`) leads to nothing, although commits that follow each other have its numbers and
    /// later ones: a device has lost what was written to its place since. Beside an empty stock log one commit alone may lie: where commits
    /// are asynchronous it may reach the device before the superblock.
    pub(super) fn newer(mut self, stored: &JournalSuperblock) -> Option<JournalSuperblock> {
        let place = |block| self.journal.offset_bytes(block);
        if leads(stored, self.device, &place) {
            return None;
        }
        let all = self.commits();
        let mut commits = all.clone();
        commits.retain(|sequence, _| !is_after(stored.sequence, *sequence));
        // Where the first transaction is there, its first block is damaged, and all else in place.
        if stored.start != 0 && commits.contains_key(&stored.sequence) {
            return None;
        }
        // Linux writes the features of a mount with its first commit.
        let kinds = match stored.format().checksums {
            Checksums::None => self.kinds(&commits),
            _ => vec![stored.clone()],
        };
        let least = if self.journal.is_native { 1 } else { 2 };
        let (ring, chain) = self.find(kinds, &commits, least)?;
        // Blocks may be at home as transactions have them that the log had let go of by then: these tell how old they are.
        let whole = self.chain(ring, &self.proved(&all));
        let known = if whole.len() > chain.len() { &whole } else { &chain };
        let first = chain.first()?.sequence;
        self.leading_to(ring, known, first)
    }

    /// Takes that of `kinds` by which most transactions are whole, at least so many, the first one among equals; returns these. Without
    /// checksums two must follow each other.
    fn find(
        &mut self,
        kinds: Vec<JournalSuperblock>,
        commits: &BTreeMap<u32, Commit>,
        least: usize,
    ) -> Option<(Ring, Vec<Whole>)> {
        let mut best: Option<(JournalSuperblock, Ring, Vec<Whole>)> = None;
        for superblock in kinds {
            let log_blocks = self.journal.blocks.checked_sub(superblock.fast_commit_blocks());
            let ring = log_blocks.and_then(|end| Ring::new(superblock.first, end));
            let Some(ring) = ring else { continue };
            self.journal.superblock = superblock;
            let format = self.journal.superblock.format();
            let least = if format.checksums == Checksums::None { least.max(2) } else { least };
            let chain = self.chain(ring, &self.proved(commits));
            let most = best.as_ref().map_or(least, |(_, _, best)| best.len() + 1);
            if chain.len() >= most {
                best = Some((self.journal.superblock.clone(), ring, chain));
            }
        }
        let (superblock, ring, chain) = best?;
        self.journal.superblock = superblock;
        Some((ring, chain))
    }

    /// Places of the commit blocks that are of the log, by number.
    fn proved(&self, commits: &BTreeMap<u32, Commit>) -> BTreeMap<u32, u32> {
        let format = self.journal.superblock.format();
        let proved = commits.iter().filter(|(_, commit)| commit.fits(&format));
        proved.map(|(sequence, commit)| (*sequence, commit.at)).collect()
    }

    /// The first block of the log.
    fn first(&self) -> u32 {
        if self.is_external() { external_superblock(self.geo) + 1 } else { 1 }
    }

    fn is_external(&self) -> bool {
        self.journal.place == JournalPlace::External
    }

    /// The UUID that the journal should have.
    fn uuid(&self) -> [u8; 16] {
        if self.is_external() { self.sb.journal_uuid } else { self.sb.uuid }
    }

    /// How many blocks the area for fast commits may have, the likeliest first: it begins in front of the block with the head of the
    /// first one; without any only the place matters at which the log goes round.
    fn areas(&self) -> Vec<u32> {
        let blocks = self.journal.blocks;
        let is_further = match self.journal.place {
            JournalPlace::Inode(inode) => inode.0 != self.sb.journal_inum,
            JournalPlace::InodeBackup(_) | JournalPlace::External => false,
        };
        if is_further || !self.geo.features.compat.contains(Compat::FAST_COMMIT) {
            return vec![0];
        }
        let mut head = None;
        each_block(self.device, &self.journal, self.first()..blocks, |at, block| {
            let first =
                block.ok().and_then(|block| FcRecords::new(block, self.geo.inode_size).next());
            if let Some(FcTag::Head { features: 0, .. }) = first.map(|first| first.tag) {
                head = Some(at);
            }
        });
        let found = head.map(|head| blocks - head + 1);
        let stored = JournalSuperblock::decode(self.bytes).num_fc_blks;
        let known = [Some(stored), Some(blocks / (LOG_PER_FAST_COMMIT_BLOCK + 1)), Some(256)];
        let all = found.map_or(known.to_vec(), |found| vec![Some(found)]);
        let fits = |area: &u32| *area > 0 && leaves_room(blocks, *area);
        all.into_iter().flatten().filter(fits).collect()
    }

    /// The superblock that leads to what has to be replayed of a chain, from this transaction on at the earliest, and to fast commits
    /// behind it; one of an empty log where nothing has to be.
    fn leading_to(self, ring: Ring, chain: &[Whole], earliest: u32) -> Option<JournalSuperblock> {
        let last = chain.last()?;
        let behind = last.sequence.wrapping_add(1);
        let end = if self.has_fast_commit(behind) { last.end } else { 0 };
        let first = self.first_to_replay(ring, chain).and_then(|first| {
            let from = if is_after(earliest, first.sequence) { earliest } else { first.sequence };
            chain.iter().find(|one| one.sequence == from)
        });
        let (sequence, start) = first.map_or((behind, end), |first| (first.sequence, first.start));
        Some(JournalSuperblock { sequence, start, ..self.journal.superblock })
    }

    /// Whether fast commits of a transaction lie in their area.
    fn has_fast_commit(&self, sequence: u32) -> bool {
        let area = self.journal.superblock.fast_commit_blocks();
        let mut block = vec![0; self.journal.block_size as usize];
        let first = self.journal.blocks.saturating_sub(area).saturating_add(1);
        if area == 0 || self.read(first, &mut block).is_none() {
            return false;
        }
        let record = FcRecords::new(&block, self.geo.inode_size).next();
        matches!(record.map(|record| record.tag), Some(FcTag::Head { tid, .. }) if tid == sequence)
    }

    /// That of an empty log, behind all numbers in it: nothing was found. Where Floe alone makes journals, that settles what they hold.
    fn empty(mut self) -> Option<JournalSuperblock> {
        if !self.journal.is_native {
            return None;
        }
        let mut last = None;
        each_block(self.device, &self.journal, self.first()..self.journal.blocks, |_, block| {
            let number = block.ok().and_then(jbd2::header).map(|header| header.sequence);
            last = last.max(number);
        });
        self.journal.superblock = self.plain(self.uuid(), JournalIncompat::CSUM_V3);
        self.journal.superblock.sequence = last.unwrap_or(0).wrapping_add(1);
        Some(self.journal.superblock)
    }

    /// All that look like commit blocks of the present use, by number.
    fn commits(&self) -> BTreeMap<u32, Commit> {
        let mut all: BTreeMap<u32, Commit> = BTreeMap::new();
        each_block(self.device, &self.journal, self.first()..self.journal.blocks, |at, block| {
            let Ok(block) = block else { return };
            let header = jbd2::header(block).filter(|header| header.blocktype == COMMIT_BLOCK);
            let Some((header, bytes)) = header.zip(block.first_chunk()) else { return };
            let commit = CommitBlock::decode(bytes);
            if commit.commit_sec >= self.journal.since_seconds {
                let is_v1 = commit.chksum_type == CHECKSUM_CRC32;
                let is_bare =
                    (commit.chksum_type, commit.chksum_size, commit.chksum) == (0, 0, [0; 8]);
                let seed = JournalFormat::seed_of_commit(block);
                all.insert(header.sequence, Commit { at, seed, is_v1, is_bare });
            }
        });
        all
    }

    /// Superblocks that the log may have had, but for its beginning; the likeliest first.
    fn kinds(&self, commits: &BTreeMap<u32, Commit>) -> Vec<JournalSuperblock> {
        let stored = JournalSuperblock::decode(self.bytes);
        let seed_of = |uuid| JournalSuperblock { uuid, ..stored }.format().seed;
        let mut votes: HashMap<u32, usize> = HashMap::new();
        for commit in commits.values() {
            *votes.entry(commit.seed).or_default() += 1;
        }
        let known = [stored.uuid, self.uuid()];
        let votes = votes.into_iter().max_by_key(|(seed, count)| (*count, *seed));
        let elected = votes.filter(|(_, count)| *count > 1).map(|(seed, _)| seed);
        let is_known = |uuid: &&[u8; 16]| commits.values().any(|one| one.seed == seed_of(**uuid));
        let uuid = known.iter().find(is_known).copied();
        let uuid = uuid.filter(|uuid| elected.is_none_or(|seed| seed_of(*uuid) == seed));
        let uuid = uuid.or_else(|| elected.map(|seed| uuid_of_seed(seed, self.uuid())));
        let is_wide = self.geo.features.incompat.contains(Incompat::BIT64);
        let wide = if is_wide { JournalIncompat::BIT64 } else { JournalIncompat::empty() };
        let base = JournalIncompat::REVOKE | wide;
        let mut all = Vec::new();
        if let Some(uuid) = uuid {
            let kinds = [JournalIncompat::CSUM_V3, JournalIncompat::CSUM_V2];
            all.extend(kinds.map(|kind| self.plain(uuid, base | kind)));
        }
        let own = [JournalPlace::Inode, JournalPlace::InodeBackup].map(|of| of(InodeNr::JOURNAL));
        let is_root = own.contains(&self.journal.place);
        if commits.values().any(|commit| commit.is_v1) && (is_root || !self.journal.is_native) {
            // Beside checksums of metadata only Floe writes those of version 1, with asynchronous commits.
            let is_async = self.geo.features.metadata_csum();
            let extra =
                if is_async { JournalIncompat::ASYNC_COMMIT } else { JournalIncompat::empty() };
            let superblock = self.plain(self.uuid(), base | extra);
            all.push(JournalSuperblock {
                feature_compat: JournalCompat::CHECKSUM.bits(),
                ..superblock
            });
        }
        if !self.journal.is_native {
            // Order alone proves it then: the numbers of blocks in each descriptor lead to the next control block.
            all.push(self.plain(self.uuid(), base));
        }
        let areas = self.areas();
        let with_area = |superblock: JournalSuperblock| {
            let each = areas.clone().into_iter();
            each.map(move |area| self.with_area(superblock.clone(), area))
        };
        all.into_iter().flat_map(with_area).collect()
    }

    fn with_area(&self, mut superblock: JournalSuperblock, area: u32) -> JournalSuperblock {
        if area > 0 {
            superblock.feature_incompat |= JournalIncompat::FAST_COMMIT.bits();
            superblock.num_fc_blks = area;
        }
        superblock
    }

    fn plain(&self, uuid: [u8; 16], incompat: JournalIncompat) -> JournalSuperblock {
        let mut users = [0; 768];
        if self.is_external() {
            users[..16].copy_from_slice(&self.sb.uuid);
        }
        JournalSuperblock {
            magic: jbd2::MAGIC,
            blocktype: SUPERBLOCK_V2,
            blocksize: self.geo.block_size,
            maxlen: self.journal.blocks,
            first: self.first(),
            users,
            feature_incompat: incompat.bits(),
            uuid,
            nr_users: 1,
            checksum_type: CHECKSUM_CRC32C,
            ..JournalSuperblock::decode(&[0; 1024])
        }
    }

    /// The transactions up to the last one, as far back as they are whole and follow each other.
    fn chain(&self, ring: Ring, commits: &BTreeMap<u32, u32>) -> Vec<Whole> {
        let newest = commits.keys().copied().reduce(|a, b| if is_after(b, a) { b } else { a });
        let (mut chain, mut sequence) = (Vec::new(), newest);
        while let Some(number) = sequence
            && let Some(commit) = commits.get(&number)
        {
            let before = commits.get(&number.wrapping_sub(1));
            let start = before.map(|before| ring.advance(*before, 1));
            let start = start.or_else(|| self.begin(ring, number, *commit));
            let Some(start) = start.filter(|start| self.leads(ring, *start, number, *commit))
            else {
                break;
            };
            chain.push(Whole { sequence: number, start, end: ring.advance(*commit, 1) });
            sequence = before.map(|_| number.wrapping_sub(1));
        }
        chain.reverse();
        chain
    }

    /// The first block of a transaction of which only the end is known: the control block farthest before its commit block.
    fn begin(&self, ring: Ring, sequence: u32, commit: u32) -> Option<u32> {
        let (len, mut found) = (ring.len_blocks(), None);
        let mut block = vec![0; self.journal.block_size as usize];
        for back in 1..len / 2 {
            let at = ring.advance(commit, len - back);
            let header = self.read(at, &mut block).and_then(|()| jbd2::header(&block));
            match header {
                Some(header) if header.sequence == sequence => found = Some(at),
                Some(header) if header.blocktype == COMMIT_BLOCK => break,
                _ => {}
            }
        }
        found
    }

    fn read(&self, at: u32, block: &mut [u8]) -> Option<()> {
        let log = Log { device: self.device, journal: &self.journal, phase: None };
        log.read(at, block).ok()
    }

    /// Whether the control blocks of a transaction lead from its first block to its commit block.
    fn leads(&self, ring: Ring, start: u32, sequence: u32, commit: u32) -> bool {
        let mut at = start;
        self.each_control(ring, start, sequence, |block, _| at = block);
        at == commit
    }

    /// Hands over the control blocks of a transaction, up to its commit block, or up to damage.
    fn each_control(
        &self,
        ring: Ring,
        start: u32,
        sequence: u32,
        mut with: impl FnMut(u32, &[u8]),
    ) {
        let format = self.journal.superblock.format();
        let (mut at, mut budget) = (start, ring.len_blocks());
        let mut block = vec![0; self.journal.block_size as usize];
        while budget > 0 {
            if self.read(at, &mut block).is_none() {
                return;
            }
            let header = jbd2::header(&block).filter(|header| header.sequence == sequence);
            let mut len = 1;
            match header.map(|header| header.blocktype) {
                Some(COMMIT_BLOCK) => return with(at, &block),
                Some(DESCRIPTOR_BLOCK) if format.tail_ok(&block) => {
                    len += u32::try_from(format.tags(&block).count()).unwrap_or(ring.len_blocks());
                }
                Some(REVOKE_BLOCK) if format.tail_ok(&block) => {}
                _ => return,
            }
            with(at, &block);
            at = ring.advance(at, len);
            budget = budget.saturating_sub(len);
        }
    }

    /// The first transaction that is not at home: that of the stored superblock, where it leads to one, or the first one whose copies
    /// are newer than home blocks. Blocks that are no bitmap and no table may be in use for something else by now, which is not logged:
    /// they count only where an earlier copy is at home.
    fn first_to_replay<'c>(&self, ring: Ring, chain: &'c [Whole]) -> Option<&'c Whole> {
        let stored = JournalSuperblock::decode(self.bytes);
        let is_stored = |one: &&Whole| (one.sequence, one.start) == (stored.sequence, stored.start);
        if let Some(first) = chain.iter().find(is_stored) {
            return Some(first);
        }
        let fixed = fixed(self.home, self.geo);
        let is_fixed = |block: u64| {
            let behind = fixed.partition_point(|range| range.start <= block);
            behind.checked_sub(1).is_some_and(|at| fixed[at].contains(&block))
        };
        let versions = self.versions(ring, chain);
        let mut home = vec![0; self.journal.block_size as usize];
        let first_out = versions.iter().filter_map(|(block, versions)| {
            let to = self.geo.offset_bytes(BlockNr(*block));
            let read = self.home.read_at(to, &mut home).ok();
            let now = read.map(|()| hash(&home));
            match versions.iter().rposition(|(_, hash)| Some(*hash) == now) {
                Some(at) => versions.get(at + 1),
                None if is_fixed(*block) => versions.first(),
                None => None,
            }
        });
        let first = first_out.map(|(nr, _)| *nr).min();
        first.and_then(|first| chain.get(first))
    }

    /// The copies of each block that no later transaction revokes: place in the chain, and a hash.
    fn versions(&self, ring: Ring, chain: &[Whole]) -> HashMap<u64, Vec<(usize, u64)>> {
        let format = self.journal.superblock.format();
        let mut all: HashMap<u64, Vec<(usize, u64)>> = HashMap::new();
        let mut copy = vec![0; self.journal.block_size as usize];
        for (nr, one) in chain.iter().enumerate() {
            self.each_control(ring, one.start, one.sequence, |at, block| {
                match jbd2::header(block).map(|header| header.blocktype) {
                    Some(DESCRIPTOR_BLOCK) => {
                        for (tag, by) in format.tags(block).zip(1..) {
                            if tag.block >= self.geo.blocks_count
                                || self.read(ring.advance(at, by), &mut copy).is_none()
                            {
                                continue;
                            }
                            if tag.flags.contains(TagFlags::ESCAPE) {
                                copy[..4].copy_from_slice(&jbd2::MAGIC.to_be_bytes());
                            }
                            all.entry(tag.block).or_default().push((nr, hash(&copy)));
                        }
                    }
                    Some(REVOKE_BLOCK) => {
                        for number in format.revoked(block).into_iter().flatten() {
                            all.remove(&number);
                        }
                    }
                    _ => {}
                }
            });
        }
        all
    }
}

/// Blocks that are never used for anything else, bitmaps and inode tables: ascending.
fn fixed(device: &dyn ReadBlocks, geo: &Geometry) -> Vec<Range<u64>> {
    let table_blocks = u64::from(geo.inode_table_blocks);
    // Whoever looks for a journal may know few of the descriptors.
    let groups = read_groups(device, geo).unwrap_or_default();
    let of = |desc: &GroupDesc| {
        let table = desc.inode_table.0;
        let one = |block: BlockNr| block.0..block.0.saturating_add(1);
        [one(desc.block_bitmap), one(desc.inode_bitmap), table..table.saturating_add(table_blocks)]
    };
    let mut all: Vec<Range<u64>> = groups.iter().flat_map(of).collect();
    all.sort_unstable_by_key(|range| range.start);
    all
}
