//! Runs mke2fs, debugfs and dumpe2fs, which these tests compare Floe with.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The tool's path, or `None` (with a printed reason) where e2fsprogs is not installed.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let found = ["/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"]
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.exists());
    if found.is_none() {
        eprintln!("skipped: {name} (e2fsprogs) is not installed");
    }
    found
}

/// Makes an image of `size` (in mke2fs's notation) with `args`. Panics if mke2fs fails.
pub(crate) fn mke2fs(mke2fs: &Path, image: &Path, args: &str, size: &str) {
    let output = Command::new(mke2fs)
        .env("MKE2FS_CONFIG", "/dev/null")
        .args(["-q", "-F"])
        .args(args.split_whitespace())
        .arg(image)
        .arg(size)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "mke2fs {args}: {errors}");
}

/// Feeds `script` to debugfs (writing allowed) and returns what it printed.
pub(crate) fn debugfs(debugfs: &Path, image: &Path, script: &[u8]) -> Vec<u8> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(script).unwrap();
    let output = Command::new(debugfs)
        .args(["-w", "-f"])
        .arg(file.path())
        .arg(image)
        .stderr(Stdio::null())
        .output()
        .unwrap();
    output.stdout
}
