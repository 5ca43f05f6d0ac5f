//! Cubes that are checked and repaired while the others are served: the cube is taken away from its users, looked at through the
//! disk as all changes left it, and brought back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use floe_blockdev::{Overlay, ReadBlocks, UndoWriter, UndoWriterOptions, WriteBlocks};
use floe_check::cube::{CubeName, CubeScope, Cubes, check_shown};
use floe_check::problem::Weight;
use floe_check::{CheckOptions, Problem, Report};
use floe_disk::ops::{Caller, OpError, panic_message};
use floe_format::BlockNr;
use floe_format::ext::superblock::OFFSET_BYTES;
use floe_format::native::cube::State;
use floe_repair::RepairOptions;
use floe_repair::cube::{changes, repair_cube};
use floe_repair::policy::Yes;

use super::Live;
use crate::FsError;
use crate::cubes::{Job, Mode};
use crate::memory::Above;

/// The end of a check or a repair of a cube.
struct Done {
    report: String,
    /// Nothing is wrong with the cube now.
    is_sound: bool,
}

impl<D: WriteBlocks> Live<'_, '_, D> {
    /// Checks and repairs cubes for which that was asked for. Returns those whose blocks were changed, of which nothing that is
    /// kept is true any more.
    pub(super) fn run_jobs(&self, above: &Above<'_>) -> Vec<u32> {
        let mut changed = Vec::new();
        while let Some(job) = self.gates.next_job() {
            let (cube, mut has_changed) = (job.cube, false);
            let run = AssertUnwindSafe(|| self.run_job(&job, above, &mut has_changed));
            let report = match catch_unwind(run) {
                Ok(Ok(report)) => report,
                Ok(Err(why)) => {
                    if job.repairs {
                        self.gates.note_refused(cube, &why);
                    }
                    format!("failed: {why}\n")
                }
                Err(panic) => {
                    let why = panic_message(&*panic);
                    self.image.forget_all();
                    (above.forget)(cube);
                    self.fail_cube(cube, format!("a fault of Floe itself in its check: {why}"));
                    self.gates.bring_back(cube, false);
                    format!("failed: {why}\n")
                }
            };
            if has_changed {
                changed.push(cube);
                self.note_stale_top(cube);
            }
            self.gates.set_report(cube, report);
        }
        changed
    }

