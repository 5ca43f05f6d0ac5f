//! Reports on repairs of real images.

#![allow(clippy::unwrap_used, clippy::panic)] // a test may

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;

use floe_blockdev::ReadBlocks;
use floe_check::report::Cost;
use floe_repair::Fate;
use floe_repair::policy::{Decision, Policy, Preen, Yes};
use floe_repair::{RepairError, RepairOptions, SharedBlocks, repair};
use floe_report::repair::human::{Style, write};
use floe_report::repair::{Account, Ending, Verdict, json};
use floe_testkit::{Image, Profile, build, tool};

fn image(profile: &str) -> Option<Image> {
    if tool::missing() {
        return None;
    }
    Some(build::base(Profile::by_name(profile).unwrap()).unwrap())
}

fn debugfs(image: &Image, commands: &[&str]) {
    for command in commands {
        let status = std::process::Command::new("debugfs")
            .args(["-w", "-R", command])
            .arg(image.path())
            .output()
            .unwrap()
            .status;
        assert!(status.success(), "{command}");
    }
}

fn written(account: &Account<'_>, verbose: bool) -> String {
    let mut out = Vec::new();
    write(&mut out, account, Style { verbose }).unwrap();
    String::from_utf8(out).unwrap()
}

/// An image with a file, a directory that contains a file, and a link: `/f`, `/d/inside`, `/g`.
fn populated() -> Option<Image> {
    let image = image("ext4-1k")?;
    let source = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(source.path(), vec![b'x'; 5000]).unwrap();
    let from = source.path().display();
    let into = |name: &str| format!("write {from} {name}");
    let commands = [into("f"), "mkdir d".to_owned(), into("d/inside"), into("g")];
    debugfs(&image, &commands.iter().map(String::as_str).collect::<Vec<_>>());
    Some(image)
}

#[test]
fn fates_are_told_with_paths() {
    let Some(image) = populated() else { return };
    // `/d` loses its name, `/f` its inode, and `/g` has a wrong count.
    debugfs(&image, &["unlink d", "clri f", "sif g links_count 7"]);
    let device: &dyn ReadBlocks = &image;
    let staged = repair(device, &RepairOptions::default(), &mut Yes).unwrap();
    let account = Account::new(&staged, device, "x".into(), Ending::DryRun);
    assert_eq!(account.verdict(), Verdict::Repaired);
    assert!(account.changed_bytes > 0);
    let fates: BTreeSet<Fate> = account.losses().iter().map(|lost| lost.fate).collect();
    assert!(fates.contains(&Fate::Name), "{fates:?}");
    assert!(fates.contains(&Fate::Moved), "{fates:?}");
    let text = written(&account, false);
    assert!(text.contains("the link count would be set to 1"), "{text}");
    assert!(text.contains("\"f\" in / (inode 2)"), "{text}");
    assert!(text.contains("formerly in /: inode"), "the directory's parent is known: {text}");
    assert!(text.contains("is /lost+found/#"), "{text}");
    assert!(!text.contains("was set"), "a dry run uses the conditional: {text}");
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("WOULD BE REPAIRED: "), "{last}");
    assert!(last.ends_with("Nothing was changed."), "{last}");

    let ending = Ending::Written { undo: None, not_saved: Vec::new(), bytes: 0 };
    let account = Account::new(&staged, device, "x".into(), ending);
    let text = written(&account, true);
    assert!(text.contains("the link count was set to 1"), "{text}");
    assert!(!text.contains("would"), "{text}");
    assert!(text.contains("0x040003 inode-link-count-wrong"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("REPAIRED: "), "{text}");
}

