//! All integration tests of the crate in one program, because each program links the whole stack.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod casefold_differential;
mod decoders_total;
mod dirhash_differential;
mod every_decoder;
mod geometry_differential;
mod image_checksums;
mod round_trip;
mod support;
