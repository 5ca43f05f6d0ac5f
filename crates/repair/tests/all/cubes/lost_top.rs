//! The inode of a cube's directory is lost: the files of the cube stay in it, below a directory at the old place.

use floe_ext4::inode_table::inode_place;
use floe_testkit::tree::stored;

use super::*;

/// All files: path and content.
fn files(device: &MemDevice) -> Vec<(Vec<u8>, String)> {
    let image = Image::empty(0).unwrap();
    std::fs::write(image.path(), device.to_vec()).unwrap();
    let all = stored(&image).unwrap().into_iter();
    all.map(|(path, node)| (path, node.content)).collect()
}

#[test]
fn a_cube_outlives_the_inode_of_its_directory() {
    if tool::missing() {
        return;
    }
    let device = cubes(2, 5);
    let (before, old) = (files(&device), sub(&device, copies(&device, 1)[0]).unwrap());
    let ids = repaired(&device, |device| {
        let fs = fs(device);
        let place = inode_place(InodeNr(old.top_inode), fs.geometry(), descs(&fs));
        let (block, at) = place.unwrap();
        device.write_at(fs.geometry().offset_bytes(block) + at as u64, &[0; 256]).unwrap();
    });
    assert!(ids.contains(&"cube-top-wrong"), "{ids:?}");
    assert!(found(&device).is_empty(), "{:?}", found(&device));
    let new = sub(&device, copies(&device, 1)[0]).unwrap();
    assert_eq!((new.top_inode, &new.path, &new.lots), (old.top_inode, &old.path, &old.lots));
    let (after, top) = (files(&device), String::from_utf8(old.path).unwrap());
    let contents = |all: &[(Vec<u8>, String)], is_inside: bool| {
        let is_wanted = |path: &[u8]| {
            let path = String::from_utf8_lossy(path);
            // Without the directory itself, and the lost+found that the repair made in it.
            let is_made = path == format!("{top}/lost+found") || path == top;
            path.starts_with(&format!("{top}/")) == is_inside && !is_made
        };
        let all = all.iter().filter(|(path, _)| is_wanted(path));
        let mut all: Vec<_> = all.map(|(_, content)| content.clone()).collect();
        all.sort();
        all
    };
    assert!(contents(&before, true).len() > 4);
    for is_inside in [true, false] {
        assert_eq!(contents(&after, is_inside), contents(&before, is_inside));
    }
    assert!(after.iter().any(|(path, _)| path.ends_with(b"/lost+found")));
}
