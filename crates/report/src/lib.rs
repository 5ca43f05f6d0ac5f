//! How results look: reports of checks and accounts of repairs for people ([`human`]), for programs
//! ([`json`]) and as a page ([`html`]).
//!
//! The modules at the root write the [`floe_check::Report`] of a check and hold what both kinds of report need;
//! [`repair`] writes the account of a [`floe_repair::Repair`]. `examples/preview.rs` shows the changes
//! that a repair would make.

pub mod calendar;
pub mod html;
pub mod human;
pub mod json;
pub mod place;
pub mod rank;
pub mod repair;
#[cfg(test)]
mod sample;
