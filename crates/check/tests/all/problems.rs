//! One damaged image for each problem of the table: built by a recipe, judged by Floe with 1 and 3
//! workers, and by e2fsck.
//!
//! A problem without a recipe must stand in `docs/problems-without-recipe.tsv` with the reason.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use floe_blockdev::{Fault, Faulty};
use floe_check::open::{WhichSuperblock, good_backups};
use floe_check::problem::{ROWS, Row};
use floe_check::{CheckError, CheckOptions, JournalUse, Problem, check};
use floe_testkit::problems::{Case, cases};
use floe_testkit::recipe::{Recipe, inode};
use floe_testkit::{Image, Profile, build, oracle, tool};

/// Expected problems that e2fsck does not find.
fn other_codes(case: &Case, codes: &BTreeSet<u32>) -> Vec<String> {
    let of = |id: &str| ROWS.iter().find(|row| row.id == id).map(|row| row.code);
    case.recipe
        .expected()
        .iter()
        .filter(|id| of(id).is_none_or(|code| !codes.contains(&code)))
        .map(|id| format!("{}: e2fsck does not find {id}: {codes:x?}", case.recipe.name()))
        .collect()
}

/// The faults of a case; empty if it does as it says.
fn judge(case: &Case) -> Vec<String> {
    let name = case.recipe.name();
    let image = match case.recipe.build() {
        Ok(image) => image,
        Err(error) => return vec![format!("{name}: cannot be built: {error:#}")],
    };
    let blocks = case.unreadable_blocks(&image);
    let block_bytes = u32::try_from(case.recipe.profile().block_size()).expect("small");
    let journal = if case.recovered { JournalUse::Replay } else { JournalUse::Ignore };
    let found_by = |threads| {
        let faults = blocks.iter().map(|&block| (block, Fault::Unreadable));
        let device = Faulty::new(&image, block_bytes, faults);
        let mut options = CheckOptions { threads, journal, ..Default::default() };
        options.now_seconds = case.now_seconds.unwrap_or(options.now_seconds);
        options.external_journal = case.external_journal.as_ref().map(|device| device as _);
        match check(&device, &options) {
            Ok(report) => report.found,
            Err(CheckError::Fatal { problem }) => vec![problem],
            Err(CheckError::NoSuperblock { problems, .. }) => problems,
            Err(error) => panic!("{name}: {error}"),
        }
    };
    let found = found_by(1);
    let mut faults = Vec::new();
    if found != found_by(3) {
        faults.push(format!("{name}: 3 workers find something else than 1"));
    }
    let ids: BTreeSet<_> = found.iter().map(|problem| problem.row().id).collect();
    for id in case.recipe.expected() {
        if !ids.contains(id) {
            faults.push(format!("{name}: {id} is not in {ids:?}"));
        }
    }
    if case.not_by_e2fsck.is_some() {
        return faults;
    }
    let verdict = oracle::e2fsck(&image).expect("e2fsck runs");
    let ours = found.iter().any(is_damage);
    if case.same_codes {
        faults.extend(other_codes(case, &verdict.codes()));
        if ours && case.recipe.expected().is_empty() {
            faults.push(format!("{name}: a false alarm: {ids:?}"));
        }
    }
    if std::env::var_os("FLOE_SHOW_CODES").is_some() {
        show_codes(name, &found, &verdict);
    }
    if (ours == verdict.clean()) != case.unlike_e2fsck.is_some() {
        faults.push(format!(
            "{name}: damaged for us: {ours} ({ids:?}), for e2fsck: {} ({:x?}), expected to \
             differ: {:?}",
            !verdict.clean(),
            verdict.codes(),
            case.unlike_e2fsck
        ));
    }
    faults
}
/// Prints in which problems we and e2fsck differ.
fn show_codes(name: &str, found: &[Problem], verdict: &oracle::Verdict) {
    let theirs: BTreeSet<_> = verdict
        .codes()
        .into_iter()
        .map(|code| match ROWS.iter().find(|row| row.code == code) {
            Some(row) => row.id.to_owned(),
            None => format!("{code:#08x}"),
        })
        .collect();
    let ours: BTreeSet<_> = found.iter().map(|problem| problem.row().id.to_owned()).collect();
    let (more, less): (Vec<_>, Vec<_>) =
        (ours.difference(&theirs).collect(), theirs.difference(&ours).collect());
    eprintln!("SHOW {name}: only ours {more:?}, only e2fsck's {less:?}");
}

fn is_damage(problem: &Problem) -> bool {
    problem.row().weight > floe_check::problem::Weight::Remark
}

