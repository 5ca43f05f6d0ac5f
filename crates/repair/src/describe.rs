//! Each change in words: a pure function of the edit, as something that was done or would be.

use std::fmt;

use floe_format::ext::inode::InodeFlags;
use floe_format::ext::inode_flips::Flips;
use floe_format::features::{Features, Incompat, RoCompat};

use crate::edit::{
    AttributeBlockEdit, DirectoryEdit, Edit, EntryEdit, GroupEdit, InodeEdit, JournalEdit, MapEdit,
    OrphanEdit, OrphanFileEdit, SuperblockEdit, TreeEdit,
};

/// Whether changes were made, or only looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tense {
    /// "the link count was set to 2"
    Done,
    /// "the link count would be set to 2"
    Would,
}

impl Tense {
    /// The verb after one thing.
    pub const fn was(self) -> &'static str {
        match self {
            Self::Done => "was",
            Self::Would => "would be",
        }
    }

    /// The verb after several.
    pub const fn were(self) -> &'static str {
        match self {
            Self::Done => "were",
            Self::Would => "would be",
        }
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(Tense::Done))
    }
}

impl Edit {
    /// A sentence without its full stop. What it is about is left out where a report says it in
    /// the line above: the inode, the directory, the group.
    pub fn describe(&self, tense: Tense) -> String {
        let (was, were) = (tense.was(), tense.were());
        match self {
            Self::Superblock(edit) => superblock(edit, tense),
            Self::Group { edit, .. } => group(*edit, tense),
            Self::Journal(edit) => journal(edit, tense),
            Self::CleanMmp => format!("the block against multiple mounts {was} written clean"),
            Self::Orphans(OrphanEdit::Finish(inode)) => {
                format!("{inode} {was} taken off the list of orphans: released, or cut to its size")
            }
            Self::Orphans(OrphanEdit::Empty) => format!("the list of orphans {was} emptied"),
            Self::RecreateResizeInode => {
                format!("the inode that reserves blocks for growing {was} made anew")
            }
            Self::BadBlocks { blocks, replace } => bad_blocks(blocks.len(), *replace, tense),
            Self::NotBad { block } => format!("{block} {was} taken off the list of bad blocks"),
            Self::Inode { edit, .. } => inode(*edit, tense),
            Self::Map { edit, .. } => map(*edit, tense),
            Self::AttributeBlock { block, edit } => match edit {
                AttributeBlockEdit::Checksum => {
                    format!("the checksum of the attribute block {block} {was} computed anew")
                }
                AttributeBlockEdit::References(count) => {
                    format!("the attribute block {block} {was} set to {count} users")
                }
            },
            Self::CloneShared { .. } => {
                format!("blocks that others claim too {were} copied, so that the file has its own")
            }
            Self::Directory { logical, edit, .. } => {
                format!("{logical}: {}", directory(*edit, tense))
            }
            Self::Entry { edit, .. } => match edit {
                EntryEdit::Clear => format!("the entry {was} removed"),
                EntryEdit::Type(kind) => {
                    format!("the type in the entry {was} set to {}", type_name(*kind))
                }
                EntryEdit::LegalCharacters => {
                    format!("the characters that no name may have {were} replaced by dots")
                }
                EntryEdit::ValidText => {
                    format!("the bytes of the name that are no valid text {were} replaced by dots")
                }
            },
            Self::Tree(edit) => tree(*edit, tense),
            Self::RebuildDirectory { .. } => {
                format!("the directory {was} written anew, sorted and indexed, with all its names")
            }
            Self::RebuildExtents { .. } => {
                format!("the extent tree {was} written anew, as flat as it can be")
            }
            Self::Release { .. } => format!("the inode {was} cleared: it is empty and has no name"),
            Self::Attach { .. } => format!("it {was} entered in lost+found"),
            Self::LinkCount { links, .. } => format!("the link count {was} set to {links}"),
            Self::GroupMaps { .. } => {
                format!("bitmaps and counts {were} written as computed from what is in use")
            }
            Self::Totals => {
                format!("the totals of free blocks and inodes {were} written as counted")
            }
            Self::QuotaFile { kind } => {
                format!("the {kind} quota file {was} written with the usage that was counted")
            }
            Self::OrphanFile(edit) => orphan_file(*edit, tense),
            Self::Backups => {
                format!("all backups of the superblock and descriptors {were} written anew")
            }
        }
    }
}

fn bad_blocks(count: usize, replace: bool, tense: Tense) -> String {
    let (was, were) = (tense.was(), tense.were());
    match (replace, count) {
        (true, _) => format!("the list of bad blocks {was} replaced by one of {count}"),
        (false, 1) => format!("1 block {was} put on the list of bad blocks"),
        (false, _) => format!("{count} blocks {were} put on the list of bad blocks"),
    }
}

