//! Writes a planned file system: data first, the superblock last.

use std::io;

use floe_blockdev::WriteBlocks;
use floe_format::ext::bitmap;
use floe_format::ext::group_desc::{DescChecksum, FLAG_BLOCK_UNINIT, FLAG_INODE_UNINIT, GroupDesc};
use floe_format::ext::superblock::{OFFSET_BYTES, STATE_VALID, Superblock};
use floe_format::native::identity::Identity;
use floe_format::{BlockNr, BlockRun, GroupNr};

use super::plan::Plan;

/// Bytes written at a time.
const CHUNK_BYTES: u64 = 1 << 20;

/// Bytes at the start that are zeroed before anything is written: the last known signature there is
/// that of Btrfs, at 64 KiB.
const HEAD_BYTES: u64 = 128 << 10;
/// Bytes at the end, where md 0.9 has its superblock.
const TAIL_BYTES: u64 = 128 << 10;

/// Why a file system was not written. It has no superblock then.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {what} at byte {offset_bytes}")]
pub struct WriteError {
    /// The structure that was being written.
    pub what: &'static str,
    /// Offset on the device.
    pub offset_bytes: u64,
    /// The system's error.
    pub source: io::Error,
}

/// Writes an empty file system.
///
/// Destroys an old superblock first, and writes the new one last, after a flush, so that a
/// half-written file system is never recognised as one.
///
/// # Errors
/// The device's error.
pub fn write(plan: &Plan, device: &dyn WriteBlocks) -> Result<(), WriteError> {
    write_with(plan, device, WriteOptions::default())
}

/// Options for writing a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// The device reads as zeroes wherever it was not written, so zeroes need not be written.
    pub reads_as_zeroes: bool,
}

/// [`write()`] with options.
///
/// # Errors
/// Those of [`write()`].
pub fn write_with(
    plan: &Plan,
    device: &dyn WriteBlocks,
    options: WriteOptions,
) -> Result<(), WriteError> {
    let out = Output::new(plan, device, options);
    out.begin()?;
    out.pieces()?;
    out.tables()?;
    out.finish()
}

/// Writes a plan to a device.
pub(super) struct Output<'a> {
    pub(super) plan: &'a Plan,
    pub(super) device: &'a dyn WriteBlocks,
    options: WriteOptions,
}

impl<'a> Output<'a> {
    pub(super) fn new(plan: &'a Plan, device: &'a dyn WriteBlocks, options: WriteOptions) -> Self {
        Self { plan, device, options }
    }

    pub(super) fn put(
        &self,
        what: &'static str,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Result<(), WriteError> {
        self.device.write_at(offset_bytes, bytes).map_err(|source| WriteError {
            what,
            offset_bytes,
            source,
        })
    }

    fn flush(&self) -> Result<(), WriteError> {
        let failed =
            |source| WriteError { what: "out the device's cache", offset_bytes: 0, source };
        self.device.flush().map_err(failed)
    }

    fn offset(&self, block: BlockNr) -> u64 {
        self.plan.geometry.offset_bytes(block)
    }

    /// Destroys the signatures of earlier content: first the superblock, then the places where boot
    /// sectors, partition tables, other file systems and RAID members have theirs.
    pub(super) fn begin(&self) -> Result<(), WriteError> {
        self.put("over an old superblock", OFFSET_BYTES, &[0; Superblock::SIZE])?;
        let size = self.plan.bytes();
        self.zero("over old signatures", 0, HEAD_BYTES.min(size))?;
        self.zero("over old signatures", size - TAIL_BYTES.min(size), TAIL_BYTES.min(size))
    }

    /// Zeroes a range, except holes.
    pub(super) fn zero(&self, what: &'static str, start: u64, len: u64) -> Result<(), WriteError> {
        if self.options.reads_as_zeroes || self.device.is_hole(start, len) {
            return Ok(());
        }
        let zeroes = vec![0; CHUNK_BYTES.min(len) as usize];
        let mut done = 0;
        while done < len {
            let now = CHUNK_BYTES.min(len - done);
            if !self.device.is_hole(start + done, now) {
                self.put(what, start + done, &zeroes[..now as usize])?;
            }
            done += now;
        }
        Ok(())
    }

