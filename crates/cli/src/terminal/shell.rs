//! Quotes commands printed for people, so that they can be pasted into a shell.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes without special meaning in any shell.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/._-+:,@%".contains(&byte)
}

/// Quotes a word for a shell; words that are not UTF-8 as `$'...'` (POSIX 2024, and most shells
/// before).
pub(crate) fn quoted(word: &OsStr) -> String {
    match word.to_str() {
        Some(text) if !text.is_empty() && text.bytes().all(is_plain) => text.to_owned(),
        Some(text) if !text.chars().any(char::is_control) => {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
        _ => {
            let mut text = "$'".to_owned();
            for &byte in word.as_bytes() {
                // Writing to a String cannot fail.
                let _ = match byte {
                    b'\'' | b'\\' => write!(text, "\\{}", char::from(byte)),
                    b' '..=b'~' => write!(text, "{}", char::from(byte)),
                    _ => write!(text, "\\{byte:03o}"),
                };
            }
            text + "'"
        }
    }
}

/// Quotes a file name, so that it is not taken for an option.
pub(crate) fn quoted_path(path: &Path) -> String {
    if path.as_os_str().as_bytes().starts_with(b"-") {
        return quoted(Path::new(".").join(path).as_os_str());
    }
    quoted(path.as_os_str())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_what_was_meant() {
        for word in [
            &b"plain/name-1.img"[..],
            b"two words",
            b"it's",
            b"$(reboot) `reboot` \"$HOME\" * ~ ; & | # !",
            b"",
            b"line\nbreak",
            b"no text \xff\xfe 'x' \\ 7",
            "gr\u{fc}n".as_bytes(),
        ] {
            let line = format!("printf %s {}", quoted(OsStr::from_bytes(word)));
            let said = Command::new("bash").args(["-c", &line]).output().unwrap();
            assert_eq!(said.stdout, word, "{line}");
        }
        assert_eq!(quoted_path(Path::new("-rf")), "./-rf");
        assert_eq!(quoted(OsStr::new("disk.img")), "disk.img");
    }
}
