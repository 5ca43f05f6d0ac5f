//! References from one cube into another that no other system made: damage of the cube that has them. The repair takes them away,
//! and changes nothing of the other cube. After another system has written they are remarks.

use super::*;
use floe_check::open::WhichSuperblock;
use floe_format::crc::crc32c;
use floe_format::native::identity::FLAG_COUPLED;

/// The inodes of a cube whose size is `size`.
pub(super) fn inodes(device: &dyn ReadBlocks, scope: &CubeScope, size: u64) -> Vec<OwnedInode> {
    let fs = fs(device);
    let first = scope.groups().next().unwrap();
    let numbers = (0..60).map(|index| fs.geometry().inode_at(first, index));
    let read = |inode| floe_ext4::inode_table::read_inode(inode, device, fs.geometry(), descs(&fs));
    let owned = numbers.filter_map(|inode| OwnedInode::of(inode, read(inode)?));
    owned.filter(|inode| inode.size_bytes() == size && inode.base.links_count > 0).collect()
}

pub(super) fn put(device: &dyn WriteBlocks, inode: &mut OwnedInode) {
    let fs = fs(device);
    let (block, at) = inode_place(inode.number, fs.geometry(), descs(&fs)).unwrap();
    let offset = fs.geometry().offset_bytes(block) + at as u64;
    device.write_at(offset, inode.seal(Some(fs.superblock.seed()))).unwrap();
}

/// Lets the third entry of a directory of one block lead elsewhere, with the right checksum; returns where it led.
fn lead(device: &dyn WriteBlocks, dir: &OwnedInode, inode: InodeNr) -> InodeNr {
    let fs = fs(device);
    let place =
        u64::from(u32::from_le_bytes(*dir.base.block[20..24].first_chunk().unwrap())) * BLOCK;
    let mut block = vec![0; BLOCK as usize];
    device.read_at(place, &mut block).unwrap();
    let before = InodeNr(u32::from_le_bytes(*block[24..28].first_chunk().unwrap()));
    block[24..28].copy_from_slice(&inode.0.to_le_bytes());
    let end = block.len() - 12;
    let seed = fs.superblock.seed().of_inode(dir.number, dir.base.generation);
    let sum = crc32c(seed, &block[..end]);
    block[end + 8..].copy_from_slice(&sum.to_le_bytes());
    device.write_at(place, &block).unwrap();
    before
}

/// The directories of a cube below its own.
fn directories(device: &dyn ReadBlocks, scope: &CubeScope) -> Vec<OwnedInode> {
    let all = inodes(device, scope, BLOCK);
    let is_dir = |inode: &OwnedInode| inode.base.mode & 0o170_000 == 0o040_000;
    all.into_iter().filter(|inode| is_dir(inode) && inode.number != scope.top()).collect()
}

/// All blocks of a cube but descriptors and copies of the superblock, which the repair of the whole file system renews.
fn content(device: &MemDevice, scope: &CubeScope) -> Vec<u8> {
    let bytes = device.to_vec();
    let fs = fs(device);
    let own = scope.groups().flat_map(|group| {
        let run = fs.geometry().blocks_of(group);
        let skip = fs.geometry().group_desc_run(group).end().0.max(run.start.0 + 2);
        skip * BLOCK..run.end().0 * BLOCK
    });
    own.map(|at| bytes[at as usize]).collect()
}

/// As if Linux had mounted and unmounted the file system.
pub(super) fn visit(device: &dyn WriteBlocks) {
    let mut superblock = fs(device).superblock;
    superblock.mnt_count += 1;
    superblock.mtime += 9;
    let mut bytes = [0; 1024];
    superblock.encode_with_checksum(&mut bytes);
    device.write_at(1024, &bytes).unwrap();
}

/// Repairs one cube by itself.
fn repair_one(device: &MemDevice, cube: u32) {
    let options = RepairOptions::default();
    let cubes = Cubes::of(device, &options.check).unwrap();
    let scope = cubes.find(&CubeName::Number(cube)).unwrap();
    let shown = cubes.device(&scope);
    let planned = repair_cube(&shown, &scope, &options, &mut Yes).unwrap();
    assert!(planned.left.is_empty(), "{:?}", planned.left);
    let onto = Overlay::new(device, BLOCK as u32);
    changes(&planned, &scope, &onto).unwrap();
    let seen = Seen::of(device);
    let options = CommitOptions::of(&seen);
    commit(&onto, device, &options).unwrap();
}

