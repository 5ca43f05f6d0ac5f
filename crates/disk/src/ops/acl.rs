//! Access lists, as far as they and the permissions follow each other (`posix_acl(5)`).

use floe_format::ext::inode::{FileType, OwnedInode};
use floe_format::ext::xattr::acl::{self, AclEntry, AclWho};
use floe_format::ext::xattr::{INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT};

use super::OpError;
use super::attributes::SetMode;
use super::staged::Op;

/// The entry that the group bits of the permissions stand for: the mask, else the owning group.
fn group_entry(entries: &[AclEntry]) -> AclWho {
    let masked = entries.iter().any(|entry| entry.who == AclWho::Mask);
    if masked { AclWho::Mask } else { AclWho::OwningGroup }
}

/// The nine permission bits that a list says.
pub(super) fn permissions_of(entries: &[AclEntry]) -> u16 {
    let group = group_entry(entries);
    entries.iter().fold(0, |bits, entry| {
        bits | match entry.who {
            AclWho::Owner => (entry.permissions & 7) << 6,
            who if who == group => (entry.permissions & 7) << 3,
            AclWho::Other => entry.permissions & 7,
            _ => 0,
        }
    })
}

/// Whether a list says no more than permissions do.
pub(super) fn is_plain(entries: &[AclEntry]) -> bool {
    let plain = |who| matches!(who, AclWho::Owner | AclWho::OwningGroup | AclWho::Other);
    entries.iter().all(|entry| plain(entry.who))
}

/// Lets a list say what nine permission bits say; with `only_less` it loses what they do not give, and gains nothing.
fn follow(entries: &mut [AclEntry], permissions: u16, only_less: bool) {
    let group = group_entry(entries);
    for entry in entries {
        let bits = match entry.who {
            AclWho::Owner => permissions >> 6 & 7,
            who if who == group => permissions >> 3 & 7,
            AclWho::Other => permissions & 7,
            _ => continue,
        };
        entry.permissions = if only_less { entry.permissions & bits } else { bits };
    }
}

impl Op<'_> {
    /// Lets something new inherit the default list of its directory. Without one the umask counts.
    pub(super) fn inherit_list(
        &mut self,
        parent: &OwnedInode,
        inode: &mut OwnedInode,
        umask: u16,
    ) -> Result<(), OpError> {
        let kind = inode.file_type();
        let inherited = match kind {
            Some(FileType::Symlink) => return Ok(()),
            _ => self.stored_value(parent, INDEX_ACL_DEFAULT)?,
        };
        let Some(default) = inherited else {
            inode.base.mode &= !(umask & 0o777);
            return Ok(());
        };
        let damaged = super::content::DAMAGED;
        let mut entries = acl::decode(&default).map_err(|_| damaged)?;
        follow(&mut entries, inode.base.mode, true);
        inode.base.mode = inode.base.mode & !0o777 | permissions_of(&entries);
        if !is_plain(&entries) {
            let value = acl::encode(&entries);
            self.set(inode, INDEX_ACL_ACCESS, b"", Some(value), SetMode::Any)?;
        }
        if kind == Some(FileType::Directory) {
            self.set(inode, INDEX_ACL_DEFAULT, b"", Some(default), SetMode::Any)?;
        }
        Ok(())
    }

    /// Lets the access list of an inode follow its permissions, which were changed.
    pub(super) fn list_follows(&mut self, inode: &mut OwnedInode) -> Result<(), OpError> {
        let Some(stored) = self.stored_value(inode, INDEX_ACL_ACCESS)? else { return Ok(()) };
        let mut entries = acl::decode(&stored).map_err(|_| super::content::DAMAGED)?;
        follow(&mut entries, inode.base.mode, false);
        let value = acl::encode(&entries);
        self.set(inode, INDEX_ACL_ACCESS, b"", Some(value), SetMode::Any)
    }

    /// Sets the access list of an inode, whose permissions follow; one that says no more than they do is not kept.
    pub(super) fn set_access_list(
        &mut self,
        inode: &mut OwnedInode,
        value: Vec<u8>,
        mode: SetMode,
    ) -> Result<(), OpError> {
        let entries =
            acl::decode(&value).map_err(|_| OpError::Invalid("it is not an access list"))?;
        inode.base.mode = inode.base.mode & !0o777 | permissions_of(&entries);
        if !is_plain(&entries) {
            return self.set(inode, INDEX_ACL_ACCESS, b"", Some(value), mode);
        }
        match self.set(inode, INDEX_ACL_ACCESS, b"", None, SetMode::Replace) {
            Err(OpError::NotFound(_)) => Ok(()),
            done => done,
        }
    }
}
