//! Structures whose checksum is wrong: no operation writes a right one over what is damaged.

use floe_blockdev::{MemDevice, ReadBlocks, WriteBlocks};
use floe_disk::ops::{Caller, NewInode, OpError, SetMode, Step};
use floe_disk::volume::{OpenError, Volume};
use floe_ext4::inode_table::{inode_offset, read_groups};
use floe_ext4::tx::{DirectTx, Refusal};
use floe_format::ext::bitmap;
use floe_format::ext::group_desc::{DescChecksum, GroupDesc};
use floe_format::{BlockNr, Geometry, GroupNr, InodeNr, LogicalBlock};
use floe_testkit::recipe::{Recipe, descriptor};
use floe_testkit::{Profile, build, tool};

use super::device_of;
use super::model::time;

const CALLER: Caller = Caller { uid: 0, gid: 0, time: time(9), may_use_reserve: true };
const ROOT: InodeNr = InodeNr::ROOT;

/// A file system that is not written any more, with a directory that has an index, a file whose tree has nodes and
/// attributes in a block.
struct Made {
    device: MemDevice,
    geometry: Geometry,
    dir: InodeNr,
    file: InodeNr,
}

type Run<T> = Result<T, OpError>;

/// Runs an operation on a fresh volume over the device.
fn run<T>(
    device: &MemDevice,
    operation: impl FnOnce(&mut Volume, &mut DirectTx<'_, MemDevice>) -> Run<T>,
) -> Run<T> {
    let mut volume = Volume::open(device).unwrap();
    let mut tx = DirectTx::new(device, volume.geometry().clone());
    let done = operation(&mut volume, &mut tx)?;
    tx.commit().unwrap();
    Ok(done)
}

fn made() -> Made {
    let device = device_of(&build::empty(Profile::Ext4).unwrap());
    let geometry = Volume::open(&device).unwrap().geometry().clone();
    let value = vec![b'v'; 600];
    let (dir, file) = run(&device, |volume, tx| {
        let dir = volume.create(tx, &CALLER, ROOT, b"dir", &NewInode::directory(0o755))?;
        let file = volume.create(tx, &CALLER, ROOT, b"file", &NewInode::regular(0o644))?;
        for number in 0..200 {
            let name = format!("a name that fills the blocks of the directory, {number}");
            volume.create(tx, &CALLER, dir, name.as_bytes(), &NewInode::regular(0o644))?;
        }
        // Every second block, so that the extents need nodes.
        for block in 0..20 {
            let at = block * 2 * u64::from(geometry.block_size);
            volume.write(tx, &device, &CALLER, file, at, b"data")?;
        }
        volume.set_attribute(tx, &CALLER, file, b"user.big", &value, SetMode::Any)?;
        Ok((dir, file))
    })
    .unwrap();
    Made { device, geometry, dir, file }
}

impl Made {
    /// Flips a bit of the device.
    fn flip(&self, at_bytes: u64) {
        let mut byte = [0];
        self.device.read_at(at_bytes, &mut byte).unwrap();
        self.device.write_at(at_bytes, &[byte[0] ^ 4]).unwrap();
    }

    fn place_of(&self, inode: InodeNr) -> u64 {
        let groups = read_groups(&self.device, &self.geometry).unwrap();
        inode_offset(inode, &self.geometry, &groups).unwrap()
    }

    /// First block of the map of an inode, and the extent node of one with a deep tree.
    fn blocks_of(&self, inode: InodeNr) -> (BlockNr, BlockNr) {
        let volume = Volume::open(&self.device).unwrap();
        let mut tx = DirectTx::new(&self.device, self.geometry.clone());
        let node = volume.inode(&mut tx, inode).unwrap();
        // Header of 12 bytes, then an index: logical block, then the low half of the node's place.
        let index = u32::from_le_bytes(*node.base.block[16..].first_chunk().unwrap());
        let extent = floe_ext4::fs::FileSystem::open(&self.device).unwrap();
        let found = floe_ext4::map::file::look(&extent, &node).find(&mut tx, LogicalBlock(0));
        (found.unwrap().unwrap().run.start, BlockNr(u64::from(index)))
    }
}

/// The operation is refused because of the checksum of `what`, and writes nothing.
fn refused<T: std::fmt::Debug>(
    made: &Made,
    what: &str,
    operation: impl FnOnce(&mut Volume, &mut DirectTx<'_, MemDevice>) -> Run<T>,
) {
    let before = made.device.to_vec();
    match run(&made.device, operation) {
        Err(OpError::Refused(Refusal::Checksum(found))) => assert_eq!(found, what),
        other => panic!("{what}: {other:?}"),
    }
    assert!(made.device.holds(&before), "{what}: something was written");
}

#[test]
fn no_operation_hides_a_wrong_checksum() {
    if tool::missing() {
        return;
    }
    let new = NewInode::regular(0o644);
    let made_inode = made();
    made_inode.flip(made_inode.place_of(made_inode.file) + 8);
    refused(&made_inode, "an inode", |volume, tx| {
        volume.link(tx, &CALLER, made_inode.file, ROOT, b"x")
    });

    let made_root = made();
    let (root, _) = made_root.blocks_of(made_root.dir);
    // In the index behind the dots: the hash of an entry.
    made_root.flip(made_root.geometry.offset_bytes(root) + 0x28);
    refused(&made_root, "a directory block", |volume, tx| {
        volume.create(tx, &CALLER, made_root.dir, b"new", &new)
    });

    let made_names = made();
    let (names, _) = made_names.blocks_of(ROOT);
    made_names.flip(made_names.geometry.offset_bytes(names) + 0x18);
    refused(&made_names, "a directory block", |volume, tx| {
        volume.create(tx, &CALLER, ROOT, b"new", &new)
    });

    let made_tree = made();
    let (_, node) = made_tree.blocks_of(made_tree.file);
    made_tree.flip(made_tree.geometry.offset_bytes(node) + 12 + 8);
    refused(&made_tree, "a node of an extent tree", |volume, tx| {
        volume.write(tx, &made_tree.device, &CALLER, made_tree.file, 1 << 20, b"more")
    });

    let made_value = made();
    let volume = Volume::open(&made_value.device).unwrap();
    let mut tx = DirectTx::new(&made_value.device, made_value.geometry.clone());
    let block = volume.inode(&mut tx, made_value.file).unwrap().file_acl(true);
    made_value.flip(made_value.geometry.offset_bytes(block) + 1000);
    refused(&made_value, "a block of attributes", |volume, tx| {
        volume.set_attribute(tx, &CALLER, made_value.file, b"user.x", &[1; 300], SetMode::Any)
    });

    for at in [
        1024 + 0x78,
        made_value.geometry.offset_bytes(made_value.geometry.primary_desc_block(0)) + 12,
    ] {
        let made = made();
        made.flip(at);
        let opened = Volume::open(&made.device);
        assert!(matches!(opened, Err(OpenError::Refused(Refusal::Checksum(_)))), "{opened:?}");
    }
}

/// Bitmaps belong to a group: others go on serving.
#[test]
fn groups_with_a_damaged_bitmap_are_passed_over() {
    if tool::missing() {
        return;
    }
    let made = made();
    let groups = read_groups(&made.device, &made.geometry).unwrap();
    assert!(groups.len() > 1);
    for bitmap in [groups[0].block_bitmap, groups[0].inode_bitmap] {
        made.flip(made.geometry.offset_bytes(bitmap) + 40);
    }
    let before = made.device.to_vec();
    let new = run(&made.device, |volume, tx| {
        let inode = volume.create(tx, &CALLER, ROOT, b"new", &NewInode::regular(0o644))?;
        volume.write(tx, &made.device, &CALLER, inode, 0, &[7; 5000])?;
        assert_eq!(volume.damaged_groups().len(), 1);
        Ok(inode)
    });
    let (group, _) = made.geometry.place_of(new.unwrap()).unwrap();
    assert_ne!(group.0, 0);
    // Blocks freed there stay marked as used, and no orphan is left.
    run(&made.device, |volume, tx| {
        let step = volume.truncate(tx, &made.device, &CALLER, made.file, 0)?;
        assert_eq!(step, Step::Done);
        let removed = volume.unlink(tx, &CALLER, ROOT, b"file")?;
        assert!(removed.last);
        let step = volume.finish_orphan(tx, &made.device, &CALLER, removed.inode)?;
        assert_eq!((step, volume.orphans()), (Step::Done, Vec::new()));
        assert_eq!(volume.damaged_groups(), [GroupNr(0)]);
        Ok(())
    })
    .unwrap();
    let after = made.device.to_vec();
    for bitmap in [groups[0].block_bitmap, groups[0].inode_bitmap] {
        let at = usize::try_from(made.geometry.offset_bytes(bitmap)).unwrap();
        assert!(before[at..at + 1024] == after[at..at + 1024], "the bitmap is as it was");
    }
}

/// Bits that are wrong under a right checksum: the counts of the descriptor betray them. Nothing that is in use is handed out.
#[test]
fn groups_that_contradict_their_bitmap_are_passed_over() {
    if tool::missing() {
        return;
    }
    type Harm = fn(&mut GroupDesc, &mut [u8], &mut [u8]);
    let harms: [Harm; 4] = [
        |_, blocks, _| blocks[0] = 0,
        |_, _, inodes| inodes[1] = 0,
        |desc, _, _| desc.itable_unused = 0x038a_0000,
        |desc, _, _| desc.itable_unused = desc.free_inodes_count + 1,
    ];
    for (number, harm) in harms.into_iter().enumerate() {
        let made = made();
        let layout = floe_ext4::fs::FileSystem::open(&made.device).unwrap();
        let mut desc = layout.space.groups.descs()[0];
        let at = [desc.block_bitmap, desc.inode_bitmap].map(|at| made.geometry.offset_bytes(at));
        let [mut blocks, mut inodes] = [vec![0; 4096], vec![0; 4096]];
        made.device.read_at(at[0], &mut blocks).unwrap();
        made.device.read_at(at[1], &mut inodes).unwrap();
        harm(&mut desc, &mut blocks, &mut inodes);
        let (seed, size) = (layout.superblock.seed(), made.geometry.desc_size);
        let sum =
            |bytes: &[u8], bits| bitmap::checksum_cut(bitmap::checksum(seed, bytes, bits), size);
        desc.block_bitmap_csum = sum(&blocks, made.geometry.clusters_per_group);
        desc.inode_bitmap_csum = sum(&inodes, made.geometry.inodes_per_group);
        made.device.write_at(at[0], &blocks).unwrap();
        made.device.write_at(at[1], &inodes).unwrap();
        let place = made.geometry.offset_bytes(made.geometry.primary_desc_block(0));
        let mut raw = vec![0; size as usize];
        made.device.read_at(place, &mut raw).unwrap();
        desc.seal(&mut raw, GroupNr(0), DescChecksum::of(&layout.superblock));
        made.device.write_at(place, &raw).unwrap();

        let new = run(&made.device, |volume, tx| {
            let inode = volume.create(tx, &CALLER, ROOT, b"new", &NewInode::regular(0o644))?;
            volume.write(tx, &made.device, &CALLER, inode, 0, &[7; 5000])?;
            assert_eq!(volume.damaged_groups(), [GroupNr(0)], "harm {number}");
            Ok(inode)
        });
        let (group, _) = made.geometry.place_of(new.unwrap()).unwrap();
        // Blocks come from the group of the inode.
        assert_eq!(group.0 == 0, number == 0, "harm {number}");
    }
}

/// Without checksums, a map may lead into the file system's own blocks.
#[test]
fn no_file_reaches_blocks_of_the_file_system() {
    if tool::missing() {
        return;
    }
    // Bytes of `i_block` where the map is changed, and the block of the file that is mapped there: by an extent, directly,
    // and in a block map through one, two and three indirect blocks.
    let cases = [
        (Profile::NoCsum, 12 + 8, 0),
        (Profile::Ext2Plain, 0, 0),
        (Profile::Ext2Plain, 48, 12),
        (Profile::Ext2Plain, 52, 12 + 256 + 5),
        (Profile::Ext2Plain, 56, 12 + 256 + 256 * 256 + 5),
    ];
    for (profile, word, block) in cases {
        let device = device_of(&build::empty(profile).unwrap());
        let file = run(&device, |volume, tx| {
            let file = volume.create(tx, &CALLER, ROOT, b"file", &NewInode::regular(0o644))?;
            let at = block * u64::from(volume.geometry().block_size);
            volume.write(tx, &device, &CALLER, file, at, b"data")?;
            Ok(file)
        });
        let (file, geometry) = (file.unwrap(), Volume::open(&device).unwrap().geometry().clone());
        let groups = read_groups(&device, &geometry).unwrap();
        let map = inode_offset(file, &geometry, &groups).unwrap() + 0x28;
        let mut targets = vec![geometry.superblock_of(GroupNr(1)).unwrap()];
        targets.extend([groups[0].inode_table, groups[1].inode_bitmap, groups[0].block_bitmap]);
        if profile == Profile::NoCsum {
            let mut place = [0; 4];
            let journal = inode_offset(InodeNr(8), &geometry, &groups).unwrap() + 0x28;
            device.read_at(journal + 12 + 8, &mut place).unwrap();
            targets.push(BlockNr(u64::from(u32::from_le_bytes(place))));
        }
        for target in targets {
            let low = u32::try_from(target.0).unwrap();
            device.write_at(map + word, &low.to_le_bytes()).unwrap();
            let before = device.to_vec();
            let written = run(&device, |volume, tx| {
                let at = block * u64::from(geometry.block_size);
                volume.write(tx, &device, &CALLER, file, at, b"over").map(drop)
            });
            let cut =
                run(&device, |volume, tx| volume.truncate(tx, &device, &CALLER, file, 0).map(drop));
            for done in [written, cut] {
                let refused = match &done {
                    Err(OpError::Refused(Refusal::Damaged(_))) => true,
                    // Below the wrong block there may be pointers that lead out of the file system.
                    Err(OpError::Refused(_)) => word > 48,
                    _ => false,
                };
                assert!(refused, "{profile}, {word}, {target}: {done:?}");
            }
            assert!(device.holds(&before), "{profile}, {target}: something was written");
        }
    }
}

/// A bitmap inside an inode table: whoever marked an inode would overwrite others.
#[test]
fn structures_that_overlap_are_not_written() {
    if tool::missing() {
        return;
    }
    for group in [0, 1] {
        let harm = descriptor(group, |desc| desc.inode_bitmap = BlockNr(desc.inode_table.0 + 3));
        let device = device_of(&Recipe::new("overlap").edit(harm).build().unwrap());
        let refused = Volume::open(&device).map(drop);
        let overlap = matches!(&refused, Err(OpenError::Refused(Refusal::Damaged(_))));
        assert!(overlap, "{group}: {refused:?}");
    }
}
