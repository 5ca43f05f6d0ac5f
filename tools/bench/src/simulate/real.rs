//! Real runs of the modelled work: the cost of a visit, and the error of the model.

use std::thread;
use std::time::{Duration, Instant};

use floe_exec::{Entry, Found, Limits, Pipeline, Policy, Schedule};

use super::model::Model;

/// Upper bound for the time that a visit holds the lock of the queues: includes everything that a
/// worker does between two batches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    pub(crate) visit_ns: f64,
    pub(crate) entry_ns: f64,
}

/// A number of inodes at a location.
struct Chunk {
    place: u64,
    inodes: u64,
}

/// A directory block: its location and owner.
struct Block {
    place: u64,
    _directory: u64,
}

impl Entry for Chunk {
    fn address(&self) -> u64 {
        self.place
    }
    fn elements(&self) -> u64 {
        self.inodes
    }
}

impl Entry for Block {
    fn address(&self) -> u64 {
        self.place
    }
}

impl Visit {
    /// Assumed costs, without a measurement.
    pub(crate) const fn assumed() -> Self {
        Self { visit_ns: 1000.0, entry_ns: 10.0 }
    }

    /// Runs empty batches, small and large ones; the best of several attempts.
    pub(crate) fn measured() -> Self {
        const SMALL: u64 = 1;
        const LARGE: u64 = 256;
        let batch_ns = |batch_elements: u64| {
            let batches = 2000;
            let once = || {
                let limits = Limits { batch_elements, most_entries: 1, weight: None };
                // Scattered, like blocks found in inode order.
                let place = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let all = (0..batches * batch_elements)
                    .map(|at| Block { place: place(at), _directory: at })
                    .collect();
                let mut pipeline = Pipeline::new();
                pipeline.stage("nothing", limits, all, |(): &mut (), _, _| {});
                let begin = Instant::now();
                pipeline.run(&Schedule::new(1, Policy::Dynamic));
                begin.elapsed().as_secs_f64() * 1e9 / batches as f64
            };
            (0..7).map(|_| once()).fold(f64::INFINITY, f64::min)
        };
        let (small, large) = (batch_ns(SMALL), batch_ns(LARGE));
        let entry_ns = ((large - small) / (LARGE - SMALL) as f64).max(0.0);
        Self { visit_ns: (small - entry_ns).max(0.0), entry_ns }
    }
}

/// Slow-down of real work relative to the model, so that the system's timers are precise enough.
pub(crate) const SLOWER: f64 = 10.0;

/// Sleeps for the modelled time, which needs no core.
fn sleep(nanos: f64) {
    thread::sleep(Duration::from_nanos((nanos * SLOWER) as u64));
}

/// Nanoseconds of a real run of the modelled work without its serial part: real threads and queues,
/// but work that only sleeps, so that the cores of this machine suffice for all workers. The result
/// is scaled back by [`SLOWER`].
pub(crate) fn run(model: &Model, policy: Policy, workers: usize) -> f64 {
    let mut pipeline: Pipeline<'_, ()> = Pipeline::new();
    let of_blocks = Limits {
        batch_elements: model.batch_blocks,
        most_entries: usize::try_from(model.most_blocks).unwrap_or(usize::MAX),
        weight: None,
    };
    let blocks = pipeline.stage("blocks", of_blocks, vec![], |(), batch: &mut Vec<Block>, _| {
        sleep(batch.len() as f64 * model.block_ns);
    });
    let chunks = (0..model.inodes.div_ceil(model.chunk)).map(|at| {
        let place = at * model.chunk;
        Chunk { place, inodes: model.chunk.min(model.inodes - place) }
    });
    let of_chunks = Limits { batch_elements: 1, most_entries: 1, weight: None };
    let found_before = |inodes: u64| model.blocks * inodes / model.inodes;
    let check = |(): &mut (), batch: &mut Vec<Chunk>, found: &mut Found<'_, Chunk>| {
        for chunk in batch {
            sleep(chunk.inodes as f64 * model.inode_ns);
            let last = found_before(chunk.place + chunk.inodes);
            for at in found_before(chunk.place)..last {
                found.push(blocks, Block { place: at, _directory: at });
            }
        }
    };
    pipeline.stage("chunks", of_chunks, chunks.collect(), check);
    let begin = Instant::now();
    pipeline.run(&Schedule::new(workers, policy));
    begin.elapsed().as_secs_f64() * 1e9 / SLOWER
}
