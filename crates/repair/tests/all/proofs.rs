//! Weighs evidence before an inode with a wrong checksum is cleared: keeps those that e2fsck keeps,
//! flips bits back, and still clears those without proof.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use floe_check::{CheckOptions, Problem};
use floe_format::InodeNr;
use floe_format::ext::inode::FileType;
use floe_repair::policy::Yes;
use floe_repair::{Deed, RepairOptions, SharedBlocks, repair};
use floe_testkit::compare::{ReadBy, Terms, judge};
use floe_testkit::recipe::{Edit, Recipe, descriptor, inode, superblock};
use floe_testkit::rng::Rng;
use floe_testkit::tree::stored;
use floe_testkit::volume::Volume;
use floe_testkit::{Image, Profile, build, tool};

use crate::judged;

/// Inode table blocks with at least `directories` directories, as the numbers of their first
/// inodes.
fn crowded_blocks(volume: &Volume<'_>, directories: usize) -> Result<Vec<u32>> {
    let per_block = volume.geometry.block_size / volume.geometry.inode_size;
    let mut blocks = BTreeMap::<u32, usize>::new();
    for number in volume.used_inodes()? {
        let raw = volume.inode_bytes(number)?;
        let mode = u16::from_le_bytes([raw[0], raw[1]]);
        let is_dir = FileType::of_mode(mode) == Some(FileType::Directory);
        if is_dir && number.0 > 11 {
            *blocks.entry((number.0 - 1) / per_block * per_block + 1).or_default() += 1;
        }
    }
    Ok(blocks.into_iter().filter(|(_, count)| *count >= directories).map(|(at, _)| at).collect())
}

/// The inodes of a block that are in use and not reserved.
fn in_use(volume: &Volume<'_>, first: u32) -> Result<Vec<InodeNr>> {
    let per_block = volume.geometry.block_size / volume.geometry.inode_size;
    let all: BTreeSet<InodeNr> = volume.used_inodes()?.into_iter().collect();
    Ok((first..first + per_block)
        .map(InodeNr)
        .filter(|inode| inode.0 > 10 && all.contains(inode))
        .collect())
}

/// A file system with 2 KiB blocks and as many directories as files.
fn directories() -> Result<Image> {
    let folder = tool::scratch("floe-proofs-")?;
    for at in 0..24 {
        let dir = folder.path().join(format!("d{at:02}"));
        std::fs::create_dir_all(dir.join("deep"))?;
        std::fs::write(dir.join("deep/file"), format!("file {at}"))?;
        std::fs::write(dir.join("file"), vec![at as u8; 3000])?;
    }
    let image = Image::empty(16 << 20)?;
    let tree = folder.path().to_str().context("a path of UTF-8")?;
    build::mke2fs(image.path(), &["-t", "ext4", "-b", "2048", "-N", "512", "-d", tree])?;
    Ok(image)
}

/// Faults in Floe's repair of `image`, a damaged copy of `original`, and the repaired image.
fn faults(image: &Image, original: &Image) -> Result<(Vec<String>, Image)> {
    let terms = Terms { read_by: ReadBy::Testkit, original: Some(original) };
    let judgement = judge(image, &terms, &judged::program)?;
    Ok((judgement.faults.iter().map(ToString::to_string).collect(), judgement.ours))
}

/// Flips `count` bits of each of some inodes.
fn flip(volume: &Volume<'_>, inodes: &[InodeNr], count: usize, rng: &mut Rng) -> Result<()> {
    for &inode in inodes {
        let mut raw = volume.inode_bytes(inode)?;
        let mut bits = BTreeSet::new();
        while bits.len() < count {
            bits.insert(rng.index(raw.len() * 8));
        }
        bits.into_iter().for_each(|bit| raw[bit / 8] ^= 1 << (bit % 8));
        volume.put_inode(inode, &raw)?;
    }
    Ok(())
}

#[test]
fn two_flipped_bits_in_each_inode_of_a_block_are_flipped_back() {
    if tool::missing() {
        return;
    }
    let original = directories().unwrap();
    let bytes = original.to_vec().unwrap();
    let volume = Volume::open(&original).unwrap();
    let blocks = crowded_blocks(&volume, 2).unwrap();
    assert!(blocks.len() > 3, "{blocks:?}");
    let tree = stored(&original).unwrap();
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let first = *rng.pick(&blocks).unwrap();
        let image = original.copy().unwrap();
        let volume = Volume::open(&image).unwrap();
        let all = in_use(&volume, first).unwrap();
        // Half of the block, as in the trial that lost four directories; or all of it.
        let hit = if seed % 2 == 0 { &all[..all.len().min(4)] } else { &all[..] };
        flip(&volume, hit, 1 + (seed % 4 / 2) as usize, &mut rng).unwrap();
        let (faults, ours) = faults(&image, &original).unwrap();
        assert!(faults.is_empty(), "seed {seed}: {faults:?}");
        let inode_bytes = volume.geometry.inode_size as usize;
        for inode in all {
            let at = volume.inode_offset(inode).unwrap() as usize;
            let mut after = vec![0; inode_bytes];
            ours.read(at as u64, &mut after).unwrap();
            assert!(after == bytes[at..at + inode_bytes], "seed {seed}: {inode} differs");
        }
        assert_eq!(stored(&ours).unwrap(), tree, "seed {seed}");
    }
}

