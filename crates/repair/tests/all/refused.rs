//! Edits that a person refuses are not written along with accepted ones.

use floe_blockdev::ReadBlocks;
use floe_check::open::WhichSuperblock;
use floe_check::{CheckOptions, Problem, Report};
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::{BlockNr, GroupNr};
use floe_repair::edit::{DirectoryEdit, Edit};
use floe_repair::policy::{Decision, Policy, Yes};
use floe_repair::{Reason, Repair, RepairOptions, repair};
use floe_testkit::recipe::{Recipe, backup, inode, superblock};
use floe_testkit::{Profile, tool};

/// Accepts everything but one kind of finding.
struct AllBut(&'static str);

impl Policy for AllBut {
    fn decide(&mut self, problems: &[Problem], _report: &Report) -> Decision {
        Decision::Each(problems.iter().map(|problem| problem.row().id != self.0).collect())
    }
}

const REFUSED: &str = "inodes-per-group-wrong";

fn mended<'d>(device: &'d dyn ReadBlocks, policy: &mut dyn Policy) -> Repair<'d> {
    let check = CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    let options = RepairOptions { check, random: [7; 16], ..RepairOptions::default() };
    repair(device, &options, policy).unwrap()
}

fn times_of(repair: &Repair<'_>, edit: &Edit) -> usize {
    repair.deeds.iter().filter(|deed| deed.edit == *edit).count()
}

fn copy_at(device: &dyn ReadBlocks, offset: u64) -> Superblock {
    let mut bytes = [0; 1024];
    device.read_at(offset, &mut bytes).unwrap();
    let copy = Superblock::decode(&bytes);
    assert!(!copy.features().metadata_csum() || Superblock::checksum_ok(&bytes), "at {offset}");
    copy
}

/// The file system is examined with a derived number of inodes per group, but another change of the
/// superblock must not store it.
#[test]
fn a_refused_number_of_inodes_is_written_to_no_superblock() {
    if tool::missing() {
        return;
    }
    for wrong in [|count: u32| count * 2, |count| count + 1] {
        let recipe = Recipe::new("inodes of a group, and a total")
            .on(Profile::BigallocK1)
            .edit(superblock(move |sb| sb.inodes_per_group = wrong(sb.inodes_per_group)))
            .edit(superblock(|sb| sb.free_inodes_count += 5));
        let image = recipe.build().unwrap();
        let before = copy_at(&image, OFFSET_BYTES);
        let refused = mended(&image, &mut AllBut(REFUSED));
        let after = copy_at(&refused.staged, OFFSET_BYTES);
        assert_eq!(after.inodes_per_group, before.inodes_per_group);
        assert_eq!(after.free_inodes_count + 5, before.free_inodes_count, "that was accepted");
        let left: Vec<_> = refused.left.iter().map(|(problem, _)| problem.row().id).collect();
        assert_eq!(left, [REFUSED]);
        let accepted = mended(&image, &mut Yes);
        let after = copy_at(&accepted.staged, OFFSET_BYTES);
        assert_ne!(after.inodes_per_group, before.inodes_per_group);
        assert!(accepted.is_clean(), "{:?}", accepted.left);
    }
}

