//! All integration tests of the crate in one program, because each program links the whole stack.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod accounting;
mod accounting_groups;
mod checkpoint;
mod claimants;
mod directories;
mod examined;
mod fuzz_inputs;
mod fuzzed_image;
mod hazards;
mod inode_use;
mod journal_corpus;
mod journal_crafted;
mod journal_kernel;
mod journal_support;
mod large_blocks;
mod link_structures;
mod outcome;
mod problems;
mod read_ahead;
mod reader;
mod rescan;
mod reserved_flags;
mod scheduling;
mod shards;
mod shortcuts;
