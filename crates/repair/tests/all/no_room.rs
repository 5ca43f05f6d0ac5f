//! Without space for copies of shared blocks, the file that claims blocks of all others is deleted.

use floe_check::{CheckOptions, JournalUse};
use floe_repair::edit::{Edit, InodeEdit};
use floe_repair::policy::Yes;
use floe_repair::{RepairOptions, repair};
use floe_testkit::recipe::{InodeEdit as Change, Recipe, inode};
use floe_testkit::{Image, tool};

/// Paths of the inodes that the repair of an image clears.
fn deleted(image: &Image) -> Vec<String> {
    let check = CheckOptions {
        threads: 2,
        journal: JournalUse::Replay,
        now_seconds: i64::from(tool::NOW),
        ..CheckOptions::default()
    };
    let options = RepairOptions { check, random: [7; 16], ..RepairOptions::default() };
    let repaired = repair(image, &options, &mut Yes).unwrap();
    assert!(repaired.is_clean(), "{:?}", repaired.left);
    let clears = |edit: &Edit| {
        matches!(edit, Edit::Inode { edit: InodeEdit::Clear, .. } | Edit::Release { .. })
    };
    let path = |path: Option<&Vec<u8>>| String::from_utf8_lossy(path.unwrap()).into_owned();
    repaired
        .deeds
        .iter()
        .filter(|deed| clears(&deed.edit))
        .map(|deed| path(deed.path.as_ref()))
        .collect()
}

#[test]
fn only_the_file_goes_that_claims_what_all_others_have() {
    if tool::missing() {
        return;
    }
    // The blocks after its first one belong to the journal and to most files.
    let claims_all = || inode("/dir/sub/deep/file").extent(0, |extent| extent.len = 6559);
    let deleted_after =
        |change: Change| deleted(&Recipe::new("no room").edit(change).build().unwrap());
    assert_eq!(deleted_after(claims_all()), ["/dir/sub/deep/file"], "it claims the most");
    assert_eq!(deleted_after(claims_all().stale()), ["/dir/sub/deep/file"], "it convicts itself");
}
