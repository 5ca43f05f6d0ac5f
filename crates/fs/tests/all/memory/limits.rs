//! Limits of quotas and the end of the disk, while changes wait: not a byte more than may be, and hardly one less.

use anyhow::{Result, ensure};
use floe_blockdev::MemDevice;
use floe_format::InodeNr;
use floe_format::ext::inode::InodeFlags;
use floe_format::ext::quota::QuotaKind;
use floe_fs::{Change, FsError, Limits, NewInode, Op, OpKind, Place, SetMode, Store};
use floe_testkit::quota::set_limits;
use floe_testkit::tool;

use super::live::{self, Base, NOW, judge, mounted, mounted_with_quotas};

const USER: u32 = 4321;
const GROUP: u32 = 8765;
const PROJECT: u32 = 555;
/// Limits of an owner, of whom an empty file is there.
const MOST_INODES: u64 = 9;
const MOST_KIB: u64 = 200;
/// Bytes of a block.
const BLOCK: u64 = 1024;

fn apply<S: Store>(store: &S, uid: u32, kind: OpKind<'_>) -> Result<Option<InodeNr>, FsError> {
    Ok(store.apply(&Op { uid, gid: GROUP, time: NOW, kind })?.created)
}

fn create<S: Store>(
    store: &S,
    uid: u32,
    directory: InodeNr,
    name: &str,
) -> Result<InodeNr, FsError> {
    let (place, new) = (Place { directory, name: name.as_bytes() }, NewInode::regular(0o644));
    let made = apply(store, uid, OpKind::Create { place, new })?;
    Ok(made.expect("a creation makes an inode"))
}

/// Writes; how many bytes were taken, and why no more were.
fn write<S: Store>(
    store: &S,
    uid: u32,
    inode: InodeNr,
    offset_bytes: u64,
    len: usize,
) -> (usize, Option<FsError>) {
    let bytes = vec![offset_bytes as u8 | 1; len];
    match apply(store, uid, OpKind::Write { inode, offset_bytes, bytes: &bytes }) {
        Ok(_) => (len, None),
        Err(FsError::Short { written_bytes, why }) => (written_bytes, Some(*why)),
        Err(error) => (0, Some(error)),
    }
}

/// Writes at the end of a file in pieces of so many bytes, until something is refused. Returns the size of the file.
fn fill<S: Store>(store: &S, uid: u32, inode: InodeNr, piece: usize) -> (u64, FsError) {
    let mut size = store.attributes(inode).unwrap().size_bytes;
    loop {
        let (taken, why) = write(store, uid, inode, size, piece);
        size += taken as u64;
        if let Some(why) = why {
            return (size, why);
        }
    }
}

/// A file system on which the user, the group and the project have one empty file, and one of them a limit.
fn limited(kind: QuotaKind) -> MemDevice {
    let device = MemDevice::new(live::base_of(Base::Quota).to_vec());
    mounted(&device, Limits::default(), |memory| {
        let first = create(memory, USER, InodeNr::ROOT, "first")?;
        let change = Change { project: Some(PROJECT), ..Change::default() };
        apply(memory, 0, OpKind::Change { inode: first, size_bytes: None, change })?;
        Ok(())
    })
    .unwrap();
    let id = match kind {
        QuotaKind::User => USER,
        QuotaKind::Group => GROUP,
        QuotaKind::Project => PROJECT,
    };
    set_limits(&device, kind, id, (100, 50), |entry| {
        entry.inode_hard_limit = MOST_INODES;
        entry.block_hard_limit_kib = MOST_KIB;
    })
    .unwrap();
    device
}

