//! The index of a directory: looks up names through it, and splits its leaves and nodes when they
//! are full.

use floe_format::ext::dirent::DirCursor;
use floe_format::ext::dirhash::DirHash;
use floe_format::ext::htree::{
    DxBlock, DxEntry, FLAG_INCOMPAT, HASH_CONTINUES, HashVersion, NODE_COUNT_OFFSET,
    ROOT_COUNT_OFFSET, RootHead, expected_limit, write_checksum, write_node, write_root,
};
use floe_format::ext::inode::InodeFlags;
use floe_format::ext::superblock::FLAG_UNSIGNED_HASH;
use floe_format::{BlockNr, LogicalBlock};

use super::super::index::{hash_of, stored_version};
use super::super::{Entry, empty_block, insert, seal};
use super::{DAMAGED, DirEditor, Found};
use crate::alloc::Space;
use crate::tx::Refusal;

/// An index block on the path to a leaf.
struct Step {
    block: BlockNr,
    entries: Vec<DxEntry>,
    /// Index of the entry that was followed.
    taken: usize,
}

impl<S: Space> DirEditor<'_, S> {
    /// Looks up a name through the index. Names with one hash may continue in the next leaves, if
    /// the index says so.
    pub(super) fn find_indexed(&mut self, name: &[u8]) -> Result<Option<Found>, Refusal> {
        let root = self.place(LogicalBlock(0))?;
        let bytes = self.read(root)?;
        let head = self.head(&bytes)?;
        let entry = Entry::new(self.dir.inode, name.to_vec(), 0);
        let hash = hash_of(&self.format, &self.dir, &entry).hash;
        let mut steps = self.descend(&head, hash)?;
        loop {
            let last = steps.last().ok_or(DAMAGED)?;
            let leaf = self.place(last.entries[last.taken].block)?;
            let found = self.find_in(leaf, name)?;
            if found.is_some() || !self.advance(&mut steps, hash)? {
                return Ok(found);
            }
        }
    }

    /// Advances to the next leaf if it continues this hash; returns whether it does.
    fn advance(&mut self, steps: &mut Vec<Step>, hash: u32) -> Result<bool, Refusal> {
        let full = steps.len();
        while let Some(mut step) = steps.pop() {
            let Some(next) = step.entries.get(step.taken + 1).copied() else { continue };
            if next.hash != hash | HASH_CONTINUES {
                return Ok(false);
            }
            step.taken += 1;
            steps.push(step);
            let mut logical = next.block;
            while steps.len() < full {
                let block = self.place(logical)?;
                let bytes = self.read(block)?;
                let node = DxBlock::node(&bytes).ok_or(DAMAGED)?;
                let entries: Vec<DxEntry> = node.entries().collect();
                logical = entries.first().ok_or(DAMAGED)?.block;
                steps.push(Step { block, entries, taken: 0 });
            }
            return Ok(true);
        }
        Ok(false)
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
    pub(super) fn make_index(&mut self) -> Result<(), Refusal> {
        let root = self.place(LogicalBlock(0))?;
        let bytes = self.read(root)?;
        let names = self.names_in(&bytes);
        let (logical, leaf) = self.grow()?;
        let second = self.halve(leaf, &names)?;
        let parent = self.find_in(root, b"..")?.map_or(self.dir.parent, |found| found.inode);
        let head = RootHead {
            dir: self.dir.inode,
            parent,
            file_type: self.format.dir_type(),
            hash_version: stored_version(&self.format, &self.dir),
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
            let bytes = self.read(block)?;
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

    pub(super) fn insert_indexed(&mut self, entry: &Entry<'_>) -> Result<(), Refusal> {
        // Names of very different lengths may need more than one split.
        for _ in 0..8 {
            let root = self.place(LogicalBlock(0))?;
            let bytes = self.read(root)?;
            let head = self.head(&bytes)?;
            let hash = hash_of(&self.format, &self.dir, entry).hash;
            let steps = self.descend(&head, hash)?;
            let last = steps.last().ok_or(DAMAGED)?;
            let leaf = self.place(last.entries[last.taken].block)?;
            if self.insert_in(leaf, entry)? {
                return Ok(());
            }
            let bytes = self.read(leaf)?;
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
