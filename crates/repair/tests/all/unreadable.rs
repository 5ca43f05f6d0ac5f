//! Repairs of devices with unreadable parts: everything else is repaired, and nothing is given up
//! that a copy of the device recovers.

use floe_blockdev::{Fault, Faulty, NoHoles, ReadBlocks};
use floe_check::Problem;
use floe_format::{BlockNr, GroupNr, InodeNr};
use floe_repair::policy::Yes;
use floe_repair::{Deed, Reason, Repair, RepairOptions, repair};
use floe_testkit::compare::losses;
use floe_testkit::volume::Volume;
use floe_testkit::{Image, Profile, Rng, build, damage, oracle, tool, tree};

use crate::yes_to_all::options;

/// Writes the staged blocks over a copy of an image, and verifies that unreadable ones stay
/// untouched.
fn written(repair: &Repair<'_>, image: &Image, untouched: &[BlockNr]) -> Image {
    let copy = image.copy().unwrap();
    let block_bytes = repair.staged.page_bytes();
    for range in repair.staged.staged_ranges() {
        for block in untouched {
            let at = block.0 * block_bytes;
            assert!(range.end <= at || at + block_bytes <= range.start, "{block} is written");
        }
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
        repair.staged.read_at(range.start, &mut bytes).unwrap();
        copy.write(range.start, &bytes).unwrap();
    }
    copy
}

fn faulty<'i>(image: &'i Image, profile: Profile, blocks: &[BlockNr]) -> Faulty<&'i Image> {
    let block_bytes = u32::try_from(profile.block_size()).unwrap();
    Faulty::new(image, block_bytes, blocks.iter().map(|&block| (block, Fault::Unreadable)))
}

/// Inode table blocks that hold inodes in use.
fn table_blocks(image: &Image) -> Vec<BlockNr> {
    let volume = Volume::open(image).unwrap();
    let geometry = &volume.geometry;
    let mut blocks: Vec<BlockNr> = (1..=110)
        .filter_map(|number| volume.inode_offset(InodeNr(number)).ok())
        .map(|at| BlockNr(at / u64::from(geometry.block_size)))
        .collect();
    blocks.dedup();
    blocks
}

