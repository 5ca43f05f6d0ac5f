//! `--json`: a document, however a run ends.

use std::ffi::OsString;
use std::io::{self, Write};

use serde_json::{Value, json};

use crate::exit::Outcome;

/// Number of the schema `floe-error`.
const VERSION: u32 = 1;

/// The command that a line calls, and whether it asks for JSON; by the words alone, since a wrong line has
/// nothing else.
fn wanted(arguments: &[OsString]) -> Option<&str> {
    let words = arguments.iter().skip(1).map_while(|word| (word != "--").then_some(word));
    let mut words = words.filter_map(|word| word.to_str());
    let command = words.next()?;
    words.any(|word| word == "--json").then_some(command)
}

/// Writes what went wrong to `out`, if `arguments` ask for JSON. Nothing else was written then: reports are
/// written whole, at the end.
///
/// # Errors
/// What `out` said.
pub(crate) fn of_error(
    out: &mut impl Write,
    arguments: &[OsString],
    device: &str,
    error: &str,
    outcome: Outcome,
) -> io::Result<()> {
    match wanted(arguments) {
        Some(command) => writeln!(out, "{:#}", value(command, device, error, outcome.code())),
        None => Ok(()),
    }
}

/// The document, in the schema of the command's own reports where it has one.
fn value(command: &str, device: &str, error: &str, exit_code: u8) -> Value {
    match command {
        "check" => floe_report::json::failure(device, error, &[], exit_code),
        "repair" => floe_report::repair::json::failure(device, error, &[], exit_code),
        _ => json!({
            "schema": "floe-error",
            "version": VERSION,
            "floe": env!("CARGO_PKG_VERSION"),
            "command": command,
            "exit_code": exit_code,
            "error": error,
        }),
    }
}

/// The document of a run that a signal ended; `None` without `--json`.
pub(crate) fn of_signal(error: &str, exit_code: u8) -> Option<String> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    wanted(&arguments).map(|command| format!("{:#}", value(command, "", error, exit_code)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_asks_gets_a_document() {
        let said = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let mut out = Vec::new();
            of_error(&mut out, &words, "x", "why", Outcome::FAILED).unwrap();
            serde_json::from_slice::<Value>(&out).ok()
        };
        for (line, schema) in [
            ("floe check --json x", "floe-check"),
            ("floe repair x --json", "floe-repair"),
            ("floe info --json x", "floe-error"),
        ] {
            let value = said(line).unwrap();
            assert_eq!(value["schema"], schema, "{line}");
            assert_eq!((&value["error"], &value["exit_code"]), (&json!("why"), &json!(8)));
        }
        for line in ["floe check x", "floe check -- --json", "floe", "floe --json"] {
            assert!(said(line).is_none(), "{line}");
        }
    }
}
