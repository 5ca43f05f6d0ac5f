//! The part of a guest's first process that all of them have in common: it mounts what programs want, loads modules,
//! works, says how that ended, and switches off.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, mount};
use rustix::system::RebootCommand;

use super::{MARK, MODULES};

/// `MODULE_INIT_COMPRESSED_FILE`: the kernel unpacks the module.
const COMPRESSED_FILE: i32 = 4;

/// Does the work of a guest, tells the program outside why if it fails, and ends the guest.
///
/// # Errors
/// This is no guest, which `chore` starts; or it cannot be switched off.
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

/// An error in one line, which is what the program outside reads at a time.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").replace('\n', " | ")
}

/// Ends the guest.
fn switch_off() -> Result<()> {
    rustix::system::reboot(RebootCommand::PowerOff).context("switching off")
}

/// Tells the program outside something.
pub(crate) fn say(what: &str) {
    println!("{MARK} {what}");
    // Nobody is left to whom it could be said that nothing can be said.
    let _ = std::io::stdout().flush();
}

/// Mounts what every program wants to have, and loads all modules of the root.
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
    // A module may need others that come later: again until nothing changes.
    loop {
        let before = waiting.len();
        waiting.retain(|path| load_module(path).is_err());
        if waiting.len() == before {
            break;
        }
    }
    for path in waiting {
        if let Err(error) = load_module(&path) {
            // It may be of no use for this kernel or processor.
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
