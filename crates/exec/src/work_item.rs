//! A unit of work in the hands of a worker, which can also reserve its next unit.

use std::fmt;

/// One unit of work of a worker.
pub struct WorkItem<'t, 'u, U> {
    unit: &'u U,
    /// The next unit, once reserved.
    reserved: &'t mut Option<&'u U>,
    take: &'t mut dyn FnMut() -> Option<&'u U>,
}

impl<'u, U> WorkItem<'_, 'u, U> {
    /// The unit to process now.
    pub const fn unit(&self) -> &'u U {
        self.unit
    }

    /// Reserves this worker's next unit, so that the worker can prepare for it (by prefetching, for
    /// example); `None` if no unit is left. The unit belongs to this worker from now on, however
    /// long the current one takes, so call this late and only where it pays.
    pub fn next_unit(&mut self) -> Option<&'u U> {
        if self.reserved.is_none() {
            *self.reserved = (self.take)();
        }
        *self.reserved
    }
}

impl<U: fmt::Debug> fmt::Debug for WorkItem<'_, '_, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkItem")
            .field("unit", self.unit)
            .field("reserved", self.reserved)
            .finish_non_exhaustive()
    }
}

/// Processes units until `take` returns none.
pub(crate) fn process_items<'u, U: 'u>(
    mut take: impl FnMut() -> Option<&'u U>,
    mut each: impl FnMut(&mut WorkItem<'_, 'u, U>),
) {
    let mut reserved = None;
    while let Some(unit) = reserved.take().or_else(&mut take) {
        each(&mut WorkItem { unit, reserved: &mut reserved, take: &mut take });
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
            process_items(
                || left.next(),
                |item| {
                    let unit = *item.unit();
                    done.push(unit);
                    if asked(unit) {
                        let next = (unit < 9).then_some(unit + 1);
                        assert_eq!(item.next_unit().copied(), next);
                        assert_eq!(
                            item.next_unit().copied(),
                            next,
                            "a second call returned another unit"
                        );
                    }
                },
            );
            assert_eq!(done, units);
        }
    }
}
