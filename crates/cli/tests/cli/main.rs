//! The `floe` command on real images and on bad input.

#![allow(clippy::unwrap_used, clippy::panic)] // a test may

mod bad_input;
mod commands;
mod docs;
mod fsck;
mod images;
mod repair;
mod repair_undo;
mod schema;
mod signals;
mod undo;

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use floe_testkit::{Image, Profile, build, tool};

/// What a run of `floe` said and how it ended.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn floe<S: AsRef<OsStr>>(arguments: &[S]) -> Ran {
    floe_env(arguments, &[])
}

/// Runs with variables in its environment.
fn floe_env<S: AsRef<OsStr>>(arguments: &[S], variables: &[(&str, &str)]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(arguments)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    // A panic would be 101, a signal has no code: neither may happen on any input.
    let code = output.status.code().expect("floe was killed by a signal");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_ne!(code, 101, "floe panicked: {err}");
    Ran { code, out, err }
}

/// Runs with a path as the last argument.
fn floe_on(arguments: &[&str], path: &Path) -> Ran {
    let mut all: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
    all.push(path.as_os_str());
    floe(&all)
}

/// A populated image of a profile, or a printed reason why this test is skipped.
fn image(profile: &str) -> Option<Image> {
    if let Err(reason) = tool::available() {
        eprintln!("skipped: {reason}");
        return None;
    }
    Some(build::base(Profile::by_name(profile).unwrap()).unwrap())
}
