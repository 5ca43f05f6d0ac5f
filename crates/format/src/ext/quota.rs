//! Quota files of version 2, revision 1: a header, information, and a four-level radix tree of
//! 1 KiB blocks whose leaves hold one entry per identifier.
//!
//! Source: the kernel's `fs/quota/quota_tree.h`, `quotaio_v2.h`.

use std::collections::HashMap;
use std::fmt;

/// Bytes of a block of the file; independent of the file system's blocks.
pub const BLOCK_SIZE: usize = 1024;
/// Block of the root of the tree.
pub const ROOT_BLOCK: u32 = 1;
/// Levels of the tree; the last one points to leaves.
pub const TREE_DEPTH: u32 = 4;
/// `dqh_version` of the format read here (v2r1).
pub const VERSION: u32 = 1;
/// Most bytes of a file that e2fsck uses.
pub const MOST_BYTES: u64 = 1 << 31;
/// Bytes of the header of a leaf.
pub const LEAF_HEADER_SIZE: usize = 16;

/// The kind of identifier that a quota file accounts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaKind {
    /// Per user.
    User,
    /// Per group.
    Group,
    /// Per project.
    Project,
}

impl QuotaKind {
    /// All kinds, in the order of their superblock fields.
    pub const ALL: [Self; 3] = [Self::User, Self::Group, Self::Project];

    /// `dqh_magic` of a file of this kind.
    pub const fn magic(self) -> u32 {
        match self {
            Self::User => 0xd9c0_1f11,
            Self::Group => 0xd9c0_1927,
            Self::Project => 0xd9c0_3f14,
        }
    }
}

layout! {
    /// Header and information: the first 32 bytes of the file.
    pub struct QuotaHeader[32] little {
        /// Magic of the kind.
        0x00 magic: u32,
        /// 1 for v2r1.
        0x04 version: u32,
        /// Seconds until a soft block limit becomes hard.
        0x08 bgrace: u32,
        /// Seconds until a soft inode limit becomes hard.
        0x0c igrace: u32,
        /// Flags.
        0x10 flags: u32,
        /// Blocks of the file.
        0x14 blocks: u32,
        /// First free block; 0: none.
        0x18 free_block: u32,
        /// First leaf with a free entry; 0: none.
        0x1c free_entry: u32,
    }
}

layout! {
    /// The header of a leaf.
    pub struct LeafHeader[16] little {
        /// Next leaf with a free entry.
        0x00 next_free: u32,
        /// Previous leaf with a free entry.
        0x04 prev_free: u32,
        /// Entries in use.
        0x08 entries: u16,
        /// Padding.
        0x0a pad1: u16,
        /// Padding.
        0x0c pad2: u32,
    }
}

layout! {
    /// An entry: limits and usage of one identifier.
    pub struct Dquot[72] little {
        /// User, group or project.
        0x00 id: u32,
        /// Padding.
        0x04 pad: u32,
        /// Most inodes; 0: no limit.
        0x08 inode_hard_limit: u64,
        /// Inodes allowed for `itime`; 0: no limit.
        0x10 inode_soft_limit: u64,
        /// Inodes in use.
        0x18 inodes: u64,
        /// Most KiB; 0: no limit.
        0x20 block_hard_limit_kib: u64,
        /// KiB allowed for `btime`; 0: no limit.
        0x28 block_soft_limit_kib: u64,
        /// Bytes in use.
        0x30 space_bytes: u64,
        /// When the block soft limit becomes hard, seconds since 1970.
        0x38 btime: u64,
        /// When the inode soft limit becomes hard. 1 in an entry that is otherwise zero, which
        /// would look unused.
        0x40 itime: u64,
    }
}

/// Entries of a leaf.
pub const LEAF_ENTRIES: usize = (BLOCK_SIZE - LEAF_HEADER_SIZE) / Dquot::SIZE;

/// Why a tree cannot be read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeFault {
    /// A pointer to a block outside the file, or to the header or the root.
    BlockOutOfRange {
        /// Block of the file that holds the pointer.
        from: u32,
        /// The pointer.
        to: u32,
    },
    /// A second pointer to a block, one of them from above the last level: a loop, or damage.
    BlockTwice {
        /// Block of the file that holds the second pointer.
        from: u32,
        /// The pointer.
        to: u32,
    },
}

impl fmt::Display for TreeFault {
    fn fmt(&self, into: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockOutOfRange { from, to } => {
                write!(into, "block {from} of the tree points to block {to}, which cannot be")
            }
            Self::BlockTwice { from, to } => {
                write!(into, "block {from} of the tree points to block {to}, as another one does")
            }
        }
    }
}

