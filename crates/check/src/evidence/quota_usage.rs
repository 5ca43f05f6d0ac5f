//! Space and inodes used by each user, group and project.

use std::collections::HashMap;

use floe_exec::Accumulator;

use crate::saved::{Decoder, Encoder, Fault, Saved, cell};

/// The usage of one id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of clusters: data, maps, and attribute blocks.
    pub space_bytes: u64,
    /// Inodes, as Linux counts them.
    pub inodes: u64,
    /// Those of them that e2fsck does not count: symlinks whose target is inline data.
    pub inline_links: u64,
}

impl Usage {
    fn add(&mut self, other: Self) {
        self.space_bytes = self.space_bytes.wrapping_add(other.space_bytes);
        self.inodes = self.inodes.wrapping_add(other.inodes);
        self.inline_links = self.inline_links.wrapping_add(other.inline_links);
    }

    /// Inodes, as e2fsck counts them.
    pub fn inodes_by_e2fsck(&self) -> u64 {
        self.inodes.saturating_sub(self.inline_links)
    }
}

/// The usage of every id; index 0 users, 1 groups, 2 projects, as in quota files.
#[derive(Clone, Debug, Default)]
pub struct QuotaUsage {
    by_kind: [HashMap<u32, Usage>; 3],
    /// Most inodes of a scan belong to few ids: the last one of each kind, not yet in the map.
    last: [Option<(u32, Usage)>; 3],
}

impl QuotaUsage {
    /// Adds the use of one inode to its user, group and project.
    #[inline]
    pub(crate) fn add_to(&mut self, owners: [u32; 3], usage: Usage) {
        for (kind, id) in owners.into_iter().enumerate() {
            self.add(kind, id, usage);
        }
    }

    /// Adds the use of one inode to an id.
    #[inline]
    pub fn add(&mut self, kind: usize, id: u32, usage: Usage) {
        let Some(last) = self.last.get_mut(kind) else { return };
        match last {
            Some((last_id, sum)) if *last_id == id => sum.add(usage),
            _ => {
                if let Some((old, sum)) = last.replace((id, usage)) {
                    self.by_kind[kind].entry(old).or_default().add(sum);
                }
            }
        }
    }

    /// Takes the use of some inodes back, which was added before: an id of which nothing is left is
    /// not known any more.
    pub fn take_back(&mut self, other: &Self) {
        for kind in 0..self.by_kind.len() {
            if let Some((id, usage)) = self.last[kind].take() {
                self.by_kind[kind].entry(id).or_default().add(usage);
            }
            for (id, usage) in other.of_kind(kind) {
                let sum = self.by_kind[kind].entry(id).or_default();
                sum.space_bytes = sum.space_bytes.wrapping_sub(usage.space_bytes);
                sum.inodes = sum.inodes.wrapping_sub(usage.inodes);
                sum.inline_links = sum.inline_links.wrapping_sub(usage.inline_links);
                // Every inode counts, also one without blocks.
                if *sum == Usage::default() {
                    self.by_kind[kind].remove(&id);
                }
            }
        }
    }

    /// The use of every id of a kind, in order of ids.
    pub fn of_kind(&self, kind: usize) -> Vec<(u32, Usage)> {
        let mut all = self.by_kind.get(kind).cloned().unwrap_or_default();
        if let Some(Some((id, usage))) = self.last.get(kind) {
            all.entry(*id).or_default().add(*usage);
        }
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }
}

impl Accumulator for QuotaUsage {
    fn merge(&mut self, other: Self) {
        let Self { by_kind, last } = other;
        for (kind, (map, last)) in by_kind.into_iter().zip(last).enumerate() {
            for (id, usage) in map.into_iter().chain(last) {
                self.by_kind[kind].entry(id).or_default().add(usage);
            }
        }
    }
}

impl Saved for QuotaUsage {
    fn save(&self, to: &mut Encoder<'_>) {
        // `of_kind` includes usage that is not in the map yet.
        let Self { by_kind, last: _ } = self;
        for kind in 0..by_kind.len() {
            to.put_rows(self.of_kind(kind).into_iter().map(|(id, usage)| {
                let Usage { space_bytes, inodes, inline_links } = usage;
                [id.into(), space_bytes, inodes, inline_links]
            }));
        }
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let mut all = Self::default();
        for map in &mut all.by_kind {
            let row = |[id, space_bytes, inodes, inline_links]: [u64; 4]| {
                Some((cell(id)?, Usage { space_bytes, inodes, inline_links }))
            };
            map.extend(from.rows(row)?);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_loses_nothing() {
        let usage = |inodes| Usage { space_bytes: 4096, inodes, inline_links: inodes / 2 };
        let (mut left, mut right) = (QuotaUsage::default(), QuotaUsage::default());
        left.add(0, 7, usage(1));
        left.add(0, 8, usage(2));
        left.add(0, 7, usage(3));
        right.add(0, 7, usage(10));
        right.add(2, 7, usage(1));
        left.merge(right);
        let of_7 = Usage { space_bytes: 12288, inodes: 14, inline_links: 6 };
        assert_eq!(left.of_kind(0), [(7, of_7), (8, usage(2))]);
        assert_eq!(left.of_kind(2), [(7, usage(1))]);
    }

    #[test]
    fn what_was_added_can_be_taken_back() {
        let usage = |inodes| Usage { space_bytes: 4096, inodes, inline_links: inodes / 2 };
        let (mut all, mut part) = (QuotaUsage::default(), QuotaUsage::default());
        for (id, inodes) in [(7, 1), (8, 2), (7, 3), (9, 1)] {
            all.add(0, id, usage(inodes));
        }
        part.add(0, 7, usage(1));
        part.add(0, 9, usage(1));
        all.take_back(&part);
        assert_eq!(all.of_kind(0), [(7, usage(3)), (8, usage(2))]);
    }
}

#[cfg(test)]
mod laws {
    use super::*;
    use crate::saved::tests::same;

    floe_exec::accumulator_laws!(
        QuotaUsage,
        (0usize..3, 0u32..4, 0u64..5),
        |all: &mut QuotaUsage, (kind, id, inodes): (usize, u32, u64)| {
            all.add(
                kind,
                id,
                Usage { space_bytes: inodes * 512, inodes, inline_links: inodes / 2 },
            );
        },
        |all: QuotaUsage| same(all, |all: QuotaUsage| { [0, 1, 2].map(|kind| all.of_kind(kind)) })
    );
}
