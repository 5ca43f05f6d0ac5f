//! A file system with staged edits: reads see them, the device does not change.
//!
//! A stage lives for one round: it uses the evidence of one examination, takes edits, and at the
//! end writes superblock and descriptors back into the overlay.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeSet;
use std::io;

use floe_blockdev::{Overlay, ReadBlocks, WriteBlocks};
use floe_check::problem::Findings;
use floe_check::{Examination, Problem, descriptors};
use floe_format::crc::Seed;
use floe_format::ext::group_desc::{DescChecksum, GroupDesc};
use floe_format::ext::inode::{self, InodeBase, InodeExtra, InodeFlags};
use floe_format::ext::superblock::{MAGIC, OFFSET_BYTES, Superblock};
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr, InodeNr};

use crate::alloc::Allocator;
use crate::failure::Failure;
use crate::fixes::{SharedLedger, serves_as_lost_found};

/// `i_mode` of a regular file with mode 0600.
pub(crate) const MODE_PRIVATE: u16 = 0o100_600;

/// The file system under repair, for one round.
pub struct Stage<'a> {
    /// Destination of edits.
    pub overlay: &'a Overlay<&'a dyn ReadBlocks>,
    /// Evidence of the examination of this round.
    pub evidence: &'a Examination<'a>,
    /// The device of an external journal; its edits are staged here.
    pub journal_device: Option<&'a Overlay<&'a dyn ReadBlocks>>,
    /// Derived from the superblock as it was at the start of the round.
    pub geometry: Geometry,
    /// Seed of the metadata checksums.
    pub seed: Seed,
    /// The current time, in seconds since 1970.
    pub now_seconds: i64,
    /// 16 random bytes for a missing UUID.
    pub random: [u8; 16],
    superblock: Superblock,
    groups: Vec<GroupDesc>,
    changed_groups: BTreeSet<u32>,
    all_groups: bool,
    superblock_changed: bool,
    backups: bool,
    /// The examination used another `s_inodes_per_group` than the superblock stores (finding
    /// `inodes-per-group-wrong`), and this round does not repair it, so each copy keeps its own
    /// value.
    keeps_inodes_per_group: bool,
    /// The same for `s_desc_size` (finding `descriptor-size-wrong`).
    keeps_desc_size: bool,
    // Created on first use, because it copies the set of used clusters.
    allocator: Option<Allocator<'a>>,
    /// Keeps blocks that the bitmaps mark as used although nothing claims them: see
    /// [`Stage::keep_marked`].
    keeps_marked: bool,
    /// All descriptors from a backup, read on first use.
    backup_groups: OnceCell<Vec<GroupDesc>>,
    ledger: Option<SharedLedger>,
    lost_found: Option<InodeNr>,
    notes: Vec<String>,
    /// An edit needed evidence that this examination did not keep.
    lacks_evidence: Cell<bool>,
}

/// A decoded inode.
#[derive(Clone, Debug)]
pub struct InodeImage {
    /// Its number.
    pub number: InodeNr,
    /// The first 128 bytes.
    pub base: InodeBase,
    /// The fields beyond 128 bytes, zero if the inode is too short.
    pub extra: InodeExtra,
    /// All `s_inode_size` bytes; `base` and `extra` overwrite theirs when the inode is written.
    pub raw: Vec<u8>,
}

impl InodeImage {
    /// Decodes an inode; `None` if it has fewer than 128 bytes.
    pub fn of(number: InodeNr, raw: Vec<u8>) -> Option<Self> {
        let inode = inode::Inode::decode(&raw)?;
        let (base, extra) = (inode.base.clone(), inode.extra.clone());
        Some(Self { number, base, extra, raw })
    }

