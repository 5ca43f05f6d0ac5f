//! Shows a block as a structure.

use floe_check::reader::{Reader, ReaderError};
use floe_format::ext::dirent::{DirCursor, DirTail};
use floe_format::ext::extent::ExtentNode;
use floe_format::ext::htree::{DxBlock, HashVersion};
use floe_format::ext::indirect;
use floe_format::ext::xattr::{XattrArea, XattrHeader, block_checksum, full_name};
use floe_format::{BlockNr, LogicalBlock};

use crate::commands::dump::{checksum, no_structure};
use crate::terminal::listing::Listing;

/// Maximum bytes of an attribute value to show.
const VALUE_BYTES: usize = 64;

/// Shows a block as bytes or as a structure.
pub(crate) fn block(
    reader: &Reader<'_>,
    number: BlockNr,
    structure: &str,
) -> Result<Listing, ReaderError> {
    let bytes = reader.block(number)?;
    let title = format!("Block {} as {structure}", number.0);
    Ok(match structure {
        "bytes" | "hex" => hex(&bytes, title),
        "dirents" => dirents(&bytes, title),
        "htree" => htree(&bytes, title.clone(), true, None)
            .or_else(|| htree(&bytes, title.clone(), false, None))
            .map_or_else(|| nothing(title), |(sheet, _)| sheet),
        "extents" => extents(&bytes, title),
        "indirect" => pointers(reader, &bytes, title),
        "xattrs" => xattrs(reader, number, &bytes, title),
        other => return Err(no_structure(other)),
    })
}

fn nothing(title: String) -> Listing {
    let mut sheet = Listing::new(title);
    sheet.remark("the block does not hold this structure");
    sheet
}

fn hex(bytes: &[u8], title: String) -> Listing {
    let mut sheet = Listing::new(title);
    sheet.columns(&["byte", "hex", "text"]);
    let mut skipped = 0;
    for (index, line) in bytes.chunks(16).enumerate() {
        if line.iter().all(|&byte| byte == 0) {
            skipped += line.len();
            continue;
        }
        let hex: Vec<_> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let visible = |&byte: &u8| if byte.is_ascii_graphic() { char::from(byte) } else { '.' };
        sheet.row(vec![
            format!("{:#06x}", index * 16),
            hex.join(" "),
            line.iter().map(visible).collect(),
        ]);
    }
    if skipped > 0 {
        sheet.remark(format!("{skipped} zero bytes omitted"));
    }
    sheet
}

fn dirents(bytes: &[u8], title: String) -> Listing {
    let mut sheet = Listing::new(title);
    sheet.columns(&["byte", "length", "inode", "type", "name"]);
    for entry in DirCursor::new(bytes) {
        match entry {
            Ok(entry) => sheet.row(vec![
                entry.offset.to_string(),
                entry.rec_len.to_string(),
                entry.inode.0.to_string(),
                entry.file_type.to_string(),
                entry.name.escape_ascii().to_string(),
            ]),
            Err(fault) => sheet.remark(format!(
                "byte {}: invalid entry of {} bytes: it {}",
                fault.offset,
                fault.rec_len,
                fault.kind.words()
            )),
        }
    }
    if let Some(tail) = DirTail::of(bytes) {
        sheet.field("checksum", format!("{:#010x}", tail.checksum));
    }
    sheet
}

/// Shows an index block, and returns the blocks that it leads to; `None` if it is none. Verifies
/// the checksum if `inode_seed` is given.
pub(crate) fn htree(
    bytes: &[u8],
    title: String,
    is_root: bool,
    inode_seed: Option<u32>,
) -> Option<(Listing, Vec<LogicalBlock>)> {
    let (kind, block) = DxBlock::detect(bytes)?;
    let is_really_root = kind == floe_format::ext::htree::DxKind::Root;
    if is_really_root != is_root {
        return None;
    }
    let mut sheet = Listing::new(title);
    if is_root {
        let info = DxBlock::root_info(bytes)?;
        sheet.field("kind", "root");
        sheet.structure(info.fields());
        let hash = HashVersion::of(info.hash_version).map_or("unknown", HashVersion::name);
        sheet.field("hash", hash);
    } else {
        sheet.field("kind", "node");
    }
    sheet.field("limit", block.limit());
    sheet.field("count", block.count());
    sheet.columns(&["hash", "block"]);
    let entries: Vec<_> = block.entries().collect();
    for entry in &entries {
        sheet.row(vec![format!("{:#010x}", entry.hash), entry.block.0.to_string()]);
    }
    if let (Some(seed), Some(tail)) = (inode_seed, block.tail()) {
        checksum(&mut sheet, tail.checksum, block.compute_checksum(seed).unwrap_or(0));
    }
    Some((sheet, entries.into_iter().map(|entry| entry.block).collect()))
}

