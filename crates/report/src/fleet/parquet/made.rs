//! Parquet files made by tests: a writer of its own for one column beside others.

use super::MAGIC;

/// How a file is made.
#[derive(Clone, Copy, Debug)]
pub(in crate::fleet) struct Way {
    /// Number of the codec: 0, 1 (Snappy, literals only), 2 (gzip), 6 (zstd).
    pub(in crate::fleet) codec: i64,
    /// Data pages of version 1 or 2.
    pub(in crate::fleet) version: u8,
    pub(in crate::fleet) dictionary: bool,
    pub(in crate::fleet) optional: bool,
    pub(in crate::fleet) rows_per_page: usize,
    pub(in crate::fleet) rows_per_group: usize,
}

impl Way {
    /// As Spark writes.
    pub(in crate::fleet) const SPARK: Self = Self {
        codec: 1,
        version: 1,
        dictionary: true,
        optional: true,
        rows_per_page: 3,
        rows_per_group: 7,
    };

    /// All that the reader knows.
    pub(in crate::fleet) fn all() -> Vec<Self> {
        let mut ways = Vec::new();
        for codec in [0, 1, 2, 6] {
            for version in [1, 2] {
                for (dictionary, optional) in
                    [(true, true), (false, true), (true, false), (false, false)]
                {
                    ways.push(Self { codec, version, dictionary, optional, ..Self::SPARK });
                }
            }
        }
        ways
    }
}

/// Writes a structure of Thrift's compact protocol.
#[derive(Default)]
struct Fields {
    bytes: Vec<u8>,
    last: u8,
}

impl Fields {
    fn head(&mut self, id: u8, kind: u8) {
        self.bytes.push((id - self.last) << 4 | kind);
        self.last = id;
    }

    fn int(mut self, id: u8, value: i64) -> Self {
        self.head(id, 6);
        varint(&mut self.bytes, (value << 1 ^ value >> 63) as u64);
        self
    }

    fn text(mut self, id: u8, value: &str) -> Self {
        self.head(id, 8);
        varint(&mut self.bytes, value.len() as u64);
        self.bytes.extend(value.as_bytes());
        self
    }

    fn structure(mut self, id: u8, value: Self) -> Self {
        self.head(id, 12);
        self.bytes.extend(value.done());
        self
    }

    fn list(mut self, id: u8, values: Vec<Self>) -> Self {
        self.head(id, 9);
        self.bytes.push(0xfc);
        varint(&mut self.bytes, values.len() as u64);
        self.bytes.extend(values.into_iter().flat_map(Self::done));
        self
    }

