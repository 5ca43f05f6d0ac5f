//! Whether a check is due: e2fsck's rules for skipping clean file systems (its `check_if_skip`).

use floe_check::reader::Reader;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::superblock::{STATE_ERROR, STATE_VALID, Superblock};
use floe_format::features::{Incompat, RoCompat};
use floe_format::{Geometry, GroupNr};

use super::conf::Conf;
use crate::input::clock::Clock;

/// Tolerance for a wrong clock (e2fsck's time fudge).
const SLACK_SECONDS: i64 = 24 * 60 * 60;
/// `s_flags`: a test file system (`EXT2_FLAGS_TEST_FILESYS`).
const FLAG_TEST: u32 = 4;
const DAY_SECONDS: i64 = 24 * 60 * 60;
/// A check due after at most this many mounts is announced.
const ANNOUNCED_MOUNTS: u32 = 5;

/// Why a check is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Linux or a check recorded errors.
    Errors,
    /// It was not unmounted cleanly.
    NotUnmounted,
    /// The orphan file has entries.
    Orphans,
    /// The orphan list has entries although the journal needs no recovery, so Linux will not
    /// process them.
    OrphanList,
    /// The primary superblock and a backup differ.
    BackupsDiffer,
    /// It was mounted this many times since the last check.
    Mounts(u16),
    /// The last check is in the future.
    CheckedInFuture,
    /// The last check was this many days ago.
    Days(i64),
    /// It was last mounted or written in the future, if times are trusted.
    UsedInFuture,
    /// The test file system flag is set, and must be cleared.
    TestFlag,
    /// Block numbers of 64 bits need extents, and these are off: files may seem to be damaged by that.
    ExtentsOff,
    /// The superblock counts more free blocks or inodes than there are.
    Totals,
}

impl Reason {
    /// The reason, to follow the name of the file system.
    pub(crate) fn text(self) -> String {
        match self {
            Self::Errors => "errors were recorded in it".to_owned(),
            Self::NotUnmounted => "it was not unmounted cleanly".to_owned(),
            Self::Orphans => "its orphan file has entries".to_owned(),
            Self::OrphanList => "its orphan list has entries".to_owned(),
            Self::BackupsDiffer => "its superblock differs from a backup".to_owned(),
            Self::Mounts(count) => format!("it was mounted {count} times since the last check"),
            Self::CheckedInFuture => "its last check is in the future".to_owned(),
            Self::Days(1) => "its last check was 1 day ago".to_owned(),
            Self::Days(days) => format!("its last check was {days} days ago"),
            Self::UsedInFuture => "it was mounted or written in the future".to_owned(),
            Self::TestFlag => "it is marked as a test file system".to_owned(),
            Self::ExtentsOff => {
                "its 64-bit block numbers need extents, and these are off".to_owned()
            }
            Self::Totals => "it counts more free blocks or inodes than there are".to_owned(),
        }
    }
}

/// Conditions for the rules, besides the file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances {
    /// The current time.
    pub(crate) now_seconds: i64,
    /// Whether the clock is trusted.
    pub(crate) clock_believed: bool,
    /// Whether times up to a day in the future are tolerated.
    pub(crate) slack: bool,
    /// Whether the machine runs on battery, so that checks may be deferred.
    pub(crate) on_battery: bool,
    /// Whether faults in the superblock are repaired: not with -n.
    pub(crate) mends: bool,
    /// Whether the test file system flag is cleared.
    pub(crate) clears_test_flag: bool,
    /// Whether orphans are finished before a check is due because of them.
    pub(crate) finishes_orphans: bool,
}

impl Circumstances {
    pub(crate) fn new(conf: &Conf, clock: Clock, mends: bool) -> Self {
        Self {
            now_seconds: clock.now_seconds,
            clock_believed: clock.believed && !conf.broken_system_clock,
            slack: conf.accept_time_fudge,
            on_battery: conf.defer_check_on_battery && super::battery::in_use(),
            mends,
            clears_test_flag: conf.clear_test_fs_flag,
            finishes_orphans: false,
        }
    }

