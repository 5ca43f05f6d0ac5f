//! The server in the background: started by the command that the user ran, which waits until the mount serves.
//!
//! A program without `unsafe` cannot fork, so the command runs itself again. The pipe that is the server's
//! standard output tells that it is ready; its end without that, that it failed.

use std::io::{Read, Write};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use floe_sync::Mutex;
use rustix::fs::{Mode, OFlags, open};

use crate::exit::Outcome;

/// What the server writes once it serves.
const READY: u8 = b'\n';
/// The system's log, and the priority of a warning from a daemon there.
const SYSTEM_LOG: &str = "/dev/log";
const WARNING: &str = "<28>";

/// Runs this program again with `arguments` as the server, and waits until it serves or fails. Its exit code is
/// the outcome.
pub(super) fn start(arguments: &[std::ffi::OsString]) -> Result<Outcome> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut server = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the server")?;
    let mut told = Vec::new();
    if let Some(mut output) = server.stdout.take() {
        let mut byte = [0];
        // An error is an end.
        while let Ok(1) = output.read(&mut byte) {
            told.push(byte[0]);
            if byte[0] == READY {
                return Ok(Outcome::CLEAN);
            }
        }
    }
    // It has said why.
    let status = server.wait().context("waiting for the server")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
    Ok(Outcome::own(code.unwrap_or(super::options::REFUSED)))
}

/// Leaves the terminal and its session, so that its end does not end the server.
pub(super) fn leave_session() -> Result<()> {
    // Fails only for the leader of a group, which has no session to leave.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/").context("cannot leave the folder")
}

/// Tells the waiting command that the mount serves, and closes the standard streams.
pub(super) fn tell_ready() -> std::io::Result<()> {
    let mut out = std::io::stdout();
    // The command may have been killed; the mount serves all the same.
    let _ = out.write_all(&[READY]).and_then(|()| out.flush());
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Where the server says what happens: standard error, or the system's log once there is nobody to see it.
#[derive(Debug)]
pub(super) struct Log {
    image: String,
    system: Option<UnixDatagram>,
    /// The last line. The same one again is not logged, so that a damaged file that is read for ever does not
    /// fill the log.
    last: Mutex<String>,
}

impl Log {
    /// A log of a server of this image.
    pub(super) fn new(image: String, background: bool) -> Self {
        let connect = || {
            let socket = UnixDatagram::unbound()?;
            socket.connect(SYSTEM_LOG)?;
            std::io::Result::Ok(socket)
        };
        let system = if background { connect().ok() } else { None };
        Self { image, system, last: Mutex::default() }
    }

    /// Adds a line.
    pub(super) fn line(&self, text: &str) {
        if let Ok(mut last) = self.last.lock() {
            if *last == text {
                return;
            }
            text.clone_into(&mut last);
        }
        let (image, process) = (&self.image, std::process::id());
        match &self.system {
            // Nobody is there to hear that the log is gone.
            Some(system) => {
                let line = format!("{WARNING}floe[{process}]: {image}: {text}");
                let _ = system.send(line.as_bytes());
            }
            None => eprintln!("floe: {image}: {text}"),
        }
    }
}
