//! What has to be undone when a check ends, however it ends.

use floe_exec::sync::{Arc, Mutex, PoisonError};

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

    /// Makes something that has to be undone. A signal in the meantime waits for the end of `make`,
    /// has undone what it made, and ends the program. From here to the end of the process.
    pub(super) fn after<T>(
        make: impl FnOnce() -> anyhow::Result<(T, Action)>,
    ) -> anyhow::Result<(T, Self)> {
        let teardown = Self::nothing();
        let action = Arc::clone(&teardown.action);
        let mut held = teardown.lock();
        signals::end_after(move || {
            let action = action.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(Err(error)) = action.map(|action| action()) {
                eprintln!("floe: {error:#}");
            }
        })?;
        let (made, action) = make()?;
        *held = Some(action);
        drop(held);
        Ok((made, teardown))
    }

    /// Undoes it, once.
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let action = self.lock().take();
        action.map_or(Ok(()), |action| action())
    }

    fn lock(&self) -> floe_exec::sync::MutexGuard<'_, Option<Action>> {
        self.action.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Teardown {
    fn drop(&mut self) {
        if let Err(error) = self.run() {
            eprintln!("floe: {error:#}");
        }
    }
}
