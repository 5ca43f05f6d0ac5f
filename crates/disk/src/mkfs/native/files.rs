//! The files of a native file system: `/.cubes`, a directory for the root cube, and in it the
//! reservation file of each lot. All are immutable, so that Linux leaves them alone.

use floe_ext4::dir::{Directory, Entry, empty_block, first_block, insert, seal};
use floe_ext4::map::extent_tree::{self, NodeForm};
use floe_format::ext::extent::Extent;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::native::backpointer::Backpointer;
use floe_format::native::identity::{
    FLAG_RESERVED, HOME_NAME, Identity, MAGIC, ROOT_CUBE_NAME, VERSION,
};
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use super::lots::FIRST_EPOCH;
use crate::mkfs::inode::NewInode;
use crate::mkfs::map;
use crate::mkfs::params::PlanError;
use crate::mkfs::plan::Plan;

/// Its inode: the first behind lost+found.
const HOME_INODE: InodeNr = InodeNr(12);

/// The entry of the directory in the root; `None` in a stock file system.
pub(in crate::mkfs) fn home_entry(plan: &Plan) -> Option<Entry<'static>> {
    plan.params.native.map(|_| Entry::new(HOME_INODE, HOME_NAME, FileType::Directory as u8))
}

/// Numbers and fills the directories, and stores the identity in the superblock. The
/// entry in the root ([`home_entry`]) is the caller's. Nothing is done in a stock file system.
pub(in crate::mkfs) fn directories(plan: &mut Plan) -> Result<(), PlanError> {
    let Some(native) = plan.params.native else { return Ok(()) };
    let (home, cube) = (plan.next_inode()?, plan.next_inode()?);
    if home != HOME_INODE {
        return Err(PlanError::Internal("the number of /.cubes"));
    }
    let mut names = Vec::new();
    for lot in 0..plan.lots.regions.len() {
        if lot == 0 && plan.lots.regions[0].run.len_blocks > 0 {
            plan.lots.regions[0].inode = plan.next_inode()?;
        }
        let region = plan.lots.regions[lot];
        if region.run.len_blocks > 0 {
            let name = format!("region.{lot}").into_bytes();
            names.push(Entry::new(region.inode, name, FileType::Regular as u8));
        }
    }
    let entry = Entry::new(cube, ROOT_CUBE_NAME, FileType::Directory as u8);
    directory(plan, (home, HOME_NAME), InodeNr::ROOT, &[entry], 3)?;
    directory(plan, (cube, ROOT_CUBE_NAME), home, &names, 2)?;
    let empty = Identity::decode(&[0; Identity::SIZE]);
    let identity = Identity {
        magic: MAGIC,
        version: VERSION,
        flags: FLAG_RESERVED,
        region_blocks: native
            .region_blocks(plan.params.flex_groups, plan.geometry.blocks_per_group),
        home_inode: home.0,
        epoch: FIRST_EPOCH,
        ..empty
    };
    identity.put(&mut plan.superblock);
    Ok(())
}

/// Adds a directory with these names, in as many blocks as they need and without an index.
fn directory(
    plan: &mut Plan,
    (inode, name): (InodeNr, &[u8]),
    parent: InodeNr,
    names: &[Entry<'_>],
    links: u16,
) -> Result<(), PlanError> {
    let dir = Directory { inode, parent, generation: 0, encrypted: false, casefolded: false };
    let format = plan.dir_format.clone();
    let mut blocks = vec![first_block(&format, &dir)];
    for entry in names {
        let last = blocks.len() - 1;
        if insert(&mut blocks[last], dir.form(&format), entry).is_none() {
            let mut next = empty_block(&format, &dir);
            insert(&mut next, dir.form(&format), entry).ok_or(PlanError::Internal("directory"))?;
            blocks.push(next);
        }
    }
    let data = plan.metadata(inode, BlockNr(0), blocks.len() as u64)?;
    let mut new = NewInode::new(FileType::Directory.mode(0o700), plan.time());
    (new.flags, new.links) = (InodeFlags::IMMUTABLE, links);
    new.backpointer = Some(Backpointer::new(parent, name));
    map::attach(plan, inode, &mut new, &data, &map::Nodes::Behind)?;
    for block in &mut blocks {
        seal(block, dir.inode_seed(&format));
    }
    let content = blocks.concat();
    new.size = content.len() as u64;
    plan.put(&data, content);
    plan.add_inode(inode, new);
    Ok(())
}

/// Adds the reservation files, when all other blocks have their place: the blocks of each region
/// that are still free become unwritten extents, at their place in the region.
pub(in crate::mkfs) fn reservation_files(plan: &mut Plan) -> Result<(), PlanError> {
    for region in plan.lots.regions.clone() {
        if region.run.len_blocks == 0 {
            continue;
        }
        let block_size = plan.geometry.block_size;
        let mut new = NewInode::new(FileType::Regular.mode(0o600), plan.time());
        new.flags = InodeFlags::IMMUTABLE | InodeFlags::EXTENTS;
        new.size = region.run.len_blocks * u64::from(block_size);
        new.blocks = region.run.len_blocks - region.used;
        // The tree has at most two extents, which fit in the inode: a region has at most 32768 blocks.
        let free = BlockNr(region.run.start.0 + region.used);
        let run = BlockRun::new(free, region.run.len_blocks - region.used);
        let extent = Extent { logical: LogicalBlock(region.used), run, unwritten: true };
        let form = NodeForm { block_size, inode_seed: None, owner_hint: 0 };
        new.block = extent_tree::build(&[extent], form, &[])?.root;
        plan.add_inode(region.inode, new);
    }
    Ok(())
}
