//! Counts of mapping blocks that were read, for the progress.

use floe_format::BlockNr;

use crate::volume::Volume;

/// A reader that goes on within so many bytes does not seek: disks and systems read ahead.
pub(crate) const NEAR_BYTES: u64 = 131_072;

/// Blocks of maps (extent nodes, indirect blocks) that were read: how many there are nobody knows before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapReads {
    /// How many.
    pub blocks: u64,
    /// Reads that are not near the previous one.
    pub places: u64,
    last: u64,
}

impl MapReads {
    /// One more is read.
    #[inline]
    pub fn add(&mut self, volume: &Volume<'_>, node: BlockNr) {
        let near = NEAR_BYTES / u64::from(volume.geometry.block_size);
        self.blocks += 1;
        self.places += u64::from(node.0.abs_diff(self.last) > near);
        self.last = node.0;
    }

    /// The counts since the last call.
    pub fn take(&mut self) -> Self {
        let taken = *self;
        *self = Self { last: self.last, ..Self::default() };
        taken
    }
}
