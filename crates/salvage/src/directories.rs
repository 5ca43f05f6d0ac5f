//! The tree: lost directories from their blocks, names from old blocks in the journal, and a place
//! for everything that has no name any more.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

use floe_exec::Pool;
use floe_ext4::dir::Entry;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::native::backpointer::Backpointer;
use floe_format::{BlockNr, InodeNr};

use crate::bits::Bits;
use crate::evidence::OwnerKey;
use crate::maps::NewFile;
use crate::names::{Listed, Name, names_in};
use crate::state::State;
use crate::summary::Provenance;

/// The directory for objects without a name.
const LOST_FOUND: &[u8] = b"lost+found";

/// A directory whose inode or whose blocks are lost.
#[derive(Debug, Default)]
struct Damaged {
    /// By `..`, or by the directory that names it.
    parent: Option<InodeNr>,
    blocks: Vec<BlockNr>,
    /// Old copies of its blocks, in the journal.
    old_blocks: Vec<BlockNr>,
    /// Its name if no directory has one.
    name: Option<String>,
}

/// The tree under construction.
#[derive(Debug, Default)]
struct Tree {
    damaged: BTreeMap<InodeNr, Damaged>,
    named: Bits,
    /// The directory that `..` names, of each directory.
    parents: HashMap<InodeNr, InodeNr>,
    additions: BTreeMap<InodeNr, Vec<Name>>,
}

