//! Check: values of attributes that lie in inodes of their own (feature ea_inode).
//! Emits: `EaInodeDeleted`, `EaInodeModeBad`, `EaInodeWithAttributes`, `XattrEaInodeNumberBad`, `XattrValueSizeBad`,
//! `XattrHashBad`, `XattrEaInodeFlagMissing`, `EaInodeFeatureMissing`, `XattrValueUnreadable`, `UnreadableBlock`, and those of
//! `lists`.

use floe_ext4::inode_table;
use floe_format::ext::inode::{FileType, Inode, InodeBase, InodeFlags};
use floe_format::ext::xattr::value_inode::{is_of_lustre, stored_hash, value_hash};
use floe_format::ext::xattr::{
    Chars, MAGIC, XattrArea, XattrEntry, entry_hash_of_inode, full_name, has_hash_of_inode,
};
use floe_format::features::Incompat;
use floe_format::{BlockNr, InodeNr};

use super::lists;
use super::values::{self, Unread};
use crate::checks::context::inode::InodeCx;
use crate::problem::{Name, Problem, Sink};
use crate::volume::Volume;

/// Where an attribute is: its inode (one that uses the block) and its block; block 0 for
/// the inode itself.
#[derive(Clone, Copy)]
pub(crate) struct Home<'a> {
    pub(crate) volume: &'a Volume<'a>,
    pub(crate) inode: InodeNr,
    pub(crate) block: BlockNr,
}

/// An inode that may hold a value.
struct Holder {
    base: InodeBase,
    /// Whether it has attributes of its own, or seems to.
    has_attributes: bool,
}

/// Reads an inode; `None` outside the tables or if it cannot be read.
fn read_inode(volume: &Volume<'_>, number: InodeNr) -> Option<Holder> {
    let raw = inode_table::read_inode(number, volume.device, &volume.geometry, &volume.groups)?;
    let inode = Inode::decode(&raw)?;
    let block = inode.file_acl(volume.has_incompat(Incompat::BIT64));
    // Without extra fields there is no room for attributes either.
    let marked = inode.xattr_area().first_chunk() == Some(&MAGIC.to_le_bytes())
        && raw.len() > 128
        && inode.extra.extra_isize != 0;
    Some(Holder { has_attributes: marked || block != 0, base: inode.base })
}

/// Whether an entry may name an inode as the home of its value.
fn is_possible(volume: &Volume<'_>, inode: InodeNr) -> bool {
    inode >= volume.geometry.first_inode && inode.0 <= volume.geometry.inodes_count
}

/// Blocks that a value in another inode costs the owner of the attribute: whole clusters.
fn charge(volume: &Volume<'_>, value_size: u32) -> u64 {
    let cluster_blocks = u64::from(volume.geometry.cluster_blocks);
    let cluster_bytes = u64::from(volume.geometry.block_size) * cluster_blocks;
    u64::from(value_size).div_ceil(cluster_bytes) * cluster_blocks
}

/// The hash that an entry should have, and whether it has it, signed or not.
fn judge_hash(entry: &XattrEntry<'_>, target: &InodeBase) -> Result<(), u32> {
    let hash = stored_hash(target);
    match has_hash_of_inode(entry, hash) {
        true => Ok(()),
        false => Err(entry_hash_of_inode(entry.name, hash, Chars::Unsigned)),
    }
}

