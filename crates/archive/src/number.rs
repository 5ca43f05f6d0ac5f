//! Numbers and times as headers store them.

use crate::Timestamp;

/// Digits of a nanosecond fraction.
const NANO_DIGITS: usize = 9;

/// A numeric field of a header: octal text, or, with the top bit set, a big-endian number in two's
/// complement.
pub(crate) fn field(bytes: &[u8]) -> Option<i64> {
    match bytes.split_first() {
        Some((&first, rest)) if first & 0x80 != 0 => binary(first, rest),
        _ => octal(bytes).and_then(|value| i64::try_from(value).ok()),
    }
}

fn binary(first: u8, rest: &[u8]) -> Option<i64> {
    // The top bit selects the binary form; the next one is the sign.
    let negative = first & 0x40 != 0;
    let start = i128::from(first & 0x3f) - if negative { 0x40 } else { 0 };
    let value = rest.iter().try_fold(start, |value, &byte| {
        value.checked_mul(256).and_then(|value| value.checked_add(i128::from(byte)))
    })?;
    i64::try_from(value).ok()
}

/// Octal digits between blanks; an empty field is 0.
fn octal(bytes: &[u8]) -> Option<u64> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | 0);
    let start = bytes.iter().position(|byte| !is_blank(byte)).unwrap_or(bytes.len());
    let digits = &bytes[start..];
    let len = digits.iter().position(is_blank).unwrap_or(digits.len());
    digits[..len].iter().try_fold(0u64, |value, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 8)?;
        value.checked_mul(8)?.checked_add(u64::from(digit))
    })
}

/// A number of decimal digits only.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |value, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Seconds with an optional sign and fraction, as PAX stores times. Digits beyond nanoseconds are
/// dropped.
pub(crate) fn time(text: &[u8]) -> Option<Timestamp> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let point = text.iter().position(|&byte| byte == b'.').unwrap_or(text.len());
    let seconds = i64::try_from(decimal(&text[..point])?).ok()?;
    let mut nanoseconds = 0u32;
    let fraction = text.get(point + 1..).unwrap_or(&[]);
    for at in 0..NANO_DIGITS {
        let digit = fraction.get(at).map_or(Some(0), |byte| byte.checked_sub(b'0'))?;
        nanoseconds = nanoseconds * 10 + u32::from(if digit < 10 { digit } else { return None });
    }
    Some(match (negative, nanoseconds) {
        (false, _) => Timestamp { seconds, nanoseconds },
        (true, 0) => Timestamp { seconds: -seconds, nanoseconds: 0 },
        (true, _) => Timestamp { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
    })
}

/// The shortest text of a time.
pub(crate) fn time_text(time: Timestamp) -> String {
    let (seconds, nanoseconds) = (time.seconds, time.nanoseconds.min(999_999_999));
    if nanoseconds == 0 {
        return seconds.to_string();
    }
    let (sign, seconds, nanoseconds) = match seconds {
        0.. => ("", seconds, nanoseconds),
        _ => ("-", -(seconds + 1), 1_000_000_000 - nanoseconds),
    };
    let fraction = format!("{nanoseconds:09}");
    format!("{sign}{seconds}.{}", fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_are_octal_or_binary() {
        assert_eq!(field(b"0000644\0"), Some(0o644));
        assert_eq!(field(b"   644 x"), Some(0o644));
        assert_eq!(field(b"\0\0\0\0"), Some(0));
        assert_eq!(field(b"89"), None);
        assert_eq!(field(&[0x80, 0, 0, 2, 0, 0, 0, 0]), Some(1 << 33));
        assert_eq!(field(&[0xff; 12]), Some(-1));
        assert_eq!(field(&[0xbf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), None);
        assert_eq!(field(b"77777777777777777777777"), None);
    }

    #[test]
    fn times_have_fractions_and_signs() {
        let at = |seconds, nanoseconds| Some(Timestamp { seconds, nanoseconds });
        assert_eq!(time(b"12.5"), at(12, 500_000_000));
        assert_eq!(time(b"-0.25"), at(-1, 750_000_000));
        assert_eq!(time(b"-3"), at(-3, 0));
        assert_eq!(time(b"1.0000000019"), at(1, 1));
        for text in [&b""[..], b"x", b".5", b"1.x", b"1e5", b"99999999999999999999"] {
            assert_eq!(time(text), None);
        }
    }

    proptest! {
        #[test]
        fn times_survive(seconds in -1i64 << 40..1 << 40, nanoseconds in 0u32..1_000_000_000) {
            let before = Timestamp { seconds, nanoseconds };
            prop_assert_eq!(time(time_text(before).as_bytes()), Some(before));
        }
    }
}
