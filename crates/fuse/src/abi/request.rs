//! Decoding of requests. Whatever bytes come, there is a request or a reason, and no panic.

use super::InitFlags;
use super::change::Change;
use super::messages::{
    ForgetOne, GetxattrIn, InHeader, InitIn, IoctlIn, LseekIn, ReadIn, ReleaseIn,
};
use super::opcode::Opcode;

/// A request for attributes says which open file it is about (`FUSE_GETATTR_FH`).
const GETATTR_FH: u32 = 1;

/// A request of the kernel.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Which request, about which inode, on whose behalf.
    pub header: InHeader,
    /// The requested operation.
    pub operation: Operation<'a>,
}

/// The requested operation and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// The first request.
    Init(InitIn),
    /// The last request.
    Destroy,
    /// A name in a directory.
    Lookup {
        /// The name.
        name: &'a [u8],
    },
    /// The kernel drops inodes: each by its number, and how often it got it. There is nothing to answer.
    Forget(Vec<(u64, u64)>),
    /// A caller does not want its answer any more: there is nothing to answer.
    Interrupt,
    /// stat.
    Getattr {
        /// By whom has the file open, or writes to it.
        opened: bool,
    },
    /// stat with the time of creation.
    Statx,
    /// The target of a link.
    Readlink,
    /// A file or directory is opened.
    Open {
        /// A directory.
        directory: bool,
        /// `O_*`.
        flags: u32,
    },
    /// The last descriptor of an open file or directory is gone.
    Release {
        /// A directory.
        directory: bool,
        /// How it was opened: `O_*`.
        flags: u32,
    },
    /// A descriptor is closed.
    Flush {
        /// The number that the answer to [`Operation::Open`] gave the open file.
        file: u64,
    },
    /// Everything is made durable.
    Sync,
    /// A file or a directory is made durable.
    SyncInode {
        /// The number of the open file.
        file: u64,
    },
    /// Bytes of a file.
    Read {
        /// First byte.
        offset_bytes: u64,
        /// Bytes wanted.
        len_bytes: u32,
    },
    /// Names of a directory.
    Readdir {
        /// The cookie behind which to go on.
        cookie: u64,
        /// Bytes of the answer at most.
        len_bytes: u32,
        /// With the attributes of what is named.
        plus: bool,
    },
    /// Sizes of the file system.
    Statfs,
    /// The value of an attribute.
    Getxattr {
        /// Its name.
        name: &'a [u8],
        /// Bytes of the answer at most; 0 asks how many there are.
        len_bytes: u32,
    },
    /// The names of attributes.
    Listxattr {
        /// As for [`Operation::Getxattr`].
        len_bytes: u32,
    },
    /// May the caller?
    Access {
        /// Permission bits.
        mask: u32,
    },
    /// The next data or hole.
    Lseek {
        /// First byte to look at.
        offset_bytes: u64,
        /// `SEEK_*`.
        whence: u32,
    },
    /// ioctl.
    Ioctl {
        /// The command.
        request: IoctlIn,
        /// Bytes from the caller.
        data: &'a [u8],
    },
    /// Something that changes the file system.
    Change(Change<'a>),
    /// A request that is not known, by number.
    Unknown(u32),
}

/// A message that is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Shorter than a header: there is nobody to answer.
    #[error("a message of {0} bytes is no request")]
    NoHeader(usize),
    /// The length in the header is not that of the message.
    #[error("request {unique} says {stated} bytes and has {found}")]
    Length {
        /// Which request.
        unique: u64,
        /// Bytes that it says to have.
        stated: u32,
        /// Bytes that it has.
        found: usize,
    },
    /// The arguments are cut off, or a name has no end.
    #[error("the arguments of request {unique} are cut off")]
    Arguments {
        /// Which request.
        unique: u64,
    },
}

impl Malformed {
    /// Which request can be answered with an error, if any.
    pub const fn unique(self) -> Option<u64> {
        match self {
            Self::NoHeader(_) => None,
            Self::Length { unique, .. } | Self::Arguments { unique } => Some(unique),
        }
    }
}

