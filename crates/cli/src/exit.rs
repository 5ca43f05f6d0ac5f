//! Exit codes: the bits of e2fsck(8), which scripts and `fsck` evaluate; for `floe mount` those of
//! mount(8).

/// Result of a run. Several fields may be true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Damage was repaired.
    pub(crate) repaired: bool,
    /// Damage of a mounted root was repaired: the system must be rebooted.
    pub(crate) restart: bool,
    /// Damage is left.
    pub(crate) damaged: bool,
    /// Operational error: no such device, not an ext file system, read errors.
    pub(crate) failed: bool,
    /// The command line is invalid.
    pub(crate) usage: bool,
    /// The user cancelled it.
    pub(crate) cancelled: bool,
    /// The exit code of a command with its own codes, those of mount(8), instead of all others.
    pub(crate) own: Option<u8>,
}

/// An early end of a run that is not a system error: its reason and exit code.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Ended {
    outcome: Outcome,
    text: String,
}

impl Ended {
    /// An error with this outcome.
    pub(crate) fn with(outcome: Outcome, text: impl Into<String>) -> anyhow::Error {
        Self { outcome, text: text.into() }.into()
    }

    /// The error for an invalid command line.
    pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
        Self { outcome: Outcome::USAGE, text: text.into() }.into()
    }

    /// The error for a run that failed.
    pub(crate) fn failed(text: impl Into<String>) -> anyhow::Error {
        Self { outcome: Outcome::FAILED, text: text.into() }.into()
    }
}

impl Outcome {
    /// Nothing to report.
    pub(crate) const CLEAN: Self = Self {
        repaired: false,
        restart: false,
        damaged: false,
        failed: false,
        usage: false,
        cancelled: false,
        own: None,
    };
    /// Operational error.
    pub(crate) const FAILED: Self = Self { failed: true, ..Self::CLEAN };
    /// Usage error.
    pub(crate) const USAGE: Self = Self { usage: true, ..Self::CLEAN };

    /// The outcome of a command with its own exit codes.
    pub(crate) const fn own(code: u8) -> Self {
        Self { own: Some(code), ..Self::CLEAN }
    }

    /// The outcome for an error.
    pub(crate) fn of_error(error: &anyhow::Error) -> Self {
        error.downcast_ref().map_or(Self::FAILED, |Ended { outcome, .. }| *outcome)
    }

    /// The exit code: 1 repaired, 2 reboot, 4 damage left, 8 failed, 16 usage, 32 cancelled.
    pub(crate) const fn code(self) -> u8 {
        if let Some(code) = self.own {
            return code;
        }
        let mut code = 0;
        if self.repaired {
            code |= 1;
        }
        if self.restart {
            code |= 2;
        }
        if self.damaged {
            code |= 4;
        }
        if self.failed {
            code |= 8;
        }
        if self.usage {
            code |= 16;
        }
        if self.cancelled {
            code |= 32;
        }
        code
    }
}

#[cfg(test)]
mod tests {
    use super::Outcome;

    #[test]
    fn clean_is_0() {
        assert_eq!(Outcome::CLEAN.code(), 0);
    }

    #[test]
    fn repaired_is_bit_1() {
        assert_eq!(Outcome { repaired: true, ..Outcome::CLEAN }.code(), 1);
    }

    #[test]
    fn restart_is_bit_2() {
        assert_eq!(Outcome { restart: true, ..Outcome::CLEAN }.code(), 2);
    }

    #[test]
    fn damage_left_is_bit_4() {
        assert_eq!(Outcome { damaged: true, ..Outcome::CLEAN }.code(), 4);
    }

    #[test]
    fn failed_is_bit_8_and_may_join_bit_4() {
        assert_eq!(Outcome::FAILED.code(), 8);
        assert_eq!(Outcome { damaged: true, ..Outcome::FAILED }.code(), 12);
    }

    #[test]
    fn usage_is_bit_16() {
        assert_eq!(Outcome::USAGE.code(), 16);
    }

    #[test]
    fn codes_of_a_commands_own_stand_for_themselves() {
        assert_eq!(Outcome::own(32).code(), 32);
    }

    #[test]
    fn cancelled_is_bit_32() {
        assert_eq!(Outcome { cancelled: true, ..Outcome::CLEAN }.code(), 32);
    }
}
