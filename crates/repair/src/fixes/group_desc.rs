//! Group descriptors, and the bitmaps and inode tables that they locate.

use floe_format::ext::group_desc::{FLAG_BLOCK_UNINIT, FLAG_INODE_UNINIT, GroupDesc};
use floe_format::ext::inode::Inode;
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun, GroupNr};

use crate::edit::GroupEdit;
use crate::failure::Failure;
use crate::stage::Stage;

/// Name of an inode table in messages.
const TABLE: &str = "inode table";

pub(super) fn apply(stage: &mut Stage<'_>, group: GroupNr, edit: GroupEdit) -> Result<(), Failure> {
    let shortcuts = FLAG_BLOCK_UNINIT | FLAG_INODE_UNINIT;
    match edit {
        GroupEdit::Distrust | GroupEdit::ClearUninit => stage.edit_group(group, |desc| {
            desc.flags &= !shortcuts;
            desc.itable_unused = 0;
        }),
        GroupEdit::ItableUnusedZero => stage.edit_group(group, |desc| desc.itable_unused = 0),
        GroupEdit::ClearBlockUninit => {
            stage.edit_group(group, |desc| desc.flags &= !FLAG_BLOCK_UNINIT);
        }
        GroupEdit::ClearInodeUninit => {
            stage.edit_group(group, |desc| desc.flags &= !FLAG_INODE_UNINIT);
        }
        GroupEdit::PlaceBlockBitmap => return place_bitmap(stage, group, Bitmap::Blocks),
        GroupEdit::PlaceInodeBitmap => return place_bitmap(stage, group, Bitmap::Inodes),
        GroupEdit::PlaceInodeTable => return place_table(stage, group),
        GroupEdit::InodeTableFromBackup => {
            if !table_from_backup(stage, group) {
                return Err(Failure::NotNow("no backup has a valid location of the inode table"));
            }
        }
        GroupEdit::LotRecord => return super::lots::mend_record(stage, group),
        GroupEdit::MoveBlockBitmap => return move_bitmap(stage, group, Bitmap::Blocks),
        GroupEdit::MoveInodeBitmap => return move_bitmap(stage, group, Bitmap::Inodes),
        GroupEdit::MoveInodeTable => return move_table(stage, group),
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bitmap {
    Blocks,
    Inodes,
}

impl Bitmap {
    const fn name(self) -> &'static str {
        match self {
            Self::Blocks => "block bitmap",
            Self::Inodes => "inode bitmap",
        }
    }

    const fn place(self, desc: &GroupDesc) -> BlockNr {
        match self {
            Self::Blocks => desc.block_bitmap,
            Self::Inodes => desc.inode_bitmap,
        }
    }

    const fn set(self, desc: &mut GroupDesc, block: BlockNr) {
        match self {
            Self::Blocks => desc.block_bitmap = block,
            Self::Inodes => desc.inode_bitmap = block,
        }
    }
}

/// The descriptor of a group from the first readable backup.
fn in_backup(stage: &Stage<'_>, group: GroupNr) -> Option<GroupDesc> {
    stage.backup_groups().get(group.0 as usize).copied()
}

/// Block ranges that may hold the metadata of a group: its own first, and with flex_bg any.
fn allowed(stage: &Stage<'_>, group: GroupNr) -> Vec<BlockRun> {
    let geometry = &stage.geometry;
    let mut runs = vec![geometry.blocks_of(group)];
    if geometry.features.incompat.contains(Incompat::FLEX_BG) {
        let flex = stage.superblock().log_groups_per_flex;
        let per_flex = 1u32.checked_shl(u32::from(flex)).unwrap_or(u32::MAX);
        let first = GroupNr(group.0 - group.0 % per_flex);
        let last = GroupNr(first.0.saturating_add(per_flex - 1).min(geometry.group_count - 1));
        let (start, end) = (geometry.group_start(first), geometry.blocks_of(last).end());
        runs.push(BlockRun::new(start, end.0 - start.0));
        let start = geometry.first_data_block;
        runs.push(BlockRun::new(start, geometry.blocks_count - start.0));
    }
    runs
}

/// Allocates a free run for `what`, preferably in the group itself.
fn find_run(
    stage: &mut Stage<'_>,
    group: GroupNr,
    what: &'static str,
    len_blocks: u64,
) -> Result<BlockNr, Failure> {
    for within in allowed(stage, group) {
        if let Ok(start) = stage.allocate_run(within, len_blocks) {
            return Ok(start);
        }
    }
    Err(Failure::NoRun { group, what, blocks: len_blocks })
}

/// Whether a run overlaps no other metadata and is allowed for a group. The current, misplaced
/// metadata of the group does not count.
fn is_sound(stage: &Stage<'_>, group: GroupNr, run: BlockRun) -> bool {
    let geometry = &stage.geometry;
    let inside =
        run.start.0 != 0 && geometry.contains(run.start) && run.end().0 <= geometry.blocks_count;
    let table = stage.group(group).inode_table;
    let own = table..BlockNr(table.0.saturating_add(u64::from(geometry.inode_table_blocks)));
    inside
        && allowed(stage, group)
            .iter()
            .any(|within| within.start <= run.start && run.end() <= within.end())
        && (run.start.0..run.end().0)
            .map(BlockNr)
            .all(|block| own.contains(&block) || !stage.evidence.volume.is_metadata(block))
}

/// Relocates a bitmap with an invalid location: to the location in a backup, else to a new block.
/// Its content is recomputed later.
fn place_bitmap(stage: &mut Stage<'_>, group: GroupNr, bitmap: Bitmap) -> Result<(), Failure> {
    let known = in_backup(stage, group)
        .map(|desc| bitmap.place(&desc))
        .filter(|&block| is_sound(stage, group, BlockRun::new(block, 1)));
    let block = match known {
        Some(block) => block,
        None => {
            let block = find_run(stage, group, bitmap.name(), 1)?;
            stage.write_block(block, &vec![0; stage.block_size()])?;
            block
        }
    };
    stage.edit_group(group, |desc| bitmap.set(desc, block));
    stage.write_backups();
    stage.note(format!("{group}: the {} is now at {block}", bitmap.name()));
    Ok(())
}

fn move_bitmap(stage: &mut Stage<'_>, group: GroupNr, bitmap: Bitmap) -> Result<(), Failure> {
    let old = bitmap.place(&stage.group(group));
    let block = find_run(stage, group, bitmap.name(), 1)?;
    // Unreadable content is recomputed later.
    let bytes = stage.read_block(old).unwrap_or_else(|_| vec![0; stage.block_size()]);
    stage.write_block(block, &bytes)?;
    stage.edit_group(group, |desc| bitmap.set(desc, block));
    stage.write_backups();
    stage.note(format!("{group}: the {} moved from {old} to {block}", bitmap.name()));
    Ok(())
}

/// Relocates an inode table with an invalid location. If only the descriptor is damaged, a backup
/// still has the location, and every inode is saved (e2fsck creates an empty table).
fn place_table(stage: &mut Stage<'_>, group: GroupNr) -> Result<(), Failure> {
    if table_from_backup(stage, group) {
        return Ok(());
    }
    let len_blocks = u64::from(stage.geometry.inode_table_blocks);
    let start = find_run(stage, group, TABLE, len_blocks)?;
    let zeroes = vec![0; stage.block_size()];
    for at in 0..len_blocks {
        stage.write_block(BlockNr(start.0 + at), &zeroes)?;
    }
    stage.edit_group(group, |desc| desc.inode_table = start);
    stage.write_backups();
    stage.note(format!("{group}: a new, empty inode table was created at {start}"));
    Ok(())
}

/// Takes the location of a group's inode table from a backup; `false` if no backup has a plausible
/// one.
fn table_from_backup(stage: &mut Stage<'_>, group: GroupNr) -> bool {
    let len_blocks = u64::from(stage.geometry.inode_table_blocks);
    let known = in_backup(stage, group)
        .map(|desc| desc.inode_table)
        .filter(|&block| is_sound(stage, group, BlockRun::new(block, len_blocks)));
    let Some(block) = known else { return false };
    stage.edit_group(group, |desc| desc.inode_table = block);
    stage.note(format!("{group}: a backup locates the inode table at {block}"));
    true
}

/// Groups for which a backup has another inode table location that looks more like inodes than the
/// one in use: the descriptor is wrong, not every inode of the group.
pub(crate) fn misplaced_tables(stage: &Stage<'_>) -> Vec<GroupNr> {
    let len_blocks = u64::from(stage.geometry.inode_table_blocks);
    (0..)
        .map(GroupNr)
        .zip(stage.backup_groups())
        .filter(|(group, desc)| {
            let (stored, other) = (stage.group(*group).inode_table, desc.inode_table);
            stored != other
                && is_sound(stage, *group, BlockRun::new(other, len_blocks))
                && likeness(stage, *group, other) > likeness(stage, *group, stored)
        })
        .map(|(group, _)| group)
        .collect()
}

/// Score of a run of blocks as the inode table of a group: the number of valid inodes, minus those
/// that cannot be inodes.
fn likeness(stage: &Stage<'_>, group: GroupNr, table: BlockNr) -> i64 {
    let geometry = &stage.geometry;
    let (inode_size, per_block) =
        (geometry.inode_size as usize, geometry.block_size / geometry.inode_size);
    let mut score = 0;
    for index in 0..geometry.inode_table_blocks {
        let block = BlockNr(table.0.saturating_add(u64::from(index)));
        let Ok(bytes) = stage.read_block(block) else { continue };
        for (slot, raw) in (0..per_block).zip(bytes.chunks_exact(inode_size)) {
            let number = geometry.inode_at(group, index * per_block + slot);
            let Some(inode) = Inode::decode(raw) else { continue };
            let right = if stage.checksummed() {
                inode.checksum_ok(stage.seed, number)
            } else {
                inode.file_type().is_some() && inode.base.links_count > 0 && inode.base.faddr == 0
            };
            if raw.iter().all(|&byte| byte == 0) || inode.base.links_count == 0 {
                continue;
            }
            score += if right { 1 } else { -1 };
        }
    }
    score
}

fn move_table(stage: &mut Stage<'_>, group: GroupNr) -> Result<(), Failure> {
    let len_blocks = u64::from(stage.geometry.inode_table_blocks);
    let old = stage.group(group).inode_table;
    let start = find_run(stage, group, TABLE, len_blocks)?;
    for at in 0..len_blocks {
        let bytes = stage
            .read_block(BlockNr(old.0.saturating_add(at)))
            .unwrap_or_else(|_| vec![0; stage.block_size()]);
        stage.write_block(BlockNr(start.0 + at), &bytes)?;
    }
    stage.edit_group(group, |desc| desc.inode_table = start);
    stage.write_backups();
    stage.note(format!("{group}: the inode table moved from {old} to {start}"));
    Ok(())
}
