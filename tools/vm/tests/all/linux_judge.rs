//! The Linux judge must accept undamaged images, and refuse those that it cannot mount. Needs User
//! Mode Linux; the test is skipped without it.

use std::path::Path;
use std::process::{Command, Output};

use floe_testkit::tool;

pub(crate) const USER_MODE_LINUX: &str = "/usr/bin/linux.uml";

/// Whether User Mode Linux is installed and runs: Debian's does not start on processors with registers for tiles.
pub(crate) fn user_mode_runs() -> bool {
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has_tiles = processors.split_whitespace().any(|word| word == "amx_tile");
    let runs = Path::new(USER_MODE_LINUX).exists() && !has_tiles;
    if !runs {
        eprintln!("skipped: no {USER_MODE_LINUX}, or a processor with AMX");
    }
    runs
}

/// Runs `linux-fields` with a program that calls everything clean.
fn fields_with_a_blind_checker(only: &str) -> Output {
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
        .args([USER_MODE_LINUX, "--keep"])
        .arg(keep.path())
        .output()
        .unwrap()
}

#[test]
fn linux_refuses_a_spoilt_journal_inode_and_nothing_harmless() {
    if tool::missing() || !user_mode_runs() {
        return;
    }
    let refused = fields_with_a_blind_checker("<8> i_extra_isize=0xffff");
    let text = String::from_utf8_lossy(&refused.stdout);
    assert!(!refused.status.success(), "{text}");
    assert!(text.contains("FAULT ext4-1k <8> i_extra_isize=0xffff: Floe: clean; Linux:"), "{text}");
    let harmless = fields_with_a_blind_checker("<8> i_atime");
    let text = String::from_utf8_lossy(&harmless.stdout);
    assert!(harmless.status.success(), "{text}");
    assert!(text.contains(" changed images in "), "{text}");
}
