//! Reading bitmaps, several at once where they lie side by side.

use floe_format::ext::group_desc::GroupDesc;
use floe_format::{BlockNr, BlockRun, GroupNr};

use crate::volume::Volume;

/// Bytes read at once at most (but at least one block).
const READ_BYTES: u32 = 32 << 10;

/// Adjacent bitmap blocks that were read together.
#[derive(Debug, Default)]
pub(super) struct Window {
    bytes: Vec<u8>,
    run: BlockRun,
}

impl Window {
    /// The bitmap in `block` of `group`; blocks of following groups that lie right behind it are
    /// read with it. `None` if it cannot be read.
    pub(super) fn read(
        &mut self,
        volume: &Volume<'_>,
        group: GroupNr,
        place: impl Fn(&GroupDesc) -> BlockNr,
    ) -> Option<&[u8]> {
        let block = place(&volume.group(group));
        if !volume.geometry.contains(block) {
            return None;
        }
        if block < self.run.start || block >= self.run.end() {
            let most = u64::from((READ_BYTES / volume.geometry.block_size).max(1));
            let behind = volume.groups.get(group.0 as usize..).unwrap_or(&[]);
            let adjacent = behind
                .iter()
                .zip(block.0..volume.geometry.blocks_count.min(block.0 + most))
                .take_while(|(desc, at)| place(desc).0 == *at)
                .count();
            self.run = BlockRun::new(block, adjacent as u64);
            if volume.read_run(self.run, &mut self.bytes).is_err() {
                self.run = BlockRun::new(block, 1);
                if volume.read_block(block, &mut self.bytes).is_err() {
                    self.run = BlockRun::default();
                    return None;
                }
            }
        }
        let size = volume.geometry.block_size as usize;
        let at = (block.0 - self.run.start.0) as usize * size;
        self.bytes.get(at..at + size)
    }
}
