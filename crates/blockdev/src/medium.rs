//! The medium below a device: whether seeks or bytes cost more there.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::Model;
use crate::stack::DeviceNumber;

/// Bytes that are read along on a rotating disk, at most. It needs as long for 0.9 MB as for a seek, but what passes below the head
/// while it waits costs it nothing either, so a larger limit would gain nothing there.
const ROTATING_GAP_BYTES: u64 = 256 << 10;

/// A medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// The system does not say, as for memory, and for a file system over a network.
    #[default]
    Unknown,
    /// A rotating disk. Virtual disks often say that they are one, whatever is below.
    Rotating,
    /// Flash, or other memory without a head to move.
    Solid,
}

impl Medium {
    /// That of a block device or of the file system that has a file, as `/sys` says.
    pub fn of(metadata: &Metadata) -> Self {
        let is_device = metadata.file_type().is_block_device();
        let number = if is_device { metadata.rdev() } else { metadata.dev() };
        Self::at(&DeviceNumber::of(number).folder())
    }

    /// That of a block device with this folder in `/sys`; partitions have the queue of their disk.
    fn at(folder: &Path) -> Self {
        let queues = [folder.join("queue/rotational"), folder.join("../queue/rotational")];
        match queues.iter().find_map(|file| fs::read_to_string(file).ok()).as_deref() {
            Some("0\n") => Self::Solid,
            Some(_) => Self::Rotating,
            None => Self::Unknown,
        }
    }

    /// Unwanted bytes between two wanted places that cost no more time than another request, where so many requests are under way
    /// at a time. An unknown medium may be a disk or lie behind a network, where a request is dear.
    pub fn gap_bytes(self, in_flight: usize) -> u64 {
        match self {
            Self::Solid => Model::ssd().gap_bytes(in_flight),
            Self::Rotating | Self::Unknown => {
                Model::rotating().gap_bytes(in_flight).min(ROTATING_GAP_BYTES)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sys_tells_the_medium_of_disks_and_partitions() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(disk.join("partition")).unwrap();
        assert_eq!(Medium::at(&disk), Medium::Unknown);
        for (text, medium) in [("0\n", Medium::Solid), ("1\n", Medium::Rotating)] {
            fs::write(disk.join("queue/rotational"), text).unwrap();
            assert_eq!(Medium::at(&disk), medium);
            assert_eq!(Medium::at(&disk.join("partition")), medium);
        }
    }

    #[test]
    fn a_gap_is_read_along_if_that_takes_no_longer_than_a_request() {
        assert_eq!(Medium::Rotating.gap_bytes(1), 256 << 10);
        assert_eq!(Medium::Rotating.gap_bytes(4), 256 << 10, "a head moves for one at a time");
        assert_eq!(Medium::Solid.gap_bytes(1), 160_000, "80 us at 2 GB/s");
        assert_eq!(Medium::Solid.gap_bytes(4), 40_000);
        assert_eq!(Medium::Unknown.gap_bytes(1), 256 << 10);
    }
}
