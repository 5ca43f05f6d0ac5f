//! The laws for any bytes that are read as an archive. Shared with the fuzz target.

use floe_archive::Reader;

/// Reads `bytes` unchanged, and once more with valid header checksums, so that the code behind that
/// check is reached.
pub(crate) fn read_all(bytes: &[u8]) {
    walk(bytes);
    let mut mended = bytes.to_vec();
    for block in mended.as_chunks_mut::<512>().0 {
        if block.iter().any(|&byte| byte != 0) {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
    walk(&mended);
}

fn walk(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    let mut entries = 0;
    while let Ok(Some(entry)) = reader.next_entry() {
        entries += 1;
        let (mut end, mut from) = (0, 0);
        for part in &entry.parts {
            assert!(part.len > 0 && part.at >= end && part.from >= from, "{entry:?}");
            (end, from) = (part.at + part.len, part.from + part.len);
        }
        assert!(end <= entry.size && from <= bytes.len() as u64, "{entry:?}");
        assert!(entry.attributes.windows(2).all(|pair| pair[0].0 < pair[1].0), "{entry:?}");
    }
    assert!(entries <= bytes.len() / 512);
}
