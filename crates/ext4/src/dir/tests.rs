//! Directories built from random entries, and read as the kernel would.

use floe_format::ext::dirent::{DirCursor, TAIL_SIZE};
use floe_format::ext::htree::{DxBlock, HASH_CONTINUES};
use proptest::prelude::*;

use super::*;

/// A directory with simple numbers.
pub(super) fn directory() -> Directory {
    Directory {
        inode: InodeNr(20),
        parent: InodeNr(2),
        generation: 7,
        encrypted: false,
        casefolded: false,
    }
}

/// A format with checksums or without.
pub(super) fn format(block_size: usize, csum: bool) -> DirFormat {
    DirFormat {
        block_size,
        filetype: true,
        seed: csum.then_some(Seed(0x1234)),
        dir_index: true,
        large_dir: false,
        hash_version: HashVersion::HalfMd4,
        hash_seed: [1, 2, 3, 4],
        slack_percent: SLACK_PERCENT,
        inodes_count: 1 << 20,
    }
}

/// Reads a rebuilt directory by rules written independently of the builder.
struct Reader<'a> {
    format: &'a DirFormat,
    dir: &'a Directory,
    content: &'a [u8],
}

impl Reader<'_> {
    fn block(&self, at: u64) -> &[u8] {
        self.content.chunks_exact(self.format.block_size).nth(at as usize).unwrap()
    }

    /// The entries of a linear block or leaf, whose checksum must fit.
    fn leaf(&self, at: u64) -> Vec<floe_format::ext::dirent::DirEntry<'_>> {
        let block = self.block(at);
        let mut cursor = DirCursor::new(block).hashed(self.dir.hashed());
        if let Some(seed) = self.dir.inode_seed(self.format) {
            let sum = floe_format::crc::crc32c(seed, &block[..block.len() - TAIL_SIZE]);
            assert_eq!(block[block.len() - 4..], sum.to_le_bytes(), "checksum of leaf {at}");
            cursor = cursor.without_tail();
        }
        cursor.map(|entry| entry.unwrap()).collect()
    }

    /// Whether lookup finds a name with this hash: down the index by binary search, then through
    /// leaves that continue the same hash.
    fn lookup(&self, hash: u32, name: &[u8]) -> bool {
        let levels = DxBlock::root_info(self.block(0)).unwrap().indirect_levels;
        let mut path = Vec::new();
        let mut at = 0;
        for level in 0..=levels {
            let index = self.index(at, level == 0);
            let slot = index.iter().rposition(|(first, _)| *first <= hash).unwrap_or(0);
            at = index[slot].1;
            path.push((index, slot));
        }
        loop {
            if self.leaf(at).iter().any(|entry| entry.in_use() && entry.name == name) {
                return true;
            }
            // The next leaf, if its index entry says that the hash continues.
            let Some(level) = path.iter().rposition(|(index, slot)| slot + 1 < index.len()) else {
                return false;
            };
            path[level].1 += 1;
            let (next_hash, mut next) = path[level].0[path[level].1];
            if next_hash != hash | HASH_CONTINUES {
                return false;
            }
            for below in &mut path[level + 1..] {
                *below = (self.index(next, false), 0);
                next = below.0[0].1;
            }
            at = next;
        }
    }

    fn index(&self, at: u64, root: bool) -> Vec<(u32, u64)> {
        let block = self.block(at);
        let index = if root { DxBlock::root(block) } else { DxBlock::node(block) }.unwrap();
        assert_eq!(index.limit(), index.expected_limit(self.format.seed.is_some()));
        assert!((1..=index.limit()).contains(&index.count()));
        if let Some(seed) = self.dir.inode_seed(self.format) {
            assert!(index.checksum_ok(seed), "checksum of index block {at}");
        }
        let entries: Vec<_> = index.entries().map(|entry| (entry.hash, entry.block.0)).collect();
        assert!(entries.windows(2).all(|pair| pair[0].0 & !1 <= pair[1].0 & !1));
        entries
    }

    /// Numbers of all leaves below the index, in order, each once. Every block must be part of the
    /// index.
    fn leaves(&self) -> Vec<u64> {
        let levels = DxBlock::root_info(self.block(0)).unwrap().indirect_levels;
        let mut seen = vec![0];
        let mut level: Vec<u64> = self.index(0, true).into_iter().map(|(_, block)| block).collect();
        for _ in 0..levels {
            seen.extend(&level);
            level = level
                .iter()
                .flat_map(|block| self.index(*block, false))
                .map(|(_, block)| block)
                .collect();
        }
        seen.extend(&level);
        seen.sort_unstable();
        let blocks = (self.content.len() / self.format.block_size) as u64;
        assert_eq!(seen, (0..blocks).collect::<Vec<_>>(), "each block is in the index once");
        level
    }
}