#[test]
fn what_follows_from_a_change_is_not_called_damage() {
    let Some(image) = image("ext4-1k") else { return };
    // Twenty extents need a node; two do not, but the node stays.
    let source = tempfile::NamedTempFile::new().unwrap();
    for block in 0..20 {
        source.as_file().write_all_at(&[b'x'; 1024], block * 2048).unwrap();
    }
    debugfs(&image, &[&format!("write {} s", source.path().display()), "punch s 3 40"]);
    let staged = repair(&image, &RepairOptions::default(), &mut Yes).unwrap();
    let account = Account::new(&staged, &image, "x".into(), Ending::DryRun);
    let text = written(&account, false);
    assert!(text.contains("  remark: the extent tree of inode"), "{text}");
    assert!(text.contains("  later: inode"), "{text}");
    assert!(!text.contains("  damage: "), "the node was freed, and nothing was damaged: {text}");
}

#[test]
fn neither_the_report_nor_the_bytes_depend_on_threads() {
    let Some(image) = populated() else { return };
    debugfs(&image, &["unlink d", "clri f", "sif g links_count 7", "freeb 400 20"]);
    let device: &dyn ReadBlocks = &image;
    let at = |threads: usize| {
        let mut options = RepairOptions::default();
        options.check.threads = threads;
        let staged = repair(device, &options, &mut Yes).unwrap();
        let mut account = Account::new(&staged, device, "x".into(), Ending::DryRun);
        account.cost = Cost::default();
        let mut bytes = vec![0; image.size() as usize];
        staged.staged.read_at(0, &mut bytes).unwrap();
        // More threads need more memory, which changes the estimate.
        let mut report = json::account(&account, 1);
        assert!(report.as_object_mut().unwrap().remove("cost").is_some());
        (written(&account, true), report, bytes)
    };
    let one = at(1);
    for threads in [2, 3, 8, 16] {
        let many = at(threads);
        assert_eq!(one.0, many.0, "{threads} threads");
        assert_eq!(one.1, many.1, "{threads} threads");
        assert!(one.2 == many.2, "{threads} threads: other bytes");
    }
}

