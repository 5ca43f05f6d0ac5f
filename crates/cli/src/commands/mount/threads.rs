//! Limits of threads (`ulimit -u`, `TasksMax=` of systemd, `pids.max`): a mount whose server could not have its threads is refused.

use std::io;

use anyhow::{Context, Result};
use floe_sync::{Arc, Mutex, thread};

/// Threads and processes besides those that answer: signals, commits, watching, a program that is run.
const OTHERS: usize = 8;

/// Begins as many threads as a server with so many that answer may need, and ends them.
pub(super) fn judge(threads: usize) -> Result<()> {
    let needed = threads + OTHERS;
    all_at_once(needed).with_context(|| {
        format!(
            "too few threads may be started (`ulimit -u`, pids.max): the server may need {needed}"
        )
    })
}

fn all_at_once(count: usize) -> io::Result<()> {
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock();
    let wait = |_| {
        let gate = Arc::clone(&gate);
        thread::Builder::new().spawn(move || drop(gate.lock()))
    };
    let begun: Vec<_> = (0..count).map(wait).collect();
    drop(closed);
    let mut result = Ok(());
    for thread in begun {
        match thread {
            // They do nothing that could panic.
            Ok(thread) => drop(thread.join()),
            Err(error) => result = Err(error),
        }
    }
    result
}
