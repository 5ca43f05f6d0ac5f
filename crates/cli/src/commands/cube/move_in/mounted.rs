//! Files below a mount of Floe, which are moved by system calls as by any program.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{
    AtFlags, CWD, Dev, FileType, FlockOperation, Gid, IFlags, Mode, OFlags, RenameFlags, SeekFrom,
    Timespec, Timestamps, Uid, XattrFlags, chownat, ioctl_getflags, ioctl_setflags, lgetxattr,
    llistxattr, lremovexattr, lsetxattr, mkdirat, mknodat, renameat_with, seek, symlinkat,
    utimensat,
};
use rustix::io::Errno;

use super::{Kind, Moved, PIECE_BYTES, Stat, Tree, move_in};
use crate::commands::cube::live;

/// Bytes of a value or a list of names at most.
const MOST_BYTES: usize = 64 << 10;
/// Flags of programs that a copy gets.
const COPIED: IFlags = IFlags::NOATIME.union(IFlags::NODUMP).union(IFlags::SYNC);

/// A mount, by its number of a device.
struct Mounted<'m> {
    device: u64,
    cube: &'m Path,
    /// Files and directories that changed since all was durable.
    changed: RefCell<Vec<Vec<u8>>>,
}

impl Mounted<'_> {
    fn note(&self, at: &[u8]) {
        let mut changed = self.changed.borrow_mut();
        if changed.last().is_none_or(|last| last != at) {
            changed.push(at.to_vec());
        }
    }

    /// Notes that a name in a directory changed.
    fn note_name(&self, at: &[u8]) {
        if let Some(directory) = path(at).parent() {
            self.note(directory.as_os_str().as_bytes());
        }
    }
}

fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Attempts at a move whose calls are interrupted.
const MOST_ATTEMPTS: usize = 10;

/// Moves a file or directory below a mount into the directory of a cube of the same mount.
pub(in crate::commands::cube) fn run(source: &Path, cube: &Path) -> Result<Moved> {
    // A call can be interrupted after an earlier run was killed in the middle of one. As after a run that was cut off, the next
    // attempt finishes the move.
    for _ in 1..MOST_ATTEMPTS {
        match attempt(source, cube) {
            Err(error) if is_interrupted(&error) => {}
            ended => return ended,
        }
    }
    attempt(source, cube)
}

fn is_interrupted(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let of_std = cause.downcast_ref::<std::io::Error>();
        cause.downcast_ref() == Some(&Errno::INTR)
            || of_std.is_some_and(|error| error.kind() == ErrorKind::Interrupted)
    })
}

fn attempt(source: &Path, cube: &Path) -> Result<Moved> {
    let source = std::path::absolute(source)?;
    let cube = std::path::absolute(cube)?;
    let of_cube = fs::symlink_metadata(&cube).with_context(|| cube.display().to_string())?;
    // A run that was cut off may have removed it.
    let of_source = unless_missing(fs::symlink_metadata(&source))?;
    let shown = live::show(&cube)?;
    let is_top = shown.iter().any(|shown| shown["inode"].as_u64() == Some(of_cube.ino()));
    ensure!(is_top, "{} is not the directory of a cube; nothing was moved", cube.display());
    ensure!(
        of_source.is_none_or(|of| of.dev() == of_cube.dev()),
        "{} lies in another file system than the cube: copy it; nothing was moved",
        source.display()
    );
    ensure!(!cube.starts_with(&source), "{} holds the cube; nothing was moved", source.display());
    let all = live::list(&cube)?;
    let tops = all.iter().filter_map(|shown| shown["inode"].as_u64()).collect();
    let tree = Mounted { device: of_cube.dev(), cube: &cube, changed: RefCell::default() };
    // Content that programs wrote before, with its times, must be in the file system first. The call tells errors of any file
    // of the file system, perhaps of a full cube long ago: those of files that are moved come when they are made durable.
    let _ = rustix::fs::syncfs(File::open(&cube)?);
    // Held until the end: two runs in one directory would take each other's copies for left ones.
    let parent = File::open(source.parent().context("the source must end with a name")?)?;
    match rustix::fs::flock(&parent, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::AGAIN) => {
            bail!("another move-in works beside {}; nothing was moved", source.display())
        }
        Err(errno) => Err(errno).with_context(|| source.display().to_string())?,
    }
    move_in(&tree, source.as_os_str().as_bytes(), cube.as_os_str().as_bytes(), &tops)
}

