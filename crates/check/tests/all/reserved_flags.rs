//! Marks of reserved inodes, with and without the features that they need: the verdict is e2fsck's.

use floe_check::{CheckOptions, check};
use floe_testkit::{Profile, build, oracle, tool};

/// Marks: an index, extents, inline data, both.
const MARKS: [u32; 4] = [0x1000, 0x8_0000, 0x1000_0000, 0x1008_0000];
const PROFILES: [Profile; 5] =
    [Profile::Ext2Rev0, Profile::Ext2K1, Profile::Ext3, Profile::NoExtents, Profile::Ext4K1];

#[test]
fn marks_of_reserved_inodes_are_damage_where_e2fsck_says_so() {
    if tool::missing() {
        return;
    }
    let options = CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    let mut faults = Vec::new();
    for profile in PROFILES {
        let sound = build::base(profile).unwrap();
        // Links are counted in what is not in use, too.
        for (inode, links) in (3..=10).flat_map(|inode| [(inode, 0), (inode, 1)]) {
            for mark in MARKS {
                let image = sound.copy().unwrap();
                let mut script = format!("sif <{inode}> flags {mark}\n");
                if links > 0 {
                    script += &format!("sif <{inode}> links_count {links}\n");
                }
                build::debugfs(&image, &script).unwrap();
                let found = check(&image, &options).unwrap().found;
                let theirs = oracle::e2fsck(&image).unwrap();
                if found.is_empty() == theirs.damaged() {
                    let ours: Vec<String> = found.iter().map(ToString::to_string).collect();
                    faults.push(format!("{profile} {script}: {ours:?}\n{}", theirs.text));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
