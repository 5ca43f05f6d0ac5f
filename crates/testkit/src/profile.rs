//! Feature sets of test images: each is a named mke2fs command line.

use std::fmt;

use anyhow::{Context, Result};

/// Declares the profiles. Images are small, so that thousands can be built, damaged and checked,
/// but have several groups, so that group 0 is not the only one.
macro_rules! profiles {
    ($($(#[$meta:meta])* $variant:ident $name:literal $size_mib:literal [$($arg:literal),* $(,)?]),* $(,)?) => {
        /// A feature set, with its mke2fs options.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Profile {
            $($(#[$meta])* $variant,)*
        }

        impl Profile {
            /// All profiles, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in command lines and reports.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Size of the image in MiB.
            pub const fn size_mib(self) -> u64 {
                match self { $(Self::$variant => $size_mib,)* }
            }

            /// mke2fs options, without those that make the image reproducible.
            pub const fn mke2fs_args(self) -> &'static [&'static str] {
                match self { $(Self::$variant => &[$($arg),*],)* }
            }
        }
    };
}

profiles! {
    /// ext2, blocks of 1 KiB.
    Ext2K1 "ext2-1k" 8 ["-t", "ext2", "-b", "1024", "-g", "2048"],
    /// ext2, blocks of 4 KiB.
    Ext2K4 "ext2-4k" 16 ["-t", "ext2", "-b", "4096", "-g", "2048", "-N", "1024"],
    /// ext2 as of 1993: revision 0, no features at all.
    Ext2Rev0 "ext2-rev0" 4 ["-t", "ext2", "-b", "1024", "-r", "0", "-g", "2048"],
    /// ext2 without file types in directory entries, and with a backup in every group.
    Ext2Plain "ext2-plain" 8
        ["-t", "ext2", "-b", "1024", "-g", "2048", "-O", "^filetype,^sparse_super,^dir_index,^resize_inode"],
    /// ext3, blocks of 1 KiB.
    Ext3 "ext3" 8 ["-t", "ext3", "-b", "1024", "-g", "2048"],
    /// ext4 with mke2fs's defaults, blocks of 4 KiB.
    Ext4 "ext4" 24 ["-t", "ext4", "-b", "4096", "-g", "2048", "-N", "1024"],
    /// ext4, blocks of 1 KiB: deep trees in a small image.
    Ext4K1 "ext4-1k" 8 ["-t", "ext4", "-b", "1024", "-g", "2048"],
    /// ext4, blocks of 2 KiB.
    Ext4K2 "ext4-2k" 16 ["-t", "ext4", "-b", "2048", "-g", "2048", "-N", "2048"],
    /// ext4 without a journal.
    NoJournal "no-journal" 8 ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "^has_journal"],
    /// ext4 without any checksums.
    NoCsum "no-csum" 8 ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "^metadata_csum"],
    /// ext4 with crc16 checksums in group descriptors only (uninit_bg).
    GdtCsum "gdt-csum" 8 ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "^metadata_csum,uninit_bg"],
    /// gdt_csum with descriptors of 32 bytes.
    GdtCsum32 "gdt-csum-32bit" 8
        ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "^metadata_csum,uninit_bg,^64bit"],
    /// The checksum seed in the superblock.
    CsumSeed "csum-seed" 8 ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "metadata_csum_seed"],
    /// Small files and directories in their inodes.
    InlineData "inline-data" 8 ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "inline_data"],
    /// Large extended attributes in inodes of their own.
    EaInode "ea-inode" 8 ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "ea_inode"],
    /// Both of the above, with inodes of 512 bytes.
    InlineEaInode "inline-ea-inode" 8
        ["-t", "ext4", "-b", "1024", "-g", "2048", "-I", "512", "-O", "inline_data,ea_inode"],
    /// Clusters of 16 KiB, blocks of 4 KiB.
    Bigalloc "bigalloc" 32 ["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "16384", "-N", "1024"],
    /// Clusters of 8 KiB, blocks of 1 KiB: the superblock lies in block 1.
    BigallocK1 "bigalloc-1k" 16
        ["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "8192", "-g", "8192", "-N", "1024"],
    /// User, group and project quotas.
    Quota "quota" 8 [
        "-t", "ext4", "-b", "1024", "-g", "2048", "-O", "quota,project",
        "-E", "quotatype=usrquota:grpquota:prjquota",
    ],
    /// Descriptors in their meta block groups.
    MetaBg "meta-bg" 12 ["-t", "ext4", "-b", "1024", "-g", "256", "-O", "meta_bg,^resize_inode"],
    /// Meta block groups and descriptors of 32 bytes, without flex_bg.
    MetaBg32 "meta-bg-32bit" 12
        ["-t", "ext4", "-b", "1024", "-g", "256", "-O", "meta_bg,^resize_inode,^64bit,^flex_bg"],
    /// Two backups of the superblock.
    SparseSuper2 "sparse-super2" 8
        ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "sparse_super2,^resize_inode"],
    /// All metadata of a group in that group.
    NoFlexBg "no-flex-bg" 8 ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "^flex_bg"],
    /// No reserved GDT blocks.
    NoResize "no-resize" 8 ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "^resize_inode"],
    /// Orphans in an orphan file.
    OrphanFile "orphan-file" 8 ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "orphan_file"],
    /// Case-insensitive names.
    Casefold "casefold" 8
        ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "casefold", "-E", "encoding=utf8"],
    /// The same, with invalid names rejected.
    CasefoldStrict "casefold-strict" 8 [
        "-t", "ext4", "-b", "1024", "-g", "2048", "-O", "casefold",
        "-E", "encoding=utf8,encoding_flags=strict",
    ],
    /// Inodes of 128 bytes.
    Inode128 "inode-128" 8 ["-t", "ext4", "-b", "1024", "-g", "2048", "-I", "128"],
    /// Inodes of 1024 bytes.
    Inode1024 "inode-1024" 24 ["-t", "ext4", "-b", "4096", "-g", "2048", "-I", "1024", "-N", "512"],
    /// Block numbers of 32 bits.
    Bit32 "32bit" 8 ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "^64bit"],
    /// Encryption enabled.
    Encrypt "encrypt" 8 ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "encrypt"],
    /// Directories with more than two index levels allowed.
    LargeDir "large-dir" 8 ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "large_dir"],
    /// Multiple mount protection.
    Mmp "mmp" 8 ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "mmp", "-E", "mmp_update_interval=1"],
    /// Inode numbers and UUID that must never change.
    StableInodes "stable-inodes" 8
        ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "stable_inodes,encrypt"],
    /// fs-verity enabled.
    Verity "verity" 8 ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "verity"],
    /// A fast commit area in the journal.
    FastCommit "fast-commit" 12 ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "fast_commit"],
    /// Block maps instead of extents, with checksums.
    NoExtents "no-extents" 8
        ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "^extent,^64bit"],
    /// No indexed directories.
    NoDirIndex "no-dir-index" 8 ["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "^dir_index"],
}

