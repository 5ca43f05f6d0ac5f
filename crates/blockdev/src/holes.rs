//! Where a sparse file has data and where it has holes, learned on demand.

use floe_sync::{PoisonError, RwLock};
use std::collections::BTreeMap;
use std::fs::File;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Runs remembered at most: about 3 MiB. A file more fragmented than that is asked again.
const MOST_RUNS: usize = 1 << 16;

/// A stretch of a file that is all data or all hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    is_hole: bool,
}

/// What is known of one file's holes. Threads share it; asking twice costs one system call.
#[derive(Debug)]
pub(crate) struct HoleMap {
    size_bytes: u64,
    /// By the byte after the run: that end is exact, while the start is only where somebody first
    /// asked, and grows downwards.
    runs: RwLock<BTreeMap<u64, Run>>,
}

impl HoleMap {
    /// Nothing known yet of a file of `size_bytes`.
    pub(crate) const fn new(size_bytes: u64) -> Self {
        Self { size_bytes, runs: RwLock::new(BTreeMap::new()) }
    }

    /// Whether `len_bytes` from `offset_bytes` on are all hole. An empty range is none, and
    /// neither is one that passes the end of the file.
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
        // A poisoned lock only says that another thread panicked; the map has no half-done state.
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
        // Same end and same kind: one run, asked for at two places.
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

/// The run at `offset_bytes` (inside the file) and where it ends, from the system.
///
/// Moves the position of the open file, which nothing here reads: all input is positioned.
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
            // "Data, but of no length" is no answer to build on: take the rest as data.
            Ok(_) | Err(_) => data(size_bytes),
        },
        // No data from here to the end.
        Err(Errno::NXIO) => hole(size_bytes),
        // The file system cannot say: everything is data, which is always right.
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
        /// Whatever is asked in whatever order, the remembered answer is the system's, and a hole
        /// reads as zeroes.
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