    const fn slack_seconds(&self) -> i64 {
        if self.slack { SLACK_SECONDS } else { 0 }
    }
}

fn seconds(low: u32, high: u8) -> i64 {
    i64::from(low) | i64::from(high) << 32
}

/// The reason why a check of the file system is due; `None` if it is not. `backups_differ` is
/// called only if needed.
pub(crate) fn reason(
    sb: &Superblock,
    at: &Circumstances,
    backups_differ: impl FnOnce() -> bool,
) -> Option<Reason> {
    let features = sb.features();
    if !at.finishes_orphans && sb.may_have_orphans_in_file() {
        return Some(Reason::Orphans);
    }
    let interval = i64::from(sb.checkinterval);
    if at.mends {
        // These are repaired before the check is skipped, and a repaired file system must be
        // checked.
        if sb.flags & FLAG_TEST != 0 && at.clears_test_flag {
            return Some(Reason::TestFlag);
        }
        if features.incompat & (Incompat::BIT64 | Incompat::EXTENTS) == Incompat::BIT64 {
            return Some(Reason::ExtentsOff);
        }
        let used = seconds(sb.mtime, sb.mtime_hi).max(seconds(sb.wtime, sb.wtime_hi));
        let late = at.now_seconds.saturating_add(at.slack_seconds());
        if at.clock_believed && interval > 0 && used > late {
            return Some(Reason::UsedInFuture);
        }
    }
    if sb.free_blocks_count() > sb.blocks_count() || sb.free_inodes_count > sb.inodes_count {
        return Some(Reason::Totals);
    }
    if sb.state & STATE_ERROR != 0 {
        return Some(Reason::Errors);
    }
    if sb.state & STATE_VALID == 0 {
        return Some(Reason::NotUnmounted);
    }
    let is_recovered = !features.incompat.contains(Incompat::RECOVER);
    if at.mends && sb.last_orphan != 0 && is_recovered && !at.finishes_orphans {
        return Some(Reason::OrphanList);
    }
    if at.mends && backups_differ() {
        return Some(Reason::BackupsDiffer);
    }
    let most = sb.max_mnt_count.cast_signed();
    if most > 0 && sb.mnt_count >= sb.max_mnt_count {
        let waits = at.on_battery && u32::from(sb.mnt_count) < 2 * u32::from(sb.max_mnt_count);
        return (!waits).then_some(Reason::Mounts(sb.mnt_count));
    }
    if !at.clock_believed || interval == 0 {
        return None;
    }
    let checked = seconds(sb.lastcheck, sb.lastcheck_hi);
    // A last check slightly in the future was made with a wrong clock.
    let believed = if checked > at.now_seconds { checked - at.slack_seconds() } else { checked };
    if at.now_seconds < believed {
        return (!at.on_battery).then_some(Reason::CheckedInFuture);
    }
    if at.now_seconds - believed >= interval {
        let waits = at.on_battery && at.now_seconds - checked < 2 * interval;
        let days = (at.now_seconds - checked) / DAY_SECONDS;
        return (!waits).then_some(Reason::Days(days));
    }
    None
}

/// Announces when the next check is due, to follow the line of a clean file system; in e2fsck's
/// format.
pub(crate) fn announcement(sb: &Superblock, at: &Circumstances) -> String {
    let mut mounts = u32::MAX;
    if sb.max_mnt_count.cast_signed() > 0 {
        mounts = u32::from(sb.max_mnt_count.saturating_sub(sb.mnt_count)).max(1);
    }
    let interval = i64::from(sb.checkinterval);
    let ago = at.now_seconds - seconds(sb.lastcheck, sb.lastcheck_hi);
    if at.clock_believed && interval > 0 && ago >= interval {
        mounts = 1;
    }
    match mounts {
        1 if at.on_battery => " (check deferred; on battery)".to_owned(),
        1 => " (check after next mount)".to_owned(),
        2..=ANNOUNCED_MOUNTS => format!(" (check in {mounts} mounts)"),
        _ => String::new(),
    }
}