#[allow(clippy::too_many_lines)] // one arm an edit
fn superblock(edit: &SuperblockEdit, tense: Tense) -> String {
    let (was, were) = (tense.was(), tense.were());
    match edit {
        SuperblockEdit::PrimaryFromBackup => {
            format!("the primary superblock and descriptors {were} written from a backup")
        }
        SuperblockEdit::RandomUuid => format!("a random UUID {was} stored"),
        SuperblockEdit::InodesPerGroup(count) => {
            format!("the number of inodes of a group {was} set to {count}")
        }
        SuperblockEdit::DescriptorSize(bytes) => {
            format!("the size of group descriptors {was} set to {bytes}")
        }
        SuperblockEdit::InodesCount(count) => format!("the number of inodes {was} set to {count}"),
        SuperblockEdit::Revision1 => format!("the revision {was} set to 1"),
        SuperblockEdit::ClearTestFlag => {
            format!("the mark of a test file system {was} removed")
        }
        SuperblockEdit::HashSignedness => {
            format!("the kind of characters that names are hashed with {was} stored")
        }
        SuperblockEdit::MountTimeNow => format!("the time of the last mount {was} set to now"),
        SuperblockEdit::WriteTimeNow => format!("the time of the last write {was} set to now"),
        SuperblockEdit::MinExtraIsize(bytes) => {
            format!("the least extra size of inodes {was} set to {bytes}")
        }
        SuperblockEdit::WantExtraIsize(bytes) => {
            format!("the wanted extra size of inodes {was} set to {bytes}")
        }
        SuperblockEdit::NoReservedDescriptors => {
            format!("the count of blocks reserved for growing {was} set to 0")
        }
        SuperblockEdit::FirstMetaBg(group) => {
            format!("the first meta block group {was} set to {group}, as in a backup")
        }
        SuperblockEdit::DropMetaBg => switched_off("meta_bg", tense),
        SuperblockEdit::DropResizeInodeFeature => switched_off("resize_inode", tense),
        SuperblockEdit::DropChecksumSeed => switched_off("metadata_csum_seed", tense),
        SuperblockEdit::DropGroupChecksums => switched_off("uninit_bg", tense),
        SuperblockEdit::DropFiletype => switched_off("filetype", tense),
        SuperblockEdit::DropMmp => switched_off("mmp", tense),
        SuperblockEdit::AsExamined(field) => {
            format!("superblock field {field} {was} stored as it must be")
        }
        SuperblockEdit::MmpBlock(block) => {
            format!("the superblock {was} made to name {block} against multiple mounts")
        }
        SuperblockEdit::SetIncompat(bits) => {
            let incompat = Incompat::from_bits_retain(*bits);
            let features = Features { incompat, ..Features::default() };
            format!("feature {} {was} switched on", features.names().join(", "))
        }
        SuperblockEdit::SetRoCompat(bits) => {
            let ro_compat = RoCompat::from_bits_retain(*bits);
            let features = Features { ro_compat, ..Features::default() };
            format!("feature {} {was} switched on", features.names().join(", "))
        }
        SuperblockEdit::ClearRoCompat(bits) => {
            let ro_compat = RoCompat::from_bits_retain(*bits);
            let features = Features { ro_compat, ..Features::default() };
            switched_off(&features.names().join(", "), tense)
        }
        SuperblockEdit::NoJournalDevice => {
            format!("the number of the journal device {was} removed from the superblock")
        }
        SuperblockEdit::MadeByLinux => format!("the maker of the file system {was} set to Linux"),
        SuperblockEdit::MendQuotaInode(kind) => {
            format!("the number of the {kind} quota inode {was} corrected in the superblock")
        }
        SuperblockEdit::ProjectQuotaInode(inode) => {
            format!("the superblock {was} made to name {inode} as the project quota file")
        }
        SuperblockEdit::MoveQuotaInode(kind) => {
            format!("the {kind} quota file {was} moved to its reserved inode")
        }
    }
}

fn switched_off(name: &str, tense: Tense) -> String {
    format!("feature {name} {} switched off", tense.was())
}

