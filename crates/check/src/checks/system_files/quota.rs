//! Check: quota files hold what is really used.
//! Reads: quota files.  Keeps: one entry an id.  Emits: `QuotaUsageWrong`, `QuotaFileCorrupt`.
//!
//! Linux counts every inode; e2fsck 1.47 passes over symlinks whose target is inline data. A file system
//! that e2fsck repaired and Linux used then holds any number in between, so all of them are accepted.
//!
//! Does not verify: the inodes of the files (`checks/system_files/reserved_inodes.rs`), limits.

use std::collections::BTreeMap;

use floe_format::ext::inode::Inode;
use floe_format::ext::quota::{self, Dquot, Met, QuotaHeader, QuotaKind};
use floe_format::features::RoCompat;
use floe_format::{InodeNr, LogicalBlock};

use super::quota_lists::Tree;
use crate::evidence::quota_usage::{QuotaUsage, Usage};
use crate::problem::{Findings, Problem, Sink};
use crate::volume::Volume;
use floe_ext4::inode_table::read_inode;
use floe_ext4::map::runs::BlockMap;

/// Compares each tracked kind with what the inode pass counted.
pub fn check(volume: &Volume<'_>, usage: &QuotaUsage, found: &mut Findings) {
    if !volume.has_ro_compat(RoCompat::QUOTA) {
        return;
    }
    for (index, (kind, name, number)) in files(volume).into_iter().enumerate() {
        // 0: not tracked.
        if number == 0 {
            continue;
        }
        if number > volume.geometry.inodes_count {
            // Reported with the superblock; what is not there records nothing.
            compare(name, &BTreeMap::new(), &usage.of_kind(index), found);
            continue;
        }
        let file = QuotaFile { volume, kind, name, inode: InodeNr(number) };
        let Some(stored) = file.read(found) else { continue };
        compare(name, &stored, &usage.of_kind(index), found);
    }
}

/// The tracked kinds whose file does not hold exactly what e2fsck counts, in a file system without
/// findings. A repair that changed inodes makes them so, as e2fsck would: it calls other numbers damage.
pub fn not_as_e2fsck_counts(volume: &Volume<'_>, usage: &QuotaUsage) -> Vec<&'static str> {
    if !volume.has_ro_compat(RoCompat::QUOTA) {
        return Vec::new();
    }
    let mut kinds = Vec::new();
    for (index, (kind, name, number)) in files(volume).into_iter().enumerate() {
        let counted = usage.of_kind(index);
        let is_there = number != 0 && number <= volume.geometry.inodes_count;
        if !is_there || counted.iter().all(|(_, counted)| counted.inline_links == 0) {
            // There is but one count.
            continue;
        }
        let file = QuotaFile { volume, kind, name, inode: InodeNr(number) };
        let Some(stored) = file.read(&mut Findings::default()) else { continue };
        let differs = |&(id, counted): &(u32, Usage)| {
            stored.get(&id).map_or(0, |stored| stored.inodes) != counted.inodes_by_e2fsck()
        };
        if counted.iter().any(differs) {
            kinds.push(name);
        }
    }
    kinds
}

/// Kind, name and inode of each quota file.
fn files(volume: &Volume<'_>) -> [(QuotaKind, &'static str, u32); 3] {
    let superblock = &volume.superblock;
    [
        (QuotaKind::User, "user", superblock.usr_quota_inum),
        (QuotaKind::Group, "group", superblock.grp_quota_inum),
        (QuotaKind::Project, "project", superblock.prj_quota_inum),
    ]
}

fn compare(
    kind: &'static str,
    stored: &BTreeMap<u32, Usage>,
    counted: &[(u32, Usage)],
    found: &mut Findings,
) {
    let mut report = |id: u32, stored: Option<Usage>, counted: Usage| {
        if !fits(stored, counted) {
            let stored = stored.unwrap_or_default();
            found.push(Problem::QuotaUsageWrong {
                kind,
                id,
                stored_bytes: stored.space_bytes,
                counted_bytes: counted.space_bytes,
                stored_inodes: stored.inodes,
                counted_inodes: counted.inodes,
            });
        }
    };
    for &(id, counted) in counted {
        report(id, stored.get(&id).copied(), counted);
    }
    for (&id, &stored) in stored {
        if counted.binary_search_by_key(&id, |(id, _)| *id).is_err() {
            report(id, Some(stored), Usage::default());
        }
    }
}

/// Whether a record, if there is one, is right for an id with this use.
fn fits(stored: Option<Usage>, counted: Usage) -> bool {
    let possible = counted.inodes_by_e2fsck()..=counted.inodes;
    match stored {
        Some(stored) => {
            stored.space_bytes == counted.space_bytes && possible.contains(&stored.inodes)
        }
        None => counted.space_bytes == 0 && *possible.start() == 0,
    }
}

