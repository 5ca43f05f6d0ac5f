//! The sub-superblocks of a native file system's cubes, read from `/.cubes/super` (`docs/cubes.md`).

use std::collections::BTreeMap;

use floe_blockdev::ReadBlocks;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::inode::{Inode, InodeFlags};
use floe_format::ext::superblock::Superblock;
use floe_format::native::cube::{FENCE_NAME, MOST_CUBES, SUPER_NAME, SubSuperblock, newest};
use floe_format::native::identity::Identity;
use floe_format::{BlockNr, BlockRun, Geometry, InodeNr};

use crate::files::{Files, FilesError};
use crate::inode_table::read_inode;
use crate::map::mapping::ROOT_BYTES;
use crate::map::runs::{BlockMap, DamagedMap};
use crate::map::walk::Depths;
use crate::tx::read_block;

mod paths;

pub use paths::Paths;

/// A copy of a sub-superblock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Copy {
    /// The file has a hole there.
    #[default]
    Absent,
    /// A block that cannot be read, or is no sub-superblock of the cube.
    Damaged(BlockNr),
    /// A valid one.
    Valid(BlockNr, SubSuperblock),
}

impl Copy {
    /// The valid sub-superblock.
    pub const fn valid(&self) -> Option<&SubSuperblock> {
        match self {
            Self::Valid(_, sub) => Some(sub),
            _ => None,
        }
    }

    /// The block of the copy.
    pub const fn block(&self) -> Option<BlockNr> {
        match self {
            Self::Absent => None,
            Self::Damaged(block) | Self::Valid(block, _) => Some(*block),
        }
    }
}

/// Both copies of a cube's sub-superblock. At least one has a block.
pub type Copies = [Copy; 2];

/// The copy that counts; `None` if both are damaged.
pub fn current(cube: u32, copies: &Copies) -> Option<SubSuperblock> {
    newest(cube, copies.iter().filter_map(Copy::valid).cloned())
}

/// The inode of `/.cubes/super`, by its name in `/.cubes`, whose inode is `home`. The superblock, which names both, is not
/// logged, so after a crash it may be older or newer than the names.
///
/// # Errors
/// [`FilesError`]: `/.cubes` cannot be read.
pub fn super_inode(files: &Files<'_>, home: InodeNr) -> Result<Option<InodeNr>, FilesError> {
    Ok(own_inodes(files, home)?.0)
}

/// The same, and the inode of `/.cubes/fence`.
///
/// # Errors
/// As [`super_inode`].
pub fn own_inodes(
    files: &Files<'_>,
    home: InodeNr,
) -> Result<(Option<InodeNr>, Option<InodeNr>), FilesError> {
    let listing = files.list(&files.node(home)?)?;
    let named = |name: &[u8]| {
        let own = listing.entries.iter().find(|entry| entry.name == name);
        own.map(|entry| entry.inode)
    };
    Ok((named(SUPER_NAME), named(FENCE_NAME)))
}

/// Reads the sub-superblocks of all cubes. `words` and `flags` are those of the inode of `/.cubes/super`; `read` reads a
/// block.
///
/// # Errors
/// [`DamagedMap`]: the blocks of the file cannot be found.
pub fn read(
    words: &[u8; ROOT_BYTES],
    flags: InodeFlags,
    geometry: &Geometry,
    read: &mut dyn FnMut(BlockNr) -> Option<Vec<u8>>,
) -> Result<BTreeMap<u32, Copies>, DamagedMap> {
    read_of(words, flags, geometry, None, read)
}

/// The same for one cube, or all; blocks of others are not read.
///
/// # Errors
/// As [`read`].
pub fn read_of(
    words: &[u8; ROOT_BYTES],
    flags: InodeFlags,
    geometry: &Geometry,
    only: Option<u32>,
    read: &mut dyn FnMut(BlockNr) -> Option<Vec<u8>>,
) -> Result<BTreeMap<u32, Copies>, DamagedMap> {
    let map = BlockMap::follow(words, flags, geometry, Depths::OfRoot, u64::MAX, read)?;
    let mut cubes: BTreeMap<u32, Copies> = BTreeMap::new();
    let [first, second] = SubSuperblock::places(0);
    for extent in map.runs() {
        for at in 0..extent.run.len_blocks {
            let logical = extent.logical.0 + at;
            let (index, start) = if logical < second { (0, first) } else { (1, second) };
            let cube = u32::try_from(logical - start).unwrap_or(u32::MAX);
            if !(1..=MOST_CUBES).contains(&cube) || only.is_some_and(|only| only != cube) {
                continue;
            }
            let block = BlockNr(extent.run.start.0 + at);
            let bytes = read(block);
            let sub = bytes.as_ref().and_then(|bytes| bytes.first_chunk());
            let sub = sub.and_then(SubSuperblock::decode).filter(|sub| sub.cube == cube);
            cubes.entry(cube).or_default()[index] = match sub {
                Some(sub) => Copy::Valid(block, sub),
                None => Copy::Damaged(block),
            };
        }
    }
    Ok(cubes)
}

/// The sub-superblock of each cube, or of one, by its number; those of others are not read. Cubes whose copies are both damaged are left
/// out.
pub fn stored(
    device: &dyn ReadBlocks,
    superblock: &Superblock,
    geometry: &Geometry,
    descs: &[GroupDesc],
    only: Option<u32>,
) -> BTreeMap<u32, SubSuperblock> {
    let Some(identity) = Identity::of(superblock) else { return BTreeMap::new() };
    let files = Files::new(device, superblock.clone(), geometry.clone(), descs);
    let number = super_inode(&files, InodeNr(identity.home_inode)).ok().flatten();
    let Some(number) = number else { return BTreeMap::new() };
    let raw = read_inode(number, device, geometry, descs);
    let Some(inode) = raw.as_deref().and_then(Inode::decode) else { return BTreeMap::new() };
    let mut read = |block| read_block(device, geometry, block).ok().map(|bytes| bytes.to_vec());
    let copies = read_of(&inode.base.block, inode.flags(), geometry, only, &mut read);
    let current = |(cube, copies): (u32, Copies)| Some((cube, current(cube, &copies)?));
    copies.unwrap_or_default().into_iter().filter_map(current).collect()
}

/// A valid sub-superblock of a cube among `runs` of blocks and its block, the one that counts if there are several: for a file system whose
/// `/.cubes/super` is lost, as the second copy lies in a lot of the cube. `read` reads a block.
pub fn find_stray(
    cube: u32,
    runs: impl IntoIterator<Item = BlockRun>,
    read: &mut dyn FnMut(BlockNr) -> Option<Vec<u8>>,
) -> Option<(BlockNr, SubSuperblock)> {
    let blocks = runs.into_iter().flat_map(|run| run.start.0..run.end().0);
    let subs = blocks.map(BlockNr).filter_map(|block| {
        let bytes = read(block)?;
        Some((block, bytes.first_chunk().and_then(SubSuperblock::decode)?))
    });
    subs.filter(|(_, sub)| sub.cube == cube).max_by_key(|(_, sub)| sub.epoch)
}
