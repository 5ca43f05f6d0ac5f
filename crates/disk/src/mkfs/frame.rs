//! The superblock and geometry of a new file system, before anything is placed.

use floe_format::ext::quota::QuotaKind;
use floe_format::ext::superblock::{
    FLAG_SIGNED_HASH, FLAG_TEST_FS, MAGIC, STATE_VALID, Superblock,
};
use floe_format::features::{Compat, Incompat, RoCompat};
use floe_format::geometry::Strictness;
use floe_format::{Geometry, GroupNr};

use super::inode::{EXTRA_SIZE, extra_size};
use super::params::{InodeCount, Params, PlanError, Reserved};

/// Maximum blocks of a group, whatever a bitmap could hold.
const MOST_PER_GROUP: u32 = 65528;
/// Blocks that must remain free in the last group behind its tables; a shorter last group is left
/// out.
const LEAST_LAST_GROUP: u64 = 50;
/// Fewest blocks of a native file system: one with fewer has no journal.
const LEAST_NATIVE_BLOCKS: u64 = 2048;
/// `s_first_ino`.
const FIRST_INODE: u32 = 11;

/// Computes superblock and geometry. Offsets and counts in the superblock are still zero.
///
/// Like mke2fs, it changes features that a large file system cannot have: from 2^32 blocks on there
/// is no `resize_inode`, whose map has 32-bit block numbers, and descriptors that would take more
/// than three quarters of a group are spread (`meta_bg`).
pub(super) fn frame(params: &mut Params) -> Result<(Superblock, Geometry), PlanError> {
    params.check()?;
    if params.native.is_some() && params.blocks < LEAST_NATIVE_BLOCKS {
        return Err(PlanError::TooSmall { blocks: params.blocks });
    }
    if params.blocks >= 1 << 32 {
        params.features.compat.remove(Compat::RESIZE_INODE);
    }
    let mut sb = Superblock::decode(&[0; 1024]);
    identity(params, &mut sb);
    let first_data_block =
        u64::from(params.block_size == 1024 && !params.ro_compat(RoCompat::BIGALLOC));
    sb.first_data_block = first_data_block as u32;
    let mut per_group = blocks_per_group(params)?;
    let ratio = u64::from(params.cluster_size / params.block_size);
    // Whole clusters only.
    let all = params.blocks - params.blocks % ratio;
    let mut blocks = all;
    // mke2fs computes the reserved share from the size without the last group that it left out,
    // even if the final file system includes that group.
    let mut share_of = all;
    if !params.incompat(Incompat::BIT64) && blocks >= 1 << 32 {
        return Err(PlanError::TooLarge { blocks });
    }
    let too_small = PlanError::TooSmall { blocks: params.blocks };
    let wanted = inodes_wanted(params, blocks)?;
    loop {
        if blocks <= first_data_block + 8 {
            return Err(too_small);
        }
        let groups = (blocks - first_data_block).div_ceil(u64::from(per_group));
        let groups = u32::try_from(groups).map_err(|_| PlanError::TooLarge { blocks })?;
        sb.blocks_count_lo = (blocks & 0xffff_ffff) as u32;
        sb.blocks_count_hi = (blocks >> 32) as u32;
        sb.blocks_per_group = per_group;
        sb.clusters_per_group = per_group / ratio as u32;
        let Some(per_group_inodes) = inodes_per_group(params, wanted, groups) else {
            // Smaller groups, so that there are more of them.
            if per_group < 256 || per_group <= 8 * ratio as u32 {
                return Err(PlanError::TooManyInodes { inodes: wanted });
            }
            per_group -= 8 * ratio as u32;
            // A last group that was too short before may be long enough with the new group size.
            blocks = all;
            continue;
        };
        sb.inodes_per_group = per_group_inodes;
        sb.inodes_count = groups
            .checked_mul(per_group_inodes)
            .ok_or(PlanError::TooManyInodes { inodes: wanted })?;
        backups(params, groups, &mut sb);
        sb.reserved_gdt_blocks = reserved_descriptors(params, blocks, &sb);
        if spread_descriptors(params, groups, &mut sb) {
            (blocks, share_of) = (all, all);
            continue;
        }
        let Reserved::Percent(percent) = params.reserved_blocks;
        // Both steps round down.
        let reserved = (params.blocks as f64 * percent / 100.0) as u64;
        let reserved = (reserved as f64 * share_of as f64 / all as f64) as u64;
        sb.r_blocks_count_lo = (reserved & 0xffff_ffff) as u32;
        sb.r_blocks_count_hi = (reserved >> 32) as u32;
        let geometry =
            Geometry::new(&sb, Strictness::Strict).map_err(|fault| match fault.field {
                // The tables leave no free blocks in the groups.
                "s_inodes_per_group" => PlanError::TooManyInodes { inodes: wanted },
                field => PlanError::Parameter(field),
            })?;
        match last_group(&geometry, params.native.is_some()) {
            LastGroup::Fits => return Ok((sb, geometry)),
            LastGroup::Alone => return Err(too_small),
            LastGroup::TooShort { blocks_in_it } => {
                blocks -= blocks_in_it;
                share_of = blocks;
            }
        }
    }
}

