//! Sizes, counts and places derived from a superblock whose fields were checked.

use crate::ext::indirect::IndirectForm;
use crate::ext::inode::InodeFlags;
use crate::ext::superblock::Superblock;
use crate::features::{Compat, Features, Incompat, RoCompat};
use crate::{BlockNr, BlockRun, GroupNr, InodeNr};

/// Sizes, counts and places that follow from the superblock alone.
///
/// Every divisor is non-zero and every count fits its type, because [`Geometry::new`] checked them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Feature words.
    pub features: Features,
    /// Bytes of a block: a power of two, 1 KiB to 64 KiB.
    pub block_size: u32,
    /// Blocks of a cluster: a power of two; 1 without bigalloc.
    pub cluster_blocks: u32,
    /// `log2` of [`Geometry::cluster_blocks`].
    pub cluster_bits: u32,
    /// First block of group 0.
    pub first_data_block: BlockNr,
    /// Blocks of the file system.
    pub blocks_count: u64,
    /// Inodes of the file system.
    pub inodes_count: u32,
    /// Blocks in a group.
    pub blocks_per_group: u32,
    /// Clusters in a group.
    pub clusters_per_group: u32,
    /// Inodes in a group.
    pub inodes_per_group: u32,
    /// Bytes of an inode: a power of two, 128 to the block size.
    pub inode_size: u32,
    /// First inode that is not reserved.
    pub first_inode: InodeNr,
    /// Number of groups.
    pub group_count: u32,
    /// Bytes of a descriptor.
    pub desc_size: u32,
    /// Blocks of the whole descriptor table.
    pub desc_blocks: u32,
    /// Reserved descriptor blocks behind each copy of the table.
    pub reserved_gdt_blocks: u32,
    /// Blocks of one group's inode table.
    pub inode_table_blocks: u32,
    /// `s_first_meta_bg`, or the number of descriptor blocks without meta_bg.
    pub first_meta_bg: u32,
    /// The two groups with backups of sparse_super2.
    pub backup_groups: [u32; 2],
}

/// Why no geometry can be derived from a superblock: the field that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeometryFault {
    /// Name of the field, with its `s_`.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
}

/// How strictly [`Geometry::new`] judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// Apply every test.
    Strict,
    /// Accept values that can be repaired in place: the inode count, `s_first_meta_bg`, the
    /// descriptor size (problems `inode-count-mismatch`, `first-meta-bg-too-big`).
    Relaxed,
}

impl Geometry {
    /// Derives the geometry, or names the first field that is out of range (problem
    /// `superblock-field-out-of-range`).
    pub fn new(sb: &Superblock, strictness: Strictness) -> Result<Self, GeometryFault> {
        let features = sb.features();
        let block_size = block_size(sb)?;
        let cluster_bits = cluster_bits(sb, &features)?;
        let desc_size = desc_size(sb, &features)?;
        let blocks_count = blocks_count(sb, &features)?;
        let inode_size = inode_size(sb, block_size)?;
        groups(sb, block_size, cluster_bits, inode_size)?;
        let first_data_block = u64::from(sb.first_data_block);
        let per_group = u64::from(sb.blocks_per_group);
        let group_count = (blocks_count - first_data_block).div_ceil(per_group);
        let group_count =
            u32::try_from(group_count).map_err(|_| fault("s_blocks_count", blocks_count))?;
        let last_inode = u64::from(group_count) * u64::from(sb.inodes_per_group);
        if strictness == Strictness::Strict && last_inode != u64::from(sb.inodes_count) {
            return Err(fault("s_inodes_count", u64::from(sb.inodes_count)));
        }
        let inodes_count =
            u32::try_from(last_inode).map_err(|_| fault("s_inodes_per_group", last_inode))?;
        let first_inode = first_inode(sb, inodes_count)?;
        let desc_blocks = group_count.div_ceil(block_size / desc_size);
        let meta_bg = features.incompat.contains(Incompat::META_BG);
        if strictness == Strictness::Strict && meta_bg && sb.first_meta_bg > desc_blocks {
            return Err(fault("s_first_meta_bg", u64::from(sb.first_meta_bg)));
        }
        let table_bytes = u64::from(sb.inodes_per_group) * u64::from(inode_size);
        Ok(Self {
            features,
            block_size,
            cluster_blocks: 1 << cluster_bits,
            cluster_bits,
            first_data_block: BlockNr(first_data_block),
            blocks_count,
            inodes_count,
            blocks_per_group: sb.blocks_per_group,
            clusters_per_group: sb.blocks_per_group >> cluster_bits,
            inodes_per_group: sb.inodes_per_group,
            inode_size,
            first_inode: InodeNr(first_inode),
            group_count,
            desc_size,
            desc_blocks,
            reserved_gdt_blocks: u32::from(sb.reserved_gdt_blocks),
            inode_table_blocks: u32::try_from(table_bytes.div_ceil(u64::from(block_size)))
                .map_err(|_| fault("s_inodes_per_group", u64::from(sb.inodes_per_group)))?,
            first_meta_bg: if meta_bg { sb.first_meta_bg.min(desc_blocks) } else { desc_blocks },
            backup_groups: sb.backup_bgs,
        })
    }

