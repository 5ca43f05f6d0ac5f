//! What a caller can choose.

use floe_blockdev::ReadBlocks;
use floe_format::BlockNr;

/// How a check is run.
#[derive(Clone, Copy)]
pub struct CheckOptions<'a> {
    /// Workers; at least 1.
    pub threads: usize,
    /// The superblock to use instead of the primary one: a block number counted in
    /// [`CheckOptions::block_size`].
    pub superblock: Option<BlockNr>,
    /// Bytes of a block, where the superblock cannot say (1024 to 65536).
    pub block_size: Option<u32>,
    /// What to do about a journal that holds transactions.
    pub journal: JournalUse,
    /// The device of an external journal.
    pub external_journal: Option<&'a dyn ReadBlocks>,
    /// Names in casefolded directories must be valid text even where the superblock does not say so.
    pub check_encoding: bool,
    /// Seconds since 1970 that count as now: for timestamps in the future.
    pub now_seconds: i64,
    /// Whether inodes and directory blocks that are plainly in order are judged on a short path.
    /// Findings are the same without: it is off only where that is tested.
    pub shortcuts: bool,
}

impl Default for CheckOptions<'_> {
    fn default() -> Self {
        Self {
            threads: 1,
            superblock: None,
            block_size: None,
            journal: JournalUse::Replay,
            external_journal: None,
            check_encoding: false,
            // The clock of a library's caller is not ours to read; 2038 is later than most damage.
            now_seconds: i64::from(i32::MAX),
            shortcuts: true,
        }
    }
}

/// What to do about a journal that holds transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalUse {
    /// Replay it into memory and judge the file system as it will be after recovery.
    Replay,
    /// Judge the raw disk, as `e2fsck -n` does.
    Ignore,
}
