//! Models of devices: how long requests take on a disk, an SSD, or a device whose flushes are slow, in simulated time.
//!
//! A run gives the same figure on every machine: no clock is read. [`Model::replay`] is for a list of requests,
//! [`Modelled`](crate::Modelled) for a program that uses a device.
//!
//! ```
//! use floe_blockdev::{Model, Request};
//!
//! // 1,000 blocks of a disk of 1 TB, near each other and far apart.
//! let near = (0..1000).map(|at| Request::read(at * 4096, 4096));
//! let far = (0..1000).map(|at| Request::read(at * 1_000_000_000, 4096));
//! let disk = Model::rotating();
//! assert!(disk.replay(near).as_secs_f64() < 0.2);
//! assert!(disk.replay(far).as_secs_f64() > 5.0);
//! ```

use std::time::Duration;

use crate::Medium;

mod device;
mod simulation;

pub use device::Modelled;
pub use simulation::Simulation;

/// Requests a disk may reorder (the queue of SATA disks).
const DISK_QUEUE: usize = 32;

/// The figures of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Requests that are served at the same time.
    pub queues: usize,
    /// Time before a read moves its first byte, seeks aside.
    pub read: Duration,
    /// The same for a write; with a write cache, to reach that.
    pub write: Duration,
    /// Time of a flush, what it writes from a cache aside.
    pub flush: Duration,
    /// Bytes a second that all queues together move.
    pub bytes_per_second: u64,
    /// The head of a rotating disk.
    pub head: Option<Head>,
}

/// The head of a rotating disk, and its write cache: writes are cached, and a flush, or a full cache, writes them in order of
/// place.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// Shortest seek.
    pub track: Duration,
    /// From one end of the disk to the other; in between, the time grows with the root of the distance.
    pub full_stroke: Duration,
    /// One rotation: after a seek, half of it passes.
    pub rotation: Duration,
    /// Bytes of the whole disk.
    pub size_bytes: u64,
    /// Bytes of writes that the disk caches.
    pub cache_bytes: u64,
}

/// One request of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Read, write or flush.
    pub kind: RequestKind,
    /// First byte; 0 of a flush.
    pub offset_bytes: u64,
    /// Bytes; 0 of a flush.
    pub len_bytes: u64,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Bytes.
    Read,
    /// To store bytes.
    Write,
    /// To make durable what was written before.
    Flush,
}

impl Request {
    /// A read.
    pub const fn read(offset_bytes: u64, len_bytes: u64) -> Self {
        Self { kind: RequestKind::Read, offset_bytes, len_bytes }
    }

    /// A write.
    pub const fn write(offset_bytes: u64, len_bytes: u64) -> Self {
        Self { kind: RequestKind::Write, offset_bytes, len_bytes }
    }

    /// A flush.
    pub const fn flush() -> Self {
        Self { kind: RequestKind::Flush, offset_bytes: 0, len_bytes: 0 }
    }

    const fn end(&self) -> u64 {
        self.offset_bytes.saturating_add(self.len_bytes)
    }
}

impl Model {
    /// A disk of 7,200 rotations a minute and 1 TB: 0.8 to 17 ms a seek, 180 MB/s.
    pub const fn rotating() -> Self {
        Self::rotating_of(1_000_000_000_000)
    }

    /// The same with another size, over which its seeks are spread.
    pub const fn rotating_of(size_bytes: u64) -> Self {
        Self {
            queues: 1,
            read: Duration::from_micros(50),
            write: Duration::from_micros(50),
            flush: Duration::from_micros(100),
            bytes_per_second: 180_000_000,
            head: Some(Head {
                track: Duration::from_micros(800),
                full_stroke: Duration::from_millis(17),
                rotation: Duration::from_nanos(8_333_333),
                size_bytes,
                cache_bytes: 64 << 20,
            }),
        }
    }

    /// An SSD with 8 channels and a volatile cache: 80 µs a read, 20 µs a write, 1 ms a flush, 2 GB/s.
    pub const fn ssd() -> Self {
        Self {
            queues: 8,
            read: Duration::from_micros(80),
            write: Duration::from_micros(20),
            flush: Duration::from_millis(1),
            bytes_per_second: 2_000_000_000,
            head: None,
        }
    }

    /// A device on which nothing but a flush takes time.
    pub const fn flushes(flush: Duration) -> Self {
        Self {
            queues: 1,
            read: Duration::ZERO,
            write: Duration::ZERO,
            flush,
            bytes_per_second: u64::MAX,
            head: None,
        }
    }

    /// The kind of medium that it is a model of.
    pub const fn medium(&self) -> Medium {
        if self.head.is_some() { Medium::Rotating } else { Medium::Solid }
    }

    /// Bytes that the device moves while a read waits for its first one, of so many that are under way at a time: for a head that
    /// moves, on the shortest seek.
    pub fn gap_bytes(&self, in_flight: usize) -> u64 {
        let in_flight = in_flight.clamp(1, self.queues.max(1));
        let seek = self.head.as_ref().map_or(Duration::ZERO, |head| head.track + head.rotation / 2);
        let nanos = (self.read + seek).as_nanos() * u128::from(self.bytes_per_second);
        u64::try_from(nanos / 1_000_000_000 / in_flight as u128).unwrap_or(u64::MAX)
    }

