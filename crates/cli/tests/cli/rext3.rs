//! rext3 through the commands: made and filled, checked, read, and never mounted read-write.

use std::fs;

use super::floe;

/// Bytes that tell their place.
fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 4096 + at) as u8).collect()
}

#[test]
fn it_is_made_filled_checked_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir_all(tree.join("dir")).unwrap();
    // Two levels of indirect blocks, whose pointers are fewer than in ext3.
    let large = content(6_000_000);
    fs::write(tree.join("dir/large"), &large).unwrap();
    fs::write(tree.join("small"), "small").unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (image, copy, stock) = (path("image"), path("copy"), path("stock"));
    let from = format!("dir:{}", tree.display());
    let made = floe(&["mkfs", "-q", "-t", "rext3", "-b", "4096", "--from", &from, &image, "64m"]);
    assert_eq!((made.code, made.err.as_str()), (0, ""));
    let judge = |image: &str| {
        let checked = floe(&["check", image]);
        assert_eq!(checked.code, 0, "{}", checked.out);
    };
    judge(&image);
    assert_eq!(floe(&["cat", &image, "/small"]).out, "small");
    assert!(floe(&["ls", &image, "/dir"]).out.contains("large"));
    let (copied, archive) = (path("large"), path("archive.tar"));
    let ran = floe(&["cp", &image, "/dir/large", &copied]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(fs::read(&copied).unwrap() == large);
    assert_eq!(floe(&["export", &image, "/", "-o", &archive]).code, 0);
    let inside = fs::read(&archive).unwrap();
    let at = inside.chunks(512).position(|part| part == &large[..512]);
    let start = at.expect("the file in the archive") * 512;
    assert!(inside[start..start + large.len()] == large);
    let info = floe(&["info", &image]).out;
    assert!(info.contains("rext3") && info.contains("512 blocks of a group"), "{info}");
    // As a source of images, with headers and without them.
    for (kind, to) in [("rext3", &copy), ("ext3", &stock)] {
        let made = floe(&["mkfs", "-q", "-t", kind, "--from", &image, to]);
        assert_eq!((made.code, made.err.as_str()), (0, ""), "{kind}");
        judge(to);
        let copied = path(&format!("large of {kind}"));
        assert_eq!(floe(&["cp", to, "/dir/large", &copied]).code, 0, "{kind}");
        assert!(fs::read(&copied).unwrap() == large, "{kind}");
    }
}

#[test]
fn a_mount_refuses_to_write_it() {
    let folder = tempfile::tempdir().unwrap();
    let (image, point) = (folder.path().join("image"), folder.path().join("point"));
    fs::create_dir(&point).unwrap();
    let (image, point) = (image.to_str().unwrap(), point.to_str().unwrap());
    assert_eq!(floe(&["mkfs", "-q", "-t", "rext3", image, "20m"]).code, 0);
    let before = fs::read(image).unwrap();
    let refused = floe(&["mount", "-o", "rw", image, point]);
    let why = "it has features that cannot be written safely: rext3";
    assert!(refused.code != 0 && refused.err.contains(why), "{}", refused.err);
    assert!(fs::read(image).unwrap() == before);
}
