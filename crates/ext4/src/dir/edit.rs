//! Inserts and removes names of a directory in place: in linear directories, and in indexed ones,
//! whose leaves and nodes are split when they are full.

use floe_format::ext::dirent::DirCursor;
use floe_format::ext::dirhash::DirHash;
use floe_format::ext::extent::Extent;
use floe_format::ext::htree::{
    DxBlock, DxEntry, FLAG_INCOMPAT, HASH_CONTINUES, HashVersion, NODE_COUNT_OFFSET,
    ROOT_COUNT_OFFSET, RootHead, expected_limit, write_checksum, write_node, write_root,
};
use floe_format::ext::inode::{InodeFlags, OwnedInode};
use floe_format::ext::superblock::FLAG_UNSIGNED_HASH;
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use super::index::hash_of;
use super::{DirFormat, Directory, Entry, empty_block, insert, remove, seal};
use crate::alloc::Allocate;
use crate::fs::FileSystem;
use crate::map::edit::TreeEditor;
use crate::map::extent_tree::NodeForm;
use crate::map::runs::BlockMap;
use crate::map::walk::Depths;
use crate::tx::{Refusal, Tx};

const DAMAGED: Refusal = Refusal::Damaged("the directory");

/// Changes the names of one directory. The directory must not be inline, and cannot grow if it is
/// mapped without extents. The caller updates link counts, and writes the directory's inode, whose
/// size, blocks and flags may change ([`FileSystem::put_inode`]).
pub struct DirEditor<'d> {
    /// Where blocks are read and changed.
    pub tx: &'d mut dyn Tx,
    /// The file system, which provides blocks when the directory grows.
    pub fs: &'d mut FileSystem,
    /// The inode of the directory.
    pub inode: &'d mut OwnedInode,
    dir: Directory,
    format: DirFormat,
    map: BlockMap,
}

/// The place of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The block that contains it.
    pub block: BlockNr,
    /// Offset of its entry in the block.
    pub offset: u32,
    /// The inode it names.
    pub inode: InodeNr,
    /// Its type byte; 0 without the filetype feature.
    pub file_type: u8,
}

/// An index block on the path to a leaf.
struct Step {
    block: BlockNr,
    entries: Vec<DxEntry>,
    /// Index of the entry that was followed.
    taken: usize,
}

impl<'d> DirEditor<'d> {
    /// Opens a directory whose `..` names `parent`.
    ///
    /// # Errors
    /// [`Refusal::Damaged`] if its map cannot be followed, [`Refusal::TooMuch`] for an inline directory.
    pub fn open(
        tx: &'d mut dyn Tx,
        fs: &'d mut FileSystem,
        inode: &'d mut OwnedInode,
        parent: InodeNr,
    ) -> Result<Self, Refusal> {
        let flags = inode.flags();
        if flags.contains(InodeFlags::INLINE_DATA) {
            return Err(Refusal::TooMuch("an inline directory cannot be edited in place"));
        }
        let dir = Directory {
            inode: inode.number,
            parent,
            generation: inode.base.generation,
            encrypted: flags.contains(InodeFlags::ENCRYPT),
            casefolded: flags.contains(InodeFlags::CASEFOLD),
        };
        let format = DirFormat::of(&fs.superblock, fs.geometry());
        let map = BlockMap::default();
        let mut editor = Self { tx, fs, inode, dir, format, map };
        editor.reread()?;
        Ok(editor)
    }

    /// Reads the map again.
    fn reread(&mut self) -> Result<(), Refusal> {
        let (geo, blocks) = (self.fs.geometry(), self.blocks());
        let (root, flags) = (&self.inode.base.block, self.inode.flags());
        let tx = &mut self.tx;
        let mut read = |node| tx.block(node).ok();
        let map = BlockMap::follow(root, flags, geo, Depths::Agree, blocks, &mut read);
        self.map = map.map_err(|_| DAMAGED)?;
        Ok(())
    }

    /// Number of blocks by `i_size`.
    fn blocks(&self) -> u64 {
        self.inode.size_bytes() / u64::from(self.fs.geometry().block_size)
    }

    fn place(&self, logical: LogicalBlock) -> Result<BlockNr, Refusal> {
        self.map.block(logical.0).ok_or(DAMAGED)
    }

