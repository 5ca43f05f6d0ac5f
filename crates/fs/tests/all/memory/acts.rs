//! Calls of a program, by paths, on any store; and its view.

use std::collections::BTreeMap;

use floe_format::InodeNr;
use floe_format::ext::inode::FileType;
use floe_fs::{
    Attributes, Change, FsError, NewInode, Op, OpKind, Place, RenameMode, SeekFor, SetMode, Store,
    Timestamp,
};
use proptest::prelude::*;

/// A call of a program. Paths are 1 to 3 names long.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Create(String),
    Mkdir(String),
    Symlink(String, usize),
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String),
    Chmod(String, u16),
    Times(String, i64),
    Write(String, u64, usize),
    Truncate(String, u64),
    /// A user attribute with one of three numbers gets a value of so many bytes, or none.
    Attribute(String, u8, Option<u8>),
    Read(String),
    Fsync(String),
    Sync,
    Tend,
}

fn path() -> impl Strategy<Value = String> {
    let name = || prop::sample::select(vec!["a", "b", "c"]);
    prop_oneof![
        2 => name().prop_map(str::to_owned),
        4 => (name(), name()).prop_map(|(one, two)| format!("{one}/{two}")),
        2 => (name(), name(), name()).prop_map(|(one, two, three)| format!("{one}/{two}/{three}")),
    ]
}

/// Any call.
pub(crate) fn act() -> impl Strategy<Value = Act> {
    let two = || (path(), path());
    prop_oneof![
        6 => path().prop_map(Act::Create),
        5 => path().prop_map(Act::Mkdir),
        1 => (path(), 1usize..200).prop_map(|(path, len)| Act::Symlink(path, len)),
        4 => two().prop_map(|(from, to)| Act::Link(from, to)),
        5 => path().prop_map(Act::Unlink),
        2 => path().prop_map(Act::Rmdir),
        7 => two().prop_map(|(from, to)| Act::Rename(from, to)),
        2 => (path(), 0u16..0o1000).prop_map(|(path, mode)| Act::Chmod(path, mode)),
        1 => (path(), 0i64..1_000_000).prop_map(|(path, time)| Act::Times(path, time)),
        6 => (path(), 0u64..20_000, 1usize..9000).prop_map(|(path, at, len)| Act::Write(path, at, len)),
        2 => (path(), 0u64..20_000).prop_map(|(path, size)| Act::Truncate(path, size)),
        3 => (path(), 0u8..3, prop::option::weighted(0.7, 0u8..))
            .prop_map(|(path, which, len)| Act::Attribute(path, which, len)),
        1 => path().prop_map(Act::Read),
        4 => path().prop_map(Act::Fsync),
        1 => Just(Act::Sync),
        1 => Just(Act::Tend),
    ]
}

/// The inode of a path.
pub(crate) fn find<S: Store>(store: &S, path: &str) -> Result<InodeNr, FsError> {
    let mut at = InodeNr::ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        at = store.find(at, name.as_bytes())?.ok_or(FsError::NotFound)?;
    }
    Ok(at)
}

pub(crate) fn place<'p, S: Store>(store: &S, path: &'p str) -> Result<Place<'p>, FsError> {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let directory = find(store, above)?;
    if store.attributes(directory)?.kind != FileType::Directory {
        return Err(FsError::NotADirectory);
    }
    Ok(Place { directory, name: name.as_bytes() })
}

/// Bytes that tell which call wrote them.
pub(crate) fn filling(turn: u32, len: usize) -> Vec<u8> {
    vec![(turn % 250) as u8 + 1; len]
}

/// Applies a change, and lets go of what has no name any more.
pub(crate) fn apply<S: Store>(store: &S, turn: u32, kind: OpKind<'_>) -> Result<(), FsError> {
    let time = Timestamp { seconds: 1_700_000_000 + i64::from(turn), nanoseconds: turn };
    let applied = store.apply(&Op { uid: 7, gid: 8, time, kind })?;
    applied.nameless.map_or(Ok(()), |inode| store.release(inode))
}

