//! Repairs an image damaged by a script of bytes. Shared by the test `fuzz_inputs` and the fuzz
//! target `repair_image` (`fuzz/`).
//!
//! Invariants for any damage: no panic and no endless loop; after a result of clean, a second run
//! finds and writes nothing; undo restores the damaged bytes, even after a repair that was not
//! written completely.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use floe_blockdev::{FaultMix, Faulty, MemDevice, ReadBlocks, UndoFile, WriteBlocks};
use floe_check::{CheckOptions, JournalUse};
use floe_repair::commit::{CommitError, CommitOptions, Committed, Seen, UndoTarget};
use floe_repair::policy::Yes;
use floe_repair::undo::{Standing, standing, undo};
use floe_repair::{Repair, RepairError, RepairOptions, repair};
use floe_testkit::damage::script::{Conditions, Maker, Stage, maker_of};
use floe_testkit::tool::{self, NOW};

mod made;

/// The stages used so far, one per profile because building one is slow; and a folder for undo
/// files.
pub(crate) struct Stages {
    of_maker: BTreeMap<Maker, Stage>,
    folder: tempfile::TempDir,
}

impl Default for Stages {
    #[allow(clippy::expect_used, reason = "a test needs a folder for its files")]
    fn default() -> Self {
        let folder = tool::scratch("floe-repaired-").expect("a scratch folder");
        Self { of_maker: BTreeMap::new(), folder }
    }
}

impl Stages {
    /// Repairs the image that `script` damages, repairs it again, and undoes it.
    ///
    /// Panics if an invariant is violated, or if the base image cannot be built.
    #[allow(clippy::expect_used, reason = "a test needs its base image")]
    pub(crate) fn repair(&mut self, script: &[u8]) {
        let maker = maker_of(script);
        let stage = self.of_maker.entry(maker).or_insert_with(|| made::stage(maker));
        let undo_path = self.folder.path().join("undo");
        stage
            .perform(script, |device, conditions| {
                let bytes = device.inner().to_vec().expect("the image can be read");
                once(bytes, device.block_bytes(), conditions, undo_path.clone());
            })
            .expect("the script applies to the image");
    }
}

/// One damaged image, from repair to undo.
fn once(before: Vec<u8>, block_bytes: u32, conditions: Conditions, undo_path: PathBuf) {
    let mix = FaultMix { unreadable: conditions.unreadable, ..FaultMix::default() };
    let device =
        Faulty::from_seed(MemDevice::new(before.clone()), block_bytes, conditions.seed, mix)
            .truncated(conditions.size_bytes);
    let whole = conditions.unreadable == 0 && conditions.size_bytes == before.len() as u64;
    let seen = Seen::of(&device);
    let Some(first) = staged(&device, 1, whole) else { return };
    let clean = first.is_clean() && first.left.is_empty();
    let written = write(&first, &device, &seen, Some(&undo_path));
    drop(first);
    match &written {
        Ok(written) if clean && whole => {
            assert!(written.not_saved.is_empty());
            nothing_is_left(&device);
        }
        Ok(_) => drop(staged(&device, 2, whole)),
        Err(error) => assert!(!whole, "{error}"),
    }
    undone(&device, &undo_path, &written, &before);
}

/// Stages a repair. `None`: the file system could not be examined.
fn staged<'d>(device: &'d dyn ReadBlocks, threads: usize, whole: bool) -> Option<Repair<'d>> {
    let check = CheckOptions {
        threads,
        journal: JournalUse::Replay,
        now_seconds: i64::from(NOW),
        ..CheckOptions::default()
    };
    let options = RepairOptions { check, random: [7; 16], ..RepairOptions::default() };
    match repair(device, &options, &mut Yes) {
        Ok(repair) => Some(repair),
        Err(RepairError::Check(_)) => None,
        Err(error) => {
            assert!(!whole, "a device without faults: {error}");
            None
        }
    }
}

fn write(
    repair: &Repair<'_>,
    device: &dyn WriteBlocks,
    seen: &Seen,
    undo: Option<&Path>,
) -> Result<Committed, CommitError> {
    let undo = undo.map(|path| UndoTarget { path, fs_offset_bytes: 0 });
    let (interrupt, progress) = (None, None);
    let options = CommitOptions { seen, undo, overwrite_unreadable: true, interrupt, progress };
    repair.commit(device, &options)
}

/// A second run must find and write nothing.
#[allow(clippy::expect_used, reason = "a clean file system can be examined")]
fn nothing_is_left(device: &dyn WriteBlocks) {
    let seen = Seen::of(&device);
    let reader: &dyn ReadBlocks = device;
    let second = staged(reader, 2, true).expect("a clean file system can be examined");
    assert!(second.before.is_clean(), "the second run finds: {:#?}", second.before.found);
    let deeds: Vec<_> = second.deeds.iter().filter(|deed| !deed.extra).collect();
    assert!(deeds.is_empty(), "the second run changes: {deeds:#?}");
    let written = write(&second, device, &seen, None).expect("it can be written");
    assert_eq!(written.bytes, 0, "written again");
}

/// Undo must restore all bytes that could be saved.
#[allow(clippy::expect_used, reason = "an undo file just written is valid")]
fn undone(
    device: &Faulty<MemDevice>,
    undo_path: &Path,
    written: &Result<Committed, CommitError>,
    before: &[u8],
) {
    let not_saved = match written {
        Ok(written) => written.not_saved.len(),
        Err(error) if error.nothing_written() => {
            assert!(!undo_path.exists(), "an undo file without any change");
            0
        }
        // The undo file does not tell which blocks could not be saved.
        Err(_) => usize::MAX,
    };
    if undo_path.exists() {
        let file = UndoFile::open(undo_path).expect("a good undo file");
        // Unreadable blocks cannot be compared either.
        let standing = standing(&file, device);
        assert!(not_saved > 0 || standing.as_ref().is_ok_and(|it| *it != Standing::Foreign));
        let undone = undo(&file, device);
        assert!(not_saved > 0 || undone.is_ok(), "{undone:?}");
        std::fs::remove_file(undo_path).expect("it is ours");
    }
    if not_saved == 0 {
        assert!(device.inner().holds(before), "undo restores other bytes");
    }
}