    /// The form of indirect blocks.
    #[inline]
    pub const fn indirect(&self) -> IndirectForm {
        IndirectForm::of(&self.features, self.block_size)
    }

    /// The group a block lies in; `None` outside the file system.
    #[inline]
    pub fn group_of(&self, block: BlockNr) -> Option<GroupNr> {
        if block.0 >= self.blocks_count {
            return None;
        }
        let offset_blocks = block.0.checked_sub(self.first_data_block.0)?;
        u32::try_from(offset_blocks / u64::from(self.blocks_per_group)).ok().map(GroupNr)
    }

    /// Whether a block lies in the file system, at or behind its first data block.
    #[inline]
    pub fn contains(&self, block: BlockNr) -> bool {
        block.0 >= self.first_data_block.0 && block.0 < self.blocks_count
    }

    /// First block of a group.
    #[inline]
    pub fn group_start(&self, group: GroupNr) -> BlockNr {
        BlockNr(self.first_data_block.0 + u64::from(group.0) * u64::from(self.blocks_per_group))
    }

    /// All blocks of a group; the last group may be shorter.
    pub fn blocks_of(&self, group: GroupNr) -> BlockRun {
        let start = self.group_start(group);
        let end = (start.0 + u64::from(self.blocks_per_group)).min(self.blocks_count);
        BlockRun::new(start, end.saturating_sub(start.0))
    }

    /// Whether `i_blocks` of an inode with these flags counts blocks instead of sectors of 512
    /// bytes (`huge_file`).
    #[inline]
    pub fn counts_in_blocks(&self, flags: InodeFlags) -> bool {
        self.features.ro_compat.contains(RoCompat::HUGE_FILE)
            && flags.contains(InodeFlags::HUGE_FILE)
    }

    /// Units of `i_blocks` per block, for an inode with these flags.
    #[inline]
    pub fn count_units(&self, flags: InodeFlags) -> u64 {
        u64::from(if self.counts_in_blocks(flags) { 1 } else { self.block_size / 512 })
    }

    /// The group of an inode and its index in the group's table; `None` for 0 and past the last
    /// inode.
    #[inline]
    pub fn place_of(&self, inode: InodeNr) -> Option<(GroupNr, u32)> {
        if inode.0 > self.inodes_count {
            return None;
        }
        let index = inode.0.checked_sub(1)?;
        Some((GroupNr(index / self.inodes_per_group), index % self.inodes_per_group))
    }

    /// The inode at `index` of a group's table.
    #[inline]
    pub fn inode_at(&self, group: GroupNr, index: u32) -> InodeNr {
        InodeNr(group.0 * self.inodes_per_group + index + 1)
    }

    /// Whether an inode number is reserved: below `s_first_ino`.
    #[inline]
    pub fn is_reserved(&self, inode: InodeNr) -> bool {
        inode < self.first_inode
    }

    /// Number of clusters, counted from the first data block.
    pub fn clusters_count(&self) -> u64 {
        (self.blocks_count - self.first_data_block.0).div_ceil(u64::from(self.cluster_blocks))
    }

    /// Index of the cluster of a block, counted from the first data block.
    #[inline]
    pub fn cluster_of(&self, block: BlockNr) -> u64 {
        (block.0 - self.first_data_block.0) >> self.cluster_bits
    }

