//! Files that nobody has open any more when the disk hears that their last name goes: they go with it, and are never orphans.

use std::{io, thread};

use anyhow::Result;
use floe_blockdev::{MemDevice, ReadBlocks, WriteBlocks};
use floe_disk::ops::{NewInode, RenameMode};
use floe_format::InodeNr;
use floe_fs::{Disk, FileSystem, Limits, Live, MemFs, Op, OpKind, Place, Store};
use floe_sync::atomic::{AtomicU64, Ordering};
use floe_testkit::tool;

use super::live::{NOW, base, judge, mounted};

/// A device that counts blocks written that are superblocks with a list of orphans, at home or in the log.
struct Watched {
    device: MemDevice,
    with_orphans: AtomicU64,
}

impl ReadBlocks for Watched {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset_bytes, into)
    }
}

impl WriteBlocks for Watched {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        let has_orphans =
            |block: &&[u8]| block[0x38..0x3a] == [0x53, 0xef] && block[0xe8..0xec] != [0; 4];
        let found = from.chunks_exact(1024).filter(has_orphans).count();
        self.with_orphans.fetch_add(found as u64, Ordering::Relaxed);
        self.device.write_at(offset_bytes, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }
}

fn place(name: &str) -> Place<'_> {
    Place { directory: InodeNr::ROOT, name: name.as_bytes() }
}

/// Lets `work` use a file system, and counts superblocks with orphans.
fn orphans_of(
    work: impl FnOnce(&dyn Fn(OpKind<'_>) -> Option<InodeNr>, &dyn Store),
) -> Result<u64> {
    let watched =
        Watched { device: MemDevice::new(base().to_vec()), with_orphans: AtomicU64::new(0) };
    mounted(&watched, Limits::default(), |memory| {
        let apply = |kind: OpKind<'_>| {
            let made = memory.apply(&Op { uid: 0, gid: 0, time: NOW, kind }).unwrap();
            made.created
        };
        work(&apply, memory);
        Ok(())
    })?;
    judge(&watched.device, true)?;
    Ok(watched.with_orphans.into_inner())
}

fn new_file(
    apply: &dyn Fn(OpKind<'_>) -> Option<InodeNr>,
    store: &dyn Store,
    name: &str,
) -> InodeNr {
    let kind = OpKind::Create { place: place(name), new: NewInode::regular(0o644) };
    let inode = apply(kind).unwrap();
    apply(OpKind::Write { inode, offset_bytes: 0, bytes: &[7; 5000] });
    store.sync_inode(inode).unwrap();
    inode
}

#[test]
fn what_nobody_has_open_goes_with_its_last_name() {
    if tool::missing() {
        return;
    }
    for released in [true, false] {
        let orphans = orphans_of(|apply, store| {
            let file = new_file(apply, store, "a");
            let other = OpKind::Link { inode: file, place: place("b") };
            apply(other);
            apply(OpKind::Unlink(place("a")));
            apply(OpKind::Unlink(place("b")));
            if released {
                store.release(file).unwrap();
            }
            // Takes the changes of the directory along.
            new_file(apply, store, "c");
            if !released {
                store.release(file).unwrap();
            }
        });
        // Where somebody has it open for longer, it is an orphan meanwhile.
        assert_eq!(orphans.unwrap() == 0, released);
    }
    let replaced = orphans_of(|apply, store| {
        let old = new_file(apply, store, "old");
        new_file(apply, store, "new");
        let (from, to) = (place("new"), place("old"));
        apply(OpKind::Rename { from, to, mode: RenameMode::Replace });
        store.release(old).unwrap();
        store.sync_inode(InodeNr::ROOT).unwrap();
    });
    assert_eq!(replaced.unwrap(), 0);
}

/// The calls of a program: nobody has the file open when the next one, or the directory, is made durable.
#[test]
fn an_fsync_lets_go_what_was_unlinked() {
    if tool::missing() {
        return;
    }
    // Other threads of a mount may hear that the kernel lets the file go, and of the fsync.
    for others in [false, true] {
        let orphans = orphans_of_unlinked(|fs, inode| {
            if others {
                let beside = |work: &(dyn Fn() + Sync)| thread::scope(|all| drop(all.spawn(work)));
                beside(&|| fs.forget(inode, 1).unwrap());
                beside(&|| fs.sync_inode(InodeNr::ROOT, None).unwrap());
            } else {
                fs.forget(inode, 1).unwrap();
            }
        });
        assert_eq!(orphans, 0, "{others}");
    }
}

/// Makes files durable and unlinks them, with `end` after each, and counts superblocks with orphans.
fn orphans_of_unlinked(end: impl Fn(&FileSystem<MemFs<Live<'_, '_, &Watched>>>, InodeNr)) -> u64 {
    let watched =
        Watched { device: MemDevice::new(base().to_vec()), with_orphans: AtomicU64::new(0) };
    let (disk, volume) = Disk::open(&watched).unwrap();
    let files = disk.files().unwrap();
    let live = Live::new(&disk, &files, volume, NOW).unwrap();
    let fs = FileSystem::new(MemFs::new(live, Limits::default()));
    let apply = |kind: OpKind<'_>| {
        fs.apply(&Op { uid: 0, gid: 0, time: NOW, kind }).unwrap().map(|made| made.inode)
    };
    for name in ["a", "b", "c"] {
        let inode =
            apply(OpKind::Create { place: place(name), new: NewInode::regular(0o644) }).unwrap();
        apply(OpKind::Write { inode, offset_bytes: 0, bytes: &[7; 5000] });
        fs.sync_inode(inode, None).unwrap();
        // The kernel forgets a file soon after its last name has gone, and tells the times that it keeps before.
        apply(OpKind::Unlink(place(name)));
        let change = floe_disk::ops::Change { modified: Some(NOW), ..Default::default() };
        apply(OpKind::Change { inode, size_bytes: None, change });
        end(&fs, inode);
    }
    let (live, lost) = fs.into_store().finish().unwrap();
    live.finish(NOW).unwrap();
    lost.unwrap();
    drop(files);
    disk.close().unwrap();
    judge(&watched.device, true).unwrap();
    watched.with_orphans.into_inner()
}
