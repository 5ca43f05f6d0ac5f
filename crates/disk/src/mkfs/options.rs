//! The options of mke2fs, and their translation to parameters.

use floe_format::ext::quota::QuotaKind;
use floe_format::features::{Compat, Features, Incompat, RoCompat};

use super::native;
use super::params::{InodeCount, JournalParams, Params, PlanError, Reserved};
use super::tree::{NOBODY, Timestamp};
use super::usage::{self, FsType};

/// An option that is unknown or has an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("-{option} {value}: {why}")]
pub struct OptionError {
    /// The letter.
    pub option: char,
    /// Its value.
    pub value: String,
    /// The fault.
    pub why: String,
}

/// The size of a device is rounded down to this: a page, the same on every machine.
const PAGE_BYTES: u64 = 4096;

/// Values that differ from one call to the next, unless options set them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fresh {
    /// UUID.
    pub uuid: [u8; 16],
    /// Seed of directory hashes.
    pub hash_seed: [u8; 16],
    /// The time now.
    pub now: Timestamp,
}

/// The options of mke2fs as given, before they are combined.
#[derive(Clone, Debug, Default)]
pub struct Options {
    fs_type: Option<FsType>,
    usage: Vec<String>,
    block_size: Option<u32>,
    cluster_size: Option<u32>,
    pub(super) blocks_per_group: Option<u32>,
    inode_count: Option<u32>,
    inode_ratio: Option<u64>,
    inode_size: Option<u32>,
    pub(super) flex_groups: Option<u32>,
    reserved_percent: Option<f64>,
    label: [u8; 16],
    last_mounted: Option<[u8; 64]>,
    uuid: Option<[u8; 16]>,
    feature_edits: Vec<String>,
    journal_asked: bool,
    journal_size_mib: Option<u64>,
    fast_commit_kib: Option<u64>,
    journal_location: Option<String>,
    errors: Option<u16>,
    creator_os: u32,
    old_revision: bool,
    pub(super) extended: Extended,
}

/// Most journals of a native file system.
const MOST_JOURNALS: u32 = 16;

/// `-E root_owner=`: without a value, whoever runs this.
fn root_owner(value: Option<&str>) -> Result<(u32, u32), String> {
    let Some(value) = value else {
        return Ok((rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()));
    };
    let id = |text: &str| text.parse().ok().filter(|id| *id != NOBODY);
    let ids = value.split_once(':').and_then(|(uid, gid)| Some((id(uid)?, id(gid)?)));
    ids.ok_or_else(|| "root_owner: must be UID:GID".to_owned())
}

/// `-E journals=`.
fn journals(count: u32) -> Result<u32, String> {
    if (1..=MOST_JOURNALS).contains(&count) { Ok(count) } else { Err("journals: 1 to 16".into()) }
}

/// Attributes of the root directory by `-E`, which a source of files does not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RootOptions {
    /// `root_owner=`: user and group.
    pub owner: Option<(u32, u32)>,
    /// `root_perms=`: permission bits.
    pub mode: Option<u16>,
}

/// Values of `-E`.
#[derive(Clone, Debug, Default)]
pub(super) struct Extended {
    hash_seed: Option<[u8; 16]>,
    stride: u16,
    stripe_width: u32,
    resize: Option<String>,
    root: RootOptions,
    backups: Option<u32>,
    mmp_interval: Option<u16>,
    quotas: Option<Vec<QuotaKind>>,
    strict_encoding: Option<bool>,
    orphan_file_bytes: Option<u64>,
    lazy_tables: Option<bool>,
    packed_tables: bool,
    discard: Option<bool>,
    test_fs: bool,
    offset_bytes: u64,
    pub(super) lot_bytes: Option<u64>,
    pub(super) region_bytes: Option<u64>,
    pub(super) journals: Option<u32>,
}

impl Options {
    /// The options of the command `mkfs.TYPE`.
    pub fn of_type(fs_type: FsType) -> Self {
        Self { fs_type: Some(fs_type), ..Self::default() }
    }

    /// Whether a journal was requested explicitly, not only implied by the type.
    pub fn asks_for_journal(&self) -> bool {
        self.journal_asked || self.journal_size_mib.is_some()
    }

    /// Whether the kernel shall zero the unused part of inode tables later; `None`: decided by the
    /// device.
    pub fn lazy_tables(&self) -> Option<bool> {
        self.extended.lazy_tables
    }

