//! Quota files follow what operations do: each inode that an operation writes is weighed before and after it, and the
//! differences are put into the entries of its user, group and project in the same transaction. Limits are enforced where the
//! caller asks for it ([`Volume::enforce_limits`](crate::volume::Volume::enforce_limits)), as with Linux.
//!
//! Source of the rules: the kernel's `fs/quota/quota_tree.c` and `dquot.c`.

use std::collections::BTreeMap;

use floe_ext4::tx::Tx;
use floe_format::ext::inode::{InodeFlags, OwnedInode};
use floe_format::ext::quota::{
    BLOCK_SIZE, Dquot, LEAF_ENTRIES, LEAF_HEADER_SIZE, LeafHeader, QuotaHeader, QuotaKind,
    ROOT_BLOCK, TREE_DEPTH,
};
use floe_format::features::RoCompat;
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use super::staged::Op;
use super::{Caller, OpError};
use crate::volume::Volume;

const DAMAGED: OpError = OpError::Refused(floe_ext4::tx::Refusal::Damaged("a quota file"));

/// Usage of somebody, and the lower limit for it, soft or hard; `None`: there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Bytes.
    pub bytes: (u64, Option<u64>),
    /// Inodes.
    pub inodes: (u64, Option<u64>),
}

/// The usage of an inode, and its owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    /// User, group and project, in the order of [`QuotaKind::ALL`].
    ids: [u32; 3],
    space_bytes: u64,
    /// 1, and one for each value of an attribute that lies in an inode of its own.
    inodes: i64,
}

/// Differences: bytes and inodes.
type Change = (i64, i64);

impl Volume {
    /// Whether limits of some quota count ([`Volume::enforce_limits`]).
    pub fn enforces_limits(&self) -> bool {
        !self.enforced.is_empty()
    }

    /// Bytes and inodes that are left to a user, group or project before something would be refused to him or a time of grace
    /// would begin; [`u64::MAX`] where there is no limit that counts.
    ///
    /// # Errors
    /// The quota file cannot be read.
    pub fn quota_left(
        &mut self,
        tx: &mut dyn Tx,
        kind: QuotaKind,
        id: u32,
    ) -> Result<(u64, u64), OpError> {
        let quota = self.quota_of(tx, kind, id)?.unwrap_or_default();
        let left = |(used, limit): (u64, Option<u64>)| {
            limit.map_or(u64::MAX, |limit| limit.saturating_sub(used))
        };
        Ok((left(quota.bytes), left(quota.inodes)))
    }

    /// Usage of a user, group or project, and its limits; `None` if limits of this kind do not count, or nobody set any for him.
    ///
    /// # Errors
    /// The quota file cannot be read.
    pub fn quota_of(
        &mut self,
        tx: &mut dyn Tx,
        kind: QuotaKind,
        id: u32,
    ) -> Result<Option<Quota>, OpError> {
        if !self.enforced.contains(&kind) {
            return Ok(None);
        }
        self.op(tx, &Caller::system(Default::default()), |op| {
            let at = QuotaKind::ALL.iter().position(|one| *one == kind).unwrap_or_default();
            let file = op.quota_files()[at];
            if file.0 == 0 {
                return Ok(None);
            }
            let file = op.inode(file)?;
            let Some((block, slot)) = op.find_entry(&file, id)? else { return Ok(None) };
            let place = LEAF_HEADER_SIZE + slot * Dquot::SIZE;
            let entry = Dquot::decode(&op.read_array(&file, block, place)?);
            let least = |limits: [u64; 2]| limits.into_iter().filter(|limit| *limit != 0).min();
            let kib = [entry.block_hard_limit_kib, entry.block_soft_limit_kib];
            let bytes = least(kib.map(|kib| kib.saturating_mul(1024)));
            let inodes = least([entry.inode_hard_limit, entry.inode_soft_limit]);
            Ok(Some(Quota { bytes: (entry.space_bytes, bytes), inodes: (entry.inodes, inodes) }))
        })
    }
}