impl QuotaHeader {
    /// Why neither Linux nor e2fsck uses a file of this size that begins like this, whatever its kind.
    ///
    /// Linux wants the head of a list behind the root (`v2_read_file_info`), e2fsck a file of at most
    /// [`MOST_BYTES`].
    pub fn fault(&self, size_bytes: u64) -> Option<&'static str> {
        let in_file = |head: u32| head == 0 || (head > ROOT_BLOCK && head < self.blocks);
        if size_bytes > MOST_BYTES {
            Some("the file is larger than a quota file can be")
        } else if u64::from(self.blocks) > size_bytes / BLOCK_SIZE as u64 {
            Some("its header counts more blocks than the file has")
        } else if self.blocks <= ROOT_BLOCK {
            Some("its header counts no block of the tree")
        } else if !in_file(self.free_block) {
            Some("the first free block of its header cannot be one")
        } else if !in_file(self.free_entry) {
            Some("the first block with a free entry of its header cannot be one")
        } else {
            None
        }
    }
}

/// Something that [`walk_blocks`] meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Met {
    /// The root, or a block of pointers below it.
    Node(u32),
    /// A block of entries.
    Leaf {
        /// Block of the file.
        block: u32,
        /// Its header.
        header: LeafHeader,
        /// Entries that are in use.
        in_use: u16,
    },
    /// An entry of the leaf that was met last.
    Entry(Dquot),
    /// A pointer to a leaf.
    Pointer {
        /// The identifier whose entry Linux looks for there: the places of the pointers from the root are its bytes.
        id: u32,
        /// Block of the leaf.
        leaf: u32,
    },
    /// A pointer that cannot be followed.
    Fault(TreeFault),
}

/// Visits every entry of a quota file once, in the order of the tree.
///
/// `blocks` is the number of 1 KiB blocks of the file (from `i_size`, or `header.blocks` if that is
/// less). `read` fills 1 KiB from the byte of the file it is given. Faults are reported to `fault`
/// and skipped. Each block is read at most once, so no bytes can make this loop.
///
/// # Errors
/// The first error of `read`.
pub fn walk<E>(
    blocks: u32,
    read: impl FnMut(u64, &mut [u8; BLOCK_SIZE]) -> Result<(), E>,
    mut entry: impl FnMut(Dquot),
    mut fault: impl FnMut(TreeFault),
) -> Result<(), E> {
    walk_blocks(blocks, read, |met| match met {
        Met::Entry(met) => entry(met),
        Met::Fault(met) => fault(met),
        Met::Node(_) | Met::Leaf { .. } | Met::Pointer { .. } => (),
    })
}

/// As [`walk`], and visits the blocks of the tree, too.
///
/// # Errors
/// The first error of `read`.
pub fn walk_blocks<E>(
    blocks: u32,
    mut read: impl FnMut(u64, &mut [u8; BLOCK_SIZE]) -> Result<(), E>,
    mut visit: impl FnMut(Met),
) -> Result<(), E> {
    // True for a leaf.
    let mut seen = HashMap::from([(ROOT_BLOCK, false)]);
    // Depth-first with an explicit stack; children are pushed backwards so that they come in order.
    let mut stack = vec![(ROOT_BLOCK, 0u32, 0u32)];
    let mut bytes = [0; BLOCK_SIZE];
    if blocks <= ROOT_BLOCK {
        return Ok(());
    }
    while let Some((block, depth, above)) = stack.pop() {
        read(u64::from(block) * BLOCK_SIZE as u64, &mut bytes)?;
        if depth == TREE_DEPTH {
            visit_leaf(block, &bytes, &mut visit);
            continue;
        }
        visit(Met::Node(block));
        let is_leaf = depth + 1 == TREE_DEPTH;
        for (place, word) in (0..=u8::MAX).zip(bytes.chunks_exact(4)).rev() {
            let to = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            let id = above << 8 | u32::from(place);
            if to == 0 {
                continue;
            }
            if to <= ROOT_BLOCK || to >= blocks {
                visit(Met::Fault(TreeFault::BlockOutOfRange { from: block, to }));
                continue;
            }
            match seen.insert(to, is_leaf) {
                None => stack.push((to, depth + 1, id)),
                // A leaf holds many identifiers, so many pointers lead to it.
                Some(true) if is_leaf => (),
                Some(before) => {
                    seen.insert(to, before);
                    visit(Met::Fault(TreeFault::BlockTwice { from: block, to }));
                    continue;
                }
            }
            if is_leaf {
                visit(Met::Pointer { id, leaf: to });
            }
        }
    }
    Ok(())
}