    fn run_job(
        &self,
        job: &Job,
        above: &Above<'_>,
        has_changed: &mut bool,
    ) -> Result<String, String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        if self.work().volume.lost_cubes().contains_key(&job.cube) {
            let why = "its group descriptors are damaged, which `floe repair --cube` or `floe repair` mends with the file system unmounted";
            return Err(why.to_owned());
        }
        if self.gates.waits(job.cube) {
            let why = "its log waits to be weighed, which `floe repair` does with the file system unmounted";
            return Err(why.to_owned());
        }
        let others = self.gates.coupled_with(job.cube);
        if !others.is_empty() {
            let others: Vec<String> = others.iter().map(u32::to_string).collect();
            return Err(format!(
                "it shares files with cube {} since another system has written, so they are checked together: \
                 unmounted, by `floe check` and `floe repair`",
                others.join(", ")
            ));
        }
        let mode = if job.repairs { Mode::Away } else { Mode::Checked };
        self.gates.take(job.cube, mode).map_err(|error| text(&error))?;
        let settled = (above.settle)(job.cube).map_err(|error| text(&error));
        let done = settled.and_then(|()| self.look(job, has_changed));
        if *has_changed {
            // Before anybody is let in again.
            self.image.forget_all();
            (above.forget)(job.cube);
        }
        let is_sound = done.as_ref().is_ok_and(|done| done.is_sound);
        let had_failed = self.gates.has_failed(job.cube);
        if is_sound && had_failed {
            // If it cannot be recorded, the next mount takes the cube for a failed one, which is safe.
            let _ = self.note_state(job.cube, State::Sound);
        }
        self.gates.bring_back(job.cube, is_sound);
        if let Ok(done) = &done
            && !is_sound
            && let Some(finding) = done.report.lines().nth(1)
        {
            self.fail_cube(job.cube, format!("a check found {finding}"));
        }
        done.map(|done| done.report)
    }

    /// Checks a cube that nobody uses, and repairs it if that is wanted.
    fn look(&self, job: &Job, has_changed: &mut bool) -> Result<Done, String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        if job.repairs {
            // An undo file is about what a crash would leave. A check reads through the journal, and leaves the others their flushes.
            self.make_durable().map_err(|error| text(&error))?;
        }
        let options = CheckOptions { now_seconds: crate::now().seconds, ..CheckOptions::default() };
        let cubes = Cubes::of(self.disk, &options).map_err(|error| text(&error))?;
        let scope = cubes.find(&CubeName::Number(job.cube)).map_err(|error| text(&error))?;
        let report = self.checked(&cubes, &scope, &options)?;
        if report.is_clean() || !job.repairs {
            return Ok(Done {
                report: lines(&report, if report.is_clean() { "sound" } else { "damaged" }),
                is_sound: report.is_clean(),
            });
        }
        let blocks = self.repair_taken(&cubes, &scope, job.undo.as_deref())?;
        *has_changed = blocks > 0;
        let cubes = Cubes::of(self.disk, &options).map_err(|error| text(&error))?;
        let scope = cubes.find(&CubeName::Number(job.cube)).map_err(|error| text(&error))?;
        let after = self.checked(&cubes, &scope, &options)?;
        let state = if after.is_clean() { "repaired" } else { "damage is left" };
        let mut report = lines(&report, state);
        report.push_str(&format!("changed: {blocks} blocks\n"));
        Ok(Done { report, is_sound: after.is_clean() })
    }

    /// The damage of a cube, besides the record of its failure.
    fn checked(
        &self,
        cubes: &Cubes<'_>,
        scope: &CubeScope,
        options: &CheckOptions<'_>,
    ) -> Result<Report, String> {
        let checked = check_shown(cubes, scope, options);
        let mut report = checked.map_err(|error| error.to_string())?;
        report.found.retain(|problem| !matches!(problem, Problem::CubeFailureRecorded { .. }));
        Ok(report)
    }

    /// Repairs a cube in one transaction. Returns how many blocks were changed.
    fn repair_taken(
        &self,
        cubes: &Cubes<'_>,
        scope: &CubeScope,
        undo: Option<&Path>,
    ) -> Result<usize, String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        let mut options = RepairOptions::default();
        options.check.now_seconds = crate::now().seconds;
        let shown = cubes.device(scope);
        let repair =
            repair_cube(&shown, scope, &options, &mut Yes).map_err(|error| text(&error))?;
        let size = scope.geometry().block_size;
        let onto = Overlay::new(self.disk, size);
        changes(&repair, scope, &onto).map_err(|error| text(&error))?;
        // The superblock is that of the mount, whose totals follow from the descriptors when it ends.
        let superblock = OFFSET_BYTES / u64::from(size);
        let ranges = onto.staged_ranges().into_iter();
        let blocks = ranges
            .flat_map(|range| range.start / u64::from(size)..range.end.div_ceil(u64::from(size)));
        let (mut new, mut old) = (vec![0; size as usize], vec![0; size as usize]);
        let mut pages = Vec::new();
        for block in blocks.filter(|block| *block != superblock) {
            let offset = block * u64::from(size);
            onto.read_at(offset, &mut new).map_err(|error| text(&error))?;
            // A block that cannot be read is written anew.
            if self.disk.read_at(offset, &mut old).is_err() || old != new {
                pages.push((BlockNr(block), new.clone()));
            }
        }
        if let Some(path) = undo {
            self.save(&pages, size, path)?;
        }
        self.write_pages(&pages).map_err(|error| text(&error))?;
        Ok(pages.len())
    }

    /// Saves the blocks as they are in a new undo file.
    fn save(&self, pages: &[(BlockNr, Vec<u8>)], size: u32, path: &Path) -> Result<(), String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        let mut superblock_after = [0; 1024];
        self.disk.read_at(OFFSET_BYTES, &mut superblock_after).map_err(|error| text(&error))?;
        let options = UndoWriterOptions { block_bytes: size, fs_offset_bytes: 0, superblock_after };
        let mut writer = UndoWriter::create(path, &options).map_err(|error| text(&error))?;
        let mut old = vec![0; size as usize];
        for (block, _) in pages {
            let offset = block.0 * u64::from(size);
            if self.disk.read_at(offset, &mut old).is_ok() {
                writer.save(offset, &old).map_err(|error| text(&error))?;
            }
        }
        writer.finish().map_err(|error| text(&error))?;
        Ok(())
    }

    /// Writes blocks as one transaction, and reads the volume anew.
    fn write_pages(&self, pages: &[(BlockNr, Vec<u8>)]) -> Result<(), FsError> {
        self.run_once(|volume, tx| {
            if pages.len() > volume.most_changed_blocks() {
                return Err(OpError::TooLong);
            }
            for (block, bytes) in pages {
                tx.zeroed(*block)?.copy_from_slice(bytes);
            }
            Ok(())
        })?;
        self.make_durable()?;
        let disk = self.disk;
        self.run_once(|volume, tx| volume.reopen(disk, tx))
    }

    /// Records the state of a cube.
    pub(super) fn note_state(&self, cube: u32, state: State) -> Result<(), FsError> {
        let caller = Caller::system(crate::now());
        self.run_once(|volume, tx| volume.note_cube_state(tx, &caller, cube, state))
    }
}

/// The result of a check as lines: its state, then what was found.
fn lines(report: &Report, state: &str) -> String {
    let damage = report.found.iter().filter(|problem| problem.row().weight > Weight::Remark);
    let mut text = format!("state: {state}\n");
    for problem in damage {
        let path = report.path_of(problem).map_or_else(String::new, |path| format!(" ({path})"));
        text.push_str(&format!("finding: {}: {problem}{path}\n", problem.row().id));
    }
    text
}
