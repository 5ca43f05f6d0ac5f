//! The user behind a call, and whether it is allowed: permission bits and access lists as POSIX has them.

use floe_format::ext::inode::FileType;
use floe_format::ext::xattr::acl::{AclEntry, AclWho, decode_for_programs};

use crate::{Attributes, FsError};

/// The user and groups of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Somebody whose permissions were judged already, as the kernel does for a mount with
    /// `default_permissions`: nothing is judged again.
    Judged,
    /// A user, who is judged here.
    User {
        /// The user's number; 0 may do all that root may.
        uid: u32,
        /// The group.
        gid: u32,
        /// Further groups.
        groups: Vec<u32>,
    },
}

bitflags::bitflags! {
    /// The kinds of access that a caller wants. The bits are those of permissions.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Want: u16 {
        /// Read it, or list a directory.
        const READ = 4;
        /// Change it.
        const WRITE = 2;
        /// Run it, or look up names in a directory.
        const EXECUTE = 1;
    }
}

impl Caller {
    /// `Err` unless the caller may do `want` with a file of these attributes. `list` fetches its access list, as programs
    /// see it, and is called only where it could matter.
    ///
    /// # Errors
    /// [`FsError::AccessDenied`], and what `list` returns.
    pub fn may(
        &self,
        want: Want,
        file: &Attributes,
        list: impl FnOnce() -> Result<Option<Vec<u8>>, FsError>,
    ) -> Result<(), FsError> {
        let Self::User { uid, gid, groups } = self else { return Ok(()) };
        if *uid == 0 {
            let runs = file.kind == FileType::Directory || file.permissions & 0o111 != 0;
            return granted(runs || !want.contains(Want::EXECUTE));
        }
        let bits = file.permissions;
        if *uid == file.uid {
            return granted(contains(bits >> 6, want));
        }
        let in_group = |group: u32| *gid == group || groups.contains(&group);
        match list()?.and_then(|list| decode_for_programs(&list).ok()) {
            Some(list) => granted(by_list(&list, *uid, file.gid, in_group, bits, want)),
            None if in_group(file.gid) => granted(contains(bits >> 3, want)),
            None => granted(contains(bits, want)),
        }
    }
}

/// The access that an access list grants to a user other than the owner: a named user's entry under the mask; else any
/// entry of a group that the caller is in, under the mask; else the bits of others.
fn by_list(
    list: &[AclEntry],
    uid: u32,
    owning_group: u32,
    in_group: impl Fn(u32) -> bool,
    bits: u16,
    want: Want,
) -> bool {
    let mask = list.iter().find(|entry| entry.who == AclWho::Mask);
    let mask = mask.map_or(0o7, |entry| entry.permissions);
    let grants = |entry: &AclEntry| contains(entry.permissions & mask, want);
    if let Some(entry) = list.iter().find(|entry| entry.who == AclWho::User(uid)) {
        return grants(entry);
    }
    let mut of_groups = list
        .iter()
        .filter(|entry| match entry.who {
            AclWho::OwningGroup => in_group(owning_group),
            AclWho::Group(group) => in_group(group),
            _ => false,
        })
        .peekable();
    if of_groups.peek().is_some() { of_groups.any(grants) } else { contains(bits, want) }
}

/// Whether the lowest three of `bits` grant `want`.
fn contains(bits: u16, want: Want) -> bool {
    Want::from_bits_truncate(bits).contains(want)
}

fn granted(yes: bool) -> Result<(), FsError> {
    if yes { Ok(()) } else { Err(FsError::AccessDenied) }
}

#[cfg(test)]
mod tests {
    use floe_ext4::files::Timestamp;
    use floe_format::InodeNr;
    use floe_format::ext::inode::InodeFlags;
    use floe_format::ext::xattr::acl::encode_for_programs;

    use super::*;

    fn file(kind: FileType, permissions: u16) -> Attributes {
        let time = Timestamp::default();
        Attributes {
            inode: InodeNr(12),
            generation: 0,
            kind,
            permissions,
            links: 1,
            uid: 1000,
            gid: 100,
            size_bytes: 0,
            sectors: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: None,
            device: None,
            flags: InodeFlags::empty(),
            project: 0,
        }
    }

    fn user(uid: u32, gid: u32) -> Caller {
        Caller::User { uid, gid, groups: vec![50] }
    }

    /// Whether a caller may, with an access list.
    fn may(caller: &Caller, want: Want, file: &Attributes, list: &[AclEntry]) -> bool {
        let value = (!list.is_empty()).then(|| encode_for_programs(list));
        caller.may(want, file, || Ok(value)).is_ok()
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let file = file(FileType::Regular, 0o047);
        assert!(!may(&user(1000, 100), Want::READ, &file, &[]), "the owner has no bit");
        assert!(may(&user(1, 100), Want::READ, &file, &[]));
        assert!(!may(&user(1, 100), Want::WRITE, &file, &[]), "the group may only read");
        assert!(may(&user(1, 1), Want::WRITE, &file, &[]), "others may");
        assert!(may(&Caller::Judged, Want::WRITE, &file, &[]));
    }

    #[test]
    fn root_runs_only_what_somebody_may_run() {
        let root = user(0, 0);
        assert!(may(&root, Want::WRITE, &file(FileType::Regular, 0), &[]));
        assert!(!may(&root, Want::EXECUTE, &file(FileType::Regular, 0o666), &[]));
        assert!(may(&root, Want::EXECUTE, &file(FileType::Regular, 0o001), &[]));
        assert!(may(&root, Want::EXECUTE, &file(FileType::Directory, 0), &[]));
    }

    #[test]
    fn the_mask_limits_named_users_and_groups_but_not_others() {
        let entry = |who, permissions| AclEntry { who, permissions };
        let list = [
            entry(AclWho::Owner, 7),
            entry(AclWho::User(7), 7),
            entry(AclWho::OwningGroup, 0),
            entry(AclWho::Group(50), 6),
            entry(AclWho::Mask, 5),
            entry(AclWho::Other, 2),
        ];
        let file = file(FileType::Regular, 0o752);
        let all = Want::READ | Want::EXECUTE;
        assert!(may(&user(7, 1), all, &file, &list));
        assert!(!may(&user(7, 1), Want::WRITE, &file, &list), "masked");
        // In the owning group, which may nothing, and in group 50, which may read.
        assert!(may(&user(8, 100), Want::READ, &file, &list));
        assert!(!may(&user(8, 100), Want::WRITE, &file, &list));
        let stranger = Caller::User { uid: 9, gid: 9, groups: Vec::new() };
        assert!(may(&stranger, Want::WRITE, &file, &list));
        assert!(!may(&stranger, Want::READ, &file, &list));
    }
}