/// Judges an entry of `area` whose value lies in `value_inode`. Returns the blocks it costs its owner.
///
/// # Errors
/// The problem for which the attributes around it would be dropped.
pub(crate) fn check(
    home: Home<'_>,
    area: &XattrArea<'_>,
    entry: &XattrEntry<'_>,
    value_inode: InodeNr,
    found: &mut impl Sink,
) -> Result<u64, Problem> {
    let Home { volume, inode, block } = home;
    let offset_bytes = entry.offset as u32; // an area is at most a block
    let bad_number = Problem::XattrEaInodeNumberBad { inode, block, offset_bytes, value_inode };
    if !volume.has_incompat(Incompat::EA_INODE) {
        // It is the number that is wrong, not the feature.
        if area.has_value_here(entry) {
            return Err(bad_number);
        }
        found.push(Problem::EaInodeFeatureMissing { inode, value_inode });
    }
    if !is_possible(volume, value_inode) {
        return Err(bad_number);
    }
    let Some(holder) = read_inode(volume, value_inode) else { return Err(bad_number) };
    let target = &holder.base;
    let flagged = InodeFlags::from_bits_retain(target.flags).contains(InodeFlags::EA_INODE);
    let mut blocks = charge(volume, entry.value_size);
    let hash = judge_hash(entry, target);
    if let Err(expected) = hash {
        // Old Lustre stored no hash, but the owner of the value.
        if !is_lustre_value_of(home, target) {
            let stored = entry.hash;
            return Err(if flagged {
                Problem::XattrHashBad { inode, block, offset_bytes, stored, expected }
            } else {
                bad_number
            });
        }
        blocks = 0;
    }
    let size = u64::from(target.size_lo) | u64::from(target.size_high) << 32;
    if entry.value_size == 0 || u64::from(entry.value_size) != size {
        let value_size = entry.value_size;
        return Err(Problem::XattrValueSizeBad { inode, block, offset_bytes, value_size });
    }
    if target.links_count == 0 {
        // Linux cannot load it. Without the mark, nothing says that it has not been freed for good.
        if !flagged {
            return Err(bad_number);
        }
        found.push(Problem::EaInodeDeleted { inode, value_inode });
    }
    if !flagged {
        found.push(Problem::XattrEaInodeFlagMissing { inode, value_inode });
    }
    if FileType::of_mode(target.mode) != Some(FileType::Regular) {
        found.push(Problem::EaInodeModeBad { inode, value_inode, mode: target.mode });
    }
    if holder.has_attributes {
        found.push(Problem::EaInodeWithAttributes { inode, value_inode });
    }
    check_value(home, entry, value_inode, target, found);
    Ok(blocks)
}

/// Judges the bytes of a value, which lie in an inode that is sound by itself. Linux compares their hash when it reads them.
fn check_value(
    home: Home<'_>,
    entry: &XattrEntry<'_>,
    value_inode: InodeNr,
    target: &InodeBase,
    found: &mut impl Sink,
) {
    let Home { volume, inode, block } = home;
    let fault = match values::read(volume, target, entry.value_size) {
        // The check of the map reports it.
        Err(Unread::MapUnreadable) => return,
        Err(Unread::Unreadable(block)) => {
            return found.push(Problem::UnreadableBlock { inode: value_inode, block });
        }
        Err(Unread::Fault(reason)) => reason,
        Ok(value)
            if value_hash(volume.seed, &value) == stored_hash(target)
                || is_lustre_value_of(home, target) =>
        {
            if let Some(problem) = lists::fault_elsewhere(inode, block, entry, &value) {
                found.push(problem);
            }
            return;
        }
        Ok(_) => "the bytes there do not have the hash of the value",
    };
    found.push(Problem::XattrValueUnreadable {
        inode,
        block,
        offset_bytes: entry.offset as u32, // an area is at most a block
        value_inode,
        name: Name::new(full_name(entry.name_index, entry.name).as_bytes()),
        reason: fault,
    });
}

/// Whether an EA inode says, as old Lustre did, that it belongs to the owner of the attribute.
fn is_lustre_value_of(home: Home<'_>, target: &InodeBase) -> bool {
    read_inode(home.volume, home.inode)
        .is_some_and(|owner| is_of_lustre(target, (home.inode, owner.base.generation)))
}

/// Blocks and inodes that the values of an attribute block in other inodes cost each of its users.
/// Entries that will be found damaged cost nothing, nor do those behind them.
pub(crate) fn charge_of_block(cx: &InodeCx<'_>, block: &[u8]) -> (u64, u64) {
    let (mut blocks, mut inodes) = (0u64, 0u64);
    let Some(area) = XattrArea::of_block(block) else { return (0, 0) };
    for entry in area.entries().map_while(Result::ok) {
        let Some(value_inode) = entry.value_inode else { continue };
        let target = Some(value_inode)
            .filter(|&inode| is_possible(cx.volume, inode))
            .and_then(|inode| read_inode(cx.volume, inode));
        if target.is_some_and(|target| judge_hash(&entry, &target.base).is_ok()) {
            blocks = blocks.saturating_add(charge(cx.volume, entry.value_size));
        }
        inodes += 1;
    }
    (blocks, inodes)
}

/// Counts the references to EA inodes of all entries that can be followed, sound or not.
pub(crate) fn count_references(
    volume: &Volume<'_>,
    area: &XattrArea<'_>,
    add: impl FnMut(InodeNr),
) {
    area.entries()
        .map_while(Result::ok)
        .filter_map(|entry| entry.value_inode)
        .filter(|&inode| is_possible(volume, inode))
        .for_each(add);
}
