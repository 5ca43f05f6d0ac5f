//! A file system with staged edits: reads see them, the device does not change.
//!
//! A stage lives for one round: it uses the evidence of one examination, takes edits, and at the
//! end writes superblock and descriptors back into the overlay.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use floe_blockdev::{Overlay, ReadBlocks, WriteBlocks};
use floe_check::Examination;
use floe_check::cube::CubeScope;
use floe_ext4::files::Files;
use floe_format::crc::Seed;
use floe_format::native::identity::Identity;
use floe_format::native::lot::is_desc_size;
use floe_format::{BlockNr, Geometry, GroupNr, InodeNr};

use crate::failure::Failure;
use crate::moves::MoveLog;

mod alloc;
mod gathered;
mod inodes;
mod private;
mod shared_ledger;
mod space;
mod superblock;

pub use inodes::InodeImage;
pub(crate) use shared_ledger::{SharedLedger, clusters_of};
use space::Space;
use superblock::Descriptors;

/// `i_mode` of a regular file with mode 0600.
pub(crate) const MODE_PRIVATE: u16 = 0o100_600;

/// The file system under repair, for one round.
pub struct Stage<'a> {
    /// Destination of edits.
    pub overlay: &'a Overlay<&'a dyn ReadBlocks>,
    /// Evidence of the examination of this round.
    pub evidence: &'a Examination<'a>,
    /// The device of an external journal; its edits are staged here.
    pub journal_device: Option<&'a Overlay<&'a dyn ReadBlocks>>,
    /// Derived from the superblock as it was at the start of the round.
    pub geometry: Geometry,
    /// Seed of the metadata checksums.
    pub seed: Seed,
    /// The current time, in seconds since 1970.
    pub now_seconds: i64,
    /// 16 random bytes for a missing UUID.
    pub random: [u8; 16],
    /// The cube that is repaired, if it is one alone.
    cube: Option<&'a CubeScope>,
    descriptors: Descriptors,
    space: Space<'a>,
    kept: Kept<'a>,
    /// An edit needed evidence that this examination did not keep.
    lacks_evidence: Cell<bool>,
}

/// State that one edit leaves for later edits of the round, and what limits all of them.
#[derive(Default)]
struct Kept<'a> {
    /// Where moves of files are recorded; `None`: nothing may move.
    moves: Option<&'a MoveLog<'a>>,
    ledger: Option<SharedLedger>,
    /// Blocks that no map leads to, and that say whose they are.
    gathered: gathered::Sought,
    /// The lost+found of a directory, where this round created it.
    lost_found: BTreeMap<InodeNr, InodeNr>,
    /// Blocks in the place of metadata to which nothing is written: see [`Stage::leave_alone`].
    alone: Option<&'a BTreeSet<BlockNr>>,
    /// Content of blocks before metadata were written there: see [`Stage::remember_covered`].
    covered: Option<&'a BTreeMap<BlockNr, Vec<u8>>>,
    /// Notes for the report since the last call of [`Stage::take_notes`].
    notes: Vec<String>,
}

impl<'a> Stage<'a> {
    /// A stage over `overlay`, which `evidence` examined.
    pub fn new(
        overlay: &'a Overlay<&'a dyn ReadBlocks>,
        evidence: &'a Examination<'a>,
        now_seconds: i64,
        random: [u8; 16],
    ) -> Self {
        Self {
            overlay,
            geometry: evidence.volume.geometry.clone(),
            seed: evidence.volume.seed,
            descriptors: Descriptors::of(evidence),
            space: Space::default(),
            kept: Kept::default(),
            lacks_evidence: Cell::new(false),
            evidence,
            journal_device: None,
            now_seconds,
            random,
            cube: None,
        }
    }

    /// Lets files move, recorded here.
    pub(crate) const fn move_files(&mut self, moves: &'a MoveLog<'a>) {
        self.kept.moves = Some(moves);
    }

