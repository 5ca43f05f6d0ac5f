//! SHA-256 in hexadecimal digits, as block maps and OCI images write it.

use sha2::{Digest, Sha256};

/// The digest of all bytes that `sum` was given: 64 digits.
pub(crate) fn digits(sum: Sha256) -> String {
    sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
