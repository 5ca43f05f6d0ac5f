//! Journals that Floe wrote and nobody closed, recovered by Linux, by e2fsck and by Floe: the same tree by all three.

use floe_disk::journal::{Barriers, Journal};
use floe_disk::recovery::recover;
use floe_testkit::kernel::{Mounted, mount_available};
use floe_testkit::tree::{Tree, mounted, stored};
use floe_testkit::{Image, Profile, Rng, build, oracle, tool};

use crate::changes::Changes;

/// Profiles of each block size, checksum version and map, and one with a fast-commit area.
const PROFILES: [Profile; 9] = [
    Profile::Ext4,
    Profile::Ext4K1,
    Profile::Ext3,
    Profile::NoCsum,
    Profile::Bit32,
    Profile::CsumSeed,
    Profile::Bigalloc,
    Profile::MetaBg,
    Profile::FastCommit,
];

/// Changes an image at random and leaves it as a crash would, its last transactions in the log alone.
fn crashed(profile: Profile, seed: u64, barriers: Barriers) -> (Image, Changes) {
    let image = build::base(profile).unwrap();
    let found = recover(&image).unwrap();
    let journal = Journal::open_recovered(&image, &found, barriers).unwrap();
    let mut changes = Changes::open(&journal);
    let mut rng = Rng::new(seed);
    let mut names = Vec::new();
    // Directories without extents do not grow yet.
    let (count, longest) = if profile.extents() { (90, 40) } else { (30, 1) };
    for at in 0..count {
        let name = format!("new-{at}-{}", "x".repeat(rng.index(longest)));
        let id = match rng.below(5) {
            0 | 1 => {
                let mut content = vec![0; rng.index(900)];
                rng.fill(&mut content);
                names.push(name.clone());
                changes.logs_content = barriers == Barriers::One && rng.chance(2);
                changes.create(&journal, &name, &content)
            }
            2 | 3 => {
                names.push(name.clone());
                changes.mkdir(&journal, &name)
            }
            _ if names.is_empty() => continue,
            _ => changes.remove(&journal, &names.swap_remove(rng.index(names.len()))).0,
        };
        match rng.below(6) {
            0 => journal.commit(id).unwrap(),
            1 => journal.checkpoint().unwrap(),
            _ => {}
        }
    }
    journal.sync().unwrap();
    (image, changes)
}

fn clean(image: &Image, what: &str) {
    let verdict = oracle::e2fsck(image).unwrap();
    assert!(verdict.clean(), "{what}: {}", verdict.text);
}

/// The tree as Linux shows it.
fn mount(image: &Image) -> Tree {
    let mount = Mounted::new(image.path(), "").unwrap();
    let tree = mounted(mount.path()).unwrap();
    mount.unmount().unwrap();
    tree
}

/// Whether the root directory holds what it should, besides what it held before.
fn holds(tree: &Tree, changes: &Changes) {
    let new = tree.keys().filter(|path| path.starts_with(b"/new-")).count();
    assert_eq!(new, changes.model.len());
    for (name, content) in &changes.model {
        let node = &tree[format!("/{name}").as_bytes()];
        assert_eq!(node.is_dir(), content.is_none(), "{name}");
        assert_eq!(node.size_bytes, content.as_ref().map_or(0, |bytes| bytes.len() as u64));
    }
}

#[test]
fn linux_e2fsck_and_floe_recover_the_same_tree() {
    if tool::missing() {
        return;
    }
    let mount_works = mount_available();
    if let Err(reason) = &mount_works {
        eprintln!("skipped in part: {reason}");
    }
    let both = [Barriers::Two, Barriers::One];
    let profiles = both.into_iter().flat_map(|barriers| PROFILES.map(|one| (one, barriers)));
    for (seed, (profile, barriers)) in (1..).zip(profiles) {
        let (image, changes) = crashed(profile, seed, barriers);
        let by_floe = image.copy().unwrap();
        let recovered = recover(&by_floe).unwrap();
        assert!(recovered.transactions > 0, "{profile}: nothing was left in the log");
        clean(&by_floe, &format!("{profile}, recovered by Floe"));
        let tree = stored(&by_floe).unwrap();
        holds(&tree, &changes);

        let by_e2fsck = image.copy().unwrap();
        let verdict = oracle::run(by_e2fsck.path(), &["-fy"]).unwrap();
        assert!(matches!(verdict.exit, Some(0 | 1)), "{profile}: {}", verdict.text);
        assert!(verdict.problems.is_empty(), "{profile}: {}", verdict.text);
        assert_eq!(stored(&by_e2fsck).unwrap(), tree, "{profile}: e2fsck differs");

        if mount_works.is_ok() {
            let by_linux = image.copy().unwrap();
            let seen = mount(&by_linux);
            clean(&by_linux, &format!("{profile}, recovered by Linux"));
            assert_eq!(seen, mount(&by_floe), "{profile}: Linux differs");
        }
    }
}

#[test]
fn a_closed_journal_needs_no_recovery() {
    if tool::missing() {
        return;
    }
    for profile in PROFILES {
        let image = build::base(profile).unwrap();
        let journal = Journal::open(&image).unwrap();
        let mut changes = Changes::open(&journal);
        changes.mkdir(&journal, "new-dir");
        changes.create(&journal, "new-file", b"content");
        changes.remove(&journal, "new-dir");
        journal.close().unwrap();
        clean(&image, &format!("{profile}, closed"));
        holds(&stored(&image).unwrap(), &changes);
        assert_eq!(recover(&image).unwrap().transactions, 0);
        // And again, on top of the log that is there.
        let journal = Journal::open(&image).unwrap();
        let mut changes = Changes::open(&journal);
        changes.create(&journal, "new-other", b"more");
        journal.sync().unwrap();
        drop(journal);
        assert_eq!(recover(&image).unwrap().transactions, 1, "{profile}");
        clean(&image, &format!("{profile}, twice"));
    }
}