impl State<'_> {
    /// Rebuilds the tree. `files` have new inodes.
    pub(crate) fn rebuild_directories(
        &mut self,
        files: &[NewFile],
        listed: &Listed,
    ) -> io::Result<()> {
        let mut tree = Tree {
            named: Bits::below(u64::from(self.frame.geometry.inodes_count) + 1),
            ..Tree::default()
        };
        for inode in &listed.named {
            tree.named.insert(u64::from(inode.0));
        }
        tree.parents.extend(listed.parents.iter().copied());
        for (directory, loses) in &listed.damaged {
            tree.damaged.entry(*directory).or_default();
            if *loses {
                self.summary.losses.partial_directories.insert(*directory);
            }
        }
        self.gather_blocks(&mut tree);
        for (inode, file_type, directory) in &listed.lost {
            self.note_lost(&mut tree, *inode, *file_type, *directory);
        }
        self.name_from_blocks(&mut tree);
        self.name_from_journal(&mut tree);
        self.add_parents(&mut tree);
        self.attach(&mut tree, files);
        self.write(tree)
    }

    /// Lists all directories in use.
    pub(crate) fn list(&self, pool: &Pool<'_>) -> Listed {
        let files = self.space.files();
        let mut listed = pool.run(&self.evidence.directories, |found: &mut Listed, directory| {
            found.take(&files, *directory, &|inode| self.is_live(inode));
        });
        listed.settle();
        listed
    }

    /// Assigns directory blocks to damaged directories, and those of unknown directories to new
    /// ones.
    fn gather_blocks(&mut self, tree: &mut Tree) {
        let blocks = std::mem::take(&mut self.evidence.directory_blocks);
        for found in &blocks {
            if found.dot.0 != 0 && !self.is_live(found.dot) {
                tree.parents.entry(found.dot).or_insert(found.dotdot);
            }
        }
        self.vote(&blocks, tree);
        let mut unknown: BTreeMap<OwnerKey, InodeNr> = BTreeMap::new();
        for found in blocks {
            // The listing of its directory has these entries.
            if self.listed.contains(found.block.0) {
                continue;
            }
            let is_old = self.is_in_journal(found.block);
            let owner = match self.owners.get(&found.owner) {
                Some(owner) => *owner,
                None if found.dot.0 != 0 && self.frame.seed().is_none() => found.dot,
                // An earlier directory with this number, or an old copy that belongs to nothing.
                None if found.dot.0 != 0 || is_old => continue,
                None => match unknown.get(&found.owner) {
                    Some(owner) => *owner,
                    None => {
                        let Some(new) = self.space.take_inode() else { continue };
                        unknown.insert(found.owner, new);
                        let name = Some(found.owner.name());
                        tree.damaged.insert(new, Damaged { name, ..Damaged::default() });
                        new
                    }
                },
            };
            if self.is_live(owner) && !tree.damaged.contains_key(&owner) {
                continue;
            }
            let directory = tree.damaged.entry(owner).or_default();
            if found.dotdot.0 != 0 {
                directory.parent.get_or_insert(found.dotdot);
            }
            let list = if is_old { &mut directory.old_blocks } else { &mut directory.blocks };
            list.push(found.block);
        }
    }

    /// The backpointer of an inode in its place, in a native file system.
    fn backpointer(&self, inode: InodeNr) -> Option<Backpointer> {
        if !self.frame.is_native() || !self.is_live(inode) {
            return None;
        }
        self.space.inode(inode)?.backpointer()
    }

    /// The directory that an inode without a name was in, as its backpointer says: one that is there, or one that is lost
    /// altogether and is made anew.
    fn hinted_parent(&self, inode: InodeNr, tree: &mut Tree) -> Option<InodeNr> {
        let parent = InodeNr(self.backpointer(inode)?.parent);
        if parent == inode || !self.is_number(parent) {
            return None;
        }
        let is_directory = tree.damaged.contains_key(&parent)
            || self.evidence.directories.binary_search(&parent).is_ok();
        if !is_directory && self.is_live(parent) {
            return None;
        }
        tree.damaged.entry(parent).or_default();
        Some(parent)
    }

    /// Finds the numbers of directories whose first block is lost: their subdirectories say `..`, and in native file systems
    /// inodes say which directory names them.
    fn vote(&mut self, blocks: &[crate::evidence::DirectoryFound], tree: &Tree) {
        let limit = self.frame.geometry.inodes_count;
        let mut votes: BTreeMap<OwnerKey, BTreeMap<InodeNr, u32>> = BTreeMap::new();
        for found in blocks {
            let is_known = self.owners.contains_key(&found.owner)
                || found.dot.0 != 0
                || self.listed.contains(found.block.0);
            if is_known {
                continue;
            }
            for name in names_in(&self.block_or_zeroes(found.block), limit) {
                let is_directory = name.file_type.is_none_or(|kind| kind == FileType::Directory);
                let parent = tree.parents.get(&name.inode).copied().filter(|_| is_directory);
                let hinted = self.backpointer(name.inode).filter(|own| own.is_of_name(&name.name));
                let hinted = hinted.map(|own| InodeNr(own.parent));
                for parent in parent.into_iter().chain(hinted) {
                    *votes.entry(found.owner).or_default().entry(parent).or_default() += 1;
                }
            }
        }
        let mut owned: BTreeSet<InodeNr> = self.owners.values().copied().collect();
        for (owner, parents) in votes {
            let most =
                parents.iter().max_by_key(|(inode, votes)| (**votes, std::cmp::Reverse(**inode)));
            let Some((inode, _)) = most else { continue };
            // With checksums, a directory in use or with a first block has another seed.
            let is_open =
                self.frame.seed().is_none() || !self.is_live(*inode) && owned.insert(*inode);
            if is_open {
                self.owners.insert(owner, *inode);
            }
        }
    }

    /// Notes that an entry names a lost inode. A directory is rebuilt, if only as the parent of others.
    fn note_lost(
        &mut self,
        tree: &mut Tree,
        inode: InodeNr,
        file_type: Option<FileType>,
        directory: InodeNr,
    ) {
        tree.named.insert(u64::from(inode.0));
        if file_type == Some(FileType::Directory) && self.is_number(inode) && !self.is_live(inode) {
            tree.damaged.entry(inode).or_default().parent = Some(directory);
        }
    }

    /// Names the children of damaged directories that have blocks, and so finds further ones.
    fn name_from_blocks(&mut self, tree: &mut Tree) {
        let limit = self.frame.geometry.inodes_count;
        let mut queue: Vec<InodeNr> = tree.damaged.keys().copied().collect();
        let mut done = BTreeSet::new();
        while let Some(directory) = queue.pop() {
            if !done.insert(directory) {
                continue;
            }
            let Some(blocks) = tree.damaged.get(&directory).map(|found| found.blocks.clone())
            else {
                continue;
            };
            for block in blocks {
                for name in names_in(&self.block_or_zeroes(block), limit) {
                    let is_new = !tree.damaged.contains_key(&name.inode);
                    self.note_lost(tree, name.inode, name.file_type, directory);
                    if is_new && tree.damaged.contains_key(&name.inode) {
                        queue.push(name.inode);
                    }
                }
            }
        }
    }

    /// Adds names from old directory blocks to damaged directories, for objects without a name.
    fn name_from_journal(&mut self, tree: &mut Tree) {
        let limit = self.frame.geometry.inodes_count;
        let directories: Vec<InodeNr> = tree.damaged.keys().copied().collect();
        for directory in directories {
            let old =
                tree.damaged.get_mut(&directory).map(|found| std::mem::take(&mut found.old_blocks));
            // Later copies first: they lie behind earlier ones unless the journal wrapped.
            for block in old.unwrap_or_default().into_iter().rev() {
                for name in names_in(&self.block_or_zeroes(block), limit) {
                    let is_found =
                        self.is_live(name.inode) || tree.damaged.contains_key(&name.inode);
                    let is_named = tree.named.contains(u64::from(name.inode.0));
                    if !is_found || is_named && !self.has_several_links(name.inode) {
                        continue;
                    }
                    tree.named.insert(u64::from(name.inode.0));
                    tree.additions.entry(directory).or_default().push(name);
                    self.summary.names_from_journal += 1;
                }
            }
        }
    }

    /// Whether a file may have further names.
    fn has_several_links(&self, inode: InodeNr) -> bool {
        let inode = self.space.inode(inode).filter(|_| self.is_live(inode));
        inode.is_some_and(|inode| {
            inode.base.links_count > 1 && inode.file_type() != Some(FileType::Directory)
        })
    }

    /// Adds directories of which only `..` of others speaks, and the root.
    fn add_parents(&self, tree: &mut Tree) {
        let parents: Vec<InodeNr> = tree.parents.values().copied().collect();
        for parent in parents.into_iter().chain([InodeNr::ROOT]) {
            if self.is_number(parent) && !self.is_live(parent) {
                tree.damaged.entry(parent).or_default();
            }
        }
    }

    /// Gives files without a name a place in the directory that their backpointers name.
    fn place_by_hints(&mut self, tree: &mut Tree) {
        let candidates: Vec<InodeNr> =
            self.evidence.in_place.iter().map(|found| found.inode).collect();
        for inode in candidates {
            let is_nameless = !tree.named.contains(u64::from(inode.0))
                && !self.frame.geometry.is_reserved(inode)
                && self.evidence.directories.binary_search(&inode).is_err();
            if !is_nameless {
                continue;
            }
            let Some(parent) = self.hinted_parent(inode, tree) else { continue };
            let file_type = self.space.inode(inode).and_then(|found| found.file_type());
            let name = format!("#{}", inode.0).into_bytes();
            tree.additions.entry(parent).or_default().push(Name { inode, name, file_type });
            tree.named.insert(u64::from(inode.0));
            self.summary.inodes.placed_by_hints += 1;
            self.summary.unnamed += 1;
        }
    }

    /// Gives everything without a name a place: directories below their `..`, the rest in lost+found.
    fn attach(&mut self, tree: &mut Tree, files: &[NewFile]) {
        self.place_by_hints(tree);
        let mut homeless = Vec::new();
        let directories: BTreeSet<InodeNr> =
            self.evidence.directories.iter().chain(tree.damaged.keys()).copied().collect();
        for &directory in &directories {
            if directory == InodeNr::ROOT || tree.named.contains(u64::from(directory.0)) {
                continue;
            }
            let damaged = tree.damaged.get(&directory);
            let parent = damaged.and_then(|found| found.parent);
            let parent = parent.or_else(|| tree.parents.get(&directory).copied());
            let parent = parent.or_else(|| Some(InodeNr(self.backpointer(directory)?.parent)));
            let name = damaged.and_then(|found| found.name.clone());
            let name = Name {
                inode: directory,
                name: name.unwrap_or_else(|| format!("#{}", directory.0)).into_bytes(),
                file_type: Some(FileType::Directory),
            };
            match parent.filter(|parent| *parent != directory && directories.contains(parent)) {
                Some(parent) => tree.additions.entry(parent).or_default().push(name),
                None => homeless.push(name),
            }
            self.summary.unnamed += 1;
        }
        homeless.extend(self.unnamed_files(tree, files));
        if !homeless.is_empty() {
            let place = self.lost_found(tree);
            tree.additions.entry(place).or_default().extend(homeless);
        }
    }

    /// Files that no directory names.
    fn unnamed_files(&mut self, tree: &Tree, files: &[NewFile]) -> Vec<Name> {
        let mut unnamed: Vec<Name> = files
            .iter()
            .filter(|file| !tree.named.contains(u64::from(file.inode.0)))
            .map(|file| Name {
                inode: file.inode,
                name: file.name.clone().into_bytes(),
                file_type: Some(FileType::Regular),
            })
            .collect();
        let geometry = &self.frame.geometry;
        let system = [self.space.superblock.orphan_file_inum, self.space.superblock.prj_quota_inum];
        for found in &self.evidence.in_place {
            let number = found.inode;
            let is_candidate = !geometry.is_reserved(number)
                && !system.contains(&number.0)
                && !tree.named.contains(u64::from(number.0))
                && !tree.damaged.contains_key(&number)
                && self.evidence.directories.binary_search(&number).is_err();
            if !is_candidate {
                continue;
            }
            let Some(inode) = self.space.inode(number) else { continue };
            if inode.flags().contains(InodeFlags::EA_INODE) {
                continue;
            }
            let name = format!("#{}", number.0).into_bytes();
            unnamed.push(Name { inode: number, name, file_type: inode.file_type() });
        }
        self.summary.unnamed += unnamed.len() as u64;
        unnamed
    }

    /// The directory lost+found in the root; a new one if there is none.
    fn lost_found(&mut self, tree: &mut Tree) -> InodeNr {
        let named = self.names_of(InodeNr::ROOT, tree).into_iter();
        let mut named = named.filter(|name| name.name == LOST_FOUND);
        let is_directory = |inode: InodeNr| {
            tree.damaged.contains_key(&inode)
                || self.evidence.directories.binary_search(&inode).is_ok()
        };
        if let Some(found) = named.find(|name| is_directory(name.inode)) {
            return found.inode;
        }
        drop(named);
        let Some(inode) = self.space.take_inode() else { return InodeNr::ROOT };
        let parent = Some(InodeNr::ROOT);
        tree.damaged.insert(inode, Damaged { parent, ..Damaged::default() });
        let name = LOST_FOUND.to_vec();
        let name = Name { inode, name, file_type: Some(FileType::Directory) };
        tree.additions.entry(InodeNr::ROOT).or_default().push(name);
        inode
    }

    /// All known names in a directory, each pair of name and inode once.
    fn names_of(&self, directory: InodeNr, tree: &Tree) -> Vec<Name> {
        let mut names = Vec::new();
        if self.is_live(directory) {
            let files = self.space.files();
            let listing = files.node(directory).ok().and_then(|node| files.list(&node).ok());
            names.extend(listing.unwrap_or_default().entries.into_iter().map(|entry| Name {
                inode: entry.inode,
                name: entry.name,
                file_type: entry.file_type,
            }));
        }
        let limit = self.frame.geometry.inodes_count;
        for block in tree.damaged.get(&directory).iter().flat_map(|found| &found.blocks) {
            names.extend(names_in(&self.block_or_zeroes(*block), limit));
        }
        names.extend(tree.additions.get(&directory).into_iter().flatten().cloned());
        names.sort();
        names.dedup_by(|one, other| (one.inode, &one.name) == (other.inode, &other.name));
        names
    }

    /// Writes all directories that are damaged or get new entries.
    fn write(&mut self, tree: Tree) -> io::Result<()> {
        let touched: BTreeSet<InodeNr> =
            tree.damaged.keys().chain(tree.additions.keys()).copied().collect();
        for directory in touched {
            let was_live = self.is_live(directory);
            let names = self.names_of(directory, &tree);
            let Some(mut inode) = (match was_live {
                true => self.space.inode(directory),
                false => {
                    let mode = FileType::Directory.mode(0o755);
                    self.space.new_inode(directory, mode, 0)
                }
            }) else {
                continue;
            };
            // Encrypted names are unreadable without the key, and the listing has them in base64.
            if inode.flags().contains(InodeFlags::ENCRYPT) {
                continue;
            }
            let known = tree.damaged.get(&directory).and_then(|found| found.parent);
            let parent = known.or_else(|| tree.parents.get(&directory).copied());
            let entries = names.into_iter().map(|name| {
                let kind = name.file_type.map_or(0, |kind| kind as u8);
                Entry::new(name.inode, name.name, kind)
            });
            let parent = parent.unwrap_or(InodeNr::ROOT);
            inode.base.links_count = inode.base.links_count.max(2);
            if self.space.put_directory(&mut inode, parent, entries.collect())?.is_none() {
                continue;
            }
            self.live.insert(u64::from(directory.0));
            let has_blocks = tree.damaged.get(&directory).is_some_and(|it| !it.blocks.is_empty());
            // Numbers behind those of the source belong to new directories, such as lost+found.
            if !was_live && !has_blocks && self.is_number(directory) {
                self.summary.losses.partial_directories.insert(directory);
            }
            let (count, provenance) = match was_live {
                true => (&mut self.summary.directories_extended, Provenance::Extended),
                false => (&mut self.summary.directories_rebuilt, Provenance::Directory),
            };
            *count += 1;
            self.summary.provenance.entry(directory).or_insert(provenance);
        }
        Ok(())
    }
}