    /// `i_flags`.
    pub fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.base.flags)
    }

    /// `i_size`.
    pub fn size_bytes(&self) -> u64 {
        u64::from(self.base.size_lo) | u64::from(self.base.size_high) << 32
    }

    /// Sets `i_size`.
    pub fn set_size_bytes(&mut self, size: u64) {
        self.base.size_lo = (size & 0xffff_ffff) as u32;
        self.base.size_high = (size >> 32) as u32;
    }

    /// Offset of the in-inode attributes; `None` if the inode has no room for any.
    pub fn attributes_offset(&self) -> Option<usize> {
        let at = 128 + usize::from(self.extra.extra_isize);
        (self.raw.len() > 128 && at.is_multiple_of(4) && at + 4 <= self.raw.len()).then_some(at)
    }
}

impl<'a> Stage<'a> {
    /// A stage over `overlay`, which `evidence` examined.
    pub fn new(
        overlay: &'a Overlay<&'a dyn ReadBlocks>,
        evidence: &'a Examination<'a>,
        now_seconds: i64,
        random: [u8; 16],
    ) -> Self {
        let volume = &evidence.volume;
        let of_inodes = |problem: &Problem| matches!(problem, Problem::InodesPerGroupWrong { .. });
        let of_descriptors =
            |problem: &Problem| matches!(problem, Problem::DescriptorSizeWrong { .. });
        Self {
            overlay,
            geometry: volume.geometry.clone(),
            seed: volume.seed,
            superblock: volume.superblock.clone(),
            groups: volume.groups.clone(),
            changed_groups: BTreeSet::new(),
            all_groups: false,
            superblock_changed: false,
            backups: false,
            keeps_inodes_per_group: evidence.report.found.iter().any(of_inodes),
            keeps_desc_size: evidence.report.found.iter().any(of_descriptors),
            allocator: None,
            keeps_marked: false,
            backup_groups: OnceCell::new(),
            ledger: None,
            lost_found: None,
            notes: Vec::new(),
            lacks_evidence: Cell::new(false),
            evidence,
            journal_device: None,
            now_seconds,
            random,
        }
    }

    /// Keeps every block that the bitmaps mark as used, because part of the file system is
    /// unreadable and may claim it. Must be called before any allocation.
    pub(crate) const fn keep_marked(&mut self) {
        self.keeps_marked = true;
    }

    /// The stored block bitmap of a group, if its marks must be kept; an uninitialised bitmap marks
    /// nothing. `Some(Err)`: it is unreadable.
    pub(crate) fn marked_blocks(&self, group: GroupNr) -> Option<Result<Vec<u8>, Failure>> {
        let desc = self.group(group);
        let shortcuts = self.geometry.features.group_desc_csum();
        let was_written = !(shortcuts && desc.block_uninit());
        (self.keeps_marked && was_written).then(|| self.read_block(desc.block_bitmap))
    }

    /// The superblock with the edits of this round.
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The superblock, for editing.
    pub const fn superblock_mut(&mut self) -> &mut Superblock {
        self.superblock_changed = true;
        &mut self.superblock
    }

    /// Stores the value of `s_inodes_per_group` that the examination used.
    pub(crate) const fn mend_inodes_per_group(&mut self, count: u32) {
        self.keeps_inodes_per_group = false;
        self.superblock_mut().inodes_per_group = count;
    }

    /// Stores the value of `s_desc_size` that the examination used.
    pub(crate) const fn mend_desc_size(&mut self, bytes: u16) {
        self.keeps_desc_size = false;
        self.superblock_mut().desc_size = bytes;
    }

    /// The descriptor of a group with the edits of this round; a zeroed one if out of range.
    pub fn group(&self, group: GroupNr) -> GroupDesc {
        self.groups.get(group.0 as usize).copied().unwrap_or_default()
    }

    /// All descriptors from the first readable backup; empty if there is none.
    pub(crate) fn backup_groups(&self) -> &[GroupDesc] {
        self.backup_groups.get_or_init(|| self.read_backup_groups().unwrap_or_default())
    }

