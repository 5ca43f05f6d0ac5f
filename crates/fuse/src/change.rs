//! From requests that change the file system to its operations.

use std::time::Duration;

use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_fs::{
    Attributes, Change as Fields, FsError, NewInode, NewKind, Op, OpKind, Place, RangeMode, Store,
    Timestamp, now,
};
use floe_sync::{before_waiting, thread};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::abi::{self, Change, SetattrFields, SetattrIn, WriteFlags};
use crate::adapter::{Adapter, Answer, MOST_ANSWER_BYTES};
use crate::cubes::{self, CUBE_PREFIX};
use crate::errno::errno;

/// How often, and how long each time, a change without space waits for the space of deleted files.
const MOST_WAITS: u32 = 80;
const WAIT: Duration = Duration::from_millis(5);
/// Bytes that one request copies at most, so that no thread is busy for long.
const MOST_COPY_BYTES: u64 = 64 << 20;
/// Bits of permissions.
const SET_USER_ID: u16 = 0o4000;
const SET_GROUP_ID: u16 = 0o2000;
const GROUP_EXECUTES: u16 = 0o0010;

impl<S: Store> Adapter<'_, S> {
    /// The answer to a change of an inode, or of a name in a directory, on behalf of a user and group.
    pub(crate) fn change(
        &self,
        inode: InodeNr,
        by: (u32, u32),
        change: &Change<'_>,
        buffer: &mut Vec<u8>,
    ) -> Result<Answer, FsError> {
        if self.fs.is_read_only() {
            return Err(FsError::ReadOnly);
        }
        if let Change::Setxattr { name, value, .. } = *change
            && name.starts_with(CUBE_PREFIX)
        {
            return cubes::change(self.fs, inode, by, name, value)
                .map(|()| Answer::Bytes(Vec::new()));
        }
        let make = || self.change_object(inode, by, change, buffer);
        let answer = self.with_times_learned(inode, change, make)?;
        self.make_durable(inode, change)?;
        Ok(answer)
    }

    /// A change of what the file system stores.
    fn change_object(
        &self,
        inode: InodeNr,
        by: (u32, u32),
        change: &Change<'_>,
        buffer: &mut Vec<u8>,
    ) -> Result<Answer, FsError> {
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
            Change::Create { name, mode, umask, .. } => {
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
                let mode = self.rename_mode(flags, &to)?;
                self.write_back_what_replaces(&from, &to, mode);
                OpKind::Rename { from, to, mode }
            }
            Change::Setattr(ref fields) => {
                let (size_bytes, change) = self.new_fields(inode, by, fields)?;
                OpKind::Change { inode, size_bytes, change }
            }
            Change::Write { offset_bytes, bytes, flags, .. } => {
                if flags.contains(WriteFlags::KILL_SUIDGID) {
                    self.lose_ids(inode, by)?;
                }
                OpKind::Write { inode, offset_bytes, bytes }
            }
            Change::Setxattr { name, value, flags, .. } => OpKind::SetAttribute {
                inode,
                name,
                value,
                mode: self.set_mode(inode, name, flags)?,
            },
            Change::Removexattr { name } => OpKind::RemoveAttribute { inode, name },
            Change::Fallocate { offset_bytes, len_bytes, mode } => {
                let end = offset_bytes.checked_add(len_bytes).ok_or(FsError::TooLarge)?;
                if by.0 != 0 {
                    self.lose_ids(inode, by)?;
                }
                OpKind::Range { inode, mode: range_mode(mode)?, bytes: offset_bytes..end }
            }
            Change::Copy { .. } => return self.copy(inode, by, change, buffer),
            // The kernel does without.
            Change::Unserved(_) => return Ok(Answer::Error(Errno::NOSYS)),
        };
        let (uid, gid) = self.on_behalf_of(inode, by, change)?;
        let applied = self.apply(&Op { uid, gid, time: time_of(change), kind });
        self.answer_to(inode, by, change, applied)
    }

    /// The answer to a change that was made, or refused.
    fn answer_to(
        &self,
        inode: InodeNr,
        by: (u32, u32),
        change: &Change<'_>,
        applied: Result<Option<Attributes>, FsError>,
    ) -> Result<Answer, FsError> {
        if let (Err(error), Change::Write { flags, .. }) = (&applied, change)
            && let Some(written) = self.written_in_part(inode, error, *flags)
        {
            return Ok(written);
        }
        if applied.is_err() {
            self.drop_content_of(inode, change);
        }
        let mut new = applied?;
        if let Change::Link { node, .. } = *change {
            // The answer is that of a look-up.
            let linked = abi::inode_of(node).ok_or(FsError::NotFound)?;
            new = Some(self.fs.hold(inode, linked)?);
        }
        if let Change::Setxattr { drops_set_gid: true, .. } = change {
            self.lose_set_gid(inode, by)?;
        }
        self.answer_of(inode, change, new.as_ref())
    }

    /// Makes a change durable before it is answered, if that was asked for. The kernel does so by itself for what is written.
    fn make_durable(&self, inode: InodeNr, change: &Change<'_>) -> Result<(), FsError> {
        let asked = self.options.synchronous;
        let (is_due, inode) = match *change {
            Change::Mknod { .. }
            | Change::Mkdir { .. }
            | Change::Symlink { .. }
            | Change::Create { name: Some(_), .. }
            | Change::Link { .. }
            | Change::Unlink { .. }
            // Both directories go together.
            | Change::Rename { .. } => (asked.names || asked.data, inode),
            Change::Copy { to, .. } => {
                (asked.data, abi::inode_of(to).ok_or(FsError::NotFound)?)
            }
            Change::Setattr(_)
            | Change::Setxattr { .. }
            | Change::Removexattr { .. }
            | Change::Fallocate { .. } => (asked.data, inode),
            Change::Create { name: None, .. } | Change::Write { .. } | Change::Unserved(_) => {
                (false, inode)
            }
        };
        if is_due { self.fs.sync_inode(inode, None) } else { Ok(()) }
    }

    /// The answer to a write that was made in part; `None` if the error is the answer.
    fn written_in_part(
        &self,
        inode: InodeNr,
        error: &FsError,
        flags: WriteFlags,
    ) -> Option<Answer> {
        if flags.contains(WriteFlags::CACHE) {
            // The kernel takes no short answers here: what does not fit is lost, and the program is told.
            self.writers.fail(inode, errno(error));
            return None;
        }
        let FsError::Short { written_bytes, .. } = *error else { return None };
        self.metrics.add_written(written_bytes);
        // At most a megabyte.
        Some(Answer::Bytes(abi::written(written_bytes as u32)))
    }

    /// The new size and the other fields that the kernel asks for, and what follows from them.
    fn new_fields(
        &self,
        inode: InodeNr,
        by: (u32, u32),
        asked: &SetattrIn,
    ) -> Result<(Option<u64>, Fields), FsError> {
        let valid = SetattrFields::from_bits_truncate(asked.valid);
        if valid.difference(SetattrFields::CTIME).is_empty() {
            return Ok((None, self.owned_again(inode, by, !valid.is_empty())?));
        }
        let (size_bytes, mut change) = fields_of(asked);
        self.judge_times(inode, asked)?;
        if loses_ids(asked) {
            change.permissions = self.without_ids(inode, by, change.permissions)?;
        }
        Ok((size_bytes, change))
    }

    /// Copies bytes from one file to another, or to another place of the same file. May copy fewer than asked for.
    fn copy(
        &self,
        inode: InodeNr,
        by: (u32, u32),
        change: &Change<'_>,
        buffer: &mut Vec<u8>,
    ) -> Result<Answer, FsError> {
        let Change::Copy { offset_bytes, to, to_bytes, len_bytes, wide } = *change else {
            return Err(FsError::Invalid);
        };
        let to = abi::inode_of(to).ok_or(FsError::NotFound)?;
        to_bytes.checked_add(len_bytes).ok_or(FsError::TooLarge)?;
        if by.0 != 0 {
            self.lose_ids(to, by)?;
        }
        if buffer.len() < MOST_ANSWER_BYTES as usize {
            buffer.resize(MOST_ANSWER_BYTES as usize, 0);
        }
        let (uid, gid) = by;
        let (mut done, all) = (0, len_bytes.min(MOST_COPY_BYTES));
        while done < all {
            let most = (all - done).min(u64::from(MOST_ANSWER_BYTES)) as usize;
            let len =
                self.fs.read(inode, offset_bytes.saturating_add(done), &mut buffer[..most])?;
            let kind = OpKind::Write {
                inode: to,
                offset_bytes: to_bytes + done,
                bytes: buffer.get(..len).unwrap_or_default(),
            };
            if len == 0 {
                break;
            }
            match self.apply(&Op { uid, gid, time: now(), kind }) {
                Err(FsError::Short { written_bytes, .. }) => {
                    done += written_bytes as u64;
                    break;
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
                Ok(_) => done += len as u64,
            }
        }
        self.metrics.add_written(done as usize);
        let answer = if wide { done.to_le_bytes().to_vec() } else { abi::written(done as u32) };
        Ok(Answer::Bytes(answer))
    }

    /// Makes a change. The kernel lets go of a deleted file a moment after its unlink has returned, so a change
    /// without space waits for that.
    fn apply(&self, op: &Op<'_>) -> Result<Option<Attributes>, FsError> {
        let mut waits = 0;
        loop {
            match self.fs.apply(op) {
                Err(error)
                    if error.is_no_space() && waits < MOST_WAITS && self.fs.has_nameless() =>
                {
                    waits += 1;
                    before_waiting();
                    thread::sleep(WAIT);
                }
                done => return done,
            }
        }
    }

    /// The reply to the kernel for a change that was made.
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
                // It may be these times that were set.
                let (file, keep) = self.shown_as_it_is(&self.fs.attributes(inode)?);
                abi::attributes(&file, self.fs.block_bytes(), keep)
            }
            _ if new.is_some() => {
                let folds = self.fs.folds(inode)?;
                let keep_name = if folds { Duration::ZERO } else { self.options.keep };
                if let (Change::Create { flags, .. }, Some(new)) = (change, new) {
                    self.writers.open(new.inode, *flags);
                }
                let mut bytes = self.entry(new, keep_name);
                if let Change::Create { flags, .. } = change {
                    bytes.extend(self.opened(*flags));
                }
                bytes
            }
            _ => Vec::new(),
        };
        Ok(Answer::Bytes(bytes))
    }

    /// On whose behalf a change is made. Write-back by the kernel carries no user and arrives as root's, who may use
    /// the last blocks and pass limits: so it counts as the file's owner's.
    fn on_behalf_of(
        &self,
        inode: InodeNr,
        by: (u32, u32),
        change: &Change<'_>,
    ) -> Result<(u32, u32), FsError> {
        match change {
            Change::Write { flags, .. } if flags.contains(WriteFlags::CACHE) => {
                let file = self.fs.attributes(inode)?;
                Ok((file.uid, file.gid))
            }
            Change::Mknod { .. }
            | Change::Mkdir { .. }
            | Change::Symlink { .. }
            | Change::Create { .. }
                if self.options.group_of_directory =>
            {
                Ok((by.0, self.fs.attributes(inode)?.gid))
            }
            _ => Ok(by),
        }
    }

    /// Permissions that a file keeps when its content or owner changes: without set-user-ID, and without set-group-ID if the
    /// group may execute it, or if the caller is not of the group. `None` if all stay.
    pub(crate) fn without_ids(
        &self,
        inode: InodeNr,
        (uid, gid): (u32, u32),
        new: Option<u16>,
    ) -> Result<Option<u16>, FsError> {
        let file = self.fs.attributes(inode)?;
        let before = new.unwrap_or(file.permissions);
        if file.kind == FileType::Directory {
            return Ok(new);
        }
        let mut after = before & !SET_USER_ID;
        if before & GROUP_EXECUTES != 0 || uid != 0 && gid != file.gid {
            after &= !SET_GROUP_ID;
        }
        Ok(if after == before { new } else { Some(after) })
    }

    /// Takes set-user-ID and set-group-ID from a file that is written.
    fn lose_ids(&self, inode: InodeNr, by: (u32, u32)) -> Result<(), FsError> {
        let permissions = self.without_ids(inode, by, None)?;
        permissions.map_or(Ok(()), |left| self.set_permissions(inode, by, left))
    }

    /// Takes set-group-ID from an inode whose owner is not of its group, and gave it an access list (Linux:
    /// `posix_acl_update_mode`).
    fn lose_set_gid(&self, inode: InodeNr, by: (u32, u32)) -> Result<(), FsError> {
        let before = self.fs.attributes(inode)?.permissions;
        if before & SET_GROUP_ID == 0 {
            return Ok(());
        }
        self.set_permissions(inode, by, before & !SET_GROUP_ID)
    }

    fn set_permissions(
        &self,
        inode: InodeNr,
        (uid, gid): (u32, u32),
        permissions: u16,
    ) -> Result<(), FsError> {
        let change = Fields { permissions: Some(permissions), ..Fields::default() };
        let kind = OpKind::Change { inode, size_bytes: None, change };
        self.fs.apply(&Op { uid, gid, time: now(), kind }).map(|_| ())
    }

    /// `FS_IOC_SETFLAGS` and `FS_IOC_FSSETXATTR`: flags that programs may set, and the project.
    pub(crate) fn set_flags(
        &self,
        file: &Attributes,
        by: (u32, u32),
        flags: InodeFlags,
        project: Option<u32>,
    ) -> Result<(), FsError> {
        // An immutable file takes no content, and what was written before must not be lost (Linux: `ext4_ioctl_setflags`).
        if self.writeback && flags.difference(file.flags).contains(InodeFlags::IMMUTABLE) {
            let _ = self.write_back_now(file.inode);
        }
        let change = Fields { flags: Some(flags), project, ..Fields::default() };
        let kind = OpKind::Change { inode: file.inode, size_bytes: None, change };
        let (uid, gid) = by;
        self.fs.apply(&Op { uid, gid, time: now(), kind })?;
        // The kernel does not know that this call changes a time.
        let _ = self.carrier.notify(&abi::ask_again(file.inode));
        Ok(())
    }
}

fn new(kind: NewKind<'_>, mode: u32, umask: u32) -> NewInode<'_> {
    let bits = |word: u32| (word & 0o7777) as u16;
    NewInode { kind, permissions: bits(mode), umask: bits(umask) & 0o777 }
}

/// The inode that mknod makes.
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

/// Whether set-user-ID and set-group-ID go: with a new owner or group, and where the kernel says so.
fn loses_ids(asked: &SetattrIn) -> bool {
    let valid = SetattrFields::from_bits_truncate(asked.valid);
    let owned = SetattrFields::UID.union(SetattrFields::GID);
    valid.intersects(owned) && !valid.contains(SetattrFields::MODE)
        || valid.contains(SetattrFields::KILL_SUIDGID)
}

/// When a change is made: now, or when the kernel has made it, which keeps the times of what it keeps.
fn time_of(change: &Change<'_>) -> Timestamp {
    match change {
        Change::Setattr(asked)
            if SetattrFields::from_bits_truncate(asked.valid).contains(SetattrFields::CTIME) =>
        {
            Timestamp { seconds: asked.ctime.cast_signed(), nanoseconds: asked.ctimensec }
        }
        _ => now(),
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
