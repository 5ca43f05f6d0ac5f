//! The check of one cube of a native file system (`docs/cubes.md`): the passes run on a device that shows the lots of the cube
//! and nothing else, below a root that is made up.
//!
//! Descriptors of all lots are read once, because they decide who owns a lot; besides them only blocks in lots of the cube,
//! the superblock, and the few blocks that lead to the cube. If those are destroyed, the sub-superblock is looked for in the
//! lots.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use floe_blockdev::{Overlay, ReadBlocks};
use floe_ext4::cubes::{Copy, find_stray};
use floe_ext4::files::{Files, Follow};
use floe_format::features::RoCompat;
use floe_format::native::cube::{BLOCK_BYTES, SubSuperblock};
use floe_format::native::identity::Identity;
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr, InodeNr};
use floe_sync::{Arc, Mutex, PoisonError};

use crate::checks::group::lots;
use crate::checks::system_files::orphans;
use crate::error::CheckError;
use crate::options::{CheckOptions, Checkpoints};
use crate::passes::pipeline::check;
use crate::passes::recovery;
use crate::problem::{Evidence, Findings, Object, Problem};
use crate::report::{JournalState, Report, in_order};
use crate::volume::Volume;
use crate::volume::cubes::{CubeMap, OneCube};
use crate::volume::journal::JournalUse;
use crate::volume::open::{Opened, WhichSuperblock, open};

mod coupled;
mod stand_in;

pub use coupled::couples;
pub use stand_in::CubeDevice;

pub use crate::volume::cubes::is_coupled;

/// The name of a cube.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CubeName {
    /// Its number.
    Number(u32),
    /// The path of its directory from the root: as its sub-superblock has it, or by the tree.
    Path(Vec<u8>),
}

impl CubeName {
    /// The name in a text: `cube:` and a number, or a path.
    pub fn of(text: &[u8]) -> Self {
        let number = text.strip_prefix(b"cube:").and_then(|rest| std::str::from_utf8(rest).ok());
        match number.and_then(|number| number.parse().ok()) {
            Some(number) => Self::Number(number),
            None => Self::Path(text.to_vec()),
        }
    }
}

/// Why a cube is not looked at. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum CubeError {
    /// The file system cannot be looked at.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// There is no such cube.
    #[error("there is no such cube")]
    NoSuchCube,
    /// Neither copy of the sub-superblock can be found, so that nobody knows the directory of the cube.
    #[error("no copy of the sub-superblock of cube {0} is left; `floe repair` makes a new one")]
    NoSuper(u32),
}

/// The lots, inodes and copies that belong to a cube.
#[derive(Clone, Debug)]
pub struct CubeScope {
    /// Its sub-superblock.
    pub sub: SubSuperblock,
    geometry: Geometry,
    one: OneCube,
    /// Blocks of sub-superblocks in lots of the cube.
    copies: Vec<BlockNr>,
}

impl CubeScope {
    /// The owners of all lots.
    pub fn map(&self) -> &CubeMap {
        &self.one.map
    }

    /// Facts from outside the cube that a check of it needs.
    pub const fn known(&self) -> &OneCube {
        &self.one
    }

    /// Where structures of the file system lie.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Blocks of sub-superblocks in lots of the cube.
    pub(crate) fn copies(&self) -> &[BlockNr] {
        &self.copies
    }

    /// The directory of the cube.
    pub const fn top(&self) -> InodeNr {
        InodeNr(self.sub.top_inode)
    }

    /// Whether a group belongs to the cube.
    pub fn holds_group(&self, group: GroupNr) -> bool {
        self.one.map.of_group(group) == self.sub.cube
    }

    /// Whether an inode does.
    pub fn holds_inode(&self, inode: InodeNr) -> bool {
        self.geometry.place_of(inode).is_some_and(|(group, _)| self.holds_group(group))
    }

    /// Whether a block does.
    pub fn holds_block(&self, block: BlockNr) -> bool {
        self.geometry.group_of(block).is_some_and(|group| self.holds_group(group))
    }