/// Files and bytes up to a limit, in one file or in two by turns; none of it is lost.
fn exhaust(kind: QuotaKind, piece: usize, limits: Limits) -> Result<()> {
    let device = limited(kind);
    mounted_with_quotas(&device, limits, &[kind], |memory| {
        // A directory that hands the project on; a directory of root's, because its block is charged, too.
        let (name, new) = (b"top", NewInode::directory(0o777));
        let place = Place { directory: InodeNr::ROOT, name };
        let top =
            memory.apply(&Op { uid: 0, gid: 0, time: NOW, kind: OpKind::Create { place, new } });
        let top = top?.created.expect("a creation makes an inode");
        if kind == QuotaKind::Project {
            let flags = memory.attributes(top)?.flags | InodeFlags::PROJINHERIT;
            let (flags, project) = (Some(flags), Some(PROJECT));
            let change = Change { flags, project, ..Change::default() };
            let kind = OpKind::Change { inode: top, size_bytes: None, change };
            memory.apply(&Op { uid: 0, gid: 0, time: NOW, kind })?;
        }
        let mut files = Vec::new();
        let refused = loop {
            match create(memory, USER, top, &format!("file {}", files.len())) {
                Ok(file) => files.push(file),
                Err(error) => break error,
            }
        };
        ensure!(matches!(refused, FsError::QuotaExceeded), "{kind:?}: {refused}");
        // The empty file, and the project's directory.
        let others = 1 + u64::from(kind == QuotaKind::Project);
        ensure!(files.len() as u64 + others == MOST_INODES, "{kind:?}: {} files", files.len());
        let (size, refused) = fill(memory, USER, files[0], piece);
        ensure!(matches!(refused, FsError::QuotaExceeded), "{kind:?}: {refused}");
        // All of one kind of block, but those of the project's directory.
        let of_directory = if kind == QuotaKind::Project { BLOCK } else { 0 };
        memory.sync()?;
        let sectors = memory.attributes(files[0])?.sectors;
        ensure!(
            sectors * 512 + of_directory == MOST_KIB * 1024,
            "{kind:?}: {size} bytes in {sectors} sectors"
        );
        ensure!(size + of_directory <= MOST_KIB * 1024, "{kind:?}: {size} bytes");
        // Nothing is left to anybody of that kind but root, and something comes back.
        let (taken, why) = write(memory, USER, files[1], 0, 1);
        ensure!(taken == 0 && matches!(why, Some(FsError::QuotaExceeded)), "{why:?}");
        ensure!(write(memory, 0, files[1], 0, 3000).1.is_none(), "root passes limits");
        let change = Change::default();
        for (inode, size) in [(files[1], 0), (files[0], 10 * BLOCK)] {
            apply(memory, USER, OpKind::Change { inode, size_bytes: Some(size), change })?;
        }
        let (size, _) = fill(memory, USER, files[2], 700);
        ensure!(size + 10 * BLOCK + of_directory <= MOST_KIB * 1024, "{kind:?}: {size} again");
        ensure!(size + 20 * BLOCK > MOST_KIB * 1024, "{kind:?}: only {size} again");
        Ok(())
    })?;
    judge(&device, true)
}

#[test]
fn limits_count_to_the_block_while_changes_wait() {
    if tool::missing() {
        return;
    }
    for kind in QuotaKind::ALL {
        for piece in [BLOCK as usize, 999, 70_000, 1 << 20] {
            exhaust(kind, piece, Limits::default())
                .unwrap_or_else(|error| panic!("{kind:?}, pieces of {piece} bytes: {error:#}"));
        }
        let immediate = Limits { immediate: true, ..Limits::default() };
        exhaust(kind, 70_000, immediate).unwrap();
    }
}

