//! The three feature words of the superblock (`s_feature_compat`, `_incompat`, `_ro_compat`).

use bitflags::bitflags;

bitflags! {
    /// `s_feature_compat`: an old kernel may read and write.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Compat: u32 {
        /// Preallocate directory blocks.
        const DIR_PREALLOC = 0x0001;
        /// AFS server inodes.
        const IMAGIC_INODES = 0x0002;
        /// Has a journal.
        const HAS_JOURNAL = 0x0004;
        /// Has extended attributes.
        const EXT_ATTR = 0x0008;
        /// Has reserved descriptor blocks, listed by the resize inode.
        const RESIZE_INODE = 0x0010;
        /// Directories may be indexed by hash.
        const DIR_INDEX = 0x0020;
        /// Lazy block groups; never used by the kernel.
        const LAZY_BG = 0x0040;
        /// An exclude-bitmap inode (snapshots; never merged).
        const EXCLUDE_INODE = 0x0080;
        /// Exclude bitmaps (snapshots; never merged).
        const EXCLUDE_BITMAP = 0x0100;
        /// Backups only in the two groups of `s_backup_bgs`.
        const SPARSE_SUPER2 = 0x0200;
        /// Fast commits may be in the journal.
        const FAST_COMMIT = 0x0400;
        /// Inode numbers and the UUID must never change.
        const STABLE_INODES = 0x0800;
        /// An inode holds the orphans.
        const ORPHAN_FILE = 0x1000;
    }
}

bitflags! {
    /// `s_feature_incompat`: an implementation that does not know a bit must not mount.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Incompat: u32 {
        /// Compressed files; never supported by ext4.
        const COMPRESSION = 0x0001;
        /// Directory entries hold a file type.
        const FILETYPE = 0x0002;
        /// The journal must be replayed.
        const RECOVER = 0x0004;
        /// This device is an external journal.
        const JOURNAL_DEV = 0x0008;
        /// Descriptors lie in their meta group.
        const META_BG = 0x0010;
        /// Files may use extents.
        const EXTENTS = 0x0040;
        /// Block numbers have 64 bits.
        const BIT64 = 0x0080;
        /// Multiple-mount protection.
        const MMP = 0x0100;
        /// Bitmaps and inode tables may lie in another group.
        const FLEX_BG = 0x0200;
        /// Big extended attributes live in inodes.
        const EA_INODE = 0x0400;
        /// Data in directory entries; never merged.
        const DIRDATA = 0x1000;
        /// `s_checksum_seed` replaces the UUID as the seed of checksums.
        const CSUM_SEED = 0x2000;
        /// Directories over 2 GiB or with three index levels.
        const LARGEDIR = 0x4000;
        /// Small files live in their inode.
        const INLINE_DATA = 0x8000;
        /// Encrypted inodes.
        const ENCRYPT = 0x0001_0000;
        /// Case-folded directories.
        const CASEFOLD = 0x0002_0000;
        /// Floe's own, which no other program knows: indirect blocks begin with a header, and lie in regions (`docs/rext3.md`).
        const REXT3 = 0x8000_0000;
    }
}

bitflags! {
    /// `s_feature_ro_compat`: an implementation that does not know a bit may mount read-only.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct RoCompat: u32 {
        /// Backups only in groups 0, 1 and powers of 3, 5 and 7.
        const SPARSE_SUPER = 0x0001;
        /// A file of 2 GiB or more exists.
        const LARGE_FILE = 0x0002;
        /// B-tree directories; never used.
        const BTREE_DIR = 0x0004;
        /// `i_blocks` may count blocks and has 48 bits.
        const HUGE_FILE = 0x0008;
        /// Descriptors have a crc16 and uninit flags.
        const GDT_CSUM = 0x0010;
        /// Directories may have more than 65,000 links.
        const DIR_NLINK = 0x0020;
        /// Inodes have extra fields.
        const EXTRA_ISIZE = 0x0040;
        /// Snapshots; never merged.
        const HAS_SNAPSHOT = 0x0080;
        /// Quota files in hidden inodes.
        const QUOTA = 0x0100;
        /// Bitmaps count clusters.
        const BIGALLOC = 0x0200;
        /// All metadata has a crc32c.
        const METADATA_CSUM = 0x0400;
        /// Replicas; never merged.
        const REPLICA = 0x0800;
        /// Must not be written.
        const READONLY = 0x1000;
        /// Project quota and identifiers.
        const PROJECT = 0x2000;
        /// Blocks may be shared by files (read-only images).
        const SHARED_BLOCKS = 0x4000;
        /// fs-verity files.
        const VERITY = 0x8000;
        /// The orphan file holds orphans.
        const ORPHAN_PRESENT = 0x0001_0000;
    }
}

