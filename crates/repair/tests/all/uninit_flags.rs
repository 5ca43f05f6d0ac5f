//! Flags of uninitialized parts in descriptors without checksums: Linux and Floe do not look at them, and a repair clears them.

use floe_check::problem::Weight;
use floe_check::{CheckOptions, check};
use floe_format::GroupNr;
use floe_format::ext::inode::Inode;
use floe_repair::policy::Yes;
use floe_repair::{RepairOptions, repair};
use floe_testkit::{Image, Profile, Volume, build, oracle, tool};

/// Inodes in use, and their bytes.
fn inodes(image: &Image) -> Vec<Vec<u8>> {
    let volume = Volume::open(image).unwrap();
    let used = volume.used_inodes().unwrap().into_iter();
    let raw = used.map(|inode| volume.inode_bytes(inode).unwrap());
    raw.filter(|raw| Inode::decode(raw).is_some_and(|inode| inode.base.links_count > 0)).collect()
}

/// `docs/differences.md`: with inodes of the group in use, e2fsck calls all their names damage (exit 4).
#[test]
fn flags_that_nobody_looks_at_are_a_remark() {
    if tool::missing() {
        return;
    }
    for profile in [Profile::Ext3, Profile::NoCsum] {
        let whole = build::base(profile).unwrap();
        let mut unlike = 0;
        let groups = Volume::open(&whole).unwrap().geometry.group_count;
        // In the last group, the flag of the block bitmap is another finding.
        for group in 0..groups - 1 {
            let image = whole.copy().unwrap();
            let volume = Volume::open(&image).unwrap();
            let mut desc = volume.desc(GroupNr(group)).unwrap();
            desc.flags |= 3;
            volume.put_desc(GroupNr(group), &desc).unwrap();
            let options =
                CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
            let found = check(&image, &options).unwrap().found;
            let ids: Vec<_> = found.iter().map(|problem| problem.row().id).collect();
            assert_eq!(ids, ["group-uninit-without-checksum-feature"], "{profile} {group}");
            assert!(found.iter().all(|problem| problem.row().weight == Weight::Remark));
            unlike += usize::from(oracle::e2fsck(&image).unwrap().damaged());

            let options = RepairOptions { check: options, ..RepairOptions::default() };
            let repaired = repair(&image, &options, &mut Yes).unwrap();
            assert!(repaired.is_clean(), "{profile} {group}: {:?}", repaired.left);
            let after = image.with_staged(&repaired.staged).unwrap();
            let verdict = oracle::e2fsck(&after).unwrap();
            assert!(verdict.clean(), "{profile} {group}: {}", verdict.text);
            assert_eq!(inodes(&after), inodes(&whole), "{profile} {group}");
        }
        assert!(unlike > 0, "{profile}: e2fsck differs no more");
    }
}