impl Profile {
    /// The profile with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|profile| profile.name() == name)
    }

    /// The profiles with these names; all if there are no names.
    ///
    /// # Errors
    /// A name is unknown; the message lists those that there are.
    pub fn named(names: &[String]) -> Result<Vec<Self>> {
        if names.is_empty() {
            return Ok(Self::ALL.to_vec());
        }
        let known = || Self::ALL.iter().map(|profile| profile.name()).collect::<Vec<_>>().join(" ");
        let find = |name: &String| {
            Self::by_name(name).with_context(|| format!("no profile {name}; there are {}", known()))
        };
        names.iter().map(find).collect()
    }

    /// Block size in bytes.
    pub fn block_size(self) -> u64 {
        self.option("-b").and_then(|size| size.parse().ok()).unwrap_or(4096)
    }

    /// Whether the options explicitly enable a feature.
    pub fn has(self, feature: &str) -> bool {
        self.option("-O").is_some_and(|list| list.split(',').any(|one| one == feature))
    }

    /// Whether files use extents.
    pub fn extents(self) -> bool {
        self.mke2fs_args().contains(&"ext4") && !self.has("^extent")
    }

    /// Whether directories may be indexed.
    pub fn dir_index(self) -> bool {
        !self.has("^dir_index") && self != Self::Ext2Rev0
    }

    /// The argument of a mke2fs option.
    fn option(self, name: &str) -> Option<&'static str> {
        let args = self.mke2fs_args();
        let at = args.iter().position(|&arg| arg == name)?;
        args.get(at + 1).copied()
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_find_their_profiles() {
        for &profile in Profile::ALL {
            assert_eq!(Profile::by_name(profile.name()), Some(profile));
        }
        assert_eq!(Profile::by_name("zfs"), None);
    }

    #[test]
    fn options_are_read_back() {
        assert_eq!(Profile::Ext4.block_size(), 4096);
        assert_eq!(Profile::Ext3.block_size(), 1024);
        assert!(Profile::Quota.has("project"));
        assert!(
            !Profile::NoExtents.extents() && Profile::Ext4.extents() && !Profile::Ext3.extents()
        );
    }
}
