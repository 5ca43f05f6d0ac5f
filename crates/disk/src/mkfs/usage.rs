//! The built-in defaults for `-t` and `-T`, equal to the mke2fs.conf that Debian ships. Floe reads
//! no configuration file, so that a command means the same on every machine.

use floe_format::features::{Compat, Features, Incompat, RoCompat};

/// The settings of a usage type; `None`: not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) block_size: Option<u32>,
    pub(super) inode_size: Option<u32>,
    pub(super) inode_ratio: Option<u64>,
}

/// The family of file systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsType {
    /// Block maps, no journal.
    Ext2,
    /// Block maps and a journal.
    Ext3,
    /// Extents, checksums, and a journal.
    Ext4,
    /// ext4 in lots, with metadata regions and a seal (`docs/native.md`).
    Native,
    /// ext3 with metadata regions and indirect blocks that say whose they are (`docs/rext3.md`).
    Rext3,
}

impl FsType {
    /// The type of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "ext2" => Self::Ext2,
            "ext3" => Self::Ext3,
            "ext4" => Self::Ext4,
            "native" => Self::Native,
            "rext3" => Self::Rext3,
            _ => return None,
        })
    }

    /// Features of the type before `-O`.
    pub fn features(self) -> Features {
        let base = Features {
            compat: Compat::RESIZE_INODE | Compat::DIR_INDEX | Compat::EXT_ATTR,
            incompat: Incompat::FILETYPE,
            ro_compat: RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE,
        };
        let journal = Features { compat: base.compat | Compat::HAS_JOURNAL, ..base };
        match self {
            Self::Ext2 => base,
            Self::Ext3 => journal,
            Self::Rext3 => {
                let mut all = journal;
                all.compat.remove(Compat::RESIZE_INODE);
                all.incompat |= Incompat::REXT3;
                all
            }
            Self::Native => {
                let mut all = Self::Ext4.features();
                all.compat.remove(Compat::RESIZE_INODE);
                all.compat |= Compat::ORPHAN_FILE;
                all.incompat |= Incompat::META_BG;
                all
            }
            Self::Ext4 => Features {
                incompat: base.incompat | Incompat::EXTENTS | Incompat::FLEX_BG | Incompat::BIT64,
                ro_compat: base.ro_compat
                    | RoCompat::HUGE_FILE
                    | RoCompat::METADATA_CSUM
                    | RoCompat::DIR_NLINK
                    | RoCompat::EXTRA_ISIZE,
                ..journal
            },
        }
    }
}

/// A usage type by name; `None` if it is unknown.
pub(super) fn by_name(name: &str) -> Option<Usage> {
    let ratio = |inode_ratio| Usage { inode_ratio: Some(inode_ratio), ..Usage::default() };
    let small = |inode_ratio| Usage { block_size: Some(1024), ..ratio(inode_ratio) };
    Some(match name {
        "default" | "ext2" | "ext3" | "ext4" => Usage::default(),
        "floppy" => small(8192),
        "small" => small(4096),
        "big" => ratio(32768),
        "huge" => ratio(65536),
        "news" => ratio(4096),
        "largefile" => ratio(1 << 20),
        "largefile4" => ratio(4 << 20),
        "hurd" => Usage { block_size: Some(4096), inode_size: Some(128), inode_ratio: None },
        _ => return None,
    })
}

/// The usage type for a size in bytes.
pub(super) fn of_size(bytes: u64) -> &'static str {
    const MIB: u64 = 1 << 20;
    match bytes / MIB {
        0..3 => "floppy",
        3..512 => "small",
        512..4_194_304 => "default",
        4_194_304..16_777_216 => "big",
        _ => "huge",
    }
}

/// Edits features by a list such as `^has_journal,quota`; `none` clears all.
pub(super) fn edit(features: &mut Features, list: &str) -> Result<(), String> {
    for word in list.split(',').filter(|word| !word.is_empty()) {
        if word == "none" {
            *features = Features::default();
            continue;
        }
        let (name, on) = match word.strip_prefix(['^', '-']) {
            Some(name) => (name, false),
            None => (word.strip_prefix('+').unwrap_or(word), true),
        };
        let bit = Bit::by_name(name).ok_or_else(|| format!("no feature is called {name}"))?;
        match bit {
            Bit::Compat(bit) => features.compat.set(bit, on),
            Bit::Incompat(bit) => features.incompat.set(bit, on),
            Bit::RoCompat(bit) => features.ro_compat.set(bit, on),
        }
    }
    Ok(())
}

enum Bit {
    Compat(Compat),
    Incompat(Incompat),
    RoCompat(RoCompat),
}

impl Bit {
    fn by_name(name: &str) -> Option<Self> {
        let name = match name {
            "extents" => "extent",
            "uninit_groups" => "uninit_bg",
            "readonly" => "read-only",
            other => other,
        };
        let bits = || (0..32).map(|shift| 1u32 << shift);
        let compat = bits().find(|&bit| Compat::name(bit) == Some(name));
        let incompat = bits().find(|&bit| Incompat::name(bit) == Some(name));
        let ro_compat = bits().find(|&bit| RoCompat::name(bit) == Some(name));
        compat
            .map(|bit| Self::Compat(Compat::from_bits_retain(bit)))
            .or(incompat.map(|bit| Self::Incompat(Incompat::from_bits_retain(bit))))
            .or(ro_compat.map(|bit| Self::RoCompat(RoCompat::from_bits_retain(bit))))
    }
}
