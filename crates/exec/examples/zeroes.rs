//! Work on all cores without a lock: `cargo run -p floe-exec --example zeroes -- disk.img`
//!
//! Counts the zero blocks of a file. Each worker fills an accumulator of its own. They are merged
//! at the end, and neither their number nor their order affects the result.

use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use floe_exec::{Accumulator, Pool, default_threads};

/// Bytes of a unit of work.
const UNIT: u64 = 1 << 20;
/// Bytes tested together.
const BLOCK: usize = 4096;

/// The counts of one worker.
#[derive(Default)]
struct Share {
    blocks: u64,
    zero: u64,
    errors: Vec<io::Error>,
}

impl Accumulator for Share {
    fn merge(&mut self, mut other: Self) {
        self.blocks += other.blocks;
        self.zero += other.zero;
        self.errors.append(&mut other.errors);
    }
}

fn count(file: &File, unit: &Range<u64>, share: &mut Share) {
    let mut bytes = vec![0; usize::try_from(unit.end - unit.start).unwrap_or(0)];
    if let Err(error) = file.read_exact_at(&mut bytes, unit.start) {
        share.errors.push(error);
        return;
    }
    for block in bytes.chunks(BLOCK) {
        share.blocks += 1;
        share.zero += u64::from(block.iter().all(|byte| *byte == 0));
    }
}

pub(crate) fn show(path: &Path, threads: usize, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let units: Vec<Range<u64>> =
        (0..size.div_ceil(UNIT)).map(|at| at * UNIT..((at + 1) * UNIT).min(size)).collect();
    let all: Share = Pool::new(threads).run(&units, |share, unit| count(&file, unit, share));
    if let Some(error) = all.errors.into_iter().next() {
        return Err(error.into());
    }
    writeln!(out, "{} of {} blocks are zero", all.zero, all.blocks)?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    for path in std::env::args().skip(1) {
        show(path.as_ref(), default_threads(), &mut io::stdout())?;
    }
    Ok(())
}
