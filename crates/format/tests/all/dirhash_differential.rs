//! Directory hashes against debugfs, for every algorithm it computes.

use floe_format::ext::dirhash::dirhash;
use floe_format::ext::htree::HashVersion;

use crate::support;

const SEEDS: [(&str, [u32; 4]); 2] = [
    ("00000000-0000-0000-0000-000000000000", [0; 4]),
    ("a1b2c3d4-0506-1708-290a-3b0c4d0e5f10", [0xd4c3_b2a1, 0x0817_0605, 0x0c3b_0a29, 0x105f_0e4d]),
];

/// A name of `len` bytes that debugfs reads as one word, from a small generator.
fn name(len: usize, state: &mut u64) -> Vec<u8> {
    let mut next = || {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 56) as u8
    };
    let mut name = vec![b'n'];
    while name.len() < len {
        let byte = next();
        // Blanks, quotes and control characters would end or change the word.
        if byte > b' ' && byte != b'"' && byte != 0x7f {
            name.push(byte);
        }
    }
    name
}

/// Hash and minor hash in a line "... is 0xHASH (minor 0xMINOR)".
fn parse(line: &[u8]) -> Option<(u32, u32)> {
    let at = line.windows(6).rposition(|window| window == b" is 0x")?;
    let text = std::str::from_utf8(&line[at + 6..]).ok()?;
    let (hash, minor) = text.split_once(" (minor 0x")?;
    let minor = minor.trim_end().strip_suffix(')')?;
    Some((u32::from_str_radix(hash, 16).ok()?, u32::from_str_radix(minor, 16).ok()?))
}

#[test]
fn hashes_equal_debugfs() {
    let (Some(mke2fs), Some(debugfs)) = (support::tool("mke2fs"), support::tool("debugfs")) else {
        return;
    };
    let image = tempfile::NamedTempFile::new().unwrap();
    support::mke2fs(&mke2fs, image.path(), "-t ext2", "1M");
    let mut state = 7;
    let mut names: Vec<Vec<u8>> = (1..=255).map(|len| name(len, &mut state)).collect();
    names.extend((0..200).map(|at| format!("file-{at}").into_bytes()));
    for (uuid, seed) in SEEDS {
        for number in 0..6 {
            let script: Vec<u8> = names
                .iter()
                .flat_map(|name| {
                    let start = format!("dx_hash -h {number} -s {uuid} ");
                    [start.as_bytes(), name, b"\n"].concat()
                })
                .collect();
            let output = support::debugfs(&debugfs, image.path(), &script);
            let hashes: Vec<_> = output.split(|&byte| byte == b'\n').filter_map(parse).collect();
            assert_eq!(hashes.len(), names.len(), "debugfs did not answer for every name");
            let version = HashVersion::of(number).unwrap();
            for (name, theirs) in names.iter().zip(hashes) {
                let ours = dirhash(version, name, &seed).unwrap();
                let name = name.escape_ascii();
                assert_eq!((ours.hash, ours.minor_hash), theirs, "{} of {name}", version.name());
            }
        }
    }
}
