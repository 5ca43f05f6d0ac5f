//! The device is told what will be read and lies anywhere, blocks of maps, directories and bitmaps: in the order of
//! the disk, before it is.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Mutex;

use floe_blockdev::ReadBlocks;
use floe_check::{CheckOptions, check};
use floe_format::GroupNr;
use floe_format::ext::inode::FileType;
use floe_testkit::volume::Volume;
use floe_testkit::{Image, tool};
use floe_workload::fill::aged::{Aged, Map};
use floe_workload::fill::{Shape, fill};

const BLOCK: u64 = 4096;
/// Bytes of the inode table of a group; the images have at least as many.
const TABLE: u64 = 128 << 10;

/// An event of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Told { start: u64, len: u64 },
    Read { start: u64, len: u64 },
}

struct Watched<'i> {
    image: &'i Image,
    events: Mutex<Vec<Event>>,
    in_memory: bool,
}

impl<'i> Watched<'i> {
    fn new(image: &'i Image, in_memory: bool) -> Self {
        Self { image, events: Mutex::default(), in_memory }
    }

    /// The events of a check, which must find nothing, and the number of directories.
    fn checked(self) -> (Vec<Event>, u64) {
        let report = check(&self, &CheckOptions::default()).unwrap();
        assert!(report.found.is_empty(), "{:?}", report.found);
        (self.events.into_inner().unwrap(), report.totals.by_type[FileType::Directory as usize])
    }
}

impl ReadBlocks for Watched<'_> {
    fn size_bytes(&self) -> u64 {
        self.image.size_bytes()
    }
    fn read_at(&self, start: u64, into: &mut [u8]) -> io::Result<()> {
        self.events.lock().unwrap().push(Event::Read { start, len: into.len() as u64 });
        self.image.read_at(start, into)
    }
    fn is_hole(&self, start: u64, len: u64) -> bool {
        self.image.is_hole(start, len)
    }
    fn is_cached(&self, _: u64) -> bool {
        self.in_memory
    }
    fn will_need(&self, start: u64, len: u64) {
        self.events.lock().unwrap().push(Event::Told { start, len });
    }
}

/// At how many pieces of tables, of all that are read, the device had blocks to read that will be asked for later.
fn busy_at(events: &[Event], in_table: impl Fn(u64) -> bool) -> (usize, usize) {
    // When a block was told of, and how many of those told of before each event were read after it.
    let (mut told_at, mut busy) = (BTreeMap::new(), vec![0; events.len()]);
    for (at, event) in events.iter().enumerate() {
        match *event {
            Event::Told { start, len } if !in_table(start) => {
                told_at
                    .extend((start..start + len).step_by(BLOCK as usize).map(|block| (block, at)));
            }
            Event::Read { start, len: BLOCK } => {
                if let Some(told) = told_at.remove(&start) {
                    busy[told..at].iter_mut().for_each(|count| *count += 1);
                }
            }
            _ => {}
        }
    }
    let pieces = events.iter().zip(busy).filter(|(event, _)| {
        matches!(**event, Event::Read { start, len } if len > BLOCK && in_table(start))
    });
    pieces.fold((0, 0), |(some, all), (_, busy)| (some + usize::from(busy > 0), all + 1))
}

/// Where the inode tables of all groups begin.
fn tables(image: &Image) -> Vec<u64> {
    let volume = Volume::open(image).unwrap();
    let groups = (0..volume.geometry.group_count).map(GroupNr);
    let begin = |group| volume.geometry.offset_bytes(volume.desc(group).unwrap().inode_table);
    groups.map(begin).collect()
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
        let (events, _) = Watched::new(&image, false).checked();
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
        let tables = tables(&image);
        let is_table = |event: &Event| match event {
            Event::Told { start, .. } | Event::Read { start, .. } => tables.contains(start),
        };
        // Tables of parts that come later, while the device has maps to read.
        let told_tables = |event: &&Event| matches!(event, Event::Told { .. }) && is_table(event);
        let tables_told = events.iter().filter(told_tables).count();
        assert!(tables_told > 0 && tables_told <= tables.len(), "{tables_told} of {tables:?}");
        // While a device reads what one piece of a table names, the next piece is read, and so on.
        let in_a_table =
            |start| tables.iter().any(|table| (*table..table + TABLE).contains(&start));
        let (busy, pieces) = busy_at(&events, in_a_table);
        assert!(busy * 2 > pieces, "{map:?}: at {busy} of {pieces} pieces");
        let maps: Vec<Event> = events.iter().filter(|event| !told_tables(event)).copied().collect();
        let batches = maps.split(|event| matches!(event, Event::Read { .. }));
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

#[test]
fn directories_and_bitmaps_are_announced_unless_they_are_in_memory() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-read-ahead-").unwrap();
    let image = fill(&folder.path().join("image"), Shape::file_intensive(60_000)).unwrap();
    let (events, _) = Watched::new(&image, true).checked();
    assert!(!events.iter().any(|event| matches!(event, Event::Told { .. })));

    let (events, directories) = Watched::new(&image, false).checked();
    // Ranges that were told of and not read yet, and how many blocks of them were read.
    let (mut told, mut announced) = (BTreeSet::new(), BTreeSet::new());
    for event in &events {
        let (Event::Told { start, len } | Event::Read { start, len }) = *event;
        let blocks = (start..start + len).step_by(BLOCK as usize);
        match event {
            Event::Told { .. } => told.extend(blocks),
            Event::Read { .. } => announced.extend(blocks.filter(|block| told.remove(block))),
        }
    }
    assert!(told.is_empty(), "{told:?} was never read");
    // The first read of each unit of 128 directories is made at once.
    assert!(directories > 500, "{directories}");
    let volume = Volume::open(&image).unwrap();
    let descs = (0..volume.geometry.group_count).map(|group| volume.desc(GroupNr(group)).unwrap());
    let bitmaps: Vec<u64> = descs
        .filter(|desc| !desc.block_uninit())
        .map(|desc| volume.geometry.offset_bytes(desc.block_bitmap))
        .collect();
    assert!(bitmaps.len() > 4, "{bitmaps:?}");
    assert!(bitmaps.iter().all(|bitmap| announced.contains(bitmap)), "{bitmaps:?}");
    let of_others = announced.len() as u64 - 2 * bitmaps.len() as u64;
    assert!(of_others * 10 > directories * 9, "{of_others} of {directories}");
}
