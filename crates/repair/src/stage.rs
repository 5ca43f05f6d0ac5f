//! A file system whose edits are staged: reads see them, the device does not.
//!
//! One stage lives for one round: it looks at the evidence of one examination, edits, and writes
//! superblock and descriptors back into the overlay at its end.

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

/// `i_mode` of a regular file that its owner alone may read and write.
pub(crate) const MODE_PRIVATE: u16 = 0o100_600;

/// A file system being repaired, for one round.
pub struct Stage<'a> {
    /// Where edits go.
    pub overlay: &'a Overlay<&'a dyn ReadBlocks>,
    /// What the examination of this round learned.
    pub evidence: &'a Examination<'a>,
    /// The device of an external journal, where edits of it go.
    pub journal_device: Option<&'a Overlay<&'a dyn ReadBlocks>>,
    /// What follows from the superblock as it was at the start of the round.
    pub geometry: Geometry,
    /// The start of metadata checksums.
    pub seed: Seed,
    /// Seconds since 1970 that count as now.
    pub now_seconds: i64,
    /// 16 random bytes, for a file system that has no UUID.
    pub random: [u8; 16],
    superblock: Superblock,
    groups: Vec<GroupDesc>,
    changed_groups: BTreeSet<u32>,
    all_groups: bool,
    superblock_changed: bool,
    backups: bool,
    /// The superblock is looked at with another `s_inodes_per_group` than it has (finding
    /// `inodes-per-group-wrong`), and that is not mended in this round: each copy keeps its own.
    keeps_inodes_per_group: bool,
    /// The same of `s_desc_size` (finding `descriptor-size-wrong`).
    keeps_desc_size: bool,
    // Made when it is first asked: it copies the map of what is in use.
    allocator: Option<Allocator<'a>>,
    /// What bitmaps mark as used is kept, although nothing was found to use it: see
    /// [`Stage::keep_marked`].
    keeps_marked: bool,
    /// All descriptors as a backup has them, once somebody asked.
    backup_groups: OnceCell<Vec<GroupDesc>>,
    ledger: Option<SharedLedger>,
    lost_found: Option<InodeNr>,
    notes: Vec<String>,
    /// Something was asked for that the evidence of this examination does not have.
    lacks_evidence: Cell<bool>,
}

/// An inode, taken apart.
#[derive(Clone, Debug)]
pub struct InodeImage {
    /// Its number.
    pub number: InodeNr,
    /// The first 128 bytes.
    pub base: InodeBase,
    /// The fields behind, zero where the inode is too short.
    pub extra: InodeExtra,
    /// All bytes, `s_inode_size` of them; those of `base` and `extra` are replaced when it is
    /// written.
    pub raw: Vec<u8>,
}

impl InodeImage {
    /// Takes the bytes of an inode apart; `None` below 128 bytes.
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

    /// Where in-inode attributes begin; `None` if the inode has no room for them.
    pub fn attributes_offset(&self) -> Option<usize> {
        let at = 128 + usize::from(self.extra.extra_isize);
        (self.raw.len() > 128 && at.is_multiple_of(4) && at + 4 <= self.raw.len()).then_some(at)
    }
}

impl<'a> Stage<'a> {
    /// A stage over `overlay` as `evidence` found it.
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

    /// Not all of the file system could be read: what its bitmaps mark as used may be in use. To be
    /// said before anything is allocated.
    pub(crate) const fn keep_marked(&mut self) {
        self.keeps_marked = true;
    }

    /// The block bitmap of a group as it is, if what it marks is to be kept; a group whose bitmap was
    /// never written marks nothing. `Some(Err)`: it cannot be read.
    pub(crate) fn marked_blocks(&self, group: GroupNr) -> Option<Result<Vec<u8>, Failure>> {
        let desc = self.group(group);
        let shortcuts = self.geometry.features.group_desc_csum();
        let was_written = !(shortcuts && desc.block_uninit());
        (self.keeps_marked && was_written).then(|| self.read_block(desc.block_bitmap))
    }

    /// The superblock, with the edits of this round.
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The superblock, to be changed.
    pub const fn superblock_mut(&mut self) -> &mut Superblock {
        self.superblock_changed = true;
        &mut self.superblock
    }

    /// The superblock gets the inodes of a group with which it was looked at.
    pub(crate) const fn mend_inodes_per_group(&mut self, count: u32) {
        self.keeps_inodes_per_group = false;
        self.superblock_mut().inodes_per_group = count;
    }

