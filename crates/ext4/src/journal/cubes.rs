//! The journals of a native file system's cubes (`docs/journal.md`): found by the records of lots, and judged strictly, because
//! only Floe makes them; and which of their transactions count.
//!
//! An operation that changes blocks of several journals is a transaction in each of them. Every commit block names the others
//! on which it depends. Recovery keeps the greatest set of transactions that is closed under these dependencies and under
//! predecessors in their own log.

use std::collections::{BTreeMap, HashSet};
use std::io;

use floe_blockdev::{Noting, Overlay, ReadBlocks};
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::ext::jbd2::{
    self, CHECKSUM_CRC32C, Checksums, JournalIncompat, JournalSuperblock, SUPERBLOCK_V2,
};
use floe_format::ext::orphan_file::{MAGIC, OrphanBlock};
use floe_format::ext::superblock::Superblock;
use floe_format::native::cube::FEWEST_JOURNAL_BLOCKS;
use floe_format::native::identity::Identity;
use floe_format::native::is_locked;
use floe_format::native::lot::{LotRecord, lot_groups};
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr, InodeNr};

use super::event::JournalPlace;
use super::locate::Journal;
use super::log::is_after;
use super::mended::{SuperblockDamage, mend};
use super::rebuilt::{Headless, OLD};
use super::recover::{Pass, replay_into};
use super::stable::committed;
use crate::inode_table::{desc_place, is_lost, read_inode};
use crate::map::runs::BlockMap;
use crate::tx::read_block;

/// The journal of a cube.
#[derive(Clone, Debug)]
pub struct CubeJournal {
    /// Number of the cube.
    pub cube: u32,
    /// Inode of the file.
    pub inode: InodeNr,
    /// Lots whose blocks it logs.
    pub lots: Vec<u32>,
    /// Groups of a lot.
    pub lot_groups: u32,
    /// Block that lists the cube's orphans, the last one of the file.
    pub orphan_block: BlockNr,
    /// Seed of that block's checksum; `None` without metadata_csum.
    pub seed: Option<u32>,
    /// The journal.
    pub journal: Journal,
}

impl CubeJournal {
    /// Whether an inode lies in lots of the cube, so that it may be one of its orphans.
    pub fn owns(&self, geo: &Geometry, inode: InodeNr) -> bool {
        let group = geo.place_of(inode).map(|(group, _)| group);
        let lot = group.and_then(|group| group.0.checked_div(self.lot_groups));
        lot.is_some_and(|lot| self.lots.contains(&lot))
    }
}

/// The orphans that the list of a cube's journal names; `None` if the list is damaged, or `bytes`, its block, is none. The last slot
/// of the block begins a chain through `i_dtime` of inodes, which `next` reads; `None` of it: the inode cannot be read.
pub fn orphans_in(
    own: &CubeJournal,
    geo: &Geometry,
    bytes: &[u8],
    next: &mut dyn FnMut(InodeNr) -> Option<u32>,
) -> Option<Vec<InodeNr>> {
    let stored = OrphanBlock::new(bytes)?;
    let sum = own.seed.map(|seed| stored.compute_checksum(seed, own.orphan_block));
    let is_sound = stored.magic() == MAGIC && sum.is_none_or(|sum| sum == stored.stored_checksum());
    let mut all: Vec<InodeNr> = is_sound.then(|| stored.plain_orphans().collect())?;
    let head = stored.chain_head();
    if head.0 != 0 && !own.owns(geo, head) {
        // It is no orphan of the cube, and leads nowhere.
        all.push(head);
        return Some(all);
    }
    let may_be = |inode: InodeNr| own.owns(geo, inode) && !geo.is_reserved(inode);
    let next = &mut |inode: InodeNr| next(inode).ok_or(());
    let chain = follow_chain(head, &all, &may_be, next).ok()??;
    all.extend(chain);
    Some(all)
}

/// The orphans of a chain that begins with `head` (0: there are none) and goes on in `i_dtime`, which `next` reads. `None` if it comes
/// back to an orphan, `others` among them, or to what cannot be one.
///
/// # Errors
/// Those of `next`.
pub fn follow_chain<E>(
    head: InodeNr,
    others: &[InodeNr],
    may_be: &dyn Fn(InodeNr) -> bool,
    next: &mut dyn FnMut(InodeNr) -> Result<u32, E>,
) -> Result<Option<Vec<InodeNr>>, E> {
    let mut seen: HashSet<InodeNr> = others.iter().copied().collect();
    let (mut chain, mut at) = (Vec::new(), head);
    while at.0 != 0 {
        if !may_be(at) || !seen.insert(at) {
            return Ok(None);
        }
        chain.push(at);
        at = InodeNr(next(at)?);
    }
    Ok(Some(chain))
}

