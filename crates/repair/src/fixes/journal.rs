//! The journal: its inode, its superblock, and the journal fields of the file system's superblock.
//!
//! Replay is not done here: the session replays before each round (`floe_check::recovery`).

use floe_blockdev::{ReadBlocks, WriteBlocks};
use floe_ext4::journal::{self, JournalPlace};
use floe_format::ext::extent;
use floe_format::ext::inode::InodeFlags;
use floe_format::ext::jbd2::{self, JournalSuperblock, fast_commit_area};
use floe_format::ext::superblock::{OFFSET_BYTES, STATE_VALID, Superblock};
use floe_format::features::{Compat, Incompat};
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use crate::edit::JournalEdit;
use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::stage::{MODE_PRIVATE, Stage};
use floe_ext4::make::journal_superblock::{EmptyJournal, JournalSize, size_of_new};

/// First byte of the journal superblock that version 1 does not define.
const V2_FIELDS: usize = 0x24;

pub(super) fn apply(stage: &mut Stage<'_>, edit: &JournalEdit) -> Result<(), Failure> {
    // Only journals on other devices name their users.
    let uuid = is_external(stage).then_some(stage.superblock().uuid);
    let sb = stage.superblock().clone();
    let area_of_new = |blocks| area_of(&sb, blocks);
    match edit {
        JournalEdit::Drop => restore_or_drop(stage),
        JournalEdit::Reset => reset(stage),
        JournalEdit::Forget => {
            forget(stage);
            Ok(())
        }
        JournalEdit::ClearNeedsRecovery => {
            let sb = stage.superblock_mut();
            sb.feature_incompat &= !Incompat::RECOVER.bits();
            sb.state &= !STATE_VALID;
            Ok(())
        }
        JournalEdit::Replay => {
            stage.superblock_mut().feature_incompat |= Incompat::RECOVER.bits();
            Ok(())
        }
        JournalEdit::LoseTransactions | JournalEdit::LoseFastCommits => Ok(()),
        JournalEdit::ZeroStaleFields => edit_superblock(stage, |bytes| {
            bytes[V2_FIELDS..].fill(0);
        }),
        JournalEdit::Version2 => edit_superblock(stage, |bytes| {
            bytes[V2_FIELDS..].fill(0);
            let mut superblock = JournalSuperblock::decode(bytes);
            superblock.blocktype = jbd2::SUPERBLOCK_V2;
            set_user(&mut superblock, uuid);
            superblock.num_fc_blks = area_of_new(superblock.maxlen);
            superblock.encode_into(bytes);
        }),
        JournalEdit::OneUser => edit_superblock(stage, |bytes| {
            let mut superblock = JournalSuperblock::decode(bytes);
            set_user(&mut superblock, uuid);
            superblock.encode_into(bytes);
        }),
        JournalEdit::FastCommits(blocks) => edit_superblock(stage, |bytes| {
            let mut superblock = JournalSuperblock::decode(bytes);
            superblock.num_fc_blks = *blocks;
            superblock.encode_into(bytes);
        }),
        JournalEdit::Bounds { first, blocks } => edit_superblock(stage, |bytes| {
            let mut superblock = JournalSuperblock::decode(bytes);
            (superblock.first, superblock.maxlen) = (*first, *blocks);
            superblock.encode_into(bytes);
        }),
        JournalEdit::ClearError => edit_superblock(stage, |bytes| {
            let mut superblock = JournalSuperblock::decode(bytes);
            superblock.errno = 0;
            superblock.encode_into(bytes);
        }),
        JournalEdit::FlipBack(inode) => {
            let place = superblock_of(stage, Some(*inode).filter(|inode| inode.0 != 0))?;
            edit_at(stage, place, flip_back)
        }
        JournalEdit::BackUpMap => back_up(stage),
        JournalEdit::Hide(_) => hide(stage),
        JournalEdit::Create => create(stage),
        JournalEdit::ExternalChecksum => edit_at(stage, Place::Device(OFFSET_BYTES), |bytes| {
            Superblock::write_checksum(bytes);
        }),
    }
}

/// Blocks of the fast-commit area of a journal of this length.
fn area_of(sb: &Superblock, blocks: u32) -> u32 {
    let fast_commits = sb.features().compat.contains(Compat::FAST_COMMIT);
    fast_commit_area(blocks).filter(|_| fast_commits).unwrap_or(0)
}

/// Gives a journal one user, and its name, if it has any.
fn set_user(superblock: &mut JournalSuperblock, uuid: Option<[u8; 16]>) {
    superblock.nr_users = 1;
    if let Some(uuid) = uuid {
        superblock.users[..uuid.len()].copy_from_slice(&uuid);
    }
}

fn journal_inode(stage: &Stage<'_>) -> InodeNr {
    match stage.superblock().journal_inum {
        0 => InodeNr::JOURNAL,
        number => InodeNr(number),
    }
}

