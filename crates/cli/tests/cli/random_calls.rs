//! Random calls on a mount and on Linux's ext4 are answered alike, and leave the same tree.

use std::path::Path;
use std::process::Command;

use floe_testkit::{kernel, oracle};

use super::image;
use super::mount::{Ours, can_mount};

/// `FLOE_SEEDS` says how many sequences of calls.
#[test]
fn random_calls_are_answered_as_by_linux() {
    let python = Command::new("python3").arg("-V").output().is_ok_and(|ran| ran.status.success());
    if !can_mount() || kernel::mount_available().is_err() || !python {
        eprintln!("skipped: no mounts here, or no Python");
        return;
    }
    let seeds = std::env::var("FLOE_SEEDS").unwrap_or_else(|_| "6".to_owned());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/random_calls.py");
    for options in ["rw", "nodelalloc"] {
        let (Some(image), Some(other)) = (image("ext4"), image("ext4")) else { return };
        let theirs = kernel::Mounted::new(other.path(), "").unwrap();
        let ours = Ours::new(image.path(), &["-o", options]);
        let folders = [theirs.path(), ours.path()];
        let ran = Command::new("python3")
            .arg(&script)
            .args(folders)
            .args(["1", &seeds, "300"])
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&ran.stdout);
        let error = String::from_utf8_lossy(&ran.stderr);
        theirs.unmount().unwrap();
        ours.unmount();
        assert!(ran.status.success(), "{options}: {told}{error}");
        assert!(oracle::e2fsck(&image).unwrap().clean(), "{options}");
    }
}
