//! Files in an image that nobody has mounted.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use floe_blockdev::WriteBlocks;
use floe_ext4::files::printable;
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_fs::{
    Attributes, Caller, Change, FileSystem, FsError, Live, MemFs, NewInode, NewKind, Op, OpKind,
    Place, RenameMode, SeekFor, SetMode, Store, Timestamp, now,
};

use super::{Kind, Moved, PIECE_BYTES, Stat, Tree, move_in};
use crate::commands::cube::image::split;

/// Flags of programs that a copy gets.
const COPIED: InodeFlags = InodeFlags::NOATIME.union(InodeFlags::NODUMP).union(InodeFlags::SYNC);

/// A file system that nobody else uses.
struct Unmounted<'s, S> {
    fs: &'s FileSystem<S>,
}

/// Moves a file or directory into the directory of a cube; `tops` are the directories of all cubes. Everything is durable then.
pub(in crate::commands::cube) fn run<D: WriteBlocks>(
    live: Live<'_, '_, D>,
    source: &[u8],
    cube: &[u8],
    tops: &BTreeSet<u64>,
) -> Result<Moved> {
    let fs = FileSystem::new(MemFs::new(live, Default::default()));
    let moved = move_in(&Unmounted { fs: &fs }, source, cube, tops);
    let (live, lost) = fs.into_store().finish()?;
    live.finish(now())?;
    lost?;
    moved
}

impl<S: Store> Unmounted<'_, S> {
    /// `None` if there is nothing.
    fn find(&self, path: &[u8]) -> Result<Option<Attributes>> {
        let mut at = self.fs.attributes(InodeNr::ROOT)?;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            at = match self.fs.look_up(&Caller::Judged, at.inode, name) {
                Ok(found) => found,
                Err(FsError::NotFound) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
        }
        Ok(Some(at))
    }

    fn at(&self, path: &[u8]) -> Result<Attributes> {
        self.find(path)?.with_context(|| format!("there is no {}", printable(path)))
    }

    fn place<'p>(&self, path: &'p [u8]) -> Result<Place<'p>> {
        let (directory, name) = split(path);
        Ok(Place { directory: self.at(directory)?.inode, name })
    }

    fn apply(&self, kind: OpKind<'_>) -> Result<()> {
        let op = Op { uid: 0, gid: 0, time: now(), kind };
        if let Some(held) = self.fs.apply(&op)? {
            self.fs.forget(held.inode, 1)?;
        }
        Ok(())
    }
}

