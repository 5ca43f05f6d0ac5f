//! Access control lists as text (`SCHILY.acl.access`), and in the form of system calls.

use floe_format::ext::xattr::acl::{
    ACCESS, AclEntry, AclWho, decode_for_programs, encode_for_programs,
};
use floe_format::ext::xattr::{acl_mode, acl_valid};

use crate::{Entry, Kind, number};

/// Converts a list in text form to a value for `setxattr`: entries separated by commas or newlines,
/// each `TYPE:NAME:rwx`, in some programs followed by `:NUMBER`. `None` if a name is not a number
/// and no number follows.
pub(crate) fn from_text(text: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?;
    let mut entries = Vec::new();
    for line in text.split([',', '\n']) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let mut fields = line.split(':').map(str::trim);
        let (kind, name) = (fields.next()?, fields.next()?);
        // `mask:rwx` and `other:rwx` may omit the empty name.
        let (name, letters) = match fields.next() {
            Some(letters) => (name, letters),
            None => ("", name),
        };
        let number = |text: &str| {
            number::decimal(text.as_bytes()).and_then(|number| u32::try_from(number).ok())
        };
        let mut id = || fields.next().and_then(number).or_else(|| number(name));
        let who = match (kind, name.is_empty()) {
            ("user" | "u", true) => AclWho::Owner,
            ("user" | "u", false) => AclWho::User(id()?),
            ("group" | "g", true) => AclWho::OwningGroup,
            ("group" | "g", false) => AclWho::Group(id()?),
            ("mask" | "m", true) => AclWho::Mask,
            ("other" | "o", true) => AclWho::Other,
            _ => return None,
        };
        entries.push(AclEntry { who, permissions: permissions(letters)? });
    }
    entries.sort_by_key(|entry| entry.who);
    Some(encode_for_programs(&entries))
}

fn permissions(letters: &str) -> Option<u16> {
    letters.chars().try_fold(0, |bits, letter| {
        Some(match letter {
            'r' => bits | 4,
            'w' => bits | 2,
            'x' => bits | 1,
            '-' => bits,
            _ => return None,
        })
    })
}

/// Converts a value from `getxattr` to text, with numbers as names; `None` if it is not an ACL.
pub(crate) fn to_text(value: &[u8]) -> Option<String> {
    let entries = decode_for_programs(value).ok()?;
    let lines = entries.iter().map(|entry| {
        let who = match entry.who {
            AclWho::Owner => "user:".to_owned(),
            AclWho::User(id) => format!("user:{id}"),
            AclWho::OwningGroup => "group:".to_owned(),
            AclWho::Group(id) => format!("group:{id}"),
            AclWho::Mask => "mask:".to_owned(),
            AclWho::Other => "other:".to_owned(),
        };
        let letter = |bit, letter| if entry.permissions & bit != 0 { letter } else { '-' };
        format!("{who}:{}{}{}", letter(4, 'r'), letter(2, 'w'), letter(1, 'x'))
    });
    Some(lines.collect::<Vec<_>>().join(","))
}

/// Lets the mode of an entry show its access list, as Linux does where one is set. A list that says no more than the mode
/// is dropped; symbolic links have none, and keep their mode. A list that is invalid stays, for its reader to refuse.
pub(crate) fn settle(entry: &mut Entry) {
    let Some(at) = entry.attributes.iter().position(|(name, _)| name == ACCESS) else { return };
    let Ok(list) = decode_for_programs(&entry.attributes[at].1) else { return };
    if acl_valid::fault(&list).is_some() {
        return;
    }
    if entry.kind != Kind::SymbolicLink {
        entry.mode = entry.mode & !0o777 | acl_mode::permissions_of(&list);
    }
    if acl_mode::is_plain(&list) {
        entry.attributes.remove(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_show_lists() {
        let settled = |kind, text: &str| {
            let list = from_text(text.as_bytes()).unwrap();
            let attributes = vec![(ACCESS.to_vec(), list)];
            let mut entry = Entry { mode: 0o4777, attributes, ..Entry::new(b"a", kind) };
            settle(&mut entry);
            (entry.mode, entry.attributes.len())
        };
        let (plain, named) = (
            "user::rw-,group::r-x,other::--x",
            "user::rw-,user:7:rwx,group::rwx,mask::r--,other::-",
        );
        assert_eq!(settled(Kind::File, plain), (0o4651, 0));
        assert_eq!(settled(Kind::Directory, named), (0o4640, 1));
        assert_eq!(settled(Kind::SymbolicLink, plain), (0o4777, 0));
        assert_eq!(settled(Kind::SymbolicLink, named), (0o4777, 1));
        // Three entries, but not those of a mode.
        assert_eq!(settled(Kind::File, "user::rw-,user:7:rwx,other::---"), (0o4777, 1));
    }

    #[test]
    fn lists_survive_as_text() {
        let text = "user::rwx,user:1000:r--,group::r-x,group:7:-w-,mask::rwx,other::---";
        let value = from_text(text.as_bytes()).unwrap();
        assert_eq!(value.len(), 4 + 6 * 8);
        assert_eq!(to_text(&value).unwrap(), text);
        let named =
            b"user::rwx\nuser:alice:r--:1000\ngroup::r-x # own\ngroup:w:-w-:7\nmask:rwx\no::---\n";
        assert_eq!(from_text(named), Some(value));
    }

    #[test]
    fn names_alone_are_refused() {
        for text in ["user:alice:rwx", "user::rwq", "who::rwx", "user", "mask:5:rwx"] {
            assert_eq!(from_text(text.as_bytes()), None, "{text}");
        }
        assert_eq!(to_text(b"\x01\0\0\0"), None);
    }
}
