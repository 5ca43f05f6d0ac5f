//! Numbers of inodes: the first inode of each lot but lot 0 is kept for the lot's reservation file.

use floe_format::{Geometry, InodeNr};

/// Translates between inode numbers and positions among the inodes that are not kept: 1 is the first.
#[derive(Clone, Copy, Debug)]
pub(in crate::mkfs) struct Numbers {
    /// Inodes of a lot; `None` in a stock file system, where positions are numbers.
    lot_inodes: Option<u32>,
}

impl Numbers {
    pub(in crate::mkfs) const STOCK: Self = Self { lot_inodes: None };

    /// `lot_groups` groups make a lot.
    pub(in crate::mkfs) const fn of_lots(geometry: &Geometry, lot_groups: u32) -> Self {
        // Checked when the file system was planned: at least 8 inodes in each group, and 2^32 in all.
        Self { lot_inodes: Some(geometry.inodes_per_group.saturating_mul(lot_groups)) }
    }

    /// Whether an inode is kept for a reservation file.
    pub(in crate::mkfs) fn is_kept(self, number: InodeNr) -> bool {
        self.lot_inodes
            .is_some_and(|inodes| number.0 > inodes && (number.0 - 1).is_multiple_of(inodes))
    }

    /// The number of inodes up to this one that are not kept.
    pub(in crate::mkfs) fn position(self, number: InodeNr) -> u32 {
        number.0 - self.lot_inodes.map_or(0, |inodes| number.0.saturating_sub(1) / inodes)
    }

    /// The inode at a position from 1 on.
    pub(in crate::mkfs) fn at(self, position: u32) -> InodeNr {
        let kept = self.lot_inodes.map_or(0, |inodes| position.saturating_sub(2) / (inodes - 1));
        InodeNr(position.saturating_add(kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_all_inodes_but_those_kept() {
        for inodes in [32, 33, 8192] {
            let numbers = Numbers { lot_inodes: Some(inodes) };
            let mut position = 0;
            for number in (1..=inodes * 5).map(InodeNr) {
                let first_of_lot = number.0 > 1 && (number.0 - 1) % inodes == 0;
                assert_eq!(numbers.is_kept(number), first_of_lot, "{number}");
                position += u32::from(!first_of_lot);
                assert_eq!(numbers.position(number), position, "{number}");
                if !first_of_lot {
                    assert_eq!(numbers.at(position), number);
                }
            }
        }
        assert_eq!(Numbers::STOCK.at(7), InodeNr(7));
        assert_eq!(Numbers::STOCK.position(InodeNr(7)), 7);
        assert!(!Numbers::STOCK.is_kept(InodeNr(1)));
    }
}
