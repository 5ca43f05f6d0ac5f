//! A relay: several systems take turns at writing to one file system, and a model in a plain folder gets the same calls. After
//! each turn what is stored must be what the model has.
//!
//! The calls are drawn from a seed and made one after the other, each first on the file system and then on the model: the same
//! ones must succeed. The model stands on another kind of file system (tmpfs, see [`crate::tool::scratch`]), so that nothing of
//! ext4 is compared with itself.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use floe_format::ext::inode::FileType as Kind;
use rustix::fs::{
    CWD, FallocateFlags, FileType, Mode, OFlags, XattrFlags, fallocate, lremovexattr, lsetxattr,
    makedev, mknodat, statvfs,
};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::Rng;
use crate::tool::scratch;
use crate::tree::{Node, Tree, mounted};

/// Directories of the namespace, partly nested, and names in each.
const FOLDERS: u64 = 10;
const NAMES: u64 = 24;
/// The directory of the relay in the file system.
const PLACE: &str = "relay";
/// Below this share of free blocks or inodes, one in so many, nothing new is written: a full file system refuses what the model
/// takes.
const SPARE: u64 = 4;

/// The model, and what the other files of the file system are.
#[derive(Debug)]
pub struct Relay {
    model: TempDir,
    others: Option<Tree>,
    rng: Rng,
}

/// A call, the same for both.
#[derive(Clone, Debug)]
enum Call {
    MakeFolder(PathBuf),
    RemoveFolder(PathBuf),
    RemoveTree(PathBuf),
    Write(PathBuf, u64, Vec<u8>),
    Append(PathBuf, Vec<u8>),
    Truncate(PathBuf, u64),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
    Link(PathBuf, PathBuf),
    Symlink(String, PathBuf),
    SetAttribute(PathBuf, String, Vec<u8>),
    RemoveAttribute(PathBuf, String),
    Special(PathBuf, FileType, u64),
    Allocate(PathBuf, FallocateFlags, u64, u64),
    SetMode(PathBuf, u32),
    SetOwner(PathBuf, u32),
    Sync(PathBuf),
}

/// Opens without blocking, because a name may be a FIFO without a peer.
fn opening() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed());
    options
}

impl Call {
    /// Whether it needs space.
    const fn grows(&self) -> bool {
        !matches!(
            self,
            Self::RemoveFolder(_)
                | Self::RemoveTree(_)
                | Self::Remove(_)
                | Self::RemoveAttribute(..)
                | Self::Sync(_)
        )
    }

    /// Makes it below a folder.
    fn make(&self, top: &Path) -> io::Result<()> {
        match self {
            Self::MakeFolder(path) => fs::create_dir(top.join(path)),
            Self::RemoveFolder(path) => fs::remove_dir(top.join(path)),
            Self::RemoveTree(path) => fs::remove_dir_all(top.join(path)),
            Self::Write(path, at, bytes) => {
                let open = opening().create(true).truncate(false).write(true).open(top.join(path));
                open?.write_all_at(bytes, *at)
            }
            Self::Append(path, bytes) => {
                let file = opening().write(true).open(top.join(path))?;
                file.write_all_at(bytes, file.metadata()?.len())
            }
            Self::Truncate(path, size) => {
                opening().write(true).open(top.join(path))?.set_len(*size)
            }
            Self::Remove(path) => fs::remove_file(top.join(path)),
            Self::Rename(from, to) => fs::rename(top.join(from), top.join(to)),
            Self::Link(from, to) => fs::hard_link(top.join(from), top.join(to)),
            Self::Symlink(target, path) => symlink(target, top.join(path)),
            Self::SetAttribute(path, name, value) => {
                Ok(lsetxattr(top.join(path), name, value, XattrFlags::empty())?)
            }
            Self::RemoveAttribute(path, name) => Ok(lremovexattr(top.join(path), name)?),
            Self::Special(path, kind, number) => {
                let path = CString::new(top.join(path).as_os_str().as_bytes())?;
                Ok(mknodat(CWD, &path, *kind, Mode::RUSR, *number)?)
            }
            Self::Allocate(path, flags, at, len) => {
                let file = opening().write(true).open(top.join(path))?;
                Ok(fallocate(&file, *flags, *at, *len)?)
            }
            Self::SetMode(path, mode) => {
                // That of a link would be its target's.
                ensure_no_link(&top.join(path))?;
                fs::set_permissions(top.join(path), PermissionsExt::from_mode(*mode))
            }
            Self::SetOwner(path, id) => lchown(top.join(path), Some(*id), Some(*id + 1)),
            Self::Sync(path) => opening().read(true).open(top.join(path))?.sync_all(),
        }
    }
}

