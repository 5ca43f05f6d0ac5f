//! Fault injection: a device that fails where, and only where, it was told to.

use std::collections::BTreeMap;
use std::io;

use floe_format::ids::BlockNr;
use rustix::io::Errno;

use crate::{ReadBlocks, WriteBlocks, within};

/// The fault of one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Reading any byte of it fails with `EIO`.
    Unreadable,
    /// Writing any byte of it fails with `EIO`; reading is fine.
    Unwritable,
    /// Writes to it report success and are lost.
    LosesWrites,
    /// These bits are flipped, numbered from the lowest bit of byte 0 (modulo the block's size).
    FlippedBits(Vec<u32>),
    /// It reads as zeroes.
    Zeroed,
    /// Only `kept_bytes` bytes of its last write arrived; the rest reads as zeroes.
    Torn {
        /// Bytes that arrived.
        kept_bytes: u32,
    },
    /// It holds random bytes of this seed.
    Garbage(u64),
}

/// The number of faults of each kind that [`Faulty::from_seed`] makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultMix {
    /// Blocks that cannot be read.
    pub unreadable: u32,
    /// Blocks with one to eight bits flipped.
    pub flipped: u32,
    /// Blocks of zeroes.
    pub zeroed: u32,
    /// Torn blocks.
    pub torn: u32,
    /// Blocks of random bytes.
    pub garbage: u32,
}

/// A device with faults. Faults never change the device below.
#[derive(Clone, Debug)]
pub struct Faulty<D> {
    inner: D,
    block_bytes: u32,
    faults: BTreeMap<u64, Fault>,
    size_bytes: u64,
}

impl<D: ReadBlocks> Faulty<D> {
    /// `inner` with `faults` in blocks of `block_bytes` (at least 1). If a block has two faults,
    /// the later one counts; faults past the end have no effect.
    pub fn new(
        inner: D,
        block_bytes: u32,
        faults: impl IntoIterator<Item = (BlockNr, Fault)>,
    ) -> Self {
        let size_bytes = inner.size_bytes();
        let faults = faults.into_iter().map(|(block, fault)| (block.0, fault)).collect();
        Self { inner, block_bytes: block_bytes.max(1), faults, size_bytes }
    }

    /// `inner` with faults chosen by `seed`: the same seed always gives the same faults.
    pub fn from_seed(inner: D, block_bytes: u32, seed: u64, mix: FaultMix) -> Self {
        let block_bytes = block_bytes.max(1);
        let blocks = (inner.size_bytes() / u64::from(block_bytes)).max(1);
        let mut random = SplitMix(seed);
        let mut faults = Vec::new();
        let mut strike = |count: u32, make: &dyn Fn(&mut SplitMix) -> Fault| {
            for _ in 0..count {
                let block = BlockNr(random.below(blocks));
                faults.push((block, make(&mut random)));
            }
        };
        // A huge block may have more than 2^32 bits; those beyond are never flipped.
        let bits = block_bytes.saturating_mul(8);
        let below = |random: &mut SplitMix, end: u32| random.below(u64::from(end)) as u32;
        strike(mix.unreadable, &|_| Fault::Unreadable);
        strike(mix.flipped, &|random| {
            let count = 1 + random.below(8);
            Fault::FlippedBits((0..count).map(|_| below(random, bits)).collect())
        });
        strike(mix.zeroed, &|_| Fault::Zeroed);
        strike(mix.torn, &|random| Fault::Torn { kept_bytes: below(random, block_bytes) });
        strike(mix.garbage, &|random| Fault::Garbage(random.next()));
        Self::new(inner, block_bytes, faults)
    }

    /// The same device, cut off after `size_bytes`: what follows cannot be read.
    #[must_use]
    pub fn truncated(self, size_bytes: u64) -> Self {
        Self { size_bytes: self.size_bytes.min(size_bytes), ..self }
    }

    /// The faults, by block: print these when a test fails.
    pub fn faults(&self) -> impl Iterator<Item = (BlockNr, &Fault)> {
        self.faults.iter().map(|(&block, fault)| (BlockNr(block), fault))
    }

    /// Bytes of the blocks that have faults.
    pub const fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// The device below.
    pub const fn inner(&self) -> &D {
        &self.inner
    }

