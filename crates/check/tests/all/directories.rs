//! Directories, connectivity and link counts, against e2fsck: clean images are clean, and each
//! damage raises what it should, with the same verdict, for any number of threads.

#![allow(clippy::too_many_lines)] // one list of cases

use std::collections::BTreeSet;

use floe_blockdev::FileDevice;
use floe_check::{CheckOptions, JournalUse, Problem, check};
use floe_testkit::recipe::{Recipe, debugfs, dir_block, entry, inode};
use floe_testkit::rng::Rng;
use floe_testkit::{Image, Profile, build, oracle, tool};

/// Findings of the passes over directories (2, 3 and 4), of pass 1 about indexes, and of ours.
fn ours(problem: &Problem) -> bool {
    let code = problem.row().code;
    (0x02_0000..0x05_0000).contains(&code) || (0x01_0049..=0x01_004c).contains(&code)
}

fn findings(image: &Image, threads: usize) -> Vec<Problem> {
    let device = FileDevice::open(image.path()).unwrap();
    let options = CheckOptions { threads, journal: JournalUse::Ignore, ..Default::default() };
    check(&device, &options).unwrap().found
}

fn ids(found: &[Problem]) -> BTreeSet<&'static str> {
    found.iter().map(|problem| problem.row().id).collect()
}

/// Codes that e2fsck met and that are not about passes of others.
fn their_codes(verdict: &oracle::Verdict) -> BTreeSet<u32> {
    verdict.codes().into_iter().filter(|code| (0x02_0000..0x05_0000).contains(code)).collect()
}

fn damage_of(found: &[Problem]) -> Vec<String> {
    found
        .iter()
        .filter(|problem| ours(problem))
        .filter(|problem| problem.row().weight != floe_check::problem::Weight::Remark)
        .map(|problem| format!("{}: {problem}", problem.row().id))
        .collect()
}

#[test]
fn clean_images_are_clean() {
    if tool::missing() {
        return;
    }
    // Unusual profiles, too: combinations of features count what each of them alone does not.
    for &profile in Profile::ALL.iter().chain(Profile::UNUSUAL) {
        let image = build::base(profile).unwrap();
        let damage = damage_of(&findings(&image, 2));
        assert!(damage.is_empty(), "{}: {damage:#?}", profile.name());
    }
}

