//! The superblock (`struct ext4_super_block`): 1024 bytes at byte 1024 of the device.

use crate::crc::{Seed, crc32c};
use crate::features::{Compat, Features, Incompat, RoCompat};
use crate::layout::le;

/// Byte of the device at which the primary superblock lies, whatever the block size.
pub const OFFSET_BYTES: u64 = 1024;
/// `s_magic`.
pub const MAGIC: u16 = 0xef53;

/// Whether bytes that may be a superblock have its magic number.
pub fn has_magic(bytes: &[u8]) -> bool {
    bytes.get(0x38..0x3a) == Some(&MAGIC.to_le_bytes()[..])
}

/// `s_state`: unmounted cleanly.
pub const STATE_VALID: u16 = 0x0001;
/// `s_state`: errors were detected.
pub const STATE_ERROR: u16 = 0x0002;
/// `s_state`: orphans are being recovered.
pub const STATE_ORPHAN: u16 = 0x0004;

/// `s_flags`: directory hashes treat characters as signed.
pub const FLAG_SIGNED_HASH: u32 = 0x0001;
/// `s_flags`: directory hashes treat characters as unsigned.
pub const FLAG_UNSIGNED_HASH: u32 = 0x0002;
/// `s_flags`: a test file system.
pub const FLAG_TEST_FS: u32 = 0x0004;

/// `s_creator_os`: Linux.
pub const OS_LINUX: u32 = 0;
/// `s_creator_os`: GNU Hurd.
pub const OS_HURD: u32 = 1;

/// `s_encoding_flags`: names that are not valid in the encoding are refused.
pub const ENCODING_STRICT: u16 = 0x0001;

