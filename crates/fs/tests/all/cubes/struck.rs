//! An image with cubes, a device that strikes at one of its blocks, and a load.

use std::io;

use floe_blockdev::{MemDevice, ReadBlocks, WriteBlocks};
use floe_check::{CheckOptions, check};
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_disk::ops::NewCube;
use floe_format::InodeNr;
use floe_format::native::cube::Policies;
use floe_fs::{
    Caller, Disk, FileSystem, FsError, Live, MemFs, NewInode, Op, OpKind, Place, RenameMode,
    SetMode, Store, Timestamp, now,
};
use floe_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

pub(crate) const BLOCK: u64 = 4096;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const NOW: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
pub(crate) const FILES: u32 = 24;
/// The message of panics that are wanted.
pub(crate) const WANTED: &str = "a bug, as wanted";

/// A fault of a device at one of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strike {
    ReadError,
    WriteError,
    /// The device answers a read with this error.
    Answer(io::ErrorKind),
    /// Other bytes come from the medium.
    Garbage,
    /// An operation asks for more memory than there is while it reads the block.
    NoMemory,
    /// A bug ends the thread that writes the block.
    WritePanic,
    /// Bits flip on the way from the medium.
    Flipped,
    /// Zeroes come from the medium.
    Zeroed,
    /// A bug ends the operation that reads it.
    Panic,
}

/// A device that strikes at one block once it is told to.
pub(crate) struct Struck {
    pub(crate) base: MemDevice,
    block: AtomicU64,
    strike: Strike,
    armed: AtomicBool,
    pub(crate) hits: AtomicU32,
}

impl Struck {
    pub(crate) fn new(bytes: Vec<u8>, strike: Strike) -> Self {
        let (block, armed, hits) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU32::new(0));
        Self { base: MemDevice::new(bytes), block, strike, armed, hits }
    }

    pub(crate) fn disarm(&self) {
        self.armed.store(false, Ordering::SeqCst);
    }

    pub(crate) fn arm(&self, block: u64) {
        self.block.store(block, Ordering::SeqCst);
        self.armed.store(true, Ordering::SeqCst);
    }

    fn meets(&self, offset_bytes: u64, len: usize) -> bool {
        let at = self.block.load(Ordering::SeqCst) * BLOCK;
        self.armed.load(Ordering::SeqCst)
            && offset_bytes < at + BLOCK
            && offset_bytes + len as u64 > at
    }
}

impl ReadBlocks for Struck {
    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.base.read_at(offset_bytes, into)?;
        let on_write = matches!(self.strike, Strike::WriteError | Strike::WritePanic);
        if !self.meets(offset_bytes, into.len()) || on_write {
            return Ok(());
        }
        self.hits.fetch_add(1, Ordering::SeqCst);
        let at = self.block.load(Ordering::SeqCst) * BLOCK;
        let end = offset_bytes + into.len() as u64;
        for place in (at.max(offset_bytes)..(at + BLOCK).min(end)).step_by(61) {
            let byte = &mut into[(place - offset_bytes) as usize];
            match self.strike {
                Strike::ReadError => return Err(io::Error::from(io::ErrorKind::Other)),
                Strike::Answer(kind) => return Err(io::Error::from(kind)),
                Strike::Flipped => *byte ^= 0x10,
                Strike::Zeroed => *byte = 0,
                Strike::Garbage => *byte = (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8,
                Strike::Panic => panic!("{WANTED}"),
                Strike::NoMemory => drop(Vec::<u8>::with_capacity(usize::MAX)),
                Strike::WriteError | Strike::WritePanic => {}
            }
        }
        Ok(())
    }
}

impl WriteBlocks for Struck {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        let on_write = matches!(self.strike, Strike::WriteError | Strike::WritePanic);
        if on_write && self.meets(offset_bytes, from.len()) {
            self.hits.fetch_add(1, Ordering::SeqCst);
            assert!(self.strike != Strike::WritePanic, "{WANTED}");
            return Err(io::Error::from(io::ErrorKind::Other));
        }
        self.base.write_at(offset_bytes, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.base.flush()
    }
}

