//! A cube fails while several of its fsyncs wait: `crash` drops what is not durable and writes nothing of the cube any more; with
//! `ro` finished changes become durable. The other cube is served all the time.

use std::time::{Duration, Instant};

use floe_blockdev::{MemDevice, Model, Modelled, WriteBlocks};
use floe_ext4::fs::FileSystem as Layout;
use floe_format::InodeNr;
use floe_format::native::cube::{OnError, Policies};
use floe_format::native::identity::Identity;
use floe_fs::{FsError, Mode, NewInode, Store as _};
use floe_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use floe_sync::thread;

use super::struck::{BLOCK, FILES, Tenants, at, find, laid_out, make, used, write};
use super::{faults, scope};

/// The blocks of `/a`, without the copies of its sub-superblock.
fn content(device: &MemDevice) -> Vec<u8> {
    let bytes = device.to_vec();
    let scope = scope(device);
    let own = Identity::of(&Layout::open(device).unwrap().superblock).unwrap();
    let copies = super::blocks(device, InodeNr(own.super_inode));
    let is_copy = |block: u64| copies.iter().any(|(_, copy)| *copy == block);
    let blocks = scope.runs().flat_map(|run| run.start.0..run.end().0);
    let blocks = blocks.filter(|block| !is_copy(*block));
    blocks.flat_map(|block| bytes[(block * BLOCK) as usize..][..BLOCK as usize].to_vec()).collect()
}

#[test]
fn a_cube_that_fails_while_fsyncs_wait_lets_them_go_and_is_not_written_any_more() {
    for on_error in [OnError::Crash, OnError::ReadOnly] {
        let bytes = laid_out(Tenants::Apart, Policies { on_error, ..Policies::default() });
        let memory = MemDevice::new(bytes);
        let places = faults::structures(&memory, Tenants::Apart);
        let block = places.iter().find(|(what, _)| *what == "attribute block").unwrap().1;
        memory.write_at(block * BLOCK + 40, b"damage").unwrap();
        let model = Model::flushes(Duration::from_millis(3));
        let device = Modelled::new(memory, &model).waiting();
        let (after, closed) = used(&device, |fs| {
            let (a, b) = (at(fs, "/a").unwrap(), at(fs, "/b").unwrap());
            let (ended, synced) = (AtomicBool::new(false), AtomicU32::new(0));
            let worker = |top: InodeNr, number: u32| {
                let file = make(fs, top, &format!("w{number}"), NewInode::regular(0o644))?;
                for turn in 0.. {
                    if ended.load(Ordering::SeqCst) {
                        break;
                    }
                    write(fs, file, turn * BLOCK % (64 * BLOCK), &[number as u8; 4096])?;
                    fs.sync_inode(file, None)?;
                    synced.fetch_add(1, Ordering::SeqCst);
                }
                Ok::<_, FsError>(())
            };
            thread::scope(|scope| {
                let own: Vec<_> = (0..3).map(|at| scope.spawn(move || worker(a, at))).collect();
                let other = scope.spawn(move || worker(b, 9));
                while synced.load(Ordering::SeqCst) < 20 {
                    thread::sleep(Duration::from_millis(1));
                }
                let damaged = (0..FILES).any(|at| {
                    let name = format!("file{at}{}", "-".repeat(180));
                    let found = find(fs, a, &name)
                        .and_then(|file| fs.extended_attribute(file, b"user.long").map(drop));
                    matches!(found, Err(FsError::Damaged { .. }))
                });
                assert!(damaged, "nobody met the damage");
                let since = Instant::now();
                for worker in own {
                    let ended = worker.join().unwrap();
                    assert!(ended.is_err(), "{on_error:?}: it goes on");
                }
                assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
                let before = synced.load(Ordering::SeqCst);
                while synced.load(Ordering::SeqCst) < before + 5 {
                    thread::sleep(Duration::from_millis(1));
                }
                ended.store(true, Ordering::SeqCst);
                other.join().unwrap().unwrap();
            });
            let mode = fs.store().gates().unwrap().state(1).0;
            let wanted = if on_error == OnError::Crash { Mode::Failed } else { Mode::ReadOnly };
            assert_eq!(mode, wanted);
            content(device.inner())
        });
        closed.unwrap();
        if on_error == OnError::Crash {
            assert!(content(device.inner()) == after, "something was written after the failure");
        }
        // The next mount has all that fsync promised, also in the cube that has failed.
        let left = device.inner().clone();
        let ((), closed) = used(&left, |fs| {
            let b = at(fs, "/b").unwrap();
            find(fs, b, "w9").unwrap();
            assert_ne!(fs.store().gates().unwrap().state(1).0, Mode::Serving);
        });
        closed.unwrap();
    }
}
