//! Whether Linux evaluates the entries of an ACL as POSIX does, whatever their order.
//!
//! Linux verifies order and completeness of a list only when a program sets it. It reads any list from the
//! disk, walks through the entries, and lets the first one that fits decide (`posix_acl_permission`):
//!
//! - entries for users and groups that follow the entry for others are never reached,
//! - the mask limits only entries before it,
//! - an entry for a group decides before a later one for a user,
//! - nobody whom no entry fits has access if there is no entry for others (`EIO`),
//! - creation and chmod fail where neither the mask nor the owning group has an entry (`EIO`),
//! - chmod takes all bits from the owner if the list has no entry for the owner (`posix_acl_equiv_mode`).
//!
//! The owner's entry has no other use, so it may be anywhere, since the mode decides for the owner. Named users or
//! groups without a mask are simply not limited.

use super::acl::{AclEntry, AclWho};

/// Why Linux evaluates a list differently from POSIX, or fails to; `None` if it does not. A list without
/// entries is none.
pub fn misread(entries: &[AclEntry]) -> Option<&'static str> {
    let count = |who: AclWho| entries.iter().filter(|entry| entry.who == who).count();
    let first = |who: AclWho| entries.iter().position(|entry| entry.who == who);
    let last = |fits: fn(AclWho) -> bool| entries.iter().rposition(|entry| fits(entry.who));
    if entries.is_empty() {
        return None;
    }
    let Some(others) = first(AclWho::Other) else { return Some("it has no entry for others") };
    if count(AclWho::OwningGroup) == 0 {
        return Some("it has no entry for the owning group");
    }
    if count(AclWho::Owner) == 0 {
        return Some("it has no entry for the owner");
    }
    if [AclWho::OwningGroup, AclWho::Mask, AclWho::Other].iter().any(|&who| count(who) > 1) {
        return Some("it has two entries of a kind of which there is one");
    }
    let last_limited = last(is_limited);
    if last_limited > Some(others) {
        return Some("entries that follow that for others are never reached");
    }
    if first(AclWho::Mask).is_some_and(|mask| last_limited > Some(mask)) {
        return Some("the mask does not limit entries that follow it");
    }
    let first_group = entries.iter().position(|entry| is_group(entry.who));
    (last(|who| matches!(who, AclWho::User(_))) > first_group)
        .then_some("an entry for a group decides before one for a user")
}

/// Whether the mask limits entries of this kind.
const fn is_limited(who: AclWho) -> bool {
    matches!(who, AclWho::User(_)) || is_group(who)
}

const fn is_group(who: AclWho) -> bool {
    matches!(who, AclWho::OwningGroup | AclWho::Group(_))
}

/// The entries for users and groups in canonical order, none of which gives more than Linux gives by
/// `entries`, and the owning group's among them.
fn limited(entries: &[AclEntry]) -> Vec<AclEntry> {
    let reached = entries.iter().position(|entry| entry.who == AclWho::Other);
    let reached = reached.unwrap_or(entries.len());
    // Those of a user's groups that grant access ask one mask each, and the first decides: so all masks count.
    let mask = all_of(entries, AclWho::Mask).unwrap_or(7);
    let mut kept: Vec<AclEntry> = Vec::new();
    for (at, entry) in entries.iter().enumerate().filter(|(_, entry)| is_limited(entry.who)) {
        let permissions = if at < reached { entry.permissions & mask } else { 0 };
        match kept.iter_mut().find(|other| other.who == entry.who) {
            // The first entry of a user decides; of several entries of a group each may grant.
            Some(_) if matches!(entry.who, AclWho::User(_)) => {}
            Some(other) => other.permissions &= permissions,
            None => kept.push(AclEntry { who: entry.who, permissions }),
        }
    }
    if !kept.iter().any(|entry| entry.who == AclWho::OwningGroup) {
        kept.push(AclEntry { who: AclWho::OwningGroup, permissions: 0 });
    }
    kept.sort_by_key(|entry| entry.who);
    kept
}

/// The permissions that all entries of one kind grant; `None` without one.
fn all_of(entries: &[AclEntry], who: AclWho) -> Option<u16> {
    let permissions = entries.iter().filter(|entry| entry.who == who);
    permissions.map(|entry| entry.permissions & 7).reduce(|all, one| all & one)
}