    fn read_backup_groups(&self) -> Option<Vec<GroupDesc>> {
        let (geometry, volume) = (&self.geometry, &self.evidence.volume);
        if volume.used_backup.is_some() {
            return None;
        }
        let backup =
            (1..geometry.group_count).find_map(|group| geometry.superblock_of(GroupNr(group)))?;
        let (device, superblock) = (volume.device, &volume.superblock);
        let mut unread = Findings::default();
        let groups = descriptors::read(device, superblock, geometry, Some(backup), &mut unread);
        unread.0.is_empty().then_some(groups)
    }

    /// Edits the descriptor of a group and updates its checksum.
    pub fn edit_group(&mut self, group: GroupNr, edit: impl FnOnce(&mut GroupDesc)) {
        if let Some(desc) = self.groups.get_mut(group.0 as usize) {
            edit(desc);
            self.changed_groups.insert(group.0);
        }
    }

    /// Rewrites all descriptors with new checksums at the end of the round.
    pub const fn rewrite_groups(&mut self) {
        self.all_groups = true;
    }

    /// Rewrites all backups at the end of the round.
    pub const fn write_backups(&mut self) {
        self.backups = true;
    }

    /// The lost+found directory, if there is a usable one.
    pub fn lost_found(&self) -> Option<InodeNr> {
        self.lost_found.or_else(|| {
            let inode = self.evidence.entries.lost_found?.inode;
            let image = self.read_inode(inode).ok()?;
            serves_as_lost_found(&image).then_some(inode)
        })
    }

    /// Sets a newly created lost+found.
    pub(crate) const fn set_lost_found(&mut self, inode: InodeNr) {
        self.lost_found = Some(inode);
    }

    /// Takes the ledger of shared clusters; computed from the findings on first use.
    pub(crate) fn take_ledger(&mut self) -> SharedLedger {
        let found = &self.evidence.report.found;
        self.ledger.take().unwrap_or_else(|| SharedLedger::of(found, &self.geometry))
    }

    /// Puts the ledger back for the next inode.
    pub(crate) fn put_ledger(&mut self, ledger: SharedLedger) {
        self.ledger = Some(ledger);
    }

    /// Adds a note for the report, beyond the description of the edit.
    pub fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// The notes since the last call.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Block size in bytes.
    pub const fn block_size(&self) -> usize {
        self.geometry.block_size as usize
    }

    /// The current time in 32 bits, for `i_mtime` and the like.
    pub const fn now32(&self) -> u32 {
        // Such fields hold the low 32 bits.
        self.now_seconds as u32
    }

    /// Reads a block with its staged edits.
    ///
    /// # Errors
    /// [`Failure::Misplaced`] outside the file system; a read error.
    pub fn read_block(&self, block: BlockNr) -> Result<Vec<u8>, Failure> {
        if !self.geometry.contains(block) {
            return Err(Failure::Misplaced(block));
        }
        let mut bytes = vec![0; self.block_size()];
        self.overlay.read_at(self.geometry.offset_bytes(block), &mut bytes)?;
        Ok(bytes)
    }

    /// Stages a block.
    ///
    /// # Errors
    /// [`Failure::Misplaced`] outside the file system; an error of the staging area.
    pub fn write_block(&self, block: BlockNr, bytes: &[u8]) -> Result<(), Failure> {
        if !self.geometry.contains(block) {
            return Err(Failure::Misplaced(block));
        }
        self.overlay.write_at(self.geometry.offset_bytes(block), bytes)?;
        Ok(())
    }

    /// Byte offset of an inode on the device.
    fn inode_offset(&self, inode: InodeNr) -> Result<u64, Failure> {
        let place = self.geometry.place_of(inode);
        let (group, index) = place.ok_or(Failure::NotNow("there is no such inode"))?;
        let table = self.group(group).inode_table;
        let run = BlockRun::new(table, u64::from(self.geometry.inode_table_blocks));
        if table.0 == 0
            || !self.geometry.contains(table)
            || run.end().0 > self.geometry.blocks_count
        {
            return Err(Failure::NotNow("the inode table has no location yet"));
        }
        let within = u64::from(index) * u64::from(self.geometry.inode_size);
        Ok(self.geometry.offset_bytes(table) + within)
    }

