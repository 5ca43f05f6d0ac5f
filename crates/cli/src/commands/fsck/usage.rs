//! The usage and help text of e2fsck's command line.

use crate::e2fsck::table;

/// One line, for a wrong command line.
pub(super) fn usage_line(program: &str) -> String {
    format!("usage: {program} [-n | -y | -p] [-f] [options] device")
}

/// The help text, generated from the table of options.
pub(super) fn usage(program: &str) -> String {
    let mut text = format!(
        "{}\n\ne2fsck's command line. device: a path, LABEL=, UUID=, PARTLABEL= or PARTUUID=.\n\n",
        usage_line(program)
    );
    for flag in table::FLAGS {
        let letter = char::from(flag.letter);
        let value = flag.value.map(|value| format!(" {value}")).unwrap_or_default();
        text.push_str(&format!("  {:<15} {}\n", format!("-{letter}{value}"), flag.help));
    }
    text.push_str("\nextended options:\n");
    for option in table::EXTENDED {
        let value = option.value.map(|value| format!("={value}")).unwrap_or_default();
        text.push_str(&format!("  {:<24} {}\n", format!("{}{value}", option.name), option.help));
    }
    text.push_str(
        "\nexit codes: 0 clean, 1 repaired, 2 repaired, reboot required, 4 damage left, 8 failed,\n\
         16 usage error, 32 cancelled by the user\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_names_every_option() {
        let text = usage("fsck.ext4");
        for flag in table::FLAGS {
            assert!(text.contains(&format!("  -{} ", char::from(flag.letter))), "{}", flag.letter);
        }
        for option in table::EXTENDED {
            assert!(text.contains(option.name), "{}", option.name);
        }
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    }
}
