//! Structures that exist once: journal, MMP block, orphans, quotas.

use std::collections::HashSet;

use floe_check::reader::{Mapping, Reader, ReaderError};
use floe_format::ext::inode::Inode;
use floe_format::ext::jbd2;
use floe_format::ext::mmp::{Mmp, SEQ_CLEAN, SEQ_FSCK};
use floe_format::ext::orphan_file::{self, OrphanBlock};
use floe_format::ext::quota::{self, Dquot, QuotaHeader};
use floe_format::features::{Compat, Incompat};
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use crate::commands::dump::checksum;
use crate::commands::info::journal_superblock;
use crate::terminal::listing::Listing;

/// Maximum orphans to list.
const MOST_ORPHANS: usize = 100_000;

fn absent(what: &str, why: &str) -> ReaderError {
    ReaderError::NoSuch(what.to_owned(), why.to_owned())
}

fn mapping_of(reader: &Reader<'_>, number: InodeNr) -> Result<(Mapping, u64), ReaderError> {
    let bytes = reader.inode_bytes(number)?;
    let inode: Inode<'_> = reader.decode(&bytes)?;
    Ok((reader.map(&inode), inode.size_bytes()))
}

/// The journal superblock, and every block of the log except data.
pub(crate) fn journal(reader: &Reader<'_>) -> Result<Vec<Listing>, ReaderError> {
    let superblock = &reader.superblock;
    if !reader.geometry.features.compat.contains(Compat::HAS_JOURNAL) {
        return Err(absent("journal", "no has_journal feature"));
    }
    if superblock.journal_inum == 0 {
        return Err(absent("journal in it", "one on another device"));
    }
    let number = InodeNr(superblock.journal_inum);
    let mut head = Listing::new(format!("Journal superblock ({number})"));
    let mut log = Listing::new("Log");
    let Some(found) = journal_superblock(reader, number) else {
        head.remark("there is no journal superblock");
        return Ok(vec![head]);
    };
    head.structure(found.fields().into_iter().filter(|(name, _)| *name != "users").collect());
    let (mapping, _) = mapping_of(reader, number)?;
    log.columns(&["block", "sequence", "kind", "tells of"]);
    let format = found.format();
    let last = u64::from(found.maxlen).min(mapping.blocks());
    for at in u64::from(found.first.max(1))..last {
        let Some(block) = mapping.find(LogicalBlock(at)) else { continue };
        let bytes = reader.block(block)?;
        let Some(header) = jbd2::header(&bytes).filter(|header| header.magic == jbd2::MAGIC) else {
            continue;
        };
        let (kind, what) = match header.blocktype {
            jbd2::DESCRIPTOR_BLOCK => {
                let blocks: Vec<_> = format.tags(&bytes).map(|tag| tag.block.to_string()).collect();
                ("descriptor", blocks.join(" "))
            }
            jbd2::COMMIT_BLOCK => ("commit", String::new()),
            jbd2::REVOKE_BLOCK => {
                let blocks = format.revoked(&bytes).into_iter().flatten();
                ("revoke", blocks.map(|block| block.to_string()).collect::<Vec<_>>().join(" "))
            }
            _ => ("other", String::new()),
        };
        log.row(vec![at.to_string(), header.sequence.to_string(), kind.to_owned(), what]);
    }
    if found.start == 0 {
        log.remark("the journal is empty: all of these transactions are checkpointed");
    }
    Ok(vec![head, log])
}

/// The MMP block.
pub(crate) fn mmp(reader: &Reader<'_>) -> Result<Listing, ReaderError> {
    if !reader.geometry.features.incompat.contains(Incompat::MMP) {
        return Err(absent("multiple-mount protection", "no mmp feature"));
    }
    let number = BlockNr(reader.superblock.mmp_block);
    let bytes = reader.block(number)?;
    let bytes = bytes.first_chunk().unwrap_or(&[0; 1024]);
    let mmp = Mmp::decode(bytes);
    let mut sheet = Listing::new(format!("Multiple-mount protection in {number}"));
    let state = match mmp.seq {
        SEQ_CLEAN => "unmounted".to_owned(),
        SEQ_FSCK => "a checker is at work".to_owned(),
        sequence => format!("mounted (sequence {sequence})"),
    };
    sheet.field("state", state);
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        bytes[..end].escape_ascii().to_string()
    };
    sheet.field("magic", format!("{:#x}", mmp.magic));
    sheet.field("seq", format!("{:#x}", mmp.seq));
    sheet.field("time", mmp.time);
    sheet.field("nodename", text(&mmp.nodename));
    sheet.field("bdevname", text(&mmp.bdevname));
    sheet.field("check_interval", mmp.check_interval);
    if reader.geometry.features.metadata_csum() {
        checksum(&mut sheet, mmp.checksum, Mmp::compute_checksum(reader.superblock.seed(), bytes));
    }
    Ok(sheet)
}