    /// The blocks of each group of the cube.
    pub fn runs(&self) -> impl Iterator<Item = BlockRun> + '_ {
        self.groups().map(|group| self.geometry.blocks_of(group))
    }

    /// The groups of the cube.
    pub fn groups(&self) -> impl Iterator<Item = GroupNr> + '_ {
        (0..self.geometry.group_count).map(GroupNr).filter(|group| self.holds_group(*group))
    }

    /// Whether a finding concerns the cube alone: its inode or directory, and all groups and blocks that it names, belong to
    /// the cube. Another inode that it names may lie anywhere, because an entry that leads out of the cube is damage of the
    /// cube. Findings about copies of the superblock and of descriptors belong to nobody's cube, and where the directory of the
    /// cube has no name, its parent has lost that.
    pub fn concerns(&self, problem: &Problem) -> bool {
        if let Problem::CubeEntangledBlocks { cube, .. }
        | Problem::CubeEntangledName { cube, .. }
        | Problem::CubeBlocksOutside { cube, .. }
        | Problem::CubeNameOutside { cube, .. }
        | Problem::CubeOrphanOutside { cube, .. } = problem
        {
            return *cube == self.sub.cube;
        }
        if matches!(problem, Problem::DirectoryUnconnected { dir, .. } if *dir == self.top()) {
            return false;
        }
        let row = problem.row();
        if row.object == Object::Superblock || row.id.starts_with("backup-") {
            let number = |(name, value): &(&str, Evidence)| {
                *name == "cube" && *value == Evidence::Number(u64::from(self.sub.cube))
            };
            return problem.evidence().iter().any(number);
        }
        let (mut any, mut is_placed) = (false, false);
        let of_cube = problem.evidence().into_iter().all(|(_, value)| {
            let (counts, holds) = match value {
                // The first inode is the place of the damage, others are what is wrong there.
                Evidence::Inode(_) if std::mem::replace(&mut is_placed, true) => (false, true),
                // Numbers outside the file system belong to nobody else.
                Evidence::Inode(inode) => {
                    let is_none = self.geometry.place_of(inode).is_none();
                    (true, is_none || self.holds_inode(inode))
                }
                Evidence::Group(group) => (true, self.holds_group(group)),
                Evidence::Block(block) => {
                    // Block 0 stands for none, as of a map that has no blocks of its own.
                    let is_nobodys = block.0 == 0 || !self.geometry.contains(block);
                    (true, is_nobodys || self.holds_block(block))
                }
                _ => (false, true),
            };
            any |= counts;
            holds
        });
        any && of_cube
    }
}

/// Keeps small reads, which several steps make again: descriptors and the blocks on the way to a cube.
struct Kept<'d> {
    base: &'d dyn ReadBlocks,
    blocks: Mutex<BTreeMap<u64, Arc<[u8]>>>,
}

impl ReadBlocks for Kept<'_> {
    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        let size = BLOCK_BYTES as u64;
        let start = offset_bytes / size * size;
        let within = (offset_bytes - start) as usize;
        let is_one = within + into.len() <= BLOCK_BYTES && start + size <= self.size_bytes();
        if !is_one {
            return self.base.read_at(offset_bytes, into);
        }
        let lock = || self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().get(&start).cloned();
        let bytes = match known {
            Some(bytes) => bytes,
            None => {
                let mut bytes = vec![0; BLOCK_BYTES];
                self.base.read_at(start, &mut bytes)?;
                let bytes: Arc<[u8]> = bytes.into();
                lock().insert(start, Arc::clone(&bytes));
                bytes
            }
        };
        into.copy_from_slice(&bytes[within..within + into.len()]);
        Ok(())
    }
}

/// A file system whose cubes are known.
pub struct Cubes<'d> {
    base: &'d dyn ReadBlocks,
    opened: Opened,
    map: Arc<CubeMap>,
    orphans: Vec<InodeNr>,
    now_seconds: i64,
}

