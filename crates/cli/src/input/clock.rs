//! The current time, and whether to trust it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Clocks before 2010 count as unset, as in e2fsck.
const EARLIEST_SECONDS: i64 = 1_262_322_000;

/// The time of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Seconds since 1970.
    pub(crate) now_seconds: i64,
    /// Whether times on the disk may be judged by it.
    pub(crate) believed: bool,
}

/// The current time. `E2FSCK_TIME` replaces it, as for e2fsck, and so does `SOURCE_DATE_EPOCH`, so
/// that the output of a run is reproducible.
pub(crate) fn now() -> Clock {
    let given = ["E2FSCK_TIME", "SOURCE_DATE_EPOCH"]
        .iter()
        .find_map(|name| std::env::var(name).ok()?.trim().parse().ok());
    match given {
        Some(now_seconds) => Clock { now_seconds, believed: true },
        None => {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let now_seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
            Clock { now_seconds, believed: now_seconds >= EARLIEST_SECONDS }
        }
    }
}

/// `SOURCE_DATE_EPOCH`, in seconds since 1970: requests reproducible output.
pub(crate) fn source_date_epoch() -> Option<i64> {
    std::env::var("SOURCE_DATE_EPOCH").ok()?.trim().parse().ok()
}

/// The current time, in seconds since 1970.
pub(crate) fn now_seconds() -> i64 {
    now().now_seconds
}
