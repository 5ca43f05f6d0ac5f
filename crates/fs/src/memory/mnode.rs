//! An inode in memory.

use floe_disk::ops::{NewInode, NewKind, Reserved};
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::ext::xattr::acl::{ACCESS, DEFAULT};
use floe_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use floe_sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::apart::Apart;
use super::content::Content;
use super::departures::{AllDepartures, Departing, Departures, NAMES_PER_DEPARTURES};
use super::extended::Extended;
use super::locks::Locked;
use super::lower::Facts;
use super::pages::{PAGE_BYTES, pack, unpack};
use super::record::Stamp;
use super::status::Status;
use super::stripes::{Found, Stripes};
use crate::op::Op;
use crate::{Attributes, Directory, Timestamp};

/// Flags under which a change has no effects but the ones that memory knows.
const SIMPLE: InodeFlags = InodeFlags::EXTENTS
    .union(InodeFlags::INDEX)
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::HUGE_FILE);

/// Mode bit of directories whose children get their group.
pub(crate) const SETGID: u16 = 0o2000;
/// Targets of links below this many bytes lie in the inode.
const FAST_TARGET_BYTES: usize = 60;

/// A directory takes as much memory as so many names, besides its own.
pub(crate) const NAMES_PER_DIRECTORY: usize = 16;

/// Access lists of an inode, which change what its permissions mean.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lists {
    pub(crate) access: bool,
    pub(crate) default: bool,
}

impl Lists {
    /// The lists among the names of an inode's attributes.
    pub(crate) fn of<'n>(names: impl IntoIterator<Item = &'n Vec<u8>>) -> Self {
        let mut lists = Self::default();
        for name in names {
            lists.access |= name.as_slice() == ACCESS;
            lists.default |= name.as_slice() == DEFAULT;
        }
        lists
    }
}

/// An inode in memory. Several threads read it at the same time, and change what is behind locks.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Mnode {
    /// As programs see them, but for changes of names in a directory, which its stripes have, and times of writes and new
    /// blocks, which the content has. Sectors are those on the disk.
    pub(crate) status: Status,
    guarded: Guard,
    /// Content of a regular file.
    pub(crate) content: Content,
    /// Extended attributes, once somebody changed some.
    pub(crate) extended: Apart<OnceLock<Box<Extended>>>,
    /// When a name of it moved last, packed; 0 for never since the times were set.
    moved: Apart<AtomicU64>,
    /// The type, which never changes.
    pub(crate) kind: FileType,
    /// The flags, which change only while a thread is alone. Here once more, because most changes look at them.
    pub(crate) flags: InodeFlags,
    /// Names of a directory, once somebody asked for them.
    pub(crate) names: OnceLock<Names>,
    /// Target of a symbolic link that the disk has not got.
    pub(crate) target: Option<Box<[u8]>>,
    /// Size of the file on the disk.
    disk_bytes: AtomicU64,
    /// Access lists, once somebody asked for them.
    pub(crate) lists: OnceLock<Lists>,
    /// It was created in memory, and since then memory has made all changes of its attributes.
    pub(crate) is_own: bool,
}

/// Names of a directory.
#[derive(Debug)]
pub(crate) enum Names {
    /// Memory changes them.
    Plain(Stripes),
    /// The disk changes them: case does not count, or some cannot be read.
    Odd(Arc<Directory>),
}

impl Names {
    /// Whether some may be missing because the device failed: they are read again by the next call.
    pub(crate) fn is_unread(&self) -> bool {
        matches!(self, Self::Odd(names) if names.is_unread())
    }

    /// Whether memory knows all of them, so that it can follow changes.
    pub(crate) fn is_whole(&self) -> bool {
        match self {
            Self::Plain(_) => true,
            Self::Odd(names) => names.damage().is_none(),
        }
    }

    /// Where a name leads to.
    pub(crate) fn find(&self, name: &[u8]) -> Option<Found> {
        match self {
            Self::Plain(stripes) => stripes.find(stripes.key(name)),
            Self::Odd(names) => {
                names.find(name).map(|entry| Found { inode: entry.inode, kind: entry.kind })
            }
        }
    }
}

#[derive(Debug)]
#[repr(align(64))]
struct Guard {
    lock: Mutex<Guarded>,
    /// The disk has no such inode yet.
    unborn: AtomicBool,
    /// A flush has changes of it that are not known to be on the disk.
    in_flight: AtomicBool,
    /// Bytes of new names of a directory, as far as slots are merged.
    name_bytes: AtomicU64,
    /// Names that went of a file that has several in memory, or had.
    departures: OnceLock<Box<Departures>>,
}

