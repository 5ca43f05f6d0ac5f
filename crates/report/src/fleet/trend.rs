//! Compares the runs over a fleet.

use std::collections::BTreeMap;

use super::{Run, State};

/// How the result of an image differs from that of the run before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// It was clean, and is not any more.
    Broken,
    /// It was not in the run before.
    Added,
    /// It was in another state before, neither of both clean.
    Other,
    /// It was not clean, and is now.
    Mended,
    /// It was in the run before, and is in this one no more.
    Missing,
}

/// The last run beside those before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trend {
    /// The images whose state is not that of the run before. Empty if there was none.
    pub changes: BTreeMap<String, Change>,
    /// For each image that is not clean now: the index of the run since which no run found it clean.
    pub since: BTreeMap<String, usize>,
}

impl Trend {
    /// How many images have changed in this way.
    pub fn count(&self, wanted: Change) -> usize {
        self.changes.values().filter(|change| **change == wanted).count()
    }
}

/// Compares the last of `runs`, which are in the order of time, with those before it.
pub fn trend(runs: &[Run]) -> Trend {
    let Some((last, earlier)) = runs.split_last() else { return Trend::default() };
    let mut trend = Trend::default();
    if let Some(before) = earlier.last() {
        for (device, image) in &last.images {
            let change = match before.images.get(device).map(|image| image.state) {
                Some(before) if before == image.state => continue,
                None => Change::Added,
                Some(State::Clean) => Change::Broken,
                Some(_) if image.state == State::Clean => Change::Mended,
                Some(_) => Change::Other,
            };
            trend.changes.insert(device.clone(), change);
        }
        let missing = before.images.keys().filter(|device| !last.images.contains_key(*device));
        trend.changes.extend(missing.map(|device| (device.clone(), Change::Missing)));
    }
    for (device, _) in last.images.iter().filter(|(_, image)| image.state != State::Clean) {
        let bad = |run: &&Run| run.images.get(device).is_some_and(|of| of.state != State::Clean);
        let runs_before = earlier.iter().rev().take_while(bad).count();
        trend.since.insert(device.clone(), earlier.len() - runs_before);
    }
    trend
}

#[cfg(test)]
mod tests {
    use super::super::read::tests::results;
    use super::*;

    #[test]
    fn changes_are_told_from_what_stays() {
        let run = |count, damaged| Run::read("", results("v", count, damaged).as_bytes()).unwrap();
        let trend = trend(&[run(4, 2), run(4, 0), run(4, 1), run(3, 2)]);
        let changes: Vec<_> =
            trend.changes.iter().map(|(name, change)| (name.as_str(), *change)).collect();
        assert_eq!(changes, [("v-1", Change::Broken), ("v-3", Change::Missing)]);
        let since: Vec<_> = trend.since.iter().map(|(name, run)| (name.as_str(), *run)).collect();
        assert_eq!(since, [("v-0", 2), ("v-1", 3), ("v-<lost>", 0)]);
        let mended = super::trend(&[run(2, 2), run(3, 0)]);
        assert_eq!((mended.count(Change::Mended), mended.count(Change::Added)), (2, 1));
        // A single run has nothing to be compared with.
        assert!(super::trend(&[run(2, 1)]).changes.is_empty());
        assert_eq!(super::trend(&[]), Trend::default());
    }
}