fn group(edit: GroupEdit, tense: Tense) -> String {
    let (was, were) = (tense.was(), tense.were());
    match edit {
        GroupEdit::Distrust => format!(
            "the checksum of the descriptor {was} computed anew, and what it says of unused parts \
             {was} dropped"
        ),
        GroupEdit::ClearUninit => format!("the marks of uninitialised bitmaps {were} removed"),
        GroupEdit::ItableUnusedZero => format!("the count of never used inodes {was} set to 0"),
        GroupEdit::ClearBlockUninit => {
            format!("the mark of an uninitialised block bitmap {was} removed")
        }
        GroupEdit::ClearInodeUninit => {
            format!("the mark of an uninitialised inode bitmap {was} removed")
        }
        GroupEdit::PlaceBlockBitmap => format!("the block bitmap {was} given a new place"),
        GroupEdit::PlaceInodeBitmap => format!("the inode bitmap {was} given a new place"),
        GroupEdit::PlaceInodeTable => {
            format!("the inode table {was} found by a backup descriptor, or made anew, empty")
        }
        GroupEdit::InodeTableFromBackup => {
            format!("the place of the inode table {was} taken from a backup descriptor")
        }
        GroupEdit::MoveBlockBitmap => format!("the block bitmap {was} moved to a free block"),
        GroupEdit::MoveInodeBitmap => format!("the inode bitmap {was} moved to a free block"),
        GroupEdit::MoveInodeTable => format!("the inode table {was} moved to free blocks"),
    }
}

fn journal(edit: &JournalEdit, tense: Tense) -> String {
    let (was, were) = (tense.was(), tense.were());
    match edit {
        JournalEdit::Drop => format!("the damaged journal {was} removed, to be made anew"),
        JournalEdit::Reset => format!("the journal {was} emptied"),
        JournalEdit::Forget => format!("the fields of a journal that is not there {were} cleared"),
        JournalEdit::ClearNeedsRecovery => {
            format!("the note that the journal must be replayed {was} cleared")
        }
        JournalEdit::ClearError => format!("the error that the journal recorded {was} cleared"),
        JournalEdit::Replay => format!("the journal {was} replayed"),
        JournalEdit::Bounds { first, blocks } => {
            format!("the log of the journal {was} said to begin at block {first} of {blocks}")
        }
        JournalEdit::ZeroStaleFields => format!("stale fields of the journal {were} cleared"),
        JournalEdit::Create => format!("a new journal {was} made"),
        JournalEdit::BackUpMap => {
            format!("the copy of the journal inode in the superblock {was} renewed")
        }
        JournalEdit::Hide(name) => {
            format!("the visible journal file {name} {was} moved to the hidden inode")
        }
        JournalEdit::ExternalChecksum => {
            format!("the checksum of the external journal's superblock {was} computed anew")
        }
    }
}

fn flipped_back(flips: Flips, tense: Tense) -> String {
    let bit = |bit| format!("bit {} of byte {:#04x}", bit % 8, bit / 8);
    let bits: Vec<String> = flips.bits().map(bit).collect();
    let (bits, verb) =
        (bits.join(" and "), if flips.is_single() { tense.was() } else { tense.were() });
    format!("{bits} {verb} flipped back, as the checksum of the inode proves")
}

fn inode(edit: InodeEdit, tense: Tense) -> String {
    let (was, were) = (tense.was(), tense.were());
    match edit {
        InodeEdit::Clear => format!("the inode {was} cleared: what it was is deleted"),
        InodeEdit::Zero => format!("the inode {was} filled with zeroes"),
        InodeEdit::ZeroBase => format!("the first 128 bytes of the inode {were} set to zero"),
        InodeEdit::Checksum => format!("the checksum of the inode {was} computed anew"),
        InodeEdit::Keep => format!(
            "the inode {was} kept, as names and blocks prove it: its checksum {was} computed anew"
        ),
        InodeEdit::FlipBack(flips) => flipped_back(flips, tense),
        InodeEdit::DtimeZero => format!("the deletion time {was} set to 0"),
        InodeEdit::DtimeNow => format!("the deletion time {was} set to now"),
        InodeEdit::SettleDtime => {
            format!("the deletion time {was} settled: 0 for a file in use, else now")
        }
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
        InodeEdit::ValueHere { .. } => {
            format!("the number of an inode {was} taken from the attribute: its value is beside it")
        }
        InodeEdit::DropOwnAttributes => {
            format!("the extended attributes in the inode {were} dropped")
        }
        InodeEdit::ExtraIsize => format!("the extra size of the inode {was} set to a valid one"),
        InodeEdit::Epoch(field) => format!("the epoch bits of {field} {were} corrected"),
        InodeEdit::EmptyInline => format!("the file {was} made empty: its data are missing"),
        InodeEdit::InlineDirectorySize => {
            format!("the size of the inline directory {was} set to a possible one")
        }
        InodeEdit::EaReferences(count) => {
            format!("the count of inodes that use this attribute value {was} set to {count}")
        }
    }
}

