//! What has to be undone when a check ends, however it ends.

use floe_sync::atomic::{AtomicBool, Ordering};
use floe_sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::signals;

type Action = Box<dyn FnOnce() -> anyhow::Result<()> + Send>;

/// Removes a snapshot: when told to, when the value goes, or when a signal ends the program.
pub(super) struct Teardown {
    action: Arc<Mutex<Option<Action>>>,
}

impl Teardown {
    /// Nothing to undo: what there is goes with the process.
    pub(super) fn nothing() -> Self {
        Self { action: Arc::new(Mutex::new(None)) }
    }

    /// Makes something that has to be undone. A signal in the meantime waits for the end of `make`;
    /// then, as at any time from here on, it has undone what was made, and ends the program.
    pub(super) fn after<T>(
        make: impl FnOnce() -> anyhow::Result<(T, Action)>,
    ) -> anyhow::Result<(T, Self)> {
        let teardown = Self::nothing();
        let asked = Arc::new(AtomicBool::new(false));
        let mut held = teardown.lock();
        let (action, noted) = (Arc::clone(&teardown.action), Arc::clone(&asked));
        signals::on_signal(move || {
            noted.store(true, Ordering::SeqCst);
            // Not given back before the end: nobody gets past `run` while this is being undone.
            let mut held = action.lock().unwrap_or_else(PoisonError::into_inner);
            end(held.take());
        })?;
        let (made, action) = make()?;
        if asked.load(Ordering::SeqCst) {
            end(Some(action));
        }
        *held = Some(action);
        drop(held);
        Ok((made, teardown))
    }

    /// Undoes it, once.
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let mut held = self.lock();
        held.take().map_or(Ok(()), |action| action())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Action>> {
        self.action.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Undoes what there is to undo, and ends the program.
fn end(action: Option<Action>) -> ! {
    match action.map(|action| action()) {
        Some(Err(error)) => eprintln!("floe: interrupted; the check is not complete. {error:#}"),
        Some(Ok(())) => {
            eprintln!("floe: interrupted; the check is not complete, and its snapshot was dropped");
        }
        None => eprintln!("floe: interrupted; the check is not complete"),
    }
    signals::cancelled()
}

impl Drop for Teardown {
    fn drop(&mut self) {
        if let Err(error) = self.run() {
            eprintln!("floe: {error:#}");
        }
    }
}
