//! From requests that change the file system to its operations.

use std::time::Duration;

use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_fs::{
    Attributes, Change as Fields, FsError, NewInode, NewKind, Op, OpKind, Place, RangeMode,
    RenameMode, SetMode, Store, Timestamp, now,
};
use floe_sync::thread;
use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use crate::abi::{self, Change, SetattrFields, SetattrIn};
use crate::adapter::{Adapter, Answer};
use crate::cubes::CUBE_PREFIX;

/// How often, and how long each time, a change without space waits for the space of deleted files.
const MOST_WAITS: u32 = 80;
const WAIT: Duration = Duration::from_millis(5);

impl<S: Store> Adapter<'_, S> {
    /// The answer to a change of an inode, or of a name in a directory, on behalf of a user and group.
    pub(crate) fn change(
        &self,
        inode: InodeNr,
        by: (u32, u32),
        change: &Change<'_>,
    ) -> Result<Answer, FsError> {
        if self.fs.is_read_only() {
            return Err(FsError::ReadOnly);
        }
        if let Change::Setxattr { name, value, .. } = *change
            && name.starts_with(CUBE_PREFIX)
        {
            return self.change_cube(inode, by, name, value);
        }
        let place = |name| Place { directory: inode, name };
        let kind = match *change {
            Change::Mknod { name, mode, device, umask } => {
                let (place, new) = (place(name), new_node(mode, device, umask)?);
                OpKind::Create { place, new }
            }
            Change::Mkdir { name, mode, umask } => {
                let new = new(NewKind::Directory, mode, umask);
                OpKind::Create { place: place(name), new }
            }
            Change::Symlink { name, target } => {
                let new = NewInode::symlink(target);
                OpKind::Create { place: place(name), new }
            }
            Change::Create { name, mode, umask } => {
                let new = new(NewKind::Regular, mode, umask);
                match name {
                    Some(name) => OpKind::Create { place: place(name), new },
                    None => OpKind::CreateUnnamed { directory: inode, new },
                }
            }
            Change::Link { node, name } => {
                let inode = abi::inode_of(node).ok_or(FsError::NotFound)?;
                OpKind::Link { inode, place: place(name) }
            }
            Change::Unlink { name, directory: false } => OpKind::Unlink(place(name)),
            Change::Unlink { name, directory: true } => OpKind::RemoveDirectory(place(name)),
            Change::Rename { from, directory, to, flags } => {
                let directory = abi::inode_of(directory).ok_or(FsError::NotFound)?;
                let (from, to) = (place(from), Place { directory, name: to });
                OpKind::Rename { from, to, mode: rename_mode(flags)? }
            }
            Change::Setattr(ref fields) => {
                let (size_bytes, change) = fields_of(fields);
                OpKind::Change { inode, size_bytes, change }
            }
            Change::Write { offset_bytes, bytes } => OpKind::Write { inode, offset_bytes, bytes },
            Change::Setxattr { name, value, flags } => {
                OpKind::SetAttribute { inode, name, value, mode: set_mode(flags) }
            }
            Change::Removexattr { name } => OpKind::RemoveAttribute { inode, name },
            Change::Fallocate { offset_bytes, len_bytes, mode } => {
                let end = offset_bytes.checked_add(len_bytes).ok_or(FsError::TooLarge)?;
                OpKind::Range { inode, mode: range_mode(mode)?, bytes: offset_bytes..end }
            }
            // The kernel does without.
            Change::Unserved(_) => return Ok(Answer::Error(Errno::NOSYS)),
        };
        let (uid, gid) = by;
        let new = self.apply(&Op { uid, gid, time: now(), kind })?;
        self.answer_of(inode, change, new.as_ref())
    }

    /// Makes a change. The kernel lets go of a deleted file a moment after its unlink has returned, so a change
    /// without space waits for that.
    fn apply(&self, op: &Op<'_>) -> Result<Option<Attributes>, FsError> {
        let mut waits = 0;
        loop {
            match self.fs.apply(op) {
                Err(FsError::NoSpace) if waits < MOST_WAITS && self.fs.has_nameless() => {
                    waits += 1;
                    thread::sleep(WAIT);
                }
                done => return done,
            }
        }
    }

    /// What the kernel gets for a change that was made.
    fn answer_of(
        &self,
        inode: InodeNr,
        change: &Change<'_>,
        new: Option<&Attributes>,
    ) -> Result<Answer, FsError> {
        let bytes = match change {
            Change::Write { bytes, .. } => {
                self.metrics.add_written(bytes.len());
                // At most what was negotiated, a megabyte.
                abi::written(bytes.len() as u32)
            }
            Change::Setattr(_) => {
                let file = self.fs.attributes(inode)?;
                abi::attributes(&file, self.fs.block_bytes(), self.options.keep)
            }
            _ if new.is_some() => {
                let folds = self.fs.folds(inode)?;
                let keep_name = if folds { Duration::ZERO } else { self.options.keep };
                let mut bytes = self.entry(new, keep_name);
                if let Change::Create { .. } = change {
                    bytes.extend(abi::opened(self.fs.open().0, false));
                }
                bytes
            }
            _ => Vec::new(),
        };
        Ok(Answer::Bytes(bytes))
    }

    /// `FS_IOC_SETFLAGS` and `FS_IOC_FSSETXATTR`: flags that programs may set, and the project.
    pub(crate) fn set_flags(
        &self,
        file: &Attributes,
        by: (u32, u32),
        flags: InodeFlags,
        project: Option<u32>,
    ) -> Result<(), FsError> {
        let change = Fields { flags: Some(flags), project, ..Fields::default() };
        let kind = OpKind::Change { inode: file.inode, size_bytes: None, change };
        let (uid, gid) = by;
        self.fs.apply(&Op { uid, gid, time: now(), kind }).map(|_| ())
    }
}

