//! e2fsck's command line: options, `e2fsck.conf`, the rules for skipping clean file systems, and
//! the output for scripts and for boot.

pub(crate) mod bad_blocks;
mod battery;
mod brief;
pub(crate) mod conf;
pub(crate) mod discard;
pub(crate) mod due;
pub(crate) mod fragments;
pub(crate) mod front;
pub(crate) mod log;
pub(crate) mod name;
pub(crate) mod options;
pub(crate) mod policy;
pub(crate) mod progress;
pub(crate) mod summary;
pub(crate) mod table;
