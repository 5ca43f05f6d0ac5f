//! Block maps: the blocks of an image that must be written to a device, for bmaptool and the tools
//! that read its files (mender, balena, swupdate). Format: version 2.0 of Yocto's bmaptool, with
//! SHA-256.
//!
//! A block is in the map if the file system counts it as used, even if it is a hole in the image:
//! an inode table or a journal that is a hole in the image must be zeroes on the device, which has
//! no holes. So the map depends on the layout alone, not on the file system that holds the image.

use std::fmt::Write as _;
use std::io;
use std::ops::Range;

use floe_blockdev::ReadBlocks;
use floe_exec::{Accumulator, Pool};
use floe_format::BlockNr;
use sha2::{Digest, Sha256};

use super::plan::Plan;
use crate::sha256;

/// The first bytes of a block map made by Floe.
pub const BLOCK_MAP_HEAD: &[u8] = b"<?xml version=\"1.0\"?>\n<!-- floe";
/// Bytes of a block of the map, at least: bmaptool's own block size.
const LEAST_BLOCK_BYTES: u64 = 4096;
/// Bytes of a range, at most, because a single thread computes its checksum.
const MOST_RANGE_BYTES: u64 = 64 << 20;
/// Bytes read at once.
const READ_BYTES: u64 = 1 << 20;
/// Placeholder for the checksum of the map, in the text over which that checksum is computed.
const NO_CHECKSUM: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The checksums of ranges, by index in the list.
#[derive(Debug, Default)]
struct Sums {
    done: Vec<(usize, String)>,
    /// The failure with the lowest index.
    failed: Option<(usize, io::Error)>,
}

impl Accumulator for Sums {
    fn merge(&mut self, other: Self) {
        let Self { done, failed } = other;
        self.done.extend(done);
        if let Some((at, _)) = &failed
            && self.failed.as_ref().is_none_or(|(first, _)| at < first)
        {
            self.failed = failed;
        }
    }
}

/// The block map, as XML, of a file system that was written to the start of `image`. `threads`
/// threads compute checksums.
///
/// # Errors
/// If the image cannot be read.
pub fn block_map(plan: &Plan, image: &dyn ReadBlocks, threads: usize) -> io::Result<String> {
    let block_bytes = u64::from(plan.geometry().block_size).max(LEAST_BLOCK_BYTES);
    let size = image.size_bytes();
    let ranges = ranges(plan, block_bytes, size);
    let units: Vec<(usize, Range<u64>)> = ranges.iter().cloned().enumerate().collect();
    let pool = Pool::new(threads.max(1));
    let mut sums: Sums = pool.run(&units, |sums: &mut Sums, (at, range)| {
        let bytes = range.start * block_bytes..(range.end * block_bytes).min(size);
        match checksum(image, bytes) {
            Ok(sum) => sums.done.push((*at, sum)),
            Err(error) => sums.merge(Sums { done: Vec::new(), failed: Some((*at, error)) }),
        }
    });
    if let Some((_, error)) = sums.failed {
        return Err(error);
    }
    sums.done.sort_unstable();
    let sums = sums.done.iter().map(|(_, sum)| sum.as_str());
    let text = document(size, block_bytes, ranges.iter().zip(sums), NO_CHECKSUM);
    let own = sha256::digits(Sha256::new_with_prefix(text.as_bytes()));
    Ok(text.replacen(NO_CHECKSUM, &own, 1))
}

/// The used ranges, in blocks of the map: not overlapping, and at most the maximum length.
fn ranges(plan: &Plan, block_bytes: u64, size: u64) -> Vec<Range<u64>> {
    let geometry = plan.geometry();
    let most = MOST_RANGE_BYTES / block_bytes;
    let boot = 0..geometry.offset_bytes(BlockNr(geometry.first_data_block.0 + 1));
    let used = plan
        .used_runs()
        .map(|run| geometry.offset_bytes(run.start)..geometry.offset_bytes(run.end()));
    let mut all: Vec<Range<u64>> = Vec::new();
    for bytes in std::iter::once(boot).chain(used) {
        let last = bytes.end.min(size).div_ceil(block_bytes);
        let mut start = (bytes.start / block_bytes).max(all.last().map_or(0, |range| range.end));
        if let Some(range) = all.last_mut()
            && range.end == start
            && start < last
        {
            range.end = last.min(range.start + most);
            start = range.end;
        }
        while start < last {
            let end = last.min(start + most);
            all.push(start..end);
            start = end;
        }
    }
    all
}

fn checksum(image: &dyn ReadBlocks, bytes: Range<u64>) -> io::Result<String> {
    let mut buffer = vec![0; READ_BYTES.min(bytes.end - bytes.start) as usize];
    let (mut at, mut sum) = (bytes.start, Sha256::new());
    while at < bytes.end {
        let piece = &mut buffer[..READ_BYTES.min(bytes.end - at) as usize];
        image.read_at(at, piece)?;
        sum.update(&*piece);
        at += piece.len() as u64;
    }
    Ok(sha256::digits(sum))
}

fn document<'a>(
    size: u64,
    block_bytes: u64,
    ranges: impl Iterator<Item = (&'a Range<u64>, &'a str)> + Clone,
    own_checksum: &str,
) -> String {
    let mapped: u64 = ranges.clone().map(|(range, _)| range.end - range.start).sum();
    let mut text = String::from_utf8_lossy(BLOCK_MAP_HEAD).into_owned();
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        " mkfs: the blocks of an image that a device needs; bmaptool copies them. -->\n\
         <bmap version=\"2.0\">\n\
         \x20   <ImageSize> {size} </ImageSize>\n\
         \x20   <BlockSize> {block_bytes} </BlockSize>\n\
         \x20   <BlocksCount> {} </BlocksCount>\n\
         \x20   <MappedBlocksCount> {mapped} </MappedBlocksCount>\n\
         \x20   <ChecksumType> sha256 </ChecksumType>\n\
         \x20   <BmapFileChecksum> {own_checksum} </BmapFileChecksum>\n\
         \x20   <BlockMap>\n",
        size.div_ceil(block_bytes),
    );
    for (Range { start, end }, sum) in ranges {
        let last = end - 1;
        let _ = match *start == last {
            true => writeln!(text, "        <Range chksum=\"{sum}\"> {start} </Range>"),
            false => writeln!(text, "        <Range chksum=\"{sum}\"> {start}-{last} </Range>"),
        };
    }
    text + "    </BlockMap>\n</bmap>\n"
}

#[cfg(test)]
mod laws {
    use super::*;

    floe_exec::accumulator_laws!(
        Sums,
        (0usize..50, proptest::bool::ANY),
        |all: &mut Sums, (at, fails)| {
            if fails {
                let failed = Some((at, io::Error::other(at.to_string())));
                all.merge(Sums { done: Vec::new(), failed });
            } else {
                all.done.push((at, at.to_string()));
            }
        },
        |all: Sums| {
            let mut done = all.done;
            done.sort_unstable();
            (done, all.failed.map(|(at, error)| (at, error.to_string())))
        },
    );
}
