//! The 512 bytes of a header.

use crate::number;

/// Bytes of a header.
pub(crate) const SIZE: usize = 512;
/// Position of the checksum.
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// A header with a valid checksum.
pub(crate) struct Header<'a>(&'a [u8; SIZE]);

/// The meaning of 512 bytes.
pub(crate) enum Block<'a> {
    Header(Header<'a>),
    /// Zeroes: the end of the archive.
    End,
    /// Neither a header nor zeroes.
    Broken,
}

impl<'a> Header<'a> {
    pub(crate) fn read(bytes: &'a [u8; SIZE]) -> Block<'a> {
        if bytes.iter().all(|&byte| byte == 0) {
            return Block::End;
        }
        let stored = number::field(&bytes[CHECKSUM]);
        let signed = bytes.iter().enumerate().map(|(at, &byte)| match at {
            at if CHECKSUM.contains(&at) => i64::from(b' '),
            _ => i64::from(byte.cast_signed()),
        });
        // Some old programs added the bytes as signed characters.
        let fits = stored == Some(sum(bytes)) || stored == Some(signed.sum());
        if fits { Block::Header(Self(bytes)) } else { Block::Broken }
    }

    fn text(&self, range: std::ops::Range<usize>) -> &'a [u8] {
        let field = &self.0[range];
        let len = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
        &field[..len]
    }

    pub(crate) fn kind(&self) -> u8 {
        self.0[156]
    }

    /// The name, with its prefix in a ustar header.
    pub(crate) fn path(&self) -> Vec<u8> {
        let (prefix, name) = (self.text(345..500), self.text(0..100));
        if self.is_posix() && !prefix.is_empty() {
            return [prefix, b"/", name].concat();
        }
        name.to_vec()
    }

    pub(crate) fn link(&self) -> Vec<u8> {
        self.text(157..257).to_vec()
    }

    pub(crate) fn mode(&self) -> Option<i64> {
        number::field(&self.0[100..108])
    }

    pub(crate) fn uid(&self) -> Option<i64> {
        number::field(&self.0[108..116])
    }

    pub(crate) fn gid(&self) -> Option<i64> {
        number::field(&self.0[116..124])
    }

    pub(crate) fn size(&self) -> Option<i64> {
        number::field(&self.0[124..136])
    }

    pub(crate) fn mtime(&self) -> Option<i64> {
        number::field(&self.0[136..148])
    }

    /// Major and minor number; old archives have none.
    pub(crate) fn device(&self) -> Option<(i64, i64)> {
        if &self.0[257..262] != b"ustar" {
            return Some((0, 0));
        }
        Some((number::field(&self.0[329..337])?, number::field(&self.0[337..345])?))
    }

    /// The four entries of a sparse map, whether more follow, and the size (GNU, type `S`).
    pub(crate) fn sparse(&self) -> (&'a [u8], bool, Option<i64>) {
        (&self.0[386..482], self.0[482] != 0, number::field(&self.0[483..495]))
    }

    fn is_posix(&self) -> bool {
        &self.0[257..263] == b"ustar\0"
    }
}

/// The sum of a header, with its checksum field counted as blanks.
pub(crate) fn sum(bytes: &[u8; SIZE]) -> i64 {
    let all: i64 = bytes.iter().map(|&byte| i64::from(byte)).sum();
    let own: i64 = bytes[CHECKSUM].iter().map(|&byte| i64::from(byte)).sum();
    all - own + 8 * i64::from(b' ')
}
