//! Plans that are saved and staged again, damaged plans, and devices that changed.

use std::fs;
use std::path::{Path, PathBuf};

use floe_blockdev::ReadBlocks;
use floe_repair::plan_file::{PlanFileError, save, stage};
use floe_repair::policy::Yes;
use floe_repair::{RepairOptions, repair};
use floe_testkit::{Image, Profile, build, tool};
use proptest::prelude::*;

/// A damaged image, the bytes of its repair, and its plan in a folder.
struct Planned {
    image: Image,
    repaired: Vec<u8>,
    folder: tempfile::TempDir,
}

impl Planned {
    fn new() -> Option<Self> {
        if tool::missing() {
            return None;
        }
        let image = build::base(Profile::by_name("ext4-1k").unwrap()).unwrap();
        build::debugfs(&image, "clri <12>\nclri <13>\nsif <15> links_count 7\n").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let staged = repair(&image, &RepairOptions::default(), &mut Yes).unwrap();
        let header = save(&staged, &image, &folder.path().join("plan")).unwrap();
        assert!(header.clean && header.repaired && header.pages > 3, "{header:?}");
        let mut repaired = vec![0; image.size() as usize];
        staged.staged.read_at(0, &mut repaired).unwrap();
        drop(staged);
        Some(Self { image, repaired, folder })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("plan")
    }

    /// The image with the plan at `path` applied.
    fn staged(&self, path: &Path) -> Result<Vec<u8>, PlanFileError> {
        let (_, staged) = stage(path, &self.image, 1 << 20)?;
        let mut bytes = vec![0; self.image.size() as usize];
        staged.staged.read_at(0, &mut bytes).unwrap();
        Ok(bytes)
    }
}

#[test]
fn a_plan_is_the_repair() {
    let Some(planned) = Planned::new() else { return };
    assert!(planned.staged(&planned.path()).unwrap() == planned.repaired);
    let staged = repair(&planned.image, &RepairOptions::default(), &mut Yes).unwrap();
    let again = save(&staged, &planned.image, &planned.path());
    assert!(matches!(again, Err(PlanFileError::File { .. })), "an old plan is never replaced");
}

#[test]
fn a_device_that_changed_is_refused() {
    let Some(planned) = Planned::new() else { return };
    let before = planned.image.to_vec().unwrap();
    // Any byte of a block to be written, or of the superblock.
    let differing: Vec<usize> =
        (0..before.len()).filter(|&at| before[at] != planned.repaired[at]).collect();
    let places = [differing[0], differing[differing.len() / 2], differing[differing.len() - 1]];
    for at in places.into_iter().chain([1024 + 0x78]) {
        planned.image.write(at as u64, &[before[at] ^ 1]).unwrap();
        let refused = planned.staged(&planned.path());
        assert!(matches!(refused, Err(PlanFileError::Changed { .. })), "{at}: {refused:?}");
        planned.image.write(at as u64, &[before[at]]).unwrap();
    }
    // The superblock is compared by itself, whether or not the plan writes to its block.
    planned.image.write(1024 + 0x78, &[before[1024 + 0x78] ^ 1]).unwrap();
    let refused = planned.staged(&planned.path()).unwrap_err();
    assert!(refused.to_string().contains("its superblock differs"), "{refused}");
    planned.image.write(1024 + 0x78, &[before[1024 + 0x78]]).unwrap();
    assert!(planned.staged(&planned.path()).is_ok());
    let mut other = planned.image.copy().unwrap();
    other.set_size(planned.image.size() + 1024).unwrap();
    assert!(matches!(stage(&planned.path(), &other, 1 << 20), Err(PlanFileError::Changed { .. })));
}

#[test]
fn a_plan_that_is_damaged_anywhere_is_refused() {
    let Some(planned) = Planned::new() else { return };
    let plan = fs::read(planned.path()).unwrap();
    let other = planned.folder.path().join("other");
    let step = (plan.len() / 400).max(1);
    let header_and_some = (0..200).chain((200..plan.len()).step_by(step));
    for at in header_and_some.chain(plan.len() - 24..plan.len()) {
        let mut bytes = plan.clone();
        bytes[at] ^= 0x10;
        fs::write(&other, bytes).unwrap();
        assert!(planned.staged(&other).is_err(), "byte {at}");
    }
    for len in (0..200).chain([plan.len() / 2, plan.len() - 1]) {
        fs::write(&other, &plan[..len]).unwrap();
        assert!(planned.staged(&other).is_err(), "cut to {len}");
    }
    let mut longer = plan.clone();
    longer.push(0);
    fs::write(&other, longer).unwrap();
    assert!(planned.staged(&other).is_err(), "something follows");
    let mut newer = plan;
    newer[8] = 3;
    fs::write(&other, newer).unwrap();
    let refused = planned.staged(&other).unwrap_err();
    assert!(matches!(refused, PlanFileError::Version { version: 3, .. }), "{refused}");
    assert!(refused.to_string().ends_with("version 3 (supported: 1 and 2)"), "{refused}");
}

proptest! {
    #[test]
    fn any_bytes_are_survived(mut bytes in prop::collection::vec(any::<u8>(), 0..600), like: bool) {
        if like && bytes.len() > 12 {
            bytes[..8].copy_from_slice(b"FLOEPLAN");
            bytes[8..12].copy_from_slice(&1u32.to_le_bytes());
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        let device = floe_blockdev::MemDevice::new(vec![0; 8192]);
        prop_assert!(stage(file.path(), &device, 1 << 20).is_err());
    }
}
