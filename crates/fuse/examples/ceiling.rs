//! A file system in tables that does as little as one can, over Floe's own transport: the upper bound that
//! `cargo xtask fs-bench` compares mounts of Floe with.
//!
//! `cargo run --release -p floe-fuse --example ceiling -- DIR [--memory] [serve options as WORDS]` mounts on DIR until it
//! is unmounted. With `--memory` it serves Floe's file system in memory, over a disk that is a table.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;

use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_fs::{
    AFTER_DOT, AFTER_DOT_DOT, Applied, Attribute, Attributes, Change, Directory, FileSystem,
    FsError, Limits, Listed, MemFs, NewInode, NewKind, NullDisk, Op, OpKind, Place, RenameMode,
    SeekFor, Space, Store, Timestamp, now,
};
use floe_fuse::mount::{MountOptions, MountPoint, mount};
use floe_fuse::{ServeOptions, Synchronous, Transport, serve};
use floe_sync::atomic::{AtomicU32, Ordering};
use floe_sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(place) = words.first() else {
        return Err(io::Error::other(
            "usage: ceiling DIR [--memory] [--no-writeback] [--open-fast]",
        ));
    };
    let has = |word: &str| words.iter().any(|given| given == word);
    let options = ServeOptions {
        writeback: !has("--no-writeback"),
        open_fast: has("--open-fast"),
        ..ServeOptions::default()
    };
    let transport = if has("--ring") { Transport::Ring } else { Transport::Device };
    if has("--memory") {
        let limits = Limits::default();
        let store = MemFs::new(NullDisk::new(1 << 30, 1 << 30), limits);
        serve_on(place, FileSystem::new(store), &options, transport)
    } else {
        serve_on(place, FileSystem::new(Tables::new()), &options, transport)
    }
}

fn serve_on<S: Store>(
    place: &str,
    fs: FileSystem<S>,
    options: &ServeOptions,
    transport: Transport,
) -> io::Result<()> {
    let mounting = MountOptions {
        fsname: "ceiling".into(),
        subtype: "ceiling".to_owned(),
        read_only: false,
        allow_other: true,
        no_suid: false,
        no_devices: false,
        no_exec: false,
        no_atime: true,
        synchronous: Synchronous::default(),
        judged: true,
        transport,
    };
    let carrier = mount(&MountPoint::of(Path::new(place)), &mounting).map_err(io::Error::other)?;
    serve(&carrier, &fs, options, &|line| eprintln!("{line}"), || println!("ready"))
}

/// An inode.
#[derive(Debug)]
struct Node {
    attributes: Attributes,
    /// Names in a directory, with their cookies.
    names: HashMap<Box<[u8]>, (u64, InodeNr)>,
    /// The same by cookie.
    order: BTreeMap<u64, Box<[u8]>>,
    next_cookie: u64,
    bytes: Vec<u8>,
    parent: InodeNr,
}

/// All inodes.
#[derive(Debug)]
struct Tables {
    nodes: RwLock<HashMap<u32, Arc<Mutex<Node>>>>,
    next: AtomicU32,
}

impl Node {
    fn new(inode: InodeNr, parent: InodeNr, op: &Op<'_>, new: &NewInode<'_>) -> Self {
        let kind = new.kind.file_type();
        let bytes = match new.kind {
            NewKind::Symlink(target) => target.to_vec(),
            _ => Vec::new(),
        };
        let attributes = Attributes {
            inode,
            generation: 0,
            kind,
            permissions: new.permissions & !new.umask,
            links: if kind == FileType::Directory { 2 } else { 1 },
            uid: op.uid,
            gid: op.gid,
            size_bytes: bytes.len() as u64,
            sectors: 0,
            atime: op.time,
            mtime: op.time,
            ctime: op.time,
            crtime: Some(op.time),
            device: None,
            flags: InodeFlags::empty(),
            project: 0,
        };
        Self {
            attributes,
            names: HashMap::new(),
            order: BTreeMap::new(),
            next_cookie: AFTER_DOT_DOT + 1,
            bytes,
            parent,
        }
    }

