//! Builds a whole quota file (version 2, revision 1) from counted usage, and from the limits and
//! grace times of the old file.
//!
//! Blocks are numbered as if the kernel had added the ids in ascending order: a node when it is
//! first needed, a leaf when the one before is full.

use std::collections::BTreeMap;

use floe_format::ext::quota::{
    self, BLOCK_SIZE, Dquot, LEAF_ENTRIES, LEAF_HEADER_SIZE, LeafHeader, QuotaHeader, QuotaKind,
    ROOT_BLOCK, TREE_DEPTH, VERSION,
};

/// The default grace time, in seconds until a soft limit becomes hard: a week (`MAX_DQ_TIME`,
/// `MAX_IQ_TIME`).
pub(crate) const DEFAULT_GRACE_SECONDS: u32 = 7 * 24 * 60 * 60;

/// The usage of an id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes.
    pub space_bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// The contents of an old file that cannot be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Seconds until a soft block limit becomes hard.
    pub block_grace_seconds: u32,
    /// Seconds until a soft inode limit becomes hard.
    pub inode_grace_seconds: u32,
    /// `dqi_flags`.
    pub flags: u32,
    /// Entries with a limit, by id. Their usage is ignored, and 0 in entries that were read.
    pub entries: BTreeMap<u32, Dquot>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            block_grace_seconds: DEFAULT_GRACE_SECONDS,
            inode_grace_seconds: DEFAULT_GRACE_SECONDS,
            flags: 0,
            entries: BTreeMap::new(),
        }
    }
}

impl Limits {
    /// Reads as much of an old file as possible, however damaged. If an id has several entries, the
    /// first one counts. A file without the right header gives the defaults.
    pub fn of(kind: QuotaKind, file: &[u8]) -> Self {
        let mut limits = Self::default();
        let Some(header) = file.first_chunk().map(QuotaHeader::decode) else { return limits };
        if header.magic != kind.magic() || header.version != VERSION {
            return limits;
        }
        limits.block_grace_seconds = header.bgrace;
        limits.inode_grace_seconds = header.igrace;
        limits.flags = header.flags;
        // Uses the file's own size, so that blocks cut off by damage to the header are still read.
        let blocks = u32::try_from(file.len() / BLOCK_SIZE).unwrap_or(u32::MAX);
        let read = |at: u64, into: &mut [u8; BLOCK_SIZE]| -> Result<(), ()> {
            let at = usize::try_from(at).map_err(drop)?;
            let end = at.checked_add(BLOCK_SIZE).ok_or(())?;
            into.copy_from_slice(file.get(at..end).ok_or(())?);
            Ok(())
        };
        let keep = |mut entry: Dquot| {
            (entry.space_bytes, entry.inodes, entry.pad) = (0, 0, 0);
            if has_limit(&entry) {
                limits.entries.entry(entry.id).or_insert(entry);
            }
        };
        // Every block lies inside the file, so reading cannot fail.
        let _ = quota::walk(blocks, read, keep, |_| ());
        limits
    }
}

fn has_limit(entry: &Dquot) -> bool {
    entry.inode_hard_limit != 0
        || entry.inode_soft_limit != 0
        || entry.block_hard_limit_kib != 0
        || entry.block_soft_limit_kib != 0
}

/// The entries of the new file: each id that has usage or a limit.
fn entries(limits: &Limits, usage: &BTreeMap<u32, Usage>) -> BTreeMap<u32, Dquot> {
    let mut entries = limits.entries.clone();
    for entry in entries.values_mut() {
        (entry.space_bytes, entry.inodes) = (0, 0);
    }
    for (&id, used) in usage.iter().filter(|(_, used)| **used != Usage::default()) {
        let entry = entries.entry(id).or_insert_with(|| Dquot::decode(&[0; Dquot::SIZE]));
        (entry.space_bytes, entry.inodes) = (used.space_bytes, used.inodes);
    }
    for (&id, entry) in &mut entries {
        (entry.id, entry.pad) = (id, 0);
    }
    entries
}

/// Builds the whole contents of the file, a multiple of [`BLOCK_SIZE`] bytes. `None` if it would
/// need more blocks than a file can number.
pub fn build(kind: QuotaKind, limits: &Limits, usage: &BTreeMap<u32, Usage>) -> Option<Vec<u8>> {
    let entries = entries(limits, usage);
    let mut tree = Tree::new();
    for entry in entries.values() {
        tree.add(entry)?;
    }
    let count = tree.blocks()?;
    let header = QuotaHeader {
        magic: kind.magic(),
        version: VERSION,
        bgrace: limits.block_grace_seconds,
        igrace: limits.inode_grace_seconds,
        flags: limits.flags,
        blocks: count,
        free_block: 0,
        free_entry: tree.leaf_with_room().unwrap_or(0),
    };
    if let Some(first) = tree.file.first_chunk_mut() {
        header.encode_into(first);
    }
    Some(tree.file)
}

