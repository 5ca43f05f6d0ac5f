//! A cube that its own check or repair calls clean is clean for the check of all and for e2fsck, whatever was damaged in it, and
//! nothing outside of it has changed.

use super::*;
use floe_check::cube::is_coupled;
use floe_ext4::dir;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_testkit::damage::damage_among;
use floe_testkit::volume::{self as surveyed, Place};

/// Cubes with all kinds of metadata: directories in directories, one with an index, a file with extents in a block, hard links.
fn rich(journal_blocks: u32) -> MemDevice {
    let device = cubes_with(journal_blocks, 6, 3, 24);
    let tops = [1, 2, 3].map(|cube| scope_of(&device, cube).top());
    let mut volume = Volume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let caller = Caller::system(NOW);
    volume.begin_writing(&mut tx, NOW).unwrap();
    let (folder, regular) = (NewInode::directory(0o755), NewInode::regular(0o644));
    for top in tops {
        let mut dir = top;
        for name in ["deep", "deeper", "deepest"] {
            dir = volume.create(&mut tx, &caller, dir, name.as_bytes(), &folder).unwrap();
            volume.create(&mut tx, &caller, dir, b"file", &regular).unwrap();
            volume.create(&mut tx, &caller, dir, b"folder", &folder).unwrap();
        }
        let pieces = volume.create(&mut tx, &caller, dir, b"pieces", &regular).unwrap();
        for at in 0..9 {
            let place = at * 2 * BLOCK;
            volume.write(&mut tx, &device, &caller, pieces, place, &[at as u8; 4096]).unwrap();
        }
        let long = volume.create(&mut tx, &caller, top, b"long", &folder).unwrap();
        for at in 0..300 {
            let name = format!("{at}{}", "n".repeat(40));
            volume.link(&mut tx, &caller, pieces, long, name.as_bytes()).unwrap();
        }
    }
    volume.end_writing(&mut tx, NOW).unwrap();
    tx.commit().unwrap();
    seal(&device).unwrap();
    assert!(found(&device).is_empty(), "{:?}", found(&device));
    device
}

/// Damages structures of a cube, by the seed: of all kinds, or one or two directories.
fn hurt(image: &Image, scope: &CubeScope, seed: u64) -> String {
    let is_own = |volume: &surveyed::Volume<'_>, place: Place| {
        let at = volume.range_of(place).map_or(0, |(at, _)| BLOCK.max(at) / BLOCK);
        !matches!(place, Place::Superblock | Place::Backup(_)) && scope.holds_block(BlockNr(at))
    };
    if !seed.is_multiple_of(3) {
        return damage_among(image, seed, is_own).unwrap().to_string();
    }
    let (mut random, mut said) = (Rng::new(seed), String::new());
    let volume = surveyed::Volume::open(image).unwrap();
    let mut places = surveyed::survey(&volume).unwrap();
    let is_directory = |place: &Place| matches!(place, Place::DirBlock(..) | Place::DirIndex(..));
    places.retain(|place| is_directory(place) && is_own(&volume, *place));
    for _ in 0..1 + random.below(2) {
        let place = *random.pick(&places).unwrap();
        let (Place::DirBlock(_, block) | Place::DirIndex(_, block)) = place else { continue };
        let mut bytes = volume.block(block).unwrap();
        let to = match random.below(4) {
            0 => 2,
            _ => 1 + random.below(u64::from(volume.geometry.inodes_count)) as u32,
        };
        let starts = bytes[24..26] == *b"..";
        match random.below(3) {
            0 if starts => dir::set_parent(&mut bytes, InodeNr(to)).map(drop).unwrap(),
            1 if starts => bytes[0..4].copy_from_slice(&to.to_le_bytes()),
            _ => bytes.fill(0),
        }
        volume.put_block(block, &bytes).unwrap();
        if bytes.iter().any(|byte| *byte != 0) {
            volume.fix(place).unwrap();
        }
        said.push_str(&format!("{place:?} to {to}; "));
    }
    said
}

