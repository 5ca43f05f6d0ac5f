//! POSIX ACLs as ext4 stores them: version 1, in which the four kinds of entries without an
//! identifier use a short form (`ext4_acl_entry_short`).

use crate::layout::{le16_at, le32_at};

/// `a_version`.
pub const VERSION: u32 = 1;

/// The subject of an ACL entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AclWho {
    /// The owner.
    Owner,
    /// A user, by number.
    User(u32),
    /// The owning group.
    OwningGroup,
    /// A group, by number.
    Group(u32),
    /// The most that users and groups named here may get.
    Mask,
    /// Everyone else.
    Other,
}

/// An entry of an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// The subject.
    pub who: AclWho,
    /// Read 4, write 2, execute 1; other bits are unjudged.
    pub permissions: u16,
}

/// Why a value is not an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclFault {
    /// It is shorter than 4 bytes or its version is not 1.
    Version,
    /// The entry at this byte has an undefined tag.
    Tag {
        /// Byte of the value at which the entry starts.
        offset: usize,
        /// The tag.
        tag: u16,
    },
    /// The entry at this byte is cut off.
    Truncated {
        /// Byte of the value at which the entry starts.
        offset: usize,
    },
}

/// Full name of the attribute with the access list of a file.
pub const ACCESS_NAME: &str = "system.posix_acl_access";
/// That of the list that a directory hands down.
pub const DEFAULT_NAME: &str = "system.posix_acl_default";
/// Both names in bytes.
pub const ACCESS: &[u8] = ACCESS_NAME.as_bytes();
/// See [`ACCESS`].
pub const DEFAULT: &[u8] = DEFAULT_NAME.as_bytes();

/// Decodes the value of `system.posix_acl_access` or `_default`.
pub fn decode(value: &[u8]) -> Result<Vec<AclEntry>, AclFault> {
    if le32_at(value, 0) != Some(VERSION) {
        return Err(AclFault::Version);
    }
    let mut entries = Vec::new();
    let mut at = 4;
    while at < value.len() {
        let cut = AclFault::Truncated { offset: at };
        let tag = le16_at(value, at).ok_or(cut)?;
        let permissions = le16_at(value, at + 2).ok_or(cut)?;
        let id = || le32_at(value, at + 4).ok_or(cut);
        let (who, len) = match tag {
            0x01 => (AclWho::Owner, 4),
            0x02 => (AclWho::User(id()?), 8),
            0x04 => (AclWho::OwningGroup, 4),
            0x08 => (AclWho::Group(id()?), 8),
            0x10 => (AclWho::Mask, 4),
            0x20 => (AclWho::Other, 4),
            _ => return Err(AclFault::Tag { offset: at, tag }),
        };
        entries.push(AclEntry { who, permissions });
        at += len;
    }
    Ok(entries)
}

/// Whether Linux reads a value as an ACL (`ext4_acl_from_disk`): one without bytes is none, any other must
/// decode, and its length must be that of four short entries and long ones, or of fewer short ones.
/// Otherwise all access that asks the ACL fails (`EINVAL`).
pub fn is_readable(value: &[u8]) -> bool {
    const SHORT: usize = 4;
    const LONG: usize = 8;
    let Some(rest) = value.len().checked_sub(4) else { return value.is_empty() };
    let counted = match rest.checked_sub(4 * SHORT) {
        None if rest % SHORT == 0 => rest / SHORT,
        Some(long) if long % LONG == 0 => 4 + long / LONG,
        _ => return false,
    };
    decode(value).is_ok_and(|entries| entries.len() == counted)
}

/// The ACL that gives nobody more than a mode and the unknown list that belonged to it: the owner and others what the mode
/// says, the owning group nothing, and users and groups that are named later at most what the mode says.
pub fn narrowest(permissions: u16) -> Vec<u8> {
    let of = |who, shift: u16| AclEntry { who, permissions: permissions >> shift & 7 };
    let group = AclEntry { who: AclWho::OwningGroup, permissions: 0 };
    encode(&[of(AclWho::Owner, 6), group, of(AclWho::Mask, 3), of(AclWho::Other, 0)])
}

