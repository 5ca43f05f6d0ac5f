//! Every verdict Floe can give: one table, with permanent codes.
//!
//! `table.rs` holds the rows; the macro here makes the type, the texts and the documentation of them.
//! Ids and codes are those of the catalogue of conditions that `e2fsck` knows, so that findings can be
//! compared; codes from 0x070000 on are Floe's own.

use std::any::Any;
use std::fmt;
use std::hash::Hasher;

use floe_format::{BlockNr, GroupNr, InodeNr, LogicalBlock};
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::saved::{Decoder, Encoder, Fault, Saved};

mod table;

pub use table::{Problem, ROWS};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// A remark, a hint, or a harmless field; a file system with only such findings may be clean.
    Cosmetic,
    /// Redundant or repairable data; nothing of a user's is at stake.
    Metadata,
    /// The damage or its repair can lose or change files, names or attributes.
    DataRisk,
    /// The check cannot go on.
    Fatal,
}

impl Severity {
    /// The name in reports and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cosmetic => "cosmetic",
            Self::Metadata => "metadata",
            Self::DataRisk => "data-risk",
            Self::Fatal => "fatal",
        }
    }
}

/// The weight of a finding in the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Weight {
    /// The file system stays clean: e2fsck asks nothing, or is content if the answer is no.
    Remark,
    /// The file system is damaged.
    Damage,
    /// The check had to end here (exit bit 8).
    Fatal,
}

/// The kind of object that a finding concerns; groups findings in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // the names say it; they are the catalogue's
pub enum Object {
    Superblock,
    Group,
    Bitmap,
    Journal,
    Orphan,
    Mmp,
    Quota,
    Inode,
    BlockMap,
    Extent,
    InlineData,
    Xattr,
    Encryption,
    Casefold,
    Dir,
    Dirent,
    Htree,
    Device,
}

impl Object {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::Group => "group",
            Self::Bitmap => "bitmap",
            Self::Journal => "journal",
            Self::Orphan => "orphan",
            Self::Mmp => "mmp",
            Self::Quota => "quota",
            Self::Inode => "inode",
            Self::BlockMap => "block-map",
            Self::Extent => "extent",
            Self::InlineData => "inline-data",
            Self::Xattr => "xattr",
            Self::Encryption => "encryption",
            Self::Casefold => "casefold",
            Self::Dir => "dir",
            Self::Dirent => "dirent",
            Self::Htree => "htree",
            Self::Device => "device",
        }
    }
}

/// One row of the table, without the evidence of a particular finding.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Permanent number.
    pub code: u32,
    /// Permanent name.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// The weight in the verdict.
    pub weight: Weight,
    /// Whether an unattended repair (`preen`) may act on it.
    pub preen: bool,
    /// The object that it concerns.
    pub object: Object,
    /// Its meaning for a person, in one or two sentences.
    pub meaning: &'static str,
    /// The repair.
    pub repair: &'static str,
}

/// A hash of the findings that this build knows. Builds of one version that differ in these judge in different ways.
pub(crate) fn known_findings() -> u128 {
    let mut hasher = SipHasher24::new_with_key(b"floe's findings ");
    for row in ROWS {
        hasher.write(&row.code.to_le_bytes());
        hasher.write(&[row.severity as u8, row.weight as u8]);
        hasher.write(row.id.as_bytes());
    }
    hasher.finish128().as_u128()
}

/// One value of the evidence of a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// An inode.
    Inode(InodeNr),
    /// A physical block.
    Block(BlockNr),
    /// A logical block.
    Logical(LogicalBlock),
    /// A group.
    Group(GroupNr),
    /// A count or a stored value.
    Number(u64),
    /// A signed value.
    Signed(i64),
    /// Words: a field name, a feature, a file name.
    Text(String),
}

macro_rules! evidence_from {
    ($($ty:ty => $variant:ident),*) => {$(
        impl From<$ty> for Evidence {
            fn from(value: $ty) -> Self {
                Self::$variant(value.into())
            }
        }
    )*};
}
evidence_from!(
    InodeNr => Inode, BlockNr => Block, LogicalBlock => Logical, GroupNr => Group,
    u8 => Number, u16 => Number, u32 => Number, u64 => Number, i64 => Signed,
    &'static str => Text
);

/// A file name as it lies on the disk: any bytes, at most 255.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub Box<[u8]>);

impl Name {
    /// A copy of `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl From<Name> for Evidence {
    fn from(name: Name) -> Self {
        Self::Text(name.0.escape_ascii().to_string())
    }
}

/// Where findings go.
pub trait Sink {
    /// Notes a finding.
    fn push(&mut self, problem: Problem);
}

/// Findings of one worker, unordered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings(pub Vec<Problem>);

impl Sink for Findings {
    fn push(&mut self, problem: Problem) {
        self.0.push(problem);
    }
}

impl floe_exec::Accumulator for Findings {
    fn merge(&mut self, other: Self) {
        let Self(mut other) = other;
        // The fewer are moved.
        if self.0.len() < other.len() {
            std::mem::swap(&mut self.0, &mut other);
        }
        self.0.append(&mut other);
    }
}

