//! Places of every group's metadata against dumpe2fs, over the features that move them.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::superblock::{MAGIC, Superblock};
use floe_format::geometry::Strictness;
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr};

use crate::support;

/// Name, mke2fs arguments, size.
const PROFILES: &[(&str, &str, &str)] = &[
    ("ext2 1k", "-b 1024 -O none,filetype", "40M"),
    ("no sparse_super, many groups", "-b 1024 -g 256 -O none", "20M"),
    ("sparse_super, many groups", "-b 1024 -g 256 -O none,sparse_super", "20M"),
    ("ext2 4k", "-b 4096 -g 512 -O none,sparse_super", "64M"),
    ("ext3", "-b 1024 -g 1024 -j -O sparse_super,resize_inode,filetype,dir_index", "32M"),
    ("resize 1k", "-b 1024 -g 512 -O sparse_super,resize_inode -E resize=1000000", "16M"),
    ("resize 4k", "-b 4096 -g 1024 -O sparse_super,resize_inode,64bit,extent", "128M"),
    ("flex_bg", "-b 4096 -g 1024 -O sparse_super,resize_inode,flex_bg,extent -G 4", "128M"),
    ("gdt_csum", "-b 1024 -g 1024 -O sparse_super,resize_inode,uninit_bg,flex_bg,extent", "64M"),
    ("crc32c, no 64bit", "-b 1024 -g 1024 -O sparse_super,metadata_csum,extent", "32M"),
    ("crc32c, 64bit", "-b 1024 -g 512 -O sparse_super,metadata_csum,64bit,extent,flex_bg", "32M"),
    ("meta_bg 1k", "-b 1024 -g 256 -O none,sparse_super,meta_bg,extent", "64M"),
    ("meta_bg 1k 64bit", "-b 1024 -g 256 -O none,sparse_super,meta_bg,64bit,extent", "64M"),
    ("meta_bg 4k", "-b 4096 -g 256 -O none,sparse_super,meta_bg,64bit,extent,flex_bg", "300M"),
    ("meta_bg, no sparse_super", "-b 1024 -g 256 -O none,meta_bg,64bit,extent", "20M"),
    ("sparse_super2, two", "-b 1024 -g 512 -O sparse_super2,resize_inode,extent", "32M"),
    ("sparse_super2, one", "-b 1024 -g 512 -O sparse_super2,extent -E num_backup_sb=1", "32M"),
    ("sparse_super2, none", "-b 1024 -g 512 -O sparse_super2,extent -E num_backup_sb=0", "32M"),
    ("sparse_super2, meta_bg", "-b 1024 -g 256 -O none,sparse_super2,meta_bg,64bit,extent", "32M"),
    ("bigalloc 1k", "-b 1024 -C 16384 -g 8192 -O bigalloc,extent,sparse_super,64bit", "128M"),
    ("bigalloc 4k", "-b 4096 -C 65536 -O bigalloc,extent,sparse_super,flex_bg,64bit", "512M"),
    (
        "bigalloc 1k, meta_bg",
        "-b 1024 -C 4096 -g 1024 -O none,bigalloc,extent,meta_bg,64bit",
        "64M",
    ),
    ("bigalloc 1k, resize", "-b 1024 -C 4096 -g 2048 -O bigalloc,extent,resize_inode,64bit", "64M"),
    ("many inodes", "-b 4096 -N 131072 -O extent,sparse_super", "400M"),
    ("all inodes a bitmap holds", "-b 4096 -i 4096 -I 128 -O sparse_super", "260M"),
    ("64k blocks", "-b 65536 -O extent,sparse_super,64bit,resize_inode", "300M"),
    ("2k blocks, last group short", "-b 2048 -g 1024 -O extent,sparse_super,64bit", "31M"),
    ("rev 0", "-b 1024 -r 0", "16M"),
];

/// The metadata places of a group; empty runs for metadata that it does not have.
#[derive(Debug, Default, PartialEq, Eq)]
struct Places {
    blocks: Option<RangeInclusive<u64>>,
    superblock: Option<u64>,
    descs: Option<RangeInclusive<u64>>,
    reserved: Option<RangeInclusive<u64>>,
    block_bitmap: Option<u64>,
    inode_bitmap: Option<u64>,
    inode_table: Option<RangeInclusive<u64>>,
}

fn range(text: &str) -> RangeInclusive<u64> {
    let text = text.split([',', ')', ' ']).next().unwrap();
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    first.parse().unwrap()..=last.parse().unwrap()
}

