//! Images read as the disks in them; damaged images give errors; no image makes a reader panic.

use std::cell::Cell;
use std::io::Write;

use proptest::prelude::*;

use super::made::{self, CLUSTERS, Clusters};
use super::*;
use crate::MemDevice;
use crate::contract::pattern;

mod plain_clusters {
    use crate::image::made::{Clusters, open_qcow2};
    crate::device_contract!(Qcow2, |bytes: &[u8]| open_qcow2(bytes, Clusters::Plain));
}
mod deflated_clusters {
    use crate::image::made::{Clusters, open_qcow2};
    crate::device_contract!(Qcow2, |bytes: &[u8]| open_qcow2(bytes, Clusters::Deflate));
}
mod zstd_clusters {
    use crate::image::made::{Clusters, open_qcow2};
    crate::device_contract!(Qcow2, |bytes: &[u8]| open_qcow2(bytes, Clusters::Zstd));
}
mod subclusters {
    use crate::image::made::{Clusters, open_qcow2};
    crate::device_contract!(Qcow2, |bytes: &[u8]| open_qcow2(bytes, Clusters::Extended));
}
mod fixed_vhd {
    use crate::image::made::{fixed_vhd, open_vhd};
    crate::device_contract!(Vhd, |bytes: &[u8]| open_vhd(fixed_vhd(bytes)));
}
mod dynamic_vhd {
    use crate::image::made::{dynamic_vhd, open_vhd};
    crate::device_contract!(Vhd, |bytes: &[u8]| open_vhd(dynamic_vhd(bytes)));
}
mod dynamic_vhdx {
    use crate::image::made::open_vhdx;
    crate::device_contract!(Vhdx, open_vhdx);
}

fn read_all(device: &dyn ReadBlocks) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).map(|()| bytes)
}

#[test]
fn what_is_not_there_is_a_hole_and_never_read() {
    let mut content = vec![0; 1 << 20];
    content[500_000..500_100].fill(7);
    for clusters in [Clusters::Plain, Clusters::Extended] {
        let disk = made::open_qcow2(&content, clusters);
        assert!(disk.is_hole(0, 400_000) && disk.is_hole(600_000, 400_000), "{clusters:?}");
        assert!(!disk.is_hole(0, 600_000), "{clusters:?}");
    }
    let disk = made::open_vhd(made::dynamic_vhd(&content));
    assert!(disk.is_hole(0, 400_000) && !disk.is_hole(0, 600_000));
}

#[test]
fn what_is_not_in_an_image_is_in_the_one_below() {
    let mut above = vec![0; 200_000];
    above[40_000..50_000].fill(9);
    let below = pattern(100_000);
    let mut disk = made::open_qcow2(&above, Clusters::Extended);
    disk.set_backing(made::in_memory(below.clone()));
    let read = read_all(&disk).unwrap();
    // A subcluster is 512 bytes. An odd zero subcluster comes from the backing image, an even one
    // is marked as zero.
    for (at, &byte) in read.iter().enumerate() {
        let in_above = (40_000 / 512 * 512..50_176).contains(&at);
        let untouched = !(32_768..65_536).contains(&at);
        if in_above {
            assert_eq!(byte, above[at], "{at}");
        } else if untouched && at / 512 % 2 == 1 {
            assert_eq!(byte, below.get(at).copied().unwrap_or(0), "{at}");
        } else if at / 512 % 2 == 0 {
            assert_eq!(byte, 0, "{at}");
        }
    }
    assert!(!disk.is_hole(0, 8192), "the backing image has data there");
    assert!(disk.is_hole(150_000, 40_000), "the backing image is shorter");
}

