//! The result type of the builders of extent trees and block maps, and their errors.

use floe_format::{BlockNr, LogicalBlock};

/// Bytes of `i_block`.
pub(crate) const ROOT_BYTES: usize = 60;

/// A map of a file's blocks, ready to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// `i_block`.
    pub root: [u8; ROOT_BYTES],
    /// Blocks of the map and their contents, one block size each: the first of the offered blocks,
    /// in that order. The others were not needed.
    pub blocks: Vec<(BlockNr, Vec<u8>)>,
}

/// Why a map cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// Not a power of two from 1 KiB to 64 KiB.
    #[error("{block_size} is not a valid block size")]
    BlockSize {
        /// Bytes.
        block_size: u32,
    },
    /// A run begins before the end of the one before it.
    #[error("{logical} is mapped twice or out of order")]
    NotSorted {
        /// First logical block of the run.
        logical: LogicalBlock,
    },
    /// The logical block is too high for the map.
    #[error("{logical} is beyond the reach of the map")]
    LogicalOutOfReach {
        /// The first block beyond the reach of the map.
        logical: LogicalBlock,
    },
    /// The block number is too high for the map.
    #[error("{block} is beyond the reach of the map")]
    BlockOutOfReach {
        /// The block.
        block: BlockNr,
    },
    /// Fewer blocks were offered than the map needs.
    #[error("the map takes {needed} blocks, {offered} were offered")]
    TooFewNodes {
        /// Blocks that the map needs.
        needed: usize,
        /// Blocks that were offered.
        offered: usize,
    },
}

/// `block_size` in bytes if it is valid.
pub(super) fn block_bytes(block_size: u32) -> Result<usize, BuildError> {
    let fits = block_size.is_power_of_two() && (1024..=65536).contains(&block_size);
    if fits { Ok(block_size as usize) } else { Err(BuildError::BlockSize { block_size }) }
}
