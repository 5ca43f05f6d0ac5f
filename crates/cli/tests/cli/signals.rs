//! Ctrl-C and other signals.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};

use super::image;

/// Starts `floe check --json` of an image with so much damage that the report exceeds a pipe
/// buffer, and waits until it starts to write: it cannot end before the pipe is read.
fn stuck() -> Option<(floe_testkit::Image, Child)> {
    let image = image("ext2-1k")?;
    // Inodes of the first group, after the bitmaps: all of them wrong.
    let bytes = image.size() as usize;
    let garbage: Vec<u8> = (0..bytes / 2).map(|at| (at.wrapping_mul(31) >> 3) as u8 | 1).collect();
    image.write(12 * 1024, &garbage[..200 * 1024]).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(["check", "--json", "--verbose"])
        .arg(image.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    Some((image, child))
}

fn send(signal: &str, child: &Child) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Whether this process was started with a signal ignored (by `nohup`, for example), which its
/// children inherit.
fn is_ignored(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (number - 1) & 1 == 1
}

#[test]
fn a_signal_ends_a_check_with_its_own_exit_code() {
    for (signal, number) in [("-INT", 2), ("-TERM", 15), ("-HUP", 1)] {
        if is_ignored(number) {
            eprintln!("skipped: {signal} is ignored here");
            continue;
        }
        let Some((image, mut child)) = stuck() else { return };
        let before = fs::read(image.path()).unwrap();
        assert!(child.try_wait().unwrap().is_none(), "the report is too short for this test");
        send(signal, &child);
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(32), "{signal}");
        // A message about the work; and no second document after the start of the report.
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(said.contains("interrupted; the check is not complete"), "{said}");
        assert!(said.contains("nothing was written"), "{said}");
        assert!(!String::from_utf8_lossy(&ended.stdout).contains("interrupted; "));
        assert!(fs::read(image.path()).unwrap() == before);
    }
}

/// Before any report exists, --json gives a document.
#[test]
fn an_interrupted_check_leaves_a_document() {
    if is_ignored(15) {
        eprintln!("skipped: SIGTERM is ignored here");
        return;
    }
    let Some(image) = image("ext2-1k") else { return };
    let folder = floe_testkit::tool::scratch("floe-signals-").unwrap();
    let (page, device) = (folder.path().join("page"), image.path());
    let made = Command::new("mkfifo").arg(&page).status();
    assert!(made.is_ok_and(|made| made.success()));
    // Pages are written before the report, and opening a pipe blocks without a reader.
    let child = Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(["check", "--json", "--html"])
        .arg(&page)
        .arg(device)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Until its signal handlers are installed and it blocks.
    let waits = format!("/proc/{}/wchan", child.id());
    for _ in 0..500 {
        std::thread::sleep(std::time::Duration::from_millis(10));
        let waiting = fs::read_to_string(&waits).unwrap_or_default();
        if waiting.contains("fifo")
            || waiting.contains("pipe")
            || waiting.contains("wait_for_partner")
        {
            break;
        }
    }
    send("-TERM", &child);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(32));
    let value: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!((&value["verdict"], &value["exit_code"]), (&"incomplete".into(), &32.into()));
    assert!(value["error"].as_str().unwrap().contains("interrupted"), "{value:#}");
}

#[test]
fn signals_that_were_ignored_before_stay_ignored() {
    let Some(image) = image("ext2-1k") else { return };
    // A shell that ignores HUP executes floe, and sends it a HUP before it starts to check: through
    // the shell, which has the same process id as floe after `exec`.
    let script = "trap '' HUP; exec \"$0\" check --json --verbose \"$1\"";
    let garbage: Vec<u8> =
        (0..200 * 1024u32).map(|at| (at.wrapping_mul(31) >> 3) as u8 | 1).collect();
    image.write(12 * 1024, &garbage).unwrap();
    let mut child = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_floe")])
        .arg(image.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut first = [0];
    out.read_exact(&mut first).unwrap();
    assert!(child.try_wait().unwrap().is_none(), "the report is too short for this test");
    send("-HUP", &child);
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
    assert!(rest.len() > 65536, "{} bytes", rest.len());
    let code = child.wait().unwrap().code();
    assert!(matches!(code, Some(4 | 8 | 12)), "{code:?}");
}