/// Repairs a cube of an image; `false` if that was refused, or said that damage is left.
fn repaired_alone(device: &MemDevice, cube: u32, what: &str) -> bool {
    let options = RepairOptions::default();
    let cubes = Cubes::of(device, &options.check).unwrap();
    let Ok(scope) = cubes.find(&CubeName::Number(cube)) else { return false };
    let is_wrong = |problem: &Problem| problem.row().weight > Weight::Remark;
    let shown = cubes.device(&scope);
    let planned = match repair_cube(&shown, &scope, &options, &mut Yes) {
        Err(RepairError::Stage(Failure::NotNow(_))) => return false,
        planned => planned.unwrap(),
    };
    let onto = Overlay::new(device, BLOCK as u32);
    changes(&planned, &scope, &onto).unwrap();
    let of_lots = Cubes::of(&onto, &options.check).unwrap().check_lots(&scope).0;
    let of_lots = of_lots.iter().any(is_wrong);
    let (own, before) = (copies(device, cube), device.to_vec());
    let seen = Seen::of(device);
    commit(&onto, device, &CommitOptions::of(&seen)).unwrap();
    let after = others(device, &scope, &own);
    assert!(after == others(&MemDevice::new(before), &scope, &own), "{what}: others were changed");
    let is_whole = !of_lots && !planned.left.iter().any(|(problem, _)| is_wrong(problem));
    let (report, _) =
        check_cube(device, &CheckOptions::default(), &CubeName::Number(cube)).unwrap();
    assert_eq!(report.is_clean(), is_whole, "{what}: {:?}, {:?}", report.found, planned.left);
    is_whole
}

fn hold(journal_blocks: u32, seeds: u64) {
    if tool::missing() {
        return;
    }
    let whole = rich(journal_blocks);
    let first = std::env::var("FLOE_SEED").map_or(0, |seed| seed.parse().unwrap());
    let (mut clean, mut wrong) = (0, Vec::new());
    for seed in first..first + std::env::var("FLOE_SEEDS").map_or(seeds, |n| n.parse().unwrap()) {
        let cube = 1 + (seed / 2 % 3) as u32;
        let image = Image::of(&whole).unwrap();
        let scope = scope_of(&whole, cube);
        let what = format!("seed {seed}, cube {cube}: {}", hurt(&image, &scope, seed));
        let device = MemDevice::new(image.to_vec().unwrap());
        let unrepaired = check_cube(&device, &CheckOptions::default(), &CubeName::Number(cube));
        let is_clean = unrepaired.is_ok_and(|(report, _)| report.is_clean());
        let all = found(&device);
        let is_wrong = |problem: &&Problem| problem.row().weight > Weight::Remark;
        if is_clean && all.iter().any(|problem| is_wrong(&problem)) {
            wrong.push(format!("{what}: not seen: {all:?}"));
            continue;
        }
        if !repaired_alone(&device, cube, &what) {
            continue;
        }
        clean += 1;
        let left: Vec<Problem> = found(&device).iter().filter(is_wrong).cloned().collect();
        if !left.is_empty() {
            wrong.push(format!("{what}: {left:?}"));
            continue;
        }
        image.write(0, &device.to_vec()).unwrap();
        let judged = oracle::e2fsck(&image).unwrap();
        if !judged.clean() {
            wrong.push(format!("{what}: {}", judged.text));
        }
    }
    println!("{clean} of {seeds}");
    assert!(wrong.is_empty(), "{} of {clean}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(clean * 10 >= seeds * 7, "{clean} of {seeds}");
}

#[test]
fn a_cube_that_is_called_clean_is_clean_for_all() {
    hold(0, 27);
}

#[test]
fn a_cube_with_a_journal_that_is_called_clean_is_clean_for_all() {
    hold(64, 15);
}

#[test]
fn a_backup_in_use_couples_cubes_only_where_the_primary_superblock_does() {
    let device = cubes_with(0, 6, 3, 24);
    let mut bytes = [0; Superblock::SIZE];
    device.read_at(OFFSET_BYTES, &mut bytes).unwrap();
    let sealed = Superblock::decode(&bytes);
    // As where its descriptors alone are damaged.
    assert!(!is_coupled(&device, &sealed, true));
    let mounted = Superblock { mnt_count: sealed.mnt_count + 1, ..sealed.clone() };
    mounted.encode_with_checksum(&mut bytes);
    device.write_at(OFFSET_BYTES, &bytes).unwrap();
    assert!(is_coupled(&device, &sealed, true), "another system has mounted it");
    sealed.encode_with_checksum(&mut bytes);
    bytes[0] ^= 1;
    device.write_at(OFFSET_BYTES, &bytes).unwrap();
    assert!(is_coupled(&device, &sealed, true), "it is damaged");
}
