//! The bytes of files: read, written, and where they lie.

use floe_blockdev::{ReadBlocks, WriteBlocks};
use floe_ext4::map::file;
use floe_ext4::map::pointers::end_of_reach;
use floe_ext4::tx::{Refusal, Tx};
use floe_format::ext::extent::Extent;
use floe_format::ext::inline_data::InlineData;
use floe_format::ext::inode::{FileType, Inode, InodeFlags, OwnedInode, TimeField};
use floe_format::features::RoCompat;
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};
use floe_sync::Arc;

use super::ahead::{NotingWrites, PlannedWrite};
use super::credits::Reach;
use super::staged::Op;
use super::{Caller, OpError};
use crate::volume::Volume;

pub(crate) const DAMAGED: OpError = OpError::Refused(Refusal::Damaged("an inode"));
/// Files from this size on need the feature large_file.
const LARGE_BYTES: u64 = 1 << 31;

/// A stretch of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First byte in the file.
    pub offset_bytes: u64,
    /// Bytes, at least 1; up to the end of the file at most.
    pub len_bytes: u64,
    /// Its kind.
    pub kind: SegmentKind,
}

/// The kind of a segment of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// Stored bytes, from this byte of the device on.
    Data {
        /// Byte of the device.
        device_bytes: u64,
    },
    /// Stored bytes in the inode.
    Inline,
    /// Nothing: it reads as zeroes.
    Hole,
    /// Allocated, but never written: it reads as zeroes.
    Unwritten,
}

impl Volume {
    /// The stretch of a file that holds a byte; `None` from its end on. Neighbours may be of one kind.
    ///
    /// # Errors
    /// The map cannot be followed.
    pub fn segment(
        &self,
        tx: &mut dyn Tx,
        inode: &OwnedInode,
        at: u64,
    ) -> Result<Option<Segment>, OpError> {
        let Some(rest) = inode.size_bytes().checked_sub(at).filter(|rest| *rest > 0) else {
            return Ok(None);
        };
        let of = |end: u64, kind| {
            Some(Segment { offset_bytes: at, len_bytes: rest.min(end - at), kind })
        };
        if inode.flags().contains(InodeFlags::INLINE_DATA) {
            return Ok(of(u64::MAX, SegmentKind::Inline));
        }
        let size = u64::from(self.geometry().block_size);
        let extent = file::look(&self.fs, inode).next(tx, LogicalBlock(at / size))?;
        let Some(Extent { logical, run, unwritten }) = extent else {
            return Ok(of(u64::MAX, SegmentKind::Hole));
        };
        let (start, end) = (logical.0 * size, (logical.0 + run.len_blocks) * size);
        if at < start {
            return Ok(of(start, SegmentKind::Hole));
        }
        if unwritten {
            return Ok(of(end, SegmentKind::Unwritten));
        }
        if !self.geometry().contains(run.start) || run.end().0 > self.geometry().blocks_count {
            return Err(DAMAGED);
        }
        self.fs.space.judge_own(inode.number, run)?;
        let device_bytes = self.geometry().offset_bytes(run.start) + (at - start);
        Ok(of(end, SegmentKind::Data { device_bytes }))
    }

    /// Fills `into` with the bytes of a file from `at` on, as many as it has, and returns
    /// their number.
    ///
    /// # Errors
    /// The map cannot be followed, or the device not be read.
    pub fn read(
        &self,
        tx: &mut dyn Tx,
        data: &dyn ReadBlocks,
        inode: &OwnedInode,
        at: u64,
        into: &mut [u8],
    ) -> Result<usize, OpError> {
        let mut done = 0;
        while done < into.len() {
            let from = at.saturating_add(done as u64);
            let Some(segment) = self.segment(tx, inode, from)? else { break };
            let len = segment.len_bytes.min((into.len() - done) as u64) as usize;
            let part = &mut into[done..done + len];
            match segment.kind {
                SegmentKind::Data { device_bytes } => read_at(data, device_bytes, part)?,
                SegmentKind::Inline => {
                    let bytes = inline_bytes(inode)?;
                    let from = usize::try_from(from).unwrap_or(usize::MAX);
                    let stored = bytes.get(from..).unwrap_or(&[]);
                    let stored = stored.get(..len).unwrap_or(stored);
                    part.fill(0);
                    part[..stored.len()].copy_from_slice(stored);
                }
                SegmentKind::Hole | SegmentKind::Unwritten => part.fill(0),
            }
            done += len;
        }
        Ok(done)
    }

