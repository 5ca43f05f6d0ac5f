//! A device that shows the lots of one cube. All other lots are empty on it, below a superblock without a journal and a root
//! that names the directory of the cube. Nothing is read outside the lots of the cube.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use floe_blockdev::{Medium, ReadBlocks};
use floe_ext4::map::extent_tree::{NodeForm, build};
use floe_format::ext::dirent::{DirTail, TAIL_SIZE, needed_rec_len, write_entry};
use floe_format::ext::extent::Extent;
use floe_format::ext::group_desc::{
    DescChecksum, FLAG_BLOCK_UNINIT, FLAG_INODE_UNINIT, FLAG_INODE_ZEROED, GroupDesc,
};
use floe_format::ext::inode::{FileType, InodeFlags, OwnedInode};
use floe_format::ext::superblock::{OFFSET_BYTES, STATE_VALID, Superblock};
use floe_format::features::{Compat, Incompat, RoCompat};
use floe_format::native::LOCK;
use floe_format::native::identity::Identity;
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr, InodeNr, LogicalBlock};

use super::{CubeScope, trimmed};
use crate::evidence::totals::Totals;
use crate::problem::Problem;
use crate::volume::open::Opened;

/// Name of the directory between the root and that of the cube, which stands for all on the way.
const ABOVE: &[u8] = b"above";
/// Length of an entry for a name of at most 4 bytes.
const SHORT_ENTRY: u32 = 12;
/// The first inode that is not reserved, in lot 0.
const OWN_FILE: InodeNr = InodeNr(11);
/// Extents that an inode has room for.
const IN_INODE: usize = 4;

/// A device that shows the lots of one cube; see the module.
pub struct CubeDevice<'d> {
    base: &'d dyn ReadBlocks,
    scope: CubeScope,
    /// Blocks outside the cube that are not empty.
    made: BTreeMap<u64, Vec<u8>>,
    /// Copies of the superblock in lots of the cube, which are empty here: they describe the whole file system, with its journals.
    copies: BTreeSet<u64>,
    /// The path of the cube's directory on this device.
    path: Vec<u8>,
    directories: u64,
    parent: Option<InodeNr>,
}

impl<'d> CubeDevice<'d> {
    /// The directory that names the directory of the cube; `None` if nobody knows, and the root stands for it.
    pub const fn parent(&self) -> Option<InodeNr> {
        self.parent
    }

