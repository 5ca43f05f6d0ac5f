//! The background server: started by the user's command, which waits until the mount serves
//! requests.
//!
//! A program without `unsafe` cannot fork, so the command executes itself again. The pipe at the
//! server's standard output reports readiness; its end without a report means failure.

use std::io::{Read, Write};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use floe_sync::Mutex;
use rustix::fs::{Mode, OFlags, open};

use super::address_space;
use crate::exit::Outcome;
use crate::message::message;

/// Byte written by the server when it is ready.
const READY: u8 = b'\n';
/// The system log's socket, and the priority of a daemon's warning.
const SYSTEM_LOG: &str = "/dev/log";
const WARNING: &str = "<28>";

/// Runs this program again with `arguments` as the server, and waits until it serves or fails.
/// Returns its exit code.
pub(super) fn start(arguments: &[std::ffi::OsString]) -> Result<Outcome> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut server = Command::new(program)
        .args(arguments)
        .envs(address_space::environment())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the server")?;
    let mut told = Vec::new();
    if let Some(mut output) = server.stdout.take() {
        let mut byte = [0];
        // Treat an error like the end of the stream.
        while let Ok(1) = output.read(&mut byte) {
            told.push(byte[0]);
            if byte[0] == READY {
                return Ok(Outcome::CLEAN);
            }
        }
    }
    // The server has printed the reason.
    let status = server.wait().context("waiting for the server")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
    Ok(Outcome::own(code.unwrap_or(super::options::REFUSED)))
}

/// Detaches from the terminal's session, whose end would otherwise kill the server.
pub(super) fn leave_session() -> Result<()> {
    // Fails only for a process group leader, which needs no new session.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/").context("cannot leave the folder")
}

/// Reports readiness to the waiting command, and closes the standard streams.
pub(super) fn tell_ready() -> std::io::Result<()> {
    let mut out = std::io::stdout();
    // The mount serves even if the command was killed.
    let _ = out.write_all(&[READY]).and_then(|()| out.flush());
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Destination of the server's messages: standard error, or the system log in the background.
#[derive(Debug)]
pub(super) struct Log {
    image: String,
    system: Option<UnixDatagram>,
    /// The last line. Repetitions are not logged, so that repeated reads of a damaged file do not
    /// flood the log.
    last: Mutex<String>,
}

impl Log {
    /// The log of a server for this image.
    pub(super) fn new(image: String, background: bool) -> Self {
        let connect = || {
            let socket = UnixDatagram::unbound()?;
            socket.connect(SYSTEM_LOG)?;
            std::io::Result::Ok(socket)
        };
        let system = if background { connect().ok() } else { None };
        Self { image, system, last: Mutex::default() }
    }

    /// Logs a line.
    pub(super) fn line(&self, text: &str) {
        if let Ok(mut last) = self.last.lock() {
            if *last == text {
                return;
            }
            text.clone_into(&mut last);
        }
        let (image, process) = (&self.image, std::process::id());
        match &self.system {
            // A failing log cannot be reported.
            Some(system) => {
                let line = format!("{WARNING}floe[{process}]: {image}: {text}");
                let _ = system.send(line.as_bytes());
            }
            None => message!("floe: {image}: {text}"),
        }
    }
}