    /// Clusters of a group; the last group may have fewer.
    pub fn clusters_of(&self, group: GroupNr) -> u32 {
        let blocks = self.blocks_of(group).len_blocks;
        // At most blocks_per_group, which is 32 bits.
        blocks.div_ceil(u64::from(self.cluster_blocks)) as u32
    }

    /// Bytes of the file system.
    pub fn size_bytes(&self) -> u64 {
        self.blocks_count.saturating_mul(u64::from(self.block_size))
    }

    /// Byte of the device at which a block starts. Wild block numbers saturate at 2^63 - 1, past
    /// the end of any device but low enough that adding a length does not overflow.
    #[inline]
    pub fn offset_bytes(&self, block: BlockNr) -> u64 {
        block.0.saturating_mul(u64::from(self.block_size)).min(i64::MAX as u64)
    }

    /// Whether a group holds a copy of the superblock (group 0: the primary).
    pub fn has_superblock(&self, group: GroupNr) -> bool {
        let group = group.0;
        if group == 0 {
            return true;
        }
        if self.features.compat.contains(Compat::SPARSE_SUPER2) {
            return self.backup_groups.contains(&group);
        }
        if !self.features.ro_compat.contains(RoCompat::SPARSE_SUPER) || group == 1 {
            return true;
        }
        group % 2 == 1 && [3, 5, 7].iter().any(|&base| is_power_of(group, base))
    }

    /// Descriptor blocks that lie in a group, as a run behind its superblock copy, without the
    /// reserved ones; empty if it has none.
    pub fn group_desc_run(&self, group: GroupNr) -> BlockRun {
        let start = self.group_start(group);
        let has_superblock = self.has_superblock(group);
        let behind =
            BlockNr(start.0 + u64::from(has_superblock) + u64::from(self.superblock_gap(group)));
        let meta_group = self.meta_group_of(group);
        if meta_group < self.first_meta_bg {
            let len_blocks = if has_superblock { self.first_meta_bg } else { 0 };
            return BlockRun::new(behind, u64::from(len_blocks));
        }
        let per_block = self.descs_per_block();
        let at = group.0 % per_block;
        let holds = at == 0 || at == 1 || at == per_block - 1;
        BlockRun::new(behind, u64::from(holds))
    }

    /// With 1 KiB blocks and bigalloc the first data block is 0, but the superblock is in block 1.
    fn superblock_gap(&self, group: GroupNr) -> u32 {
        u32::from(group.0 == 0 && self.block_size == 1024 && self.first_data_block.0 == 0)
    }

    /// The superblock copy of a group, if it has one.
    pub fn superblock_of(&self, group: GroupNr) -> Option<BlockNr> {
        self.has_superblock(group)
            .then(|| BlockNr(self.group_start(group).0 + u64::from(self.superblock_gap(group))))
    }

    /// Reserved descriptor blocks behind the descriptors of a group; empty if it has none.
    pub fn reserved_gdt_run(&self, group: GroupNr) -> BlockRun {
        let descs = self.group_desc_run(group);
        let plain = self.meta_group_of(group) < self.first_meta_bg && self.has_superblock(group);
        BlockRun::new(descs.end(), if plain { u64::from(self.reserved_gdt_blocks) } else { 0 })
    }

    /// Descriptors that fit a block. In native file systems they are those of a lot.
    pub const fn descs_per_block(&self) -> u32 {
        self.block_size / self.desc_size
    }

    /// The meta group a group belongs to.
    pub fn meta_group_of(&self, group: GroupNr) -> u32 {
        group.0 / self.descs_per_block()
    }

    /// Block of the primary descriptor table's block `index`; with meta_bg it lies in the meta
    /// group's first group.
    pub fn primary_desc_block(&self, index: u32) -> BlockNr {
        let gap = u64::from(self.superblock_gap(GroupNr(0)));
        if index < self.first_meta_bg {
            return BlockNr(self.first_data_block.0 + gap + 1 + u64::from(index));
        }
        // A meta group's first group number fits: index < desc_blocks.
        self.group_desc_run(GroupNr(index * self.descs_per_block())).start
    }
}

/// Whether `value` is a power of `base`.
fn is_power_of(mut value: u32, base: u32) -> bool {
    while value.is_multiple_of(base) {
        value /= base;
    }
    value == 1
}

fn fault(field: &'static str, value: u64) -> GeometryFault {
    GeometryFault { field, value }
}