/// Sets the fields that do not depend on sizes.
fn identity(params: &Params, sb: &mut Superblock) {
    let now = params.now.seconds.max(0) as u64;
    let (low, high) = ((now & 0xffff_ffff) as u32, (now >> 32) as u8);
    sb.magic = MAGIC;
    sb.state = STATE_VALID;
    sb.errors = params.errors;
    sb.max_mnt_count = u16::MAX;
    (sb.wtime, sb.lastcheck, sb.mkfs_time) = (low, low, low);
    (sb.wtime_hi, sb.lastcheck_hi, sb.mkfs_time_hi) = (high, high, high);
    sb.creator_os = params.creator_os;
    sb.rev_level = u32::from(!params.old_revision);
    sb.log_block_size = params.block_size.trailing_zeros() - 10;
    sb.log_cluster_size = params.cluster_size.trailing_zeros() - 10;
    sb.uuid = params.uuid;
    sb.volume_name = params.label;
    sb.last_mounted = params.last_mounted;
    sb.default_mount_opts = params.default_mount_options;
    let words = params.hash_seed.as_chunks::<4>().0;
    for (word, bytes) in sb.hash_seed.iter_mut().zip(words) {
        *word = u32::from_le_bytes(*bytes);
    }
    sb.def_hash_version = params.hash_version;
    // Linux on common machines hashes names as signed characters.
    sb.flags = FLAG_SIGNED_HASH | if params.test_fs { FLAG_TEST_FS } else { 0 };
    (sb.raid_stride, sb.raid_stripe_width) = (params.stride, params.stripe_width);
    (sb.first_ino, sb.inode_size) = (FIRST_INODE, params.inode_size as u16);
    if params.old_revision {
        return;
    }
    sb.feature_compat = params.features.compat.bits();
    sb.feature_incompat = params.features.incompat.bits();
    sb.feature_ro_compat = params.features.ro_compat.bits();
    if params.inode_size > 128 {
        sb.min_extra_isize = EXTRA_SIZE;
        sb.want_extra_isize = extra_size(params.native.is_some());
    }
    if params.incompat(Incompat::BIT64) {
        // 64, or 1024 in native file systems.
        sb.desc_size = params.desc_size() as u16;
    }
    if params.incompat(Incompat::FLEX_BG) {
        sb.log_groups_per_flex = params.flex_groups.trailing_zeros() as u8;
    }
    if params.ro_compat(RoCompat::METADATA_CSUM) {
        sb.checksum_type = 1;
    }
    if params.incompat(Incompat::CSUM_SEED) {
        sb.checksum_seed = floe_format::crc::crc32c(u32::MAX, &params.uuid);
    }
    if params.incompat(Incompat::ENCRYPT) {
        // AES-256-XTS for contents, AES-256-CTS for names.
        sb.encrypt_algos = [1, 4, 0, 0];
    }
    if params.incompat(Incompat::CASEFOLD) {
        (sb.encoding, sb.encoding_flags) = params.encoding;
    }
    if params.incompat(Incompat::MMP) {
        sb.mmp_interval = params.mmp_interval;
    }
}

fn blocks_per_group(params: &Params) -> Result<u32, PlanError> {
    let ratio = params.cluster_size / params.block_size;
    let most = (params.block_size * 8).min(MOST_PER_GROUP);
    let Some(asked) = params.blocks_per_group else { return Ok(most * ratio) };
    if asked < 256 || asked % (8 * ratio) != 0 || asked / ratio > most {
        return Err(PlanError::Parameter(
            "the blocks of a group must be a multiple of 8, from 256 to 8 times the block size",
        ));
    }
    Ok(asked)
}

fn inodes_wanted(params: &Params, blocks: u64) -> Result<u64, PlanError> {
    let wanted = match params.inodes {
        InodeCount::Count(count) => u64::from(count),
        InodeCount::Ratio(bytes) if bytes >= 1024 => {
            let all_bytes = blocks.saturating_mul(u64::from(params.block_size));
            // Like mke2fs if the ratio gives less than one inode.
            let bytes =
                if bytes > all_bytes { u64::from(params.block_size.max(4096)) } else { bytes };
            // Below 2^32, because inode numbers of the last group must fit, too.
            (all_bytes / bytes).min(0xffff_ffff)
        }
        InodeCount::Ratio(_) => {
            return Err(PlanError::Parameter("there must be at least 1024 bytes per inode"));
        }
    };
    Ok(wanted.max(u64::from(FIRST_INODE) + 1))
}

