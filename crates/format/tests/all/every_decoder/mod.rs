//! Feeds any bytes to every decoder of the crate. Shared by the property test `decoders_total` and
//! by the fuzz target `decode` (`fuzz/`), so that both try the same things.
//!
//! The laws: nothing panics or overflows, iterators end within the bytes they were given, and a
//! decoded structure encodes to the same bytes.

use std::sync::LazyLock;

use floe_format::crc::{Seed, crc16, crc32_be};
use floe_format::ext::bitmap;
use floe_format::ext::casefold;
use floe_format::ext::crypt::{Context, ContextV1, ContextV2};
use floe_format::ext::dirent::{self, DirCursor, DirEntryHeader, DirTail};
use floe_format::ext::dirhash;
use floe_format::ext::extent::{ExtentHeader, ExtentNode, RawExtent, RawIndex};
use floe_format::ext::fast_commit::FcRecords;
use floe_format::ext::group_desc::{GroupDesc, GroupDescHigh, GroupDescLow};
use floe_format::ext::htree::RawDxEntry;
use floe_format::ext::htree::{self, DxBlock, DxCountLimit, DxRootInfo, DxTail, HashVersion};
use floe_format::ext::indirect;
use floe_format::ext::inline_data::InlineData;
use floe_format::ext::inode::{self, Inode, InodeBase, InodeExtra};
use floe_format::ext::inode_flips::{self, Syndromes};
use floe_format::ext::inode256::Inode256;
use floe_format::ext::jbd2::JournalSuperblock;
use floe_format::ext::jbd2::{self, BlockHeader, Checksums, CommitBlock, JournalFormat};
use floe_format::ext::mmp::Mmp;
use floe_format::ext::orphan_file::OrphanBlock;
use floe_format::ext::quota::{self, Dquot, LeafHeader, QuotaHeader};
use floe_format::ext::superblock::Superblock;
use floe_format::ext::undo::{self, UndoHeader, UndoKey, UndoKeyHeader};
use floe_format::ext::xattr::{self, Chars, RawXattrEntry, XattrArea, XattrHeader};
use floe_format::ext::xattr::{acl, value_inode};
use floe_format::geometry::{Geometry, Strictness};
use floe_format::native::identity::Identity;
use floe_format::native::lot::LotRecord;
use floe_format::{BlockNr, GroupNr, InodeNr};

/// Decodes `bytes` as every structure. Panics if a law of the crate is broken.
pub(crate) fn decode_everything(bytes: &[u8]) {
    fixed_structures(bytes);
    superblock(bytes);
    descriptor(bytes);
    inodes(bytes);
    extents(bytes);
    directories(bytes);
    attributes(bytes);
    journal(bytes);
    quota_tree(bytes);
    small_things(bytes);
}

/// Decodes a structure of fixed size, and encodes it over the same bytes.
macro_rules! round_trips {
    ($bytes:ident: $($structure:ident),* $(,)?) => {$(
        if let Some(raw) = $bytes.first_chunk() {
            let decoded = $structure::decode(raw);
            let mut again = *raw;
            decoded.encode_into(&mut again);
            assert_eq!(raw, &again, stringify!($structure));
            assert_eq!(decoded, $structure::decode(&again), stringify!($structure));
            assert!(!decoded.fields().is_empty());
        }
    )*};
}

fn fixed_structures(bytes: &[u8]) {
    round_trips!(bytes: BlockHeader, CommitBlock, JournalSuperblock);
    round_trips!(bytes: DirEntryHeader, DirTail, DxRootInfo, DxCountLimit, RawDxEntry, DxTail);
    round_trips!(bytes: ExtentHeader, RawExtent, RawIndex, InodeBase, InodeExtra);
    round_trips!(bytes: QuotaHeader, LeafHeader, Dquot, Mmp, ContextV1, ContextV2);
    round_trips!(bytes: UndoHeader, UndoKeyHeader, UndoKey, Identity, LotRecord);
    round_trips!(bytes: GroupDescLow, GroupDescHigh, XattrHeader, RawXattrEntry, Superblock);
}

fn superblock(bytes: &[u8]) {
    let Some(raw) = bytes.first_chunk::<1024>() else { return };
    let sb = Superblock::decode(raw);
    let _ = (sb.features().names(), sb.label(), sb.uuid_text(), sb.seed());
    let _ = (Identity::of(&sb), Identity::is_sealed(&sb));
    let _ = (sb.free_blocks_count(), sb.reserved_blocks_count(), Superblock::checksum_ok(raw));
    let _ = (Mmp::checksum_ok(sb.seed(), raw), Mmp::compute_checksum(sb.seed(), raw));
    for strictness in [Strictness::Strict, Strictness::Relaxed] {
        let Ok(geometry) = Geometry::new(&sb, strictness) else { continue };
        places(&geometry);
    }
}