    /// How long requests take, each given to the device when the one before is done.
    pub fn replay(&self, requests: impl IntoIterator<Item = Request>) -> Duration {
        self.replay_at_depth(1, requests)
    }

    /// How long requests take if `depth` of them wait at the device at any time. A disk takes the nearest of them (of 32 at
    /// most), all others take them in turn. A flush waits for all before it, and all behind it wait for the flush.
    pub fn replay_at_depth(
        &self,
        depth: usize,
        requests: impl IntoIterator<Item = Request>,
    ) -> Duration {
        let depth = depth.max(1);
        let mut simulation = Simulation::new(self, depth);
        let mut requests = requests.into_iter().peekable();
        let mut waiting: Vec<Request> = Vec::new();
        let window = if self.head.is_some() { depth.min(DISK_QUEUE) } else { 1 };
        loop {
            while waiting.len() < window {
                let passes = |next: &Request| next.kind != RequestKind::Flush;
                let Some(next) = requests.next_if(|next| passes(next)) else { break };
                waiting.push(next);
            }
            if waiting.is_empty() {
                match requests.next() {
                    Some(flush) => simulation.submit(flush),
                    None => return simulation.elapsed(),
                };
                continue;
            }
            let nearest = (0..waiting.len()).min_by_key(|&at| simulation.distance(&waiting[at]));
            simulation.submit(waiting.remove(nearest.unwrap_or(0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(model: &Model, requests: impl IntoIterator<Item = Request>) -> f64 {
        model.replay(requests).as_secs_f64()
    }

    #[test]
    fn a_disk_streams_and_seeks_as_its_figures_say() {
        let disk = Model::rotating();
        let stream = seconds(&disk, (0..180).map(|at| Request::read(at * 1_000_000, 1_000_000)));
        assert!((0.99..1.05).contains(&stream), "180 MB: {stream}");
        // A third of the disk away on average: 0.8 + 16.2 * sqrt(1/3) + 4.17 ms.
        let far = (0..100u64).map(|at| Request::read(at % 2 * 333_000_000_000, 4096));
        let each = seconds(&disk, far) / 100.0;
        assert!((0.0138..0.0148).contains(&each), "{each}");
        // A gap that passes below the head sooner than a seek takes is waited for.
        let gaps = seconds(&disk, (0..100).map(|at| Request::read(at * 200_000, 100_000)));
        assert!((0.10..0.13).contains(&gaps), "{gaps}");
    }

    #[test]
    fn a_disk_takes_the_nearest_of_those_that_wait() {
        let disk = Model::rotating();
        let requests =
            || (0..640u64).map(|at| Request::read(at * 7_919 % 640 * 1_500_000_000, 4096));
        let (one, many) = (disk.replay(requests()), disk.replay_at_depth(32, requests()));
        assert!(many.as_secs_f64() < 0.7 * one.as_secs_f64(), "{one:?} {many:?}");
    }

    #[test]
    fn a_disk_writes_its_cache_in_order_when_it_is_flushed() {
        let disk = Model::rotating();
        let places = || (0..200u64).map(|at| at * 7_919 % 200 * 4096);
        let writes = || places().map(|at| Request::write(at, 4096));
        let cached = seconds(&disk, writes());
        assert!(cached < 0.02, "{cached}");
        let flushed = seconds(&disk, writes().chain([Request::flush()]));
        assert!(flushed < cached + 0.02, "neighbours are one stream: {flushed}");
        let each = writes().flat_map(|write| [write, Request::flush()]);
        assert!(seconds(&disk, each) > 0.5, "each by itself takes a seek");
        // A full cache is written without a flush.
        let many = (0..200u64).map(|at| Request::write(at * 1_000_000_000, 1 << 20));
        assert!(seconds(&disk, many) > 0.5);
    }

    #[test]
    fn an_ssd_serves_several_at_a_time_and_flushes_once() {
        let ssd = Model::ssd();
        let reads = || (0..800).map(|at| Request::read(at * 7_919_000, 4096));
        let (one, eight) = (ssd.replay(reads()), ssd.replay_at_depth(8, reads()));
        let gain = one.as_secs_f64() / eight.as_secs_f64();
        assert!((7.0..8.1).contains(&gain), "{gain}");
        let more = ssd.replay_at_depth(64, reads());
        assert_eq!(eight, more, "8 channels");
        let flush = [Request::write(0, 4096), Request::flush(), Request::write(0, 4096)];
        assert!((0.00104..0.00106).contains(&seconds(&ssd, flush)), "{}", seconds(&ssd, flush));
        // Bytes are shared by all channels.
        let large = (0..8).map(|at| Request::read(at << 28, 250_000_000));
        assert!(ssd.replay_at_depth(8, large).as_secs_f64() > 0.99);
    }

    #[test]
    fn only_flushes_take_time() {
        let model = Model::flushes(Duration::from_millis(2));
        let requests = [Request::write(0, 1 << 20), Request::flush(), Request::flush()];
        assert_eq!(model.replay_at_depth(4, requests), Duration::from_millis(4));
        assert_eq!(model.replay([]), Duration::ZERO);
    }
}
