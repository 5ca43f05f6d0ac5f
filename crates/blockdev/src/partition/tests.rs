//! Tables made by other programs, and hostile tables.

use super::*;
use crate::{FileDevice, MemDevice};
use proptest::prelude::*;
use std::path::Path;
use std::process::Command;

/// An image of `mib` MiB after `program args image`; `None` if the program is missing.
fn image_by(mib: u64, program: &str, args: &[&str]) -> Option<tempfile::NamedTempFile> {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(mib << 20).unwrap();
    let path = ["/usr/sbin/", "/sbin/", "/usr/bin/"]
        .iter()
        .map(|dir| format!("{dir}{program}"))
        .find(|path| Path::new(path).exists());
    let Some(path) = path else {
        println!("skipped: no {program} here");
        return None;
    };
    let (before, after): (Vec<&str>, Vec<&str>) = if program == "parted" {
        (vec!["-s", "-a", "none"], args.to_vec())
    } else {
        (args.to_vec(), vec![])
    };
    let output = Command::new(path).args(before).arg(file.path()).args(after).output().unwrap();
    assert!(output.status.success(), "{program}: {output:?}");
    Some(file)
}

fn summary(table: &PartitionTable) -> Vec<(u32, u64, u64)> {
    let sectors = |p: &Partition| (p.number, p.start_bytes / 512, p.len_bytes / 512);
    table.partitions.iter().map(sectors).collect()
}

const GPT_ARGS: [&str; 8] =
    ["-n", "1:2048:4095", "-c", "1:boot \u{e4}", "-n", "5:8192:16383", "-t", "5:8200"];

#[test]
fn a_gpt_by_sgdisk() {
    let Some(image) = image_by(16, "sgdisk", &GPT_ARGS) else { return };
    let device = FileDevice::open(image.path()).unwrap();
    let table = PartitionTable::read(&device, None).unwrap();
    assert_eq!((table.scheme, table.sector_bytes), (Scheme::Gpt, 512));
    assert_eq!(summary(&table), [(1, 2048, 2048), (5, 8192, 8192)]);
    assert_eq!(table.get(1).unwrap().name, "boot \u{e4}");
    assert_eq!(table.get(1).unwrap().kind.to_string(), "Linux");
    assert_eq!(table.get(5).unwrap().kind.to_string(), "Linux swap");
    let error = table.clone().open(&device, 2).unwrap_err().to_string();
    assert!(error.contains("no partition 2") && error.contains("1 (Linux"), "{error}");
    let window = table.open(&device, 5).unwrap();
    assert_eq!((window.offset_bytes(), window.size_bytes()), (8192 * 512, 8192 * 512));
}

#[test]
fn a_damaged_gpt_is_read_from_its_backup_or_refused() {
    let Some(image) = image_by(16, "sgdisk", &GPT_ARGS) else { return };
    let good = std::fs::read(image.path()).unwrap();
    let table = PartitionTable::read(&MemDevice::new(good.clone()), None).unwrap();
    let last = good.len() - 512;
    // In the header or in an entry: either way the backup is used.
    for broken in [512 + 40, 1024 + 4, 512 + 16, 512 + 84] {
        let mut bytes = good.clone();
        bytes[broken] ^= 0x10;
        assert_eq!(PartitionTable::read(&MemDevice::new(bytes.clone()), None).unwrap(), table);
        bytes[last + 40] ^= 1;
        let both = PartitionTable::read(&MemDevice::new(bytes), None);
        assert!(matches!(both, Err(PartitionError::DamagedGpt)), "{both:?}");
    }
    let mut wiped = good.clone();
    wiped[512..1024].fill(0);
    assert_eq!(PartitionTable::read(&MemDevice::new(wiped), None).unwrap(), table);
    // Truncated behind the first partition: the table is valid, the second partition is gone.
    let cut = MemDevice::new(good[..5 << 19].to_vec());
    let table = PartitionTable::read(&cut, None).unwrap();
    assert_eq!(table.clone().open(&cut, 1).unwrap().size_bytes(), 1 << 20);
    assert!(matches!(table.open(&cut, 5), Err(PartitionError::PastEnd { .. })));
}

#[test]
fn an_mbr_with_logical_partitions_by_parted() {
    let args = "mklabel msdos mkpart primary ext4 2048s 4095s mkpart extended 6144s 30719s \
                mkpart logical ext4 8192s 10239s mkpart logical ext4 12288s 14335s \
                mkpart logical ext4 16384s 20479s mkpart primary fat32 30720s 32767s";
    let args: Vec<&str> = args.split_whitespace().collect();
    let Some(image) = image_by(16, "parted", &args) else { return };
    let device = FileDevice::open(image.path()).unwrap();
    let table = PartitionTable::read(&device, None).unwrap();
    assert_eq!((table.scheme, table.sector_bytes), (Scheme::Mbr, 512));
    let expected = [
        (1, 2048, 2048),
        (2, 6144, 24_576),
        (3, 30_720, 2048),
        (5, 8192, 2048),
        (6, 12_288, 2048),
        (7, 16_384, 4096),
    ];
    assert_eq!(summary(&table), expected);
    let window = table.clone().open(&device, 7).unwrap();
    assert_eq!((window.offset_bytes(), window.size_bytes()), (16_384 * 512, 4096 * 512));
    assert!(matches!(table.open(&device, 2), Err(PartitionError::Extended { .. })));
}

