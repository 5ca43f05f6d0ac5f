//! The commands that boot a guest. Skipped where there is nothing to boot.

#![allow(clippy::unwrap_used)] // tests may

mod kernel_load;
mod linux_judge;
mod vm_host;
