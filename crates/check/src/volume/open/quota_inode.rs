//! Check: the inodes that the superblock names as quota files can be ones.
//! Reads: the inodes and their first block.  Keeps: nothing.  Emits: `QuotaInodeNumberInvalid`,
//! `QuotaInodeNotReserved`, `QuotaInodeWrong`; [`is_lost_project_file`] is for whoever finds an inode without a
//! name.
//! Does not verify: the rest of the files (`checks/system_files/quota.rs`).
//!
//! A wrong number must not be believed: whoever writes usage into "the quota file" writes over a user's file, and
//! takes its name away.

use floe_blockdev::ReadBlocks;
use floe_ext4::inode_table::read_inode;
use floe_ext4::map::runs::BlockMap;
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::ext::quota::{self, QuotaHeader, QuotaKind};
use floe_format::ext::superblock::Superblock;
use floe_format::features::RoCompat;
use floe_format::{BlockNr, InodeNr};

use crate::problem::{Problem, Sink};
use crate::volume::Volume;
use crate::volume::open::Opened;

/// Inodes with another fixed role, which no quota file may have.
const NOT_FOR_QUOTA: [u32; 8] = [1, 2, 5, 6, 7, 8, 9, 10];
/// Bits of a magic number that may be wrong if everything else says that the file is for quotas.
const DAMAGED_BITS: u32 = 2;

/// A number that one of the superblock's fields has.
struct Named {
    kind: QuotaKind,
    name: &'static str,
    number: InodeNr,
    /// The inode that is reserved for the kind.
    home: Option<InodeNr>,
}

impl Named {
    fn all(superblock: &Superblock) -> [Self; 3] {
        let named = |kind, name, number, home| Self { kind, name, number: InodeNr(number), home };
        [
            named(QuotaKind::User, "user", superblock.usr_quota_inum, Some(InodeNr::USER_QUOTA)),
            named(QuotaKind::Group, "group", superblock.grp_quota_inum, Some(InodeNr::GROUP_QUOTA)),
            named(QuotaKind::Project, "project", superblock.prj_quota_inum, None),
        ]
    }
}

/// The appearance of an inode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Free,
    OtherType,
    /// A regular file, and whether it begins as a quota file of the kind; `None` if that cannot be read.
    Regular(Option<bool>),
}

/// Reports the numbers that cannot be right and replaces them in `opened`, so that nothing looks at the inodes
/// named: by the reserved inode, if something is there, or by none.
pub fn judge(device: &dyn ReadBlocks, opened: &mut Opened) {
    for named in Named::all(&opened.superblock) {
        if named.number.0 == 0 || Some(named.number) == named.home {
            continue;
        }
        let Some(problem) = fault_of(device, opened, &named) else { continue };
        let stays = matches!(problem, Problem::QuotaInodeNotReserved { .. });
        opened.found.push(problem);
        if stays {
            continue;
        }
        let tracked = opened.geometry.features.ro_compat.contains(RoCompat::QUOTA);
        let home = named.home.filter(|&home| {
            tracked && matches!(look(device, opened, home, named.kind), Look::Regular(_))
        });
        let number = home.map_or(0, |home| home.0);
        let superblock = &mut opened.superblock;
        match named.kind {
            QuotaKind::User => superblock.usr_quota_inum = number,
            QuotaKind::Group => superblock.grp_quota_inum = number,
            QuotaKind::Project => superblock.prj_quota_inum = number,
        }
    }
}

