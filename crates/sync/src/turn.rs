//! Turns: among threads that can take work from one place, few do, and a thread about to wait gives up its turn.
//!
//! A kernel that wakes the thread that has slept longest makes threads of a server take turns, each on a core whose caches have
//! forgotten the last request. So a thread goes on by itself as long as it need not wait. Code far below, which waits for a
//! disk or for another thread, need not know about it: it calls [`before_waiting`].

use std::cell::{Cell, RefCell};

use crate::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Requests behind each other that were there already when the one before was answered: then another thread helps.
const MOST_BEHIND: u32 = 4;
/// A thread that kept its turn looks at every so manieth request whether the next one is there: each look is a system call.
const LOOK_EVERY: u32 = 4;
/// Looks behind each other that found no request while another thread waited as well: then a thread stops helping.
const MOST_IDLE: u32 = 8;

/// The turns of threads that take requests from one place.
#[derive(Debug, Default)]
pub struct Turns {
    state: Mutex<State>,
    called: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Threads that wait for a request, or are about to.
    waiting: usize,
    /// Threads that have no turn.
    resting: usize,
    /// Those of them that may go on.
    called: usize,
    /// Requests that were taken, and how many had been at the last look of [`Turns::watch`].
    taken: u64,
    watched: u64,
    over: bool,
}

/// A thread's part in [`Turns`].
#[derive(Debug)]
pub struct Turn {
    turns: Arc<Turns>,
    behind: u32,
    idle: u32,
    /// Requests since the last look.
    unseen: u32,
}

std::thread_local! {
    /// The turns in which this thread has one, while it works on a request.
    static HELD: RefCell<Option<Arc<Turns>>> = const { RefCell::new(None) };
    /// This thread keeps it.
    static KEPT: Cell<bool> = const { Cell::new(false) };
}

/// Tells that this thread may wait for long: if it has a turn, and need not keep it, another thread gets it.
pub fn before_waiting() {
    if !KEPT.with(Cell::get) {
        give_turn();
    }
}

/// Tells that this thread waits for another one: if it has a turn, another thread gets it.
pub fn give_turn() {
    if let Some(turns) = HELD.with(RefCell::take) {
        let mut state = turns.state();
        let is_called = turns.call(&mut state);
        turns.ring(state, is_called);
    }
}

/// Until this is dropped, the thread keeps its turn although it may wait ([`keep_turn`]).
#[derive(Debug)]
pub struct KeptTurn {
    was_kept: bool,
}

/// Lets this thread keep its turn although code below tells that it may wait: for work that is over sooner than another thread
/// would be awake. Where it does wait for another thread ([`give_turn`]), it gives the turn up.
pub fn keep_turn() -> KeptTurn {
    KeptTurn { was_kept: KEPT.with(|kept| kept.replace(true)) }
}

impl Drop for KeptTurn {
    fn drop(&mut self) {
        KEPT.with(|kept| kept.set(self.was_kept));
    }
}

impl Turns {
    fn state(&self) -> MutexGuard<'_, State> {
        // Counts alone, each changed in one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets one thread that rests go on, unless one waits for a request anyway; returns whether it is to be woken.
    fn call(&self, state: &mut State) -> bool {
        let calls = state.waiting == 0 && state.called < state.resting;
        state.called += usize::from(calls);
        calls
    }

    /// Gives the lock back, and then wakes a thread that was called: one that wakes before would sleep again for the lock.
    fn ring(&self, state: MutexGuard<'_, State>, is_called: bool) {
        drop(state);
        if is_called {
            self.called.notify_one();
        }
    }

    /// Waits until this thread is called.
    fn rest<'t>(&'t self, mut state: MutexGuard<'t, State>) -> MutexGuard<'t, State> {
        state.resting += 1;
        while state.called == 0 && !state.over {
            state = self.called.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.resting -= 1;
        state.called = state.called.saturating_sub(1);
        state
    }

    /// Lets a thread go on if no request was taken since the last call although nobody waits for one: all who could are busy for
    /// longer than they knew.
    pub fn watch(&self) {
        let mut state = self.state();
        let is_called = state.taken == state.watched && self.call(&mut state);
        state.watched = state.taken;
        self.ring(state, is_called);
    }

    /// No more requests come: nobody rests any more.
    pub fn end(&self) {
        self.state().over = true;
        self.called.notify_all();
    }
}

impl Turn {
    /// The part of a thread, which has no turn yet.
    pub fn new(turns: &Arc<Turns>) -> Self {
        Self { turns: Arc::clone(turns), behind: 0, idle: 0, unseen: 0 }
    }

