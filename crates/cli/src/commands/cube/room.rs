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
}

/// Whether a journal of so many blocks can be made in a new lot, which has room for `most`; 0: none is wanted.
pub(super) fn judge_journal(blocks: u32, most: Option<u64>) -> Result<()> {
    let fewest = FEWEST_JOURNAL_BLOCKS;
    match most {
        _ if blocks == 0 => Ok(()),
        Some(most) if blocks < fewest || u64::from(blocks) > most => bail!(
            "--journal-blocks {blocks}: a lot of this file system has room for {fewest} to {most} blocks; \
             nothing was changed"
        ),
        None if blocks < fewest => bail!(
            "--journal-blocks {blocks}: the journal of a cube has {fewest} blocks at least; nothing was changed"
        ),
        // Without a free lot, that is what keeps the cube from being made.
        _ => Ok(()),
    }
}