impl<'d> Cubes<'d> {
    /// Reads superblock, descriptors and sub-superblocks of a device whose journal is empty or replayed.
    ///
    /// # Errors
    /// [`CubeError::Check`]; [`CubeError::NoSuchCube`] where there is none at all.
    pub fn of(device: &'d dyn ReadBlocks, options: &CheckOptions<'_>) -> Result<Self, CubeError> {
        Self::of_opened(device, open(device, options.superblock)?, options, None)
    }

    fn of_opened(
        device: &'d dyn ReadBlocks,
        opened: Opened,
        options: &CheckOptions<'_>,
        name: Option<&CubeName>,
    ) -> Result<Self, CubeError> {
        let (volume, _) = Volume::new(device, opened.clone(), options.now_seconds);
        let map = CubeMap::of_one(&volume, |map| number_of(map, &volume, name?));
        let map = map.ok_or(CubeError::NoSuchCube)?;
        // Findings about orphans are those of the whole file system.
        let mut unused = Findings::default();
        let present = opened.geometry.features.ro_compat.contains(RoCompat::ORPHAN_PRESENT);
        let orphans = match present || opened.superblock.last_orphan > 0 {
            true => orphans::find(device, &opened, options.journal, &mut unused),
            false => Vec::new(),
        };
        let (base, map) = (device, Arc::new(map));
        Ok(Self { base, opened, map, orphans, now_seconds: options.now_seconds })
    }

    /// The lots, inodes and copies that belong to a cube.
    ///
    /// # Errors
    /// [`CubeError::NoSuchCube`], [`CubeError::NoSuper`].
    pub fn find(&self, name: &CubeName) -> Result<CubeScope, CubeError> {
        let numbers = self.map.numbers();
        let number = match name {
            CubeName::Number(number) => Some(*number).filter(|number| numbers.contains(number)),
            CubeName::Path(path) => {
                let is_named = |sub: &SubSuperblock| trimmed(&sub.path) == trimmed(path);
                let known = |cube: &u32| self.map.current(*cube).is_some_and(|sub| is_named(&sub));
                let stray = |cube: &u32| self.sub(*cube).is_some_and(|(_, sub)| is_named(&sub));
                // All lots are searched only if nobody knows where the copies are.
                let is_lost = self.map.copies().is_none();
                let mut all = numbers.iter().copied();
                all.clone()
                    .find(known)
                    .or_else(|| self.by_tree(path))
                    .or_else(|| if is_lost { all.find(stray) } else { None })
            }
        };
        let cube = number.ok_or(CubeError::NoSuchCube)?;
        let (stray, sub) = self.sub(cube).ok_or(CubeError::NoSuper(cube))?;
        let geometry = self.opened.geometry.clone();
        let own = |inode: &InodeNr| self.map.of_inode(&geometry, *inode) == cube;
        let orphans = self.orphans.iter().copied().filter(own).collect();
        let one = OneCube { map: Arc::clone(&self.map), orphans };
        let known = self.map.copies().into_iter().flat_map(|all| all.values().flatten());
        let copies = known.filter_map(Copy::block).chain(stray);
        let copies = copies.filter(|block| self.map.of_block(&geometry, *block) == cube).collect();
        Ok(CubeScope { sub, geometry, one, copies })
    }

    /// The sub-superblock of a cube; where `/.cubes/super` is lost, a copy in the lots of the cube, and its block.
    fn sub(&self, cube: u32) -> Option<(Option<BlockNr>, SubSuperblock)> {
        let geometry = &self.opened.geometry;
        self.map.current(cube).map(|sub| (None, sub)).or_else(|| {
            let groups = self.map.lots_of(cube).flat_map(|lot| {
                let first = lot * self.map.lot_groups();
                (first..(first + self.map.lot_groups()).min(geometry.group_count)).map(GroupNr)
            });
            let mut bytes = vec![0; geometry.block_size as usize];
            let runs = groups.map(|group| geometry.blocks_of(group));
            let found = find_stray(cube, runs, &mut |block| {
                let read = self.base.read_at(geometry.offset_bytes(block), &mut bytes);
                read.is_ok().then(|| bytes.clone())
            });
            found.map(|(block, sub)| (Some(block), sub))
        })
    }