    /// Whether to discard the device first (the default).
    pub fn discard(&self) -> bool {
        self.extended.discard.unwrap_or(true)
    }

    /// Offset of the file system on the device, in bytes (`-E offset=`).
    pub fn offset_bytes(&self) -> u64 {
        self.extended.offset_bytes
    }

    /// Owner and permissions of the root directory, as far as they are given.
    pub fn root(&self) -> RootOptions {
        self.extended.root
    }

    /// Journals of a native file system (`-E journals=`), whose further ones are made in the file system as it is planned here.
    pub fn journals(&self) -> u32 {
        self.extended.journals.unwrap_or(1)
    }

    /// Bytes of a block, if given.
    pub fn block_size(&self) -> Option<u32> {
        self.block_size
    }

    /// Sets an option with a value.
    ///
    /// # Errors
    /// If there is no such option, or the value is invalid.
    pub fn set(&mut self, option: char, value: &str) -> Result<(), OptionError> {
        let wrong = |why: &str| OptionError { option, value: value.into(), why: why.into() };
        let number = || value.parse::<u32>().map_err(|_| wrong("not a number"));
        match option {
            't' => {
                self.fs_type = Some(
                    FsType::by_name(value)
                        .ok_or_else(|| wrong("ext2, ext3, ext4, native or rext3"))?,
                );
            }
            'T' => {
                for name in value.split(',') {
                    usage::by_name(name).ok_or_else(|| wrong("no usage type of this name"))?;
                    self.usage.push(name.to_owned());
                }
            }
            'b' => self.block_size = Some(size(value).ok_or_else(|| wrong("not a size"))? as u32),
            'C' => self.cluster_size = Some(size(value).ok_or_else(|| wrong("not a size"))? as u32),
            'g' => self.blocks_per_group = Some(number()?),
            'G' => self.flex_groups = Some(number()?),
            'N' => self.inode_count = Some(number()?),
            'i' => self.inode_ratio = Some(size(value).ok_or_else(|| wrong("not a size"))?),
            'I' => {
                let bytes = size(value).and_then(|bytes| u32::try_from(bytes).ok());
                self.inode_size = Some(bytes.ok_or_else(|| wrong("not a size"))?);
            }
            'm' => {
                let percent = value.parse().map_err(|_| wrong("not a number"))?;
                self.reserved_percent = Some(percent);
            }
            'L' => self.label = text(value).ok_or_else(|| wrong("16 bytes at most"))?,
            'M' => {
                self.last_mounted = Some(text(value).ok_or_else(|| wrong("64 bytes at most"))?);
            }
            'U' => self.uuid = uuid_or_word(value).map_err(|()| wrong("not a UUID"))?,
            'O' => {
                usage::edit(&mut Features::default(), value).map_err(|why| wrong(&why))?;
                self.feature_edits.push(value.to_owned());
            }
            'e' => {
                self.errors = Some(match value {
                    "continue" => 1,
                    "remount-ro" => 2,
                    "panic" => 3,
                    _ => return Err(wrong("continue, remount-ro or panic")),
                });
            }
            'o' => {
                self.creator_os = match value.to_ascii_lowercase().as_str() {
                    "linux" => 0,
                    "hurd" | "gnu" => 1,
                    "masix" => 2,
                    "freebsd" => 3,
                    "lites" => 4,
                    other => other.parse().map_err(|_| wrong("no such system"))?,
                };
            }
            'r' => match number()? {
                0 => self.old_revision = true,
                1 => self.old_revision = false,
                _ => return Err(wrong("0 or 1")),
            },
            'J' => self.set_journal(value).map_err(|why| wrong(&why))?,
            'E' => self.set_extended(value).map_err(|why| wrong(&why))?,
            _ => return Err(wrong("no such option")),
        }
        Ok(())
    }

    /// `-j`: adds a journal.
    pub fn with_journal(&mut self) {
        self.journal_asked = true;
    }

    fn set_journal(&mut self, list: &str) -> Result<(), String> {
        for (key, value) in pairs(list) {
            let value = value.ok_or("a value is missing")?;
            match key {
                "size" => {
                    self.journal_size_mib =
                        Some(in_units(value, 1 << 20).ok_or("size: must be a number of MiB")?);
                }
                "fast_commit_size" => {
                    let kib = in_units(value, 1 << 10);
                    self.fast_commit_kib =
                        Some(kib.ok_or("fast_commit_size: must be a number of KiB")?);
                }
                "location" => self.journal_location = Some(value.to_owned()),
                "device" => return Err("Floe makes no external journals".into()),
                _ => return Err(format!("{key} is not known")),
            }
        }
        Ok(())
    }