#[test]
fn features_that_are_not_known_are_named() {
    let refused = |at: usize, bytes: &[u8]| {
        let mut image = made::qcow2(&pattern(9000), Clusters::Plain);
        image[at..at + bytes.len()].copy_from_slice(bytes);
        let error = Qcow2::open(made::in_memory(image)).err().expect("refused");
        assert!(matches!(error, ImageError::Unsupported { .. }), "{error}");
        error.to_string()
    };
    assert!(refused(32, &1u32.to_be_bytes()).contains("AES"));
    assert!(refused(32, &2u32.to_be_bytes()).contains("LUKS"));
    assert!(refused(72, &(1u64 << 2).to_be_bytes()).contains("external data file"));
    assert!(refused(72, &(1u64 << 1).to_be_bytes()).contains("corrupt"));
    assert!(refused(72, &(1u64 << 40).to_be_bytes()).contains("bit 40"));
    assert!(refused(4, &4u32.to_be_bytes()).contains("version 4"));
    // The image's own name for a bit, with a character that would control a terminal.
    let mut table = 0x6803_f857_u32.to_be_bytes().to_vec();
    table.extend(48u32.to_be_bytes());
    table.extend([0, 40]);
    table.extend(b"new\x1b[2Jthing");
    let mut image = made::qcow2(&pattern(9000), Clusters::Plain);
    image[72..80].copy_from_slice(&(1u64 << 40).to_be_bytes());
    image[112..112 + table.len()].copy_from_slice(&table);
    let error = Qcow2::open(made::in_memory(image)).err().expect("refused").to_string();
    assert!(error.contains("\"new\\u{1b}[2Jthing\" (bit 40)"), "{error}");
}

#[test]
fn differencing_disks_are_refused_by_name() {
    let content = pattern(9000);
    let mut image = made::dynamic_vhd(&content);
    let end = image.len() - 512;
    image[end + 60..end + 64].copy_from_slice(&4u32.to_be_bytes());
    // Adding the flag increased the sum by one.
    let sum = u32::from_be_bytes(*image[end + 64..].first_chunk().unwrap());
    image[end + 64..end + 68].copy_from_slice(&(sum - 1).to_be_bytes());
    let error = Vhd::open(made::in_memory(image)).err().expect("refused").to_string();
    assert!(error.contains("differencing"), "{error}");
    let mut image = made::vhdx(&vec![3; 8192]);
    image[(2 << 20) + 65_536 + 4] = 2;
    let error = Vhdx::open(made::in_memory(image)).err().expect("refused").to_string();
    assert!(error.contains("differencing"), "{error}");
}

#[test]
fn a_footer_that_is_lost_is_found_at_the_start() {
    let content = pattern(90_112);
    let mut image = made::dynamic_vhd(&content);
    let end = image.len() - 512;
    image[end..].fill(0);
    assert_eq!(detect(&MemDevice::new(image.clone())).unwrap(), Format::Vhd);
    assert_eq!(read_all(&made::open_vhd(image)).unwrap(), content);
}

#[test]
fn the_log_of_a_vhdx_image_is_replayed_in_memory() {
    let content = pattern(300_032);
    let mut image = made::vhdx(&content);
    made::into_vhdx_log(&mut image, made::VHDX_TABLE);
    let disk = Vhdx::open(made::in_memory(image.clone())).unwrap();
    assert!(read_all(&disk).unwrap() == content);
    // Without its log, the table is garbage, so the test above did use the logged copy.
    let mut unlogged = image.clone();
    for header in [65_536, 131_072] {
        unlogged[header + 48..header + 64].fill(0);
    }
    made::sign_vhdx_headers(&mut unlogged);
    assert!(read_all(&Vhdx::open(made::in_memory(unlogged)).unwrap()).is_err());
    // A torn log entry is not valid.
    image[made::VHDX_LOG + 4 * 4096 + 100] ^= 1;
    let error = Vhdx::open(made::in_memory(image)).err().expect("refused").to_string();
    assert!(error.contains("not closed"), "{error}");
}

#[test]
fn a_truncated_image_says_so() {
    let content = pattern(90_000);
    for clusters in [Clusters::Plain, Clusters::Deflate] {
        let mut image = made::qcow2(&content, clusters);
        image.truncate(image.len() - 5000);
        let disk = Qcow2::open(made::in_memory(image)).unwrap();
        let error = read_all(&disk).expect_err("cut off").to_string();
        assert!(error.contains("truncated") || error.contains("packed"), "{error}");
    }
}

#[test]
fn a_file_system_with_the_header_of_an_image_in_front_is_not_guessed_at() {
    let mut bytes = made::qcow2(&pattern(9000), Clusters::Plain);
    bytes[1024..1032].copy_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0]);
    bytes[1024 + 56..1024 + 58].copy_from_slice(&0xef53u16.to_le_bytes());
    let error = detect(&MemDevice::new(bytes)).unwrap_err();
    assert!(error.to_string().contains("--format raw"), "{error}");
}

