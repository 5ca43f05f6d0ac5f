//! Files created in real images with this crate alone, checked by e2fsck and read by debugfs.

use std::process::Command;

use floe_ext4::alloc::{self, Allocate};
use floe_ext4::dir::{self, DirFormat, Directory, Entry};
use floe_ext4::fs::FileSystem;
use floe_ext4::map::extent_tree::{self, NodeForm};
use floe_ext4::map::runs::BlockMap;
use floe_ext4::tx::{DirectTx, Refusal, Tx};
use floe_format::ext::extent::Extent;
use floe_format::ext::inode::{FileType, Inode, InodeFlags, OwnedInode, TimeField, Timestamp};
use floe_format::ext::xattr::{self, NewValue, NewXattr};
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};
use floe_testkit::{Image, Profile, build, oracle, tool};

const PROFILES: [Profile; 4] = [Profile::Ext4, Profile::Ext4K1, Profile::NoCsum, Profile::Bigalloc];

fn clean(image: &Image, what: &str) {
    let verdict = oracle::e2fsck(image).unwrap();
    assert!(verdict.clean(), "{what}: {}", verdict.text);
}

/// Adds a name to the first block of the root directory.
fn link(fs: &FileSystem, tx: &mut dyn Tx, device: &Image, name: &[u8], inode: InodeNr) {
    let mut root = fs.inode(tx, InodeNr::ROOT).unwrap();
    let raw = root.seal(None).to_vec();
    let map = BlockMap::of(&Inode::decode(&raw).unwrap(), device, fs.geometry(), 1).unwrap();
    let format = DirFormat::of(&fs.superblock, fs.geometry());
    let dir = Directory {
        inode: InodeNr::ROOT,
        parent: InodeNr::ROOT,
        generation: root.base.generation,
        encrypted: false,
        casefolded: false,
    };
    let bytes = tx.block_mut(map.block(0).unwrap()).unwrap();
    let entry = Entry::new(inode, name.to_vec(), FileType::Regular as u8);
    dir::insert(bytes, dir.form(&format), &entry).unwrap();
    dir::seal(bytes, dir.inode_seed(&format));
}

/// Creates a file of 20 scattered blocks (so that its tree needs a node), with attributes in the
/// inode and in a block.
fn make_file(fs: &mut FileSystem, tx: &mut dyn Tx) -> OwnedInode {
    let number = alloc::inode(&mut fs.space.groups, tx, InodeNr::ROOT, false).unwrap();
    let (geo, seed) = (fs.geometry().clone(), fs.seed());
    let mut inode = OwnedInode::new(number, geo.inode_size as usize, 32).unwrap();
    (inode.base.mode, inode.base.links_count) = (0o100_640, 1);
    inode.set_owner(70_000, 80_000);
    for field in
        [TimeField::Access, TimeField::Change, TimeField::Modification, TimeField::Creation]
    {
        inode.set_time(field, Timestamp { seconds: 1 << 33, nanoseconds: 5 });
    }
    inode.set_flags(InodeFlags::EXTENTS, true);
    let (size, cluster) = (u64::from(geo.block_size), u64::from(geo.cluster_blocks));
    let (mut extents, mut data) = (Vec::new(), Vec::new());
    for at in 0..20 {
        // Use every other cluster, so that no extents are merged.
        let run = fs.space.run(tx, geo.first_data_block, 2 * cluster).unwrap();
        let kept = BlockRun::new(run.start, 1);
        if run.len_blocks > cluster {
            let rest = BlockRun::new(BlockNr(run.start.0 + cluster), run.len_blocks - cluster);
            fs.space.groups.mark_blocks(tx, rest, false).unwrap();
            fs.space.withhold([rest]);
        }
        tx.zeroed(kept.start).unwrap().fill(b'a' + at as u8);
        data.push(kept);
        let logical = LogicalBlock(at * cluster * 3);
        extents.push(Extent { logical, run: kept, unwritten: false });
    }
    let node = fs.space.block(tx, geo.first_data_block).unwrap();
    let form = NodeForm {
        block_size: geo.block_size,
        inode_seed: seed.map(|seed| inode.seed(seed)),
        owner_hint: 0,
    };
    let built = extent_tree::build(&extents, form, &[node]).unwrap();
    assert_eq!(built.blocks.len(), 1, "the tree has a node");
    tx.zeroed(node).unwrap().copy_from_slice(&built.blocks[0].1);
    inode.base.block = built.root;
    inode.set_size_bytes(extents.last().unwrap().logical.0 * size + size);
    let acl = fs.space.block(tx, geo.first_data_block).unwrap();
    let value = vec![b'v'; 300];
    let of = |name, value| NewXattr {
        name_index: xattr::INDEX_USER,
        name,
        value: NewValue::Here(value),
    };
    let (inside, outside) = ([of(b"in", b"here")], [of(b"zz", &value), of(b"b", b"there")]);
    xattr::write_inode(inode.attributes_mut(), &inside).unwrap();
    xattr::write_block(tx.zeroed(acl).unwrap(), &outside, seed, acl, InodeNr(0)).unwrap();
    inode.set_file_acl(acl);
    inode.set_blocks(22 * cluster * geo.count_units(inode.flags()));
    fs.put_inode(tx, &mut inode).unwrap();
    inode
}

