//! Damage that Linux refuses and e2fsck ignores: the repair keeps all user data.

use floe_check::CheckOptions;
use floe_format::ext::inode::Inode;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::{BlockNr, InodeNr};
use floe_repair::policy::Yes;
use floe_repair::{RepairOptions, repair};
use floe_testkit::problems::cases;
use floe_testkit::recipe::{Recipe, inode};
use floe_testkit::{Image, Profile, Volume, oracle, tool};

/// Repairs an image in place; Floe and e2fsck must then find it clean.
fn mend(image: &Image) {
    let check = CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    let repaired =
        repair(image, &RepairOptions { check, ..RepairOptions::default() }, &mut Yes).unwrap();
    assert!(repaired.is_clean(), "{:?}", repaired.left);
    let (staged, copy) = (&repaired.staged, image);
    copy.write_staged(staged).unwrap();
    let verdict = oracle::e2fsck(copy).unwrap();
    assert!(verdict.clean(), "{}", verdict.text);
}

/// The image of a case of `floe_testkit::problems`.
fn image_of(name: &str) -> Image {
    let case = cases().into_iter().find(|case| case.recipe.name() == name);
    case.unwrap().recipe.build().unwrap()
}

/// Inode and content of a file.
fn content(image: &Image, path: &str) -> (InodeNr, Vec<Vec<u8>>) {
    let volume = Volume::open(image).unwrap();
    let inode = volume.lookup(path).unwrap();
    let blocks: Vec<BlockNr> = volume.map(inode).unwrap().data.into_values().collect();
    (inode, blocks.into_iter().map(|block| volume.block(block).unwrap()).collect())
}

fn superblock(image: &Image) -> Superblock {
    let mut bytes = [0; 1024];
    image.read(OFFSET_BYTES, &mut bytes).unwrap();
    Superblock::decode(&bytes)
}

#[test]
fn a_file_that_the_superblock_calls_the_orphan_file_keeps_its_content_and_name() {
    if tool::missing() {
        return;
    }
    for (name, path) in
        [("orphan file is a file", "/dir/file"), ("orphan file is a directory", "/dir")]
    {
        let image = image_of(name);
        let before = content(&image, path);
        assert_eq!(superblock(&image).orphan_file_inum, before.0.0);
        mend(&image);
        assert_eq!(content(&image, path), before);
        // The original orphan file, not a new one.
        assert_eq!(superblock(&image).orphan_file_inum, 12);
    }
}

/// A journal inode is restored from its backup in the superblock, and no other field is kept.
#[test]
fn a_restored_journal_inode_is_clean_in_all_its_fields() {
    if tool::missing() {
        return;
    }
    for profile in [Profile::Ext4K1, Profile::Ext3, Profile::Inode128, Profile::NoCsum] {
        let recipe = Recipe::new("garbage").on(profile).edit(inode("<8>").whole(|raw| {
            // Nonzero noise everywhere but in the checksum.
            for (at, byte) in raw.iter_mut().enumerate() {
                *byte = (at * 37 + 11) as u8;
            }
        }));
        let image = recipe.build().unwrap();
        mend(&image);
        let volume = Volume::open(&image).unwrap();
        let raw = volume.inode_bytes(InodeNr::JOURNAL).unwrap();
        let journal = Inode::decode(&raw).unwrap();
        let base = &journal.base;
        let odd = [
            base.file_acl_lo,
            base.file_acl_high.into(),
            base.faddr,
            base.generation,
            base.dtime,
            base.uid_lo.into(),
            base.version,
        ];
        assert_eq!(odd, [0; 7], "{profile}");
        assert!(matches!(journal.extra.extra_isize, 0 | 28 | 32), "{profile}");
        assert_eq!(base.links_count, 1, "{profile}");
        let sb = superblock(&image);
        assert_eq!(base.size_lo, sb.jnl_blocks[16], "{profile}");
    }
}
