//! The common part of a guest's first process: mounts the usual file systems, loads modules, does
//! its work, reports the result, and shuts down.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, mount};
use rustix::system::RebootCommand;

use super::{MARK, MODULES};

/// `MODULE_INIT_COMPRESSED_FILE`: the kernel unpacks the module.
const COMPRESSED_FILE: i32 = 4;

/// Does the work of a guest, reports any error to the program outside, and shuts the guest down.
///
/// # Errors
/// This is not a guest, which `chore` would start; or it cannot be shut down.
pub(crate) fn run(chore: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    ensure!(
        std::process::id() == 1,
        "this is the first process of a guest; see cargo xtask {chore} --help"
    );
    if let Err(error) = prepare().and_then(|()| work()) {
        say(&format!("failed {}", one_line(&error)));
    }
    switch_off()
}

/// An error on a single line, because the program outside reads lines.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").replace('\n', " | ")
}

/// Shuts the guest down.
fn switch_off() -> Result<()> {
    rustix::system::reboot(RebootCommand::PowerOff).context("switching off")
}

/// Sends a message to the program outside.
pub(crate) fn say(what: &str) {
    println!("{MARK} {what}");
    // There is no way left to report a failure of the output.
    let _ = std::io::stdout().flush();
}

/// Mounts the usual file systems, and loads all modules of the root.
fn prepare() -> Result<()> {
    for (kind, place) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        mount(kind, place, kind, MountFlags::empty(), None)
            .with_context(|| format!("mounting {place}"))?;
    }
    let mut waiting: Vec<_> = match fs::read_dir(Path::new("/").join(MODULES)) {
        Ok(files) => files.flatten().map(|file| file.path()).collect(),
        Err(_) => Vec::new(),
    };
    waiting.sort();
    // A module may depend on later ones, so repeat until nothing changes.
    loop {
        let before = waiting.len();
        waiting.retain(|path| load_module(path).is_err());
        if waiting.len() == before {
            break;
        }
    }
    for path in waiting {
        if let Err(error) = load_module(&path) {
            // The module may not suit this kernel or processor.
            say(&format!("no module {}: {error:#}", path.display()));
        }
    }
    Ok(())
}

fn load_module(path: &Path) -> Result<()> {
    let file = fs::File::open(path)?;
    let flags = if path.extension() == Some("ko".as_ref()) { 0 } else { COMPRESSED_FILE };
    Ok(rustix::system::finit_module(&file, c"", flags)?)
}