/// Does a call. Its number makes it tell itself from others.
pub(crate) fn run<S: Store>(store: &S, turn: u32, act: &Act) -> Result<(), FsError> {
    let change = |inode, size_bytes, change| OpKind::Change { inode, size_bytes, change };
    let kind = match act {
        Act::Create(path) => {
            OpKind::Create { place: place(store, path)?, new: NewInode::regular(0o644) }
        }
        Act::Mkdir(path) => {
            OpKind::Create { place: place(store, path)?, new: NewInode::directory(0o755) }
        }
        Act::Symlink(path, len) => {
            let target = vec![b't'; *len];
            let new = NewInode::symlink(&target);
            return apply(store, turn, OpKind::Create { place: place(store, path)?, new });
        }
        Act::Link(from, to) => {
            let inode = find(store, from)?;
            if store.attributes(inode)?.kind == FileType::Directory {
                return Err(FsError::IsADirectory);
            }
            OpKind::Link { inode, place: place(store, to)? }
        }
        Act::Unlink(path) => OpKind::Unlink(place(store, path)?),
        Act::Rmdir(path) => OpKind::RemoveDirectory(place(store, path)?),
        Act::Rename(from, to) => {
            let (from, to) = (place(store, from)?, place(store, to)?);
            OpKind::Rename { from, to, mode: RenameMode::Replace }
        }
        Act::Chmod(path, mode) => {
            let wanted = Change { permissions: Some(*mode), ..Change::default() };
            let inode = find(store, path)?;
            if store.attributes(inode)?.kind == FileType::Symlink {
                return Ok(());
            }
            change(inode, None, wanted)
        }
        Act::Times(path, seconds) => {
            let time = Timestamp { seconds: *seconds, nanoseconds: 3 };
            let wanted = Change { accessed: Some(time), modified: Some(time), ..Change::default() };
            change(find(store, path)?, None, wanted)
        }
        Act::Write(path, offset_bytes, len) => {
            let inode = file(store, path)?;
            let bytes = filling(turn, *len);
            let kind = OpKind::Write { inode, offset_bytes: *offset_bytes, bytes: &bytes };
            return apply(store, turn, kind);
        }
        Act::Truncate(path, size) => change(file(store, path)?, Some(*size), Change::default()),
        Act::Attribute(path, which, len) => {
            let inode = find(store, path)?;
            let kind = store.attributes(inode)?.kind;
            if !matches!(kind, FileType::Regular | FileType::Directory) {
                return Ok(());
            }
            let name = format!("user.number {which}");
            let (name, mode) = (name.as_bytes(), SetMode::Any);
            let value = len.map(|len| filling(turn, usize::from(len) + 1));
            let kind = match &value {
                Some(value) => OpKind::SetAttribute { inode, name, value, mode },
                None => OpKind::RemoveAttribute { inode, name },
            };
            return apply(store, turn, kind);
        }
        Act::Read(path) => {
            let _ = store.seek(file(store, path)?, 0, SeekFor::Hole);
            return Ok(());
        }
        Act::Fsync(path) => return fsync(store, path),
        Act::Sync => return store.sync(),
        Act::Tend => return store.tend(),
    };
    apply(store, turn, kind)
}

/// Makes a file durable. Lost changes have a call of their own here, which `FileSystem::sync_inode` makes.
fn fsync<S: Store>(store: &S, path: &str) -> Result<(), FsError> {
    let inode = find(store, path)?;
    store.sync_inode(inode)?;
    store.late_error(inode, None, false)
}

fn file<S: Store>(store: &S, path: &str) -> Result<InodeNr, FsError> {
    let inode = find(store, path)?;
    let kind = store.attributes(inode)?.kind;
    if kind == FileType::Regular { Ok(inode) } else { Err(FsError::Invalid) }
}

/// A file as a program sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) inode: InodeNr,
    pub(crate) state: String,
    pub(crate) bytes: Vec<u8>,
}

/// All paths of a store. Numbers of inodes and sizes of directories are not part of what is compared.
pub(crate) fn tree<S: Store>(store: &S) -> BTreeMap<String, Seen> {
    tree_below(store, String::new(), InodeNr::ROOT)
}

