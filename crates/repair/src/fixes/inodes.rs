//! Edits of inodes.

use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::ext::superblock::OS_HURD;
use floe_format::ext::xattr::value_inode;
use floe_format::features::RoCompat;

use crate::edit::InodeEdit;
use crate::failure::Failure;
use crate::stage::{InodeImage, MODE_PRIVATE, Stage};

use super::xattrs::{self, EntryField};

/// The file type bits of `i_mode`.
const TYPE_MASK: u16 = 0o170_000;
const TYPE_DIRECTORY: u16 = 0o040_000;

pub(super) fn apply(
    stage: &mut Stage<'_>,
    number: InodeNr,
    edit: InodeEdit,
) -> Result<(), Failure> {
    if edit == InodeEdit::Clear {
        return clear(stage, number);
    }
    let mut image = stage.read_inode(number)?;
    if let InodeEdit::FlipBack(flips) = edit {
        flips.apply(&mut image.raw);
        return stage.write_raw_inode(number, &image.raw);
    }
    let now = deletion_time(stage);
    let base = &mut image.base;
    match edit {
        InodeEdit::Clear | InodeEdit::FlipBack(_) => {}
        InodeEdit::Zero => return zero(stage, &image, image.raw.len()),
        InodeEdit::ZeroBase => return zero(stage, &image, 128),
        InodeEdit::Checksum | InodeEdit::Keep => {}
        InodeEdit::DtimeZero => base.dtime = 0,
        InodeEdit::DtimeNow => base.dtime = now,
        InodeEdit::SettleDtime => base.dtime = if base.links_count == 0 { now } else { 0 },
        InodeEdit::Undelete => (base.links_count, base.dtime) = (1, 0),
        InodeEdit::Mode(mode) => base.mode = mode,
        InodeEdit::BecomeDirectory => base.mode = base.mode & !TYPE_MASK | TYPE_DIRECTORY,
        InodeEdit::SetFlags(flags) => base.flags |= flags,
        InodeEdit::ClearFlags(flags) => base.flags &= !flags,
        InodeEdit::Size(size) => set_size(&mut image, size),
        InodeEdit::Sectors(count) => set_sectors(stage, &mut image, count),
        InodeEdit::FaddrZero => base.faddr = 0,
        InodeEdit::FragZero => base.blocks_high &= if hurd(stage) { 0xff00 } else { 0xffff },
        InodeEdit::FsizeZero => base.blocks_high &= if hurd(stage) { 0x00ff } else { 0xffff },
        InodeEdit::SizeHighZero => base.size_high = 0,
        InodeEdit::BlocksHighZero => base.blocks_high = 0,
        InodeEdit::FileAclHighZero => base.file_acl_high = 0,
        InodeEdit::DropAttributeBlock => (base.file_acl_lo, base.file_acl_high) = (0, 0),
        InodeEdit::DropOwnAttributes => {
            if let Some(at) = image.attributes_offset() {
                image.raw[at..at + 4].fill(0);
            }
        }
        InodeEdit::ValueHash(hash) => base.atime = hash,
        InodeEdit::SalvageAttributes { .. }
        | InodeEdit::ValueSize { .. }
        | InodeEdit::ValueHere { .. }
        | InodeEdit::AttributeName { .. }
        | InodeEdit::AccessList { .. } => {
            if !edit_attribute(stage, &mut image, edit)? {
                return Ok(());
            }
        }
        InodeEdit::ExtraIsize => set_extra_isize(stage, &mut image),
        InodeEdit::Epoch(field) => {
            let extra = &mut image.extra;
            *match field {
                "i_ctime" => &mut extra.ctime_extra,
                "i_mtime" => &mut extra.mtime_extra,
                "i_atime" => &mut extra.atime_extra,
                _ => &mut extra.crtime_extra,
            } &= !3;
        }
        InodeEdit::EmptyInline => {
            base.flags &= !InodeFlags::INLINE_DATA.bits();
            base.block = [0; 60];
            image.set_size_bytes(0);
        }
        InodeEdit::InlineDirectorySize => super::inline_data::set_directory_size(&mut image)?,
        InodeEdit::EaReferences(count) => {
            value_inode::set_refcount(base, count);
            base.links_count = u16::from(count > 0);
        }
    }
    stage.write_inode(&image)
}

/// Changes one attribute. Returns whether it is in the inode, which the caller must then write.
fn edit_attribute(
    stage: &Stage<'_>,
    image: &mut InodeImage,
    edit: InodeEdit,
) -> Result<bool, Failure> {
    let (block, offset_bytes, field) = match edit {
        InodeEdit::AttributeName { block, offset_bytes } => {
            return xattrs::mend_name(stage, image, block, offset_bytes);
        }
        InodeEdit::SalvageAttributes { doubted } => {
            xattrs::salvage_own(stage, image, doubted);
            return Ok(true);
        }
        InodeEdit::AccessList { block, offset_bytes } => {
            return xattrs::mend_list(stage, image, block, offset_bytes);
        }
        InodeEdit::ValueSize { block, offset_bytes, size } => {
            (block, offset_bytes, EntryField::ValueSize(size))
        }
        InodeEdit::ValueHere { block, offset_bytes } => {
            (block, offset_bytes, EntryField::ValueInode(0))
        }
        _ => return Ok(true),
    };
    xattrs::set_field(stage, image, block, offset_bytes, field)
}

