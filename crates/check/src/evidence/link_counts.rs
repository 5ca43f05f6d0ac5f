//! How many directory entries name each inode.

use std::collections::BTreeMap;

use floe_exec::Accumulator;
use floe_format::InodeNr;

/// Inodes of a chunk of counters.
const CHUNK: usize = 2048;

/// Counted links: 16-bit counters in chunks that exist where something is counted; what does not
/// fit in 16 bits goes to a map.
#[derive(Clone, Debug, Default)]
pub struct LinkCounts {
    chunks: Vec<Option<Box<[u16; CHUNK]>>>,
    over: BTreeMap<u32, u64>,
}

impl LinkCounts {
    /// Adds one link to an inode.
    #[inline]
    pub fn add(&mut self, inode: InodeNr) {
        let (index, at) = (inode.0 as usize / CHUNK, inode.0 as usize % CHUNK);
        if index >= self.chunks.len() {
            self.chunks.resize_with(index + 1, || None);
        }
        let chunk = self.chunks[index].get_or_insert_with(|| Box::new([0; CHUNK]));
        match chunk[at].checked_add(1) {
            Some(count) => chunk[at] = count,
            None => {
                chunk[at] = 0;
                *self.over.entry(inode.0).or_default() += 1 << 16;
            }
        }
    }

    /// The links counted for an inode.
    #[inline]
    pub fn get(&self, inode: InodeNr) -> u64 {
        let low = self
            .chunks
            .get(inode.0 as usize / CHUNK)
            .and_then(Option::as_ref)
            .map_or(0, |chunk| chunk[inode.0 as usize % CHUNK]);
        if self.over.is_empty() {
            return u64::from(low);
        }
        u64::from(low) + self.over.get(&inode.0).copied().unwrap_or(0)
    }
}

impl Accumulator for LinkCounts {
    fn merge(&mut self, other: Self) {
        if self.chunks.len() < other.chunks.len() {
            self.chunks.resize_with(other.chunks.len(), || None);
        }
        for (index, (mine, theirs)) in self.chunks.iter_mut().zip(other.chunks).enumerate() {
            match (&mut *mine, theirs) {
                (_, None) => {}
                (None, theirs) => *mine = theirs,
                (Some(mine), Some(theirs)) => {
                    for (at, (mine, theirs)) in mine.iter_mut().zip(theirs.iter()).enumerate() {
                        let (sum, carried) = mine.overflowing_add(*theirs);
                        *mine = sum;
                        if carried {
                            // Counted inode numbers fit 32 bits.
                            *self.over.entry((index * CHUNK + at) as u32).or_default() += 1 << 16;
                        }
                    }
                }
            }
        }
        for (inode, count) in other.over {
            *self.over.entry(inode).or_default() += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carries_over_16_bits_by_adding_and_by_merging() {
        let (mut left, mut right) = (LinkCounts::default(), LinkCounts::default());
        (0..70_000).for_each(|_| left.add(InodeNr(5)));
        (0..66_000).for_each(|_| right.add(InodeNr(5)));
        right.add(InodeNr(100_000));
        left.merge(right);
        assert_eq!(left.get(InodeNr(5)), 136_000);
        assert_eq!(left.get(InodeNr(100_000)), 1);
        assert_eq!(left.get(InodeNr(6)), 0);
    }
}