    /// Writes bytes into a regular file from `at` on, on the device at once; holes get blocks, the file grows if it must.
    /// Before the transaction is committed the device must be flushed.
    ///
    /// # Errors
    /// [`OpError::NoSpace`], [`OpError::TooLarge`], [`OpError::NotPermitted`], [`OpError::Unsupported`] for encrypted files;
    /// [`OpError::TooLong`] for several blocks of which the journal of the cube has no room for a change: write fewer.
    /// The map and the size are as before then, but bytes that were there may be overwritten.
    pub fn write(
        &mut self,
        tx: &mut dyn Tx,
        data: &dyn WriteBlocks,
        caller: &Caller,
        inode: InodeNr,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), OpError> {
        let size = u64::from(self.geometry().block_size);
        let blocks = at.saturating_add(bytes.len() as u64).div_ceil(size) - at / size;
        let reach = if blocks > 1 { Reach::Pieces } else { Reach::One };
        self.op_of(reach, tx, caller, |op| op.write(data, inode, at, bytes))
    }

    /// The content that [`Volume::write`] would write now, and where. Nothing is changed. `None` if that would be refused.
    pub fn plan_write(
        &mut self,
        tx: &mut dyn Tx,
        data: &dyn ReadBlocks,
        caller: &Caller,
        (inode, at): (InodeNr, u64),
        bytes: &[u8],
    ) -> Option<PlannedWrite> {
        let (noting, free) = (NotingWrites::new(data), self.fs.space.free_clusters());
        let (mut is_planned, mut takes_blocks) = (false, false);
        // Refused in the end, so that nothing of it is left.
        let done: Result<(), OpError> = self.op_of(Reach::Pieces, tx, caller, |op| {
            op.write(&noting, inode, at, bytes)?;
            takes_blocks = op.volume.fs.space.free_clusters() != free;
            is_planned = !noting.is_empty();
            Err(OpError::TooLong)
        });
        (is_planned && done.is_err())
            .then(|| PlannedWrite { writes: noting.into_writes(), takes_blocks })
    }

    /// Says whether content is written to free blocks of a cube that are its own soon: nobody may discard them meanwhile.
    pub fn hold_free_blocks(&mut self, cube: u32, holds: bool) {
        self.fs.space.hold_free_blocks(cube, holds);
    }

    /// The largest size in bytes that a file of this kind of map may have.
    pub fn most_bytes(&self, inode: &OwnedInode) -> u64 {
        let extents = inode.flags().contains(InodeFlags::EXTENTS);
        let reach = end_of_reach(self.geometry().indirect()).0;
        let reached = reach.saturating_mul(self.geometry().block_size.into());
        let most = self.geometry().largest_file_bytes(extents);
        let most = if extents { most } else { most.min(reached) };
        // Features say whether larger files are there; revision 0 has none.
        let said = if self.superblock().rev_level == 0 { LARGE_BYTES - 1 } else { i64::MAX as u64 };
        most.min(said)
    }
}

/// The bytes of inline data.
pub(crate) fn inline_bytes(inode: &OwnedInode) -> Result<Vec<u8>, OpError> {
    let mut whole = inode.clone();
    let decoded = Inode::decode(whole.seal(None)).ok_or(DAMAGED)?;
    let inline = InlineData::of(&decoded).ok_or(DAMAGED)?;
    Ok(inline.content(decoded.size_bytes()).concat())
}

fn read_at(data: &dyn ReadBlocks, at: u64, into: &mut [u8]) -> Result<(), OpError> {
    data.read_at(at, into).map_err(|source| OpError::Data { block: BlockNr(0), source })
}

