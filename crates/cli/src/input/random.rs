//! Random bytes from the system.

use anyhow::Context;
use rustix::rand::{GetRandomFlags, getrandom};

/// Random bytes for unique identifiers and for keys: from the kernel's system call, because a
/// container or an early initramfs may lack `/dev/urandom`.
///
/// # Errors
/// The system has no source of random bytes.
pub(crate) fn random_bytes() -> anyhow::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    // So few bytes are returned at once and completely.
    getrandom(&mut bytes, GetRandomFlags::empty()).context("the system gives no random bytes")?;
    Ok(bytes)
}