/// The problem of a quota inode number that differs from the reserved one.
fn fault_of(device: &dyn ReadBlocks, opened: &Opened, named: &Named) -> Option<Problem> {
    let &Named { kind, name, number: inode, home } = named;
    if NOT_FOR_QUOTA.contains(&inode.0) || inode.0 > opened.geometry.inodes_count {
        return Some(Problem::QuotaInodeNumberInvalid { kind: name, inode });
    }
    let wrong = |reason| Some(Problem::QuotaInodeWrong { kind: name, inode, reason });
    let found = look(device, opened, inode, kind);
    if !opened.geometry.features.ro_compat.contains(RoCompat::QUOTA) {
        // Linux does not look at the number; e2fsck releases what is there.
        let used = found != Look::Free && !opened.geometry.is_reserved(inode);
        return if used { wrong("the file system has no quotas") } else { None };
    }
    match found {
        _ if opened.geometry.is_reserved(inode) => wrong("the inode is reserved for another kind"),
        Look::Free => wrong("the inode is not in use"),
        Look::OtherType => wrong("the inode is no regular file"),
        Look::Regular(Some(false)) => wrong("it does not begin as a quota file of its kind"),
        Look::Regular(_) => {
            let expected = home?;
            if look(device, opened, expected, kind) == Look::Regular(Some(true)) {
                return wrong("the quota file is in the reserved inode");
            }
            Some(Problem::QuotaInodeNotReserved { kind: name, inode, expected })
        }
    }
}

fn look(device: &dyn ReadBlocks, opened: &Opened, inode: InodeNr, kind: QuotaKind) -> Look {
    let geometry = &opened.geometry;
    let Some(raw) = read_inode(inode, device, geometry, &opened.groups) else {
        return Look::Regular(None);
    };
    let Some(file) = Inode::decode(&raw) else { return Look::Free };
    let begins = || {
        let map = BlockMap::of(&file, device, geometry, 1).ok()?;
        let Some(block) = map.block(0) else { return Some(false) };
        let mut bytes = vec![0; geometry.block_size as usize];
        device.read_at(geometry.offset_bytes(block), &mut bytes).ok()?;
        Some(begins_as(kind, &bytes, file.size_bytes()))
    };
    match file.file_type() {
        // A missing link has a finding of its own.
        Some(FileType::Regular) => match begins() {
            Some(false) if file.base.links_count == 0 => Look::Free,
            begins => Look::Regular(begins),
        },
        _ if file.base.links_count == 0 => Look::Free,
        _ => Look::OtherType,
    }
}

/// Whether a file of `size` bytes with this first block is a quota file: by its magic number, or by a number with
/// few wrong bits and all else as it must be.
fn begins_as(kind: QuotaKind, block: &[u8], size: u64) -> bool {
    let Some(header) = block.first_chunk().map(QuotaHeader::decode) else { return false };
    let wrong_bits = (header.magic ^ kind.magic()).count_ones();
    let fits = header.version == quota::VERSION
        && u64::from(header.blocks) == size / quota::BLOCK_SIZE as u64;
    wrong_bits == 0 || (wrong_bits <= DAMAGED_BITS && fits)
}

/// Whether an inode without a name is the quota file of projects, of which the superblock names none: it begins
/// as one, and is as only the file system itself makes files.
pub(crate) fn is_lost_project_file(volume: &Volume<'_>, file: &Inode<'_>) -> bool {
    let tracked = [RoCompat::QUOTA, RoCompat::PROJECT];
    let base = &file.base;
    let made_by_system = file.file_type() == Some(FileType::Regular)
        && file.flags().contains(InodeFlags::IMMUTABLE)
        && (base.uid_lo, base.gid_lo, base.links_count) == (0, 0, 1);
    if volume.superblock.prj_quota_inum != 0
        || !tracked.into_iter().all(|feature| volume.has_ro_compat(feature))
        || !made_by_system
    {
        return false;
    }
    let Ok(map) = BlockMap::of(file, volume.device, &volume.geometry, 1) else { return false };
    let block: Option<BlockNr> = map.block(0);
    let mut bytes = Vec::new();
    block.is_some_and(|block| {
        volume.read_block(block, &mut bytes).is_ok()
            && begins_as(QuotaKind::Project, &bytes, file.size_bytes())
    })
}
