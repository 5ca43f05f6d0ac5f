//! Access lists and permissions, of which each follows the other.

use floe_ext4::files::Attribute;
use floe_format::ext::xattr::acl::{AclEntry, AclWho, decode_for_programs, encode_for_programs};

/// The attribute that holds the access list of a file.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";

/// What an access list says about permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judged {
    /// The nine permission bits: those of the group are the mask where there is one.
    pub(crate) permissions: u16,
    /// It says more than permission bits can.
    pub(crate) is_extended: bool,
}

/// Judges a list in the form of system calls; `None` for what is none.
pub(crate) fn judge(value: &[u8]) -> Option<Judged> {
    let entries = decode_for_programs(value).ok()?;
    let of = |who: AclWho| entries.iter().find(|entry| entry.who == who);
    let owner = of(AclWho::Owner)?.permissions & 7;
    let other = of(AclWho::Other)?.permissions & 7;
    let group = of(AclWho::Mask).or(of(AclWho::OwningGroup))?.permissions & 7;
    Some(Judged { permissions: owner << 6 | group << 3 | other, is_extended: entries.len() > 3 })
}

/// The access list of a file that gets these permissions, if it has a list.
pub(crate) fn with_permissions(attributes: &[Attribute], permissions: u16) -> Option<Vec<u8>> {
    let list = attributes.iter().find(|attribute| attribute.name == ACCESS)?;
    let mut entries = decode_for_programs(&list.value).ok()?;
    let has_mask = entries.iter().any(|entry| entry.who == AclWho::Mask);
    let new = |entry: &AclEntry| match entry.who {
        AclWho::Owner => permissions >> 6 & 7,
        AclWho::Mask => permissions >> 3 & 7,
        AclWho::OwningGroup if !has_mask => permissions >> 3 & 7,
        AclWho::Other => permissions & 7,
        _ => entry.permissions,
    };
    for entry in &mut entries {
        entry.permissions = new(entry);
    }
    Some(encode_for_programs(&entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(AclWho, u16)]) -> Vec<u8> {
        let of = |&(who, permissions): &(AclWho, u16)| AclEntry { who, permissions };
        encode_for_programs(&entries.iter().map(of).collect::<Vec<_>>())
    }

    #[test]
    fn the_mask_is_the_groups_permissions() {
        let plain = [(AclWho::Owner, 6), (AclWho::OwningGroup, 4), (AclWho::Other, 0)];
        assert_eq!(judge(&list(&plain)), Some(Judged { permissions: 0o640, is_extended: false }));
        let more = [&plain[..], &[(AclWho::User(7), 7), (AclWho::Mask, 5)]].concat();
        assert_eq!(judge(&list(&more)), Some(Judged { permissions: 0o650, is_extended: true }));
        assert_eq!(judge(&list(&plain[..2])), None, "nobody else is named");
    }

    #[test]
    fn permissions_change_the_mask_and_not_the_owning_group() {
        let named = [
            (AclWho::Owner, 6),
            (AclWho::User(7), 7),
            (AclWho::OwningGroup, 4),
            (AclWho::Mask, 7),
            (AclWho::Other, 0),
        ];
        let attribute = Attribute { name: ACCESS.to_vec(), value: list(&named) };
        let changed = with_permissions(&[attribute], 0o715).unwrap();
        let entries = decode_for_programs(&changed).unwrap();
        let bits: Vec<u16> = entries.iter().map(|entry| entry.permissions).collect();
        assert_eq!(bits, [7, 7, 4, 1, 5]);
        assert_eq!(with_permissions(&[], 0o644), None);
    }
}
