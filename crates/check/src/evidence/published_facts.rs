//! Facts of inodes for who needs them before the inode pass is over: each chunk is there from the
//! moment on when its part of a table was read.

use floe_format::ext::inode::FileType;
use floe_format::{Geometry, InodeNr};
use floe_sync::{Arc, OnceLock};

use super::column::Column;
use super::inode_facts::{CHUNK_INODES, ChunkPlaces, Facts, FactsChunk};
use super::ledger::Ledger;
use super::scope::Scope;

/// The chunks that are known so far. Written once a part (2048 inodes), and read without a lock.
#[derive(Debug)]
pub struct PublishedFacts {
    chunks: Vec<OnceLock<Arc<FactsChunk>>>,
    places: ChunkPlaces,
}

impl PublishedFacts {
    /// Nothing yet. Where facts are kept of some groups only, these are few and nothing is published:
    /// a place for every chunk would be most of the memory.
    pub fn new(geometry: &Geometry, scope: &Scope) -> Self {
        let places = ChunkPlaces::of(geometry);
        let mut chunks = Vec::new();
        if scope.is_all() {
            chunks.resize_with(places.count(), OnceLock::new);
        }
        Self { chunks, places }
    }

    /// Says what is known of a chunk.
    pub(crate) fn publish(&self, index: u32, chunk: &Arc<FactsChunk>) {
        if let Some(slot) = self.chunks.get(index as usize) {
            // Each part is read once; a second time would say the same.
            _ = slot.set(Arc::clone(chunk));
        }
    }
}

/// Looks up inodes that the entries of one block name, and remembers which: those that are not known
/// yet are taken to be what the entry says, and have to be asked for again.
#[derive(Debug)]
pub struct EarlyCursor<'a> {
    published: &'a PublishedFacts,
    scope: &'a Scope,
    geometry: &'a Geometry,
    /// Where inodes that were asked for are noted, and more of the same chunk.
    met: &'a mut Ledger,
    /// First inode of the chunk at hand, and how many it has.
    first: u32,
    len: u32,
    chunk: Chunk<'a>,
    /// All inodes asked for, with the types that entries give them.
    pub asked: Vec<(InodeNr, u8)>,
    /// Whether one of them is not known yet.
    pub unproved: bool,
}

/// The facts of the current chunk.
#[derive(Clone, Copy, Debug)]
enum Chunk<'a> {
    Known(&'a Column<Facts>),
    NotYet,
    /// Sums prove it.
    NotKept,
    /// It is not in the file system.
    Outside,
}

impl<'a> EarlyCursor<'a> {
    /// A cursor for one block; `asked` is room for the list.
    pub fn new(
        published: &'a PublishedFacts,
        scope: &'a Scope,
        geometry: &'a Geometry,
        met: &'a mut Ledger,
        mut asked: Vec<(InodeNr, u8)>,
    ) -> Self {
        asked.clear();
        let (first, len, chunk) = (0, 0, Chunk::Outside);
        Self { published, scope, geometry, met, first, len, chunk, asked, unproved: false }
    }

    /// The facts of an inode that an entry names with a file type; if there are none, that type.
    #[inline]
    pub fn get(&mut self, inode: InodeNr, named_as: u8) -> Facts {
        let mut at = inode.0.wrapping_sub(self.first);
        if at >= self.len {
            self.move_to(inode);
            at = inode.0.wrapping_sub(self.first);
        }
        self.asked.push((inode, named_as));
        match self.chunk {
            Chunk::Known(facts) => facts.get(at as usize).unwrap_or_default(),
            Chunk::Outside => Facts::default(),
            Chunk::NotYet => {
                self.unproved = true;
                Facts::used(FileType::of_entry(named_as))
            }
            Chunk::NotKept => Facts::used(FileType::of_entry(named_as)),
        }
    }

    /// Whether facts of the inode asked for last are kept.
    #[inline]
    pub fn is_kept(&self) -> bool {
        !matches!(self.chunk, Chunk::NotKept)
    }

    fn move_to(&mut self, inode: InodeNr) {
        (self.first, self.len, self.chunk) = (inode.0, 1, Chunk::Outside);
        let Some((group, place)) = self.geometry.place_of(inode) else {
            self.met.note(inode.0, inode.0);
            return;
        };
        if !self.scope.contains(group) {
            (self.first, self.len) = (inode.0 - place, self.geometry.inodes_per_group);
            self.chunk = Chunk::NotKept;
        } else if let Some((index, _)) = self.published.places.slot(inode) {
            self.first = self.published.places.first(index).0;
            self.len = CHUNK_INODES
                .min(self.geometry.inodes_per_group - place / CHUNK_INODES * CHUNK_INODES);
            let known = self.published.chunks.get(index).and_then(OnceLock::get);
            self.chunk = known.map_or(Chunk::NotYet, |chunk| Chunk::Known(&chunk.facts));
        }
        self.met.note(self.first, self.first.saturating_add(self.len - 1));
    }
}
