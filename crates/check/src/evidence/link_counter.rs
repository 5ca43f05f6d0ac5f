//! The common interface of all structures that count links, so that a check need not know which one
//! it uses.

use floe_exec::Accumulator;
use floe_format::InodeNr;

/// Counts the directory entries that name each inode; shares of workers are added up by merging.
pub trait LinkCounter: Accumulator {
    /// Adds one link to an inode.
    fn add(&mut self, inode: InodeNr);

    /// The links counted for an inode; 0 if it was never named.
    fn get(&self, inode: InodeNr) -> u64;

    /// Bytes of memory that the counts take, without the counter itself: estimated where a
    /// collection of the standard library does not say.
    fn bytes(&self) -> u64;
}

/// Bytes of a B-tree map of the standard library with `len` entries of `entry_bytes` (key and
/// value, each of 4 bytes or 8).
///
/// It cannot be asked, so this is what a map takes that was filled in ascending order, as a scan
/// does: a node that is full (11 entries) splits into 6, which stay, one that goes up, and 4, which
/// grow. One filled in a random order is smaller, one from which much was removed may be larger.
pub(crate) fn map_bytes(len: usize, entry_bytes: usize) -> u64 {
    /// Entries that came in for each node that is left behind.
    const ENTRIES_A_NODE: u64 = 7;
    /// Places of a node, and links to children of one that is no leaf.
    const PLACES: u64 = 11;
    let leaf_bytes = (8 + PLACES * entry_bytes as u64 + 4).next_multiple_of(8) + ALLOCATION_BYTES;
    let links_bytes = (PLACES + 1) * 8;
    let mut nodes = (len as u64).div_ceil(ENTRIES_A_NODE);
    let mut bytes = nodes * leaf_bytes;
    while nodes > 1 {
        nodes = nodes.div_ceil(ENTRIES_A_NODE);
        bytes += nodes * (leaf_bytes + links_bytes);
    }
    bytes
}

/// Average overhead of the allocator per allocation.
const ALLOCATION_BYTES: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_grows_by_nodes() {
        assert_eq!(map_bytes(0, 8), 0);
        // One leaf: parent, 11 keys and values, two counters; and what the allocator adds.
        assert_eq!((map_bytes(1, 8), map_bytes(7, 8)), (112, 112));
        // Two leaves and the node above them, which has 12 links more.
        assert_eq!(map_bytes(8, 8), 2 * 112 + 112 + 96);
        let entry = map_bytes(7_000_000, 8) / 7_000_000;
        assert!((19..=22).contains(&entry), "{entry} bytes an entry");
    }
}
