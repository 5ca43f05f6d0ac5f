//! File systems and operations that are refused, by name.

use floe_blockdev::{MemDevice, WriteBlocks};
use floe_disk::journal::Journal;
use floe_disk::ops::{Caller, NewInode, NewKind, OpError, RenameMode};
use floe_disk::volume::{OpenError, ReadOnly, Volume};
use floe_ext4::tx::DirectTx;
use floe_format::InodeNr;
use floe_format::ext::inode::InodeFlags;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_testkit::{Profile, build, tool};

use super::model::time;
use super::{device_of, image_of, judge};

/// A device with an empty file system of a profile, whose superblock was edited.
fn edited(profile: Profile, edit: impl Fn(&mut Superblock)) -> MemDevice {
    let bytes = std::fs::read(build::empty(profile).unwrap().path()).unwrap();
    let place = OFFSET_BYTES as usize..OFFSET_BYTES as usize + 1024;
    let mut superblock = Superblock::decode(bytes[place.clone()].first_chunk().unwrap());
    edit(&mut superblock);
    let mut own: [u8; 1024] = *bytes[place].first_chunk().unwrap();
    superblock.encode_with_checksum(&mut own);
    let device = MemDevice::new(bytes);
    device.write_at(OFFSET_BYTES, &own).unwrap();
    device
}

#[test]
fn features_that_cannot_be_written_are_named() {
    if tool::missing() {
        return;
    }
    let refusal =
        |profile, edit: &dyn Fn(&mut Superblock)| match Volume::open(&edited(profile, edit)) {
            Err(OpenError::ReadOnly(reason)) => Some(reason),
            Err(error) => panic!("{profile}: {error}"),
            Ok(_) => None,
        };
    let named = |names: &[&str]| {
        Some(ReadOnly::Features(names.iter().map(|&name| name.to_owned()).collect()))
    };
    assert_eq!(refusal(Profile::Ext4, &|_| ()), None);
    assert_eq!(refusal(Profile::Quota, &|_| ()), None);
    let values = |sb: &mut Superblock| sb.feature_incompat |= 0x400;
    assert_eq!(refusal(Profile::Quota, &values), None);
    assert_eq!(refusal(Profile::Mmp, &|_| ()), named(&["mmp"]));
    let unknown = |sb: &mut Superblock| {
        sb.feature_incompat |= 0xa000_0000;
        sb.feature_ro_compat |= 0x4000;
    };
    assert_eq!(refusal(Profile::Ext4, &unknown), named(&["FEATURE_I29", "rext3", "shared_blocks"]));
    let recover = |sb: &mut Superblock| sb.feature_incompat |= 4;
    assert_eq!(refusal(Profile::Ext4, &recover), Some(ReadOnly::NeedsRecovery));
    let marked = |sb: &mut Superblock| sb.feature_ro_compat |= 0x1000;
    assert_eq!(refusal(Profile::Ext4, &marked), Some(ReadOnly::MarkedReadOnly));
    let elsewhere = |sb: &mut Superblock| sb.journal_inum = 0;
    assert_eq!(refusal(Profile::Ext4, &elsewhere), Some(ReadOnly::ExternalJournal));
}

/// As Linux refuses it. A journal with changes is not replayed either.
#[test]
fn a_file_system_longer_than_its_device_is_not_written() {
    if tool::missing() {
        return;
    }
    for needs_recovery in [false, true] {
        let flag = if needs_recovery { 4 } else { 0 };
        let whole = edited(Profile::Ext4, |sb| sb.feature_incompat |= flag).to_vec();
        let bytes = &whole[..whole.len() - 1024];
        let device = MemDevice::new(bytes.to_vec());
        let opened = Volume::open(&device);
        assert!(matches!(opened, Err(OpenError::ReadOnly(ReadOnly::CutOff { .. }))), "{opened:?}");
        let journal = Journal::open(&device).map(drop).unwrap_err();
        assert!(journal.to_string().contains("shorter than the file system"), "{journal}");
        assert!(device.to_vec() == bytes, "it was written");
    }
}

const CALLER: Caller = Caller { uid: 0, gid: 0, time: time(9), may_use_reserve: false };