impl Op<'_> {
    /// Writes content of files at a byte of the device, which lies in `block`: to its place, or into the transaction where
    /// content is logged, or where the log has a copy that would replace what is written in its place.
    pub(super) fn write_at(
        &mut self,
        data: &dyn WriteBlocks,
        block: BlockNr,
        at: u64,
        from: &[u8],
    ) -> Result<(), OpError> {
        let size = u64::from(self.volume.geometry().block_size);
        let end = (at + from.len() as u64).div_ceil(size);
        let logs_all = self.volume.fs.space.logs_data(block);
        let mut is_logged = |from: u64, to: u64| {
            logs_all || self.tx.is_logged(BlockRun::new(BlockNr(from), to - from))
        };
        let mut parts = Vec::new();
        if !logs_all && !is_logged(block.0, end) {
            parts.push((block.0..end, false));
        } else {
            for block in block.0..end {
                parts.push((block..block + 1, is_logged(block, block + 1)));
            }
        }
        let (mut at, mut left) = (at, from);
        for (blocks, is_logged) in parts {
            // Inside of what is left.
            let len = (blocks.end * size - at).min(left.len() as u64) as usize;
            let (now, rest) = left.split_at(len);
            let block = BlockNr(blocks.start);
            if is_logged {
                self.log_content(block, (at % size) as usize, now)?;
            } else {
                data.write_at(at, now).map_err(|source| OpError::Data { block, source })?;
            }
            (at, left) = (at + len as u64, rest);
        }
        Ok(())
    }

    /// Puts content into a block, in the transaction.
    fn log_content(&mut self, block: BlockNr, within: usize, now: &[u8]) -> Result<(), OpError> {
        if now.len() == self.volume.geometry().block_size as usize {
            return Ok(self.tx.put(block, Arc::new(now.to_vec()))?);
        }
        let bytes = self.tx.block_mut(block)?;
        bytes[within..within + now.len()].copy_from_slice(now);
        Ok(())
    }

    /// A regular file whose content may be changed, as far as its inode says; without inline data.
    pub(crate) fn open_file(
        &mut self,
        data: &dyn WriteBlocks,
        number: InodeNr,
    ) -> Result<OwnedInode, OpError> {
        let mut inode = self.inode(number)?;
        match inode.file_type() {
            Some(FileType::Regular) => {}
            Some(FileType::Directory) => return Err(OpError::IsADirectory),
            _ => return Err(OpError::Invalid("it is not a regular file")),
        }
        let flags = inode.flags();
        if flags.contains(InodeFlags::ENCRYPT) {
            return Err(OpError::Unsupported("changing an encrypted file"));
        }
        if flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::VERITY) {
            return Err(OpError::NotPermitted("the file is immutable or under fs-verity"));
        }
        self.spill_file(data, &mut inode)?;
        Ok(inode)
    }

    /// Gives a file with inline data blocks.
    fn spill_file(
        &mut self,
        data: &dyn WriteBlocks,
        inode: &mut OwnedInode,
    ) -> Result<(), OpError> {
        if !inode.flags().contains(InodeFlags::INLINE_DATA) {
            return Ok(());
        }
        let bytes = inline_bytes(inode)?;
        self.drop_inline(inode)?;
        if !bytes.is_empty() {
            self.write_blocks(data, inode, 0, &bytes)?;
        }
        self.put(inode)
    }

    fn write(
        &mut self,
        data: &dyn WriteBlocks,
        number: InodeNr,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), OpError> {
        let mut inode = self.open_file(data, number)?;
        let (size, end) = (inode.size_bytes(), at.saturating_add(bytes.len() as u64));
        // That a file is append-only is judged where it is opened, as by Linux: a page cache writes whole pages, old bytes too.
        if end > self.volume.most_bytes(&inode) {
            return Err(OpError::TooLarge);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        if at > size {
            self.zero_tail(data, &inode, size)?;
        }
        self.write_blocks(data, &mut inode, at, bytes)?;
        self.grow_to(&mut inode, end)?;
        self.touch(&mut inode, &[TimeField::Modification, TimeField::Change]);
        self.put(&mut inode)
    }

    /// Lets a file be at least so large.
    pub(crate) fn grow_to(&mut self, inode: &mut OwnedInode, end: u64) -> Result<(), OpError> {
        if end <= inode.size_bytes() {
            return Ok(());
        }
        inode.set_size_bytes(end);
        let has = self.volume.geometry().features.ro_compat.contains(RoCompat::LARGE_FILE);
        if end >= LARGE_BYTES && !has {
            self.edit_superblock(|sb| sb.feature_ro_compat |= RoCompat::LARGE_FILE.bits())?;
        }
        Ok(())
    }

    /// Writes bytes into blocks, which holes get on the way.
    pub(crate) fn write_blocks(
        &mut self,
        data: &dyn WriteBlocks,
        inode: &mut OwnedInode,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), OpError> {
        let size = u64::from(self.volume.geometry().block_size);
        let end = (at + bytes.len() as u64).div_ceil(size);
        let mut block = at / size;
        while block < end {
            let extent = self.next_extent(inode, LogicalBlock(block))?;
            let (part, fresh) = match extent {
                Some(extent) if extent.logical.0 <= block => {
                    let skip = block - extent.logical.0;
                    let start = BlockNr(extent.run.start.0 + skip);
                    let run = BlockRun::new(start, (extent.run.len_blocks - skip).min(end - block));
                    let part = Extent { logical: LogicalBlock(block), run, ..extent };
                    if extent.unwritten {
                        self.remap(inode, part, false)?;
                    }
                    (part, extent.unwritten)
                }
                next => {
                    let stop = next.map_or(end, |next| next.logical.0.min(end));
                    let run = self.allocate(inode, LogicalBlock(block), stop - block)?;
                    self.map_run(inode, LogicalBlock(block), run, false)?;
                    let part = Extent { logical: LogicalBlock(block), run, unwritten: false };
                    (part, true)
                }
            };
            self.put_bytes(data, &part, fresh, at, bytes)?;
            block += part.run.len_blocks;
        }
        Ok(())
    }

    /// Writes the bytes of a range of a file that lie in a part of an extent; with zeroes around them if the blocks are
    /// `fresh`.
    fn put_bytes(
        &mut self,
        data: &dyn WriteBlocks,
        part: &Extent,
        fresh: bool,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), OpError> {
        let geo = self.volume.geometry();
        let size = u64::from(geo.block_size);
        if !geo.contains(part.run.start) || part.run.end().0 > geo.blocks_count {
            return Err(DAMAGED);
        }
        let (start, end) = (part.logical.0 * size, (part.logical.0 + part.run.len_blocks) * size);
        let (from, to) = (start.max(at), end.min(at + bytes.len() as u64));
        // Inside the bytes.
        let wanted = &bytes[(from - at) as usize..(to - at) as usize];
        let place = geo.offset_bytes(part.run.start);
        if !fresh || from == start && to == end {
            return self.write_at(data, part.run.start, place + (from - start), wanted);
        }
        let mut whole = vec![0; (end - start) as usize];
        whole[(from - start) as usize..(to - start) as usize].copy_from_slice(wanted);
        self.write_at(data, part.run.start, place, &whole)
    }

    /// Makes the bytes from `at` up to the end of its block zeroes, if they are stored.
    pub(crate) fn zero_tail(
        &mut self,
        data: &dyn WriteBlocks,
        inode: &OwnedInode,
        at: u64,
    ) -> Result<(), OpError> {
        let size = u64::from(self.volume.geometry().block_size);
        self.zero_bytes(data, inode, at, at.next_multiple_of(size))
    }

    /// Makes the bytes from `at` up to `end`, which lie in one block, zeroes, if they are stored.
    pub(crate) fn zero_bytes(
        &mut self,
        data: &dyn WriteBlocks,
        inode: &OwnedInode,
        at: u64,
        end: u64,
    ) -> Result<(), OpError> {
        if at >= end {
            return Ok(());
        }
        let size = u64::from(self.volume.geometry().block_size);
        let (block, within) = (at / size, at % size);
        let extent = self.next_extent(inode, LogicalBlock(block))?;
        let Some(extent) = extent.filter(|one| one.logical.0 <= block && !one.unwritten) else {
            return Ok(());
        };
        let place = BlockNr(extent.run.start.0 + (block - extent.logical.0));
        if !self.volume.geometry().contains(place) {
            return Err(DAMAGED);
        }
        let zeroes = vec![0; (end - at) as usize];
        let at = self.volume.geometry().offset_bytes(place) + within;
        self.write_at(data, place, at, &zeroes)
    }
}
