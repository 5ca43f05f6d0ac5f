//! Check: the orphan file is clean at the end of a check.
//! Reads: the orphan file.  Keeps: nothing.  Emits: `OrphanFile*` and `OrphanPresent*` of the end.
//! Does not verify: its inode (`checks/system_files/reserved_inodes.rs`), the orphans in it (`checks/system_files/orphans.rs`).

use floe_format::ext::inode::Inode;
use floe_format::ext::orphan_file::{MAGIC, OrphanBlock};
use floe_format::features::{Compat, RoCompat};
use floe_format::{InodeNr, LogicalBlock};

use crate::problem::{Findings, Problem, Sink};
use crate::volume::Volume;
use floe_ext4::inode_table::read_inode;
use floe_ext4::map::runs::BlockMap;

/// Blocks that Linux reads.
const MOST_BLOCKS: u64 = 512;

/// Checks the orphan file. Slots with inodes that recovery empties are no damage.
pub fn check(volume: &Volume<'_>, found: &mut Findings) {
    let present = volume.has_ro_compat(RoCompat::ORPHAN_PRESENT);
    if !volume.has_compat(Compat::ORPHAN_FILE) {
        if present {
            found.push(Problem::OrphanPresentWithoutOrphanFile);
        }
        return;
    }
    let inode = InodeNr(volume.superblock.orphan_file_inum);
    if !volume.has_compat(Compat::HAS_JOURNAL) {
        found.push(Problem::OrphanFileWithoutJournal { inode });
    }
    let before = found.0.len();
    let pending = judge(volume, inode, found);
    if present && !pending && found.0.len() == before {
        found.push(Problem::OrphanPresentFlagStale);
    }
}

/// Judges the file; `true` if it holds inodes that recovery empties.
fn judge(volume: &Volume<'_>, inode: InodeNr, found: &mut Findings) -> bool {
    let geometry = &volume.geometry;
    let corrupt = |reason| Problem::OrphanFileCorrupt { inode, reason };
    let raw = read_inode(inode, volume.device, geometry, &volume.groups);
    let Some(file) = raw.as_deref().and_then(Inode::decode) else {
        found.push(corrupt("its inode cannot be read"));
        return false;
    };
    if file.base.links_count == 0 {
        found.push(corrupt("its inode is not in use"));
        return false;
    }
    let (size, block_size) = (file.size_bytes(), u64::from(geometry.block_size));
    if !size.is_multiple_of(block_size) {
        found.push(Problem::OrphanFileSizeUnaligned { inode, size });
        return false;
    }
    let blocks = size / block_size;
    let Ok(map) = BlockMap::of(&file, volume.device, geometry, blocks) else {
        found.push(corrupt("its blocks cannot be found"));
        return false;
    };
    if blocks > MOST_BLOCKS {
        found.push(Problem::OrphanFileTooLong { inode, blocks });
    }
    let seed = volume.seed.of_inode(inode, file.base.generation);
    let mut bytes = Vec::new();
    let mut pending = false;
    // A hole ends it, so a huge size costs nothing.
    for logical in (0..blocks).map(LogicalBlock) {
        let Some(block) = map.block(logical.0) else {
            found.push(Problem::OrphanFileHole { inode, logical });
            return pending;
        };
        if volume.read_block(block, &mut bytes).is_err() {
            found.push(corrupt("a block cannot be read"));
            return pending;
        }
        let Some(slots) = OrphanBlock::new(&bytes) else { return pending };
        let mut orphans = slots.orphans().peekable();
        let used = orphans.peek().is_some();
        let reason = if slots.magic() != MAGIC {
            "it lacks its mark"
        } else if volume.features().metadata_csum()
            && slots.stored_checksum() != slots.compute_checksum(seed, block)
        {
            "its checksum is wrong"
        } else if !volume.features().metadata_csum() && slots.stored_checksum() != 0 {
            // As `tune2fs -O ^metadata_csum` leaves it. Linux does not look, e2fsck minds.
            "it has a checksum, although the file system has none"
        } else if orphans.all(|orphan| volume.is_orphan(orphan)) {
            pending |= used;
            continue;
        } else {
            "it names inodes"
        };
        found.push(Problem::OrphanFileBlockDirty { inode, logical, block, reason });
        return pending;
    }
    pending
}