#[test]
fn a_wrong_byte_of_an_inode_is_put_right() {
    if tool::missing() {
        return;
    }
    let original = directories().unwrap();
    let bytes = original.to_vec().unwrap();
    let volume = Volume::open(&original).unwrap();
    let first = crowded_blocks(&volume, 2).unwrap()[1];
    let inode = in_use(&volume, first).unwrap()[0];
    let at = volume.inode_offset(inode).unwrap() as usize;
    let mut rng = Rng::new(5);
    // Type, size, sectors, flags, map, generation, extra size.
    for byte in [0x01, 0x04, 0x1c, 0x22, 0x2c, 0x34, 0x3c, 0x65, 0x80] {
        let image = original.copy().unwrap();
        let wrong = bytes[at + byte] ^ (rng.below(255) as u8 + 1);
        image.write((at + byte) as u64, &[wrong]).unwrap();
        let (faults, ours) = faults(&image, &original).unwrap();
        assert!(faults.is_empty(), "byte {byte:#x}: {faults:?}");
        let mut after = vec![0; 256];
        ours.read(at as u64, &mut after).unwrap();
        assert!(after == bytes[at..at + 256], "byte {byte:#x} differs");
    }
}

/// Stores the checksum that an inode would have with two other bits.
fn make_stale(volume: &Volume<'_>, inode: InodeNr, bits: [usize; 2]) {
    let right = volume.inode_bytes(inode).unwrap();
    let mut other = right.clone();
    bits.into_iter().for_each(|bit| other[bit / 8] ^= 1 << (bit % 8));
    volume.put_inode(inode, &other).unwrap();
    volume.fix_inode(inode).unwrap();
    let sealed = volume.inode_bytes(inode).unwrap();
    let mut stale = right;
    for at in [0x7c..0x7e, 0x82..0x84] {
        stale[at.clone()].copy_from_slice(&sealed[at]);
    }
    volume.put_inode(inode, &stale).unwrap();
}

/// Right bytes with a stale checksum that two flipped bits would explain stay as they are, whichever bits; the
/// same bits are flipped back where they are wrong and something else says so.
#[test]
fn two_bits_are_flipped_only_with_a_second_finding() {
    if tool::missing() {
        return;
    }
    let original = directories().unwrap();
    let bytes = original.to_vec().unwrap();
    let volume = Volume::open(&original).unwrap();
    let file = volume.lookup("/d03/file").unwrap();
    let at = volume.inode_offset(file).unwrap() as usize;
    let bit = |byte: usize, bit: usize| 8 * byte + bit;
    // Size, sectors, times, owner, permissions, the place of its blocks.
    for (bits, shows) in [
        ([bit(0x04, 3), bit(0x10, 1)], false),
        ([bit(0x1c, 3), bit(0x10, 1)], true),
        ([bit(0x08, 0), bit(0x11, 7)], false),
        ([bit(0x02, 4), bit(0x19, 1)], false),
        ([bit(0x00, 2), bit(0x08, 5)], false),
        ([bit(0x3c, 5), bit(0x10, 5)], true),
        ([bit(0x1a, 1), bit(0x10, 5)], true),
    ] {
        let stale = original.copy().unwrap();
        make_stale(&Volume::open(&stale).unwrap(), file, bits);
        let wrong = original.copy().unwrap();
        let mut flipped = bytes[at..at + 256].to_vec();
        bits.into_iter().for_each(|bit| flipped[bit / 8] ^= 1 << (bit % 8));
        Volume::open(&wrong).unwrap().put_inode(file, &flipped).unwrap();
        for (image, is_right) in [(&stale, true), (&wrong, shows)] {
            let (faults, ours) = faults(image, &original).unwrap();
            assert!(faults.is_empty(), "{bits:?}, {is_right}: {faults:?}");
            let mut after = vec![0; 256];
            ours.read(at as u64, &mut after).unwrap();
            assert_eq!(after == bytes[at..at + 256], is_right, "{bits:?}");
        }
    }
}

