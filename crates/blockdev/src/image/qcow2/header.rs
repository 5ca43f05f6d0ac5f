//! The header of a qcow2 image. Source: "The QCOW2 image format", QEMU's documentation
//! (`docs/interop/qcow2.txt`).

use floe_format::layout::be;

use crate::ReadBlocks;
use crate::image::{Format, ImageError};

/// Bytes of a header of version 2; the fields of version 3 follow.
const V2_BYTES: u64 = 72;
/// Bytes of a version 3 header that are read: up to and including the compression type.
const FIXED_BYTES: usize = 105;
/// Bytes of header extensions that are read, at most.
const MOST_EXTENSION_BYTES: u64 = 64 << 10;
/// Bytes of a backing file's name, at most.
const MOST_NAME_BYTES: u32 = 1023;

const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;
const EXTERNAL_DATA: u64 = 1 << 2;
const COMPRESSION_TYPE: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;

const BACKING_FORMAT: u32 = 0xe279_2aca;
const FEATURE_NAMES: u32 = 0x6803_f857;

/// The compression of packed clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// Raw deflate, without the header of zlib.
    Deflate,
    /// A zstd frame.
    Zstd,
}

/// The header fields that a reader needs, validated.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    /// From 9 to 21.
    pub(super) cluster_bits: u32,
    pub(super) virtual_bytes: u64,
    pub(super) l1_entries: u32,
    pub(super) l1_offset_bytes: u64,
    pub(super) extended_l2: bool,
    pub(super) packing: Packing,
    /// The name of the backing file, and its format if the header names it.
    pub(super) backing: Option<(Vec<u8>, Option<Vec<u8>>)>,
}

fn damaged(what: impl Into<String>) -> ImageError {
    ImageError::Damaged { format: Format::Qcow2, what: what.into() }
}

fn unsupported(what: impl Into<String>) -> ImageError {
    ImageError::Unsupported { format: Format::Qcow2, what: what.into() }
}

/// Reads the header of an image.
pub(super) fn read(file: &dyn ReadBlocks) -> Result<Header, ImageError> {
    // A small image may end inside bytes that are only padding here.
    let mut fixed = [0; FIXED_BYTES];
    let there = file.size_bytes().min(FIXED_BYTES as u64);
    if there < V2_BYTES {
        return Err(damaged("the file ends inside its header"));
    }
    file.read_at(0, &mut fixed[..there as usize])?;
    let version = be::<u32, 4, FIXED_BYTES>(&fixed);
    if !(2..=3).contains(&version) {
        return Err(unsupported(format!("version {version} of the format")));
    }
    refuse_encryption(be::<u32, 32, FIXED_BYTES>(&fixed))?;
    let cluster_bits = be::<u32, 20, FIXED_BYTES>(&fixed);
    if !(9..=21).contains(&cluster_bits) {
        return Err(damaged(format!(
            "clusters of 2^{cluster_bits} bytes (2^9 to 2^21 are allowed)"
        )));
    }
    let (incompatible, header_bytes) = if version == 2 {
        (0, V2_BYTES)
    } else {
        let header_bytes = be::<u32, 100, FIXED_BYTES>(&fixed);
        if header_bytes < 104 || u64::from(header_bytes) > 1 << cluster_bits {
            return Err(damaged(format!("a header of {header_bytes} bytes")));
        }
        (be::<u64, 72, FIXED_BYTES>(&fixed), u64::from(header_bytes))
    };
    let extensions = extensions(file, header_bytes, 1 << cluster_bits)?;
    refuse_features(incompatible, &extensions)?;
    let packing = match fixed[104] {
        _ if incompatible & COMPRESSION_TYPE == 0 || header_bytes <= 104 => Packing::Deflate,
        0 => Packing::Deflate,
        1 => Packing::Zstd,
        other => return Err(unsupported(format!("compression type {other}"))),
    };
    let header = Header {
        version,
        cluster_bits,
        virtual_bytes: be::<u64, 24, FIXED_BYTES>(&fixed),
        l1_entries: be::<u32, 36, FIXED_BYTES>(&fixed),
        l1_offset_bytes: be::<u64, 40, FIXED_BYTES>(&fixed),
        extended_l2: incompatible & EXTENDED_L2 != 0,
        packing,
        backing: backing(
            file,
            be::<u64, 8, FIXED_BYTES>(&fixed),
            be::<u32, 16, FIXED_BYTES>(&fixed),
            &extensions,
        )?,
    };
    if header.extended_l2 && cluster_bits < 14 {
        return Err(damaged("subclusters of less than 512 bytes"));
    }
    Ok(header)
}

