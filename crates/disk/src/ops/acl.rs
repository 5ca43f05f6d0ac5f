//! Access lists, as far as they and the permissions follow each other (`posix_acl(5)`).

use floe_format::ext::inode::{FileType, OwnedInode};
use floe_format::ext::xattr::acl;
use floe_format::ext::xattr::acl_mode::{follow, is_plain, limit, permissions_of};
use floe_format::ext::xattr::{INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT};

use super::OpError;
use super::attributes::SetMode;
use super::staged::Op;

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
        limit(&mut entries, inode.base.mode);
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
        follow(&mut entries, inode.base.mode);
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
