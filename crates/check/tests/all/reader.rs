//! The reader against debugfs: maps and paths of every file of base images of several profiles.

use std::collections::{BTreeMap, BTreeSet};

use floe_blockdev::FileDevice;
use floe_check::Reader;
use floe_check::reader::paths;
use floe_format::{BlockNr, InodeNr};
use floe_testkit::{Image, Profile, build, tool};

fn debugfs(image: &Image, request: &str) -> String {
    tool::must("debugfs", &["-R", request, image.path().to_str().unwrap()], &[0]).unwrap().text
}

fn used(reader: &Reader<'_>) -> BTreeSet<InodeNr> {
    (1..=reader.geometry.inodes_count)
        .map(InodeNr)
        .filter(|&inode| {
            let bytes = reader.inode_bytes(inode).unwrap();
            let inode = reader.decode(&bytes).unwrap();
            inode.base.links_count > 0 && inode.base.mode != 0
        })
        .collect()
}

fn judge(profile: &str) {
    let image = build::base(Profile::by_name(profile).unwrap()).unwrap();
    let device = FileDevice::open(image.path()).unwrap();
    let reader = Reader::open(&device, None, None).unwrap();
    let used = used(&reader);
    let found = paths(&reader, &used, u64::MAX);
    for (&inode, path) in found.iter().take(60) {
        let text = String::from_utf8_lossy(path).into_owned();
        assert_eq!(reader.lookup(&text).unwrap(), inode, "{profile}: {text}");
        let bytes = reader.inode_bytes(inode).unwrap();
        let mapping = reader.map(&reader.decode(&bytes).unwrap());
        assert_eq!(mapping.faults, Vec::<String>::new(), "{profile}: {text}");
        let theirs: BTreeSet<u64> = debugfs(&image, &format!("blocks <{}>", inode.0))
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let ours: BTreeSet<u64> = mapping
            .extents
            .iter()
            .flat_map(|extent| extent.run.start.0..extent.run.end().0)
            .chain(mapping.nodes.iter().map(|node| node.block.0))
            .collect();
        assert_eq!(ours, theirs, "{profile}: {text}");
    }
    let all: Vec<_> = used.iter().map(|inode| inode.0.to_string()).collect();
    let mut theirs: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for line in debugfs(&image, &format!("ncheck {}", all.join(" "))).lines() {
        let Some((inode, path)) = line.split_once('\t') else { continue };
        let Ok(inode) = inode.parse() else { continue };
        theirs.entry(inode).or_default().insert(path.trim_end().replace("//", "/"));
    }
    assert!(theirs.len() > 5, "{profile}: ncheck gave {theirs:?}");
    for (inode, paths) in theirs {
        let Some(path) = found.get(&InodeNr(inode)) else {
            panic!("{profile}: no path for {inode}, ncheck has {paths:?}");
        };
        let path = String::from_utf8_lossy(path).into_owned();
        assert!(path == "/" || paths.contains(&path), "{profile}: {path} is not in {paths:?}");
    }
}

#[test]
fn maps_and_paths_are_those_of_debugfs() {
    if tool::missing() {
        return;
    }
    for profile in ["ext4", "ext2-1k", "inline-data"] {
        judge(profile);
    }
}

#[test]
fn backups_of_a_lost_superblock_are_found() {
    if tool::missing() {
        return;
    }
    let image = Image::empty(64 << 20).unwrap();
    build::mke2fs(image.path(), &["-b", "1024"]).unwrap();
    image.write(1024, &[0; 1024]).unwrap();
    let device = FileDevice::open(image.path()).unwrap();
    assert!(Reader::open(&device, None, None).is_err());
    let backups = Reader::backups(&device);
    assert!(backups.contains(&(BlockNr(8193), 1024)), "{backups:?}");
    let (block, block_size) = backups[0];
    assert!(Reader::open(&device, Some(block), Some(block_size)).is_ok());
    assert!(Reader::open(&device, Some(block), None).is_ok());
}
