//! Runs of checks and repairs, as several commands make them, with their reports and files.

pub(crate) mod apply_plan;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod escalation;
pub(crate) mod foreign;
pub(crate) mod html_page;
pub(crate) mod repair;
pub(crate) mod shards;
pub(crate) mod undo_target;
