//! A value that many threads read at the same time without writing any memory that they share.
//!
//! Each thread belongs to a slot, which has a lock, a reference to the value and a part of its own. A reader takes the lock
//! of its slot alone, on a cache line of its own, so readers of different slots pass no line to each other. Whoever wants to
//! change the value takes the locks of all slots.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::{Arc, Mutex, MutexGuard, PoisonError};

/// Slots at least and at most: some more than processors, so that threads seldom share one.
const FEWEST: usize = 8;
const MOST: usize = 64;

/// A value `W` that all threads read, and a part `P` for each slot.
pub struct Slots<W, P> {
    slots: Box<[Line<W, P>]>,
}

/// Two cache lines: processors fetch them in pairs.
#[repr(align(128))]
struct Line<W, P>(Mutex<Slot<W, P>>);

struct Slot<W, P> {
    /// `None` only while a thread is alone.
    world: Option<Arc<W>>,
    own: P,
}

/// A thread that reads the value and owns the part of its slot until this is dropped.
pub struct Entered<'s, W, P>(MutexGuard<'s, Slot<W, P>>);

/// A thread that owns the value and the parts of all slots until this is dropped.
pub struct Alone<'s, W, P>(Vec<MutexGuard<'s, Slot<W, P>>>);

impl<W, P: Default> Slots<W, P> {
    /// The value, and a part for each slot.
    pub fn new(world: W) -> Self {
        let processors = crate::available_parallelism().map_or(1, usize::from);
        Self::with(world, (2 * processors).clamp(FEWEST, MOST))
    }

    /// The same with so many slots, at least one.
    pub fn with(world: W, slots: usize) -> Self {
        let world = Arc::new(world);
        let slot = || Slot { world: Some(Arc::clone(&world)), own: P::default() };
        Self { slots: (0..slots.max(1)).map(|_| Line(Mutex::new(slot()))).collect() }
    }
}

impl<W, P> Slots<W, P> {
    /// Waits until nobody is alone, nor another thread in this thread's slot. A thread enters once: it waits for itself
    /// otherwise.
    pub fn enter(&self) -> Entered<'_, W, P> {
        let at = thread_number() % self.slots.len();
        Entered(lock(&self.slots[at]))
    }

    /// Waits until no thread is inside.
    pub fn alone(&self) -> Alone<'_, W, P> {
        let mut slots: Vec<_> = self.slots.iter().map(lock).collect();
        // One reference is left, by which the value can be changed.
        slots.iter_mut().skip(1).for_each(|slot| slot.world = None);
        Alone(slots)
    }

    /// The value.
    pub fn into_world(self) -> Option<W> {
        let slots = self.slots.into_iter();
        let slots = slots.map(|slot| slot.0.into_inner().unwrap_or_else(PoisonError::into_inner));
        let mut worlds: Vec<Arc<W>> = slots.filter_map(|slot| slot.world).collect();
        let last = worlds.pop();
        drop(worlds);
        last.and_then(Arc::into_inner)
    }
}

fn lock<W, P>(slot: &Line<W, P>) -> MutexGuard<'_, Slot<W, P>> {
    // In explorations nobody has a turn.
    #[cfg(not(feature = "shuttle"))]
    {
        if let Ok(slot) = slot.0.try_lock() {
            return slot;
        }
        crate::turn::give_turn();
    }
    // Users say themselves what a panic leaves behind.
    slot.0.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<W, P> Entered<'_, W, P> {
    /// The value, and the part of this slot.
    #[expect(clippy::missing_panics_doc, reason = "it cannot: see below")]
    pub fn parts(&mut self) -> (&W, &mut P) {
        let slot = &mut *self.0;
        // Only a thread that is alone takes it away, and gives it back.
        (slot.world.as_deref().expect("nobody is alone"), &mut slot.own)
    }
}

impl<W, P> Deref for Entered<'_, W, P> {
    type Target = W;

    fn deref(&self) -> &W {
        self.0.world.as_deref().expect("nobody is alone")
    }
}

