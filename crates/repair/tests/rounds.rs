//! Damage of N things of a kind takes as many rounds as damage of one: no repair mends one thing a round.

#![allow(clippy::unwrap_used, clippy::panic)] // a test may

use std::fmt::Write as _;

use floe_check::CheckOptions;
use floe_format::InodeNr;
use floe_format::ext::inode::InodeBase;
use floe_repair::policy::Yes;
use floe_repair::{Repair, RepairOptions, repair};
use floe_testkit::{Image, Volume, build, oracle, tool};

/// A repair that leaves nothing, neither for Floe nor for e2fsck.
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

/// `users` files that share one attribute block, as files with one access list do.
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
    // The counts of the block follow.
    assert_eq!(oracle::run(image.path(), &["-fy"]).unwrap().exit, Some(1 - i32::from(users == 1)));
    (image, inodes)
}

fn attribute_block(volume: &Volume<'_>, inode: InodeNr) -> u32 {
    let bytes = volume.inode_bytes(inode).unwrap();
    InodeBase::decode(bytes.first_chunk().unwrap()).file_acl_lo
}

#[test]
fn all_users_of_an_attribute_block_let_go_of_it_in_one_round() {
    if tool::missing() {
        return;
    }
    // Each of these ends the judgement of the block elsewhere: magic, blocks, a name, a hash.
    for (at, byte) in [(0, 7), (8, 2), (33, 0), (44, 0x55)] {
        let rounds = [1, 100, 1000].map(|users| {
            let (image, inodes) = shared_attributes(users);
            let volume = Volume::open(&image).unwrap();
            let block = u64::from(attribute_block(&volume, inodes[0]));
            image.write(block * 1024 + at, &[byte]).unwrap();
            let repaired = repaired(&image, &format!("{users} users, byte {at}"));
            let after = image.with_staged(&repaired.staged).unwrap();
            let volume = Volume::open(&after).unwrap();
            assert!(inodes.iter().all(|inode| attribute_block(&volume, *inode) == 0));
            repaired.rounds
        });
        assert_eq!(rounds, [rounds[0]; 3], "byte {at}");
    }
}