#[test]
fn a_disk_is_full_to_the_block_while_changes_wait() {
    if tool::missing() {
        return;
    }
    for kind in [Base::Stock, Base::Quota, Base::Native] {
        let mut sizes = Vec::new();
        for immediate in [false, true] {
            for piece in [4096, 1 << 20] {
                let device = MemDevice::new(live::base_of(kind).to_vec());
                let limits = Limits { immediate, ..Limits::default() };
                let size = mounted(&device, limits, |memory| {
                    let file = create(memory, 0, InodeNr::ROOT, "file")?;
                    let (size, refused) = fill(memory, 0, file, piece);
                    ensure!(matches!(refused, FsError::NoSpace), "{refused}");
                    memory.sync()?;
                    let left = memory.lower().space();
                    // Regions of native images keep some for metadata.
                    let most = if kind == Base::Native { left.blocks / 64 } else { 0 };
                    ensure!(left.free_blocks <= most, "{left:?}");
                    Ok(size)
                })
                .unwrap_or_else(|error| panic!("{kind:?} {immediate} {piece}: {error:#}"));
                judge(&device, true).unwrap();
                sizes.push(size);
            }
        }
        // Nodes of the map differ.
        let (least, most) = (sizes.iter().min(), sizes.iter().max());
        let close = least.zip(most).is_some_and(|(least, most)| most - least <= 16 * 1024);
        assert!(close, "{kind:?}: {sizes:?}");
    }
}

/// The kind of files that fill a file system.
#[derive(Clone, Copy, Debug)]
enum Full {
    /// Long names.
    Names,
    /// Blocks of attributes.
    Attributes,
    /// Small files whose maps have a block each.
    Maps,
}

impl Full {
    /// Makes one more of it, in a directory with others that `places` ends with.
    fn more<S: Store>(
        self,
        store: &S,
        places: &mut Vec<InodeNr>,
        number: u64,
    ) -> Result<(), FsError> {
        if number.is_multiple_of(60) {
            let name = format!("directory {number}");
            let place = Place { directory: InodeNr::ROOT, name: name.as_bytes() };
            let kind = OpKind::Create { place, new: NewInode::directory(0o755) };
            places.extend(apply(store, 0, kind)?);
        }
        let directory = places.last().copied().unwrap_or(InodeNr::ROOT);
        let name = match self {
            Self::Names => format!("{number:x<250}"),
            Self::Attributes | Self::Maps => number.to_string(),
        };
        let inode = create(store, 0, directory, &name)?;
        match self {
            Self::Names => Ok(()),
            Self::Attributes => {
                let value = &[number as u8; 3000];
                let (name, mode) = (&b"user.long"[..], SetMode::Create);
                let kind = OpKind::SetAttribute { inode, name, value, mode };
                apply(store, 0, kind).map(drop)
            }
            Self::Maps => (0..6).try_for_each(|at| {
                let written = write(store, 0, inode, at * 8192, 4096).1;
                written.map_or(Ok(()), Err)
            }),
        }
    }
}

/// Regions of 16 KiB are full long before the disk is. Metadata goes on elsewhere, in other regions at first: nothing is refused
/// while there is a free block for it.
#[test]
fn a_full_region_refuses_nothing() {
    if tool::missing() {
        return;
    }
    let base = live::native(9 << 20, "lot_size=4m,region_size=16k", "12000");
    for full in [Full::Names, Full::Attributes, Full::Maps] {
        for immediate in [false, true] {
            let device = MemDevice::new(base.clone());
            let limits = Limits { immediate, ..Limits::default() };
            let filled = mounted(&device, limits, |memory| {
                let (mut made, mut places) = (0, Vec::new());
                let refused = loop {
                    match full.more(memory, &mut places, made) {
                        Ok(()) => made += 1,
                        Err(error) => break error,
                    }
                };
                ensure!(matches!(refused, FsError::NoSpace), "after {made}: {refused}");
                memory.sync()?;
                let left = memory.lower().space();
                ensure!(left.free_inodes > 0, "the inodes came first");
                Ok((made, left.free_blocks))
            });
            let (made, left) = filled.unwrap_or_else(|error| panic!("{full:?}: {error:#}"));
            eprintln!("{full:?} {immediate}: {made}, {left} blocks left");
            // A directory that grows may need three at once; data are not put into regions.
            assert!(left <= 16, "{full:?} {immediate}: {made} made, {left} blocks left");
            judge(&device, true).unwrap_or_else(|error| panic!("{full:?}: {error:#}"));
        }
    }
}
