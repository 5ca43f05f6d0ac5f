//! Block devices for tests: loop devices over files.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// A loop device, detached on drop.
pub(crate) struct Loop(String);

impl Loop {
    /// Attaches a file, with further options of losetup(8). `None`, with a printed reason for
    /// skipping the test, where there are no loop devices.
    pub(crate) fn over(file: &Path, options: &[&str]) -> Option<Self> {
        let made =
            Command::new("losetup").args(options).args(["--find", "--show"]).arg(file).output();
        let Some(made) = made.ok().filter(|made| made.status.success()) else {
            // Written to standard error directly, so that the harness does not capture it.
            let _ = writeln!(std::io::stderr(), "skipped: there are no loop devices here");
            return None;
        };
        Some(Self(String::from_utf8(made.stdout).unwrap().trim().to_owned()))
    }

    /// The path of the device.
    pub(crate) fn name(&self) -> &str {
        &self.0
    }
}

impl AsRef<OsStr> for Loop {
    fn as_ref(&self) -> &OsStr {
        self.0.as_ref()
    }
}

impl AsRef<Path> for Loop {
    fn as_ref(&self) -> &Path {
        self.0.as_ref()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let freed = Command::new("losetup").args(["--detach", &self.0]).status();
        // A second panic would end the program without a message of the first.
        if !std::thread::panicking() {
            assert!(freed.is_ok_and(|status| status.success()), "{} is still attached", self.0);
        }
    }
}