/// Compares a rebuilt directory with the expected entries: inode, name and hash.
fn judge(format: &DirFormat, dir: &Directory, rebuilt: &Rebuilt, wanted: &[(u32, Vec<u8>)]) {
    let reader = Reader { format, dir, content: &rebuilt.content };
    assert_eq!(rebuilt.content.len() % format.block_size, 0);
    let blocks = (rebuilt.content.len() / format.block_size) as u64;
    let leaves = if rebuilt.indexed { reader.leaves() } else { (0..blocks).collect() };
    let mut have = Vec::new();
    let mut last = (0, 0);
    for leaf in &leaves {
        for entry in reader.leaf(*leaf).iter().filter(|entry| entry.in_use()) {
            if !rebuilt.indexed && entry.is_dot_or_dotdot() {
                let named = if entry.name == b"." { dir.inode } else { dir.parent };
                assert_eq!((entry.inode, entry.file_type), (named, format.dir_type()));
                continue;
            }
            have.push((entry.inode.0, entry.name.to_vec()));
            if rebuilt.indexed {
                let mut own = Entry::new(entry.inode, entry.name, 1);
                own.hash = entry.stored_hash().filter(|_| dir.hashed());
                let hash = index::hash_of(format, dir, &own);
                assert!((hash.hash, hash.minor_hash) >= last, "leaves are in order of hashes");
                last = (hash.hash, hash.minor_hash);
                assert!(reader.lookup(hash.hash, entry.name), "{:?} is found", entry.name);
            } else {
                assert!(u64::from(entry.inode.0) >= last.0 as u64, "in order of inodes");
                last = (entry.inode.0, 0);
            }
        }
    }
    let mut wanted = wanted.to_vec();
    wanted.sort();
    have.sort();
    assert_eq!(have, wanted);
    let mut names: Vec<_> = have.iter().map(|(_, name)| names::key(dir, name)).collect();
    names.sort();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "names are unique");
}

/// The expected entries, given the report of the rebuild.
fn expected(entries: &[Entry<'_>], settled: &[Settled]) -> Vec<(u32, Vec<u8>)> {
    let mut left: Vec<(u32, Vec<u8>)> =
        entries.iter().map(|entry| (entry.inode.0, entry.name.to_vec())).collect();
    let mut new = Vec::new();
    for one in settled {
        let (inode, name) = match one {
            Settled::DroppedSame { inode, name }
            | Settled::DroppedNoKey { inode, name }
            | Settled::DroppedBad { inode, name } => (inode, name),
            Settled::Renamed { inode, from, to } => {
                new.push((inode.0, to.clone()));
                (inode, from)
            }
        };
        let at = left.iter().position(|(one, other)| *one == inode.0 && other == name).unwrap();
        left.swap_remove(at);
    }
    left.extend(new);
    left
}

fn any_format() -> impl Strategy<Value = DirFormat> {
    (
        prop_oneof![Just(1024usize), Just(2048), Just(4096), Just(65536)],
        any::<[bool; 4]>(),
        0u8..6,
        any::<[u32; 4]>(),
    )
        .prop_map(
            |(block_size, [csum, filetype, dir_index, large_dir], version, hash_seed)| DirFormat {
                filetype,
                dir_index: dir_index || csum,
                large_dir,
                hash_version: HashVersion::of(version).unwrap(),
                hash_seed,
                ..format(block_size, csum)
            },
        )
}

fn any_entries() -> impl Strategy<Value = Vec<(u32, Vec<u8>)>> {
    let name = prop_oneof![
        4 => proptest::collection::vec(1u8..=255, 1..=255),
        2 => "[aAbB~01]{1,4}".prop_map(String::into_bytes),
        2 => "[a-z]{8,30}".prop_map(String::into_bytes),
        1 => "[a\u{e4}\u{c4}\u{df}]{120,127}".prop_map(|name| {
            let mut end = name.len().min(255);
            while !name.is_char_boundary(end) {
                end -= 1;
            }
            name.as_bytes()[..end].to_vec()
        }),
    ];
    proptest::collection::vec((11u32..40, name), 0..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_directory_can_be_read(
        format in any_format(),
        raw in any_entries(),
        encrypted: bool, casefolded: bool, lost_found in prop::bool::weighted(0.1),
        size_blocks in 0u64..6,
        narrow: bool,
    ) {
        let dir = Directory { encrypted, casefolded, ..directory() };
        let entries: Vec<Entry<'_>> = raw.iter().enumerate().map(|(at, (inode, name))| {
            let mut entry = Entry::new(InodeNr(*inode), name.as_slice(), 1);
            // A narrow range, so that leaves begin in the middle of a hash.
            let hash = (at as u32).wrapping_mul(0x9e37_79b8) & if narrow { 0x0300_0000 } else { !1 };
            entry.hash = dir.hashed().then_some((hash, at as u32));
            entry
        }).collect();
        let rebuilt = rebuild(&format, &dir, size_blocks, lost_found, entries.clone());
        judge(&format, &dir, &rebuilt, &expected(&entries, &rebuilt.settled));
        let blocks = (rebuilt.content.len() / format.block_size) as u64;
        prop_assert!(!(rebuilt.indexed && (lost_found || size_blocks < 2 || !format.dir_index)));
        prop_assert!(!lost_found || blocks >= size_blocks);
        prop_assert!(rebuilt.indexed || lost_found || size_blocks < 2 || !format.dir_index || blocks == 1);
        prop_assert!(!rebuilt.needs_large_dir);
        // Gathering and rebuilding again gives the same blocks.
        let again = gather(&rebuilt.content, &format, &dir);
        let once_more = rebuild(&format, &dir, size_blocks.max(blocks), lost_found, again);
        prop_assert!(once_more.settled.is_empty());
        if size_blocks >= 2 || lost_found {
            prop_assert_eq!(&once_more.content, &rebuilt.content);
        }
        // The order of entries does not matter if no names collide.
        let mut other = entries;
        other.reverse();
        if !dir.hashed() && !dir.folds() {
            let reversed = rebuild(&format, &dir, size_blocks, lost_found, other);
            prop_assert_eq!(reversed, rebuilt);
        }
    }

    /// Any bytes can be gathered and rebuilt.
    #[test]
    fn any_content_may_come(
        content in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(12)], 0..3000),
        csum: bool, encrypted: bool, casefolded: bool,
    ) {
        let dir = Directory { encrypted, casefolded, ..directory() };
        let format = format(1024, csum);
        let entries = gather(&content, &format, &dir);
        let rebuilt = rebuild(&format, &dir, 3, false, entries.clone());
        judge(&format, &dir, &rebuilt, &expected(&entries, &rebuilt.settled));
    }
}