/// Makes noise of the times and the version of all inodes in a block: too many flipped bits to identify.
fn fill_with_noise(volume: &Volume, first: u32) {
    for inode in in_use(volume, first).unwrap() {
        let mut raw = volume.inode_bytes(inode).unwrap();
        Rng::new(u64::from(inode.0)).fill(&mut raw[0x08..0x14]);
        Rng::new(u64::from(inode.0)).fill(&mut raw[0x24..0x28]);
        volume.put_inode(inode, &raw).unwrap();
    }
}

#[test]
fn named_inodes_amid_garbage_are_kept() {
    if tool::missing() {
        return;
    }
    let original = directories().unwrap();
    let volume = Volume::open(&original).unwrap();
    let tree = stored(&original).unwrap();
    for first in crowded_blocks(&volume, 2).unwrap().into_iter().take(3) {
        let image = original.copy().unwrap();
        let volume = Volume::open(&image).unwrap();
        fill_with_noise(&volume, first);
        let (faults, ours) = faults(&image, &original).unwrap();
        assert!(faults.is_empty(), "{first}: {faults:?}");
        let kept: BTreeSet<_> = stored(&ours).unwrap().into_keys().collect();
        assert_eq!(kept, tree.keys().cloned().collect(), "{first}");
    }
}

/// The names lie behind an entry that must be salvaged first: before that nobody knows them.
#[test]
fn inodes_amid_garbage_wait_for_the_names_that_prove_them() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-proofs-").unwrap();
    for at in 0..40 {
        std::fs::write(folder.path().join(format!("f{at:02}")), vec![at as u8 + 1; 3000]).unwrap();
    }
    let original = Image::empty(16 << 20).unwrap();
    let tree = folder.path().to_str().unwrap();
    build::mke2fs(original.path(), &["-t", "ext4", "-b", "2048", "-N", "512", "-d", tree]).unwrap();
    let volume = Volume::open(&original).unwrap();
    let before = stored(&original).unwrap();
    let first = volume.lookup("/f20").unwrap().0 / 8 * 8 + 1;
    let image = original.copy().unwrap();
    let volume = Volume::open(&image).unwrap();
    fill_with_noise(&volume, first);
    let root = *volume.map(InodeNr::ROOT).unwrap().data.values().next().unwrap();
    let mut block = volume.block(root).unwrap();
    // The entry behind the two dots.
    block[28..30].copy_from_slice(&99u16.to_le_bytes());
    volume.put_block(root, &block).unwrap();
    let (faults, ours) = faults(&image, &original).unwrap();
    assert!(faults.is_empty(), "{faults:?}");
    let kept: BTreeSet<_> = stored(&ours).unwrap().into_keys().collect();
    let missing: Vec<_> = before.keys().filter(|name| !kept.contains(*name)).collect();
    assert!(missing.len() <= 1, "{missing:?}");
}

#[test]
fn noise_and_anothers_inodes_are_not_kept() {
    if tool::missing() {
        return;
    }
    let original = directories().unwrap();
    let volume = Volume::open(&original).unwrap();
    let blocks = crowded_blocks(&volume, 2).unwrap();
    let inode_bytes = volume.geometry.inode_size as usize;
    // Noise; the inodes of another block; those of a block that is empty now, so that nobody else claims their
    // blocks and only their checksums tell whose they are.
    for (of_another, is_moved) in [(false, false), (true, false), (true, true)] {
        let image = original.copy().unwrap();
        let volume = Volume::open(&image).unwrap();
        for (at, inode) in in_use(&volume, blocks[1]).unwrap().into_iter().enumerate() {
            let mut raw = vec![0; inode_bytes];
            Rng::new(at as u64).fill(&mut raw);
            raw[0x1a..0x1c].copy_from_slice(&[1, 0]);
            let other = InodeNr(blocks[2] + at as u32);
            if of_another {
                raw = volume.inode_bytes(other).unwrap();
            }
            volume.put_inode(inode, &raw).unwrap();
            if is_moved {
                volume.put_inode(other, &vec![0; inode_bytes]).unwrap();
            }
        }
        let (faults, ours) = faults(&image, &original).unwrap();
        assert!(faults.is_empty(), "{of_another}, {is_moved}: {faults:?}");
        let left = in_use(&Volume::open(&ours).unwrap(), blocks[1]).unwrap();
        assert!(left.is_empty(), "{of_another}, {is_moved}: {left:?}");
    }
}

#[test]
fn a_block_of_a_single_inode_has_no_majority() {
    if tool::missing() {
        return;
    }
    let original = Image::empty(8 << 20).unwrap();
    build::mke2fs(original.path(), &["-t", "ext4", "-b", "1024", "-I", "1024", "-N", "256"])
        .unwrap();
    let image = original.copy().unwrap();
    let volume = Volume::open(&image).unwrap();
    let mut raw = volume.inode_bytes(InodeNr(11)).unwrap();
    raw[0x08..0x14].fill(0x55);
    volume.put_inode(InodeNr(11), &raw).unwrap();
    let (faults, ours) = faults(&image, &original).unwrap();
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(Volume::open(&ours).unwrap().lookup("/lost+found").unwrap(), InodeNr(11));
}

