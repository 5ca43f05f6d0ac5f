//! `floe cube move-in`: a directory, or any file, moves into a cube. It is copied beside its place under a name of its own, made
//! durable, renamed, and only then the source is removed. A run that was cut off before the rename is undone by the next one, one
//! that was cut off afterwards is finished by it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use anyhow::{Context, Result, bail, ensure};
use floe_ext4::files::printable;
use floe_report::human::{plural, size};
use serde_json::json;

use crate::exit::Outcome;
use crate::image_files::place;

#[cfg(test)]
mod crash;
pub(super) mod image;
pub(super) mod mounted;
#[cfg(test)]
mod moving_times;

/// The attribute of a copy that is complete and whose source is still there: the number and the path of the source.
const MARK: &[u8] = b"trusted.floe.move_in";
/// Bytes that are copied at once.
const PIECE_BYTES: usize = 1 << 20;

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Regular,
    Directory,
    Symlink,
    CharDevice,
    BlockDevice,
    Fifo,
    Socket,
}

/// Facts about a file that its copy gets, too.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stat {
    inode: u64,
    kind: Kind,
    permissions: u16,
    owner: (u32, u32),
    size_bytes: u64,
    links: u64,
    /// Seconds and nanoseconds.
    accessed: (i64, u32),
    modified: (i64, u32),
    /// When anything of the inode was changed last.
    changed: (i64, u32),
    /// Numbers of a device.
    device: (u32, u32),
    /// It is immutable or append-only.
    is_kept: bool,
    /// Other flags that programs set.
    flags: u32,
}

/// A file system in which files are moved, by paths.
trait Tree {
    /// `None` if there is nothing.
    fn stat(&self, path: &[u8]) -> Result<Option<Stat>>;
    /// The names in a directory, without `.` and `..`.
    fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// Makes a file of the same type, which only its owner may use, without content.
    fn make(&self, path: &[u8], like: &Stat, target: &[u8]) -> Result<()>;
    /// The target of a symbolic link.
    fn target(&self, path: &[u8]) -> Result<Vec<u8>>;
    /// Copies the content of a regular file; holes stay holes.
    fn copy(&self, from: &[u8], to: &[u8], like: &Stat) -> Result<()>;
    /// Whether a regular file and its copy have the same content, where the times of the file may have moved without a change of it.
    fn has_same_content(&self, _from: &[u8], _to: &[u8]) -> Result<bool> {
        Ok(false)
    }
    /// All extended attributes.
    fn attributes(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    /// Sets an extended attribute, or removes it.
    fn set_attribute(&self, path: &[u8], name: &[u8], value: Option<&[u8]>) -> Result<()>;
    /// Sets owner, permissions, flags and times.
    fn settle(&self, path: &[u8], like: &Stat) -> Result<()>;
    /// Gives a file a further name.
    fn link(&self, path: &[u8], name: &[u8]) -> Result<()>;
    /// Nothing has the new name.
    fn rename(&self, from: &[u8], to: &[u8]) -> Result<()>;
    /// Removes a name of anything, of a directory only if that is empty.
    fn remove(&self, path: &[u8], kind: Kind) -> Result<()>;
    /// Makes all durable.
    fn sync(&self) -> Result<()>;
}

/// Files that were moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// An earlier run had copied them.
    pub(super) is_resumed: bool,
}

impl Moved {
    /// Says what was moved.
    pub(super) fn tell(self, json: bool, out: &mut impl Write) -> Result<Outcome> {
        let Self { files, bytes, is_resumed } = self;
        if json {
            let table = json!({
                "schema": "floe-cube-move", "version": 1,
                "files": files, "bytes": bytes, "resumed": is_resumed,
            });
            writeln!(out, "{table:#}")?;
        } else if is_resumed {
            writeln!(
                out,
                "copied by an earlier run: {files} file{} removed where they were",
                plural(files)
            )?;
        } else {
            writeln!(out, "{files} file{} moved, {}", plural(files), size(bytes))?;
        }
        Ok(Outcome::CLEAN)
    }
}