/// Calls every function of a geometry with edge values.
fn places(geometry: &Geometry) {
    let last_group = geometry.group_count.saturating_sub(1);
    for group in [0, 1, 2, 3, last_group / 2, last_group].map(GroupNr) {
        if group.0 >= geometry.group_count {
            continue;
        }
        let blocks = geometry.blocks_of(group);
        assert!(blocks.len_blocks > 0 && geometry.contains(blocks.start));
        assert_eq!(geometry.group_of(blocks.start), Some(group));
        assert!(geometry.clusters_of(group) > 0);
        let _ = (geometry.group_desc_run(group), geometry.reserved_gdt_run(group));
        let _ = (geometry.superblock_of(group), geometry.meta_group_of(group));
        let inode = geometry.inode_at(group, geometry.inodes_per_group - 1);
        let place = geometry.place_of(inode);
        assert_eq!(place, Some((group, geometry.inodes_per_group - 1)));
        let _ = geometry.is_reserved(inode);
    }
    for index in [0, geometry.desc_blocks / 2, geometry.desc_blocks.saturating_sub(1)] {
        let _ = geometry.primary_desc_block(index);
    }
    for block in [0, 1, geometry.blocks_count - 1, geometry.blocks_count, u64::MAX].map(BlockNr) {
        if geometry.contains(block) {
            assert!(geometry.cluster_of(block) < geometry.clusters_count());
            let _ = geometry.offset_bytes(block);
        } else {
            let _ = geometry.group_of(block);
        }
    }
    assert_eq!(geometry.place_of(InodeNr(0)), None);
}

fn descriptor(bytes: &[u8]) {
    let _ = LotRecord::of(bytes);
    let Some((lo, rest)) = bytes.split_first_chunk::<32>() else { return };
    let hi = rest.first_chunk::<32>();
    let desc = GroupDesc::decode(lo, hi);
    let (mut lo_again, mut hi_again) = (*lo, hi.copied());
    desc.encode_into(&mut lo_again, hi_again.as_mut());
    assert_eq!((*lo, hi.copied()), (lo_again, hi_again));
    let whole = &bytes[..if hi.is_some() { 64 } else { 32 }];
    let _ = GroupDesc::crc32c(Seed(1), GroupNr(7), whole);
    let _ = GroupDesc::crc16(&[7; 16], GroupNr(7), whole);
}

/// If flipping bits makes the checksum right, the checksum is right afterwards; an inode number
/// found by checksum makes it right, too.
fn flips(owner: Option<InodeNr>, raw: &[u8; 256]) {
    static SYNDROMES: LazyLock<Option<Syndromes>> = LazyLock::new(|| Syndromes::of_size(256));
    let right =
        |raw: &[u8], inode| Inode::decode(raw).is_some_and(|one| one.checksum_ok(Seed(3), inode));
    if let Some(flips) = SYNDROMES.as_ref().and_then(|all| all.find(raw, Seed(3), InodeNr(12))) {
        let mut mended = *raw;
        flips.apply(&mut mended);
        assert!(right(&mended, InodeNr(12)));
    }
    if let Some(owner) = owner {
        assert!(right(raw, owner));
    }
}

fn inodes(bytes: &[u8]) {
    if let Some(raw) = bytes.first_chunk() {
        let inode = Inode256::new(raw);
        let _ = (inode.mode(), inode.size_lo(), inode.links_count(), inode.blocks_lo());
        let _ = (inode.flags(), inode.generation(), inode.rarely_set(), inode.extra_times());
        let _ = (inode.has_xattrs(), inode.owners(), inode.projid());
        let _ = (inode.xattr_area(), inode.checksum_ok(Seed(3), InodeNr(12)));
        extent_node(inode.block());
        flips(inode_flips::owner_by_checksum(raw, Seed(3), InodeNr(12)), raw);
    }
    for size in [128, 160, 256, 1024, 4096] {
        let Some(inode) = bytes.get(..size).and_then(Inode::decode) else { continue };
        let _ = (inode.flags(), inode.file_type(), inode.size_bytes(), inode.file_acl(true));
        let _ = (inode.uid(), inode.gid(), inode.block_word(14), inode.block_word(usize::MAX));
        let _ = (inode.checksum_ok(Seed(3), InodeNr(12)), inode.stored_checksum());
        let _ = inode::decode_seconds(inode.base.mtime, inode.extra.mtime_extra);
        let _ = inode::decode_nanoseconds(inode.extra.mtime_extra);
        assert!(inode.xattr_area().len() <= size);
        xattr_area(XattrArea::of_inode(inode.xattr_area()), size);
        extent_node(&inode.base.block);
        let _ = (value_inode::refcount(&inode.base), value_inode::stored_hash(&inode.base));
        let Some(inline) = InlineData::of(&inode) else { continue };
        let [first, second] = inline.content(inode.size_bytes());
        assert!(first.len() + second.len() <= inline.capacity_bytes());
        let _ = inline.parent();
        entries(inline.first_entries(), inline.in_block);
        entries(inline.second_entries(), inline.in_xattr);
    }
}