/// Findings that are damage.
fn damage(device: &dyn ReadBlocks) -> Vec<Problem> {
    let mut all = found(device);
    all.retain(|problem| problem.row().weight > Weight::Remark);
    all
}

#[test]
fn a_name_that_leads_into_another_cube_is_damage_of_its_directory() {
    if tool::missing() {
        return;
    }
    let made = cubes(2, 24).to_vec();
    let device = MemDevice::new(made.clone());
    let scopes = [1, 2].map(|cube| scope_of(&device, cube));
    let [own, other] = scopes.each_ref().map(|scope| directories(&device, scope));
    let file = inodes(&device, &scopes[1], 5000).remove(0);
    for target in [file.number, other[0].number, scopes[1].top()] {
        let device = MemDevice::new(made.clone());
        let victim = content(&device, &scopes[1]);
        let lost = lead(&device, &own[0], target);
        let problems = damage(&device);
        let outside = |problem: &&Problem| matches!(problem, Problem::CubeNameOutside { .. });
        let found = problems.iter().find(outside).unwrap();
        let Problem::CubeNameOutside { dir, inode_named, cube, other, .. } = found else {
            panic!("{target}: {problems:?}")
        };
        assert_eq!((*dir, *inode_named, *cube, *other), (own[0].number, target, 1, 2));
        // Only the file that lost its name is left over, in the same cube.
        let rest = problems.iter().filter(|problem| *problem != found);
        let rest: Vec<_> = rest.filter(|problem| problem.inode() != Some(lost)).collect();
        assert!(rest.is_empty(), "{target}: {rest:?}");
        let (of_one, _) =
            check_cube(&device, &CheckOptions::default(), &CubeName::Number(1)).unwrap();
        assert!(of_one.found.contains(found), "{:?}", of_one.found);
        let (of_two, _) =
            check_cube(&device, &CheckOptions::default(), &CubeName::Number(2)).unwrap();
        assert!(of_two.found.is_empty(), "{:?}", of_two.found);
        repaired(&device, |_| {});
        assert!(content(&device, &scopes[1]) == victim, "{target}: the other cube was changed");
        // The file is in lost+found of its cube.
        let files = fs(&device);
        let listing = |path: &[u8]| {
            let groups = descs(&files).to_vec();
            let geometry = files.geometry().clone();
            let reader =
                floe_ext4::files::Files::new(&device, files.superblock.clone(), geometry, groups);
            let node = reader.lookup(path, floe_ext4::files::Follow::Last).unwrap();
            reader.list(&node).unwrap().entries
        };
        let saved = listing(b"/above/c1/lost+found");
        assert!(saved.iter().any(|entry| entry.inode == lost), "{target}: {saved:?}");
    }
}

