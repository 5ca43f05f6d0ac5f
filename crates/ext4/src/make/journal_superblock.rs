//! Builds the superblock of an empty journal, and computes the size of a new journal.

use floe_format::ext::jbd2::{
    JournalSuperblock, LOG_PER_FAST_COMMIT_BLOCK, MAGIC, MIN_JOURNAL_BLOCKS, SUPERBLOCK_V1,
    SUPERBLOCK_V2,
};

/// Blocks of a new journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalSize {
    /// All blocks, its superblock and the fast-commit area included.
    pub blocks: u32,
    /// Blocks of the fast-commit area at the end; 0 without the feature.
    pub fast_commit_blocks: u32,
}

/// The size that mke2fs gives the journal of a file system of `blocks` blocks; `None` if that is too
/// small for a journal.
pub fn default_size(blocks: u64, fast_commit: bool) -> Option<JournalSize> {
    let log_blocks: u32 = match blocks {
        0..2048 => return None,
        2048..32_768 => MIN_JOURNAL_BLOCKS,
        32_768..262_144 => 4096,
        262_144..524_288 => 8192,
        524_288..4_194_304 => 16_384,
        4_194_304..8_388_608 => 32_768,
        8_388_608..16_777_216 => 65_536,
        16_777_216..33_554_432 => 131_072,
        _ => 262_144,
    };
    let fast_commit_blocks = if fast_commit { log_blocks / LOG_PER_FAST_COMMIT_BLOCK } else { 0 };
    Some(JournalSize { blocks: log_blocks + fast_commit_blocks, fast_commit_blocks })
}

/// The size of the journal that replaces a lost one (problem `journal-recreate`): that of the
/// journal inode's copy in the superblock (`s_jnl_blocks`, whose last two words are its size in
/// bytes, the high half first) if that is long enough, else the default size.
pub fn size_of_new(
    blocks: u64,
    block_size: u32,
    backup: &[u32; 17],
    fast_commit: bool,
) -> Option<JournalSize> {
    let size_bytes = u64::from(backup[15]) << 32 | u64::from(backup[16]);
    let before = u32::try_from(size_bytes / u64::from(block_size.max(1))).ok();
    let long_enough = |before: &u32| *before >= MIN_JOURNAL_BLOCKS && u64::from(*before) < blocks;
    match before.filter(long_enough) {
        Some(before) if !fast_commit => Some(JournalSize { blocks: before, fast_commit_blocks: 0 }),
        _ => default_size(blocks, fast_commit),
    }
}

/// The parameters of an empty journal's superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmptyJournal {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks.
    pub size: JournalSize,
    /// The first transaction expected in the log. It must be a number that the old log did not use;
    /// otherwise remains of the old log could pass for transactions.
    pub sequence: u32,
    /// Version 2, with this UUID (that of the file system, for a journal of its own); version 1 has
    /// none.
    pub uuid: Option<[u8; 16]>,
}

impl EmptyJournal {
    /// The superblock: the first 1024 bytes of the first block. No features are set, so there is no
    /// checksum; the kernel sets the features it needs when it mounts.
    pub fn superblock(&self) -> [u8; 1024] {
        let mut bytes = [0; 1024];
        let mut superblock = JournalSuperblock::decode(&bytes);
        superblock.magic = MAGIC;
        superblock.blocktype = SUPERBLOCK_V1;
        superblock.blocksize = self.block_size;
        superblock.maxlen = self.size.blocks;
        superblock.first = 1;
        superblock.sequence = self.sequence;
        if let Some(uuid) = self.uuid {
            superblock.blocktype = SUPERBLOCK_V2;
            superblock.uuid = uuid;
            superblock.nr_users = 1;
            superblock.num_fc_blks = self.size.fast_commit_blocks;
        }
        superblock.encode_into(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_journal_comes_back_as_long_as_it_was() {
        let mut backup = [0; 17];
        let size = |backup: &[u32; 17], fast_commit| {
            size_of_new(8192, 1024, backup, fast_commit).map(|size| size.blocks)
        };
        assert_eq!(size(&backup, false), Some(1024));
        backup[16] = 2000 * 1024;
        assert_eq!(size(&backup, false), Some(2000));
        assert_eq!(size(&backup, true), Some(1024 + 16));
        backup[16] = 1023 * 1024;
        assert_eq!(size(&backup, false), Some(1024));
        // Longer than the file system: ignored.
        backup[15] = 1;
        assert_eq!(size(&backup, false), Some(1024));
        backup = [u32::MAX; 17];
        assert_eq!(size(&backup, false), Some(1024));
        assert_eq!(size_of_new(2047, 1024, &backup, false), None);
        assert_eq!(size_of_new(8192, 0, &backup, false).map(|size| size.blocks), Some(1024));
    }

    #[test]
    fn version_1_ends_with_its_fields() {
        let size = JournalSize { blocks: 1040, fast_commit_blocks: 16 };
        let journal = EmptyJournal { block_size: 1024, size, sequence: 7, uuid: None };
        assert!(journal.superblock()[0x24..].iter().all(|&byte| byte == 0));
        let second = EmptyJournal { uuid: Some([9; 16]), ..journal };
        let read = JournalSuperblock::decode(&second.superblock());
        assert!(read.is_v2());
        assert_eq!((read.maxlen, read.num_fc_blks, read.sequence), (1040, 16, 7));
        assert_eq!((read.start, read.first, read.uuid), (0, 1, [9; 16]));
    }
}
