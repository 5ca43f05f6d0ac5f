//! Standard output that was closed by the caller (`floe check >&-`). Before `main` begins, Rust's run-time puts `/dev/null` in its place,
//! where a report or an archive would get lost without a word.

use std::fs::File;
use std::io::{self, StdoutLock, Write};
use std::os::fd::AsFd;

use floe_sync::process::{AtomicUsize, Ordering};
use rustix::io::{Errno, fcntl_getfd};

/// 1 if it was closed.
static CLOSED: AtomicUsize = AtomicUsize::new(0);

/// Looks before Rust's run-time does. The attribute says that a function before `main` may use nothing that the run-time prepares:
/// this one makes a system call and sets a number.
#[ctor::ctor(unsafe)]
fn look() {
    let is_closed = fcntl_getfd(rustix::stdio::stdout()) == Err(Errno::BADF);
    CLOSED.store(usize::from(is_closed), Ordering::Relaxed);
}

fn open() -> io::Result<()> {
    match CLOSED.load(Ordering::Relaxed) {
        0 => Ok(()),
        _ => Err(Errno::BADF.into()),
    }
}

/// A descriptor of it, which is not buffered by lines.
///
/// # Errors
/// It was closed, or there are no more descriptors.
pub(crate) fn file() -> io::Result<File> {
    open()?;
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Standard output, locked. Unlike that of `std`, it fails where it was closed.
pub(crate) struct StandardOutput(StdoutLock<'static>);

impl StandardOutput {
    pub(crate) fn lock() -> Self {
        Self(io::stdout().lock())
    }
}

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        open()?;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
