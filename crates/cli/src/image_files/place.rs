//! Paths in an image: bytes, with `/` between names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A path from the command line.
pub(crate) fn bytes(path: &OsStr) -> &[u8] {
    path.as_bytes()
}

/// Joins two paths; `below` may be empty.
pub(crate) fn join(base: &[u8], below: &[u8]) -> Vec<u8> {
    if below.is_empty() {
        return base.to_vec();
    }
    let base = base.strip_suffix(b"/").unwrap_or(base);
    [base, b"/", below].concat()
}

/// The last name of a path; `None` if it ends with the root, `.` or `..`.
pub(crate) fn last_name(path: &[u8]) -> Option<&[u8]> {
    let name = path.rsplit(|&byte| byte == b'/').find(|name| !name.is_empty())?;
    (!matches!(name, b"." | b"..")).then_some(name)
}

/// A path from the root with a slash before each name and none at its end; `None` if it is not one, is the root, or goes through
/// `.` or `..`.
pub(crate) fn normal(path: &[u8]) -> Option<Vec<u8>> {
    let rest = path.strip_prefix(b"/")?;
    let names: Vec<&[u8]> =
        rest.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).collect();
    let is_plain = !names.is_empty() && !names.iter().any(|name| matches!(*name, b"." | b".."));
    is_plain.then(|| names.iter().flat_map(|name| [&b"/"[..], *name]).flatten().copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined_and_named() {
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"", b"a/b"), b"/a/b");
        assert_eq!(join(b"/dir", b""), b"/dir");
        assert_eq!(last_name(b"/dir/file/"), Some(&b"file"[..]));
        for path in [&b"/"[..], b"", b"/dir/..", b"."] {
            assert_eq!(last_name(path), None);
        }
        assert_eq!(normal(b"//dir/file/"), Some(b"/dir/file".to_vec()));
        for path in [&b"/"[..], b"", b"dir", b"/../dir", b"/dir/./file", b"/dir/.."] {
            assert_eq!(normal(path), None);
        }
    }
}
