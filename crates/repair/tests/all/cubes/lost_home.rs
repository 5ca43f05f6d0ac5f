//! `/.cubes` is lost, with the names of sub-superblocks and journals: cubes stay what they were, and new ones can be made.

use floe_ext4::inode_table::inode_place;
use floe_testkit::tree::stored;

use super::*;

#[test]
fn cubes_outlive_the_directory_that_names_their_files() {
    if tool::missing() {
        return;
    }
    let device = cubes_in(9, 2, 3);
    let caller = Caller::system(NOW);
    let policies = Policies { recovery: Recovery::Offline, ..Policies::default() };
    let new = |name: &'static [u8], path: &'static [u8], journal_blocks| NewCube {
        parent: InodeNr::ROOT,
        name,
        path,
        permissions: 0o755,
        journal_blocks,
        policies,
    };
    let create = |made: &NewCube<'_>| {
        let mut volume = Volume::open(&device).unwrap();
        let mut tx = DirectTx::new(&device, volume.geometry().clone());
        volume.begin_writing(&mut tx, NOW).unwrap();
        let cube = volume.create_cube(&mut tx, &caller, made).unwrap();
        for lot in volume.lots_to_reserve() {
            volume.reserve_lot(&mut tx, NOW, lot).unwrap();
        }
        volume.end_writing(&mut tx, NOW).unwrap();
        tx.commit().unwrap();
        volume.back_up_descriptors(&device, &[0, 1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        seal(&device).unwrap();
        cube
    };
    assert_eq!(create(&new(b"journaled", b"/journaled", 64)), 3);
    let image = || {
        let image = Image::empty(0).unwrap();
        std::fs::write(image.path(), device.to_vec()).unwrap();
        stored(&image).unwrap()
    };
    let paths = || -> Vec<_> {
        image()
            .into_iter()
            .filter(|(path, _)| path != b"/.cubes")
            .map(|(path, node)| (path, node.inode))
            .collect()
    };
    let subs = || {
        let all = (1..=3).map(|cube| copies(&device, cube).map(|block| sub(&device, block)));
        all.collect::<Vec<_>>()
    };
    let before = (paths(), subs());
    let ids = repaired(&device, |device| {
        let fs = fs(device);
        let (block, at) = inode_place(InodeNr(12), fs.geometry(), descs(&fs)).unwrap();
        device.write_at(fs.geometry().offset_bytes(block) + at as u64, &[0; 256]).unwrap();
    });
    assert!(ids.contains(&"own-directory-missing"), "{ids:?}");
    assert_eq!((paths(), subs()), before);
    assert_eq!(create(&new(b"next", b"/next", 0)), 4);
    assert!(found(&device).is_empty(), "{:?}", found(&device));
}
