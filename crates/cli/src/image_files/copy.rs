//! Copies a tree out of an image, which may be hostile.
//!
//! Every name is created in a directory that is already open, by calls that follow no link, so that
//! no image can cause writes outside the target. Names cannot contain `/` and are never `..`
//! (`floe_ext4::files` guarantees that).

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, bail};
use floe_ext4::files::{Content, Files, Node, SegmentKind, Step, is_usable_target, printable};
use floe_format::InodeNr;
use floe_format::ext::inode::FileType;
use rustix::fs::{self as sys, AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::metadata::apply;
use super::{Complaints, LOST_TARGET, place};
use crate::input::files::Judged;
use crate::terminal::failure::with_causes;

/// Bytes copied at once.
const PIECE_BYTES: usize = 1 << 20;

/// Metadata that a copy preserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Permissions, minus the umask.
    Mode,
    /// Modes, times, owners, attributes.
    All,
}

/// Copies one tree.
pub(crate) struct Copier<'a, 'f, 'd> {
    files: &'f Files<'d>,
    pub(super) complaints: &'a Complaints,
    base: Vec<u8>,
    /// The new name of the copy's root; empty if the target itself is the root.
    name: Vec<u8>,
    keep: Keep,
    /// Replace existing files, except those that the command reads.
    replace: Option<&'a Judged>,
    specials: bool,
    /// Open directories from the target down to the current one.
    trail: Vec<OwnedFd>,
    /// Destination of each file with several names, relative to the target.
    links: HashMap<InodeNr, Vec<u8>>,
}

impl<'a, 'f, 'd> Copier<'a, 'f, 'd> {
    /// `base` is the path in the image, for messages. With `specials`, links and special files are
    /// created; otherwise they are refused.
    pub(crate) fn new(
        files: &'f Files<'d>,
        complaints: &'a Complaints,
        base: &[u8],
        keep: Keep,
        replace: Option<&'a Judged>,
        specials: bool,
    ) -> Self {
        Self {
            files,
            complaints,
            base: base.to_vec(),
            name: Vec::new(),
            keep,
            replace,
            specials,
            trail: Vec::new(),
            links: HashMap::new(),
        }
    }

    /// Copies `node` to `name` in `folder`.
    pub(crate) fn run(mut self, node: Node, folder: &Path, name: &[u8]) -> anyhow::Result<()> {
        self.trail.push(open_folder(folder)?);
        self.name = name.to_vec();
        self.walk(node)
    }

    /// Copies the children of `node` into `folder`.
    pub(crate) fn run_into(mut self, node: Node, folder: &Path) -> anyhow::Result<()> {
        self.trail.push(open_folder(folder)?);
        self.walk(node)
    }

    fn walk(&mut self, root: Node) -> anyhow::Result<()> {
        let mut walk = self.files.walk(root).without_own();
        let mut entered = Vec::new();
        while let Some(step) = walk.next() {
            match step {
                // The target itself is the root of the copy.
                Step::Visit(visit) if visit.path.is_empty() && self.name.is_empty() => {
                    self.complaints.faults(&self.base, &visit.node.faults());
                    if self.keep == Keep::All {
                        entered.push(visit.node);
                    }
                }
                Step::Visit(visit) => {
                    let made = self.make(&visit.path, &visit.node)?;
                    match (visit.node.is_directory(), made) {
                        (true, true) => entered.push(visit.node),
                        (true, false) => walk.leave_out(),
                        (false, _) => {}
                    }
                }
                Step::Leave { path } => {
                    if let Some(node) = entered.pop()
                        && let Some(folder) = self.trail.pop()
                    {
                        self.finish(&path, &folder, &node);
                    }
                }
                step => self.complaints.step(&self.base, &step),
            }
        }
        Ok(())
    }

    fn full(&self, path: &[u8]) -> Vec<u8> {
        place::join(&self.base, path)
    }

    fn here(&self) -> anyhow::Result<&OwnedFd> {
        self.trail.last().context("a copy has a target")
    }

    /// Creates one object; `false` if that failed and was reported. Returns only errors that would
    /// affect every other object, such as a full disk.
    fn make(&mut self, path: &[u8], node: &Node) -> anyhow::Result<bool> {
        self.complaints.faults(&self.full(path), &node.faults());
        match self.try_make(path, node) {
            Ok(made) => Ok(made),
            Err(error) => {
                let full_disk = error.downcast_ref::<std::io::Error>().is_some_and(|error| {
                    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
                    matches!(error.kind(), StorageFull | QuotaExceeded)
                });
                if full_disk {
                    return Err(error.context(printable(&self.full(path))));
                }
                self.complaints.failure(&self.full(path), with_causes(&error));
                Ok(false)
            }
        }
    }

    fn try_make(&mut self, path: &[u8], node: &Node) -> anyhow::Result<bool> {
        let place = match self.name.is_empty() {
            true => path.to_vec(),
            false => place::join(&self.name, path),
        };
        let name = place::last_name(&place).context("has no name")?;
        let kind = node.file_type();
        if !self.specials && !matches!(kind, Some(FileType::Regular)) {
            anyhow::bail!("is not a regular file; use -r to copy links and special files");
        }
        if kind == Some(FileType::Directory) {
            return self.enter(name, node).map(|()| true);
        }
        if node.links() > 1
            && let Some(first) = self.links.get(&node.number)
        {
            self.link(&first.clone(), name)?;
            return Ok(true);
        }
        self.make_room(name)?;
        match kind {
            Some(FileType::Regular) => self.file(path, name, node)?,
            Some(FileType::Symlink) => {
                let (target, faults) = self.files.target(node)?;
                self.complaints.faults(&self.full(path), &faults);
                if !is_usable_target(&target) {
                    self.complaints.damage(&self.full(path), LOST_TARGET);
                    return Ok(false);
                }
                sys::symlinkat(&target[..], self.here()?, name).map_err(std::io::Error::from)?;
            }
            Some(kind) => self.special(name, kind, node)?,
            None => anyhow::bail!("has an unknown type"),
        }
        if self.keep == Keep::All {
            apply(self.files, self.complaints, &self.full(path), node, self.here()?, name);
        }
        if node.links() > 1 {
            self.links.insert(node.number, place);
        }
        Ok(true)
    }

