//! The reactions of a file system to damaged or unreadable metadata.

use std::collections::BTreeSet;
use std::fmt;

use floe_disk::volume::{ErrorCode, ErrorRecord};
use floe_ext4::files::FileFault;
use floe_ext4::tx::Refusal;
use floe_format::InodeNr;
use floe_format::ext::superblock::Superblock;
use floe_sync::atomic::{AtomicBool, Ordering};
use floe_sync::{Mutex, PoisonError};

use crate::FsError;

/// Objects whose faults are recorded once each; of others only the first fault of the mount is.
const MOST_OBJECTS: usize = 1000;

/// The reaction to damaged or unreadable metadata (`errors=` of ext4). The call that meets them fails in any case, and the
/// error is recorded in the superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// All other objects can be used as before.
    #[default]
    Continue,
    /// Nothing can be changed any more. Changes that were made before become durable.
    ReadOnly,
    /// Nothing is read or written any more: what was not durable may be lost, as in a crash. Linux would stop the machine.
    Shutdown,
}

impl OnError {
    /// The one that a superblock asks for (`s_errors`).
    pub const fn of(superblock: &Superblock) -> Self {
        match superblock.errors {
            2 => Self::ReadOnly,
            3 => Self::Shutdown,
            _ => Self::Continue,
        }
    }
}

impl fmt::Display for OnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Continue => "continue",
            Self::ReadOnly => "remount-ro",
            Self::Shutdown => "shutdown",
        })
    }
}

/// A fault of metadata as the superblock records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its kind.
    pub code: ErrorCode,
    /// The block at fault, or of a directory the block in it, as with Linux; 0 if none is known.
    pub block: u64,
}

impl Fault {
    /// Damage of an unknown block.
    pub(crate) const DAMAGE: Self = Self { code: ErrorCode::Damage, block: 0 };
    /// An unknown block that cannot be read.
    pub(crate) const DEVICE: Self = Self { code: ErrorCode::Device, block: 0 };
    const CHECKSUM: Self = Self { code: ErrorCode::Checksum, block: 0 };

    /// A fault of a file that was read.
    pub(crate) const fn of_file(fault: &FileFault) -> Self {
        match fault {
            FileFault::InodeChecksum => Self::CHECKSUM,
            FileFault::MapChecksum { block } => Self { block: block.0, ..Self::CHECKSUM },
            FileFault::DirectoryChecksum { logical } => Self { block: logical.0, ..Self::CHECKSUM },
            FileFault::MapUnreadable { block, .. }
            | FileFault::AttributesUnreadable { block, .. } => {
                Self { block: block.0, ..Self::DEVICE }
            }
            FileFault::DirectoryUnreadable { logical, .. } => {
                Self { block: logical.0, ..Self::DEVICE }
            }
            FileFault::MapOutside { run, .. } | FileFault::MapOfAnother { run, .. } => {
                Self { block: run.start.0, ..Self::DAMAGE }
            }
            _ => Self::DAMAGE,
        }
    }

    /// Why something was not changed.
    pub(crate) const fn of_refusal(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Io { block, .. } => Self { block: block.0, ..Self::DEVICE },
            Refusal::Outside(block) => Self { block: block.0, ..Self::DAMAGE },
            Refusal::Checksum(_) => Self::CHECKSUM,
            _ => Self::DAMAGE,
        }
    }
}

/// Faults that were met, and what follows on them.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    on_error: OnError,
    objects: Mutex<BTreeSet<InodeNr>>,
    read_only: AtomicBool,
    shut_down: AtomicBool,
}

impl Faults {
    pub(crate) fn new(on_error: OnError) -> Self {
        Self { on_error, ..Self::default() }
    }

    /// The record of an error, if it is one of metadata and new for its object.
    pub(crate) fn meet(&self, error: &FsError) -> Option<ErrorRecord<'static>> {
        let (inode, fault, function) = match error {
            FsError::Damaged { inode, fault, .. } => (*inode, *fault, "floe mount: damage"),
            FsError::Unreadable { inode, fault, .. } => (*inode, *fault, "floe mount: read"),
            _ => return None,
        };
        let Fault { code, block } = fault;
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        let new = objects.len() < MOST_OBJECTS && objects.insert(inode);
        new.then_some(ErrorRecord { code, inode, block, function })
    }

    /// Does what follows on a fault that is recorded.
    pub(crate) fn react(&self) {
        match self.on_error {
            OnError::Continue => {}
            OnError::ReadOnly => self.end_writing(),
            OnError::Shutdown => self.shut_down.store(true, Ordering::Relaxed),
        }
    }

    /// Nothing can be changed from now on.
    pub(crate) fn end_writing(&self) {
        self.read_only.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    /// `Err` if nothing may be read or written any more.
    pub(crate) fn judge(&self) -> Result<(), FsError> {
        if self.shut_down.load(Ordering::Relaxed) {
            return Err(FsError::Ended(
                "it was shut down after an error (errors=panic)".to_owned(),
            ));
        }
        Ok(())
    }
}

/// The name and code of the finding by which `floe check` reports a fault, where there is exactly one.
pub(crate) const fn finding(fault: &FileFault) -> Option<&'static str> {
    Some(match fault {
        FileFault::InodeChecksum => "inode-checksum-bad 0x010068",
        FileFault::MapChecksum { .. } => "extent-block-checksum-bad 0x01006a",
        FileFault::DirectoryChecksum { .. } => "dir-block-checksum-bad 0x02004d",
        FileFault::MapOfAnother { .. } | FileFault::AttributesOfAnother { .. } => {
            "cube-blocks-outside 0x07030f"
        }
        _ => return None,
    })
}