/// Whether the first readable backup differs from the primary in features, sizes or identity,
/// ignoring bits that Linux sets only in the primary.
pub(crate) fn backups_differ(reader: &Reader<'_>) -> bool {
    let primary = &reader.superblock;
    let backup = (1..reader.geometry.group_count).find_map(|group| {
        let block = reader.geometry.superblock_of(GroupNr(group))?;
        Reader::open_at(reader.device(), reader.geometry.offset_bytes(block)).ok()
    });
    let Some(backup) = backup.map(|backup| backup.superblock) else { return false };
    let incompat = !(Incompat::EXTENTS | Incompat::RECOVER).bits();
    let ro_compat = !(RoCompat::LARGE_FILE | RoCompat::DIR_NLINK | RoCompat::ORPHAN_PRESENT).bits();
    primary.feature_compat != backup.feature_compat
        || (primary.feature_incompat ^ backup.feature_incompat) & incompat != 0
        || (primary.feature_ro_compat ^ backup.feature_ro_compat) & ro_compat != 0
        || primary.blocks_count() != backup.blocks_count()
        || primary.inodes_count != backup.inodes_count
        || primary.uuid != backup.uuid
}

/// The first group that counts more free blocks, free inodes or directories than it can have. No bitmap proves such a count
/// wrong before a check, and Linux would not allocate in the group. (Where blocks are clustered, e2fsck compares with
/// the number of blocks, too.)
pub(crate) fn with_impossible_count(geometry: &Geometry, groups: &[GroupDesc]) -> Option<GroupNr> {
    let is_impossible = |desc: &GroupDesc| {
        desc.free_blocks_count > geometry.blocks_per_group
            || desc.free_inodes_count.max(desc.used_dirs_count) > geometry.inodes_per_group
    };
    (0..).map(GroupNr).zip(groups).find(|(_, desc)| is_impossible(desc)).map(|(group, _)| group)
}

#[cfg(test)]
mod tests {
    use floe_format::features::Compat;

    use super::*;

    const NOW: i64 = 1_800_000_000;
    const AT: Circumstances = Circumstances {
        now_seconds: NOW,
        clock_believed: true,
        slack: true,
        on_battery: false,
        mends: true,
        clears_test_flag: true,
        finishes_orphans: false,
    };

    fn clean() -> Superblock {
        let mut superblock = Superblock::decode(&[0; 1024]);
        superblock.state = STATE_VALID;
        superblock.lastcheck = 1_799_990_000;
        superblock
    }

    fn reason_with(at: &Circumstances, change: fn(&mut Superblock)) -> Option<Reason> {
        let mut superblock = clean();
        change(&mut superblock);
        reason(&superblock, at, || false)
    }

