//! Records of extended headers: `LENGTH KEY=VALUE` and a newline; LENGTH counts the whole record.

use crate::number;

/// A record; an empty value cancels the one of a global header.
pub(crate) type Record = (Vec<u8>, Vec<u8>);

/// The records of a header, in order; `None` if the header is damaged.
pub(crate) fn records(mut bytes: &[u8]) -> Option<Vec<Record>> {
    let mut records = Vec::new();
    // Some programs pad with zeroes.
    while !bytes.is_empty() && !bytes.iter().all(|&byte| byte == 0) {
        let blank = bytes.iter().take(20).position(|&byte| byte == b' ')?;
        let len = usize::try_from(number::decimal(&bytes[..blank])?).ok()?;
        let (record, rest) = bytes.split_at_checked(len)?;
        let record = record.get(blank + 1..)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|&byte| byte == b'=')?;
        records.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
        bytes = rest;
    }
    Some(records)
}

/// Adds a record.
pub(crate) fn push(into: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    // Blank, equals sign, newline, and the digits of the length itself.
    let rest = key.len() + value.len() + 3;
    let mut len = rest;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    into.extend(len.to_string().as_bytes());
    for part in [b" ", key, b"=", value, b"\n"] {
        into.extend(part);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn damaged_records_are_refused() {
        for text in ["5 a=b\n", "7 a=b\n", "6 ab\n\n", "x a=b\n", "6 a=bc", "3\n", "0 \n", "2 "] {
            assert_eq!(records(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(records(b"6 a=b\n\0\0\0"), Some(vec![(b"a".to_vec(), b"b".to_vec())]));
    }

    proptest! {
        #[test]
        fn records_survive(
            key in "[A-Za-z.]{1,40}",
            value in proptest::collection::vec(any::<u8>(), 0..1100),
        ) {
            let mut bytes = Vec::new();
            push(&mut bytes, key.as_bytes(), &value);
            push(&mut bytes, b"path", b"x");
            let expected =
                vec![(key.into_bytes(), value), (b"path".to_vec(), b"x".to_vec())];
            prop_assert_eq!(records(&bytes), Some(expected));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = records(&bytes);
        }
    }
}
