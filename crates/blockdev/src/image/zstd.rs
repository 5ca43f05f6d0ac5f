//! Consecutive zstd frames as one stream. Source: RFC 8878.
//!
//! The decoder library handles one frame. This module adds the step to the next frame, skippable
//! frames, the comparison of checksums, and a limit on the memory that a frame may demand.

use std::io::{self, Read};

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::ReadBlocks;

/// The magic of a frame.
pub(super) const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bytes of a window, at most: the default limit of the `zstd` program.
const MOST_WINDOW_BYTES: u64 = 128 << 20;

/// Skippable frames before the first one with content, at most. Programs write one, or none.
const MOST_SKIPPED: usize = 64;

/// Whether a frame of this magic has no content, and is to be skipped.
const fn is_skippable(magic: [u8; 4]) -> bool {
    u32::from_le_bytes(magic) & !15 == 0x184d_2a50
}

/// Whether a file begins with a frame, perhaps behind skippable ones. Those alone are none.
pub(super) fn is_one(file: &dyn ReadBlocks) -> io::Result<bool> {
    let mut at = 0u64;
    for _ in 0..=MOST_SKIPPED {
        let mut head = [0; 8];
        if at.checked_add(8).is_none_or(|end| end > file.size_bytes()) {
            return Ok(false);
        }
        file.read_at(at, &mut head)?;
        let ([magic, len], _) = head.as_chunks::<4>() else { return Ok(false) };
        if *magic == MAGIC {
            return Ok(true);
        }
        if !is_skippable(*magic) {
            return Ok(false);
        }
        at = at.saturating_add(8 + u64::from(u32::from_le_bytes(*len)));
    }
    Ok(false)
}

/// A stream of frames, unpacked.
pub(super) struct Frames<R> {
    source: R,
    frame: Option<FrameDecoder>,
}

fn broken(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl<R: Read> Frames<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, frame: None }
    }

    /// Advances to the next frame with content; `None` at the end.
    fn next_frame(&mut self) -> io::Result<Option<FrameDecoder>> {
        loop {
            let mut magic = [0; 4];
            match fill(&mut self.source, &mut magic)? {
                0 => return Ok(None),
                4 => {}
                _ => return Err(broken("bytes too few for a frame")),
            }
            if magic == MAGIC {
                return self.start().map(Some);
            }
            if !is_skippable(magic) {
                return Err(broken("bytes that are not a zstd frame"));
            }
            let mut len = [0; 4];
            self.source.read_exact(&mut len)?;
            let len = u64::from(u32::from_le_bytes(len));
            let skipped = io::copy(&mut (&mut self.source).take(len), &mut io::sink())?;
            if skipped != len {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads the header of a frame whose magic was read.
    fn start(&mut self) -> io::Result<FrameDecoder> {
        let mut header = MAGIC.to_vec();
        header.push(0);
        self.source.read_exact(&mut header[4..])?;
        let descriptor = header[4];
        let single_segment = descriptor & 0x20 != 0;
        let window_len = usize::from(!single_segment);
        let dictionary_len = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let size_len = match descriptor >> 6 {
            0 => usize::from(single_segment),
            flag => 1 << flag,
        };
        let start = header.len();
        header.resize(start + window_len + dictionary_len + size_len, 0);
        self.source.read_exact(&mut header[start..])?;
        let window_bytes = if single_segment {
            let mut size = [0; 8];
            size[..size_len].copy_from_slice(&header[header.len() - size_len..]);
            u64::from_le_bytes(size) + if size_len == 2 { 256 } else { 0 }
        } else {
            let base = 1u64 << (10 + (header[start] >> 3));
            base + base / 8 * u64::from(header[start] & 7)
        };
        if window_bytes > MOST_WINDOW_BYTES {
            return Err(broken(format!(
                "a frame that needs a window of {} MiB ({} at most); unpack it with zstd --long",
                window_bytes >> 20,
                MOST_WINDOW_BYTES >> 20
            )));
        }
        let mut decoder = FrameDecoder::new();
        decoder.init(&header[..]).map_err(|error| broken(error.to_string()))?;
        Ok(decoder)
    }
}

/// Reads until `into` is full or the source ends; returns the number of bytes read.
fn fill(source: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match source.read(&mut into[done..]) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Compares the checksum, which is optional.
fn verify(frame: &FrameDecoder) -> io::Result<()> {
    match (frame.get_checksum_from_data(), frame.get_calculated_checksum()) {
        (Some(stored), Some(counted)) if stored != counted => {
            Err(broken("a frame with a wrong checksum"))
        }
        _ => Ok(()),
    }
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            let Some(frame) = &mut self.frame else {
                self.frame = self.next_frame()?;
                if self.frame.is_none() {
                    return Ok(0);
                }
                continue;
            };
            if frame.can_collect() > 0 {
                return frame.read(into);
            }
            if frame.is_finished() {
                verify(frame)?;
                self.frame = None;
                continue;
            }
            frame
                .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                .map_err(|error| broken(error.to_string()))?;
        }
    }
}
