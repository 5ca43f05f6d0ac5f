//! From requests to calls of the file system, and from their results to answers.

use std::time::{Duration, Instant};

use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::layout::le32_at;
use floe_fs::{Attributes, Caller, FileSystem, FsError, Handle, SeekFor, Store, Want};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::abi::{self, DirectoryReply, InHeader, IoctlIn, Operation};
use crate::carrier::Carrier;
use crate::cubes::{self, CUBE_PREFIX};
use crate::errno::{errno, is_fault};
use crate::flags::{VISIBLE_FLAGS, extended_flags, flags_asked, flags_shown, with_extended_flags};
use crate::metrics::{METRICS, Metrics, Now};
use crate::options::ServeOptions;
use crate::times::Times;
use crate::writers::{Writers, WritingBack, writes};

/// Bytes of an answer at most; the kernel never asks for more than was agreed.
pub(crate) const MOST_ANSWER_BYTES: u32 = 1 << 20;
/// Sectors of a file whose content the kernel may keep: those of a page.
const SECTORS_AT_LEAST: u64 = 8;
/// How long the kernel may keep that number.
const KEEP_GUESS: Duration = Duration::from_secs(1);
/// `SEEK_DATA` of lseek.
const SEEK_DATA: u32 = 3;
/// `SEEK_HOLE` of lseek.
const SEEK_HOLE: u32 = 4;
/// `FS_IOC_GETFLAGS`.
const GET_FLAGS: u32 = 0x8008_6601;
/// `FS_IOC_FSGETXATTR`.
const GET_FSXATTR: u32 = 0x801c_581f;
/// `FS_IOC_GETVERSION`.
const GET_VERSION: u32 = 0x8008_7601;
/// `FS_IOC_SETFLAGS`.
const SET_FLAGS: u32 = 0x4008_6602;
/// `FITRIM`.
const TRIM: u32 = 0xc018_5879;
/// `FS_IOC_FSSETXATTR`.
const SET_FSXATTR: u32 = 0x401c_5820;
/// An attribute of the root that no file system stores: how it is served, as lines of `name: value`.
pub const STATUS: &[u8] = b"floe.status";
/// Another one. To read it makes all changes durable, and fails if some are lost that no program was told of.
pub const WRITTEN: &[u8] = b"floe.written";

/// An answer to the kernel.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The bytes asked for.
    Bytes(Vec<u8>),
    /// So many bytes at the start of the thread's buffer.
    Buffer(usize),
    /// Why not.
    Error(Errno),
}

/// Turns requests into calls. All callers are judged by the kernel, which is told to
/// (`default_permissions`).
#[derive(Clone, Copy)]
pub(crate) struct Adapter<'s, S> {
    pub(crate) fs: &'s FileSystem<S>,
    pub(crate) options: &'s ServeOptions,
    pub(crate) log: &'s (dyn Fn(&str) + Sync),
    /// Nothing could be changed from the start.
    pub(crate) began_read_only: bool,
    pub(crate) metrics: &'s Metrics,
    pub(crate) writers: &'s Writers,
    pub(crate) times: &'s Times,
    /// The kernel keeps what is written.
    pub(crate) writeback: bool,
    pub(crate) carrier: &'s dyn Carrier,
    pub(crate) writing_back: &'s WritingBack,
}

