//! A tree in memory that does what a volume should do, with random operations for both.

use std::collections::{BTreeMap, BTreeSet};

use floe_blockdev::MemDevice;
use floe_disk::ops::{Caller, Change, NewInode, NewKind, OpError, RenameMode, SetMode};
use floe_disk::volume::Volume;
use floe_ext4::tx::{DirectTx, Tx};
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, Timestamp};
use floe_format::features::Incompat;
use floe_testkit::tree::{Tree, digest};
use floe_testkit::{Profile, Rng};

/// The model of an inode.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) kind: FileType,
    /// The bytes of a file, or the target of a link.
    pub(crate) bytes: Vec<u8>,
    /// The names of a directory.
    pub(crate) names: BTreeMap<Vec<u8>, InodeNr>,
    pub(crate) parent: InodeNr,
    pub(crate) links: u32,
    pub(crate) permissions: u16,
    pub(crate) owner: (u32, u32),
    pub(crate) device: (u32, u32),
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A volume, and the tree that it should hold.
pub(crate) struct Model<'d> {
    pub(crate) device: &'d MemDevice,
    pub(crate) volume: Volume,
    pub(crate) tx: DirectTx<'d, MemDevice>,
    pub(crate) objects: BTreeMap<InodeNr, Object>,
    pub(crate) rng: Rng,
    /// Inodes without names that a program still has open.
    pub(crate) open: BTreeSet<InodeNr>,
    now: i64,
    most_name: usize,
    pub(crate) most_file: u64,
}

pub(crate) const fn time(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 123_456_789 }
}

impl<'d> Model<'d> {
    pub(crate) fn new(device: &'d MemDevice, profile: Profile, seed: u64) -> Self {
        Self::of(device, Volume::open(device).unwrap(), profile, seed)
    }

    pub(crate) fn of(
        device: &'d MemDevice,
        mut volume: Volume,
        profile: Profile,
        seed: u64,
    ) -> Self {
        let mut tx = DirectTx::new(device, volume.geometry().clone());
        volume.begin_writing(&mut tx, time(1)).unwrap();
        let mut objects = BTreeMap::new();
        let root = Object {
            kind: FileType::Directory,
            bytes: Vec::new(),
            names: BTreeMap::new(),
            parent: InodeNr::ROOT,
            links: 3,
            permissions: 0o755,
            owner: (0, 0),
            device: (0, 0),
            xattrs: BTreeMap::new(),
        };
        objects.insert(InodeNr::ROOT, root);
        let rng = Rng::new(seed);
        let most_file = 64 * profile.block_size();
        let open = BTreeSet::new();
        Self {
            device,
            volume,
            tx,
            objects,
            rng,
            open,
            now: 1_700_000_000,
            most_name: 255,
            most_file,
        }
    }

    pub(crate) fn caller(&mut self) -> Caller {
        self.now += 1;
        Caller { uid: 1000, gid: 100, time: time(self.now), may_use_reserve: true }
    }

    fn name(&mut self) -> Vec<u8> {
        let len = match self.rng.below(10) {
            0 => self.most_name,
            1 => 1 + self.rng.index(self.most_name),
            _ => 1 + self.rng.index(12),
        };
        let letter = |rng: &mut Rng| b"abcdefghijklmnopqrstuvwxyzABC_.-"[rng.index(32)];
        let name: Vec<u8> = (0..len).map(|_| letter(&mut self.rng)).collect();
        if name == b"." || name == b".." { b"dots".to_vec() } else { name }
    }

    pub(crate) fn pick(&mut self, kind: impl Fn(&Object) -> bool) -> Option<InodeNr> {
        let all: Vec<InodeNr> =
            self.objects.iter().filter(|(_, one)| kind(one)).map(|(nr, _)| *nr).collect();
        self.rng.pick(&all).copied()
    }

    fn directory(&mut self) -> InodeNr {
        self.pick(|one| one.kind == FileType::Directory && one.links > 0).unwrap()
    }

