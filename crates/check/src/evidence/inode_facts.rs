//! Facts about every inode for later passes: at most three bytes each, only where inodes are in
//! use, and next to nothing where they are alike.

use super::column::Column;
use super::ledger::Ledger;
use super::scope::Scope;
use crate::saved::{Decoder, Encoder, Fault, Saved};
use floe_exec::Accumulator;
use floe_format::ext::inode::FileType;
use floe_format::{Geometry, GroupNr, InodeNr};
use floe_sync::Arc;

/// Inodes of a chunk; a chunk lies inside one group's table.
pub const CHUNK_INODES: u32 = 2048;

/// Facts about one inode after the inode pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts(u8);

impl Facts {
    const TYPE: u8 = 0x07;
    const USED: u8 = 0x08;
    const EA_INODE: u8 = 0x10;
    const ENCRYPTED: u8 = 0x20;
    const ORPHAN: u8 = 0x40;
    const BAD: u8 = 0x80;

    /// An inode in use, of a type (`None`: undefined).
    pub fn used(file_type: Option<FileType>) -> Self {
        Self(Self::USED | file_type.map_or(0, |file_type| file_type as u8))
    }

    /// Adds that the inode holds a big extended attribute (EA_INODE_FL).
    #[must_use]
    pub(crate) const fn with_ea_inode(self) -> Self {
        Self(self.0 | Self::EA_INODE)
    }

    /// Adds that the inode is encrypted.
    #[must_use]
    pub(crate) const fn with_encrypted(self) -> Self {
        Self(self.0 | Self::ENCRYPTED)
    }

    /// Adds that the inode is a valid member of the orphan list or file: recovery will delete or
    /// truncate it, so it need not be named.
    #[must_use]
    pub(crate) const fn with_orphan(self) -> Self {
        Self(self.0 | Self::ORPHAN)
    }

    /// Adds that the inode itself was found damaged so that a repair would clear it.
    #[must_use]
    pub(crate) const fn with_bad(self) -> Self {
        Self(self.0 | Self::BAD)
    }

    /// Whether the inode is in use.
    #[inline]
    pub const fn is_used(self) -> bool {
        self.0 & Self::USED != 0
    }

    /// Whether the inode is in use, no attribute value and not damaged: nothing speaks against a
    /// directory entry that names it.
    #[inline]
    pub(crate) const fn is_plain_used(self) -> bool {
        self.0 & (Self::USED | Self::EA_INODE | Self::BAD) == Self::USED
    }

    /// The type, if nothing is known but that the inode is in use and has it.
    #[inline]
    pub(crate) fn plain_type(self) -> Option<FileType> {
        self.file_type().filter(|file_type| self == Self::used(Some(*file_type)))
    }

    /// Whether nothing is known but that the inode is in use and has the type that an entry says (`file_type`,
    /// 1 to 7).
    #[inline]
    pub(crate) const fn is_plain_as(self, file_type: u8) -> bool {
        file_type != 0 && file_type <= Self::TYPE && self.0 == Self::USED | file_type
    }

    /// The type; `None` if undefined or not in use.
    #[inline]
    pub const fn file_type(self) -> Option<FileType> {
        FileType::of_entry(self.0 & Self::TYPE)
    }

    /// Whether it is a directory in use.
    #[inline]
    pub fn is_dir(self) -> bool {
        self.0 & (Self::TYPE | Self::USED) == Self::USED | FileType::Directory as u8
    }

    /// Whether it holds a big extended attribute.
    #[inline]
    pub(crate) const fn is_ea_inode(self) -> bool {
        self.0 & Self::EA_INODE != 0
    }

    /// Whether it is encrypted.
    #[inline]
    pub(crate) const fn is_encrypted(self) -> bool {
        self.0 & Self::ENCRYPTED != 0
    }

    /// Whether recovery will delete or truncate it.
    #[inline]
    pub(crate) const fn is_orphan(self) -> bool {
        self.0 & Self::ORPHAN != 0
    }

    /// Whether a repair would clear it.
    #[inline]
    pub const fn is_bad(self) -> bool {
        self.0 & Self::BAD != 0
    }
}