fn extents(bytes: &[u8]) {
    extent_node(bytes);
    extent_node(bytes.get(..60).unwrap_or(bytes));
}

fn extent_node(bytes: &[u8]) {
    let Some(node) = ExtentNode::new(bytes) else { return };
    let _ = (node.header_ok(), node.stored_checksum(), node.compute_checksum(5));
    let header = node.header();
    for at in (0..header.entries.min(400)).chain([u16::MAX]) {
        let _ = (node.extent(at), node.index(at));
    }
}

fn directories(bytes: &[u8]) {
    let _ = (dirent::tail_state(bytes), DirTail::checksum_ok(9, bytes), DirTail::of(bytes));
    let _ = DirTail::compute_checksum(9, bytes);
    DirTail::write(9, &mut bytes.to_vec());
    entries(DirCursor::new(bytes), bytes);
    entries(DirCursor::new(bytes).without_tail(), bytes);
    entries(DirCursor::new(bytes).hashed(true), bytes);
    if let Some((&start, rest)) = bytes.split_first() {
        let start = usize::from(start);
        entries(DirCursor::new(rest).starting_at(start).ending_at(start.wrapping_mul(16)), rest);
    }
    for csum in [false, true] {
        let _ = htree::looks_like_node(bytes, csum);
    }
    let blocks = [DxBlock::root(bytes), DxBlock::node(bytes), DxBlock::detect(bytes).map(|d| d.1)];
    for block in blocks.into_iter().flatten() {
        assert!(block.entries().count() * 8 <= bytes.len());
        let _ = (block.tail(), block.checksum_ok(1), block.expected_limit(true), block.limit());
    }
    let mut copy = bytes.to_vec();
    if htree::write_checksum(11, &mut copy).is_some() {
        // A checksum just written is valid, unless the tail overlaps the fields that identified the
        // block.
        let _ = DxBlock::detect(&copy).map(|(_, block)| block.checksum_ok(11));
    }
}

/// Iterates a cursor: entries lie inside the block, one behind the other.
fn entries(cursor: DirCursor<'_>, block: &[u8]) {
    let mut end = 0;
    for entry in cursor {
        let Ok(entry) = entry else { break };
        assert!(entry.offset as usize >= end, "entries overlap");
        end = entry.offset as usize + entry.rec_len as usize;
        assert!(end <= block.len(), "an entry passes the end of its block");
        let _ = (entry.in_use(), entry.is_dot_or_dotdot(), entry.stored_hash());
    }
}

fn attributes(bytes: &[u8]) {
    xattr_area(XattrArea::of_inode(bytes), bytes.len());
    xattr_area(XattrArea::of_block(bytes), bytes.len());
    let _ = xattr::block_checksum_ok(Seed(1), BlockNr(2), bytes);
    if let Ok(list) = acl::decode(bytes) {
        assert_eq!(acl::decode(&acl::encode(&list)), Ok(list));
    }
    if let Some(context) = Context::decode(bytes) {
        let _ = context.policy();
    }
}

fn xattr_area(area: Option<XattrArea<'_>>, len: usize) {
    let Some(area) = area else { return };
    let _ = area.check();
    let mut count = 0;
    for entry in area.entries() {
        let Ok(entry) = entry else { break };
        count += 1;
        let _ = xattr::full_name(entry.name_index, entry.name);
        let Some(value) = area.value(&entry) else { continue };
        for chars in [Chars::Signed, Chars::Unsigned] {
            let _ = xattr::entry_hash(entry.name, value, chars);
            let _ = xattr::entry_hash_of_inode(entry.name, entry.hash, chars);
        }
        let _ = (acl::decode(value), Context::decode(value));
    }
    assert!(count * 16 <= len, "more entries than fit");
}