fn hurd(stage: &Stage<'_>) -> bool {
    stage.superblock().creator_os == OS_HURD
}

/// Deletes a file. The next examination finds its blocks and names unused, so they are freed then.
///
/// The map and the attributes go too: the cause may be that the map is not the file's, and a map without its flags would be read as
/// one of another kind.
pub(super) fn clear(stage: &mut Stage<'_>, number: InodeNr) -> Result<(), Failure> {
    let now = deletion_time(stage);
    stage.edit_inode(number, |image| {
        image.set_size_bytes(0);
        let base = &mut image.base;
        (base.links_count, base.flags, base.dtime) = (0, 0, now);
        (base.blocks_lo, base.blocks_high) = (0, 0);
        (base.file_acl_lo, base.file_acl_high) = (0, 0);
        base.block = [0; 60];
        if let Some(at) = image.attributes_offset() {
            image.raw[at..].fill(0);
        }
    })
}

/// The time for inodes that are deleted now: a smaller one would be taken for a link of the orphan list, and 0 for none.
fn deletion_time(stage: &Stage<'_>) -> u32 {
    stage.now32().max(stage.geometry.inodes_count)
}

/// Zeroes the first bytes of an inode; an inode of zeroes needs no checksum.
fn zero(stage: &Stage<'_>, image: &InodeImage, len: usize) -> Result<(), Failure> {
    let mut raw = image.raw.clone();
    raw[..len].fill(0);
    let whole = raw.iter().all(|&byte| byte == 0);
    if whole {
        return stage.write_raw_inode(image.number, &raw);
    }
    let zeroed =
        InodeImage::of(image.number, raw).ok_or(Failure::NotNow("inodes are too short"))?;
    stage.write_inode(&zeroed)
}

/// Sets the link count of an inode.
pub(super) fn set_links(stage: &mut Stage<'_>, number: InodeNr, links: u16) -> Result<(), Failure> {
    stage.edit_inode(number, |image| image.base.links_count = links)
}

/// Sets the size; an inline file that becomes empty loses its inline data too.
fn set_size(image: &mut InodeImage, size: u64) {
    if size == 0 && image.flags().contains(InodeFlags::INLINE_DATA) {
        image.base.flags &= !InodeFlags::INLINE_DATA.bits();
        image.base.block = [0; 60];
    }
    image.set_size_bytes(size);
}

/// Sets `i_blocks` to `count`, in the unit that the inode uses.
fn set_sectors(stage: &Stage<'_>, image: &mut InodeImage, count: u64) {
    let huge = stage.geometry.features.ro_compat.contains(RoCompat::HUGE_FILE);
    let in_blocks = stage.geometry.counts_in_blocks(image.flags());
    image.base.blocks_lo = (count & 0xffff_ffff) as u32;
    if huge {
        // 48 bits; a file with the huge_file flag counts blocks, and its high part is zero.
        let high = ((count >> 32) & 0xffff) as u16;
        image.base.blocks_high = if in_blocks { 0 } else { high };
    }
}

/// Sets `i_blocks` of a file that uses `blocks` blocks, including its map.
pub(super) fn set_blocks(stage: &Stage<'_>, image: &mut InodeImage, blocks: u64) {
    let geometry = &stage.geometry;
    let whole = blocks.next_multiple_of(u64::from(geometry.cluster_blocks));
    image.base.flags &= !InodeFlags::HUGE_FILE.bits();
    set_sectors(stage, image, whole * u64::from(geometry.block_size / 512));
}

/// Sets a valid `i_extra_isize`: the default of new inodes if it is out of range, else the next
/// multiple of four.
fn set_extra_isize(stage: &Stage<'_>, image: &mut InodeImage) {
    let most = image.raw.len().saturating_sub(128);
    let stored = image.extra.extra_isize;
    // A value that cannot be rounded up in 16 bits exceeds any inode.
    let up = |size: u16| size.checked_next_multiple_of(4).unwrap_or(u16::MAX);
    let rounded = up(stored);
    image.extra.extra_isize = if usize::from(stored) > most || stored < 4 {
        let want = up(stage.superblock().want_extra_isize);
        if want >= 4 && usize::from(want) <= most { want } else { most.min(32) as u16 }
    } else if usize::from(rounded) <= most {
        rounded
    } else {
        // Less than the inode size, which fits 16 bits.
        most as u16 & !3
    };
}

/// Copies an internal file (journal, quota) from a user-visible inode to its reserved one, and
/// frees the old inode.
pub(super) fn move_to_reserved(
    stage: &mut Stage<'_>,
    from: InodeNr,
    to: InodeNr,
) -> Result<(), Failure> {
    let image = stage.read_inode(from)?;
    if FileType::of_mode(image.base.mode) != Some(FileType::Regular) {
        return Err(Failure::NotNow("it is not a regular file"));
    }
    let mut moved = image.clone();
    moved.number = to;
    moved.base.mode = MODE_PRIVATE;
    moved.base.links_count = 1;
    moved.base.flags |= InodeFlags::IMMUTABLE.bits();
    stage.write_inode(&moved)?;
    // Extent nodes carry the inode number in their checksums.
    super::maps::rechecksum(stage, &moved)?;
    zero(stage, &image, image.raw.len())
}
