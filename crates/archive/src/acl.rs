//! Access control lists as text (`SCHILY.acl.access`), and in the form of system calls.

use floe_format::ext::xattr::acl::{AclEntry, AclWho, decode_for_programs, encode_for_programs};

use crate::number;

/// Bytes of a value that has only the three entries equivalent to a mode.
pub(crate) const MODE_ALONE_BYTES: usize = 4 + 3 * 8;

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

/// The permission bits of a mode that go with an access list; Linux keeps both equal. `None` if it is not an ACL.
pub(crate) fn mode_bits(value: &[u8]) -> Option<u16> {
    let entries = decode_for_programs(value).ok()?;
    let of = |who: AclWho| {
        entries.iter().find(|entry| entry.who == who).map(|entry| entry.permissions & 7)
    };
    let group = of(AclWho::Mask).or_else(|| of(AclWho::OwningGroup))?;
    Some(of(AclWho::Owner)? << 6 | group << 3 | of(AclWho::Other)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_follow_from_lists() {
        let bits = |text: &str| mode_bits(&from_text(text.as_bytes()).unwrap());
        assert_eq!(bits("user::rw-,group::r-x,other::--x"), Some(0o651));
        assert_eq!(bits("user::rw-,user:7:rwx,group::rwx,mask::r--,other::---"), Some(0o640));
        assert_eq!(bits("user::rw-,group::r-x"), None);
        assert_eq!(mode_bits(b"none"), None);
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