    fn set_extended(&mut self, list: &str) -> Result<(), String> {
        let extended = &mut self.extended;
        for (key, value) in pairs(list) {
            let number = || -> Result<u32, String> {
                value.and_then(|v| v.parse().ok()).ok_or(format!("{key}: must be a number"))
            };
            let given = value.ok_or_else(|| format!("{key}: a value is missing"));
            let bytes = || value.and_then(size).ok_or_else(|| format!("{key}: must be a size"));
            let switch = || value.is_none_or(|value| value != "0");
            match key {
                "hash_seed" => {
                    extended.hash_seed = Some(uuid(given?).ok_or("hash_seed: not a UUID")?);
                }
                "stride" => {
                    extended.stride = number()?.try_into().map_err(|_| "stride: too large")?
                }
                "stripe_width" | "stripe-width" => extended.stripe_width = number()?,
                "resize" => extended.resize = Some(given?.to_owned()),
                "root_owner" => extended.root.owner = Some(root_owner(value)?),
                "root_perms" => {
                    let mode = u16::from_str_radix(given?, 8).ok().filter(|mode| *mode <= 0o7777);
                    extended.root.mode = Some(mode.ok_or("root_perms: must be octal digits")?);
                }
                "num_backup_sb" => {
                    let count = number()?;
                    if count > 2 {
                        return Err("num_backup_sb: 0 to 2".into());
                    }
                    extended.backups = Some(count);
                }
                "mmp_update_interval" => {
                    let seconds = number()?;
                    if seconds > 300 {
                        return Err("mmp_update_interval: 300 seconds at most".into());
                    }
                    extended.mmp_interval = Some(seconds as u16);
                }
                "quotatype" => extended.quotas = Some(quotas(given?)?),
                "encoding" => {
                    if !matches!(given?, "utf8" | "utf8-12.1") {
                        return Err("encoding: utf8 is the only one".into());
                    }
                    self.feature_edits.push("casefold".into());
                }
                "encoding_flags" => extended.strict_encoding = Some(is_strict(given?)?),
                "orphan_file_size" => extended.orphan_file_bytes = Some(bytes()?),
                "lazy_itable_init" => extended.lazy_tables = Some(switch()),
                "packed_meta_blocks" => extended.packed_tables = switch(),
                "discard" => extended.discard = Some(true),
                "nodiscard" => extended.discard = Some(false),
                "test_fs" => extended.test_fs = true,
                "lot_size" => extended.lot_bytes = Some(bytes()?),
                "region_size" => extended.region_bytes = Some(bytes()?),
                "journals" => extended.journals = Some(journals(number()?)?),
                "offset" => extended.offset_bytes = bytes()?,
                // Hints that Floe's writer does not need: it always zeroes, and skips holes.
                "lazy_journal_init" | "assume_storage_prezeroed" | "no_copy_xattrs" => {}
                _ => return Err(format!("{key} is not known to Floe")),
            }
        }
        Ok(())
    }