impl Op<'_> {
    /// The inodes of the quota files, in the order of [`QuotaKind::ALL`]; 0: usage of this kind is not counted.
    fn quota_files(&self) -> [InodeNr; 3] {
        let sb = self.volume.superblock();
        if !sb.features().ro_compat.contains(RoCompat::QUOTA) {
            return [InodeNr(0); 3];
        }
        [sb.usr_quota_inum, sb.grp_quota_inum, sb.prj_quota_inum].map(InodeNr)
    }

    /// Whether usage of any kind is counted.
    pub(super) fn counts_usage(&self) -> bool {
        self.quota_files().iter().any(|file| file.0 != 0)
    }

    /// Whether an inode counts: all but the reserved ones, of which the root does, and the quota files.
    fn is_counted(&self, inode: InodeNr) -> bool {
        let ordinary = inode == InodeNr::ROOT || !self.volume.geometry().is_reserved(inode);
        self.counts_usage() && ordinary && !self.quota_files().contains(&inode)
    }

    fn weight_of(&mut self, inode: &OwnedInode) -> Weight {
        let ids = [inode.uid(), inode.gid(), inode.extra.projid];
        if inode.flags().contains(InodeFlags::EA_INODE) {
            // It counts for those who use the value, in their `i_blocks`.
            return Weight { ids, space_bytes: 0, inodes: 0 };
        }
        let inodes = 1 + self.count_of_values(inode).cast_signed();
        let geo = self.volume.geometry();
        let unit = u64::from(geo.block_size) / geo.count_units(inode.flags());
        Weight { ids, space_bytes: inode.blocks() * unit, inodes }
    }

    /// Weighs an inode before its first change.
    pub(crate) fn weigh(&mut self, number: InodeNr) -> Result<(), OpError> {
        if self.is_counted(number) && !self.weights.contains_key(&number) {
            let inode = self.inode(number)?;
            let weight = self.weight_of(&inode);
            self.weights.insert(number, Some(weight));
        }
        Ok(())
    }

    /// Notes that an inode was free before this operation.
    pub(crate) fn weigh_new(&mut self, number: InodeNr) {
        if self.is_counted(number) {
            self.weights.insert(number, None);
        }
    }

    /// Notes that an inode is free now.
    pub(crate) fn weigh_gone(&mut self, number: InodeNr) {
        self.gone.insert(number);
    }

    /// Puts all differences into the quota files.
    pub(crate) fn count_usage(&mut self) -> Result<(), OpError> {
        let mut changes: BTreeMap<(usize, u32), Change> = BTreeMap::new();
        for (number, before) in std::mem::take(&mut self.weights) {
            let after = match self.gone.contains(&number) {
                true => None,
                false => {
                    let inode = self.inode(number)?;
                    Some(self.weight_of(&inode))
                }
            };
            for (weight, sign) in [(before, -1), (after, 1)] {
                let Some(weight) = weight else { continue };
                for (kind, id) in weight.ids.into_iter().enumerate() {
                    let change = changes.entry((kind, id)).or_default();
                    // Bytes of an inode: below 2^48 blocks of 64 KiB, so that no sum of an operation overflows.
                    change.0 = change.0.saturating_add(sign * weight.space_bytes.cast_signed());
                    change.1 += sign * weight.inodes;
                }
            }
        }
        let files = self.quota_files();
        for ((kind, id), change) in changes {
            let file = files[kind];
            if file.0 != 0 && change != (0, 0) {
                self.charge(file, QuotaKind::ALL[kind], id, change)?;
            }
        }
        Ok(())
    }

    /// Changes the entry of an id, which is made if it is not there.
    fn charge(
        &mut self,
        file: InodeNr,
        kind: QuotaKind,
        id: u32,
        change: Change,
    ) -> Result<(), OpError> {
        let mut file = self.inode(file)?;
        let (block, slot) = match self.find_entry(&file, id)? {
            Some(place) => place,
            None => self.new_entry(&mut file, kind, id)?,
        };
        let at = LEAF_HEADER_SIZE + slot * Dquot::SIZE;
        let mut entry = Dquot::decode(&self.read_array(&file, block, at)?);
        // The mark of an entry that would be all zeroes otherwise.
        let marked = Dquot { itime: 1, ..Dquot::decode(&[0; Dquot::SIZE]) };
        if entry == marked {
            entry.itime = 0;
        }
        entry.id = id;
        if self.volume.enforced.contains(&kind) {
            let header = QuotaHeader::decode(&self.read_array(&file, 0, 0)?);
            self.judge_limits(&mut entry, change, &header)?;
        }
        entry.space_bytes = entry.space_bytes.saturating_add_signed(change.0);
        entry.inodes = entry.inodes.saturating_add_signed(change.1);
        if entry.space_bytes <= entry.block_soft_limit_kib.saturating_mul(1024) {
            entry.btime = 0;
        }
        if entry.inodes <= entry.inode_soft_limit {
            entry.itime = 0;
        }
        let mut bytes = [0; Dquot::SIZE];
        entry.encode_into(&mut bytes);
        if bytes.iter().all(|&byte| byte == 0) {
            marked.encode_into(&mut bytes);
        }
        self.write_bytes(&file, block, at, &bytes)
    }

    /// Refuses growth beyond a limit, unless root asks for it; begins the time of grace where a soft limit is passed.
    fn judge_limits(
        &self,
        entry: &mut Dquot,
        change: Change,
        header: &QuotaHeader,
    ) -> Result<(), OpError> {
        let now = self.caller.time.seconds.cast_unsigned();
        let judge = |used: u64, more: i64, hard: u64, soft: u64, until: &mut u64, grace: u32| {
            let after = used.saturating_add_signed(more);
            if more <= 0 {
                return Ok(());
            }
            let passes = |limit: u64| limit != 0 && after > limit;
            let over = passes(hard) || passes(soft) && *until != 0 && now >= *until;
            if over && self.caller.uid != 0 {
                return Err(OpError::QuotaExceeded);
            }
            if passes(soft) && *until == 0 {
                *until = now.saturating_add(grace.into());
            }
            Ok(())
        };
        let bytes = |kib: u64| kib.saturating_mul(1024);
        let (hard, soft) = (bytes(entry.block_hard_limit_kib), bytes(entry.block_soft_limit_kib));
        judge(entry.space_bytes, change.0, hard, soft, &mut entry.btime, header.bgrace)?;
        let (hard, soft) = (entry.inode_hard_limit, entry.inode_soft_limit);
        judge(entry.inodes, change.1, hard, soft, &mut entry.itime, header.igrace)
    }

    /// The leaf and the slot that hold the entry of an id.
    fn find_entry(&mut self, file: &OwnedInode, id: u32) -> Result<Option<(u32, usize)>, OpError> {
        let mut block = ROOT_BLOCK;
        for byte in id.to_be_bytes() {
            block = u32::from_le_bytes(self.read_array(file, block, usize::from(byte) * 4)?);
            if block == 0 {
                return Ok(None);
            }
        }
        for slot in 0..LEAF_ENTRIES {
            let at = LEAF_HEADER_SIZE + slot * Dquot::SIZE;
            let bytes: [u8; Dquot::SIZE] = self.read_array(file, block, at)?;
            if bytes.iter().any(|&byte| byte != 0) && Dquot::decode(&bytes).id == id {
                return Ok(Some((block, slot)));
            }
        }
        Err(DAMAGED)
    }

    /// A slot for an id that has none: in a leaf with a free entry, to which the tree leads then.
    fn new_entry(
        &mut self,
        file: &mut OwnedInode,
        kind: QuotaKind,
        id: u32,
    ) -> Result<(u32, usize), OpError> {
        let mut header = QuotaHeader::decode(&self.read_array(file, 0, 0)?);
        if header.magic != kind.magic() {
            return Err(DAMAGED);
        }
        let leaf = match header.free_entry {
            0 => {
                let leaf = self.new_block(file, &mut header)?;
                header.free_entry = leaf;
                leaf
            }
            leaf => leaf,
        };
        let mut own = LeafHeader::decode(&self.read_array(file, leaf, 0)?);
        let mut slot = None;
        for at in 0..LEAF_ENTRIES {
            let place = LEAF_HEADER_SIZE + at * Dquot::SIZE;
            let bytes: [u8; Dquot::SIZE] = self.read_array(file, leaf, place)?;
            if bytes.iter().all(|&byte| byte == 0) {
                slot = Some(at);
                break;
            }
        }
        let slot = slot.ok_or(DAMAGED)?;
        own.entries = own.entries.checked_add(1).ok_or(DAMAGED)?;
        if usize::from(own.entries) >= LEAF_ENTRIES {
            // A full leaf leaves the list; it was its head.
            header.free_entry = own.next_free;
            if own.next_free != 0 {
                let mut next = LeafHeader::decode(&self.read_array(file, own.next_free, 0)?);
                next.prev_free = 0;
                self.write_header(file, header.free_entry, &next)?;
            }
            (own.next_free, own.prev_free) = (0, 0);
        }
        self.write_header(file, leaf, &own)?;
        self.lead_to(file, &mut header, id, leaf)?;
        let mut bytes = [0; QuotaHeader::SIZE];
        header.encode_into(&mut bytes);
        self.write_bytes(file, 0, 0, &bytes)?;
        Ok((leaf, slot))
    }

    /// Lets the tree lead to the leaf of an id, with nodes on the way.
    fn lead_to(
        &mut self,
        file: &mut OwnedInode,
        header: &mut QuotaHeader,
        id: u32,
        leaf: u32,
    ) -> Result<(), OpError> {
        let mut block = ROOT_BLOCK;
        for (byte, level) in id.to_be_bytes().into_iter().zip(1..) {
            let at = usize::from(byte) * 4;
            let below = u32::from_le_bytes(self.read_array(file, block, at)?);
            let below = match below {
                _ if level == TREE_DEPTH => leaf,
                0 => self.new_block(file, header)?,
                below => below,
            };
            self.write_bytes(file, block, at, &below.to_le_bytes())?;
            block = below;
        }
        Ok(())
    }

    /// A block for the tree, zeroed: a free one of the file, else one at its end.
    fn new_block(
        &mut self,
        file: &mut OwnedInode,
        header: &mut QuotaHeader,
    ) -> Result<u32, OpError> {
        if header.free_block != 0 {
            let block = header.free_block;
            header.free_block = LeafHeader::decode(&self.read_array(file, block, 0)?).next_free;
            self.write_bytes(file, block, 0, &[0; BLOCK_SIZE])?;
            return Ok(block);
        }
        let block = header.blocks;
        header.blocks = block.checked_add(1).ok_or(OpError::TooLarge)?;
        let size = u64::from(self.volume.geometry().block_size);
        let place = u64::from(block) * BLOCK_SIZE as u64;
        let logical = LogicalBlock(place / size);
        let mapped = self.next_extent(file, logical)?;
        if mapped.is_none_or(|extent| extent.logical > logical) {
            let run = self.allocate(file, logical, 1)?;
            self.map_run(file, logical, run, false)?;
            self.tx.zeroed(run.start)?;
        }
        let end = place + BLOCK_SIZE as u64;
        // The file has whole blocks, as Linux writes it.
        file.set_size_bytes(file.size_bytes().max(end.next_multiple_of(size)));
        self.put(file)?;
        self.write_bytes(file, block, 0, &[0; BLOCK_SIZE])?;
        Ok(block)
    }

    fn write_header(
        &mut self,
        file: &OwnedInode,
        leaf: u32,
        header: &LeafHeader,
    ) -> Result<(), OpError> {
        let mut bytes = [0; LeafHeader::SIZE];
        header.encode_into(&mut bytes);
        self.write_bytes(file, leaf, 0, &bytes)
    }

    /// Block of the file system and byte in it at which a byte of a block of the file lies.
    fn place_in(
        &mut self,
        file: &OwnedInode,
        block: u32,
        at: usize,
    ) -> Result<(BlockNr, usize), OpError> {
        let size = u64::from(self.volume.geometry().block_size);
        let place = u64::from(block) * BLOCK_SIZE as u64 + at as u64;
        if place >= file.size_bytes() {
            return Err(DAMAGED);
        }
        let logical = place / size;
        let extent = self.next_extent(file, LogicalBlock(logical))?;
        let extent = extent.filter(|extent| extent.logical.0 <= logical).ok_or(DAMAGED)?;
        let block = BlockNr(extent.run.start.0 + (logical - extent.logical.0));
        // Below the size of a block.
        Ok((block, (place % size) as usize))
    }

    fn read_array<const LEN: usize>(
        &mut self,
        file: &OwnedInode,
        block: u32,
        at: usize,
    ) -> Result<[u8; LEN], OpError> {
        let (block, at) = self.place_in(file, block, at)?;
        let bytes = self.tx.block(block)?;
        bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(DAMAGED)
    }

    fn write_bytes(
        &mut self,
        file: &OwnedInode,
        block: u32,
        at: usize,
        from: &[u8],
    ) -> Result<(), OpError> {
        let (block, at) = self.place_in(file, block, at)?;
        let bytes = self.tx.block_mut(block)?;
        bytes.get_mut(at..at + from.len()).ok_or(DAMAGED)?.copy_from_slice(from);
        Ok(())
    }
}