    /// Where moves of files are recorded; `None`: nothing may move.
    pub(crate) const fn moves(&self) -> Option<&'a MoveLog<'a>> {
        self.kept.moves
    }

    /// Writes nothing to these blocks in the place of metadata, because files that get no copies may have data there.
    pub(crate) const fn leave_alone(&mut self, blocks: &'a BTreeSet<BlockNr>) {
        self.kept.alone = Some(blocks);
    }

    /// Copies of these blocks for files get this content: a repair had to write metadata there before it could know whose they are.
    pub(crate) const fn remember_covered(&mut self, blocks: &'a BTreeMap<BlockNr, Vec<u8>>) {
        self.kept.covered = Some(blocks);
    }

    /// A block as it was before this repair wrote metadata there.
    ///
    /// # Errors
    /// Those of [`Stage::read_block`].
    pub(crate) fn read_uncovered(&self, block: BlockNr) -> Result<Vec<u8>, Failure> {
        let kept = self.kept.covered.and_then(|blocks| blocks.get(&block));
        kept.map_or_else(|| self.read_block(block), |bytes| Ok(bytes.clone()))
    }

    /// Whether metadata may be written to a block.
    ///
    /// # Errors
    /// [`Failure::InPlace`].
    fn must_not_leave_alone(&self, block: BlockNr) -> Result<(), Failure> {
        let is_left = self.kept.alone.is_some_and(|blocks| blocks.contains(&block));
        if is_left { Err(Failure::InPlace(block)) } else { Ok(()) }
    }

    /// Whether Floe made the file system as a native one.
    pub fn is_native(&self) -> bool {
        is_desc_size(self.geometry.desc_size) && Identity::of(self.superblock()).is_some()
    }

    /// The same, for a repair of one cube alone: blocks and inodes are allocated in its lots, and lost+found is a directory
    /// of its own.
    #[must_use]
    pub fn of_cube(self, cube: Option<&'a CubeScope>) -> Self {
        Self { cube, ..self }
    }

