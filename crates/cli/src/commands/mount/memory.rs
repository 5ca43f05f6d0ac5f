//! The memory that a mount may take for files and changes, and where that is said.

use std::fmt;

use floe_fs::Limits;

/// The least that a mount can work with.
pub(super) const LEAST_BYTES: u64 = 1 << 20;

/// Bytes of memory for what is kept and what waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Memory {
    /// Nothing is said.
    #[default]
    Usual,
    /// By `memory=`.
    Given(u64),
    /// Half of the limit of the control group.
    Half(u64),
}

impl Memory {
    /// The same where no more memory may be used than this. Half of it is left for the journal, threads, and what else comes on top.
    pub(super) fn within(self, limit_bytes: Option<u64>) -> Self {
        let half = limit_bytes.map_or(u64::MAX, |bytes| bytes / 2);
        match self {
            Self::Usual if half < Limits::DEFAULT_MEMORY_BYTES => Self::Half(half.max(LEAST_BYTES)),
            known => known,
        }
    }

    /// A number that is not the usual one.
    pub(super) const fn limit_bytes(self) -> Option<u64> {
        match self {
            Self::Usual => None,
            Self::Given(bytes) | Self::Half(bytes) => Some(bytes),
        }
    }

    /// The number.
    pub(super) fn bytes(self) -> u64 {
        self.limit_bytes().unwrap_or(Limits::DEFAULT_MEMORY_BYTES)
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Usual => "files and changes, as `memory=` is not given",
            Self::Given(_) => "`memory=`",
            Self::Half(_) => "half of the limit of its control group, as `memory=` is not given",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_memory_is_kept_unless_something_else_is_wanted() {
        let usual = |limit| Memory::Usual.within(limit).limit_bytes();
        assert_eq!(usual(None), None);
        assert_eq!(usual(Some(1 << 30)), None);
        assert_eq!(usual(Some(40 << 20)), Some(20 << 20));
        assert_eq!(usual(Some(1 << 20)), Some(LEAST_BYTES));
        assert_eq!(Memory::Given(64 << 20).within(Some(40 << 20)).limit_bytes(), Some(64 << 20));
    }
}
