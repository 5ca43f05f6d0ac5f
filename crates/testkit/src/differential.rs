//! Compares a checker's verdict on randomly damaged images with e2fsck's, and groups the
//! differences by likely cause.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::Result;

use crate::damage::damaged_image;
use crate::image::Image;
use crate::oracle;
use crate::profile::Profile;

/// Codes of damage that Linux refuses and e2fsck 1.47 accepts: finding it is right, and
/// `docs/differences.md` lists it: an extent node with a wrong depth, everything in
/// `docs/linux-refuses.md`, and the flag of attribute values on anything but a regular file, which
/// e2fsck finds from 1.47.1 on.
pub fn is_stricter(code: u32) -> bool {
    [0x07_001a, 0x01_0091].contains(&code) || (0x07_0101..0x07_0200).contains(&code)
}

/// The verdict of a checker under test on an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opinion {
    /// Exit status; `None` after a crash or a timeout.
    pub exit: Option<i32>,
    /// Codes of its findings.
    pub codes: BTreeSet<u32>,
    /// Its output, or why it has no exit status.
    pub text: String,
}

/// How two verdicts differ, worst first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    /// The checker crashed or hung.
    Crash,
    /// e2fsck found damage, but the checker did not.
    Missed {
        /// Codes that e2fsck found.
        codes: BTreeSet<u32>,
    },
    /// The checker found damage, but e2fsck did not.
    FalseAlarm {
        /// Codes that the checker found.
        codes: BTreeSet<u32>,
    },
    /// Both found damage, but the exit statuses differ.
    Exit {
        /// e2fsck's.
        theirs: Option<i32>,
        /// The checker's.
        ours: Option<i32>,
    },
    /// Equal exit statuses, but different findings.
    Codes {
        /// Found only by e2fsck.
        only_theirs: BTreeSet<u32>,
        /// Found only by the checker.
        only_ours: BTreeSet<u32>,
    },
    /// The checker found damage that e2fsck is known to miss ([`is_stricter`]).
    Stricter {
        /// All codes that the checker found.
        codes: BTreeSet<u32>,
    },
}

/// A damaged image with different verdicts.
#[derive(Clone, Debug)]
pub struct Case {
    /// Profile of the base image.
    pub profile: Profile,
    /// Seed of the damage.
    pub seed: u64,
    /// Description of the damage.
    pub events: Vec<String>,
    /// How the verdicts differ.
    pub difference: Difference,
}

/// Damages the base image of `profile` according to `seed`, runs both checkers, and returns the
/// case if they differ. Only those of e2fsck's codes count that `comparable` accepts: some announce
/// other problems, or offer one repair for all of them.
///
/// # Errors
/// The image cannot be built, or e2fsck or the checker cannot be run.
pub fn compare(
    profile: Profile,
    seed: u64,
    comparable: &dyn Fn(u32) -> bool,
    checker: &dyn Fn(&Image) -> Result<Opinion>,
) -> Result<Option<Case>> {
    let (image, damage) = damaged_image(profile, seed)?;
    let theirs = oracle::e2fsck(&image)?;
    let ours = checker(&image)?;
    let mut codes = theirs.codes();
    codes.retain(|&code| comparable(code));
    let theirs = Opinion { exit: theirs.exit, codes, text: theirs.text };
    Ok(difference(&theirs, &ours).map(|difference| Case {
        profile,
        seed,
        events: damage.events,
        difference,
    }))
}

/// How two verdicts differ; `None` if they agree.
pub fn difference(theirs: &Opinion, ours: &Opinion) -> Option<Difference> {
    let alone =
        |one: &Opinion, other: &Opinion| one.codes.difference(&other.codes).copied().collect();
    match (theirs.exit, ours.exit) {
        (_, None) => Some(Difference::Crash),
        (_, Some(exit)) if exit >= 100 => Some(Difference::Crash),
        (Some(0), Some(0)) => None,
        (_, Some(0)) => Some(Difference::Missed { codes: theirs.codes.clone() }),
        (Some(0), _) if ours.codes.iter().copied().any(is_stricter) => {
            Some(Difference::Stricter { codes: ours.codes.clone() })
        }
        (Some(0), _) => Some(Difference::FalseAlarm { codes: ours.codes.clone() }),
        (theirs, ours) if theirs != ours => Some(Difference::Exit { theirs, ours }),
        _ if theirs.codes != ours.codes => Some(Difference::Codes {
            only_theirs: alone(theirs, ours),
            only_ours: alone(ours, theirs),
        }),
        _ => None,
    }
}