    /// The cube that is repaired, if it is one alone.
    pub(crate) const fn cube(&self) -> Option<&'a CubeScope> {
        self.cube
    }

    /// The files of the staged file system, by the superblock and the descriptors that were examined.
    pub(crate) fn files(&self) -> Files<'a> {
        let volume = &self.evidence.volume;
        let (superblock, geometry) = (volume.superblock.clone(), volume.geometry.clone());
        Files::new(self.overlay, superblock, geometry, &volume.groups)
    }

    /// The lost+found directory, if there is a usable one.
    pub fn lost_found(&self) -> Option<InodeNr> {
        self.lost_found_of(self.cube.map_or(InodeNr::ROOT, CubeScope::top))
    }

    /// That of the root, or of the directory of a cube.
    pub(crate) fn lost_found_of(&self, home: InodeNr) -> Option<InodeNr> {
        self.kept.lost_found.get(&home).copied().or_else(|| {
            let inode = match home {
                InodeNr::ROOT => self.evidence.entries.lost_found?.inode,
                top => self.named_lost_found(top)?,
            };
            let image = self.read_inode(inode).ok()?;
            image.serves_as_lost_found().then_some(inode)
        })
    }

    /// The directory whose lost+found gets an inode that has no name: the root, or that of the inode's cube.
    pub(crate) fn home_of(&self, inode: InodeNr) -> InodeNr {
        if let Some(cube) = self.cube {
            return cube.top();
        }
        let cubes = self.evidence.volume.cubes.as_ref();
        let top = cubes.and_then(|cubes| {
            let cube = cubes.of_inode(&self.geometry, inode);
            cubes.top_of(&self.geometry, cube).filter(|_| cube > 0)
        });
        top.filter(|top| *top != inode).unwrap_or(InodeNr::ROOT)
    }

    /// The inode that a directory names lost+found.
    fn named_lost_found(&self, dir: InodeNr) -> Option<InodeNr> {
        let files = self.files();
        let listing = files.list(&files.node(dir).ok()?).ok()?;
        let mut entries = listing.entries.into_iter();
        entries.find(|entry| entry.name == b"lost+found").map(|entry| entry.inode)
    }

    /// Sets a newly created lost+found of the root, or of the directory of a cube.
    pub(crate) fn set_lost_found(&mut self, home: InodeNr, inode: InodeNr) {
        self.kept.lost_found.insert(home, inode);
    }

    /// Takes the ledger of shared clusters; computed from the findings on first use.
    pub(crate) fn take_ledger(&mut self) -> SharedLedger {
        let found = &self.evidence.report.found;
        self.kept.ledger.take().unwrap_or_else(|| SharedLedger::of(found, &self.geometry))
    }

    /// Puts the ledger back for the next inode.
    pub(crate) fn put_ledger(&mut self, ledger: SharedLedger) {
        self.kept.ledger = Some(ledger);
    }

    const fn sought(&self) -> &gathered::Sought {
        &self.kept.gathered
    }

    /// Adds a note for the report, beyond the description of the edit.
    pub fn note(&mut self, text: String) {
        self.kept.notes.push(text);
    }

    /// The notes since the last call.
    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.kept.notes)
    }

    /// Block size in bytes.
    pub const fn block_size(&self) -> usize {
        self.geometry.block_size as usize
    }

    /// The current time in 32 bits, for `i_mtime` and the like.
    pub(crate) const fn now32(&self) -> u32 {
        // Such fields hold the low 32 bits.
        self.now_seconds as u32
    }

    /// Reads a block with its staged edits.
    ///
    /// # Errors
    /// [`Failure::Misplaced`] outside the file system; a read error.
    pub fn read_block(&self, block: BlockNr) -> Result<Vec<u8>, Failure> {
        if !self.geometry.contains(block) {
            return Err(Failure::Misplaced(block));
        }
        let mut bytes = vec![0; self.block_size()];
        self.overlay.read_at(self.geometry.offset_bytes(block), &mut bytes)?;
        Ok(bytes)
    }

    /// Stages a block.
    ///
    /// # Errors
    /// [`Failure::Misplaced`] outside the file system; [`Failure::InPlace`]; an error of the staging area.
    pub fn write_block(&self, block: BlockNr, bytes: &[u8]) -> Result<(), Failure> {
        if !self.geometry.contains(block) {
            return Err(Failure::Misplaced(block));
        }
        self.must_not_leave_alone(block)?;
        self.overlay.write_at(self.geometry.offset_bytes(block), bytes)?;
        Ok(())
    }

    /// Whether metadata has checksums.
    pub(crate) fn checksummed(&self) -> bool {
        self.geometry.features.metadata_csum()
    }

    /// Ensures that the evidence covers all groups: an examination by fingerprints records the
    /// blocks in use of only a few (`docs/memory.md`).
    ///
    /// # Errors
    /// [`Failure::NotKept`], which ends the repair.
    pub(crate) fn must_know_all(&self) -> Result<(), Failure> {
        let volume = &self.evidence.volume;
        self.must(volume.mode.scope.is_all() && volume.mode.claim_scope.is_all())
    }

    /// As [`Stage::must_know_all`], for one group.
    ///
    /// # Errors
    /// [`Failure::NotKept`], which ends the repair.
    pub(crate) fn must_know(&self, group: GroupNr) -> Result<(), Failure> {
        let volume = &self.evidence.volume;
        self.must(volume.mode.scope.contains(group) && volume.mode.claim_scope.contains(group))
    }

    fn must(&self, known: bool) -> Result<(), Failure> {
        if known {
            return Ok(());
        }
        self.lacks_evidence.set(true);
        Err(Failure::NotKept)
    }

    /// Whether any call returned [`Failure::NotKept`], even if the caller tolerated it.
    pub(crate) fn lacks_evidence(&self) -> bool {
        self.lacks_evidence.get()
    }
}
