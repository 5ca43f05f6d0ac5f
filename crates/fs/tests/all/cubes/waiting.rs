//! Changes that wait in memory while their cube fails, is repaired or is full: each cube keeps or drops its own.

use floe_blockdev::{MemDevice, WriteBlocks};
use floe_check::{CheckOptions, check};
use floe_format::InodeNr;
use floe_format::native::cube::{OnError, Policies, Recovery};
use floe_fs::{CubeCall, FileSystem, FsError, Lower, MemFs, Mode, NewInode, Settings, Store as _};

use super::struck::{BLOCK, FILES, Tenants, at, find, laid_out, make, read, used, write};
use super::{faults, scope};

/// Files in each zone that wait: durable ones with the bytes `1`, and others.
fn fill<L: Lower>(fs: &FileSystem<MemFs<L>>) {
    for zone in ["/a", "/b", "/"] {
        let top = at(fs, zone).unwrap();
        let synced = make(fs, top, "synced", NewInode::regular(0o644)).unwrap();
        write(fs, synced, 0, &[1; 5000]).unwrap();
        fs.sync_inode(synced, None).unwrap();
        write(fs, synced, 0, &[2; 5000]).unwrap();
        let waits = make(fs, top, "waits", NewInode::regular(0o644)).unwrap();
        write(fs, waits, 0, &[3; 5000]).unwrap();
    }
    assert!(fs.store().waiting_records() >= 3, "{} wait", fs.store().waiting_records());
}

/// Meets damage in `/a`.
fn meet_damage<L: Lower>(fs: &FileSystem<MemFs<L>>) {
    let a = at(fs, "/a").unwrap();
    let met = (0..FILES).any(|number| {
        let name = format!("file{number}{}", "-".repeat(180));
        let found = find(fs, a, &name);
        let found = found.and_then(|file| fs.extended_attribute(file, b"user.long").map(drop));
        matches!(found, Err(FsError::Damaged { .. }))
    });
    assert!(met, "nobody met the damage");
}

fn damaged(layout: Tenants, policies: Policies) -> MemDevice {
    let device = MemDevice::new(laid_out(layout, policies));
    let places = faults::structures(&device, layout);
    let block = places.iter().find(|(what, _)| *what == "attribute block").unwrap().1;
    device.write_at(block * BLOCK + 40, b"damage").unwrap();
    device
}

/// The first bytes of the two files of a zone; `None` for one that is not there.
fn found<L: Lower>(fs: &FileSystem<MemFs<L>>, zone: &str) -> [Option<u8>; 2] {
    let top = at(fs, zone).unwrap();
    ["synced", "waits"].map(|name| {
        let file = find(fs, top, name).ok()?;
        let bytes = read(fs, file, 9000).unwrap();
        assert!(bytes.len() == 5000 && bytes.iter().all(|byte| *byte == bytes[0]), "{zone}/{name}");
        Some(bytes[0])
    })
}

#[test]
fn a_failed_cube_keeps_or_drops_its_own_changes_and_no_others() {
    for (layout, on_error, kept) in [
        (Tenants::Apart, OnError::Crash, [Some(1), None]),
        (Tenants::Apart, OnError::ReadOnly, [Some(2), Some(3)]),
        (Tenants::Shared, OnError::ReadOnly, [Some(2), Some(3)]),
    ] {
        let device = damaged(layout, Policies { on_error, ..Policies::default() });
        let ((), closed) = used(&device, |fs| {
            fill(fs);
            meet_damage(fs);
            let a = at(fs, "/a").unwrap();
            assert!(make(fs, a, "afterwards", NewInode::regular(0o644)).is_err());
            for zone in ["/b", "/"] {
                assert_eq!(found(fs, zone), [Some(2), Some(3)], "{layout:?} {on_error:?} {zone}");
            }
            fs.tend().unwrap();
            let _ = fs.sync();
            assert_eq!(fs.store().waiting_records(), 0, "{layout:?} {on_error:?}");
            for zone in ["/b", "/"] {
                let top = at(fs, zone).unwrap();
                make(fs, top, "afterwards", NewInode::regular(0o644)).unwrap();
            }
        });
        closed.unwrap();
        // The damage is repaired, and with it the cube is served again.
        let ((), closed) = used(&device, |fs| {
            let call =
                CubeCall::Check { cube: floe_fs::Which::Number(1), repairs: true, undo: None };
            fs.cube_call(&call).unwrap();
            fs.tend().unwrap();
            assert_eq!(fs.store().gates().unwrap().state(1).0, Mode::Serving);
            assert_eq!(found(fs, "/a"), kept, "{layout:?} {on_error:?}");
            for zone in ["/b", "/"] {
                assert_eq!(found(fs, zone), [Some(2), Some(3)], "{layout:?} {on_error:?} {zone}");
                find(fs, at(fs, zone).unwrap(), "afterwards").unwrap();
            }
        });
        closed.unwrap();
        let problems = check(&device, &CheckOptions::default()).unwrap().found;
        assert!(problems.is_empty(), "{layout:?} {on_error:?}: {problems:?}");
    }
}

