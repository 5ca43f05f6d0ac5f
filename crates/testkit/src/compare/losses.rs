//! Finds the objects of one tree that another lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use floe_format::InodeNr;
use floe_format::ext::inode::FileType;

use crate::tree::{Node, Tree, UNREADABLE, digest};

/// How an object of the reference is missing from our tree, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossKind {
    /// No object of ours matches.
    Gone,
    /// Its path leads to an object of another type.
    Type,
    /// Its path leads to different content or another size.
    Content,
    /// It exists, but in another directory.
    Moved,
    /// Permissions, owner or group differ.
    Owner,
    /// An attribute is missing or has a different value.
    Xattr,
    /// Several paths lead to one file in the reference, but to different files in ours.
    HardLink,
}

impl LossKind {
    /// Whether name and content are intact.
    pub fn is_of_metadata(self) -> bool {
        self >= Self::Owner
    }
}

/// An object of the reference that is missing from our tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Loss {
    /// How it is missing.
    pub kind: LossKind,
    /// Its type.
    pub file_type: Option<FileType>,
    /// Whether it is in the reference's lost+found, where only contents count.
    pub in_lost_found: bool,
    /// Its path in the reference.
    pub path: String,
    /// Our object at its place.
    pub instead: String,
}

impl Loss {
    /// One line for losses of the same kind.
    pub fn cause(&self) -> String {
        let place = if self.in_lost_found { " of lost+found" } else { "" };
        let file_type =
            self.file_type.map_or("untyped".to_owned(), |file_type| format!("{file_type:?}"));
        format!("{:?}, {file_type}{place}", self.kind)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.path, self.cause(), self.instead)
    }
}

const LOST_FOUND: &[u8] = b"/lost+found";
const IN_LOST_FOUND: &[u8] = b"/lost+found/";

fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|&byte| byte == b'/').map_or(b"", |at| &path[..at])
}

fn describe(node: &Node) -> String {
    format!("{:?}, {} bytes, {}", node.kind, node.size_bytes, node.content)
}

/// Every object in `theirs` that `ours` lacks. A file renamed within its directory is present. For
/// objects in their lost+found, the same content anywhere in ours is enough. Additional objects,
/// and objects in the state or place that they had in the `original`, are no losses. Objects in
/// their lost+found with no chunk of any file of the `original` never belonged to anyone: e2fsck
/// puts journals there; nor do values of attributes that ours kept. An object with further names is judged by those, because e2fsck sometimes
/// finds the old name after it assigned a new one.
pub fn losses(theirs: &Tree, ours: &Tree, original: &Tree) -> Vec<Loss> {
    let mut spare = Spare::new(theirs, ours);
    let mut found = Vec::new();
    let (in_lost_found, elsewhere): (Vec<_>, Vec<_>) = theirs
        .iter()
        .filter(|(path, _)| *path != LOST_FOUND)
        .partition(|(path, _)| path.starts_with(IN_LOST_FOUND));
    let named: BTreeSet<InodeNr> = elsewhere.iter().map(|(_, node)| node.inode).collect();
    let at_home = at_home(ours, original);
    for (path, node) in elsewhere {
        match ours.get(path) {
            Some(own) => found.extend(differences(path, node, own, original.get(path))),
            // e2fsck put it into a directory in which it never was.
            None if !original.contains_key(path) && at_home.contains(&(node.inode, node.kind)) => {}
            None => found.extend(spare.replace(path, node)),
        }
    }
    let known: BTreeSet<u64> =
        original.values().flat_map(|node| node.pieces.values().copied()).collect();
    // The remains of a journal, or other data that no file ever held.
    let is_nobodys = |node: &Node| {
        let pieces = &node.pieces;
        !known.is_empty() && !pieces.is_empty() && pieces.values().all(|one| !known.contains(one))
    };
    let values: BTreeSet<(u64, String)> = ours
        .values()
        .flat_map(|node| node.xattrs.values())
        .map(|value| (value.len() as u64, digest(value)))
        .collect();
    let is_value = |node: &Node| values.contains(&(node.size_bytes, node.content.clone()));
    for (path, node) in in_lost_found {
        // The contents of a directory are judged instead of it, and a file with another name is
        // judged by that.
        let is_spoken_for = node.is_dir() || named.contains(&node.inode);
        let is_spoken_for = is_spoken_for || is_value(node);
        if !is_spoken_for && !is_nobodys(node) && spare.take(node, parent(path)).is_none() {
            found.push(loss(LossKind::Gone, path, node, "no object with this content"));
        }
    }
    found.extend(broken_links(theirs, ours));
    found
}