/// The file of a cube's journal, where it is sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CubeFile {
    /// Blocks of the journal; the file has one more.
    pub blocks: u32,
    /// Its first block, which holds the superblock of the journal.
    pub first: BlockNr,
    /// Its last block, which lists orphans.
    pub orphan_block: BlockNr,
    /// Seed of checksums in the file.
    pub seed: u32,
}

/// A journal that a record names and that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// Number of the cube.
    pub cube: u32,
    /// Inode that the record names.
    pub inode: InodeNr,
    /// Lots whose blocks it logs.
    pub lots: Vec<u32>,
    /// The fault.
    pub why: &'static str,
    /// Its file, if that is sound: then a new journal can be made in it.
    pub file: Option<CubeFile>,
    /// The device failed; the journal may be sound.
    pub is_unread: bool,
}

/// The journals of all cubes.
#[derive(Debug, Default)]
pub struct CubeJournals {
    /// Those that can be used, by cube.
    pub usable: Vec<CubeJournal>,
    /// The others.
    pub unusable: Vec<Unusable>,
    /// The records of a lot could not be read: then journals may be missing here.
    pub unread: Option<io::Error>,
}

impl CubeJournals {
    /// All journals, for those who write: a journal that is overlooked would be replayed by the next mount over what is written
    /// in between.
    ///
    /// # Errors
    /// A read that failed.
    pub fn whole(self) -> io::Result<Self> {
        match self.unread {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }
}

/// Finds the journals that the records of lots name, but for those that are [lost](crate::inode_table::LOST); none in a file system that is not native.
pub fn find_cubes(
    device: &dyn ReadBlocks,
    sb: &Superblock,
    geo: &Geometry,
    groups: &[GroupDesc],
) -> CubeJournals {
    let mut found = CubeJournals::default();
    if Identity::of(sb).is_none() {
        return found;
    }
    let noting = Noting::new(device);
    let lot_groups = lot_groups(sb);
    let lots =
        geo.group_count.checked_div(lot_groups).map_or(0, |_| geo.group_count.div_ceil(lot_groups));
    let mut named: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
    for lot in 0..lots {
        if groups.get((lot * lot_groups) as usize).is_some_and(is_lost) {
            continue;
        }
        if let Some(record) = record_of(&noting, geo, lot, lot_groups) {
            named.entry((record.cube, record.journal_inode)).or_default().push(lot);
        }
    }
    found.unread = noting.judge().err();
    for (named, lots) in named {
        found.look(&noting, (sb, geo, groups), named, lots);
    }
    found
}

/// The same for the one journal that the record of a lot names: by that record and the one of the journal's own lot, because
/// those of all lots take long to read where there are many cubes.
pub fn find_cube(
    device: &dyn ReadBlocks,
    sb: &Superblock,
    geo: &Geometry,
    lot: u32,
) -> CubeJournals {
    let mut found = CubeJournals::default();
    let (noting, lot_groups) = (Noting::new(device), lot_groups(sb));
    if lot_groups == 0 {
        return found;
    }
    let record = record_of(&noting, geo, lot, lot_groups);
    if let Some(LotRecord { cube, journal_inode, .. }) = record {
        let (place, mut lots) = (geo.place_of(InodeNr(journal_inode)), vec![lot]);
        // No other group is looked at.
        let mut groups = vec![GroupDesc::of(&[0; 64]); geo.group_count as usize];
        if let Some((group, _)) = place {
            let home = group.0 / lot_groups;
            let own = record_of(&noting, geo, home, lot_groups);
            let is_own = |own: &LotRecord| own.cube == cube && own.journal_inode == journal_inode;
            if home != lot && own.is_some_and(|own| is_own(&own)) {
                lots.push(home);
            }
            let (block, at) = desc_place(group, geo);
            let bytes = read_block(&noting, geo, block).unwrap_or_default();
            let raw = bytes.get(at..at + geo.desc_size as usize);
            if let (Some(raw), Some(desc)) = (raw, groups.get_mut(group.0 as usize)) {
                *desc = GroupDesc::of(raw);
            }
        }
        found.look(&noting, (sb, geo, &groups), (cube, journal_inode), lots);
    }
    found.unread = noting.judge().err();
    found
}

/// The record of a lot that names a journal.
fn record_of(
    device: &dyn ReadBlocks,
    geo: &Geometry,
    lot: u32,
    lot_groups: u32,
) -> Option<LotRecord> {
    let (block, at) = desc_place(GroupNr(lot.saturating_mul(lot_groups)), geo);
    let bytes = read_block(device, geo, block).unwrap_or_default();
    let record = bytes.get(at..at + geo.desc_size as usize).and_then(LotRecord::of);
    record.filter(|record| record.lot == lot && record.journal_inode > 0)
}

impl CubeJournals {
    /// Judges a journal that records of these lots name, by cube and inode.
    fn look(
        &mut self,
        device: &Noting<&dyn ReadBlocks>,
        (sb, geo, groups): (&Superblock, &Geometry, &[GroupDesc]),
        (cube, inode): (u32, u32),
        lots: Vec<u32>,
    ) {
        let (inode, lot_groups) = (InodeNr(inode), lot_groups(sb));
        let inside = |run: BlockRun| lies_in(geo, run, &lots, lot_groups);
        let home = geo.place_of(inode).map(|(group, _)| group.0 / lot_groups);
        if !home.is_some_and(|lot| lots.contains(&lot)) {
            let why = "its inode lies outside of its cube";
            let (file, is_unread) = (None, false);
            self.unusable.push(Unusable { cube, inode, lots, why, file, is_unread });
            return;
        }
        match judge(device, sb, geo, groups, inode, &inside) {
            Ok((journal, CubeFile { orphan_block, seed, .. })) => {
                let seed = geo.features.metadata_csum().then_some(seed);
                let own =
                    CubeJournal { cube, inode, lots, lot_groups, orphan_block, seed, journal };
                self.usable.push(own);
            }
            Err((why, file)) => {
                let is_unread = device.judge().is_err();
                self.unusable.push(Unusable { cube, inode, lots, why, file, is_unread });
            }
        }
    }
}

/// Whether a run of blocks lies in one of these lots.
fn lies_in(geo: &Geometry, run: BlockRun, lots: &[u32], lot_groups: u32) -> bool {
    let lot = |block| geo.group_of(block).map(|group| group.0 / lot_groups);
    let (first, last) = (lot(run.start), lot(BlockNr(run.end().0.saturating_sub(1))));
    first == last && first.is_some_and(|lot| lots.contains(&lot))
}

/// Judges a journal: its file first, which comes back with a fault behind it, too.
fn judge(
    device: &dyn ReadBlocks,
    sb: &Superblock,
    geo: &Geometry,
    groups: &[GroupDesc],
    number: InodeNr,
    inside: &dyn Fn(BlockRun) -> bool,
) -> Result<(Journal, CubeFile), (&'static str, Option<CubeFile>)> {
    let file = judge_file(device, sb, geo, groups, number, inside);
    let (map, file) = file.map_err(|why| (why, None))?;
    let mut bytes = [0; 1024];
    let read = device.read_at(geo.offset_bytes(file.first), &mut bytes);
    read.map_err(|_| ("its superblock cannot be read", Some(file)))?;
    let at = |block| Some(geo.offset_bytes(map.block(u64::from(block))?));
    let damage = mend(&mut bytes, device, geo.block_size, &at);
    let place = JournalPlace::Inode(number);
    let journal = Journal::headless(place, sb, geo, Some(map), file.blocks);
    let bytes = &bytes;
    let headless = || Headless { device, home: device, geo, sb, bytes, journal: journal.clone() };
    let in_use = is_locked(sb).then(headless);
    let (superblock, damage) = match (judge_superblock(bytes, geo, file.blocks), in_use) {
        (Ok(superblock), Some(log)) if damage.is_none() => match log.newer(&superblock) {
            Some(newer) => (newer, Some(SuperblockDamage::Rebuilt(OLD))),
            None => (superblock, None),
        },
        (Ok(superblock), _) => (superblock, damage),
        (Err(why), log) => {
            let rebuilt = log.and_then(Headless::superblock).ok_or((why, Some(file)))?;
            (rebuilt, Some(SuperblockDamage::Rebuilt(why)))
        }
    };
    let needs_replay = superblock.start != 0;
    Ok((Journal { superblock, damage, needs_replay, ..journal }, file))
}

/// Follows the file of a journal.
fn judge_file(
    device: &dyn ReadBlocks,
    sb: &Superblock,
    geo: &Geometry,
    groups: &[GroupDesc],
    number: InodeNr,
    inside: &dyn Fn(BlockRun) -> bool,
) -> Result<(BlockMap, CubeFile), &'static str> {
    if geo.is_reserved(number) {
        return Err("its inode is a reserved one");
    }
    let raw = read_inode(number, device, geo, groups).ok_or("its inode cannot be read")?;
    let inode = Inode::decode(&raw).ok_or("its inode cannot be read")?;
    if geo.features.metadata_csum() && !inode.checksum_ok(sb.seed(), number) {
        return Err("the checksum of its inode is wrong");
    }
    // A cube that is removed leaves its journal without a name until the file is deleted.
    let is_ours = inode.file_type() == Some(FileType::Regular)
        && inode.flags().contains(InodeFlags::IMMUTABLE | InodeFlags::EXTENTS)
        && inode.base.links_count <= 1;
    if !is_ours {
        return Err("its inode is not an immutable file");
    }
    let size_blocks = inode.size_bytes() / u64::from(geo.block_size);
    let map = BlockMap::of(&inode, device, geo, size_blocks);
    let map = map.map_err(|_| "its blocks cannot be found")?;
    let blocks = u32::try_from(size_blocks.saturating_sub(1)).unwrap_or(0);
    if blocks < FEWEST_JOURNAL_BLOCKS || map.blocks_without_hole() < size_blocks {
        return Err("its file is too short");
    }
    if !map.all_runs().all(inside) {
        return Err("its file lies outside of its cube");
    }
    let orphan_block = map.block(u64::from(blocks)).ok_or("its file is too short")?;
    let first = map.block(0).ok_or("its file is too short")?;
    let seed = sb.seed().of_inode(number, inode.base.generation);
    Ok((map, CubeFile { blocks, first, orphan_block, seed }))
}

