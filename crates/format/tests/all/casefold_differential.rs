//! Folding of names against debugfs: every character of Unicode, and random strings of them.

use std::collections::HashMap;

use floe_format::ext::casefold::fold;
use floe_format::ext::dirhash::dirhash;
use floe_format::ext::htree::HashVersion;

use crate::support;

/// The name and the hash in a line "Hash of NAME is 0xHASH (minor 0xMINOR)".
fn parse(line: &[u8]) -> Option<(&[u8], u64)> {
    let line = line.strip_prefix(b"Hash of ")?;
    let at = line.windows(6).rposition(|window| window == b" is 0x")?;
    let text = std::str::from_utf8(&line[at + 6..]).ok()?;
    let (hash, minor) = text.split_once(" (minor 0x")?;
    let minor = minor.trim_end().strip_suffix(')')?;
    let hash = u64::from_str_radix(hash, 16).ok()?;
    Some((&line[..at], hash << 32 | u64::from_str_radix(minor, 16).ok()?))
}

/// Characters that debugfs reads as part of a word.
fn usable(c: char) -> bool {
    !c.is_ascii_whitespace() && !c.is_ascii_control() && c != '"'
}

/// The names whose hash differs from debugfs's, escaped. Debugfs prints no hash for an invalid
/// name.
fn differences(names: &[Vec<u8>]) -> Option<Vec<String>> {
    let (mke2fs, debugfs) = (support::tool("mke2fs")?, support::tool("debugfs")?);
    let image = tempfile::NamedTempFile::new().unwrap();
    support::mke2fs(&mke2fs, image.path(), "-t ext2", "1M");
    let script: Vec<u8> = names
        .iter()
        .flat_map(|name| [b"dx_hash -h 4 -c -e utf8 ", &name[..], b"\n"].concat())
        .collect();
    let output = support::debugfs(&debugfs, image.path(), &script);
    let theirs: HashMap<_, _> = output.split(|&byte| byte == b'\n').filter_map(parse).collect();
    assert!(!theirs.is_empty(), "debugfs hashed nothing");
    let ours = |name: &[u8]| {
        let folded = fold(name).ok()?;
        let hash = dirhash(HashVersion::HalfMd4Unsigned, &folded, &[0; 4]).unwrap();
        Some(u64::from(hash.hash) << 32 | u64::from(hash.minor_hash))
    };
    let differing = names.iter().filter(|name| ours(name) != theirs.get(&name[..]).copied());
    Some(differing.map(|name| name.escape_ascii().to_string()).collect())
}

/// Whether a character is compared. In long ranges of similar characters (ideographs, syllables,
/// private use, unassigned) only a sample is; all of them were compared once.
fn sampled(c: char) -> bool {
    let alike =
        matches!(u32::from(c), 0x3400..=0x9fff | 0xac00..=0xd7a3 | 0xe000..=0xf8ff | 0x20000..);
    !alike || u32::from(c).is_multiple_of(97)
}

#[test]
fn characters_fold_as_in_debugfs() {
    // The capital letter tells a name that folds to itself from one that is invalid.
    let names: Vec<_> = ('\0'..=char::MAX)
        .filter(|&c| usable(c) && sampled(c))
        .map(|c| format!("A{c}").into_bytes())
        .collect();
    let Some(differing) = differences(&names) else { return };
    assert!(differing.is_empty(), "{} differ: {:?}", differing.len(), &differing[..1]);
}

#[test]
fn strings_fold_as_in_debugfs() {
    let mut state = 3u64;
    let mut next = |below: u32| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % u64::from(below)) as u32
    };
    // Ranges full of marks, ignorable characters, and characters that fold to several.
    let ranges = [
        (0x300, 0x70),
        (0x1f00, 0x100),
        (0x41, 26),
        (0xc0, 0x100),
        (0x34f, 1),
        (0x200b, 16),
        (0xac00, 11172),
        (0x591, 0x60),
        (0xfe00, 0x30),
        (0x1e00, 0x100),
        (0x900, 0x200),
    ];
    let mut names = Vec::new();
    while names.len() < 20_000 {
        let len = 1 + next(12);
        let name: String = (0..len)
            .filter_map(|_| {
                let (start, count) = ranges[next(ranges.len() as u32) as usize];
                char::from_u32(start + next(count))
            })
            .collect();
        names.push(format!("A{name}").into_bytes());
    }
    let Some(differing) = differences(&names) else { return };
    assert!(differing.is_empty(), "{} differ: {:?}", differing.len(), &differing[..1]);
}

#[test]
fn malformed_strings_hash_as_in_debugfs() {
    let mut state = 5u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u8
    };
    let mut names = Vec::new();
    while names.len() < 20_000 {
        let mut name = format!("A{}Z", char::from_u32(u32::from(next()) * 97 + 128).unwrap_or('x'))
            .into_bytes();
        let at = 1 + usize::from(next()) % (name.len() - 1);
        name[at] = next() | 0x80;
        names.push(name);
    }
    let Some(differing) = differences(&names) else { return };
    assert!(differing.is_empty(), "{} differ: {:?}", differing.len(), &differing[..1]);
}