    /// A directory and a name in it, mostly one that is there.
    fn named(&mut self) -> (InodeNr, Vec<u8>) {
        let dir = self.directory();
        let names: Vec<Vec<u8>> = self.objects[&dir].names.keys().cloned().collect();
        match self.rng.pick(&names) {
            Some(name) if !self.rng.chance(20) => (dir, name.clone()),
            _ => (dir, self.name()),
        }
    }

    /// Commits now and then.
    pub(crate) fn commit(&mut self) {
        let epoch = self.volume.end_epoch();
        self.tx.commit().unwrap();
        self.volume.durable(epoch);
    }

    pub(crate) fn step(&mut self) {
        match self.rng.below(100) {
            0..20 => self.create(),
            20..42 => self.write(),
            42..47 => self.truncate(),
            47..50 => self.range(),
            50..60 => self.unlink(),
            60..64 => self.rmdir(),
            64..76 => self.rename(),
            76..82 => self.link(),
            82..92 => self.xattr(),
            92..97 => self.change(),
            _ => self.close(),
        }
        // None of them has a limit of changed blocks, so that values go with the change that takes their last user.
        assert_eq!(self.volume.unused_values(), []);
        if self.rng.chance(5) {
            self.commit();
        }
    }

    fn create(&mut self) {
        let (dir, name) = (self.directory(), self.name());
        let mut target = vec![b't'; 1 + self.rng.index(200)];
        self.rng.fill(&mut target);
        target.iter_mut().for_each(|byte| *byte = b'a' + *byte % 26);
        let device = (self.rng.below(300) as u32, self.rng.below(70_000) as u32);
        let kind = match self.rng.below(12) {
            0..5 => NewKind::Regular,
            5..8 => NewKind::Directory,
            8 | 9 => NewKind::Symlink(&target),
            10 => NewKind::CharDevice { major: device.0, minor: device.1 },
            _ => NewKind::Fifo,
        };
        let permissions = self.rng.below(0o1000) as u16;
        let new = NewInode { kind, permissions, umask: 0o022 };
        let caller = self.caller();
        let made = self.volume.create(&mut self.tx, &caller, dir, &name, &new);
        let taken = self.objects[&dir].names.contains_key(&name);
        let number = match made {
            Ok(number) => number,
            Err(OpError::Exists) if taken => return,
            Err(OpError::NoSpace) => return,
            Err(error) => panic!("create {kind:?}: {error:?}"),
        };
        assert!(!taken);
        let (kind, bytes) = match kind {
            NewKind::Regular => (FileType::Regular, Vec::new()),
            NewKind::Directory => (FileType::Directory, Vec::new()),
            NewKind::Symlink(target) => (FileType::Symlink, target.to_vec()),
            NewKind::CharDevice { .. } => (FileType::CharDevice, Vec::new()),
            _ => (FileType::Fifo, Vec::new()),
        };
        let is_dir = kind == FileType::Directory;
        let object = Object {
            kind,
            bytes,
            names: BTreeMap::new(),
            parent: dir,
            links: 1 + u32::from(is_dir),
            // Links have no umask.
            permissions: if kind == FileType::Symlink { permissions } else { permissions & !0o022 },
            owner: (1000, 100),
            device,
            xattrs: BTreeMap::new(),
        };
        assert!(self.objects.insert(number, object).is_none(), "a number that was in use");
        self.at(dir).names.insert(name, number);
        self.at(dir).links += u32::from(is_dir);
    }

    pub(crate) fn at(&mut self, inode: InodeNr) -> &mut Object {
        self.objects.get_mut(&inode).unwrap()
    }