/// Clears the journal fields of the superblock.
fn forget(stage: &mut Stage<'_>) {
    let sb = stage.superblock_mut();
    sb.journal_inum = 0;
    sb.journal_dev = 0;
    sb.journal_uuid = [0; 16];
    sb.feature_incompat &= !Incompat::RECOVER.bits();
    sb.state &= !STATE_VALID;
}

/// Restores a damaged journal inode from its backup in the superblock; without a valid backup drops
/// the journal and its content.
fn restore_or_drop(stage: &mut Stage<'_>) -> Result<(), Failure> {
    let volume = &stage.evidence.volume;
    let (found, _) =
        journal::find(&stage.overlay, stage.superblock(), &volume.geometry, &volume.groups, None);
    if let Some(JournalPlace::InodeBackup(_)) = found.map(|journal| journal.place) {
        // The backup belongs to the hidden inode, whatever number the superblock names.
        stage.superblock_mut().journal_inum = InodeNr::JOURNAL.0;
        return restore(stage, InodeNr::JOURNAL);
    }
    forget(stage);
    let sb = stage.superblock_mut();
    sb.feature_compat &= !Compat::HAS_JOURNAL.bits();
    stage.write_backups();
    stage.note("the journal was dropped, with any transactions it held".into());
    Ok(())
}

/// Restores the journal inode from its backup in the superblock.
fn restore(stage: &mut Stage<'_>, inode: InodeNr) -> Result<(), Failure> {
    let words = stage.superblock().jnl_blocks;
    // Starts from a blank inode: Linux also checks fields that a journal does not use.
    let mut image = stage.new_inode(inode, MODE_PRIVATE)?;
    for (bytes, word) in image.base.block.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    image.base.size_high = words[15];
    image.base.size_lo = words[16];
    let extents = image.base.block[..2] == extent::MAGIC.to_le_bytes();
    image.base.flags = if extents { InodeFlags::EXTENTS.bits() } else { 0 };
    let map = FileMap::load(stage, &image);
    super::inodes::set_blocks(stage, &mut image, map.blocks());
    stage.write_inode(&image)?;
    // The checksums of its nodes include the generation, which is now zero.
    super::maps::rechecksum(stage, &image)?;
    stage.note("the journal inode was restored from its backup in the superblock".into());
    Ok(())
}

const NO_DEVICE: Failure = Failure::NotNow("the journal device was not given");

/// Whether the journal is on another device.
fn is_external(stage: &Stage<'_>) -> bool {
    stage.superblock().journal_uuid != [0; 16]
}

/// Where a journal superblock begins.
#[derive(Clone, Copy)]
enum Place {
    /// Byte of the device of an external journal.
    Device(u64),
    /// Block of the file system.
    Block(BlockNr),
}

/// The place of the superblock of the journal in an inode; `None`: on the other device.
fn superblock_of(stage: &Stage<'_>, inode: Option<InodeNr>) -> Result<Place, Failure> {
    let Some(inode) = inode else {
        let block = u64::from(journal::external_superblock(&stage.geometry));
        return Ok(Place::Device(block * u64::from(stage.geometry.block_size)));
    };
    let image = stage.read_inode(inode)?;
    let first = FileMap::load(stage, &image).find(LogicalBlock(0));
    first.map(Place::Block).ok_or(Failure::NotNow("the journal has no first block"))
}

/// Changes a superblock.
fn edit_at(
    stage: &Stage<'_>,
    place: Place,
    edit: impl FnOnce(&mut [u8; 1024]),
) -> Result<(), Failure> {
    match place {
        Place::Device(offset) => {
            let device = stage.journal_device.ok_or(NO_DEVICE)?;
            let mut bytes = [0; 1024];
            device.read_at(offset, &mut bytes)?;
            edit(&mut bytes);
            device.write_at(offset, &bytes)?;
            Ok(())
        }
        Place::Block(block) => {
            let mut whole = stage.read_block(block)?;
            let Some(bytes) = whole.first_chunk_mut::<1024>() else { return Ok(()) };
            edit(bytes);
            stage.write_block(block, &whole)
        }
    }
}

