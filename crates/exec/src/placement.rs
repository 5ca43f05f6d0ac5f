//! Starts each worker on a core of its own.
//!
//! Linux may queue a new thread behind the one that started it even if another core is idle, and
//! corrects that only at one of the next scheduler ticks (4 ms each at 250 Hz). That is long for a
//! check of a million inodes, which takes 50 ms. So the starting thread yields to the new worker,
//! and a worker that finds itself on the core of another worker moves away. Afterwards the
//! scheduler is free to move it, as usual.
//!
//! Uses the C library instead of rustix, because rustix looks up the vDSO at its true address,
//! which does not exist under valgrind.

#[cfg(not(feature = "shuttle"))]
pub(crate) use of_linux::Placement;

#[cfg(not(feature = "shuttle"))]
mod of_linux {
    use nix::sched::{sched_getaffinity, sched_getcpu, sched_setaffinity};
    use nix::unistd::Pid;

    use floe_sync::{Mutex, PoisonError};

    /// The cores on which workers started.
    #[derive(Debug, Default)]
    pub(crate) struct Placement {
        taken: Mutex<Vec<usize>>,
    }

    impl Placement {
        /// Claims a core for the calling thread: its current one, or, if that is taken, another one
        /// that it may use, if there is one. Its affinity is the same afterwards. If the system
        /// refuses, the thread stays where it is.
        pub(crate) fn take_core(&self) {
            // Held while moving, so that no two workers take the same core. Taken once per worker
            // and pass.
            let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
            let Ok(mut core) = sched_getcpu() else { return };
            if taken.contains(&core) {
                core = move_from(&taken).unwrap_or(core);
            }
            taken.push(core);
        }
    }

    /// The calling thread, in system calls.
    const SELF: Pid = Pid::from_raw(0);

    /// Moves the calling thread to a core that is not in `taken`, and returns that core. `None` if
    /// there is none.
    fn move_from(taken: &[usize]) -> Option<usize> {
        let allowed = sched_getaffinity(SELF).ok()?;
        let mut free = allowed;
        for &core in taken {
            free.unset(core).ok()?;
        }
        // The system refuses an empty set: there are more workers than cores.
        sched_setaffinity(SELF, &free).ok()?;
        let core = sched_getcpu();
        // Restoring the affinity fails only if another process has changed it since, and then the
        // system has already moved the thread.
        let _ = sched_setaffinity(SELF, &allowed);
        core.ok()
    }

    #[cfg(test)]
    mod tests {
        use nix::sched::CpuSet;

        use super::*;
        use floe_sync::{atomic, thread};

        /// The cores of a set.
        fn all_of(cores: &CpuSet) -> Vec<usize> {
            (0..CpuSet::count()).filter(|&core| cores.is_set(core).unwrap()).collect()
        }

        /// One of the cores of a set.
        fn one_of(cores: &CpuSet) -> CpuSet {
            let mut one = CpuSet::new();
            one.set(all_of(cores)[0]).expect("a core of a set");
            one
        }

        /// Workers that all start on one core: the cores they claimed, and their affinity
        /// afterwards.
        fn taken_by(workers: usize, allowed: &CpuSet) -> (Vec<usize>, Vec<CpuSet>) {
            let placement = Placement::default();
            let one = one_of(allowed);
            let begun = atomic::AtomicUsize::new(0);
            let after = thread::scope(|scope| {
                let worker = || {
                    sched_setaffinity(SELF, &one).expect("to one core");
                    sched_setaffinity(SELF, allowed).expect("back to all");
                    placement.take_core();
                    begun.fetch_add(1, atomic::Ordering::Relaxed);
                    // Spin until all have a core, so that none becomes free because a worker
                    // sleeps.
                    while begun.load(atomic::Ordering::Relaxed) < workers {
                        thread::yield_now();
                    }
                    sched_getaffinity(SELF).expect("the cores of a thread")
                };
                let all: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
                all.into_iter().map(|worker| worker.join().unwrap()).collect()
            });
            (placement.taken.into_inner().unwrap(), after)
        }

        #[test]
        fn each_has_a_core_while_there_are_any() {
            let allowed = sched_getaffinity(SELF).expect("the cores of a thread");
            let cores = all_of(&allowed).len();
            for workers in [1, 2, cores, cores + 3] {
                let (mut taken, after) = taken_by(workers, &allowed);
                assert_eq!(taken.len(), workers);
                assert!(after.iter().all(|after| *after == allowed), "as before: {after:?}");
                taken.sort_unstable();
                taken.dedup();
                assert_eq!(taken.len(), workers.min(cores), "{workers} workers, {cores} cores");
            }
        }

        #[test]
        fn who_may_use_one_core_stays_there() {
            thread::scope(|scope| {
                let bound = scope.spawn(|| {
                    let one = one_of(&sched_getaffinity(SELF).unwrap());
                    sched_setaffinity(SELF, &one).unwrap();
                    let (taken, after) = taken_by(3, &one);
                    assert!(
                        taken.iter().all(|&core| one.is_set(core).unwrap()),
                        "{taken:?} of {one:?}"
                    );
                    assert!(after.iter().all(|after| *after == one));
                });
                bound.join().unwrap();
            });
        }
    }
}

/// Shuttle's threads have no cores.
#[cfg(feature = "shuttle")]
#[derive(Debug, Default)]
pub(crate) struct Placement(());

#[cfg(feature = "shuttle")]
impl Placement {
    pub(crate) fn take_core(&self) {}
}