#[test]
fn file_systems_without_a_table_have_none() {
    let none = |bytes: Vec<u8>| {
        matches!(PartitionTable::read(&MemDevice::new(bytes), None), Err(PartitionError::NoTable))
    };
    assert!(none(vec![]) && none(vec![0; 511]) && none(vec![0; 8192]));
    if let Some(image) = image_by(4, "mke2fs", &["-q", "-F"]) {
        assert!(none(std::fs::read(image.path()).unwrap()));
    }
    // A boot sector: the signature is valid, but code lies in place of a table.
    let mut boot = vec![0x3c; 4096];
    boot[510..512].copy_from_slice(&[0x55, 0xaa]);
    assert!(none(boot));
}

/// A first sector with these entries: (type, start, length).
fn mbr_sector(entries: &[(u8, u32, u32)]) -> [u8; 512] {
    let mut sector = [0; 512];
    for (index, (kind, start, len)) in entries.iter().enumerate() {
        let at = 446 + 16 * index;
        sector[at + 4] = *kind;
        sector[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
        sector[at + 12..at + 16].copy_from_slice(&len.to_le_bytes());
    }
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

#[test]
fn an_mbr_put_over_a_gpt_counts() {
    let Some(image) = image_by(16, "sgdisk", &GPT_ARGS) else { return };
    let mut bytes = std::fs::read(image.path()).unwrap();
    bytes[..512].copy_from_slice(&mbr_sector(&[(0x83, 64, 100)]));
    let table = PartitionTable::read(&MemDevice::new(bytes.clone()), None).unwrap();
    assert_eq!((table.scheme, summary(&table)), (Scheme::Mbr, vec![(1, 64, 100)]));
    // Without any MBR, the GPT is used.
    bytes[..512].fill(0);
    let table = PartitionTable::read(&MemDevice::new(bytes), None).unwrap();
    assert_eq!((table.scheme, table.partitions.len()), (Scheme::Gpt, 2));
}

#[test]
fn a_chain_in_a_loop_ends() {
    let mut bytes = vec![0; 64 * 512];
    bytes[..512].copy_from_slice(&mbr_sector(&[(5, 8, 50), (5, 8, 50), (0x0f, u32::MAX, 9)]));
    // Its link leads back to itself, through sector 9.
    bytes[8 * 512..9 * 512].copy_from_slice(&mbr_sector(&[(0x83, 1, 1), (5, 1, 1)]));
    bytes[9 * 512..10 * 512].copy_from_slice(&mbr_sector(&[(0x83, 2, 1), (5, 0, 1)]));
    let table = PartitionTable::read(&MemDevice::new(bytes), None).unwrap();
    let numbers: Vec<u32> = table.partitions.iter().map(|p| p.number).collect();
    assert_eq!(numbers, [1, 2, 3, 5, 6, 7, 8]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn hostile_tables_do_no_harm(
        entries in prop::collection::vec((prop_oneof![Just(5u8), Just(0x83), any::<u8>()],
            prop_oneof![0u32..40, any::<u32>()], any::<u32>()), 0..4),
        chain in prop::collection::vec((0u32..30, 0u32..30), 32),
        sector_bytes in prop::option::of(any::<u32>()),
    ) {
        let mut bytes = mbr_sector(&entries).to_vec();
        for (data, link) in chain {
            bytes.extend(mbr_sector(&[(0x83, data, 1), (5, link, 1)]));
        }
        let device = MemDevice::new(bytes);
        if let Ok(table) = PartitionTable::read(&device, sector_bytes) {
            prop_assert!(table.partitions.len() <= 4 + 256 + 4);
            for number in 0..10 {
                let _ = table.clone().open(&device, number);
            }
        }
    }

    /// A header with any numbers in it and a valid checksum.
    #[test]
    fn hostile_gpt_headers_do_no_harm(
        fields in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xff), any::<u8>()], 92),
        header_len in prop_oneof![Just(92u32), any::<u32>()],
    ) {
        let mut bytes = vec![0; 4096];
        bytes[512..604].copy_from_slice(&fields);
        bytes[512..520].copy_from_slice(b"EFI PART");
        bytes[524..528].copy_from_slice(&header_len.to_le_bytes());
        bytes[528..532].fill(0);
        let crc = crc32fast::hash(&bytes[512..604]);
        bytes[528..532].copy_from_slice(&crc.to_le_bytes());
        let _ = PartitionTable::read(&MemDevice::new(bytes), None);
    }

    #[test]
    fn hostile_gpt_entries_do_no_harm(entry in prop::collection::vec(any::<u8>(), 128)) {
        let _ = gpt_entry(1, &entry, 4096).map(|partition| partition.to_string());
    }
}
