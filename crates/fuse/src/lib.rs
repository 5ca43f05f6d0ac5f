//! Serves a file system to the Linux kernel by FUSE: a thin adapter over `floe_fs`.
//!
//! [`mount`] mounts and gives a [`Carrier`]; [`serve`] answers what comes over it until the unmount. The
//! kernel judges permissions (`default_permissions`), and keeps names, attributes and data as long as nothing
//! changes. Carriers are [`DevFuse`], whose threads read
//! `/dev/fuse` or use io_uring, and [`MemoryCarrier`] for tests.

#![warn(clippy::print_stderr, clippy::print_stdout)] // messages are the program's

pub mod abi;
mod abort;
mod adapter;
mod asked;
mod carrier;
mod change;
mod cubes;
mod device;
mod errno;
mod flags;
mod metrics;
pub mod mount;
mod options;
#[cfg(feature = "io-uring")]
mod ring;
mod scarce;
mod session;
mod times;
mod told;
mod writers;

pub use abort::{
    open_abort, refuse_requests, servers_of, set_name_of_watcher, stopped_watchers_of,
};
pub use adapter::{STATUS, WRITTEN};
pub use carrier::{Carrier, Channel, MemoryCarrier};
pub use device::{DevFuse, Transport};
pub use metrics::{METRICS, prometheus};
pub use options::{ServeOptions, Synchronous};
pub use session::serve;
