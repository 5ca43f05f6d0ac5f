//! The attributes of a file, as `stat` shows them.

use floe_ext4::files::{FileFault, Files, Node};
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags, Timestamp};

use crate::FsError;
use crate::faults::{Fault, finding};

/// The attributes of a file, as `stat` and `statx` show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its number on the disk, which stays the same over mounts.
    pub inode: InodeNr,
    /// Distinguishes files that had this number one after another.
    pub generation: u32,
    /// Its type.
    pub kind: FileType,
    /// Permission bits, with set-user-ID, set-group-ID and sticky: 0 to 0o7777.
    pub permissions: u16,
    /// Names of the file; 0 for one that is open still, or gone. 1 for a directory stands for "more than can be
    /// counted".
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of the content, of a link's target, or of a directory's blocks.
    pub size_bytes: u64,
    /// Sectors of 512 bytes that it takes.
    pub sectors: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation; `None` where inodes are too small to say.
    pub crtime: Option<Timestamp>,
    /// Major and minor number of a device.
    pub device: Option<(u32, u32)>,
    /// `i_flags`.
    pub flags: InodeFlags,
    /// Project, or 0 where inodes have none.
    pub project: u32,
}

impl Attributes {
    /// The attributes of an inode.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if the inode is not in use, [`FsError::Damaged`] if its checksum is wrong
    /// or its type is none.
    pub(crate) fn of(node: &Node, files: &Files<'_>) -> Result<Self, FsError> {
        let inode = node.number;
        let damaged = |what: &str, fault| FsError::Damaged { inode, what: what.to_owned(), fault };
        if !node.checksum_ok {
            let fault = FileFault::InodeChecksum;
            let finding = finding(&fault).unwrap_or_default();
            return Err(damaged(&format!("{finding}: {fault}"), Fault::of_file(&fault)));
        }
        let node = node.fields();
        // Never used. One without names may be open still.
        if node.inode().base.mode == 0 {
            return Err(FsError::NotFound);
        }
        let kind = node.file_type();
        let kind = kind.ok_or_else(|| damaged("its type is undefined", Fault::DAMAGE))?;
        let (flags, size_bytes) = (node.flags(), node.size_bytes());
        // As Linux has it: a file's content in the inode takes sectors, too, so that no program takes it
        // for a hole.
        let inline = flags.contains(InodeFlags::INLINE_DATA) && kind == FileType::Regular;
        let in_inode = if inline { size_bytes.div_ceil(512) } else { 0 };
        let sectors = node.sectors(files).saturating_add(in_inode);
        Ok(Self {
            inode,
            generation: node.inode().base.generation,
            kind,
            permissions: node.permissions(),
            links: u32::from(node.links()),
            uid: node.uid(),
            gid: node.gid(),
            size_bytes,
            sectors,
            atime: node.atime(),
            mtime: node.mtime(),
            ctime: node.ctime(),
            crtime: node.crtime(),
            device: node.device_number(),
            flags,
            project: node.project(),
        })
    }
}
