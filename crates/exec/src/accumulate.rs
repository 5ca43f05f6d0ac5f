//! Private shares of a pass, and how they become one.

/// One worker's private share of a pass. Law (property-tested for each implementation): neither the
/// order of merges nor how the work was divided can be seen in the result.
pub trait Accumulator: Default + Send {
    /// Adds another worker's share to this one.
    fn merge(&mut self, other: Self);
}

/// Moves `other` behind `mine`, with no room to spare: what is merged is read, and grows no more.
pub fn append<T>(mine: &mut Vec<T>, mut other: Vec<T>) {
    if mine.is_empty() {
        *mine = other;
    } else {
        mine.reserve_exact(other.len());
        mine.append(&mut other);
    }
}

impl Accumulator for () {
    fn merge(&mut self, (): Self) {}
}

impl<A: Accumulator, B: Accumulator> Accumulator for (A, B) {
    fn merge(&mut self, other: Self) {
        self.0.merge(other.0);
        self.1.merge(other.1);
    }
}
