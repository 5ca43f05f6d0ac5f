//! Accumulators: the private evidence of each worker, and how it is merged.

/// The private evidence of one worker in a pass. Law (property-tested for each implementation):
/// neither the order of merges nor the division of the work affects the result.
pub trait Accumulator: Default + Send {
    /// Merges another worker's accumulator into this one.
    fn merge(&mut self, other: Self);
}

/// Appends `other` to `mine` and shrinks the capacity to fit, because merged lists are only read.
pub fn append<T>(mine: &mut Vec<T>, mut other: Vec<T>) {
    if mine.is_empty() {
        *mine = other;
    } else {
        mine.reserve_exact(other.len());
        mine.append(&mut other);
    }
}

/// Removes one occurrence of each element of `what` from `from`; the others keep their order.
/// Returns whether all were present.
pub fn take_back<T: Ord>(from: &mut Vec<T>, mut what: Vec<T>) -> bool {
    if what.is_empty() {
        return true;
    }
    what.sort_unstable();
    // For each run of equal elements of `what`: the number found so far, stored at its first index.
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
        assert!(!take_back(&mut all, vec![3, 5, 3, 7]), "7 was not in the list");
        assert_eq!(all, [1, 2, 3]);
        assert!(!take_back(&mut all, vec![2, 2]), "2 was in the list only once");
        assert!(take_back(&mut all, vec![3, 1]));
        assert!(take_back(&mut all, Vec::new()));
        assert_eq!(all, []);
    }
}
