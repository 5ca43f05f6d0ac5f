//! From requests to calls of the file system, and from their results to answers.

use floe_format::InodeNr;
use floe_format::ext::inode::InodeFlags;
use floe_fs::{Caller, FileSystem, FsError, Listed, SeekFor, Store, Want};
use rustix::io::Errno;

use crate::abi::{self, DirectoryReply, IoctlIn, Operation};
use crate::errno::{errno, is_fault};
use crate::session::ServeOptions;

/// Bytes of an answer at most; the kernel never asks for more than was agreed.
const MOST_ANSWER_BYTES: u32 = 1 << 20;
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
/// Flags that `FS_IOC_GETFLAGS` shows (`EXT4_FL_USER_VISIBLE`).
const VISIBLE_FLAGS: u32 = 0x725b_dfff;

/// An attribute of the root that no file system stores: how it is served, as lines of `name: value`.
pub const STATUS: &[u8] = b"floe.status";

/// An answer to the kernel.
#[derive(Debug)]
pub(crate) enum Answer {
    /// What was asked for.
    Bytes(Vec<u8>),
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
}

impl<S: Store> Adapter<'_, S> {
    /// The answer to a request about an inode on behalf of a user.
    pub(crate) fn answer(&self, inode: InodeNr, uid: u32, operation: &Operation<'_>) -> Answer {
        match self.call(inode, uid, operation) {
            Ok(answer) => answer,
            Err(error) => {
                if is_fault(&error) {
                    (self.log)(&error.to_string());
                }
                Answer::Error(errno(&error))
            }
        }
    }

    fn call(&self, inode: InodeNr, uid: u32, operation: &Operation<'_>) -> Result<Answer, FsError> {
        let (fs, keep) = (self.fs, self.options.keep);
        let block_bytes = || fs.space().block_bytes;
        Ok(match *operation {
            Operation::Lookup { name } => self.look_up(inode, name)?,
            Operation::Getattr => {
                Answer::Bytes(abi::attributes(&fs.attributes(inode)?, block_bytes(), keep))
            }
            Operation::Statx => {
                Answer::Bytes(abi::extended_stat(&fs.attributes(inode)?, block_bytes(), keep))
            }
            Operation::Readlink => Answer::Bytes(fs.target(inode)?),
            Operation::Read { offset_bytes, len_bytes } => {
                let mut bytes = vec![0; len_bytes.min(MOST_ANSWER_BYTES) as usize];
                let len = fs.read(inode, offset_bytes, &mut bytes)?;
                bytes.truncate(len);
                Answer::Bytes(bytes)
            }
            Operation::Readdir { cookie, len_bytes, plus } => {
                self.list(inode, cookie, len_bytes, plus)?
            }
            Operation::Statfs => Answer::Bytes(abi::statfs(&fs.space())),
            Operation::Getxattr { name: STATUS, len_bytes } if inode == InodeNr::ROOT => {
                sized(self.status(), len_bytes)
            }
            Operation::Getxattr { name, len_bytes } => {
                sized(fs.extended_attribute(inode, name)?, len_bytes)
            }
            Operation::Listxattr { len_bytes } => {
                let mut names = fs.extended_attribute_names(inode)?;
                // As Linux: only root sees that there are any.
                names.retain(|name| uid == 0 || !name.starts_with(b"trusted."));
                let list = names.into_iter().flat_map(|name| [name, vec![0]].concat());
                sized(list.collect(), len_bytes)
            }
            Operation::Access { mask } => {
                let want = Want::from_bits_truncate((mask & 7) as u16);
                fs.access(&Caller::Judged, inode, want)?;
                Answer::Bytes(Vec::new())
            }
            Operation::Lseek { offset_bytes, whence } => {
                let what = match whence {
                    SEEK_DATA => SeekFor::Data,
                    SEEK_HOLE => SeekFor::Hole,
                    _ => return Err(FsError::Invalid),
                };
                Answer::Bytes(fs.seek(inode, offset_bytes, what)?.to_le_bytes().to_vec())
            }
            Operation::Ioctl(ref request) => self.ioctl(inode, request)?,
            Operation::Release | Operation::Flush | Operation::Sync | Operation::Destroy => {
                Answer::Bytes(Vec::new())
            }
            Operation::Change(_) => return Err(FsError::ReadOnly),
            // Nothing need be opened: the kernel does not ask again.
            Operation::Open { .. } => Answer::Error(Errno::NOSYS),
            Operation::Init(_)
            | Operation::Forget
            | Operation::Interrupt
            | Operation::Unknown(_) => Answer::Error(Errno::NOSYS),
        })
    }

    fn look_up(&self, inode: InodeNr, name: &[u8]) -> Result<Answer, FsError> {
        let block_bytes = self.fs.space().block_bytes;
        let file = match self.fs.look_up(&Caller::Judged, inode, name) {
            Ok(file) => Some(file),
            // The kernel keeps this answer, too.
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error),
        };
        Ok(Answer::Bytes(abi::entry(file.as_ref(), block_bytes, self.options.keep)))
    }

    fn list(
        &self,
        inode: InodeNr,
        cookie: u64,
        len_bytes: u32,
        plus: bool,
    ) -> Result<Answer, FsError> {
        let (keep, block_bytes) = (self.options.keep, self.fs.space().block_bytes);
        let mut reply = DirectoryReply::new(len_bytes.min(MOST_ANSWER_BYTES) as usize);
        let entry = |listed: &Listed<'_>| {
            // The kernel wants no attributes of dots. If those of a file cannot be read, a later look-up
            // says why.
            let dots = listed.name == b"." || listed.name == b"..";
            let file = if dots { None } else { self.fs.attributes(listed.inode).ok() };
            abi::entry(file.as_ref(), block_bytes, keep)
        };
        let listed = self.fs.list(&Caller::Judged, inode, cookie, |listed| {
            let entry = plus.then(|| entry(&listed));
            reply.add(&listed, entry.as_deref())
        });
        match listed {
            // What can be read comes first; the next call finds the damage again.
            Err(FsError::Damaged { .. }) if !reply.is_empty() => {}
            other => other?,
        }
        Ok(Answer::Bytes(reply.into_bytes()))
    }

    fn status(&self) -> Vec<u8> {
        let (process, threads) = (std::process::id(), self.options.threads);
        let version = env!("CARGO_PKG_VERSION");
        format!("version: {version}\nprocess: {process}\nthreads: {threads}\nmode: read-only\n")
            .into()
    }

    fn ioctl(&self, inode: InodeNr, request: &IoctlIn) -> Result<Answer, FsError> {
        let file = self.fs.attributes(inode)?;
        let data = match request.cmd {
            GET_FLAGS => u64::from(file.flags.bits() & VISIBLE_FLAGS).to_le_bytes().to_vec(),
            GET_VERSION => u64::from(file.generation).to_le_bytes().to_vec(),
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

/// Flags as `FS_IOC_FSGETXATTR` shows them (`FS_XFLAG_*`).
fn extended_flags(flags: InodeFlags) -> u32 {
    let pairs = [
        (InodeFlags::IMMUTABLE, 0x8),
        (InodeFlags::APPEND, 0x10),
        (InodeFlags::SYNC, 0x20),
        (InodeFlags::NOATIME, 0x40),
        (InodeFlags::NODUMP, 0x80),
        (InodeFlags::PROJINHERIT, 0x200),
        (InodeFlags::DAX, 0x8000),
    ];
    pairs.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, shown)| shown).sum()
}
