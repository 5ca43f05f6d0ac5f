//! The device is told which blocks of maps will be read: in the order of the disk, before they are.

#![allow(clippy::unwrap_used, clippy::panic)] // a test may

use std::collections::BTreeSet;
use std::io;
use std::sync::Mutex;

use floe_blockdev::ReadBlocks;
use floe_check::{CheckOptions, check};
use floe_testkit::fill::aged::{Aged, Map};
use floe_testkit::{Image, tool};

const BLOCK: u64 = 4096;

/// What a check did, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Told { start: u64, len: u64 },
    Read { start: u64, len: u64 },
}

struct Watched<'i>(&'i Image, Mutex<Vec<Event>>);

impl ReadBlocks for Watched<'_> {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn read_at(&self, start: u64, into: &mut [u8]) -> io::Result<()> {
        self.1.lock().unwrap().push(Event::Read { start, len: into.len() as u64 });
        self.0.read_at(start, into)
    }
    fn is_hole(&self, start: u64, len: u64) -> bool {
        self.0.is_hole(start, len)
    }
    fn will_need(&self, start: u64, len: u64) {
        self.1.lock().unwrap().push(Event::Told { start, len });
    }
}

#[test]
fn blocks_of_maps_are_announced_in_disk_order() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-read-ahead-").unwrap();
    let path = folder.path().join("image");
    for map in [Map::Extents, Map::Indirect] {
        let mut aged = Aged::new(map, 9000, 3, &path).unwrap();
        aged.age(40_000).unwrap();
        let image = aged.write(&path).unwrap();
        let (_, _, nodes) = aged.counts();
        let watched = Watched(&image, Mutex::default());
        let report = check(&watched, &CheckOptions::default()).unwrap();
        assert!(report.found.is_empty(), "{map:?}: {:?}", report.found);
        let events = watched.1.into_inner().unwrap();
        let (mut told, mut announced, mut alone) = (BTreeSet::new(), 0, 0);
        for event in &events {
            match *event {
                Event::Told { start, len } => {
                    assert!(start % BLOCK == 0 && len % BLOCK == 0 && len > 0);
                    told.extend((start..start + len).step_by(BLOCK as usize));
                }
                Event::Read { start, len: BLOCK } if told.remove(&start) => announced += 1,
                Event::Read { len: BLOCK, .. } => alone += 1,
                Event::Read { .. } => {}
            }
        }
        // The inodes of the first part say that there are trees.
        assert!(
            announced * 2 > nodes,
            "{map:?}: {announced} of {nodes} were announced, {alone} not"
        );
        let batches = events.split(|event| matches!(event, Event::Read { .. }));
        for batch in batches {
            let starts: Vec<u64> = batch
                .iter()
                .map(|event| match event {
                    Event::Told { start, .. } | Event::Read { start, .. } => *start,
                })
                .collect();
            assert!(starts.is_sorted(), "{map:?}: {starts:?}");
        }
    }
}