#[test]
fn changes_that_wait_are_part_of_the_cube_that_is_checked_and_repaired() {
    for recovery in [Recovery::Manual, Recovery::Online] {
        let device = damaged(Tenants::Apart, Policies { recovery, ..Policies::default() });
        let ((), closed) = used(&device, |fs| {
            fill(fs);
            let a = at(fs, "/a").unwrap();
            let cube = floe_fs::Which::Of(a);
            if recovery == Recovery::Manual {
                fs.cube_call(&CubeCall::Check { cube, repairs: false, undo: None }).unwrap();
                fs.tend().unwrap();
                let report = fs.cube_call(&CubeCall::Report(cube)).unwrap();
                let report = String::from_utf8(report).unwrap();
                // Nothing but the damage: what waits is neither lost nor half there.
                assert!(report.lines().count() < 4, "{report}");
                fs.cube_call(&CubeCall::Check { cube, repairs: true, undo: None }).unwrap();
            } else {
                meet_damage(fs);
            }
            fs.tend().unwrap();
            let gates = fs.store().gates().unwrap();
            assert_eq!(gates.state(1), (Mode::Serving, None), "{recovery:?}");
            for zone in ["/a", "/b", "/"] {
                assert_eq!(found(fs, zone), [Some(2), Some(3)], "{recovery:?} {zone}");
            }
            make(fs, a, "afterwards", NewInode::regular(0o644)).unwrap();
            fs.sync().unwrap();
        });
        closed.unwrap();
        let problems = check(&device, &CheckOptions::default()).unwrap().found;
        assert!(problems.is_empty(), "{recovery:?}: {problems:?}");
    }
}

/// A cube that is full and asks for more lets the changes of others wait on.
#[test]
fn a_full_cube_lets_the_changes_of_others_wait() {
    let device = MemDevice::new(laid_out(Tenants::Apart, Policies::default()));
    let ((), closed) = used(&device, |fs| {
        let a = at(fs, "/a").unwrap();
        let limit = Settings::parse("max_size=4194304").unwrap();
        fs.cube_call(&CubeCall::Set(a, limit)).unwrap();
        let b = at(fs, "/b").unwrap();
        let file = make(fs, a, "large", NewInode::regular(0o644)).unwrap();
        let mut end = 0;
        let full = loop {
            match write(fs, file, end, &[5; 65_536]) {
                Ok(()) => end += 65_536,
                Err(error) => break error,
            }
        };
        assert!(full.is_no_space() || matches!(full, FsError::Short { .. }), "{full}");
        let waits = make(fs, b, "waits", NewInode::regular(0o644)).unwrap();
        write(fs, waits, 0, &[6; 5000]).unwrap();
        for _ in 0..20 {
            assert!(write(fs, file, end + 65_536, &[5; 65_536]).is_err());
            let _ = fs.sync_inode(file, None);
        }
        assert_eq!(fs.store().waiting_records(), 1, "the file of the other cube");
        assert_eq!(read(fs, file, 3000).unwrap(), [5; 3000]);
        assert_eq!(scope(&device).sub.cube, 1);
        assert!(find(fs, InodeNr::ROOT, "a").is_ok());
    });
    closed.unwrap();
    assert!(check(&device, &CheckOptions::default()).unwrap().found.is_empty());
}