    /// The cube whose directory a path leads to.
    fn by_tree(&self, path: &[u8]) -> Option<u32> {
        let node = self.files().lookup(path, Follow::Last).ok()?;
        let cube = self.map.of_inode(&self.opened.geometry, node.number);
        let is_top = |sub: SubSuperblock| sub.top_inode == node.number.0;
        (cube > 0 && self.map.current(cube).is_none_or(is_top)).then_some(cube)
    }

    fn files(&self) -> Files<'_> {
        let Opened { superblock, geometry, groups, .. } = &self.opened;
        Files::new(self.base, superblock.clone(), geometry.clone(), groups)
    }

    /// The directory that names the directory of a cube: by its path, or else by that directory itself. `None` if nobody knows.
    fn parent_of(&self, scope: &CubeScope) -> Option<InodeNr> {
        let path = trimmed(&scope.sub.path);
        let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let files = self.files();
        let is_outside = |inode: &InodeNr| {
            self.opened.geometry.place_of(*inode).is_some() && !scope.holds_inode(*inode)
        };
        let by_path = files.lookup(&path[..end], Follow::NotLast).ok().filter(|_| {
            files.lookup(path, Follow::NotLast).is_ok_and(|node| node.number == scope.top())
        });
        if let Some(parent) = by_path.map(|node| node.number).filter(is_outside) {
            return Some(parent);
        }
        let top = files.node(scope.top()).ok()?;
        let by_entry = files.list(&top).ok().and_then(|listing| listing.parent);
        let by_inode = top.backpointer().map(|own| InodeNr(own.parent));
        let own: Vec<InodeNr> =
            [by_entry, by_inode].into_iter().flatten().filter(is_outside).collect();
        let names_top = |parent: &InodeNr| {
            let listing = files.node(*parent).ok().and_then(|node| files.list(&node).ok());
            listing.is_some_and(|all| all.entries.iter().any(|entry| entry.inode == scope.top()))
        };
        // Where all above is destroyed, nothing contradicts `..`.
        own.iter().copied().find(names_top).or_else(|| own.first().copied())
    }

    /// A device that shows the lots of a cube, and stand-ins for all else that a check needs.
    pub fn device(&self, scope: &CubeScope) -> CubeDevice<'d> {
        CubeDevice::new(self.base, &self.opened, scope.clone(), self.parent_of(scope))
    }

    /// The faults of the records of the cube's lots, their reservation files and the sub-superblock.
    pub fn check_lots(&self, scope: &CubeScope) -> Findings {
        let (mut volume, mut found) = Volume::new(self.base, self.opened.clone(), self.now_seconds);
        volume.cubes = Some(Arc::clone(&self.map));
        lots::check_of(&volume, Some(scope.sub.cube), &mut found);
        found.0.retain(|problem| scope.concerns(problem));
        found
    }
}

/// The number of a cube by its name, where that leads to it: then no sub-superblock of another one is read.
fn number_of(map: &CubeMap, volume: &Volume<'_>, name: &CubeName) -> Option<u32> {
    match name {
        CubeName::Number(number) => Some(*number),
        CubeName::Path(path) => {
            let files = volume.files();
            let node = files.lookup(path, Follow::Last).ok()?;
            let cube = map.of_inode(&volume.geometry, node.number);
            (cube > 0 && node.is_directory()).then_some(cube)
        }
    }
}

fn trimmed(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    path.get(..end).unwrap_or(path)
}

