//! One inode, and its fields as programs see them.

use floe_format::InodeNr;
use floe_format::ext::extent::ExtentNode;
use floe_format::ext::inode::{
    FileType, Inode, InodeFlags, Timestamp, decode_nanoseconds, decode_seconds, device_number,
};
use floe_format::features::RoCompat;
use floe_format::native::backpointer::Backpointer;

use super::{FileFault, Files};

/// An inode that was read.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its number.
    pub number: InodeNr,
    /// Whether its checksum fits (or there are no checksums).
    pub checksum_ok: bool,
    bytes: Vec<u8>,
}

/// Ends of extra fields, as offsets from byte 128 of the inode.
const CTIME_EXTRA_END: u16 = 0x08;
const MTIME_EXTRA_END: u16 = 0x0c;
const ATIME_EXTRA_END: u16 = 0x10;
const CRTIME_END: u16 = 0x14;
const CRTIME_EXTRA_END: u16 = 0x18;
const PROJID_END: u16 = 0x20;

/// An inode of zeroes, for fewer than 128 bytes; no valid geometry has such inodes.
const EMPTY: [u8; 128] = [0; 128];

/// Maximum link count of a file in Linux.
const MOST_LINKS: u16 = 65_000;
/// The largest `i_extra_isize` in use: 32, with space for fields to come.
const MOST_EXTRA_BYTES: u16 = 96;

/// Whether bytes look like an inode, whatever their checksum: a valid type, link count, flags and
/// size of extra fields, and zero in one of the two fields at least that no ext4 uses. Random bytes do with a probability
/// below 10^-6, those of an inode of 128 bytes, too.
pub fn is_plausible(inode: &Inode<'_>) -> bool {
    let extra = inode.extra.extra_isize;
    let has_map_root = !inode.flags().contains(InodeFlags::EXTENTS)
        || ExtentNode::new(&inode.base.block).is_some_and(|root| root.header_ok());
    inode.file_type().is_some()
        && InodeFlags::from_bits(inode.base.flags).is_some()
        && inode.base.links_count <= MOST_LINKS
        && extra <= MOST_EXTRA_BYTES
        && extra.is_multiple_of(4)
        && (inode.base.faddr == 0 || inode.base.reserved == 0)
        && has_map_root
}

impl Node {
    /// Which directory names it, and how, by the inode itself; `None` if it does not say.
    pub fn backpointer(&self) -> Option<Backpointer> {
        Backpointer::of(&self.bytes)
    }

    pub(super) fn new(number: InodeNr, bytes: Vec<u8>, files: &Files<'_>) -> Self {
        let mut node = Self { number, checksum_ok: true, bytes };
        if files.checksums() {
            node.checksum_ok = node.inode().checksum_ok(files.superblock.seed(), number);
        }
        let is_proved = files.checksums() && node.checksum_ok;
        if files.refuses_garbage && !is_proved && !is_plausible(&node.inode()) {
            node.bytes.fill(0);
        }
        node
    }

    /// The inode's fields as they lie on the disk.
    pub fn inode(&self) -> Inode<'_> {
        let inode = Inode::decode(&self.bytes).or_else(|| Inode::decode(&EMPTY));
        // `EMPTY` has 128 bytes.
        inode.unwrap_or_else(|| unreachable!("128 bytes are an inode"))
    }

    /// The faults known from the inode alone: a wrong checksum.
    pub fn faults(&self) -> Vec<FileFault> {
        if self.checksum_ok { Vec::new() } else { vec![FileFault::InodeChecksum] }
    }

    /// Its fields, for whoever wants several: each call here decodes the inode.
    pub fn fields(&self) -> Fields<'_> {
        Fields(self.inode())
    }

    /// Whether it is in use: it has links and a mode, and was not deleted.
    pub fn in_use(&self) -> bool {
        let base = self.inode().base;
        base.links_count > 0 && base.mode != 0
    }

    /// Its type; `None` for an undefined one.
    pub fn file_type(&self) -> Option<FileType> {
        self.fields().file_type()
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.file_type() == Some(FileType::Directory)
    }

    /// `i_flags`.
    pub fn flags(&self) -> InodeFlags {
        self.fields().flags()
    }

    /// Permission bits, with set-user-ID, set-group-ID and sticky: 0 to 0o7777.
    pub fn permissions(&self) -> u16 {
        self.fields().permissions()
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        self.fields().uid()
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        self.fields().gid()
    }

    /// Size in bytes of a regular file or directory, or of a link's target.
    pub fn size_bytes(&self) -> u64 {
        self.fields().size_bytes()
    }

    /// The inode's link count.
    pub fn links(&self) -> u16 {
        self.fields().links()
    }

    /// Last change of the data.
    pub fn mtime(&self) -> Timestamp {
        self.fields().mtime()
    }

    /// Last change of the inode.
    pub fn ctime(&self) -> Timestamp {
        self.fields().ctime()
    }

    /// Last access.
    pub fn atime(&self) -> Timestamp {
        self.fields().atime()
    }

    /// Major and minor number of a device; `None` for other types.
    pub fn device_number(&self) -> Option<(u32, u32)> {
        self.fields().device_number()
    }
}

