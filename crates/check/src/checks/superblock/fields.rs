//! Check: the fields of the superblock that its geometry does not depend on.
//! Reads: the superblock.  Keeps: nothing.  Emits: everything about its fields and features.
//! Does not verify: the geometry (`open`), free totals (`checks/space/bitmaps/`), the journal (`recovery`), the
//! inodes named (`volume/open/orphan_inode.rs`, `volume/open/quota_inode.rs`).

use floe_format::InodeNr;
use floe_format::ext::superblock::{
    FLAG_SIGNED_HASH, FLAG_TEST_FS, FLAG_UNSIGNED_HASH, OS_HURD, STATE_ERROR, STATE_VALID, seconds,
};
use floe_format::features::{Compat, Incompat, RoCompat};

use crate::problem::{Findings, Problem, Sink};
use crate::volume::Volume;

/// How far a time may be ahead before it counts as wrong: local time instead of UTC, for example.
const CLOCK_SKEW_SECONDS: u64 = 24 * 60 * 60;
/// The highest hash that a superblock may name: TEA over unsigned characters. SipHash, which is
/// higher, is chosen by directories only.
const LAST_HASH: u8 = 5;
/// Bytes of the extra fields that an inode needs at least: its size and the checksum's high half.
const MIN_EXTRA_ISIZE: u16 = 4;

/// Checks the superblock in use.
pub fn check(volume: &Volume<'_>, found: &mut Findings) {
    check_features(volume, found);
    check_extra_isize(volume, found);
    check_times(volume, found);
    check_state(volume, found);
}

fn check_features(volume: &Volume<'_>, found: &mut Findings) {
    let superblock = &volume.superblock;
    let features = volume.features();
    let words = (superblock.feature_compat, superblock.feature_incompat);
    if superblock.rev_level == 0 && (words != (0, 0) || superblock.feature_ro_compat != 0) {
        found.push(Problem::RevisionZeroWithFeatures);
    }
    if superblock.uuid == [0; 16] && !features.metadata_csum() {
        found.push(Problem::UuidMissing);
    }
    if superblock.creator_os == OS_HURD {
        check_hurd(volume, found);
    }
    if volume.has_compat(Compat::HAS_JOURNAL)
        && superblock.journal_inum != 0
        && superblock.journal_dev != 0
    {
        let (inode, device) = (InodeNr(superblock.journal_inum), superblock.journal_dev);
        found.push(Problem::JournalDeviceBesideInode { inode, device });
    }
    if features.metadata_csum() && volume.has_ro_compat(RoCompat::GDT_CSUM) {
        found.push(Problem::GdtCsumAndMetadataCsumBothSet);
    }
    if volume.has_incompat(Incompat::CSUM_SEED) && !features.metadata_csum() {
        found.push(Problem::CsumSeedWithoutMetadataCsum);
    }
    if volume.has_incompat(Incompat::BIT64) && !volume.has_incompat(Incompat::EXTENTS) {
        found.push(Problem::Bits64bitWithoutExtents);
    }
    if volume.has_compat(Compat::RESIZE_INODE) && volume.has_incompat(Incompat::META_BG) {
        found.push(Problem::ResizeInodeWithMetaBg);
    }
    let signedness = FLAG_SIGNED_HASH | FLAG_UNSIGNED_HASH;
    if volume.has_compat(Compat::DIR_INDEX) && superblock.flags & signedness == 0 {
        found.push(Problem::DirhashSignednessUnset);
    }
    if superblock.def_hash_version > LAST_HASH {
        found.push(Problem::DefaultHashVersionBad { stored: superblock.def_hash_version });
    }
    if volume.has_incompat(Incompat::ENCRYPT) && superblock.encryption_level != 0 {
        found.push(Problem::EncryptionLevelUnknown { stored: superblock.encryption_level });
    }
    if superblock.flags & FLAG_TEST_FS != 0 {
        found.push(Problem::TestFsFlagSet);
    }
}

/// Features that a file system of the Hurd cannot have.
fn check_hurd(volume: &Volume<'_>, found: &mut Findings) {
    let feature = if volume.has_incompat(Incompat::BIT64) {
        "64bit"
    } else if volume.has_incompat(Incompat::EA_INODE) {
        "ea_inode"
    } else {
        // Without them it may be true.
        if volume.has_incompat(Incompat::FILETYPE) {
            found.push(Problem::HurdFiletypeFeature);
        }
        return;
    };
    found.push(Problem::HurdWithLinuxFeatures { feature });
}

fn check_extra_isize(volume: &Volume<'_>, found: &mut Findings) {
    let Some(most) = volume.geometry.inode_size.checked_sub(128).filter(|&most| most > 0) else {
        return;
    };
    let bad = |value: u16| {
        value != 0
            && (value < MIN_EXTRA_ISIZE || u32::from(value) > most || !value.is_multiple_of(4))
    };
    let value = volume.superblock.min_extra_isize;
    if bad(value) {
        found.push(Problem::MinExtraIsizeBad { value });
    }
    let value = volume.superblock.want_extra_isize;
    if bad(value) {
        found.push(Problem::WantExtraIsizeBad { value });
    }
}

fn check_times(volume: &Volume<'_>, found: &mut Findings) {
    let superblock = &volume.superblock;
    let now = u64::try_from(volume.now_seconds).unwrap_or(0);
    let late = now.saturating_add(CLOCK_SKEW_SECONDS);
    let stored = seconds(superblock.mtime, superblock.mtime_hi);
    if stored > late {
        found.push(Problem::LastMountTimeInFuture { stored, now });
    } else if stored > now {
        found.push(Problem::LastMountTimeSlightlyAhead { stored, now });
    }
    let stored = seconds(superblock.wtime, superblock.wtime_hi);
    if stored > late {
        found.push(Problem::LastWriteTimeInFuture { stored, now });
    } else if stored > now {
        found.push(Problem::LastWriteTimeSlightlyAhead { stored, now });
    }
}

fn check_state(volume: &Volume<'_>, found: &mut Findings) {
    let superblock = &volume.superblock;
    let state = superblock.state;
    // A backup never says that the file system is clean.
    if state & (STATE_VALID | STATE_ERROR) != STATE_VALID && volume.doubts.used_backup.is_none() {
        found.push(Problem::NotCleanlyUnmounted { state });
    }
    if superblock.error_count != 0 {
        found.push(Problem::KernelRecordedErrors {
            count: superblock.error_count,
            first_time: seconds(superblock.first_error_time, superblock.first_error_time_hi),
            last_time: seconds(superblock.last_error_time, superblock.last_error_time_hi),
        });
    }
}
