//! Damage to N objects of a kind takes as many rounds as damage to one: no repair handles one
//! object per round.

use std::fmt::Write as _;

use floe_check::CheckOptions;
use floe_format::ext::inode::InodeBase;
use floe_format::{BlockNr, InodeNr};
use floe_repair::policy::Yes;
use floe_repair::{Repair, RepairOptions, repair};
use floe_testkit::problems::Recipes;
use floe_testkit::volume::View;
use floe_testkit::{Image, Profile, Volume, build, oracle, tool};

/// Repairs an image, and checks that neither Floe nor e2fsck finds anything after that.
fn repaired<'i>(image: &'i Image, what: &str) -> Repair<'i> {
    let check =
        CheckOptions { threads: 2, now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    let options = RepairOptions { check, random: [7; 16], ..RepairOptions::default() };
    let repaired = repair(image, &options, &mut Yes).unwrap();
    assert!(repaired.is_clean() && repaired.left.is_empty(), "{what}: {:?}", repaired.left);
    let verdict = oracle::e2fsck(&image.with_staged(&repaired.staged).unwrap()).unwrap();
    assert!(verdict.clean(), "{what}: {}", verdict.text);
    repaired
}

/// `users` files that share one attribute block, as files with the same ACL do.
fn shared_attributes(users: usize) -> (Image, Vec<InodeNr>) {
    let image = Image::empty(16 << 20).unwrap();
    let format = ["-t", "ext4", "-b", "1024", "-N", "4096", "-O", "^has_journal"];
    build::mke2fs(image.path(), &format).unwrap();
    let value = "v".repeat(300);
    let mut script = format!("write /dev/null first\nea_set first user.large {value}\n");
    for file in 1..users {
        writeln!(script, "write /dev/null f{file}").unwrap();
    }

    build::debugfs(&image, &script).unwrap();
    let volume = Volume::open(&image).unwrap();
    let mut inodes = vec![volume.lookup("/first").unwrap()];
    let first = volume.inode_bytes(inodes[0]).unwrap();
    for file in 1..users {
        let inode = volume.lookup(&format!("/f{file}")).unwrap();
        volume.put_inode(inode, &first).unwrap();
        volume.fix_inode(inode).unwrap();
        inodes.push(inode);
    }
    // The reference counts of the block follow.
    assert_eq!(oracle::run(image.path(), &["-fy"]).unwrap().exit, Some(1 - i32::from(users == 1)));
    (image, inodes)
}

fn attribute_block(volume: &Volume<'_>, inode: InodeNr) -> u32 {
    let bytes = volume.inode_bytes(inode).unwrap();
    InodeBase::decode(bytes.first_chunk().unwrap()).file_acl_lo
}

#[test]
fn all_users_of_an_attribute_block_are_mended_in_one_round() {
    if tool::missing() {
        return;
    }
    // Each byte breaks another part of the block: magic number, block count, a name, a hash.
    for (at, byte) in [(0, 7), (8, 2), (33, 0), (44, 0x55)] {
        let rounds = [1, 100, 1000].map(|users| {
            let (image, inodes) = shared_attributes(users);
            let volume = Volume::open(&image).unwrap();
            let block = u64::from(attribute_block(&volume, inodes[0]));
            image.write(block * 1024 + at, &[byte]).unwrap();
            // With a right checksum: a wrong one would tell which byte is wrong.
            volume.fix_xattr_block(BlockNr(block)).unwrap();
            let repaired = repaired(&image, &format!("{users} users, byte {at}"));
            let after = image.with_staged(&repaired.staged).unwrap();
            let volume = Volume::open(&after).unwrap();
            // Without a sound attribute all let go of it; a wrong count in its header costs none.
            let is_kept = at == 8;
            let keeps = |inode: &InodeNr| attribute_block(&volume, *inode) != 0;
            assert!(inodes.iter().all(|inode| keeps(inode) == is_kept));
            repaired.rounds
        });
        assert_eq!(rounds, [rounds[0]; 3], "byte {at}");
    }
}

/// Paths in recipes, with the folder whose members replace them.
const KINDS: &[(&str, &[&str])] = &[
    (
        "files",
        &["/file", "/dir/file", "/dir/sub/deep/file", "/blocks", "/tiny", "/medium", "/many/f001"],
    ),
    ("empty", &["/empty"]),
    ("dirs", &["/dir", "/dir/sub"]),
    ("links", &["/fast-link"]),
    ("fifos", &["/fifo", "/socket"]),
    ("devices", &["/char", "/block"]),
];