impl Saved for Name {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self(bytes) = self;
        crate::saved::put_text(to, bytes);
    }
    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        from.text_bytes().map(|bytes| Self(bytes.into()))
    }
}

impl Saved for Findings {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self(found) = self;
        found.save(to);
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        Saved::load(from).map(Self)
    }
}

/// Makes the type, the rows and the texts of the problem table.
///
/// A row: `CODE "id" Variant { field: Type, .. } Severity Weight preen|ask Object "message with
/// {field}s" means "..." repair "...";`
macro_rules! problems {
    (@preen preen) => { true };
    (@preen ask) => { false };
    ($(
        $code:literal $id:literal $variant:ident $({ $($field:ident: $ty:ty),* $(,)? })?
        $severity:ident $weight:ident $preen:ident $object:ident
        $message:literal means $meaning:literal repair $repair:literal;
    )*) => {
        /// A finding: which condition, and the evidence. Ordered by code, then by place.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)] // each variant's documentation is its meaning
        pub enum Problem {
            $(#[doc = $meaning] $variant $({ $($field: $ty),* })?,)*
        }

        /// All rows, in ascending order of their codes.
        pub const ROWS: &[Row] = &[$(Row {
            code: $code,
            id: $id,
            severity: Severity::$severity,
            weight: Weight::$weight,
            preen: problems!(@preen $preen),
            object: Object::$object,
            meaning: $meaning,
            repair: $repair,
        },)*];

        // One index a variant, in the order of the rows.
        #[allow(clippy::enum_variant_names)]
        enum Index { $($variant,)* }

        impl Problem {
            /// The index of its row in [`ROWS`].
            pub(crate) fn index(&self) -> usize {
                match self {
                    $(Self::$variant $({ $($field: _),* })? => Index::$variant as usize,)*
                }
            }

            /// The row of this finding.
            pub fn row(&self) -> &'static Row {
                &ROWS[self.index()]
            }

            /// The evidence: names and values, in the order of the row.
            #[allow(clippy::too_many_lines)] // one arm a row
            pub fn evidence(&self) -> Vec<(&'static str, Evidence)> {
                match self {
                    $(Self::$variant $({ $($field),* })? => {
                        vec![$($((stringify!($field), Evidence::from($field.clone())),)*)?]
                    })*
                }
            }
        }

        impl Problem {
            /// The fields that are of type `T`, with their names; nothing else is looked at.
            #[allow(clippy::too_many_lines)] // one arm a row
            pub(super) fn fields<T: Copy + 'static>(&self) -> Vec<(&'static str, T)> {
                match self {
                    $(Self::$variant $({ $($field),* })? => {
                        let all: &[(&'static str, &dyn std::any::Any)] =
                            &[$($((stringify!($field), $field),)*)?];
                        $crate::problem::of_type(all)
                    })*
                }
            }
        }

        impl Saved for Problem {
            #[allow(clippy::too_many_lines)] // one arm a row
            fn save(&self, to: &mut Encoder<'_>) {
                self.row().code.save(to);
                match self {
                    $(Self::$variant $({ $($field),* })? => { $($($field.save(to);)*)? })*
                }
            }

            #[allow(clippy::too_many_lines)] // one arm a row
            fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
                Ok(match u32::load(from)? {
                    $($code => Self::$variant $({ $($field: Saved::load(from)?),* })?,)*
                    _ => return Err(Fault::Damaged),
                })
            }
        }

        impl std::fmt::Display for Problem {
            #[allow(unused_variables, clippy::too_many_lines)] // one arm a row
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let text = match self {
                    $(Self::$variant $({ $($field),* })? => format!($message),)*
                };
                f.write_str(&floe_format::words::agree(&text))
            }
        }
    };
}
use problems;

