//! Threads, locks and atomics: those of `std`, or of `shuttle` when a test explores interleavings (feature
//! `shuttle`). The only crate that names either, so that every lock of Floe can be explored.
//!
//! With the feature, locks and atomics panic outside a run of shuttle. Tests that need it are therefore kept in modules
//! called `interleavings`, which `cargo xtask ci` selects by that name.

#![warn(clippy::print_stderr, clippy::print_stdout)] // messages are the program's

mod slots;
mod turn;

pub use slots::{Alone, Entered, Slots, thread_number};
pub use turn::{KeptTurn, Turn, Turns, before_waiting, give_turn, keep_turn};
// Shuttle's locks return this error type, too.
pub use std::sync::PoisonError;
// Asks the operating system, not a scheduler, so it is the same with and without shuttle.
pub use std::thread::available_parallelism;
// Shuttle has no such cells. They are written once and then only read, so an exploration of the
// other locks does not need them.
pub use std::sync::{LazyLock, OnceLock};

#[cfg(not(feature = "shuttle"))]
pub use std::sync::{
    Arc, Barrier, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic,
};
#[cfg(not(feature = "shuttle"))]
pub use std::thread;

#[cfg(feature = "shuttle")]
pub use shuttle::sync::{
    Arc, Barrier, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic,
};
#[cfg(feature = "shuttle")]
pub use shuttle::thread;

/// Starts a thread of a scope, if the system lets it start: limits (`ulimit -u`, `pids.max`) make that an error, for which
/// `Scope::spawn` panics. In an exploration each thread starts.
///
/// # Errors
/// The system's.
pub fn spawn_scoped<'scope, 'env, F, T>(
    scope: &'scope thread::Scope<'scope, 'env>,
    work: F,
) -> std::io::Result<thread::ScopedJoinHandle<'scope, T>>
where
    F: FnOnce() -> T + Send + 'scope,
    T: Send + 'scope,
{
    #[cfg(not(feature = "shuttle"))]
    return thread::Builder::new().spawn_scoped(scope, work);
    #[cfg(feature = "shuttle")]
    return Ok(scope.spawn(work));
}

/// The explorer itself, for tests: `check_random`, `check_pct`, `check_dfs`.
#[cfg(feature = "shuttle")]
pub use shuttle;

/// Atomics of `std` with and without shuttle, for statics. A static outlives one run of an
/// exploration, so the next run would find a shuttle atomic changed by the run before.
pub mod process {
    pub use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
}

/// Shows that the exploration works: it finds these faults, and passes code without them.
#[cfg(all(test, feature = "shuttle"))]
mod interleavings {
    use super::atomic::{AtomicU64, Ordering};
    use super::{Arc, Condvar, Mutex, thread};

    /// Two threads add 1, each by a read and a write.
    fn lose_an_update() {
        let sum = Arc::new(AtomicU64::new(0));
        let other = Arc::clone(&sum);
        let add = |sum: &AtomicU64| sum.store(sum.load(Ordering::SeqCst) + 1, Ordering::SeqCst);
        let adding = thread::spawn(move || add(&other));
        add(&sum);
        adding.join().expect("the thread does not panic");
        assert_eq!(sum.load(Ordering::SeqCst), 2, "an update was lost");
    }

    #[test]
    #[should_panic(expected = "an update was lost")]
    fn a_lost_update_is_found() {
        shuttle::check_dfs(lose_an_update, None);
    }

    /// A waiter that tests the condition once, before it takes the lock, misses a wake-up sent in
    /// between.
    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_lost_wake_up_is_found() {
        shuttle::check_dfs(
            || {
                let shared = Arc::new((Mutex::new(false), Condvar::new()));
                let other = Arc::clone(&shared);
                let waking = thread::spawn(move || {
                    *other.0.lock().expect("not poisoned") = true;
                    other.1.notify_one();
                });
                let came = *shared.0.lock().expect("not poisoned");
                if !came {
                    let lock = shared.0.lock().expect("not poisoned");
                    drop(shared.1.wait(lock));
                }
                waking.join().expect("the thread does not panic");
            },
            None,
        );
    }

    #[test]
    fn an_update_in_one_step_is_never_lost() {
        shuttle::check_dfs(
            || {
                let sum = Arc::new(AtomicU64::new(0));
                let other = Arc::clone(&sum);
                let adding = thread::spawn(move || other.fetch_add(1, Ordering::SeqCst));
                sum.fetch_add(1, Ordering::SeqCst);
                adding.join().expect("the thread does not panic");
                assert_eq!(sum.load(Ordering::SeqCst), 2);
            },
            None,
        );
    }
}
