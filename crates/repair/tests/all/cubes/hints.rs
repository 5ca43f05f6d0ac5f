//! Hints and records in sub-superblocks, and cubes of which too little is left.

use floe_check::Report;
use floe_check::cube::CubeError;
use floe_disk::ops::RenameMode;
use floe_format::native::cube::State;
use floe_repair::policy::{Decision, Policy};

use super::*;

/// Writes both copies of a sub-superblock, changed.
fn change(device: &MemDevice, cube: u32, edit: impl Fn(&mut SubSuperblock)) {
    for block in copies(device, cube) {
        let mut changed = sub(device, block).unwrap();
        edit(&mut changed);
        device.write_at(block * BLOCK, &changed.encode()[..]).unwrap();
    }
}

#[test]
fn hints_of_cubes_that_are_out_of_date_are_remarked() {
    let bytes = cubes(2, 16).to_vec();
    let hints = |device: &MemDevice| -> Vec<&'static str> {
        let found = found(device);
        found
            .iter()
            .map(|problem| match problem {
                Problem::CubeHintOld { cube: 1, what } => *what,
                other => panic!("{other}"),
            })
            .collect()
    };
    // A cube that has grown is not remarked: the list was right when it was written.
    let device = MemDevice::new(bytes.clone());
    change(&device, 1, |sub| sub.lots.clear());
    assert!(hints(&device).is_empty());
    change(&device, 1, |sub| sub.lots.push(0));
    assert_eq!(hints(&device), ["list of lots"]);
    // The directory above the cube is renamed.
    let device = MemDevice::new(bytes);
    let mut volume = Volume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let (caller, root) = (Caller::system(NOW), InodeNr::ROOT);
    volume.begin_writing(&mut tx, NOW).unwrap();
    let (from, to) = ((root, &b"above"[..]), (root, &b"moved"[..]));
    volume.rename(&mut tx, &caller, from, to, RenameMode::Replace).unwrap();
    for lot in volume.lots_to_reserve() {
        volume.reserve_lot(&mut tx, NOW, lot).unwrap();
    }
    volume.end_writing(&mut tx, NOW).unwrap();
    tx.commit().unwrap();
    seal(&device).unwrap();
    assert_eq!(hints(&device), ["path"]);
    // It is found by the old path, which its sub-superblock has, and by the new one.
    for path in [&b"/above/c1"[..], b"/moved/c1"] {
        let checked = check_cube(&device, &CheckOptions::default(), &CubeName::of(path));
        assert_eq!(checked.unwrap().1.sub.cube, 1);
    }
}

#[test]
fn the_record_of_a_failure_is_found_and_cleared() {
    if tool::missing() {
        return;
    }
    let bytes = cubes(2, 16).to_vec();
    let device = MemDevice::new(bytes.clone());
    let fail = |device: &MemDevice| change(device, 2, |sub| sub.state = State::Failed);
    let states =
        |device: &MemDevice| copies(device, 2).map(|block| sub(device, block).unwrap().state);
    assert_eq!(repaired(&device, fail), ["cube-failure-recorded"]);
    assert_eq!(states(&device), [State::Sound; 2]);
    // The repair of the cube alone clears it, too, unless damage is left.
    for refuses in [false, true] {
        let device = MemDevice::new(bytes.clone());
        fail(&device);
        let scope = scope_of(&device, 2);
        if refuses {
            let group = scope.groups().next().unwrap();
            let bitmap = descs(&fs(&device))[group.0 as usize].block_bitmap.0;
            device.write_at(bitmap * BLOCK, &[0; 64]).unwrap();
        }
        let options = RepairOptions::default();
        let cubes = Cubes::of(&device, &options.check).unwrap();
        let shown = cubes.device(&scope);
        let mut policy: Box<dyn Policy> = if refuses { Box::new(No) } else { Box::new(Yes) };
        let planned = repair_cube(&shown, &scope, &options, &mut *policy).unwrap();
        assert_eq!(!planned.left.is_empty(), refuses, "{:?}", planned.left);
        let onto = Overlay::new(&device, BLOCK as u32);
        changes(&planned, &scope, &onto).unwrap();
        let state = if refuses { State::Failed } else { State::Sound };
        let mut block = [0; BLOCK as usize];
        onto.read_at(copies(&device, 2)[0] * BLOCK, &mut block).unwrap();
        assert_eq!(SubSuperblock::decode(&block).unwrap().state, state);
    }
}

