//! Link counts as e2fsck and pFSCK keep them: a counter for each inode, used or not.

use std::collections::BTreeMap;

use floe_exec::Accumulator;
use floe_format::InodeNr;

use super::link_counter::{LinkCounter, map_bytes};

/// A 16-bit counter for each inode up to the last one named; what does not fit goes to a map.
///
/// Law: neither the order of links nor of merges can be seen.
#[derive(Clone, Debug, Default)]
pub struct LinkArray {
    counts: Vec<u16>,
    /// The excess over 16 bits, in units of 65,536 links.
    over: BTreeMap<u32, u32>,
}

impl LinkArray {
    /// An array with room for `inodes` inodes, so that it never grows.
    pub fn with_inodes(inodes: u32) -> Self {
        Self { counts: vec![0; inodes as usize + 1], over: BTreeMap::new() }
    }

    /// Whether each of `len` inodes from `first` on has exactly one link.
    pub(crate) fn all_one(&self, first: InodeNr, len: usize) -> bool {
        let from = first.0 as usize;
        let counts = self.counts.get(from..from.saturating_add(len));
        // A counter that went round is not seen in the array.
        len == 0
            || self.over.is_empty()
                && counts.is_some_and(|counts| counts.iter().all(|&count| count == 1))
    }

    /// Calls `each` with every inode that has links, and their number.
    pub fn for_each(&self, mut each: impl FnMut(InodeNr, u64)) {
        for (inode, low) in (0u32..).zip(&self.counts) {
            if *low > 0 || !self.over.is_empty() {
                match self.get(InodeNr(inode)) {
                    0 => {}
                    links => each(InodeNr(inode), links),
                }
            }
        }
    }

    #[inline]
    fn add_links(&mut self, inode: u32, links: u16) {
        let at = inode as usize;
        if at >= self.counts.len() {
            self.counts.resize(at + 1, 0);
        }
        let (sum, carry) = self.counts[at].overflowing_add(links);
        self.counts[at] = sum;
        if carry {
            self.carry(inode, 1);
        }
    }

    #[cold]
    fn carry(&mut self, inode: u32, units: u32) {
        let over = self.over.entry(inode).or_default();
        *over = over.saturating_add(units);
    }
}

impl LinkCounter for LinkArray {
    #[inline]
    fn add(&mut self, inode: InodeNr) {
        self.add_links(inode.0, 1);
    }

    #[inline]
    fn get(&self, inode: InodeNr) -> u64 {
        let low = self.counts.get(inode.0 as usize).copied().unwrap_or(0);
        let over = self.over.get(&inode.0).copied().unwrap_or(0);
        u64::from(low) + (u64::from(over) << 16)
    }

    fn bytes(&self) -> u64 {
        (self.counts.capacity() * size_of::<u16>()) as u64 + map_bytes(self.over.len(), 8)
    }
}

impl Accumulator for LinkArray {
    fn merge(&mut self, other: Self) {
        let Self { mut counts, over } = other;
        if self.counts.len() < counts.len() {
            std::mem::swap(&mut self.counts, &mut counts);
        }
        // Inode numbers fit 32 bits.
        for (inode, links) in (0u32..).zip(counts) {
            self.add_links(inode, links);
        }
        over.into_iter().for_each(|(inode, units)| self.carry(inode, units));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    floe_exec::accumulator_laws!(
        LinkArray,
        (0u32..9, 0u16..),
        |all: &mut LinkArray, (inode, links)| all.add_links(inode, links),
        |all: LinkArray| (0..10).map(|inode| all.get(InodeNr(inode))).collect::<Vec<_>>(),
    );

    #[test]
    fn carries_over_16_bits() {
        let mut all = LinkArray::with_inodes(10);
        (0..200_000).for_each(|_| all.add(InodeNr(5)));
        all.add(InodeNr(20));
        let counts = [5, 20, 6, 21].map(|inode| all.get(InodeNr(inode)));
        assert_eq!(counts, [200_000, 1, 0, 0]);
        assert!(all.bytes() >= 2 * 21);
    }
}