/// Fields that the lock of an inode guards, beside its attributes.
#[derive(Debug)]
struct Guarded {
    /// The last change but those of names in a directory.
    last: Stamp,
}

/// The lock of an inode, and those of all who remove names of it.
pub(crate) struct Whole<'s> {
    guarded: MutexGuard<'s, Guarded>,
    departures: Option<AllDepartures<'s>>,
}

impl Whole<'_> {
    /// The last change but those of names in a directory.
    pub(crate) fn last(&self) -> Stamp {
        let departures = self.departures.iter().flatten().map(|last| **last);
        departures.fold(self.guarded.last, Stamp::max)
    }

    /// Notes a change.
    pub(crate) fn note(&mut self, stamp: Stamp) {
        self.guarded.last = stamp;
        self.departures.iter_mut().flatten().for_each(|last| **last = stamp);
    }
}

impl Mnode {
    /// An inode as the disk has it.
    pub(crate) fn loaded(attributes: Attributes) -> Self {
        Self::with(&attributes, u64::MAX, attributes.size_bytes, Stamp::default())
    }

    /// The same, with so many bytes on the disk that count, of so many there, and the last change.
    fn with(attributes: &Attributes, valid_bytes: u64, disk_bytes: u64, last: Stamp) -> Self {
        let guarded = Guarded { last };
        Self {
            status: Status::new(attributes, valid_bytes),
            kind: attributes.kind,
            flags: attributes.flags,
            guarded: Guard {
                lock: Mutex::new(guarded),
                unborn: AtomicBool::new(false),
                in_flight: AtomicBool::new(false),
                name_bytes: AtomicU64::new(0),
                departures: OnceLock::new(),
            },
            content: Content::new(disk_bytes),
            extended: Apart::default(),
            moved: Apart::default(),
            names: OnceLock::new(),
            target: None,
            disk_bytes: AtomicU64::new(disk_bytes),
            lists: OnceLock::new(),
            is_own: false,
        }
    }

