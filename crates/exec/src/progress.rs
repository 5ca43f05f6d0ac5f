//! One source of progress: what bars, `-C` output and logs read.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Keeps what many threads write apart from everything else, so that they do not slow each other
/// down: two cache lines, since processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct OwnLine<T>(pub(crate) T);

/// How far a run is, phase by phase. Workers add to it; one reader asks now and then.
///
/// It is for people: no result may depend on it. Adding is one relaxed atomic addition; add for a
/// chunk of work rather than for each object.
#[derive(Debug)]
pub struct Progress {
    phases: Vec<Phase>,
}

/// One phase of a run.
#[derive(Debug)]
pub struct Phase {
    name: &'static str,
    done: OwnLine<AtomicU64>,
    /// May grow while the phase runs, as more work is discovered.
    total: OwnLine<AtomicU64>,
}

/// How far one phase was when asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseState {
    /// The phase's name.
    pub name: &'static str,
    /// Units done.
    pub done: u64,
    /// Units known so far; 0 before the phase knows any. May still grow.
    pub total: u64,
}

impl PhaseState {
    /// Done in thousandths, 0 to 1000; 0 while no total is known.
    pub fn per_mille(&self) -> u16 {
        if self.total == 0 {
            return 0;
        }
        let per_mille = u128::from(self.done.min(self.total)) * 1000 / u128::from(self.total);
        // At most 1000.
        per_mille as u16
    }
}

impl Progress {
    /// Phases of these names, in the order in which they run, with nothing to do yet.
    pub fn new(names: &[&'static str]) -> Self {
        let phase = |&name: &&'static str| Phase {
            name,
            done: OwnLine(AtomicU64::new(0)),
            total: OwnLine(AtomicU64::new(0)),
        };
        Self { phases: names.iter().map(phase).collect() }
    }

    /// The phase of that index in the names given; `None` if there is none.
    pub fn phase(&self, index: usize) -> Option<&Phase> {
        self.phases.get(index)
    }

    /// How far each phase is. While workers run, the phases are not from the same instant.
    pub fn snapshot(&self) -> Vec<PhaseState> {
        self.phases.iter().map(Phase::state).collect()
    }
}

impl Phase {
    /// Adds `units` to what is to be done.
    pub fn expect(&self, units: u64) {
        // Relaxed, here and below: figures for people; nothing is ordered by them.
        self.total.0.fetch_add(units, Ordering::Relaxed);
    }

    /// Adds `units` to what is done.
    pub fn advance(&self, units: u64) {
        self.done.0.fetch_add(units, Ordering::Relaxed);
    }

    /// How far the phase is.
    pub fn state(&self) -> PhaseState {
        PhaseState {
            name: self.name,
            done: self.done.0.load(Ordering::Relaxed),
            total: self.total.0.load(Ordering::Relaxed),
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::sync::thread;

    #[test]
    fn all_that_is_added_is_seen() {
        let progress = Progress::new(&["inodes", "directories"]);
        let (inodes, directories) = (progress.phase(0).unwrap(), progress.phase(1).unwrap());
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        inodes.expect(2);
                        inodes.advance(1);
                    }
                });
            }
        });
        directories.advance(3);
        assert!(progress.phase(2).is_none());
        let [inodes, directories] = progress.snapshot()[..] else { panic!("two phases") };
        assert_eq!(inodes, PhaseState { name: "inodes", done: 4000, total: 8000 });
        assert_eq!((inodes.per_mille(), directories.per_mille()), (500, 0));
        let over = PhaseState { name: "", done: u64::MAX, total: u64::MAX - 1 };
        assert_eq!(over.per_mille(), 1000);
    }
}