impl Compat {
    /// Name as `tune2fs -O` spells it.
    pub fn name(bit: u32) -> Option<&'static str> {
        Some(match Self::from_bits(bit)? {
            Self::DIR_PREALLOC => "dir_prealloc",
            Self::IMAGIC_INODES => "imagic_inodes",
            Self::HAS_JOURNAL => "has_journal",
            Self::EXT_ATTR => "ext_attr",
            Self::RESIZE_INODE => "resize_inode",
            Self::DIR_INDEX => "dir_index",
            Self::LAZY_BG => "lazy_bg",
            Self::EXCLUDE_INODE => "snapshot_exclude_inode",
            Self::EXCLUDE_BITMAP => "snapshot_bitmap",
            Self::SPARSE_SUPER2 => "sparse_super2",
            Self::FAST_COMMIT => "fast_commit",
            Self::STABLE_INODES => "stable_inodes",
            Self::ORPHAN_FILE => "orphan_file",
            _ => return None,
        })
    }
}

impl Incompat {
    /// Name as `tune2fs -O` spells it.
    pub fn name(bit: u32) -> Option<&'static str> {
        Some(match Self::from_bits(bit)? {
            Self::COMPRESSION => "compression",
            Self::FILETYPE => "filetype",
            Self::RECOVER => "needs_recovery",
            Self::JOURNAL_DEV => "journal_dev",
            Self::META_BG => "meta_bg",
            Self::EXTENTS => "extent",
            Self::BIT64 => "64bit",
            Self::MMP => "mmp",
            Self::FLEX_BG => "flex_bg",
            Self::EA_INODE => "ea_inode",
            Self::DIRDATA => "dirdata",
            Self::CSUM_SEED => "metadata_csum_seed",
            Self::LARGEDIR => "large_dir",
            Self::INLINE_DATA => "inline_data",
            Self::ENCRYPT => "encrypt",
            Self::CASEFOLD => "casefold",
            Self::REXT3 => "rext3",
            _ => return None,
        })
    }
}

impl RoCompat {
    /// Name as `tune2fs -O` spells it.
    pub fn name(bit: u32) -> Option<&'static str> {
        Some(match Self::from_bits(bit)? {
            Self::SPARSE_SUPER => "sparse_super",
            Self::LARGE_FILE => "large_file",
            Self::BTREE_DIR => "btree_dir",
            Self::HUGE_FILE => "huge_file",
            Self::GDT_CSUM => "uninit_bg",
            Self::DIR_NLINK => "dir_nlink",
            Self::EXTRA_ISIZE => "extra_isize",
            Self::HAS_SNAPSHOT => "snapshot",
            Self::QUOTA => "quota",
            Self::BIGALLOC => "bigalloc",
            Self::METADATA_CSUM => "metadata_csum",
            Self::REPLICA => "replica",
            Self::READONLY => "read-only",
            Self::PROJECT => "project",
            Self::SHARED_BLOCKS => "shared_blocks",
            Self::VERITY => "verity",
            Self::ORPHAN_PRESENT => "orphan_present",
            _ => return None,
        })
    }
}

/// The three feature words together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Features {
    /// `s_feature_compat`.
    pub compat: Compat,
    /// `s_feature_incompat`.
    pub incompat: Incompat,
    /// `s_feature_ro_compat`.
    pub ro_compat: RoCompat,
}

impl Features {
    /// Keeps unknown bits, so that they can be named in a refusal.
    pub fn from_words(compat: u32, incompat: u32, ro_compat: u32) -> Self {
        Self {
            compat: Compat::from_bits_retain(compat),
            incompat: Incompat::from_bits_retain(incompat),
            ro_compat: RoCompat::from_bits_retain(ro_compat),
        }
    }

    /// Whether all metadata has a crc32c.
    #[inline]
    pub fn metadata_csum(&self) -> bool {
        self.ro_compat.contains(RoCompat::METADATA_CSUM)
    }

    /// Whether descriptors have a checksum of either kind, and so uninit flags.
    #[inline]
    pub fn group_desc_csum(&self) -> bool {
        self.ro_compat.intersects(RoCompat::METADATA_CSUM.union(RoCompat::GDT_CSUM))
    }

    /// Names of all set bits, unknown ones as `FEATURE_C7` (compat), `FEATURE_I7`, `FEATURE_R7`.
    pub fn names(&self) -> Vec<String> {
        type Word = (u32, fn(u32) -> Option<&'static str>, char);
        let words: [Word; 3] = [
            (self.compat.bits(), Compat::name, 'C'),
            (self.incompat.bits(), Incompat::name, 'I'),
            (self.ro_compat.bits(), RoCompat::name, 'R'),
        ];
        let mut names = Vec::new();
        for (bits, name, letter) in words {
            for shift in (0..32).filter(|shift| bits & (1 << shift) != 0) {
                names.push(
                    name(1 << shift)
                        .map_or_else(|| format!("FEATURE_{letter}{shift}"), str::to_owned),
                );
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_bit_has_a_name() {
        assert!(Compat::all().iter().all(|bit| Compat::name(bit.bits()).is_some()));
        assert!(Incompat::all().iter().all(|bit| Incompat::name(bit.bits()).is_some()));
        assert!(RoCompat::all().iter().all(|bit| RoCompat::name(bit.bits()).is_some()));
    }

    #[test]
    fn unknown_bits_are_named_by_word_and_position() {
        let features = Features::from_words(0x8000_0000, 0x20, 0x4);
        assert_eq!(features.names(), ["FEATURE_C31", "FEATURE_I5", "btree_dir"]);
    }
}
