//! Reports of a fleet: the results of many checks (`floe check --json`), counted, and compared with those of earlier
//! runs. As text ([`human`]), as a page ([`html`]) and as metrics ([`prometheus`]).

pub mod html;
pub mod human;
mod parquet;
pub mod prometheus;
mod read;
mod trend;

use std::collections::BTreeMap;

use floe_check::problem::{ROWS, Row};

pub use parquet::{MAGIC as PARQUET_MAGIC, ParquetError, Source};
pub use read::{ReadError, Run};
pub use trend::{Change, Trend, trend};

/// The result of a check, in the order in which reports list images: the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Damaged, and files, names or attributes may be lost.
    AtRisk,
    /// The check could not be completed, or not begun.
    Incomplete,
    /// Damaged, but no user data depends on it.
    Damaged,
    /// Nothing needs repair.
    Clean,
}

impl State {
    /// All of them, the worst first.
    pub const ALL: [Self; 4] = [Self::AtRisk, Self::Incomplete, Self::Damaged, Self::Clean];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AtRisk => "at-risk",
            Self::Incomplete => "incomplete",
            Self::Damaged => "damaged",
            Self::Clean => "clean",
        }
    }

    /// Its name in sentences, for one image or several.
    pub const fn words(self) -> &'static str {
        match self {
            Self::AtRisk => "damaged with data at risk",
            Self::Incomplete => "not checked completely",
            Self::Damaged => "damaged",
            Self::Clean => "clean",
        }
    }
}

/// Findings of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kind {
    /// The permanent id, such as `inode-link-count-wrong`.
    pub id: String,
    /// The severity, as in the JSON of a check.
    pub severity: String,
    /// Whether they are remarks, which need no repair.
    pub remark: bool,
    /// Number of findings.
    pub findings: u64,
}

impl Kind {
    /// The description of this kind; `None` if another version of Floe has found it.
    pub fn row(&self) -> Option<&'static Row> {
        ROWS.iter().find(|row| row.id == self.id)
    }

    /// Whether files, names or attributes may be lost.
    pub(crate) fn at_risk(&self) -> bool {
        !self.remark && matches!(self.severity.as_str(), "data-risk" | "fatal")
    }
}

/// The result of the check of one image or device.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// The result in a word.
    pub state: State,
    /// Why nothing could be examined; empty if something was.
    pub error: String,
    /// The label of the file system, perhaps empty.
    pub label: String,
    /// The UUID of the file system; empty if unknown.
    pub uuid: String,
    /// The size of the file system in bytes; 0 if unknown.
    pub bytes: u64,
    /// Duration of the check in seconds; 0 if unknown.
    pub seconds: f64,
    /// Bytes read by the check; 0 if unknown.
    pub bytes_read: u64,
    /// The kinds of findings, by code.
    pub kinds: BTreeMap<String, Kind>,
}

impl Image {
    /// The number of findings that need repair.
    pub fn damage(&self) -> u64 {
        self.kinds.values().filter(|kind| !kind.remark).map(|kind| kind.findings).sum()
    }

    /// The kind of findings that matters most, without remarks.
    pub fn worst(&self) -> Option<&Kind> {
        let damage = self.kinds.values().filter(|kind| !kind.remark);
        damage.max_by_key(|kind| (kind.at_risk(), kind.findings))
    }
}

/// The counts of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Images by state, in the order of [`State::ALL`].
    pub images: [u64; 4],
    /// The seconds of all checks together, and of the longest one.
    pub seconds: (f64, f64),
    /// Bytes read by all checks.
    pub bytes_read: u64,
    /// By code: the kind with the findings of all images, and how many images have it.
    pub kinds: BTreeMap<String, (Kind, u64)>,
}

impl Totals {
    /// The counts of `run`.
    pub fn of(run: &Run) -> Self {
        let mut all = Self::default();
        for image in run.images.values() {
            all.images[image.state as usize] += 1;
            all.seconds = (all.seconds.0 + image.seconds, all.seconds.1.max(image.seconds));
            all.bytes_read = all.bytes_read.saturating_add(image.bytes_read);
            for (code, kind) in &image.kinds {
                let known = all.kinds.entry(code.clone());
                let known = known.or_insert_with(|| (Kind { findings: 0, ..kind.clone() }, 0));
                known.0.findings += kind.findings;
                known.1 += 1;
            }
        }
        all
    }

    /// Images in this state.
    pub const fn count(&self, state: State) -> u64 {
        self.images[state as usize]
    }

    /// All images.
    pub fn all(&self) -> u64 {
        self.images.iter().sum()
    }

    /// The kinds of findings: damage before remarks, then the one with most images first.
    pub(crate) fn kinds_by_importance(&self) -> Vec<(&str, &Kind, u64)> {
        let kinds = self.kinds.iter();
        let mut kinds: Vec<_> =
            kinds.map(|(code, (kind, images))| (code.as_str(), kind, *images)).collect();
        kinds.sort_by_key(|(code, kind, images)| {
            (kind.remark, !kind.at_risk(), std::cmp::Reverse(*images), *code)
        });
        kinds
    }
}

/// Slowest checks that reports name.
const SHOWN_SLOWEST: usize = 15;

/// The checks of a run that took longest, the longest first; those without a duration are none.
fn slowest(run: &Run) -> Vec<(&str, &Image)> {
    let images = run.images.iter().map(|(device, image)| (device.as_str(), image));
    let mut images: Vec<_> = images.filter(|(_, image)| image.seconds > 0.0).collect();
    images.sort_by(|(_, one), (_, other)| other.seconds.total_cmp(&one.seconds));
    images.truncate(SHOWN_SLOWEST);
    images
}

/// The images of a run that are not clean, the worst first.
fn to_look_at(run: &Run) -> Vec<(&str, &Image)> {
    let images = run.images.iter().map(|(device, image)| (device.as_str(), image));
    let mut images: Vec<_> = images.filter(|(_, image)| image.state != State::Clean).collect();
    images.sort_by_key(|(device, image)| (image.state, std::cmp::Reverse(image.damage()), *device));
    images
}