/// Objects of ours that are unchanged from the original, in their original place.
fn at_home(ours: &Tree, original: &Tree) -> BTreeSet<(InodeNr, Option<FileType>)> {
    let same = |(path, own): (&Vec<u8>, &Node)| {
        let before = original.get(path)?;
        let is_same = before.inode == own.inode && before.identity() == own.identity();
        is_same.then_some((own.inode, own.kind))
    };
    ours.iter().filter_map(same).collect()
}

fn loss(kind: LossKind, path: &[u8], node: &Node, instead: impl Into<String>) -> Loss {
    Loss {
        kind,
        file_type: node.kind,
        in_lost_found: path.starts_with(IN_LOST_FOUND),
        path: String::from_utf8_lossy(path).into_owned(),
        instead: instead.into(),
    }
}

/// The worst difference between two objects with the same path; the state `before` the damage is as
/// good as theirs.
fn differences(path: &[u8], theirs: &Node, ours: &Node, before: Option<&Node>) -> Option<Loss> {
    let or_before = |same: &dyn Fn(&Node) -> bool| same(theirs) || before.is_some_and(same);
    let owner = |node: &Node| (node.permissions, node.uid, node.gid);
    let holds_all = before.is_some_and(|before| holds_all_that_is_right(theirs, ours, before))
        || is_readable_at_last(theirs, ours);
    if !holds_all && !or_before(&|node| node.identity() == ours.identity()) {
        let kind = if theirs.kind == ours.kind { LossKind::Content } else { LossKind::Type };
        let instead = format!("{} instead of {}", describe(ours), describe(theirs));
        return Some(loss(kind, path, theirs, instead));
    }
    if !or_before(&|node| owner(node) == owner(ours)) {
        let text = |node: &Node| format!("{:o} {}:{}", node.permissions, node.uid, node.gid);
        let instead = format!("{} instead of {}", text(ours), text(theirs));
        return Some(loss(LossKind::Owner, path, theirs, instead));
    }
    let own = |name| ours.xattrs.get(name);
    // An attribute that neither ours nor the original has was created by the damage.
    let name = theirs
        .xattrs
        .keys()
        .find(|name| !or_before(&|node| node.xattrs.get(*name) == own(*name)))?;
    let what = if own(name).is_some() { "differs" } else { "is missing" };
    let instead = format!("{} {what}", String::from_utf8_lossy(name));
    Some(loss(LossKind::Xattr, path, theirs, instead))
}

/// Whether theirs is unreadable, but ours of the same size is readable.
fn is_readable_at_last(theirs: &Node, ours: &Node) -> bool {
    let is_readable = |node: &Node| !node.content.starts_with(UNREADABLE);
    let same = (theirs.kind, theirs.size_bytes) == (ours.kind, ours.size_bytes);
    same && !is_readable(theirs) && is_readable(ours)
}

/// Whether ours has every chunk that theirs kept from `before` the damage, including holes. Filler
/// that a repair invents does not count.
fn holds_all_that_is_right(theirs: &Node, ours: &Node, before: &Node) -> bool {
    let regular = |node: &Node| node.kind == Some(FileType::Regular) && !node.content.contains(' ');
    if ![theirs, ours, before].into_iter().all(regular) {
        return false;
    }
    let size_is_lost =
        theirs.size_bytes == before.size_bytes && ours.size_bytes != before.size_bytes;
    let is_lost = |at: &u64| {
        let piece = |node: &Node| node.pieces.get(at).copied();
        piece(theirs) == piece(before) && piece(ours) != piece(before)
    };
    let all = [theirs, ours, before].into_iter().flat_map(|node| node.pieces.keys());
    !size_is_lost && !all.into_iter().any(is_lost)
}

/// Identity of a content.
type Identity = (Option<FileType>, u64, String);

fn identity(node: &Node) -> Identity {
    let (kind, size_bytes, content) = node.identity();
    (kind, size_bytes, content.to_owned())
}

/// Objects of ours that no path of the reference matches, by identity.
struct Spare<'t>(BTreeMap<Identity, Vec<&'t [u8]>>);

impl<'t> Spare<'t> {
    fn new(theirs: &Tree, ours: &'t Tree) -> Self {
        let mut spare: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (path, node) in ours {
            let unspoken = !theirs.contains_key(path) || path.starts_with(IN_LOST_FOUND);
            if unspoken && !node.is_dir() {
                spare.entry(identity(node)).or_default().push(&path[..]);
            }
        }
        Self(spare)
    }

