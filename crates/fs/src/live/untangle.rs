//! After a system that does not know cubes has written: blocks of files that it put into other cubes move back. Cubes between which
//! anything else leads, or that have no room for that, are coupled: they fail together.

use std::collections::{BTreeMap, BTreeSet};

use floe_blockdev::WriteBlocks;
use floe_check::cube::couples;
use floe_check::problem::{Object, Weight};
use floe_check::{CheckOptions, JournalUse, Problem, check};
use floe_disk::ops::Caller;
use floe_format::InodeNr;
use floe_format::words::agree;

use super::Live;
use crate::{FsError, Timestamp};

/// The references from one cube into another.
#[derive(Default)]
struct Tangle {
    /// Inodes with blocks in other cubes.
    files: BTreeSet<InodeNr>,
    /// Cubes that lead into each other, each with the smallest number among them.
    couples: BTreeMap<u32, u32>,
    /// Parts of the file system cannot be followed, so there may be more.
    is_partial: bool,
}

impl<D: WriteBlocks> Live<'_, '_, D> {
    /// Moves back what can be moved, if another system has written since Floe last looked, and finds out which cubes are coupled.
    /// Nothing of that is needed to serve: a failure leaves cubes coupled.
    pub(super) fn untangle(&self, now: Timestamp) {
        let (is_coupled, is_known) = {
            let work = self.work();
            (work.volume.is_coupled() && work.volume.has_cubes(), work.volume.knows_couples())
        };
        if !is_coupled || self.faults.is_read_only() {
            return;
        }
        let subs = self.subs(None);
        if is_known {
            let known = subs.iter().filter_map(|sub| Some((sub.cube, sub.coupled?)));
            self.gates.set_couples(known.collect());
            return;
        }
        let Ok(before) = self.tangle() else {
            // All may lead into all.
            self.gates.set_couples(subs.iter().map(|sub| (sub.cube, 0)).collect());
            let line = "another system has written, and its files cannot be looked through: all cubes fail together";
            self.gates.tell(line.to_owned());
            return;
        };
        let moved = self.move_back(&before, now);
        let after = if moved > 0 { self.tangle() } else { Ok(before) };
        let done = after.and_then(|left| self.couple(&left, now));
        if let Err(error) = done {
            self.gates.tell(format!("it is not recorded which cubes share files: {error}"));
        }
    }

    /// Looks at all files.
    fn tangle(&self) -> Result<Tangle, FsError> {
        let now_seconds = crate::now().seconds;
        let journal = JournalUse::Ignore;
        let options = CheckOptions { now_seconds, journal, ..CheckOptions::default() };
        let report = check(self.disk, &options);
        let report = report.map_err(|error| FsError::Ended(error.to_string()))?;
        let mut tangle = Tangle { couples: couples(&report.found), ..Tangle::default() };
        for problem in &report.found {
            match problem {
                Problem::CubeEntangledBlocks { inode, .. } => drop(tangle.files.insert(*inode)),
                problem => {
                    let row = problem.row();
                    // Totals and bitmaps lead nowhere.
                    let leads = !matches!(
                        row.object,
                        Object::Superblock | Object::Group | Object::Bitmap | Object::Orphan
                    );
                    tangle.is_partial |= leads && row.weight > Weight::Remark;
                }
            }
        }
        Ok(tangle)
    }

    /// Moves blocks of files into their cubes; returns how many. A file for which there is no room, or that is damaged, stays.
    fn move_back(&self, tangle: &Tangle, now: Timestamp) -> u64 {
        let caller = Caller::system(now);
        let (mut blocks, mut files, mut left) = (0, 0, 0);
        for inode in &tangle.files {
            let done = loop {
                self.image.forget(*inode);
                let moved =
                    self.run(*inode, |volume, tx| volume.move_home(tx, self.disk, &caller, *inode));
                match moved {
                    Ok(moved) => {
                        blocks += moved.blocks;
                        if moved.is_done {
                            break true;
                        }
                    }
                    Err(_) => break false,
                }
            };
            *(if done { &mut files } else { &mut left }) += 1;
        }
        if blocks > 0 || left > 0 {
            let moved = format!(
                "{blocks} blocks of {files} files moved back into their cubes, {left} files left"
            );
            self.gates.tell(format!("another system has written: {}", agree(&moved)));
        }
        blocks
    }

    /// Lets cubes fail together that lead into each other, and records that; without any, references are judged again.
    fn couple(&self, tangle: &Tangle, now: Timestamp) -> Result<(), FsError> {
        self.make_durable()?;
        let caller = Caller::system(now);
        let couples = &tangle.couples;
        self.gates.set_couples(couples.clone());
        for sub in self.subs(None) {
            let coupled = couples.get(&sub.cube).copied();
            if coupled != sub.coupled {
                self.run_once(|volume, tx| volume.couple_cube(tx, &caller, sub.cube, coupled))?;
            }
        }
        self.make_durable()?;
        for (cube, least) in couples {
            let others: Vec<String> =
                self.gates.coupled_with(*cube).iter().map(u32::to_string).collect();
            let others = others.join(", ");
            if cube == least || *least == 0 {
                self.gates.tell(format!(
                    "another system has written: cube {cube} shares files with cube {others} (0: outside of cubes), and fails with it"
                ));
            }
        }
        if couples.is_empty() && !tangle.is_partial {
            self.run_once(|volume, tx| volume.uncouple(tx, &caller))?;
            self.tell_owners(&self.work());
        } else {
            self.run_once(|volume, tx| volume.note_couples_known(tx, &caller))?;
        }
        self.make_durable()
    }
}