    /// The whole file system.
    pub const fn base(&self) -> &'d dyn ReadBlocks {
        self.base
    }

    pub(super) fn new(
        base: &'d dyn ReadBlocks,
        opened: &Opened,
        scope: CubeScope,
        known: Option<InodeNr>,
    ) -> Self {
        let parent = known.unwrap_or(InodeNr::ROOT);
        let name = trimmed(&scope.sub.path).rsplit(|byte| *byte == b'/').next().unwrap_or(b"");
        let name = if name.is_empty() || name.len() > 255 { b"cube" } else { name };
        let mut path = vec![b'/'];
        if parent != InodeNr::ROOT {
            path.extend_from_slice(ABOVE);
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let directory = FileType::Directory;
        let mut dirs = vec![Dir { inode: InodeNr::ROOT, parent: InodeNr::ROOT, names: Vec::new() }];
        let top = (name.to_vec(), scope.top(), directory);
        if parent == InodeNr::ROOT {
            dirs[0].names.push(top);
        } else {
            dirs[0].names.push((ABOVE.to_vec(), parent, directory));
            dirs.push(Dir { inode: parent, parent: InodeNr::ROOT, names: vec![top] });
        }
        let directories = dirs.len() as u64;
        for file in scope.map().reservations().iter().filter(|file| scope.holds_inode(**file)) {
            dirs[0].names.push((format!(".{}", file.0).into_bytes(), *file, FileType::Regular));
        }
        let journal = InodeNr(scope.sub.journal.inode);
        if scope.holds_inode(journal) {
            dirs[0].names.push((b".journal".to_vec(), journal, FileType::Regular));
        }
        let holder = super_file(&scope);
        dirs[0].names.push((b".super".to_vec(), holder, FileType::Regular));
        let superblock = superblock(&opened.superblock);
        let mut making = Making { opened, scope: &scope, superblock, made: BTreeMap::new() };
        let used: Vec<InodeNr> = dirs.iter().map(|dir| dir.inode).chain([holder]).collect();
        let descs = making.descriptors(&used, directories);
        making.directories(&dirs, &descs);
        making.holder(holder, &descs);
        making.superblock(&descs);
        let (made, parent) = (making.made, known);
        let copies = scope.groups().filter_map(|group| scope.geometry.superblock_of(group));
        let copies = copies.map(|block| block.0).collect();
        Self { base, scope, made, copies, path, directories, parent }
    }

    /// The path on the file system for one on this device, where that leads into the cube.
    pub(super) fn true_path(&self, path: &[u8]) -> Vec<u8> {
        let rest = path.strip_prefix(&self.path[..]);
        rest.map_or_else(|| path.to_vec(), |rest| [trimmed(&self.scope.sub.path), rest].concat())
    }

    /// The counts of directories that are not on the file system.
    pub(super) fn made_up(&self) -> Totals {
        // The fragments of its blocks are of no importance.
        let mut totals = Totals { inodes_used: self.directories + 1, ..Totals::default() };
        totals.by_type[FileType::Directory as usize] = self.directories;
        totals.by_type[FileType::Regular as usize] = 1;
        totals
    }

    fn is_shown(&self, block: u64) -> bool {
        let is_made = self.made.contains_key(&block) || self.copies.contains(&block);
        self.scope.holds_block(BlockNr(block)) && !is_made
    }
}

/// The superblock without a journal, orphans and an identity, which belong to no cube.
fn superblock(of: &Superblock) -> Superblock {
    let mut sb = of.clone();
    sb.feature_compat &= !(Compat::HAS_JOURNAL | Compat::ORPHAN_FILE).bits();
    // The bit that keeps others out belongs to the identity.
    sb.feature_incompat &= !(Incompat::RECOVER.bits() | LOCK);
    sb.feature_ro_compat &= !RoCompat::ORPHAN_PRESENT.bits();
    (sb.journal_inum, sb.last_orphan, sb.orphan_file_inum) = (0, 0, 0);
    sb.state = STATE_VALID;
    Identity::decode(&[0; Identity::SIZE]).put(&mut sb);
    sb
}

/// A directory that stands for one outside the cube.
struct Dir {
    inode: InodeNr,
    parent: InodeNr,
    names: Vec<(Vec<u8>, InodeNr, FileType)>,
}

/// The inode that stands for `/.cubes/super`: its own, or if that is lost one that no cube has.
fn super_file(scope: &CubeScope) -> InodeNr {
    let own = scope.map().super_file();
    let is_usable = own > OWN_FILE && !scope.holds_inode(own);
    if is_usable && scope.geometry.place_of(own).is_some() { own } else { OWN_FILE }
}

struct Making<'m> {
    opened: &'m Opened,
    scope: &'m CubeScope,
    superblock: Superblock,
    made: BTreeMap<u64, Vec<u8>>,
}