impl<W, P> Alone<'_, W, P> {
    /// The value, and the parts of all slots.
    #[expect(
        clippy::missing_panics_doc,
        reason = "it cannot: the first slot has the only reference"
    )]
    pub fn parts(&mut self) -> (&mut W, Vec<&mut P>) {
        let mut world = None;
        let mut own = Vec::with_capacity(self.0.len());
        for slot in &mut self.0 {
            let slot = &mut **slot;
            world = world.or(slot.world.as_mut().and_then(Arc::get_mut));
            own.push(&mut slot.own);
        }
        (world.expect("the only reference"), own)
    }
}

impl<W, P> Deref for Alone<'_, W, P> {
    type Target = W;

    fn deref(&self) -> &W {
        self.0[0].world.as_deref().expect("the only reference")
    }
}

impl<W, P> DerefMut for Alone<'_, W, P> {
    fn deref_mut(&mut self) -> &mut W {
        let world = self.0[0].world.as_mut().and_then(Arc::get_mut);
        world.expect("the only reference")
    }
}

impl<W, P> Drop for Alone<'_, W, P> {
    fn drop(&mut self) {
        let Some((first, others)) = self.0.split_first_mut() else { return };
        for slot in others {
            slot.world.clone_from(&first.world);
        }
    }
}

impl<W: fmt::Debug, P> fmt::Debug for Slots<W, P> {
    fn fmt(&self, into: &mut fmt::Formatter<'_>) -> fmt::Result {
        into.debug_struct("Slots").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}

impl<W: Default, P: Default> Default for Slots<W, P> {
    fn default() -> Self {
        Self::new(W::default())
    }
}

/// The number of this thread: neighbours that begin one after another have different ones.
pub fn thread_number() -> usize {
    THREAD.with(|number| *number)
}

/// The number of the next thread that asks.
static NEXT: crate::process::AtomicUsize = crate::process::AtomicUsize::new(0);

fn next_thread() -> usize {
    NEXT.fetch_add(1, crate::process::Ordering::Relaxed)
}

#[cfg(not(feature = "shuttle"))]
std::thread_local! {
    static THREAD: usize = next_thread();
}

#[cfg(feature = "shuttle")]
shuttle::thread_local! {
    static THREAD: usize = next_thread();
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::thread;

    #[test]
    fn parts_stay_with_their_slots_and_the_value_comes_back() {
        let slots: Slots<u64, u64> = Slots::with(5, 3);
        thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        *slots.enter().parts().1 += 1;
                        *slots.alone() += 1;
                    }
                });
            }
        });
        let mut alone = slots.alone();
        let (world, own) = alone.parts();
        assert_eq!((*world, own.into_iter().map(|own| *own).sum::<u64>()), (6005, 6000));
        drop(alone);
        assert_eq!(slots.into_world(), Some(6005));
    }

    #[test]
    fn a_panic_alone_leaves_the_value_to_others() {
        let slots: Slots<u64, ()> = Slots::with(5, 2);
        let panicked = thread::scope(|scope| {
            let alone = scope.spawn(|| {
                *slots.alone() = 6;
                let _alone = slots.alone();
                panic!("on purpose");
            });
            alone.join().is_err()
        });
        assert!(panicked);
        assert_eq!(*slots.enter(), 6);
        assert_eq!(*slots.alone(), 6);
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod interleavings {
    use super::*;
    use crate::{shuttle, thread};

    /// Readers never see a value that is half changed, and no part is lost.
    #[test]
    fn readers_see_whole_values() {
        shuttle::check_random(
            || {
                let slots: Arc<Slots<(u64, u64), u64>> = Arc::new(Slots::with((0, 0), 2));
                let threads: Vec<_> = (0..3)
                    .map(|number| {
                        let slots = Arc::clone(&slots);
                        thread::spawn(move || {
                            if number == 0 {
                                let mut alone = slots.alone();
                                let (first, second) = &mut *alone;
                                *first += 1;
                                thread::yield_now();
                                *second += 1;
                            }
                            let mut inside = slots.enter();
                            let (world, own) = inside.parts();
                            assert_eq!(world.0, world.1);
                            *own += 1;
                        })
                    })
                    .collect();
                threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
                let mut alone = slots.alone();
                let (world, own) = alone.parts();
                assert_eq!((*world, own.into_iter().map(|own| *own).sum::<u64>()), ((1, 1), 3));
            },
            500,
        );
    }
}