    fn add(&mut self, name: &[u8], inode: InodeNr, time: Timestamp) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.names.insert(name.into(), (cookie, inode));
        self.order.insert(cookie, name.into());
        self.touch(time);
    }

    fn take(&mut self, name: &[u8], time: Timestamp) -> Option<InodeNr> {
        let (cookie, inode) = self.names.remove(name)?;
        self.order.remove(&cookie);
        self.touch(time);
        Some(inode)
    }

    fn touch(&mut self, time: Timestamp) {
        self.attributes.mtime = time;
        self.attributes.ctime = time;
    }

    fn resize(&mut self, len: usize, time: Timestamp) {
        self.bytes.resize(len, 0);
        self.attributes.size_bytes = len as u64;
        self.touch(time);
    }

    fn change(&mut self, change: &Change, time: Timestamp) {
        let own = &mut self.attributes;
        own.permissions = change.permissions.unwrap_or(own.permissions);
        own.uid = change.uid.unwrap_or(own.uid);
        own.gid = change.gid.unwrap_or(own.gid);
        own.atime = change.accessed.unwrap_or(own.atime);
        own.mtime = change.modified.unwrap_or(own.mtime);
        own.ctime = time;
    }
}

fn lock(node: &Mutex<Node>) -> MutexGuard<'_, Node> {
    node.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tables {
    fn new() -> Self {
        let op = Op { uid: 0, gid: 0, time: now(), kind: OpKind::Unlink(ROOT) };
        let root = Node::new(InodeNr::ROOT, InodeNr::ROOT, &op, &NewInode::directory(0o755));
        let nodes = HashMap::from([(InodeNr::ROOT.0, Arc::new(Mutex::new(root)))]);
        Self { nodes: RwLock::new(nodes), next: AtomicU32::new(12) }
    }

    fn node(&self, inode: InodeNr) -> Result<Arc<Mutex<Node>>, FsError> {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        nodes.get(&inode.0).cloned().ok_or(FsError::NotFound)
    }

    fn create(
        &self,
        op: &Op<'_>,
        place: Place<'_>,
        new: &NewInode<'_>,
    ) -> Result<InodeNr, FsError> {
        let inode = InodeNr(self.next.fetch_add(1, Ordering::Relaxed));
        let above = self.node(place.directory)?;
        let mut above = lock(&above);
        if above.names.contains_key(place.name) {
            return Err(FsError::Exists);
        }
        let node = Arc::new(Mutex::new(Node::new(inode, place.directory, op, new)));
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        nodes.insert(inode.0, node);
        drop(nodes);
        above.add(place.name, inode, op.time);
        Ok(inode)
    }

    fn remove(&self, op: &Op<'_>, place: Place<'_>) -> Result<Applied, FsError> {
        let above = self.node(place.directory)?;
        let inode = lock(&above).take(place.name, op.time).ok_or(FsError::NotFound)?;
        self.unlink(inode, op.time)
    }

    fn unlink(&self, inode: InodeNr, time: Timestamp) -> Result<Applied, FsError> {
        let node = self.node(inode)?;
        let mut node = lock(&node);
        let directory = node.attributes.kind == FileType::Directory;
        node.attributes.links -= if directory { 2 } else { 1 };
        node.attributes.ctime = time;
        let nameless = (node.attributes.links == 0).then_some(inode);
        Ok(Applied { created: None, nameless })
    }

    fn rename(&self, op: &Op<'_>, from: Place<'_>, to: Place<'_>) -> Result<Applied, FsError> {
        let moved = lock(&*self.node(from.directory)?).take(from.name, op.time);
        let moved = moved.ok_or(FsError::NotFound)?;
        let above = self.node(to.directory)?;
        let replaced = {
            let mut above = lock(&above);
            let replaced = above.take(to.name, op.time);
            above.add(to.name, moved, op.time);
            replaced
        };
        lock(&*self.node(moved)?).parent = to.directory;
        replaced.map_or(Ok(Applied::default()), |inode| self.unlink(inode, op.time))
    }
}

const ROOT: Place<'static> = Place { directory: InodeNr::ROOT, name: b"/" };

impl Store for Tables {
    fn attributes(&self, inode: InodeNr) -> Result<Attributes, FsError> {
        Ok(lock(&*self.node(inode)?).attributes)
    }

