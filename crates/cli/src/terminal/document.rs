//! `--json`: produces a document, however a run ends.

use std::ffi::OsString;
use std::io::{self, Write};

use serde_json::{Value, json};

use crate::exit::Outcome;

/// Version of the schema `floe-error`.
const VERSION: u32 = 1;

/// The command of a command line that requests JSON; found by the words alone, because an invalid
/// line cannot be parsed.
fn wanted(arguments: &[OsString]) -> Option<&str> {
    let words = arguments.iter().skip(1).map_while(|word| (word != "--").then_some(word));
    let mut words = words.filter_map(|word| word.to_str());
    let command = words.next()?;
    words.any(|word| word == "--json").then_some(command)
}

/// Writes an error document to `out`, if `arguments` request JSON. Nothing else was written before,
/// because reports are written as a whole at the end.
///
/// # Errors
/// A write error of `out`.
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

/// The document, in the schema of the command's own reports if it has one.
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

/// The document of a run ended by a signal; `None` without `--json`.
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