impl<'a> Request<'a> {
    /// Decodes a message of a kernel with which `agreed` was agreed on.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(message: &'a [u8], agreed: InitFlags) -> Result<Self, Malformed> {
        let Some((head, body)) = message.split_first_chunk() else {
            return Err(Malformed::NoHeader(message.len()));
        };
        let header = InHeader::decode(head);
        let (unique, stated) = (header.unique, header.len);
        if u64::from(stated) != message.len() as u64 {
            return Err(Malformed::Length { unique, stated, found: message.len() });
        }
        let arguments = Arguments(body);
        let operation = match Opcode::of(header.opcode) {
            Some(opcode) if opcode.changes() => {
                Change::decode(opcode, body, agreed).map(Operation::Change)
            }
            Some(opcode) => arguments.decode(opcode, header.node),
            None => Some(Operation::Unknown(header.opcode)),
        };
        let operation = operation.ok_or(Malformed::Arguments { unique })?;
        Ok(Self { header, operation })
    }
}

/// The bytes after the header.
#[derive(Clone, Copy)]
struct Arguments<'a>(&'a [u8]);

impl<'a> Arguments<'a> {
    fn decode(self, opcode: Opcode, node: u64) -> Option<Operation<'a>> {
        Some(match opcode {
            Opcode::Init => Operation::Init(self.init()?),
            Opcode::Destroy => Operation::Destroy,
            Opcode::Lookup => Operation::Lookup { name: name(self.0)? },
            Opcode::Forget => {
                let count = u64::from_le_bytes(*self.0.first_chunk()?);
                Operation::Forget(vec![(node, count)])
            }
            Opcode::BatchForget => Operation::Forget(self.batch()?),
            Opcode::Interrupt => Operation::Interrupt,
            // `fuse_getattr_in` begins with its flags, as `fuse_getxattr_in` does with its size.
            Opcode::Getattr => {
                let GetxattrIn { size: flags } = GetxattrIn::decode(self.0.first_chunk()?);
                Operation::Getattr { opened: flags & GETATTR_FH != 0 }
            }
            Opcode::Statx => Operation::Statx,
            Opcode::Readlink => Operation::Readlink,
            // `fuse_open_in` begins with its flags, as `fuse_getxattr_in` does with its size.
            Opcode::Open | Opcode::Opendir => {
                let GetxattrIn { size: flags } = GetxattrIn::decode(self.0.first_chunk()?);
                Operation::Open { directory: opcode == Opcode::Opendir, flags }
            }
            Opcode::Release | Opcode::Releasedir => {
                let ReleaseIn { flags, .. } = ReleaseIn::decode(self.0.first_chunk()?);
                Operation::Release { directory: opcode == Opcode::Releasedir, flags }
            }
            // Both messages begin with the number of the file.
            Opcode::Flush => Operation::Flush { file: u64::from_le_bytes(*self.0.first_chunk()?) },
            Opcode::Fsync | Opcode::Fsyncdir => {
                Operation::SyncInode { file: u64::from_le_bytes(*self.0.first_chunk()?) }
            }
            Opcode::Syncfs => Operation::Sync,
            Opcode::Read => {
                let ReadIn { offset, size, .. } = ReadIn::decode(self.0.first_chunk()?);
                Operation::Read { offset_bytes: offset, len_bytes: size }
            }
            Opcode::Readdir | Opcode::Readdirplus => {
                let ReadIn { offset, size, .. } = ReadIn::decode(self.0.first_chunk()?);
                let plus = opcode == Opcode::Readdirplus;
                Operation::Readdir { cookie: offset, len_bytes: size, plus }
            }
            Opcode::Statfs => Operation::Statfs,
            Opcode::Getxattr => {
                let (head, rest) = self.0.split_first_chunk()?;
                let GetxattrIn { size } = GetxattrIn::decode(head);
                Operation::Getxattr { name: name(rest)?, len_bytes: size }
            }
            Opcode::Listxattr => {
                let GetxattrIn { size } = GetxattrIn::decode(self.0.first_chunk()?);
                Operation::Listxattr { len_bytes: size }
            }
            // `fuse_access_in` begins with its mask, as `fuse_getxattr_in` does with its size.
            Opcode::Access => {
                let GetxattrIn { size: mask } = GetxattrIn::decode(self.0.first_chunk()?);
                Operation::Access { mask }
            }
            Opcode::Lseek => {
                let LseekIn { offset, whence, .. } = LseekIn::decode(self.0.first_chunk()?);
                Operation::Lseek { offset_bytes: offset, whence }
            }
            Opcode::Ioctl => {
                let (head, data) = self.0.split_first_chunk()?;
                Operation::Ioctl { request: IoctlIn::decode(head), data }
            }
            opcode => Operation::Unknown(opcode as u32),
        })
    }

    /// Inodes that are dropped together: a count, then so many numbers with counts.
    fn batch(self) -> Option<Vec<(u64, u64)>> {
        let (count, rest) = self.0.split_first_chunk::<8>()?;
        let count = u32::from_le_bytes(*count.first_chunk()?) as usize;
        let (all, _) = rest.as_chunks();
        let one = |bytes: &[u8; 16]| {
            let ForgetOne { nodeid, nlookup } = ForgetOne::decode(bytes);
            (nodeid, nlookup)
        };
        Some(all.get(..count)?.iter().map(one).collect())
    }

    /// Kernels before 7.36 send 16 bytes; what is missing is zero.
    fn init(self) -> Option<InitIn> {
        let mut bytes = [0; InitIn::SIZE];
        let len = self.0.len().min(InitIn::SIZE);
        bytes.get_mut(..len)?.copy_from_slice(self.0.get(..len)?);
        (len >= 16).then(|| InitIn::decode(&bytes))
    }
}

