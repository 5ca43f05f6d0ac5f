//! Changes that take many blocks at once reach the disk, however short the journal is. A number of an inode that was promised lies
//! far behind the part of the table that was ever written where others have the numbers before it.

use anyhow::Result;
use floe_blockdev::MemDevice;
use floe_format::InodeNr;
use floe_fs::{
    Carried, Deed, Disk, FsError, Limits, Live, Lower, NewInode, Op, OpKind, Place, Reserved,
    Store as _,
};

use super::acts::{Act, find, run};
use super::cubes::{judge_cubes, with_cubes_on};
use super::live::{NOW, mounted, native};

/// Promises so many numbers in a directory; the last ones.
fn promised(live: &impl Lower, directory: InodeNr, count: usize) -> Vec<Reserved> {
    let mut all: Vec<Reserved> = Vec::new();
    while all.len() < count {
        all.extend(live.reserve_inodes(directory, false, 64).unwrap());
    }
    all
}

fn creation(directory: InodeNr, name: &[u8], reserved: Reserved) -> Deed<'_> {
    let place = Place { directory, name };
    let kind = OpKind::Create { place, new: NewInode::regular(0o644) };
    Deed::Create(Op { uid: 0, gid: 0, time: NOW, kind }, reserved)
}

/// Lets the last of so many promised numbers be used first, and then creates something at once behind all of them.
fn last_number_first(device: &MemDevice, path: &str, count: usize, least_blocks: u32) {
    let (disk, volume) = Disk::open(device).unwrap();
    {
        let files = disk.files_of(&volume).unwrap();
        let live = Live::new(&disk, &files, volume, NOW).unwrap();
        let directory = find(&live, path).unwrap();
        let all = promised(&live, directory, count);
        let first = files.geometry().place_of(all[0].inode).unwrap();
        // The last one in the same group, so that nothing of the table before it was written.
        let of_group = |one: &&Reserved| files.geometry().place_of(one.inode).unwrap().0 == first.0;
        let last = *all.iter().rfind(of_group).unwrap();
        let blocks = (last.inode.0 - all[0].inode.0) / 16;
        assert!(blocks > least_blocks, "{blocks} blocks of the table");
        let (made, done) = live.make(&[creation(directory, b"last", last)], Carried::default());
        assert!(made == 1 && done.is_ok(), "{blocks} blocks: {done:?}");
        let more = promised(&live, directory, count / 2);
        run(&live, 1, &Act::Create(format!("{path}/at-once"))).unwrap();
        for one in all.iter().chain(&more).filter(|one| one.inode != last.inode) {
            live.give_back(one.inode);
        }
        live.finish(NOW).unwrap();
    }
    disk.close().unwrap();
    judge_cubes(device, true).unwrap();
    mounted(device, Limits::default(), |memory| {
        for name in ["last", "at-once"] {
            find(memory, &format!("{path}/{name}"))?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_number_far_into_a_table_fits_the_smallest_journal_of_a_cube() {
    // 26 blocks of a group have inodes; a change of a fifth of 64 blocks was the most.
    let device = MemDevice::new(with_cubes_on(native(40 << 20, "lot_size=8m", "8192")));
    last_number_first(&device, "a", 400, 12);
}

#[test]
fn a_number_far_into_a_table_fits_the_smallest_journal_of_a_file_system() {
    // 256 blocks, of which a fifth of 1,024 is less.
    let device = MemDevice::new(native(64 << 20, "lot_size=16m", "65536"));
    mounted(&device, Limits::default(), |memory| Ok(run(memory, 1, &Act::Mkdir("d".to_owned()))?))
        .unwrap();
    last_number_first(&device, "d", 4000, 204);
}

/// Threads that create files in a cube have numbers far from each other; each makes its own durable, the last one first.
#[test]
fn threads_that_create_files_in_a_cube_make_them_durable_in_any_order() {
    const THREADS: usize = 8;
    let device = MemDevice::new(with_cubes_on(native(40 << 20, "lot_size=8m", "8192")));
    let made = mounted(&device, Limits::default(), |memory| {
        let (taken, ended) = (std::sync::Barrier::new(2), std::sync::Barrier::new(THREADS + 1));
        std::thread::scope(|scope| {
            for at in 0..THREADS {
                let (taken, ended) = (&taken, &ended);
                scope.spawn(move || {
                    let created = run(memory, 1, &Act::Create(format!("a/{at}")));
                    taken.wait();
                    // Its slot is not another's before all have one.
                    ended.wait();
                    created.unwrap();
                });
                taken.wait();
            }
            ended.wait();
        });
        let mut files: Vec<InodeNr> = (0..THREADS)
            .map(|at| find(memory, &format!("a/{at}")))
            .collect::<Result<_, FsError>>()?;
        files.sort_unstable();
        for at in (0..THREADS).rev() {
            run(memory, 2, &Act::Fsync(format!("a/{at}")))?;
        }
        Ok(files)
    })
    .unwrap();
    let apart = made.last().unwrap().0 - made[0].0;
    eprintln!("numbers {apart} apart");
    judge_cubes(&device, true).unwrap();
    mounted(&device, Limits::default(), |memory| {
        for at in 0..THREADS {
            find(memory, &format!("a/{at}"))?;
        }
        Ok(())
    })
    .unwrap();
}

/// Each file is made durable and removed: the removals reach the disk with the next file, and their deletions with them, because a
/// cube lists 1,023 orphans at most.
#[test]
fn files_that_come_and_go_leave_no_orphans() {
    let device = MemDevice::new(with_cubes_on(native(40 << 20, "lot_size=8m", "8192")));
    mounted(&device, Limits::default(), |memory| {
        for at in 0..1200 {
            run(memory, 1, &Act::Create(format!("a/{at}")))?;
            run(memory, 1, &Act::Fsync(format!("a/{at}")))?;
            run(memory, 1, &Act::Unlink(format!("a/{at}")))?;
        }
        Ok(memory.sync()?)
    })
    .unwrap();
    judge_cubes(&device, true).unwrap();
}
