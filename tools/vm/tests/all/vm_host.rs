//! A short run of `cargo xtask vm-host`. Needs root, FUSE and User Mode Linux; the test is skipped without them.

use std::path::Path;
use std::process::Command;

use floe_testkit::{kernel, tool};

use crate::linux_judge::user_mode_linux;

#[test]
fn damage_of_one_cube_stops_one_guest_which_starts_again() {
    let vm = Path::new(env!("CARGO_BIN_EXE_floe-vm"));
    let floe = vm.with_file_name("floe");
    let needed = [floe.as_path(), Path::new("/dev/fuse")];
    if let Some(missing) = needed.iter().find(|path| !path.exists()) {
        eprintln!("skipped: no {}", missing.display());
        return;
    }
    let Some(linux) = user_mode_linux() else { return };
    if let (Err(reason), _) | (_, Err(reason)) = (tool::available(), kernel::mount_available()) {
        eprintln!("skipped: {reason}");
        return;
    }
    let output = Command::new(vm)
        .args(["vm-host", "--seconds", "24", "--silence", "60", "--kernel"])
        .args([linux, Path::new("--floe"), &floe])
        .output()
        .expect("the tool can be started");
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("all guests have what their disks had acknowledged"), "{said}");
}