/// The fields of an inode as programs see them, decoded once.
#[derive(Debug)]
pub struct Fields<'n>(Inode<'n>);

impl<'n> Fields<'n> {
    /// As they lie on the disk.
    pub const fn inode(&self) -> &Inode<'n> {
        &self.0
    }

    /// Its type; `None` for an undefined one.
    pub fn file_type(&self) -> Option<FileType> {
        self.0.file_type()
    }

    /// `i_flags`.
    pub fn flags(&self) -> InodeFlags {
        self.0.flags()
    }

    /// Permission bits, with set-user-ID, set-group-ID and sticky: 0 to 0o7777.
    pub fn permissions(&self) -> u16 {
        self.0.base.mode & 0o7777
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        self.0.uid()
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        self.0.gid()
    }

    /// Project, or 0 where inodes have none.
    pub fn project(&self) -> u32 {
        let inode = &self.0;
        if inode.has_extra(PROJID_END) { inode.extra.projid } else { 0 }
    }

    /// Size in bytes of a regular file or directory, or of a link's target.
    pub fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    /// The inode's link count.
    pub fn links(&self) -> u16 {
        self.0.base.links_count
    }

    /// Sectors of 512 bytes that the inode says to take, of data and mapping.
    pub fn sectors(&self, files: &Files<'_>) -> u64 {
        let base = &self.0.base;
        let geometry = files.geometry();
        let huge = geometry.features.ro_compat.contains(RoCompat::HUGE_FILE);
        let high = if huge { u64::from(base.blocks_high) << 32 } else { 0 };
        let unit = if geometry.counts_in_blocks(self.flags()) {
            u64::from(geometry.block_size) / 512
        } else {
            1
        };
        (high | u64::from(base.blocks_lo)).saturating_mul(unit)
    }

    /// Last change of the data.
    pub fn mtime(&self) -> Timestamp {
        let inode = &self.0;
        self.timestamp(inode.base.mtime, inode.extra.mtime_extra, MTIME_EXTRA_END)
    }

    /// Last change of the inode.
    pub fn ctime(&self) -> Timestamp {
        let inode = &self.0;
        self.timestamp(inode.base.ctime, inode.extra.ctime_extra, CTIME_EXTRA_END)
    }

    /// Last access.
    pub fn atime(&self) -> Timestamp {
        let inode = &self.0;
        self.timestamp(inode.base.atime, inode.extra.atime_extra, ATIME_EXTRA_END)
    }

    /// Creation; `None` if inodes are too small to store it.
    pub fn crtime(&self) -> Option<Timestamp> {
        let inode = &self.0;
        let extra = &inode.extra;
        inode
            .has_extra(CRTIME_END)
            .then(|| self.timestamp(extra.crtime, extra.crtime_extra, CRTIME_EXTRA_END))
    }

    fn timestamp(&self, seconds: u32, extra: u32, extra_end: u16) -> Timestamp {
        let extra = if self.0.has_extra(extra_end) { extra } else { 0 };
        let nanoseconds = decode_nanoseconds(extra);
        Timestamp {
            seconds: decode_seconds(seconds, extra),
            nanoseconds: if nanoseconds < 1_000_000_000 { nanoseconds } else { 0 },
        }
    }

    /// Major and minor number of a device; `None` for other types.
    pub fn device_number(&self) -> Option<(u32, u32)> {
        if !matches!(self.file_type(), Some(FileType::CharDevice | FileType::BlockDevice)) {
            return None;
        }
        Some(device_number(&self.0.base.block))
    }
}
