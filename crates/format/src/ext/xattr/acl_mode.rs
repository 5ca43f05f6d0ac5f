//! How an access list and the permissions of its file follow each other (`posix_acl(5)`); Linux keeps both equal.

use super::acl::{AclEntry, AclWho};

/// The entry that the group bits of the permissions stand for: the mask, else the owning group.
fn group_entry(entries: &[AclEntry]) -> AclWho {
    let masked = entries.iter().any(|entry| entry.who == AclWho::Mask);
    if masked { AclWho::Mask } else { AclWho::OwningGroup }
}

/// The nine permission bits that a list says.
pub fn permissions_of(entries: &[AclEntry]) -> u16 {
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
pub fn is_plain(entries: &[AclEntry]) -> bool {
    let plain = |who| matches!(who, AclWho::Owner | AclWho::OwningGroup | AclWho::Other);
    entries.iter().all(|entry| plain(entry.who))
}

/// Lets a list say what nine permission bits say, as chmod does.
pub fn follow(entries: &mut [AclEntry], permissions: u16) {
    set(entries, permissions, |_, bits| bits);
}

/// Lets a list lose what nine permission bits do not give, and gain nothing.
pub fn limit(entries: &mut [AclEntry], permissions: u16) {
    set(entries, permissions, |had, bits| had & bits);
}

fn set(entries: &mut [AclEntry], permissions: u16, new: impl Fn(u16, u16) -> u16) {
    let group = group_entry(entries);
    for entry in entries {
        let bits = match entry.who {
            AclWho::Owner => permissions >> 6 & 7,
            who if who == group => permissions >> 3 & 7,
            AclWho::Other => permissions & 7,
            _ => continue,
        };
        entry.permissions = new(entry.permissions, bits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AclWho::{Mask, Other, Owner, OwningGroup, User};

    fn list(entries: &[(AclWho, u16)]) -> Vec<AclEntry> {
        entries.iter().map(|&(who, permissions)| AclEntry { who, permissions }).collect()
    }

    #[test]
    fn modes_and_lists_follow_each_other() {
        let plain = list(&[(Owner, 6), (OwningGroup, 5), (Other, 1)]);
        assert_eq!((permissions_of(&plain), is_plain(&plain)), (0o651, true));
        let masked = [(Owner, 6), (User(7), 7), (OwningGroup, 7), (Mask, 4), (Other, 0)];
        let mut masked = list(&masked);
        assert_eq!((permissions_of(&masked), is_plain(&masked)), (0o640, false));
        limit(&mut masked, 0o453);
        let expected = [(Owner, 4), (User(7), 7), (OwningGroup, 7), (Mask, 4), (Other, 0)];
        assert_eq!(masked, list(&expected));
        follow(&mut masked, 0o4753);
        let expected = [(Owner, 7), (User(7), 7), (OwningGroup, 7), (Mask, 5), (Other, 3)];
        assert_eq!(masked, list(&expected));
    }
}