fn block_size(sb: &Superblock) -> Result<u32, GeometryFault> {
    if sb.log_block_size > 6 {
        return Err(fault("s_log_block_size", u64::from(sb.log_block_size)));
    }
    Ok(1024 << sb.log_block_size)
}

fn cluster_bits(sb: &Superblock, features: &Features) -> Result<u32, GeometryFault> {
    let bad = || fault("s_log_cluster_size", u64::from(sb.log_cluster_size));
    if features.ro_compat.contains(RoCompat::BIGALLOC) {
        let bits = sb.log_cluster_size.checked_sub(sb.log_block_size).ok_or_else(bad)?;
        return (sb.log_cluster_size <= 29 - 10).then_some(bits).ok_or_else(bad);
    }
    if sb.log_cluster_size != sb.log_block_size { Err(bad()) } else { Ok(0) }
}

fn desc_size(sb: &Superblock, features: &Features) -> Result<u32, GeometryFault> {
    if !features.incompat.contains(Incompat::BIT64) {
        return Ok(32);
    }
    let size = u32::from(sb.desc_size);
    if !(64..=1024).contains(&size) || !size.is_power_of_two() {
        return Err(fault("s_desc_size", u64::from(size)));
    }
    Ok(size)
}

fn blocks_count(sb: &Superblock, features: &Features) -> Result<u64, GeometryFault> {
    let count = sb.blocks_count();
    let limit = if features.incompat.contains(Incompat::BIT64) { 1 << 48 } else { 1 << 32 };
    if count == 0 || count >= limit || u64::from(sb.first_data_block) >= count {
        return Err(fault("s_blocks_count", count));
    }
    if sb.reserved_blocks_count() > count / 2 {
        return Err(fault("s_r_blocks_count", sb.reserved_blocks_count()));
    }
    Ok(count)
}

fn inode_size(sb: &Superblock, block_size: u32) -> Result<u32, GeometryFault> {
    if sb.rev_level == 0 {
        return Ok(128);
    }
    let size = u32::from(sb.inode_size);
    if !(128..=block_size).contains(&size) || !size.is_power_of_two() {
        return Err(fault("s_inode_size", u64::from(size)));
    }
    Ok(size)
}

/// The first inode that is not reserved. `inodes_count` is the number of inodes in all groups; the
/// superblock's own count may be wrong.
fn first_inode(sb: &Superblock, inodes_count: u32) -> Result<u32, GeometryFault> {
    if sb.rev_level == 0 {
        return Ok(11);
    }
    if sb.first_ino < 11 || sb.first_ino > inodes_count {
        return Err(fault("s_first_ino", u64::from(sb.first_ino)));
    }
    Ok(sb.first_ino)
}

fn groups(
    sb: &Superblock,
    block_size: u32,
    cluster_bits: u32,
    inode_size: u32,
) -> Result<(), GeometryFault> {
    // The bits of a bitmap of one block; libext2fs limits clusters to 2^16 - 8.
    let bits = u64::from(block_size) * 8;
    let most_clusters = bits.min(65536 - 8);
    let (blocks, clusters) = (u64::from(sb.blocks_per_group), u64::from(sb.clusters_per_group));
    if blocks < 8 || blocks > most_clusters << cluster_bits {
        return Err(fault("s_blocks_per_group", blocks));
    }
    // Applies without bigalloc, too, where clusters are blocks.
    if clusters < 8 || clusters > most_clusters || blocks != clusters << cluster_bits {
        return Err(fault("s_clusters_per_group", clusters));
    }
    if sb.log_groups_per_flex > 31 {
        return Err(fault("s_log_groups_per_flex", u64::from(sb.log_groups_per_flex)));
    }
    let inodes = u64::from(sb.inodes_per_group);
    let per_block = u64::from(block_size / inode_size);
    // A group needs room for its bitmaps, descriptors and superblock beside the table.
    let most = bits.min(65536 - per_block).min(per_block * (blocks - 4));
    if inodes < per_block || inodes > most {
        return Err(fault("s_inodes_per_group", inodes));
    }
    if u32::from(sb.reserved_gdt_blocks) > block_size / 4 {
        return Err(fault("s_reserved_gdt_blocks", u64::from(sb.reserved_gdt_blocks)));
    }
    Ok(())
}