/// The facts of one chunk.
#[derive(Clone, Debug)]
pub struct FactsChunk {
    /// One entry an inode, `CHUNK_INODES` or fewer at the end of a group.
    pub facts: Column<Facts>,
    /// `i_links_count`, one entry an inode.
    pub links: Column<u16>,
}

impl FactsChunk {
    /// Where nearly all inodes are files in use with one link: the places of the others, ascending,
    /// some of them twice. `None` elsewhere.
    pub(crate) fn unusual(&self) -> Option<impl Iterator<Item = usize>> {
        let ((facts, others), (links, other_links)) = (self.facts.usual()?, self.links.usual()?);
        if !facts.is_plain_used() || facts.is_dir() || links != 1 {
            return None;
        }
        let mut facts = others.iter().map(|&(place, _)| place).peekable();
        let mut links = other_links.iter().map(|&(place, _)| place).peekable();
        Some(std::iter::from_fn(move || {
            let from_facts = match (facts.peek(), links.peek()) {
                (Some(fact), Some(link)) => fact <= link,
                (fact, _) => fact.is_some(),
            };
            let next = if from_facts { facts.next() } else { links.next() };
            next.map(usize::from)
        }))
    }
}

/// Chunks of a page: room is made for so many at once, where any of them is kept.
const PAGE: usize = 64;

/// Slots of chunks that follow each other.
type Page = Box<[Option<Arc<FactsChunk>>; PAGE]>;

/// The facts of all inodes: chunks of [`CHUNK_INODES`], in order; absent where none is in use.
#[derive(Debug, Default)]
pub struct InodeFacts {
    pages: Vec<Option<Page>>,
    places: ChunkPlaces,
}

/// Which inodes are in which chunk.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChunkPlaces {
    inodes_per_group: u32,
    chunks_per_group: u32,
    inodes_count: u32,
    count: usize,
}

impl ChunkPlaces {
    /// The chunks of a file system.
    pub const fn of(geometry: &Geometry) -> Self {
        let chunks_per_group = chunks_per_group(geometry.inodes_per_group);
        Self {
            inodes_per_group: geometry.inodes_per_group,
            chunks_per_group,
            inodes_count: geometry.inodes_count,
            count: chunks_per_group as usize * geometry.group_count as usize,
        }
    }

    /// Number of chunks.
    pub const fn count(self) -> usize {
        self.count
    }

    /// The chunk of an inode, and its place there; `None` outside the file system.
    #[inline]
    pub fn slot(self, inode: InodeNr) -> Option<(usize, usize)> {
        if inode.0 > self.inodes_count {
            return None;
        }
        let index = inode.0.checked_sub(1)?;
        let (group, at) = (index / self.inodes_per_group, index % self.inodes_per_group);
        let chunk = group as usize * self.chunks_per_group as usize + (at / CHUNK_INODES) as usize;
        Some((chunk, (at % CHUNK_INODES) as usize))
    }

    /// The first inode of a chunk.
    pub const fn first(self, index: usize) -> InodeNr {
        // Chunk counts come from the geometry, whose inode numbers fit 32 bits.
        let (group, sub) =
            (index as u32 / self.chunks_per_group, index as u32 % self.chunks_per_group);
        InodeNr(group * self.inodes_per_group + sub * CHUNK_INODES + 1)
    }
}

/// Chunks of one group.
pub(crate) const fn chunks_per_group(inodes_per_group: u32) -> u32 {
    inodes_per_group.div_ceil(CHUNK_INODES)
}

impl InodeFacts {
    /// Puts the chunks that the workers made in their places.
    pub fn new(geometry: &Geometry, parts: FactsParts) -> Self {
        let places = ChunkPlaces::of(geometry);
        let mut pages = Vec::new();
        pages.resize_with(places.count().div_ceil(PAGE), || None);
        let mut facts = Self { pages, places };
        facts.add(parts);
        facts
    }

    /// Puts chunks in their places.
    pub fn add(&mut self, parts: FactsParts) {
        for (index, chunk) in parts.0 {
            let index = index as usize;
            if let (Some(page), true) =
                (self.pages.get_mut(index / PAGE), index < self.places.count())
            {
                let page = page.get_or_insert_with(|| Box::new([const { None }; PAGE]));
                page[index % PAGE] = Some(chunk);
            }
        }
    }

