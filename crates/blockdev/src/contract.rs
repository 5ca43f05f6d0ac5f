//! The contract of every device, as tests: [`device_contract!`](crate::device_contract).
//!
//! These functions panic if a device breaks the contract. They are for tests alone (feature
//! `contract` makes them available to the tests of other crates).

// A violation must fail the test that calls these.
#![allow(clippy::unwrap_used)]

use std::io::ErrorKind;

use crate::{ReadBlocks, WriteBlocks};

/// Sizes at the edges: nothing, less than a sector, odd, whole blocks, many blocks.
const SIZES: [usize; 7] = [0, 1, 511, 4096, 4097, 65_536, 300_001];

/// Makes tests of the contract of [`ReadBlocks`] (and, after `writable`, of [`WriteBlocks`]) for
/// one kind of device. The second argument makes a device that holds the given bytes (`Fn(&[u8]) ->
/// impl ReadBlocks`); name the items it uses through `super::` or `crate::`. Use it once per
/// module.
///
/// ```ignore
/// device_contract!(writable MemDevice, |bytes: &[u8]| crate::MemDevice::new(bytes.to_vec()));
/// ```
#[macro_export]
macro_rules! device_contract {
    (writable $device:ident, $make:expr) => {
        $crate::device_contract!($device, $make);

        mod writable_device_contract {
            #[allow(unused_imports)]
            use super::*;

            #[test]
            fn what_is_written_is_read_and_the_rest_stays() {
                $crate::contract::writes_are_read(&$make);
            }

            #[test]
            fn a_write_past_the_end_fails_and_changes_nothing() {
                $crate::contract::writes_past_the_end_fail(&$make);
            }

            #[test]
            fn batches_zeroes_and_range_flushes_are_writes() {
                $crate::contract::batches_and_zeroes_are_writes(&$make);
            }

            #[test]
            fn a_discard_leaves_the_rest() {
                $crate::contract::discards_leave_the_rest(&$make);
            }
        }
    };
    ($device:ident, $make:expr) => {
        mod device_contract {
            #[allow(unused_imports)]
            use super::*;

            #[test]
            fn size_and_bytes_are_those_given() {
                $crate::contract::bytes_are_those_given(&$make);
            }

            #[test]
            fn a_read_past_the_end_is_unexpected_eof() {
                $crate::contract::reads_past_the_end_fail(&$make);
            }

            #[test]
            fn threads_read_the_same() {
                $crate::contract::threads_agree(&$make);
            }

            #[test]
            fn hints_change_nothing() {
                $crate::contract::hints_change_nothing(&$make);
            }

            #[test]
            fn a_hole_reads_as_zeroes() {
                $crate::contract::holes_are_zero(&$make);
            }
        }
    };
}

/// `len` bytes that differ from place to place, with ranges of zeroes in between.
pub fn pattern(len: usize) -> Vec<u8> {
    let stretch = |index: usize| index % 16_384 < 8192;
    (0..len)
        .map(|index| if stretch(index) { (index.wrapping_mul(31) >> 3) as u8 | 1 } else { 0 })
        .collect()
}

/// Size and every byte are those the device was made of, for reads of many lengths.
pub fn bytes_are_those_given<D: ReadBlocks>(make: &impl Fn(&[u8]) -> D) {
    for size in SIZES {
        let bytes = pattern(size);
        let device = make(&bytes);
        assert_eq!(device.size_bytes(), size as u64);
        for len in [1, 7, 512, 4096, 65_536, size] {
            // Small reads of large devices take long and test nothing new.
            if len == 0 || (size > 5000 && len < 512) {
                continue;
            }
            let mut read = vec![0xcc; size];
            for (index, chunk) in read.chunks_mut(len).enumerate() {
                device.read_at((index * len) as u64, chunk).unwrap();
            }
            assert!(read == bytes, "reads of {len} bytes of a device of {size} differ");
        }
        device.read_at(0, &mut []).unwrap();
        device.read_at(size as u64, &mut []).unwrap();
    }
}

