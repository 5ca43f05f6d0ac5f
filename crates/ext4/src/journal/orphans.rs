//! Orphans: inodes that recovery will delete (no links) or truncate (links left).

use std::collections::HashSet;

use floe_blockdev::ReadBlocks;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::inode::Inode;
use floe_format::ext::orphan_file::{MAGIC, OrphanBlock};
use floe_format::ext::superblock::{STATE_ERROR, Superblock};
use floe_format::features::{Compat, RoCompat};
use floe_format::{Geometry, InodeNr, LogicalBlock};

use super::cubes::{find_cubes, orphans_in};
use super::event::{JournalEvent, OrphanFault};
use crate::inode_table::read_inode;
use crate::map::runs::BlockMap;

/// The orphans that recovery will process, sorted, each once: first those of the list
/// (`s_last_orphan`), then those of the orphan file (with orphan_present).
///
/// As in e2fsck, nothing is processed if errors are recorded (`ERROR_FS`), and processing stops at
/// the first damage; orphans before it are returned. The events contain one
/// [`JournalEvent::Orphan`] for each.
pub fn find_orphans(
    device: &dyn ReadBlocks,
    sb: &Superblock,
    geo: &Geometry,
    groups: &[GroupDesc],
) -> (Vec<InodeNr>, Vec<JournalEvent>) {
    let mut finder = Finder::new(device, sb, geo, groups);
    let mut events = Vec::new();
    if sb.state & STATE_ERROR == 0
        && let Err(fault) = finder.list().and_then(|()| finder.file()).and_then(|()| finder.cubes())
    {
        events.push(JournalEvent::OrphansDamaged(fault));
    }
    let stray = |(cube, inode)| JournalEvent::OrphansDamaged(OrphanFault::Stray { cube, inode });
    events.extend(finder.strays.into_iter().map(stray));
    let mut orphans = finder.found;
    orphans.sort_unstable();
    orphans.dedup();
    events.extend(orphans.iter().map(|&inode| JournalEvent::Orphan { inode }));
    (orphans, events)
}

/// Whether orphan_present is set although the orphan file is intact and empty: this is the normal
/// state while a file system is mounted for writing and no deleted file is open.
pub(crate) fn is_file_empty(
    device: &dyn ReadBlocks,
    sb: &Superblock,
    geo: &Geometry,
    groups: &[GroupDesc],
) -> bool {
    let mut finder = Finder::new(device, sb, geo, groups);
    geo.features.ro_compat.contains(RoCompat::ORPHAN_PRESENT)
        && geo.features.compat.contains(Compat::ORPHAN_FILE)
        && finder.file().is_ok()
        && finder.found.is_empty()
}

struct Finder<'a> {
    device: &'a dyn ReadBlocks,
    sb: &'a Superblock,
    geo: &'a Geometry,
    groups: &'a [GroupDesc],
    found: Vec<InodeNr>,
    /// Entries in blocks of cubes that name something of another cube; they are no orphans.
    strays: Vec<(u32, InodeNr)>,
    seen: HashSet<InodeNr>,
}

impl<'a> Finder<'a> {
    fn new(
        device: &'a dyn ReadBlocks,
        sb: &'a Superblock,
        geo: &'a Geometry,
        groups: &'a [GroupDesc],
    ) -> Self {
        let (found, strays, seen) = Default::default();
        Self { device, sb, geo, groups, found, strays, seen }
    }
}

