//! The Linux judge must accept undamaged images, and refuse those that it cannot mount. Needs User
//! Mode Linux; the test is skipped without it.

use std::path::Path;
use std::process::{Command, Output};

use floe_testkit::tool;

/// User Mode Linux; says so where it is missing.
pub(crate) fn user_mode_linux() -> Option<&'static Path> {
    let program = floe_vm::user_mode_linux();
    if program.is_none() {
        eprintln!("skipped: no User Mode Linux, or a processor with AMX, where it does not run");
    }
    program
}

/// Runs `linux-fields` with a program that calls everything clean.
fn fields_with_a_blind_checker(kernel: &Path, only: &str) -> Output {
    let keep = tool::scratch("floe-judge-").unwrap();
    Command::new(env!("CARGO_BIN_EXE_floe-vm"))
        .args([
            "linux-fields",
            "--profile",
            "ext4-1k",
            "--floe",
            "true",
            "--only",
            only,
            "--kernel",
        ])
        .arg(kernel)
        .arg("--keep")
        .arg(keep.path())
        .output()
        .unwrap()
}

#[test]
fn linux_refuses_a_spoilt_journal_inode_and_nothing_harmless() {
    if tool::missing() {
        return;
    }
    let Some(kernel) = user_mode_linux() else { return };
    let refused = fields_with_a_blind_checker(kernel, "<8> i_extra_isize=0xffff");
    let text = String::from_utf8_lossy(&refused.stdout);
    assert!(!refused.status.success(), "{text}");
    assert!(text.contains("FAULT ext4-1k <8> i_extra_isize=0xffff: Floe: clean; Linux:"), "{text}");
    let harmless = fields_with_a_blind_checker(kernel, "<8> i_atime");
    let text = String::from_utf8_lossy(&harmless.stdout);
    assert!(harmless.status.success(), "{text}");
    assert!(text.contains(" changed images in "), "{text}");
}
