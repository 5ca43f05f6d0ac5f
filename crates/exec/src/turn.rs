//! A worker's turn at a unit of work, in which it can learn which one is its next.

use std::fmt;

/// One unit of work of a worker.
pub struct Turn<'t, 'u, U> {
    unit: &'u U,
    /// The next unit, once it was asked for.
    reserved: &'t mut Option<&'u U>,
    take: &'t mut dyn FnMut() -> Option<&'u U>,
}

impl<'u, U> Turn<'_, 'u, U> {
    /// What is to be done now.
    pub const fn unit(&self) -> &'u U {
        self.unit
    }

    /// What this worker will do next, so that it can prepare that; `None` if nothing is left. The unit is its own
    /// from now on, however long this one takes: ask where that pays, and late.
    pub fn next_unit(&mut self) -> Option<&'u U> {
        if self.reserved.is_none() {
            *self.reserved = (self.take)();
        }
        *self.reserved
    }
}

impl<U: fmt::Debug> fmt::Debug for Turn<'_, '_, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("unit", self.unit)
            .field("reserved", self.reserved)
            .finish_non_exhaustive()
    }
}

/// Does units as long as `take` has some.
pub(crate) fn take_turns<'u, U: 'u>(
    mut take: impl FnMut() -> Option<&'u U>,
    mut each: impl FnMut(&mut Turn<'_, 'u, U>),
) {
    let mut reserved = None;
    while let Some(unit) = reserved.take().or_else(&mut take) {
        each(&mut Turn { unit, reserved: &mut reserved, take: &mut take });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_unit_is_done_next_whether_it_was_asked_for_or_not() {
        for asked in [|_: u32| false, |_| true, |unit| unit % 3 == 0] {
            let units: Vec<u32> = (0..10).collect();
            let (mut left, mut done) = (units.iter(), Vec::new());
            take_turns(
                || left.next(),
                |turn| {
                    let unit = *turn.unit();
                    done.push(unit);
                    if asked(unit) {
                        let next = (unit < 9).then_some(unit + 1);
                        assert_eq!(turn.next_unit().copied(), next);
                        assert_eq!(turn.next_unit().copied(), next, "asked once more");
                    }
                },
            );
            assert_eq!(done, units);
        }
    }
}