fn refuse_encryption(method: u32) -> Result<(), ImageError> {
    let how = match method {
        0 => return Ok(()),
        1 => "AES encryption".to_owned(),
        2 => "LUKS encryption".to_owned(),
        other => format!("encryption method {other}"),
    };
    Err(unsupported(format!("{how}; open it with qemu-nbd, which asks for the key")))
}

/// A header extension: its type and its bytes.
type Extension = (u32, Vec<u8>);

fn extensions(
    file: &dyn ReadBlocks,
    start: u64,
    cluster_bytes: u64,
) -> Result<Vec<Extension>, ImageError> {
    let end = cluster_bytes.min(file.size_bytes()).min(start + MOST_EXTENSION_BYTES);
    let mut bytes = vec![0; end.saturating_sub(start) as usize];
    file.read_at(start, &mut bytes)?;
    let mut found = Vec::new();
    let mut rest = &bytes[..];
    // The list may also end at the end of the cluster.
    while let Some((head, behind)) = rest.split_first_chunk::<8>() {
        let (kind, len) = (be::<u32, 0, 8>(head), be::<u32, 4, 8>(head) as usize);
        if kind == 0 {
            break;
        }
        let content =
            behind.get(..len).ok_or_else(|| damaged("a header extension passes its cluster"))?;
        found.push((kind, content.to_vec()));
        rest = behind.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    Ok(found)
}

/// Refuses incompatible features that a reader must know and Floe does not.
fn refuse_features(incompatible: u64, extensions: &[Extension]) -> Result<(), ImageError> {
    if incompatible & CORRUPT != 0 {
        return Err(unsupported(
            "it is marked \"corrupt\", so its tables may be wrong; run `qemu-img check` on it",
        ));
    }
    if incompatible & EXTERNAL_DATA != 0 {
        return Err(unsupported(
            "it has an external data file; convert it to a raw image, or attach it with qemu-nbd",
        ));
    }
    // Dirty means that reference counts are not up to date; a reader does not use them.
    let known = DIRTY | CORRUPT | EXTERNAL_DATA | COMPRESSION_TYPE | EXTENDED_L2;
    let unknown = incompatible & !known;
    if unknown == 0 {
        return Ok(());
    }
    let names: Vec<String> = (0..64)
        .filter(|bit| unknown & (1 << bit) != 0)
        .map(|bit| feature_name(bit, extensions).unwrap_or_else(|| format!("bit {bit}")))
        .collect();
    Err(unsupported(format!("unknown incompatible features: {}", names.join(", "))))
}

/// The name of a feature, from the image's own table: a type (0: incompatible), a bit, and 46 bytes
/// of name.
fn feature_name(bit: u8, extensions: &[Extension]) -> Option<String> {
    let (_, table) = extensions.iter().find(|(kind, _)| *kind == FEATURE_NAMES)?;
    let entry = table.chunks_exact(48).find(|entry| entry[0] == 0 && entry[1] == bit)?;
    let name = entry[2..].split(|&byte| byte == 0).next()?;
    // The image chose the name: let no control characters reach the terminal.
    Some(format!("\"{}\" (bit {bit})", String::from_utf8_lossy(name).escape_debug()))
}

type Backing = Option<(Vec<u8>, Option<Vec<u8>>)>;

fn backing(
    file: &dyn ReadBlocks,
    offset_bytes: u64,
    len_bytes: u32,
    extensions: &[Extension],
) -> Result<Backing, ImageError> {
    if offset_bytes == 0 {
        return Ok(None);
    }
    if len_bytes == 0 || len_bytes > MOST_NAME_BYTES {
        return Err(damaged(format!("a backing file's name of {len_bytes} bytes")));
    }
    let mut name = vec![0; len_bytes as usize];
    file.read_at(offset_bytes, &mut name)
        .map_err(|_| damaged("the backing file's name lies past the end of the file"))?;
    let format = extensions.iter().find(|(kind, _)| *kind == BACKING_FORMAT);
    Ok(Some((name, format.map(|(_, name)| name.clone()))))
}