/// Checks one cube. Findings are those of a whole check that concern this cube alone ([`CubeScope::concerns`]); where another
/// system has put files of one cube into another, those that concern any cube that is [coupled](couples) with it.
///
/// # Errors
/// [`CubeError`].
pub fn check_cube(
    device: &dyn ReadBlocks,
    options: &CheckOptions<'_>,
    name: &CubeName,
) -> Result<(Report, CubeScope), CubeError> {
    let kept = Kept { base: device, blocks: Mutex::default() };
    let opened = open(&kept, options.superblock)?;
    let recovery = recovery::recover(&kept, &opened, options);
    let state = recovery.state;
    match &recovery.overlay {
        Some(overlay) => {
            on_recovered(overlay, open(overlay, options.superblock)?, options, name, state)
        }
        None => on_recovered(&kept, opened, options, name, state),
    }
}

fn on_recovered(
    device: &dyn ReadBlocks,
    opened: Opened,
    options: &CheckOptions<'_>,
    name: &CubeName,
    journal: JournalState,
) -> Result<(Report, CubeScope), CubeError> {
    // Cubes that share files are checked together, for which all files are looked at; and so is one whose free blocks belong to
    // the fence.
    let is_coupled = is_coupled(device, &opened.superblock, opened.used_backup.is_some());
    let has_fence = Identity::of(&opened.superblock).is_some_and(|own| own.fence_inode > 0);
    let cubes = Cubes::of_opened(device, opened, options, Some(name).filter(|_| !is_coupled))?;
    let scope = cubes.find(name)?;
    let mut report = match is_coupled || has_fence {
        true => coupled::check_together(&cubes, &scope, options)?,
        false => check_shown(&cubes, &scope, options)?,
    };
    report.journal = journal;
    Ok((report, scope))
}

/// Checks one cube of a device whose journal is empty or replayed.
///
/// # Errors
/// [`CubeError`].
pub fn check_shown(
    cubes: &Cubes<'_>,
    scope: &CubeScope,
    options: &CheckOptions<'_>,
) -> Result<Report, CubeError> {
    let mut found = cubes.check_lots(scope).0;
    let shown = cubes.device(scope);
    let own = CheckOptions {
        cube: Some(scope.known()),
        superblock: WhichSuperblock::default(),
        journal: JournalUse::Ignore,
        external_journal: None,
        checkpoints: Checkpoints::default(),
        ..*options
    };
    let mut report = check(&shown, &own)?;
    found.extend(report.found.iter().filter(|problem| scope.concerns(problem)).cloned());
    report.found = in_order(Findings(found));
    report.paths.retain(|inode, _| scope.holds_inode(*inode));
    for path in report.paths.values_mut() {
        *path = shown.true_path(path);
    }
    report.totals.take_back(&shown.made_up());
    report.superblock = cubes.opened.superblock.clone();
    report.clusters_used = scope.groups().fold(0, |used, group| {
        let all = u64::from(scope.geometry.clusters_of(group));
        let free =
            cubes.opened.groups.get(group.0 as usize).map_or(0, |desc| desc.free_blocks_count);
        used + all.saturating_sub(u64::from(free))
    });
    Ok(report)
}

/// Puts blocks of a cube that were staged over its [`CubeDevice`] into an overlay of the whole file system. Returns how many.
///
/// # Errors
/// The device's error.
pub fn project<D: ReadBlocks, B: ReadBlocks>(
    staged: &Overlay<D>,
    scope: &CubeScope,
    onto: &Overlay<B>,
) -> io::Result<u64> {
    use floe_blockdev::WriteBlocks;
    let size = u64::from(scope.geometry.block_size);
    let mut bytes = vec![0; scope.geometry.block_size as usize];
    let copies = scope.groups().filter_map(|group| scope.geometry.superblock_of(group));
    let copies: BTreeSet<u64> = copies.map(|block| block.0).collect();
    let mut count = 0;
    for range in staged.staged_ranges() {
        for block in range.start / size..range.end.div_ceil(size) {
            // A copy of the superblock would be that of the stand-in.
            if scope.holds_block(BlockNr(block)) && !copies.contains(&block) {
                staged.read_at(block * size, &mut bytes)?;
                onto.write_at(block * size, &bytes)?;
                count += 1;
            }
        }
    }
    Ok(count)
}
