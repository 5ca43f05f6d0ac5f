//! Formats results: reports of checks and repairs as text ([`human`]), JSON ([`json`]) and HTML
//! ([`html`]).
//!
//! The modules at the root format the [`floe_check::Report`] of a check and hold the parts common
//! to both kinds of report; [`repair`] formats the account of a [`floe_repair::Repair`].
//! [`fleet`] counts the results of many checks.
//! [`salvage`] formats that of a [`floe_salvage::Salvaged`].
//! `examples/preview.rs` prints the changes that a repair would make.

#![warn(clippy::print_stderr, clippy::print_stdout)] // messages are the program's

pub mod calendar;
pub mod fleet;
pub mod html;
pub mod human;
pub mod json;
pub mod place;
pub mod rank;
pub mod repair;
pub mod salvage;
#[cfg(test)]
mod sample;