/// A file under construction.
struct Tree {
    file: Vec<u8>,
    /// Nodes on the path to the last id, the root first.
    nodes: [u32; TREE_DEPTH as usize],
    /// The prefix of ids that leads to each of them; `None` where there is no node yet. Ids with
    /// the same prefix share the node and its parents.
    path: [Option<u32>; TREE_DEPTH as usize],
    /// The last leaf and its entries in use.
    leaf: Option<(u32, usize)>,
}

impl Tree {
    fn new() -> Self {
        // Header and root.
        let file = vec![0; (ROOT_BLOCK as usize + 1) * BLOCK_SIZE];
        let nodes = [ROOT_BLOCK; TREE_DEPTH as usize];
        Self { file, nodes, path: [None; TREE_DEPTH as usize], leaf: None }
    }

    /// Blocks of the file so far.
    fn blocks(&self) -> Option<u32> {
        u32::try_from(self.file.len() / BLOCK_SIZE).ok()
    }

    fn append(&mut self) -> Option<u32> {
        let block = self.blocks()?;
        self.file.resize(self.file.len() + BLOCK_SIZE, 0);
        Some(block)
    }

    /// The last leaf, if it has space for another entry.
    fn leaf_with_room(&self) -> Option<u32> {
        self.leaf.filter(|&(_, used)| used < LEAF_ENTRIES).map(|(leaf, _)| leaf)
    }

    /// Adds an entry whose id is larger than all ids so far.
    fn add(&mut self, entry: &Dquot) -> Option<()> {
        let byte = |level: usize| entry.id.to_be_bytes()[level];
        for level in 1..TREE_DEPTH as usize {
            let above = entry.id >> (8 * (TREE_DEPTH as usize - level));
            if self.path[level] != Some(above) {
                let node = self.append()?;
                self.point(self.nodes[level - 1], byte(level - 1), node)?;
                (self.nodes[level], self.path[level]) = (node, Some(above));
            }
        }
        let leaf = match self.leaf_with_room() {
            Some(leaf) => leaf,
            None => {
                let leaf = self.append()?;
                self.leaf = Some((leaf, 0));
                leaf
            }
        };
        const LAST: usize = TREE_DEPTH as usize - 1;
        self.point(self.nodes[LAST], byte(LAST), leaf)?;
        self.store(leaf, entry)
    }

    fn block(&mut self, block: u32) -> Option<&mut [u8; BLOCK_SIZE]> {
        let start = usize::try_from(block).ok()?.checked_mul(BLOCK_SIZE)?;
        self.file.get_mut(start..)?.first_chunk_mut()
    }

    /// Makes word `index` of a node point to a block.
    fn point(&mut self, node: u32, index: u8, to: u32) -> Option<()> {
        let (words, _) = self.block(node)?.as_chunks_mut::<4>();
        *words.get_mut(usize::from(index))? = to.to_le_bytes();
        Some(())
    }