    /// Takes its lock. Those of several inodes are taken in the order of their numbers, behind those of stripes. Names that went
    /// are added up.
    pub(crate) fn lock(&self) -> Whole<'_> {
        // A panic in a change ends all changes.
        let guarded = self.guarded.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let departures = self.guarded.departures.get();
        let locks = departures.map(|departures| {
            let locks = departures.lock();
            let (fewer, time) = departures.sum();
            if fewer > 0 {
                let time = time.unwrap_or_default();
                self.status.fold_links(fewer, time, || departures.forget());
            }
            locks
        });
        Whole { guarded, departures: locks }
    }

    /// The right of this thread to remove a name of a file beside others who do; `None` if it has to take the lock.
    pub(crate) fn share(&self) -> Option<Departing<'_>> {
        self.guarded.departures.get()?.share()
    }

    /// Others may remove names of the file beside each other from now on, because this thread gives it a further one by the change
    /// with this stamp. The caller has its lock. Returns whether that takes memory.
    pub(crate) fn begin_departures(&self, stamp: Stamp) -> bool {
        let departures = &self.guarded.departures;
        let new = departures.get().is_none();
        if new {
            let _ = departures.set(Box::new(Departures::new(stamp)));
            self.status.set_departs();
        }
        new
    }

    /// The names of a directory that memory changes.
    pub(crate) fn stripes(&self) -> Option<&Stripes> {
        if let Some(Names::Plain(stripes)) = self.names.get() { Some(stripes) } else { None }
    }

    pub(crate) fn stripes_mut(&mut self) -> Option<&mut Stripes> {
        if let Some(Names::Plain(stripes)) = self.names.get_mut() { Some(stripes) } else { None }
    }

    /// Names of a directory that count for the budget.
    pub(crate) fn name_count(&mut self) -> usize {
        let departs = self.guarded.departures.get().is_some();
        match self.names.get_mut() {
            None if departs => NAMES_PER_DEPARTURES,
            None => 0,
            Some(Names::Plain(stripes)) => stripes.len() + NAMES_PER_DIRECTORY,
            Some(Names::Odd(names)) => names.len() + 1,
        }
    }

    /// The attributes as programs see them.
    pub(crate) fn shown(&self) -> Attributes {
        let all = self.folded();
        Attributes { sectors: self.shown_sectors(&all), ..all }
    }

    /// The attributes with what stripes and content have of them, but sectors as on the disk.
    pub(crate) fn folded(&self) -> Attributes {
        let (base, (time, more, later)) = self.status.read_with(|| {
            // Here, too: a fold may count it in between.
            let moved = unpack(self.moved.load(Ordering::Acquire));
            match (self.stripes(), self.kind) {
                (Some(stripes), _) => {
                    let (time, subdirectories) = stripes.changes();
                    (time, subdirectories, moved)
                }
                (None, FileType::Directory) => (None, 0, moved),
                (None, kind) => {
                    let is_file = kind == FileType::Regular;
                    let time = is_file.then(|| self.content.last_write()).flatten();
                    let (fewer, went) = self.departed();
                    (time, fewer.cast_signed().wrapping_neg(), moved.max(went))
                }
            }
        });
        // Programs set `mtime` to any time, which the next change of a name or of content replaces.
        let mtime = time.unwrap_or(base.mtime);
        let ctime = [time, later].into_iter().flatten().fold(base.ctime, Timestamp::max);
        let gone = base.links == 0;
        let links = if gone { 0 } else { base.links.wrapping_add_signed(more) };
        Attributes { links, mtime, ctime, ..base }
    }

    /// The names that went and are not added up yet, and when the last one did.
    fn departed(&self) -> (u32, Option<Timestamp>) {
        if !self.status.has_departs() {
            return (0, None);
        }
        self.guarded.departures.get().map_or((0, None), |departures| departures.sum())
    }

    /// Replaces the attributes but the size, those that stripes and content have among them. The caller has the locks of the
    /// inode and of all stripes, or is alone.
    pub(crate) fn fold(&self, attributes: &Attributes) {
        self.status.write_with(attributes, || {
            if let Some(stripes) = self.stripes() {
                stripes.forget_changes();
            }
            self.content.forget_times();
            if let Some(departures) = self.guarded.departures.get() {
                departures.forget();
            }
            let moved = self.moved.load(Ordering::Relaxed);
            if moved != 0 && moved <= pack(attributes.ctime) {
                // A later one that comes meanwhile stays.
                let _ = self.moved.compare_exchange(moved, 0, Ordering::Release, Ordering::Relaxed);
            }
        });
    }

    /// Notes that a name of it moved. Needs no lock.
    pub(crate) fn note_move(&self, time: Timestamp) {
        self.moved.fetch_max(pack(time), Ordering::AcqRel);
    }

    /// Replaces the attributes. The caller is alone.
    pub(crate) fn set(&mut self, attributes: &Attributes) {
        self.fold(attributes);
        self.status.length.set(attributes.size_bytes, self.status.length.get().1);
        self.flags = attributes.flags;
    }

    /// Whether the disk lacks anything of the content.
    pub(crate) fn is_dirty(&self) -> bool {
        self.content.lock().is_any() || self.content.is_dirty()
    }

    /// Locks all names of a directory, as far as memory has them.
    pub(crate) fn lock_names(&self, inode: InodeNr) -> Locked<'_> {
        let stripes = self.stripes().into_iter();
        Locked::all(stripes.flat_map(|names| names.opened_spots(inode)).collect())
    }

    /// Size of the file on the disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_disk_bytes(&self, bytes: u64) {
        if self.disk_bytes() != bytes {
            self.disk_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    /// The disk has no such inode yet.
    pub(crate) fn is_unborn(&self) -> bool {
        self.guarded.unborn.load(Ordering::Acquire)
    }

    pub(crate) fn set_born(&self) {
        self.guarded.unborn.store(false, Ordering::Release);
    }

    /// A flush has changes of it that are not known to be on the disk.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.guarded.in_flight.load(Ordering::Acquire)
    }

    pub(crate) fn set_in_flight(&self, flies: bool) {
        self.guarded.in_flight.store(flies, Ordering::Release);
    }

    /// Bytes of new names of a directory that wait for the disk, as far as slots are merged.
    pub(crate) fn name_bytes(&self) -> u64 {
        self.guarded.name_bytes.load(Ordering::Relaxed)
    }

    /// So many more wait, or fewer.
    pub(crate) fn count_name_bytes(&self, more: i64) {
        self.guarded.name_bytes.fetch_add(more.cast_unsigned(), Ordering::Relaxed);
    }

    /// Something new in a directory, by the rules of the disk's own operation as far as they concern a directory with
    /// [simple](Mnode::is_simple) flags.
    pub(crate) fn born(
        op: &Op<'_>,
        new: &NewInode<'_>,
        parent: &Attributes,
        reserved: Reserved,
        facts: &Facts,
        block_bytes: u32,
        stamp: Stamp,
    ) -> Self {
        let kind = new.kind.file_type();
        let is_directory = kind == FileType::Directory;
        let inherits_group = parent.permissions & SETGID != 0;
        let umask = if kind == FileType::Symlink { 0 } else { new.umask & 0o777 };
        let mut permissions = new.permissions & 0o7777 & !umask;
        if inherits_group && is_directory {
            permissions |= SETGID;
        }
        let target = if let NewKind::Symlink(target) = new.kind { Some(target) } else { None };
        let long = target.is_some_and(|target| target.len() >= FAST_TARGET_BYTES);
        let has_blocks = is_directory || long;
        let mapped = has_blocks || kind == FileType::Regular;
        let size_bytes = match target {
            Some(target) => target.len() as u64,
            None if is_directory => u64::from(block_bytes),
            None => 0,
        };
        let cluster_bytes = u64::from(block_bytes) * u64::from(facts.cluster_blocks);
        let attributes = Attributes {
            inode: reserved.inode,
            generation: reserved.generation,
            kind,
            permissions,
            links: 1 + u32::from(is_directory),
            uid: op.uid,
            gid: if inherits_group { parent.gid } else { op.gid },
            size_bytes,
            sectors: if has_blocks { cluster_bytes / 512 } else { 0 },
            atime: op.time,
            mtime: op.time,
            ctime: op.time,
            crtime: facts.has_crtime.then_some(op.time),
            device: None,
            flags: if mapped && facts.extents { InodeFlags::EXTENTS } else { InodeFlags::empty() },
            project: 0,
        };
        let mut node = Self::with(&attributes, 0, 0, stamp);
        if is_directory {
            let stripes = Stripes::new(facts.hash, parent.inode, stamp);
            node.names = OnceLock::from(Names::Plain(stripes));
        }
        node.guarded.unborn = AtomicBool::new(true);
        node.lists = OnceLock::from(Lists::default());
        node.target = target.map(Into::into);
        node.is_own = true;
        node
    }

    /// Gives back the memory of content that the disk has; returns how many pages are left.
    pub(crate) fn drop_clean(&mut self) -> usize {
        if !self.content.has_begun() {
            return 0;
        }
        if self.is_dirty() {
            return self.content.drop_clean();
        }
        let all = self.folded();
        self.fold(&all);
        self.content.drop_clean()
    }

    /// Whether its flags forbid nothing and are handed on to nobody.
    pub(crate) fn is_simple(&self) -> bool {
        SIMPLE.contains(self.flags)
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// Whether its content may wait in memory: maps of extents take any size that is asked for here.
    pub(crate) fn may_keep_content(&self) -> bool {
        self.kind == FileType::Regular
            && self.is_simple()
            && self.flags.contains(InodeFlags::EXTENTS)
    }

    /// The sectors of a file as programs see them. Content in memory counts as stored, so that no program takes it for a hole,
    /// and `du` says what it will take.
    fn shown_sectors(&self, all: &Attributes) -> u64 {
        let (fresh, (_, valid)) = (self.content.fresh_pages(), self.status.length.get());
        if fresh == 0 && valid >= self.disk_bytes() {
            return all.sectors;
        }
        let sectors = |bytes: u64| bytes.next_multiple_of(PAGE_BYTES) / 512;
        let kept = all.sectors.min(sectors(self.disk_bytes().min(valid)));
        kept + (fresh * PAGE_BYTES / 512).min(sectors(all.size_bytes).saturating_sub(kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cubes::pins::stand_in;

    /// Whoever moves a name has no lock of the inode.
    #[test]
    fn a_move_keeps_its_time_while_attributes_are_replaced() {
        let at = |seconds| Timestamp { seconds, nanoseconds: 0 };
        let node = Mnode::loaded(stand_in(InodeNr(12)));
        node.note_move(at(5));
        let now = Attributes { ctime: at(6), ..node.folded() };
        node.note_move(at(7));
        node.fold(&now);
        assert_eq!(node.shown().ctime, at(7));
        node.fold(&node.folded());
        assert_eq!((node.shown().ctime, node.moved.load(Ordering::Relaxed)), (at(7), 0));
    }
}