    /// Reads an inode with its staged edits.
    ///
    /// # Errors
    /// No such inode, a table without a valid location, or a read error.
    pub fn read_inode(&self, number: InodeNr) -> Result<InodeImage, Failure> {
        let mut raw = vec![0; self.geometry.inode_size as usize];
        self.overlay.read_at(self.inode_offset(number)?, &mut raw)?;
        InodeImage::of(number, raw).ok_or(Failure::NotNow("inodes are too short"))
    }

    /// Stages the raw bytes of an inode.
    ///
    /// # Errors
    /// As [`Stage::read_inode`].
    pub fn write_raw_inode(&self, number: InodeNr, raw: &[u8]) -> Result<(), Failure> {
        self.overlay.write_at(self.inode_offset(number)?, raw)?;
        Ok(())
    }

    /// Stages an inode and updates its checksum.
    ///
    /// # Errors
    /// As [`Stage::read_inode`].
    pub fn write_inode(&self, image: &InodeImage) -> Result<(), Failure> {
        let mut raw = image.raw.clone();
        if let Some(base) = raw.first_chunk_mut::<128>() {
            image.base.encode_into(base);
        }
        if let Some(extra) = raw.get_mut(128..).and_then(|rest| rest.first_chunk_mut::<32>()) {
            // Bytes beyond `extra_isize` belong to the attributes.
            let mut all = [0; 32];
            image.extra.encode_into(&mut all);
            let len = usize::from(image.extra.extra_isize).clamp(4, 32);
            extra[..len].copy_from_slice(&all[..len]);
        }
        if self.checksummed() {
            // Fails only for fewer than 128 bytes.
            let _ = inode::write_checksum(&mut raw, self.seed, image.number);
        }
        self.overlay.write_at(self.inode_offset(image.number)?, &raw)?;
        Ok(())
    }

    /// A new inode: one link, no content, with the current time.
    ///
    /// # Errors
    /// Inodes have fewer than 128 bytes.
    pub fn new_inode(&self, number: InodeNr, mode: u16) -> Result<InodeImage, Failure> {
        let mut image = InodeImage::of(number, vec![0; self.geometry.inode_size as usize])
            .ok_or(Failure::NotNow("inodes are too short"))?;
        let now = self.now32();
        image.base.mode = mode;
        image.base.links_count = 1;
        (image.base.mtime, image.base.ctime, image.base.atime) = (now, now, now);
        if self.geometry.inode_size > 128 {
            // A damaged `s_want_extra_isize` must not corrupt the inode.
            let most = u16::try_from(self.geometry.inode_size - 128).unwrap_or(u16::MAX);
            image.extra.extra_isize = self.superblock.want_extra_isize.clamp(4, most.max(4)) & !3;
        }
        Ok(image)
    }

    /// Edits an inode.
    ///
    /// # Errors
    /// As [`Stage::read_inode`].
    pub fn edit_inode(
        &self,
        number: InodeNr,
        edit: impl FnOnce(&mut InodeImage),
    ) -> Result<(), Failure> {
        let mut image = self.read_inode(number)?;
        edit(&mut image);
        self.write_inode(&image)
    }

    /// Whether metadata has checksums.
    pub fn checksummed(&self) -> bool {
        self.geometry.features.metadata_csum()
    }

    /// Checksum seed of the extent nodes and directory blocks of an inode.
    pub fn inode_seed(&self, image: &InodeImage) -> u32 {
        self.seed.of_inode(image.number, image.base.generation)
    }

    /// Ensures that the evidence covers all groups: an examination by fingerprints records the
    /// blocks in use of only a few (`docs/memory.md`).
    ///
    /// # Errors
    /// [`Failure::NotKept`], which ends the repair.
    pub(crate) fn must_know_all(&self) -> Result<(), Failure> {
        let volume = &self.evidence.volume;
        self.must(volume.scope.is_all() && volume.claim_scope.is_all())
    }

