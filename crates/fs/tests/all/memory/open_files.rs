//! Files that are removed while programs have them open: as many as there are inodes, in a cube with a journal of its own and outside
//! of cubes, durable with their removal, and gone after a crash.

use floe_blockdev::{Crash, MemDevice, Recorder, WriteBlocks};
use floe_check::{CheckOptions, check};
use floe_format::InodeNr;
use floe_fs::{CubeCall, Limits, Op, OpKind, Store};

use super::acts::{Act, filling, find, place, run};
use super::cubes::{judge_cubes, with_cubes_on};
use super::live::{NOW, judge, mounted, native};

/// Removes a file that somebody has open.
fn remove_open(store: &impl Store, path: &str) -> InodeNr {
    let place = place(store, path).unwrap();
    let op = Op { uid: 0, gid: 0, time: NOW, kind: OpKind::Unlink(place) };
    store.apply(&op).unwrap().nameless.expect("it had one name")
}

/// Creates files in a directory, makes them durable, and removes all while they are open.
fn removed_while_open(store: &impl Store, directory: &str, count: usize) -> Vec<InodeNr> {
    let path = |at: usize| format!("{directory}/{at}");
    for at in 0..count {
        run(store, 1, &Act::Create(path(at))).unwrap();
    }
    store.sync().unwrap();
    let all = (0..count).map(|at| remove_open(store, &path(at))).collect();
    store.sync().unwrap();
    all
}

/// A crash leaves nothing that is not sound but orphans, of which none is left after the next mount.
fn recovers(crashed: Vec<u8>, directory: &str, left: &[&str]) {
    let device = MemDevice::new(crashed);
    let report = check(&device, &CheckOptions::default()).unwrap();
    let others = report.found.iter().filter(|one| !one.row().id.contains("orphan"));
    assert_eq!(others.collect::<Vec<_>>(), Vec::<&floe_check::Problem>::new());
    mounted(&device, Limits::default(), |memory| {
        let directory = find(memory, directory)?;
        let names = memory.directory(directory)?;
        let mut names: Vec<String> = names
            .behind(0)
            .map(|(_, entry)| String::from_utf8_lossy(&entry.name).into_owned())
            .filter(|name| ![".", ".."].contains(&&**name))
            .collect();
        names.sort_unstable();
        assert_eq!(names, left);
        Ok(())
    })
    .unwrap();
    judge_cubes(&device, true).unwrap();
}

#[test]
fn a_cube_lists_as_many_open_files_as_are_removed() {
    const COUNT: usize = 1500;
    let device = MemDevice::new(with_cubes_on(native(40 << 20, "lot_size=8m", "20000")));
    let crashed = mounted(&device, Limits::default(), |memory| {
        let open = removed_while_open(memory, "a", COUNT);
        let mut crashed = vec![device.to_vec()];
        // Those at the end of the list, in the middle of it and in slots are given up in any order.
        let (first, rest): (Vec<_>, Vec<_>) = (0..COUNT).partition(|at| at * 7 % 3 == 0);
        for at in first {
            memory.release(open[at])?;
        }
        memory.sync()?;
        crashed.push(device.to_vec());
        run(memory, 1, &Act::Create("a/new".to_owned()))?;
        memory.sync()?;
        for at in rest.into_iter().rev() {
            memory.release(open[at])?;
        }
        memory.sync()?;
        Ok(crashed)
    })
    .unwrap();
    judge_cubes(&device, true).unwrap();
    for bytes in crashed {
        recovers(bytes, "a", &[]);
    }
}

/// The orphan file of a native file system, which has one block here, grows.
#[test]
fn outside_of_cubes_as_many_open_files_are_listed_as_are_removed() {
    let options = "lot_size=8m,orphan_file_size=4096";
    let device = MemDevice::new(native(40 << 20, options, "20000"));
    let crashed = mounted(&device, Limits::default(), |memory| {
        run(memory, 1, &Act::Mkdir("d".to_owned()))?;
        let open = removed_while_open(memory, "d", 1500);
        let crashed = device.to_vec();
        open.into_iter().try_for_each(|inode| memory.release(inode))?;
        Ok(crashed)
    })
    .unwrap();
    judge(&device, true).unwrap();
    recovers(crashed, "d", &[]);
}

