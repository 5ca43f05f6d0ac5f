//! Effects of single options of e2fsck's command line.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use floe_testkit::{Image, build, oracle, tool};

use super::{Fsck, Ran, floe_on, image};

/// A free block of the profile `ext4-1k`.
const FREE: u64 = 7000;

fn run(options: &[&str], image: &Image) -> Ran {
    Fsck::new("fsck.ext4").run(options, image.path(), &[("E2FSCK_CONFIG", "/dev/null")])
}

/// Output of another program about an image.
fn says(program: &str, arguments: &[&str], image: &Path) -> String {
    let output = tool::command(program).args(arguments).arg(image).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The bad block list, according to dumpe2fs.
fn listed(image: &Image) -> Vec<u64> {
    let text = says("dumpe2fs", &["-b"], image.path());
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

/// Floe and e2fsck both find it clean.
fn is_sound(image: &Image) {
    let theirs = tool::command("e2fsck").arg("-fn").arg(image.path()).output().unwrap();
    assert_eq!(theirs.status.code(), Some(0), "{}", String::from_utf8_lossy(&theirs.stdout));
    let ran = run(&["-fn"], image);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
}

/// The first block of a file, and its content.
fn first_block(image: &Image, path: &str) -> u64 {
    let text = build::debugfs(image, &format!("bmap {path} 0\n"));
    // Testkit considers debugfs's output an error.
    let text = match text {
        Ok(text) => text,
        Err(error) => error.to_string(),
    };
    text.split(|char: char| !char.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .next_back()
        .unwrap()
}

#[test]
fn lists_of_bad_blocks_are_added_to_and_replaced() {
    let Some(image) = image("ext4-1k") else { return };
    let folder = tool::scratch("floe-bad-").unwrap();
    let list = folder.path().join("list");
    let list_name = list.to_str().unwrap();
    fs::write(&list, format!("{FREE}\n{}\n99999999\n", FREE + 2)).unwrap();
    let ran = run(&["-y", "-l", list_name], &image);
    // Like e2fsck: a change of the list is not a repair.
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("99999999 is outside"), "{}", ran.err);
    assert_eq!(listed(&image), [FREE, FREE + 2]);
    is_sound(&image);
    fs::write(&list, format!("{}\n", FREE + 5)).unwrap();
    assert_eq!(run(&["-p", "-l", list_name], &image).code, 0);
    assert_eq!(listed(&image), [FREE, FREE + 2, FREE + 5]);
    is_sound(&image);
    // Enough for indirect blocks.
    let many: Vec<u64> = (0..400).map(|number| FREE + number).collect();
    let text: Vec<String> = many.iter().map(u64::to_string).collect();
    fs::write(&list, text.join("\n")).unwrap();
    assert_eq!(run(&["-y", "-L", list_name], &image).code, 0);
    assert_eq!(listed(&image), many);
    is_sound(&image);
    fs::write(&list, "").unwrap();
    assert_eq!(run(&["-y", "-L", list_name], &image).code, 0);
    assert_eq!(listed(&image), Vec::<u64>::new());
    is_sound(&image);
    assert_eq!(run(&["-y", "-l", "/nowhere/at/all"], &image).code, 8);
}

#[test]
fn a_file_on_a_bad_block_gets_another_and_keeps_its_content() {
    let Some(image) = image("ext4-1k") else { return };
    let folder = tool::scratch("floe-bad-").unwrap();
    let (list, data) = (folder.path().join("list"), folder.path().join("data"));
    fs::write(&data, vec![0x5a; 5000]).unwrap();
    build::debugfs(&image, &format!("write {} precious\n", data.display())).unwrap();
    let block = first_block(&image, "/precious");
    let undone = image.copy().unwrap();
    fs::write(&list, format!("{block}\n")).unwrap();
    let undo = folder.path().join("undo");
    let options = ["-y", "-l", list.to_str().unwrap(), "-z", undo.to_str().unwrap()];
    let ran = run(&options, &image);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert_eq!(listed(&image), [block]);
    assert_ne!(first_block(&image, "/precious"), block);
    let out = folder.path().join("out");
    let dump = build::debugfs(&image, &format!("dump precious {}\n", out.display()));
    assert!(dump.is_ok() && fs::read(&out).unwrap() == vec![0x5a; 5000]);
    is_sound(&image);
    // -p must not change a file, which needs a person.
    let preened = undone.copy().unwrap();
    assert_eq!(run(&["-p", "-l", list.to_str().unwrap()], &preened).code, 4);
    // Undo it.
    tool::must("e2undo", &[undo.as_os_str(), image.path().as_os_str()], &[0]).unwrap();
    assert!(image.to_vec().unwrap() == undone.to_vec().unwrap());
}

#[test]
fn badblocks_is_asked_for_bad_blocks() {
    let Some(image) = image("ext4-1k") else { return };
    let fsck = Fsck::new("fsck.ext4");
    // A fake program that finds two blocks, and records its command line.
    let program = fsck.folder.path().join("badblocks");
    let called = fsck.folder.path().join("called");
    let text = format!("#!/bin/sh\necho \"$@\" >>{}\necho {FREE}\necho 7010\n", called.display());
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", fsck.folder.path().display(), std::env::var("PATH").unwrap());
    let variables = [("PATH", path.as_str()), ("E2FSCK_CONFIG", "/dev/null")];
    assert_eq!(fsck.run(&["-yc"], image.path(), &variables).code, 0);
    assert_eq!(listed(&image), [FREE, 7010]);
    is_sound(&image);
    fs::write(&program, "#!/bin/sh\necho 7020\n").unwrap();
    assert_eq!(fsck.run(&["-ykc"], image.path(), &variables).code, 0);
    assert_eq!(listed(&image), [FREE, 7010, 7020]);
    assert_eq!(fsck.run(&["-yc"], image.path(), &variables).code, 0);
    assert_eq!(listed(&image), [7020]);
    let call = fs::read_to_string(&called).unwrap();
    assert_eq!(call.trim(), format!("-b 1024 {} 8191", image.path().display()));
    // A failing program changes nothing.
    fs::write(&program, "#!/bin/sh\necho 7030\nexit 3\n").unwrap();
    assert_eq!(fsck.run(&["-yc"], image.path(), &variables).code, 8);
    assert_eq!(listed(&image), [7020]);
    // The real program finds nothing.
    assert_eq!(run(&["-fyc"], &image).code, 0);
    assert_eq!(listed(&image), Vec::<u64>::new());
    is_sound(&image);
}

#[test]
fn an_undo_file_without_a_name_is_put_where_undo_files_go() {
    let Some(image) = image("ext4-1k") else { return };
    let before = image.to_vec().unwrap();
    let folder = tool::scratch("floe-undo-").unwrap();
    let place = folder.path().to_str().unwrap();
    let conf = folder.path().join("conf");
    fs::write(&conf, format!("[defaults]\nundo_dir = {place}\n")).unwrap();
    let fsck = Fsck::new("fsck.ext4");
    for (number, variable) in
        [("E2FSPROGS_UNDO_DIR", place), ("E2FSCK_CONFIG", conf.to_str().unwrap())]
            .iter()
            .enumerate()
    {
        build::debugfs(&image, "ssv state 0\nsif <2> links_count 9\n").unwrap();
        let ran = fsck.run(&["-y", "-z", ""], image.path(), &[*variable]);
        assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
        let suffix = if number == 0 { String::new() } else { format!(".{number}") };
        assert!(folder.path().join(format!("e2fsck-image.e2undo{suffix}")).is_file());
    }
    let none = [("E2FSPROGS_UNDO_DIR", "none")];
    assert_eq!(fsck.run(&["-fy", "-z", ""], image.path(), &none).code, 0);
    assert!(image.to_vec().unwrap() != before);
}

#[test]
fn discarding_frees_room_and_keeps_files() {
    let Some(image) = image("ext4-1k") else { return };
    // Data in unused blocks, which occupies space in the image.
    let junk = vec![0xaa; 1024 * 512];
    let offset = FREE * 1024;
    image.write(offset, &junk).unwrap();
    let taken = || fs::metadata(image.path()).unwrap().blocks() * 512;
    let (before, files) = (taken(), says("debugfs", &["-R", "ls -lR /"], image.path()));
    assert_eq!(run(&["-fn", "-E", "fragcheck"], &image).code, 0);
    let folder = tool::scratch("floe-undo-").unwrap();
    let undo = folder.path().join("undo");
    let ran = run(&["-fy", "-E", "discard", "-z", undo.to_str().unwrap()], &image);
    assert!(ran.err.contains("nothing was discarded"), "{}", ran.err);
    let ran = run(&["-fy", "-E", "discard"], &image);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    if ran.out.contains("cannot discard") {
        eprintln!("skipped: no holes can be made here");
        return;
    }
    assert!(taken() + 400 * 1024 < before, "{} of {before} are left", taken());
    let mut block = [1; 1024];
    image.read(offset, &mut block).unwrap();
    assert_eq!(block, [0; 1024]);
    assert_eq!(says("debugfs", &["-R", "ls -lR /"], image.path()), files);
    is_sound(&image);
}

#[test]
fn logs_get_a_copy_and_the_findings() {
    let Some(image) = image("ext4-1k") else { return };
    build::debugfs(&image, "ssv state 0\nsif <2> links_count 9\n").unwrap();
    let folder = tool::scratch("floe-log-").unwrap();
    let conf = folder.path().join("conf");
    let text = format!(
        "[options]\nlog_dir = {0}/logs\nlog_filename = \"%N %D-%T.log\"\n\
         problem_log_filename = {0}/problems.json\nreport_time = true\nreport_features = true\n\
         report_verbose = true\n",
        folder.path().display()
    );
    fs::write(&conf, text).unwrap();
    let variables = [("E2FSCK_CONFIG", conf.to_str().unwrap()), ("E2FSCK_TIME", "1331724102")];
    let ran = Fsck::new("fsck.ext4").run(&["-p"], image.path(), &variables);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    let log = fs::read_to_string(folder.path().join("logs/image 20120314-112142.log")).unwrap();
    assert_eq!(log, ran.out);
    for said in ["features: has_journal", " regular files", ": inodes: ", " of memory, "] {
        assert!(log.contains(said), "{said:?}: {log}");
    }
    let problems = fs::read_to_string(folder.path().join("problems.json")).unwrap();
    let value: serde_json::Value = serde_json::from_str(&problems).unwrap();
    assert_eq!(value["exit_code"], 1, "{problems}");
    let broken = folder.path().join("broken");
    fs::write(&broken, "[options]\nreport_time = perhaps\n").unwrap();
    let variables = [("E2FSCK_CONFIG", broken.to_str().unwrap())];
    let ran = Fsck::new("fsck.ext4").run(&["-fn"], image.path(), &variables);
    assert_eq!(ran.code, 8);
    assert!(ran.err.contains("line 2"), "{}", ran.err);
}

#[test]
fn the_configuration_decides_what_is_repaired_unattended() {
    let Some(image) = image("ext4-1k") else { return };
    build::debugfs(&image, "ssv state 0\nunlink /lost+found\n").unwrap();
    let folder = tool::scratch("floe-conf-").unwrap();
    let conf = folder.path().join("conf");
    let run = |options: &[&str], image: &Image, text: &str| {
        fs::write(&conf, text).unwrap();
        let variables = [("E2FSCK_CONFIG", conf.to_str().unwrap())];
        Fsck::new("fsck.ext4").run(options, image.path(), &variables)
    };
    let copy = image.copy().unwrap();
    let ran = run(&["-p"], &copy, "");
    assert_eq!(ran.code, 4, "{}{}", ran.out, ran.err);
    // An unconnected directory, and no lost+found for it.
    let rows = ["0x030001", "0x030002", "0x030003", "0x030004"];
    let allow: String =
        rows.iter().map(|code| format!("{code} = {{\npreen_ok = true\n}}\n")).collect();
    let copy = image.copy().unwrap();
    let ran = run(&["-p"], &copy, &format!("[problems]\n{allow}"));
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    is_sound(&copy);
    let refuse = allow.replace("preen_ok = true", "force_no = true");
    let copy = image.copy().unwrap();
    let ran = run(&["-y"], &copy, &format!("[problems]\n{refuse}"));
    assert_eq!(ran.code, 4, "{}{}", ran.out, ran.err);
}

#[test]
fn names_are_judged_as_text_when_asked() {
    let Some(image) = image("casefold") else { return };
    let folder = tool::scratch("floe-name-").unwrap();
    let data = folder.path().join("data");
    fs::write(&data, "x").unwrap();
    // A casefolded directory with an invalid UTF-8 name: 0xff never occurs.
    let script = format!("mkdir d\nsif d flags 0x40080000\ncd d\nwrite {} aaaa\n", data.display());
    build::debugfs(&image, &script).unwrap();
    let block = first_block(&image, "/d");
    let mut bytes = vec![0; 1024];
    image.read(block * 1024, &mut bytes).unwrap();
    let at = bytes.windows(4).position(|name| name == b"aaaa").unwrap();
    image.write(block * 1024 + at as u64, b"\xffaaa").unwrap();
    // The checksum of the block is now wrong, which a repair corrects.
    let ran = run(&["-fy"], &image);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert_eq!(run(&["-fn"], &image).code, 0);
    let mut theirs = tool::command("e2fsck");
    theirs.args(["-fn", "-E", "check_encoding"]).arg(image.path());
    assert_eq!(theirs.output().unwrap().status.code(), Some(4));
    let ran = run(&["-fn", "-E", "check_encoding"], &image);
    assert_eq!(ran.code, 4, "{}{}", ran.out, ran.err);
    assert_eq!(run(&["-fy", "-E", "check_encoding"], &image).code, 1);
    assert_eq!(run(&["-fn", "-E", "check_encoding"], &image).code, 0);
}

#[test]
fn what_needs_a_person_at_boot_is_4_and_changes_nothing_but_the_mark() {
    let Some(image) = image("ext4-1k") else { return };
    // Without a primary superblock, -p does not use a backup, -y does. Backup locations are known
    // only for usual group sizes.
    let lost = Image::empty(16 << 20).unwrap();
    build::mke2fs(lost.path(), &["-t", "ext4", "-b", "1024"]).unwrap();
    lost.write(1024, &[0; 1024]).unwrap();
    let before = lost.to_vec().unwrap();
    let ran = run(&["-p"], &lost);
    assert_eq!(ran.code, 4, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("THIS NEEDS A PERSON"), "{}", ran.out);
    assert!(lost.to_vec().unwrap() == before);
    assert_eq!(run(&["-y"], &lost).code, 1);
    is_sound(&lost);
    // Truncated: e2fsck -n finds it clean.
    let mut cut = image.copy().unwrap();
    cut.set_size(5 << 20).unwrap();
    assert_eq!(run(&["-fn"], &cut).code, 4);
    // Not a file system.
    let none = Image::empty(1 << 20).unwrap();
    for mode in ["-n", "-p", "-y"] {
        assert_eq!(run(&[mode], &none).code, 8, "{mode}");
    }
}

/// An image whose groups are of the usual size, so that backups are found.
fn with_backups() -> Option<Image> {
    if tool::missing() {
        return None;
    }
    let image = Image::empty(20 << 20).unwrap();
    build::mke2fs(image.path(), &["-t", "ext4", "-b", "1024"]).unwrap();
    Some(image)
}

/// Without a primary superblock, lists of bad blocks rest on a backup, as all else does.
#[test]
fn bad_blocks_are_noted_where_only_a_backup_opens() {
    let folder = tool::scratch("floe-bad-backup-").unwrap();
    let list = folder.path().join("list");
    fs::write(&list, format!("{FREE}\n")).unwrap();
    let list = list.to_str().unwrap();
    for options in [&["-fy", "-l", list][..], &["-fy", "-L", list], &["-fyc"]] {
        let Some(image) = with_backups() else { return };
        image.write(1024, &[0; 1024]).unwrap();
        let ran = run(options, &image);
        assert_eq!(ran.code, 1, "{options:?}: {}{}", ran.out, ran.err);
        assert_eq!(listed(&image), if options.len() > 1 { vec![FREE] } else { vec![] });
        is_sound(&image);
    }
    // No superblock at all: told as without the list.
    let empty = Image::empty(1 << 20).unwrap();
    let ran = run(&["-fy", "-l", list], &empty);
    assert_eq!(ran.code, 8, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("no usable ext2, ext3 or ext4 superblock"), "{}", ran.err);
}

/// `-f` asks for a check, whatever else is said: the same as e2fsck makes.
#[test]
fn a_forced_check_is_made_beside_the_journal() {
    let Some(image) = with_backups() else { return };
    build::debugfs(&image, "clri <11>").unwrap();
    assert_eq!(run(&["-y", "-E", "journal_only"], &image).code, 0);
    let ran = run(&["-f", "-y", "-E", "journal_only"], &image);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert_eq!(run(&["-f", "-n"], &image).code, 0);
}

/// A replay of the journal mends no superblock, and does not say that all is well.
#[test]
fn only_the_journal_is_no_verdict_on_a_lost_superblock() {
    for mode in ["-p", "-y"] {
        let Some(image) = with_backups() else { return };
        assert_eq!(run(&[mode, "-E", "journal_only"], &image).code, 0);
        image.write(1024, &[0; 1024]).unwrap();
        let before = image.to_vec().unwrap();
        let ran = run(&[mode, "-E", "journal_only"], &image);
        assert_eq!(ran.code, 4, "{mode}: {}{}", ran.out, ran.err);
        assert!(
            ran.out.contains("superblock") && !ran.out.contains("CLEAN"),
            "{mode}: {}",
            ran.out
        );
        assert!(image.to_vec().unwrap() == before, "{mode}");
    }
}

/// A named backup is whole, and the primary descriptors are not: nobody else could mount that.
#[test]
fn a_named_backup_hides_no_damage_of_the_primary() {
    let Some(image) = image("ext4-1k") else { return };
    assert_eq!(floe_on(&["fsck", "-n", "-b", "2049"], image.path()).code, 0);
    image.write(2048, &[0; 1024]).unwrap();
    for flags in [&["fsck", "-n"][..], &["fsck", "-n", "-b", "2049"], &["check", "-b", "2049"]] {
        let ran = floe_on(flags, image.path());
        assert_eq!(ran.code, 4, "{flags:?}: {}{}", ran.out, ran.err);
        assert!(ran.out.contains("makes no sense"), "{flags:?}: {}", ran.out);
    }
    let ran = floe_on(&["fsck", "-y", "-b", "2049"], image.path());
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert_eq!(floe_on(&["fsck", "-fn"], image.path()).code, 0);
    assert!(oracle::e2fsck(&image).unwrap().clean());
}