/// The bytes before the first zero byte; `None` if there is none.
pub(super) fn name(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|&byte| byte == 0)?;
    bytes.get(..end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A message of a header that says its own length, and arguments.
    fn message(opcode: u32, body: &[u8]) -> Vec<u8> {
        let mut head = [0; InHeader::SIZE];
        InHeader {
            len: u32::try_from(InHeader::SIZE + body.len()).unwrap(),
            opcode,
            unique: 7,
            node: 1,
            uid: 0,
            gid: 0,
            pid: 0,
            total_extlen: 0,
        }
        .encode_into(&mut head);
        [&head[..], body].concat()
    }

    #[test]
    fn a_name_without_an_end_is_cut_off() {
        let decoded = |body| {
            Request::decode(&message(1, body), InitFlags::empty())
                .map(|request| request.header.unique)
        };
        assert_eq!(decoded(b"name\0"), Ok(7));
        assert_eq!(decoded(b"name"), Err(Malformed::Arguments { unique: 7 }));
    }

    #[test]
    fn a_length_that_is_not_the_messages_is_refused() {
        let mut short = message(15, &[0; 40]);
        short.pop();
        let refused = Request::decode(&short, InitFlags::empty()).map(|_| ()).unwrap_err();
        assert_eq!(refused, Malformed::Length { unique: 7, stated: 80, found: 79 });
        assert_eq!(refused.unique(), Some(7));
        assert_eq!(Request::decode(&[1; 39], InitFlags::empty()).unwrap_err().unique(), None);
    }

    #[test]
    fn the_offer_of_an_old_kernel_has_no_upper_half() {
        let body = [7u32.to_le_bytes(), 31u32.to_le_bytes(), [0; 4], [0xff; 4]].concat();
        let request = message(26, &body);
        let Operation::Init(offer) =
            Request::decode(&request, InitFlags::empty()).unwrap().operation
        else {
            panic!("not an offer")
        };
        assert_eq!((offer.major, offer.minor, offer.flags2), (7, 31, 0));
        assert!(Request::decode(&message(26, &body[..12]), InitFlags::empty()).is_err());
    }

    #[test]
    fn attributes_have_flags_of_their_own_where_that_was_agreed_on() {
        let short = [&3u32.to_le_bytes()[..], &[0; 4], b"user.a\0abc"].concat();
        let long =
            [&3u32.to_le_bytes()[..], &[0; 4], &[1, 0, 0, 0], &[0; 4], b"user.a\0abc"].concat();
        let decoded = |body: &[u8], agreed| {
            let message = message(21, body);
            let Operation::Change(Change::Setxattr { name, value, drops_set_gid, .. }) =
                Request::decode(&message, agreed).unwrap().operation
            else {
                panic!("no attribute")
            };
            (name.to_vec(), value.to_vec(), drops_set_gid)
        };
        let (name, value) = (b"user.a".to_vec(), b"abc".to_vec());
        let found = decoded(&short, InitFlags::empty());
        assert_eq!(found, (name.clone(), value.clone(), false));
        assert_eq!(decoded(&long, InitFlags::SETXATTR_EXT), (name, value, true));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(
            opcode in 0u32..70,
            body in prop::collection::vec(any::<u8>(), 0..200),
            raw in prop::collection::vec(any::<u8>(), 0..120),
        ) {
            for agreed in [InitFlags::empty(), InitFlags::all()] {
                let _ = Request::decode(&raw, agreed);
                let full = message(opcode, &body);
                if let Ok(request) = Request::decode(&full, agreed) {
                    prop_assert_eq!(request.header.opcode, opcode);
                }
            }
        }
    }
}