/// A range that passes the end is `UnexpectedEof`, however far out.
pub fn reads_past_the_end_fail<D: ReadBlocks>(make: &impl Fn(&[u8]) -> D) {
    for size in SIZES {
        let device = make(&pattern(size));
        let size = size as u64;
        for (offset, len) in
            [(size, 1), (size.saturating_sub(1), 2), (0, size + 1), (u64::MAX, 1), (u64::MAX, 2)]
        {
            let mut into = vec![0; len as usize];
            let error = device.read_at(offset, &mut into).expect_err("past the end");
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "at {offset} of {size}: {error}");
        }
        assert!(device.read_at(size.wrapping_add(1), &mut [0]).is_err());
    }
}

/// Prefetch hints, given once or twice, for part of a range or past the end, change neither the
/// bytes read nor the error at the end.
pub fn hints_change_nothing<D: ReadBlocks>(make: &impl Fn(&[u8]) -> D) {
    for size in SIZES {
        let bytes = pattern(size);
        let device = make(&bytes);
        let size = size as u64;
        for (offset, len) in
            [(0, 4096), (1000, 5000), (70_000, size), (size / 2, u64::MAX), (u64::MAX, 1), (0, 0)]
        {
            device.will_need(offset, len);
            device.will_need_in_sequence(offset, len);
        }
        let mut read = vec![0xcc; bytes.len()];
        for (chunk, at) in read.chunks_mut(3000).zip((0..).step_by(3000)) {
            device.read_at(at, chunk).unwrap();
        }
        assert!(read == bytes, "{size} bytes, announced");
        device.will_need(0, size);
        device.read_at(0, &mut read).unwrap();
        assert!(read == bytes, "{size} bytes, announced again");
        let error = device.read_at(size, &mut [0]).expect_err("past the end");
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
    }
}

/// Threads that read concurrently read the same bytes as a single thread.
pub fn threads_agree<D: ReadBlocks>(make: &impl Fn(&[u8]) -> D) {
    let bytes = pattern(200_000);
    let device = make(&bytes);
    floe_sync::thread::scope(|scope| {
        for thread in 0..4usize {
            let (device, bytes) = (&device, &bytes);
            scope.spawn(move || {
                for turn in 0..200usize {
                    let offset = (turn * 7919 + thread * 104_729) % 190_000;
                    let mut into = vec![0; 1 + turn * 37 % 9999];
                    device.read_at(offset as u64, &mut into).unwrap();
                    assert!(into == bytes[offset..offset + into.len()], "thread {thread}");
                    let _ = device.is_hole(offset as u64, 4096);
                }
            });
        }
    });
}

/// A reported hole lies inside the device and reads as zeroes.
pub fn holes_are_zero<D: ReadBlocks>(make: &impl Fn(&[u8]) -> D) {
    for size in SIZES {
        let device = make(&pattern(size));
        let size = size as u64;
        assert!(!device.is_hole(0, size + 1), "a hole past the end");
        assert!(!device.is_hole(u64::MAX, 1), "a hole past the end");
        for offset in (0..size).step_by(1024) {
            for len in [1, 4096, 16_384] {
                if device.is_hole(offset, len) {
                    let mut into = vec![1; len as usize];
                    device.read_at(offset, &mut into).expect("a hole inside the device");
                    assert!(into.iter().all(|&byte| byte == 0), "hole at {offset} has data");
                }
            }
        }
    }
}

