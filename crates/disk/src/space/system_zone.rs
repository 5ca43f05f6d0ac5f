//! Blocks of the file system itself, which no file may lead to (`block_validity` of Linux).

use floe_ext4::group::{Groups, metadata_runs};
use floe_ext4::inode_table::is_lost;
use floe_ext4::tx::Refusal;
use floe_format::{BlockNr, BlockRun, GroupNr};

/// Superblocks, descriptors, bitmaps, inode tables and the journal. A map of a file that leads to one of them is damaged:
/// whoever followed it would write over them, or give them away as free.
#[derive(Debug)]
pub(crate) struct SystemZone {
    /// Sorted, disjoint.
    runs: Vec<BlockRun>,
    /// Two of the structures have a block in common.
    overlaps: bool,
}

impl SystemZone {
    /// The zones that the descriptors name. 16 bytes for each run; the tables and bitmaps of a flex group are one.
    pub(crate) fn of(groups: &Groups) -> Self {
        // Those of a kind are neighbours in a flex group: joined before they are sorted, they are few.
        let mut kinds: [Vec<BlockRun>; 6] = Default::default();
        let used = (0..).map(GroupNr).zip(groups.descs()).filter(|(_, desc)| !is_lost(desc));
        for (group, desc) in used {
            for (kind, run) in kinds.iter_mut().zip(metadata_runs(groups.geometry(), group, desc)) {
                match kind.last_mut() {
                    _ if run.len_blocks == 0 => {}
                    Some(last) if last.end() == run.start => last.len_blocks += run.len_blocks,
                    _ => kind.push(run),
                }
            }
        }
        let mut zone = Self { runs: Vec::new(), overlaps: false };
        zone.add(kinds.into_iter().flatten());
        zone
    }

    /// Adds runs, such as those of the journal.
    pub(crate) fn add(&mut self, runs: impl IntoIterator<Item = BlockRun>) {
        self.runs.extend(runs.into_iter().filter(|run| run.len_blocks > 0));
        self.runs.sort_unstable_by_key(|run| run.start);
        let overlaps = &mut self.overlaps;
        self.runs.dedup_by(|next, last| {
            *overlaps |= next.start < last.end();
            let joined = next.start <= last.end();
            if joined {
                last.len_blocks = last.end().max(next.end()).0 - last.start.0;
            }
            joined
        });
    }

    /// Whether two of the structures have a block in common: a change of one would destroy the other.
    pub(crate) const fn overlaps(&self) -> bool {
        self.overlaps
    }

    /// The first block from `start` on that is not in the zone.
    pub(crate) fn end_from(&self, start: BlockNr) -> BlockNr {
        let behind = self.runs.partition_point(|own| own.start <= start);
        let own = behind.checked_sub(1).and_then(|at| self.runs.get(at));
        own.map_or(start, |own| own.end().max(start))
    }

    /// Refuses blocks of a file that lie in the zone.
    ///
    /// # Errors
    /// [`Refusal::Damaged`].
    pub(crate) fn refuse(&self, run: BlockRun) -> Result<(), Refusal> {
        let behind = self.runs.partition_point(|own| own.start < run.end());
        match behind.checked_sub(1).and_then(|at| self.runs.get(at)) {
            Some(own) if own.end() > run.start => Err(Refusal::Damaged(
                "the map of a file, which leads to blocks of the file system itself,",
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_refused_where_it_meets_the_zone() {
        let run = |start, len| BlockRun::new(BlockNr(start), len);
        let mut zone = SystemZone { runs: Vec::new(), overlaps: false };
        zone.add([run(100, 4), run(50, 10), run(60, 5), run(70, 0)]);
        assert_eq!(zone.runs, [run(50, 15), run(100, 4)]);
        assert!(!zone.overlaps());
        assert_eq!([49, 50, 64, 65].map(|at| zone.end_from(BlockNr(at)).0), [49, 65, 65, 65]);
        for (start, len, refused) in [
            (0, 50, false),
            (0, 51, true),
            (64, 1, true),
            (65, 35, false),
            (65, 36, true),
            (40, 100, true),
            (103, 1, true),
            (104, 9, false),
        ] {
            assert_eq!(zone.refuse(run(start, len)).is_err(), refused, "{start} {len}");
        }
        zone.add([run(103, 2)]);
        assert!(zone.overlaps());
    }
}