/// Inodes of a group: whole blocks of the table, a multiple of 8. `None` if a bitmap cannot hold
/// them.
fn inodes_per_group(params: &Params, wanted: u64, groups: u32) -> Option<u32> {
    let per_block = params.block_size / params.inode_size;
    let bitmap = u64::from(params.block_size) * 8;
    let most = bitmap.min(u64::from(1u32 << 16) - u64::from(per_block));
    let each = wanted.div_ceil(u64::from(groups));
    if each > bitmap {
        return None;
    }
    let each = each.min(most) as u32;
    // Rounded up to whole blocks, then down to a multiple of 8, because a block may hold fewer.
    let whole = (each.div_ceil(per_block) * per_block).max(8) & !7;
    // Even the smallest file system has the reserved inodes and lost+found.
    let least = (FIRST_INODE + 1).div_ceil(groups).next_multiple_of(8);
    Some(whole.max(least))
}

/// The groups with backups of sparse_super2.
fn backups(params: &Params, groups: u32, sb: &mut Superblock) {
    if !params.compat(Compat::SPARSE_SUPER2) {
        return;
    }
    sb.backup_bgs = [
        if params.backups >= 1 && groups >= 2 { 1 } else { 0 },
        if params.backups >= 2 && groups >= 3 { groups - 1 } else { 0 },
    ];
}

/// Enables `meta_bg` if the descriptors, including reserved ones, take more than three quarters of
/// a group.
fn spread_descriptors(params: &mut Params, groups: u32, sb: &mut Superblock) -> bool {
    let now = groups.div_ceil(descriptors_per_block(params));
    let descriptors = u64::from(now) + u64::from(sb.reserved_gdt_blocks);
    if params.old_revision
        || params.incompat(Incompat::META_BG)
        || descriptors <= u64::from(sb.blocks_per_group) * 3 / 4
    {
        return false;
    }
    params.features.compat.remove(Compat::RESIZE_INODE);
    params.features.incompat |= Incompat::META_BG;
    sb.feature_compat = params.features.compat.bits();
    sb.feature_incompat = params.features.incompat.bits();
    true
}

fn descriptors_per_block(params: &Params) -> u32 {
    params.block_size / params.desc_size()
}

/// Reserved descriptor blocks: enough for 1024 times the size, or for the size requested.
fn reserved_descriptors(params: &Params, blocks: u64, sb: &Superblock) -> u16 {
    if !params.compat(Compat::RESIZE_INODE) {
        return 0;
    }
    let per_block = u64::from(descriptors_per_block(params));
    let more = |blocks_per_group: u32, now: u64, later: u64| {
        let descriptors =
            |blocks: u64| blocks.div_ceil(u64::from(blocks_per_group)).div_ceil(per_block);
        descriptors(later).saturating_sub(descriptors(now))
    };
    let usual = || {
        let first = u64::from(sb.first_data_block);
        let most = blocks.saturating_mul(1024).min(u64::from(u32::MAX));
        more(sb.blocks_per_group, blocks - first, most.saturating_sub(first))
    };
    // mke2fs assumes groups of the default size here, even with bigalloc, and ignores a size for which
    // the descriptors already suffice.
    let group = params.blocks_per_group.unwrap_or(params.block_size * 8);
    let asked = params.resize_blocks.map(|later| more(group, blocks, later));
    let asked = asked.filter(|more| *more > 0);
    // One mapping block of the resize inode lists them all.
    asked.unwrap_or_else(usual).min(u64::from(params.block_size / 4)) as u16
}

/// Whether the last group has space for its own tables.
enum LastGroup {
    Fits,
    TooShort { blocks_in_it: u64 },
    Alone,
}

fn last_group(geometry: &Geometry, native: bool) -> LastGroup {
    let last = GroupNr(geometry.group_count - 1);
    let blocks = geometry.blocks_of(last).len_blocks;
    let mut overhead = 2 + u64::from(geometry.inode_table_blocks);
    if geometry.has_superblock(last) {
        // Like mke2fs, count all descriptors even where a meta block group has a block of them.
        let descriptors = if native { 1 } else { geometry.desc_blocks };
        overhead += 1 + u64::from(descriptors) + u64::from(geometry.reserved_gdt_blocks);
    }
    let whole = blocks == u64::from(geometry.blocks_per_group);
    if geometry.group_count == 1 {
        return if blocks < overhead { LastGroup::Alone } else { LastGroup::Fits };
    }
    if !whole && blocks < overhead + LEAST_LAST_GROUP {
        return LastGroup::TooShort { blocks_in_it: blocks };
    }
    if blocks < overhead { LastGroup::Alone } else { LastGroup::Fits }
}

/// Sets the superblock's inode number of a quota file.
pub(super) fn set_quota_inode(sb: &mut Superblock, kind: QuotaKind, inode: u32) {
    match kind {
        QuotaKind::User => sb.usr_quota_inum = inode,
        QuotaKind::Group => sb.grp_quota_inum = inode,
        QuotaKind::Project => sb.prj_quota_inum = inode,
    }
}
