//! Encoding of answers.

use std::time::Duration;

use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_fs::{Attributes, Space, Timestamp};

use super::messages::{Attr, AttrHead, Dirent, EntryHead, OutHeader, Statfs, StatxOut};

/// The kernel's number of the root, whose inode is 2.
pub(crate) const ROOT_NODE: u64 = 1;
/// The bits of a mode that say the type (`S_IFMT`), shifted to the right.
const TYPE_SHIFT: u32 = 12;
/// `STATX_BASIC_STATS`, and that with `STATX_BTIME`.
const BASIC_STATS: u32 = 0x7ff;
const BIRTH_TIME: u32 = 0x800;

/// How the kernel names an inode.
pub(crate) const fn node_of(inode: InodeNr) -> u64 {
    if inode.0 == InodeNr::ROOT.0 { ROOT_NODE } else { inode.0 as u64 }
}

/// The inode that the kernel names; `None` if no inode has such a number.
pub(crate) fn inode_of(node: u64) -> Option<InodeNr> {
    if node == ROOT_NODE {
        return Some(InodeNr::ROOT);
    }
    u32::try_from(node).ok().filter(|&number| number > 0).map(InodeNr)
}

/// How long the kernel may keep something: seconds and nanoseconds. Longer than 2^32 - 1 seconds is for ever.
fn timeout(time: Duration) -> (u64, u32) {
    (time.as_secs().min(u64::from(u32::MAX)), time.subsec_nanos())
}

/// Bytes of an [`entry`].
pub const ENTRY_BYTES: usize = EntryHead::SIZE + Attr::SIZE;

/// The answer to stat.
pub fn attributes(file: &Attributes, block_bytes: u32, keep: Duration) -> Vec<u8> {
    let (attr_valid, attr_valid_nsec) = timeout(keep);
    let mut head = [0; AttrHead::SIZE];
    AttrHead { attr_valid, attr_valid_nsec }.encode_into(&mut head);
    [&head[..], &attr(file, block_bytes)].concat()
}

/// The answer to a look-up; `None` says that there is no such name. `keep_name` is how long the name may be kept.
pub fn entry(
    file: Option<&Attributes>,
    block_bytes: u32,
    keep: Duration,
    keep_name: Duration,
) -> Vec<u8> {
    let (valid, nsec) = timeout(keep);
    let (entry_valid, entry_valid_nsec) = timeout(keep_name);
    let mut head = [0; EntryHead::SIZE];
    EntryHead {
        nodeid: file.map_or(0, |file| node_of(file.inode)),
        generation: file.map_or(0, |file| u64::from(file.generation)),
        entry_valid,
        attr_valid: valid,
        entry_valid_nsec,
        attr_valid_nsec: nsec,
    }
    .encode_into(&mut head);
    let attr = file.map_or([0; Attr::SIZE], |file| attr(file, block_bytes));
    [&head[..], &attr].concat()
}

/// A mode as programs see it: type and permissions.
fn mode(file: &Attributes) -> u16 {
    file.kind.mode(file.permissions)
}

