//! Check: the copies of the superblock, and the descriptors that a rescue would use first.
//! Reads: backup superblocks, the first backup of the descriptors.  Keeps: nothing.
//! Emits: `BackupSuperblockBad`, `BackupSuperblockDiffers`, `BackupDescriptorsBad`; all of them are
//! remarks: e2fsck looks at no backup while the primary is good.
//! Does not verify: counts and times, which Linux keeps in the primary alone.

use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::superblock::{MAGIC, Superblock};
use floe_format::native::LOCK;
use floe_format::native::identity::Identity;
use floe_format::rext3::region_blocks;
use floe_format::{BlockNr, GroupNr};

use crate::problem::{Findings, Problem, Sink};
use crate::volume::Volume;

/// Backups that are read at most. File systems without sparse_super have one in each group.
pub(crate) const MOST_BACKUPS: usize = 64;
/// Features that Linux switches on or off in the primary alone: extents and needs_recovery;
/// large_file, dir_nlink and orphan_present.
const PRIMARY_ONLY: (u32, u32) = (0x44, 0x1_0022);

/// Checks the backups, unless one of them is in use.
pub fn check(volume: &Volume<'_>, found: &mut Findings) {
    if volume.doubts.used_backup.is_some() {
        return;
    }
    let geometry = &volume.geometry;
    let copies = (1..geometry.group_count)
        .map(GroupNr)
        .filter_map(|group| Some((group, geometry.superblock_of(group)?)))
        // A truncated device has a finding of its own.
        .filter(|(_, block)| geometry.offset_bytes(*block) < volume.device.size_bytes());
    for (at, (group, block)) in copies.take(MOST_BACKUPS).enumerate() {
        match read(volume, block) {
            Err(reason) => found.push(Problem::BackupSuperblockBad { group, block, reason }),
            Ok(copy) => compare(volume, group, &copy, found),
        }
        if at == 0 {
            check_descriptors(volume, group, found);
        }
    }
}

/// The superblock in a block, or why it is none.
pub(in crate::checks) fn read(
    volume: &Volume<'_>,
    block: BlockNr,
) -> Result<Superblock, &'static str> {
    let mut bytes = [0; 1024];
    let offset_bytes = volume.geometry.offset_bytes(block);
    volume.device.read_at(offset_bytes, &mut bytes).map_err(|_| "it cannot be read")?;
    let copy = Superblock::decode(&bytes);
    if copy.magic != MAGIC {
        return Err("it lacks the magic number");
    }
    if volume.features().metadata_csum() && !Superblock::checksum_ok(&bytes) {
        return Err("its checksum is wrong");
    }
    Ok(copy)
}

/// Reports the first field in which a copy would lead a rescue astray.
fn compare(volume: &Volume<'_>, group: GroupNr, copy: &Superblock, found: &mut Findings) {
    let (mut incompat, ro_compat) = PRIMARY_ONLY;
    if Identity::of(&volume.superblock).is_some() {
        // Floe sets and clears it in the backups first, each flushed.
        incompat |= LOCK;
    }
    let fields = |sb: &Superblock| {
        let uuid = sb.uuid.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        [
            ("s_blocks_count", sb.blocks_count()),
            ("s_inodes_count", u64::from(sb.inodes_count)),
            ("s_log_block_size", u64::from(sb.log_block_size)),
            ("s_log_cluster_size", u64::from(sb.log_cluster_size)),
            ("s_blocks_per_group", u64::from(sb.blocks_per_group)),
            ("s_inode_size", u64::from(sb.inode_size)),
            ("s_desc_size", u64::from(sb.desc_size)),
            ("s_first_meta_bg", u64::from(sb.first_meta_bg)),
            ("s_feature_compat", u64::from(sb.feature_compat)),
            ("s_feature_incompat", u64::from(sb.feature_incompat & !incompat)),
            ("s_feature_ro_compat", u64::from(sb.feature_ro_compat & !ro_compat)),
            ("s_uuid", uuid),
            ("s_log_groups_per_flex", u64::from(sb.log_groups_per_flex)),
            ("rext3 region_blocks", u64::from(region_blocks(sb).unwrap_or(0))),
            // The last, so that where it is named it is all that differs: a repair may have to leave it.
            ("s_inodes_per_group", u64::from(sb.inodes_per_group)),
        ]
    };
    let pairs = fields(copy).into_iter().zip(fields(&volume.superblock));
    if let Some(((field, stored), (_, expected))) = pairs.into_iter().find(|(a, b)| a.1 != b.1) {
        found.push(Problem::BackupSuperblockDiffers { group, field, stored, expected });
    }
}

/// Compares the places in the descriptors behind a backup superblock with those in use. With meta_bg
/// only the part that is stored that way is looked at.
fn check_descriptors(volume: &Volume<'_>, group: GroupNr, found: &mut Findings) {
    let geometry = &volume.geometry;
    if geometry.meta_group_of(group) >= geometry.first_meta_bg {
        return;
    }
    let run = geometry.group_desc_run(group);
    let mut bytes = Vec::new();
    let per_block = geometry.descs_per_block() as usize;
    let places = |desc: &GroupDesc| (desc.block_bitmap, desc.inode_bitmap, desc.inode_table);
    let blocks = (run.start.0..run.end().0).map(BlockNr);
    for (block, in_use) in blocks.zip(volume.groups.chunks(per_block)) {
        let reason = if volume.read_block(block, &mut bytes).is_err() {
            "they cannot be read"
        } else {
            let copies = bytes.chunks_exact(geometry.desc_size as usize).map(|raw| {
                let low = raw.first_chunk().unwrap_or(&[0; 32]);
                GroupDesc::decode(low, raw.get(32..).and_then(<[u8]>::first_chunk))
            });
            if copies.zip(in_use).all(|(copy, desc)| places(&copy) == places(desc)) {
                continue;
            }
            "they place bitmaps or inode tables elsewhere"
        };
        found.push(Problem::BackupDescriptorsBad { group, block, reason });
        return;
    }
}
