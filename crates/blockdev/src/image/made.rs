//! Makes images for tests, of given content, with only the fields that the formats require.

use std::io::Write;

use super::vhdx::header::MAGIC;
use super::{Qcow2, Vhd, Vhdx};
use crate::{MemDevice, ReadBlocks};

/// Options of a qcow2 image.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clusters {
    Plain,
    Deflate,
    Zstd,
    /// With a bitmap of subclusters.
    Extended,
}

pub(super) const CLUSTERS: [Clusters; 4] =
    [Clusters::Plain, Clusters::Deflate, Clusters::Zstd, Clusters::Extended];

fn put(image: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if image.len() < at + bytes.len() {
        image.resize(at + bytes.len(), 0);
    }
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

fn align(image: &mut Vec<u8>, to: usize) -> usize {
    image.resize(image.len().next_multiple_of(to), 0);
    image.len()
}

pub(super) fn qcow2(content: &[u8], clusters: Clusters) -> Vec<u8> {
    let (bits, words) = match clusters {
        Clusters::Extended => (14u32, 2),
        _ => (12, 1),
    };
    let cluster = 1usize << bits;
    let mut incompatible = 0u64;
    if matches!(clusters, Clusters::Zstd) {
        incompatible |= 8;
    }
    if matches!(clusters, Clusters::Extended) {
        incompatible |= 16;
    }
    let mut image = b"QFI\xfb".to_vec();
    put(&mut image, 4, &3u32.to_be_bytes());
    put(&mut image, 20, &bits.to_be_bytes());
    put(&mut image, 24, &(content.len() as u64).to_be_bytes());
    put(&mut image, 36, &64u32.to_be_bytes());
    put(&mut image, 40, &(cluster as u64).to_be_bytes());
    put(&mut image, 72, &incompatible.to_be_bytes());
    put(&mut image, 96, &4u32.to_be_bytes());
    put(&mut image, 100, &112u32.to_be_bytes());
    put(&mut image, 104, &[u8::from(matches!(clusters, Clusters::Zstd)), 0, 0, 0, 0, 0, 0, 0]);
    image.resize(2 * cluster, 0);
    let per_table = cluster / 8 / words;
    for (table, part) in content.chunks(cluster * per_table).enumerate() {
        let table_at = align(&mut image, cluster);
        image.resize(table_at + cluster, 0);
        put(&mut image, cluster + table * 8, &(table_at as u64 | 1 << 63).to_be_bytes());
        for (index, piece) in part.chunks(cluster).enumerate() {
            let mut piece = piece.to_vec();
            piece.resize(cluster, 0);
            let entry_at = table_at + index * 8 * words;
            let is_zero = piece.iter().all(|&byte| byte == 0);
            if is_zero && matches!(clusters, Clusters::Plain) {
                // In turn: not allocated, and allocated as zeroes.
                put(&mut image, entry_at, &((index % 2) as u64).to_be_bytes());
                continue;
            }
            let entry = match clusters {
                Clusters::Plain | Clusters::Extended => {
                    let at = align(&mut image, cluster);
                    image.extend(&piece);
                    at as u64 | 1 << 63
                }
                Clusters::Deflate | Clusters::Zstd => packed(&mut image, bits, clusters, &piece),
            };
            put(&mut image, entry_at, &entry.to_be_bytes());
            if matches!(clusters, Clusters::Extended) {
                put(&mut image, entry_at + 8, &subclusters(&piece).to_be_bytes());
            }
        }
    }
    image
}

fn packed(image: &mut Vec<u8>, bits: u32, clusters: Clusters, piece: &[u8]) -> u64 {
    let packed = match clusters {
        Clusters::Zstd => {
            let level = ruzstd::encoding::CompressionLevel::Fastest;
            ruzstd::encoding::compress_to_vec(piece, level)
        }
        _ => {
            let mut to = flate2::write::DeflateEncoder::new(Vec::new(), Default::default());
            to.write_all(piece).unwrap();
            to.finish().unwrap()
        }
    };
    let at = image.len();
    image.extend(&packed);
    let sectors = (image.len() - 1) / 512 - at / 512;
    at as u64 | (sectors as u64) << (62 - (bits - 8)) | 1 << 62
}

/// The subcluster bitmap: stored, zero, or in the backing image.
fn subclusters(piece: &[u8]) -> u64 {
    piece.chunks(piece.len() / 32).enumerate().fold(0, |bitmap, (index, part)| {
        let is_zero = part.iter().all(|&byte| byte == 0);
        bitmap
            | match (is_zero, index % 2) {
                (false, _) => 1 << index,
                (true, 0) => 1 << (index + 32),
                (true, _) => 0,
            }
    })
}

fn signed_vhd(mut bytes: Vec<u8>, field: usize) -> Vec<u8> {
    bytes[field..field + 4].fill(0);
    let sum = bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>();
    put(&mut bytes, field, &(!sum).to_be_bytes());
    bytes
}

fn vhd_footer(content: &[u8], kind: u32, header_at: u64) -> Vec<u8> {
    let mut footer = b"conectix".to_vec();
    footer.resize(512, 0);
    put(&mut footer, 16, &header_at.to_be_bytes());
    put(&mut footer, 48, &(content.len() as u64).to_be_bytes());
    put(&mut footer, 60, &kind.to_be_bytes());
    signed_vhd(footer, 64)
}

pub(super) fn fixed_vhd(content: &[u8]) -> Vec<u8> {
    [content, &vhd_footer(content, 2, u64::MAX)].concat()
}

pub(super) fn dynamic_vhd(content: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 8192;
    let blocks = content.len().div_ceil(BLOCK);
    let mut header = b"cxsparse".to_vec();
    header.resize(1024, 0);
    put(&mut header, 16, &1536u64.to_be_bytes());
    put(&mut header, 28, &(blocks as u32).to_be_bytes());
    put(&mut header, 32, &(BLOCK as u32).to_be_bytes());
    let footer = vhd_footer(content, 3, 512);
    let mut image = [&footer[..], &signed_vhd(header, 36)].concat();
    image.resize(image.len() + blocks * 4, 0xff);
    for (index, block) in content.chunks(BLOCK).enumerate() {
        if block.iter().all(|&byte| byte == 0) {
            continue;
        }
        let at = align(&mut image, 512);
        put(&mut image, 1536 + index * 4, &((at / 512) as u32).to_be_bytes());
        image.resize(at + 512, 0xff);
        image.extend(block);
        image.resize(at + 512 + BLOCK, 0);
    }
    align(&mut image, 512);
    [image, footer].concat()
}

const MIB: usize = 1 << 20;
/// Offsets of the parts of a VHDX image made here.
pub(super) const VHDX_LOG: usize = MIB;
pub(super) const VHDX_TABLE: usize = 3 * MIB;
const VHDX_METADATA: usize = 2 * MIB;
const VHDX_ITEMS: usize = VHDX_METADATA + 65536;

/// Recomputes the checksum of a part of a VHDX image.
pub(super) fn sign_vhdx(image: &mut [u8], at: usize, len: usize) {
    image[at + 4..at + 8].fill(0);
    let sum = !floe_format::crc::crc32c(u32::MAX, &image[at..at + len]);
    image[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
}

pub(super) fn sign_vhdx_headers(image: &mut [u8]) {
    for (at, len) in [(65_536, 4096), (131_072, 4096), (196_608, 65_536), (262_144, 65_536)] {
        sign_vhdx(image, at, len);
    }
}

fn guid(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|&byte| byte != b'-').collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let bytes: Vec<u8> = digits.chunks(2).map(byte).collect();
    [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15].map(|at| bytes[at]).to_vec()
}

/// `content` must be whole sectors.
pub(super) fn vhdx(content: &[u8]) -> Vec<u8> {
    let mut image = MAGIC.to_vec();
    image.resize(4 * MIB, 0);
    for (at, sequence) in [(65_536, 7u64), (131_072, 8)] {
        put(&mut image, at, b"head");
        put(&mut image, at + 8, &sequence.to_le_bytes());
        put(&mut image, at + 66, &1u16.to_le_bytes());
        put(&mut image, at + 68, &(MIB as u32).to_le_bytes());
        put(&mut image, at + 72, &(VHDX_LOG as u64).to_le_bytes());
    }
    for at in [196_608, 262_144] {
        put(&mut image, at, b"regi");
        put(&mut image, at + 8, &2u32.to_le_bytes());
        let regions = [
            ("2DC27766-F623-4200-9D64-115E9BFD4A08", VHDX_TABLE),
            ("8B7CA206-4790-4B9A-B8FE-575F050F886E", VHDX_METADATA),
        ];
        for (index, (id, place)) in regions.into_iter().enumerate() {
            let entry = at + 16 + index * 32;
            put(&mut image, entry, &guid(id));
            put(&mut image, entry + 16, &(place as u64).to_le_bytes());
            put(&mut image, entry + 24, &(MIB as u32).to_le_bytes());
            put(&mut image, entry + 28, &1u32.to_le_bytes());
        }
    }
    put(&mut image, VHDX_METADATA, b"metadata");
    put(&mut image, VHDX_METADATA + 10, &3u16.to_le_bytes());
    let items = [
        ("CAA16737-FA36-4D43-B3B6-33F0AA44E76B", (MIB as u64).to_le_bytes().to_vec()),
        ("2FA54224-CD1B-4876-B211-5DBED83BF4B8", (content.len() as u64).to_le_bytes().to_vec()),
        ("8141BF1D-A96F-4709-BA47-F233A8FAAB5F", 512u32.to_le_bytes().to_vec()),
    ];
    for (index, (id, bytes)) in items.into_iter().enumerate() {
        let entry = VHDX_METADATA + 32 + index * 32;
        put(&mut image, entry, &guid(id));
        let offset = (VHDX_ITEMS - VHDX_METADATA + index * 16) as u32;
        put(&mut image, entry + 16, &offset.to_le_bytes());
        put(&mut image, entry + 20, &(bytes.len() as u32).to_le_bytes());
        put(&mut image, entry + 24, &4u32.to_le_bytes());
        put(&mut image, VHDX_ITEMS + index * 16, &bytes);
    }
    for (index, block) in content.chunks(MIB).enumerate() {
        let at = align(&mut image, MIB);
        let mut block = block.to_vec();
        block.resize(MIB, 0);
        image.extend(block);
        put(&mut image, VHDX_TABLE + index * 8, &(at as u64 | 6).to_le_bytes());
    }
    sign_vhdx_headers(&mut image);
    image
}

/// Moves the sector at `at` into the log of a VHDX image and destroys it in place.
pub(super) fn into_vhdx_log(image: &mut [u8], at: usize) {
    let id = [7; 16];
    let sequence = 5u64;
    let sector = image[at..at + 4096].to_vec();
    image[at..at + 4096].fill(0xff);
    for header in [65_536, 131_072] {
        image[header + 48..header + 64].copy_from_slice(&id);
    }
    sign_vhdx_headers(image);
    let len = image.len() as u64;
    // Not at the start of the log, and behind an older entry that is no longer active.
    let entry = VHDX_LOG + 3 * 4096;
    let log = &mut image[entry..entry + 8192];
    log[..4].copy_from_slice(b"loge");
    log[8..12].copy_from_slice(&8192u32.to_le_bytes());
    log[12..16].copy_from_slice(&(3 * 4096u32).to_le_bytes());
    log[16..24].copy_from_slice(&sequence.to_le_bytes());
    log[24..28].copy_from_slice(&1u32.to_le_bytes());
    log[32..48].copy_from_slice(&id);
    log[48..56].copy_from_slice(&len.to_le_bytes());
    log[56..64].copy_from_slice(&len.to_le_bytes());
    log[64..68].copy_from_slice(b"desc");
    log[68..72].copy_from_slice(&sector[4092..]);
    log[72..80].copy_from_slice(&sector[..8]);
    log[80..88].copy_from_slice(&(at as u64).to_le_bytes());
    log[88..96].copy_from_slice(&sequence.to_le_bytes());
    log[4096..8192].copy_from_slice(&sector);
    log[4096..4100].copy_from_slice(b"data");
    log[4100..4104].copy_from_slice(&((sequence >> 32) as u32).to_le_bytes());
    log[8188..8192].copy_from_slice(&(sequence as u32).to_le_bytes());
    sign_vhdx(image, entry, 8192);
}

pub(super) fn in_memory(image: Vec<u8>) -> Box<dyn ReadBlocks> {
    Box::new(MemDevice::new(image))
}

pub(super) fn open_qcow2(content: &[u8], clusters: Clusters) -> Qcow2 {
    Qcow2::open(in_memory(qcow2(content, clusters))).unwrap()
}

pub(super) fn open_vhd(image: Vec<u8>) -> Vhd {
    Vhd::open(in_memory(image)).unwrap()
}

/// A VHDX disk is whole sectors; the window restores the length of `content`.
pub(super) fn open_vhdx(content: &[u8]) -> crate::Window<Vhdx> {
    let mut sectors = content.to_vec();
    sectors.resize(content.len().next_multiple_of(512), 0);
    let disk = Vhdx::open(in_memory(vhdx(&sectors))).unwrap();
    crate::Window::new(disk, 0, Some(content.len() as u64)).unwrap()
}