/// A file system with `count` objects of each kind.
fn multitude(profile: Profile, count: usize) -> Image {
    let image = Image::empty(16 << 20).unwrap();
    let mut format = profile.mke2fs_args().to_vec();
    format.extend(["-N", "8192"]);
    build::mke2fs(image.path(), &format).unwrap();
    let folder = tool::scratch("floe-rounds-").unwrap();
    let content = folder.path().join("content");
    std::fs::write(&content, [b'f'; 1500]).unwrap();
    let mut script = String::new();
    for (kind, _) in KINDS {
        writeln!(script, "mkdir {kind}\ncd {kind}").unwrap();
        (0..count / 40).for_each(|_| script.push_str("expand_dir .\n"));
        for nr in 0..count {
            match *kind {
                "files" => writeln!(script, "write {} m{nr:04}", content.display()),
                "empty" => writeln!(script, "write /dev/null m{nr:04}"),
                "dirs" => writeln!(script, "mkdir m{nr:04}"),
                "links" => writeln!(script, "symlink m{nr:04} file"),
                "fifos" => writeln!(script, "mknod m{nr:04} p"),
                _ => writeln!(script, "mknod m{nr:04} c 5 1"),
            }
            .unwrap();
        }
        script.push_str("cd /\n");
    }
    build::debugfs(&image, &script).unwrap();
    assert!(matches!(oracle::run(image.path(), &["-fyD"]).unwrap().exit, Some(0 | 1)));
    image
}

/// The image of a recipe applied to `count` objects of each kind; `None` if it does not apply to
/// all of them.
fn on_objects(
    recipes: &Recipes,
    name: &str,
    base: &Image,
    objects: std::ops::Range<usize>,
) -> Option<Image> {
    let image = base.copy().unwrap();
    let mut volume = Volume::open(&image).unwrap();
    for nr in objects {
        let stands = |kind: &str, named: &&str| ((*named).to_owned(), format!("/{kind}/m{nr:04}"));
        let paths =
            KINDS.iter().flat_map(|(kind, all)| all.iter().map(|named| stands(kind, named)));
        volume.view = View { paths: paths.collect(), groups: 0 };
        if !recipes.apply(name, &volume) {
            return None;
        }
    }
    drop(volume);
    Some(image)
}

/// Number of rounds of a complete repair; otherwise the findings left.
fn rounds_of(image: &Image) -> Result<u32, String> {
    let check =
        CheckOptions { threads: 2, now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    let options = RepairOptions { check, random: [7; 16], ..RepairOptions::default() };
    let repaired = repair(image, &options, &mut Yes).map_err(|error| error.to_string())?;
    let clean = repaired.is_clean() && repaired.left.is_empty();
    if clean { Ok(repaired.rounds) } else { Err(format!("{:?}", repaired.left)) }
}

/// Recipes whose damage changes in kind when it affects many objects.
const OTHERWISE: &[(&str, &str)] = &[
    ("six levels", "the trees share their nodes"),
    (
        "sharing: half the disk",
        "there is space for a few copies, and owners are deleted until the rest fits",
    ),
    ("journal with a name", "there is one journal to be moved"),
];

/// `FLOE_ROUNDS=1000` uses that many objects per recipe, which is slow.
#[test]
fn recipes_on_many_objects_take_no_more_rounds() {
    if tool::missing() {
        return;
    }
    let many = std::env::var("FLOE_ROUNDS").map_or(12, |text| text.parse().unwrap());
    let recipes = Recipes::new();
    let (mut wrong, mut multiplied) = (Vec::new(), 0);
    for profile in [Profile::Ext4K1, Profile::Ext3] {
        let base = multitude(profile, many);
        for name in recipes.names_on(profile) {
            if OTHERWISE.iter().any(|(other, _)| name.ends_with(other)) {
                continue;
            }
            let on = |objects| on_objects(&recipes, &name, &base, objects);
            let (Some(one), Some(other)) = (on(0..1), on(1..2)) else { continue };
            // The recipe damages other objects than these.
            if one.to_vec().unwrap() == other.to_vec().unwrap() {
                continue;
            }
            let Some(all) = on(0..many) else { continue };
            // A recipe without a repair for one object has none for many.
            let Ok(one) = rounds_of(&one) else { continue };
            multiplied += 1;
            match rounds_of(&all) {
                Ok(all) if all <= one + 1 => {}
                all => wrong.push(format!("{profile}, {name}: {one} rounds, {many} times {all:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(multiplied > 30, "{multiplied} recipes were multiplied");
}
