//! Consecutive gzip members as one stream, which zeroes may follow, as where tapes or block devices were padded.
//! Source: RFC 1952; gzip itself ignores such zeroes.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

/// A stream of members, unpacked.
pub(super) struct Members<R> {
    /// The packed bytes, between two members.
    source: Option<R>,
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Members<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source: None, member: Some(GzDecoder::new(source)) }
    }

    /// Starts the next member; `false` at the end.
    fn next_member(&mut self) -> io::Result<bool> {
        let Some(source) = &mut self.source else { return Ok(false) };
        if !ends(source)? {
            self.member = self.source.take().map(GzDecoder::new);
            return Ok(true);
        }
        Ok(false)
    }
}

/// Whether nothing follows but zeroes.
fn ends(source: &mut impl BufRead) -> io::Result<bool> {
    let mut zeroes = false;
    loop {
        let bytes = source.fill_buf()?;
        let len = bytes.len();
        match bytes.iter().position(|&byte| byte != 0) {
            None if len == 0 => return Ok(true),
            None => {
                zeroes = true;
                source.consume(len);
            }
            Some(0) if !zeroes => return Ok(false),
            Some(_) => {
                let what = "bytes that are not zero follow the padding";
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            let Some(member) = &mut self.member else {
                if self.next_member()? {
                    continue;
                }
                return Ok(0);
            };
            match member.read(into)? {
                0 => self.source = self.member.take().map(GzDecoder::into_inner),
                read => return Ok(read),
            }
        }
    }
}