/// Reads the group listing of dumpe2fs.
fn listed(dumpe2fs: &Path, image: &Path) -> BTreeMap<u32, Places> {
    let output = Command::new(dumpe2fs).env("LC_ALL", "C").arg(image).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut groups = BTreeMap::new();
    let mut group = None;
    for line in text.lines() {
        if let Some((number, blocks)) =
            line.strip_prefix("Group ").and_then(|rest| rest.split_once(": (Blocks "))
        {
            let blocks = Some(range(blocks));
            let places = Places { blocks, ..Places::default() };
            group = Some(groups.entry(number.parse().unwrap()).or_insert(places));
            continue;
        }
        let Some(places) = group.as_deref_mut() else { continue };
        let one = |after: &str| line.split_once(after).map(|(_, rest)| range(rest));
        let start = |after: &str| one(after).map(|range| *range.start());
        places.superblock = places.superblock.or(start("superblock at "));
        places.descs = places.descs.take().or_else(|| one("Group descriptors at "));
        places.descs = places.descs.take().or_else(|| one("Group descriptor at "));
        places.reserved = places.reserved.take().or_else(|| one("Reserved GDT blocks at "));
        places.block_bitmap = places.block_bitmap.or(start("Block bitmap at "));
        places.inode_bitmap = places.inode_bitmap.or(start("Inode bitmap at "));
        places.inode_table = places.inode_table.take().or_else(|| one("Inode table at "));
    }
    groups
}

fn as_range(run: BlockRun) -> Option<RangeInclusive<u64>> {
    (run.len_blocks > 0).then(|| run.start.0..=run.end().0 - 1)
}

fn superblock_at(image: &File, at: u64) -> Superblock {
    let mut bytes = [0; 1024];
    image.read_exact_at(&mut bytes, at).unwrap();
    Superblock::decode(&bytes)
}

fn desc_of(image: &File, geo: &Geometry, group: GroupNr) -> GroupDesc {
    let per_block = geo.block_size / geo.desc_size;
    let block = geo.primary_desc_block(group.0 / per_block);
    let at = geo.offset_bytes(block) + u64::from(group.0 % per_block * geo.desc_size);
    let mut bytes = vec![0; geo.desc_size as usize];
    image.read_exact_at(&mut bytes, at).unwrap();
    let high = bytes.get(32..).and_then(|rest| rest.first_chunk());
    GroupDesc::decode(bytes.first_chunk().unwrap(), high)
}

fn derived(image: &File, geo: &Geometry, group: GroupNr) -> Places {
    let desc = desc_of(image, geo, group);
    let table = BlockRun::new(desc.inode_table, u64::from(geo.inode_table_blocks));
    Places {
        blocks: as_range(geo.blocks_of(group)),
        superblock: geo.superblock_of(group).map(|block| block.0),
        descs: as_range(geo.group_desc_run(group)),
        reserved: as_range(geo.reserved_gdt_run(group)),
        block_bitmap: Some(desc.block_bitmap.0),
        inode_bitmap: Some(desc.inode_bitmap.0),
        inode_table: as_range(table),
    }
}

/// Every backup superblock is where the geometry says, and groups without one have none at that
/// place.
fn check_superblocks(name: &str, image: &File, geo: &Geometry) {
    for group in (0..geo.group_count).map(GroupNr) {
        let place = geo.superblock_of(group);
        let block = place.unwrap_or(geo.group_start(group));
        let at = if group.0 == 0 { 1024 } else { geo.offset_bytes(block) };
        let copy = superblock_at(image, at);
        assert_eq!(copy.magic == MAGIC, place.is_some(), "{name}: superblock in {group}");
        if place.is_some() {
            assert_eq!(u32::from(copy.block_group_nr), group.0, "{name}: superblock in {group}");
        }
    }
}

#[test]
fn places_equal_dumpe2fs() {
    let (Some(mke2fs), Some(dumpe2fs)) = (support::tool("mke2fs"), support::tool("dumpe2fs"))
    else {
        return;
    };
    for (name, args, size) in PROFILES {
        let file = tempfile::NamedTempFile::new().unwrap();
        support::mke2fs(&mke2fs, file.path(), args, size);
        let image = file.as_file();
        let sb = superblock_at(image, 1024);
        let geo = Geometry::new(&sb, Strictness::Strict)
            .unwrap_or_else(|fault| panic!("{name}: {fault:?}"));
        let listed = listed(&dumpe2fs, file.path());
        assert_eq!(listed.len(), geo.group_count as usize, "{name}: groups");
        for (group, theirs) in &listed {
            let ours = derived(image, &geo, GroupNr(*group));
            assert_eq!(&ours, theirs, "{name}: group {group}");
        }
        check_superblocks(name, image, &geo);
        let last = geo.group_of(BlockNr(geo.blocks_count - 1));
        assert_eq!(last, Some(GroupNr(geo.group_count - 1)), "{name}");
        assert_eq!(geo.group_of(BlockNr(geo.blocks_count)), None, "{name}");
    }
}