fn map(edit: MapEdit, tense: Tense) -> String {
    let (was, were) = (tense.was(), tense.were());
    match edit {
        MapEdit::RemoveExtent { logical, .. } => {
            format!("the extent at {logical} {was} removed, with all that it led to")
        }
        MapEdit::ZeroPointer { logical, level: 0, block } => {
            format!("the pointer to {block} at {logical} {was} removed: a hole is there")
        }
        MapEdit::ZeroPointer { logical, block, .. } => format!(
            "the pointer to the indirect block {block} from {logical} on {was} removed: a hole is \
             there"
        ),
        MapEdit::Checksum { node } => {
            format!("the checksum of the extent node {node} {was} computed anew")
        }
        MapEdit::Depth { node, depth } => {
            format!("the depth of the extent node {node} {was} set to {depth}")
        }
        MapEdit::IndexStarts => {
            format!("the starts in the extent index {were} set to those of the nodes")
        }
        MapEdit::CloseGap { logical, to } => {
            format!("the gap before {logical} {was} closed: it is {to} of the directory")
        }
        MapEdit::MarkWritten => format!("unwritten extents of the directory {were} marked written"),
        MapEdit::ToExtents => format!("the block map {was} converted to extents"),
    }
}

fn directory(edit: DirectoryEdit, tense: Tense) -> String {
    let (was, were) = (tense.was(), tense.were());
    match edit {
        DirectoryEdit::Salvage => {
            format!("broken records {were} mended; names that can be told apart stay")
        }
        DirectoryEdit::Fill => format!("the hole {was} filled with an empty directory block"),
        DirectoryEdit::Empty => format!("the unreadable block {was} made empty"),
        DirectoryEdit::Checksum => format!("the checksum of the block {was} computed anew"),
        DirectoryEdit::MakeDot => format!("\".\" {was} made anew"),
        DirectoryEdit::MakeDotdot => format!("\"..\" {was} made anew"),
        DirectoryEdit::TrimDot => format!("\".\" {was} cut to its size"),
    }
}

fn tree(edit: TreeEdit, tense: Tense) -> String {
    let (was, were) = (tense.was(), tense.were());
    match edit {
        TreeEdit::CreateRoot => format!("a new root directory {was} made"),
        TreeEdit::CreateLostFound => format!("the directory /lost+found {was} made"),
        TreeEdit::UnlinkLostFound => {
            format!("the name lost+found {was} taken from what cannot serve as such")
        }
        TreeEdit::Unlink { dir, child } => {
            format!("entries of {dir} that name {child} {were} removed: they close a loop")
        }
        TreeEdit::Reconnect(_) => {
            format!("the directory {was} entered in lost+found, with all that is in it")
        }
        TreeEdit::Parent { parent, .. } => format!("\"..\" {was} set to {parent}"),
    }
}

/// Names of flags as they are commonly written; the number where there is none.
fn flag_names<F>(names: impl Iterator<Item = (&'static str, F)>, bits: u32) -> String {
    let names: Vec<_> = names.map(|(name, _)| name.to_ascii_lowercase()).collect();
    if names.is_empty() { format!("{bits:#x}") } else { names.join(", ") }
}

fn orphan_file(edit: OrphanFileEdit, tense: Tense) -> String {
    let (was, were) = (tense.was(), tense.were());
    match edit {
        OrphanFileEdit::Forget => {
            format!("the number of the orphan file {was} removed from the superblock")
        }
        OrphanFileEdit::Adopt(inode) => {
            format!("{inode} {was} named as the orphan file, or released if there is another one")
        }
        OrphanFileEdit::Remove => format!("the orphan file {was} removed"),
        OrphanFileEdit::Recreate => format!("the orphan file {was} made anew"),
        OrphanFileEdit::Clean => format!("all blocks of the orphan file {were} emptied"),
        OrphanFileEdit::ClearPresent => {
            format!("the note that the orphan file holds something {was} cleared")
        }
    }
}

fn type_name(kind: u8) -> &'static str {
    match kind {
        1 => "file",
        2 => "directory",
        3 => "character device",
        4 => "block device",
        5 => "FIFO",
        6 => "socket",
        7 => "symbolic link",
        _ => "none",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_format::InodeNr;

    #[test]
    fn a_change_is_told_as_done_or_as_possible() {
        let edit = Edit::LinkCount { inode: InodeNr(12), links: 2 };
        assert_eq!(edit.to_string(), "the link count was set to 2");
        assert_eq!(edit.describe(Tense::Would), "the link count would be set to 2");
        let edit = Edit::Superblock(SuperblockEdit::SetIncompat(Incompat::EXTENTS.bits()));
        assert_eq!(edit.to_string(), "feature extent was switched on");
        let edit = Edit::Superblock(SuperblockEdit::SetIncompat(1 << 30));
        assert_eq!(edit.to_string(), "feature FEATURE_I30 was switched on");
    }
}
