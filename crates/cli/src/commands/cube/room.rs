//! Limits and journals of cubes, as far as lots have room for them.

use anyhow::{Result, bail};
use floe_format::native::cube::{FEWEST_JOURNAL_BLOCKS, Policies};
use floe_fs::Settings;
use floe_report::human::size;

use super::image::CubeImage;

impl CubeImage<'_, '_> {
    fn lot_bytes(&self) -> u64 {
        let geometry = self.files.geometry();
        let groups = u64::from(geometry.descs_per_block());
        groups * u64::from(geometry.blocks_per_group) * u64::from(geometry.block_size)
    }

    pub(super) fn policies(
        &self,
        settings: Settings,
        before: Policies,
        has_journal: bool,
    ) -> Result<Policies> {
        let lot = self.lot_bytes();
        if settings.max_bytes.is_some_and(|limit| limit > 0 && limit < lot) {
            bail!("--max-size is below {}, the size of a lot; nothing was changed", size(lot));
        }
        let policies = settings.over(before, self.files.geometry().block_size);
        let is_new = policies.is_new(&before);
        match policies.objection(has_journal).filter(|_| is_new) {
            Some(why) => bail!("{why}; nothing was changed"),
            None => Ok(policies),
        }
    }

    /// Whether a journal of so many blocks can be made in a new lot; 0: none is wanted.
    pub(super) fn judge_journal(&self, blocks: u32) -> Result<()> {
        let geometry = self.files.geometry();
        let per_lot = geometry.descs_per_block();
        let free_in = |lot: u32| -> u64 {
            let groups = self.files.groups().iter().skip((lot * per_lot) as usize);
            groups.take(per_lot as usize).map(|desc| u64::from(desc.free_blocks_count)).sum()
        };
        let lots = 1..geometry.desc_blocks;
        let free = lots.filter(|lot| !self.owners.contains_key(lot)).map(free_in).max();
        // The block for orphans lies behind the journal.
        let most = free.map_or(0, |free| free.saturating_sub(1));
        let fewest = FEWEST_JOURNAL_BLOCKS;
        if blocks > 0 && (blocks < fewest || u64::from(blocks) > most && free.is_some()) {
            bail!(
                "--journal-blocks {blocks}: a lot of this file system has room for {fewest} to {most} blocks; \
                 nothing was changed"
            );
        }
        Ok(())
    }
}