    /// The superblock gets the size of descriptors with which it was looked at.
    pub(crate) const fn mend_desc_size(&mut self, bytes: u16) {
        self.keeps_desc_size = false;
        self.superblock_mut().desc_size = bytes;
    }

    /// The descriptor of a group, with the edits of this round; a zeroed one outside.
    pub fn group(&self, group: GroupNr) -> GroupDesc {
        self.groups.get(group.0 as usize).copied().unwrap_or_default()
    }

    /// All descriptors as the first backup that can be read has them; none if there is none.
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

    /// Changes the descriptor of a group; its checksum follows.
    pub fn edit_group(&mut self, group: GroupNr, edit: impl FnOnce(&mut GroupDesc)) {
        if let Some(desc) = self.groups.get_mut(group.0 as usize) {
            edit(desc);
            self.changed_groups.insert(group.0);
        }
    }

    /// All descriptors are written with new checksums.
    pub const fn rewrite_groups(&mut self) {
        self.all_groups = true;
    }

    /// Backups are written at the end of the round.
    pub const fn write_backups(&mut self) {
        self.backups = true;
    }

    /// The directory for what has no name, if there is a usable one.
    pub fn lost_found(&self) -> Option<InodeNr> {
        self.lost_found.or_else(|| {
            let inode = self.evidence.entries.lost_found?.inode;
            let image = self.read_inode(inode).ok()?;
            serves_as_lost_found(&image).then_some(inode)
        })
    }

    /// A new lost+found.
    pub(crate) const fn set_lost_found(&mut self, inode: InodeNr) {
        self.lost_found = Some(inode);
    }

    /// Who still shares which blocks; made from the findings when it is first asked for.
    pub(crate) fn take_ledger(&mut self) -> SharedLedger {
        let found = &self.evidence.report.found;
        self.ledger.take().unwrap_or_else(|| SharedLedger::of(found, &self.geometry))
    }

    /// Keeps it for the next inode.
    pub(crate) fn put_ledger(&mut self, ledger: SharedLedger) {
        self.ledger = Some(ledger);
    }

    /// Tells the person something that the edit alone does not say.
    pub fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// What was told since the last call.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Bytes of a block.
    pub const fn block_size(&self) -> usize {
        self.geometry.block_size as usize
    }

    /// `i_mtime` and the like: now, in 32 bits.
    pub const fn now32(&self) -> u32 {
        // The low 32 bits are what such fields hold.
        self.now_seconds as u32
    }

    /// One block, with the edits.
    ///
    /// # Errors
    /// [`Failure::Misplaced`] outside the file system, or that it cannot be read.
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
    /// [`Failure::Misplaced`] outside the file system, or that it cannot be staged.
    pub fn write_block(&self, block: BlockNr, bytes: &[u8]) -> Result<(), Failure> {
        if !self.geometry.contains(block) {
            return Err(Failure::Misplaced(block));
        }
        self.overlay.write_at(self.geometry.offset_bytes(block), bytes)?;
        Ok(())
    }

    /// Byte of the device at which an inode lies.
    fn inode_offset(&self, inode: InodeNr) -> Result<u64, Failure> {
        let place = self.geometry.place_of(inode);
        let (group, index) = place.ok_or(Failure::NotNow("there is no such inode"))?;
        let table = self.group(group).inode_table;
        let run = BlockRun::new(table, u64::from(self.geometry.inode_table_blocks));
        if table.0 == 0
            || !self.geometry.contains(table)
            || run.end().0 > self.geometry.blocks_count
        {
            return Err(Failure::NotNow("the inode table has no place yet"));
        }
        let within = u64::from(index) * u64::from(self.geometry.inode_size);
        Ok(self.geometry.offset_bytes(table) + within)
    }

    /// An inode, with the edits.
    ///
    /// # Errors
    /// That there is no such inode, its table has no place, or it cannot be read.
    pub fn read_inode(&self, number: InodeNr) -> Result<InodeImage, Failure> {
        let mut raw = vec![0; self.geometry.inode_size as usize];
        self.overlay.read_at(self.inode_offset(number)?, &mut raw)?;
        InodeImage::of(number, raw).ok_or(Failure::NotNow("inodes are too short"))
    }