layout! {
    /// The superblock, field for field; reserved areas included, so that encoding loses nothing.
    pub struct Superblock[1024] little {
        /// Number of inodes.
        0x000 inodes_count: u32,
        /// Number of blocks, low half.
        0x004 blocks_count_lo: u32,
        /// Blocks reserved for the administrator, low half.
        0x008 r_blocks_count_lo: u32,
        /// Free blocks, low half.
        0x00c free_blocks_count_lo: u32,
        /// Free inodes.
        0x010 free_inodes_count: u32,
        /// First block of group 0: 1 for blocks of 1 KiB, else 0.
        0x014 first_data_block: u32,
        /// Block size is `1024 << log_block_size` bytes.
        0x018 log_block_size: u32,
        /// Cluster size is `1024 << log_cluster_size` bytes (bigalloc), else the block size.
        0x01c log_cluster_size: u32,
        /// Blocks in a group.
        0x020 blocks_per_group: u32,
        /// Clusters in a group.
        0x024 clusters_per_group: u32,
        /// Inodes in a group.
        0x028 inodes_per_group: u32,
        /// Last mount, seconds since 1970, low 32 bits.
        0x02c mtime: u32,
        /// Last write, seconds since 1970, low 32 bits.
        0x030 wtime: u32,
        /// Mounts since the last check.
        0x034 mnt_count: u16,
        /// Mounts after which a check is due; 0 or negative: never.
        0x036 max_mnt_count: u16,
        /// 0xEF53.
        0x038 magic: u16,
        /// `STATE_*` bits.
        0x03a state: u16,
        /// Reaction to errors: 1 continue, 2 remount read-only, 3 panic.
        0x03c errors: u16,
        /// Minor revision.
        0x03e minor_rev_level: u16,
        /// Last check, seconds since 1970, low 32 bits.
        0x040 lastcheck: u32,
        /// Seconds after which a check is due; 0: never.
        0x044 checkinterval: u32,
        /// Creator: 0 Linux, 1 Hurd, 2 Masix, 3 FreeBSD, 4 Lites.
        0x048 creator_os: u32,
        /// 0: fixed inode size of 128 and first inode 11; 1: `first_ino` and `inode_size` count.
        0x04c rev_level: u32,
        /// User who may use the reserved blocks.
        0x050 def_resuid: u16,
        /// Group that may use the reserved blocks.
        0x052 def_resgid: u16,
        /// First inode that is not reserved.
        0x054 first_ino: u32,
        /// Bytes of an inode.
        0x058 inode_size: u16,
        /// Group that holds this copy.
        0x05a block_group_nr: u16,
        /// `Compat` bits.
        0x05c feature_compat: u32,
        /// `Incompat` bits.
        0x060 feature_incompat: u32,
        /// `RoCompat` bits.
        0x064 feature_ro_compat: u32,
        /// UUID of the volume.
        0x068 uuid: [u8; 16],
        /// Label, NUL padded.
        0x078 volume_name: [u8; 16],
        /// Where it was last mounted, NUL padded.
        0x088 last_mounted: [u8; 64],
        /// For compression; unused.
        0x0c8 algorithm_usage_bitmap: u32,
        /// Blocks to preallocate for files; unused by ext4.
        0x0cc prealloc_blocks: u8,
        /// Blocks to preallocate for directories; unused by ext4.
        0x0cd prealloc_dir_blocks: u8,
        /// Reserved descriptor blocks for growing.
        0x0ce reserved_gdt_blocks: u16,
        /// UUID of the journal's own superblock, if external.
        0x0d0 journal_uuid: [u8; 16],
        /// Inode of the journal file.
        0x0e0 journal_inum: u32,
        /// Device of the journal, if external.
        0x0e4 journal_dev: u32,
        /// First orphan to delete.
        0x0e8 last_orphan: u32,
        /// Seed of the directory hash.
        0x0ec hash_seed: [u32; 4],
        /// Directory hash for new indexes.
        0x0fc def_hash_version: u8,
        /// 1: `jnl_blocks` holds a copy of the journal inode's block map.
        0x0fd jnl_backup_type: u8,
        /// Bytes of a group descriptor with 64bit.
        0x0fe desc_size: u16,
        /// Default mount options.
        0x100 default_mount_opts: u32,
        /// First meta block group.
        0x104 first_meta_bg: u32,
        /// When the file system was made, seconds since 1970, low 32 bits.
        0x108 mkfs_time: u32,
        /// Copy of the journal inode: `i_block`, `i_size_high`, `i_size`.
        0x10c jnl_blocks: [u32; 17],
        /// Number of blocks, high half (64bit).
        0x150 blocks_count_hi: u32,
        /// Reserved blocks, high half.
        0x154 r_blocks_count_hi: u32,
        /// Free blocks, high half.
        0x158 free_blocks_count_hi: u32,
        /// Extra bytes that all inodes have.
        0x15c min_extra_isize: u16,
        /// Extra bytes that new inodes should have.
        0x15e want_extra_isize: u16,
        /// `FLAG_*` bits.
        0x160 flags: u32,
        /// RAID stride in blocks.
        0x164 raid_stride: u16,
        /// Seconds to wait in multiple-mount checking.
        0x166 mmp_interval: u16,
        /// Block of multiple-mount protection.
        0x168 mmp_block: u64,
        /// Blocks on all data disks of a RAID.
        0x170 raid_stripe_width: u32,
        /// A flexible group has `1 << log_groups_per_flex` groups.
        0x174 log_groups_per_flex: u8,
        /// Checksum algorithm: 1 is crc32c.
        0x175 checksum_type: u8,
        /// Encryption version.
        0x176 encryption_level: u8,
        /// Padding.
        0x177 reserved_pad: u8,
        /// KiB written in all.
        0x178 kbytes_written: u64,
        /// Snapshots; unused.
        0x180 snapshot_inum: u32,
        /// Snapshots; unused.
        0x184 snapshot_id: u32,
        /// Snapshots; unused.
        0x188 snapshot_r_blocks_count: u64,
        /// Snapshots; unused.
        0x190 snapshot_list: u32,
        /// Errors seen by the kernel.
        0x194 error_count: u32,
        /// First error: when, low 32 bits.
        0x198 first_error_time: u32,
        /// First error: inode.
        0x19c first_error_ino: u32,
        /// First error: block.
        0x1a0 first_error_block: u64,
        /// First error: kernel function.
        0x1a8 first_error_func: [u8; 32],
        /// First error: source line.
        0x1c8 first_error_line: u32,
        /// Last error: when, low 32 bits.
        0x1cc last_error_time: u32,
        /// Last error: inode.
        0x1d0 last_error_ino: u32,
        /// Last error: source line.
        0x1d4 last_error_line: u32,
        /// Last error: block.
        0x1d8 last_error_block: u64,
        /// Last error: kernel function.
        0x1e0 last_error_func: [u8; 32],
        /// Mount options, NUL padded.
        0x200 mount_opts: [u8; 64],
        /// User quota inode.
        0x240 usr_quota_inum: u32,
        /// Group quota inode.
        0x244 grp_quota_inum: u32,
        /// Clusters of overhead; 0: compute.
        0x248 overhead_clusters: u32,
        /// The two groups with backups (sparse_super2).
        0x24c backup_bgs: [u32; 2],
        /// Encryption algorithms in use.
        0x254 encrypt_algos: [u8; 4],
        /// Salt for string-to-key.
        0x258 encrypt_pw_salt: [u8; 16],
        /// Inode of lost+found; unused.
        0x268 lpf_ino: u32,
        /// Project quota inode.
        0x26c prj_quota_inum: u32,
        /// Start of all checksums (metadata_csum_seed).
        0x270 checksum_seed: u32,
        /// High byte of `wtime`.
        0x274 wtime_hi: u8,
        /// High byte of `mtime`.
        0x275 mtime_hi: u8,
        /// High byte of `mkfs_time`.
        0x276 mkfs_time_hi: u8,
        /// High byte of `lastcheck`.
        0x277 lastcheck_hi: u8,
        /// High byte of `first_error_time`.
        0x278 first_error_time_hi: u8,
        /// High byte of `last_error_time`.
        0x279 last_error_time_hi: u8,
        /// First error: errno.
        0x27a first_error_errcode: u8,
        /// Last error: errno.
        0x27b last_error_errcode: u8,
        /// Encoding of names (casefold): 1 is UTF-8 12.1.
        0x27c encoding: u16,
        /// `ENCODING_*` bits.
        0x27e encoding_flags: u16,
        /// Inode of the orphan file.
        0x280 orphan_file_inum: u32,
        /// Reserved; also holds newer fields that no released e2fsck 1.47 judges.
        0x284 reserved: [u32; 94],
        /// crc32c of the superblock.
        0x3fc checksum: u32,
    }
}