#[test]
fn every_recipe_raises_its_problems() {
    if tool::missing() {
        return;
    }
    let cases = cases();
    // To look at one case: a part of its name.
    let wanted = std::env::var("FLOE_CASE").ok();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut faults = Vec::new();
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            if wanted.as_ref().is_none_or(|part| case.recipe.name().contains(part)) {
                faults.extend(judge(case));
            }
        }
        faults
    };
    let faults: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no case panics")).collect()
    });
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// A node that does not fit a root that is wrong is not to be made to.
#[test]
fn nodes_below_a_root_of_a_wrong_depth_are_not_called_wrong() {
    if tool::missing() {
        return;
    }
    for depth in [1, 3, 4, 6] {
        let recipe = Recipe::new("a wrong root");
        let wrong = inode("/fragmented").extent_header(move |header| header.depth = depth);
        let image = recipe.edit(wrong).build().expect("an image");
        let report = check(&image, &CheckOptions::default()).expect("a report");
        assert!(report.found.iter().any(is_damage), "{depth}");
        let of_depth = |problem: &&Problem| matches!(problem, Problem::ExtentNodeDepthWrong { .. });
        assert_eq!(report.found.iter().find(of_depth), None, "{depth}");
    }
}

#[test]
fn every_problem_has_an_image() {
    let with: BTreeSet<_> =
        cases().iter().flat_map(|case| case.recipe.expected().to_vec()).collect();
    let listed = include_str!("../../../../docs/problems-without-recipe.tsv");
    let without: BTreeSet<_> = listed
        .lines()
        .filter_map(|line| line.split('\t').next())
        .filter(|id| *id != "id")
        .collect();
    let missing: Vec<_> = ROWS
        .iter()
        .map(|row: &Row| row.id)
        .filter(|id| !with.contains(id) && !without.contains(id))
        .collect();
    assert!(missing.is_empty(), "{} problems have no recipe: {missing:?}", missing.len());
    let both: Vec<_> = with.intersection(&without).collect();
    assert!(both.is_empty(), "listed as without a recipe, but have one: {both:?}");
}

/// Differences that mke2fs, debugfs and e2fsck leave in backups are no findings.
#[test]
fn backups_of_sound_images_are_good() {
    if tool::missing() {
        return;
    }
    for &profile in Profile::ALL {
        let image = build::base(profile).expect("a clean image");
        let report = check(&image, &CheckOptions::default()).expect("a clean image");
        let of_backups: Vec<_> =
            report.found.iter().filter(|problem| problem.row().id.starts_with("backup-")).collect();
        assert!(of_backups.is_empty(), "{profile}: {of_backups:?}");
    }
}

/// A backup superblock and its descriptors are as old as the file system: what they say of counts, and that bitmaps were never
/// written, is no damage.
#[test]
fn sound_images_are_sound_by_a_backup() {
    if tool::missing() {
        return;
    }
    for &profile in Profile::ALL {
        let image = build::base(profile).expect("a clean image");
        for (block, block_size) in good_backups(&image).into_iter().take(2) {
            let superblock = WhichSuperblock { block: Some(block), block_size: Some(block_size) };
            let options = CheckOptions { superblock, ..CheckOptions::default() };
            let report = check(&image, &options).expect("a clean image");
            let damage: Vec<_> = report.found.iter().filter(|problem| is_damage(problem)).collect();
            assert!(damage.is_empty(), "{profile}, {block}: {damage:?}");
        }
    }
}

/// Blocks of a disk image lie elsewhere than on its disk: what looks like a backup superblock in it is believed only by name.
#[test]
fn a_backup_in_a_disk_image_of_another_program_is_not_believed() {
    if tool::missing() {
        return;
    }
    let image = Image::empty(16 << 20).unwrap();
    build::mke2fs(image.path(), &["-t", "ext4", "-b", "1024"]).unwrap();
    image.write(1024, &[0; 1024]).unwrap();
    assert!(check(&image, &CheckOptions::default()).is_ok(), "a backup is used");
    for magic in [&b"KDMV"[..], b"QED\0", b"WithoutFreeSpace"] {
        image.write(0, magic).unwrap();
        assert!(check(&image, &CheckOptions::default()).is_err(), "{magic:?}");
    }
    let (block, block_size) = good_backups(&image)[0];
    let superblock = WhichSuperblock { block: Some(block), block_size: Some(block_size) };
    assert!(check(&image, &CheckOptions { superblock, ..CheckOptions::default() }).is_ok());
}

/// e2fsck does not look at the sectors of a symlink whose target is inline data; of a file it does.
#[test]
fn sectors_of_links_with_inline_data_are_judged_as_by_e2fsck() {
    if tool::missing() {
        return;
    }
    let target = "t".repeat(80);
    let made = format!("symlink link {target}\nwrite /dev/null file\n");
    for edit in ["sif link blocks 2", "sif link frag 1", "sif file blocks 2"] {
        let image = build::empty(Profile::InlineData).expect("a clean image");
        build::debugfs(&image, &format!("{made}{edit}\n")).unwrap();
        let found = check(&image, &CheckOptions::default()).unwrap().found;
        let theirs = oracle::e2fsck(&image).unwrap();
        assert_eq!(found.is_empty(), !theirs.damaged(), "{edit}: {found:?}, {}", theirs.text);
    }
}