/// Moves `source` into the directory of a cube. `tops` are the directories of all cubes.
fn move_in(tree: &dyn Tree, source: &[u8], cube: &[u8], tops: &BTreeSet<u64>) -> Result<Moved> {
    let name = place::last_name(source).context("the source must end with a name")?;
    let dest = place::join(cube, name);
    let Some(of) = tree.stat(source)? else { return finish(tree, source, &dest) };
    let key = [of.inode.to_string().as_bytes(), b" ", source].concat();
    let mut moved = Moved::default();
    if tree.stat(&dest)?.is_some() {
        let is_ours = tree.attributes(&dest)?.contains(&(MARK.to_vec(), key));
        ensure!(is_ours, "{} exists; nothing was moved", printable(&dest));
        moved.is_resumed = true;
    } else {
        let mut seen = Seen::default();
        ensure!(
            !is_lost_found(tree, source, name, &of)?,
            "{} is where repairs put what has no name; nothing was moved",
            printable(source)
        );
        judge(tree, source, &of, tops, &mut seen)?;
        seen.judge_links(source)?;
        let near = format!(".floe-move-in.{}", of.inode);
        let near = place::join(cube, near.as_bytes());
        if let Some(left) = tree.stat(&near)? {
            // An earlier run did not get so far that anything else was changed.
            clear(tree, &near, &left)?;
        }
        if let Err(error) = copy_all(tree, source, &near, &of, &key, &mut moved) {
            let undone = tree.stat(&near).and_then(|left| match left {
                Some(left) => clear(tree, &near, &left),
                None => Ok(()),
            });
            let state = if undone.is_ok() { "nothing was moved" } else { "a copy is left there" };
            return Err(error.context(format!("{}: {state}", printable(&near))));
        }
        tree.rename(&near, &dest)?;
        tree.sync()?;
    }
    remove_source(tree, source, &dest, &of, &mut moved)
        .context("the copy is whole; the same command again goes on removing the source")?;
    tree.sync()?;
    tree.set_attribute(&dest, MARK, None)?;
    // Its own time of change has passed by now, but that of the content stays.
    tree.sync()?;
    Ok(moved)
}

/// Whether a source is the directory `lost+found` of the root. A mount by FUSE may show its root as inode 1.
fn is_lost_found(tree: &dyn Tree, source: &[u8], name: &[u8], of: &Stat) -> Result<bool> {
    if name != b"lost+found" || of.kind != Kind::Directory {
        return Ok(false);
    }
    let end = source.iter().rposition(|&byte| byte != b'/').map_or(0, |at| at + 1);
    let above = &source[..end.saturating_sub(name.len())];
    let above =
        tree.stat(above.strip_suffix(b"/").filter(|rest| !rest.is_empty()).unwrap_or(above))?;
    Ok(above.is_some_and(|above| matches!(above.inode, 1 | 2)))
}

/// Removes the mark of a copy whose source an earlier run removed, before it was cut off.
fn finish(tree: &dyn Tree, source: &[u8], dest: &[u8]) -> Result<Moved> {
    let end = [b" ", source].concat();
    let is_ours = tree.stat(dest)?.is_some()
        && tree.attributes(dest)?.iter().any(|(name, key)| name == MARK && key.ends_with(&end));
    ensure!(is_ours, "there is no {}", printable(source));
    tree.set_attribute(dest, MARK, None)?;
    tree.sync()?;
    Ok(Moved { is_resumed: true, ..Moved::default() })
}

/// Files of a source that have several names.
#[derive(Default)]
struct Seen {
    /// Names of each file with several, and all that it has.
    names: BTreeMap<u64, (u64, u64)>,
}

impl Seen {
    fn judge_links(&self, source: &[u8]) -> Result<()> {
        for (inode, (names, links)) in &self.names {
            ensure!(
                names == links,
                "{}: inode {inode} has {links} names, {names} of them here, and cannot have names in two cubes; nothing was moved",
                printable(source)
            );
        }
        Ok(())
    }
}

/// Refuses a source that cannot be moved as a whole.
fn judge(
    tree: &dyn Tree,
    path: &[u8],
    of: &Stat,
    tops: &BTreeSet<u64>,
    seen: &mut Seen,
) -> Result<()> {
    let shown = || printable(path);
    ensure!(!tops.contains(&of.inode), "{} is a cube; nothing was moved", shown());
    ensure!(!of.is_kept, "{} is immutable or append-only; nothing was moved", shown());
    if of.kind != Kind::Directory {
        if of.links > 1 {
            seen.names.entry(of.inode).or_insert((0, of.links)).0 += 1;
        }
        return Ok(());
    }
    for name in tree.list(path)? {
        let path = place::join(path, &name);
        let of = tree.stat(&path)?.with_context(|| format!("{} is gone", printable(&path)))?;
        judge(tree, &path, &of, tops, seen)?;
    }
    Ok(())
}

/// Copies a source, and makes the copy durable.
fn copy_all(
    tree: &dyn Tree,
    source: &[u8],
    to: &[u8],
    of: &Stat,
    key: &[u8],
    moved: &mut Moved,
) -> Result<()> {
    copy_one(tree, source, to, of, &mut BTreeMap::new(), moved)?;
    tree.set_attribute(to, MARK, Some(key))?;
    tree.settle(to, of)?;
    // The time of change of the copy, which tells later changes of the source, has moved with the mark.
    judge_unchanged(tree, source, of, to)?;
    tree.sync()
}