impl<S: Store> Adapter<'_, S> {
    /// The answer to a request about an inode on behalf of a user.
    pub(crate) fn answer(
        &self,
        inode: InodeNr,
        header: &InHeader,
        operation: &Operation<'_>,
        buffer: &mut Vec<u8>,
    ) -> Answer {
        match self.call(inode, header, operation, buffer) {
            Ok(answer) => answer,
            Err(error) => {
                if is_fault(&error) {
                    self.metrics.add_fault();
                    let ended = !self.began_read_only && self.fs.is_read_only();
                    let ended = if ended { "; the mount is read-only from now on" } else { "" };
                    (self.log)(&format!("{error}{ended}"));
                }
                Answer::Error(errno(&error))
            }
        }
    }

    fn call(
        &self,
        inode: InodeNr,
        header: &InHeader,
        operation: &Operation<'_>,
        buffer: &mut Vec<u8>,
    ) -> Result<Answer, FsError> {
        let fs = self.fs;
        Ok(match *operation {
            Operation::Change(ref change) => {
                let by = (header.uid, header.gid);
                self.change(inode, by, change, buffer)?
            }
            Operation::Lookup { name } => self.look_up(inode, name)?,
            Operation::Getattr { opened } => self.stat(inode, opened)?,
            Operation::Statx => {
                let (file, keep) = self.shown(&fs.attributes(inode)?);
                Answer::Bytes(abi::extended_stat(&file, fs.block_bytes(), keep))
            }
            Operation::Readlink => {
                let target = fs.target(inode)?;
                self.note_access(inode);
                Answer::Bytes(target)
            }
            Operation::Read { offset_bytes, len_bytes } => {
                self.read(inode, offset_bytes, len_bytes, buffer)?
            }
            Operation::Readdir { cookie, len_bytes, plus } => {
                self.list(inode, cookie, len_bytes, plus)?
            }
            Operation::Statfs => Answer::Bytes(abi::statfs(&fs.space_of(inode))),
            Operation::Getxattr { name: name @ (STATUS | WRITTEN | METRICS), len_bytes }
                if inode == InodeNr::ROOT =>
            {
                sized(self.own_attribute(name)?, len_bytes)
            }
            Operation::Getxattr { name, len_bytes } if name.starts_with(CUBE_PREFIX) => {
                sized(cubes::read(fs, inode, name)?, len_bytes)
            }
            Operation::Getxattr { name, len_bytes } => {
                sized(fs.extended_attribute(inode, name)?, len_bytes)
            }
            Operation::Listxattr { len_bytes } => {
                sized(self.attribute_names(inode, header.uid)?, len_bytes)
            }
            Operation::Access { mask } => {
                let want = Want::from_bits_truncate((mask & 7) as u16);
                fs.access(&Caller::Judged, inode, want)?;
                Answer::Bytes(Vec::new())
            }
            Operation::Lseek { offset_bytes, whence } => self.seek(inode, offset_bytes, whence)?,
            Operation::Ioctl { ref request, data } => {
                self.ioctl(inode, (header.uid, header.gid), request, data)?
            }
            Operation::Release { directory, flags } => {
                if !directory && self.writers.close(inode, flags) {
                    self.settle_closed(inode);
                }
                Answer::Bytes(Vec::new())
            }
            // Errors of writing back are the kernel's to report then; it does not ask again.
            Operation::Flush { .. } if self.writeback => Answer::Error(Errno::NOSYS),
            Operation::Flush { file } => done(fs.close(inode, Handle(file)))?,
            Operation::Sync | Operation::Destroy => done(fs.sync())?,
            Operation::SyncInode { file } => done(self.sync_inode(inode, Handle(file)))?,
            // Nothing need be opened: the kernel does not ask again.
            Operation::Open { .. } if self.began_read_only => Answer::Error(Errno::NOSYS),
            Operation::Open { directory: true, .. } => Answer::Error(Errno::NOSYS),
            Operation::Open { .. } if self.options.open_fast => Answer::Error(Errno::NOSYS),
            Operation::Open { directory: false, flags } => self.open(inode, flags)?,
            Operation::Forget(ref all) => self.forget(all)?,
            Operation::Init(_) | Operation::Interrupt | Operation::Unknown(_) => {
                Answer::Error(Errno::NOSYS)
            }
        })
    }

    fn stat(&self, inode: InodeNr, opened: bool) -> Result<Answer, FsError> {
        // The kernel asks before it takes more for a file: here a program that writes on and on learns that nothing of it
        // is kept.
        if let Some(errno) = opened.then(|| self.writers.take_failure(inode)).flatten() {
            return Ok(Answer::Error(errno));
        }
        let (file, keep) = self.shown(&self.fs.attributes(inode)?);
        Ok(Answer::Bytes(abi::attributes(&file, self.fs.block_bytes(), keep)))
    }

    fn read(
        &self,
        inode: InodeNr,
        offset_bytes: u64,
        len_bytes: u32,
        buffer: &mut Vec<u8>,
    ) -> Result<Answer, FsError> {
        let most = len_bytes.min(MOST_ANSWER_BYTES) as usize;
        if buffer.len() < most {
            buffer.resize(most, 0);
        }
        let len = self.fs.read(inode, offset_bytes, &mut buffer[..most])?;
        self.note_access(inode);
        self.metrics.add_read(len);
        Ok(Answer::Buffer(len))
    }

    /// A program reads an inode. The read succeeds even if the time cannot be written.
    fn note_access(&self, inode: InodeNr) {
        let (times, of_directories) = self.options.access_times;
        let _ = self.fs.note_access(inode, times, of_directories);
    }

    fn attribute_names(&self, inode: InodeNr, uid: u32) -> Result<Vec<u8>, FsError> {
        let mut names = self.fs.extended_attribute_names(inode)?;
        // As Linux: only root sees that there are any.
        names.retain(|name| uid == 0 || !name.starts_with(b"trusted."));
        Ok(names.into_iter().flat_map(|name| [name, vec![0]].concat()).collect())
    }

    fn seek(&self, inode: InodeNr, offset_bytes: u64, whence: u32) -> Result<Answer, FsError> {
        let what = match whence {
            SEEK_DATA => SeekFor::Data,
            SEEK_HOLE => SeekFor::Hole,
            _ => return Err(FsError::Invalid),
        };
        if self.writeback && !self.write_back_now(inode) {
            return Ok(Answer::Error(Errno::BUSY));
        }
        let found = self.fs.seek(inode, offset_bytes, what)?;
        Ok(Answer::Bytes(found.to_le_bytes().to_vec()))
    }

    fn look_up(&self, inode: InodeNr, name: &[u8]) -> Result<Answer, FsError> {
        let (file, folds) = self.fs.look_up_and_hold(&Caller::Judged, inode, name)?;
        // The kernel keeps the answer that there is no such name, too. Where case does not count, a name may
        // come or go by another spelling, which the kernel takes for another name.
        let keep_name = if folds { Duration::ZERO } else { self.options.keep };
        Ok(Answer::Bytes(self.entry(file.as_ref(), keep_name)))
    }

    fn forget(&self, all: &[(u64, u64)]) -> Result<Answer, FsError> {
        for &(node, count) in all {
            if let Some(inode) = abi::inode_of(node) {
                self.settle_times(inode);
                self.writers.note_forgotten(inode);
                self.fs.forget(inode, count)?;
            }
        }
        Ok(Answer::Bytes(Vec::new()))
    }

    /// The entry of a file, if there is one.
    pub(crate) fn entry(&self, file: Option<&Attributes>, keep_name: Duration) -> Vec<u8> {
        let shown = file.map(|file| self.shown(file));
        let keep = shown.map_or(self.options.keep, |(_, keep)| keep);
        let file = shown.as_ref().map(|(file, _)| file);
        abi::entry(file, self.fs.block_bytes(), keep, keep_name)
    }

    /// Attributes as the kernel gets them, and how long it may keep them. While it keeps what is written to a file, the
    /// file may look as if it had no blocks, which programs take for a single hole. So a file that somebody writes has some, and
    /// it is asked for anew after a second ([`Self::note_open`] makes the kernel forget what it kept before, and a close does, too).
    ///
    /// Its times are those that the kernel believes: it may have forgotten the file and ask anew before its last writer has gone.
    pub(crate) fn shown(&self, file: &Attributes) -> (Attributes, Duration) {
        self.shown_as_it_is(&self.with_told_times(file))
    }

    /// The same, with the times that it has now.
    pub(crate) fn shown_as_it_is(&self, file: &Attributes) -> (Attributes, Duration) {
        let may_look_empty = self.writeback && file.kind == FileType::Regular && file.sectors == 0;
        if !may_look_empty || !self.writers.has(file.inode) {
            return (*file, self.options.keep);
        }
        let keep = self.options.keep.min(KEEP_GUESS);
        (Attributes { sectors: SECTORS_AT_LEAST, ..*file }, keep)
    }

    /// A file that was there before is opened. Before anybody can write to it, the kernel is to forget that it has no blocks.
    fn note_open(&self, file: &Attributes, flags: u32) {
        self.writers.open(file.inode, flags);
        if self.writeback && writes(flags) && file.kind == FileType::Regular && file.sectors == 0 {
            // An inode that the kernel does not know, it did not keep.
            let _ = self.carrier.notify(&abi::ask_again(file.inode));
        }
    }

    /// The answer to an open with these flags: where space is scarce, those who only write pass the kernel's cache by.
    pub(crate) fn opened(&self, flags: u32) -> Vec<u8> {
        let only_writes = flags & OFlags::ACCMODE.bits() == OFlags::WRONLY.bits();
        let scarce = &self.writers.scarce;
        let direct = self.writeback && only_writes && scarce.is_scarce(|| self.fs.space());
        abi::opened(self.fs.open().0, direct)
    }

    fn open(&self, inode: InodeNr, flags: u32) -> Result<Answer, FsError> {
        let file = self.fs.attributes(inode)?;
        let writes = writes(flags);
        if writes && self.fs.is_read_only() {
            return Err(FsError::ReadOnly);
        }
        let appends = flags & OFlags::APPEND.bits() != 0 && flags & OFlags::TRUNC.bits() == 0;
        if file.flags.contains(InodeFlags::ENCRYPT) {
            return Err(FsError::NoKey);
        }
        let fixed = file.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::VERITY);
        if writes && (fixed || file.flags.contains(InodeFlags::APPEND) && !appends) {
            return Err(FsError::NotPermitted);
        }
        self.note_open(&file, flags);
        Ok(Answer::Bytes(self.opened(flags)))
    }

    fn list(
        &self,
        directory: InodeNr,
        cookie: u64,
        len_bytes: u32,
        plus: bool,
    ) -> Result<Answer, FsError> {
        let keep_name = if self.fs.folds(directory)? { Duration::ZERO } else { self.options.keep };
        let most_bytes = len_bytes.min(MOST_ANSWER_BYTES) as usize;
        let mut reply = DirectoryReply::new(most_bytes);
        let mut named = Vec::new();
        let listed = self.fs.list(&Caller::Judged, directory, cookie, |listed| {
            let place = if plus { Some([0; abi::ENTRY_BYTES]) } else { None };
            let added = reply.add(&listed, place.as_ref().map(|place| &place[..]));
            // The kernel wants no attributes of dots.
            if added && listed.cookie > floe_fs::AFTER_DOT_DOT {
                named.push((reply.last_bytes(), listed.inode));
            }
            added
        });
        if plus {
            for (at, inode) in named {
                // If those of a file cannot be read, a later look-up says why.
                if let Ok(file) = self.fs.hold(directory, inode) {
                    reply.fill(at, &self.entry(Some(&file), keep_name));
                }
            }
        }
        self.note_access(directory);
        match listed {
            // Return the entries read so far; the next call finds the damage again.
            Err(FsError::Damaged { .. } | FsError::Unreadable { .. }) if !reply.is_empty() => {}
            other => other?,
        }
        Ok(Answer::Bytes(reply.into_bytes()))
    }

    fn sync_inode(&self, inode: InodeNr, file: Handle) -> Result<(), FsError> {
        let begin = Instant::now();
        // 0 where files or directories are not opened.
        let file = Some(file).filter(|file| file.0 > 0);
        let synced = self.fs.sync_inode(inode, file);
        self.metrics.add_sync(begin.elapsed());
        synced
    }

    /// An attribute of the root that no file system stores.
    fn own_attribute(&self, name: &[u8]) -> Result<Vec<u8>, FsError> {
        Ok(match name {
            STATUS => self.status(),
            METRICS => self.figures(),
            _ => {
                self.fs.sync_for_good()?;
                b"all is written\n".to_vec()
            }
        })
    }

    fn figures(&self) -> Vec<u8> {
        let space = self.fs.space();
        let free_bytes = space.available_blocks.saturating_mul(space.block_bytes.into());
        let (read_only, free_inodes) = (self.fs.is_read_only(), space.free_inodes);
        self.metrics.lines(&Now { read_only, free_bytes, free_inodes }).into()
    }

    fn status(&self) -> Vec<u8> {
        let (process, threads) = (std::process::id(), self.options.threads);
        let mode = if self.fs.is_read_only() { "read-only" } else { "read-write" };
        let version = env!("CARGO_PKG_VERSION");
        let (transport, writes) =
            (self.carrier.transport(), if self.writeback { "write-back" } else { "write-through" });
        let mut text = format!(
            "version: {version}\nprocess: {process}\nthreads: {threads}\nmode: {mode}\ntransport: {transport}\nkernel cache: {writes}\n"
        );
        if let Some(why) = self.fs.store().why_ended() {
            text.push_str(&format!("writing ended: {}\n", why.replace('\n', " ")));
        }
        let gates = self.fs.store().gates();
        for (cube, mode, why) in gates.map_or_else(Vec::new, |gates| gates.failures()) {
            text.push_str(&format!("cube {cube}: {}: {}\n", mode.name(), why.replace('\n', " ")));
        }
        text.into()
    }

    fn ioctl(
        &self,
        inode: InodeNr,
        by: (u32, u32),
        request: &IoctlIn,
        data: &[u8],
    ) -> Result<Answer, FsError> {
        let file = self.fs.attributes(inode)?;
        let word = |at: usize| le32_at(data, at).ok_or(FsError::Invalid);
        let data = match request.cmd {
            SET_FLAGS => {
                self.set_flags(&file, by, flags_asked(&file, word(0)?)?, None)?;
                Vec::new()
            }
            SET_FSXATTR => {
                let flags = with_extended_flags(file.flags, word(0)?);
                let flags = flags_asked(&file, flags.bits() & VISIBLE_FLAGS)?;
                let project = Some(word(12)?).filter(|project| *project != file.project);
                self.set_flags(&file, by, flags, project)?;
                Vec::new()
            }
            TRIM => self.trim(by.0, data)?,
            // Programs pass a word of 32 bits, whatever the number of the request says; so does Linux.
            GET_FLAGS => flags_shown(&file).to_le_bytes().to_vec(),
            GET_VERSION => file.generation.to_le_bytes().to_vec(),
            GET_FSXATTR => {
                let words = [extended_flags(file.flags), 0, 0, file.project, 0, 0, 0];
                words.iter().flat_map(|word| word.to_le_bytes()).collect()
            }
            _ => return Ok(Answer::Error(Errno::NOTTY)),
        };
        let data = data.get(..data.len().min(request.out_size as usize)).unwrap_or_default();
        // `fuse_ioctl_out`: result, flags, and two counts that only unrestricted requests use.
        Ok(Answer::Bytes([&[0; 16][..], data].concat()))
    }

    /// `fstrim_range`: where to begin, how many bytes, and how long a run must be; the answer has in the second word how many
    /// bytes were discarded.
    fn trim(&self, uid: u32, range: &[u8]) -> Result<Vec<u8>, FsError> {
        if uid != 0 {
            return Err(FsError::NotPermitted);
        }
        let word = |at: usize| {
            let (low, high) = (le32_at(range, at)?, le32_at(range, at + 4)?);
            Some(u64::from(low) | u64::from(high) << 32)
        };
        let (Some(start), Some(len), Some(least)) = (word(0), word(8), word(16)) else {
            return Err(FsError::Invalid);
        };
        let size = self.fs.space().blocks.saturating_mul(self.fs.block_bytes().into());
        if start >= size || len < u64::from(self.fs.block_bytes()) {
            return Err(FsError::Invalid);
        }
        let trimmed = self.fs.trim(start..start.saturating_add(len), least)?;
        Ok([start, trimmed, least].iter().flat_map(|word| word.to_le_bytes()).collect())
    }
}

/// The empty answer, if all went well.
fn done(result: Result<(), FsError>) -> Result<Answer, FsError> {
    result.map(|()| Answer::Bytes(Vec::new()))
}

/// A value that is asked for with room for `len_bytes`, or its size if that is 0.
fn sized(value: Vec<u8>, len_bytes: u32) -> Answer {
    if len_bytes == 0 {
        // At most 64 KiB; 4 bytes fill the structure.
        return Answer::Bytes((value.len() as u64).to_le_bytes().to_vec());
    }
    if value.len() > len_bytes as usize {
        Answer::Error(Errno::RANGE)
    } else {
        Answer::Bytes(value)
    }
}
