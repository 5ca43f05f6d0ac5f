//! Exit codes: the bits of e2fsck(8), which scripts and `fsck` itself go by; for `floe mount` those of mount(8).

use crate::files::Refused;

/// How a run ended. Several may be true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Damage was repaired.
    pub(crate) repaired: bool,
    /// Damage of a mounted root was repaired: the system should be restarted.
    pub(crate) restart: bool,
    /// Damage is left.
    pub(crate) damaged: bool,
    /// The work could not be done: no such device, not an ext file system, read errors.
    pub(crate) failed: bool,
    /// The command line was wrong.
    pub(crate) usage: bool,
    /// The user ended it.
    pub(crate) cancelled: bool,
    /// The code of a command with codes of its own, those of mount(8), in place of all others.
    pub(crate) own: Option<u8>,
}

/// A run that ended early for a reason that is not an error of the system: the reason, and the exit code.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Ended {
    outcome: Outcome,
    text: String,
}

impl Ended {
    /// It ends with this outcome.
    pub(crate) fn with(outcome: Outcome, text: impl Into<String>) -> anyhow::Error {
        Self { outcome, text: text.into() }.into()
    }

    /// The command line cannot be obeyed.
    pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
        Self { outcome: Outcome::USAGE, text: text.into() }.into()
    }

    /// The work cannot be done.
    pub(crate) fn failed(text: impl Into<String>) -> anyhow::Error {
        Self { outcome: Outcome::FAILED, text: text.into() }.into()
    }
}

impl Outcome {
    /// Nothing to tell.
    pub(crate) const CLEAN: Self = Self {
        repaired: false,
        restart: false,
        damaged: false,
        failed: false,
        usage: false,
        cancelled: false,
        own: None,
    };
    /// The work could not be done.
    pub(crate) const FAILED: Self = Self { failed: true, ..Self::CLEAN };
    /// The command line was wrong.
    pub(crate) const USAGE: Self = Self { usage: true, ..Self::CLEAN };

    /// A command with codes of its own ends with this one.
    pub(crate) const fn own(code: u8) -> Self {
        Self { own: Some(code), ..Self::CLEAN }
    }

    /// How a run ends that could not be made.
    pub(crate) fn of_error(error: &anyhow::Error) -> Self {
        if let Some(Ended { outcome, .. }) = error.downcast_ref() {
            return *outcome;
        }
        match error.downcast_ref::<Refused>() {
            // A mishap with a file that is in the way, and no wrong command line.
            None | Some(Refused::InTheWay { .. }) => Self::FAILED,
            Some(_) => Self::USAGE,
        }
    }

    /// The exit code: 1 repaired, 2 restart, 4 damage left, 8 failed, 16 usage, 32 cancelled.
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
