//! Blocks that are freed are given back to the device once that is durable: it may forget what they held, and nobody misses it,
//! whenever the power fails.

use std::io;

use floe_blockdev::{MemDevice, ReadBlocks, Recorder, WriteBlocks};
use floe_fs::Limits;
use floe_testkit::crash::Effort;
use floe_testkit::tool;

use super::acts::{Act, run};
use super::crash::record_through;
use super::live::base;
use super::patterns;

/// Bytes of blocks that were discarded.
const SHREDS: u8 = 0xdd;

/// Calls that free blocks, some of which are used again.
const FREES: &str = "create a; write a 0 8000; fsync a; create b; write b 0 5000; fsync b; unlink a; sync; create c; \
                     write c 0 6000; rename c b; fsync b; sync; truncate b 100; fsync b; create a; write a 0 7000; fsync a; \
                     unlink a; sync; write b 3000 2000; sync; mkdir d; create d/e; write d/e 0 9000; sync; unlink d/e; \
                     rmdir d; sync; create f; write f 0 9000; fsync f";

/// A device that writes something else at once to what is discarded.
struct Shredding<'r>(&'r Recorder<MemDevice>);

impl ReadBlocks for Shredding<'_> {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset_bytes, into)
    }
}

impl WriteBlocks for Shredding<'_> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        self.0.write_at(offset_bytes, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<bool> {
        let shreds = vec![SHREDS; usize::try_from(len_bytes).map_err(io::Error::other)?];
        self.0.write_at(offset_bytes, &shreds)?;
        Ok(true)
    }
}

#[test]
fn what_is_freed_is_discarded_and_survives_any_crash() {
    if tool::missing() {
        return;
    }
    let (mut states, mut discards) = (0, 0);
    let wal = patterns::patterns().find(|(name, _)| *name == "write-ahead log").unwrap().1;
    let frees = FREES.split(';').map(patterns::parse).collect();
    let all: [Vec<Act>; 2] = [wal, frees];
    for acts in all {
        let recorder = Recorder::new(MemDevice::new(base().to_vec()));
        let told = record_through(
            Shredding(&recorder),
            &recorder,
            base().to_vec(),
            &acts,
            Limits::default(),
            |memory, turn, act| run(memory, turn, act),
        );
        let told = told.unwrap();
        discards += told.count_writes(|bytes| bytes.iter().all(|byte| *byte == SHREDS));
        let effort = Effort { random_per_epoch: 1, seed: 8 };
        states += told.explore(effort, 50).unwrap_or_else(|error| panic!("{error:#}"));
    }
    eprintln!("{states} states, {discards} discards");
    assert!(states > 150 && discards > 4, "{states} states, {discards} discards");
}