/// A recipe, and what e2fsck must say too: its verdict is compared in any case.
fn cases() -> Vec<Recipe> {
    let new = |name: &str| Recipe::new(name);
    vec![
        new("dot-wrong").edit(entry("/dir/.").inode(2)).expect(&["dot-entry-wrong-inode"]),
        new("dot-gone").edit(entry("/dir/.").inode(0)).expect(&["dot-entry-missing"]),
        new("dot-named").edit(entry("/dir/.").name("x")).expect(&["first-entry-not-dot"]),
        new("dot-unended")
            .edit(entry("/dir/.").raw(|entry| entry[9] = 1))
            .expect(&["dot-entry-not-terminated"]),
        new("dotdot-gone").edit(entry("/dir/sub/..").inode(0)).expect(&["dotdot-entry-missing"]),
        new("dotdot-named")
            .edit(entry("/dir/sub/..").name("yy"))
            .expect(&["second-entry-not-dotdot"]),
        new("dotdot-unended")
            .edit(entry("/dir/sub/..").raw(|entry| entry[10] = 1))
            .expect(&["dotdot-entry-not-terminated"]),
        new("dotdot-elsewhere")
            .edit(entry("/dir/sub/..").inode_of("/many"))
            .expect(&["dotdot-wrong-parent"]),
        new("dotdot-of-root").edit(entry("/..").inode_of("/dir")).expect(&["dotdot-wrong-parent"]),
        new("dotdot-to-file")
            .edit(entry("/dir/sub/..").inode_of("/file"))
            .expect(&["dirent-type-wrong", "dotdot-wrong-parent"]),
        new("dotdot-illegal").edit(entry("/dir/sub/..").inode(9)).expect(&["dirent-inode-illegal"]),
        new("illegal").edit(entry("/dir/file").inode(5)).expect(&["dirent-inode-illegal"]),
        new("beyond").edit(entry("/dir/file").inode(9_999_999)).expect(&["dirent-inode-illegal"]),
        new("unused").edit(entry("/dir/file").inode(500)).on(Profile::NoCsum),
        new("to-itself")
            .edit(entry("/dir/file").inode_of("/dir"))
            .expect(&["dirent-links-to-own-directory", "unattached-inode"]),
        new("to-root").edit(entry("/dir/file").inode(2)).expect(&["dirent-links-to-root"]),
        new("slash").edit(entry("/dir/file").name("fi/e")).expect(&["dirent-name-illegal-char"]),
        new("nul").edit(entry("/dir/file").name("fi\0e")).expect(&["dirent-name-illegal-char"]),
        new("no-name").edit(entry("/dir/file").name_len(0)).expect(&["dirent-name-empty"]),
        new("second-dot").edit(entry("/dir/file").name(".")).expect(&["dot-entry-duplicate"]),
        new("third-dot").edit(entry("/dir/file").name("..")).expect(&["dotdot-entry-duplicate"]),
        new("type").edit(entry("/dir/file").file_type(2)).expect(&["dirent-type-wrong"]),
        new("type-unset").edit(entry("/dir/file").file_type(0)).expect(&["dirent-type-unset"]),
        new("type-unsupported")
            .on(Profile::Ext2Plain)
            .edit(entry("/dir/file").file_type(1))
            .expect(&["dirent-type-unsupported"]),
        new("twice").edit(entry("/many/f001").name("f002")).expect(&["dirent-duplicate-in-block"]),
        new("too-short").edit(entry("/many/f001").rec_len(8)).expect(&["dirent-structure-corrupt"]),
        new("unaligned")
            .edit(entry("/many/f001").rec_len(13))
            .expect(&["dirent-structure-corrupt"]),
        new("overlong")
            .edit(entry("/many/f001").rec_len(4000))
            .expect(&["dirent-structure-corrupt"]),
        new("name-overlong")
            .edit(entry("/many/f001").name_len(200))
            .expect(&["dirent-structure-corrupt", "unattached-empty-inode"]),
        new("checksum")
            .edit(entry("/dir/file").name("fill").stale())
            .expect(&["dir-block-checksum-bad"]),
        new("no-tail")
            .edit(
                dir_block("/dir", 0)
                    .raw(|block| {
                        let len = block.len();
                        block[len - 12..].fill(0);
                        block[len - 8] = 12;
                    })
                    .stale(),
            )
            .expect(&["dir-block-checksum-tail-missing"]),
        new("index-lost")
            .edit(inode("/big").clear_flags(0x1000))
            .expect(&["dirent-structure-corrupt"]),
        new("index-checksum")
            .edit(dir_block("/big", 0).put(41, [1]).stale())
            .expect(&["htree-root-checksum-bad"]),
        new("node-checksum")
            .edit(inode("/big").clear_flags(0))
            .edit(debugfs("sif big links_count 2")),
        new("index-hash")
            .edit(dir_block("/big", 0).put(28, [99]))
            .expect(&["htree-hash-version-unknown"]),
        new("index-other-hash")
            .edit(dir_block("/big", 0).put(28, [0]))
            .expect(&["htree-inconsistent"]),
        new("index-zero").edit(dir_block("/big", 0).put(24, [1])).expect(&["htree-root-invalid"]),
        new("index-length").edit(dir_block("/big", 0).put(29, [4])).expect(&["htree-root-invalid"]),
        new("index-flag").edit(dir_block("/big", 0).put(31, [1])).expect(&["htree-incompat-flag"]),
        new("index-deep").edit(dir_block("/big", 0).put(30, [7])).expect(&["htree-too-deep"]),
        new("index-level").edit(dir_block("/big", 0).put(30, [2])).expect(&["htree-root-bad"]),
        new("index-depth")
            .edit(dir_block("/big", 0).put(30, [0]))
            .expect(&["htree-leaf-depth-wrong"]),
        new("index-limit").edit(dir_block("/big", 0).put16(32, 100)).expect(&["htree-limit-wrong"]),
        new("index-count")
            .edit(dir_block("/big", 0).put16(34, 500))
            .expect(&["htree-count-too-large"]),
        new("index-block")
            .edit(dir_block("/big", 0).put32(36, 0xff_ffff))
            .expect(&["htree-block-number-bad"]),
        new("index-twice")
            .on(Profile::Ext4)
            .edit(dir_block("/big", 0).raw(|block| block.copy_within(44..48, 36)))
            .expect(&["htree-block-referenced-twice", "htree-block-unreferenced"]),
        new("index-order")
            .on(Profile::Ext4)
            .edit(dir_block("/big", 0).raw(|block| block[48..52].fill(0)))
            .expect(&["htree-hashes-unordered"]),
        new("index-swapped")
            .on(Profile::Ext4)
            .edit(dir_block("/big", 0).raw(|block| {
                let first: [u8; 4] = block[36..40].try_into().unwrap();
                block.copy_within(44..48, 36);
                block[44..48].copy_from_slice(&first);
            }))
            .expect(&["htree-hash-above-range", "htree-hash-below-range", "htree-inconsistent"]),
        new("unlinked-dir").edit(entry("/dir/sub").inode(0)).expect(&["directory-unconnected"]),
        new("hard-linked-dir")
            .edit(entry("/dir/file").inode_of("/many").file_type(2))
            .expect(&["directory-hard-link"]),
        new("loop")
            .edit(entry("/dir/sub/deep/file").inode_of("/dir").file_type(2))
            .edit(entry("/dir").inode_of("/many"))
            .expect(&["directory-loop", "directory-hard-link"]),
        new("links").edit(inode("/dir/file").links(7)).expect(&["inode-link-count-wrong"]),
        new("links-of-dir").edit(inode("/dir").links(7)).expect(&["inode-link-count-wrong"]),
        new("links-overflowed")
            .edit(inode("/big").links(1))
            .expect(&["directory-link-count-overflow-stale"]),
        new("unattached").edit(entry("/dir/file").inode(0)).expect(&["unattached-inode"]),
        new("unattached-empty").edit(entry("/empty").inode(0)).expect(&["unattached-empty-inode"]),
        new("no-lost-found").edit(debugfs("rmdir lost+found")).expect(&["lost-found-missing"]),
        new("lost-found-file")
            .edit(debugfs("rmdir lost+found\nln empty lost+found\nsif empty links_count 2"))
            .expect(&["lost-found-not-directory"]),
        new("hole")
            .on(Profile::Ext3)
            .edit(inode("/big").block_word(2, 0))
            .expect(&["directory-hole"]),
        new("inline-entry")
            .on(Profile::InlineData)
            .edit(entry("/dir/file").inode(5))
            .expect(&["dirent-inode-illegal"]),
        new("inline-type")
            .on(Profile::InlineData)
            .edit(entry("/dir/file").file_type(2))
            .expect(&["dirent-type-wrong"]),
        new("inline-parent")
            .on(Profile::InlineData)
            .edit(inode("/dir/sub").raw(|bytes| bytes[0x28..0x2c].copy_from_slice(&[11, 0, 0, 0])))
            .expect(&["dotdot-wrong-parent"]),
        new("inline-broken")
            .on(Profile::InlineData)
            .edit(entry("/dir/file").rec_len(8))
            .expect(&["dirent-structure-corrupt"]),
        new("folded-twice")
            .on(Profile::Casefold)
            .edit(entry("/fold/Mixed-Case-File-Number-01").name("MIXED-CASE-FILE-NUMBER-02"))
            .expect(&["dirent-duplicate-in-block"]),
    ]
}

