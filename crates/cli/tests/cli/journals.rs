//! File systems with several journals (`-E journals=`): made, shown, used, and judged by e2fsck.

use std::fs;

use floe_testkit::{Image, tool};

use super::cubes::{cube, judge};
use super::floe;
use super::mount::{Ours, can_mount};

fn made(options: &[&str], size: &str) -> (Image, i32, String) {
    let image = Image::empty(0).unwrap();
    let path = image.path().to_str().unwrap().to_owned();
    let ran = floe(&[&["mkfs", "-q", "-F"], options, &[path.as_str(), size]].concat());
    (image, ran.code, ran.err)
}

fn native(journals: &str) -> Image {
    let options = ["-t", "native", "-E", "lot_size=16m", "-N", "6000", "-E", journals];
    let (image, code, err) = made(&options, "120m");
    assert_eq!((code, err.as_str()), (0, ""));
    image
}

#[test]
fn several_journals_are_made_shown_and_used() {
    for (journals, further) in [("journals=1", 0), ("journals=2", 1), ("journals=4", 3)] {
        let image = native(journals);
        let path = image.path().to_str().unwrap().to_owned();
        let shown = floe(&["info", &path]).out;
        assert_eq!(shown.matches("further journal").count(), further, "{shown}");
        if !tool::missing() {
            judge(&image, "new");
        }
        assert_eq!(cube(&image, "create", &["/web", "--journal-blocks", "64"]).0, 0);
        if !can_mount() || tool::missing() {
            continue;
        }
        let options: &[&str] = if further == 3 { &["-o", "journals=wait"] } else { &[] };
        let mount = Ours::new(image.path(), options);
        for at in 0..20 {
            let top = mount.path().join(format!("dir{at}"));
            fs::create_dir(&top).unwrap();
            fs::write(top.join("file"), vec![at; 5000]).unwrap();
            fs::File::open(top.join("file")).unwrap().sync_all().unwrap();
            fs::rename(top.join("file"), mount.path().join(format!("file{at}"))).unwrap();
        }
        fs::write(mount.path().join("web/file"), b"of a cube").unwrap();
        mount.unmount();
        judge(&image, "used");
        let shown = floe(&["info", &path]).out;
        assert_eq!(shown.matches("further journal").count(), further, "{shown}");
    }
}

#[test]
fn several_journals_are_refused_where_there_cannot_be_any() {
    let lots = ["-t", "native", "-E", "lot_size=16m,journals=9"];
    for (options, why) in [
        (&["-t", "ext4", "-E", "journals=2"][..], "journals needs -t native"),
        (&["-t", "native", "-E", "journals=0"], "1 to 16"),
        (&["-t", "native", "-E", "journals=17"], "1 to 16"),
        (&lots, "fewer lots"),
    ] {
        let (_, code, err) = made(options, "120m");
        assert!(code != 0 && err.contains(why), "{options:?}: {err}");
    }
    let from = ["-t", "native", "-E", "journals=2", "--from", "dir:."];
    let (_, code, err) = made(&from, "120m");
    assert!(code == 16 && err.contains("--from"), "{err}");
}
