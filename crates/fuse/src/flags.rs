//! Flags of inodes as programs ask for them by ioctl.

use floe_format::ext::inode::{FileType, InodeFlags};
use floe_fs::{Attributes, FsError};

/// Flags that `FS_IOC_GETFLAGS` shows (`EXT4_FL_USER_VISIBLE`).
pub(crate) const VISIBLE_FLAGS: u32 = 0x725b_dfff;

/// Flags as `FS_IOC_GETFLAGS` shows them: without one that Linux does not show of a file.
pub(crate) fn flags_shown(file: &Attributes) -> u32 {
    let hidden = match file.kind {
        FileType::Regular => InodeFlags::PROJINHERIT,
        _ => InodeFlags::empty(),
    };
    file.flags.difference(hidden).bits() & VISIBLE_FLAGS
}

/// Flags that `FS_IOC_SETFLAGS` may set (`EXT4_FL_USER_MODIFIABLE`).
const CHANGEABLE_FLAGS: u32 = 0x604b_c0ff;
/// Flags that directories alone have.
const OF_DIRECTORIES: InodeFlags = InodeFlags::DIRSYNC
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::CASEFOLD)
    .union(InodeFlags::PROJINHERIT);

/// The flags of a file for which a program asks so (Linux: `ext4_fileattr_set`): those that say what the inode holds stay, and
/// those that a file of its type cannot have are refused.
pub(crate) fn flags_asked(file: &Attributes, asked: u32) -> Result<InodeFlags, FsError> {
    let refused = || FsError::Unsupported("this flag");
    let visible = Some(asked).filter(|asked| asked & !VISIBLE_FLAGS == 0).ok_or_else(refused)?;
    let asked = InodeFlags::from_bits_retain(visible);
    let of_type = match file.kind {
        FileType::Directory => InodeFlags::from_bits_retain(!0),
        FileType::Regular => InodeFlags::from_bits_retain(!OF_DIRECTORIES.bits()),
        _ => InodeFlags::NODUMP | InodeFlags::NOATIME,
    };
    let changeable = InodeFlags::from_bits_retain(CHANGEABLE_FLAGS);
    let flags = (asked & changeable) | file.flags.difference(changeable);
    // Linux would write the map anew, or log content: neither is done here.
    let changed = flags.symmetric_difference(file.flags);
    let unserved = InodeFlags::EXTENTS | InodeFlags::JOURNAL_DATA;
    match of_type.contains(asked) && !changed.intersects(unserved) {
        true => Ok(flags),
        false => Err(refused()),
    }
}

/// Flags and how `FS_IOC_FSGETXATTR` shows them (`FS_XFLAG_*`).
const EXTENDED_FLAGS: [(InodeFlags, u32); 6] = [
    (InodeFlags::IMMUTABLE, 0x8),
    (InodeFlags::APPEND, 0x10),
    (InodeFlags::SYNC, 0x20),
    (InodeFlags::NOATIME, 0x40),
    (InodeFlags::NODUMP, 0x80),
    (InodeFlags::PROJINHERIT, 0x200),
];

pub(crate) fn extended_flags(flags: InodeFlags) -> u32 {
    let shown = EXTENDED_FLAGS.iter().filter(|(flag, _)| flags.contains(*flag));
    shown.map(|(_, shown)| shown).sum()
}

/// Flags, with those that `FS_IOC_FSSETXATTR` sets as it says.
pub(crate) fn with_extended_flags(mut flags: InodeFlags, extended: u32) -> InodeFlags {
    for (flag, shown) in EXTENDED_FLAGS {
        flags.set(flag, extended & shown != 0);
    }
    flags
}
