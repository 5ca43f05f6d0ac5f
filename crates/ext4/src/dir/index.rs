//! Builds the index over leaves that are sorted by hash.

use floe_format::LogicalBlock;
use floe_format::ext::casefold;
use floe_format::ext::dirhash::{DirHash, dirhash};
use floe_format::ext::htree::{
    self, DxEntry, HASH_CONTINUES, HashVersion, NODE_COUNT_OFFSET, ROOT_COUNT_OFFSET, RootHead,
};

use super::leaves::Packer;
use super::{DirFormat, Directory, Entry};

/// Most levels of interior nodes below the root, without and with large_dir.
const MOST_LEVELS: [u8; 2] = [1, 2];

/// An indexed directory.
pub(super) struct Indexed {
    pub(super) content: Vec<u8>,
    /// Whether it has more levels than are allowed without large_dir.
    pub(super) needs_large_dir: bool,
}

/// The hash by which an entry is sorted into the index.
pub(super) fn hash_of(format: &DirFormat, dir: &Directory, entry: &Entry<'_>) -> DirHash {
    if dir.hashed() {
        // An encrypted name cannot be hashed without the key, so use the stored hash. (Linux never
        // sets its low bit, which means something else in an index.)
        let (hash, minor_hash) = entry.hash.unwrap_or((0, 0));
        return DirHash { hash: hash & !HASH_CONTINUES, minor_hash };
    }
    let folded = if dir.folds() { casefold::fold(&entry.name).ok() } else { None };
    let name = folded.as_deref().unwrap_or(&entry.name);
    dirhash(format.hash_version, name, &format.hash_seed).unwrap_or_default()
}

/// Builds leaves and index from entries that are sorted by hash; `None` if no index can hold them.
pub(super) fn build(
    format: &DirFormat,
    dir: &Directory,
    entries: &[(DirHash, Entry<'_>)],
) -> Option<Indexed> {
    let allowed = MOST_LEVELS[usize::from(format.large_dir)];
    // Rather give up free space for new names than build an index that older kernels cannot read.
    let tries = [(format.slack_percent, allowed), (0, allowed), (format.slack_percent, 2)];
    tries.into_iter().find_map(|(slack, most_levels)| {
        let (content, leaves) = pack(format, dir, entries, slack);
        let levels = levels_of(format, leaves.len()).filter(|levels| *levels <= most_levels)?;
        let content = add_nodes(format, dir, content, leaves, levels)?;
        Some(Indexed { content, needs_large_dir: levels > allowed })
    })
}

/// Packs the leaves behind a block reserved for the root, and returns their index entries.
fn pack(
    format: &DirFormat,
    dir: &Directory,
    entries: &[(DirHash, Entry<'_>)],
    slack_percent: u32,
) -> (Vec<u8>, Vec<DxEntry>) {
    let mut packer = Packer::new(format, dir, vec![0; format.block_size], slack_percent);
    let mut leaves: Vec<DxEntry> = Vec::new();
    let mut previous = None;
    for (DirHash { hash, .. }, entry) in entries {
        if packer.add(entry.inode, entry) {
            let continues = if previous == Some(*hash) { HASH_CONTINUES } else { 0 };
            let block = LogicalBlock(packer.blocks() as u64 - 1);
            leaves.push(DxEntry { hash: hash | continues, block });
        }
        previous = Some(*hash);
    }
    (packer.finish(), leaves)
}

/// Capacity of a root and of an interior node, in entries.
fn limits(format: &DirFormat) -> [usize; 2] {
    [ROOT_COUNT_OFFSET, NODE_COUNT_OFFSET].map(|offset| {
        let csum = format.seed.is_some();
        usize::from(htree::expected_limit(format.block_size, offset, csum)).max(1)
    })
}

/// The levels of interior nodes needed for this number of leaves; `None` if that exceeds any index.
fn levels_of(format: &DirFormat, leaves: usize) -> Option<u8> {
    let [root, node] = limits(format);
    let mut entries = leaves;
    for levels in 0..=MOST_LEVELS[1] {
        if entries <= root {
            return Some(levels);
        }
        entries = entries.div_ceil(node);
    }
    None
}

/// Writes the interior nodes behind the leaves, level by level, and the root into block 0.
fn add_nodes(
    format: &DirFormat,
    dir: &Directory,
    mut content: Vec<u8>,
    leaves: Vec<DxEntry>,
    levels: u8,
) -> Option<Vec<u8>> {
    let csum = format.seed.is_some();
    let [_, node_limit] = limits(format);
    let mut below = leaves;
    for _ in 0..levels {
        let nodes = below.len().div_ceil(node_limit);
        let mut above = Vec::with_capacity(nodes);
        for part in even_parts(&below, nodes) {
            let start = content.len();
            let block = LogicalBlock((start / format.block_size) as u64);
            content.resize(start + format.block_size, 0);
            let bytes = content.get_mut(start..)?;
            htree::write_node(bytes, part, csum)?;
            if let Some(seed) = dir.inode_seed(format) {
                htree::write_checksum(seed, bytes)?;
            }
            above.push(DxEntry { hash: part.first()?.hash, block });
        }
        below = above;
    }
    let head = RootHead {
        dir: dir.inode,
        parent: dir.parent,
        file_type: format.dir_type(),
        hash_version: stored_version(format, dir),
        indirect_levels: levels,
    };
    let root = content.get_mut(..format.block_size)?;
    htree::write_root(root, &head, &below, csum)?;
    if let Some(seed) = dir.inode_seed(format) {
        htree::write_checksum(seed, root)?;
    }
    Some(content)
}

/// Cuts a list into `parts` parts whose lengths differ by at most one, because the first new name
/// would split a full node.
fn even_parts<T>(list: &[T], parts: usize) -> impl Iterator<Item = &[T]> {
    let parts = parts.max(1);
    let (each, longer) = (list.len() / parts, list.len() % parts);
    let start = move |part: usize| part * each + part.min(longer);
    (0..parts).map(move |part| list.get(start(part)..start(part + 1)).unwrap_or(&[]))
}

/// The hash version as a root stores it: without the signedness, which the superblock has.
pub(super) fn stored_version(format: &DirFormat, dir: &Directory) -> u8 {
    match format.hash_version {
        _ if dir.hashed() => HashVersion::SipHash as u8,
        HashVersion::LegacyUnsigned => HashVersion::Legacy as u8,
        HashVersion::HalfMd4Unsigned => HashVersion::HalfMd4 as u8,
        HashVersion::TeaUnsigned => HashVersion::Tea as u8,
        version => version as u8,
    }
}
