//! The inode of the root and that of a directory below it exchanged: the tree is inside itself then, and nothing leads there from the root.
//! e2fsck leaves a loop of directories and calls it clean (`docs/differences.md`).

use floe_format::InodeNr;
use floe_testkit::{Image, Volume, build, oracle, tool};

use crate::nodes_on_metadata::{contents, repaired};

/// Directories in the root, each with a symbolic link.
const NAMES: u32 = 10;

fn exchanged() -> Image {
    let image = Image::empty(8 << 20).unwrap();
    build::mke2fs(image.path(), &["-q", "-t", "ext2", "-b", "1024"]).unwrap();
    let others: String =
        (0..NAMES).map(|nr| format!("mkdir d{nr}\nsymlink d{nr}/l{nr} x\n")).collect();
    build::debugfs(&image, &format!("mkdir above\nmkdir above/below\n{others}")).unwrap();
    let volume = Volume::open(&image).unwrap();
    let below = volume.lookup("/above/below").unwrap();
    let [root, other] = [InodeNr::ROOT, below].map(|inode| volume.inode_bytes(inode).unwrap());
    volume.put_inode(InodeNr::ROOT, &other).unwrap();
    volume.put_inode(below, &root).unwrap();
    image
}

/// Names that are reached, without their paths.
fn names(image: &Image) -> Vec<Vec<u8>> {
    let name = |path: Vec<u8>| path.rsplit(|byte| *byte == b'/').next().unwrap().to_vec();
    contents(image).into_keys().map(name).collect()
}

#[test]
fn a_tree_inside_itself_comes_back() {
    if tool::missing() {
        return;
    }
    let image = exchanged();
    let repair = repaired(&image);
    assert!(repair.is_clean(), "{:?}", repair.left);
    let after = image.with_staged(&repair.staged).unwrap();
    assert!(oracle::e2fsck(&after).unwrap().clean());
    let back = names(&after);
    for name in (0..NAMES).flat_map(|nr| [format!("d{nr}"), format!("l{nr}")]) {
        assert!(back.contains(&name.as_bytes().to_vec()), "{name}");
    }
}
