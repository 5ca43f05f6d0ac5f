//! Inputs of a command: devices and files that arguments name, values with units, the clock, and
//! random bytes.

pub(crate) mod block_devices;
pub(crate) mod clock;
pub(crate) mod device;
pub(crate) mod files;
pub(crate) mod format_messages;
pub(crate) mod lazy_args;
mod own_mount;
pub(crate) mod random;
pub(crate) mod scheduling;
pub(crate) mod size;