/// Power fails at every request while the list of a cube that goes through inodes grows and shrinks.
#[test]
fn a_list_of_open_files_survives_any_crash() {
    const SLOTS: usize = 1021;
    let base = with_cubes_on(native(24 << 20, "lot_size=4m", "6000"));
    let device = Recorder::new(MemDevice::new(base.clone()));
    let path = |at: usize| format!("a/{at:04}");
    // Requests by then, and the files that are left.
    let mut acknowledged: Vec<(usize, usize)> = Vec::new();
    mounted(&device, Limits::default(), |memory| {
        for at in 0..SLOTS + 6 {
            run(memory, 1, &Act::Create(path(at)))?;
        }
        memory.sync()?;
        for at in 0..SLOTS {
            remove_open(memory, &path(at));
        }
        memory.sync()?;
        acknowledged.push((device.count(), SLOTS));
        let top = find(memory, "a")?;
        let mut open: Vec<InodeNr> = Vec::new();
        for at in SLOTS..SLOTS + 6 {
            open.push(remove_open(memory, &path(at)));
            memory.sync_inode(top)?;
            acknowledged.push((device.count(), at + 1));
            if at == SLOTS + 4 {
                // One of the middle, the last one, the first one.
                for at in [2, 0, 2] {
                    memory.release(open.remove(at))?;
                    memory.sync()?;
                }
            }
        }
        Ok(())
    })
    .unwrap();
    let trace = device.trace();
    let first = acknowledged[0].0;
    for issued in (first..=trace.events.len()).step_by(5) {
        let device = MemDevice::new(base.clone());
        trace.replay(&Crash::after(issued), &device).unwrap();
        let known = acknowledged.iter().rev().find(|(events, _)| *events <= issued).unwrap().1;
        let recovered = floe_disk::recovery::recover(&device).unwrap();
        assert!(recovered.cubes.iter().all(|cube| cube.failed.is_none()));
        let left = mounted(&device, Limits::default(), |memory| {
            Ok((0..SLOTS + 6).filter(|at| find(memory, &path(*at)).is_ok()).collect::<Vec<_>>())
        })
        .unwrap();
        let expected: Vec<usize> = (known..SLOTS + 6).collect();
        let later: Vec<usize> = (known + 1..SLOTS + 6).collect();
        assert!(left == expected || left == later, "after {issued}: {left:?}, {expected:?}");
        judge_cubes(&device, false).unwrap();
    }
}

