//! Cleanup that must happen when a check ends in any way.

use floe_sync::atomic::{AtomicBool, Ordering};
use floe_sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::message::message;
use crate::terminal::signals;

type Action = Box<dyn FnOnce() -> anyhow::Result<()> + Send>;

/// Removes a snapshot: on request, on drop, or when a signal ends the program.
pub(super) struct Teardown {
    action: Arc<Mutex<Option<Action>>>,
}

impl Teardown {
    /// No cleanup, because everything disappears with the process.
    pub(super) fn nothing() -> Self {
        Self { action: Arc::new(Mutex::new(None)) }
    }

    /// Creates something that needs cleanup. A signal during `make` waits for its end; from then
    /// on, as at any later time, it runs the cleanup and ends the program.
    pub(super) fn after<T>(
        make: impl FnOnce() -> anyhow::Result<(T, Action)>,
    ) -> anyhow::Result<(T, Self)> {
        let teardown = Self::nothing();
        let asked = Arc::new(AtomicBool::new(false));
        let mut held = teardown.lock();
        let (action, noted) = (Arc::clone(&teardown.action), Arc::clone(&asked));
        signals::on_signal(move || {
            noted.store(true, Ordering::SeqCst);
            // Keep the lock until the end, so that no one gets past `run` during the cleanup.
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

    /// Runs the cleanup once.
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let mut held = self.lock();
        held.take().map_or(Ok(()), |action| action())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Action>> {
        self.action.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the cleanup, and ends the program.
fn end(action: Option<Action>) -> ! {
    match action.map(|action| action()) {
        Some(Err(error)) => message!("floe: interrupted; the check is not complete. {error:#}"),
        Some(Ok(())) => {
            message!("floe: interrupted; the check is not complete, and its snapshot was dropped");
        }
        None => message!("floe: interrupted; the check is not complete"),
    }
    signals::cancelled()
}

impl Drop for Teardown {
    fn drop(&mut self) {
        if let Err(error) = self.run() {
            message!("floe: {error:#}");
        }
    }
}