fn new(kind: NewKind<'_>, mode: u32, umask: u32) -> NewInode<'_> {
    let bits = |word: u32| (word & 0o7777) as u16;
    NewInode { kind, permissions: bits(mode), umask: bits(umask) & 0o777 }
}

/// What mknod makes.
fn new_node(mode: u32, device: u32, umask: u32) -> Result<NewInode<'static>, FsError> {
    let (major, minor) = abi::device_of(device);
    let kind = match FileType::of_mode((mode & 0xffff) as u16) {
        Some(FileType::Regular) => NewKind::Regular,
        Some(FileType::CharDevice) => NewKind::CharDevice { major, minor },
        Some(FileType::BlockDevice) => NewKind::BlockDevice { major, minor },
        Some(FileType::Fifo) => NewKind::Fifo,
        Some(FileType::Socket) => NewKind::Socket,
        Some(FileType::Directory | FileType::Symlink) | None => return Err(FsError::Invalid),
    };
    Ok(new(kind, mode, umask))
}

fn rename_mode(flags: u32) -> Result<RenameMode, FsError> {
    match RenameFlags::from_bits(flags) {
        Some(flags) if flags.is_empty() => Ok(RenameMode::Replace),
        Some(RenameFlags::NOREPLACE) => Ok(RenameMode::NoReplace),
        Some(RenameFlags::EXCHANGE) => Ok(RenameMode::Exchange),
        Some(RenameFlags::WHITEOUT) => Ok(RenameMode::Whiteout),
        _ => Err(FsError::Invalid),
    }
}

fn range_mode(mode: u32) -> Result<RangeMode, FsError> {
    let unserved = || FsError::Unsupported("this mode of fallocate");
    let mode = FallocateFlags::from_bits(mode).ok_or_else(unserved)?;
    let keep_size = mode.contains(FallocateFlags::KEEP_SIZE);
    match mode.difference(FallocateFlags::KEEP_SIZE) {
        rest if rest.is_empty() => Ok(RangeMode::Reserve { keep_size }),
        FallocateFlags::ZERO_RANGE => Ok(RangeMode::Zero { keep_size }),
        FallocateFlags::PUNCH_HOLE if keep_size => Ok(RangeMode::Punch),
        FallocateFlags::COLLAPSE_RANGE if !keep_size => Ok(RangeMode::Collapse),
        FallocateFlags::INSERT_RANGE if !keep_size => Ok(RangeMode::Insert),
        _ => Err(unserved()),
    }
}

fn set_mode(flags: u32) -> SetMode {
    let flags = XattrFlags::from_bits_truncate(flags);
    if flags.contains(XattrFlags::CREATE) {
        SetMode::Create
    } else if flags.contains(XattrFlags::REPLACE) {
        SetMode::Replace
    } else {
        SetMode::Any
    }
}

/// The new size and the other fields that the kernel asks for.
fn fields_of(asked: &SetattrIn) -> (Option<u64>, Fields) {
    let valid = SetattrFields::from_bits_truncate(asked.valid);
    let has = |field| valid.contains(field);
    let time = |set, is_now, seconds: u64, nanoseconds| {
        if has(is_now) {
            Some(now())
        } else {
            has(set).then_some(Timestamp { seconds: seconds.cast_signed(), nanoseconds })
        }
    };
    let fields = Fields {
        permissions: has(SetattrFields::MODE).then_some((asked.mode & 0o7777) as u16),
        uid: has(SetattrFields::UID).then_some(asked.uid),
        gid: has(SetattrFields::GID).then_some(asked.gid),
        accessed: time(
            SetattrFields::ATIME,
            SetattrFields::ATIME_NOW,
            asked.atime,
            asked.atimensec,
        ),
        modified: time(
            SetattrFields::MTIME,
            SetattrFields::MTIME_NOW,
            asked.mtime,
            asked.mtimensec,
        ),
        flags: None,
        project: None,
    };
    (has(SetattrFields::SIZE).then_some(asked.size), fields)
}