/// A list that leads into another cube, to itself or to nothing is damage of its cube alone.
#[test]
fn a_damaged_list_of_open_files_concerns_its_cube_alone() {
    use floe_ext4::fs::FileSystem as Layout;
    use floe_ext4::tx::DirectTx;
    use floe_fs::{FileSystem, Live, MemFs, Mode};
    let device = MemDevice::new(with_cubes_on(native(24 << 20, "lot_size=4m", "6000")));
    let crashed = mounted(&device, Limits::default(), |memory| {
        run(memory, 1, &Act::Create("b/other".to_owned()))?;
        removed_while_open(memory, "a", 1030);
        let (other, crashed) = (find(memory, "b/other")?, device.to_vec());
        Ok((other, crashed))
    });
    let (other, crashed) = crashed.unwrap();
    for wrong in ["itself", "another cube", "no inode"] {
        let device = MemDevice::new(crashed.clone());
        floe_disk::recovery::recover(&device).unwrap();
        let layout = Layout::open(&device).unwrap();
        let geometry = layout.geometry().clone();
        let descs = layout.space.groups.descs().to_vec();
        let found = floe_ext4::journal::find_cubes(&device, &layout.superblock, &geometry, &descs);
        let own = found.usable.iter().find(|own| own.cube == 1).unwrap();
        let mut block = vec![0; 4096];
        floe_blockdev::ReadBlocks::read_at(&device, own.orphan_block.0 * 4096, &mut block).unwrap();
        let head = floe_format::ext::orphan_file::OrphanBlock::new(&block).unwrap().chain_head();
        let mut tx = DirectTx::new(&device, geometry);
        let mut inode = layout.inode(&mut tx, head).unwrap();
        inode.base.dtime = match wrong {
            "itself" => head.0,
            "another cube" => other.0,
            _ => 5_999_999,
        };
        layout.put_inode(&mut tx, &mut inode).unwrap();
        tx.commit().unwrap();
        device.flush().unwrap();
        let ids: Vec<_> = check(&device, &CheckOptions::default()).unwrap().found;
        let ids: Vec<&str> = ids.iter().map(|one| one.row().id).collect();
        assert!(ids.contains(&"cube-journal-damaged"), "{wrong}: {ids:?}");
        // A mount serves the other cube, and this one only for reading.
        let copy = device.clone();
        let (disk, volume) = floe_fs::Disk::open(&copy).unwrap();
        let files = disk.files().unwrap();
        let live = Live::new(&disk, &files, volume, NOW).unwrap();
        let fs = FileSystem::new(MemFs::new(live, Limits::default()));
        let gates = fs.store().gates().unwrap();
        assert_eq!(
            (gates.state(1).0, gates.state(2).0),
            (Mode::ReadOnly, Mode::Serving),
            "{wrong}"
        );
        drop(fs);
        let seen = floe_repair::commit::Seen::of(&device);
        let options = floe_repair::RepairOptions::default();
        let planned =
            floe_repair::repair(&device, &options, &mut floe_repair::policy::Yes).unwrap();
        assert!(planned.left.is_empty(), "{wrong}: {:?}", planned.left);
        let options = floe_repair::commit::CommitOptions::of(&seen);
        planned.commit(&device, &options).unwrap();
        drop(planned);
        judge_cubes(&device, true).unwrap();
        mounted(&device, Limits::default(), |memory| {
            find(memory, "b/other")?;
            run(memory, 1, &Act::Create("a/new".to_owned()))?;
            Ok(memory.sync()?)
        })
        .unwrap();
    }
}

/// A cube is removed while programs have files without names in it open: their content stays theirs until they let go, and a crash
/// before that leaves nothing of them. The removal is refused, and changes nothing, where it would be too long for a transaction.
#[test]
fn a_cube_is_removed_while_files_without_names_are_open() {
    for count in [50, 900, 4000] {
        let device = MemDevice::new(with_cubes_on(native(96 << 20, "lot_size=16m", "30000")));
        let content = |turn: u32| filling(turn, 3000);
        let crashed = mounted(&device, Limits::default(), |memory| {
            let path = |at: usize| format!("a/{at}");
            for at in 0..count {
                run(memory, at as u32, &Act::Create(path(at)))?;
                run(memory, at as u32, &Act::Write(path(at), 0, 3000))?;
            }
            memory.sync()?;
            let open: Vec<_> = (0..count).map(|at| remove_open(memory, &path(at))).collect();
            let (parent, name) = (InodeNr::ROOT, &b"a"[..]);
            let removal = CubeCall::Remove { parent, name, keep_files: false };
            let removed = memory.cube_call(&removal);
            let is_there = find(memory, "a").is_ok();
            assert_eq!(removed.is_err(), is_there, "{count}: {removed:?}");
            assert!(count > 900 || removed.is_ok(), "{count}: {removed:?}");
            // Others take what is free now.
            for at in 0..200 {
                run(memory, 240, &Act::Create(format!("{at}")))?;
                run(memory, 240, &Act::Write(format!("{at}"), 0, 30_000))?;
            }
            memory.sync()?;
            let mut bytes = vec![0; 4000];
            for (at, inode) in open.iter().enumerate() {
                let len = memory.read(*inode, 0, &mut bytes)?;
                assert!(bytes[..len] == content(at as u32), "{count}: file {at}");
            }
            let crashed = device.to_vec();
            let free = memory.space().free_inodes;
            open.into_iter().try_for_each(|inode| memory.release(inode))?;
            memory.sync()?;
            assert!(memory.space().free_inodes >= free + count as u64);
            Ok(crashed)
        })
        .unwrap();
        judge_cubes(&device, true).unwrap();
        recovers(crashed, "b", &[]);
    }
}