#[test]
fn blocks_of_another_cube_are_damage_of_the_file_that_claims_them() {
    if tool::missing() {
        return;
    }
    let made = cubes(2, 24).to_vec();
    let device = MemDevice::new(made.clone());
    let scopes = [1, 2].map(|cube| scope_of(&device, cube));
    let [one, two] = scopes.each_ref().map(|scope| inodes(&device, scope, 5000).remove(0));
    for what in ["data", "attributes"] {
        let device = MemDevice::new(made.clone());
        let victim = content(&device, &scopes[1]);
        let mut wrong = one.clone();
        match what {
            "data" => wrong.base.block = two.base.block,
            _ => wrong.base.file_acl_lo = two.base.file_acl_lo,
        }
        put(&device, &mut wrong);
        let problems = damage(&device);
        let outside = problems.iter().filter_map(|problem| match problem {
            Problem::CubeBlocksOutside { inode, cube, other, .. } => Some((*inode, *cube, *other)),
            _ => None,
        });
        assert_eq!(outside.collect::<Vec<_>>(), [(one.number, 1, 2)], "{what}: {problems:?}");
        // The owner of the blocks shares nothing, and is not blamed.
        assert!(
            problems.iter().all(|problem| problem.inode() != Some(two.number)),
            "{what}: {problems:?}"
        );
        // Nobody gets to read bytes of the other tenant, whichever repair it is.
        for of_cube in [false, true] {
            let device = device.clone();
            if of_cube {
                repair_one(&device, 1);
            }
            repaired(&device, |_| {});
            assert!(content(&device, &scopes[1]) == victim, "{what}: the other cube was changed");
            let after = inodes(&device, &scope_of(&device, 1), 5000);
            let after = after.iter().find(|inode| inode.number == one.number).unwrap();
            let map = u32::from_le_bytes(*after.base.block[20..24].first_chunk().unwrap());
            assert!(scopes[0].holds_block(BlockNr(u64::from(map))), "{what}: {map}");
            if what == "data" {
                let mut bytes = vec![1; 2 * BLOCK as usize];
                device.read_at(u64::from(map) * BLOCK, &mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| *byte == 0), "{what}: bytes of another tenant");
            } else {
                assert_eq!(after.base.file_acl_lo, 0, "{what}");
            }
        }
    }
}

/// The same after another system has written: names and blocks are where it put them.
#[test]
fn after_another_system_has_written_what_leads_out_of_a_cube_is_remarked() {
    if tool::missing() {
        return;
    }
    let device = cubes(2, 24);
    visit(&device);
    let scopes = [1, 2].map(|cube| scope_of(&device, cube));
    let [mut one, two] = scopes.each_ref().map(|scope| inodes(&device, scope, 5000).remove(0));
    // Blocks of the other cube that nothing else has.
    let (free, kept) = (two.base.block, one.base.block);
    one.base.block = free;
    let mut two = two;
    two.base.block = kept;
    put(&device, &mut one);
    put(&device, &mut two);
    let problems = found(&device);
    let entangled = ids(&problems);
    assert_eq!(entangled, ["cube-entangled-blocks"], "{problems:?}");
    let flags = || Identity::of(&fs(&device).superblock).unwrap().flags;
    let copy = device.clone();
    // Back where they belong: a repair moves nothing, and says that no cubes are coupled.
    (one.base.block, two.base.block) = (kept, free);
    put(&device, &mut one);
    put(&device, &mut two);
    repaired(&device, |_| {});
    assert_eq!(flags() & FLAG_COUPLED, 0);
    // A repair puts them back itself.
    device.write_at(0, &copy.to_vec()).unwrap();
    assert_eq!(repaired(&device, |_| {}), ["cube-entangled-blocks"]);
    assert!(found(&device).is_empty(), "{:?}", found(&device));
    assert_eq!(flags() & FLAG_COUPLED, 0);
    lead(&device, &directories(&device, &scopes[0])[0], two.number);
    assert!(ids(&damage(&device)).contains(&"cube-name-outside"), "{:?}", damage(&device));
}

/// Only the primary superblock tells that, also where a backup is in use.
#[test]
fn a_cube_is_checked_by_a_backup_as_by_the_primary_superblock() {
    if tool::missing() {
        return;
    }
    let device = cubes(2, 24);
    visit(&device);
    let scopes = [1, 2].map(|cube| scope_of(&device, cube));
    let [mut one, mut two] = scopes.each_ref().map(|scope| inodes(&device, scope, 5000).remove(0));
    std::mem::swap(&mut one.base.block, &mut two.base.block);
    put(&device, &mut one);
    put(&device, &mut two);
    let of_one = |superblock| {
        let options = CheckOptions { superblock, ..CheckOptions::default() };
        check_cube(&device, &options, &CubeName::Number(1)).unwrap().0
    };
    let before = of_one(WhichSuperblock::default());
    assert!(ids(&before.found).contains(&"cube-entangled-blocks"), "{:?}", before.found);
    let backup = fs(&device).geometry().superblock_of(GroupNr(1));
    let after = of_one(WhichSuperblock { block: backup, block_size: None });
    assert_eq!(ids(&after.found), ids(&before.found), "{:?}", after.found);
}