    fn make_room(&self, name: &[u8]) -> anyhow::Result<()> {
        if let Some(judged) = self.replace {
            // The destination may be an existing file, even the image itself.
            if let Ok(there) = sys::statat(self.here()?, name, AtFlags::SYMLINK_NOFOLLOW)
                && judged.reads(there.st_dev, there.st_ino)
            {
                bail!("is in the way: it is the image that is being read, and is kept");
            }
            match sys::unlinkat(self.here()?, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(std::io::Error::from(error).into()),
            }
        }
        Ok(())
    }

    /// Creates a directory, or uses the existing one, and enters it.
    fn enter(&mut self, name: &[u8], node: &Node) -> anyhow::Result<()> {
        let here = self.here()?;
        // The copy must remain able to write into it until it is complete; the umask applies.
        let mode = match self.keep {
            Keep::All => 0o700,
            Keep::Mode => u32::from(node.permissions() & 0o777) | 0o700,
        };
        match sys::mkdirat(here, name, Mode::from_raw_mode(mode)) {
            Ok(()) => {}
            Err(Errno::EXIST) if self.replace.is_some() => {}
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = sys::openat(here, name, flags, Mode::empty()).map_err(std::io::Error::from)?;
        self.trail.push(folder);
        Ok(())
    }

    /// Sets the metadata that writing into a directory would change.
    fn finish(&self, path: &[u8], folder: &OwnedFd, node: &Node) {
        if self.keep == Keep::All {
            apply(self.files, self.complaints, &self.full(path), node, folder, b".");
            return;
        }
        let permissions = u32::from(node.permissions() & 0o777);
        if permissions & 0o700 == 0o700 {
            return;
        }
        let narrowed = sys::fstat(folder)
            .and_then(|stat| sys::fchmod(folder, Mode::from_raw_mode(stat.st_mode & permissions)));
        if let Err(error) = narrowed {
            self.complaints.failure(&self.full(path), error);
        }
    }

    fn file(&self, path: &[u8], name: &[u8], node: &Node) -> anyhow::Result<()> {
        let (content, faults) = self.files.content(node)?;
        self.complaints.faults(&self.full(path), &faults);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = match self.keep {
            Keep::All => 0o600,
            Keep::Mode => u32::from(node.permissions() & 0o777),
        };
        let file = sys::openat(self.here()?, name, flags, Mode::from_raw_mode(mode));
        let file = File::from(file.map_err(std::io::Error::from)?);
        self.write(path, &content, &file)?;
        Ok(())
    }

    fn write(&self, path: &[u8], content: &Content<'_, '_>, file: &File) -> std::io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut faults = Vec::new();
        file.set_len(content.size_bytes())?;
        for segment in content.segments().filter(|segment| segment.kind == SegmentKind::Data) {
            let mut done = 0;
            while done < segment.len_bytes {
                let at = segment.offset_bytes + done;
                let len = (segment.len_bytes - done).min(PIECE_BYTES as u64) as usize;
                let len = content.read_at(at, &mut piece[..len], &mut faults);
                file.write_all_at(&piece[..len], at)?;
                done += len.max(1) as u64;
            }
        }
        self.complaints.faults(&self.full(path), &faults);
        Ok(())
    }

    /// Creates another link to a file copied before. Looks its first link up from the target again,
    /// without following symlinks.
    fn link(&self, first: &[u8], name: &[u8]) -> anyhow::Result<()> {
        let target = self.trail.first().context("a copy has a target")?;
        let (folder, last) = match first.iter().rposition(|&byte| byte == b'/') {
            Some(at) => (&first[..at], &first[at + 1..]),
            None => (&b"."[..], first),
        };
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let folder = sys::openat2(target.as_fd(), folder, flags, Mode::empty(), resolve)
            .map_err(std::io::Error::from)?;
        self.make_room(name)?;
        sys::linkat(folder, last, self.here()?, name, AtFlags::empty())
            .map_err(std::io::Error::from)?;
        Ok(())
    }

    fn special(&self, name: &[u8], kind: FileType, node: &Node) -> anyhow::Result<()> {
        let kind = match kind {
            FileType::CharDevice => sys::FileType::CharacterDevice,
            FileType::BlockDevice => sys::FileType::BlockDevice,
            FileType::Fifo => sys::FileType::Fifo,
            _ => sys::FileType::Socket,
        };
        let (major, minor) = node.device_number().unwrap_or((0, 0));
        let mode = Mode::from_raw_mode(u32::from(node.permissions() & 0o777));
        sys::mknodat(self.here()?, name, kind, mode, sys::makedev(major, minor))
            .map_err(std::io::Error::from)?;
        Ok(())
    }
}

fn open_folder(folder: &Path) -> anyhow::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    sys::open(folder, flags, Mode::empty())
        .map_err(std::io::Error::from)
        .with_context(|| format!("{}: cannot be opened", folder.display()))
}