impl Making<'_> {
    fn geometry(&self) -> &Geometry {
        &self.opened.geometry
    }

    /// Makes the descriptors of all other lots, and returns those of all groups.
    fn descriptors(&mut self, inodes: &[InodeNr], directories: u64) -> Vec<GroupDesc> {
        let geometry = self.opened.geometry.clone();
        let checksum = DescChecksum::of(&self.superblock);
        let found = self.opened.found.0.iter().chain(&self.opened.layout.found.0);
        let distrusted: BTreeSet<GroupNr> = found.filter_map(bad).collect();
        let per_lot = self.scope.map().lot_groups();
        let mut all = Vec::new();
        for lot in 0..geometry.desc_blocks {
            let groups = lot * per_lot..((lot + 1) * per_lot).min(geometry.group_count);
            let mut block = vec![0; geometry.block_size as usize];
            for (group, raw) in
                groups.map(GroupNr).zip(block.chunks_exact_mut(geometry.desc_size as usize))
            {
                let known = self.opened.groups.get(group.0 as usize).copied();
                let known = known.filter(|_| !distrusted.contains(&group));
                if self.scope.holds_group(group) {
                    all.push(known.unwrap_or_default());
                    continue;
                }
                let mut desc = self.empty(group, known);
                let used = inodes.iter().filter_map(|inode| geometry.place_of(*inode));
                let used: Vec<u32> = used.filter(|at| at.0 == group).map(|at| at.1 + 1).collect();
                if let Some(most) = used.iter().max() {
                    let count = used.len() as u32;
                    desc.flags &= !(FLAG_INODE_UNINIT | FLAG_BLOCK_UNINIT);
                    desc.itable_unused = geometry.inodes_per_group.saturating_sub(*most);
                    desc.free_inodes_count = geometry.inodes_per_group.saturating_sub(count);
                    desc.used_dirs_count = count.min(directories as u32);
                }
                desc.seal(raw, group, checksum);
                all.push(desc);
            }
            if !self.scope.holds_group(GroupNr(lot * per_lot)) {
                self.made.insert(geometry.primary_desc_block(lot).0, block);
            }
        }
        all
    }

    /// The descriptor of a group without files, whose metadata lie where they do or where mkfs puts them.
    fn empty(&self, group: GroupNr, known: Option<GroupDesc>) -> GroupDesc {
        let geometry = self.geometry();
        let per_lot = self.scope.map().lot_groups().max(1);
        let (lot, at) = (group.0 / per_lot, u64::from(group.0 % per_lot));
        let (first, count) = (geometry.primary_desc_block(lot).0 + 1, u64::from(per_lot));
        let tables = first + 2 * count + at * u64::from(geometry.inode_table_blocks);
        let place = |block: u64| BlockNr(block.min(geometry.blocks_count.saturating_sub(1)));
        let known = known.unwrap_or(GroupDesc {
            block_bitmap: place(first + at),
            inode_bitmap: place(first + count + at),
            inode_table: place(tables),
            ..GroupDesc::default()
        });
        GroupDesc {
            free_blocks_count: geometry.clusters_of(group),
            free_inodes_count: geometry.inodes_per_group,
            used_dirs_count: 0,
            flags: FLAG_BLOCK_UNINIT | FLAG_INODE_UNINIT | FLAG_INODE_ZEROED,
            itable_unused: geometry.inodes_per_group,
            ..known
        }
    }

    /// Makes directories, their blocks at the end of lot 0, which never belongs to a cube.
    fn directories(&mut self, dirs: &[Dir], descs: &[GroupDesc]) {
        let geometry = self.opened.geometry.clone();
        let last =
            GroupNr((self.scope.map().lot_groups().max(1) - 1).min(geometry.group_count - 1));
        let end = geometry.blocks_of(last).end().0;
        let mut next = end;
        for dir in dirs {
            let blocks = self.blocks_of(dir);
            next = next.saturating_sub(blocks.len() as u64);
            let run = BlockRun::new(BlockNr(next), blocks.len() as u64);
            for (block, bytes) in (run.start.0..).zip(blocks) {
                self.made.insert(block, bytes);
            }
            let kind = FileType::Directory;
            if let Some(mut inode) = new_inode(dir.inode, kind.mode(0o755), &geometry) {
                inode.base.links_count = 3;
                self.put(inode, &[run], descs);
            }
        }
    }

    /// Makes the file that holds the blocks of sub-superblocks in the cube.
    fn holder(&mut self, file: InodeNr, descs: &[GroupDesc]) {
        let geometry = self.opened.geometry.clone();
        let mut blocks = self.scope.copies().to_vec();
        blocks.sort_unstable();
        blocks.dedup();
        let runs: Vec<BlockRun> =
            blocks.into_iter().take(IN_INODE).map(|block| BlockRun::new(block, 1)).collect();
        if let Some(mut inode) = new_inode(file, FileType::Regular.mode(0o600), &geometry) {
            inode.base.links_count = 1;
            self.put(inode, &runs, descs);
        }
    }

    /// Puts an inode with its blocks, one after the other, into its table.
    fn put(&mut self, mut inode: OwnedInode, runs: &[BlockRun], descs: &[GroupDesc]) {
        let geometry = self.opened.geometry.clone();
        let seed = geometry.features.metadata_csum().then(|| self.superblock.seed());
        let mut logical = 0;
        let mut extents = Vec::new();
        for run in runs {
            extents.push(Extent { logical: LogicalBlock(logical), run: *run, unwritten: false });
            logical += run.len_blocks;
        }
        let form = NodeForm::of(geometry.block_size, seed, inode.number, 0);
        if let Ok(built) = build(&extents, form, &[]) {
            inode.base.block = built.root;
        }
        inode.set_flags(InodeFlags::EXTENTS, true);
        let size = u64::from(geometry.block_size);
        inode.set_size_bytes(logical * size);
        // Some directory blocks, or some copies.
        inode.base.blocks_lo = (logical * size / 512) as u32;
        let Some((group, index)) = geometry.place_of(inode.number) else { return };
        let table = descs.get(group.0 as usize).map_or(BlockNr(0), |desc| desc.inode_table);
        let at = u64::from(index) * u64::from(geometry.inode_size);
        let place = self.made.entry(table.0 + at / size);
        let bytes = place.or_insert_with(|| vec![0; geometry.block_size as usize]);
        let raw = inode.seal(seed);
        let within = (at % size) as usize;
        if let Some(place) = bytes.get_mut(within..within + raw.len()) {
            place.copy_from_slice(raw);
        }
    }

    /// The blocks of a directory.
    fn blocks_of(&self, dir: &Dir) -> Vec<Vec<u8>> {
        let geometry = self.geometry();
        let size = geometry.block_size as usize;
        let with_tail = geometry.features.metadata_csum();
        let end = if with_tail { size - TAIL_SIZE } else { size };
        let dots = [(&b"."[..], dir.inode), (b"..", dir.parent)];
        let dots = dots.map(|(name, inode)| (name, inode, FileType::Directory));
        let names = dir.names.iter().map(|(name, inode, kind)| (&name[..], *inode, *kind));
        let mut blocks: Vec<(Vec<u8>, usize, usize)> = vec![(vec![0; size], 0, 0)];
        for (name, inode, kind) in dots.into_iter().chain(names) {
            let needed = needed_rec_len(name.len(), false).max(SHORT_ENTRY) as usize;
            if blocks.last().is_some_and(|(_, at, _)| at + needed > end) {
                blocks.push((vec![0; size], 0, 0));
            }
            let Some((block, at, last)) = blocks.last_mut() else { break };
            // A name of 255 bytes fits an empty block.
            let _ = write_entry(&mut block[*at..end], inode, needed as u32, name, kind as u8, size);
            (*last, *at) = (*at, *at + needed);
        }
        let seed = self.superblock.seed().of_inode(dir.inode, 0);
        let whole = |(mut block, _, last): (Vec<u8>, usize, usize)| {
            // The last entry reaches to the end. Blocks are shorter than 64 KiB.
            block[last + 4..last + 6].copy_from_slice(&((end - last) as u16).to_le_bytes());
            if with_tail {
                DirTail::write(seed, &mut block);
            }
            block
        };
        blocks.into_iter().map(whole).collect()
    }

    /// Makes the superblock, with the totals of the descriptors.
    fn superblock(&mut self, descs: &[GroupDesc]) {
        let free: u64 = descs.iter().map(|desc| u64::from(desc.free_blocks_count)).sum();
        let inodes: u64 = descs.iter().map(|desc| u64::from(desc.free_inodes_count)).sum();
        let sb = &mut self.superblock;
        sb.free_blocks_count_lo = (free & 0xffff_ffff) as u32;
        sb.free_blocks_count_hi = (free >> 32) as u32;
        sb.free_inodes_count = u32::try_from(inodes).unwrap_or(u32::MAX);
        let size = u64::from(self.opened.geometry.block_size);
        let mut bytes = [0; Superblock::SIZE];
        sb.encode_with_checksum(&mut bytes);
        let mut block = vec![0; self.opened.geometry.block_size as usize];
        let within = (OFFSET_BYTES % size) as usize;
        if let Some(place) = block.get_mut(within..within + bytes.len()) {
            place.copy_from_slice(&bytes);
        }
        self.made.insert(OFFSET_BYTES / size, block);
    }
}