    /// Takes the chunks out of their places again, but for those that `drops` names by their index.
    pub fn into_parts(self, drops: impl Fn(u32) -> bool) -> FactsParts {
        // As many chunks as inode numbers at most, which fit 32 bits.
        let pages = self
            .pages
            .into_iter()
            .map(|page| page.map_or_else(|| std::array::from_fn(|_| None), |page| *page));
        let chunks = (0..).zip(pages.flatten());
        let kept = chunks.filter(|(index, _)| !drops(*index));
        FactsParts(kept.filter_map(|(index, chunk)| Some((index, chunk?))).collect())
    }

    #[inline]
    fn at(&self, index: usize) -> Option<&FactsChunk> {
        self.pages.get(index / PAGE)?.as_ref()?[index % PAGE].as_deref()
    }

    /// The facts of an inode; the default (not in use) outside the file system.
    #[inline]
    pub fn get(&self, inode: InodeNr) -> Facts {
        self.places
            .slot(inode)
            .and_then(|(chunk, at)| self.at(chunk)?.facts.get(at))
            .unwrap_or_default()
    }

    /// `i_links_count` of an inode as it is on the disk.
    #[inline]
    pub fn links(&self, inode: InodeNr) -> u16 {
        self.places.slot(inode).and_then(|(chunk, at)| self.at(chunk)?.links.get(at)).unwrap_or(0)
    }

    /// Number of chunk slots, present or not.
    pub fn chunk_count(&self) -> usize {
        self.places.count()
    }

    /// The chunk at `index`, with the number of its first inode; `None` where no inode is in use.
    pub fn chunk(&self, index: usize) -> Option<(InodeNr, &FactsChunk)> {
        let chunk = self.at(index)?;
        Some((self.places.first(index), chunk))
    }

    /// The chunks of one group, with their first inodes.
    pub fn chunks_of(&self, group: GroupNr) -> impl Iterator<Item = (InodeNr, &FactsChunk)> {
        let per_group = self.places.chunks_per_group as usize;
        let first = group.0 as usize * per_group;
        (first..first + per_group).filter_map(|index| self.chunk(index))
    }
}

/// Looks up facts of inodes that mostly lie near each other: a directory's files were made together, and
/// mostly follow each other.
#[derive(Debug)]
pub struct FactsCursor<'a> {
    all: &'a InodeFacts,
    scope: &'a Scope,
    geometry: &'a Geometry,
    /// Where inodes that were asked for are noted, and more of the same chunk.
    asked: &'a mut Ledger,
    /// The chunk at hand, from its first inode on; if there is one.
    chunk: Option<(InodeNr, &'a Column<Facts>)>,
    /// First of some inodes of which the same is known, and how many they are.
    first: u32,
    len: u32,
    /// The facts; `None` where they are not kept.
    known: Option<Facts>,
}

impl<'a> FactsCursor<'a> {
    /// A cursor that is nowhere yet. `scope` tells whose facts are kept.
    pub const fn new(
        all: &'a InodeFacts,
        geometry: &'a Geometry,
        scope: &'a Scope,
        asked: &'a mut Ledger,
    ) -> Self {
        Self { all, scope, geometry, asked, chunk: None, first: 0, len: 0, known: None }
    }

    /// The facts of an inode that an entry names with a file type, as [`InodeFacts::get`]; where
    /// facts are not kept, those that the fingerprints prove.
    #[inline]
    pub fn get(&mut self, inode: InodeNr, named_as: u8) -> Facts {
        if inode.0.wrapping_sub(self.first) >= self.len && !self.move_in_chunk(inode) {
            self.move_to(inode);
        }
        self.known.unwrap_or_else(|| Facts::used(FileType::of_entry(named_as)))
    }

    /// Whether facts of the inode asked for last are kept.
    #[inline]
    pub fn is_kept(&self) -> bool {
        self.known.is_some()
    }

    /// Moves to an inode if it is one of the chunk at hand.
    #[inline]
    fn move_in_chunk(&mut self, inode: InodeNr) -> bool {
        let Some((first, chunk)) = self.chunk else { return false };
        let at = inode.0.wrapping_sub(first.0);
        let Some((places, facts)) = chunk.run_at(at as usize) else { return false };
        // A chunk has few inodes.
        (self.first, self.len) = (first.0 + places.start as u32, places.len() as u32);
        self.known = Some(facts);
        true
    }