#[test]
fn each_damage_is_found_and_judged_as_e2fsck_does() {
    if tool::missing() {
        return;
    }
    let mut faults = Vec::new();
    for recipe in cases() {
        let image = match recipe.build() {
            Ok(image) => image,
            Err(reason) => {
                faults.push(format!("{}: cannot be built: {reason:#}", recipe.name()));
                continue;
            }
        };
        let verdict = oracle::e2fsck(&image).unwrap();
        let found = findings(&image, 1);
        let damage = damage_of(&found);
        let known = ids(&found);
        for id in recipe.expected() {
            if !known.contains(id) {
                faults.push(format!("{}: {id} is not in {known:?}", recipe.name()));
            }
        }
        // e2fsck 1.47.0 does not fold names to find duplicates, later versions do.
        if damage.is_empty() != verdict.clean() && recipe.name() != "folded-twice" {
            faults.push(format!(
                "{}: e2fsck says {:?} {:x?}, we say {damage:#?}",
                recipe.name(),
                verdict.exit,
                their_codes(&verdict)
            ));
        }
        for threads in [2, 7, 16] {
            if findings(&image, threads) != found {
                faults.push(format!("{}: {threads} threads find something else", recipe.name()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Overwrites pieces of directory blocks at random, with right checksums, and compares the verdict
/// with e2fsck's and the findings of several numbers of threads with each other.
#[test]
fn hostile_directories_do_no_harm() {
    if tool::missing() {
        return;
    }
    let mut faults = Vec::new();
    let profiles = [Profile::Ext4K1, Profile::Ext4, Profile::Ext2Plain, Profile::Casefold];
    for (at, &profile) in profiles.iter().cycle().take(24).enumerate() {
        let seed = 0x5eed + at as u64;
        let recipe = Recipe::new(format!("{} with seed {seed}", profile.name()))
            .on(profile)
            .edit(dir_block("/big", at as u64 % 3).raw(move |block| scribble(block, seed)))
            .edit(dir_block("/many", 0).raw(move |block| scribble(block, seed + 1)));
        let image = recipe.build().unwrap();
        let found = findings(&image, 1);
        if damage_of(&found).is_empty() != oracle::e2fsck(&image).unwrap().clean() {
            faults.push(format!("{}: {:#?}", recipe.name(), damage_of(&found)));
        }
        for threads in [2, 5] {
            if findings(&image, threads) != found {
                faults.push(format!("{}: {threads} threads find something else", recipe.name()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn scribble(block: &mut [u8], seed: u64) {
    let mut rng = Rng::new(seed);
    for _ in 0..1 + seed % 4 {
        let at = rng.below(block.len() as u64 - 8) as usize;
        let len = 1 + rng.below(6) as usize;
        rng.fill(&mut block[at..at + len]);
    }
}

/// As Linux leaves a directory that was removed while open, when the power fails: the list of orphans has it, and its entries
/// are still there.
#[test]
fn entries_of_a_directory_that_recovery_deletes_are_no_names() {
    if tool::missing() {
        return;
    }
    let image = Image::empty(8 << 20).unwrap();
    build::mke2fs(image.path(), &["-q", "-t", "ext4"]).unwrap();
    let script = "mkdir a\nmkdir a/d\nunlink a/d\nsif a links_count 2\nsif <13> links_count 0\nssv last_orphan 13";
    build::debugfs(&image, script).unwrap();
    let device = FileDevice::open(image.path()).unwrap();
    for threads in [1, 2] {
        let report = check(&device, &CheckOptions { threads, ..Default::default() }).unwrap();
        assert!(report.is_clean(), "{:?}", report.found);
    }
    // Where no list has it, it is deleted all the same, but somebody has to say so.
    build::debugfs(&image, "ssv last_orphan 0").unwrap();
    assert!(!check(&device, &CheckOptions::default()).unwrap().is_clean());
}
