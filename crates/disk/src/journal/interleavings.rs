//! Explores interleavings of threads that make changes durable: nobody waits for ever, and whoever comes back has his change on
//! the device.

use floe_blockdev::{MemDevice, ReadBlocks, WriteBlocks};
use floe_ext4::tx::Tx;
use floe_format::BlockNr;
use floe_format::ext::inode::Timestamp;
use floe_sync::shuttle;
use floe_sync::{Arc, OnceLock, thread};
use std::io;

use super::Journal;
use crate::mkfs::{self, Fresh, FsType, Options, Plan};

const ITERATIONS: usize = 100;

fn image() -> Vec<u8> {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    let made = || {
        let device = MemDevice::new(vec![0; 2 << 20]);
        let now = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
        let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now };
        let mut options = Options::of_type(FsType::Ext4);
        options.set('J', "size=1").expect("a size");
        let params = options.params(2 << 20, None, &fresh).expect("it fits");
        mkfs::write(&Plan::new(&params).expect("a plan"), &device).expect("memory");
        device.to_vec()
    };
    // Devices have locks, too, which work nowhere else.
    explored(1, move || {
        let _ = IMAGE.get_or_init(made);
    });
    IMAGE.get().expect("it was made").clone()
}

/// Explores with stacks that are large enough for a journal.
fn explored(iterations: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::default();
    config.stack_size = 1 << 20;
    let scheduler = shuttle::scheduler::RandomScheduler::new(iterations);
    shuttle::Runner::new(scheduler, config).run(run);
}

/// Flushes fail from one on.
struct Failing {
    device: MemDevice,
    flushes: floe_sync::atomic::AtomicU64,
    most: u64,
}

impl ReadBlocks for Failing {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset_bytes, into)
    }
}

impl WriteBlocks for Failing {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        self.device.write_at(offset_bytes, from)
    }

    fn flush(&self) -> io::Result<()> {
        thread::yield_now();
        let before = self.flushes.fetch_add(1, floe_sync::atomic::Ordering::SeqCst);
        if before < self.most { self.device.flush() } else { Err(io::Error::other("it is broken")) }
    }
}

/// A block that nothing else uses: free ones are at the end.
fn block(number: u64) -> BlockNr {
    BlockNr(2000 + number)
}

/// Whether a change is durable.
fn change<D: WriteBlocks>(journal: &Journal<D>, number: u64, to: u8) -> bool {
    let Ok(mut tx) = journal.begin(2) else { return false };
    // Refused once the journal has ended.
    let Ok(bytes) = tx.zeroed(block(number)) else { return false };
    bytes[0] = to;
    tx.finish().and_then(|id| journal.commit(id)).is_ok()
}

fn explore(most_flushes: u64, also_checkpoints: bool) {
    let image = image();
    explored(ITERATIONS, move || {
        let device = MemDevice::new(image.clone());
        let flushes = floe_sync::atomic::AtomicU64::new(0);
        let device = Failing { device, flushes, most: most_flushes };
        let Ok(journal) = Journal::open(device) else { return };
        let journal = Arc::new(journal);
        let worker = |number: u64| {
            let journal = Arc::clone(&journal);
            thread::spawn(move || {
                let mut last = 0;
                for to in 1..=2 {
                    if change(&journal, number, to) {
                        last = to;
                    }
                    if also_checkpoints && number == 0 {
                        let _ = journal.checkpoint();
                    }
                }
                last
            })
        };
        let workers: Vec<_> = (0..4).map(worker).collect();
        let last: Vec<u8> =
            workers.into_iter().map(|one| one.join().expect("it does not panic")).collect();
        let journal = Arc::into_inner(journal).expect("all have ended");
        if most_flushes == u64::MAX {
            assert_eq!(last, [2; 4]);
        }
        // As a crash would leave it.
        let device = journal.device.device;
        crate::recovery::recover(&device).expect("it can be recovered");
        for (number, least) in (0..).zip(last) {
            let mut found = [0];
            let at = u64::from(journal.geometry.block_size) * block(number).0;
            device.read_at(at, &mut found).expect("memory");
            assert!(found[0] >= least, "an acknowledged change is gone");
        }
    });
}

#[test]
fn whoever_commits_comes_back_with_his_change() {
    explore(u64::MAX, false);
}

#[test]
fn a_checkpoint_beside_commits_lets_nobody_wait() {
    explore(u64::MAX, true);
}

#[test]
fn a_flush_that_fails_ends_all_who_wait() {
    for most in 3..9 {
        explore(most, false);
    }
}
