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

/// Takes each of `what` out of `from` once; the others keep their order. Returns whether all were in there.
pub fn take_back<T: Ord>(from: &mut Vec<T>, mut what: Vec<T>) -> bool {
    if what.is_empty() {
        return true;
    }
    what.sort_unstable();
    // Of equal ones, how many were found, with the first of them.
    let mut found = vec![0; what.len()];
    let before = from.len();
    from.retain(|item| {
        let first = what.partition_point(|wanted| wanted < item);
        let Some(count) = found.get_mut(first) else { return true };
        if what.get(first + *count) != Some(item) {
            return true;
        }
        *count += 1;
        false
    });
    before - from.len() == what.len()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_taken_out_as_often_as_it_was_put_in() {
        let mut all = vec![3, 1, 3, 2, 3, 5];
        assert!(!take_back(&mut all, vec![3, 5, 3, 7]), "there was no 7");
        assert_eq!(all, [1, 2, 3]);
        assert!(!take_back(&mut all, vec![2, 2]), "there was one 2");
        assert!(take_back(&mut all, vec![3, 1]));
        assert!(take_back(&mut all, Vec::new()));
        assert_eq!(all, []);
    }
}
