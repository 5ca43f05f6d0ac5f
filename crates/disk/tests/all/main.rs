//! All integration tests of the crate in one program, because each program links the whole stack.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod areas;
mod awaited;
mod changes;
mod cube_crash;
mod cube_journals;
mod cube_loans;
mod cube_moves;
mod cubes;
mod fill;
mod journal_crash;
mod journal_linux;
mod journal_ops;
mod journal_rules;
mod journal_writes;
mod native;
mod operations;
mod rext3;
mod several_journals;
mod sources;
mod stock;
mod traced;
