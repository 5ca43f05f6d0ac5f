//! Validates the paths of archives.

use super::{SourceError, shown};

/// The components of a path, without empty ones and `.`; a leading `/` is ignored. Paths with `..`
/// are refused: they could leave the root, and no archive needs them.
pub(super) fn names(path: &[u8]) -> Result<Vec<&[u8]>, SourceError> {
    let refused = |why| SourceError::Path { path: shown(path), why };
    if path.contains(&0) {
        return Err(refused("contains a zero byte"));
    }
    let names = path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    let names: Vec<&[u8]> = names.collect();
    if names.contains(&&b".."[..]) {
        return Err(refused("contains `..`, which could leave the root"));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn paths_stay_below_the_root() {
        assert_eq!(names(b"/a//./b/").unwrap(), [b"a", b"b"]);
        assert!(names(b"./").unwrap().is_empty());
        for path in [&b"../a"[..], b"a/../../b", b"a/..", b"a\0b"] {
            assert!(names(path).is_err());
        }
    }
}