/// Flips back the bit that the checksum tells. A replay has done so already.
fn flip_back(bytes: &mut [u8; 1024]) {
    if let Some(bit) = JournalSuperblock::wrong_bit(bytes) {
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

/// Changes the journal superblock and recomputes its checksum.
fn edit_superblock(
    stage: &mut Stage<'_>,
    edit: impl FnOnce(&mut [u8; 1024]),
) -> Result<(), Failure> {
    let inode = (!is_external(stage)).then(|| journal_inode(stage));
    let place = superblock_of(stage, inode)?;
    edit_at(stage, place, |bytes| {
        edit(bytes);
        let mut superblock = JournalSuperblock::decode(bytes);
        // Those of version 1 have no such field.
        if superblock.is_v2() {
            superblock.encode_sealed(bytes);
        }
    })
}

/// Writes a fresh, empty journal superblock; transactions not yet replayed are lost.
fn reset(stage: &mut Stage<'_>) -> Result<(), Failure> {
    if is_external(stage) {
        return Err(Failure::NotNow("only mke2fs can recreate an external journal"));
    }
    let block_size = stage.geometry.block_size;
    let image = stage.read_inode(journal_inode(stage))?;
    let blocks = image.size_bytes() / u64::from(block_size);
    let sequence = u32::from_le_bytes([
        stage.random[0],
        stage.random[1],
        stage.random[2],
        stage.random[3] & 0x7f,
    ]);
    let maxlen = u32::try_from(blocks).map_err(|_| Failure::NotNow("the journal is too long"))?;
    let fast_commit_blocks = area_of(stage.superblock(), maxlen);
    edit_superblock(stage, |bytes| {
        let old = JournalSuperblock::decode(bytes);
        let keeps_version = old.magic == jbd2::MAGIC && old.blocktype == jbd2::SUPERBLOCK_V1;
        let size = JournalSize { blocks: maxlen, fast_commit_blocks };
        let uuid = (!keeps_version).then_some(old.uuid);
        *bytes = EmptyJournal { block_size, size, sequence, uuid }.superblock();
    })?;
    let sb = stage.superblock_mut();
    if sb.feature_incompat & Incompat::RECOVER.bits() != 0 {
        sb.feature_incompat &= !Incompat::RECOVER.bits();
        sb.state &= !STATE_VALID;
        stage.note("the transactions in the journal are lost".into());
    }
    Ok(())
}

/// Backs up the map of the journal inode in the superblock.
fn back_up(stage: &mut Stage<'_>) -> Result<(), Failure> {
    let image = stage.read_inode(journal_inode(stage))?;
    let sb = stage.superblock_mut();
    for (word, bytes) in sb.jnl_blocks.iter_mut().zip(image.base.block.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    sb.jnl_blocks[15] = image.base.size_high;
    sb.jnl_blocks[16] = image.base.size_lo;
    sb.jnl_backup_type = 1;
    stage.write_backups();
    Ok(())
}

/// Moves a user-visible journal file to the hidden inode; the next round removes the names that led
/// to it.
fn hide(stage: &mut Stage<'_>) -> Result<(), Failure> {
    let from = journal_inode(stage);
    if from == InodeNr::JOURNAL {
        return Ok(());
    }
    super::inodes::move_to_reserved(stage, from, InodeNr::JOURNAL)?;
    stage.superblock_mut().journal_inum = InodeNr::JOURNAL.0;
    stage.write_backups();
    Ok(())
}

/// Creates a new journal in inode 8 after the old one was dropped: as large as the backup in the
/// superblock says, or mke2fs's default size.
fn create(stage: &mut Stage<'_>) -> Result<(), Failure> {
    let geometry = stage.geometry.clone();
    let fast_commit = geometry.features.compat.contains(Compat::FAST_COMMIT);
    let backup = &stage.superblock().jnl_blocks;
    let size = size_of_new(geometry.blocks_count, geometry.block_size, backup, fast_commit);
    let Some(size) = size else {
        stage.note("the file system is too small for a journal".into());
        return Ok(());
    };
    let blocks = size.blocks;
    let mut image = stage.new_inode(InodeNr::JOURNAL, MODE_PRIVATE)?;
    let mut map = FileMap::allocate(stage, u64::from(blocks))?;
    image.set_size_bytes(u64::from(blocks) * u64::from(geometry.block_size));
    map.store(stage, &mut image)?;
    super::inodes::set_blocks(stage, &mut image, map.blocks());
    stage.write_inode(&image)?;
    let zeroes = vec![0; stage.block_size()];
    for extent in &map.runs {
        for block in extent.run.start.0..extent.run.end().0 {
            stage.write_block(BlockNr(block), &zeroes)?;
        }
    }
    let mut first = vec![0; stage.block_size()];
    let block_size = geometry.block_size;
    let uuid = Some(stage.superblock().uuid);
    let journal = EmptyJournal { block_size, size, sequence: 1, uuid };
    first[..1024].copy_from_slice(&journal.superblock());
    let start = map.find(LogicalBlock(0)).ok_or(Failure::NoSpace("block"))?;
    stage.write_block(start, &first)?;
    let sb = stage.superblock_mut();
    sb.journal_inum = InodeNr::JOURNAL.0;
    sb.feature_compat |= Compat::HAS_JOURNAL.bits();
    back_up(stage)?;
    stage.note(format!("a new journal of {blocks} blocks was created"));
    Ok(())
}