    /// An inode lost a name: perhaps its last.
    /// Runs an operation, often so that whatever loses its last name is deleted with it; `true` if it was run so.
    fn perhaps_erasing<T>(
        &mut self,
        run: impl Fn(&mut Volume, &mut dyn Tx) -> Result<T, OpError>,
    ) -> (Result<T, OpError>, bool) {
        if self.rng.chance(2) {
            match self.volume.erasing(|volume| run(volume, &mut self.tx)) {
                Err(OpError::TooLong) => {}
                done => return (done, true),
            }
        }
        (run(&mut self.volume, &mut self.tx), false)
    }

    fn lost(&mut self, inode: InodeNr, last: bool, erases: bool) {
        if last && erases {
            assert!(!self.volume.orphans().contains(&inode));
            assert_eq!(self.volume.inode(&mut self.tx, inode).unwrap().base.links_count, 0);
            self.objects.remove(&inode);
            return;
        }
        let is_dir = self.objects[&inode].kind == FileType::Directory;
        let links = if is_dir { 0 } else { self.objects[&inode].links - 1 };
        self.at(inode).links = links;
        assert_eq!(last, links == 0);
        if links == 0 && (is_dir || self.rng.chance(2)) {
            self.finish(inode);
            self.objects.remove(&inode);
        } else if links == 0 {
            self.open.insert(inode);
        }
    }

    fn unlink(&mut self) {
        let (dir, name) = self.named();
        let found = self.objects[&dir].names.get(&name).copied();
        let caller = self.caller();
        let (unlinked, erases) =
            self.perhaps_erasing(|volume, tx| volume.unlink(tx, &caller, dir, &name));
        match unlinked {
            Ok(removed) => {
                assert_eq!(Some(removed.inode), found);
                self.at(dir).names.remove(&name);
                self.lost(removed.inode, removed.last, erases);
            }
            Err(OpError::NotFound(_)) => assert_eq!(found, None),
            Err(OpError::IsADirectory) => {
                assert_eq!(self.objects[&found.unwrap()].kind, FileType::Directory);
            }
            Err(error) => panic!("unlink: {error:?}"),
        }
    }

    fn rmdir(&mut self) {
        let (dir, name) = self.named();
        let found = self.objects[&dir].names.get(&name).copied();
        let caller = self.caller();
        let (removed, erases) =
            self.perhaps_erasing(|volume, tx| volume.rmdir(tx, &caller, dir, &name));
        match removed {
            Ok(removed) => {
                assert_eq!(Some(removed.inode), found);
                assert!(self.objects[&removed.inode].names.is_empty());
                self.at(dir).names.remove(&name);
                self.at(dir).links -= 1;
                self.lost(removed.inode, removed.last, erases);
            }
            Err(OpError::NotFound(_)) => assert_eq!(found, None),
            Err(OpError::NotEmpty) => assert!(!self.objects[&found.unwrap()].names.is_empty()),
            Err(OpError::NotADirectory) => {
                assert_ne!(self.objects[&found.unwrap()].kind, FileType::Directory);
            }
            Err(error) => panic!("rmdir: {error:?}"),
        }
    }

    fn is_below(&self, top: InodeNr, mut at: InodeNr) -> bool {
        loop {
            if at == top {
                return true;
            }
            if at == InodeNr::ROOT {
                return false;
            }
            at = self.objects[&at].parent;
        }
    }