impl<S: Store> Tree for Unmounted<'_, S> {
    fn stat(&self, path: &[u8]) -> Result<Option<Stat>> {
        let Some(of) = self.find(path)? else { return Ok(None) };
        let kind = match of.kind {
            FileType::Regular => Kind::Regular,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            FileType::CharDevice => Kind::CharDevice,
            FileType::BlockDevice => Kind::BlockDevice,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
        };
        let time = |time: Timestamp| (time.seconds, time.nanoseconds);
        Ok(Some(Stat {
            inode: of.inode.0.into(),
            kind,
            permissions: of.permissions,
            owner: (of.uid, of.gid),
            size_bytes: of.size_bytes,
            links: of.links.into(),
            accessed: time(of.atime),
            modified: time(of.mtime),
            changed: time(of.ctime),
            device: of.device.unwrap_or_default(),
            is_kept: of.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND),
            flags: (of.flags & COPIED).bits(),
        }))
    }

    fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (directory, mut names) = (self.at(path)?.inode, Vec::new());
        self.fs.list(&Caller::Judged, directory, 0, |listed| {
            if !matches!(listed.name, b"." | b"..") {
                names.push(listed.name.to_vec());
            }
            true
        })?;
        Ok(names)
    }

    fn make(&self, path: &[u8], like: &Stat, target: &[u8]) -> Result<()> {
        let (major, minor) = like.device;
        let kind = match like.kind {
            Kind::Regular => NewKind::Regular,
            Kind::Directory => NewKind::Directory,
            Kind::Symlink => NewKind::Symlink(target),
            Kind::CharDevice => NewKind::CharDevice { major, minor },
            Kind::BlockDevice => NewKind::BlockDevice { major, minor },
            Kind::Fifo => NewKind::Fifo,
            Kind::Socket => NewKind::Socket,
        };
        let permissions = if like.kind == Kind::Symlink { 0o777 } else { 0o700 };
        let new = NewInode { kind, permissions, umask: 0 };
        self.apply(OpKind::Create { place: self.place(path)?, new })
    }

    fn target(&self, path: &[u8]) -> Result<Vec<u8>> {
        Ok(self.fs.target(self.at(path)?.inode)?)
    }

    fn copy(&self, from: &[u8], to: &[u8], like: &Stat) -> Result<()> {
        let (from, inode) = (self.at(from)?.inode, self.at(to)?.inode);
        let size_bytes = Some(like.size_bytes);
        self.apply(OpKind::Change { inode, size_bytes, change: Change::default() })?;
        let (mut at, mut bytes) = (0, vec![0; PIECE_BYTES]);
        while at < like.size_bytes {
            at = match self.fs.seek(from, at, SeekFor::Data) {
                Ok(at) => at,
                Err(FsError::PastEnd) => break,
                Err(error) => return Err(error.into()),
            };
            let end = self.fs.seek(from, at, SeekFor::Hole)?.min(like.size_bytes);
            while at < end {
                // At most a piece.
                let len = (end - at).min(PIECE_BYTES as u64) as usize;
                let read = self.fs.read(from, at, &mut bytes[..len])?;
                if read == 0 {
                    bail!("the file is shorter than its size says");
                }
                let bytes = &bytes[..read];
                self.apply(OpKind::Write { inode, offset_bytes: at, bytes })?;
                at += read as u64;
            }
        }
        Ok(())
    }

    fn attributes(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let inode = self.at(path)?.inode;
        let names = self.fs.extended_attribute_names(inode)?;
        let each = names.into_iter().map(|name| {
            let value = self.fs.extended_attribute(inode, &name)?;
            Ok((name, value))
        });
        each.collect()
    }

    fn set_attribute(&self, path: &[u8], name: &[u8], value: Option<&[u8]>) -> Result<()> {
        let inode = self.at(path)?.inode;
        self.apply(match value {
            Some(value) => OpKind::SetAttribute { inode, name, value, mode: SetMode::Any },
            None => OpKind::RemoveAttribute { inode, name },
        })
    }

    fn settle(&self, path: &[u8], like: &Stat) -> Result<()> {
        let of = self.at(path)?;
        let time = |(seconds, nanoseconds): (i64, u32)| Some(Timestamp { seconds, nanoseconds });
        let flags = of.flags | InodeFlags::from_bits_retain(like.flags);
        let change = Change {
            permissions: (like.kind != Kind::Symlink).then_some(like.permissions),
            uid: Some(like.owner.0),
            gid: Some(like.owner.1),
            accessed: time(like.accessed),
            modified: time(like.modified),
            flags: (flags != of.flags).then_some(flags),
            project: None,
        };
        self.apply(OpKind::Change { inode: of.inode, size_bytes: None, change })
    }

    fn link(&self, path: &[u8], name: &[u8]) -> Result<()> {
        let (inode, place) = (self.at(path)?.inode, self.place(name)?);
        self.apply(OpKind::Link { inode, place })
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        ensure!(self.find(to)?.is_none(), "{} exists", printable(to));
        let (from, to) = (self.place(from)?, self.place(to)?);
        self.apply(OpKind::Rename { from, to, mode: RenameMode::NoReplace })
    }

    fn remove(&self, path: &[u8], kind: Kind) -> Result<()> {
        let place = self.place(path)?;
        self.apply(match kind {
            Kind::Directory => OpKind::RemoveDirectory(place),
            _ => OpKind::Unlink(place),
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(self.fs.sync()?)
    }
}
