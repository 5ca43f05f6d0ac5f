//! Damage and failures that a flush meets: the changes that they concern are lost, those that depend on them go along, all
//! others reach the disk, and programs learn of it.

use std::io;

use anyhow::{Result, ensure};
use floe_blockdev::{MemDevice, ReadBlocks, Recorder, WriteBlocks};
use floe_ext4::fs::FileSystem as Layout;
use floe_ext4::inode_table::inode_offset;
use floe_format::InodeNr;
use floe_fs::{Disk, FileSystem, FsError, Handle, Limits, Live, MemFs, OnError, Store};
use floe_sync::atomic::{AtomicBool, Ordering};
use floe_testkit::crash::Effort;
use floe_testkit::tool;

use super::acts::{Act, find, run, tree};
use super::crash::{self, Run};
use super::live::{NOW, base, judge, mounted};

/// Reads whose bytes contain this cannot be done while a device is told to fail.
const UNREADABLE: &[u8] = b"unreadable name";
/// A call whose bytes have this value writes what the device refuses, likewise.
const UNWRITABLE_TURN: u32 = 199;

/// A device that fails reads and writes of certain bytes while it is told to.
#[derive(Debug)]
pub(crate) struct Failing<'f> {
    pub(crate) inner: MemDevice,
    pub(crate) fails: &'f AtomicBool,
}

impl ReadBlocks for Failing<'_> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset_bytes, into)?;
        let struck = into.windows(UNREADABLE.len()).any(|bytes| bytes == UNREADABLE);
        if struck && self.fails.load(Ordering::SeqCst) {
            return Err(io::Error::other("a bad sector"));
        }
        Ok(())
    }
}

impl WriteBlocks for Failing<'_> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        let struck = from.iter().take(64).all(|byte| u32::from(*byte) == UNWRITABLE_TURN + 1);
        if struck && self.fails.load(Ordering::SeqCst) {
            return Err(io::Error::other("a bad sector"));
        }
        self.inner.write_at(offset_bytes, from)
    }
    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// A file system with directories `good` and `bad`, and a file in each; a block of `bad` is one that a device can fail to
/// read.
fn prepared() -> MemDevice {
    let device = MemDevice::new(base().to_vec());
    mounted(&device, Limits::default(), |memory| {
        let unreadable = format!("bad/{}", str::from_utf8(UNREADABLE)?);
        let acts = [
            Act::Mkdir("good".into()),
            Act::Mkdir("bad".into()),
            Act::Create(unreadable),
            Act::Create("bad/old".into()),
            Act::Create("good/old".into()),
            Act::Write("good/old".into(), 0, 3000),
            Act::Create("good/mail".into()),
        ];
        acts.iter().zip(0..).try_for_each(|(act, turn)| run(memory, turn, act))?;
        Ok(())
    })
    .unwrap();
    device
}

type Fs<'m, 'f, 'd, D> = MemFs<Live<'f, 'd, D>>;

