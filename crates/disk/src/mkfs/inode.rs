//! Inodes of a new file system.

use floe_format::crc::Seed;
use floe_format::ext::inode::{InodeFlags, OwnedInode, TimeField, Timestamp};
use floe_format::ext::xattr::value_inode;
use floe_format::native::backpointer::{self, Backpointer};
use floe_format::{BlockNr, Geometry, InodeNr};

/// Bytes of the extra fields that inodes of more than 128 bytes have.
pub(super) const EXTRA_SIZE: u16 = 32;
/// The same of native file systems: the backpointer follows.
const NATIVE_EXTRA_SIZE: u16 = backpointer::EXTRA_ISIZE;

/// Bytes of the extra fields of inodes of more than 128 bytes.
pub(super) const fn extra_size(native: bool) -> u16 {
    if native { NATIVE_EXTRA_SIZE } else { EXTRA_SIZE }
}

/// How the inodes of a file system are encoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct InodeForm {
    /// Bytes of an inode.
    pub(super) size: usize,
    /// The seed of checksums.
    pub(super) seed: Option<Seed>,
    /// Bytes of a block.
    pub(super) block_size: u32,
    /// Bytes of the extra fields.
    pub(super) extra_size: u16,
}

impl InodeForm {
    pub(super) fn new(geometry: &Geometry, seed: Seed, extra_size: u16) -> Self {
        let seed = geometry.features.metadata_csum().then_some(seed);
        let (size, block_size) = (geometry.inode_size as usize, geometry.block_size);
        Self { size, seed, block_size, extra_size }
    }
}

/// An inode to be written.
#[derive(Clone, Debug)]
pub(super) struct NewInode {
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    pub(super) mtime: Timestamp,
    pub(super) atime: Timestamp,
    pub(super) ctime: Timestamp,
    pub(super) crtime: Timestamp,
    pub(super) links: u16,
    /// Its blocks, including maps and attributes.
    pub(super) blocks: u64,
    pub(super) flags: InodeFlags,
    pub(super) block: [u8; 60],
    pub(super) file_acl: BlockNr,
    pub(super) generation: u32,
    /// A name of it, which inodes of native file systems carry.
    pub(super) backpointer: Option<Backpointer>,
    /// The bytes behind the extra fields; empty if there are none.
    pub(super) xattrs: Vec<u8>,
    /// It holds a value of attributes: the value's hash, and its users.
    pub(super) value: Option<(u32, u64)>,
}

impl NewInode {
    /// An inode without blocks, owned by root, with all times equal.
    pub(super) fn new(mode: u16, time: Timestamp) -> Self {
        Self {
            mode,
            uid: 0,
            gid: 0,
            size: 0,
            mtime: time,
            atime: time,
            ctime: time,
            crtime: time,
            links: 1,
            blocks: 0,
            flags: InodeFlags::empty(),
            block: [0; 60],
            file_acl: BlockNr(0),
            generation: 0,
            backpointer: None,
            xattrs: Vec::new(),
            value: None,
        }
    }

    /// Encodes it over `raw`, an inode's bytes, with its checksum.
    pub(super) fn encode(&self, form: &InodeForm, nr: InodeNr, raw: &mut [u8]) {
        // No geometry has inodes of fewer than 128 bytes.
        let Some(mut inode) = OwnedInode::new(nr, raw.len(), form.extra_size) else { return };
        inode.base.mode = self.mode;
        inode.base.links_count = self.links;
        inode.base.block = self.block;
        inode.base.generation = self.generation;
        inode.set_owner(self.uid, self.gid);
        inode.set_size_bytes(self.size);
        for (field, time) in [
            (TimeField::Modification, self.mtime),
            (TimeField::Access, self.atime),
            (TimeField::Change, self.ctime),
            (TimeField::Creation, self.crtime),
        ] {
            inode.set_time(field, time);
        }
        if let Some((hash, users)) = self.value {
            (inode.extra.atime_extra, inode.extra.ctime_extra) = (0, 0);
            value_inode::set_stored_hash(&mut inode.base, hash);
            value_inode::set_refcount(&mut inode.base, users);
        }
        let sectors = self.blocks * u64::from(form.block_size / 512);
        let is_huge = sectors >> 48 != 0;
        inode.set_flags(self.flags, true);
        inode.set_flags(
            InodeFlags::HUGE_FILE,
            is_huge || self.flags.contains(InodeFlags::HUGE_FILE),
        );
        inode.set_blocks(if is_huge { self.blocks } else { sectors });
        inode.set_file_acl(self.file_acl);
        inode.set_backpointer(self.backpointer.as_ref());
        if let Some(place) = inode.attributes_mut().get_mut(..self.xattrs.len()) {
            place.copy_from_slice(&self.xattrs);
        }
        raw.copy_from_slice(inode.seal(form.seed));
    }
}
