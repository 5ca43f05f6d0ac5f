//! A cube that is damaged at random and repaired while another one is served: one that the repair calls sound is clean for the check
//! of all and for e2fsck, whatever was damaged in it, and the other one has noticed nothing. `FLOE_SEED` says where to begin,
//! `FLOE_SEEDS` how many.

use floe_blockdev::MemDevice;
use floe_check::problem::Weight;
use floe_check::{CheckOptions, check};
use floe_format::native::cube::{Policies, Recovery};
use floe_format::{BlockNr, InodeNr};
use floe_fs::{CubeCall, Disk, FsError, Which};
use floe_testkit::damage::damage_among;
use floe_testkit::volume::{Place, Volume};
use floe_testkit::{Contents, Image, oracle, tool};

use super::scope;
use super::struck::{BLOCK, Tenants, find, laid_out, load, used};

/// Damages structures of the cube `a`.
fn hurt(image: &Image, bytes: &[u8], seed: u64) -> String {
    let scope = scope(&MemDevice::new(bytes.to_vec()));
    let is_own = |volume: &Volume<'_>, place: Place| {
        let at = volume.range_of(place).map_or(0, |(at, _)| BLOCK.max(at) / BLOCK);
        !matches!(place, Place::Superblock | Place::Backup(_)) && scope.holds_block(BlockNr(at))
    };
    damage_among(image, seed, is_own).unwrap().to_string()
}

/// Serves a device, uses both cubes, lets `a` be repaired and uses both again: the report, and faults that were met afterwards.
fn served(device: &MemDevice, what: &str) -> (String, Vec<FsError>) {
    let (ended, closed) = used(device, |fs| {
        let b = find(fs, InodeNr::ROOT, "b").unwrap();
        if let Ok(a) = find(fs, InodeNr::ROOT, "a") {
            let _ = load(fs, a, 0);
        }
        let failed = load(fs, b, 0);
        assert!(failed.is_empty(), "{what}: {failed:?}");
        let call = CubeCall::Check { cube: Which::Number(1), repairs: true, undo: None };
        let asked = fs.cube_call(&call);
        fs.tend().unwrap();
        let report = fs.cube_call(&CubeCall::Report(Which::Number(1))).unwrap();
        let failed = load(fs, b, 1);
        assert!(failed.is_empty(), "{what}: {failed:?}");
        let met = find(fs, InodeNr::ROOT, "a").map_or_else(|error| vec![error], |a| load(fs, a, 1));
        (format!("{asked:?} {}", String::from_utf8_lossy(&report)), met)
    });
    // It tells losses of the failed cube.
    let _ = closed;
    ended
}

fn hold(layout: Tenants, recovery: Recovery, seeds: u64) {
    if tool::missing() {
        return;
    }
    let base = laid_out(layout, Policies { recovery, ..Policies::default() });
    let given = |name, other| std::env::var(name).map_or(other, |text| text.parse().unwrap());
    let (first, seeds) = (given("FLOE_SEED", 0), given("FLOE_SEEDS", seeds));
    let whole = Contents::of(&MemDevice::new(base.clone())).unwrap();
    let (mut sound, mut wrong) = (0, Vec::new());
    for seed in first..first + seeds {
        let image = whole.to_image().unwrap();
        let what = format!("seed {seed}: {}", hurt(&image, &base, seed));
        let device = MemDevice::new(image.to_vec().unwrap());
        if Disk::open(&device.clone()).is_err() {
            // Descriptors that lead elsewhere; a repair of the unmounted image mends them.
            continue;
        }
        let (report, met) = served(&device, &what);
        if !report.contains("state: repaired") && !report.contains("state: sound") {
            continue;
        }
        sound += 1;
        // Content that was lost reads as zeroes; nothing is refused any more.
        let is_fault = |error: &&FsError| {
            matches!(
                error,
                FsError::Damaged { .. } | FsError::ReadOnly | FsError::CubeFailed { .. }
            )
        };
        let faults: Vec<&FsError> = met.iter().filter(is_fault).collect();
        let mut found = check(&device, &CheckOptions::default()).unwrap().found;
        found.retain(|problem| problem.row().weight > Weight::Remark);
        image.write(0, &device.to_vec()).unwrap();
        let judged = oracle::e2fsck(&image).unwrap();
        if !faults.is_empty() || !found.is_empty() || !judged.clean() {
            let text = judged.text;
            wrong.push(format!("{what}: {report}: {faults:?}, {found:?}, {text}"));
        }
    }
    println!("{sound} of {seeds}");
    assert!(wrong.is_empty(), "{} of {sound}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(sound * 10 >= seeds * 7, "{sound} of {seeds}");
}

#[test]
fn a_cube_that_was_repaired_online_is_clean_for_all() {
    hold(Tenants::Shared, Recovery::Manual, 20);
}

#[test]
fn a_cube_with_a_journal_that_was_repaired_online_is_clean_for_all() {
    hold(Tenants::Apart, Recovery::Online, 20);
}
