//! The state of a modelled device.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Head, Model, Request, RequestKind};

/// A modelled device at work. Times are simulated: they begin with 0.
#[derive(Clone, Debug)]
pub struct Simulation {
    model: Model,
    /// When each queue is free.
    free_at: Vec<Duration>,
    /// When the way between device and memory is free.
    bus_free_at: Duration,
    /// Byte behind the last one that a head read or wrote.
    head_at: u64,
    /// Writes in the cache of a disk: first bytes and ends, apart from each other.
    cached: BTreeMap<u64, u64>,
    cached_bytes: u64,
}

impl Simulation {
    /// A device that has done nothing. `depth`: requests that its user gives it at a time.
    pub fn new(model: &Model, depth: usize) -> Self {
        let queues = model.queues.min(depth).max(1);
        Self {
            model: model.clone(),
            free_at: vec![Duration::ZERO; queues],
            bus_free_at: Duration::ZERO,
            head_at: 0,
            cached: BTreeMap::new(),
            cached_bytes: 0,
        }
    }

    /// When all is done that was submitted.
    pub fn elapsed(&self) -> Duration {
        self.free_at.iter().max().copied().unwrap_or_default()
    }

    /// Serves a request as soon as a queue is free. Returns how long that takes from then on.
    pub fn submit(&mut self, request: Request) -> Duration {
        if request.kind == RequestKind::Flush {
            let began = self.elapsed();
            let done = began + self.model.flush + self.write_cached();
            self.free_at.fill(done);
            return done - began;
        }
        let queue = (0..self.free_at.len()).min_by_key(|&at| self.free_at[at]).unwrap_or(0);
        let began = self.free_at[queue];
        let ready = began + self.access(&request);
        let done = ready.max(self.bus_free_at) + self.transfer(request.len_bytes);
        self.bus_free_at = done;
        self.free_at[queue] = done;
        done - began
    }

    /// How far the head would move for a request; 0 where there is none.
    pub(super) const fn distance(&self, request: &Request) -> u64 {
        match self.model.head {
            Some(_) => request.offset_bytes.abs_diff(self.head_at),
            None => 0,
        }
    }

    /// Time before the first byte of a read or write moves.
    fn access(&mut self, request: &Request) -> Duration {
        let reads = request.kind == RequestKind::Read;
        let fixed = if reads { self.model.read } else { self.model.write };
        if self.model.head.is_none() {
            return fixed;
        }
        if reads {
            let moved = self.move_head(request.offset_bytes);
            self.head_at = request.end();
            return fixed + moved;
        }
        self.cache(request.offset_bytes, request.end());
        let full =
            self.model.head.as_ref().is_some_and(|head| self.cached_bytes > head.cache_bytes);
        fixed + if full { self.write_cached() } else { Duration::ZERO }
    }

    fn transfer(&self, bytes: u64) -> Duration {
        let rate = u128::from(self.model.bytes_per_second.max(1));
        let nanos = u128::from(bytes) * 1_000_000_000 / rate;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Moves the head, by a seek or by waiting until what lies before has passed below it.
    fn move_head(&mut self, to: u64) -> Duration {
        let from = std::mem::replace(&mut self.head_at, to);
        if from == to {
            return Duration::ZERO;
        }
        let Some(head) = &self.model.head else { return Duration::ZERO };
        let seek = seek_time(head, from.abs_diff(to));
        if to > from { seek.min(self.transfer(to - from)) } else { seek }
    }

    /// Notes a write in the cache, joined with what it touches.
    fn cache(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        let touched: Vec<(u64, u64)> = self
            .cached
            .range(..=end)
            .rev()
            .take_while(|(_, known_end)| **known_end >= start)
            .map(|(&known, &known_end)| (known, known_end))
            .collect();
        for (known, known_end) in touched {
            self.cached.remove(&known);
            self.cached_bytes -= known_end - known;
            (start, end) = (start.min(known), end.max(known_end));
        }
        self.cached.insert(start, end);
        self.cached_bytes += end - start;
    }

    /// Writes what is cached, in order of place from where the head is.
    fn write_cached(&mut self) -> Duration {
        let cached = std::mem::take(&mut self.cached);
        self.cached_bytes = 0;
        let (before, behind): (Vec<_>, Vec<_>) =
            cached.into_iter().partition(|(start, _)| *start < self.head_at);
        let mut time = Duration::ZERO;
        for (start, end) in behind.into_iter().chain(before) {
            time += self.move_head(start) + self.transfer(end - start);
            self.head_at = end;
        }
        time
    }
}

/// A seek, and half a rotation.
fn seek_time(head: &Head, distance_bytes: u64) -> Duration {
    let part = distance_bytes as f64 / head.size_bytes.max(1) as f64;
    let range = head.full_stroke.saturating_sub(head.track);
    head.track + range.mul_f64(part.clamp(0.0, 1.0).sqrt()) + head.rotation / 2
}