    fn directory(&self, _: InodeNr) -> Result<Arc<Directory>, FsError> {
        Err(FsError::Unsupported("directories as a whole"))
    }

    fn find(&self, directory: InodeNr, name: &[u8]) -> Result<Option<InodeNr>, FsError> {
        Ok(lock(&*self.node(directory)?).names.get(name).map(|(_, inode)| *inode))
    }

    fn parent(&self, directory: InodeNr) -> Result<InodeNr, FsError> {
        Ok(lock(&*self.node(directory)?).parent)
    }

    fn list(
        &self,
        directory: InodeNr,
        cookie: u64,
        take: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> Result<(), FsError> {
        let node = self.node(directory)?;
        let node = lock(&node);
        let kind = Some(FileType::Directory);
        let dot = Listed { inode: directory, kind, name: b".", cookie: AFTER_DOT };
        let dot_dot = Listed { inode: node.parent, kind, name: b"..", cookie: AFTER_DOT_DOT };
        if !([dot, dot_dot].into_iter().filter(|dot| dot.cookie > cookie).all(&mut *take)) {
            return Ok(());
        }
        for (&cookie, name) in node.order.range(cookie.max(AFTER_DOT_DOT) + 1..) {
            let Some(&(_, inode)) = node.names.get(name) else { continue };
            if !take(Listed { inode, kind: None, name, cookie }) {
                break;
            }
        }
        Ok(())
    }

    fn read(&self, inode: InodeNr, offset_bytes: u64, into: &mut [u8]) -> Result<usize, FsError> {
        let node = self.node(inode)?;
        let node = lock(&node);
        let rest = node.bytes.get(offset_bytes as usize..).unwrap_or_default();
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn seek(&self, _: InodeNr, _: u64, _: SeekFor) -> Result<u64, FsError> {
        Err(FsError::Unsupported("holes"))
    }

    fn target(&self, inode: InodeNr) -> Result<Vec<u8>, FsError> {
        Ok(lock(&*self.node(inode)?).bytes.clone())
    }

    fn extended_attributes(&self, _: InodeNr) -> Result<Vec<Attribute>, FsError> {
        Ok(Vec::new())
    }

    fn space(&self) -> Space {
        let (blocks, inodes) = (1 << 30, 1 << 30);
        Space {
            block_bytes: 4096,
            blocks,
            free_blocks: blocks,
            available_blocks: blocks,
            inodes,
            free_inodes: inodes,
        }
    }

    fn block_bytes(&self) -> u32 {
        4096
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn takes_many(&self) -> bool {
        true
    }

    fn apply(&self, op: &Op<'_>) -> Result<Applied, FsError> {
        match op.kind {
            OpKind::Create { place, new } => {
                let created = Some(self.create(op, place, &new)?);
                return Ok(Applied { created, nameless: None });
            }
            OpKind::Unlink(place) | OpKind::RemoveDirectory(place) => {
                return self.remove(op, place);
            }
            OpKind::Rename { from, to, mode: RenameMode::Replace } => {
                return self.rename(op, from, to);
            }
            OpKind::Link { inode, place } => {
                lock(&*self.node(place.directory)?).add(place.name, inode, op.time);
                lock(&*self.node(inode)?).attributes.links += 1;
            }
            OpKind::Change { inode, size_bytes, change } => {
                let node = self.node(inode)?;
                let mut node = lock(&node);
                if let Some(size) = size_bytes {
                    node.resize(size as usize, op.time);
                }
                node.change(&change, op.time);
            }
            OpKind::Write { inode, offset_bytes, bytes } => {
                let node = self.node(inode)?;
                let mut node = lock(&node);
                let (start, end) = (offset_bytes as usize, offset_bytes as usize + bytes.len());
                if end > node.bytes.len() {
                    node.resize(end, op.time);
                }
                node.bytes[start..end].copy_from_slice(bytes);
                node.touch(op.time);
            }
            _ => return Err(FsError::Unsupported("this change")),
        }
        Ok(Applied::default())
    }

    fn release(&self, inode: InodeNr) -> Result<(), FsError> {
        self.nodes.write().unwrap_or_else(PoisonError::into_inner).remove(&inode.0);
        Ok(())
    }

    fn sync(&self) -> Result<(), FsError> {
        Ok(())
    }
}