#[test]
fn a_file_made_by_hand_is_sound_and_read_by_others() {
    if tool::missing() {
        return;
    }
    for profile in PROFILES {
        let image = build::base(profile).unwrap();
        let mut fs = FileSystem::open(&image).unwrap();
        let mut tx = DirectTx::new(&image, fs.geometry().clone());
        let inode = make_file(&mut fs, &mut tx);
        link(&fs, &mut tx, &image, b"made", inode.number);
        fs.finish(&mut tx).unwrap();
        tx.commit().unwrap();
        clean(&image, &profile.to_string());
        let ask = |request| {
            let debugfs = Command::new("debugfs").args(["-R", request]).arg(image.path()).output();
            String::from_utf8_lossy(&debugfs.unwrap().stdout).into_owned()
        };
        let text = ask("ea_list /made") + &ask("ea_get /made user.b") + &ask("stat /made");
        for expected in ["user.in (4)", "user.zz (300)", "there", "User: 70000", "Group: 80000"] {
            assert!(text.contains(expected), "{profile}: no {expected:?} in {text}");
        }
    }
}

/// Marking anything as used and then as free restores the counts, and e2fsck finds no problem.
#[test]
fn all_that_is_free_is_handed_out_once_and_taken_back() {
    if tool::missing() {
        return;
    }
    for profile in PROFILES {
        let image = build::base(profile).unwrap();
        let mut fs = FileSystem::open(&image).unwrap();
        let (free, inodes) = (fs.space.groups.free_clusters(), fs.space.groups.free_inodes());
        let mut tx = DirectTx::new(&image, fs.geometry().clone());
        let goal = BlockNr(fs.geometry().blocks_count / 2);
        let (mut runs, mut numbers) = (Vec::new(), Vec::new());
        let full = loop {
            match fs.space.run(&mut tx, goal, 1000) {
                Ok(run) => runs.push(run),
                Err(full) => break full,
            }
        };
        assert!(matches!(full, Refusal::Full(_)), "{profile}: {full}");
        assert_eq!(fs.space.groups.free_clusters(), 0, "{profile}");
        assert!(runs[0].start >= goal, "{profile}: {:?}", runs[0]);
        let mut sorted = runs.clone();
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|pair| pair[0].end() <= pair[1].start), "{profile}: twice");
        while let Ok(number) = alloc::inode(&mut fs.space.groups, &mut tx, InodeNr(40), true) {
            numbers.push(number);
        }
        assert_eq!(numbers.len() as u64, inodes, "{profile}");
        for run in runs {
            fs.space.release(&mut tx, run).unwrap();
        }
        for number in numbers {
            assert!(fs.space.groups.mark_inode(&mut tx, number, false, true).unwrap());
        }
        let groups = &fs.space.groups;
        assert_eq!((groups.free_clusters(), groups.free_inodes()), (free, inodes), "{profile}");
        fs.finish(&mut tx).unwrap();
        tx.commit().unwrap();
        clean(&image, &profile.to_string());
    }
}
