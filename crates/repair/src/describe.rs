//! Describes each change in words, as done or as it would be done.

use std::fmt;

use floe_format::BlockNr;
use floe_format::features::{Compat, Features, Incompat, RoCompat};

use crate::edit::{
    AttributeBlockEdit, CubeEdit, DirectoryEdit, Edit, EntryEdit, GroupEdit, JournalEdit, MapEdit,
    OrphanEdit, OrphanFileEdit, ReservationEdit, SuperblockEdit, TreeEdit,
};

mod inodes;

use inodes::inode;

/// Whether changes were made or are only planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tense {
    /// "the link count was set to 2"
    Done,
    /// "the link count would be set to 2"
    Would,
}

impl Tense {
    /// The verb after a singular noun.
    pub const fn was(self) -> &'static str {
        match self {
            Self::Done => "was",
            Self::Would => "would be",
        }
    }

    /// The verb after a plural noun.
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
    /// A sentence without a full stop. It omits the object (inode, directory or group) because a
    /// report names that in the line above.
    pub fn describe(&self, tense: Tense) -> String {
        let (was, were) = (tense.was(), tense.were());
        match self {
            Self::Superblock(edit) => superblock(edit, tense),
            Self::Group { edit, .. } => group(*edit, tense),
            Self::Journal(edit) => journal(edit, tense),
            Self::CleanMmp => format!("the MMP block {was} marked clean"),
            Self::Orphans(OrphanEdit::Finish(inode)) => {
                format!(
                    "{inode} {was} removed from the orphan list: released, or truncated to its size"
                )
            }
            Self::Orphans(OrphanEdit::Empty) => format!("the orphan list {was} cleared"),
            Self::RecreateResizeInode => format!("the resize inode {was} recreated"),
            Self::BadBlocks { blocks, replace } => bad_blocks(blocks.len(), *replace, tense),
            Self::NotBad { block } => format!("{block} {was} removed from the bad block list"),
            Self::Inode { edit, .. } => inode(*edit, tense),
            Self::Map { edit, .. } => map(*edit, tense),
            Self::AttributeBlock { block, edit } => attribute_block(*block, *edit, tense),
            Self::CloneShared { .. } => {
                format!("multiply-claimed blocks {were} cloned")
            }
            Self::Reservation { edit, .. } => reservation(*edit, tense),
            Self::OwnDirectories => {
                format!("the directory {was} put in its place, and its files got their names back")
            }
            Self::Backpointers => format!("the names of inodes {were} stored in them again"),
            Self::Cube { cube, edit } => of_cube(*cube, *edit, tense),
            Self::MoveInode { .. } => {
                format!("it {was} given another inode, in the cube of its names")
            }
            Self::MoveHome { .. } => format!("its blocks {were} moved into its cube"),
            Self::Directory { logical, edit, .. } => {
                format!("{logical}: {}", directory(*edit, tense))
            }
            Self::Entry { edit, .. } => match edit {
                EntryEdit::Clear => format!("the entry {was} removed"),
                EntryEdit::Type(kind) => {
                    format!("the type in the entry {was} set to {}", type_name(*kind))
                }
                EntryEdit::LegalCharacters => {
                    format!("illegal characters in the name {were} replaced by dots")
                }
                EntryEdit::ValidText => {
                    format!("invalid UTF-8 in the name {were} replaced by dots")
                }
            },
            Self::Tree(edit) => tree(*edit, tense),
            Self::RebuildDirectory { .. } => {
                format!("the directory {was} rebuilt, sorted and indexed, with all its names")
            }
            Self::RebuildExtents { .. } => {
                format!("the extent tree {was} rebuilt with minimal depth")
            }
            Self::Release { .. } => format!("the inode {was} cleared: it is empty and has no name"),
            Self::Attach { .. } => format!("it {was} connected to lost+found"),
            Self::LinkCount { links, .. } => format!("the link count {was} set to {links}"),
            Self::GroupMaps { .. } => {
                format!("bitmaps and counts {were} rewritten from the blocks and inodes in use")
            }
            Self::Totals => {
                format!("the totals of free blocks and inodes {were} corrected")
            }
            Self::QuotaFile { kind } => {
                format!("the {kind} quota file {was} rewritten with the counted usage")
            }
            Self::OrphanFile(edit) => orphan_file(*edit, tense),
            Self::Backups => {
                format!("all backups of the superblock and descriptors {were} rewritten")
            }
        }
    }
}

fn bad_blocks(count: usize, replace: bool, tense: Tense) -> String {
    let (was, were) = (tense.was(), tense.were());
    match (replace, count) {
        (true, _) => format!("the bad block list {was} replaced by one of {count} blocks"),
        (false, _) => format!("{count} blocks {were} added to the bad block list"),
    }
}