fn ensure_no_link(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path)?.is_symlink() {
        true => Err(ErrorKind::InvalidInput.into()),
        false => Ok(()),
    }
}

impl Relay {
    /// A relay whose calls are drawn from a seed.
    ///
    /// # Errors
    /// No folder can be made for the model.
    pub fn new(seed: u64) -> Result<Self> {
        Ok(Self {
            model: scratch("floe-relay-")?,
            others: None,
            rng: Rng::new(seed ^ 0x0072_656c_6179),
        })
    }

    /// Makes calls on a mounted file system and on the model; returns how many succeeded.
    ///
    /// # Errors
    /// A call succeeds on one of them alone.
    pub fn turn(&mut self, top: &Path, calls: u32) -> Result<u32> {
        let place = top.join(PLACE);
        if self.others.is_none() {
            self.others = Some(others(mounted(top)?));
            fs::create_dir(&place).context("making the folder of the relay")?;
        }
        let mut done = 0;
        for number in 0..calls {
            let call = self.call();
            if call.grows() && is_nearly_full(top)? {
                continue;
            }
            done += u32::from(self.both(&place, &call).with_context(|| format!("call {number}"))?);
        }
        Ok(done)
    }

    /// Makes a call on both; whether it succeeded.
    fn both(&self, place: &Path, call: &Call) -> Result<bool> {
        match call.make(place) {
            // Without extents there is no fallocate.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => Ok(false),
            Err(error) if error.kind() == ErrorKind::StorageFull => bail!("{call:?}: {error}"),
            theirs => {
                let ours = call.make(self.model.path());
                let same = theirs.is_ok() == ours.is_ok();
                ensure!(same, "{call:?}: {theirs:?}, but the model: {ours:?}");
                Ok(ours.is_ok())
            }
        }
    }

    /// Compares a mounted file system with the model, and its other files with what they were at first.
    ///
    /// # Errors
    /// The first differences.
    pub fn compare(&self, top: &Path) -> Result<()> {
        let found = mounted(top)?;
        let prefix = format!("/{PLACE}");
        let own = found.iter().filter(|(path, _)| path.starts_with(prefix.as_bytes()));
        let own: Tree = own
            .map(|(path, node)| (path[prefix.len()..].to_vec(), node.clone()))
            .map(|(path, node)| (if path.is_empty() { b"/".to_vec() } else { path }, node))
            .collect();
        differences(&mounted(self.model.path())?, &own, "the model")?;
        let before = self.others.as_ref().context("nobody has written yet")?;
        differences(before, &others(found), "at first")
    }

    fn folder(&mut self) -> PathBuf {
        match self.rng.below(FOLDERS) {
            0 => PathBuf::new(),
            number @ 1..=5 => format!("folder-{number}").into(),
            number => format!("folder-{}/inner-{number}", number - 5).into(),
        }
    }

    fn name(&mut self) -> PathBuf {
        let number = self.rng.below(NAMES);
        // Long names fill directories; short ones fit inline.
        let name = match number % 3 {
            0 => format!("{number:x<200}"),
            1 => format!("name-{number}"),
            _ => number.to_string(),
        };
        self.folder().join(name)
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; 1 + self.rng.index(most)];
        self.rng.fill(&mut bytes);
        bytes
    }

    fn call(&mut self) -> Call {
        match self.rng.below(34) {
            0..=2 => Call::MakeFolder(self.folder()),
            3 => Call::MakeFolder(self.name()),
            4 => Call::RemoveFolder(self.name()),
            5 => match self.rng.chance(4) {
                true => Call::RemoveTree(self.folder().join("name-1")),
                false => Call::RemoveFolder(self.folder()),
            },
            6..=10 => {
                let most = if self.rng.chance(5) { 40_000 } else { 900 };
                let at = if self.rng.chance(2) { 0 } else { self.rng.below(150_000) };
                Call::Write(self.name(), at, self.bytes(most))
            }
            11..=12 => Call::Append(self.name(), self.bytes(3000)),
            13..=14 => {
                let most = if self.rng.chance(2) { 200 } else { 120_000 };
                Call::Truncate(self.name(), self.rng.below(most))
            }
            15..=19 => Call::Remove(self.name()),
            20..=22 => Call::Rename(self.name(), self.name()),
            23 => Call::Rename(self.folder(), self.folder().join("moved")),
            24..=25 => Call::Link(self.name(), self.name()),
            26 => {
                let len = if self.rng.chance(2) { 20 } else { 180 };
                Call::Symlink("t".repeat(len), self.name())
            }
            27..=28 => {
                let name = format!("user.number-{}", self.rng.below(4));
                if self.rng.chance(3) {
                    return Call::RemoveAttribute(self.name(), name);
                }
                // Few values, so that files share attribute blocks; all of them fit a block.
                let value = vec![self.rng.below(3) as u8; 1 + self.rng.index(120)];
                Call::SetAttribute(self.name(), name, value)
            }
            29 => match self.rng.chance(2) {
                true => Call::Special(self.name(), FileType::Fifo, 0),
                false => {
                    let number = makedev(5, self.rng.below(300) as u32);
                    Call::Special(self.name(), FileType::CharacterDevice, number)
                }
            },
            30 => {
                let flags = match self.rng.below(3) {
                    0 => FallocateFlags::empty(),
                    1 => FallocateFlags::KEEP_SIZE,
                    _ => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                };
                let (at, len) = (self.rng.below(100_000), 1 + self.rng.below(40_000));
                Call::Allocate(self.name(), flags, at, len)
            }
            31 => Call::SetMode(self.name(), 0o600 | self.rng.below(0o200) as u32),
            32 => Call::SetOwner(self.name(), 1000 + self.rng.below(3) as u32),
            _ => Call::Sync(self.name()),
        }
    }
}