    /// The parameters for a device of `device_bytes` bytes; with `size_blocks`, uses only that many
    /// blocks.
    ///
    /// # Errors
    /// Those of [`Params::check`], as far as they can be found here.
    pub fn params(
        &self,
        device_bytes: u64,
        size_blocks: Option<u64>,
        fresh: &Fresh,
    ) -> Result<Params, PlanError> {
        let fs_type = self.fs_type.unwrap_or(FsType::Ext4);
        let wanted_bytes = size_blocks
            .map_or(device_bytes, |blocks| blocks * u64::from(self.block_size.unwrap_or(1024)));
        let usages = self.usages(wanted_bytes);
        let last = |pick: fn(&usage::Usage) -> Option<u64>| usages.iter().rev().find_map(pick);
        let native = self.native(fs_type)?;
        let block_size = self
            .block_size
            .or(native.map(|_| native::BLOCK_SIZE))
            .or(last(|one| one.block_size.map(u64::from)).map(|size| size as u32))
            .unwrap_or(4096);
        let features = self.features(fs_type)?;
        let usual = last(|one| one.inode_size.map(u64::from)).map_or(256, |size| size as u32);
        let usual = if self.old_revision { 128 } else { usual };
        let inode_size = self.inode_size.unwrap_or(usual);
        let bigalloc = features.ro_compat.contains(RoCompat::BIGALLOC);
        let default_cluster = if bigalloc { block_size.saturating_mul(16) } else { block_size };
        let cluster_size = self.cluster_size.unwrap_or(default_cluster);
        // No inode has use for less than a cluster.
        let usual = last(|one| one.inode_ratio).unwrap_or(16384).max(u64::from(cluster_size));
        let ratio = self.inode_ratio.unwrap_or(usual);
        let blocks = self.blocks(device_bytes, size_blocks, block_size);
        let extended = &self.extended;
        let (flex_groups, lot_blocks) = match native {
            Some(_) => self.lot_groups(blocks.saturating_mul(block_size.into()))?,
            None => (16, None),
        };
        // With bigalloc, -g counts clusters.
        let ratio_of_cluster = (cluster_size / block_size.max(1)).max(1);
        Ok(Params {
            blocks,
            block_size,
            cluster_size,
            inode_size,
            inodes: self.inode_count.map_or(InodeCount::Ratio(ratio), InodeCount::Count),
            blocks_per_group: self
                .blocks_per_group
                .map(|given| given.saturating_mul(ratio_of_cluster))
                .or(lot_blocks),
            flex_groups: self.flex_groups.unwrap_or(flex_groups),
            reserved_blocks: Reserved::Percent(self.reserved_percent.unwrap_or(5.0)),
            features,
            old_revision: self.old_revision,
            label: self.label,
            last_mounted: self.last_mounted.unwrap_or([0; 64]),
            uuid: self.uuid.unwrap_or(fresh.uuid),
            hash_seed: extended.hash_seed.unwrap_or(fresh.hash_seed),
            hash_version: 1,
            now: fresh.now,
            errors: self.errors.unwrap_or(1),
            creator_os: self.creator_os,
            journal: self.journal(block_size)?,
            stride: extended.stride,
            stripe_width: extended.stripe_width,
            resize_blocks: self.resize_blocks(block_size)?,
            backups: extended.backups.unwrap_or(2),
            root_owner: extended.root.owner.unwrap_or((0, 0)),
            root_mode: extended.root.mode.unwrap_or(0o755),
            mmp_interval: extended.mmp_interval.unwrap_or(5),
            quotas: extended.quotas.clone().unwrap_or_else(|| default_quotas(&features)),
            encoding: (1, u16::from(extended.strict_encoding == Some(true))),
            orphan_file_bytes: extended.orphan_file_bytes,
            default_mount_options: if self.old_revision { 0 } else { 0x000c },
            test_fs: extended.test_fs,
            lazy_tables: extended.lazy_tables.unwrap_or(false),
            packed_tables: extended.packed_tables,
            native,
            rext3: self.rext3(fs_type),
        })
    }

    /// The usage types given, or that of a file system of so many bytes.
    fn usages(&self, bytes: u64) -> Vec<usage::Usage> {
        if self.usage.is_empty() {
            return usage::by_name(usage::of_size(bytes)).into_iter().collect();
        }
        self.usage.iter().filter_map(|name| usage::by_name(name)).collect()
    }

    /// Blocks of a device that the file system uses.
    fn blocks(&self, device_bytes: u64, size_blocks: Option<u64>, block_size: u32) -> u64 {
        match size_blocks {
            Some(blocks) if self.block_size.is_some() => blocks,
            Some(kib) => kib * 1024 / u64::from(block_size),
            // All of a device, in whole pages: Linux reads no further of an odd one.
            None => device_bytes / PAGE_BYTES * PAGE_BYTES / u64::from(block_size.max(1)),
        }
    }

