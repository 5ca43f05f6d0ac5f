//! Runs the program under valgrind, which differs from the real machine: processes have no vDSO,
//! and the processor has fewer instructions. The detection of machine features must work there.

use std::process::Command;

use floe_testkit::tool;

#[test]
fn threads_start_under_valgrind() {
    if tool::missing() {
        return;
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: valgrind is not here");
        return;
    }
    let folder = tool::scratch("floe-valgrind-").unwrap();
    let path = folder.path().join("eight-groups.img");
    let mut mke2fs = tool::command("mke2fs");
    // Without checksums nothing says that tables are unused: there is something to read for each thread.
    mke2fs.args(["-q", "-F", "-t", "ext2", "-b", "1024", "-N", "16384"]).arg(&path).arg("64M");
    tool::run(&mke2fs, 60).unwrap().expect("mke2fs", &[0]).unwrap();
    for threads in ["1", "2", "5"] {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--quiet", "--error-exitcode=99"]).arg(env!("CARGO_BIN_EXE_floe"));
        valgrind.args(["check", "--threads", threads]).arg(&path);
        let ran = tool::run(&valgrind, 300).unwrap();
        ran.expect("floe under valgrind", &[0]).unwrap();
    }
}