    /// As [`Stage::must_know_all`], for one group.
    ///
    /// # Errors
    /// [`Failure::NotKept`], which ends the repair.
    pub(crate) fn must_know(&self, group: GroupNr) -> Result<(), Failure> {
        let volume = &self.evidence.volume;
        self.must(volume.scope.contains(group) && volume.claim_scope.contains(group))
    }

    fn must(&self, known: bool) -> Result<(), Failure> {
        if known {
            return Ok(());
        }
        self.lacks_evidence.set(true);
        Err(Failure::NotKept)
    }

    /// Whether any call returned [`Failure::NotKept`], even if the caller tolerated it.
    pub(crate) fn lacks_evidence(&self) -> bool {
        self.lacks_evidence.get()
    }

    /// Whether more than one owner claims a block, or it holds metadata.
    pub fn is_contested(&self, block: BlockNr) -> bool {
        self.geometry.contains(block)
            && (self.evidence.claims.shared().contains(self.geometry.cluster_of(block))
                || self.evidence.volume.is_metadata(block))
    }

    /// Whether the cluster of a block is claimed; `false` outside the file system. Without evidence
    /// for the group the repair ends ([`Stage::lacks_evidence`]).
    pub(crate) fn is_claimed(&self, block: BlockNr) -> bool {
        let kept = self.geometry.group_of(block).map_or(Ok(()), |group| self.must_know(group));
        kept.is_ok() && self.evidence.claims.used().contains(self.geometry.cluster_of(block))
    }

    /// Allocates a free cluster and returns its first block, at or after `goal` if possible.
    ///
    /// # Errors
    /// [`Failure::NoSpace`].
    pub fn allocate(&mut self, goal: BlockNr) -> Result<BlockNr, Failure> {
        loop {
            // An unreadable block is useless and stays allocated.
            let block = self.allocator()?.block(goal).ok_or(Failure::NoSpace("block"))?;
            if self
                .hidden_in(BlockRun::new(block, u64::from(self.geometry.cluster_blocks)))
                .is_none()
            {
                return Ok(block);
            }
        }
    }

    /// The first unreadable block of a run, if unreadable blocks must be kept.
    fn hidden_in(&self, run: BlockRun) -> Option<BlockNr> {
        if !self.overlay.protects() {
            return None;
        }
        let last = run.end().0.min(self.geometry.blocks_count);
        (run.start.0..last).map(BlockNr).find(|&block| self.read_block(block).is_err())
    }

    /// Number of free clusters.
    ///
    /// # Errors
    /// [`Failure::NotKept`].
    pub(crate) fn free_clusters(&mut self) -> Result<u64, Failure> {
        Ok(self.allocator()?.left())
    }

    /// Makes every later allocation of blocks fail.
    pub(crate) fn hand_out_no_more(&mut self) {
        if let Some(allocator) = &mut self.allocator {
            allocator.hand_out_no_more();
        }
    }

    /// Allocates one block per goal, or none.
    ///
    /// # Errors
    /// [`Failure::NoSpace`].
    pub(crate) fn allocate_all(&mut self, goals: &[BlockNr]) -> Result<Vec<BlockNr>, Failure> {
        if goals.is_empty() {
            return Ok(Vec::new());
        }
        if self.free_clusters()? < goals.len() as u64 {
            return Err(Failure::NoSpace("block"));
        }
        goals.iter().map(|&goal| self.allocate(goal)).collect()
    }

    /// Allocates a run of free blocks inside `within`.
    ///
    /// # Errors
    /// [`Failure::NoSpace`].
    pub fn allocate_run(&mut self, within: BlockRun, len_blocks: u64) -> Result<BlockNr, Failure> {
        let mut within = within;
        loop {
            let start = self.allocator()?.run(within, len_blocks);
            let start = start.ok_or(Failure::NoSpace("run of blocks"))?;
            let Some(hidden) = self.hidden_in(BlockRun::new(start, len_blocks)) else {
                return Ok(start);
            };
            within =
                BlockRun::new(BlockNr(hidden.0 + 1), within.end().0.saturating_sub(hidden.0 + 1));
        }
    }

