//! Evidence that passes collect for cross-checks: private to a worker while it runs, merged
//! afterwards.

pub mod accounting;
pub mod attributes;
pub mod backpointers;
pub mod bits;
pub mod block_set;
pub mod choice;
pub mod claims;
pub mod column;
pub mod common_claims;
pub mod dir_index;
pub mod dirs;
pub mod fingerprint;
pub mod htree;
pub mod inode_facts;
pub mod layers;
pub mod ledger;
pub mod link_array;
pub mod link_counter;
pub mod link_counts;
pub mod link_tally;
pub mod name_set;
pub mod pairs;
pub mod pieces;
pub mod policies;
pub mod published_facts;
pub mod quota_usage;
pub mod region;
pub mod run_set;
mod saved_bits;
pub mod scope;
mod snapshots;
pub mod stretches;
pub mod totals;
pub mod twin_tree;
