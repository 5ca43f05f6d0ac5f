//! The journal, as far as a check is concerned: what to do about it, and what became of it.

/// How to treat a journal that holds transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalUse {
    /// Replay it into memory and judge the file system as it will be after recovery.
    Replay,
    /// Judge the raw disk, as `e2fsck -n` does.
    Ignore,
    /// Judge the raw disk, and find transactions in the log that are damaged.
    Read,
}

/// The state of the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalState {
    /// The file system has none.
    #[default]
    None,
    /// It holds nothing that is not in place.
    Clean,
    /// It was replayed in memory: the verdict is the one after recovery.
    Replayed {
        /// Committed transactions.
        transactions: u64,
        /// Blocks they change.
        blocks: u64,
    },
    /// It holds transactions, but the raw disk was judged.
    Ignored,
    /// It holds transactions that cannot be replayed; findings say why.
    Unusable,
}
