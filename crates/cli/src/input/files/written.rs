//! Writes an output of text: a file, or standard output where it is called `-`.

use std::io::{self, Write as _};
use std::path::Path;

use floe_blockdev::NewFile;

use super::is_standard_output;

/// Writes a file completely or not at all, in the place of one that begins with `head`; or to standard output.
///
/// # Errors
/// Those of [`NewFile::replace`], and of standard output.
pub(crate) fn replace(path: &Path, mode: u32, head: &[u8], bytes: &[u8]) -> io::Result<()> {
    if !is_standard_output(path) {
        return NewFile::replace(path, mode, head, bytes);
    }
    let mut out = io::stdout();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        // Its reader has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