    /// Moves to the chunk of an inode, or to its group if its facts are not kept.
    fn move_to(&mut self, inode: InodeNr) {
        (self.first, self.len, self.known) = (inode.0, 1, Some(Facts::default()));
        self.chunk = None;
        let Some((group, place)) = self.geometry.place_of(inode) else {
            self.asked.note(inode.0, inode.0);
            return;
        };
        let (mut first, mut len) = (inode.0, 1);
        if !self.scope.contains(group) {
            (first, len) = (inode.0 - place, self.geometry.inodes_per_group);
            (self.first, self.len, self.known) = (first, len, None);
        } else if let Some((index, _)) = self.all.places.slot(inode)
            && let Some((start, chunk)) = self.all.chunk(index)
        {
            // A chunk has few inodes.
            (first, len) = (start.0, chunk.facts.len() as u32);
            self.chunk = Some((start, &chunk.facts));
            self.move_in_chunk(inode);
        }
        self.asked.note(first, first.saturating_add(len - 1));
    }
}

/// The chunks one worker made, each with its index.
#[derive(Debug, Default)]
pub struct FactsParts(pub Vec<(u32, Arc<FactsChunk>)>);

impl Accumulator for FactsParts {
    fn merge(&mut self, other: Self) {
        let Self(mut other) = other;
        self.0.append(&mut other);
    }
}

impl Saved for FactsParts {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self(chunks) = self;
        to.put(chunks.len() as u64);
        let mut last = 0;
        for (index, chunk) in chunks {
            let FactsChunk { facts, links } = &**chunk;
            to.put_step(&mut last, u64::from(*index));
            to.put_values(&facts.iter().map(|Facts(bits)| u64::from(bits)).collect::<Vec<_>>());
            to.put_values(&links.iter().map(u64::from).collect::<Vec<_>>());
        }
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let mut last = 0;
        let chunks = (0..from.number()?).map(|_| {
            let index = u32::try_from(from.step(&mut last)?).map_err(|_| Fault::Damaged)?;
            let facts: Vec<u8> = from.values(CHUNK_INODES as usize)?;
            let facts: Vec<Facts> = facts.into_iter().map(Facts).collect();
            let links: Vec<u16> = from.values(CHUNK_INODES as usize)?;
            let (facts, links) = (Column::pack(&facts), Column::pack(&links));
            Ok((index, Arc::new(FactsChunk { facts, links })))
        });
        chunks.collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod laws {
    use super::*;
    use crate::saved::tests::same;
    use floe_format::ext::inode::FileType;

    #[test]
    fn what_is_unusual_is_found_once_or_twice() {
        let file = Facts::used(Some(FileType::Regular));
        let (mut facts, mut links) = ([file; 100], [1; 100]);
        facts[7] = Facts::used(Some(FileType::Directory));
        facts[9] = Facts::default();
        (links[3], links[7]) = (2, 2);
        let chunk = FactsChunk { facts: Column::pack(&facts), links: Column::pack(&links) };
        let mut places: Vec<_> = chunk.unusual().unwrap().collect();
        assert!(places.is_sorted());
        places.dedup();
        assert_eq!(places, [3, 7, 9]);
        let dirs = [Facts::used(Some(FileType::Directory)); 100];
        let chunk = FactsChunk { facts: Column::pack(&dirs), links: Column::pack(&[1; 100]) };
        assert!(chunk.unusual().is_none());
    }

    /// A chunk of two inodes, the second in use.
    fn chunk(links: u16) -> Arc<FactsChunk> {
        let facts = [Facts::default(), Facts::used(Some(FileType::Regular))];
        Arc::new(FactsChunk { facts: Column::pack(&facts), links: Column::pack(&[0, links]) })
    }

    // Each chunk is made once, by one worker.
    floe_exec::accumulator_laws!(
        FactsParts,
        0u32..1000,
        |all: &mut FactsParts, index: u32| all.0.push((index, chunk(index as u16))),
        |all: FactsParts| same(all, |mut all: FactsParts| {
            all.0.sort_by_key(|(index, _)| *index);
            all.0.into_iter().map(|(index, chunk)| (index, chunk.links.clone())).collect::<Vec<_>>()
        })
    );
}
