//! Requests to stop from outside: recorded at any time, and obeyed only when nothing is half done.

use floe_sync::atomic::{AtomicBool, Ordering};
use floe_sync::{Arc, Mutex, PoisonError};

/// Whether the user wants the program to stop, and whether it may.
///
/// The signal handler's thread calls [`Interrupt::ask`] and ends the program at once if the answer
/// says so. Code that must not be cut off takes a [`Hold`]; while one exists, the request is only
/// recorded. Both decide under one lock, so a hold is never granted while the program is ending.
#[derive(Debug, Default)]
pub struct Interrupt {
    state: Mutex<State>,
    /// Where there is no thread for signals.
    flags: Option<Flags>,
}

/// For handlers that can do nothing but read and set a flag: where no thread can be started for signals.
#[derive(Clone, Debug)]
pub struct Flags {
    /// A signal ends the program at once.
    pub may_end: Arc<AtomicBool>,
    /// A signal has come; to be set behind the test of the other.
    pub asked: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    asked: bool,
    ending: bool,
    holds: usize,
}

/// The reaction to a request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing is half done: end the program. No hold is granted any more.
    EndNow,
    /// Something must be finished first. The program then ends by itself.
    Later,
}

/// While this exists, the program must not be ended.
#[derive(Debug)]
#[must_use]
pub struct Hold<'a> {
    of: &'a Interrupt,
}

/// The user asked to stop before the hold was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl Interrupt {
    /// Without a request to stop.
    pub fn new() -> Self {
        Self::default()
    }

    /// Without a thread for signals: handlers obey and set these flags.
    pub fn by_flags() -> (Self, Flags) {
        let (may_end, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let flags = Flags { may_end, asked };
        (Self { state: Mutex::default(), flags: Some(flags.clone()) }, flags)
    }

    /// Records that the user wants to stop.
    pub fn ask(&self) -> Answer {
        self.change(|state| {
            state.asked = true;
            state.ending |= state.holds == 0;
            if state.ending { Answer::EndNow } else { Answer::Later }
        })
    }

    /// Whether the user wants to stop.
    pub fn asked(&self) -> bool {
        let by_flag = self.flags.as_ref().is_some_and(|flags| flags.asked.load(Ordering::SeqCst));
        self.change(|state| state.asked) || by_flag
    }

    /// Enters code that must not be cut off.
    ///
    /// # Errors
    /// If the user has already asked to stop, because nothing new should begin.
    pub fn hold(&self) -> Result<Hold<'_>, Interrupted> {
        self.change(|state| {
            if let Some(flags) = &self.flags {
                // Whoever comes in between is seen by the next line.
                flags.may_end.store(false, Ordering::SeqCst);
                state.asked |= flags.asked.load(Ordering::SeqCst);
            }
            if state.asked {
                self.allow_end(state);
                return Err(Interrupted);
            }
            state.holds += 1;
            Ok(Hold { of: self })
        })
    }

    /// Lets signals end the program where nothing is held.
    fn allow_end(&self, state: &State) {
        if let Some(flags) = self.flags.as_ref().filter(|_| state.holds == 0) {
            flags.may_end.store(true, Ordering::SeqCst);
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        // A panic elsewhere leaves these three values consistent.
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.of.change(|state| {
            state.holds -= 1;
            self.of.allow_end(state);
        });
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_obeyed_at_once_or_when_the_hold_ends() {
        let interrupt = Interrupt::new();
        assert!(!interrupt.asked());
        let outer = interrupt.hold().unwrap();
        let inner = interrupt.hold().unwrap();
        drop(inner);
        assert_eq!(interrupt.ask(), Answer::Later);
        assert!(interrupt.asked());
        assert_eq!(interrupt.hold().unwrap_err(), Interrupted);
        assert_eq!(interrupt.ask(), Answer::Later, "however often");
        drop(outer);
        assert_eq!(interrupt.ask(), Answer::EndNow);
        let interrupt = Interrupt::new();
        assert_eq!(interrupt.ask(), Answer::EndNow);
        assert!(interrupt.hold().is_err());
    }

    #[test]
    fn flags_say_when_a_signal_may_end_the_program() {
        let (interrupt, flags) = Interrupt::by_flags();
        let may_end = || flags.may_end.load(Ordering::SeqCst);
        assert!(may_end() && !interrupt.asked());
        let outer = interrupt.hold().unwrap();
        drop(interrupt.hold().unwrap());
        assert!(!may_end());
        flags.asked.store(true, Ordering::SeqCst);
        assert!(interrupt.asked());
        assert_eq!(interrupt.hold().unwrap_err(), Interrupted);
        assert!(!may_end(), "the outer work goes on");
        drop(outer);
        assert!(may_end());
        assert!(interrupt.hold().is_err() && may_end());
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod interleavings {
    use super::*;
    use floe_sync::{Arc, shuttle, thread};

    /// Either the program ends before the work begins, or the work is finished.
    #[test]
    fn what_was_begun_is_never_cut_off() {
        shuttle::check_dfs(
            || {
                let interrupt = Arc::new(Interrupt::new());
                let asker = Arc::clone(&interrupt);
                let asking = thread::spawn(move || asker.ask());
                let begun = interrupt.hold();
                let was_begun = begun.is_ok();
                thread::yield_now();
                let asked_meanwhile = interrupt.asked();
                drop(begun);
                let answer = asking.join().unwrap();
                if answer == Answer::Later {
                    assert!(was_begun);
                }
                if was_begun && asked_meanwhile {
                    assert_eq!(answer, Answer::Later);
                }
            },
            None,
        );
    }
}
