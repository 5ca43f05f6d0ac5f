//! How cross-checks are proved.

use floe_format::Geometry;
use floe_format::features::{Compat, Incompat};

/// How cross-checks are proved: what claims blocks against bitmaps, entries against inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accounting {
    /// Everything is kept object by object, and each checksum is looked at alone.
    Exact,
    /// Random sums for each group; only groups whose sums are not zero are scanned a second time
    /// (`docs/fingerprint.md`). File systems without the filetype feature, with encryption, with
    /// values of attributes in inodes or with AFS inodes are checked exactly all the same.
    Fingerprint,
    /// Exact for small file systems, fingerprints for large ones.
    #[default]
    Auto,
}

/// From so many clusters on [`Accounting::Auto`] sums up: the map of clusters alone could take 64 MiB.
const LARGE_CLUSTERS: u64 = 1 << 29;

impl Accounting {
    /// Whether a file system is checked by sums.
    pub(crate) fn sums_up(self, geometry: &Geometry) -> bool {
        let features = &geometry.features;
        let awkward = Incompat::ENCRYPT | Incompat::EA_INODE;
        let possible = features.incompat.contains(Incompat::FILETYPE)
            && !features.incompat.intersects(awkward)
            && !features.compat.contains(Compat::IMAGIC_INODES);
        possible
            && match self {
                Self::Exact => false,
                Self::Fingerprint => true,
                Self::Auto => geometry.clusters_count() >= LARGE_CLUSTERS,
            }
    }
}