    fn done(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn pack(codec: i64, bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    match codec {
        0 => bytes.to_vec(),
        1 => {
            let mut packed = Vec::new();
            varint(&mut packed, bytes.len() as u64);
            for piece in bytes.chunks(60) {
                packed.push((piece.len() as u8 - 1) << 2);
                packed.extend(piece);
            }
            packed
        }
        2 => {
            let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            to.write_all(bytes).unwrap();
            to.finish().unwrap()
        }
        _ => ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest),
    }
}

/// A file with the columns `path`, `findings.list.document` and `document`, of which the last one has these values.
pub(in crate::fleet) fn file(way: Way, rows: &[Option<&str>]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    let groups: Vec<Fields> = rows
        .chunks(way.rows_per_group)
        .map(|rows| {
            let start = bytes.len();
            let data = chunk(way, rows, &mut bytes);
            let about = Fields::default()
                .int(1, 6)
                .int(4, way.codec)
                .int(5, rows.len() as i64)
                .int(7, (bytes.len() - start) as i64)
                .int(9, data as i64)
                .int(11, if way.dictionary { start as i64 } else { 0 });
            let other = || {
                let about =
                    Fields::default().int(1, 6).int(4, way.codec).int(5, 0).int(7, 0).int(9, 4);
                Fields::default().int(2, 0).structure(3, about)
            };
            let columns = vec![other(), other(), Fields::default().int(2, 0).structure(3, about)];
            Fields::default().list(1, columns).int(2, 1).int(3, rows.len() as i64)
        })
        .collect();
    let optional = i64::from(way.optional);
    let node = |name: &str, repetition, children| {
        Fields::default().int(3, repetition).text(4, name).int(5, children)
    };
    let leaf = |name: &str, repetition| {
        Fields::default().int(1, 6).int(3, repetition).text(4, name).int(6, 0)
    };
    let schema = vec![
        Fields::default().text(4, "spark_schema").int(5, 3),
        leaf("path", 1),
        node("findings", 1, 1),
        node("list", 2, 1),
        leaf("document", 0),
        leaf("document", optional),
    ];
    let about = Fields::default().int(1, 2).list(2, schema).int(3, rows.len() as i64);
    let footer = about.list(4, groups).text(6, "floe's tests").done();
    bytes.extend(&footer);
    bytes.extend((footer.len() as u32).to_le_bytes());
    bytes.extend(MAGIC);
    bytes
}

/// Appends the pages of a row group; returns where those of values begin.
fn chunk(way: Way, rows: &[Option<&str>], to: &mut Vec<u8>) -> usize {
    let mut known: Vec<&str> = rows.iter().flatten().copied().collect();
    known.sort_unstable();
    known.dedup();
    if way.dictionary {
        let values: Vec<u8> = known.iter().flat_map(|value| plain(value)).collect();
        let about = Fields::default().int(1, known.len() as i64).int(2, 2);
        page(2, values.len(), &pack(way.codec, &values), |of| of.structure(7, about), to);
    }
    let data = to.len();
    for rows in rows.chunks(way.rows_per_page) {
        let mut levels = Vec::new();
        for row in rows {
            // Runs of one.
            levels.extend([2, u8::from(row.is_some())]);
        }
        let mut values: Vec<u8> = Vec::new();
        if way.dictionary {
            values.push(8);
            for row in rows.iter().flatten() {
                values.extend([2, known.binary_search(row).unwrap() as u8]);
            }
        } else {
            values.extend(rows.iter().flatten().flat_map(|value| plain(value)));
        }
        let encoding = if way.dictionary { 8 } else { 0 };
        let about = Fields::default().int(1, rows.len() as i64);
        if way.version == 1 {
            let mut body = Vec::new();
            if way.optional {
                body.extend((levels.len() as u32).to_le_bytes());
                body.extend(levels);
            }
            body.extend(values);
            let about = about.int(2, encoding).int(3, 3).int(4, 3);
            page(0, body.len(), &pack(way.codec, &body), |of| of.structure(5, about), to);
            continue;
        }
        if !way.optional {
            levels.clear();
        }
        let size = levels.len() + values.len();
        let about = about.int(2, 0).int(3, rows.len() as i64).int(4, encoding);
        let about = about.int(5, levels.len() as i64).int(6, 0);
        levels.extend(pack(way.codec, &values));
        page(3, size, &levels, |of| of.structure(8, about), to);
    }
    data
}

fn page(
    kind: i64,
    size: usize,
    packed: &[u8],
    about: impl FnOnce(Fields) -> Fields,
    to: &mut Vec<u8>,
) {
    let crc = i64::from(crc32fast::hash(packed) as i32);
    let head = Fields::default().int(1, kind).int(2, size as i64).int(3, packed.len() as i64);
    to.extend(about(head.int(4, crc)).done());
    to.extend(packed);
}

fn plain(value: &str) -> Vec<u8> {
    [&(value.len() as u32).to_le_bytes(), value.as_bytes()].concat()
}

/// A file of one row whose page says that it has `size` bytes.
pub(in crate::fleet) fn with_page_of(way: Way, size: i64) -> Vec<u8> {
    lying(way, &pack(way.codec, &plain("text")), size)
}

/// A file of one row whose page says that it has 8 bytes, and has `size` zeroes.
pub(in crate::fleet) fn bomb(way: Way, size: usize) -> Vec<u8> {
    lying(way, &pack(way.codec, &vec![0; size]), 8)
}

fn lying(way: Way, packed: &[u8], size: i64) -> Vec<u8> {
    let way = Way { dictionary: false, optional: false, version: 1, ..way };
    let mut bytes = MAGIC.to_vec();
    let about = Fields::default().int(1, 1).int(2, 0).int(3, 3).int(4, 3);
    let head = Fields::default().int(1, 0).int(2, size).int(3, packed.len() as i64);
    bytes.extend(head.structure(5, about).done());
    bytes.extend(packed);
    let len = bytes.len() as i64 - 4;
    let about = Fields::default().int(1, 6).int(4, way.codec).int(5, 1).int(7, len).int(9, 4);
    let column = Fields::default().int(2, 0).structure(3, about);
    let group = Fields::default().list(1, vec![column]).int(2, 1).int(3, 1);
    let schema = vec![
        Fields::default().text(4, "schema").int(5, 1),
        Fields::default().int(1, 6).int(3, 0).text(4, "document"),
    ];
    let footer = Fields::default().int(1, 2).list(2, schema).int(3, 1).list(4, vec![group]).done();
    bytes.extend(&footer);
    bytes.extend((footer.len() as u32).to_le_bytes());
    bytes.extend(MAGIC);
    bytes
}
