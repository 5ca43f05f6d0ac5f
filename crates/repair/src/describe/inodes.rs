//! Sentences about changes of inodes.

use floe_format::ext::inode::InodeFlags;
use floe_format::ext::inode_flips::Flips;

use super::{Tense, flag_names};
use crate::edit::InodeEdit;

fn flipped_back(flips: Flips, tense: Tense) -> String {
    if let Flips::Byte(at, bits) = flips {
        let was = tense.was();
        return format!(
            "byte {at:#04x} {was} changed by {bits:#04x}: the checksum of the inode then matches"
        );
    }
    let bit = |(at, bits): (usize, u8)| format!("bit {} of byte {at:#04x}", bits.trailing_zeros());
    let bits: Vec<String> = flips.bytes().map(bit).collect();
    let (bits, verb) =
        (bits.join(" and "), if flips.is_single() { tense.was() } else { tense.were() });
    format!("{bits} {verb} flipped back: the checksum of the inode then matches")
}

#[allow(clippy::too_many_lines)] // one arm an edit
pub(super) fn inode(edit: InodeEdit, tense: Tense) -> String {
    let (was, were) = (tense.was(), tense.were());
    match edit {
        InodeEdit::Clear => format!("the inode {was} cleared: the file is deleted"),
        InodeEdit::Zero => format!("the inode {was} filled with zeroes"),
        InodeEdit::ZeroBase => format!("the first 128 bytes of the inode {were} set to zero"),
        InodeEdit::Checksum => format!("the checksum of the inode {was} recomputed"),
        InodeEdit::Keep => format!(
            "the inode {was} kept because names and blocks confirm it, and its checksum {was} \
             recomputed"
        ),
        InodeEdit::FlipBack(flips) => flipped_back(flips, tense),
        InodeEdit::DtimeZero => format!("the deletion time {was} set to 0"),
        InodeEdit::DtimeNow => format!("the deletion time {was} set to now"),
        InodeEdit::SettleDtime => {
            format!("the deletion time {was} corrected: 0 for a file in use, else now")
        }
        InodeEdit::Undelete => format!("its count of links {was} set to 1"),
        InodeEdit::Mode(mode) => format!("the mode {was} set to 0{mode:o}"),
        InodeEdit::BecomeDirectory => format!("the type {was} set to directory"),
        InodeEdit::SetFlags(bits) => {
            let names = flag_names(InodeFlags::from_bits_retain(bits).iter_names(), bits);
            format!("flag {names} {was} set")
        }
        InodeEdit::ClearFlags(bits) => {
            let names = flag_names(InodeFlags::from_bits_retain(bits).iter_names(), bits);
            format!("flag {names} {was} cleared where set")
        }
        InodeEdit::Size(bytes) => format!("the size {was} set to {bytes} bytes"),
        InodeEdit::Sectors(sectors) => format!("the block count {was} set to {sectors}"),
        InodeEdit::FaddrZero => format!("the unused fragment address {was} set to 0"),
        InodeEdit::FragZero => format!("the unused fragment number {was} set to 0"),
        InodeEdit::FsizeZero => format!("the unused fragment size {was} set to 0"),
        InodeEdit::SizeHighZero => format!("the upper half of the size {was} set to 0"),
        InodeEdit::BlocksHighZero => format!("the upper half of the block count {was} set to 0"),
        InodeEdit::FileAclHighZero => {
            format!("the upper half of the attribute block's number {was} set to 0")
        }
        InodeEdit::DropAttributeBlock => {
            format!("the extended attributes in the attribute block {were} dropped")
        }
        InodeEdit::ValueSize { size, .. } => {
            format!("the attribute {was} given the size of its whole value: {size} bytes")
        }
        InodeEdit::AttributeName { .. } => {
            format!("the attribute {was} given a name that can be read, or removed if it has none")
        }
        InodeEdit::AccessList { .. } => {
            format!("the access list {was} replaced by one that gives nobody more, or removed")
        }
        InodeEdit::ValueHere { .. } => {
            format!(
                "the value inode number {was} removed from the attribute, whose value is stored \
                 in place"
            )
        }
        InodeEdit::DropOwnAttributes => {
            format!("the extended attributes in the inode {were} dropped")
        }
        InodeEdit::SalvageAttributes { .. } => {
            format!("the damaged attributes in the inode {were} removed, the others kept")
        }
        InodeEdit::ValueHash(hash) => {
            format!("the hash of the attribute value {was} set to {hash:#010x}")
        }
        InodeEdit::ExtraIsize => format!("the extra size of the inode {was} set to a valid one"),
        InodeEdit::Epoch(field) => format!("the epoch bits of {field} {were} corrected"),
        InodeEdit::EmptyInline => format!("the file {was} truncated to zero: its data are missing"),
        InodeEdit::InlineDirectorySize => {
            format!("the size of the inline directory {was} set to a valid one")
        }
        InodeEdit::EaReferences(count) => {
            format!("the count of inodes that use this attribute value {was} set to {count}")
        }
    }
}
