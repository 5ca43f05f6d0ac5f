//! Packed ("compressed") clusters of a qcow2 image.

use std::io::{self, Read};

use flate2::{Decompress, FlushDecompress};

use super::header::Packing;
use crate::ReadBlocks;
use crate::image::place::damaged;
use crate::image::zstd;

/// Unpacks the cluster that an L2 entry describes.
pub(super) fn unpack(
    file: &dyn ReadBlocks,
    packing: Packing,
    cluster_bits: u32,
    entry: u64,
) -> io::Result<Vec<u8>> {
    // The lower bits hold the offset in bytes; the bits above hold the number of 512-byte sectors
    // after the first one. The cluster size determines the width of both.
    let count_bits = cluster_bits - 8;
    let offset_bits = 62 - count_bits;
    let offset = entry & ((1 << offset_bits) - 1);
    let sectors = (entry >> offset_bits & ((1 << count_bits) - 1)) + 1;
    let end = (offset & !511) + sectors * 512;
    // The file may end with the packed bytes, inside the last sector.
    let there = file.size_bytes().min(end).saturating_sub(offset);
    if there == 0 {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("the disk image is truncated: a packed cluster lies at byte {offset}"),
        ));
    }
    // At most 2^13 sectors.
    let mut packed = vec![0; there as usize];
    file.read_at(offset, &mut packed)?;
    let mut cluster = vec![0; 1 << cluster_bits];
    match packing {
        Packing::Deflate => inflate(&packed, &mut cluster),
        Packing::Zstd => unzstd(&packed, &mut cluster),
    }
    .map_err(|what| damaged(format!("a packed cluster at byte {offset}: {what}")))?;
    Ok(cluster)
}

/// Bytes after the packed stream, in its last sector, are ignored.
fn inflate(packed: &[u8], cluster: &mut [u8]) -> Result<(), String> {
    let mut state = Decompress::new(false);
    state
        .decompress(packed, cluster, FlushDecompress::Finish)
        .map_err(|error| error.to_string())?;
    if state.total_out() == cluster.len() as u64 {
        Ok(())
    } else {
        Err(format!("it unpacks to {} bytes only", state.total_out()))
    }
}

fn unzstd(packed: &[u8], cluster: &mut [u8]) -> Result<(), String> {
    let mut frames = zstd::Frames::new(packed);
    frames.read_exact(cluster).map_err(|error| error.to_string())
}
