//! The attributes of an inode, which readers copy without writing anything.

use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_sync::atomic::{AtomicU64, Ordering, fence};
use floe_sync::thread;

use crate::{Attributes, Timestamp};

const WORDS: usize = 13;

/// A word that is odd while somebody changes what it guards. A reader begins anew if it changed.
#[derive(Debug, Default)]
pub(crate) struct Version(AtomicU64);

impl Version {
    /// Reads what is guarded: words whose loads may mix old and new, until they do not.
    pub(crate) fn read<T>(&self, read: impl Fn() -> T) -> T {
        loop {
            let before = self.0.load(Ordering::Acquire);
            if before & 1 == 0 {
                let value = read();
                fence(Ordering::Acquire);
                if self.0.load(Ordering::Relaxed) == before {
                    return value;
                }
            }
            thread::yield_now();
        }
    }

    /// Begins a change, which one thread makes at a time.
    pub(crate) fn begin(&self) {
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before | 1, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Ends a change.
    pub(crate) fn end(&self) {
        let before = self.0.load(Ordering::Relaxed);
        self.0.store((before | 1) + 1, Ordering::Release);
    }
}

/// The attributes of an inode, on cache lines of their own.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Status {
    version: Version,
    words: [AtomicU64; WORDS],
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

const fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// A type as a number; 0 stands for none.
pub(crate) fn code_of(kind: Option<FileType>) -> u8 {
    match kind {
        None => 0,
        Some(FileType::Regular) => 1,
        Some(FileType::Directory) => 2,
        Some(FileType::CharDevice) => 3,
        Some(FileType::BlockDevice) => 4,
        Some(FileType::Fifo) => 5,
        Some(FileType::Socket) => 6,
        Some(FileType::Symlink) => 7,
    }
}

/// The type that a number stands for.
pub(crate) const fn kind_of(code: u8) -> Option<FileType> {
    Some(match code {
        1 => FileType::Regular,
        2 => FileType::Directory,
        3 => FileType::CharDevice,
        4 => FileType::BlockDevice,
        5 => FileType::Fifo,
        6 => FileType::Socket,
        7 => FileType::Symlink,
        _ => return None,
    })
}

fn words(of: &Attributes) -> [u64; WORDS] {
    let crtime = of.crtime.unwrap_or_default();
    let (major, minor) = of.device.unwrap_or_default();
    let has = u32::from(of.crtime.is_some()) | u32::from(of.device.is_some()) << 1;
    let kind = u32::from(code_of(Some(of.kind))) | u32::from(of.permissions) << 8 | has << 24;
    [
        pair(of.inode.0, of.generation),
        pair(kind, of.links),
        pair(of.uid, of.gid),
        of.size_bytes,
        of.sectors,
        of.atime.seconds.cast_unsigned(),
        of.mtime.seconds.cast_unsigned(),
        of.ctime.seconds.cast_unsigned(),
        crtime.seconds.cast_unsigned(),
        pair(of.atime.nanoseconds, of.mtime.nanoseconds),
        pair(of.ctime.nanoseconds, crtime.nanoseconds),
        pair(major, minor),
        pair(of.flags.bits(), of.project),
    ]
}

fn attributes(words: &[u64; WORDS]) -> Attributes {
    let time =
        |seconds: u64, nanoseconds| Timestamp { seconds: seconds.cast_signed(), nanoseconds };
    let ((inode, generation), (kind, links)) = (halves(words[0]), halves(words[1]));
    let ((uid, gid), (flags, project)) = (halves(words[2]), halves(words[12]));
    let ((atime, mtime), (ctime, crtime)) = (halves(words[9]), halves(words[10]));
    Attributes {
        inode: InodeNr(inode),
        generation,
        // Only types are stored.
        kind: kind_of(kind as u8).unwrap_or(FileType::Regular),
        permissions: (kind >> 8) as u16,
        links,
        uid,
        gid,
        size_bytes: words[3],
        sectors: words[4],
        atime: time(words[5], atime),
        mtime: time(words[6], mtime),
        ctime: time(words[7], ctime),
        crtime: (kind >> 24 & 1 != 0).then_some(time(words[8], crtime)),
        device: (kind >> 25 & 1 != 0).then_some(halves(words[11])),
        flags: InodeFlags::from_bits_retain(flags),
        project,
    }
}

impl Status {
    pub(crate) fn new(of: &Attributes) -> Self {
        Self { version: Version::default(), words: words(of).map(AtomicU64::new) }
    }

    /// A copy, as of one moment.
    pub(crate) fn read(&self) -> Attributes {
        let words =
            self.version.read(|| self.words.each_ref().map(|word| word.load(Ordering::Relaxed)));
        attributes(&words)
    }

    /// Replaces them. The caller holds the lock of the inode, or is alone.
    pub(crate) fn write(&self, of: &Attributes) {
        self.version.begin();
        for (word, value) in self.words.iter().zip(words(of)) {
            word.store(value, Ordering::Relaxed);
        }
        self.version.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_all_fields() {
        let time = |seconds| Timestamp { seconds, nanoseconds: (seconds + 100) as u32 };
        let one = Attributes {
            inode: InodeNr(u32::MAX),
            generation: 7,
            kind: FileType::CharDevice,
            permissions: 0o7777,
            links: 65_000,
            uid: u32::MAX,
            gid: 2,
            size_bytes: 1 << 50,
            sectors: 3,
            atime: time(-5),
            mtime: time(6),
            ctime: time(7),
            crtime: Some(time(8)),
            device: Some((9, 10)),
            flags: InodeFlags::EXTENTS,
            project: 11,
        };
        let status = Status::new(&one);
        assert_eq!(status.read(), one);
        let other = Attributes { crtime: None, device: None, kind: FileType::Fifo, ..one };
        status.write(&other);
        assert_eq!(status.read(), other);
    }
}