fn unpacked(packed: Vec<u8>, format: Format) -> Result<Vec<u8>, ImageError> {
    let file = MemDevice::new(packed);
    let device = unpack::unpack(&file, format, &std::env::temp_dir())?;
    Ok(read_all(&device)?)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut to = flate2::write::GzEncoder::new(Vec::new(), Default::default());
    to.write_all(bytes).unwrap();
    to.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

#[test]
fn packed_files_are_unpacked_with_all_their_parts() {
    let mut content = pattern(3 << 20);
    content[1 << 20..2 << 20].fill(0);
    let (one, two) = content.split_at(777_777);
    let skipped = [&0x184d_2a53_u32.to_le_bytes()[..], &3u32.to_le_bytes(), b"abc"].concat();
    let gzips = [gzip(one), gzip(two)].concat();
    let frames = [skipped.clone(), zstd(one), skipped, zstd(two)].concat();
    assert!(unpacked(gzips, Format::Gzip).unwrap() == content);
    assert!(unpacked(frames.clone(), Format::Zstd).unwrap() == content);
    for (packed, format) in [(gzip(&content), Format::Gzip), (frames, Format::Zstd)] {
        let cut = packed[..packed.len() - 20].to_vec();
        let error = unpacked(cut, format).unwrap_err();
        assert!(matches!(error, ImageError::Damaged { .. }), "{error}");
    }
}

#[test]
fn zeroes_of_an_unpacked_file_are_holes() {
    let mut content = vec![0; 64 << 20];
    content[32 << 20] = 1;
    let file = MemDevice::new(gzip(&content));
    let device = unpack::unpack(&file, Format::Gzip, &std::env::temp_dir()).unwrap();
    assert_eq!(device.size_bytes(), 64 << 20);
    if !device.is_hole(0, 4096) {
        println!("skipped: this file system tells of no holes");
        return;
    }
    assert!(device.is_hole(0, 32 << 20) && device.is_hole((32 << 20) + 65_536, 31 << 20));
}

#[test]
fn a_frame_that_asks_for_too_much_memory_is_refused() {
    // A window descriptor of 0xf8: 2^41 bytes.
    let frame = [&zstd::MAGIC[..], &[0, 0xf8, 1, 0, 0]].concat();
    let error = unpacked(frame, Format::Zstd).unwrap_err().to_string();
    assert!(error.contains("--long"), "{error}");
}

#[test]
fn a_folder_that_cannot_hold_the_content_is_named() {
    let file = MemDevice::new(gzip(b"abc"));
    let error = unpack::unpack(&file, Format::Gzip, std::path::Path::new("/nowhere")).unwrap_err();
    assert!(error.to_string().contains("/nowhere"), "{error}");
}

/// Made once a thread.
type Images = &'static [(Format, Vec<u8>)];

fn images() -> Vec<(Format, Vec<u8>)> {
    let mut content = pattern(60_000);
    content.resize(60_416, 0);
    let mut images: Vec<(Format, Vec<u8>)> =
        CLUSTERS.iter().map(|&how| (Format::Qcow2, made::qcow2(&content, how))).collect();
    images.push((Format::Vhd, made::fixed_vhd(&content)));
    images.push((Format::Vhd, made::dynamic_vhd(&content)));
    let mut logged = made::vhdx(&content);
    made::into_vhdx_log(&mut logged, made::VHDX_TABLE);
    images.push((Format::Vhdx, made::vhdx(&content)));
    images.push((Format::Vhdx, logged));
    images.push((Format::Gzip, gzip(&content)));
    images.push((Format::Zstd, zstd(&content)));
    images
}

/// Opens an image and reads at some offsets; errors are fine.
fn use_it(format: Format, image: Vec<u8>) {
    let _ = detect(&MemDevice::new(image.clone()));
    let file = made::in_memory(image);
    let opened: Result<Box<dyn ReadBlocks>, ImageError> = match format {
        Format::Raw => Ok(file),
        Format::Qcow2 => Qcow2::open(file).map(|disk| Box::new(disk) as _),
        Format::Vhd => Vhd::open(file).map(|disk| Box::new(disk) as _),
        Format::Vhdx => Vhdx::open(file).map(|disk| Box::new(disk) as _),
        Format::Gzip | Format::Zstd => {
            unpack::unpack(&file, format, &std::env::temp_dir()).map(|disk| Box::new(disk) as _)
        }
    };
    let Ok(disk) = opened else { return };
    let size = disk.size_bytes();
    let mut bytes = vec![0; 70_000];
    for offset in [0, 4095, 60_000, size / 2, size.saturating_sub(70_000), size, u64::MAX] {
        for len in [1, 4096, 70_000] {
            let read = disk.read_at(offset, &mut bytes[..len]);
            if disk.is_hole(offset, len as u64) {
                assert!(read.is_ok() && bytes[..len].iter().all(|&byte| byte == 0));
            }
        }
    }
}

/// A change of an image: an offset (in 2^16ths of the file; small numbers are headers), and the
/// bytes to put there.
fn change() -> impl Strategy<Value = (bool, usize, Vec<u8>)> {
    let number = prop_oneof![
        any::<u64>(),
        Just(u64::MAX),
        Just(0),
        (0u32..64).prop_map(|bit| 1 << bit),
        // Offsets inside the image, so that tables point at tables.
        (0u64..64).prop_map(|cluster| cluster << 12 | 1 << 63),
    ];
    let bytes = prop_oneof![
        number.clone().prop_map(|number| number.to_be_bytes().to_vec()),
        number.prop_map(|number| number.to_le_bytes().to_vec()),
        any::<u8>().prop_map(|byte| vec![byte]),
    ];
    (any::<bool>(), 0..1usize << 16, bytes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    /// Any change of any image gives bytes or an error, within bounded time.
    #[test]
    fn damaged_images_are_answered(
        kind in 0..10usize,
        changes in prop::collection::vec(change(), 1..6),
        cut in prop::option::weighted(0.1, 0..1usize << 16),
        signed in any::<bool>(),
    ) {
        thread_local!(static IMAGES: Cell<Option<Images>> = const { Cell::new(None) });
        let images = IMAGES.with(|held| {
            let images = held.get().unwrap_or_else(|| Box::leak(images().into_boxed_slice()));
            held.set(Some(images));
            images
        });
        let (format, mut image) = images[kind].clone();
        // The non-empty parts of a VHDX image.
        let vhdx = [65_536, 131_072, 196_608, made::VHDX_LOG + 3 * 4096, 2 << 20, (2 << 20) + 65_536,
            made::VHDX_TABLE];
        for (near, at, bytes) in changes {
            let start = match (format, near) {
                (Format::Vhdx, true) => vhdx[at % vhdx.len()] + at / vhdx.len() % 128,
                (_, true) => at % 600.min(image.len()),
                (_, false) => at * image.len() / (1 << 16),
            };
            let len = bytes.len().min(image.len() - start);
            image[start..start + len].copy_from_slice(&bytes[..len]);
        }
        if signed && format == Format::Vhdx {
            made::sign_vhdx_headers(&mut image);
            made::sign_vhdx(&mut image, made::VHDX_LOG + 3 * 4096, 8192);
        }
        if let Some(cut) = cut {
            image.truncate(cut * image.len() / (1 << 16));
        }
        use_it(format, image);
    }

    /// Random bytes behind the start of an image.
    #[test]
    fn any_bytes_are_answered(
        kind in 0..10usize,
        tail in prop::collection::vec(any::<u8>(), 0..3000),
    ) {
        let head = [&b"QFI\xfb\0\0\0\x03"[..], b"QFI\xfb\0\0\0\x02", b"conectix", b"vhdxfile",
            b"\x1f\x8b\x08", &zstd::MAGIC][kind % 6];
        let bytes = [head, &tail].concat();
        for format in Format::ALL {
            use_it(format, bytes.clone());
        }
    }
}

/// A file without its first bytes cannot be an image in a format, but a file system has other
/// superblocks.
#[test]
fn a_disk_whose_first_block_cannot_be_read_is_a_disk() {
    let faults = [(floe_format::BlockNr(0), crate::Fault::Unreadable)];
    let device = crate::Faulty::new(MemDevice::new(vec![0; 1 << 16]), 4096, faults);
    assert_eq!(detect(&device).unwrap(), Format::Raw);
}
