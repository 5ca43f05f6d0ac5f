//! One round of `cargo xtask kernel-load`: a guest boots, its power fails under load, Floe and
//! e2fsck judge.

use std::path::Path;
use std::process::Command;

#[test]
fn a_guest_whose_power_failed_leaves_what_floe_and_e2fsck_judge_alike() {
    // Cargo builds the workspace's programs into one folder before it runs any test.
    let vm = Path::new(env!("CARGO_BIN_EXE_floe-vm"));
    let floe = vm.with_file_name("floe");
    if !floe.exists() {
        eprintln!("skipped: {} is not built", floe.display());
        return;
    }
    let keep = std::env::temp_dir().join(format!("floe-kernel-load-{}", std::process::id()));
    let output = Command::new(vm)
        .args(["kernel-load", "--rounds", "1", "--profile", "ext4-1k", "--floe"])
        .arg(&floe)
        .arg("--keep")
        .arg(&keep)
        .output()
        .expect("the tool can be started");
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    // Messages about missing programs.
    if ["no kernel to boot", "apt install qemu", "cannot be started"]
        .iter()
        .any(|at| said.contains(at))
    {
        eprintln!("skipped: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
    assert!(said.contains("; 0 faults"), "{said}");
}
