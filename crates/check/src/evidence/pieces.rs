//! Lists that all workers go through together, in pieces, and numbers that they change together.

use std::ops::Range;

use floe_exec::{Accumulator, Pool, append};
use floe_sync::atomic::{AtomicU32, Ordering};

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

/// The indexes of the elements of `list` for which `wanted` holds, in order.
pub fn places_in<T: Sync>(
    list: &[T],
    pool: &Pool,
    wanted: impl Fn(&T) -> bool + Sync,
) -> Vec<usize> {
    let found = pool.watched(None).run(&pieces(list.len()), |found: &mut Places, piece| {
        for (at, element) in list[piece.clone()].iter().enumerate() {
            if wanted(element) {
                found.0.push(piece.start + at);
            }
        }
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

/// A list of numbers that all workers change, made by all of them, too: with half a million
/// directories, the time in which one worker would fill such lists is no longer small.
#[derive(Debug, Default)]
pub struct Cells(Vec<Box<[AtomicU32]>>);

impl Cells {
    /// Lists of `count` numbers, one for each of the `values` at the start.
    pub fn new<const N: usize>(count: usize, values: [u32; N], pool: &Pool) -> [Self; N] {
        let Made(mut made) = pool.watched(None).run(&pieces(count), |made: &mut Made, piece| {
            for (list, value) in values.into_iter().enumerate() {
                let cells = std::iter::repeat_with(|| AtomicU32::new(value));
                made.0.push((piece.start, list, cells.take(piece.len()).collect()));
            }
        });
        made.sort_unstable_by_key(|(start, list, _)| (*start, *list));
        let mut lists = [const { Self(Vec::new()) }; N];
        for (_, list, cells) in made {
            lists[list].0.push(cells);
        }
        lists
    }

    /// Number of cells.
    pub fn count(&self) -> usize {
        let last = self.0.last().map_or(0, |cells| cells.len());
        self.0.len().saturating_sub(1) * TAKEN + last
    }

    /// A cell; `None` past the end.
    #[inline]
    pub fn cell(&self, at: usize) -> Option<&AtomicU32> {
        self.0.get(at / TAKEN)?.get(at % TAKEN)
    }

    /// The cells of a piece, as [`pieces`] cuts them.
    #[inline]
    pub fn piece(&self, piece: &Range<usize>) -> &[AtomicU32] {
        self.0.get(piece.start / TAKEN).map_or(&[], |cells| cells)
    }

    /// The number in a cell, once the workers that change it have ended.
    #[inline]
    pub fn get(&self, at: usize) -> Option<u32> {
        // Relaxed: whoever waited for the workers sees what they did.
        self.cell(at).map(|cell| cell.load(Ordering::Relaxed))
    }
}

/// Cells that a worker made: the index of the first, which list, and the cells.
#[derive(Default)]
struct Made(Vec<(usize, usize, Box<[AtomicU32]>)>);

impl Accumulator for Made {
    fn merge(&mut self, other: Self) {
        let Self(mut other) = other;
        self.0.append(&mut other);
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
    fn cells_keep_what_workers_add() {
        for count in [0, 1, TAKEN, 3 * TAKEN + 5] {
            let pool = Pool::new(3);
            let [sevens, sums] = Cells::new(count, [7, 0], &pool);
            pool.run(&pieces(2 * count), |(): &mut (), piece| {
                for at in piece.clone() {
                    sums.cell(at / 2).expect("a cell").fetch_add(at as u32, Ordering::Relaxed);
                }
            });
            assert_eq!((sevens.count(), sums.count()), (count, count));
            assert!((0..count).all(|at| sevens.get(at) == Some(7)));
            assert!((0..count).all(|at| sums.get(at) == Some(4 * at as u32 + 1)));
            assert_eq!(sums.get(count), None);
        }
    }

    #[test]
    fn every_index_is_asked_for() {
        for count in [0, 1, TAKEN, 3 * TAKEN + 5] {
            let odd = places(count, &Pool::new(3), |at| at % 2 == 1);
            assert!(odd.into_iter().eq((0..count).filter(|at| at % 2 == 1)), "{count}");
            let list: Vec<usize> = (0..count).map(|at| at * 2).collect();
            let thirds = places_in(&list, &Pool::new(3), |value| value % 3 == 0);
            assert!(thirds.into_iter().eq((0..count).step_by(3)), "{count}");
        }
    }
}

#[cfg(test)]
mod laws {
    use super::*;

    floe_exec::accumulator_laws!(
        Made,
        (0usize..9, 0usize..3),
        |all: &mut Made, (first, list): (usize, usize)| {
            all.0.push((first, list, [AtomicU32::new(first as u32)].into()));
        },
        |all: Made| {
            let number = |cells: &[AtomicU32]| cells[0].load(Ordering::Relaxed);
            let mut made: Vec<_> =
                all.0.iter().map(|(first, list, cells)| (*first, *list, number(cells))).collect();
            made.sort_unstable();
            made
        }
    );
}
