//! The rows. Codes are printed, logged and scripted against: never reuse one, never renumber.

use super::{Evidence, Name, Object, Row, Severity, Weight, problems};
use floe_format::{BlockNr, GroupNr, InodeNr, LogicalBlock};

problems! {
    0x000001 "group-block-bitmap-out-of-range" GroupBlockBitmapOutOfRange { group: GroupNr, block: BlockNr }
        Metadata Damage ask Group
        "block bitmap of {group} is at {block}, outside the allowed range"
        means "The group descriptor names a block for its block bitmap that cannot hold it."
        repair "Allocate a new block and rebuild the bitmap in it.";
    0x010055 "inode-is-really-directory" InodeIsReallyDirectory { inode: InodeNr, mode: u16 }
        DataRisk Damage ask Inode
        "{inode} has mode {mode:o}, but its first block holds a directory"
        means "The type of the inode was overwritten; its content says that it is a directory."
        repair "Set the type to directory.";
    0x020003 "dirent-inode-unused" DirentInodeUnused { dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name }
        DataRisk Damage ask Dirent
        "{dir}: entry {name} names {inode_named}, which is not in use"
        means "A name leads to an inode that holds no file."
        repair "Clear the entry.";
    0x070002 "unreadable-inode-table" UnreadableInodeTable { group: GroupNr, block: BlockNr }
        DataRisk Damage ask Inode
        "{block} of the inode table of {group} cannot be read"
        means "The device fails to read inodes."
        repair "None.";
}