/// `None` for a missing file.
fn unless_missing<T>(result: std::io::Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn flags_of(at: &Path) -> Result<IFlags> {
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(at);
    Ok(ioctl_getflags(file?)?)
}

impl Tree for Mounted<'_> {
    fn stat(&self, at: &[u8]) -> Result<Option<Stat>> {
        let at = path(at);
        let Some(of) = unless_missing(fs::symlink_metadata(at))? else { return Ok(None) };
        let device = self.device;
        ensure!(
            of.dev() == device,
            "{}: something is mounted there; nothing was moved",
            at.display()
        );
        let kind = of.file_type();
        let kind = match kind {
            _ if kind.is_file() => Kind::Regular,
            _ if kind.is_dir() => Kind::Directory,
            _ if kind.is_symlink() => Kind::Symlink,
            _ if kind.is_char_device() => Kind::CharDevice,
            _ if kind.is_block_device() => Kind::BlockDevice,
            _ if kind.is_fifo() => Kind::Fifo,
            _ => Kind::Socket,
        };
        let flags = match kind {
            Kind::Regular | Kind::Directory => flags_of(at)?,
            _ => IFlags::empty(),
        };
        Ok(Some(Stat {
            inode: of.ino(),
            kind,
            permissions: (of.mode() & 0o7777) as u16,
            owner: (of.uid(), of.gid()),
            size_bytes: of.size(),
            links: of.nlink(),
            accessed: (of.atime(), of.atime_nsec() as u32),
            modified: (of.mtime(), of.mtime_nsec() as u32),
            changed: (of.ctime(), of.ctime_nsec() as u32),
            device: (rustix::fs::major(of.rdev()), rustix::fs::minor(of.rdev())),
            is_kept: flags.intersects(IFlags::IMMUTABLE | IFlags::APPEND),
            flags: (flags & COPIED).bits(),
        }))
    }

    fn list(&self, at: &[u8]) -> Result<Vec<Vec<u8>>> {
        let names = fs::read_dir(path(at))?;
        let names = names.map(|name| Ok(name?.file_name().as_bytes().to_vec()));
        names.collect()
    }

    fn make(&self, at: &[u8], like: &Stat, target: &[u8]) -> Result<()> {
        let (at, mode) = (path(at), Mode::RUSR | Mode::WUSR);
        let node = |kind, device: Dev| mknodat(CWD, at, kind, mode, device);
        let device = rustix::fs::makedev(like.device.0, like.device.1);
        match like.kind {
            Kind::Regular => node(FileType::RegularFile, 0)?,
            Kind::Directory => mkdirat(CWD, at, Mode::RWXU)?,
            Kind::Symlink => symlinkat(path(target), CWD, at)?,
            Kind::CharDevice => node(FileType::CharacterDevice, device)?,
            Kind::BlockDevice => node(FileType::BlockDevice, device)?,
            Kind::Fifo => node(FileType::Fifo, 0)?,
            Kind::Socket => node(FileType::Socket, 0)?,
        }
        if matches!(like.kind, Kind::Regular | Kind::Directory) {
            self.note(at.as_os_str().as_bytes());
        }
        Ok(())
    }

    fn target(&self, at: &[u8]) -> Result<Vec<u8>> {
        Ok(fs::read_link(path(at))?.into_os_string().as_bytes().to_vec())
    }

    fn copy(&self, from: &[u8], to: &[u8], like: &Stat) -> Result<()> {
        let from = File::open(path(from))?;
        let to = OpenOptions::new().write(true).open(path(to))?;
        to.set_len(like.size_bytes)?;
        let (mut at, mut bytes) = (0, vec![0; PIECE_BYTES]);
        while at < like.size_bytes {
            at = match seek(&from, SeekFrom::Data(at)) {
                Ok(at) => at,
                Err(Errno::NXIO) => break,
                Err(errno) => return Err(errno.into()),
            };
            let end = seek(&from, SeekFrom::Hole(at))?.min(like.size_bytes);
            while at < end {
                // At most a piece.
                let len = (end - at).min(PIECE_BYTES as u64) as usize;
                let read = from.read_at(&mut bytes[..len], at)?;
                if read == 0 {
                    bail!("the file became shorter meanwhile");
                }
                to.write_all_at(&bytes[..read], at)?;
                at += read as u64;
            }
        }
        Ok(())
    }

    fn has_same_content(&self, from: &[u8], to: &[u8]) -> Result<bool> {
        let (from, to) = (File::open(path(from))?, File::open(path(to))?);
        let (mut old, mut new) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
        let mut at = 0;
        loop {
            let len = from.read_at(&mut old, at)?;
            if len == 0 {
                return Ok(to.read_at(&mut new[..1], at)? == 0);
            }
            match to.read_exact_at(&mut new[..len], at) {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
                read => read?,
            }
            if old[..len] != new[..len] {
                return Ok(false);
            }
            at += len as u64;
        }
    }

    fn attributes(&self, at: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let at = path(at);
        let mut names = vec![0; MOST_BYTES];
        let len = llistxattr(at, &mut names[..])?;
        names.truncate(len);
        let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let each = names.map(|name| {
            let mut value = vec![0; MOST_BYTES];
            let len = lgetxattr(at, name, &mut value[..])?;
            value.truncate(len);
            Ok((name.to_vec(), value))
        });
        each.collect()
    }

    fn set_attribute(&self, at: &[u8], name: &[u8], value: Option<&[u8]>) -> Result<()> {
        match value {
            Some(value) => lsetxattr(path(at), name, value, XattrFlags::empty())?,
            None => lremovexattr(path(at), name)?,
        }
        self.note_name(at);
        Ok(())
    }

    fn settle(&self, at: &[u8], like: &Stat) -> Result<()> {
        if matches!(like.kind, Kind::Regular | Kind::Directory) {
            self.note(at);
        }
        let at = path(at);
        let (uid, gid) = (Uid::from_raw(like.owner.0), Gid::from_raw(like.owner.1));
        chownat(CWD, at, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        if like.kind != Kind::Symlink {
            let mode = Mode::from_raw_mode(like.permissions.into());
            rustix::fs::chmodat(CWD, at, mode, AtFlags::empty())?;
        }
        if like.flags != 0 {
            let flags = flags_of(at)? | IFlags::from_bits_retain(like.flags);
            ioctl_setflags(File::open(at)?, flags)?;
        }
        let time = |(seconds, nanoseconds): (i64, u32)| Timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds.into(),
        };
        let times =
            Timestamps { last_access: time(like.accessed), last_modification: time(like.modified) };
        Ok(utimensat(CWD, at, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn link(&self, at: &[u8], name: &[u8]) -> Result<()> {
        Ok(rustix::fs::linkat(CWD, path(at), CWD, path(name), AtFlags::empty())?)
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        renameat_with(CWD, path(from), CWD, path(to), RenameFlags::NOREPLACE)?;
        self.note_name(to);
        Ok(())
    }

    fn remove(&self, at: &[u8], kind: Kind) -> Result<()> {
        match kind {
            Kind::Directory => fs::remove_dir(path(at))?,
            _ => fs::remove_file(path(at))?,
        }
        self.note_name(at);
        Ok(())
    }

    /// `syncfs` does not reach the server, so each is made durable by itself: all but the first cost little.
    fn sync(&self) -> Result<()> {
        for at in self.changed.take() {
            // A file removed since then needs nothing.
            if let Some(file) = unless_missing(File::open(path(&at)))? {
                file.sync_all()?;
            }
        }
        Ok(File::open(self.cube)?.sync_all()?)
    }
}