#[test]
fn special_files_keep_their_numbers_whatever_their_flags() {
    if tool::missing() {
        return;
    }
    for profile in [Profile::Ext4K2, Profile::InlineData] {
        for (path, flags) in ["/char", "/block", "/fifo", "/socket"].into_iter().flat_map(|path| {
            [0x0008_0000, 0x1000_0000, 0x1008_0000, 0x1000].map(|flags| (path, flags))
        }) {
            let recipe = Recipe::new("flags").on(profile).edit(inode(path).set_flags(flags));
            let (image, whole) = (recipe.build().unwrap(), recipe.base().unwrap());
            let (faults, ours) = faults(&image, &whole).unwrap();
            assert!(faults.is_empty(), "{profile}, {path}, {flags:#x}: {faults:?}");
            let trees = [&ours, &whole].map(|image| stored(image).unwrap());
            assert_eq!(trees[0], trees[1], "{profile}, {path}, {flags:#x}");
        }
    }
}

#[test]
fn who_goes_for_shared_blocks_goes_with_a_reason() {
    if tool::missing() {
        return;
    }
    let onto_another = Edit::new(|volume| {
        let (thief, owner) = (volume.lookup("/blocks")?, volume.lookup("/file")?);
        let (mut raw, other) = (volume.inode_bytes(thief)?, volume.inode_bytes(owner)?);
        // The location of the first extent, and noise in the times, so that no bit flip explains
        // the checksum.
        raw[0x3c..0x40].copy_from_slice(&other[0x3c..0x40]);
        raw[0x08..0x14].fill(0x55);
        volume.put_inode(thief, &raw)
    });
    let image = Recipe::new("shared").on(Profile::Ext4K1).edit(onto_another).build().unwrap();
    let now_seconds = i64::from(tool::NOW);
    let check = CheckOptions { threads: 2, now_seconds, ..CheckOptions::default() };
    let shared_blocks = SharedBlocks::DropCulprit;
    let options = RepairOptions { check, shared_blocks, ..RepairOptions::default() };
    let repaired = repair(&image, &options, &mut Yes).unwrap();
    let gone = |deed: &&Deed| matches!(deed.problem, Some(Problem::MultiplyClaimedFile { .. }));
    let deeds: Vec<&Deed> = repaired.deeds.iter().filter(gone).collect();
    assert!(!deeds.is_empty(), "{:?}", repaired.deeds);
    let notes: Vec<&String> = deeds.iter().flat_map(|deed| &deed.notes).collect();
    assert!(notes.iter().any(|note| note.contains("in doubt")), "{deeds:?}");
}

/// Types of entries prove what an inode is, also where a repair will take all types away: a file system of the Hurd has none.
#[test]
fn types_of_entries_prove_inodes_before_they_go() -> Result<()> {
    if tool::missing() {
        return Ok(());
    }
    let original = build::base(Profile::Ext2K1)?;
    let hurd = || superblock(|sb| sb.creator_os = 1);
    for path in ["/socket", "/fifo", "/block", "/char"] {
        // Mapped by extents, and holding its data: a device, a FIFO and a socket have neither.
        let flags = inode(path).set_flags(0x1008_0000);
        let image = Recipe::new("types").on(Profile::Ext2K1).edit(hurd()).edit(flags).build()?;
        let (faults, ours) = faults(&image, &original)?;
        assert!(faults.is_empty(), "{path}: {faults:?}");
        let kind = |image: &Image| stored(image).map(|tree| tree[path.as_bytes()].kind);
        assert_eq!(kind(&ours)?, kind(&original)?, "{path}");
    }
    Ok(())
}

/// The primary descriptors are insane, and so is their first copy: another one is sound.
#[test]
fn of_several_copies_of_descriptors_a_sound_one_counts() -> Result<()> {
    if tool::missing() {
        return Ok(());
    }
    let original = build::base(Profile::Ext4K1)?;
    let copy = Edit::new(|volume| {
        let copy = volume.geometry.group_desc_run(floe_format::GroupNr(1)).start;
        let mut bytes = volume.block(copy)?;
        // Its first group has its inode table at block 7.
        bytes[8..12].copy_from_slice(&7u32.to_le_bytes());
        volume.put_block(copy, &bytes)
    });
    let primary = descriptor(1, |desc| desc.inode_table = floe_format::BlockNr(1 << 30));
    let image = Recipe::new("copies").on(Profile::Ext4K1).edit(primary).edit(copy).build()?;
    let (faults, ours) = faults(&image, &original)?;
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(stored(&ours)?, stored(&original)?);
    Ok(())
}