/// Uses a device; what is lost at the end is no error.
fn used<D: WriteBlocks, T>(
    device: D,
    on_error: OnError,
    work: impl FnOnce(&Fs<'_, '_, '_, D>) -> T,
) -> T {
    let (disk, volume) = Disk::open(device).unwrap();
    let value = {
        let files = disk.files().unwrap();
        let live = Live::new(&disk, &files, volume, NOW).unwrap().on_error(on_error);
        let memory = MemFs::new(live, Limits::default());
        let value = work(&memory);
        if let Ok((live, _)) = memory.finish() {
            // After a shutdown, this fails.
            let _ = live.finish(NOW);
        }
        value
    };
    let _ = disk.close();
    value
}

fn all_of<S: Store>(memory: &S, acts: &[Act]) {
    for (turn, act) in (10..).zip(acts) {
        run(memory, turn, act).unwrap_or_else(|error| panic!("{act:?}: {error}"));
    }
}

/// Reads directories into memory, as programs that list them do.
fn look<S: Store>(memory: &S) {
    for path in ["", "good", "bad"] {
        memory.directory(find(memory, path).unwrap()).unwrap();
    }
}

/// Uses a device that fails while `work` tells it to; what is left is sound. `None` without e2fsck.
fn failing(work: impl FnOnce(&Fs<'_, '_, '_, &Failing<'_>>, &AtomicBool)) -> Option<MemDevice> {
    if tool::missing() {
        return None;
    }
    let fails = AtomicBool::new(false);
    let device = Failing { inner: prepared(), fails: &fails };
    used(&device, OnError::Continue, |memory| {
        look(memory);
        work(memory, &fails);
    });
    judge(&device.inner, true).unwrap();
    Some(device.inner)
}

fn lost_of(result: Result<(), FsError>) -> InodeNr {
    match result {
        Err(FsError::Lost { inode, .. }) => inode,
        other => panic!("{other:?}"),
    }
}

fn write(path: &str) -> Act {
    Act::Write(path.into(), 0, 2000)
}

/// Damages the inode of a path on the device.
fn damage(device: &MemDevice, inode: InodeNr) {
    let layout = Layout::open(device).unwrap();
    let at = inode_offset(inode, layout.geometry(), layout.space.groups.descs()).unwrap();
    device.write_at(at + 8, &[0x55]).unwrap();
}

#[test]
fn damage_of_one_file_loses_its_changes_alone() {
    if tool::missing() {
        return;
    }
    let device = prepared();
    used(&device, OnError::Continue, |memory| {
        look(memory);
        let (old, mail) = (find(memory, "good/old").unwrap(), find(memory, "good/mail").unwrap());
        memory.attributes(old).unwrap();
        all_of(memory, &[write("good/old"), write("good/mail"), Act::Create("good/new".into())]);
        damage(&device, old);
        memory.sync_inode(mail).unwrap();
        memory.late_error(mail, None, false).unwrap();
        assert_eq!(lost_of(memory.sync()), old);
        memory.sync().unwrap();
        assert!(!memory.is_read_only());
        assert!(matches!(memory.attributes(old), Err(FsError::Damaged { .. })));
        all_of(memory, &[Act::Create("good/later".into()), Act::Sync]);
    });
    mounted(&device, Limits::default(), |memory| {
        for path in ["good/mail", "good/new", "good/later"] {
            find(memory, path)?;
        }
        ensure!(memory.attributes(find(memory, "good/mail")?)?.size_bytes == 2000);
        Ok(())
    })
    .unwrap();
    let found = judge(&device, true).unwrap_err().to_string();
    assert!(found.contains("InodeChecksumBad") && found.matches("code").count() <= 1, "{found}");
}

#[test]
fn each_open_file_is_told_once_that_its_changes_are_lost() {
    if tool::missing() {
        return;
    }
    let device = prepared();
    used(&device, OnError::Continue, |memory| {
        look(memory);
        let old = find(memory, "good/old").unwrap();
        let told = |of: Handle| memory.late_error(old, Some(of), false).is_err();
        let told_at_close = |of: Handle| memory.late_error(old, Some(of), true).is_err();
        memory.attributes(old).unwrap();
        let (one, two, three) = (memory.open(), memory.open(), memory.open());
        all_of(memory, &[write("good/old")]);
        damage(&device, old);
        memory.sync_inode(old).unwrap();
        assert!(told_at_close(three) && told_at_close(three), "a copy of it may still ask");
        let early = memory.open();
        assert!(told(early), "nobody was told yet");
        assert!(told(one) && !told(one) && !told_at_close(one));
        assert!(told(two) && !told(two));
        assert!(!told(memory.open()), "opened when others had been told");
    });
}

/// Names in a directory that cannot be read are lost; a file whose link is lost keeps its old name.
#[test]
fn an_unlink_behind_a_lost_link_is_lost_as_well() {
    let device = failing(|memory, fails| {
        let mail = find(memory, "good/mail").unwrap();
        all_of(
            memory,
            &[
                write("good/mail"),
                Act::Link("good/mail".into(), "bad/mail".into()),
                Act::Unlink("good/mail".into()),
                Act::Create("bad/new".into()),
                write("bad/new"),
                Act::Mkdir("bad/dir".into()),
                Act::Create("bad/dir/inner".into()),
                Act::Rename("bad/dir/inner".into(), "good/inner".into()),
                Act::Create("good/new".into()),
            ],
        );
        let new = find(memory, "bad/new").unwrap();
        fails.store(true, Ordering::SeqCst);
        let lost = memory.sync();
        assert!(matches!(lost, Err(FsError::Lost { others: 1.., .. })), "{lost:?}");
        fails.store(false, Ordering::SeqCst);
        let bad = find(memory, "bad").unwrap();
        for inode in [bad, mail, new] {
            assert_eq!(lost_of(memory.late_error(inode, None, false)), inode);
            memory.late_error(inode, None, false).unwrap();
        }
        assert_eq!(lost_of(memory.attributes(new).map(drop)), new);
        assert_eq!(find(memory, "good/mail").unwrap(), mail);
        for path in ["bad/mail", "bad/new", "bad/dir", "good/inner"] {
            assert!(matches!(find(memory, path), Err(FsError::NotFound)), "{path}");
        }
        // Programs may still know the number of the lost file.
        all_of(memory, &[Act::Create("bad/again".into()), Act::Sync]);
        assert_ne!(find(memory, "bad/again").unwrap(), new);
    });
    let Some(device) = device else { return };
    mounted(&device, Limits::default(), |memory| {
        let mail = memory.attributes(find(memory, "good/mail")?)?;
        ensure!((mail.links, mail.size_bytes) == (1, 2000));
        find(memory, "good/new")?;
        find(memory, "bad/again")?;
        Ok(())
    })
    .unwrap();
}

/// Whoever makes a file durable wants to find it by the name that it has: it learns that the move of a directory above is lost.
#[test]
fn the_lost_move_of_a_directory_is_told_to_those_below() {
    failing(|memory, fails| {
        all_of(
            memory,
            &[
                Act::Mkdir("good/dir".into()),
                Act::Create("good/dir/file".into()),
                write("good/dir/file"),
                Act::Create("good/other".into()),
                Act::Sync,
                Act::Rename("good/dir".into(), "bad/dir".into()),
            ],
        );
        let file = find(memory, "bad/dir/file").unwrap();
        fails.store(true, Ordering::SeqCst);
        memory.sync_inode(file).unwrap();
        assert_eq!(lost_of(memory.late_error(file, None, false)), file);
        fails.store(false, Ordering::SeqCst);
        assert_eq!(find(memory, "good/dir/file").unwrap(), file);
        // Later it is durable by the name that it has.
        memory.sync_inode(file).unwrap();
        memory.late_error(file, None, false).unwrap();
        let other = find(memory, "good/other").unwrap();
        memory.late_error(other, None, false).unwrap();
    });
}

/// A file whose content cannot be written does not replace another one.
#[test]
fn a_rename_behind_lost_content_is_lost_as_well() {
    failing(|memory, fails| {
        all_of(memory, &[Act::Create("good/tmp".into())]);
        run(memory, UNWRITABLE_TURN, &write("good/tmp")).unwrap();
        all_of(
            memory,
            &[
                Act::Rename("good/tmp".into(), "good/old".into()),
                Act::Create("good/other".into()),
                write("good/other"),
            ],
        );
        fails.store(true, Ordering::SeqCst);
        assert!(memory.sync().is_err());
        fails.store(false, Ordering::SeqCst);
        let old = memory.attributes(find(memory, "good/old").unwrap()).unwrap();
        assert_eq!(old.size_bytes, 3000);
        let other = memory.attributes(find(memory, "good/other").unwrap()).unwrap();
        assert_eq!(other.size_bytes, 2000);
    });
}

#[test]
fn damage_at_a_flush_is_followed_by_what_was_asked_for() {
    if tool::missing() {
        return;
    }
    for on_error in [OnError::ReadOnly, OnError::Shutdown] {
        let device = prepared();
        used(&device, on_error, |memory| {
            look(memory);
            let old = find(memory, "good/old").unwrap();
            memory.attributes(old).unwrap();
            all_of(memory, &[write("good/old"), Act::Create("good/new".into())]);
            damage(&device, old);
            let done = memory.sync();
            if on_error == OnError::ReadOnly {
                assert_eq!(lost_of(done), old);
                assert!(memory.is_read_only());
                find(memory, "good/new").unwrap();
            } else {
                assert!(matches!(done, Err(FsError::Ended(_))), "{done:?}");
            }
        });
        let there =
            mounted(&device, Limits::default(), |memory| Ok(find(memory, "good/new").is_ok()));
        // After a shutdown, what finished before it may be there or not.
        assert!(there.unwrap() || on_error == OnError::Shutdown);
    }
}

/// The calls of the file system ask the store.
#[test]
fn fsync_and_close_report_what_is_lost() {
    if tool::missing() {
        return;
    }
    let device = prepared();
    let (disk, volume) = Disk::open(&device).unwrap();
    let files = disk.files().unwrap();
    let live = Live::new(&disk, &files, volume, NOW).unwrap();
    let fs = FileSystem::new(MemFs::new(live, Limits::default()));
    look(fs.store());
    let old = find(fs.store(), "good/old").unwrap();
    fs.attributes(old).unwrap();
    let (one, two) = (fs.open(), fs.open());
    all_of(fs.store(), &[write("good/old")]);
    damage(&device, old);
    fs.store().sync_inode(old).unwrap();
    // A copy of the file may still ask, so that it need not have been a program that was told.
    assert_eq!(lost_of(fs.close(old, two)), old);
    assert_eq!(lost_of(fs.sync_for_good()), old);
    assert_eq!(lost_of(fs.sync_for_good()), old, "each time");
    assert_eq!(lost_of(fs.sync_inode(old, Some(one))), old);
    fs.sync_inode(old, Some(one)).unwrap();
    fs.close(old, one).unwrap();
    fs.sync_for_good().expect("a program was told");
    assert_eq!(lost_of(fs.sync()), old, "who asks for all is told of all, once");
}

/// Stories of programs some of whose changes are lost, and power that fails at every write: the promises hold for the rest.
fn losing() -> Run {
    let fails = AtomicBool::new(false);
    let before = prepared().to_vec();
    let recorder = Recorder::new(Failing { inner: MemDevice::new(before.clone()), fails: &fails });
    let story = "create good/new; write good/new 0 2500; create bad/new; fsync good/new; \
        link good/mail bad/mail; unlink good/mail; fsync bad; write good/old 500 1500; \
        create good/tmp; write good/tmp 0 900; rename good/tmp good/old; rename good/new bad/old; \
        fsync good; create good/last; write good/last 0 4000; mkdir bad/dir; create bad/dir/a; \
        fsync good/last; sync; create bad/dir; write bad/dir 0 800; fsync good";
    let acts: Vec<Act> = story.split(';').map(super::patterns::parse).collect();
    let told = |act: &Act| fails.store(matches!(act, Act::Fsync(_) | Act::Sync), Ordering::SeqCst);
    let done = || fails.store(false, Ordering::SeqCst);
    crash::record_on(&recorder, before, &acts, Limits::default(), |memory, turn, act| {
        if turn == 0 {
            look(memory);
        }
        told(act);
        let result = run(memory, turn, act);
        done();
        result
    })
    .unwrap()
}

#[test]
fn losses_survive_any_crash() {
    if tool::missing() {
        return;
    }
    let run = losing();
    assert!(run.failed() > 2, "{} calls failed", run.failed());
    let states = run.explore(Effort { random_per_epoch: 2, seed: 9 }, 20).unwrap();
    eprintln!("{states} states");
    assert!(states > 50);
}

#[test]
fn what_is_lost_is_gone_from_memory() {
    failing(|memory, fails| {
        all_of(memory, &[Act::Create("bad/new".into()), Act::Create("good/new".into())]);
        fails.store(true, Ordering::SeqCst);
        assert!(memory.sync().is_err());
        fails.store(false, Ordering::SeqCst);
        assert_eq!(tree(memory), tree(memory.lower()));
        assert_eq!(memory.waiting_records(), 0);
    });
}
