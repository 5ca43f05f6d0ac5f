//! Outputs never replace inputs, each other, or files that Floe did not create.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use floe_testkit::tool;

use super::loop_device::Loop;
use super::{Ran, floe, image, ran};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A command line whose outputs would destroy files: exit code 16, and nothing is touched.
#[test]
fn an_output_that_would_destroy_a_file_is_a_wrong_command_line() {
    let Some(image) = image("ext4-1k") else { return };
    // Some damage, so that a repair would write.
    floe_testkit::build::debugfs(&image, "clri <12>\n").unwrap();
    let before = image.to_vec().unwrap();
    let folder = tool::scratch("floe-outputs-").unwrap();
    let at = |name: &str| folder.path().join(name);
    let device = text(image.path());
    let (link, hard) = (at("link"), image.path().with_extension("hard"));
    symlink(image.path(), &link).unwrap();
    fs::hard_link(image.path(), &hard).unwrap();
    symlink("new", at("dangling")).unwrap();
    let (link, hard_name, list) = (text(&link), text(&hard), at("list"));
    fs::write(&list, "").unwrap();
    let (new, dangling, list) = (at("new"), at("dangling"), text(&list));
    let (new, dangling) = (text(&new), text(&dangling));
    let folder_of_image = text(image.path().parent().unwrap());
    let in_image = format!("/y/{}", image.path().file_name().unwrap().to_str().unwrap());
    for line in [
        &["check", "--html", device, device][..],
        &["check", "--html", link, device],
        &["check", "--metrics", hard_name, device],
        &["check", "--metrics", link, hard_name],
        &["check", "--checkpoint", link, device],
        &["check", "--html", new, "--metrics", dangling, device],
        &["check", "--html", device, "--external-journal", device, link],
        &["repair", "--yes", "--undo", new, "--html", dangling, device],
        &["repair", "--yes", "--undo", link, device],
        &["repair", "--plan", device, device],
        &["fsck", "-fy", "-z", link, device],
        &["cp", "--force", device, "/x", link],
        &["mkfs", "-F", "-F", "--from", device, link],
        &["mkfs", "-F", "-F", "--from", "dir:/proc/self/fdinfo", "--metadata", device, link],
        &["cp", "--force", device, &in_image, folder_of_image],
        &["fsck", "-fy", "-z", list, "-l", list, device],
    ] {
        let ran = floe(line);
        assert_eq!(ran.code, 16, "{line:?}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains("Nothing was looked at or changed"), "{line:?}: {}", ran.err);
        assert!(image.to_vec().unwrap() == before, "{line:?}");
        assert!(!at("new").exists() && fs::read(at("list")).unwrap().is_empty(), "{line:?}");
    }
    fs::remove_file(hard).unwrap();
}

#[test]
fn a_file_that_floe_did_not_make_stays() {
    let Some(image) = image("ext4-1k") else { return };
    let folder = tool::scratch("floe-outputs-").unwrap();
    let path = folder.path().join("precious");
    let check = |option: &str| floe(&["check", option, text(&path), text(image.path())]);
    for option in ["--html", "--metrics"] {
        fs::write(&path, "precious").unwrap();
        let ran = check(option);
        assert_eq!(ran.code, 8, "{}{}", ran.out, ran.err);
        assert!(ran.err.contains("in the way") && ran.out.is_empty(), "{}{}", ran.out, ran.err);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
        // Floe's own outputs are replaced repeatedly.
        for _ in 0..2 {
            let ran = check(option);
            assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        }
    }
}

/// The shell redirects standard output to the checked image (`>> image`), or to the page.
#[test]
fn standard_output_is_an_output_too() {
    let Some(image) = image("ext4-1k") else { return };
    let before = image.to_vec().unwrap();
    let folder = tool::scratch("floe-outputs-").unwrap();
    let page = folder.path().join("page");
    let to = |path: &Path, line: &[&str]| -> Ran {
        let file = fs::File::options().append(true).create(true).open(path).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        ran(&command.args(line).stdout(file).stderr(Stdio::piped()).output().unwrap())
    };
    let device = text(image.path());
    for line in [&["check", device][..], &["fsck", "-fn", device], &["info", device]] {
        let ran = to(image.path(), line);
        assert_eq!(ran.code, 16, "{line:?}: {}", ran.err);
        assert!(image.to_vec().unwrap() == before, "{line:?}");
    }
    assert_eq!(to(&page, &["check", "--html", text(&page), device]).code, 16);
    assert_eq!(to(&page, &["check", device]).code, 0);
    assert!(fs::read_to_string(&page).unwrap().contains("CLEAN"));
}

/// `-` is standard output: the page or the metrics have it alone, and the report makes way. Nothing that must be a
/// file goes there, and no file of that name appears.
#[test]
fn a_hyphen_is_standard_output() {
    let Some(image) = image("ext4-1k") else { return };
    let folder = tool::scratch("floe-outputs-").unwrap();
    let run = |line: &[&str]| -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        ran(&command.args(line).arg(image.path()).current_dir(folder.path()).output().unwrap())
    };
    for (line, begins, says) in [
        (&["check", "--html", "-"][..], "<!DOCTYPE html>", "CLEAN"),
        (&["check", "--metrics", "-"], "# HELP floe_check_complete", "CLEAN"),
        (&["repair", "--dry-run", "--yes", "--html", "-"], "<!DOCTYPE html>", "CLEAN"),
    ] {
        let ran = run(line);
        assert_eq!(ran.code, 0, "{line:?}: {}", ran.err);
        assert!(
            ran.out.starts_with(begins) && !ran.out.contains("\nCLEAN"),
            "{line:?}: {}",
            ran.out
        );
        assert!(ran.err.contains(says), "{line:?}: {}", ran.err);
    }
    for line in [
        &["check", "--json", "--html", "-"][..],
        &["check", "--html", "-", "--metrics", "-"],
        &["check", "--checkpoint", "-"],
        &["repair", "--yes", "--undo", "-"],
        &["repair", "--plan", "-"],
        &["fsck", "-fy", "-z", "-"],
    ] {
        let ran = run(line);
        assert_eq!(ran.code, 16, "{line:?}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains("Nothing was looked at or changed"), "{line:?}: {}", ran.err);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    assert_eq!(run(&["check", "--html", "./-"]).code, 0);
    assert!(fs::read_to_string(folder.path().join("-")).unwrap().starts_with("<!DOCTYPE html>"));
}

/// Loop devices instead of disks: they are never an output, and the file behind one is an input.
#[test]
fn block_devices_and_what_is_behind_them_are_no_outputs() {
    let Some(image) = image("ext4-1k") else { return };
    let Some(other) = image.copy().ok() else { return };
    let (Some(one), Some(two)) = (Loop::over(image.path(), &[]), Loop::over(other.path(), &[]))
    else {
        return;
    };
    let (one, two) = (one.name(), two.name());
    let before = image.to_vec().unwrap();
    let lines = [
        vec!["check", "--html", one, one],
        vec!["check", "--html", two, one],
        vec!["check", "--metrics", two, text(image.path())],
        vec!["check", "--html", text(image.path()), one],
        vec!["repair", "--yes", "--undo", two, one],
    ];
    let all: Vec<Ran> = lines.iter().map(|line| floe(line)).collect();
    for (ran, line) in all.iter().zip(lines) {
        assert_eq!(ran.code, 16, "{line:?}: {}{}", ran.out, ran.err);
    }
    assert!(image.to_vec().unwrap() == before && other.to_vec().unwrap() == before);
}