fn judge_superblock(
    bytes: &[u8; 1024],
    geo: &Geometry,
    blocks: u32,
) -> Result<JournalSuperblock, &'static str> {
    let superblock = JournalSuperblock::decode(bytes);
    if jbd2::header(bytes).is_none_or(|header| header.blocktype != SUPERBLOCK_V2) {
        return Err("it does not begin with a journal superblock");
    }
    let known = JournalIncompat::REVOKE | JournalIncompat::BIT64 | JournalIncompat::CSUM_V3;
    if superblock.incompat().bits() & !known.bits() != 0 || superblock.feature_ro_compat != 0 {
        return Err("it has features that no journal of a cube has");
    }
    let has_checksum = matches!(superblock.format().checksums, Checksums::V3);
    let fits = superblock.checksum_type == CHECKSUM_CRC32C && JournalSuperblock::checksum_ok(bytes);
    if has_checksum && !fits {
        return Err("the checksum of its superblock is wrong");
    }
    let bounds = (superblock.blocksize, superblock.maxlen, superblock.first);
    if bounds != (geo.block_size, blocks, 1) {
        return Err("its superblock does not fit its file");
    }
    Ok(superblock)
}

/// Replays the journal of a cube into an overlay, as [`replay_into`]; of a damaged log the transactions before the damage, behind
/// which the log counts as empty. Says by [`Pass::failed`] that it is damaged.
pub(super) fn replay_sound<D: ReadBlocks>(
    overlay: &Overlay<D>,
    geo: &Geometry,
    journal: &mut Journal,
) -> Pass {
    let scratch = Overlay::new(overlay.base(), geo.block_size);
    let whole = replay_into(&scratch, geo, journal, None);
    if !whole.failed {
        return replay_into(overlay, geo, journal, None);
    }
    let last =
        committed(overlay.base(), journal).ok().and_then(|all| all.last().map(|one| one.sequence));
    let end = last.map_or(journal.superblock.sequence, |last| last.wrapping_add(1));
    let cut = journal.cut.filter(|cut| is_after(end, *cut));
    journal.cut = Some(cut.unwrap_or(end));
    let before = replay_into(overlay, geo, journal, None);
    Pass { events: whole.events, failed: true, ..before }
}