fn journal(bytes: &[u8]) {
    let _ = jbd2::header(bytes);
    if let Some(raw) = bytes.first_chunk::<1024>() {
        let sb = JournalSuperblock::decode(raw);
        let _ = (sb.format(), sb.fast_commit_blocks(), JournalSuperblock::checksum_ok(raw));
    }
    for checksums in [Checksums::None, Checksums::V1, Checksums::V2, Checksums::V3] {
        for bit64 in [false, true] {
            let format = JournalFormat { checksums, bit64, seed: 1 };
            let mut count = 0;
            for tag in format.tags(bytes) {
                count += 1;
                let _ = format.data_ok(&tag, 3, bytes);
            }
            assert!(count * 8 <= bytes.len());
            let revoked = format.revoked(bytes).map_or(0, Iterator::count);
            assert!(revoked * 4 <= bytes.len());
            let _ = (format.tail_ok(bytes), format.commit_ok(bytes));
        }
    }
    for inode_size in [128, 256, u32::MAX] {
        let mut records = FcRecords::new(bytes, inode_size);
        let crc = records.by_ref().fold(0, |crc, record| record.checksum(crc));
        let _ = (crc, records.is_broken());
    }
}

fn quota_tree(bytes: &[u8]) {
    const BLOCK: usize = quota::BLOCK_SIZE;
    let blocks = u32::try_from(bytes.len() / BLOCK).unwrap_or(u32::MAX);
    let mut reads = 0;
    let read = |at: u64, into: &mut [u8; BLOCK]| -> Result<(), ()> {
        reads += 1;
        let at = usize::try_from(at).map_err(drop)?;
        into.copy_from_slice(bytes.get(at..at + BLOCK).ok_or(())?);
        Ok(())
    };
    let end = quota::walk(blocks, read, |_| (), |_| ());
    assert_eq!(end, Ok(()), "a block outside the file was asked for");
    assert!(reads <= blocks, "a block was read twice");
}

fn small_things(bytes: &[u8]) {
    if let Some(block) = OrphanBlock::new(bytes) {
        assert!(block.orphans().count() <= block.slots().len());
        let _ = (block.magic(), block.stored_checksum(), block.compute_checksum(1, BlockNr(2)));
    }
    assert_eq!(indirect::pointers(bytes).len(), bytes.len() / 4);
    bitmaps(bytes);
    let name = bytes.get(..255).unwrap_or(bytes);
    for version in (0..=u8::MAX).filter_map(HashVersion::of) {
        let _ = dirhash::dirhash(version, name, &[0; 4]);
        let _ = dirhash::dirhash(version, name, &[1, 2, 3, 4]);
    }
    let _ = dirhash::siphash(name, &[3; 16]);
    // A name with stray bytes may fold to one whose bytes combine into other characters: no law
    // holds for it.
    let folded = casefold::fold(name);
    if casefold::validate(name).is_ok() {
        let folded = folded.expect("a valid name can be folded");
        assert!(casefold::same_name(name, &folded), "{name:x?} is not what it folds to");
    }
    let _ = (crc16(7, bytes), crc32_be(7, bytes), undo::key_block_crc(bytes));
    if let Some(raw) = bytes.first_chunk() {
        let _ = (UndoHeader::compute_checksum(raw), UndoHeader::decode(raw).keys_per_block());
    }
}

fn bitmaps(bytes: &[u8]) {
    let Some((head, map)) = bytes.split_first_chunk::<4>() else { return };
    let [from, to] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_le_bytes);
    let bits = u32::from(from)..u32::from(to);
    let set: u32 = bitmap::runs(map, bits.clone()).map(|run| run.end - run.start).sum();
    assert_eq!(set, bitmap::count(map, bits.clone()), "runs and count differ");
    assert_eq!(bitmap::first_set(map, bits.clone()).is_some(), set > 0);
    let _ = (bitmap::first_clear(map, bits.clone()), bitmap::first_clear_padding(map, bits.start));
    let _ = (bitmap::checksum(Seed(1), map, bits.end), bitmap::test(map, u32::MAX));
    let mut copy = map.to_vec();
    bitmap::fill(&mut copy, bits.clone(), true);
    bitmap::fill(&mut copy, bits.clone(), false);
    assert_eq!(bitmap::count(&copy, bits), 0);
}