    fn rename(&mut self) {
        let (from_dir, from) = self.named();
        let (to_dir, to) =
            if self.rng.chance(2) { self.named() } else { (self.directory(), self.name()) };
        let mode = match self.rng.below(6) {
            0 => RenameMode::NoReplace,
            1 => RenameMode::Exchange,
            _ => RenameMode::Replace,
        };
        let source = self.objects[&from_dir].names.get(&from).copied();
        let target = self.objects[&to_dir].names.get(&to).copied();
        let caller = self.caller();
        let (one, other) = ((from_dir, &from[..]), (to_dir, &to[..]));
        let (renamed, erases) =
            self.perhaps_erasing(|volume, tx| volume.rename(tx, &caller, one, other, mode));
        let renamed = match renamed {
            Ok(renamed) => renamed,
            Err(OpError::NoSpace) => return,
            Err(error) => {
                let kind = |inode: InodeNr| self.objects[&inode].kind;
                let below = source.is_some_and(|inode| self.is_below(inode, to_dir))
                    || target.is_some_and(|inode| self.is_below(inode, from_dir));
                let right = match error {
                    OpError::NotFound(_) => source.is_none() || target.is_none(),
                    OpError::Exists => mode == RenameMode::NoReplace && target.is_some(),
                    OpError::Invalid(_) => below,
                    OpError::NotADirectory => kind(target.unwrap()) != FileType::Directory,
                    OpError::IsADirectory => kind(target.unwrap()) == FileType::Directory,
                    OpError::NotEmpty => !self.objects[&target.unwrap()].names.is_empty(),
                    _ => false,
                };
                assert!(right, "rename: {error:?}");
                return;
            }
        };
        let source = source.unwrap();
        if Some(source) == target {
            return;
        }
        assert!(!self.is_below(source, to_dir));
        self.at(from_dir).names.remove(&from);
        self.at(to_dir).names.insert(to, source);
        let moved = [(source, from_dir, to_dir)];
        let back =
            target.filter(|_| mode == RenameMode::Exchange).map(|one| (one, to_dir, from_dir));
        if let Some((target, ..)) = back {
            self.at(from_dir).names.insert(from, target);
        }
        for (inode, left, entered) in moved.into_iter().chain(back) {
            if self.objects[&inode].kind == FileType::Directory {
                self.at(inode).parent = entered;
                self.at(left).links -= 1;
                self.at(entered).links += 1;
            }
        }
        if back.is_none()
            && let Some(target) = target
        {
            let replaced = renamed.replaced.unwrap();
            assert_eq!(replaced.inode, target);
            if self.objects[&target].kind == FileType::Directory {
                self.at(to_dir).links -= 1;
            }
            self.lost(target, replaced.last, erases);
        }
    }

    fn link(&mut self) {
        let Some(inode) = self.pick(|one| one.kind != FileType::Directory) else { return };
        let (dir, name) = (self.directory(), self.name());
        let taken = self.objects[&dir].names.contains_key(&name);
        let caller = self.caller();
        match self.volume.link(&mut self.tx, &caller, inode, dir, &name) {
            Ok(()) => {
                assert!(!taken);
                self.at(dir).names.insert(name, inode);
                self.at(inode).links += 1;
                self.open.remove(&inode);
            }
            Err(OpError::Exists) if taken => {}
            Err(OpError::NoSpace) => {}
            Err(error) => panic!("link: {error:?}"),
        }
    }

    fn xattr(&mut self) {
        let Some(inode) = self.pick(|one| {
            matches!(one.kind, FileType::Regular | FileType::Directory) && one.links > 0
        }) else {
            return;
        };
        if inode == InodeNr::ROOT {
            return;
        }
        let name = format!("user.{}", ["a", "bb", "comment", "a.long.name"][self.rng.index(4)]);
        let name = name.into_bytes();
        let caller = self.caller();
        let has = self.objects[&inode].xattrs.contains_key(&name);
        if self.rng.chance(3) {
            match self.volume.remove_attribute(&mut self.tx, &caller, inode, &name) {
                Ok(()) => drop(self.at(inode).xattrs.remove(&name).unwrap()),
                Err(OpError::NotFound(_)) => assert!(!has),
                Err(OpError::NoSpace) => {}
                Err(error) => panic!("remove attribute: {error:?}"),
            }
            return;
        }
        let has_large = self.volume.geometry().features.incompat.contains(Incompat::EA_INODE);
        let most = match self.rng.below(8) {
            0..4 => 40,
            4 if has_large => 9_000,
            5 if has_large => 65_537,
            _ => 700,
        };
        let mut value = vec![0; self.rng.index(most)];
        self.rng.fill(&mut value);
        let set =
            self.volume.set_attribute(&mut self.tx, &caller, inode, &name, &value, SetMode::Any);
        match set {
            Ok(()) => drop(self.at(inode).xattrs.insert(name, value)),
            Err(OpError::NoRoom | OpError::NoSpace) => {}
            Err(OpError::Unsupported(_)) if self.volume.superblock().rev_level == 0 => {}
            Err(error) => panic!("set attribute: {error:?}"),
        }
    }

