//! Encryption contexts (fscrypt): how an inode's content and names are encrypted.
//!
//! A context is the value of the attribute with [`INDEX_ENCRYPTION`] and the name `c`.
//!
//! [`INDEX_ENCRYPTION`]: crate::ext::xattr::INDEX_ENCRYPTION

/// Name of the attribute.
pub const ATTRIBUTE_NAME: &[u8] = b"c";
/// Shortest encrypted name in bytes (problem `encrypted-name-too-short`).
pub const MIN_NAME_LEN: usize = 16;

layout! {
    /// A context of version 1 (`struct fscrypt_context_v1`).
    pub struct ContextV1[28] little {
        /// 1.
        0x00 version: u8,
        /// Cipher of file contents.
        0x01 contents_encryption_mode: u8,
        /// Cipher of names.
        0x02 filenames_encryption_mode: u8,
        /// Padding of names and kind of keys.
        0x03 flags: u8,
        /// Descriptor of the master key.
        0x04 master_key_descriptor: [u8; 8],
        /// Random number of the inode.
        0x0c nonce: [u8; 16],
    }
}

layout! {
    /// A context of version 2 (`struct fscrypt_context_v2`).
    pub struct ContextV2[40] little {
        /// 2.
        0x00 version: u8,
        /// Cipher of file contents.
        0x01 contents_encryption_mode: u8,
        /// Cipher of names.
        0x02 filenames_encryption_mode: u8,
        /// Padding of names and kind of keys.
        0x03 flags: u8,
        /// `log2` of the bytes encrypted at once; 0: a block.
        0x04 log2_data_unit_size: u8,
        /// Reserved.
        0x05 reserved: [u8; 3],
        /// Identifier of the master key.
        0x08 master_key_identifier: [u8; 16],
        /// Random number of the inode.
        0x18 nonce: [u8; 16],
    }
}

/// An encryption context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Context {
    /// Version 1.
    V1(ContextV1),
    /// Version 2.
    V2(ContextV2),
    /// A version this code does not know.
    Unknown(u8),
}

/// An encryption policy: all of a context but the nonce. A directory and the files in it must have
/// the same one (problem `encrypted-dir-policy-mismatch`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// Version 1: the 12 bytes before the nonce.
    V1([u8; 12]),
    /// Version 2: the 24 bytes before the nonce.
    V2([u8; 24]),
    /// Unknown version: two such policies always compare as equal.
    Unknown,
}

impl Context {
    /// Decodes the value of the attribute; `None` if it is empty or its length is not that of its
    /// version.
    pub fn decode(value: &[u8]) -> Option<Self> {
        match *value.first()? {
            1 => value.try_into().ok().map(ContextV1::decode).map(Self::V1),
            2 => value.try_into().ok().map(ContextV2::decode).map(Self::V2),
            version => Some(Self::Unknown(version)),
        }
    }

    /// The policy.
    pub fn policy(&self) -> Policy {
        match self {
            Self::V1(context) => {
                let mut bytes = [0; 28];
                context.encode_into(&mut bytes);
                bytes.first_chunk().map_or(Policy::Unknown, |policy| Policy::V1(*policy))
            }
            Self::V2(context) => {
                let mut bytes = [0; 40];
                context.encode_into(&mut bytes);
                bytes.first_chunk().map_or(Policy::Unknown, |policy| Policy::V2(*policy))
            }
            Self::Unknown(_) => Policy::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(value: &[u8]) -> Option<Policy> {
        Context::decode(value).map(|context| context.policy())
    }

    #[test]
    fn the_nonce_is_no_part_of_the_policy() {
        for (version, len, nonce) in [(1, 28, 12), (2, 40, 24)] {
            let mut value = vec![version; len];
            let before = policy(&value).unwrap();
            value[nonce] ^= 1;
            assert_eq!(policy(&value), Some(before));
            value[nonce - 1] ^= 1;
            assert_ne!(policy(&value), Some(before));
            assert_eq!(policy(&value[..len - 1]), None);
        }
        assert_eq!(policy(&[]), None);
        assert_eq!(policy(&[3; 40]), Some(Policy::Unknown));
    }
}
