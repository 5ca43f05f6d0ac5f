//! Native file systems: their sweep, and the comparison of names with what inodes say.

use floe_blockdev::ReadBlocks;

use super::pipeline::Setting;
use super::registry::{Evidence, Pass};
use super::results::Scan;
use crate::error::CheckError;
use crate::estimate::memory::Budget;
use crate::evidence::backpointers::{self, Backpointers};
use crate::options::CheckOptions;
use crate::scan::sweep::Sweep;
use crate::volume::Volume;

/// The sweep of a check, if the file system is native and all of it is read by this run: legs and shards read parts of lots.
pub(super) fn sweep_of<'d>(
    device: &'d dyn ReadBlocks,
    options: &CheckOptions<'_>,
) -> Option<Sweep<'d>> {
    let is_whole = options.tuning.sweep
        && options.checkpoints.keeper.is_none()
        && options.checkpoints.parts.is_none()
        && options.superblock.block.is_none();
    let sweep = is_whole.then(|| Sweep::over(device, options.memory.limit_bytes)).flatten()?;
    Some(match options.tuning.sweep_bytes {
        Some(bytes) => sweep.with_room(bytes),
        None => sweep,
    })
}

/// Runs passes in order, that of lots only where they are swept.
pub(super) fn run_passes(
    passes: &[Pass],
    volume: &mut Volume<'_>,
    setting: &mut Setting<'_, '_, '_>,
    scan: &mut Scan,
) -> Result<(), CheckError> {
    let is_run = |pass: &&Pass| pass.keeps != Evidence::Lots || setting.sweep.is_some();
    let passes: Vec<&Pass> = passes.iter().filter(is_run).collect();
    for (at, pass) in passes.iter().enumerate() {
        (pass.run)(volume, setting, scan)?;
        setting.clock.end_before(pass.name, passes.get(at + 1).map(|next| next.name));
    }
    Ok(())
}

/// Lets the passes compare names with what inodes say, in a native file system that is read as a `whole`, and if there is room
/// for it.
pub(super) fn compare_names(volume: &mut Volume<'_>, budget: &Budget, whole: bool) {
    let (inodes, free) = (volume.geometry.inodes_count, volume.superblock.free_inodes_count);
    let used = u64::from(inodes.saturating_sub(free));
    // Tables may be half empty.
    if whole
        && volume.is_native()
        && budget.has_room_for(backpointers::bytes(used.saturating_mul(2)))
    {
        volume.backpointers = Some(Backpointers::new(inodes));
    }
}