/// A new inode; `None` where inodes are too short, which those of native file systems are not.
fn new_inode(number: InodeNr, mode: u16, geometry: &Geometry) -> Option<OwnedInode> {
    let mut inode = OwnedInode::new(number, geometry.inode_size as usize, 32)?;
    inode.base.mode = mode;
    Some(inode)
}

/// The group whose descriptor has a wrong checksum, or leads where it cannot.
const fn bad(problem: &Problem) -> Option<GroupNr> {
    match problem {
        Problem::GroupDescriptorChecksumBad { group, .. }
        | Problem::GroupInodeTableOutOfRange { group, .. }
        | Problem::GroupInodeTableOverlap { group, .. }
        | Problem::GroupBlockBitmapOutOfRange { group, .. }
        | Problem::GroupInodeBitmapOutOfRange { group, .. }
        | Problem::GroupBlockBitmapOverlap { group, .. }
        | Problem::GroupInodeBitmapOverlap { group, .. } => Some(*group),
        _ => None,
    }
}

impl ReadBlocks for CubeDevice<'_> {
    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        let size = u64::from(self.scope.geometry.block_size);
        let too_far = offset_bytes.saturating_add(into.len() as u64) > self.size_bytes();
        if too_far {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        let mut done = 0;
        while done < into.len() {
            let at = offset_bytes + done as u64;
            let (first, within) = (at / size, (at % size) as usize);
            let mut last = first;
            if self.is_shown(first) {
                while last * size + size < offset_bytes + into.len() as u64
                    && self.is_shown(last + 1)
                {
                    last += 1;
                }
            }
            let len = ((last + 1) * size - at).min((into.len() - done) as u64) as usize;
            let part = &mut into[done..done + len];
            match self.made.get(&first) {
                Some(bytes) => part.copy_from_slice(&bytes[within..within + len]),
                None if self.is_shown(first) => self.base.read_at(at, part)?,
                None => part.fill(0),
            }
            done += len;
        }
        Ok(())
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let size = u64::from(self.scope.geometry.block_size);
        let end = offset_bytes.saturating_add(len_bytes).div_ceil(size);
        (offset_bytes / size..end).all(|block| self.is_shown(block))
            && self.base.is_hole(offset_bytes, len_bytes)
    }

    fn will_need(&self, offset_bytes: u64, len_bytes: u64) {
        if self.is_shown(offset_bytes / u64::from(self.scope.geometry.block_size)) {
            self.base.will_need(offset_bytes, len_bytes);
        }
    }

    fn will_need_in_sequence(&self, offset_bytes: u64, len_bytes: u64) {
        self.will_need(offset_bytes, len_bytes);
    }

    fn is_cached(&self, offset_bytes: u64) -> bool {
        let block = offset_bytes / u64::from(self.scope.geometry.block_size);
        !self.is_shown(block) || self.base.is_cached(offset_bytes)
    }

    fn caches_ahead(&self) -> bool {
        self.base.caches_ahead()
    }

    fn medium(&self) -> Medium {
        self.base.medium()
    }
}
