//! All integration tests of the crate in one program, because each program links the whole stack.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod access_lists;
mod attribute_values;
mod backups;
mod cleared;
mod commit;
mod crash;
mod crash_support;
mod cubes;
mod damaged_log;
mod directory_rebuild;
mod encrypted;
mod extent_depth;
mod extras;
mod floods;
mod fuzz_inputs;
mod gathered;
mod judged;
mod kernel;
mod linux_refuses;
mod memory;
mod multi_mount;
mod native;
mod no_place;
mod no_room;
mod nodes_on_metadata;
mod paper;
mod partial_examinations;
mod plan_file;
mod problems;
mod proofs;
mod quota_headers;
mod refused;
mod repaired_image;
mod rext3;
mod rounds;
mod seeds;
mod still_named;
mod uninit_flags;
mod unreadable;
mod unreadable_everywhere;
mod value_inodes;
mod weighed_log;
mod wrong_numbers;
mod yes_to_all;