    /// Excludes blocks from allocation although nothing claims them; ignores blocks outside the
    /// file system.
    ///
    /// # Errors
    /// [`Failure::NotKept`].
    pub(crate) fn withhold(&mut self, run: BlockRun) -> Result<(), Failure> {
        self.allocator()?.withhold(run);
        Ok(())
    }

    /// The allocator, which needs evidence for all groups.
    fn allocator(&mut self) -> Result<&mut Allocator<'a>, Failure> {
        self.must_know_all()?;
        let allocator = self.allocator.take().unwrap_or_else(|| self.new_allocator());
        Ok(self.allocator.insert(allocator))
    }

    fn new_allocator(&self) -> Allocator<'a> {
        let mut allocator = Allocator::new(self.evidence);
        for group in (0..self.geometry.group_count).map(GroupNr) {
            match self.marked_blocks(group) {
                Some(Ok(bitmap)) => allocator.avoid_marked(group, &bitmap),
                Some(Err(_)) => allocator.avoid_group(group),
                None => {}
            }
        }
        allocator
    }

    /// Allocates an inode, in the group of `near` if possible, and marks its part of the inode
    /// table as initialised.
    ///
    /// # Errors
    /// [`Failure::NoSpace`].
    pub fn allocate_inode(&mut self, near: InodeNr) -> Result<InodeNr, Failure> {
        let inode = self.allocator()?.inode(near).ok_or(Failure::NoSpace("inode"))?;
        self.uncover_inode(inode)?;
        Ok(inode)
    }

    /// Clears the uninit flags of a group and lowers its unused inode count as far as an inode
    /// requires. That part of the table was never written, so it is zeroed up to the inode.
    ///
    /// # Errors
    /// The table cannot be staged.
    pub fn uncover_inode(&mut self, inode: InodeNr) -> Result<(), Failure> {
        if !self.geometry.features.group_desc_csum() {
            return Ok(());
        }
        let Some((group, index)) = self.geometry.place_of(inode) else { return Ok(()) };
        let desc = self.group(group);
        let per_group = self.geometry.inodes_per_group;
        let bound =
            if desc.inode_uninit() { 0 } else { per_group.saturating_sub(desc.itable_unused) };
        if index < bound {
            return Ok(());
        }
        let zeroes = vec![0; self.geometry.inode_size as usize];
        for hidden in bound..=index {
            let offset = self.inode_offset(self.geometry.inode_at(group, hidden))?;
            self.overlay.write_at(offset, &zeroes)?;
        }
        self.edit_group(group, |desc| {
            if desc.inode_uninit() {
                desc.flags &= !floe_format::ext::group_desc::FLAG_INODE_UNINIT;
            }
            desc.itable_unused = per_group - index - 1;
        });
        Ok(())
    }

    /// Stages superblock and descriptors with their checksums.
    ///
    /// # Errors
    /// They cannot be staged.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.write_groups()?;
        if self.superblock_changed {
            self.write_superblock(OFFSET_BYTES, &self.superblock.clone())?;
        }
        if self.backups {
            match self.write_all_backups() {
                // A truncated device lacks some of the blocks; the check reports that.
                Err(Failure::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                written => written?,
            }
        }
        Ok(())
    }

    /// Stages a superblock with its checksum, at a byte offset of the device.
    fn write_superblock(&self, offset: u64, superblock: &Superblock) -> Result<(), Failure> {
        let mut bytes = [0; 1024];
        let mut superblock = superblock.clone();
        if self.keeps_inodes_per_group {
            superblock.inodes_per_group = self.stored_copy(offset)?.inodes_per_group;
        }
        if self.keeps_desc_size {
            superblock.desc_size = self.stored_copy(offset)?.desc_size;
        }
        superblock.encode_with_checksum(&mut bytes);
        self.overlay.stage_readable_sectors(offset)?;
        self.overlay.write_at(offset, &bytes)?;
        Ok(())
    }

    /// A backup of the superblock; if invalid, the primary one.
    fn stored_copy(&self, offset: u64) -> Result<Superblock, Failure> {
        let stored = |offset| {
            let mut bytes = [0; 1024];
            self.overlay.read_at(offset, &mut bytes).map(|()| Superblock::decode(&bytes))
        };
        let copy = stored(offset).ok().filter(|copy| copy.magic == MAGIC);
        Ok(copy.map_or_else(|| stored(OFFSET_BYTES), Ok)?)
    }

    /// The encoded descriptor of a group, with its checksum.
    fn encode_group(&self, group: GroupNr) -> Vec<u8> {
        let mut raw = vec![0; self.geometry.desc_size as usize];
        self.group(group).seal(&mut raw, group, DescChecksum::of(&self.superblock));
        raw
    }

    fn write_groups(&mut self) -> Result<(), Failure> {
        let changed: Vec<u32> = if self.all_groups {
            (0..self.geometry.group_count).collect()
        } else {
            self.changed_groups.iter().copied().collect()
        };
        let size = self.geometry.desc_size;
        let per_block = self.geometry.block_size / size;
        for group in changed {
            let index = group / per_block;
            let block = self.geometry.primary_desc_block(index);
            if group % per_block == 0 && self.all_groups && self.read_block(block).is_err() {
                // An unreadable block can only be written as a whole.
                self.write_block(block, &self.descriptor_block(index))?;
                continue;
            }
            let offset = self.geometry.offset_bytes(block) + u64::from(group % per_block * size);
            self.overlay.write_at(offset, &self.encode_group(GroupNr(group)))?;
        }
        Ok(())
    }

    /// Block `index` of the descriptor table.
    fn descriptor_block(&self, index: u32) -> Vec<u8> {
        let geometry = &self.geometry;
        let per_block = geometry.block_size / geometry.desc_size;
        let first = index * per_block;
        let count = per_block.min(geometry.group_count - first);
        let mut bytes = vec![0; self.block_size()];
        let slots = bytes.chunks_exact_mut(geometry.desc_size as usize);
        for (slot, nr) in slots.zip(first..first + count) {
            slot.copy_from_slice(&self.encode_group(GroupNr(nr)));
        }
        bytes
    }

    /// Stages all backups: superblocks marked clean, then descriptors.
    fn write_all_backups(&self) -> Result<(), Failure> {
        let geometry = &self.geometry;
        let per_block = geometry.block_size / geometry.desc_size;
        for group in (1..geometry.group_count).map(GroupNr) {
            if let Some(block) = geometry.superblock_of(group) {
                let mut copy = self.superblock.clone();
                // `s_block_group_nr` has 16 bits and stores the low ones; readers know the group
                // from the location.
                copy.block_group_nr = (group.0 & 0xffff) as u16;
                copy.state &= !floe_format::ext::superblock::STATE_VALID;
                copy.feature_incompat &= !floe_format::features::Incompat::RECOVER.bits();
                unless_hidden(self.write_superblock(geometry.offset_bytes(block), &copy))?;
            }
            let run = geometry.group_desc_run(group);
            let meta_bg = run.len_blocks == 1
                && group.0 / per_block >= geometry.first_meta_bg
                && geometry.features.incompat.contains(floe_format::features::Incompat::META_BG);
            for at in 0..run.len_blocks {
                // At most the number of descriptor blocks, which has 32 bits.
                let index = if meta_bg { group.0 / per_block } else { at as u32 };
                if index >= geometry.desc_blocks
                    || geometry.primary_desc_block(index).0 == run.start.0 + at
                {
                    continue;
                }
                let block = BlockNr(run.start.0 + at);
                unless_hidden(self.write_block(block, &self.descriptor_block(index)))?;
            }
        }
        Ok(())
    }
}

/// Ignores an unreadable backup block; the check reports it.
fn unless_hidden(written: Result<(), Failure>) -> Result<(), Failure> {
    match written {
        Err(Failure::Unreadable(_)) => Ok(()),
        written => written,
    }
}