    /// Waits until this thread may take a request. `is_pending` looks whether there is one already; a thread that need not know
    /// does not call it.
    pub fn take(&mut self, is_pending: impl FnOnce() -> bool) {
        let kept = HELD.with(RefCell::take).is_some();
        self.unseen += 1;
        let looks = !kept || self.behind > 0 || self.unseen >= LOOK_EVERY;
        let pending = looks.then(is_pending);
        let turns = Arc::clone(&self.turns);
        let mut state = turns.state();
        let mut is_called = false;
        if looks {
            self.unseen = 0;
        }
        if pending == Some(true) {
            self.idle = 0;
            self.behind += 1;
            if self.behind >= MOST_BEHIND {
                self.behind = 0;
                is_called = turns.call(&mut state);
            }
        } else if pending == Some(false) {
            self.behind = 0;
            self.idle = if state.waiting > 0 { self.idle + 1 } else { 0 };
            // A thread that gave up its turn has none as long as another one waits.
            if state.waiting > 0 && (!kept || self.idle >= MOST_IDLE) {
                self.idle = 0;
                state = turns.rest(state);
            }
        }
        state.waiting += 1;
        turns.ring(state, is_called);
    }

    /// A request was taken, on which this thread works now.
    pub fn taken(&self) {
        let mut state = self.turns.state();
        state.waiting -= 1;
        state.taken += 1;
        drop(state);
        HELD.with(|held| *held.borrow_mut() = Some(Arc::clone(&self.turns)));
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::thread;

    /// A place of requests that several threads take: a number each, which says what the thread does.
    #[derive(Default)]
    struct Place {
        requests: Mutex<std::collections::VecDeque<u32>>,
        came: Condvar,
    }

    /// The thread waits for another one's request.
    const WAITS: u32 = 1;
    const ENDS: u32 = 2;

    impl Place {
        fn put(&self, request: u32) {
            self.requests.lock().unwrap().push_back(request);
            self.came.notify_one();
        }

        fn get(&self) -> u32 {
            let mut requests = self.requests.lock().unwrap();
            loop {
                if let Some(request) = requests.pop_front() {
                    return request;
                }
                requests = self.came.wait(requests).unwrap();
            }
        }
    }

    /// Serves until the end; says which thread did what.
    fn serve(
        turns: &Arc<Turns>,
        place: &Place,
        tells: bool,
        done: &mpsc::Sender<(thread::ThreadId, u32)>,
        go_on: &Mutex<mpsc::Receiver<()>>,
    ) {
        let mut turn = Turn::new(turns);
        loop {
            turn.take(|| !place.requests.lock().unwrap().is_empty());
            let request = place.get();
            turn.taken();
            if request == WAITS {
                if tells {
                    let kept = keep_turn();
                    before_waiting();
                    assert!(HELD.with(|held| held.borrow().is_some()), "it is kept");
                    drop(kept);
                    before_waiting();
                }
                go_on.lock().unwrap().recv().unwrap();
            }
            done.send((thread::current().id(), request)).unwrap();
            if request == ENDS {
                turns.end();
                place.put(ENDS);
                return;
            }
        }
    }

    /// Lets all threads end, also when the test fails.
    struct Ends<'t>(&'t Turns, &'t Place);

    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.end();
            self.1.put(ENDS);
        }
    }

    /// Waits until so many threads wait for a request, and so many rest.
    fn settled(turns: &Turns, waiting: usize, resting: usize) {
        for left in (0..20_000).rev() {
            assert!(left > 0, "{turns:?}");
            let state = turns.state();
            if (state.waiting, state.resting, state.called) == (waiting, resting, 0) {
                return;
            }
            drop(state);
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn one_thread_goes_on_by_itself_and_another_serves_while_it_waits() {
        for tells in [true, false] {
            let (turns, place) = (Arc::new(Turns::default()), Place::default());
            let (done, seen) = mpsc::channel();
            let (go, go_on) = mpsc::channel();
            let go_on = Mutex::new(go_on);
            thread::scope(|scope| {
                for _ in 0..3 {
                    let done = done.clone();
                    scope.spawn(|| {
                        let done = done;
                        serve(&turns, &place, tells, &done, &go_on);
                    });
                }
                let (_ends, go) = (Ends(&turns, &place), go);
                let answer = || seen.recv_timeout(Duration::from_secs(20)).unwrap();
                settled(&turns, 1, 2);
                place.put(0);
                let (first, _) = answer();
                for _ in 0..50 {
                    settled(&turns, 1, 2);
                    place.put(0);
                    assert_eq!(answer(), (first, 0), "all by one thread");
                }
                settled(&turns, 1, 2);
                place.put(WAITS);
                if tells {
                    settled(&turns, 1, 1);
                } else {
                    settled(&turns, 0, 2);
                }
                place.put(0);
                if !tells {
                    assert!(seen.recv_timeout(Duration::from_millis(50)).is_err());
                    turns.watch();
                    turns.watch();
                }
                let (second, request) = answer();
                assert!(request == 0 && second != first, "another one serves");
                go.send(()).unwrap();
                assert_eq!(answer(), (first, WAITS));
            });
        }
    }
}