/// A rewritten backup keeps its own number as long as no other is accepted.
#[test]
fn a_refused_number_of_inodes_is_written_to_no_backup() {
    if tool::missing() {
        return;
    }
    // All copies are wrong, so none is trusted; one is also outdated, and one is invalid.
    let double = |sb: &mut Superblock| sb.inodes_per_group *= 2;
    let mut recipe = Recipe::new("inodes of a group in all copies").on(Profile::Ext4K1);
    let groups = [1, 3];
    for group in groups {
        recipe = recipe.edit(backup(group, move |sb| {
            double(sb);
            sb.uuid[0] ^= 1;
        }));
    }
    recipe = recipe.edit(backup(3, |sb| sb.magic = 1)).edit(superblock(double));
    let image = recipe.build().unwrap();
    let geometry = floe_check::open::open(&image, WhichSuperblock::default()).unwrap().geometry;
    let backups = groups.map(|group| {
        let block: BlockNr = geometry.superblock_of(GroupNr(group)).unwrap();
        geometry.offset_bytes(block)
    });
    let primary = copy_at(&image, OFFSET_BYTES);
    assert_eq!(
        geometry.inodes_per_group * 2,
        primary.inodes_per_group,
        "the derived number differs"
    );
    let refused = mended(&image, &mut AllBut(REFUSED));
    assert_eq!(times_of(&refused, &Edit::Backups), 1, "{:?}", refused.deeds);
    for offset in backups {
        let copy = copy_at(&refused.staged, offset);
        assert_eq!(copy.uuid, primary.uuid, "it was rewritten");
        assert_eq!(copy.inodes_per_group, primary.inodes_per_group);
    }
    assert_eq!(copy_at(&refused.staged, OFFSET_BYTES).inodes_per_group, primary.inodes_per_group);
    let accepted = mended(&image, &mut Yes);
    assert!(accepted.is_clean(), "{:?}", accepted.left);
    for offset in backups {
        assert_eq!(copy_at(&accepted.staged, offset).inodes_per_group, geometry.inodes_per_group);
    }
}

/// A backup that differs only in its own number cannot be repaired before the primary: it is
/// neither reported as repaired nor tried repeatedly.
#[test]
fn another_number_in_a_backup_waits_for_that_in_the_primary() {
    if tool::missing() {
        return;
    }
    let recipe = Recipe::new("three numbers of inodes of a group")
        .on(Profile::Ext4K1)
        .edit(backup(1, |sb| sb.inodes_per_group *= 4))
        .edit(backup(3, |sb| sb.inodes_per_group += 1))
        .edit(superblock(|sb| sb.inodes_per_group *= 2));
    let image = recipe.build().unwrap();
    let refused = mended(&image, &mut AllBut(REFUSED));
    let of_backups = |report: &Report| {
        let differ = |problem: &&Problem| problem.row().id == "backup-superblock-differs";
        report.found.iter().filter(differ).count()
    };
    assert_eq!(of_backups(&refused.before), 2, "{:?}", refused.before.found);
    assert_eq!(of_backups(&refused.after), 2, "{:?}", refused.after.found);
    assert_eq!(times_of(&refused, &Edit::Backups), 0, "{:?}", refused.deeds);
    let left: Vec<_> = refused.left.iter().map(|(problem, _)| problem.row().id).collect();
    assert_eq!(left, [REFUSED]);
    let accepted = mended(&image, &mut Yes);
    assert!(accepted.is_clean(), "{:?}", accepted.left);
    assert_eq!(accepted.after.found, [], "the backups followed");
}

/// The place of a directory's block is taken by an extent that leads nowhere and is to stay: nothing is said to have been filled.
#[test]
fn a_hole_where_a_refused_extent_is_stays_one() {
    if tool::missing() {
        return;
    }
    let recipe = Recipe::new("an extent that leads nowhere")
        .on(Profile::Ext4K1)
        .edit(inode("/big").raw(|raw| raw[0x28 + 12 + 7] = 0x7f));
    let image = recipe.build().unwrap();
    let refused = mended(&image, &mut AllBut("extent-start-out-of-range"));
    let fills = |edit: &Edit| matches!(edit, Edit::Directory { edit: DirectoryEdit::Fill, .. });
    assert!(!refused.deeds.iter().any(|deed| fills(&deed.edit)), "{:?}", refused.deeds);
    let reason = |id: &str| {
        let of_id = |(problem, _): &&(Problem, Reason)| problem.row().id == id;
        refused.left.iter().find(of_id).map(|(_, reason)| reason.clone())
    };
    assert_eq!(
        reason("extent-start-out-of-range"),
        Some(Reason::Refused),
        "{:?}",
        refused.before.found
    );
    assert!(matches!(reason("directory-hole"), Some(Reason::Failed(_))), "{:?}", refused.left);
    assert!(mended(&image, &mut Yes).is_clean());
}