fn copy_one(
    tree: &dyn Tree,
    from: &[u8],
    to: &[u8],
    of: &Stat,
    known: &mut BTreeMap<u64, (Vec<u8>, Stat)>,
    moved: &mut Moved,
) -> Result<()> {
    if of.kind != Kind::Directory && of.links > 1 {
        if let Some((first, before)) = known.get(&of.inode) {
            tree.link(first, to)?;
            return judge_unchanged(tree, from, before, to);
        }
        known.insert(of.inode, (to.to_vec(), of.clone()));
    }
    let target = if of.kind == Kind::Symlink { tree.target(from)? } else { Vec::new() };
    tree.make(to, of, &target).with_context(|| printable(to))?;
    moved.files += 1;
    match of.kind {
        Kind::Regular => {
            tree.copy(from, to, of).with_context(|| printable(from))?;
            moved.bytes += of.size_bytes;
        }
        Kind::Directory => {
            for name in tree.list(from)? {
                let (from, to) = (place::join(from, &name), place::join(to, &name));
                let of = tree.stat(&from)?;
                let of = of.with_context(|| format!("{} is gone", printable(&from)))?;
                copy_one(tree, &from, &to, &of, known, moved)?;
            }
        }
        _ => {}
    }
    for (name, value) in tree.attributes(from)? {
        let set = tree.set_attribute(to, &name, Some(&value));
        set.with_context(|| format!("{}: attribute {}", printable(to), printable(&name)))?;
    }
    tree.settle(to, of).with_context(|| printable(to))?;
    judge_unchanged(tree, from, of, to)
}

/// Refuses a source if anything but its time of access was changed since. One whose times alone have moved gives them to its copy: where
/// space is scarce, the kernel shows an older time of a file until it forgets it (`docs/mount.md`).
fn judge_unchanged(tree: &dyn Tree, path: &[u8], before: &Stat, copy: &[u8]) -> Result<()> {
    let now = tree.stat(path)?;
    let now = now.with_context(|| format!("{} was removed meanwhile", printable(path)))?;
    let as_before = Stat { accessed: now.accessed, ..before.clone() };
    if now == as_before {
        return Ok(());
    }
    let (modified, changed) = (now.modified, now.changed);
    let moved_alone = now.kind == Kind::Regular && now == Stat { modified, changed, ..as_before };
    let is_same = moved_alone && tree.has_same_content(path, copy)?;
    ensure!(is_same, "{} was changed meanwhile", printable(path));
    tree.settle(copy, &now)
}

/// Whether a source is as it was when it was copied; a copy of the same content gets its times. The mark of the copy is none of the
/// source.
fn is_copied(tree: &dyn Tree, from: &[u8], of: &Stat, to: &[u8], copy: &Stat) -> Result<bool> {
    let (is_dir, is_link) = (of.kind == Kind::Directory, of.kind == Kind::Symlink);
    let is_like = of.kind == copy.kind
        && of.owner == copy.owner
        && (is_link || of.permissions == copy.permissions)
        && of.flags == copy.flags
        && of.device == copy.device
        // The run itself changes a directory by removing names.
        && (is_dir || of.size_bytes == copy.size_bytes);
    if !is_like {
        return Ok(false);
    }
    let has_its_times = is_dir
        || of.modified == copy.modified
            // And a file with several names, when it removed one of them.
            && (of.links < copy.links || of.changed <= copy.changed);
    let sorted = |path: &[u8]| -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let all = tree.attributes(path)?.into_iter();
        Ok(all.filter(|(name, _)| name != MARK).collect())
    };
    if sorted(from)? != sorted(to)? {
        return Ok(false);
    }
    // As in `judge_unchanged`.
    let moved_alone = !has_its_times && of.kind == Kind::Regular;
    if moved_alone && tree.has_same_content(from, to)? {
        tree.settle(to, of)?;
        return Ok(true);
    }
    Ok(has_its_times)
}

/// Removes a copy that is not complete.
fn clear(tree: &dyn Tree, path: &[u8], of: &Stat) -> Result<()> {
    if of.kind == Kind::Directory {
        for name in tree.list(path)? {
            let path = place::join(path, &name);
            if let Some(of) = tree.stat(&path)? {
                clear(tree, &path, &of)?;
            }
        }
    }
    tree.remove(path, of.kind).with_context(|| printable(path))
}

/// Removes a source, each file only if its copy is there and it was not changed since.
fn remove_source(
    tree: &dyn Tree,
    from: &[u8],
    to: &[u8],
    of: &Stat,
    moved: &mut Moved,
) -> Result<()> {
    let copy = tree.stat(to)?;
    let Some(copy) = copy else {
        bail!("{} was made meanwhile, and is left", printable(from));
    };
    if of.kind == Kind::Directory && copy.kind == Kind::Directory {
        for name in tree.list(from)? {
            let (from, to) = (place::join(from, &name), place::join(to, &name));
            if let Some(of) = tree.stat(&from)? {
                remove_source(tree, &from, &to, &of, moved)?;
            }
        }
    }
    let is_same = is_copied(tree, from, of, to, &copy)?;
    ensure!(is_same, "{} was changed meanwhile, and is left", printable(from));
    if moved.is_resumed {
        moved.files += 1;
    }
    tree.remove(from, of.kind).with_context(|| printable(from))
}
