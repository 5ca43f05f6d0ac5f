//! Communication with the person or program that runs Floe: dialogue, progress, messages, tables,
//! and signals.

pub(crate) mod ask;
pub(crate) mod document;
pub(crate) mod failure;
pub(crate) mod listing;
pub(crate) mod panics;
pub(crate) mod progress;
pub(crate) mod progress_policy;
pub(crate) mod shell;
pub(crate) mod signals;
pub(crate) mod usage;
