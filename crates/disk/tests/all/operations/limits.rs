//! Limits of quotas: hard and soft ones, of blocks and of inodes, as Linux enforces them.

use floe_blockdev::MemDevice;
use floe_disk::ops::{Caller, Change, NewInode, OpError, Step};
use floe_disk::volume::Volume;
use floe_ext4::tx::DirectTx;
use floe_format::InodeNr;
use floe_format::ext::quota::{Dquot, QuotaKind};
use floe_testkit::quota::set_limits;
use floe_testkit::{Profile, build, tool};

use super::model::time;
use super::{device_of, image_of, judge};

const USER: u32 = 4321;
const GROUP: u32 = 8765;
const ROOT: InodeNr = InodeNr::ROOT;

fn caller(uid: u32, seconds: i64) -> Caller {
    Caller { uid, gid: GROUP, time: time(seconds), may_use_reserve: uid == 0 }
}

/// Changes the only entry of an id, and the times of grace of the quotas of a kind.
fn set(device: &MemDevice, kind: QuotaKind, id: u32, edit: impl Fn(&mut Dquot)) {
    set_limits(device, kind, id, (100, 50), edit).unwrap();
}

/// A file system with quotas on which the user has one empty file.
fn made() -> MemDevice {
    let device = device_of(&build::empty(Profile::Quota).unwrap());
    run(&device, &[], |volume, tx| {
        volume.create(tx, &caller(USER, 1), ROOT, b"first", &NewInode::regular(0o644))
    })
    .unwrap();
    device
}

fn run<T>(
    device: &MemDevice,
    enforced: &[QuotaKind],
    operation: impl FnOnce(&mut Volume, &mut DirectTx<'_, MemDevice>) -> Result<T, OpError>,
) -> Result<T, OpError> {
    let mut volume = Volume::open(device).unwrap();
    volume.enforce_limits(enforced.to_vec());
    let mut tx = DirectTx::new(device, volume.geometry().clone());
    let done = operation(&mut volume, &mut tx)?;
    tx.commit().unwrap();
    Ok(done)
}

/// How many files a caller can make until one is refused, at most 20.
fn files(device: &MemDevice, enforced: &[QuotaKind], caller: &Caller, prefix: &str) -> u32 {
    run(device, enforced, |volume, tx| {
        for number in 0..20 {
            let name = format!("{prefix}{number}");
            match volume.create(tx, caller, ROOT, name.as_bytes(), &NewInode::regular(0o644)) {
                Ok(_) => {}
                Err(OpError::QuotaExceeded) => return Ok(number),
                Err(error) => return Err(error),
            }
        }
        Ok(20)
    })
    .unwrap()
}

#[test]
fn hard_limits_of_every_kind_stop_everybody_but_root() {
    if tool::missing() {
        return;
    }
    let kinds = [(QuotaKind::User, USER), (QuotaKind::Group, GROUP)];
    for (kind, id) in kinds {
        let device = made();
        set(&device, kind, id, |entry| {
            (entry.inode_hard_limit, entry.block_hard_limit_kib) = (6, 40);
        });
        assert_eq!(files(&device, &[], &caller(USER, 2), "counted"), 20, "not enforced");
        let device = made();
        set(&device, kind, id, |entry| {
            (entry.inode_hard_limit, entry.block_hard_limit_kib) = (6, 40);
        });
        assert_eq!(files(&device, &[kind], &caller(USER, 2), "file"), 5, "{kind:?}: one was there");
        let written = run(&device, &[kind], |volume, tx| {
            let inode = volume.lookup(tx, ROOT, b"first")?.map(|named| named.inode).unwrap();
            let mut blocks = 0;
            while blocks < 100 {
                let (at, bytes) = (blocks * 4096, [7; 4096]);
                match volume.write(tx, &device, &caller(USER, 2), inode, at, &bytes) {
                    Ok(()) => blocks += 1,
                    Err(OpError::QuotaExceeded) => break,
                    Err(error) => return Err(error),
                }
            }
            // The whole file given to another, and back by root, who passes the limit.
            let owner = |uid, gid| Change { uid: Some(uid), gid: Some(gid), ..Change::default() };
            volume.change(tx, &caller(0, 2), inode, &owner(1, 1))?;
            volume.write(tx, &device, &caller(0, 2), inode, blocks * 4096, &[7; 8192])?;
            volume.change(tx, &caller(0, 2), inode, &owner(USER, GROUP))?;
            Ok(blocks)
        });
        assert_eq!(written.unwrap(), 10, "{kind:?}: 40 KiB");
        judge(&image_of(&device), "after the limits");
    }
}

#[test]
fn soft_limits_count_after_their_time_of_grace() {
    if tool::missing() {
        return;
    }
    let device = made();
    set(&device, QuotaKind::User, USER, |entry| {
        (entry.inode_soft_limit, entry.block_soft_limit_kib) = (4, 8);
    });
    let user = [QuotaKind::User];
    assert_eq!(files(&device, &user, &caller(USER, 1000), "a"), 20, "the time begins");
    assert_eq!(files(&device, &user, &caller(USER, 1049), "b"), 20, "50 seconds of grace");
    assert_eq!(files(&device, &user, &caller(USER, 1050), "c"), 0, "they are over");
    assert_eq!(files(&device, &user, &caller(0, 1050), "d"), 20, "root may");
    // Below the limit, the time begins anew.
    run(&device, &user, |volume, tx| {
        for name in (0..20).flat_map(|number| [format!("a{number}"), format!("b{number}")]) {
            let removed = volume.unlink(tx, &caller(USER, 1060), ROOT, name.as_bytes())?;
            let system = Caller::system(time(1060));
            let step = volume.finish_orphan(tx, &device, &system, removed.inode)?;
            assert_eq!(step, Step::Done);
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(files(&device, &user, &caller(USER, 2000), "e"), 20);
    judge(&image_of(&device), "after the limits");
}
