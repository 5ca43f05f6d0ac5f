//! From the inode of a directory to its place in the list of directories, in constant time.

use floe_format::InodeNr;

use super::dirs::DirInfo;

/// Inodes of a chunk.
const SPAN: u32 = 2048;
/// Words of a chunk.
const WORDS: usize = SPAN as usize / 64;

/// The directories among [`SPAN`] inodes.
#[derive(Clone, Debug)]
struct Chunk {
    /// Directories before this chunk.
    base: u32,
    /// Directories of this chunk before each word.
    before: [u16; WORDS],
    /// One bit an inode.
    bits: [u64; WORDS],
}

/// The rank of each directory among all, by inode: what arrays "one entry a directory" are indexed
/// with. About a sixth of a byte an inode, where there are directories.
#[derive(Clone, Debug, Default)]
pub struct DirIndex {
    chunks: Vec<Option<Box<Chunk>>>,
    inodes: Vec<InodeNr>,
    /// Each inode is its own rank; there are no chunks.
    by_inode: bool,
}

impl DirIndex {
    /// An index for whoever does not know all directories yet: the number of an inode stands for its rank, be it a
    /// directory or not.
    pub fn by_inode() -> Self {
        Self { by_inode: true, ..Self::default() }
    }

    /// Whether numbers of inodes stand for ranks.
    pub(crate) const fn is_by_inode(&self) -> bool {
        self.by_inode
    }

    /// The index of the directories in `infos`, which is sorted by inode.
    pub fn new(infos: &[DirInfo]) -> Self {
        let last = infos.last().map_or(0, |info| info.inode.0 / SPAN + 1);
        let mut chunks = Vec::new();
        chunks.resize_with(last as usize, || None);
        let mut inodes: Vec<InodeNr> = Vec::with_capacity(infos.len());
        for of_chunk in infos.chunk_by(|one, other| one.inode.0 / SPAN == other.inode.0 / SPAN) {
            // Fewer directories than inodes, whose numbers fit 32 bits.
            let base = inodes.len() as u32;
            let mut chunk = Chunk { base, before: [0; WORDS], bits: [0; WORDS] };
            for info in of_chunk {
                let at = (info.inode.0 % SPAN) as usize;
                chunk.bits[at / 64] |= 1 << (at % 64);
            }
            inodes.extend(of_chunk.iter().map(|info| info.inode));
            let mut before = 0;
            for (word, count) in chunk.bits.iter().zip(&mut chunk.before) {
                *count = before;
                // At most 2048 in all.
                before += word.count_ones() as u16;
            }
            // On a damaged disk an inode may have been found twice.
            if u32::from(before) as usize != of_chunk.len() {
                let mut own = inodes.split_off(base as usize);
                own.dedup();
                inodes.append(&mut own);
            }
            if let Some(slot) = chunks.get_mut((of_chunk[0].inode.0 / SPAN) as usize) {
                *slot = Some(Box::new(chunk));
            }
        }
        Self { chunks, inodes, by_inode: false }
    }

    /// Number of directories.
    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Whether there is no directory.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// The rank of a directory: 0 for the one with the lowest inode. `None` for any other inode.
    #[inline]
    pub fn get(&self, inode: InodeNr) -> Option<u32> {
        let Some(chunk) = self.chunks.get((inode.0 / SPAN) as usize) else {
            return (self.by_inode && inode.0 != 0).then_some(inode.0);
        };
        let chunk = chunk.as_ref()?;
        let at = inode.0 % SPAN;
        let word = chunk.bits[at as usize / 64];
        let bit = 1u64 << (at % 64);
        if word & bit == 0 {
            return None;
        }
        let below = (word & (bit - 1)).count_ones();
        Some(chunk.base + u32::from(chunk.before[at as usize / 64]) + below)
    }

    /// The directory of a rank; inode 0 past the last one.
    #[inline]
    pub fn inode(&self, rank: u32) -> InodeNr {
        self.inodes.get(rank as usize).copied().unwrap_or_default()
    }

    /// All directories, in order of their inodes.
    pub fn inodes(&self) -> &[InodeNr] {
        &self.inodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn ranks_are_positions(inodes in proptest::collection::btree_set(1u32..9_000, 0..400)) {
            let infos: Vec<_> = inodes
                .iter()
                .map(|&inode| DirInfo { inode: InodeNr(inode), size_blocks: 1 })
                .collect();
            let index = DirIndex::new(&infos);
            let sorted: Vec<u32> = inodes.iter().copied().collect();
            for inode in 0..9_100 {
                let expected = sorted.binary_search(&inode).ok().map(|at| at as u32);
                prop_assert_eq!(index.get(InodeNr(inode)), expected);
            }
            for (rank, &inode) in inodes.iter().enumerate() {
                prop_assert_eq!(index.inode(rank as u32), InodeNr(inode));
            }
        }
    }
}
