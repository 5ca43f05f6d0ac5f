//! The cost of a cube: requests to the device for the same calls in a cube and in a plain directory.

use floe_blockdev::{Event, MemDevice, Recorder};
use floe_disk::ops::NewCube;
use floe_format::InodeNr;
use floe_format::native::cube::Policies;
use floe_fs::{Disk, FileSystem, Limits, Live, MemFs, NewInode, OpKind, Place, now};

use super::struck::{BLOCK, fill, find, load, make, native, op, read, used, write};

/// An empty native file system with a directory `/d`, which is a cube or not.
fn made(is_cube: bool) -> MemDevice {
    let device = native(64, "lot_size=16m", "4000");
    if !is_cube {
        let ((), closed) =
            used(&device, |fs| drop(make(fs, InodeNr::ROOT, "d", NewInode::directory(0o755))));
        closed.unwrap();
        return device;
    }
    let (disk, volume) = Disk::open(&device).unwrap();
    {
        let files = disk.files().unwrap();
        let live = Live::new(&disk, &files, volume, now()).unwrap();
        let (policies, permissions, journal_blocks) = (Policies::default(), 0o755, 0);
        let (parent, name, path) = (InodeNr::ROOT, &b"d"[..], &b"/d"[..]);
        let new = NewCube { parent, name, path, permissions, journal_blocks, policies };
        live.create_cube(&floe_disk::ops::Caller::system(now()), &new).unwrap();
        live.finish(now()).unwrap();
    }
    disk.close().unwrap();
    device
}

/// Requests, bytes and flushes of calls in `/d`: many files as of a mail server, a stream, and writes at random. Changes wait in memory in
/// both.
fn counted(is_cube: bool) -> [u64; 3] {
    let device = Recorder::new(made(is_cube));
    let (disk, volume) = Disk::open(&device).unwrap();
    let files = disk.files().unwrap();
    let live = Live::new(&disk, &files, volume, now()).unwrap();
    let fs = FileSystem::new(MemFs::new(live, Limits::default()));
    let top = find(&fs, InodeNr::ROOT, "d").unwrap();
    let before = device.count();
    fill(&fs, top);
    let failed: Vec<_> = (1..6).flat_map(|turn| load(&fs, top, turn)).collect();
    assert!(failed.is_empty(), "{failed:?}");
    for at in 0..60 {
        let name = format!("mail{at}");
        let mail = make(&fs, top, &name, NewInode::regular(0o644)).unwrap();
        write(&fs, mail, 0, &vec![at; 3000 + usize::from(at) * 100]).unwrap();
        fs.sync_inode(mail, None).unwrap();
        assert!(read(&fs, mail, 9000).unwrap().len() >= 3000);
        if at % 2 == 0 {
            let place = Place { directory: top, name: name.as_bytes() };
            fs.apply(&op(OpKind::Unlink(place))).unwrap();
        }
    }
    let stream = make(&fs, top, "stream", NewInode::regular(0o644)).unwrap();
    for at in 0..32 {
        write(&fs, stream, at * 128 * 1024, &[7; 128 * 1024]).unwrap();
    }
    for at in 0..200u64 {
        write(&fs, stream, at * 7919 % 1024 * BLOCK, &[8; 4096]).unwrap();
        if at % 20 == 0 {
            fs.sync_inode(stream, None).unwrap();
        }
    }
    fs.sync().unwrap();
    let trace = device.trace();
    let events = &trace.events[before..];
    let bytes = events.iter().map(|event| match event {
        Event::Write { bytes, .. } => bytes.len() as u64,
        Event::Flush => 0,
    });
    let flushes = events.iter().filter(|event| **event == Event::Flush).count();
    [events.len() as u64, bytes.sum(), flushes as u64]
}

#[test]
fn a_cube_costs_no_more_than_three_percent_of_requests_bytes_and_flushes() {
    let (plain, cube) = (counted(false), counted(true));
    println!("requests, bytes, flushes: {plain:?} in a directory, {cube:?} in a cube");
    for (what, (plain, cube)) in
        ["requests", "bytes", "flushes"].into_iter().zip(plain.into_iter().zip(cube))
    {
        let ratio = cube as f64 / plain as f64;
        assert!((0.97..=1.03).contains(&ratio), "{what}: {plain} in a directory, {cube} in a cube");
    }
}