    /// Looks a name up.
    ///
    /// # Errors
    /// [`Refusal::Damaged`], or an error of reading a block.
    pub fn find(&mut self, name: &[u8]) -> Result<Option<Found>, Refusal> {
        for block in self.map.blocks() {
            let bytes = self.tx.block(block)?;
            let form = self.dir.form(&self.format);
            let mut entries = DirCursor::new(&bytes)
                .ending_at(form.end(bytes.len()))
                .hashed(form.hashed)
                .map_while(Result::ok);
            if let Some(entry) = entries.find(|entry| entry.in_use() && entry.name == name) {
                let (offset, inode) = (entry.offset, entry.inode);
                return Ok(Some(Found { block, offset, inode, file_type: entry.file_type }));
            }
        }
        Ok(None)
    }

    /// Removes a name. Returns the inode it named; `None` if the name does not exist.
    ///
    /// # Errors
    /// Those of [`DirEditor::find`].
    pub fn remove(&mut self, name: &[u8]) -> Result<Option<InodeNr>, Refusal> {
        let Some(found) = self.find(name)? else { return Ok(None) };
        let bytes = self.tx.block_mut(found.block)?;
        remove(bytes, self.dir.form(&self.format), found.offset).ok_or(DAMAGED)?;
        seal(bytes, self.dir.inode_seed(&self.format));
        Ok(Some(found.inode))
    }

    /// Adds a name. The caller must have checked that it does not exist. A linear directory whose
    /// only block is full gets an index, if the file system has dir_index.
    ///
    /// # Errors
    /// [`Refusal::Full`] if no blocks are free, [`Refusal::TooMuch`] if the index cannot be deeper,
    /// [`Refusal::Damaged`], or an error of reading or changing a block.
    pub fn insert(&mut self, entry: &Entry<'_>) -> Result<(), Refusal> {
        if self.inode.flags().contains(InodeFlags::INDEX) {
            return self.insert_indexed(entry);
        }
        for block in self.map.blocks().collect::<Vec<_>>() {
            if self.insert_in(block, entry)? {
                return Ok(());
            }
        }
        if self.format.dir_index && self.blocks() == 1 {
            self.make_index()?;
            return self.insert_indexed(entry);
        }
        let (_, block) = self.grow()?;
        let empty = empty_block(&self.format, &self.dir);
        self.tx.zeroed(block)?.copy_from_slice(&empty);
        if self.insert_in(block, entry)? { Ok(()) } else { Err(DAMAGED) }
    }

    /// Adds an entry to a leaf or linear block, if it has space. Returns whether it had.
    fn insert_in(&mut self, block: BlockNr, entry: &Entry<'_>) -> Result<bool, Refusal> {
        let mut bytes = self.tx.block(block)?;
        if insert(&mut bytes, self.dir.form(&self.format), entry).is_none() {
            return Ok(false);
        }
        seal(&mut bytes, self.dir.inode_seed(&self.format));
        self.tx.block_mut(block)?.copy_from_slice(&bytes);
        Ok(true)
    }

    /// Appends a zeroed block to the directory.
    fn grow(&mut self) -> Result<(LogicalBlock, BlockNr), Refusal> {
        if !self.inode.flags().contains(InodeFlags::EXTENTS) {
            return Err(Refusal::TooMuch(
                "a directory mapped without extents cannot grow in place",
            ));
        }
        let geo = self.fs.geometry().clone();
        let logical = LogicalBlock(self.blocks());
        let block = self.next_block(logical)?;
        self.tx.zeroed(block)?;
        let inode_seed = self.fs.seed().map(|seed| self.inode.seed(seed));
        let form = NodeForm { block_size: geo.block_size, inode_seed };
        let space = &mut self.fs.space;
        let mut editor = TreeEditor { tx: &mut *self.tx, space, form, goal: block, steps: 0 };
        let extent = Extent { logical, run: BlockRun::new(block, 1), unwritten: false };
        editor.insert(&mut self.inode.base.block, extent)?;
        self.inode.set_size_bytes((logical.0 + 1) * u64::from(geo.block_size));
        self.reread()?;
        let bit64 = geo.features.incompat.contains(Incompat::BIT64);
        let clusters =
            self.map.clusters(&geo) + u64::from(self.inode.file_acl(bit64) != BlockNr(0));
        let units = (clusters << geo.cluster_bits) * geo.count_units(self.inode.flags());
        self.inode.set_blocks(units);
        Ok((logical, block))
    }

    /// The physical block for a new logical block: the next one of the last cluster, or a newly
    /// allocated one near the last block.
    fn next_block(&mut self, logical: LogicalBlock) -> Result<BlockNr, Refusal> {
        let cluster = u64::from(self.fs.geometry().cluster_blocks);
        let before = logical.0.checked_sub(1).and_then(|before| self.map.block(before));
        match before {
            Some(before) if !logical.0.is_multiple_of(cluster) => Ok(BlockNr(before.0 + 1)),
            _ => self.fs.space.block(self.tx, before.unwrap_or_default()),
        }
    }

