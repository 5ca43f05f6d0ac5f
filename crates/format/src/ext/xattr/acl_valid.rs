//! Whether Linux lets a program set an ACL (`posix_acl_valid`): in order, complete, and without numbers or
//! permissions that mean nothing.

use super::acl::{AclEntry, AclWho};

/// Why no program can set a list, in words; `None` if one can.
pub fn fault(entries: &[AclEntry]) -> Option<&'static str> {
    let count = |who: AclWho| entries.iter().filter(|entry| entry.who == who).count();
    for (who, missing) in [
        (AclWho::Owner, "it has no entry for the owner"),
        (AclWho::OwningGroup, "it has no entry for the owning group"),
        (AclWho::Other, "it has no entry for others"),
    ] {
        if count(who) == 0 {
            return Some(missing);
        }
    }
    let single = [AclWho::Owner, AclWho::OwningGroup, AclWho::Mask, AclWho::Other];
    if single.iter().any(|&who| count(who) > 1) {
        return Some("it has two entries of a kind of which there is one");
    }
    if count(AclWho::Mask) == 0 && entries.iter().any(|entry| named(entry.who).is_some()) {
        return Some("it has no mask, which entries for named users and groups need");
    }
    if entries.iter().any(|entry| named(entry.who) == Some(u32::MAX)) {
        return Some("it has an entry for the number 4294967295, which is nobody's");
    }
    if entries.iter().any(|entry| entry.permissions & !7 != 0) {
        return Some("it has permissions other than to read, write and execute");
    }
    // Users and groups may have any order among themselves.
    let rank = |entry: &AclEntry| match entry.who {
        AclWho::Owner => 0,
        AclWho::User(_) => 1,
        AclWho::OwningGroup => 2,
        AclWho::Group(_) => 3,
        AclWho::Mask => 4,
        AclWho::Other => 5,
    };
    (!entries.is_sorted_by_key(rank)).then_some("it has entries out of order")
}

/// The number of the user or group that an entry names.
const fn named(who: AclWho) -> Option<u32> {
    match who {
        AclWho::User(id) | AclWho::Group(id) => Some(id),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AclWho::{Group, Mask, Other, Owner, OwningGroup, User};

    #[test]
    fn lists_are_judged_as_linux_does() {
        let list = |kinds: &[AclWho]| -> Vec<AclEntry> {
            kinds.iter().map(|&who| AclEntry { who, permissions: 7 }).collect()
        };
        for sound in [
            &[Owner, OwningGroup, Other][..],
            &[Owner, OwningGroup, Mask, Other],
            &[Owner, User(9), User(7), User(9), OwningGroup, Group(8), Group(8), Mask, Other],
        ] {
            assert_eq!(fault(&list(sound)), None, "{sound:?}");
        }
        for (wrong, why) in [
            (&[][..], "no entry for the owner"),
            (&[Owner, Other], "no entry for the owning group"),
            (&[Owner, OwningGroup], "no entry for others"),
            (&[Owner, Owner, OwningGroup, Other], "two entries"),
            (&[Owner, OwningGroup, Mask, Mask, Other], "two entries"),
            (&[Owner, User(7), OwningGroup, Other], "no mask"),
            (&[Owner, User(u32::MAX), OwningGroup, Mask, Other], "nobody's"),
            (&[Owner, OwningGroup, User(7), Mask, Other], "out of order"),
            (&[OwningGroup, Owner, Other], "out of order"),
        ] {
            let found = fault(&list(wrong));
            assert!(found.is_some_and(|found| found.contains(why)), "{wrong:?}: {found:?}");
        }
        let mut odd = list(&[Owner, OwningGroup, Other]);
        odd[1].permissions = 8;
        assert!(fault(&odd).is_some_and(|found| found.contains("permissions other")));
    }
}