#[test]
fn an_unattended_repair_that_halts_stages_the_mark_alone() {
    let Some(image) = populated() else { return };
    debugfs(&image, &["unlink d", "sif g links_count 7"]);
    let device: &dyn ReadBlocks = &image;
    let staged = repair(device, &RepairOptions::default(), &mut Preen).unwrap();
    assert!(staged.halted.is_some());
    assert!(!staged.repaired());
    let (before, mut after) = (image.to_vec().unwrap(), vec![0; image.size() as usize]);
    staged.staged.read_at(0, &mut after).unwrap();
    let differing: Vec<usize> = (0..before.len()).filter(|&at| before[at] != after[at]).collect();
    // The state field of the superblock and its checksum.
    let allowed =
        |at: usize| (1024 + 0x3a..1024 + 0x3c).contains(&at) || (2044..2048).contains(&at);
    assert!(!differing.is_empty() && differing.iter().all(|&at| allowed(at)), "{differing:x?}");
    assert_eq!(after[1024 + 0x3a] & 2, 2, "errors");
    let ending = Ending::Written { undo: None, not_saved: Vec::new(), bytes: 0 };
    let account = Account::new(&staged, device, "x".into(), ending);
    assert_eq!(account.verdict(), Verdict::Halted);
    let text = written(&account, false);
    assert!(text.contains("This needs a person:"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("HALTED: "), "{text}");
}

#[test]
fn an_unattended_repair_does_what_is_safe() {
    let Some(image) = populated() else { return };
    debugfs(&image, &["set_bg 0 free_blocks_count 3", "set_bg 0 checksum calc"]);
    let device: &dyn ReadBlocks = &image;
    let staged = repair(device, &RepairOptions::default(), &mut Preen).unwrap();
    assert_eq!(staged.halted, None, "{:?}", staged.before.found);
    let account = Account::new(&staged, device, "x".into(), Ending::DryRun);
    assert_eq!(account.verdict(), Verdict::Repaired);
    assert!(written(&account, false).contains("bitmaps and counts would be rewritten"));
    assert_eq!(account.losses(), []);
}

/// Refuses findings of one kind.
struct Refuses(&'static str);

impl Policy for Refuses {
    fn decide(
        &mut self,
        problems: &[floe_check::Problem],
        _report: &floe_check::Report,
    ) -> Decision {
        Decision::Each(problems.iter().map(|problem| problem.row().id != self.0).collect())
    }
}

#[test]
fn what_is_refused_is_left_and_the_rest_repaired() {
    let Some(image) = populated() else { return };
    debugfs(&image, &["unlink d", "sif g links_count 7"]);
    let device: &dyn ReadBlocks = &image;
    let mut policy = Refuses("inode-link-count-wrong");
    let staged = repair(device, &RepairOptions::default(), &mut policy).unwrap();
    let account = Account::new(&staged, device, "x".into(), Ending::DryRun);
    assert_eq!(account.verdict(), Verdict::Left);
    assert!(staged.left.iter().all(|(problem, _)| problem.row().id == "inode-link-count-wrong"));
    let text = written(&account, false);
    assert!(text.contains("its repair was refused"), "{text}");
    assert!(text.contains("the directory would be connected to lost+found"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("DAMAGE LEFT: "), "{text}");
}

struct Quits;

impl Policy for Quits {
    fn decide(
        &mut self,
        _problems: &[floe_check::Problem],
        _report: &floe_check::Report,
    ) -> Decision {
        Decision::Quit
    }
}

#[test]
fn quitting_ends_without_a_repair() {
    let Some(image) = populated() else { return };
    debugfs(&image, &["unlink d"]);
    let device: &dyn ReadBlocks = &image;
    let ended = repair(device, &RepairOptions::default(), &mut Quits);
    assert!(matches!(ended, Err(RepairError::Quit)));
}

#[test]
fn the_culprit_is_deleted_only_on_request_and_only_if_evidence_names_it() {
    let Some(image) = image("ext2-1k") else { return };
    let source = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(source.path(), vec![b'x'; 5000]).unwrap();
    let from = source.path().display();
    build::debugfs(&image, &format!("write {from} sound\nwrite {from} culprit\n")).unwrap();
    let shown =
        tool::must("debugfs", &["-R", "bmap sound 0", image.path().to_str().unwrap()], &[0]);
    let shown = shown.unwrap().text;
    let block: u64 = shown.lines().find_map(|line| line.trim().parse().ok()).unwrap();
    debugfs(&image, &[&format!("sif culprit block[0] {block}")]);
    let fates = |image: &Image, shared_blocks: SharedBlocks| -> Vec<(Fate, Option<String>)> {
        let device: &dyn ReadBlocks = image;
        let options = RepairOptions { shared_blocks, ..RepairOptions::default() };
        let staged = repair(device, &options, &mut Yes).unwrap();
        assert!(staged.is_clean(), "{:?}", staged.left);
        let account = Account::new(&staged, device, "x".into(), Ending::DryRun);
        account.losses().into_iter().map(|lost| (lost.fate, lost.path)).collect()
    };
    let both_cloned = |fates: &[(Fate, Option<String>)]| {
        fates.len() == 2 && fates.iter().all(|(fate, _)| *fate == Fate::Cloned)
    };
    // Both look valid: no evidence tells which owns the block.
    assert!(both_cloned(&fates(&image, SharedBlocks::DropCulprit)));
    debugfs(&image, &["sif culprit block[1] 4000000000"]);
    let deleted = fates(&image, SharedBlocks::DropCulprit);
    assert!(deleted.contains(&(Fate::Deleted, Some("/culprit".to_owned()))), "{deleted:?}");
    assert!(deleted.iter().all(|(_, path)| path.as_deref() != Some("/sound")), "{deleted:?}");
    let kept = fates(&image, SharedBlocks::Clone);
    assert!(kept.iter().all(|(fate, _)| *fate != Fate::Deleted), "{kept:?}");
}