#[test]
fn operations_that_cannot_be_done_change_nothing() {
    if tool::missing() {
        return;
    }
    let device = device_of(&build::empty(Profile::Encrypt).unwrap());
    let mut volume = Volume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let root = InodeNr::ROOT;
    let (file, dir) = (NewInode::regular(0o644), NewInode::directory(0o755));
    let mut create = |name: &[u8], new: &NewInode<'_>, volume: &mut Volume| {
        volume.create(&mut tx, &CALLER, root, name, new)
    };
    let longest = vec![b'n'; 255];
    let long = create(&longest, &file, &mut volume).unwrap();
    for (name, new) in
        [(&b""[..], &file), (b".", &file), (b"..", &dir), (b"a/b", &file), (b"a\0", &dir)]
    {
        assert!(matches!(create(name, new, &mut volume), Err(OpError::BadName)), "{name:?}");
    }
    assert!(matches!(create(&[b'n'; 256], &file, &mut volume), Err(OpError::NameTooLong)));
    assert!(matches!(create(&longest, &dir, &mut volume), Err(OpError::Exists)));
    let target = vec![b't'; 1024];
    assert!(matches!(
        create(b"l", &NewInode::symlink(&target), &mut volume),
        Err(OpError::NameTooLong)
    ));
    assert!(matches!(create(b"l", &NewInode::symlink(b""), &mut volume), Err(OpError::Invalid(_))));
    let top = create(b"top", &dir, &mut volume).unwrap();
    let locked = create(b"locked", &dir, &mut volume).unwrap();
    let under = volume.create(&mut tx, &CALLER, top, b"under", &dir).unwrap();
    let into = volume.rename(&mut tx, &CALLER, (root, b"top"), (under, b"x"), RenameMode::Replace);
    assert!(matches!(into, Err(OpError::Invalid(_))));
    let replaced =
        volume.rename(&mut tx, &CALLER, (root, &longest), (root, b"top"), RenameMode::Replace);
    assert!(matches!(replaced, Err(OpError::IsADirectory)));
    assert!(matches!(volume.rmdir(&mut tx, &CALLER, root, b"top"), Err(OpError::NotEmpty)));
    assert!(matches!(volume.link(&mut tx, &CALLER, top, root, b"y"), Err(OpError::IsADirectory)));
    assert!(matches!(volume.lookup(&mut tx, long, b"x"), Err(OpError::NotADirectory)));
    assert!(matches!(
        volume.write(&mut tx, &device, &CALLER, long, u64::MAX - 5, b"x"),
        Err(OpError::TooLarge)
    ));
    // Changes that the inode forbids: immutable files, and encrypted directories, for which there is no key.
    let set = |inode, flag, volume: &mut Volume, tx: &mut DirectTx<'_, MemDevice>| {
        let mut edited = volume.inode(tx, inode).unwrap();
        edited.set_flags(flag, true);
        floe_ext4::fs::FileSystem::open(&device).unwrap().put_inode(tx, &mut edited).unwrap();
    };
    set(long, InodeFlags::IMMUTABLE, &mut volume, &mut tx);
    set(locked, InodeFlags::ENCRYPT, &mut volume, &mut tx);
    let write = volume.write(&mut tx, &device, &CALLER, long, 0, b"x");
    assert!(matches!(write, Err(OpError::NotPermitted(_))));
    let unlink = volume.unlink(&mut tx, &CALLER, root, &longest);
    assert!(matches!(unlink, Err(OpError::NotPermitted(_))));
    let created = volume.create(&mut tx, &CALLER, locked, b"x", &file);
    assert!(matches!(created, Err(OpError::Unsupported(_))));
}

/// A volume that fills up refuses what does not fit, and whatever is refused leaves no trace.
#[test]
fn a_full_volume_stays_whole() {
    if tool::missing() {
        return;
    }
    for profile in [Profile::Ext3, Profile::Ext4K1, Profile::Bigalloc] {
        let device = device_of(&build::empty(profile).unwrap());
        let mut volume = Volume::open(&device).unwrap();
        let mut tx = DirectTx::new(&device, volume.geometry().clone());
        volume.begin_writing(&mut tx, time(1)).unwrap();
        let caller = Caller { may_use_reserve: true, ..CALLER };
        let (mut refused, mut made) = (0, 0);
        for at in 0..3000u32 {
            let name = format!("{at:0200}");
            let kind = match at % 3 {
                0 => NewKind::Directory,
                1 => NewKind::Symlink(&[b't'; 500]),
                _ => NewKind::Regular,
            };
            let new = NewInode { kind, permissions: 0o777, umask: 0 };
            match volume.create(&mut tx, &caller, InodeNr::ROOT, name.as_bytes(), &new) {
                Ok(inode) if kind == NewKind::Regular => {
                    let bytes = vec![7; 40_000];
                    let written = volume.write(&mut tx, &device, &caller, inode, 0, &bytes);
                    refused += u32::from(matches!(written, Err(OpError::NoSpace)));
                    made += 1;
                }
                Ok(_) => made += 1,
                Err(OpError::NoSpace) => refused += 1,
                Err(error) => panic!("{profile}: {error}"),
            }
        }
        assert!(made > 100 && refused > 100, "{profile}: {made} {refused}");
        volume.end_writing(&mut tx, time(2)).unwrap();
        tx.commit().unwrap();
        judge(&image_of(&device), profile.name());
    }
}

/// An operation that would not fit a transaction is refused before anything of it is in one (R11); it can be done in parts.
#[test]
fn what_does_not_fit_a_transaction_is_refused() {
    if tool::missing() {
        return;
    }
    let device = device_of(&build::empty(Profile::Ext4K1).unwrap());
    let mut volume = Volume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    volume.begin_writing(&mut tx, time(1)).unwrap();
    let root = InodeNr::ROOT;
    let file = volume.create(&mut tx, &CALLER, root, b"file", &NewInode::regular(0o644)).unwrap();
    // Every second block, so that whatever fills the holes takes many groups and nodes.
    for at in 0..600u64 {
        volume.write(&mut tx, &device, &CALLER, file, at * 2048, &[1; 1024]).unwrap();
    }
    tx.commit().unwrap();
    let (before, bytes) = (volume.room(), vec![2; 600 * 2048]);
    volume.limit_changes(8);
    let mut parts = 0;
    let mut pieces = vec![(0, bytes.len())];
    while let Some((at, len)) = pieces.pop() {
        let part = &bytes[at..at + len];
        match volume.write(&mut tx, &device, &CALLER, file, at as u64, part) {
            Ok(()) => parts += 1,
            Err(OpError::TooLong) => {
                assert!(parts > 0 || volume.room() == before, "nothing of it was done");
                pieces.extend([(at + len / 2, len - len / 2), (at, len / 2)]);
            }
            Err(error) => panic!("{error}"),
        }
        assert!(volume.last_changed_blocks() <= 8);
    }
    assert!(parts > 1, "{parts}");
    volume.end_writing(&mut tx, time(2)).unwrap();
    tx.commit().unwrap();
    judge(&image_of(&device), "in parts");
}