struct QuotaFile<'a> {
    volume: &'a Volume<'a>,
    kind: QuotaKind,
    name: &'static str,
    inode: InodeNr,
}

impl QuotaFile<'_> {
    fn fault(&self, block: u32, reason: &'static str) -> Problem {
        let per_block = self.volume.geometry.block_size / quota::BLOCK_SIZE as u32;
        let logical = LogicalBlock(u64::from(block / per_block.max(1)));
        Problem::QuotaFileCorrupt { kind: self.name, inode: self.inode, logical, reason }
    }

    /// The usage that the file records; `None` if it is no quota file of its kind.
    fn read(&self, found: &mut Findings) -> Option<BTreeMap<u32, Usage>> {
        let geometry = &self.volume.geometry;
        let raw = read_inode(self.inode, self.volume.device, geometry, &self.volume.groups);
        let Some(file) = raw.as_deref().and_then(Inode::decode) else {
            found.push(self.fault(0, "its inode cannot be read"));
            return None;
        };
        let limit = file.size_bytes().div_ceil(u64::from(geometry.block_size));
        let Ok(map) = BlockMap::of(&file, self.volume.device, geometry, limit) else {
            found.push(self.fault(0, "its blocks cannot be found"));
            return None;
        };
        let mut cache = Cache { volume: self.volume, map: &map, bytes: Vec::new(), logical: None };
        let mut first = [0; quota::BLOCK_SIZE];
        let header = cache.read(0, &mut first).ok().and_then(|()| first.first_chunk());
        let header = QuotaHeader::decode(header.unwrap_or(&[0; 32]));
        if header.magic != self.kind.magic() || header.version != quota::VERSION {
            found.push(self.fault(0, "it does not begin as a quota file of its kind"));
            return None;
        }
        if let Some(reason) = header.fault(file.size_bytes()) {
            found.push(self.fault(0, reason));
        }
        let blocks = file.size_bytes() / quota::BLOCK_SIZE as u64;
        let header = QuotaHeader {
            blocks: u32::try_from(blocks).unwrap_or(u32::MAX).min(header.blocks),
            ..header
        };
        let mut stored = BTreeMap::new();
        let mut tree = Tree::default();
        let walked = quota::walk_blocks(
            header.blocks,
            |offset, into| cache.read(offset, into),
            |met| {
                tree.add(&met, header.blocks);
                if let Met::Entry(Dquot { id, space_bytes, inodes, .. }) = met {
                    stored.insert(id, Usage { space_bytes, inodes, inline_links: 0 });
                }
            },
        );
        let sound = walked.is_ok() && tree.faults.is_empty() && header.blocks > quota::ROOT_BLOCK;
        let followed = if sound {
            tree.match_entries();
            tree.follow(&header, |offset, into| cache.read(offset, into))
        } else {
            Ok(())
        };
        for (block, reason) in tree.faults {
            found.push(self.fault(block, reason));
        }
        if walked.is_err() || followed.is_err() {
            found.push(self.fault(0, "a block cannot be read"));
        }
        Some(stored)
    }
}

/// Reads pieces of 1 KiB; pieces of one block follow each other.
struct Cache<'a> {
    volume: &'a Volume<'a>,
    map: &'a BlockMap,
    bytes: Vec<u8>,
    logical: Option<u64>,
}

impl Cache<'_> {
    fn read(&mut self, offset: u64, into: &mut [u8; quota::BLOCK_SIZE]) -> std::io::Result<()> {
        let block_size = u64::from(self.volume.geometry.block_size);
        let logical = offset / block_size;
        if self.logical != Some(logical) {
            self.logical = None;
            match self.map.block(logical) {
                Some(block) => self.volume.read_block(block, &mut self.bytes)?,
                // A hole reads as zeroes.
                None => {
                    self.bytes.clear();
                    self.bytes.resize(block_size as usize, 0);
                }
            }
            self.logical = Some(logical);
        }
        let at = (offset % block_size) as usize;
        let from = self.bytes.get(at..at + quota::BLOCK_SIZE);
        into.copy_from_slice(from.unwrap_or(&[0; quota::BLOCK_SIZE]));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_links_may_be_counted_or_not() {
        let counted = Usage { space_bytes: 4096, inodes: 5, inline_links: 2 };
        let stored = |inodes| Some(Usage { space_bytes: 4096, inodes, inline_links: 0 });
        let right: Vec<u64> = (0..9).filter(|&inodes| fits(stored(inodes), counted)).collect();
        assert_eq!(right, [3, 4, 5]);
        assert!(
            !fits(None, counted) && !fits(Some(Usage { inodes: 4, ..Usage::default() }), counted)
        );
        // e2fsck leaves out an id that has nothing else.
        assert!(fits(None, Usage { space_bytes: 0, inodes: 2, inline_links: 2 }));
        assert!(!fits(None, Usage { space_bytes: 0, inodes: 2, inline_links: 1 }));
    }
}
