//! The work that a phase is expected to be, and how it is distributed over the phase's units.

use std::time::Duration;

/// The work of a phase, as time on the machine that the model describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Processor time, of all threads together.
    pub busy: Duration,
    /// Seek time of a device if nothing is cached, for any number of threads.
    pub places: Duration,
    /// Time to transfer the bytes, likewise.
    pub bytes: Duration,
    /// Threads that share the processor time; 0 counts as 1.
    pub threads: usize,
}

impl Work {
    /// Whether nothing was planned.
    pub fn is_zero(&self) -> bool {
        [self.busy, self.places, self.bytes].iter().all(Duration::is_zero)
    }

    /// The work of a share (0 to 1) of the whole.
    #[must_use]
    pub fn part(&self, share: f64) -> Self {
        let part = |time: Duration| time.mul_f64(share.clamp(0.0, 1.0));
        let [busy, places, bytes] = [self.busy, self.places, self.bytes].map(part);
        Self { busy, places, bytes, threads: self.threads }
    }
}

/// The distribution of a phase's work over its units: pairs of units done and work done by then.
/// Ascending in both; empty: even.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape(Vec<(u64, u64)>);

/// Points of a shape, at most.
const MOST_POINTS: usize = 1024;

impl Shape {
    /// The shape of consecutive parts, each with its units and its work.
    pub fn of(parts: impl ExactSizeIterator<Item = (u64, u64)>) -> Self {
        let every = parts.len().div_ceil(MOST_POINTS).max(1);
        let (mut units, mut work, mut points) = (0u64, 0u64, Vec::new());
        let last = parts.len();
        for (at, (more_units, more_work)) in (1..).zip(parts) {
            units = units.saturating_add(more_units);
            work = work.saturating_add(more_work);
            if at % every == 0 || at == last {
                points.push((units, work));
            }
        }
        Self(points)
    }

    /// Total units; 0 for an even shape.
    pub(super) fn units(&self) -> u64 {
        self.0.last().map_or(0, |&(units, _)| units)
    }

    /// The share of the work, from 0 to 1, that is done after `done` units.
    pub fn share(&self, done: u64) -> f64 {
        let after = self.0.partition_point(|&(units, _)| units <= done);
        let (units, work) = match after.checked_sub(1) {
            Some(before) => self.0[before],
            None => (0, 0),
        };
        let all = self.0.last().map_or(0, |&(_, work)| work);
        if all == 0 {
            return 1.0;
        }
        let more = self.0.get(after).map_or(0.0, |&(next_units, next_work)| {
            // Both ascend, and `units <= done < next_units`.
            (done - units) as f64 / (next_units - units) as f64 * (next_work - work) as f64
        });
        ((work as f64 + more) / all as f64).min(1.0)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_long_shape_is_thinned_out() {
        let long = Shape::of((0..100_000u32).map(|_| (1, 2)));
        assert!(long.0.len() <= MOST_POINTS + 1);
        assert!((long.share(25_000) - 0.25).abs() < 1e-9);
        assert_eq!(Shape::of([(5, 0)].into_iter()).share(1), 1.0, "a shape without work");
    }
}
