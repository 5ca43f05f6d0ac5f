//! Byte sizes on the command line: every such option accepts units.

/// The unit letters, each 1024 times the previous one.
const UNITS: &str = "KMGTPE";

/// Parses a number of bytes, optionally with a unit K, M, G, T, P or E (also KiB or KB, in any
/// case), and with a decimal point if the result is a whole number: `4096`, `64K`, `1.5GiB`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || "is not a number of bytes, such as 4096, 64K or 1.5G".to_owned();
    let number = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let unit = text[number.len()..].to_ascii_uppercase();
    let letter = unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit);
    let power = match (letter.len(), UNITS.find(letter)) {
        (0, _) => 0,
        (1, Some(place)) => place + 1,
        _ => return Err(wrong()),
    };
    let unit_bytes = 1u128 << (10 * power);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    let ends_in_point = number.ends_with('.');
    if whole.is_empty() || ends_in_point || !is_number(whole) || !is_number(fraction) {
        return Err(wrong());
    }
    // A longer fraction cannot give a whole number of bytes.
    if whole.len() > 20 || fraction.len() > 15 {
        return Err("has too many digits".to_owned());
    }
    let scale = 10u128.pow(fraction.len() as u32);
    let digits: u128 = format!("{whole}{fraction}").parse().map_err(|_| wrong())?;
    let scaled = digits.checked_mul(unit_bytes).ok_or("is too large")?;
    if !scaled.is_multiple_of(scale) {
        return Err("is not a whole number of bytes".to_owned());
    }
    u64::try_from(scaled / scale).map_err(|_| "is too large".to_owned())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::error::ErrorKind;
    use clap::{Command, CommandFactory};

    use super::bytes;
    use crate::Cli;

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes("12"), Ok(12));
        assert_eq!(bytes("64K"), Ok(65536));
        assert_eq!(bytes("1.5k"), Ok(1536));
        assert_eq!(bytes("0.5M"), Ok(512 << 10));
        for same in ["64MiB", "64m", "64mb", "65536K"] {
            assert_eq!(bytes(same), Ok(64 << 20), "{same}");
        }
        assert_eq!(bytes("15E"), Ok(15 << 60));
        for wrong in ["1X", "K", "", "-1", "1.K", ".5K", "1e3", "0x10", "1.1", "4 K", "16E", "1KM"]
        {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        assert!(bytes("99999999999T").is_err() && bytes(&"9".repeat(60)).is_err());
    }

    /// Every option for a number of bytes, in every command.
    #[test]
    fn every_option_for_bytes_takes_units() {
        let mut floe = Cli::command();
        floe.build();
        let mut options = 0;
        for command in floe.get_subcommands() {
            options += try_options(command);
        }
        assert!(options >= 10, "only {options}");
    }

    fn try_options(command: &Command) -> usize {
        let mut options = 0;
        for option in command.get_arguments().filter(|option| option.get_action().takes_values()) {
            let (Some(long), Some(names)) = (option.get_long(), option.get_value_names()) else {
                continue;
            };
            // Passed to lvcreate, which has its own units.
            if !names.iter().any(|name| ["BYTES", "SIZE"].contains(&name.as_str()))
                || long == "snapshot-size"
            {
                continue;
            }
            let try_value = |value: &str| {
                let line =
                    ["floe", command.get_name(), &format!("--{long}={value}"), "x", "y", "z"];
                let parsed = Cli::parse_files(&line.map(OsString::from));
                parsed.map(drop).map_err(|error| error.kind())
            };
            // Other errors concern the command line, such as too many words, but not this value.
            let refused = |result: Result<(), ErrorKind>| {
                matches!(result, Err(ErrorKind::ValueValidation | ErrorKind::InvalidValue))
            };
            assert!(!refused(try_value("4K")), "{} --{long}=4K", command.get_name());
            assert!(refused(try_value("4X")), "{} --{long}=4X", command.get_name());
            options += 1;
        }
        options
    }
}