/// The files that are not of the relay, nor the reservation files of a native file system, which are as long as its regions are free.
fn others(tree: Tree) -> Tree {
    let apart = [format!("/{PLACE}"), "/.cubes".to_owned()];
    let is_other = |path: &[u8]| apart.iter().all(|prefix| !path.starts_with(prefix.as_bytes()));
    tree.into_iter().filter(|(path, _)| is_other(path)).collect()
}

/// Whether less than a part of the blocks or inodes is free.
fn is_nearly_full(top: &Path) -> Result<bool> {
    let found = statvfs(top).context("asking for free space")?;
    Ok(found.f_bavail < found.f_blocks / SPARE || found.f_favail < found.f_files / SPARE)
}

/// Facts of a node that both must have.
type Facts = (Option<Kind>, u64, String, (u32, u32, u16), BTreeMap<Vec<u8>, Vec<u8>>);

fn facts(node: &Node) -> Facts {
    let (kind, size, content) = node.identity();
    let owner = (node.uid, node.gid, node.permissions);
    (kind, size, content.to_owned(), owner, node.xattrs.clone())
}

/// The first path of each path's inode.
fn links(tree: &Tree) -> BTreeMap<&[u8], &[u8]> {
    let mut firsts = BTreeMap::new();
    let all = tree.iter().map(|(path, node)| (&path[..], node.inode));
    all.map(|(path, inode)| (path, *firsts.entry(inode).or_insert(path))).collect()
}

/// `Err` with the differences of two trees.
fn differences(expected: &Tree, found: &Tree, of: &str) -> Result<()> {
    let (expected_links, found_links) = (links(expected), links(found));
    let mut all = Vec::new();
    for path in expected.keys().chain(found.keys().filter(|path| !expected.contains_key(*path))) {
        // An empty lost+found or root of a model has another mode and owner.
        let is_top = path == b"/";
        let (one, other) = (expected.get(path), found.get(path));
        let differ = match (one, other) {
            (Some(one), Some(other)) => {
                !is_top && facts(one) != facts(other)
                    || expected_links.get(&path[..]) != found_links.get(&path[..])
            }
            _ => true,
        };
        if differ {
            let name = String::from_utf8_lossy(path).into_owned();
            let (found, expected) = (other.map(facts), one.map(facts));
            all.push(format!("{name}: {found:?}, but {of}: {expected:?}"));
        }
    }
    ensure!(all.is_empty(), "{} differences: {}", all.len(), all[..all.len().min(5)].join("; "));
    Ok(())
}

/// Whether the model can be kept here: attributes of users need a file system that has them.
///
/// # Errors
/// Why not.
pub fn available() -> Result<(), String> {
    let probe = || -> Result<()> {
        let folder = scratch("floe-relay-")?;
        File::create(folder.path().join("probe"))?;
        let flags = XattrFlags::empty();
        Ok(lsetxattr(folder.path().join("probe"), "user.probe", b"1", flags)?)
    };
    probe().map_err(|error| format!("no extended attributes in scratch folders: {error:#}"))
}
