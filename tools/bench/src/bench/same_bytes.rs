//! The sequential reader: reads all bytes that a check reads, once and in on-disk order, and does
//! nothing with them. No check with a cold cache can be faster.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};
use floe_blockdev::ReadBlocks;
use floe_check::{CheckOptions, check};
use floe_testkit::Image;

/// Maximum bytes per read.
const READ_BYTES: u64 = 1 << 20;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The image
    image: PathBuf,
    /// The ranges to read: a first byte and a length per line
    list: PathBuf,
}

/// Reads the ranges in the list.
pub(crate) fn run(args: &Args) -> Result<()> {
    let image = File::open(&args.image)?;
    let mut buffer = vec![0; READ_BYTES as usize];
    let (mut bytes, mut sum) = (0u64, 0u64);
    for line in fs::read_to_string(&args.list)?.lines() {
        let (start, len) = line.split_once(' ').context("a first byte and a length")?;
        let (start, len): (u64, u64) = (start.parse()?, len.parse()?);
        for at in (start..start + len).step_by(READ_BYTES as usize) {
            let part = &mut buffer[..READ_BYTES.min(start + len - at) as usize];
            image.read_exact_at(part, at)?;
            bytes += part.len() as u64;
            sum = sum.wrapping_add(part.first().copied().unwrap_or(0).into());
        }
    }
    println!("{bytes} bytes, {sum}");
    Ok(())
}

/// A device that records all reads.
struct Noted<'i> {
    image: &'i Image,
    ranges: Mutex<Vec<(u64, u64)>>,
}

impl ReadBlocks for Noted<'_> {
    fn size_bytes(&self) -> u64 {
        self.image.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        let mut ranges = self.ranges.lock().map_err(|_| io::Error::other("a reader panicked"))?;
        ranges.push((offset_bytes, into.len() as u64));
        self.image.read_at(offset_bytes, into)
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.image.is_hole(offset_bytes, len_bytes)
    }
}

/// Lists the ranges that a check of an image reads, in a file beside it.
pub(crate) fn list(image: &Path) -> Result<PathBuf> {
    let opened = Image::open(image)?;
    let noted = Noted { image: &opened, ranges: Mutex::default() };
    check(&noted, &CheckOptions::default())?;
    let mut ranges = noted.ranges.into_inner().ok().context("no reader panicked")?;
    ensure!(!ranges.is_empty(), "a check read nothing");
    ranges.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, len) in ranges {
        match joined.last_mut() {
            Some((first, all)) if start <= *first + *all => *all = (*all).max(start + len - *first),
            _ => joined.push((start, len)),
        }
    }
    let path = image.with_extension("reads");
    let lines: Vec<String> = joined.iter().map(|(start, len)| format!("{start} {len}\n")).collect();
    fs::write(&path, lines.concat())?;
    Ok(path)
}