    /// The names of a leaf or linear block with their hashes, sorted by hash.
    fn names_in(&self, bytes: &[u8]) -> Vec<(DirHash, Entry<'static>)> {
        let form = self.dir.form(&self.format);
        let cursor = DirCursor::new(bytes).ending_at(form.end(bytes.len())).hashed(form.hashed);
        let mut names: Vec<_> = cursor
            .map_while(Result::ok)
            .filter(|entry| entry.in_use() && !entry.is_dot_or_dotdot())
            .map(|old| {
                let mut entry = Entry::new(old.inode, old.name.to_vec(), old.file_type);
                entry.hash = if form.hashed { old.stored_hash() } else { None };
                (hash_of(&self.format, &self.dir, &entry), entry)
            })
            .collect();
        names.sort_by_key(|(hash, _)| (hash.hash, hash.minor_hash));
        names
    }

    /// Fills a block with names. The caller ensures that they fit.
    fn fill(&mut self, block: BlockNr, names: &[(DirHash, Entry<'_>)]) -> Result<(), Refusal> {
        let mut bytes = empty_block(&self.format, &self.dir);
        let form = self.dir.form(&self.format);
        for (_, entry) in names {
            insert(&mut bytes, form, entry).ok_or(DAMAGED)?;
        }
        seal(&mut bytes, self.dir.inode_seed(&self.format));
        self.tx.zeroed(block)?.copy_from_slice(&bytes);
        Ok(())
    }

    /// Splits the names of a block in two halves, moves the second half to a new block, and returns
    /// the index entry of that block.
    fn halve(
        &mut self,
        first: BlockNr,
        names: &[(DirHash, Entry<'_>)],
    ) -> Result<DxEntry, Refusal> {
        if names.len() < 2 {
            return Err(Refusal::TooMuch("a name does not fit a block"));
        }
        let form = self.dir.form(&self.format);
        let sizes = || names.iter().map(|(_, entry)| form.needed(&entry.name));
        let (half, mut sum) = (sizes().sum::<usize>() / 2, 0);
        let at = sizes().position(|size| {
            sum += size;
            sum > half
        });
        let at = at.unwrap_or(1).clamp(1, names.len() - 1);
        let (logical, second) = self.grow()?;
        self.fill(first, &names[..at])?;
        self.fill(second, &names[at..])?;
        let (before, hash) = (names[at - 1].0.hash, names[at].0.hash);
        let continues = if before == hash { HASH_CONTINUES } else { 0 };
        Ok(DxEntry { hash: hash | continues, block: logical })
    }

    /// Converts a linear directory of one block into the root of an index with two leaves.
    fn make_index(&mut self) -> Result<(), Refusal> {
        let root = self.place(LogicalBlock(0))?;
        let bytes = self.tx.block(root)?;
        let names = self.names_in(&bytes);
        let (logical, leaf) = self.grow()?;
        let second = self.halve(leaf, &names)?;
        let head = RootHead {
            dir: self.dir.inode,
            parent: self.dir.parent,
            file_type: self.format.dir_type(),
            hash_version: super::index::stored_version(&self.format, &self.dir),
            indirect_levels: 0,
        };
        self.put_root(root, &head, &[DxEntry { hash: 0, block: logical }, second])?;
        self.inode.set_flags(InodeFlags::INDEX, true);
        Ok(())
    }

    fn put_root(
        &mut self,
        block: BlockNr,
        head: &RootHead,
        entries: &[DxEntry],
    ) -> Result<(), Refusal> {
        let (csum, inode_seed) = (self.format.seed.is_some(), self.dir.inode_seed(&self.format));
        let bytes = self.tx.zeroed(block)?;
        write_root(bytes, head, entries, csum).ok_or(DAMAGED)?;
        inode_seed.map_or(Some(()), |seed| write_checksum(seed, bytes)).ok_or(DAMAGED)
    }

    fn put_node(&mut self, block: BlockNr, entries: &[DxEntry]) -> Result<(), Refusal> {
        let (csum, inode_seed) = (self.format.seed.is_some(), self.dir.inode_seed(&self.format));
        let bytes = self.tx.zeroed(block)?;
        write_node(bytes, entries, csum).ok_or(DAMAGED)?;
        inode_seed.map_or(Some(()), |seed| write_checksum(seed, bytes)).ok_or(DAMAGED)
    }

    /// The fields of the root besides its entries. From now on, names are hashed with its hash
    /// version.
    fn head(&mut self, root: &[u8]) -> Result<RootHead, Refusal> {
        let info = DxBlock::root_info(root).ok_or(DAMAGED)?;
        let unsigned = self.fs.superblock.flags & FLAG_UNSIGNED_HASH != 0;
        let version = HashVersion::of_root(info.hash_version, unsigned).ok_or(DAMAGED)?;
        let mut dots = DirCursor::new(root).map_while(Result::ok);
        let (dot, dotdot) = (dots.next(), dots.next());
        let (Some(dot), Some(dotdot)) = (dot, dotdot) else { return Err(DAMAGED) };
        if info.unused_flags & FLAG_INCOMPAT != 0 || info.indirect_levels > 2 {
            return Err(DAMAGED);
        }
        self.format.hash_version = version;
        Ok(RootHead {
            dir: dot.inode,
            parent: dotdot.inode,
            file_type: dot.file_type,
            hash_version: info.hash_version,
            indirect_levels: info.indirect_levels,
        })
    }

    /// The index blocks on the path to the leaf for a hash, starting with the root.
    fn descend(&mut self, head: &RootHead, hash: u32) -> Result<Vec<Step>, Refusal> {
        let mut steps: Vec<Step> = Vec::new();
        let mut logical = LogicalBlock(0);
        for level in 0..=head.indirect_levels {
            let block = self.place(logical)?;
            let bytes = self.tx.block(block)?;
            let index = if level == 0 { DxBlock::root(&bytes) } else { DxBlock::node(&bytes) };
            let entries: Vec<DxEntry> = index.ok_or(DAMAGED)?.entries().collect();
            let taken = entries.partition_point(|entry| entry.hash <= hash).checked_sub(1);
            let taken = taken.ok_or(DAMAGED)?;
            logical = entries[taken].block;
            if logical.0 == 0 || steps.iter().any(|step| step.block == block) {
                return Err(DAMAGED);
            }
            steps.push(Step { block, entries, taken });
        }
        Ok(steps)
    }

    fn insert_indexed(&mut self, entry: &Entry<'_>) -> Result<(), Refusal> {
        // Names of very different lengths may need more than one split.
        for _ in 0..8 {
            let root = self.place(LogicalBlock(0))?;
            let bytes = self.tx.block(root)?;
            let head = self.head(&bytes)?;
            let hash = hash_of(&self.format, &self.dir, entry).hash;
            let steps = self.descend(&head, hash)?;
            let last = steps.last().ok_or(DAMAGED)?;
            let leaf = self.place(last.entries[last.taken].block)?;
            if self.insert_in(leaf, entry)? {
                return Ok(());
            }
            let bytes = self.tx.block(leaf)?;
            let names = self.names_in(&bytes);
            let new = self.halve(leaf, &names)?;
            self.add_to_index(head, steps, new)?;
        }
        Err(Refusal::TooMuch("a name does not fit a block"))
    }

    /// Inserts an index entry behind the one that was followed. Full index blocks are split, and a
    /// full root gets another level below it.
    fn add_to_index(
        &mut self,
        mut head: RootHead,
        mut steps: Vec<Step>,
        mut new: DxEntry,
    ) -> Result<(), Refusal> {
        let csum = self.format.seed.is_some();
        let limit_of = |offset| usize::from(expected_limit(self.format.block_size, offset, csum));
        let (node_limit, root_limit) = (limit_of(NODE_COUNT_OFFSET), limit_of(ROOT_COUNT_OFFSET));
        while let Some(mut step) = steps.pop() {
            step.entries.insert(step.taken + 1, new);
            if steps.is_empty() {
                if step.entries.len() > root_limit {
                    let most = if self.format.large_dir { 2 } else { 1 };
                    if head.indirect_levels >= most {
                        return Err(Refusal::TooMuch("the index of the directory is full"));
                    }
                    // Two new nodes, because a single one would be full.
                    let (left, node) = self.grow()?;
                    let (right, other) = self.grow()?;
                    let half = step.entries.split_off(step.entries.len() / 2);
                    self.put_node(node, &step.entries)?;
                    self.put_node(other, &half)?;
                    head.indirect_levels += 1;
                    step.entries = vec![
                        DxEntry { hash: 0, block: left },
                        DxEntry { hash: half[0].hash, block: right },
                    ];
                }
                return self.put_root(step.block, &head, &step.entries);
            }
            if step.entries.len() <= node_limit {
                return self.put_node(step.block, &step.entries);
            }
            let half = step.entries.split_off(step.entries.len() / 2);
            let (logical, other) = self.grow()?;
            self.put_node(step.block, &step.entries)?;
            self.put_node(other, &half)?;
            new = DxEntry { hash: half[0].hash, block: logical };
        }
        Err(DAMAGED)
    }
}
