//! An inode and its structures.

use floe_check::reader::{Reader, ReaderError};
use floe_ext4::map::walk::has_map;
use floe_format::ext::inode::{FileType, Inode, decode_nanoseconds, decode_seconds};
use floe_format::ext::xattr::XattrArea;
use floe_format::features::Incompat;
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use super::{blocks, flags};
use crate::commands::dump::checksum;
use crate::terminal::listing::Listing;

/// All fields of an inode, with split fields joined.
pub(crate) fn inode(reader: &Reader<'_>, number: InodeNr) -> Result<Vec<Listing>, ReaderError> {
    let bytes = reader.inode_bytes(number)?;
    let inode = reader.decode(&bytes)?;
    let (block, at) = reader.place_of(number)?;
    let mut sheet = Listing::new(format!("Inode {} ({block}, byte {at})", number.0));
    let kind = inode.file_type().map_or("undefined", kind);
    sheet.field("type", format!("{kind} (mode {:06o})", inode.base.mode));
    sheet.field("size", inode.size_bytes());
    sheet.field("owner", format!("{}:{}", inode.uid(), inode.gid()));
    sheet.field("flag names", flags(&inode.flags()));
    let bit64 = reader.geometry.features.incompat.contains(Incompat::BIT64);
    sheet.field("attribute block", inode.file_acl(bit64));
    let times = [
        ("accessed", inode.base.atime, inode.extra.atime_extra),
        ("changed", inode.base.ctime, inode.extra.ctime_extra),
        ("modified", inode.base.mtime, inode.extra.mtime_extra),
        ("created", inode.extra.crtime, inode.extra.crtime_extra),
    ];
    for (name, seconds, extra) in times {
        let since_1970 = decode_seconds(seconds, extra);
        sheet.field(name, format!("{since_1970}.{:09}", decode_nanoseconds(extra)));
    }
    let mut raw = Listing::new("Fields as stored");
    raw.structure(inode.base.fields());
    if inode.raw.len() > 128 {
        raw.structure(inode.extra.fields());
    }
    if reader.geometry.features.metadata_csum() {
        let computed = inode.compute_checksum(reader.superblock.seed(), number);
        checksum(&mut sheet, inode.stored_checksum(), computed);
    }
    Ok(vec![sheet, raw])
}

const fn kind(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "regular file",
        FileType::Directory => "directory",
        FileType::CharDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        FileType::Symlink => "symbolic link",
    }
}

/// The block mapping of a file.
pub(crate) fn mapping(reader: &Reader<'_>, number: InodeNr) -> Result<Listing, ReaderError> {
    let bytes = reader.inode_bytes(number)?;
    let inode = reader.decode(&bytes)?;
    let mapping = reader.map(&inode);
    let mut sheet = Listing::new(format!("Blocks of inode {}", number.0));
    sheet.field("mapped blocks", mapping.blocks());
    sheet.field("map blocks", mapping.nodes.len());
    if !has_map(&inode.base) {
        sheet.remark("the inode has no map: its data is inline, or it has none");
    }
    sheet.columns(&["kind", "logical", "physical", "blocks", "level"]);
    for node in &mapping.nodes {
        sheet.row(vec![
            "map".into(),
            node.logical.0.to_string(),
            node.block.0.to_string(),
            "1".into(),
            node.level.to_string(),
        ]);
    }
    for extent in &mapping.extents {
        sheet.row(vec![
            if extent.unwritten { "unwritten" } else { "data" }.into(),
            extent.logical.0.to_string(),
            extent.run.start.0.to_string(),
            extent.run.len_blocks.to_string(),
            String::new(),
        ]);
    }
    for fault in mapping.faults {
        sheet.remark(fault);
    }
    Ok(sheet)
}

/// The entries of a directory.
pub(crate) fn entries(reader: &Reader<'_>, number: InodeNr) -> Result<Listing, ReaderError> {
    let bytes = reader.inode_bytes(number)?;
    let entries = reader.entries(number, &reader.decode(&bytes)?, u64::MAX)?;
    let mut sheet = Listing::new(format!("Entries of directory inode {}", number.0));
    sheet.field("entries", entries.iter().filter(|entry| entry.inode.0 != 0).count());
    sheet.columns(&["block", "byte", "length", "inode", "type", "name"]);
    for entry in entries {
        sheet.row(vec![
            entry.logical.0.to_string(),
            entry.offset_bytes.to_string(),
            entry.rec_len.to_string(),
            entry.inode.0.to_string(),
            entry.file_type.to_string(),
            entry.name.escape_ascii().to_string(),
        ]);
    }
    Ok(sheet)
}

/// The index blocks of a directory.
pub(crate) fn htree(reader: &Reader<'_>, number: InodeNr) -> Result<Vec<Listing>, ReaderError> {
    let bytes = reader.inode_bytes(number)?;
    let inode = reader.decode(&bytes)?;
    if inode.file_type() != Some(FileType::Directory) {
        let (path, why) = (number.to_string(), "is not a directory".to_owned());
        return Err(ReaderError::Path { path, why });
    }
    let mapping = reader.map(&inode);
    let mut sheets = Vec::new();
    let mut seen = std::collections::HashSet::from([0u64]);
    let mut queue = std::collections::VecDeque::from([(LogicalBlock(0), true)]);
    while let Some((logical, is_root)) = queue.pop_front() {
        let Some(block) = mapping.find(logical) else { continue };
        let bytes = reader.block(block)?;
        let inode_seed = reader.superblock.seed().of_inode(number, inode.base.generation);
        let csum = reader.geometry.features.metadata_csum().then_some(inode_seed);
        let title = format!("{logical} of inode {} ({block})", number.0);
        let Some((sheet, below)) = blocks::htree(&bytes, title, is_root, csum) else {
            if is_root {
                let mut sheet = Listing::new(format!("{logical} of inode {}", number.0));
                sheet.remark("not an index root: the directory is linear");
                sheets.push(sheet);
            }
            continue;
        };
        sheets.push(sheet);
        let below = below.into_iter().filter(|child| seen.insert(child.0));
        queue.extend(below.map(|child| (child, false)));
    }
    Ok(sheets)
}

/// The attributes of an inode, in the inode and in its attribute block.
pub(crate) fn xattrs(reader: &Reader<'_>, number: InodeNr) -> Result<Vec<Listing>, ReaderError> {
    let bytes = reader.inode_bytes(number)?;
    let inode: Inode<'_> = reader.decode(&bytes)?;
    let mut inside = Listing::new(format!("Attributes in inode {}", number.0));
    match XattrArea::of_inode(inode.xattr_area()) {
        Some(area) => blocks::attributes(&mut inside, &area),
        None => inside.field("attributes", "none"),
    }
    let bit64 = reader.geometry.features.incompat.contains(Incompat::BIT64);
    let block = inode.file_acl(bit64);
    if block == 0 {
        return Ok(vec![inside]);
    }
    Ok(vec![inside, blocks::block(reader, BlockNr(block), "xattrs")?])
}
