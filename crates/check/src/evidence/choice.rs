//! Which structure counts links with the least memory, known before the scan: equations 1 to 3 of
//! Kim et al., *lwFSCK: Light-weight Filesystem Check*, SAC '25, section 4.4.

use floe_format::Geometry;
use floe_format::ext::group_desc::GroupDesc;

/// Bytes of an entry of either map of a TwinTree (S_single and S_multiple of equation 2): 8 bytes
/// of numbers, and what nodes that are not full and links between them add.
pub(crate) const TREE_ENTRY_BYTES: u64 = 20;
/// Bytes of a counter of an array (S_Arr of equation 3).
pub(crate) const ARRAY_ENTRY_BYTES: u64 = 2;

/// How a file system uses its inodes, as its descriptors tell. They may be wrong: the choice
/// changes the memory and never the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeUse {
    /// All inodes, used or not (I_total).
    pub total: u64,
    /// Inodes in use (I_used); at most `total`.
    pub used: u64,
    /// Directories among them (the sum of d_i); at most `used`.
    pub directories: u64,
}

/// A structure that counts links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkStructure {
    /// One bit an inode where each has one link, else counters:
    /// [`LinkCounts`](super::link_counts::LinkCounts). Floe's own, which no paper has.
    #[default]
    Bits,
    /// A counter for each inode: [`LinkArray`](super::link_array::LinkArray).
    Array,
    /// Two maps of the inodes in use: [`TwinTree`](super::twin_tree::TwinTree).
    TwinTree,
}

impl LinkStructure {
    /// Each of them.
    pub const ALL: [Self; 3] = [Self::Bits, Self::Array, Self::TwinTree];

    /// The name in options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bits => "bits",
            Self::Array => "array",
            Self::TwinTree => "twin-tree",
        }
    }
}

/// Decides on the structure. Findings are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkChoice {
    /// Floe: bits, which are the leanest of the three nearly always, and one of lwFSCK's structures where
    /// a budget needs that.
    #[default]
    Auto,
    /// lwFSCK's equations, with or without a budget: the array or the TwinTree.
    Adaptive,
    /// Whoever asked for this one.
    Always(LinkStructure),
}

impl InodeUse {
    /// Sums the descriptors. Impossible values (more directories than inodes in use, more free
    /// inodes than inodes) are limited to possible ones.
    pub fn of_groups(geometry: &Geometry, groups: &[GroupDesc]) -> Self {
        let per_group = u64::from(geometry.inodes_per_group);
        groups.iter().fold(Self::default(), |sum, desc| {
            let used = per_group.saturating_sub(u64::from(desc.free_inodes_count));
            Self {
                total: sum.total + per_group,
                used: sum.used + used,
                directories: sum.directories + u64::from(desc.used_dirs_count).min(used),
            }
        })
    }

    /// Equation 1: R_d, the proportion of directories among inodes in use; 0 if none is in use.
    /// R_f, that of files, is the rest.
    pub(crate) fn directory_ratio(&self) -> f64 {
        if self.used == 0 { 0.0 } else { self.directories as f64 / self.used as f64 }
    }

    /// Equation 2: bytes of a TwinTree, I_used x R_d x (S_single + S_multiple). Each directory has
    /// several links, and breaks a run of files.
    pub(crate) fn twin_tree_bytes(&self) -> u64 {
        let entries = self.used as f64 * self.directory_ratio();
        (entries * (2 * TREE_ENTRY_BYTES) as f64).round() as u64
    }

    /// Equation 3: bytes of an array, I_total x S_Arr.
    pub(crate) fn array_bytes(&self) -> u64 {
        self.total.saturating_mul(ARRAY_ENTRY_BYTES)
    }

    /// The structure that the paper would take: the TwinTree if it is expected to be the smaller one.
    pub fn leaner(&self) -> LinkStructure {
        if self.twin_tree_bytes() < self.array_bytes() {
            LinkStructure::TwinTree
        } else {
            LinkStructure::Array
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::link_counter::map_bytes;

    fn inodes(total: u64, used: u64, directories: u64) -> InodeUse {
        InodeUse { total, used, directories }
    }

    #[test]
    fn the_equations() {
        let at = inodes(16_000_000, 160_000, 1_600);
        assert!((at.directory_ratio() - 0.01).abs() < 1e-12);
        assert_eq!(at.twin_tree_bytes(), 1_600 * 40);
        assert_eq!(at.array_bytes(), 32_000_000);
        assert_eq!(inodes(100, 0, 0).directory_ratio(), 0.0);
    }

    #[test]
    fn few_directories_take_the_tree_and_many_the_array() {
        let million = 1_000_000;
        for (used, directories, leaner) in [
            (0, 0, LinkStructure::TwinTree),
            (million / 100, million / 200, LinkStructure::TwinTree),
            (million, million / 100, LinkStructure::TwinTree),
            (million, million / 2, LinkStructure::Array),
            // 40 bytes a directory against 2 an inode: one inode in twenty decides.
            (million, million / 20, LinkStructure::Array),
            (million, million / 20 - 1, LinkStructure::TwinTree),
        ] {
            assert_eq!(inodes(million, used, directories).leaner(), leaner, "{used} {directories}");
        }
        assert_eq!(
            inodes(0, 0, 0).leaner(),
            LinkStructure::Array,
            "nothing is no less than nothing"
        );
    }

    #[test]
    fn an_entry_is_as_large_as_it_is() {
        let entries = 1_000_000;
        assert_eq!(map_bytes(entries, 8) / entries as u64, TREE_ENTRY_BYTES);
    }
}