    /// The faults in the blocks that a range touches; none for an empty range.
    fn struck(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> impl Iterator<Item = (u64, &Fault)> + use<'_, D> {
        let block = u64::from(self.block_bytes);
        let first = offset_bytes / block;
        // An empty range touches no block, so its end is its start.
        let end = if len_bytes == 0 {
            first
        } else {
            // At most the number of the last byte's block plus 1. This overflows only with blocks
            // of one byte, where saturating loses a block that cannot exist.
            (offset_bytes.saturating_add(len_bytes - 1) / block).saturating_add(1)
        };
        self.faults.range(first..end).map(|(&block, fault)| (block, fault))
    }
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(Errno::IO.raw_os_error())
}

impl Fault {
    /// Applies the fault to `bytes`, which hold the block's bytes from `from_byte` on.
    fn strike(&self, bytes: &mut [u8], from_byte: u64, block_bytes: u32) -> io::Result<()> {
        match self {
            Self::Unreadable => return Err(eio()),
            Self::Unwritable | Self::LosesWrites => {}
            Self::Zeroed => bytes.fill(0),
            Self::FlippedBits(bits) => {
                for bit in bits {
                    let byte = u64::from(bit / 8 % block_bytes);
                    let hit = byte.checked_sub(from_byte).and_then(|at| usize::try_from(at).ok());
                    if let Some(byte) = hit.and_then(|at| bytes.get_mut(at)) {
                        *byte ^= 1 << (bit % 8);
                    }
                }
            }
            Self::Torn { kept_bytes } => {
                let kept = u64::from(*kept_bytes).saturating_sub(from_byte);
                bytes
                    .iter_mut()
                    .skip(usize::try_from(kept).unwrap_or(usize::MAX))
                    .for_each(|byte| *byte = 0);
            }
            Self::Garbage(seed) => {
                for (index, byte) in (from_byte..).zip(bytes) {
                    // Each byte depends on its offset alone, so that any range reads the same.
                    *byte = SplitMix(seed.wrapping_add(index)).next() as u8;
                }
            }
        }
        Ok(())
    }
}

impl<D: ReadBlocks> ReadBlocks for Faulty<D> {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        within(self.size_bytes, offset_bytes, into.len())?;
        self.inner.read_at(offset_bytes, into)?;
        let len = into.len() as u64;
        for (block, fault) in self.struck(offset_bytes, len) {
            // The range touches the block, so none of this overflows or leaves `into`.
            let block_start = block * u64::from(self.block_bytes);
            let start = block_start.max(offset_bytes);
            let end =
                block_start.saturating_add(u64::from(self.block_bytes)).min(offset_bytes + len);
            let own = &mut into[(start - offset_bytes) as usize..(end - offset_bytes) as usize];
            fault.strike(own, start - block_start, self.block_bytes)?;
        }
        Ok(())
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let inside = offset_bytes.checked_add(len_bytes).is_some_and(|end| end <= self.size_bytes);
        inside
            && self.struck(offset_bytes, len_bytes).next().is_none()
            && self.inner.is_hole(offset_bytes, len_bytes)
    }
}

impl<D: WriteBlocks> WriteBlocks for Faulty<D> {
    /// Writes to the device below; blocks that lose writes keep their old content. A range with an
    /// unwritable block fails as a whole, with nothing written.
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        within(self.size_bytes, offset_bytes, from.len())?;
        let len = from.len() as u64;
        if self.struck(offset_bytes, len).any(|(_, fault)| *fault == Fault::Unwritable) {
            return Err(eio());
        }
        let mut done = 0;
        for (block, fault) in self.struck(offset_bytes, len) {
            if *fault != Fault::LosesWrites {
                continue;
            }
            let block_start = (block * u64::from(self.block_bytes)).max(offset_bytes);
            let until = (block_start - offset_bytes) as usize;
            self.inner.write_at(offset_bytes + done as u64, &from[done..until])?;
            let in_block = u64::from(self.block_bytes) - block_start % u64::from(self.block_bytes);
            done = until.saturating_add(in_block as usize).min(from.len());
        }
        self.inner.write_at(offset_bytes + done as u64, &from[done..])
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn current_size_bytes(&self) -> io::Result<u64> {
        Ok(self.inner.current_size_bytes()?.min(self.size_bytes))
    }

