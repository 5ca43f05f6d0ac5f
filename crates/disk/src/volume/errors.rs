//! The record of errors in the superblock, as Linux writes and `dumpe2fs` shows it.

use floe_ext4::tx::Tx;
use floe_format::InodeNr;
use floe_format::ext::inode::Timestamp;
use floe_format::ext::superblock::STATE_ERROR;

use super::{Volume, seconds_of};
use crate::caller::Caller;
use crate::op_error::OpError;

/// The kind of an error (`EXT4_ERR_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// The device failed (EIO).
    Device = 2,
    /// A checksum is wrong (EFSBADCRC).
    Checksum = 4,
    /// A structure is damaged (EFSCORRUPTED).
    Damage = 5,
}

/// An error that a mounted file system met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRecord<'a> {
    /// Its kind.
    pub code: ErrorCode,
    /// The inode that was used; 0 if none is known.
    pub inode: InodeNr,
    /// The block at fault, or of a directory the block in it, as with Linux; 0 if none is known.
    pub block: u64,
    /// The place in the program: the first 31 bytes are kept.
    pub function: &'a str,
}

impl Volume {
    /// Records an error in the superblock and marks the file system as one with errors, so that the next check examines it.
    ///
    /// # Errors
    /// The superblock cannot be changed.
    pub fn record_error(
        &mut self,
        tx: &mut dyn Tx,
        now: Timestamp,
        error: &ErrorRecord<'_>,
    ) -> Result<(), OpError> {
        let (time, time_hi) = seconds_of(now);
        let mut function = [0; 32];
        for (place, byte) in function.iter_mut().take(31).zip(error.function.bytes()) {
            *place = byte;
        }
        self.op(tx, &Caller::system(now), |op| {
            op.edit_superblock(|sb| {
                sb.state |= STATE_ERROR;
                if sb.first_error_time == 0 && sb.first_error_time_hi == 0 {
                    (sb.first_error_time, sb.first_error_time_hi) = (time, time_hi);
                    (sb.first_error_ino, sb.first_error_block) = (error.inode.0, error.block);
                    (sb.first_error_func, sb.first_error_line) = (function, 0);
                    sb.first_error_errcode = error.code as u8;
                }
                (sb.last_error_time, sb.last_error_time_hi) = (time, time_hi);
                (sb.last_error_ino, sb.last_error_block) = (error.inode.0, error.block);
                (sb.last_error_func, sb.last_error_line) = (function, 0);
                sb.last_error_errcode = error.code as u8;
                sb.error_count = sb.error_count.saturating_add(1);
            })
        })
    }
}