    /// Stages the bytes of an inode as they are.
    ///
    /// # Errors
    /// As [`Stage::read_inode`].
    pub fn write_raw_inode(&self, number: InodeNr, raw: &[u8]) -> Result<(), Failure> {
        self.overlay.write_at(self.inode_offset(number)?, raw)?;
        Ok(())
    }

    /// Stages an inode with its checksum.
    ///
    /// # Errors
    /// As [`Stage::read_inode`].
    pub fn write_inode(&self, image: &InodeImage) -> Result<(), Failure> {
        let mut raw = image.raw.clone();
        if let Some(base) = raw.first_chunk_mut::<128>() {
            image.base.encode_into(base);
        }
        if let Some(extra) = raw.get_mut(128..).and_then(|rest| rest.first_chunk_mut::<32>()) {
            // Fields beyond `extra_isize` belong to the attributes.
            let mut all = [0; 32];
            image.extra.encode_into(&mut all);
            let len = usize::from(image.extra.extra_isize).clamp(4, 32);
            extra[..len].copy_from_slice(&all[..len]);
        }
        if self.checksummed() {
            // Nothing else than a length below 128 fails.
            let _ = inode::write_checksum(&mut raw, self.seed, image.number);
        }
        self.overlay.write_at(self.inode_offset(image.number)?, &raw)?;
        Ok(())
    }

    /// An inode of a new file: one link, no content, made now.
    ///
    /// # Errors
    /// That inodes are too short.
    pub fn new_inode(&self, number: InodeNr, mode: u16) -> Result<InodeImage, Failure> {
        let mut image = InodeImage::of(number, vec![0; self.geometry.inode_size as usize])
            .ok_or(Failure::NotNow("inodes are too short"))?;
        let now = self.now32();
        image.base.mode = mode;
        image.base.links_count = 1;
        (image.base.mtime, image.base.ctime, image.base.atime) = (now, now, now);
        if self.geometry.inode_size > 128 {
            // A damaged wish must not spoil the inode.
            let most = u16::try_from(self.geometry.inode_size - 128).unwrap_or(u16::MAX);
            image.extra.extra_isize = self.superblock.want_extra_isize.clamp(4, most.max(4)) & !3;
        }
        Ok(image)
    }

    /// Changes an inode.
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

    /// The start of checksums of what belongs to an inode: extent nodes, directory blocks.
    pub fn inode_seed(&self, image: &InodeImage) -> u32 {
        self.seed.of_inode(image.number, image.base.generation)
    }

    /// To be asked before what is in use of all groups is believed: an examination by sums knows that of a
    /// few alone (`docs/memory.md`).
    ///
    /// # Errors
    /// [`Failure::NotKept`], which ends the repair.
    pub(crate) fn must_know_all(&self) -> Result<(), Failure> {
        let volume = &self.evidence.volume;
        self.must(volume.scope.is_all() && volume.claim_scope.is_all())
    }

    /// As [`Stage::must_know_all`], of one group.
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

    /// Whether [`Failure::NotKept`] was the answer to anything, even if whoever asked did without.
    pub(crate) fn lacks_evidence(&self) -> bool {
        self.lacks_evidence.get()
    }

    /// Whether more than one owner claims a block, or metadata of the file system lies there.
    pub fn is_contested(&self, block: BlockNr) -> bool {
        self.geometry.contains(block)
            && (self.evidence.claims.shared().contains(self.geometry.cluster_of(block))
                || self.evidence.volume.is_metadata(block))
    }

    /// Whether anything claims a block's cluster; of one outside the file system, nobody asks. Where that
    /// was not kept, the repair ends ([`Stage::lacks_evidence`]).
    pub(crate) fn is_claimed(&self, block: BlockNr) -> bool {
        let kept = self.geometry.group_of(block).map_or(Ok(()), |group| self.must_know(group));
        kept.is_ok() && self.evidence.claims.used().contains(self.geometry.cluster_of(block))
    }

    /// A block that nothing uses (the first one of its cluster), best at or behind `goal`.
    ///
    /// # Errors
    /// [`Failure::NoSpace`].
    pub fn allocate(&mut self, goal: BlockNr) -> Result<BlockNr, Failure> {
        loop {
            // One that cannot be read is of no use to anybody, and stays taken.
            let block = self.allocator()?.block(goal).ok_or(Failure::NoSpace("block"))?;
            if self
                .hidden_in(BlockRun::new(block, u64::from(self.geometry.cluster_blocks)))
                .is_none()
            {
                return Ok(block);
            }
        }
    }