fn visit_leaf(block: u32, bytes: &[u8; BLOCK_SIZE], visit: &mut impl FnMut(Met)) {
    let (header, entries) = bytes.split_at(LEAF_HEADER_SIZE);
    let entries = || {
        let (entries, _) = entries.as_chunks::<{ Dquot::SIZE }>();
        entries.iter().filter(|raw| raw.iter().any(|&byte| byte != 0))
    };
    if let Some(header) = header.first_chunk() {
        let in_use = entries().count() as u16;
        visit(Met::Leaf { block, header: LeafHeader::decode(header), in_use });
    }
    entries().for_each(|raw| visit(Met::Entry(Dquot::decode(raw))));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(file: &mut [u8], block: usize, word: usize, value: u32) {
        let at = block * BLOCK_SIZE + word * 4;
        file[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn entries(file: &[u8]) -> (Vec<u32>, Vec<TreeFault>) {
        let (mut ids, mut faults) = (Vec::new(), Vec::new());
        let read = |at: u64, into: &mut [u8; BLOCK_SIZE]| -> Result<(), ()> {
            let at = usize::try_from(at).map_err(drop)?;
            into.copy_from_slice(file.get(at..at + BLOCK_SIZE).ok_or(())?);
            Ok(())
        };
        let blocks = (file.len() / BLOCK_SIZE) as u32;
        walk(blocks, read, |entry| ids.push(entry.id), |fault| faults.push(fault)).unwrap();
        (ids, faults)
    }

    fn small_tree() -> Vec<u8> {
        let mut file = vec![0; 6 * BLOCK_SIZE];
        for level in 1..4 {
            put(&mut file, level, 0, level as u32 + 1);
        }
        // Identifiers 0 and 200 share the leaf, block 5.
        put(&mut file, 4, 0, 5);
        put(&mut file, 4, 200, 5);
        file[5 * BLOCK_SIZE + LEAF_HEADER_SIZE + 0x40] = 1;
        file[5 * BLOCK_SIZE + LEAF_HEADER_SIZE + 72 * 3] = 200;
        file
    }

    #[test]
    fn every_entry_is_visited_once() {
        assert_eq!(entries(&small_tree()), (vec![0, 200], vec![]));
    }

    #[test]
    fn loops_and_wild_pointers_are_faults() {
        let mut file = small_tree();
        put(&mut file, 3, 7, 2);
        put(&mut file, 2, 9, 99);
        let (ids, faults) = entries(&file);
        assert_eq!(ids, [0, 200]);
        let twice = TreeFault::BlockTwice { from: 3, to: 2 };
        assert_eq!(faults, [TreeFault::BlockOutOfRange { from: 2, to: 99 }, twice]);
    }

    #[test]
    fn the_place_of_a_pointer_is_its_identifier() {
        let mut file = small_tree();
        // From the root by 1, 2, 3 and 4 to the same leaf.
        file.resize(9 * BLOCK_SIZE, 0);
        for (block, word, to) in [(1, 1, 6), (6, 2, 7), (7, 3, 8), (8, 4, 5)] {
            put(&mut file, block, word, to);
        }
        let mut pointers = Vec::new();
        let read = |at: u64, into: &mut [u8; BLOCK_SIZE]| {
            into.copy_from_slice(&file[at as usize..][..BLOCK_SIZE]);
            Ok::<_, ()>(())
        };
        let visit = |met| {
            if let Met::Pointer { id, leaf } = met {
                pointers.push((id, leaf));
            }
        };
        walk_blocks(9, read, visit).unwrap();
        pointers.sort_unstable();
        assert_eq!(pointers, [(0, 5), (200, 5), (0x0102_0304, 5)]);
    }

    /// A block of pointers is none of entries: e2fsck would count its pointers as usage.
    #[test]
    fn a_leaf_that_is_a_node_is_a_fault() {
        for (block, word, to) in [(4, 9, 3), (3, 9, 5)] {
            let mut file = small_tree();
            put(&mut file, block, word, to);
            let (_, faults) = entries(&file);
            // Which of the two places of a block is met first depends on the order of the words.
            let twice = |fault: &TreeFault| matches!(fault, TreeFault::BlockTwice { to: of, .. } if *of == to);
            assert!(faults.iter().any(twice), "{faults:?}");
        }
    }

    #[test]
    fn a_header_must_fit_the_file() {
        let sound = QuotaHeader { blocks: 6, free_entry: 5, ..QuotaHeader::decode(&[0; 32]) };
        let with = |edit: fn(&mut QuotaHeader)| {
            let mut header = sound.clone();
            edit(&mut header);
            header.fault(6 * 1024).is_some()
        };
        assert!(!with(|_| ()) && !with(|header| header.free_block = 2));
        assert!(with(|header| header.blocks = 7));
        assert!(with(|header| header.blocks = 0));
        assert!(with(|header| header.free_block = 1));
        assert!(with(|header| header.free_block = 6));
        assert!(with(|header| header.free_entry = 1));
        assert!(with(|header| header.free_entry = u32::MAX));
        assert!(sound.fault(MOST_BYTES + 1).is_some() && sound.fault(MOST_BYTES).is_none());
    }

    #[test]
    fn a_leaf_holds_fourteen_entries() {
        assert_eq!(LEAF_ENTRIES, 14);
    }
}
