//! The extended headers of one file.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use floe_format::ext::xattr::acl::{ACCESS, DEFAULT};

use crate::pax::Record;
use crate::sparse::{Map, listed};
use crate::{ArchiveFault, Timestamp, acl, number};

/// Base64 with or without its padding, which libarchive omits.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Attribute in which the kernel stores SELinux labels.
const SELINUX: &[u8] = b"security.selinux";

/// Fields of extended headers; `None` where the ordinary header applies.
#[derive(Default)]
pub(crate) struct Extended {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) link: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    pub(crate) uid: Option<u64>,
    pub(crate) gid: Option<u64>,
    pub(crate) mtime: Option<Timestamp>,
    pub(crate) atime: Option<Timestamp>,
    pub(crate) ctime: Option<Timestamp>,
    pub(crate) major: Option<u64>,
    pub(crate) minor: Option<u64>,
    /// An access list that is not understood.
    pub(crate) odd_list: Option<String>,
    /// Attributes in libarchive's form (weak), and in the form of star and GNU tar, which take
    /// precedence.
    weak: Vec<(Vec<u8>, Vec<u8>)>,
    strong: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) sparse: Sparse,
}

/// Fields of a sparse file.
#[derive(Default)]
pub(crate) struct Sparse {
    /// The form: 1 and 0 for form 1.0.
    major: Option<u64>,
    minor: Option<u64>,
    /// The real name, if the header's name is synthetic.
    pub(crate) name: Option<Vec<u8>>,
    /// Bytes including the holes.
    pub(crate) size: Option<u64>,
    /// The map of forms 0.0 and 0.1.
    pub(crate) map: Option<Map>,
    /// An offset of form 0.0 whose length has not been read yet.
    offset: Option<u64>,
}

impl Extended {
    /// Combines records; later ones override earlier ones.
    pub(crate) fn of<'r>(records: impl Iterator<Item = &'r Record>) -> Result<Self, ArchiveFault> {
        let mut all = Self::default();
        for (key, value) in records {
            all.take(key, value)?;
        }
        Ok(all)
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), ArchiveFault> {
        let text = |value: &[u8]| (!value.is_empty()).then(|| value.to_vec());
        match key {
            b"path" => self.path = text(value),
            b"linkpath" => self.link = text(value),
            b"size" => self.size = count(value, "size")?,
            b"uid" => self.uid = count(value, "uid")?,
            b"gid" => self.gid = count(value, "gid")?,
            b"mtime" => self.mtime = time(value, "mtime")?,
            b"atime" => self.atime = time(value, "atime")?,
            b"ctime" => self.ctime = time(value, "ctime")?,
            b"SCHILY.devmajor" => self.major = count(value, "SCHILY.devmajor")?,
            b"SCHILY.devminor" => self.minor = count(value, "SCHILY.devminor")?,
            b"SCHILY.acl.access" => self.list(ACCESS, value),
            b"SCHILY.acl.default" => self.list(DEFAULT, value),
            b"RHT.security.selinux" => self.strong.push((SELINUX.to_vec(), value.to_vec())),
            _ => return self.take_rest(key, value),
        }
        Ok(())
    }

    fn take_rest(&mut self, key: &[u8], value: &[u8]) -> Result<(), ArchiveFault> {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            self.strong.push((unescape(name), value.to_vec()));
        } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            let value = BASE64.decode(value).map_err(|_| ArchiveFault::Extended)?;
            self.weak.push((unescape(name), value));
        } else if let Some(name) = key.strip_prefix(b"GNU.sparse.") {
            self.sparse.take(name, value)?;
        }
        Ok(())
    }

    /// An access control list. One without entries is ignored.
    fn list(&mut self, name: &[u8], text: &[u8]) {
        if text.is_empty() {
            return;
        }
        match acl::from_text(text) {
            Some(value) => self.strong.push((name.to_vec(), value)),
            None => self.odd_list = Some(String::from_utf8_lossy(text).into_owned()),
        }
    }

    /// The attributes, sorted by name, each once: the last one of the strong form, else of the weak
    /// one.
    pub(crate) fn attributes(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut all = std::mem::take(&mut self.weak);
        all.append(&mut self.strong);
        // A stable sort puts the last of equal names first, and that one is kept.
        all.reverse();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all.dedup_by(|later, kept| later.0 == kept.0);
        all
    }
}

