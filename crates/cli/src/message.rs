//! Messages to standard error. Where they cannot be written (a full disk, a closed terminal) they are lost, and the work goes on:
//! the exit code tells its result.

use std::fmt::Arguments;
use std::io::{self, Write};

/// Writes a line to standard error, formatted as by `format!`. Unlike `eprintln!`, never panics.
macro_rules! message {
    ($($text:tt)*) => { $crate::message::line(format_args!($($text)*)) };
}
pub(crate) use message;

/// Writes a line to standard error, if that takes it.
pub(crate) fn line(text: Arguments<'_>) {
    to(&mut io::stderr(), text);
}

/// Writes a line by one call, so that lines of several processes do not mix.
fn to(out: &mut impl Write, text: Arguments<'_>) {
    let _ = out.write_all(format!("{text}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a full disk.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn a_line_that_cannot_be_written_is_lost() {
        let mut out = Vec::new();
        to(&mut out, format_args!("{} of {}", 1, 2));
        assert_eq!(out, b"1 of 2\n");
        to(&mut Full, format_args!("lost"));
    }
}
