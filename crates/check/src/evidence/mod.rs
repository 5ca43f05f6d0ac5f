//! What the passes keep to prove cross-checks: private to a worker while it runs, merged afterwards.

pub mod bits;
pub mod block_set;
pub mod choice;
pub mod claims;
pub mod column;
pub mod common_claims;
pub mod dir_index;
pub mod dirs;
pub mod fingerprint;
mod frames;
pub mod inode_facts;
pub mod inode_reader;
pub mod ledger;
pub mod link_array;
pub mod link_counter;
pub mod link_counts;
pub mod link_tally;
pub mod name_set;
pub mod policies;
pub mod published_facts;
pub mod quota_usage;
pub mod run_set;
pub mod saved;
mod saved_bits;
pub mod scope;
pub mod stretches;
pub mod twin_tree;
