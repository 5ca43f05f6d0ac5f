//! Inodes of a new file system.

use floe_format::crc::Seed;
use floe_format::ext::inode::{InodeBase, InodeExtra, InodeFlags, write_checksum};
use floe_format::{BlockNr, Geometry, InodeNr};

use super::tree::Time;

/// Bytes of the extra fields that inodes of more than 128 bytes have.
pub(super) const EXTRA_SIZE: u16 = 32;

/// How inodes of a file system are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct InodeForm {
    /// Bytes of an inode.
    pub(super) size: usize,
    /// What checksums start from.
    pub(super) seed: Option<Seed>,
    /// Bytes of a block.
    pub(super) block_size: u32,
}

impl InodeForm {
    pub(super) fn new(geometry: &Geometry, seed: Seed) -> Self {
        let seed = geometry.features.metadata_csum().then_some(seed);
        Self { size: geometry.inode_size as usize, seed, block_size: geometry.block_size }
    }
}

/// An inode that is to be written.
#[derive(Clone, Debug)]
pub(super) struct NewInode {
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    pub(super) mtime: Time,
    pub(super) atime: Time,
    pub(super) ctime: Time,
    pub(super) crtime: Time,
    pub(super) links: u16,
    /// Blocks that it has, maps and attributes included.
    pub(super) blocks: u64,
    pub(super) flags: InodeFlags,
    pub(super) block: [u8; 60],
    pub(super) file_acl: BlockNr,
    pub(super) generation: u32,
    /// What lies behind the extra fields; empty: nothing.
    pub(super) xattrs: Vec<u8>,
}

impl NewInode {
    /// An inode of root's without blocks, all times the same.
    pub(super) fn new(mode: u16, time: Time) -> Self {
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
            xattrs: Vec::new(),
        }
    }

    /// Writes it over `raw`, an inode's bytes, with its checksum.
    pub(super) fn encode(&self, form: &InodeForm, nr: InodeNr, raw: &mut [u8]) {
        raw.fill(0);
        let extra = form.size >= 128 + usize::from(EXTRA_SIZE);
        let low16 = |value: u32| (value & 0xffff) as u16;
        let low32 = |value: u64| (value & 0xffff_ffff) as u32;
        let mut base = InodeBase::decode(&[0; 128]);
        base.mode = self.mode;
        (base.uid_lo, base.uid_high) = (low16(self.uid), low16(self.uid >> 16));
        (base.gid_lo, base.gid_high) = (low16(self.gid), low16(self.gid >> 16));
        (base.size_lo, base.size_high) = (low32(self.size), low32(self.size >> 32));
        base.mtime = seconds(self.mtime, extra);
        base.atime = seconds(self.atime, extra);
        base.ctime = seconds(self.ctime, extra);
        base.links_count = self.links;
        let sectors = self.blocks * u64::from(form.block_size / 512);
        let mut flags = self.flags;
        let count = if sectors >> 48 != 0 {
            flags |= InodeFlags::HUGE_FILE;
            self.blocks
        } else {
            sectors
        };
        (base.blocks_lo, base.blocks_high) = (low32(count), low16(low32(count >> 32)));
        base.flags = flags.bits();
        base.block = self.block;
        base.generation = self.generation;
        (base.file_acl_lo, base.file_acl_high) =
            (low32(self.file_acl.0), low16(low32(self.file_acl.0 >> 32)));
        if let Some(first) = raw.first_chunk_mut() {
            base.encode_into(first);
        }
        if extra && let Some(rest) = raw.get_mut(128..) {
            let mut fields = InodeExtra::decode(&[0; 32]);
            fields.extra_isize = EXTRA_SIZE;
            fields.mtime_extra = extra_time(self.mtime);
            fields.atime_extra = extra_time(self.atime);
            fields.ctime_extra = extra_time(self.ctime);
            fields.crtime = seconds(self.crtime, true);
            fields.crtime_extra = extra_time(self.crtime);
            if let Some(place) = rest.first_chunk_mut() {
                fields.encode_into(place);
            }
            let area = rest.get_mut(usize::from(EXTRA_SIZE)..).unwrap_or_default();
            if let Some(place) = area.get_mut(..self.xattrs.len()) {
                place.copy_from_slice(&self.xattrs);
            }
        }
        if let Some(seed) = form.seed {
            // Every inode has 128 bytes.
            let _ = write_checksum(raw, seed, nr);
        }
    }
}

/// Seconds that a disk can hold: 34 bits from -2^31 on with extra fields, else 32 signed ones.
fn held(time: Time, extra: bool) -> i64 {
    let low = i64::from(i32::MIN);
    let high = if extra { low + (1 << 34) - 1 } else { i64::from(i32::MAX) };
    time.secs.clamp(low, high)
}

fn seconds(time: Time, extra: bool) -> u32 {
    (held(time, extra) & 0xffff_ffff) as u32
}

fn extra_time(time: Time) -> u32 {
    let secs = held(time, true);
    let signed = i64::from((secs & 0xffff_ffff) as u32 as i32);
    let epoch = ((secs - signed) >> 32) & 3;
    // Two bits, and nanoseconds below 2^30.
    (epoch as u32) | time.nanos.min(999_999_999) << 2
}
