//! Random bytes from the system.

use anyhow::Context;
use rustix::rand::{GetRandomFlags, getrandom};

/// Bytes for identifiers that must be unique, and for keys that nobody may guess: from the kernel
/// itself, for a container or an early initramfs may have no `/dev/urandom`.
///
/// # Errors
/// The system has no source of random bytes.
pub(crate) fn random_bytes() -> anyhow::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    // So few come at once and whole.
    getrandom(&mut bytes, GetRandomFlags::empty()).context("the system gives no random bytes")?;
    Ok(bytes)
}