    /// Takes an unmatched path of ours with this content, in `folder` if possible.
    fn take(&mut self, node: &Node, folder: &[u8]) -> Option<&'t [u8]> {
        let paths = self.0.get_mut(&identity(node))?;
        let near = paths.iter().position(|path| parent(path) == folder);
        let at = near.or(paths.len().checked_sub(1))?;
        Some(paths.swap_remove(at))
    }

    /// Finds the new place of an object that lost its path.
    fn replace(&mut self, path: &[u8], node: &Node) -> Option<Loss> {
        if node.is_dir() {
            return Some(loss(LossKind::Gone, path, node, "nothing at this path"));
        }
        match self.take(node, parent(path)) {
            Some(other) if parent(other) == parent(path) => None,
            Some(other) => {
                let instead = String::from_utf8_lossy(other);
                Some(loss(LossKind::Moved, path, node, instead))
            }
            None => Some(loss(LossKind::Gone, path, node, "nothing with this content")),
        }
    }
}

/// Paths that are hard links of one file in the reference, but not in ours.
fn broken_links(theirs: &Tree, ours: &Tree) -> Vec<Loss> {
    let mut first: BTreeMap<InodeNr, InodeNr> = BTreeMap::new();
    let mut broken = Vec::new();
    for (path, node) in theirs.iter().filter(|(_, node)| !node.is_dir()) {
        let Some(own) = ours.get(path).filter(|own| own.kind == node.kind) else { continue };
        let linked = *first.entry(node.inode).or_insert(own.inode);
        if linked != own.inode {
            let instead = format!("{} and not {linked}", own.inode);
            broken.push(loss(LossKind::HardLink, path, node, instead));
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(inode: u32, content: &str) -> Node {
        Node {
            kind: Some(FileType::Regular),
            inode: InodeNr(inode),
            size_bytes: content.len() as u64,
            content: content.to_owned(),
            pieces: (0u64..).zip(content.bytes().map(u64::from)).filter(|it| it.1 > 32).collect(),
            permissions: 0o644,
            uid: 0,
            gid: 0,
            xattrs: BTreeMap::from([(b"user.a".to_vec(), b"1".to_vec())]),
        }
    }

    fn tree(nodes: &[(&str, Node)]) -> Tree {
        nodes.iter().map(|(path, node)| (path.as_bytes().to_vec(), node.clone())).collect()
    }

    fn kinds(theirs: &[(&str, Node)], ours: &[(&str, Node)]) -> Vec<LossKind> {
        losses(&tree(theirs), &tree(ours), &Tree::new()).into_iter().map(|loss| loss.kind).collect()
    }

    #[test]
    fn each_kind_of_loss_is_told() {
        let theirs = [("/a/x", node(12, "x"))];
        assert_eq!(kinds(&theirs, &theirs), []);
        assert_eq!(kinds(&theirs, &[]), [LossKind::Gone]);
        assert_eq!(kinds(&theirs, &[("/a/x", node(12, "y"))]), [LossKind::Content]);
        assert_eq!(kinds(&theirs, &[("/b/x", node(12, "x"))]), [LossKind::Moved]);
        assert_eq!(kinds(&theirs, &[("/a/renamed", node(12, "x"))]), []);
        let changed = |change: fn(&mut Node)| {
            let mut other = node(12, "x");
            change(&mut other);
            kinds(&theirs, &[("/a/x", other)])
        };
        assert_eq!(changed(|node| node.kind = Some(FileType::Symlink)), [LossKind::Type]);
        assert_eq!(changed(|node| node.uid = 7), [LossKind::Owner]);
        assert_eq!(changed(|node| node.xattrs.clear()), [LossKind::Xattr]);
        assert_eq!(changed(|node| drop(node.xattrs.insert(vec![1], vec![2]))), []);
    }

    #[test]
    fn a_value_is_kept_by_its_attribute() {
        let value = b"a value of its own";
        let mut with_value = node(12, "x");
        with_value.xattrs.insert(b"user.b".to_vec(), value.to_vec());
        let mut alone = node(13, "");
        (alone.size_bytes, alone.content) = (value.len() as u64, digest(value));
        let theirs = [("/a", node(12, "x")), ("/lost+found/#13", alone)];
        assert_eq!(kinds(&theirs, &[("/a", with_value)]), []);
        assert_eq!(kinds(&theirs, &[("/a", node(12, "x"))]), [LossKind::Gone]);
    }

    #[test]
    fn what_is_as_it_was_is_no_loss() {
        let (theirs, ours) = (tree(&[("/a", node(12, "cut"))]), tree(&[("/a", node(12, "whole"))]));
        assert_eq!(losses(&theirs, &ours, &ours), []);
        assert_eq!(losses(&theirs, &ours, &tree(&[("/a", node(12, "else"))])).len(), 1);
        // An attribute that neither saved does not make the content a loss.
        let bare = |content: &str| Node { xattrs: BTreeMap::new(), ..node(12, content) };
        let (theirs, ours) = (tree(&[("/a", bare("cut"))]), tree(&[("/a", bare("whole"))]));
        assert_eq!(losses(&theirs, &ours, &tree(&[("/a", node(12, "whole"))])), []);
    }

    #[test]
    fn what_is_where_it_was_is_no_loss() {
        let before = tree(&[("/dir/a", node(12, "a")), ("/copy", node(30, "file"))]);
        let theirs = tree(&[("/copy", node(30, "file")), ("/copy/a", node(12, "a"))]);
        assert_eq!(losses(&theirs, &before, &before), []);
        // The object is missing in both, or was elsewhere before.
        let kind = |ours: &Tree, before: &Tree| losses(&theirs, ours, before)[0].kind;
        assert_eq!(kind(&tree(&[("/copy", node(30, "file"))]), &before), LossKind::Gone);
        assert_eq!(kind(&before, &theirs), LossKind::Moved);
    }

    #[test]
    fn what_nobody_can_read_is_not_lost() {
        let (unreadable, whole) = (format!("{UNREADABLE}: EIO"), "x".repeat(20));
        let sized = |content: &str| [("/a", Node { size_bytes: 20, ..node(12, content) })];
        assert_eq!(kinds(&sized(&unreadable), &sized(&whole)), []);
        assert_eq!(kinds(&sized(&whole), &sized(&unreadable)), [LossKind::Content]);
        assert_eq!(kinds(&sized(&unreadable), &[("/a", node(12, "cut"))]), [LossKind::Content]);
    }

    /// One digit per chunk; a space is a hole, which any content without digests may have.
    #[test]
    fn every_piece_that_was_right_must_be_there() {
        let judged = |theirs: &str, ours: &str, before: &str| {
            let sized = |content: &str| Node {
                size_bytes: 9,
                content: content.replace(' ', "_"),
                ..node(12, content)
            };
            let tree = |content| tree(&[("/a", sized(content))]);
            losses(&tree(theirs), &tree(ours), &tree(before)).len()
        };
        // Both have garbage in one chunk; ours has more correct ones.
        assert_eq!(judged("1x  5", "1y3 5", "123 5"), 0);
        // One chunk is wrong, or replaces a hole.
        assert_eq!(judged("1x  5", "1y3 6", "123 5"), 1);
        assert_eq!(judged("1x  5", "1y345", "123 5"), 1);
        // A chunk of theirs is a hole.
        assert_eq!(judged("1x 45", "1y3 5", "12345"), 1);
    }

    #[test]
    fn lost_and_found_is_compared_by_content() {
        let theirs = [("/lost+found/#12", node(12, "x")), ("/lost+found/#13", node(13, "x"))];
        let kept = [("/a/x", node(12, "x")), ("/lost+found/x (2)", node(40, "x"))];
        assert_eq!(kinds(&theirs, &kept), []);
        assert_eq!(kinds(&theirs, &kept[..1]), [LossKind::Gone]);
        // Data that no file held before belongs to nobody.
        let (theirs_alone, before) = (tree(&theirs[..1]), tree(&[("/a", node(12, "y"))]));
        assert_eq!(losses(&theirs_alone, &Tree::new(), &before), []);
        assert_eq!(losses(&theirs_alone, &Tree::new(), &tree(&[("/a", node(12, "x"))])).len(), 1);
        // A file that also has a name elsewhere is one file.
        let theirs_twice = [("/a/x", node(12, "x")), ("/lost+found/#12", node(12, "x"))];
        assert_eq!(kinds(&theirs_twice, &kept[..1]), []);
        assert_eq!(kinds(&theirs_twice, &[]), [LossKind::Gone]);
        // One object cannot match two.
        let theirs = [("/a/x", node(12, "x")), ("/lost+found/#13", node(13, "x"))];
        assert_eq!(kinds(&theirs, &[("/a/x", node(12, "x"))]), [LossKind::Gone]);
    }

    #[test]
    fn links_of_one_file_stay_links_of_one_file() {
        let theirs = [("/a", node(12, "x")), ("/b", node(12, "x"))];
        let renumbered = [("/a", node(50, "x")), ("/b", node(50, "x"))];
        assert_eq!(kinds(&theirs, &renumbered), []);
        let apart = [("/a", node(12, "x")), ("/b", node(13, "x"))];
        assert_eq!(kinds(&theirs, &apart), [LossKind::HardLink]);
    }
}