    fn features(&self, fs_type: FsType) -> Result<Features, PlanError> {
        let mut features = if self.old_revision { Features::default() } else { fs_type.features() };
        for edit in &self.feature_edits {
            // The list was validated when it was given.
            usage::edit(&mut features, edit).map_err(|_| PlanError::Internal("feature list"))?;
        }
        // As for mke2fs, the request of a journal, or its size, counts more than the list.
        if self.asks_for_journal() {
            features.compat |= Compat::HAS_JOURNAL;
        }
        // The stronger checksum replaces the weaker one.
        if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
            features.ro_compat.remove(RoCompat::GDT_CSUM);
        }
        if features.incompat.contains(Incompat::CSUM_SEED)
            && !features.ro_compat.contains(RoCompat::METADATA_CSUM)
        {
            return Err(PlanError::Parameter("metadata_csum_seed needs metadata_csum"));
        }
        if self.extended.quotas.as_ref().is_some_and(|kinds| kinds.contains(&QuotaKind::Project)) {
            features.ro_compat |= RoCompat::PROJECT;
        }
        if self.extended.strict_encoding.is_some()
            && !features.incompat.contains(Incompat::CASEFOLD)
        {
            return Err(PlanError::Parameter("encoding_flags needs the feature casefold"));
        }
        if self.flex_groups.is_some() && !features.incompat.contains(Incompat::FLEX_BG) {
            return Err(PlanError::Parameter("-G needs the feature flex_bg"));
        }
        if features.compat.contains(Compat::ORPHAN_FILE)
            && !features.compat.contains(Compat::HAS_JOURNAL)
        {
            return Err(PlanError::Parameter("orphan_file needs a journal"));
        }
        Ok(features)
    }

    fn journal(&self, block_size: u32) -> Result<JournalParams, PlanError> {
        let blocks_of = |bytes: u64| u32::try_from(bytes / u64::from(block_size)).ok();
        let too_large = PlanError::Parameter("the journal is too large");
        let blocks = match self.journal_size_mib {
            Some(mib) => {
                Some(mib.checked_mul(1 << 20).and_then(blocks_of).ok_or(too_large.clone())?)
            }
            None => None,
        };
        let fast_commit_blocks = match self.fast_commit_kib {
            Some(kib) => Some(kib.checked_mul(1 << 10).and_then(blocks_of).ok_or(too_large)?),
            None => None,
        };
        let location = match &self.journal_location {
            Some(text) => Some(blocks_or_size(text, block_size).ok_or(PlanError::Parameter(
                "the location of the journal is not a block number",
            ))?),
            None => self.extended.packed_tables.then_some(0),
        };
        Ok(JournalParams { blocks, fast_commit_blocks, location })
    }

    fn resize_blocks(&self, block_size: u32) -> Result<Option<u64>, PlanError> {
        let Some(text) = &self.extended.resize else { return Ok(None) };
        blocks_or_size(text, block_size)
            .map(Some)
            .ok_or(PlanError::Parameter("-E resize= must be a number of blocks"))
    }
}

fn default_quotas(features: &Features) -> Vec<QuotaKind> {
    let mut kinds = vec![QuotaKind::User, QuotaKind::Group];
    if features.ro_compat.contains(RoCompat::PROJECT) {
        kinds.push(QuotaKind::Project);
    }
    kinds
}

fn quotas(list: &str) -> Result<Vec<QuotaKind>, String> {
    list.split(':')
        .map(|word| match word {
            "usrquota" => Ok(QuotaKind::User),
            "grpquota" => Ok(QuotaKind::Group),
            "prjquota" => Ok(QuotaKind::Project),
            _ => Err(format!("quotatype: {word} is not known")),
        })
        .collect()
}

/// Whether names without meaning in the encoding are refused.
fn is_strict(flags: &str) -> Result<bool, String> {
    match flags {
        "strict" => Ok(true),
        "nostrict" => Ok(false),
        _ => Err("encoding_flags: must be strict or nostrict".to_owned()),
    }
}

/// The parts of a list of keys with or without values.
fn pairs(list: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    list.split(',').filter(|part| !part.is_empty()).map(|part| match part.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (part, None),
    })
}

/// A number of bytes, with an optional suffix k, m, g or t.
pub fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "s" => 9,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A number of units, or of bytes if it has a suffix.
fn in_units(text: &str, unit_bytes: u64) -> Option<u64> {
    text.parse().ok().or_else(|| Some(size(text)? / unit_bytes))
}

/// A number of blocks, or of bytes if it has a suffix.
fn blocks_or_size(text: &str, block_size: u32) -> Option<u64> {
    in_units(text, u64::from(block_size.max(1)))
}

/// Text in a field that is padded with NULs.
fn text<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut field = [0; N];
    field.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
    Some(field)
}

/// A UUID in its usual form.
pub fn uuid(text: &str) -> Option<[u8; 16]> {
    uuid_or_word(text).ok().flatten()
}

/// A UUID; `None` for words that ask for a random one.
fn uuid_or_word(text: &str) -> Result<Option<[u8; 16]>, ()> {
    match text {
        "random" | "time" => return Ok(None),
        "clear" | "null" => return Ok(Some([0; 16])),
        _ => {}
    }
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    let mut uuid = [0; 16];
    if digits.len() != 32 {
        return Err(());
    }
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| ())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| ())?;
    }
    Ok(Some(uuid))
}
