//! The repair of one cube: planned on a device that shows its lots alone, written as changes of the file system.

use std::io::Write;
use std::time::Instant;

use anyhow::{Context, bail};
use floe_blockdev::{Counted, Overlay, ReadBlocks};
use floe_check::cube::{CubeName, CubeScope, Cubes, couples};
use floe_check::open::Opened;
use floe_check::problem::Weight;
use floe_check::{CheckOptions, JournalUse};
use floe_ext4::journal::find_cubes;
use floe_format::ext::superblock::Superblock;
use floe_format::features::Incompat;
use floe_format::native::identity::Identity;
use floe_format::native::is_locked;
use floe_repair::commit::{Seen, commit};
use floe_repair::cube::{changes, repair_cube};
use floe_repair::policy::Policy;
use floe_repair::{RepairError, RepairOptions};
use floe_report::repair::{Account, Ending};

use super::{RepairRun, Stopped};
use crate::e2fsck::front;
use crate::exit::Outcome;
use crate::message::message;
use crate::run::undo_target;
use crate::terminal::progress_policy::ProgressPolicy;
use crate::terminal::signals;

impl RepairRun<'_> {
    /// Repairs one cube under `policy`, and writes the report to `out`.
    pub(super) fn run_cube(
        &self,
        name: &CubeName,
        policy: &mut dyn Policy,
        started: Instant,
        out: &mut impl Write,
    ) -> anyhow::Result<Outcome> {
        let named = || self.source.name();
        let interrupt = signals::end_between_writes_with(front::cancel_code(self.front))?;
        let (device, fs_offset_bytes) = self.source.open_alone()?;
        if let (Some(path), false) = (self.undo, self.dry_run) {
            let Ok(_hold) = interrupt.hold() else { return Ok(self.cancelled()) };
            undo_target::make_way(path, &*device).with_context(named)?;
        }
        let seen = Seen::of(&device);
        let counted = Counted::new(&*device as &dyn ReadBlocks);
        let options = self.options(&counted, None)?;
        let opened = match floe_check::open::open(&counted, options.check.superblock) {
            Ok(opened) => opened,
            Err(error) => {
                let stopped = Stopped::Planning(RepairError::Check(error));
                return self.stopped(&stopped, &counted, out);
            }
        };
        if opened.geometry.features.incompat.contains(Incompat::RECOVER) {
            bail!(
                "{}: its journal needs recovery first: mount it with `floe mount` and unmount it, or repair the whole \
                 file system. Nothing was changed",
                named()
            );
        }
        let cubes = Cubes::of(&counted, &options.check).with_context(named)?;
        let scope = cubes.find(name).with_context(named)?;
        self.refuse_early(&counted, &opened, &scope, &options)?;
        let shown = Counted::new(cubes.device(&scope));
        let staged = self.watch.during(&|| counted.counts().bytes, || {
            let mut policy = ProgressPolicy { inner: policy, watch: self.watch };
            repair_cube(shown.inner(), &scope, &options, &mut policy)
        });
        let repair = match staged {
            Ok(repair) => repair,
            Err(error) => return self.stopped(&Stopped::Planning(error), &counted, out),
        };
        let onto = Overlay::new(&counted as &dyn ReadBlocks, opened.geometry.block_size);
        if repair.halted.is_none() {
            changes(&repair, &scope, &onto).with_context(named)?;
        }
        let of_lots = Cubes::of(&onto, &options.check).with_context(named)?.check_lots(&scope);
        let mut account = Account::new(&repair, &shown, named(), Ending::DryRun);
        if !self.dry_run {
            match self.commit(&|to| commit(&onto, &*device, to), fs_offset_bytes, &seen, &interrupt)
            {
                Ok(committed) => {
                    account.commands.extend(self.undo_command(&committed));
                    account.ending = self.written(committed);
                }
                Err(stopped) => return self.stopped(&stopped, &counted, out),
            }
        }
        let mut outcome = self.tell(account, None, &counted, started, out)?;
        let left = of_lots.0.iter().filter(|problem| problem.row().weight > Weight::Remark);
        for problem in left {
            outcome.damaged = true;
            message!(
                "floe: {}: left: {problem}; `floe repair` of the whole file system repairs it",
                named()
            );
        }
        Ok(outcome)
    }
}

impl RepairRun<'_> {
    /// `Err` where a repair of the whole file system, or a mount, must come first.
    fn refuse_early(
        &self,
        device: &dyn ReadBlocks,
        opened: &Opened,
        scope: &CubeScope,
        options: &RepairOptions<'_>,
    ) -> anyhow::Result<()> {
        let named = || self.source.name();
        if has_log_in_use(device, opened, scope.sub.cube) {
            bail!(
                "{}: the log of the cube is in use or waits to be weighed, because it is damaged: `floe repair` repairs the whole \
                 file system. Nothing was changed",
                named()
            );
        }
        if self.shares_files(device, &opened.superblock, scope, options)? {
            bail!(
                "{}: another system has written to it, and the cube shares files with others: `floe mount` moves them \
                 back, `floe repair` repairs the whole file system. Nothing was changed",
                named()
            );
        }
        if scope.map().has_fence() {
            bail!(
                "{}: free blocks of cubes are fenced (`floe cube fence`), which the next mount by Floe takes back. Nothing was \
                 changed",
                named()
            );
        }
        Ok(())
    }

    /// Whether a cube shares files with others. Where only a look at all files tells that, they are looked at.
    fn shares_files(
        &self,
        device: &dyn ReadBlocks,
        superblock: &Superblock,
        scope: &CubeScope,
        options: &RepairOptions<'_>,
    ) -> anyhow::Result<bool> {
        if !Identity::is_coupled(superblock) {
            return Ok(false);
        }
        if Identity::knows_couples(superblock) {
            return Ok(scope.sub.coupled.is_some());
        }
        let look = CheckOptions { journal: JournalUse::Ignore, ..options.check };
        let report = floe_check::check(device, &look).with_context(|| self.source.name())?;
        Ok(couples(&report.found).contains_key(&scope.sub.cube))
    }
}

/// Whether a mount has left something in the log of a cube: without that, blocks are older than what was acknowledged.
fn has_log_in_use(device: &dyn ReadBlocks, opened: &Opened, cube: u32) -> bool {
    let Opened { superblock, geometry, groups, .. } = opened;
    is_locked(superblock)
        && find_cubes(device, superblock, geometry, groups)
            .usable
            .iter()
            .any(|own| own.cube == cube && own.journal.needs_replay)
}