/// Cases with the same difference.
#[derive(Debug)]
pub struct Group {
    /// The difference.
    pub difference: Difference,
    /// All cases, ordered by profile and seed.
    pub cases: Vec<Case>,
}

/// Groups cases by their difference: the worst kinds first, then the largest groups.
pub fn group(cases: Vec<Case>) -> Vec<Group> {
    let mut groups: BTreeMap<Difference, Vec<Case>> = BTreeMap::new();
    for case in cases {
        groups.entry(case.difference.clone()).or_default().push(case);
    }
    let mut groups: Vec<Group> = groups
        .into_iter()
        .map(|(difference, mut cases)| {
            cases.sort_by_key(|case| (case.profile, case.seed));
            Group { difference, cases }
        })
        .collect();
    groups.sort_by_key(|group| (group.difference.rank(), std::cmp::Reverse(group.cases.len())));
    groups
}

impl Difference {
    /// 0 is the worst.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Crash => 0,
            Self::Missed { .. } => 1,
            Self::FalseAlarm { .. } => 2,
            Self::Exit { .. } => 3,
            Self::Codes { .. } => 4,
            Self::Stricter { .. } => 5,
        }
    }

    /// Whether one verdict is clean and the other is not.
    pub fn is_of_verdict(&self) -> bool {
        self.rank() <= 2
    }

    /// One line; `name` returns the id of a code.
    pub fn describe(&self, name: &dyn Fn(u32) -> String) -> String {
        let list = |codes: &BTreeSet<u32>| -> String {
            let names: Vec<String> = codes.iter().map(|&code| name(code)).collect();
            if names.is_empty() { "nothing".to_owned() } else { names.join(" ") }
        };
        match self {
            Self::Crash => "the checker crashed or hung".to_owned(),
            Self::Missed { codes } => format!("missed: e2fsck found {}", list(codes)),
            Self::FalseAlarm { codes } => format!("false alarm: {}", list(codes)),
            Self::Exit { theirs, ours } => format!("exit status: e2fsck {theirs:?}, we {ours:?}"),
            Self::Codes { only_theirs, only_ours } => {
                format!("only e2fsck: {}; only we: {}", list(only_theirs), list(only_ours))
            }
            Self::Stricter { codes } => format!("stricter than e2fsck: {}", list(codes)),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} ({})", self.profile, self.seed, self.events.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opinion(exit: i32, codes: &[u32]) -> Opinion {
        Opinion { exit: Some(exit), codes: codes.iter().copied().collect(), text: String::new() }
    }

    #[test]
    fn differences_are_told_apart() {
        let damaged = opinion(4, &[1, 2]);
        let clean = opinion(0, &[]);
        fn rank(theirs: &Opinion, ours: &Opinion) -> Option<u8> {
            difference(theirs, ours).map(|difference| difference.rank())
        }
        assert_eq!(rank(&clean, &clean), None);
        assert_eq!(rank(&damaged, &damaged), None);
        assert_eq!(rank(&damaged, &Opinion::default()), Some(0));
        assert_eq!(rank(&damaged, &opinion(101, &[])), Some(0));
        assert_eq!(rank(&damaged, &clean), Some(1));
        assert_eq!(rank(&clean, &damaged), Some(2));
        assert_eq!(rank(&clean, &opinion(4, &[1, 0x07_001a])), Some(5));
        assert_eq!(rank(&opinion(8, &[]), &damaged), Some(3));
        assert_eq!(rank(&damaged, &opinion(4, &[2, 3])), Some(4));
        // Findings without effect on the verdict (remarks) are no difference for clean images.
        assert_eq!(rank(&clean, &opinion(0, &[7])), None);
    }

    #[test]
    fn groups_start_with_the_worst() {
        let case = |seed, difference| Case {
            profile: Profile::Ext4,
            seed,
            events: Vec::new(),
            difference,
        };
        let exit = Difference::Exit { theirs: Some(8), ours: Some(4) };
        let groups = group(vec![case(1, exit.clone()), case(2, exit), case(3, Difference::Crash)]);
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[0].difference, Difference::Crash);
        assert_eq!(groups[1].cases.len(), 2);
    }
}