fn extents(bytes: &[u8], title: String) -> Listing {
    let mut sheet = Listing::new(title);
    let Some(node) = ExtentNode::new(bytes) else { return sheet };
    let header = node.header();
    sheet.structure(header.fields());
    if !node.header_ok() {
        sheet.remark("the header is not that of an extent node");
        return sheet;
    }
    sheet.columns(&["logical", "physical", "blocks", "kind"]);
    for at in 0..header.entries.min(node.capacity()) {
        sheet.row(if header.depth == 0 {
            let extent = node.extent(at);
            vec![
                extent.logical.0.to_string(),
                extent.run.start.0.to_string(),
                extent.run.len_blocks.to_string(),
                if extent.unwritten { "unwritten" } else { "data" }.to_owned(),
            ]
        } else {
            let index = node.index(at);
            let (logical, node) = (index.logical.0.to_string(), index.node.0.to_string());
            vec![logical, node, String::new(), "node".to_owned()]
        });
    }
    sheet
}

fn pointers(reader: &Reader<'_>, bytes: &[u8], title: String) -> Listing {
    let mut sheet = Listing::new(title);
    let form = reader.geometry.indirect();
    if let Some(header) = form.header(bytes) {
        sheet.structure(header.fields());
    }
    sheet.columns(&["index", "block"]);
    for (index, pointer) in indirect::pointers(form.body(bytes)).enumerate() {
        if pointer != 0 {
            sheet.row(vec![index.to_string(), pointer.to_string()]);
        }
    }
    sheet
}

fn xattrs(reader: &Reader<'_>, number: BlockNr, bytes: &[u8], title: String) -> Listing {
    let mut sheet = Listing::new(title);
    let (Some(header), Some(area)) = (bytes.first_chunk(), XattrArea::of_block(bytes)) else {
        return sheet;
    };
    let header = XattrHeader::decode(header);
    sheet.structure(header.fields());
    if reader.geometry.features.metadata_csum() {
        let computed = block_checksum(reader.superblock.seed(), number, bytes);
        checksum(&mut sheet, header.checksum, computed);
    }
    attributes(&mut sheet, &area);
    sheet
}

/// Adds the attributes of an area as rows.
pub(crate) fn attributes(sheet: &mut Listing, area: &XattrArea<'_>) {
    sheet.columns(&["byte", "name", "bytes", "hash", "value"]);
    for entry in area.entries() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(fault) => {
                sheet.remark(format!("byte {}: {}", fault.offset, fault.kind.words()));
                break;
            }
        };
        let value = match (entry.value_inode, area.value(&entry)) {
            (Some(inode), _) => format!("in {inode}"),
            (None, Some(value)) if value.len() > VALUE_BYTES => {
                format!("{}...", value[..VALUE_BYTES].escape_ascii())
            }
            (None, Some(value)) => value.escape_ascii().to_string(),
            (None, None) => "outside its place".to_owned(),
        };
        sheet.row(vec![
            entry.offset.to_string(),
            full_name(entry.name_index, entry.name).escape_debug().to_string(),
            entry.value_size.to_string(),
            format!("{:#010x}", entry.hash),
            value,
        ]);
    }
    if let Err(fault) = area.check() {
        let words = fault.kind.words();
        sheet.remark(format!("entry {} at byte {}: {words}", fault.index, fault.offset));
    }
}