/// Long names, so that a few entries make many leaves.
fn long_names(count: u32) -> Vec<(u32, Vec<u8>)> {
    (0..count).map(|at| (at % 1000 + 11, format!("{at:07}{}", "x".repeat(248)).into())).collect()
}

fn build_long(format: &DirFormat, count: u32) -> Rebuilt {
    let raw = long_names(count);
    let entries = raw.iter().map(|(inode, name)| Entry::new(InodeNr(*inode), name.as_slice(), 1));
    let rebuilt = rebuild(format, &directory(), 2, false, entries.collect());
    // 60,000 lookups, each a walk down the index.
    judge(format, &directory(), &rebuilt, &raw);
    rebuilt
}

fn levels(rebuilt: &Rebuilt) -> u8 {
    DxBlock::root_info(&rebuilt.content).unwrap().indirect_levels
}

#[test]
fn levels_grow_with_the_leaves() {
    let plain = format(1024, true);
    let large = DirFormat { large_dir: true, ..plain.clone() };
    // Three such names fill a leaf to more than 80 percent; 123 leaves fill a root of 1 KiB, and
    // 123 * 126 an index of two levels.
    assert_eq!(levels(&build_long(&plain, 123 * 3)), 0);
    assert_eq!(levels(&build_long(&plain, 123 * 3 + 1)), 1);
    let deep = build_long(&large, 123 * 126 * 3 + 1);
    assert_eq!((levels(&deep), deep.needs_large_dir), (2, false));
    let deep = build_long(&plain, 123 * 126 * 3 + 1);
    assert_eq!((levels(&deep), deep.needs_large_dir), (2, true));
}

#[test]
fn slack_is_given_up_before_an_index_gets_too_deep() {
    let format = format(1024, true);
    // Leaves filled to 80 percent would be too many; full ones fit.
    let names: Vec<Vec<u8>> =
        (0..123 * 126 * 17).map(|at| format!("{at:07}{}", "x".repeat(40)).into()).collect();
    let build = |format: &DirFormat| {
        let entries = names.iter().map(|name| Entry::new(InodeNr(11), name.as_slice(), 1));
        rebuild(format, &directory(), 2, false, entries.collect())
    };
    let rebuilt = build(&format);
    assert_eq!((levels(&rebuilt), rebuilt.needs_large_dir), (1, false));
    let large = DirFormat { large_dir: true, ..format };
    assert!(build(&large).content.len() > rebuilt.content.len());
    assert_eq!(levels(&build(&large)), 2);
}

#[test]
fn a_leaf_keeps_a_fifth_free() {
    let format = format(4096, true);
    let rebuilt = build_long(&format, 1000);
    let reader = Reader { format: &format, dir: &directory(), content: &rebuilt.content };
    let leaves = reader.leaves();
    for leaf in &leaves[..leaves.len() - 1] {
        let used: usize = reader.leaf(*leaf).iter().map(|entry| entry.name.len() + 9).sum();
        assert!(4096 - used >= 4096 / 5 - 264 && 4096 - used < 4096 / 5 + 264, "{used} used");
    }
}