impl Finder<'_> {
    /// Whether an inode may be an orphan: it exists and is not reserved.
    fn may_be_orphan(&self, inode: InodeNr) -> bool {
        inode >= self.geo.first_inode && inode.0 <= self.geo.inodes_count
    }

    fn list(&mut self) -> Result<(), OrphanFault> {
        let mut inode = InodeNr(self.sb.last_orphan);
        if inode.0 != 0 && !self.may_be_orphan(inode) {
            return Err(OrphanFault::Head(inode));
        }
        while inode.0 != 0 {
            if !self.seen.insert(inode) {
                return Err(OrphanFault::Loop(inode));
            }
            let raw = read_inode(inode, self.device, self.geo, self.groups);
            let raw = raw.ok_or(OrphanFault::Unreadable(inode))?;
            let orphan = Inode::decode(&raw).ok_or(OrphanFault::Unreadable(inode))?;
            let next = InodeNr(orphan.base.dtime);
            if next.0 != 0 && !self.may_be_orphan(next) {
                return Err(OrphanFault::Next { inode, next });
            }
            self.found.push(inode);
            inode = next;
        }
        Ok(())
    }

    /// The blocks behind the journals of cubes. They are empty while a file system is sealed. A damaged one, or one that
    /// cannot be read, is a finding about its cube, and what it names an inode without a name.
    fn cubes(&mut self) -> Result<(), OrphanFault> {
        let cubes = find_cubes(self.device, self.sb, self.geo, self.groups).whole();
        let cubes = cubes.map_err(|_| OrphanFault::Unreadable(InodeNr(0)))?.usable;
        let mut bytes = vec![0; self.geo.block_size as usize];
        for own in cubes {
            let offset = self.geo.offset_bytes(own.orphan_block);
            if self.device.read_at(offset, &mut bytes).is_err() {
                continue;
            }
            let next = &mut |orphan| next_orphan(orphan, self.device, self.geo, self.groups);
            let Some(stored) = orphans_in(&own, self.geo, &bytes, next) else { continue };
            let exists = |inode: &InodeNr| self.may_be_orphan(*inode);
            let (orphans, strays): (Vec<InodeNr>, Vec<InodeNr>) =
                stored.into_iter().filter(exists).partition(|inode| own.owns(self.geo, *inode));
            self.found.extend(orphans);
            let cube = own.cube;
            self.strays.extend(strays.into_iter().map(|inode| (cube, inode)));
        }
        Ok(())
    }

    fn file(&mut self) -> Result<(), OrphanFault> {
        let features = &self.geo.features;
        if !features.compat.contains(Compat::ORPHAN_FILE)
            || !features.ro_compat.contains(RoCompat::ORPHAN_PRESENT)
        {
            return Ok(());
        }
        let inode = InodeNr(self.sb.orphan_file_inum);
        let raw = read_inode(inode, self.device, self.geo, self.groups);
        let raw = raw.ok_or(OrphanFault::Unreadable(inode))?;
        let file = Inode::decode(&raw).ok_or(OrphanFault::Unreadable(inode))?;
        let size_bytes = file.size_bytes();
        let block_size = u64::from(self.geo.block_size);
        if !size_bytes.is_multiple_of(block_size) {
            return Err(OrphanFault::Unaligned { size_bytes });
        }
        let blocks = size_bytes / block_size;
        let map = BlockMap::of(&file, self.device, self.geo, blocks)
            .map_err(|_| OrphanFault::Unreadable(inode))?;
        let seed = self.sb.seed().of_inode(inode, file.base.generation);
        let mut bytes = vec![0; self.geo.block_size as usize];
        // A hole ends the loop, so a huge size takes no time.
        for logical in 0..blocks {
            let block = map.block(logical).ok_or(OrphanFault::Hole(LogicalBlock(logical)))?;
            self.device
                .read_at(self.geo.offset_bytes(block), &mut bytes)
                .map_err(|_| OrphanFault::Unreadable(inode))?;
            let orphans = OrphanBlock::new(&bytes).ok_or(OrphanFault::Magic(block))?;
            if orphans.magic() != MAGIC {
                return Err(OrphanFault::Magic(block));
            }
            let fits = orphans.stored_checksum() == orphans.compute_checksum(seed, block);
            if features.metadata_csum() && !fits {
                return Err(OrphanFault::Checksum(block));
            }
            for slot in orphans.orphans() {
                if !self.may_be_orphan(slot) {
                    return Err(OrphanFault::Slot(slot));
                }
                self.found.push(slot);
            }
        }
        Ok(())
    }
}

/// The orphan behind another one in a chain, as the inode on the device has it; `None` if it cannot be read.
pub fn next_orphan(
    orphan: InodeNr,
    device: &dyn ReadBlocks,
    geo: &Geometry,
    groups: &[GroupDesc],
) -> Option<u32> {
    let raw = read_inode(orphan, device, geo, groups)?;
    Some(Inode::decode(&raw)?.base.dtime)
}