impl Superblock {
    /// The feature words.
    #[inline]
    pub fn features(&self) -> Features {
        Features::from_words(self.feature_compat, self.feature_incompat, self.feature_ro_compat)
    }

    /// Whether it says that there may be orphans, on its list or in its orphan file.
    pub fn may_have_orphans(&self) -> bool {
        self.last_orphan != 0 || self.may_have_orphans_in_file()
    }

    /// Whether it says that there may be orphans in its orphan file. The flag alone, without such a file, says nothing.
    pub fn may_have_orphans_in_file(&self) -> bool {
        let features = self.features();
        features.compat.contains(Compat::ORPHAN_FILE)
            && features.ro_compat.contains(RoCompat::ORPHAN_PRESENT)
    }

    /// `s_blocks_count`; the high half counts only with 64bit.
    pub fn blocks_count(&self) -> u64 {
        self.wide(self.blocks_count_lo, self.blocks_count_hi)
    }

    /// `s_free_blocks_count`; the high half counts only with 64bit.
    pub fn free_blocks_count(&self) -> u64 {
        self.wide(self.free_blocks_count_lo, self.free_blocks_count_hi)
    }

    /// `s_r_blocks_count`; the high half counts only with 64bit.
    pub fn reserved_blocks_count(&self) -> u64 {
        self.wide(self.r_blocks_count_lo, self.r_blocks_count_hi)
    }

    fn wide(&self, lo: u32, hi: u32) -> u64 {
        let hi = if self.features().incompat.contains(Incompat::BIT64) { hi } else { 0 };
        u64::from(lo) | u64::from(hi) << 32
    }

    /// The start of all metadata checksums.
    pub fn seed(&self) -> Seed {
        if self.features().incompat.contains(Incompat::CSUM_SEED) {
            Seed(self.checksum_seed)
        } else {
            Seed(crc32c(u32::MAX, &self.uuid))
        }
    }

    /// The checksum that `bytes` should carry at its end.
    pub fn compute_checksum(bytes: &[u8; 1024]) -> u32 {
        crc32c(u32::MAX, &bytes[..0x3fc])
    }

    /// Whether the stored checksum fits; true where the file system has none.
    pub fn checksum_ok(bytes: &[u8; 1024]) -> bool {
        let ro_compat: u32 = le::<u32, 0x064, 1024>(bytes);
        !Features::from_words(0, 0, ro_compat).metadata_csum()
            || Self::compute_checksum(bytes) == le::<u32, 0x3fc, 1024>(bytes)
    }

    /// Writes the checksum at the end of `bytes`.
    pub fn write_checksum(bytes: &mut [u8; 1024]) {
        let checksum = Self::compute_checksum(bytes);
        crate::layout::put_le::<u32, 0x3fc, 1024>(bytes, &checksum);
    }

    /// Encodes into `bytes`, with the checksum if the file system has one. Bytes that no field
    /// covers stay as they are.
    pub fn encode_with_checksum(&self, bytes: &mut [u8; 1024]) {
        self.encode_into(bytes);
        if self.features().metadata_csum() {
            Self::write_checksum(bytes);
        }
    }

    /// The volume label up to its first NUL, with bytes that are not UTF-8 replaced.
    pub fn label(&self) -> String {
        let end = self.volume_name.iter().position(|&byte| byte == 0).unwrap_or(16);
        String::from_utf8_lossy(&self.volume_name[..end]).into_owned()
    }

    /// The UUID in its usual form.
    pub fn uuid_text(&self) -> String {
        uuid_text(&self.uuid)
    }
}

/// A time of the superblock, in seconds since 1970: its low 32 bits, and the byte above.
pub const fn seconds(low: u32, high: u8) -> u64 {
    (low as u64) | (high as u64) << 32
}

/// A UUID in its usual form: 8-4-4-4-12 hexadecimal digits.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orphans_are_on_the_list_or_in_a_file_that_there_is() {
        let mut sb = Superblock::decode(&[0; Superblock::SIZE]);
        assert!(!sb.may_have_orphans());
        sb.feature_ro_compat = RoCompat::ORPHAN_PRESENT.bits();
        assert!(!sb.may_have_orphans(), "there is no orphan file");
        sb.feature_compat = Compat::ORPHAN_FILE.bits();
        assert!(sb.may_have_orphans() && sb.may_have_orphans_in_file());
        sb.feature_ro_compat = 0;
        sb.last_orphan = 12;
        assert!(sb.may_have_orphans() && !sb.may_have_orphans_in_file());
    }
}