/// The fields that have type `T`.
fn of_type<T: Copy + 'static>(fields: &[(&'static str, &dyn Any)]) -> Vec<(&'static str, T)> {
    let of = |(name, field): &(&'static str, &dyn Any)| Some((*name, *field.downcast_ref::<T>()?));
    fields.iter().filter_map(of).collect()
}

impl Problem {
    /// The inode a finding is about, if it is about one: its field `inode` or `dir`.
    pub fn inode(&self) -> Option<InodeNr> {
        let inodes = self.fields::<InodeNr>().into_iter();
        inodes.filter(|(name, _)| matches!(*name, "inode" | "dir")).map(|(_, inode)| inode).next()
    }

    /// The group that a finding names first, if it names any.
    pub fn group(&self) -> Option<GroupNr> {
        self.fields().into_iter().map(|(_, group)| group).next()
    }

    /// Other inodes that a finding has to do with and whose paths a reader wants: who shares blocks,
    /// the directory in which it was. (What an entry names has the path of the entry.)
    pub fn others(&self) -> impl Iterator<Item = InodeNr> {
        const NAMED: [&str; 4] = ["sharer", "parent", "stored", "expected"];
        let inodes = self.fields::<InodeNr>().into_iter();
        inodes.filter(|(name, inode)| NAMED.contains(name) && inode.0 != 0).map(|(_, inode)| inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const NOT_RAISED: &str = include_str!("../../../../docs/problems-not-raised.tsv");

    /// Ids and codes of the catalogue's conditions that have no row, with the reason.
    fn not_raised() -> Vec<(&'static str, u32, &'static str)> {
        let line = |line: &'static str| {
            let mut cells = line.split('\t');
            let (id, code, why) = (cells.next()?, cells.next()?, cells.next()?);
            Some((id, u32::from_str_radix(code.trim_start_matches("0x"), 16).ok()?, why))
        };
        NOT_RAISED.lines().skip(1).map(|text| line(text).unwrap()).collect()
    }

    #[test]
    fn codes_and_ids_are_unique_and_ascending() {
        assert!(ROWS.windows(2).all(|pair| pair[0].code < pair[1].code));
        let ids: BTreeSet<_> = ROWS.iter().map(|row| row.id).collect();
        assert_eq!(ids.len(), ROWS.len());
    }

    #[test]
    fn texts_are_whole_sentences() {
        for row in ROWS {
            assert!(row.meaning.ends_with('.') && row.repair.ends_with('.'), "{}", row.id);
            assert!(!row.id.is_empty() && row.id.is_ascii(), "{}", row.id);
        }
    }

    #[test]
    fn a_condition_is_a_row_or_says_why_not() {
        let listed = not_raised();
        assert!(listed.windows(2).all(|pair| pair[0].1 < pair[1].1), "the list is in code order");
        for (id, code, why) in listed {
            assert!(!why.is_empty(), "{id} gives no reason");
            assert!(ROWS.iter().all(|row| row.id != id && row.code != code), "{id} is in both");
        }
    }

    #[test]
    fn the_whole_catalogue_is_covered() {
        let Some(path) = std::env::var_os("FLOE_PROBLEMS") else {
            eprintln!("skipped: FLOE_PROBLEMS does not name a problems.tsv");
            return;
        };
        let catalogue = std::fs::read_to_string(path).unwrap();
        let listed = not_raised();
        for line in catalogue.lines().skip(1) {
            let cells: Vec<_> = line.split('\t').collect();
            let code = u32::from_str_radix(cells[1].trim_start_matches("0x"), 16).unwrap();
            let row = ROWS.iter().find(|row| row.id == cells[0]);
            match row {
                Some(row) => {
                    assert_eq!(row.code, code, "{}", row.id);
                    assert_eq!(row.severity.name(), cells[3], "{}", row.id);
                    // e2fsck gives transactions up unattended.
                    let preen = cells[4] == "yes" && row.id != "journal-transaction-corrupt";
                    assert_eq!(row.preen, preen, "{}", row.id);
                    assert_eq!(row.object.name(), cells[6], "{}", row.id);
                }
                None => assert!(
                    listed.iter().any(|&(id, its, _)| id == cells[0] && its == code),
                    "{} has neither a row nor a reason",
                    cells[0]
                ),
            }
        }
    }

    #[test]
    fn place_and_texts_come_with_a_finding() {
        let problem = Problem::InodeLinkCountWrong { inode: InodeNr(12), stored: 3, counted: 2 };
        assert_eq!(problem.row().id, "inode-link-count-wrong");
        assert_eq!(problem.inode(), Some(InodeNr(12)));
        assert_eq!(problem.evidence()[1], ("stored", Evidence::Number(3)));
        assert_eq!(problem.to_string(), "inode 12 says that it has 3 names, found are 2");
    }
}

#[cfg(test)]
mod saved {
    use super::*;
    use crate::saved::tests::{BOUNDS, again, bytes_of, of_bytes};

    /// As many small numbers as the longest row has fields, each a text of one byte where it is one.
    struct Fields(u32);

    impl Saved for Fields {
        fn save(&self, to: &mut Encoder<'_>) {
            self.0.save(to);
            (0..40).for_each(|_| to.put(1));
        }
        fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
            let problem = Problem::load(from)?;
            assert_eq!(again(&problem), problem);
            while from.number().is_ok() {}
            Ok(Self(problem.row().code))
        }
    }

    #[test]
    fn a_finding_of_every_row_comes_back() {
        for row in ROWS {
            let loaded: Fields = of_bytes(&bytes_of(&Fields(row.code)), BOUNDS).unwrap();
            assert_eq!(loaded.0, row.code);
        }
        assert!(of_bytes::<Fields>(&bytes_of(&Fields(0x00ff_ffff)), BOUNDS).is_err());
    }
}

#[cfg(test)]
mod laws {
    use super::*;

    floe_exec::accumulator_laws!(
        Findings,
        (1u32..9, 0u32..3),
        |all: &mut Findings, (inode, value): (u32, u32)| {
            all.push(Problem::InodeFaddrNonzero { inode: InodeNr(inode), value });
        },
        crate::report::in_order
    );
}
