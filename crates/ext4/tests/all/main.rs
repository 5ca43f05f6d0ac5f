//! All integration tests of the crate in one program, because each program links the whole stack.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod builders;
mod changes;
mod directory_edits;
mod names;
mod tree_edits;
mod walk;