    /// The first block of a run that cannot be read, where that matters.
    fn hidden_in(&self, run: BlockRun) -> Option<BlockNr> {
        if !self.overlay.protects() {
            return None;
        }
        let last = run.end().0.min(self.geometry.blocks_count);
        (run.start.0..last).map(BlockNr).find(|&block| self.read_block(block).is_err())
    }

    /// Clusters that can still be allocated.
    ///
    /// # Errors
    /// [`Failure::NotKept`].
    pub(crate) fn free_clusters(&mut self) -> Result<u64, Failure> {
        Ok(self.allocator()?.left())
    }

    /// No block is allocated any more.
    pub(crate) fn hand_out_no_more(&mut self) {
        if let Some(allocator) = &mut self.allocator {
            allocator.hand_out_no_more();
        }
    }

    /// As many blocks as there are goals, or none.
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

    /// A free run of blocks inside `within`.
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

    /// Blocks that are not to be handed out although nothing was found to use them; those outside the
    /// file system are nobody's concern.
    ///
    /// # Errors
    /// [`Failure::NotKept`].
    pub(crate) fn withhold(&mut self, run: BlockRun) -> Result<(), Failure> {
        self.allocator()?.withhold(run);
        Ok(())
    }

    /// What it hands out follows from what all of the file system has in use.
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

    /// A free inode, best in the group of `near`; the shortcuts of its group no longer hide it.
    ///
    /// # Errors
    /// [`Failure::NoSpace`].
    pub fn allocate_inode(&mut self, near: InodeNr) -> Result<InodeNr, Failure> {
        let inode = self.allocator()?.inode(near).ok_or(Failure::NoSpace("inode"))?;
        self.uncover_inode(inode)?;
        Ok(inode)
    }

    /// Makes the shortcuts of a group admit that an inode may be in use. What they hid was never
    /// written, so it is zeroed up to the inode.
    ///
    /// # Errors
    /// That the table cannot be staged.
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

    /// Stages superblock and descriptors, with their checksums.
    ///
    /// # Errors
    /// That they cannot be staged.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.write_groups()?;
        if self.superblock_changed {
            self.write_superblock(OFFSET_BYTES, &self.superblock.clone())?;
        }
        if self.backups {
            match self.write_all_backups() {
                // A device that was cut off has no room for some; the check says so.
                Err(Failure::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                written => written?,
            }
        }
        Ok(())
    }

    /// A superblock with its checksum, at a byte of the device.
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

    /// A copy of the superblock; where there is none, the primary one.
    fn stored_copy(&self, offset: u64) -> Result<Superblock, Failure> {
        let stored = |offset| {
            let mut bytes = [0; 1024];
            self.overlay.read_at(offset, &mut bytes).map(|()| Superblock::decode(&bytes))
        };
        let copy = stored(offset).ok().filter(|copy| copy.magic == MAGIC);
        Ok(copy.map_or_else(|| stored(OFFSET_BYTES), Ok)?)
    }

    /// The bytes of a descriptor, with its checksum.
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
                // What cannot be read can only be written whole.
                self.write_block(block, &self.descriptor_block(index))?;
                continue;
            }
            let offset = self.geometry.offset_bytes(block) + u64::from(group % per_block * size);
            self.overlay.write_at(offset, &self.encode_group(GroupNr(group)))?;
        }
        Ok(())
    }

    /// Block `index` of a table of descriptors.
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

    /// All backups: superblocks as those of a clean file system, then descriptors.
    fn write_all_backups(&self) -> Result<(), Failure> {
        let geometry = &self.geometry;
        let per_block = geometry.block_size / geometry.desc_size;
        for group in (1..geometry.group_count).map(GroupNr) {
            if let Some(block) = geometry.superblock_of(group) {
                let mut copy = self.superblock.clone();
                // Groups past 65,535 store what fits; readers know their place anyway.
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
                // At most the number of descriptor blocks, which is 32 bits.
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

/// A backup in a block that cannot be read is left; the check says so.
fn unless_hidden(written: Result<(), Failure>) -> Result<(), Failure> {
    match written {
        Err(Failure::Unreadable(_)) => Ok(()),
        written => written,
    }
}
