//! Mounts an image damaged by a script of bytes, and changes files in it. Shared by the test `fuzz_inputs` and the
//! fuzz target `mount_image` (`fuzz/`).
//!
//! Invariants for any damage: no panic and no endless loop, whatever a mount reads or changes; what the check called
//! clean before is clean after it, also where the process dies before the unmount and the journal is recovered.

use std::collections::BTreeMap;
use std::error::Error;

use floe_blockdev::{MemDevice, ReadBlocks};
use floe_check::{CheckOptions, JournalUse, check};
use floe_format::InodeNr;
use floe_format::ext::inode::FileType;
use floe_fs::{
    Attributes, Change, Disk, FsError, Limits, Live, MemFs, NewInode, Op, OpKind, Place, RangeMode,
    RenameMode, SeekFor, SetMode, Store, Timestamp,
};
use floe_testkit::Rng;
use floe_testkit::damage::script::{Maker, Stage, maker_of};

#[path = "../../../../repair/tests/all/repaired_image/made.rs"]
mod made;

const NOW: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
/// Most inodes that are looked at: a directory may name itself.
const MOST_INODES: usize = 300;
/// Most bytes that are read of a file: its size may be anything.
const MOST_BYTES: usize = 70_000;

/// The base images used so far, because building one is slow.
#[derive(Default)]
pub(crate) struct Stages {
    of_maker: BTreeMap<Maker, Stage>,
}

impl Stages {
    /// Mounts the image that `script` damages, changes it, unmounts it or lets the process die, and checks it.
    ///
    /// Panics if an invariant is violated, or if the base image cannot be built.
    #[allow(clippy::expect_used, reason = "a test needs its base image")]
    pub(crate) fn mount(&mut self, script: &[u8]) {
        let maker = maker_of(script);
        if maker == Maker::Rext3 {
            // A mount only reads it, which needs no journal and changes nothing.
            return;
        }
        let stage = self.of_maker.entry(maker).or_insert_with(|| made::stage(maker));
        // Another seed for each script.
        let seed = script.iter().fold(0u64, |sum, &byte| sum.rotate_left(7) ^ u64::from(byte));
        stage
            .perform(script, |device, _| {
                let bytes = device.inner().to_vec().expect("the image can be read");
                once(bytes, seed);
            })
            .expect("the script applies to the image");
    }
}

/// One damaged image, from the check to the unmount.
fn once(bytes: Vec<u8>, seed: u64) {
    let device = MemDevice::new(bytes);
    let clean = is_clean(&device);
    let mut rng = Rng::new(seed);
    let dies = rng.chance(3);
    if let Err(error) = mounted(&device, &mut rng, dies) {
        // Refused, or ended by an error: what is damaged says so.
        assert!(!clean, "a clean file system: {error}");
        return;
    }
    if clean {
        assert!(is_clean(&device), "clean before a mount {}", if dies { "that died" } else { "" });
    }
}

/// Whether a check finds nothing, after recovery.
fn is_clean(device: &dyn ReadBlocks) -> bool {
    let options =
        CheckOptions { threads: 1, journal: JournalUse::Replay, ..CheckOptions::default() };
    check(device, &options).is_ok_and(|report| report.is_clean())
}

/// Mounts, reads and changes; unmounts unless the process dies first.
fn mounted(device: &MemDevice, rng: &mut Rng, dies: bool) -> Result<(), Box<dyn Error>> {
    let (disk, volume) = Disk::open(device)?;
    let files = disk.files_of(&volume)?;
    let limits = Limits { immediate: rng.chance(4), ..Limits::default() };
    let memory = MemFs::new(Live::new(&disk, &files, volume, NOW)?, limits);
    let all = walked(&memory);
    for turn in 0..24 {
        let inode = rng.pick(&all).copied().unwrap_or(InodeNr::ROOT);
        let other = rng.pick(&all).copied().unwrap_or(InodeNr::ROOT);
        // Each may be refused: the file may be damaged, or the wrong kind.
        let _ = change(&memory, rng, turn, (inode, other));
    }
    walked(&memory);
    if dies {
        let _ = memory.sync();
        return Ok(());
    }
    let (live, lost) = memory.finish()?;
    live.finish(NOW)?;
    lost?;
    drop(files);
    Ok(disk.close()?)
}

/// Reads all that a program can see, and returns the inodes.
fn walked(store: &impl Store) -> Vec<InodeNr> {
    let mut all = vec![InodeNr::ROOT];
    let mut next = 0;
    while let (Some(&inode), true) = (all.get(next), all.len() < MOST_INODES) {
        next += 1;
        let Ok(found) = store.attributes(inode) else { continue };
        let _ = store.extended_attributes(inode);
        read(store, &found);
        let mut take = |name: floe_fs::Listed<'_>| {
            all.push(name.inode);
            all.len() < MOST_INODES
        };
        if found.kind == FileType::Directory {
            let _ = store.list(inode, 0, &mut take);
        }
    }
    all
}

fn read(store: &impl Store, found: &Attributes) {
    let inode = found.inode;
    match found.kind {
        FileType::Regular => {
            let mut bytes = vec![0; MOST_BYTES];
            let _ = store.read(inode, 0, &mut bytes);
            let _ = store.read(inode, found.size_bytes.saturating_sub(5000), &mut bytes);
            let _ = store.seek(inode, 0, SeekFor::Hole);
        }
        FileType::Symlink => drop(store.target(inode)),
        _ => {}
    }
}

/// One change of two inodes.
fn change(
    store: &impl Store,
    rng: &mut Rng,
    turn: u32,
    (inode, other): (InodeNr, InodeNr),
) -> Result<(), FsError> {
    let names: [&[u8]; 5] =
        [b"file", b"dir", b"new", b"f001", b"a longer name than the others have"];
    let name = |rng: &mut Rng| names[rng.index(names.len())];
    let place = Place { directory: inode, name: name(rng) };
    let to = Place { directory: other, name: name(rng) };
    let bytes = vec![turn as u8; 1 + rng.index(9000)];
    let at = rng.below(40_000);
    let kind = match rng.index(14) {
        0 => OpKind::Create { place, new: NewInode::regular(0o644) },
        1 => OpKind::Create { place, new: NewInode::directory(0o755) },
        2 => OpKind::Create { place, new: NewInode::symlink(&bytes[..bytes.len().min(200)]) },
        3 => OpKind::Link { inode, place: to },
        4 => OpKind::Unlink(place),
        5 => OpKind::RemoveDirectory(place),
        6 => OpKind::Rename { from: place, to, mode: RenameMode::Replace },
        7 => OpKind::Change { inode, size_bytes: Some(at), change: Change::default() },
        8 => {
            let change = Change { permissions: Some(0o600), uid: Some(5), ..Change::default() };
            OpKind::Change { inode, size_bytes: None, change }
        }
        9 | 10 => OpKind::Write { inode, offset_bytes: at, bytes: &bytes },
        11 => OpKind::Range { inode, mode: RangeMode::Punch, bytes: at..at + 9000 },
        12 => {
            let (name, mode) = (b"user.new".as_slice(), SetMode::Any);
            OpKind::SetAttribute { inode, name, value: &bytes[..bytes.len().min(300)], mode }
        }
        _ => return store.sync_inode(inode),
    };
    let time = Timestamp { seconds: NOW.seconds + i64::from(turn), nanoseconds: turn };
    let applied = store.apply(&Op { uid: 0, gid: 0, time, kind })?;
    applied.nameless.map_or(Ok(()), |inode| store.release(inode))
}
