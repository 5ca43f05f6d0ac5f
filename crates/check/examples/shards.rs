//! Checks an image in shards and merges their parts: `cargo run -p floe-check --example shards -- disk.img 4`
//!
//! Here one shard follows another. Each of them needs nothing but the device, its share and the key, so it may as well
//! run on a machine of its own; only the bytes of its part have to come back.

use std::error::Error;
use std::io::{self, Read};
use std::path::Path;

use floe_blockdev::FileDevice;
use floe_check::checkpoint::{Parts, Share};
use floe_check::{Accounting, CheckOptions, Checkpoints, Report, Tuning, check, check_shard};

/// The bytes of parts. Files would do as well.
struct InMemory(Vec<Vec<u8>>);

impl Parts for InMemory {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn name(&self, at: usize) -> String {
        format!("part {at}")
    }
    fn open(&self, at: usize) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(&self.0[at][..]))
    }
}

fn check_in_shards(path: &Path, count: u32) -> Result<Report, Box<dyn Error>> {
    let device = FileDevice::open(path)?;
    // The creator of the image must not know the key: take random bytes. All shards share the key and the time.
    let mut key = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
    let tuning =
        Tuning { key: Some(key), accounting: Accounting::Fingerprint, ..Tuning::default() };
    let options = CheckOptions { tuning, ..CheckOptions::default() };
    let mut parts = InMemory(Vec::new());
    for index in 0..count {
        let share = Share::new(index, count).ok_or("there is no such shard")?;
        let mut bytes = Vec::new();
        check_shard(&device, &options, share)?.write(&mut bytes)?;
        parts.0.push(bytes);
    }
    let checkpoints = Checkpoints { parts: Some(&parts), keeper: None };
    Ok(check(&device, &CheckOptions { checkpoints, ..options })?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let path = arguments.next().ok_or("name an image")?;
    let count = arguments.next().map_or(Ok(4), |text| text.to_string_lossy().parse())?;
    let report = check_in_shards(path.as_ref(), count)?;
    for problem in &report.found {
        println!("{problem}");
    }
    println!("{}: {} findings", report.verdict().name(), report.found.len());
    Ok(())
}