pub(crate) fn op(kind: OpKind<'_>) -> Op<'_> {
    Op { uid: 0, gid: 0, time: now(), kind }
}

pub(crate) fn find<S: Store>(
    fs: &FileSystem<S>,
    directory: InodeNr,
    name: &str,
) -> Result<InodeNr, FsError> {
    Ok(fs.look_up(&Caller::Judged, directory, name.as_bytes())?.inode)
}

pub(crate) fn make<S: Store>(
    fs: &FileSystem<S>,
    directory: InodeNr,
    name: &str,
    new: NewInode<'_>,
) -> Result<InodeNr, FsError> {
    let place = Place { directory, name: name.as_bytes() };
    let made = fs.apply(&op(OpKind::Create { place, new }))?.unwrap().inode;
    fs.forget(made, 1)?;
    Ok(made)
}

pub(crate) fn write<S: Store>(
    fs: &FileSystem<S>,
    inode: InodeNr,
    offset_bytes: u64,
    bytes: &[u8],
) -> Result<(), FsError> {
    fs.apply(&op(OpKind::Write { inode, offset_bytes, bytes })).map(drop)
}

pub(crate) fn read<S: Store>(
    fs: &FileSystem<S>,
    inode: InodeNr,
    len: usize,
) -> Result<Vec<u8>, FsError> {
    let mut bytes = vec![0; len];
    let read = fs.read(inode, 0, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

pub(crate) fn set<S: Store>(
    fs: &FileSystem<S>,
    inode: InodeNr,
    value: &[u8],
) -> Result<(), FsError> {
    let (name, mode) = (&b"user.long"[..], SetMode::Any);
    fs.apply(&op(OpKind::SetAttribute { inode, name, value, mode })).map(drop)
}

/// Runs something on a file system, and unmounts it.
pub(crate) fn used<D: WriteBlocks, T>(
    device: D,
    run: impl FnOnce(&FileSystem<MemFs<Live<'_, '_, D>>>) -> T,
) -> (T, Result<(), String>) {
    let (disk, mut volume) = Disk::open(device).unwrap();
    volume.draw_by_seed(crate::layout_seed());
    let (ran, finished) = {
        let files = disk.files().unwrap();
        let live = Live::new(&disk, &files, volume, now()).unwrap();
        let fs = FileSystem::new(MemFs::new(live, Default::default()));
        let ran = run(&fs);
        let finished = fs.into_store().finish().and_then(|(live, lost)| {
            live.finish(now())?;
            lost
        });
        (ran, finished.map_err(|error| error.to_string()))
    };
    (ran, finished.and(disk.close().map_err(|error| error.to_string())))
}

/// Where two tenants are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tenants {
    /// Each in a cube, which share the journal of the file system: `/a` and `/b`.
    Shared,
    /// Each in a cube with a journal of its own.
    Apart,
    /// Both in one cube, `/c`, as directories, for contrast.
    Together,
}

impl Tenants {
    /// The paths of both.
    pub(crate) const fn paths(self) -> [&'static str; 2] {
        match self {
            Self::Shared | Self::Apart => ["/a", "/b"],
            Self::Together => ["/c/a", "/c/b"],
        }
    }

    const fn cubes(self) -> &'static [&'static str] {
        match self {
            Self::Shared | Self::Apart => &["/a", "/b"],
            Self::Together => &["/c"],
        }
    }
}

/// The inode of a path.
pub(crate) fn at<S: Store>(fs: &FileSystem<S>, path: &str) -> Result<InodeNr, FsError> {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.into_iter().try_fold(InodeNr::ROOT, |directory, name| find(fs, directory, name))
}

/// Two cubes, `/a` and `/b`, and files outside; all with names, attribute blocks and maps with nodes.
pub(crate) fn image(policies: Policies) -> Vec<u8> {
    laid_out(Tenants::Shared, policies)
}

/// An empty native file system.
pub(crate) fn native(mib: u64, lots: &str, inodes: &str) -> MemDevice {
    let mut options = Options::of_type(FsType::Native);
    for (letter, value) in [('E', lots), ('J', "size=4"), ('N', inodes)] {
        options.set(letter, value).unwrap();
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: NOW };
    let params = options.params(mib * MIB, None, &fresh).unwrap();
    let device = MemDevice::new(vec![0; (mib * MIB) as usize]);
    mkfs::write(&Plan::new(&params).unwrap(), &device).unwrap();
    device
}

/// The same with another layout.
pub(crate) fn laid_out(layout: Tenants, policies: Policies) -> Vec<u8> {
    let device = native(40, "lot_size=4m", "1000");
    let (disk, mut volume) = Disk::open(&device).unwrap();
    volume.draw_by_seed(crate::layout_seed());
    {
        let files = disk.files().unwrap();
        let live = Live::new(&disk, &files, volume, now()).unwrap();
        for name in layout.cubes() {
            let path = name.as_bytes();
            let new = NewCube {
                parent: InodeNr::ROOT,
                name: &path[1..],
                path,
                permissions: 0o755,
                journal_blocks: if layout == Tenants::Apart { 256 } else { 0 },
                policies,
            };
            live.create_cube(&floe_disk::ops::Caller::system(now()), &new).unwrap();
        }
        live.finish(now()).unwrap();
    }
    disk.close().unwrap();
    let ((), closed) = used(&device, |fs| {
        if layout == Tenants::Together {
            let top = find(fs, InodeNr::ROOT, "c").unwrap();
            for name in ["a", "b"] {
                make(fs, top, name, NewInode::directory(0o755)).unwrap();
            }
        }
        for path in layout.paths().into_iter().chain(["/"]) {
            fill(fs, at(fs, path).unwrap());
        }
    });
    closed.unwrap();
    assert!(check(&device, &CheckOptions::default()).unwrap().found.is_empty());
    device.to_vec()
}

pub(crate) fn fill<S: Store>(fs: &FileSystem<S>, top: InodeNr) {
    for at in 0..FILES {
        let name = format!("file{at}{}", "-".repeat(180));
        let file = make(fs, top, &name, NewInode::regular(0o644)).unwrap();
        write(fs, file, 0, &[at as u8; 3000]).unwrap();
        set(fs, file, &[at as u8; 900]).unwrap();
        make(fs, top, &format!("dir{at}"), NewInode::directory(0o755)).unwrap();
    }
    let spread = make(fs, top, "spread", NewInode::regular(0o644)).unwrap();
    for at in 0..12 {
        write(fs, spread, at * 3 * BLOCK, &[7; 100]).unwrap();
    }
}

/// Uses a directory in every way; returns all errors. `turn` makes names and bytes new each time.
pub(crate) fn load<S: Store>(fs: &FileSystem<S>, top: InodeNr, turn: u32) -> Vec<FsError> {
    let mut errors = Vec::new();
    let mut keep = |done: Result<(), FsError>| errors.extend(done.err());
    let mut names = 0;
    keep(fs.list(&Caller::Judged, top, 0, |_| {
        names += 1;
        true
    }));
    for at in 0..FILES {
        let name = format!("file{at}{}", "-".repeat(180));
        keep((|| {
            let file = find(fs, top, &name)?;
            let bytes = read(fs, file, 9000)?;
            if bytes.iter().any(|byte| *byte != at as u8) {
                let source = io::Error::other("other bytes");
                return Err(FsError::Io { inode: file, source });
            }
            let value = fs.extended_attribute(file, b"user.long")?;
            if value != [at as u8; 900] {
                let source = io::Error::other("another attribute");
                return Err(FsError::Io { inode: file, source });
            }
            if at % 4 == turn % 4 {
                write(fs, file, 2500, &vec![at as u8; 600 + turn as usize % 30 * 100])?;
                set(fs, file, &[at as u8; 900])?;
            }
            Ok(())
        })());
    }
    keep((|| {
        let spread = find(fs, top, "spread")?;
        if read(fs, spread, 100)? != [7; 100] {
            let source = io::Error::other("other bytes");
            return Err(FsError::Io { inode: spread, source });
        }
        write(fs, spread, u64::from(20 + turn) * 3 * BLOCK, &[7; 100])
    })());
    for number in 0..3 {
        keep((|| {
            let (name, other) = (format!("new{turn}.{number}"), format!("moved{turn}.{number}"));
            let file = make(fs, top, &name, NewInode::regular(0o644))?;
            write(fs, file, 0, &[turn as u8; 6000])?;
            let place = |name| Place { directory: top, name };
            let (from, to) = (place(name.as_bytes()), place(other.as_bytes()));
            fs.apply(&op(OpKind::Rename { from, to, mode: RenameMode::Replace }))?;
            // Somebody has it open: an orphan until he closes it.
            let open = (number == 0).then(|| fs.hold(top, file)).transpose()?;
            if open.is_some() {
                fs.apply(&op(OpKind::Unlink(to)))?;
            }
            let dir = find(fs, top, &format!("dir{}", (turn * 3 + number) % FILES))?;
            let target = NewInode::symlink(b"x");
            make(fs, dir, &format!("link{turn}"), target)?;
            let synced = fs.sync_inode(dir, None);
            open.map_or(Ok(()), |open| fs.forget(open.inode, 1)).and(synced)
        })());
    }
    errors
}
