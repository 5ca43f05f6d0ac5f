//! Permissions, users and groups in the attributes of files: access lists, and capabilities of a user namespace.

use floe_format::ext::xattr::acl::{
    ACCESS, AclWho, DEFAULT, decode_for_programs, encode_for_programs,
};
use floe_format::ext::xattr::{acl_mode, acl_valid};

use crate::mkfs::tree::{Attributes, Tree, Xattr, XattrsId};

/// Capabilities of a program.
const CAPABILITY: &[u8] = b"security.capability";
/// Bytes of capabilities in their third form (`struct vfs_ns_cap_data`), and its place for the user who is root where
/// they hold; its first byte of four is flags.
const CAPABILITY_BYTES: usize = 24;
const CAPABILITY_VERSION: u8 = 3;
const CAPABILITY_ROOT_AT: usize = 20;

/// The attributes of a file whose mode was set: as after chmod, its access list says what the mode says.
pub(super) fn list_after_chmod(tree: &mut Tree, attributes: &Attributes) -> XattrsId {
    let set = tree.xattrs(attributes.xattrs);
    let Some(at) = set.iter().position(|one| &*one.name == ACCESS) else {
        return attributes.xattrs;
    };
    // Anything else is refused when it is stored.
    let Ok(mut entries) = decode_for_programs(&set[at].value) else { return attributes.xattrs };
    acl_mode::follow(&mut entries, attributes.mode);
    let mut set = set.to_vec();
    set[at].value = encode_for_programs(&entries).into();
    tree.keep_xattrs(set)
}

/// The kind of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Id {
    User(u32),
    Group(u32),
}

/// A number that an attribute cannot get.
pub(super) enum Fault {
    /// The map has no number for this one, which has the place.
    Unmapped(Id, &'static str),
    /// Two entries of a list get this number.
    Merged(Id),
}

/// A set of attributes with other numbers of users and groups.
pub(super) fn with_ids(
    set: &[Xattr],
    map: &dyn Fn(Id) -> Option<u32>,
) -> Result<Vec<Xattr>, Fault> {
    let mapped = |xattr: &Xattr| match &*xattr.name {
        ACCESS | DEFAULT => list_with_ids(xattr, map),
        CAPABILITY => capability_with_ids(xattr, map),
        _ => Ok(xattr.clone()),
    };
    set.iter().map(mapped).collect()
}

fn list_with_ids(xattr: &Xattr, map: &dyn Fn(Id) -> Option<u32>) -> Result<Xattr, Fault> {
    // Anything else is refused when it is stored.
    let Ok(mut entries) = decode_for_programs(&xattr.value) else { return Ok(xattr.clone()) };
    if acl_valid::fault(&entries).is_some() {
        return Ok(xattr.clone());
    }
    let mapped = |id| map(id).ok_or(Fault::Unmapped(id, " of its access list"));
    for entry in &mut entries {
        entry.who = match entry.who {
            AclWho::User(id) => AclWho::User(mapped(Id::User(id))?),
            AclWho::Group(id) => AclWho::Group(mapped(Id::Group(id))?),
            other => other,
        };
    }
    entries.sort_by_key(|entry| entry.who);
    // The first of them would decide.
    match entries.windows(2).find(|pair| pair[0].who == pair[1].who).map(|pair| pair[0].who) {
        Some(AclWho::User(id)) => Err(Fault::Merged(Id::User(id))),
        Some(AclWho::Group(id)) => Err(Fault::Merged(Id::Group(id))),
        _ => Ok(Xattr::new(xattr.name.clone(), encode_for_programs(&entries))),
    }
}

fn capability_with_ids(xattr: &Xattr, map: &dyn Fn(Id) -> Option<u32>) -> Result<Xattr, Fault> {
    let mut value = xattr.value.clone();
    let is_third = value.len() == CAPABILITY_BYTES && value[3] == CAPABILITY_VERSION;
    let root = value.get_mut(CAPABILITY_ROOT_AT..).and_then(|rest| rest.first_chunk_mut::<4>());
    if let Some(root) = root.filter(|_| is_third) {
        let id = Id::User(u32::from_le_bytes(*root));
        let mapped = map(id).ok_or(Fault::Unmapped(id, " of its capabilities"))?;
        *root = mapped.to_le_bytes();
    }
    Ok(Xattr::new(xattr.name.clone(), value))
}
