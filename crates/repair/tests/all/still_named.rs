//! Files that a directory names although they count no links.

use floe_check::CheckOptions;
use floe_format::InodeNr;
use floe_repair::policy::Yes;
use floe_repair::{RepairOptions, repair};
use floe_testkit::problems::cases;
use floe_testkit::recipe::{Edit, Recipe, superblock};
use floe_testkit::tree::stored;
use floe_testkit::{Image, Profile, oracle, tool};

fn mended(recipe: Recipe) -> Image {
    let image = recipe.build().unwrap();
    let check = CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    let options = RepairOptions { check, ..RepairOptions::default() };
    let repaired = repair(&image, &options, &mut Yes).unwrap();
    assert!(repaired.is_clean(), "{:?}", repaired.left);
    image.write_staged(&repaired.staged).unwrap();
    let verdict = oracle::e2fsck(&image).unwrap();
    assert!(verdict.clean(), "{}", verdict.text);
    image
}

/// Takes the links of an inode away.
fn without_links(path: &'static str) -> Edit {
    Edit::new(move |volume| {
        let inode = volume.lookup(path)?;
        let mut bytes = volume.inode_bytes(inode)?;
        bytes[0x1a..0x1c].fill(0);
        volume.put_inode(inode, &bytes)?;
        volume.fix_inode(inode)
    })
}

/// Also where the superblock takes the file for a quota file, whose count of links it then is.
#[test]
fn a_file_without_links_keeps_its_name() {
    if tool::missing() {
        return;
    }
    for profile in [Profile::Quota, Profile::Ext2K1, Profile::Ext3, Profile::OrphanFile] {
        let whole = Recipe::new("whole").on(profile).build().unwrap();
        for path in ["/dir/file", "/hard-a", "/dir/sub"] {
            let recipe = || Recipe::new("no links").on(profile).edit(without_links(path));
            let mut recipes = vec![recipe()];
            if profile == Profile::Quota {
                let volume = floe_testkit::Volume::open(&whole).unwrap();
                let InodeNr(number) = volume.lookup(path).unwrap();
                recipes.push(recipe().edit(superblock(move |sb| sb.prj_quota_inum = number)));
            }
            for recipe in recipes {
                let (before, after) = (stored(&whole).unwrap(), stored(&mended(recipe)).unwrap());
                for (name, node) in &before {
                    let name_text = String::from_utf8_lossy(name);
                    assert_eq!(after.get(name), Some(node), "{profile}, {path}: {name_text}");
                }
                assert_eq!(after.len(), before.len(), "{profile}, {path}: something new");
            }
        }
    }
}

/// A device or socket that a directory names, behind an entry that must be salvaged first, is kept for that name.
#[test]
fn a_special_file_waits_for_the_name_that_proves_it() {
    if tool::missing() {
        return;
    }
    for path in ["/char", "/block", "/fifo", "/socket"] {
        let name = format!("proofs: extents of {path}, named behind a broken entry");
        let case = cases().into_iter().find(|case| case.recipe.name() == name).unwrap();
        let paths = stored(&mended(case.recipe)).unwrap();
        assert!(paths.contains_key(path.as_bytes()), "{path}: {:?}", paths.keys());
    }
}

/// A map that leads past a size which the sectors confirm: to blocks that are in use and nobody else's, so that the write of the inode
/// was lost; or to free ones, so that the write of the map was.
#[test]
fn the_bitmap_says_whether_a_map_is_newer_than_its_size() {
    if tool::missing() {
        return;
    }
    for (profile, node) in [(Profile::Ext4K1, "blocks"), (Profile::Ext3, "pointers")] {
        let whole = stored(&Recipe::new("whole").on(profile).build().unwrap()).unwrap();
        let whole = &whole[&b"/fragmented"[..]];
        for (freed, size) in [("", whole.size_bytes), ("freed ", 39 << 10)] {
            let name = format!("extents: {freed}{node} past a size that sectors confirm");
            let case = cases().into_iter().find(|case| case.recipe.name() == name).unwrap();
            let after = stored(&mended(case.recipe)).unwrap();
            let file = &after[&b"/fragmented"[..]];
            assert_eq!(file.size_bytes, size, "{name}");
            assert!(!freed.is_empty() || file.content == whole.content, "{name}");
        }
    }
}
