//! The attributes of an inode, which readers copy without writing anything.
//!
//! They lie on three cache lines, by who needs them and what changes them: who may do what and whether there is a name (to
//! find a file and open it), links and times, and the size. A change of one line leaves readers of the others alone.

use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_sync::atomic::{AtomicU64, Ordering, fence};
use floe_sync::thread;

use crate::{Attributes, Timestamp};

/// Words of a cache line behind its version.
const WORDS: usize = 7;
type Words = [u64; WORDS];

/// A word that is odd while somebody changes what it guards. A reader begins anew if it changed.
#[derive(Debug, Default)]
pub(crate) struct Version(AtomicU64);

impl Version {
    /// Reads what is guarded: words whose loads may mix old and new, until they do not.
    pub(crate) fn read<T>(&self, mut read: impl FnMut() -> T) -> T {
        loop {
            let before = self.seen();
            let value = read();
            if self.is_still(before) {
                return value;
            }
            thread::yield_now();
        }
    }

    /// The version between two changes.
    pub(crate) fn seen(&self) -> u64 {
        loop {
            let before = self.0.load(Ordering::Acquire);
            if before & 1 == 0 {
                return before;
            }
            thread::yield_now();
        }
    }

    /// Whether nothing was changed since.
    pub(crate) fn is_still(&self, before: u64) -> bool {
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == before
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

/// Words on a cache line of their own.
#[derive(Debug)]
#[repr(align(64))]
struct Line {
    version: Version,
    words: [AtomicU64; WORDS],
}

impl Line {
    fn new(words: Words) -> Self {
        Self { version: Version::default(), words: words.map(AtomicU64::new) }
    }

    fn load(&self) -> Words {
        self.words.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    fn read(&self) -> Words {
        self.version.read(|| self.load())
    }

    fn store(&self, words: Words) {
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Replaces some.
    fn replace(&self, words: &[(usize, u64)]) {
        self.version.begin();
        words.iter().for_each(|(at, word)| self.words[*at].store(*word, Ordering::Relaxed));
        self.version.end();
    }

    /// Replaces them. Only one thread does at a time, so it may look first: what stays the same is not written.
    fn write(&self, words: Words) {
        if self.load() != words {
            self.version.begin();
            self.store(words);
            self.version.end();
        }
    }
}

/// The size of a file.
#[derive(Debug)]
pub(crate) struct Length(Line);

impl Length {
    fn new(size_bytes: u64, valid_bytes: u64) -> Self {
        Self(Line::new([size_bytes, valid_bytes, 0, 0, 0, 0, 0]))
    }

    /// The size, and where the disk's bytes stop counting.
    pub(crate) fn get(&self) -> (u64, u64) {
        let [size, valid, ..] = self.0.read();
        (size, valid)
    }

    pub(crate) fn size(&self) -> u64 {
        self.get().0
    }

    /// Sets both. The caller holds the lock of the size, or is alone.
    pub(crate) fn set(&self, size_bytes: u64, valid_bytes: u64) {
        self.0.write([size_bytes, valid_bytes, 0, 0, 0, 0, 0]);
    }

    /// Changes with the size.
    pub(crate) const fn version(&self) -> &Version {
        &self.0.version
    }
}

/// The attributes of an inode, on cache lines of their own.
#[derive(Debug)]
pub(crate) struct Status {
    /// Identity and permissions.
    who: Line,
    /// Links, sectors and times.
    when: Line,
    pub(crate) length: Length,
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

/// The bit of the kind by which a name is known to be there.
const HAS_NAME: u32 = 1 << 26;

/// Packs the permissions line: kind, permissions, and which fields there are.
fn who(of: &Attributes) -> Words {
    let crtime = of.crtime.unwrap_or_default();
    let (major, minor) = of.device.unwrap_or_default();
    let has = u32::from(of.crtime.is_some())
        | u32::from(of.device.is_some()) << 1
        | if of.links > 0 { HAS_NAME >> 24 } else { 0 };
    let kind = u32::from(code_of(Some(of.kind))) | u32::from(of.permissions) << 8 | has << 24;
    [
        pair(of.inode.0, of.generation),
        pair(kind, crtime.nanoseconds),
        pair(of.uid, of.gid),
        pair(of.flags.bits(), of.project),
        pair(major, minor),
        crtime.seconds.cast_unsigned(),
        0,
    ]
}

/// Packs the line of links and times; `departs`: names that went are counted elsewhere.
fn when(of: &Attributes, departs: u64) -> Words {
    [
        pair(of.links, of.atime.nanoseconds),
        of.sectors,
        of.atime.seconds.cast_unsigned(),
        of.mtime.seconds.cast_unsigned(),
        of.ctime.seconds.cast_unsigned(),
        pair(of.mtime.nanoseconds, of.ctime.nanoseconds),
        departs,
    ]
}

/// Attributes of these lines.
fn attributes(who: &Words, when: &Words, size_bytes: u64) -> Attributes {
    let time =
        |seconds: u64, nanoseconds| Timestamp { seconds: seconds.cast_signed(), nanoseconds };
    let ((inode, generation), (kind, crtime)) = (halves(who[0]), halves(who[1]));
    let ((uid, gid), (flags, project)) = (halves(who[2]), halves(who[3]));
    let ((links, atime), (mtime, ctime)) = (halves(when[0]), halves(when[5]));
    Attributes {
        inode: InodeNr(inode),
        generation,
        // Only types are stored.
        kind: kind_of(kind as u8).unwrap_or(FileType::Regular),
        permissions: (kind >> 8) as u16,
        links,
        uid,
        gid,
        size_bytes,
        sectors: when[1],
        atime: time(when[2], atime),
        mtime: time(when[3], mtime),
        ctime: time(when[4], ctime),
        crtime: (kind >> 24 & 1 != 0).then_some(time(who[5], crtime)),
        device: (kind >> 25 & 1 != 0).then_some(halves(who[4])),
        flags: InodeFlags::from_bits_retain(flags),
        project,
    }
}

impl Status {
    /// Those of an inode of whose content the disk has so many valid bytes.
    pub(crate) fn new(of: &Attributes, valid_bytes: u64) -> Self {
        let length = Length::new(of.size_bytes, valid_bytes);
        Self { who: Line::new(who(of)), when: Line::new(when(of, 0)), length }
    }

    /// A copy; each line as of one moment.
    pub(crate) fn read(&self) -> Attributes {
        self.read_with(|| ()).0
    }

    /// A copy, with something that changes along with links and times.
    pub(crate) fn read_with<T>(&self, mut also: impl FnMut() -> T) -> (Attributes, T) {
        let (when, also) = self.when.version.read(|| (self.when.load(), also()));
        (attributes(&self.who.read(), &when, self.length.size()), also)
    }

    /// The permissions. Links are 1 if there is a name, or more; times and sizes are not filled in.
    pub(crate) fn who(&self) -> Attributes {
        let who = self.who.read();
        let has_name = u32::from(halves(who[1]).0 & HAS_NAME != 0);
        attributes(&who, &[pair(has_name, 0), 0, 0, 0, 0, 0, 0], 0)
    }

    /// The number of links. Does not look at the size, which other calls change.
    pub(crate) fn links(&self) -> u32 {
        halves(self.when.words[0].load(Ordering::Acquire)).0
    }

    /// Changes the number of links and with it the time of the last change; returns the number. The caller holds the lock of
    /// the inode, or is alone.
    pub(crate) fn count_links(&self, count: impl FnOnce(u32) -> u32, ctime: Timestamp) -> u32 {
        let load = |at: usize| self.when.words[at].load(Ordering::Relaxed);
        let ((before, atime), (mtime, _)) = (halves(load(0)), halves(load(5)));
        let links = count(before);
        if (links > 0) != (before > 0) {
            let kind = self.who.words[1].load(Ordering::Relaxed) ^ u64::from(HAS_NAME);
            self.who.replace(&[(1, kind)]);
        }
        let (seconds, nanoseconds) = (ctime.seconds.cast_unsigned(), ctime.nanoseconds);
        self.when.replace(&[(0, pair(links, atime)), (4, seconds), (5, pair(mtime, nanoseconds))]);
        links
    }

    /// Names that went are counted elsewhere, too, from now on. The caller holds the lock of the inode.
    pub(crate) fn set_departs(&self) {
        self.when.replace(&[(6, 1)]);
    }

    fn departs(&self) -> u64 {
        self.when.words[6].load(Ordering::Relaxed)
    }

    /// Whether they are. Read with links and times.
    pub(crate) fn has_departs(&self) -> bool {
        self.departs() != 0
    }

    /// The number of links becomes lower, as [`Status::count_links`] has it, and in the same moment `also` is done.
    pub(crate) fn fold_links(&self, fewer: u32, ctime: Timestamp, also: impl FnOnce()) {
        let before = self.links();
        let links = before.saturating_sub(fewer);
        if links == 0 && before > 0 {
            let kind = self.who.words[1].load(Ordering::Relaxed) & !u64::from(HAS_NAME);
            self.who.replace(&[(1, kind)]);
        }
        let all = attributes(&self.who.load(), &self.when.load(), 0);
        let all = Attributes { links, ctime: all.ctime.max(ctime), ..all };
        self.when.version.begin();
        self.when.store(when(&all, self.departs()));
        also();
        self.when.version.end();
    }

    /// Changes all but the size, which is neither looked at nor filled in. The caller holds the lock of the inode, or is alone.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Attributes)) {
        let mut all = attributes(&self.who.load(), &self.when.load(), 0);
        change(&mut all);
        self.write(&all);
    }

    /// Whether it has no name any more.
    pub(crate) fn is_gone(&self) -> bool {
        halves(self.who.words[1].load(Ordering::Acquire)).0 & HAS_NAME == 0
    }

    /// Replaces all but the size. The caller holds the lock of the inode, or is alone.
    pub(crate) fn write(&self, of: &Attributes) {
        self.who.write(who(of));
        self.when.write(when(of, self.departs()));
    }

    /// The same, with something that changes along with links and times.
    pub(crate) fn write_with(&self, of: &Attributes, also: impl FnOnce()) {
        self.who.write(who(of));
        self.when.version.begin();
        self.when.store(when(of, self.departs()));
        also();
        self.when.version.end();
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
        let status = Status::new(&one, 0);
        assert_eq!(status.read(), one);
        let other = Attributes { crtime: None, device: None, kind: FileType::Fifo, ..one };
        status.write(&other);
        assert_eq!(status.read(), other);
        assert_eq!((status.who().links, status.links()), (1, 65_000));
        status.change(|all| all.atime = time(9));
        assert_eq!(status.read(), Attributes { atime: time(9), ..other });
        assert_eq!(status.count_links(|links| links - 65_000, time(10)), 0);
        assert_eq!(
            status.read(),
            Attributes { atime: time(9), links: 0, ctime: time(10), ..other }
        );
        assert!(status.is_gone() && status.who().links == 0);
        assert_eq!(status.count_links(|links| links + 2, time(11)), 2);
        assert!(!status.is_gone() && status.who().links == 1);
        let gone = Attributes { links: 0, ..other };
        status.write_with(&gone, || ());
        status.length.set(5, 6);
        assert_eq!(status.read(), Attributes { size_bytes: 5, ..gone });
        assert!(status.is_gone() && status.length.get() == (5, 6));
    }
}