    /// Writes the ranges that must be zero, and all pieces.
    pub(super) fn pieces(&self) -> Result<(), WriteError> {
        let block_size = u64::from(self.plan.geometry.block_size);
        for run in &self.plan.zero {
            self.zero("a journal", self.offset(run.start), run.len_blocks * block_size)?;
        }
        let mut pieces: Vec<_> = self.plan.pieces.iter().collect();
        pieces.sort_by_key(|piece| piece.block);
        for piece in pieces {
            self.put("a structure", self.offset(piece.block), &piece.bytes)?;
        }
        Ok(())
    }

    /// Writes the inode tables of an empty file system.
    pub(super) fn tables(&self) -> Result<(), WriteError> {
        let geometry = &self.plan.geometry;
        for group in (0..geometry.group_count).map(GroupNr) {
            self.table(group, |_, _, _| Ok::<_, WriteError>(()))?;
        }
        Ok(())
    }

    /// Writes the inode table of a group. `fill` adds inodes to a part of it: group, index of the
    /// first inode, bytes of whole inodes.
    pub(super) fn table<E: From<WriteError>>(
        &self,
        group: GroupNr,
        fill: impl Fn(GroupNr, u32, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (plan, geometry) = (self.plan, &self.plan.geometry);
        let block_size = u64::from(geometry.block_size);
        let start = self.offset(plan.descs[group.0 as usize].inode_table);
        let len = u64::from(geometry.inode_table_blocks) * block_size;
        let used = u64::from(plan.inodes_in(group)) * plan.form.size as u64;
        let used = used.next_multiple_of(block_size).min(len);
        let mut done = 0;
        while done < used {
            let now = CHUNK_BYTES.min(used - done);
            let mut bytes = vec![0; now as usize];
            let first = (done / plan.form.size as u64) as u32;
            plan.system_inodes(group, first, &mut bytes);
            fill(group, first, &mut bytes)?;
            self.put("an inode table", start + done, &bytes)?;
            done += now;
        }
        if plan.params.lazy_tables && geometry.features.group_desc_csum() {
            return Ok(());
        }
        Ok(self.zero("an inode table", start + used, len - used)?)
    }

    /// Writes bitmaps, descriptors and backups, flushes, writes the superblock, flushes.
    pub(super) fn finish(&self) -> Result<(), WriteError> {
        let table = self.descriptors()?;
        let geometry = &self.plan.geometry;
        for group in (0..geometry.group_count).rev().map(GroupNr) {
            let run = geometry.group_desc_run(group);
            if run.len_blocks > 0 {
                self.put("descriptors", self.offset(run.start), &self.part(&table, group, run))?;
            }
            if group.0 > 0
                && let Some(block) = geometry.superblock_of(group)
            {
                let bytes = self.superblock_bytes(group);
                let mut whole = vec![0; geometry.block_size as usize];
                whole[..bytes.len()].copy_from_slice(&bytes);
                self.put("a backup of the superblock", self.offset(block), &whole)?;
            }
        }
        self.flush()?;
        self.put("the superblock", OFFSET_BYTES, &self.superblock_bytes(GroupNr(0)))?;
        let flushed = self.flush();
        if flushed.is_err() {
            // Nobody is to take for whole a file system that the device did not keep. The first error is the one to tell.
            let _ = self.put("over the superblock", OFFSET_BYTES, &[0; Superblock::SIZE]);
        }
        flushed
    }

    /// The part of the descriptor table that belongs into a group.
    fn part(&self, table: &[u8], group: GroupNr, run: BlockRun) -> Vec<u8> {
        let geometry = &self.plan.geometry;
        let block_size = geometry.block_size as usize;
        let first = if geometry.meta_group_of(group) < geometry.first_meta_bg {
            0
        } else {
            geometry.meta_group_of(group) as usize * block_size
        };
        let len = run.len_blocks as usize * block_size;
        table.get(first..first + len).unwrap_or(&[]).to_vec()
    }

    fn superblock_bytes(&self, group: GroupNr) -> [u8; Superblock::SIZE] {
        let mut bytes = [0; Superblock::SIZE];
        let mut superblock = self.plan.superblock.clone();
        superblock.block_group_nr = group.0.min(u32::from(u16::MAX)) as u16;
        if group.0 > 0 {
            // Whoever starts from a copy does so because something is damaged, and is to check.
            superblock.state &= !STATE_VALID;
        }
        if group.0 == 0
            && let Some(identity) = Identity::of(&superblock)
        {
            identity.put_sealed(&mut superblock);
        }
        superblock.encode_with_checksum(&mut bytes);
        bytes
    }

    /// Writes all bitmaps; returns the descriptor table in whole blocks.
    fn descriptors(&self) -> Result<Vec<u8>, WriteError> {
        let geometry = &self.plan.geometry;
        let size = geometry.desc_size as usize;
        let checksum = DescChecksum::of(&self.plan.superblock);
        let mut table = vec![0; geometry.desc_blocks as usize * geometry.block_size as usize];
        for (group, raw) in (0..geometry.group_count).map(GroupNr).zip(table.chunks_exact_mut(size))
        {
            if let Some(record) = self.plan.lots.record(group) {
                record.put(raw);
            }
            self.group(group)?.seal(raw, group, checksum);
        }
        Ok(table)
    }

    /// Writes the bitmaps of a group, unless the kernel generates them (uninit flags), and returns
    /// its descriptor.
    fn group(&self, group: GroupNr) -> Result<GroupDesc, WriteError> {
        let (plan, geometry) = (self.plan, &self.plan.geometry);
        let mut desc = plan.descs[group.0 as usize];
        let seed = geometry.features.metadata_csum().then(|| plan.superblock.seed());
        let inodes = plan.inodes_in(group);
        desc.free_blocks_count = plan.free_clusters(group);
        desc.free_inodes_count = geometry.inodes_per_group - inodes;
        desc.used_dirs_count = plan.directories.get(&group).copied().unwrap_or(0);
        if geometry.features.group_desc_csum() {
            desc.itable_unused = geometry.inodes_per_group - inodes;
        }
        if inodes > 0 {
            // libext2fs drops both as soon as it takes an inode.
            desc.flags &= !(FLAG_INODE_UNINIT | FLAG_BLOCK_UNINIT);
        }
        if !self.holds_only_its_own(group, &desc) {
            desc.flags &= !FLAG_BLOCK_UNINIT;
        }
        if !desc.block_uninit() {
            let first = u64::from(group.0) * u64::from(geometry.clusters_per_group);
            let mut bytes = vec![0; geometry.block_size as usize];
            for run in plan.used_in(group) {
                // Both lie in the group.
                bitmap::fill(
                    &mut bytes,
                    (run.start - first) as u32..(run.end - first) as u32,
                    true,
                );
            }
            bitmap::fill(&mut bytes, geometry.clusters_of(group)..u32::MAX, true);
            if let Some(seed) = seed {
                let sum = bitmap::checksum(seed, &bytes, geometry.clusters_per_group);
                desc.block_bitmap_csum = bitmap::checksum_cut(sum, geometry.desc_size);
            }
            self.put("a block bitmap", self.offset(desc.block_bitmap), &bytes)?;
        }
        if !desc.inode_uninit() {
            let mut bytes = vec![0; geometry.block_size as usize];
            bitmap::fill(&mut bytes, 0..inodes, true);
            bitmap::fill(&mut bytes, geometry.inodes_per_group..u32::MAX, true);
            if let Some(seed) = seed {
                let sum = bitmap::checksum(seed, &bytes, geometry.inodes_per_group);
                desc.inode_bitmap_csum = bitmap::checksum_cut(sum, geometry.desc_size);
            }
            self.put("an inode bitmap", self.offset(desc.inode_bitmap), &bytes)?;
        }
        Ok(desc)
    }

    /// Whether a group contains only metadata that the kernel can derive without a bitmap: copies
    /// of superblock and descriptors, and the group's own bitmaps and table.
    fn holds_only_its_own(&self, group: GroupNr, desc: &GroupDesc) -> bool {
        let geometry = &self.plan.geometry;
        let blocks = geometry.blocks_of(group);
        let mut own = u64::from(geometry.has_superblock(group))
            + geometry.group_desc_run(group).len_blocks
            + geometry.reserved_gdt_run(group).len_blocks;
        own += u64::from(blocks.contains(desc.block_bitmap));
        own += u64::from(blocks.contains(desc.inode_bitmap));
        let table = BlockRun::new(desc.inode_table, u64::from(geometry.inode_table_blocks));
        let overlap =
            table.end().0.min(blocks.end().0).saturating_sub(table.start.0.max(blocks.start.0));
        own += overlap;
        let used: u64 = self.plan.used_in(group).map(|run| run.end - run.start).sum();
        geometry.cluster_bits == 0 && used == own
    }
}