    fn change(&mut self) {
        let Some(inode) = self.pick(|one| one.kind != FileType::Symlink) else { return };
        let permissions = self.rng.below(0o1000) as u16;
        let owner = (self.rng.below(100_000) as u32, self.rng.below(100_000) as u32);
        let change = Change {
            permissions: Some(permissions),
            uid: Some(owner.0),
            gid: Some(owner.1),
            modified: Some(time(self.now - 1000)),
            ..Change::default()
        };
        let caller = self.caller();
        self.volume.change(&mut self.tx, &caller, inode, &change).unwrap();
        self.at(inode).permissions = permissions;
        self.at(inode).owner = owner;
    }

    /// A program closes a file without names.
    fn close(&mut self) {
        if let Some(inode) = self.open.pop_first() {
            self.finish(inode);
            self.objects.remove(&inode);
        }
    }

    /// Closes everything and leaves the volume.
    pub(crate) fn leave(&mut self) {
        while !self.open.is_empty() {
            self.close();
        }
        let now = time(self.now);
        assert_eq!(self.volume.orphans(), []);
        self.commit();
        for lot in self.volume.lots_to_reserve() {
            self.volume.reserve_lot(&mut self.tx, now, lot).unwrap();
        }
        self.volume.end_writing(&mut self.tx, now).unwrap();
        self.commit();
    }

    /// Compares with a tree that was read from the volume by others.
    pub(crate) fn compare(&self, tree: &Tree) {
        let mut seen = 0;
        let mut folders = vec![(Vec::new(), InodeNr::ROOT)];
        while let Some((path, dir)) = folders.pop() {
            for (name, &inode) in &self.objects[&dir].names {
                let path = [&path[..], b"/", name].concat();
                let text = String::from_utf8_lossy(&path).into_owned();
                let (ours, node) = (&self.objects[&inode], tree.get(&path));
                let node = node.unwrap_or_else(|| panic!("{text} is missing"));
                assert_eq!((node.inode, node.kind), (inode, Some(ours.kind)), "{text}");
                let size =
                    if ours.kind == FileType::Directory { 0 } else { ours.bytes.len() as u64 };
                let has_size = matches!(ours.kind, FileType::Regular | FileType::Symlink);
                assert!(!has_size || node.size_bytes == size, "{text}: {}", node.size_bytes);
                match ours.kind {
                    FileType::Regular | FileType::Symlink => {
                        assert_eq!(node.content, digest(&ours.bytes), "{text}");
                    }
                    FileType::CharDevice => {
                        let number = format!("{}:{}", ours.device.0, ours.device.1);
                        assert_eq!(node.content, number, "{text}");
                    }
                    _ => {}
                }
                assert_eq!(node.permissions, ours.permissions, "{text}");
                assert_eq!((node.uid, node.gid), ours.owner, "{text}");
                let names: Vec<_> = node.xattrs.keys().collect();
                assert_eq!(names, ours.xattrs.keys().collect::<Vec<_>>(), "{text}");
                for (name, value) in &ours.xattrs {
                    // The small reader tells large values by their digest.
                    let found = &node.xattrs[name];
                    let is_same = found == value || *found == digest(value).into_bytes();
                    assert!(is_same, "{text}: {}", name.escape_ascii());
                }
                seen += 1;
                if ours.kind == FileType::Directory {
                    folders.push((path, inode));
                }
            }
        }
        // The root and lost+found besides, and the own files of native file systems.
        let own = tree.keys().filter(|path| path.starts_with(b"/.cubes")).count();
        assert_eq!(tree.len(), seen + 2 + own);
    }
}