    fn forget(&self, offset_bytes: u64, len_bytes: u64) {
        self.inner.forget(offset_bytes, len_bytes);
    }
}

/// Vigna's `SplitMix64`: small, and stable across versions and machines, so that a failing seed can
/// be replayed.
#[derive(Clone, Debug)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not 0. The bias of the remainder does not matter for faults.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;
    use proptest::prelude::*;

    /// A device without faults behaves like the device below.
    fn faultless(bytes: &[u8]) -> Faulty<MemDevice> {
        Faulty::new(MemDevice::new(bytes.to_vec()), 4096, [])
    }

    crate::device_contract!(writable Faulty, super::faultless);

    const MIX: FaultMix = FaultMix { unreadable: 0, flipped: 3, zeroed: 2, torn: 2, garbage: 2 };

    proptest! {
        #[test]
        fn a_range_reads_as_the_whole_does(seed: u64, offset in 0usize..1000, len in 0usize..1000) {
            let device = Faulty::from_seed(MemDevice::new(vec![0x5a; 2000]), 100, seed, MIX);
            let mut whole = vec![0; 2000];
            device.read_at(0, &mut whole).unwrap();
            let mut part = vec![0; len];
            device.read_at(offset as u64, &mut part).unwrap();
            prop_assert_eq!(&part[..], &whole[offset..offset + len]);
            // Only blocks with a fault differ, and the same seed makes the same faults.
            for (nr, block) in whole.chunks(100).enumerate() {
                let struck = device.faults.contains_key(&(nr as u64));
                prop_assert!(struck || block.iter().all(|&byte| byte == 0x5a));
            }
            let again = Faulty::from_seed(MemDevice::new(vec![0x5a; 2000]), 100, seed, MIX);
            prop_assert_eq!(&again.faults, &device.faults);
        }

        #[test]
        fn writes_reach_all_blocks_but_those_that_lose_them(
            losing in prop::collection::btree_set(0u64..20, 0..8),
            offset in 0usize..1000,
            len in 0usize..1000,
        ) {
            let faults = losing.iter().map(|&nr| (BlockNr(nr), Fault::LosesWrites));
            let device = Faulty::new(MemDevice::new(vec![0; 2000]), 100, faults);
            device.write_at(offset as u64, &vec![1; len]).unwrap();
            for (place, byte) in device.inner().to_vec().into_iter().enumerate() {
                let written = (offset..offset + len).contains(&place);
                let lost = losing.contains(&(place as u64 / 100));
                prop_assert_eq!(byte, u8::from(written && !lost), "byte {}", place);
            }
        }
    }

    #[test]
    fn each_fault_is_what_it_says() {
        let faults = [
            (BlockNr(0), Fault::Unreadable),
            (BlockNr(1), Fault::FlippedBits(vec![0, 15])),
            (BlockNr(2), Fault::Zeroed),
            (BlockNr(3), Fault::Torn { kept_bytes: 3 }),
            (BlockNr(4), Fault::Unwritable),
        ];
        let device = Faulty::new(MemDevice::new(vec![0xff; 80]), 8, faults);
        let read = |offset, len: usize| {
            let mut bytes = vec![0; len];
            device.read_at(offset, &mut bytes).map(|()| bytes)
        };
        assert_eq!(read(7, 2).unwrap_err().raw_os_error(), Some(5));
        assert_eq!(read(8, 3).unwrap(), [0xfe, 0x7f, 0xff]);
        assert_eq!(read(15, 2).unwrap(), [0xff, 0]);
        assert_eq!(read(24, 8).unwrap(), [0xff, 0xff, 0xff, 0, 0, 0, 0, 0]);
        assert_eq!(read(28, 1).unwrap(), [0]);
        assert_eq!(device.write_at(39, &[0; 2]).unwrap_err().raw_os_error(), Some(5));
        assert_eq!(read(39, 2).unwrap(), [0xff, 0xff]);
        device.write_at(40, &[0; 2]).unwrap();
        let short = device.truncated(42);
        assert_eq!(short.size_bytes(), 42);
        assert_eq!(
            short.read_at(41, &mut [0; 2]).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }
}