    #[test]
    fn a_check_is_due_as_for_e2fsck() {
        let with = |change| reason_with(&AT, change);
        assert_eq!(with(|_| ()), None);
        assert_eq!(with(|sb| sb.state = 0), Some(Reason::NotUnmounted));
        assert_eq!(with(|sb| sb.state = STATE_VALID | STATE_ERROR), Some(Reason::Errors));
        assert_eq!(reason(&clean(), &AT, || true), Some(Reason::BackupsDiffer));
        let mounts = |sb: &mut Superblock| (sb.mnt_count, sb.max_mnt_count) = (20, 20);
        assert_eq!(with(mounts), Some(Reason::Mounts(20)));
        assert_eq!(with(|sb| (sb.mnt_count, sb.max_mnt_count) = (20, 0)), None);
        assert_eq!(with(|sb| (sb.mnt_count, sb.max_mnt_count) = (20, 65535)), None);
        assert_eq!(with(|sb| sb.checkinterval = 10_000), Some(Reason::Days(0)));
        assert_eq!(with(|sb| sb.checkinterval = 10_001), None);
        let orphans = |sb: &mut Superblock| {
            sb.feature_compat = Compat::ORPHAN_FILE.bits();
            sb.feature_ro_compat = RoCompat::ORPHAN_PRESENT.bits();
        };
        assert_eq!(with(orphans), Some(Reason::Orphans));
        assert_eq!(with(|sb| sb.last_orphan = 13), Some(Reason::OrphanList));
        let finishes = Circumstances { finishes_orphans: true, ..AT };
        assert_eq!(reason_with(&finishes, orphans), None);
        assert_eq!(reason_with(&finishes, |sb| sb.last_orphan = 13), None);
        let crashed = |sb: &mut Superblock| {
            (sb.last_orphan, sb.feature_incompat) = (13, Incompat::RECOVER.bits());
        };
        assert_eq!(with(crashed), None, "Linux processes them after recovery");
        assert_eq!(with(|sb| sb.flags = FLAG_TEST), Some(Reason::TestFlag));
        assert_eq!(with(|sb| sb.free_inodes_count = 1), Some(Reason::Totals));
        let without = |sb: &mut Superblock| sb.feature_incompat = Incompat::BIT64.bits();
        assert_eq!(with(without), Some(Reason::ExtentsOff));
        let ahead = |sb: &mut Superblock| {
            (sb.mtime, sb.checkinterval) = (1_800_000_001 + 24 * 60 * 60, 1 << 30);
        };
        assert_eq!(with(ahead), Some(Reason::UsedInFuture));
        assert_eq!(with(|sb| sb.mtime = u32::MAX), None, "without an interval");
        let looks = Circumstances { mends: false, ..AT };
        assert_eq!(reason_with(&looks, ahead), None);
        assert_eq!(reason(&clean(), &looks, || true), None);
        assert_eq!(reason_with(&looks, |sb| sb.last_orphan = 13), None);
        assert_eq!(reason_with(&looks, without), None);
    }

    #[test]
    fn a_check_in_the_future_is_believed_for_a_day() {
        let tomorrow = |sb: &mut Superblock| {
            sb.lastcheck = 1_800_000_000 + 24 * 60 * 60;
            sb.checkinterval = 86400 * 180;
        };
        let later = |sb: &mut Superblock| {
            sb.lastcheck = 1_800_000_000 + 24 * 60 * 60 + 1;
            sb.checkinterval = 86400 * 180;
        };
        assert_eq!(reason_with(&AT, tomorrow), None);
        assert_eq!(reason_with(&AT, later), Some(Reason::CheckedInFuture));
        let strict = Circumstances { slack: false, ..AT };
        assert_eq!(reason_with(&strict, tomorrow), Some(Reason::CheckedInFuture));
        let unset = Circumstances { clock_believed: false, ..AT };
        assert_eq!(reason_with(&unset, later), None, "an unset clock proves nothing");
    }

    #[test]
    fn on_battery_checks_wait_for_twice_as_long() {
        let at = Circumstances { on_battery: true, ..AT };
        let with = |change| reason_with(&at, change);
        assert_eq!(with(|sb| (sb.mnt_count, sb.max_mnt_count) = (39, 20)), None);
        let mounts = |sb: &mut Superblock| (sb.mnt_count, sb.max_mnt_count) = (40, 20);
        assert_eq!(with(mounts), Some(Reason::Mounts(40)));
        assert_eq!(with(|sb| sb.checkinterval = 5_001), None);
        assert_eq!(with(|sb| sb.checkinterval = 5_000), Some(Reason::Days(0)));
        assert_eq!(with(|sb| sb.state = 0), Some(Reason::NotUnmounted));
        let mut due = clean();
        (due.mnt_count, due.max_mnt_count) = (39, 20);
        assert_eq!(announcement(&due, &at), " (check deferred; on battery)");
    }

    #[test]
    fn a_check_that_is_near_is_announced() {
        let text = |count, most| {
            let mut superblock = clean();
            (superblock.mnt_count, superblock.max_mnt_count) = (count, most);
            announcement(&superblock, &AT)
        };
        assert_eq!(text(3, 0), "");
        assert_eq!(text(3, 0xffff), "");
        assert_eq!(text(14, 20), "");
        assert_eq!(text(15, 20), " (check in 5 mounts)");
        assert_eq!(text(19, 20), " (check after next mount)");
    }
}