/// The orphan list and the orphan file.
pub(crate) fn orphans(reader: &Reader<'_>) -> Result<Vec<Listing>, ReaderError> {
    let mut list = Listing::new("Orphan list");
    list.columns(&["inode", "links", "size", "next"]);
    let mut seen = HashSet::new();
    let mut next = InodeNr(reader.superblock.last_orphan);
    list.field("first", next.0);
    while next.0 != 0 && seen.len() < MOST_ORPHANS {
        if !seen.insert(next) {
            list.remark(format!("{next} is on the list twice"));
            break;
        }
        let bytes = match reader.inode_bytes(next) {
            Ok(bytes) => bytes,
            Err(error) => {
                list.remark(error.to_string());
                break;
            }
        };
        let inode = reader.decode(&bytes)?;
        list.row(vec![
            next.0.to_string(),
            inode.base.links_count.to_string(),
            inode.size_bytes().to_string(),
            inode.base.dtime.to_string(),
        ]);
        next = InodeNr(inode.base.dtime);
    }
    if !reader.geometry.features.compat.contains(Compat::ORPHAN_FILE) {
        return Ok(vec![list]);
    }
    Ok(vec![list, orphan_file(reader)?])
}

fn orphan_file(reader: &Reader<'_>) -> Result<Listing, ReaderError> {
    let number = InodeNr(reader.superblock.orphan_file_inum);
    let bytes = reader.inode_bytes(number)?;
    let generation = reader.decode(&bytes)?.base.generation;
    let inode_seed = reader.superblock.seed().of_inode(number, generation);
    let (mapping, _) = mapping_of(reader, number)?;
    let mut sheet = Listing::new(format!("Orphan file ({number})"));
    sheet.field("blocks", mapping.blocks());
    sheet.columns(&["block", "inode"]);
    let numbers = mapping.extents.iter().flat_map(|extent| {
        let blocks = extent.run.start.0..extent.run.end().0;
        blocks.zip(extent.logical.0..)
    });
    for (block, logical) in numbers.take(1 << 16) {
        let bytes = reader.block(BlockNr(block))?;
        let Some(found) = OrphanBlock::new(&bytes) else { continue };
        if found.magic() != orphan_file::MAGIC {
            sheet.remark(format!("logical block {logical} ends with {:#x}", found.magic()));
        }
        if reader.geometry.features.metadata_csum() {
            let computed = found.compute_checksum(inode_seed, BlockNr(block));
            checksum(&mut sheet, found.stored_checksum(), computed);
        }
        for orphan in found.orphans() {
            sheet.row(vec![logical.to_string(), orphan.0.to_string()]);
        }
    }
    Ok(sheet)
}

/// The quota files in the hidden inodes.
pub(crate) fn quota(reader: &Reader<'_>) -> Result<Vec<Listing>, ReaderError> {
    let superblock = &reader.superblock;
    let files = [
        ("user", superblock.usr_quota_inum),
        ("group", superblock.grp_quota_inum),
        ("project", superblock.prj_quota_inum),
    ];
    let files: Vec<_> = files.into_iter().filter(|&(_, number)| number != 0).collect();
    if files.is_empty() {
        return Err(absent("quota file", "none named in the superblock"));
    }
    files.into_iter().map(|(kind, number)| quota_file(reader, kind, InodeNr(number))).collect()
}

fn quota_file(reader: &Reader<'_>, kind: &str, number: InodeNr) -> Result<Listing, ReaderError> {
    let (mapping, size_bytes) = mapping_of(reader, number)?;
    let block_size = u64::from(reader.geometry.block_size);
    let mut sheet = Listing::new(format!("Quotas of each {kind} ({number})"));
    let read = |offset: u64, into: &mut [u8; quota::BLOCK_SIZE]| -> Result<(), ReaderError> {
        into.fill(0);
        let Some(block) = mapping.find(LogicalBlock(offset / block_size)) else { return Ok(()) };
        let bytes = reader.block(block)?;
        let at = (offset % block_size) as usize;
        // File system blocks are multiples of the quota format's 1 KiB blocks.
        if let Some(part) = bytes.get(at..at + quota::BLOCK_SIZE) {
            into.copy_from_slice(part);
        }
        Ok(())
    };
    let mut head = [0; quota::BLOCK_SIZE];
    read(0, &mut head)?;
    sheet.structure(QuotaHeader::decode(head.first_chunk().unwrap_or(&[0; 32])).fields());
    sheet.columns(&["id", "bytes", "soft KiB", "hard KiB", "inodes", "soft", "hard"]);
    let mut entries: Vec<Dquot> = Vec::new();
    let mut faults = Vec::new();
    let blocks = u32::try_from(size_bytes / quota::BLOCK_SIZE as u64).unwrap_or(u32::MAX);
    quota::walk(blocks, read, |entry| entries.push(entry), |fault| faults.push(fault))?;
    entries.sort_by_key(|entry| entry.id);
    for entry in entries {
        sheet.row(vec![
            entry.id.to_string(),
            entry.space_bytes.to_string(),
            entry.block_soft_limit_kib.to_string(),
            entry.block_hard_limit_kib.to_string(),
            entry.inodes.to_string(),
            entry.inode_soft_limit.to_string(),
            entry.inode_hard_limit.to_string(),
        ]);
    }
    for fault in faults {
        sheet.remark(fault.to_string());
    }
    Ok(sheet)
}
