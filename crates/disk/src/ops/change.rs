//! Owners, permissions, times and flags.

use floe_ext4::tx::Tx;
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags, OwnedInode, TimeField, Timestamp};
use floe_format::features::{Incompat, RoCompat};

use super::credits::Reach;
use super::staged::Op;
use super::{Caller, OpError};
use crate::volume::Volume;

/// Flags that programs may set (`chattr`); the others say what the inode holds.
const SETTABLE: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::COMPR)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::NOTAIL)
    .union(InodeFlags::PROJINHERIT)
    .union(InodeFlags::CASEFOLD);

/// Which fields of an inode get which values; the others stay. The time of change becomes now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Permissions with set-user-ID, set-group-ID and sticky: 0 to 0o7777. An access list follows.
    pub permissions: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub accessed: Option<Timestamp>,
    /// Last change of the content.
    pub modified: Option<Timestamp>,
    /// Flags that programs may set, all of them; others must be as they are.
    pub flags: Option<InodeFlags>,
    /// Project.
    pub project: Option<u32>,
}

impl Volume {
    /// Changes an inode. An immutable one changes in nothing, unless it becomes mutable; an append-only one
    /// keeps its permissions and owner (Linux: `notify_change`, `ext4_ioctl_check_immutable`).
    ///
    /// # Errors
    /// [`OpError::NotPermitted`] for these; [`OpError::Unsupported`] for flags that cannot be set, and for a
    /// project where inodes have none; or the inode cannot be changed.
    pub fn change(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        inode: InodeNr,
        change: &Change,
    ) -> Result<(), OpError> {
        self.op_of(Reach::One, tx, caller, |op| {
            let mut inode = op.inode(inode)?;
            op.change(&mut inode, change)?;
            op.put(&mut inode)
        })
    }
}

impl Op<'_> {
    fn change(&mut self, inode: &mut OwnedInode, change: &Change) -> Result<(), OpError> {
        let owner = change.permissions.is_some() || change.uid.is_some() || change.gid.is_some();
        let times = change.accessed.is_some() || change.modified.is_some();
        let flags = inode.flags();
        if (owner || times) && flags.contains(InodeFlags::IMMUTABLE)
            || owner && flags.contains(InodeFlags::APPEND)
        {
            return Err(OpError::NotPermitted("it is immutable or append-only"));
        }
        let stays = |new: InodeFlags| new.contains(InodeFlags::IMMUTABLE);
        if flags.contains(InodeFlags::IMMUTABLE)
            && change.flags.is_none_or(stays)
            && (change.flags.is_some_and(|new| new != flags) || change.project.is_some())
        {
            return Err(OpError::NotPermitted("it is immutable"));
        }
        if let Some(permissions) = change.permissions {
            inode.base.mode = inode.base.mode & !0o7777 | permissions & 0o7777;
            self.list_follows(inode)?;
        }
        let uid = change.uid.unwrap_or_else(|| inode.uid());
        let gid = change.gid.unwrap_or_else(|| inode.gid());
        inode.set_owner(uid, gid);
        if let Some(time) = change.accessed {
            inode.set_time(TimeField::Access, time);
        }
        if let Some(time) = change.modified {
            inode.set_time(TimeField::Modification, time);
        }
        if let Some(project) = change.project {
            let has = self.volume.geometry().features.ro_compat.contains(RoCompat::PROJECT);
            if !has || !inode.set_project(project) {
                return Err(OpError::Unsupported("projects in this file system"));
            }
        }
        if let Some(flags) = change.flags {
            self.change_flags(inode, flags)?;
        }
        self.touch(inode, &[TimeField::Change]);
        Ok(())
    }

    fn change_flags(&mut self, inode: &mut OwnedInode, flags: InodeFlags) -> Result<(), OpError> {
        let changed = flags.symmetric_difference(inode.flags());
        if !SETTABLE.contains(changed) {
            return Err(OpError::Unsupported("this flag"));
        }
        if changed.contains(InodeFlags::CASEFOLD) {
            if !self.volume.geometry().features.incompat.contains(Incompat::CASEFOLD) {
                return Err(OpError::Unsupported("names without case in this file system"));
            }
            if inode.file_type() != Some(FileType::Directory) {
                return Err(OpError::NotADirectory);
            }
            // The names of an index would lie elsewhere.
            if self.has_names(inode)? {
                return Err(OpError::NotEmpty);
            }
        }
        inode.base.flags = flags.bits();
        Ok(())
    }
}