/// Encloses entries for users and groups by those of owner, mask and others.
fn complete(owner: u16, limited: Vec<AclEntry>, mask: Option<u16>, others: u16) -> Vec<AclEntry> {
    let mut list = vec![AclEntry { who: AclWho::Owner, permissions: owner }];
    list.extend(limited);
    list.extend(mask.map(|permissions| AclEntry { who: AclWho::Mask, permissions }));
    list.push(AclEntry { who: AclWho::Other, permissions: others });
    list
}

/// An access list in canonical order instead of one that Linux [misreads](misread), and the permissions (nine
/// bits) that go with it. It gives nobody more than Linux gave by the old list and the old permissions: an entry
/// that was never reached gives nothing, and others have nothing where they had no entry.
pub fn mended_access(entries: &[AclEntry], permissions: u16) -> (Vec<AclEntry>, u16) {
    let others = all_of(entries, AclWho::Other).unwrap_or(0) & permissions & 7;
    let mask = permissions >> 3 & 7;
    let list = complete(permissions >> 6 & 7, limited(entries), Some(mask), others);
    (list, permissions & 0o770 | others)
}

/// A default list instead of one that Linux misreads: nobody has more in what is created below it.
pub fn mended_default(entries: &[AclEntry]) -> Vec<AclEntry> {
    let last = |who| {
        let entry = entries.iter().rfind(|entry| entry.who == who);
        entry.map(|entry| entry.permissions & 7)
    };
    let is_named = |entry: &AclEntry| matches!(entry.who, AclWho::User(_) | AclWho::Group(_));
    // The permissions of what is created follow the last mask, else the last entry of the owning group.
    let of_group = || {
        let named = entries.iter().any(is_named);
        named.then(|| last(AclWho::OwningGroup).unwrap_or(0))
    };
    let mask = last(AclWho::Mask).or_else(of_group);
    let owner = all_of(entries, AclWho::Owner).unwrap_or(7);
    complete(owner, limited(entries), mask, all_of(entries, AclWho::Other).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use AclWho::{Group, Mask, Other, Owner, OwningGroup, User};

    fn list(entries: &[(AclWho, u16)]) -> Vec<AclEntry> {
        entries.iter().map(|&(who, permissions)| AclEntry { who, permissions }).collect()
    }

    #[test]
    fn lists_that_programs_may_set_are_read_as_they_are_meant() {
        let plain = [(Owner, 6), (OwningGroup, 4), (Other, 0)];
        // Linux neither sorts identifiers nor refuses repeated ones.
        let named = [
            (Owner, 7),
            (User(9), 7),
            (User(7), 6),
            (User(9), 1),
            (OwningGroup, 5),
            (Group(8), 7),
            (Group(8), 1),
            (Mask, 5),
            (Other, 1),
        ];
        for entries in [&plain[..], &named[..], &[]] {
            assert_eq!(misread(&list(entries)), None);
        }
    }

    #[test]
    fn mended_lists_keep_order_and_limits() {
        let entries =
            [(Group(8), 7), (Mask, 4), (User(7), 6), (Other, 5), (User(6), 7), (Other, 7)];
        let (mended, permissions) = mended_access(&list(&entries), 0o764);
        let expected = [
            (Owner, 7),
            (User(6), 0),
            (User(7), 4),
            (OwningGroup, 0),
            (Group(8), 4),
            (Mask, 6),
            (Other, 4),
        ];
        assert_eq!((mended, permissions), (list(&expected), 0o764));
        assert_eq!(mended_access(&list(&[(Owner, 7)]), 0o777).1, 0o770, "others had no entry");
        let default = [(User(7), 7), (OwningGroup, 5), (Group(8), 7)];
        let expected =
            [(Owner, 7), (User(7), 7), (OwningGroup, 5), (Group(8), 7), (Mask, 5), (Other, 0)];
        assert_eq!(mended_default(&list(&default)), list(&expected));
    }

    fn any_list() -> impl Strategy<Value = Vec<AclEntry>> {
        let who = prop_oneof![
            Just(Owner),
            Just(OwningGroup),
            Just(Mask),
            Just(Other),
            (7u32..9).prop_map(User),
            (7u32..9).prop_map(Group),
        ];
        let entry = (who, 0u16..9).prop_map(|(who, permissions)| AclEntry { who, permissions });
        proptest::collection::vec(entry, 0..8)
    }

    proptest! {
        #[test]
        fn mended_lists_are_read_as_they_are_meant(entries in any_list(), permissions in 0u16..512) {
            let (access, after) = mended_access(&entries, permissions);
            prop_assert_eq!(misread(&access), None);
            prop_assert_eq!(after & !permissions, 0);
            prop_assert_eq!(misread(&mended_default(&entries)), None);
        }
    }
}