/// Refuses everything.
struct No;

impl Policy for No {
    fn decide(&mut self, problems: &[Problem], _: &Report) -> Decision {
        Decision::Each(vec![false; problems.len()])
    }
}

#[test]
fn a_cube_without_lots_or_directory_is_given_up() {
    if tool::missing() {
        return;
    }
    let bytes = cubes(2, 16).to_vec();
    let is_gone = |device: &MemDevice| {
        let options = CheckOptions::default();
        let cubes = Cubes::of(device, &options).unwrap();
        let found = cubes.find(&CubeName::Number(2)).map(drop);
        matches!(found, Err(CubeError::NoSuchCube))
    };
    // Nobody knows which lots it had.
    let device = MemDevice::new(bytes.clone());
    let lot = scope_of(&device, 2).sub.lots[0];
    let ids = repaired(&device, |device| {
        change(device, 2, |sub| sub.lots.clear());
        give_lot(device, lot, 0);
    });
    assert!(ids.contains(&"cube-without-lot"), "{ids:?}");
    assert!(is_gone(&device) && found(&device).is_empty());
    // Its directory is said to be one outside of its lots; the tree knows better.
    let device = MemDevice::new(bytes.clone());
    let before = sub(&device, copies(&device, 2)[0]).unwrap();
    let ids = repaired(&device, |device| change(device, 2, |sub| sub.top_inode = 2));
    assert!(ids.contains(&"cube-top-wrong"), "{ids:?}");
    assert_eq!(sub(&device, copies(&device, 2)[0]).unwrap().top_inode, before.top_inode);
    // A lot without any directory is given to a cube that nobody else knows.
    let device = MemDevice::new(bytes);
    let mut volume = Volume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let above = volume.lookup(&mut tx, InodeNr::ROOT, b"above").unwrap().unwrap().inode;
    let above = volume.geometry().place_of(above).unwrap().0.0 / 4;
    let owned = [1, 2].map(|cube| scope_of(&device, cube).sub.lots[0]);
    let empty = (1..5).find(|lot| *lot != above && !owned.contains(lot)).unwrap();
    let ids = repaired(&device, |device| give_lot(device, empty, 7));
    assert!(ids.contains(&"cube-superblock-lost"), "{ids:?}");
    assert!(found(&device).is_empty(), "{:?}", found(&device));
}

#[test]
fn the_owner_of_a_lot_without_records_comes_from_the_list() {
    if tool::missing() {
        return;
    }
    let device = cubes(2, 16);
    let lot = scope_of(&device, 2).sub.lots[0];
    let ids = repaired(&device, |device| {
        let fs = fs(device);
        let geo = fs.geometry();
        let checksum = DescChecksum::of(&fs.superblock);
        let all = (lot * 4..lot * 4 + 4).map(GroupNr);
        let runs = all.clone().map(|group| geo.group_desc_run(group));
        let places = runs.filter(|run| run.len_blocks > 0).map(|run| run.start);
        let places: Vec<BlockNr> = places.collect();
        assert_eq!(places.len(), 3, "{places:?}");
        for (group, place) in all.flat_map(|group| places.iter().map(move |place| (group, *place)))
        {
            let offset = geo.offset_bytes(place) + desc_place(group, geo).1 as u64;
            let mut raw = vec![0; 1024];
            device.read_at(offset, &mut raw).unwrap();
            raw[60..].fill(0);
            GroupDesc::of(&raw).seal(&mut raw, group, checksum);
            device.write_at(offset, &raw).unwrap();
        }
    });
    assert!(ids.contains(&"lot-record-wrong"), "{ids:?}");
    assert_eq!(scope_of(&device, 2).sub.lots, [lot]);
    assert!(found(&device).is_empty(), "{:?}", found(&device));
}
