//! Compares the inodes in use according to the descriptors with those that a scan counts.

use floe_blockdev::FileDevice;
use floe_check::evidence::choice::InodeUse;
use floe_check::open::open;
use floe_check::{CheckOptions, check};
use floe_format::ext::group_desc::GroupDesc;
use floe_testkit::{Profile, build, tool};

#[test]
fn descriptors_tell_what_the_scan_counts() {
    if tool::missing() {
        return;
    }
    for &profile in &Profile::ALL[..4] {
        let image = build::base(profile).unwrap();
        let device = FileDevice::open(image.path()).unwrap();
        let options = CheckOptions::default();
        let opened = open(&device, options.superblock).unwrap();
        let told = InodeUse::of_groups(&opened.geometry, &opened.groups);
        let totals = check(&device, &options).unwrap().totals;
        // Reserved inodes count as used, whether anything is in them or not.
        let reserved = told.used.checked_sub(totals.inodes_used);
        assert!(reserved.is_some_and(|reserved| reserved < 11), "{}: {told:?}", profile.name());
        assert_eq!(told.directories, totals.by_type[2], "{}", profile.name());
        assert_eq!(told.total, u64::from(opened.superblock.inodes_count));

        let lie = GroupDesc { free_inodes_count: u32::MAX, used_dirs_count: 9, ..opened.groups[0] };
        let told = InodeUse::of_groups(&opened.geometry, &[lie, lie]);
        assert_eq!((told.used, told.directories), (0, 0), "impossible figures are cut");
    }
}
