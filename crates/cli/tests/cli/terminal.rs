//! `floe` at a terminal, simulated by script(1).

use std::io::{Read, Write};
use std::process::{Command, Stdio};

/// Runs `floe` with these arguments at a terminal, and types the result of `answer` for each
/// question. Returns the exit code and the output; without script, prints a message and returns
/// `None`.
pub(crate) fn at_a_terminal(
    arguments: &[&str],
    variables: &[(&str, &str)],
    mut answer: impl FnMut(&str) -> String,
) -> Option<(i32, String)> {
    let line = format!("{} {}", env!("CARGO_BIN_EXE_floe"), arguments.join(" "));
    let child = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("skipped: there is no script(1)");
        return None;
    };
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut text, mut bytes) = (String::new(), [0; 4096]);
    loop {
        let len = output.read(&mut bytes).unwrap();
        if len == 0 {
            break;
        }
        text.push_str(&String::from_utf8_lossy(&bytes[..len]));
        if text.ends_with("? for help] ") {
            let typed = answer(text.lines().last().unwrap_or_default());
            writeln!(input, "{typed}").unwrap();
        }
    }
    drop(input);
    Some((child.wait().unwrap().code().unwrap(), text))
}