impl Sparse {
    /// Whether the map lies before the data, as in form 1.0. The data of an unknown form are no content.
    pub(crate) fn has_stored_map(&self) -> Result<bool, ArchiveFault> {
        match (self.major.unwrap_or(0), self.minor.unwrap_or(0)) {
            (0, 0 | 1) => Ok(false),
            (1, 0) => Ok(true),
            (major, minor) => Err(ArchiveFault::SparseForm { major, minor }),
        }
    }

    fn take(&mut self, name: &[u8], value: &[u8]) -> Result<(), ArchiveFault> {
        match name {
            b"major" => self.major = count(value, "GNU.sparse.major")?,
            b"minor" => self.minor = count(value, "GNU.sparse.minor")?,
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.size = count(value, "GNU.sparse.size")?,
            b"map" => self.map = Some(listed(value).ok_or(ArchiveFault::Sparse)?),
            b"offset" => self.offset = count(value, "GNU.sparse.offset")?,
            b"numbytes" => {
                let len = count(value, "GNU.sparse.numbytes")?;
                let (Some(at), Some(len)) = (self.offset.take(), len) else {
                    return Err(ArchiveFault::Sparse);
                };
                self.map.get_or_insert_default().push((at, len));
            }
            _ => {}
        }
        Ok(())
    }
}

fn count(value: &[u8], field: &'static str) -> Result<Option<u64>, ArchiveFault> {
    if value.is_empty() {
        return Ok(None);
    }
    number::decimal(value).map(Some).ok_or(ArchiveFault::Number(field))
}

fn time(value: &[u8], field: &'static str) -> Result<Option<Timestamp>, ArchiveFault> {
    if value.is_empty() {
        return Ok(None);
    }
    number::time(value).map(Some).ok_or(ArchiveFault::Number(field))
}

/// Decodes `%3D` and the like in a name; any other `%` stays.
fn unescape(name: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut bytes = Vec::with_capacity(name.len());
    let mut at = 0;
    while let Some(&byte) = name.get(at) {
        match (byte, digit(name.get(at + 1)), digit(name.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                // Below 256.
                bytes.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                bytes.push(byte);
                at += 1;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(records: &[(&str, &str)]) -> Result<Extended, ArchiveFault> {
        let records: Vec<Record> = records
            .iter()
            .map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .collect();
        Extended::of(records.iter())
    }

    #[test]
    fn attributes_of_both_kinds_are_one_set() {
        let mut all = sum(&[
            ("LIBARCHIVE.xattr.user.a", "YmFzZQ"),
            ("SCHILY.xattr.user.b%3Dc%25", "b"),
            ("LIBARCHIVE.xattr.user.b%3Dc%25", "eA=="),
            ("SCHILY.xattr.user.b=c", "not read as a key"),
        ])
        .unwrap();
        let names = all.attributes();
        assert_eq!(names[0], (b"user.a".to_vec(), b"base".to_vec()));
        assert_eq!(names[1], (b"user.b=c".to_vec(), b"not read as a key".to_vec()));
        assert_eq!(names[2], (b"user.b=c%".to_vec(), b"b".to_vec()));
        assert!(sum(&[("LIBARCHIVE.xattr.user.a", "?")]).is_err());
    }

    #[test]
    fn an_empty_value_takes_a_field_back() {
        assert_eq!(sum(&[("size", "5"), ("size", "")]).unwrap().size, None);
        assert_eq!(sum(&[("path", "a"), ("path", "b")]).unwrap().path, Some(b"b".to_vec()));
        assert!(sum(&[("size", "-5")]).is_err());
    }
}
