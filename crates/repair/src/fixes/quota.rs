//! Rewrites quota files: with the counted usage, and the limits as far as the old file is readable.

use std::collections::BTreeMap;

use floe_format::ext::inode::InodeFlags;
use floe_format::ext::quota::QuotaKind;
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::stage::{MODE_PRIVATE, Stage};
use floe_ext4::make::quota_file::{self, Limits, Usage};

/// Maximum bytes of an old quota file to read for its limits.
const MOST_OLD_BYTES: u64 = 256 << 20;

/// Rewrites the quota file of a kind in its inode, reusing its blocks as far as possible.
pub(super) fn rewrite(stage: &mut Stage<'_>, name: &str) -> Result<(), Failure> {
    let sb = stage.superblock();
    let (kind, index, number) = match name {
        "user" => (QuotaKind::User, 0, sb.usr_quota_inum),
        "group" => (QuotaKind::Group, 1, sb.grp_quota_inum),
        _ => (QuotaKind::Project, 2, sb.prj_quota_inum),
    };
    let mut image = stage.read_inode(InodeNr(number))?;
    let mut map = FileMap::load(stage, &image);
    let limits = Limits::of(kind, &content(stage, &map, image.size_bytes()));
    let usage: BTreeMap<u32, Usage> = stage
        .evidence
        .quota
        .of_kind(index)
        .into_iter()
        .map(|(id, used)| {
            // Linux takes e2fsck's count as well; e2fsck calls Linux's damage.
            (id, Usage { space_bytes: used.space_bytes, inodes: used.inodes_by_e2fsck() })
        })
        .collect();
    let file = quota_file::build(kind, &limits, &usage)
        .ok_or(Failure::NoSpace("number for a block of the quota file"))?;

    let block_size = stage.block_size();
    let blocks = file.len().div_ceil(block_size) as u64;
    map.truncate(blocks);
    if map.runs.is_empty() {
        map.extents = FileMap::empty(stage).extents;
    }
    map.fill(stage, blocks)?;
    image.base.mode = MODE_PRIVATE;
    image.base.links_count = 1;
    image.base.dtime = 0;
    image.base.flags &= !InodeFlags::INLINE_DATA.bits();
    map.store(stage, &mut image)?;
    image.set_size_bytes(file.len() as u64);
    super::inodes::set_blocks(stage, &mut image, map.blocks());
    stage.write_inode(&image)?;
    let mut block_bytes = vec![0; block_size];
    for (logical, part) in (0..).zip(file.chunks(block_size)) {
        let block = map.find(LogicalBlock(logical)).unwrap_or(BlockNr(0));
        block_bytes.fill(0);
        block_bytes[..part.len()].copy_from_slice(part);
        stage.write_block(block, &block_bytes)?;
    }
    Ok(())
}

/// The readable content of a file.
fn content(stage: &Stage<'_>, map: &FileMap, size_bytes: u64) -> Vec<u8> {
    let block_size = stage.block_size();
    let end = size_bytes.min(map.end() * block_size as u64).min(MOST_OLD_BYTES);
    // At most `MOST_OLD_BYTES`.
    let mut content = vec![0; end as usize];
    for extent in &map.runs {
        for at in 0..extent.run.len_blocks {
            let start = (extent.logical.0 + at).saturating_mul(block_size as u64);
            let Some(room) = usize::try_from(start).ok().and_then(|start| content.get_mut(start..))
            else {
                break;
            };
            if let Ok(bytes) = stage.read_block(BlockNr(extent.run.start.0 + at)) {
                let len = room.len().min(block_size);
                room[..len].copy_from_slice(&bytes[..len]);
            }
        }
    }
    content
}
