//! All integration tests of the crate in one program, because each program links the whole stack.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod any_bytes;
mod any_bytes_are_read;
mod tar_programs;