#[allow(clippy::too_many_lines)] // one arm an edit
fn superblock(edit: &SuperblockEdit, tense: Tense) -> String {
    let (was, were) = (tense.was(), tense.were());
    match edit {
        SuperblockEdit::PrimaryFromBackup => {
            format!("the primary superblock and descriptors {were} restored from a backup")
        }
        SuperblockEdit::PrimaryFromJournal => {
            format!("the primary superblock {was} restored by the journal, which held a copy")
        }
        SuperblockEdit::NativeIdentity => {
            format!("the identity of the native file system {was} stored again")
        }
        SuperblockEdit::RandomUuid => format!("a random UUID {was} stored"),
        SuperblockEdit::InodesPerGroup(count) => {
            format!("the number of inodes per group {was} set to {count}")
        }
        SuperblockEdit::DescriptorSize(bytes) => {
            format!("the size of group descriptors {was} set to {bytes}")
        }
        SuperblockEdit::InodesCount(count) => format!("the number of inodes {was} set to {count}"),
        SuperblockEdit::Revision1 => format!("the revision {was} set to 1"),
        SuperblockEdit::ClearTestFlag => {
            format!("the test file system flag {was} cleared")
        }
        SuperblockEdit::HashSignedness => {
            format!("the signedness of the directory hash {was} stored")
        }
        SuperblockEdit::MountTimeNow => format!("the time of the last mount {was} set to now"),
        SuperblockEdit::WriteTimeNow => format!("the time of the last write {was} set to now"),
        SuperblockEdit::MinExtraIsize(bytes) => {
            format!("the required extra inode size {was} set to {bytes}")
        }
        SuperblockEdit::DefaultHash => format!("the hash of new directories {was} set to half MD4"),
        SuperblockEdit::NoEncryptionLevel => format!("the level of encryption {was} set to 0"),
        SuperblockEdit::WantExtraIsize(bytes) => {
            format!("the desired extra inode size {was} set to {bytes}")
        }
        SuperblockEdit::NoReservedDescriptors => {
            format!("the number of reserved GDT blocks {was} set to 0")
        }
        SuperblockEdit::FirstMetaBg(group) => {
            format!("the first meta block group {was} set to {group}, as in a backup")
        }
        SuperblockEdit::DropMetaBg => switched_off("meta_bg", tense),
        SuperblockEdit::DropResizeInodeFeature => switched_off("resize_inode", tense),
        SuperblockEdit::DropChecksumSeed => switched_off("metadata_csum_seed", tense),
        SuperblockEdit::DropGroupChecksums => switched_off("uninit_bg", tense),
        SuperblockEdit::DropFiletype => switched_off("filetype", tense),
        SuperblockEdit::DropFastCommit => switched_off("fast_commit", tense),
        SuperblockEdit::DropMmp => switched_off("mmp", tense),
        SuperblockEdit::AsExamined(field) => {
            format!("superblock field {field} {was} stored as it must be")
        }
        SuperblockEdit::MmpBlock(block) => {
            format!("the superblock {was} made to name {block} against multiple mounts")
        }
        SuperblockEdit::SetCompat(bits) => {
            let compat = Compat::from_bits_retain(*bits);
            let features = Features { compat, ..Features::default() };
            format!("feature {} {was} switched on", features.names().join(", "))
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
        SuperblockEdit::MadeByLinux => format!("the creator OS {was} set to Linux"),
        SuperblockEdit::MendQuotaInode(kind) => {
            format!("the number of the {kind} quota inode {was} corrected in the superblock")
        }
        SuperblockEdit::ProjectQuotaInode(inode) => {
            format!("{inode} {was} set as the project quota file")
        }
        SuperblockEdit::MoveQuotaInode(kind) => {
            format!("the {kind} quota file {was} moved to its reserved inode")
        }
    }
}

fn switched_off(name: &str, tense: Tense) -> String {
    format!("feature {name} {} switched off", tense.was())
}

fn of_cube(cube: u32, edit: CubeEdit, tense: Tense) -> String {
    let (was, were) = (tense.was(), tense.were());
    match edit {
        CubeEdit::Copies => {
            format!("the copies of the sub-superblock of cube {cube} {were} written again")
        }
        CubeEdit::Clear => format!("the failure that cube {cube} records {was} cleared"),
        CubeEdit::Rebuild => {
            format!("the sub-superblock of cube {cube} {was} made from its lots and the tree")
        }
        CubeEdit::Journal => format!("the journal of cube {cube} {was} emptied"),
        CubeEdit::Lots => format!("the lots in the list of cube {cube} {were} given to it again"),
        CubeEdit::Couple(None) => {
            format!("it {was} recorded that cube {cube} shares no files with others any more")
        }
        CubeEdit::Couple(Some(least)) if least == cube => {
            format!("it {was} recorded that others share files with cube {cube}, and fail with it")
        }
        CubeEdit::Couple(Some(0)) => {
            format!(
                "it {was} recorded that cube {cube} shares files with what lies outside of cubes"
            )
        }
        CubeEdit::Couple(Some(least)) => {
            format!(
                "it {was} recorded that cube {cube} shares files with cube {least}, and fails \
                 with it"
            )
        }
    }
}

fn reservation(edit: ReservationEdit, tense: Tense) -> String {
    let (was, were) = (tense.was(), tense.were());
    match edit {
        ReservationEdit::Create => format!("a new reservation file {was} made"),
        ReservationEdit::Name => format!("the reservation file {was} given its name"),
        ReservationEdit::Empty => format!("the reservation file {was} emptied"),
        ReservationEdit::Fill => {
            format!("the free blocks of the metadata region {were} reserved again")
        }
    }
}

fn group(edit: GroupEdit, tense: Tense) -> String {
    let (was, were) = (tense.was(), tense.were());
    match edit {
        GroupEdit::Distrust => format!(
            "the checksum of the descriptor {was} recomputed, and its uninit flags and unused \
             inode count {were} cleared"
        ),
        GroupEdit::ClearUninit => format!("the uninit flags of the bitmaps {were} cleared"),
        GroupEdit::ItableUnusedZero => format!("the count of unused inodes {was} set to 0"),
        GroupEdit::ClearBlockUninit => {
            format!("the uninit flag of the block bitmap {was} cleared")
        }
        GroupEdit::ClearInodeUninit => {
            format!("the uninit flag of the inode bitmap {was} cleared")
        }
        GroupEdit::PlaceBlockBitmap => format!("the block bitmap {was} relocated"),
        GroupEdit::PlaceInodeBitmap => format!("the inode bitmap {was} relocated"),
        GroupEdit::PlaceInodeTable => {
            format!("the inode table {was} located by a backup descriptor, or recreated empty")
        }
        GroupEdit::InodeTableFromBackup => {
            format!("the location of the inode table {was} restored from a backup descriptor")
        }
        GroupEdit::LotRecord => {
            format!("the record of its lot {was} stored again in all groups of the lot")
        }
        GroupEdit::MoveBlockBitmap => format!("the block bitmap {was} moved to a free block"),
        GroupEdit::MoveInodeBitmap => format!("the inode bitmap {was} moved to a free block"),
        GroupEdit::MoveInodeTable => format!("the inode table {was} moved to free blocks"),
    }
}

fn journal(edit: &JournalEdit, tense: Tense) -> String {
    let (was, were) = (tense.was(), tense.were());
    match edit {
        JournalEdit::Drop => format!("the damaged journal {was} removed, to be recreated later"),
        JournalEdit::Reset => format!("the journal {was} reset to empty"),
        JournalEdit::Forget => {
            format!("the journal fields of a file system without journal {were} cleared")
        }
        JournalEdit::ClearNeedsRecovery => {
            format!("the needs_recovery flag {was} cleared")
        }
        JournalEdit::ClearError => format!("the error that the journal recorded {was} cleared"),
        JournalEdit::Replay => format!("the journal {was} replayed"),
        JournalEdit::Bounds { first, blocks } => {
            format!("the log of the journal {was} said to begin at block {first} of {blocks}")
        }
        JournalEdit::FastCommits(blocks) => format!("{blocks} blocks {were} kept for fast commits"),
        JournalEdit::OneUser => format!("the journal {was} said to have one user"),
        JournalEdit::Version2 => format!("the journal {was} turned into one of version 2"),
        JournalEdit::ZeroStaleFields => format!("stale fields of the journal {were} cleared"),
        JournalEdit::Create => format!("a new journal {was} created"),
        JournalEdit::BackUpMap => {
            format!("the backup of the journal inode in the superblock {was} updated")
        }
        JournalEdit::Hide(name) => {
            format!("the visible journal file {name} {was} moved to the hidden inode")
        }
        JournalEdit::LoseTransactions => {
            format!("the best state that the damaged log leaves {was} taken")
        }
        JournalEdit::LoseFastCommits => {
            format!("the sound fast commits {were} replayed, and the damaged ones left out")
        }
        JournalEdit::FlipBack(_) => {
            format!("the wrong bit of the journal superblock {was} flipped back")
        }
        JournalEdit::ExternalChecksum => {
            format!("the checksum of the external journal's superblock {was} recomputed")
        }
    }
}

fn attribute_block(block: BlockNr, edit: AttributeBlockEdit, tense: Tense) -> String {
    let was = tense.was();
    match edit {
        AttributeBlockEdit::FlipBack { at, bits } => format!(
            "byte {at:#x} of the attribute {block} {was} changed by {bits:#04x}: its checksum then matches"
        ),
        AttributeBlockEdit::Salvage { .. } => format!(
            "the damaged attributes in the attribute {block} {} removed, the others kept",
            tense.were()
        ),
        AttributeBlockEdit::Checksum => {
            format!("the checksum of the attribute {block} {was} recomputed")
        }
        AttributeBlockEdit::References(count) => {
            format!("the attribute {block} {was} set to {count} users")
        }
    }
}

fn map(edit: MapEdit, tense: Tense) -> String {
    let (was, were) = (tense.was(), tense.were());
    match edit {
        MapEdit::RemoveExtent { logical, .. } => {
            format!("the extent at {logical} {was} removed, with everything below it")
        }
        MapEdit::ZeroPointer { logical, level: 0, block } => {
            format!("the pointer to {block} at {logical} {was} removed, which leaves a hole")
        }
        MapEdit::ZeroPointer { logical, block, .. } => format!(
            "the pointer to the indirect {block} from {logical} on {was} removed, which leaves a hole"
        ),
        MapEdit::CutAt { first } => format!("the blocks from {first} on {were} dropped"),
        MapEdit::Checksum { node } => {
            format!("the checksum of the extent node {node} {was} recomputed")
        }
        MapEdit::Depth { node, depth } => {
            format!("the depth of the extent node {node} {was} set to {depth}")
        }
        MapEdit::Header { node, level } => {
            format!(
                "the inode and level {level} {were} stored in the header of the indirect {node}"
            )
        }
        MapEdit::IndexStarts => {
            format!("the logical starts in the extent index {were} set to those of the nodes")
        }
        MapEdit::CloseGap { logical, to } => {
            format!(
                "the gap before {logical} of the directory {was} closed: the block moved to {to}"
            )
        }
        MapEdit::MarkWritten => format!("unwritten extents of the directory {were} marked written"),
        MapEdit::ToExtents => format!("the block map {was} converted to extents"),
        MapEdit::Gather => {
            format!("blocks that say by their checksums whose they are {were} put back")
        }
    }
}

fn directory(edit: DirectoryEdit, tense: Tense) -> String {
    let was = tense.was();
    match edit {
        DirectoryEdit::Salvage => {
            format!("the block {was} salvaged, with every readable name")
        }
        DirectoryEdit::Fill => format!("the hole {was} filled with an empty directory block"),
        DirectoryEdit::Empty => format!("the unreadable block {was} emptied"),
        DirectoryEdit::Checksum => format!("the checksum of the block {was} recomputed"),
        DirectoryEdit::MakeDot => format!("\".\" {was} made anew"),
        DirectoryEdit::MakeDotdot => format!("\"..\" {was} made anew"),
        DirectoryEdit::TrimDot => format!("the record of \".\" {was} shortened"),
    }
}

fn tree(edit: TreeEdit, tense: Tense) -> String {
    let (was, were) = (tense.was(), tense.were());
    match edit {
        TreeEdit::CreateRoot => format!("a new root directory {was} created"),
        TreeEdit::CreateLostFound => format!("the directory /lost+found {was} created"),
        TreeEdit::UnlinkLostFound => {
            format!("the entry lost+found {was} removed, because it is no usable directory")
        }
        TreeEdit::Unlink { dir, child } => {
            format!("entries of {dir} that name {child} {were} removed: they close a loop")
        }
        TreeEdit::Reconnect(_) => {
            format!("the directory {was} connected to lost+found, with its content")
        }
        TreeEdit::Parent { parent, .. } => format!("\"..\" {was} set to {parent}"),
    }
}

/// Names of flags as e2fsprogs writes them; the number for unknown flags.
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
            format!("{inode} {was} set as the orphan file, or released if there is another one")
        }
        OrphanFileEdit::Remove => format!("the orphan file {was} removed"),
        OrphanFileEdit::Recreate => format!("the orphan file {was} recreated"),
        OrphanFileEdit::Clean => format!("all blocks of the orphan file {were} cleared"),
        OrphanFileEdit::ClearPresent => {
            format!("the orphan_present flag {was} cleared")
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
