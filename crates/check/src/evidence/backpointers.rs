//! Backpointers of inodes and entries of directories, compared without keeping either: each inode has a lane, the exclusive
//! or of a digest of its backpointer and of a digest of the entry that names it, in whatever order they are met. At the end it
//! is zero where both agree, and with a probability of 2^-15 elsewhere.

use floe_format::InodeNr;
use floe_format::ext::dirent::DirCursor;
use floe_format::ext::inode::FileType;
use floe_format::layout::le;
use floe_format::native::backpointer::{Backpointer, name_hash};
use floe_sync::OnceLock;
use floe_sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Inodes of a chunk, which is made when one of them is met.
const CHUNK: u32 = 2048;
/// Bytes of an inode at which its mode and its links lie.
const I_MODE: usize = 0;
const I_LINKS_COUNT: usize = 0x1a;
/// Lanes of a word.
const LANES: u32 = 4;
/// Marks a lane whose inode says nothing, or may have several names.
const OPEN: u64 = 0x8000;

/// The lanes of all inodes, which workers share.
#[derive(Debug)]
pub struct Backpointers {
    chunks: Vec<OnceLock<Box<[AtomicU64]>>>,
    /// Not 0: an entry was met twice, so that nothing can be said.
    spoiled: AtomicUsize,
}

/// Bytes of memory for so many inodes in use, if their tables are full.
pub const fn bytes(inodes: u64) -> u64 {
    inodes * 2 + inodes / 64
}

impl Backpointers {
    /// For a file system of so many inodes.
    pub fn new(inodes: u32) -> Self {
        let mut chunks = Vec::new();
        chunks.resize_with(inodes.div_ceil(CHUNK) as usize, OnceLock::new);
        Self { chunks, spoiled: AtomicUsize::new(0) }
    }

    /// The word of an inode's lane, and the lane's place in it.
    fn word(&self, inode: InodeNr) -> Option<(&AtomicU64, u32)> {
        let at = inode.0.checked_sub(1)?;
        let chunk = self.chunks.get((at / CHUNK) as usize)?;
        let words = || (0..CHUNK / LANES).map(|_| AtomicU64::new(0)).collect();
        let word = chunk.get_or_init(words).get((at % CHUNK / LANES) as usize)?;
        Some((word, at % LANES * (u64::BITS / LANES)))
    }

    fn note(&self, inode: InodeNr, parent: u32, name_hash: u32) {
        if let Some((word, shift)) = self.word(inode) {
            // Relaxed: lanes are read when all workers have ended.
            word.fetch_xor(digest(parent, name_hash) << shift, Ordering::Relaxed);
        }
    }

    /// Notes an inode of a table.
    pub fn note_inode(&self, inode: InodeNr, raw: &[u8]) {
        // Read in place, because each inode of the file system comes by here.
        let Some(base) = raw.first_chunk::<128>() else { return };
        let (mode, links) = (le::<u16, I_MODE, _>(base), le::<u16, I_LINKS_COUNT, _>(base));
        if links == 0 {
            return;
        }
        let is_single = links == 1 || FileType::of_mode(mode) == Some(FileType::Directory);
        match Backpointer::of(raw).filter(|_| is_single) {
            Some(own) => self.note(inode, own.parent, own.name_hash),
            None => {
                if let Some((word, shift)) = self.word(inode) {
                    word.fetch_or(OPEN << shift, Ordering::Relaxed);
                }
            }
        }
    }

    /// Notes a directory block, which must not be noted again.
    pub fn note_block(&self, dir: InodeNr, bytes: &[u8]) {
        for entry in DirCursor::new(bytes).map_while(Result::ok) {
            if entry.in_use() && !entry.is_dot_or_dotdot() {
                self.note(entry.inode, dir.0, name_hash(entry.name));
            }
        }
    }

    /// A block that was noted will be noted again.
    pub fn spoil(&self) {
        self.spoiled.store(1, Ordering::Relaxed);
    }

    /// The first inode whose backpointer is not that of its name, and how many there are.
    pub fn wrong(&self) -> Option<(InodeNr, u64)> {
        if self.spoiled.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let (mut first, mut count) = (None, 0);
        for (at, chunk) in (0..).zip(&self.chunks) {
            for (nth, word) in (0..).zip(chunk.get().into_iter().flatten()) {
                let word = word.load(Ordering::Relaxed);
                for lane in 0..LANES {
                    let value = word >> (lane * (u64::BITS / LANES)) & 0xffff;
                    if value != 0 && value & OPEN == 0 {
                        first.get_or_insert(InodeNr(at * CHUNK + nth * LANES + lane + 1));
                        count += 1;
                    }
                }
            }
        }
        first.map(|first| (first, count))
    }
}

/// 15 bits of a directory and the hash of a name in it.
fn digest(parent: u32, name_hash: u32) -> u64 {
    let both = u64::from(parent) << 32 | u64::from(name_hash);
    both.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 49
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_format::ext::inode::OwnedInode;
    use proptest::prelude::*;

    fn inode(links: u16, own: Option<Backpointer>) -> Vec<u8> {
        let mut inode = OwnedInode::new(InodeNr(12), 256, 48).unwrap();
        inode.base.mode = FileType::Regular.mode(0o644);
        inode.base.links_count = links;
        inode.set_backpointer(own.as_ref());
        inode.seal(None).to_vec()
    }

    proptest! {
        #[test]
        fn whatever_comes_first_is_right(
            names in proptest::collection::vec((1u32..3000, 1u32..9, any::<u32>()), 0..40), order: bool,
        ) {
            let all = Backpointers::new(3000);
            let mut seen = std::collections::BTreeSet::new();
            for (number, parent, hash) in names {
                if !seen.insert(number) {
                    continue;
                }
                let own = Backpointer { name_hash: hash, ..Backpointer::new(InodeNr(parent), b"") };
                let raw = inode(1, Some(own));
                if order {
                    all.note(InodeNr(number), parent, hash);
                    all.note_inode(InodeNr(number), &raw);
                } else {
                    all.note_inode(InodeNr(number), &raw);
                    all.note(InodeNr(number), parent, hash);
                }
            }
            prop_assert_eq!(all.wrong(), None);
        }
    }

    #[test]
    fn other_names_are_found_and_unknown_ones_are_not() {
        let all = Backpointers::new(5000);
        let own = Backpointer::new(InodeNr(2), b"name");
        for (number, raw) in [
            (12, inode(1, Some(own.clone()))),
            (13, inode(1, None)),
            (14, inode(2, Some(own.clone()))),
            (4000, inode(1, Some(own.clone()))),
        ] {
            all.note_inode(InodeNr(number), &raw);
            all.note(InodeNr(number), 2, name_hash(if number == 12 { b"name" } else { b"other" }));
        }
        assert_eq!(all.wrong(), Some((InodeNr(4000), 1)));
        all.note_inode(InodeNr(0), &inode(1, Some(own.clone())));
        all.note_inode(InodeNr(u32::MAX), &inode(1, Some(own)));
        all.spoil();
        assert_eq!(all.wrong(), None);
    }
}