/// Written bytes are read back, their neighbours are untouched, before and after a flush.
pub fn writes_are_read<D: WriteBlocks>(make: &impl Fn(&[u8]) -> D) {
    let mut expected = pattern(100_000);
    let device = make(&expected);
    let mut read = vec![0; expected.len()];
    for (offset, len) in [(0usize, 1usize), (4095, 2), (8192, 4096), (50_001, 30_000), (99_999, 1)]
    {
        let new = vec![(offset % 251) as u8 | 1; len];
        device.write_at(offset as u64, &new).unwrap();
        expected[offset..offset + len].copy_from_slice(&new);
        device.read_at(0, &mut read).unwrap();
        assert!(read == expected, "after writing {len} bytes at {offset}");
        assert!(!device.is_hole(offset as u64, len as u64));
    }
    device.write_at(0, &[]).unwrap();
    device.flush().unwrap();
    device.read_at(0, &mut read).unwrap();
    assert!(read == expected, "after a flush");
    assert_eq!(device.size_bytes(), expected.len() as u64);
}

/// A write that passes the end is `UnexpectedEof`, and neither bytes nor size change.
pub fn writes_past_the_end_fail<D: WriteBlocks>(make: &impl Fn(&[u8]) -> D) {
    let bytes = pattern(10_000);
    let device = make(&bytes);
    for (offset, len) in [(10_000u64, 1usize), (9_999, 2), (0, 10_001), (u64::MAX, 2)] {
        let error = device.write_at(offset, &vec![9; len]).expect_err("past the end");
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }
    let mut read = vec![0; bytes.len()];
    device.read_at(0, &mut read).unwrap();
    assert!(read == bytes);
    assert_eq!(device.size_bytes(), 10_000);
}

/// Batches and zeroes are read back, their neighbours are untouched; those that pass the end fail.
pub fn batches_and_zeroes_are_writes<D: WriteBlocks>(make: &impl Fn(&[u8]) -> D) {
    let mut expected = pattern(100_000);
    let device = make(&expected);
    device.write_batch(&[]).unwrap();
    device.write_batch(&[(10, &[1; 5]), (70_000, &[2; 9000]), (15, &[3; 5])]).unwrap();
    expected[10..15].fill(1);
    expected[15..20].fill(3);
    expected[70_000..79_000].fill(2);
    for (offset, len) in [(0usize, 0usize), (17, 1), (4096, 8192), (30_001, 20_000), (99_999, 1)] {
        device.write_zeroes(offset as u64, len as u64).unwrap();
        expected[offset..offset + len].fill(0);
    }
    device.flush_range(0, 50_000).unwrap();
    device.flush_range(u64::MAX, u64::MAX).unwrap();
    let mut read = vec![0; expected.len()];
    device.read_at(0, &mut read).unwrap();
    assert!(read == expected);
    for (offset, len) in [(100_000, 1), (0, 100_001), (u64::MAX, 2), (99_999, u64::MAX)] {
        let error = device.write_zeroes(offset, len).expect_err("past the end");
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }
    assert!(device.write_batch(&[(99_999, &[1; 2])]).is_err());
    device.read_at(0, &mut read).unwrap();
    assert!(read == expected, "a write that failed changed bytes");
    assert_eq!(device.size_bytes(), 100_000);
}

/// A discard changes nothing outside of its range, and the range can be written again.
pub fn discards_leave_the_rest<D: WriteBlocks>(make: &impl Fn(&[u8]) -> D) {
    let bytes = pattern(100_000);
    let device = make(&bytes);
    device.discard(8192, 16_384).unwrap();
    device.discard(50_001, 9_000).unwrap();
    device.discard(0, 0).unwrap();
    let mut read = vec![0; bytes.len()];
    device.read_at(0, &mut read).unwrap();
    for range in [0..8192, 24_576..50_001, 59_001..100_000] {
        assert!(read[range.clone()] == bytes[range.clone()], "{range:?}");
    }
    device.write_at(8192, &bytes[8192..24_576]).unwrap();
    device.read_at(0, &mut read).unwrap();
    assert!(read[..50_001] == bytes[..50_001], "written after a discard");
    assert_eq!(device.size_bytes(), 100_000);
}