    fn store(&mut self, leaf: u32, entry: &Dquot) -> Option<()> {
        let (_, used) = self.leaf.as_mut()?;
        let slot = *used;
        *used += 1;
        let in_use = u16::try_from(*used).ok()?;
        let bytes = self.block(leaf)?;
        // Leaves are on no list: only the last one has free entries, and the header names it.
        let header = LeafHeader { next_free: 0, prev_free: 0, entries: in_use, pad1: 0, pad2: 0 };
        header.encode_into(bytes.first_chunk_mut()?);
        let start = LEAF_HEADER_SIZE + slot * Dquot::SIZE;
        entry.encode_into(bytes.get_mut(start..)?.first_chunk_mut()?);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dquot(id: u32, limit: u64) -> Dquot {
        let mut entry = Dquot::decode(&[0; Dquot::SIZE]);
        (entry.id, entry.inode_hard_limit, entry.btime) = (id, limit, 77);
        entry
    }

    /// Looks up all entries as the kernel does: by the bytes of the id, then in the leaf.
    fn look_up(file: &[u8], id: u32) -> Option<Dquot> {
        let block = |nr: u32| &file[nr as usize * BLOCK_SIZE..][..BLOCK_SIZE];
        let mut at = ROOT_BLOCK;
        for byte in id.to_be_bytes() {
            let word = &block(at)[usize::from(byte) * 4..][..4];
            at = u32::from_le_bytes(word.try_into().unwrap());
            if at == 0 {
                return None;
            }
        }
        let (entries, _) = block(at)[LEAF_HEADER_SIZE..].as_chunks::<{ Dquot::SIZE }>();
        entries
            .iter()
            .filter(|raw| raw.iter().any(|&byte| byte != 0))
            .map(Dquot::decode)
            .find(|entry| entry.id == id)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_id_is_found_with_its_usage_and_limits(
            used in proptest::collection::btree_map(
                prop_oneof![0u32..40, 65_000u32..66_000, any::<u32>()],
                (0u64..1 << 40, 0u64..1000),
                0..120,
            ),
            limited in proptest::collection::btree_map(prop_oneof![0u32..40, any::<u32>()], 1u64.., 0..40),
        ) {
            let usage: BTreeMap<u32, Usage> = used
                .into_iter()
                .map(|(id, (space_bytes, inodes))| (id, Usage { space_bytes, inodes }))
                .collect();
            let mut limits = Limits { block_grace_seconds: 5, flags: 1, ..Limits::default() };
            limits.entries = limited.iter().map(|(&id, &limit)| (id, dquot(id, limit))).collect();
            let file = build(QuotaKind::Group, &limits, &usage).unwrap();

            let expected = entries(&limits, &usage);
            for (&id, entry) in &expected {
                prop_assert_eq!(look_up(&file, id), Some(entry.clone()));
                let counted = usage.get(&id).copied().unwrap_or_default();
                prop_assert_eq!((entry.space_bytes, entry.inodes), (counted.space_bytes, counted.inodes));
                prop_assert_eq!(entry.inode_hard_limit, limited.get(&id).copied().unwrap_or(0));
            }
            let mut walked = Vec::new();
            let blocks = (file.len() / BLOCK_SIZE) as u32;
            let read = |at: u64, into: &mut [u8; BLOCK_SIZE]| -> Result<(), ()> {
                into.copy_from_slice(&file[at as usize..][..BLOCK_SIZE]);
                Ok(())
            };
            quota::walk(blocks, read, |entry| walked.push(entry.id), |fault| panic!("{fault:?}")).unwrap();
            walked.sort_unstable();
            let ids: Vec<u32> = expected.keys().copied().collect();
            prop_assert_eq!(walked, ids);

            let header = QuotaHeader::decode(file.first_chunk().unwrap());
            prop_assert_eq!(header.blocks, blocks);
            // The last leaf is the only one with free entries.
            let in_last = expected.len() % LEAF_ENTRIES;
            prop_assert_eq!(header.free_entry == 0, in_last == 0);
            if in_last != 0 {
                let leaf = &file[header.free_entry as usize * BLOCK_SIZE..];
                let leaf = LeafHeader::decode(leaf.first_chunk().unwrap());
                prop_assert_eq!(usize::from(leaf.entries), in_last);
            }

            // Limits read back are the same.
            prop_assert_eq!(Limits::of(QuotaKind::Group, &file), limits);
        }

        #[test]
        fn no_old_file_panics(
            mut file in proptest::collection::vec(any::<u8>(), 0..6000),
            words in proptest::collection::vec((0usize..1500, 0u32..8), 0..40),
        ) {
            for (word, value) in words {
                if let Some(bytes) = file.get_mut(word * 4..word * 4 + 4) {
                    bytes.copy_from_slice(&value.to_le_bytes());
                }
            }
            if let Some(head) = file.first_chunk_mut::<8>() {
                head[..4].copy_from_slice(&QuotaKind::User.magic().to_le_bytes());
                head[4..].copy_from_slice(&VERSION.to_le_bytes());
            }
            let limits = Limits::of(QuotaKind::User, &file);
            prop_assert!(build(QuotaKind::User, &limits, &BTreeMap::new()).is_some());
        }
    }

    #[test]
    fn only_files_of_the_kind_are_believed() {
        let entries = BTreeMap::from([(7, dquot(7, 9))]);
        let limits = Limits { inode_grace_seconds: 3, entries, ..Limits::default() };
        let file = build(QuotaKind::User, &limits, &BTreeMap::new()).unwrap();
        assert_eq!(Limits::of(QuotaKind::User, &file), limits);
        assert_eq!(Limits::of(QuotaKind::Project, &file), Limits::default());
        assert_eq!(Limits::of(QuotaKind::User, &file[..20]), Limits::default());
        // A truncated file still gives its header and first leaf.
        let header_only = Limits::of(QuotaKind::User, &file[..3 * BLOCK_SIZE]);
        assert_eq!((header_only.inode_grace_seconds, header_only.entries.len()), (3, 0));
    }

    #[test]
    fn ids_that_use_nothing_and_have_no_limit_are_left_out() {
        let usage =
            BTreeMap::from([(0, Usage::default()), (5, Usage { space_bytes: 1, inodes: 0 })]);
        let file = build(QuotaKind::User, &Limits::default(), &usage).unwrap();
        assert_eq!(look_up(&file, 0), None);
        assert_eq!(look_up(&file, 5).unwrap().space_bytes, 1);
        let empty = build(QuotaKind::User, &Limits::default(), &BTreeMap::new()).unwrap();
        assert_eq!(empty.len(), 2 * BLOCK_SIZE);
    }
}