/// Number of damaged images to repair; `FLOE_SEEDS` changes it.
fn seeds() -> usize {
    std::env::var("FLOE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(44)
}

/// A repair with unreadable inodes loses nothing that a repair of the readable device saves.
#[test]
fn what_comes_back_is_as_if_it_had_always_been_there() {
    if tool::missing() {
        return;
    }
    let (mut mended, mut rng) = (0, Rng::new(4));
    for (index, profile) in [Profile::Ext4K1, Profile::Ext2K1, Profile::Quota, Profile::Bigalloc]
        .into_iter()
        .cycle()
        .enumerate()
        .take(seeds())
    {
        let base = build::base(profile).unwrap();
        let blocks = table_blocks(&base);
        let hidden = [blocks[rng.index(blocks.len())]];
        let seed = 500 + index as u64;
        let (image, _) = damage::damaged_image(profile, seed).unwrap();
        let name = format!("{profile}:{seed}, {hidden:?} hidden");
        let direct = match repair(&image, &options(), &mut Yes) {
            Ok(direct) if direct.is_clean() => written(&direct, &image, &[]),
            // Even the fully readable device cannot be repaired.
            _ => continue,
        };
        let device = faulty(&image, profile, &hidden);
        let Ok(blind) = repair(&device, &options(), &mut Yes) else { continue };
        let of_table = |problem: &Problem| matches!(problem, Problem::UnreadableInodeTable { .. });
        if !blind.after.found.iter().any(of_table) {
            // The damage redirects the table: the block no longer belongs to one.
            continue;
        }
        assert!(!blind.is_clean(), "{name}");
        mended += usize::from(!blind.deeds.is_empty());
        let copy = written(&blind, &image, &hidden);
        let second = repair(&copy, &options(), &mut Yes).unwrap();
        assert!(second.is_clean(), "{name}: {:?}", second.left);
        let ours = written(&second, &copy, &[]);
        let theirs = oracle::e2fsck(&ours).unwrap();
        // Some images never satisfy e2fsck.
        let is_measure = oracle::e2fsck(&direct).unwrap().clean();
        assert!(theirs.clean() || !is_measure, "{name}: {}", theirs.text);
        let trees = [&direct, &ours, &base].map(|image| tree::stored(image).unwrap());
        let lost = losses(&trees[0], &trees[1], &trees[2]);
        assert!(lost.is_empty(), "{name}: {lost:?}\n{:#?}", blind.deeds);
    }
    assert!(mended * 2 > seeds(), "only {mended} were repaired");
}

fn deed_about(deeds: &[Deed], is: fn(&Problem) -> bool) -> bool {
    deeds.iter().any(|deed| deed.problem.as_ref().is_some_and(is))
}

/// Certain damage is repaired; findings that depend on hidden inodes are left, with the reason.
#[test]
fn the_rest_is_mended_and_what_is_hidden_left() {
    if tool::missing() {
        return;
    }
    let profile = Profile::Ext4K1;
    let image = build::base(profile).unwrap();
    // A readable file with a wrong block count, and one of its blocks marked as free.
    build::debugfs(&image, "sif /fragmented blocks 9\n").unwrap();
    let volume = Volume::open(&image).unwrap();
    let map = volume.map(volume.lookup("/fragmented").unwrap()).unwrap();
    let block = map.data.values().next();
    build::debugfs(&image, &format!("freeb {}\n", block.unwrap().0)).unwrap();
    let hidden_inode = volume.lookup("/many/f050").unwrap();
    let at = volume.inode_offset(hidden_inode).unwrap();
    let hidden = [BlockNr(at / u64::from(volume.geometry.block_size))];
    let device = faulty(&image, profile, &hidden);
    let blind = repair(&device, &options(), &mut Yes).unwrap();
    assert!(deed_about(&blind.deeds, |it| matches!(it, Problem::InodeBlockCountWrong { .. })));
    assert!(deed_about(&blind.deeds, |it| matches!(it, Problem::BlockBitmapMissingBlock { .. })));
    // Blocks and names of hidden files seem unused, and are not touched.
    let because = |problem: &Problem| {
        blind.left.iter().find(|(left, _)| left == problem).map(|(_, reason)| reason.clone())
    };
    let leaked = |problem: &&Problem| {
        matches!(
            problem,
            Problem::BlockBitmapLeakedBlock { .. } | Problem::BlockBitmapLeakedRange { .. }
        )
    };
    let leaked = blind.after.found.iter().find(leaked).unwrap();
    assert!(
        matches!(because(leaked), Some(Reason::Impossible(why)) if why.contains("cannot be read"))
    );
    let copy = written(&blind, &image, &hidden);
    let ours = Volume::open(&copy).unwrap();
    let bitmap = |volume: &Volume<'_>| volume.block(volume.desc(GroupNr(0)).unwrap().block_bitmap);
    let (before, after) = (bitmap(&volume).unwrap(), bitmap(&ours).unwrap());
    assert!(before.iter().zip(&after).all(|(before, after)| before & !after == 0), "freed");
    assert!(ours.lookup("/many/f050").is_ok());
    // Once everything is readable, only counts are left to repair.
    let second = repair(&copy, &options(), &mut Yes).unwrap();
    assert!(second.is_clean());
    let copy = written(&second, &copy, &[]);
    let base = tree::stored(&build::base(profile).unwrap()).unwrap();
    assert_eq!(losses(&base, &tree::stored(&copy).unwrap(), &base), []);
}

/// Unreadable descriptors are restored from a readable backup, if that is allowed.
#[test]
fn descriptors_come_from_a_backup() {
    if tool::missing() {
        return;
    }
    for profile in [Profile::Ext4K1, Profile::Ext2K1, Profile::Ext3] {
        let image = build::base(profile).unwrap();
        let volume = Volume::open(&image).unwrap();
        if volume.geometry.group_count < 2 {
            continue;
        }
        let hidden = [volume.geometry.primary_desc_block(0)];
        let device = faulty(&image, profile, &hidden);
        let left = repair(&device, &options(), &mut Yes).unwrap();
        assert!(!left.is_clean() && left.deeds.is_empty(), "{profile}: {:?}", left.deeds);
        let permitted = RepairOptions { overwrite_unreadable: true, ..options() };
        let repaired = repair(&device, &permitted, &mut Yes).unwrap();
        assert!(repaired.is_clean(), "{profile}: {:?}", repaired.left);
        let ours = written(&repaired, &image, &[]);
        assert!(oracle::e2fsck(&ours).unwrap().clean(), "{profile}");
        let base = tree::stored(&image).unwrap();
        assert_eq!(losses(&base, &tree::stored(&ours).unwrap(), &base), [], "{profile}");
        // Without a backup nothing can be located with certainty, and nothing is written.
        for group in 1..volume.geometry.group_count {
            if let Some(block) = volume.geometry.superblock_of(GroupNr(group)) {
                let at = volume.geometry.offset_bytes(block);
                image.write(at, &[0; 1024]).unwrap();
            }
        }
        let device = faulty(&image, profile, &hidden);
        let Ok(left) = repair(&device, &permitted, &mut Yes) else { continue };
        assert!(!left.is_clean() && left.deeds.is_empty(), "{profile}: {:?}", left.deeds);
    }
}

/// A sparse file that the underlying file system reports to be one large hole.
struct Liar<'i>(&'i Image);

impl ReadBlocks for Liar<'_> {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset_bytes, into)
    }

    fn is_hole(&self, _offset_bytes: u64, len_bytes: u64) -> bool {
        len_bytes > 0
    }
}

/// Nothing is dropped because of a reported hole: the blocks are read first.
#[test]
fn what_is_called_a_hole_is_read_before_anything_is_dropped() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::Ext4K1).unwrap();
    let options = options();
    let believed = floe_check::check(&Liar(&image), &options.check).unwrap();
    assert!(!believed.is_clean(), "the reported hole has an effect");
    assert!(floe_check::check(&NoHoles(Liar(&image)), &options.check).unwrap().is_clean());
    let liar = Liar(&image);
    let repaired = repair(&liar, &options, &mut Yes).unwrap();
    assert!(repaired.before.is_clean() && repaired.deeds.is_empty(), "{:?}", repaired.deeds);
}
