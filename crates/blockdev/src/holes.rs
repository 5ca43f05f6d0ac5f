//! The data and hole runs of a sparse file, looked up on demand.

use floe_sync::{PoisonError, RwLock};
use std::collections::BTreeMap;
use std::fs::File;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Cached runs, at most: about 3 MiB. For a more fragmented file, the system is asked again.
const MOST_RUNS: usize = 1 << 16;

/// A run of a file that is all data or all hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    is_hole: bool,
}

/// The cached runs of one file. Threads share it; if two ask for the same run, the system is asked
/// twice.
#[derive(Debug)]
pub(crate) struct HoleMap {
    size_bytes: u64,
    /// Keyed by the byte after the run. The end is exact; the start is the lowest offset asked for
    /// so far, and moves down with later queries.
    runs: RwLock<BTreeMap<u64, Run>>,
}

impl HoleMap {
    /// An empty cache for a file of `size_bytes`.
    pub(crate) const fn new(size_bytes: u64) -> Self {
        Self { size_bytes, runs: RwLock::new(BTreeMap::new()) }
    }

    /// Whether all `len_bytes` from `offset_bytes` on are holes. `false` for an empty range and for
    /// one that passes the end of the file.
    pub(crate) fn covers(&self, file: &File, offset_bytes: u64, len_bytes: u64) -> bool {
        let Some(end) = offset_bytes.checked_add(len_bytes) else { return false };
        if len_bytes == 0 || end > self.size_bytes {
            return false;
        }
        let (run_end, run) =
            self.known(offset_bytes).unwrap_or_else(|| self.learn(file, offset_bytes));
        run.is_hole && end <= run_end
    }

    fn known(&self, offset_bytes: u64) -> Option<(u64, Run)> {
        // A poisoned lock means only that another thread panicked; the map is never half updated.
        let runs = self.runs.read().unwrap_or_else(PoisonError::into_inner);
        let (&end, &run) = runs.range(offset_bytes.checked_add(1)?..).next()?;
        (run.start <= offset_bytes).then_some((end, run))
    }

    fn learn(&self, file: &File, offset_bytes: u64) -> (u64, Run) {
        let (end, found) = ask(file, offset_bytes, self.size_bytes);
        let mut runs = self.runs.write().unwrap_or_else(PoisonError::into_inner);
        if runs.len() >= MOST_RUNS {
            runs.clear();
        }
        let run = runs.entry(end).or_insert(found);
        // Same end and same kind: one run, queried at two offsets.
        if run.is_hole == found.is_hole {
            run.start = run.start.min(found.start);
        } else {
            *run = found;
        }
        (end, *run)
    }

    #[cfg(test)]
    pub(crate) fn known_runs(&self) -> usize {
        self.runs.read().unwrap().len()
    }
}

/// Asks the system for the run at `offset_bytes` (inside the file) and its end.
///
/// Moves the position of the open file, which nothing here uses: all reads are positioned.
pub(crate) fn is_hole_now(file: &File, size_bytes: u64, offset_bytes: u64, len_bytes: u64) -> bool {
    let Some(end) = offset_bytes.checked_add(len_bytes) else { return false };
    if len_bytes == 0 || end > size_bytes {
        return false;
    }
    let (run_end, run) = ask(file, offset_bytes, size_bytes);
    run.is_hole && end <= run_end
}

fn ask(file: &File, offset_bytes: u64, size_bytes: u64) -> (u64, Run) {
    let data = |end: u64| (end, Run { start: offset_bytes, is_hole: false });
    let hole = |end: u64| (end, Run { start: offset_bytes, is_hole: true });
    match seek(file, SeekFrom::Data(offset_bytes)) {
        Ok(next) if next > offset_bytes => hole(next.min(size_bytes)),
        Ok(_) => match seek(file, SeekFrom::Hole(offset_bytes)) {
            Ok(next) if next > offset_bytes => data(next.min(size_bytes)),
            // A data run of length zero is unusable: treat the rest of the file as data.
            Ok(_) | Err(_) => data(size_bytes),
        },
        // No data from here to the end.
        Err(Errno::NXIO) => hole(size_bytes),
        // The file system does not support the query: treat everything as data, which is always
        // correct.
        Err(_) => data(size_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileDevice, ReadBlocks};
    use proptest::prelude::*;
    use std::os::unix::fs::FileExt;

    const BLOCK: u64 = 4096;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// In any order of queries, the cached answer equals the system's, and a hole reads as
        /// zeroes.
        #[test]
        fn remembered_answers_are_the_systems(
            written in proptest::collection::btree_set(0u64..64, 0..20),
            questions in proptest::collection::vec((0u64..66 * BLOCK, 0u64..5 * BLOCK), 1..60),
        ) {
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(64 * BLOCK).unwrap();
            for block in &written {
                file.as_file().write_all_at(&[0xa5; BLOCK as usize], block * BLOCK).unwrap();
            }
            let device = FileDevice::open(file.path()).unwrap();
            for (offset, len) in questions {
                let said = device.is_hole(offset, len);
                prop_assert_eq!(said, is_hole_now(file.as_file(), 64 * BLOCK, offset, len));
                if said {
                    let mut bytes = vec![1; len as usize];
                    device.read_at(offset, &mut bytes).unwrap();
                    prop_assert!(bytes.iter().all(|&byte| byte == 0));
                }
            }
        }
    }
}
