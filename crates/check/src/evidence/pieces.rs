//! Lists that all workers go through together, in pieces.

use std::ops::Range;

use floe_exec::{Accumulator, Pool, append};

/// Elements that a worker takes at once.
const TAKEN: usize = 8192;

/// All indexes below `count`, in pieces.
pub fn pieces(count: usize) -> Vec<Range<usize>> {
    (0..count).step_by(TAKEN).map(|from| from..count.min(from + TAKEN)).collect()
}

/// The indexes below `count` for which `wanted` holds, in order.
pub fn places(count: usize, pool: &Pool, wanted: impl Fn(usize) -> bool + Sync) -> Vec<usize> {
    let found = pool.watched(None).run(&pieces(count), |found: &mut Places, piece| {
        found.0.extend(piece.clone().filter(|&at| wanted(at)));
    });
    found.in_order()
}

/// Indexes that workers came across.
#[derive(Debug, Default)]
pub struct Places(pub Vec<usize>);

impl Accumulator for Places {
    fn merge(&mut self, other: Self) {
        let Self(other) = other;
        append(&mut self.0, other);
    }
}

impl Places {
    /// In order, each once.
    pub fn in_order(mut self) -> Vec<usize> {
        self.0.sort_unstable();
        self.0.dedup();
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    floe_exec::accumulator_laws!(
        Places,
        0usize..9,
        |all: &mut Places, at: usize| all.0.push(at),
        Places::in_order
    );

    #[test]
    fn every_index_is_asked_for() {
        for count in [0, 1, TAKEN, 3 * TAKEN + 5] {
            let odd = places(count, &Pool::new(3), |at| at % 2 == 1);
            assert!(odd.into_iter().eq((0..count).filter(|at| at % 2 == 1)), "{count}");
        }
    }
}