/// Encodes an ACL, with the entries in the order given.
pub fn encode(entries: &[AclEntry]) -> Vec<u8> {
    let mut value = VERSION.to_le_bytes().to_vec();
    for entry in entries {
        let (tag, id): (u16, Option<u32>) = match entry.who {
            AclWho::Owner => (0x01, None),
            AclWho::User(id) => (0x02, Some(id)),
            AclWho::OwningGroup => (0x04, None),
            AclWho::Group(id) => (0x08, Some(id)),
            AclWho::Mask => (0x10, None),
            AclWho::Other => (0x20, None),
        };
        value.extend(tag.to_le_bytes());
        value.extend(entry.permissions.to_le_bytes());
        value.extend(id.into_iter().flat_map(u32::to_le_bytes));
    }
    value
}

/// `a_version` of the form that system calls use.
const VERSION_FOR_PROGRAMS: u32 = 2;
/// The identifier of entries that have none, in that form.
const NO_ID: u32 = u32::MAX;

/// An ACL in the form that `getxattr` and `setxattr` use: version 2, eight bytes an entry (`struct
/// posix_acl_xattr_entry`).
pub fn encode_for_programs(entries: &[AclEntry]) -> Vec<u8> {
    let mut value = VERSION_FOR_PROGRAMS.to_le_bytes().to_vec();
    for entry in entries {
        let (tag, id): (u16, u32) = match entry.who {
            AclWho::Owner => (0x01, NO_ID),
            AclWho::User(id) => (0x02, id),
            AclWho::OwningGroup => (0x04, NO_ID),
            AclWho::Group(id) => (0x08, id),
            AclWho::Mask => (0x10, NO_ID),
            AclWho::Other => (0x20, NO_ID),
        };
        value.extend(tag.to_le_bytes());
        value.extend(entry.permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// Decodes a value in the form of [`encode_for_programs`].
pub fn decode_for_programs(value: &[u8]) -> Result<Vec<AclEntry>, AclFault> {
    if le32_at(value, 0) != Some(VERSION_FOR_PROGRAMS) {
        return Err(AclFault::Version);
    }
    let mut entries = Vec::new();
    for offset in (4..value.len()).step_by(8) {
        let cut = AclFault::Truncated { offset };
        let tag = le16_at(value, offset).ok_or(cut)?;
        let permissions = le16_at(value, offset + 2).ok_or(cut)?;
        let id = le32_at(value, offset + 4).ok_or(cut)?;
        let who = match tag {
            0x01 => AclWho::Owner,
            0x02 => AclWho::User(id),
            0x04 => AclWho::OwningGroup,
            0x08 => AclWho::Group(id),
            0x10 => AclWho::Mask,
            0x20 => AclWho::Other,
            _ => return Err(AclFault::Tag { offset, tag }),
        };
        entries.push(AclEntry { who, permissions });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acl_survives() {
        let entries = [
            AclEntry { who: AclWho::Owner, permissions: 7 },
            AclEntry { who: AclWho::User(1000), permissions: 5 },
            AclEntry { who: AclWho::OwningGroup, permissions: 4 },
            AclEntry { who: AclWho::Group(u32::MAX), permissions: 0 },
            AclEntry { who: AclWho::Mask, permissions: 5 },
            AclEntry { who: AclWho::Other, permissions: 0 },
        ];
        let value = encode(&entries);
        assert_eq!(value.len(), 4 + 4 * 4 + 2 * 8);
        assert_eq!(decode(&value).unwrap(), entries);
        let value = encode_for_programs(&entries);
        assert_eq!(value.len(), 4 + 6 * 8);
        assert_eq!(decode_for_programs(&value).unwrap(), entries);
        assert_eq!(decode_for_programs(&value[..11]), Err(AclFault::Truncated { offset: 4 }));
        assert_eq!(decode(&value), Err(AclFault::Version));
    }

    #[test]
    fn faults_say_where() {
        assert_eq!(decode(&[2, 0, 0, 0]), Err(AclFault::Version));
        assert_eq!(decode(&[]), Err(AclFault::Version));
        assert_eq!(decode(&[1, 0, 0, 0, 3, 0, 0, 0]), Err(AclFault::Tag { offset: 4, tag: 3 }));
        let cut = [1, 0, 0, 0, 2, 0, 7, 0, 1];
        assert_eq!(decode(&cut), Err(AclFault::Truncated { offset: 4 }));
        assert_eq!(decode(&[1, 0, 0, 0]), Ok(vec![]));
    }
}