/// A directory and all paths below it.
pub(crate) fn tree_below<S: Store>(
    store: &S,
    path: String,
    directory: InodeNr,
) -> BTreeMap<String, Seen> {
    let mut all = BTreeMap::new();
    let mut due = vec![(path, directory)];
    while let Some((path, inode)) = due.pop() {
        let found = store.attributes(inode).unwrap();
        let bytes = content(store, &found);
        if found.kind == FileType::Directory {
            let names = store.directory(inode).unwrap();
            assert_eq!(names.damage(), None, "{path}");
            for (_, entry) in names.behind(0) {
                let name = String::from_utf8_lossy(&entry.name);
                // The file system's own files are none of programs.
                if path.is_empty() && ["lost+found", ".cubes"].contains(&&*name) {
                    continue;
                }
                due.push((format!("{path}/{name}"), entry.inode));
            }
        }
        let extended = store.extended_attributes(inode).unwrap();
        let extended = extended.iter().map(|one| {
            let (name, value) = (String::from_utf8_lossy(&one.name), &one.value);
            format!(" {name}={}x{:?}", value.len(), value.first())
        });
        let state = state_of(&found) + &extended.collect::<String>();
        all.insert(path, Seen { inode, state, bytes });
    }
    all
}

fn content<S: Store>(store: &S, found: &Attributes) -> Vec<u8> {
    match found.kind {
        FileType::Regular => {
            let mut bytes = vec![0; usize::try_from(found.size_bytes).unwrap() + 9];
            let len = store.read(found.inode, 0, &mut bytes).unwrap();
            bytes.truncate(len);
            bytes
        }
        FileType::Symlink => store.target(found.inode).unwrap(),
        _ => Vec::new(),
    }
}

fn state_of(found: &Attributes) -> String {
    let is_directory = found.kind == FileType::Directory;
    let size = if is_directory { 0 } else { found.size_bytes };
    let (mode, links, owner) = (found.permissions, found.links, (found.uid, found.gid));
    let times = (found.atime, found.mtime, found.ctime);
    format!("{:?} {mode:o} {links} {owner:?} {size} {times:?}", found.kind)
}

/// The same but for numbers of inodes.
pub(crate) fn same(
    one: &BTreeMap<String, Seen>,
    other: &BTreeMap<String, Seen>,
) -> Result<(), String> {
    for path in one.keys().chain(other.keys()) {
        let (one, other) = (one.get(path), other.get(path));
        let part = |seen: Option<&Seen>| seen.map(|seen| (seen.state.clone(), seen.bytes.clone()));
        if part(one) != part(other) {
            let state = |seen: Option<&Seen>| seen.map(|seen| seen.state.clone());
            return Err(format!("{path}: {:?} and {:?}", state(one), state(other)));
        }
    }
    Ok(())
}

/// Whether link counts are those of the names, and every inode has one `..`.
pub(crate) fn consistent(tree: &BTreeMap<String, Seen>) -> Result<(), String> {
    let mut names: BTreeMap<InodeNr, u32> = BTreeMap::new();
    for seen in tree.values() {
        *names.entry(seen.inode).or_default() += 1;
    }
    for (path, seen) in tree {
        let mut words = seen.state.split(' ');
        let kind = words.next().unwrap_or_default();
        let links: u32 = words.nth(1).and_then(|word| word.parse().ok()).unwrap_or_default();
        let below = |other: &str| {
            other.strip_prefix(path.as_str()).is_some_and(|rest| rest.rfind('/') == Some(0))
        };
        let wanted = if kind == "Directory" {
            let inner = tree.iter().filter(|(other, seen)| {
                below(other.as_str()) && seen.state.starts_with("Directory")
            });
            2 + inner.count() as u32
        } else {
            names[&seen.inode]
        };
        // The directory lost+found is left out of a tree.
        let slack = u32::from(path.is_empty());
        if links != wanted && links != wanted + slack {
            return Err(format!("{path}: {links} links, {wanted} names"));
        }
    }
    Ok(())
}
