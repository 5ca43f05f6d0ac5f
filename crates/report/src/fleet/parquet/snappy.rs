//! Unpacks Snappy's raw format (literals and copies of earlier bytes). Source: its format description.
//!
//! Own, because it is a page long, and the crate's licence asks for more than those that `deny.toml` allows.

/// Unpacks `packed`, which must give `size` bytes; `None` if it does not.
pub(super) fn unpack(packed: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut input = packed;
    if varint(&mut input)? != size as u64 {
        return None;
    }
    let mut out = Vec::new();
    while let Some((&tag, rest)) = input.split_first() {
        input = rest;
        let upper = usize::from(tag >> 2);
        let (len, offset) = match tag & 3 {
            0 => {
                let len = match upper {
                    0..60 => upper,
                    _ => number(&mut input, upper - 59)?,
                };
                let literal = input.get(..=len)?;
                if size - out.len() < literal.len() {
                    return None;
                }
                out.extend_from_slice(literal);
                input = &input[literal.len()..];
                continue;
            }
            1 => ((upper & 7) + 4, (upper >> 3) << 8 | number(&mut input, 1)?),
            2 => (upper + 1, number(&mut input, 2)?),
            _ => (upper + 1, number(&mut input, 4)?),
        };
        let start = out.len().checked_sub(offset).filter(|_| offset > 0)?;
        if size - out.len() < len {
            return None;
        }
        // It may overlap with itself: a copy from one byte before repeats that byte.
        for at in start..start + len {
            out.push(out[at]);
        }
    }
    (out.len() == size).then_some(out)
}

/// A number in so many bytes, the lowest first.
fn number(input: &mut &[u8], len: usize) -> Option<usize> {
    let bytes = input.get(..len)?;
    *input = &input[len..];
    Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte)))
}

fn varint(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let byte = number(input, 1)? as u64;
        value |= (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_copies_are_unpacked() {
        // "abcd", 6 bytes from 2 before, 5 from 1 before.
        let packed = [15, 12, b'a', b'b', b'c', b'd', 2 << 2 | 1, 2, 4 << 2 | 2, 1, 0];
        assert_eq!(unpack(&packed, 15).unwrap(), b"abcdcdcdcdddddd");
        for len in 0..packed.len() {
            assert_eq!(unpack(&packed[..len], 15), None, "{len}");
        }
        assert_eq!(unpack(&packed, 14), None);
        // Long forms of a literal's length, and of an offset.
        let long = [[70, 60 << 2, 69].as_slice(), &[7; 70]].concat();
        assert_eq!(unpack(&long, 70).unwrap(), [7; 70]);
        assert_eq!(unpack(&[5, 0, b'x', 3 << 2 | 3, 1, 0, 0, 0], 5).unwrap(), b"xxxxx");
        // Before the start, from itself, and behind the end.
        for bad in [[5, 0, b'x', 3 << 2 | 2, 2, 0], [5, 0, b'x', 3 << 2 | 2, 0, 0]] {
            assert_eq!(unpack(&bad, 5), None);
        }
        assert_eq!(unpack(&[4, 0, b'x', 3 << 2 | 2, 1, 0], 4), None);
        assert_eq!(unpack(&[0], 0).unwrap(), b"");
    }
}
