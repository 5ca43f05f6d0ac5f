//! Random bytes from the system.

use std::fs::File;
use std::io::Read;

use anyhow::Context;

/// Bytes for identifiers that must be unique, and for keys that nobody may guess.
///
/// # Errors
/// The system has no source of random bytes.
pub(crate) fn random_bytes() -> anyhow::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut source = File::open("/dev/urandom").context("/dev/urandom")?;
    source.read_exact(&mut bytes).context("/dev/urandom")?;
    Ok(bytes)
}
