use super::made::{Way, file};
use super::*;

/// Rows that a test keeps. (A lie of a few bytes can promise billions of equal rows.)
const MOST_ROWS: usize = 1000;

fn read(bytes: &[u8]) -> Result<Vec<Option<String>>, ParquetError> {
    let mut rows: Vec<Option<String>> = Vec::new();
    texts(bytes, "document", |row| {
        if rows.len() == MOST_ROWS {
            return Err(ParquetError::Unsupported("its many rows".to_owned()));
        }
        rows.push(match row {
            Text::Some(row) => Some(String::from_utf8_lossy(row).into_owned()),
            Text::Again => rows.iter().rev().flatten().next().cloned(),
            Text::None => None,
        });
        Ok::<_, ParquetError>(())
    })?;
    Ok(rows)
}

fn sample(way: Way) -> Vec<Option<String>> {
    let row = |at: usize| {
        let is_null = way.optional && (at % 5 == 3 || (6..9).contains(&at));
        (!is_null).then(|| format!("document {} {}", at / 2 % 4, "x".repeat(at / 2 * 37 % 300)))
    };
    (0..20).map(row).collect()
}

fn made(way: Way) -> Vec<u8> {
    let rows = sample(way);
    file(way, &rows.iter().map(Option::as_deref).collect::<Vec<_>>())
}

#[test]
fn every_way_of_writing_is_read() {
    for way in Way::all() {
        assert_eq!(read(&made(way)).unwrap(), sample(way), "{way:?}");
        assert_eq!(read(&file(way, &[])).unwrap(), [], "{way:?}");
    }
}

#[test]
fn other_columns_and_other_codecs_are_told() {
    let bytes = made(Way::SPARK);
    let found = texts(&bytes[..], "verdict", |_| Ok::<_, ParquetError>(()));
    assert!(matches!(found, Err(ParquetError::NoColumn(_))), "{found:?}");
    let lz4 = Way { codec: 7, ..Way::SPARK };
    assert!(read(&made(lz4)).unwrap_err().to_string().contains("LZ4"));
    for (bytes, said) in [
        (&b"PAR1"[..], "too short"),
        (&bytes[..bytes.len() - 1], "truncated"),
        (&bytes[..bytes.len() / 2], "truncated"),
        (b"PAR1\xff\xff\xff\0PAR1", "longer than the file"),
        (b"PAR1\xff\xff\xff\xffPAR1", "footer of 4095 MiB"),
        (b"PAR1\0\0\0\0\0\0\0\0PARE", "encryption"),
    ] {
        let error = read(bytes).unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
}

/// A number of a file at which something was done to it; the same each time.
fn draw(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

#[test]
fn any_damage_ends_with_rows_or_an_error() {
    let mut state = 25;
    for way in Way::all() {
        let good = made(way);
        let end = good.len() - 8;
        let footer = end - u32::from_le_bytes(*good[end..].first_chunk().unwrap()) as usize;
        for at in 0..good.len() {
            for value in [!good[at], good[at] ^ 1] {
                let mut bad = good.clone();
                bad[at] = value;
                drop(read(&bad));
            }
        }
        for _ in 0..300 {
            let mut bad = good.clone();
            for _ in 0..draw(&mut state) % 6 + 1 {
                let at = if draw(&mut state).is_multiple_of(2) {
                    draw(&mut state) % bad.len()
                } else {
                    footer + draw(&mut state) % (bad.len() - footer)
                };
                bad[at] = draw(&mut state) as u8;
            }
            drop(read(&bad));
        }
        for len in 0..good.len() {
            assert!(read(&good[..len]).is_err(), "{len}");
        }
        // The last byte of the last page, which has a checksum.
        let mut bad = good.clone();
        bad[footer - 1] ^= 1;
        assert!(read(&bad).unwrap_err().to_string().contains("checksum"), "{way:?}");
    }
}

/// A file that promises much: each lie about a size ends in an error, with little memory.
#[test]
fn lies_about_sizes_cost_nothing() {
    let lies: [(i64, &str); 4] =
        [(i64::MAX, "at most"), (1 << 40, "at most"), (127 << 20, "unpacked"), (-1, "negative")];
    for (size, said) in lies {
        let way = Way { rows_per_group: 30, rows_per_page: 30, dictionary: false, ..Way::SPARK };
        let error = read(&made::with_page_of(way, size)).unwrap_err().to_string();
        assert!(error.contains(said), "{size}: {error}");
    }
    // A bomb: 64 MiB of zeroes in 64 KiB.
    for codec in [2, 6] {
        let way = Way { codec, ..Way::SPARK };
        let error = read(&made::bomb(way, 64 << 20)).unwrap_err().to_string();
        assert!(error.contains("another length"), "{error}");
    }
}
