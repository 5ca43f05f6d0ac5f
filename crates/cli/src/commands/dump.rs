//! `floe dump`: shows any structure field by field, whether valid or not.

use std::io::Write;

use clap::Subcommand;
use floe_check::reader::{Reader, ReaderError};
use floe_format::ext::group_desc::DescChecksum;
use floe_format::{BlockNr, GroupNr, InodeNr};

use crate::exit::{Ended, Outcome};
use crate::input::device::Source;
use crate::terminal::failure;
use crate::terminal::listing::{self, Listing};

mod blocks;
mod inodes;
mod special;

/// Show any structure of a file system, field by field.
///
/// Checks nothing: shows the on-disk content, valid or not. An INODE is a number or a path
/// (/dir/file).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// Output JSON
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The superblock
    Superblock,
    /// A group descriptor
    Group {
        /// Group number
        number: u32,
    },
    /// An inode, with all its fields
    Inode {
        /// Number or path
        inode: String,
    },
    /// The block mapping of a file: its extents or block map
    Extents {
        /// Number or path
        inode: String,
    },
    /// The entries of a directory
    Dirents {
        /// Number or path
        inode: String,
    },
    /// The hash tree of a directory
    Htree {
        /// Number or path
        inode: String,
    },
    /// The extended attributes of an inode
    Xattrs {
        /// Number or path
        inode: String,
    },
    /// A block, as bytes or `as` a structure: dirents, htree, extents, xattrs, indirect
    Block {
        /// Block number
        number: u64,
        /// `as` and the structure
        #[arg(num_args = 0..=2, value_names = ["as", "STRUCTURE"])]
        structure: Vec<String>,
    },
    /// The journal: its superblock and the blocks of its log
    Journal,
    /// The MMP block
    Mmp,
    /// Orphaned inodes: the orphan list and the orphan file
    Orphans,
    /// Usage and limits of users, groups and projects
    Quota,
}

impl Args {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<Outcome> {
        let device = self.source.open()?;
        let superblock = self.source.superblock.map(BlockNr);
        let sheets = Reader::open(&device, superblock, self.source.block_size)
            .and_then(|reader| self.what.sheets(&reader));
        match sheets {
            Ok(sheets) => {
                listing::write(out, &sheets, self.json)?;
                Ok(Outcome::CLEAN)
            }
            Err(error) => {
                Err(Ended::failed(failure::of_reader(&error, &device, &self.source.name())))
            }
        }
    }
}

impl What {
    fn sheets(&self, reader: &Reader<'_>) -> Result<Vec<Listing>, ReaderError> {
        Ok(match self {
            Self::Superblock => vec![superblock(reader)],
            Self::Group { number } => vec![group(reader, GroupNr(*number))?],
            Self::Inode { inode } => inodes::inode(reader, find(reader, inode)?)?,
            Self::Extents { inode } => vec![inodes::mapping(reader, find(reader, inode)?)?],
            Self::Dirents { inode } => vec![inodes::entries(reader, find(reader, inode)?)?],
            Self::Htree { inode } => inodes::htree(reader, find(reader, inode)?)?,
            Self::Xattrs { inode } => inodes::xattrs(reader, find(reader, inode)?)?,
            Self::Block { number, structure } => {
                let words: Vec<&str> = structure.iter().map(String::as_str).collect();
                let structure = match words.as_slice() {
                    [] => "bytes",
                    ["as", structure] | [structure] => structure,
                    _ => return Err(no_structure(&words.join(" "))),
                };
                vec![blocks::block(reader, BlockNr(*number), structure)?]
            }
            Self::Journal => special::journal(reader)?,
            Self::Mmp => vec![special::mmp(reader)?],
            Self::Orphans => special::orphans(reader)?,
            Self::Quota => special::quota(reader)?,
        })
    }
}

/// The error for an unknown structure of a block.
fn no_structure(name: &str) -> ReaderError {
    let known = "bytes, dirents, htree, extents, xattrs and indirect".to_owned();
    ReaderError::NoSuch(format!("structure {name:?} of a block"), known)
}

/// The inode with a number (`12` or `<12>`) or path.
fn find(reader: &Reader<'_>, text: &str) -> Result<InodeNr, ReaderError> {
    let digits = text.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')).unwrap_or(text);
    match digits.parse() {
        Ok(number) => Ok(InodeNr(number)),
        Err(_) => reader.lookup(text),
    }
}

fn superblock(reader: &Reader<'_>) -> Listing {
    let at = reader.superblock_offset_bytes;
    let mut sheet = Listing::new(format!("Superblock at byte {at}"));
    let stored = reader.superblock.checksum;
    sheet.structure(reader.superblock.fields());
    if reader.geometry.features.metadata_csum() {
        let computed =
            floe_format::ext::superblock::Superblock::compute_checksum(&reader.superblock_bytes);
        checksum(&mut sheet, stored, computed);
    }
    sheet
}

fn group(reader: &Reader<'_>, number: GroupNr) -> Result<Listing, ReaderError> {
    let (bytes, desc) = reader.group(number)?;
    let mut sheet = Listing::new(format!("Descriptor of {number}"));
    let blocks = reader.geometry.blocks_of(number);
    sheet.field("blocks", format!("{} to {}", blocks.start.0, blocks.end().0.saturating_sub(1)));
    sheet.field("block_bitmap", desc.block_bitmap.0);
    sheet.field("inode_bitmap", desc.inode_bitmap.0);
    sheet.field("inode_table", desc.inode_table.0);
    sheet.field("free_blocks_count", desc.free_blocks_count);
    sheet.field("free_inodes_count", desc.free_inodes_count);
    sheet.field("used_dirs_count", desc.used_dirs_count);
    sheet.field("itable_unused", desc.itable_unused);
    sheet.field("flags", format!("{:#x}", desc.flags));
    sheet.field("block_bitmap_csum", format!("{:#010x}", desc.block_bitmap_csum));
    sheet.field("inode_bitmap_csum", format!("{:#010x}", desc.inode_bitmap_csum));
    sheet.field("checksum", format!("{:#06x}", desc.checksum));
    if let Some(computed) = DescChecksum::of(&reader.superblock).compute(number, &bytes) {
        checksum(&mut sheet, u32::from(desc.checksum), u32::from(computed));
    }
    Ok(sheet)
}

/// Adds a remark on a wrong checksum.
fn checksum(sheet: &mut Listing, stored: u32, computed: u32) {
    if stored != computed {
        sheet.remark(format!("the checksum is {stored:#010x}, but should be {computed:#010x}"));
    }
}

/// Names of the set flags, with the bits of unknown ones.
fn flags<F: bitflags::Flags<Bits = u32>>(flags: &F) -> String {
    let mut names: Vec<String> =
        flags.iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect();
    let known = flags.iter_names().fold(0, |bits, (_, flag)| bits | flag.bits());
    let unknown = flags.bits() & !known;
    if unknown != 0 {
        names.push(format!("{unknown:#x}"));
    }
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}