/// A device's number as the kernel packs it into 32 bits (`new_encode_dev`).
fn device(numbers: Option<(u32, u32)>) -> u32 {
    let (major, minor) = numbers.unwrap_or_default();
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// The numbers of a device that the kernel has packed.
pub(crate) const fn device_of(packed: u32) -> (u32, u32) {
    (packed >> 8 & 0xfff, packed & 0xff | packed >> 12 & 0xf_ff00)
}

/// The answer to an open, behind the entry of what is created: cached data stay (`FOPEN_KEEP_CACHE`). All requests carry
/// the inode; `file` tells who is to learn of lost changes. Reads and writes that are `direct` pass the cache by
/// (`FOPEN_DIRECT_IO`).
pub fn opened(file: u64, direct: bool) -> Vec<u8> {
    const KEEP_CACHE: u32 = 1 << 1;
    let flags = KEEP_CACHE | u32::from(direct);
    [&file.to_le_bytes()[..], &flags.to_le_bytes(), &[0; 4]].concat()
}

/// A message that lets the kernel write back and drop what it keeps of a file's content.
pub(crate) fn write_back(inode: InodeNr) -> Vec<u8> {
    invalidate(inode, 0)
}

/// A message that lets the kernel ask for a file's attributes when it needs them next.
pub(crate) fn ask_again(inode: InodeNr) -> Vec<u8> {
    // No range of its content.
    invalidate(inode, u64::MAX)
}

/// `FUSE_NOTIFY_INVAL_INODE`.
fn invalidate(inode: InodeNr, from_byte: u64) -> Vec<u8> {
    const INVALIDATE_INODE: u32 = 2;
    let body = [node_of(inode), from_byte, 0];
    let mut head = [0; OutHeader::SIZE];
    let len = (OutHeader::SIZE + size_of_val(&body)) as u32;
    OutHeader { len, error: INVALIDATE_INODE, unique: 0 }.encode_into(&mut head);
    let mut message = head.to_vec();
    body.iter().for_each(|word| message.extend_from_slice(&word.to_le_bytes()));
    message
}

/// The answer to a write of so many bytes.
pub fn written(len_bytes: u32) -> Vec<u8> {
    u64::from(len_bytes).to_le_bytes().to_vec()
}

fn attr(file: &Attributes, block_bytes: u32) -> [u8; Attr::SIZE] {
    let mut bytes = [0; Attr::SIZE];
    let seconds = |time: Timestamp| time.seconds.cast_unsigned();
    Attr {
        ino: u64::from(file.inode.0),
        size: file.size_bytes,
        blocks: file.sectors,
        atime: seconds(file.atime),
        mtime: seconds(file.mtime),
        ctime: seconds(file.ctime),
        atimensec: file.atime.nanoseconds,
        mtimensec: file.mtime.nanoseconds,
        ctimensec: file.ctime.nanoseconds,
        mode: u32::from(mode(file)),
        nlink: file.links,
        uid: file.uid,
        gid: file.gid,
        rdev: device(file.device),
        blksize: block_bytes,
        flags: 0,
    }
    .encode_into(&mut bytes);
    bytes
}

/// The answer to statx: all that stat tells, the time of creation where there is one, and flags.
pub fn extended_stat(file: &Attributes, block_bytes: u32, keep: Duration) -> Vec<u8> {
    let (attr_valid, attr_valid_nsec) = timeout(keep);
    let (birth, mask) = match file.crtime {
        Some(time) => (time, BASIC_STATS | BIRTH_TIME),
        None => (Timestamp::default(), BASIC_STATS),
    };
    // STATX_ATTR_* has the same bits as i_flags for all of these.
    let known = InodeFlags::COMPR
        | InodeFlags::IMMUTABLE
        | InodeFlags::APPEND
        | InodeFlags::NODUMP
        | InodeFlags::ENCRYPT
        | InodeFlags::VERITY;
    let (rdev_major, rdev_minor) = file.device.unwrap_or_default();
    let seconds = |time: Timestamp| time.seconds.cast_unsigned();
    let mut bytes = [0; StatxOut::SIZE];
    StatxOut {
        attr_valid,
        attr_valid_nsec,
        flags: 0,
        mask,
        blksize: block_bytes,
        attributes: u64::from((file.flags & known).bits()),
        nlink: file.links,
        uid: file.uid,
        gid: file.gid,
        mode: mode(file),
        ino: u64::from(file.inode.0),
        size: file.size_bytes,
        blocks: file.sectors,
        attributes_mask: u64::from(known.bits()),
        atime: seconds(file.atime),
        atime_nsec: file.atime.nanoseconds,
        btime: seconds(birth),
        btime_nsec: birth.nanoseconds,
        ctime: seconds(file.ctime),
        ctime_nsec: file.ctime.nanoseconds,
        mtime: seconds(file.mtime),
        mtime_nsec: file.mtime.nanoseconds,
        rdev_major,
        rdev_minor,
    }
    .encode_into(&mut bytes);
    bytes.to_vec()
}

/// The message that a name in a directory leads to something else, or to nothing: `FUSE_NOTIFY_INVAL_ENTRY` with
/// `fuse_notify_inval_entry_out`, the name and a zero byte.
pub(crate) fn stale_name(directory: InodeNr, name: &[u8]) -> Vec<u8> {
    const INVALIDATE_ENTRY: u32 = 3;
    let name_bytes = u32::try_from(name.len()).unwrap_or(u32::MAX);
    let own = [&node_of(directory).to_le_bytes()[..], &name_bytes.to_le_bytes(), &[0; 4]].concat();
    let mut head = [0; OutHeader::SIZE];
    // At most a name and two headers.
    let len = (OutHeader::SIZE + own.len() + name.len() + 1) as u32;
    OutHeader { len, error: INVALIDATE_ENTRY, unique: 0 }.encode_into(&mut head);
    [&head[..], &own, name, &[0]].concat()
}

/// The message that the kernel is to forget an inode that nobody has open: `FUSE_NOTIFY_PRUNE` with `fuse_notify_prune_out` and a node.
/// Known from Linux 6.18 on; an older one refuses it.
pub(crate) fn forget(inode: InodeNr) -> Vec<u8> {
    const PRUNE: u32 = 9;
    // The count, four bytes and eight that are spare.
    let body = [1, 0, node_of(inode)];
    let mut head = [0; OutHeader::SIZE];
    let len = (OutHeader::SIZE + size_of_val(&body)) as u32;
    OutHeader { len, error: PRUNE, unique: 0 }.encode_into(&mut head);
    [&head[..], &body.map(u64::to_le_bytes).concat()].concat()
}

/// The answer to statfs.
pub fn statfs(space: &Space) -> Vec<u8> {
    let mut bytes = [0; Statfs::SIZE];
    Statfs {
        blocks: space.blocks,
        bfree: space.free_blocks,
        bavail: space.available_blocks,
        files: space.inodes,
        ffree: space.free_inodes,
        bsize: space.block_bytes,
        namelen: 255,
        frsize: space.block_bytes,
    }
    .encode_into(&mut bytes);
    bytes.to_vec()
}

/// The answer to reading a directory, up to a number of bytes.
#[derive(Debug)]
pub struct DirectoryReply {
    bytes: Vec<u8>,
    /// Where the last name begins.
    last: usize,
    most_bytes: usize,
}

impl DirectoryReply {
    /// An empty answer that may grow to `most_bytes`.
    pub const fn new(most_bytes: usize) -> Self {
        Self { bytes: Vec::new(), last: 0, most_bytes }
    }

    /// Adds a name. `plus` is what stands before each name of an answer with attributes: that of [`entry`].
    /// `false`, and nothing is added, if there is no room.
    pub fn add(&mut self, listed: &floe_fs::Listed<'_>, plus: Option<&[u8]>) -> bool {
        let plus = plus.unwrap_or_default();
        let len = plus.len() + (Dirent::SIZE + listed.name.len()).next_multiple_of(8);
        if self.bytes.len() + len > self.most_bytes {
            return false;
        }
        let end = self.bytes.len() + len;
        let mut head = [0; Dirent::SIZE];
        Dirent {
            ino: u64::from(listed.inode.0),
            off: listed.cookie,
            // At most 255.
            namelen: listed.name.len() as u32,
            kind: listed.kind.map_or(0, type_of),
        }
        .encode_into(&mut head);
        self.last = self.bytes.len();
        self.bytes.extend_from_slice(plus);
        self.bytes.extend_from_slice(&head);
        self.bytes.extend_from_slice(listed.name);
        self.bytes.resize(end, 0);
        true
    }

    /// Where the answer has the last name, with what stands before it.
    pub const fn last_bytes(&self) -> usize {
        self.last
    }

    /// Writes what stands before a name over what was there.
    pub fn fill(&mut self, at: usize, plus: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at + plus.len()) {
            place.copy_from_slice(plus);
        }
    }

    /// Whether nothing was added.
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The answer.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// A type as directory entries tell it to programs (`DT_*`): the type bits of a mode.
fn type_of(kind: FileType) -> u32 {
    u32::from(kind.mode(0)) >> TYPE_SHIFT
}

#[cfg(test)]
mod tests {
    use floe_fs::Listed;

    use super::*;

    #[test]
    fn the_root_is_inode_2_and_node_1() {
        assert_eq!((node_of(InodeNr::ROOT), inode_of(1)), (1, Some(InodeNr::ROOT)));
        assert_eq!((node_of(InodeNr(12)), inode_of(12)), (12, Some(InodeNr(12))));
        assert_eq!((inode_of(0), inode_of(1 << 32)), (None, None));
    }

    #[test]
    fn devices_are_packed_as_the_kernel_does() {
        // 259:65537, as `stat` shows it through Linux's own mount.
        assert_eq!(device(Some((259, 65537))), 0x1001_0301);
        assert_eq!(device_of(0x1001_0301), (259, 65537));
        assert_eq!(device(None), 0);
    }

    #[test]
    fn a_directory_answer_never_grows_beyond_its_limit() {
        let listed = |name| Listed { inode: InodeNr(12), kind: None, name, cookie: 9 };
        let mut reply = DirectoryReply::new(64);
        assert!(reply.add(&listed(b"12345678"), None));
        assert!(reply.add(&listed(b"1"), None));
        assert!(!reply.add(&listed(b""), None), "64 bytes are full");
        assert_eq!(reply.into_bytes().len(), 64);
    }
}
