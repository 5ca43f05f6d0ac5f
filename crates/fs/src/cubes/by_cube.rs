//! A value for each cube, made when it is asked for the first time and kept from then on, so that readers need no lock.

use std::fmt;

use floe_format::native::cube::MOST_CUBES;
use floe_sync::OnceLock;

/// Values of a leaf.
const LEAF: usize = 64;

/// A leaf of the table.
type Leaf<T> = [OnceLock<Box<T>>; LEAF];

/// Values by the numbers of cubes; the root cube has 0.
pub(crate) struct ByCube<T> {
    root: T,
    /// Leaves, which are made when they are needed.
    leaves: Box<[OnceLock<Box<Leaf<T>>>]>,
}

impl<T: Default> ByCube<T> {
    /// A table of no values yet, for cubes or for the root cube alone.
    pub(crate) fn new(has_lots: bool) -> Self {
        let leaves = if has_lots { MOST_CUBES as usize / LEAF + 1 } else { 0 };
        Self { root: T::default(), leaves: (0..leaves).map(|_| OnceLock::new()).collect() }
    }

    /// The value of a cube; that of the root cube for numbers that no cube has.
    pub(crate) fn of(&self, cube: u32) -> &T {
        self.of_other(cube).unwrap_or(&self.root)
    }

    /// The value of a cube; `None` for the root cube, and numbers that no cube has.
    pub(crate) fn of_other(&self, cube: u32) -> Option<&T> {
        let leaf = self.leaves.get(cube as usize / LEAF).filter(|_| cube > 0)?;
        let leaf = leaf.get_or_init(|| Box::new(std::array::from_fn(|_| OnceLock::new())));
        Some(leaf.get(cube as usize % LEAF)?.get_or_init(Box::default))
    }

    /// All values that were ever asked for, and that of the root cube, with their numbers.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, &T)> {
        let leaves = (0..).step_by(LEAF).zip(&self.leaves);
        let leaves = leaves.filter_map(|(first, leaf)| Some((first, leaf.get()?)));
        let others = leaves.flat_map(|(first, leaf)| {
            let values = (first..).zip(leaf.iter());
            values.filter_map(|(cube, value)| Some((cube, &**value.get()?)))
        });
        std::iter::once((0, &self.root)).chain(others)
    }

    /// The cubes whose values were ever asked for, and the root cube.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.all().map(|(cube, _)| cube)
    }
}

impl<T> fmt::Debug for ByCube<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByCube").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use floe_sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn each_cube_has_a_value_of_its_own() {
        let table = ByCube::<AtomicU32>::new(true);
        for cube in [0, 1, 63, 64, 5000, MOST_CUBES] {
            table.of(cube).store(cube, Ordering::Relaxed);
        }
        let all: Vec<(u32, u32)> =
            table.all().map(|(cube, value)| (cube, value.load(Ordering::Relaxed))).collect();
        assert_eq!(all, [0, 1, 63, 64, 5000, MOST_CUBES].map(|cube| (cube, cube)));
        let alone = ByCube::<AtomicU32>::new(false);
        assert!(std::ptr::eq(alone.of(7), alone.of(0)));
    }
}
