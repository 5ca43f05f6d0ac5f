//! The inode of a cube's directory is lost: the files of the cube stay in it, below a directory at the old place.

use floe_ext4::inode_table::inode_place;
use floe_format::ext::inode::FileType;
use floe_testkit::tree::stored;

use super::*;

fn nodes(device: &MemDevice) -> tree::Tree {
    let image = Image::empty(0).unwrap();
    std::fs::write(image.path(), device.to_vec()).unwrap();
    stored(&image).unwrap()
}

/// All regular files: path and content.
fn files(device: &MemDevice) -> Vec<(Vec<u8>, String)> {
    let all = nodes(device).into_iter();
    let all = all.filter(|(_, node)| node.kind == Some(FileType::Regular));
    all.map(|(path, node)| (path, node.content)).collect()
}

#[test]
fn a_cube_outlives_the_inode_of_its_directory() {
    if tool::missing() {
        return;
    }
    outlives(cubes(2, 5), false);
}

/// Without directories below it, which come back earlier than files.
#[test]
fn a_cube_with_files_alone_outlives_the_inode_of_its_directory() {
    if tool::missing() {
        return;
    }
    outlives(cubes(2, 5), true);
}

/// Damages the directory of cube 1, `with_all`: also the directories in it.
fn outlives(device: MemDevice, with_all: bool) {
    let (before, old) = (files(&device), sub(&device, copies(&device, 1)[0]).unwrap());
    let ids = repaired(&device, |device| {
        let fs = fs(device);
        let below = |path: &[u8]| with_all && path.starts_with(&[&old.path[..], b"/"].concat());
        let all = nodes(device).into_iter();
        let all = all.filter(|(path, node)| node.kind == Some(FileType::Directory) && below(path));
        for inode in all.map(|(_, node)| node.inode).chain([InodeNr(old.top_inode)]) {
            let (block, at) = inode_place(inode, fs.geometry(), descs(&fs)).unwrap();
            device.write_at(fs.geometry().offset_bytes(block) + at as u64, &[0; 256]).unwrap();
        }
    });
    assert!(ids.contains(&"cube-top-wrong"), "{ids:?}");
    assert!(found(&device).is_empty(), "{:?}", found(&device));
    let new = sub(&device, copies(&device, 1)[0]).unwrap();
    assert_eq!((new.top_inode, &new.path, &new.lots), (old.top_inode, &old.path, &old.lots));
    let (after, top) = (files(&device), String::from_utf8(old.path).unwrap());
    let contents = |all: &[(Vec<u8>, String)], is_inside: bool| {
        let is_wanted = |path: &[u8]| {
            let path = String::from_utf8_lossy(path);
            path.starts_with(&format!("{top}/")) == is_inside
        };
        let all = all.iter().filter(|(path, _)| is_wanted(path));
        let mut all: Vec<_> = all.map(|(_, content)| content.clone()).collect();
        all.sort();
        all
    };
    assert!(!contents(&before, true).is_empty());
    for is_inside in [true, false] {
        assert_eq!(contents(&after, is_inside), contents(&before, is_inside));
    }
}
