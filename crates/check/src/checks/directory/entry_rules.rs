//! Check: whether a directory entry may name the inode that it names.
//! Reads: the entry, types of inodes, encryption policies, uses of attribute values.
//! Keeps: nothing.
//! Emits: 0x020002-0x020005, 0x020007, 0x02001A, 0x02001B, 0x020030, 0x020046, 0x020047,
//! 0x020050-0x020052, 0x020055, 0x07030E.
//! Does not verify: type bytes, duplicates, characters of names (`checks/directory/dirents.rs`).

use floe_ext4::files::Follow;
use floe_ext4::inode_table::inode_offset;
use floe_format::InodeNr;
use floe_format::ext::crypt::MIN_NAME_LEN;
use floe_format::ext::dirent::DirEntry;
use floe_format::ext::inode::FileType;
use floe_format::native::backpointer::Backpointer;
use floe_format::native::identity::{HOME_NAME, ROOT_CUBE_NAME};

use crate::checks::context::directory::DirCx;
use crate::evidence::dirs::DirFlags;
use crate::evidence::inode_facts::Facts;
use crate::problem::{Name, Problem, Sink};
use crate::scan::directory_blocks::DirBlock;

/// Whether an entry in use, behind `.` and `..`, may stay: what is known of the inode it names. If
/// not, the reason goes to `found`.
#[inline]
pub fn accept(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    entry: &DirEntry<'_>,
    crossing: Crossing,
    found: Option<&mut impl Sink>,
) -> Option<Facts> {
    let facts = cx.facts_of(entry.inode, entry.file_type);
    let plain = facts.is_plain_used()
        && entry.inode != block.dir
        && entry.inode != InodeNr::ROOT
        && !matches!(entry.name, b"" | b"." | b"..")
        && !cx.is_illegal(entry.inode)
        && crossing == Crossing::None;
    if plain && !block.flags.contains(DirFlags::ENCRYPTED) {
        return Some(facts);
    }
    match refusal(cx, block, entry, crossing, facts) {
        Verdict::Stays => Some(facts),
        Verdict::Silent => None,
        Verdict::Refused(problem) => {
            if let Some(found) = found {
                found.push(*problem);
            }
            None
        }
    }
}

/// The decision about an entry.
enum Verdict {
    Stays,
    /// It goes with its inode, which the inode pass reported.
    Silent,
    Refused(Box<Problem>),
}

/// Why an entry may not stay. The order of the questions is that of the catalogue.
fn refusal(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    entry: &DirEntry<'_>,
    crossing: Crossing,
    facts: Facts,
) -> Verdict {
    let (dir, logical, offset_bytes) = (block.dir, block.logical(), entry.offset);
    let inode_named = entry.inode;
    let name = || Name::new(entry.name);
    let refused = |problem| Verdict::Refused(Box::new(problem));
    if inode_named == dir {
        let name = name();
        return refused(Problem::DirentLinksToOwnDirectory {
            dir,
            logical,
            offset_bytes,
            inode_named,
            name,
        });
    }
    if cx.is_illegal(inode_named) {
        let name = name();
        return refused(Problem::DirentInodeIllegal {
            dir,
            logical,
            offset_bytes,
            inode_named,
            name,
        });
    }
    match entry.name {
        b"." => {
            return refused(Problem::DotEntryDuplicate { dir, logical, offset_bytes, inode_named });
        }
        b".." => {
            return refused(Problem::DotdotEntryDuplicate {
                dir,
                logical,
                offset_bytes,
                inode_named,
            });
        }
        _ => {}
    }
    if inode_named == InodeNr::ROOT {
        let name = name();
        return refused(Problem::DirentLinksToRoot {
            dir,
            logical,
            offset_bytes,
            inode_named,
            name,
        });
    }
    if entry.name.is_empty() {
        return refused(Problem::DirentNameEmpty { dir, logical, offset_bytes, inode_named });
    }
    if let Some(problem) = bad_target(cx, block, entry, crossing, facts) {
        return problem.map_or(Verdict::Silent, refused);
    }
    if facts.is_ea_inode() && cx.ea_references.contains_key(&inode_named) {
        let name = name();
        return refused(Problem::DirentLinksToEaInode {
            dir,
            logical,
            offset_bytes,
            inode_named,
            name,
        });
    }
    if block.flags.contains(DirFlags::ENCRYPTED)
        && let Some(problem) = check_encrypted(cx, block, entry, facts)
    {
        return refused(problem);
    }
    Verdict::Stays
}

/// Whether an entry may not lead where it does: into another cube, or to an inode that cannot be named.
fn bad_target(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    entry: &DirEntry<'_>,
    crossing: Crossing,
    facts: Facts,
) -> Option<Option<Problem>> {
    let leaves = if crossing == Crossing::Refused { outside(cx, block, entry) } else { None };
    leaves.map(Some).or_else(|| unusable_inode(cx, block, entry, facts))
}

/// The finding about a name that leads into another cube although none may.
fn outside(cx: &DirCx<'_>, block: &DirBlock<'_>, entry: &DirEntry<'_>) -> Option<Problem> {
    let (dir, logical, offset_bytes) = (block.dir, block.logical(), entry.offset);
    let (inode_named, geometry) = (entry.inode, &cx.volume.geometry);
    let cubes = cx.volume.cubes.as_ref()?;
    let (cube, other) = (cubes.of_inode(geometry, dir), cubes.of_inode(geometry, inode_named));
    Some(Problem::CubeNameOutside { dir, logical, offset_bytes, inode_named, cube, other })
}

/// Whether a name leads into another cube.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crossing {
    /// It stays in its cube.
    None,
    /// It leaves it, and may: a system that does not know cubes has written, or the inode says that this is its
    /// name, so that the record of a lot may be wrong.
    Allowed,
    /// It leaves its cube although none may.
    Refused,
}

impl Crossing {
    /// That of an entry, for which the inode that it names may have to be read.
    #[inline]
    pub fn of(cx: &DirCx<'_>, block: &DirBlock<'_>, entry: &DirEntry<'_>) -> Self {
        if cx.stays_in_cube(block.dir, entry.inode) {
            return Self::None;
        }
        Self::out_of_cube(cx, block, entry)
    }

    #[cold]
    fn out_of_cube(cx: &DirCx<'_>, block: &DirBlock<'_>, entry: &DirEntry<'_>) -> Self {
        if cx.volume.cubes.as_ref().is_none_or(|cubes| cubes.is_coupled()) {
            return Self::Allowed;
        }
        if is_reservation(cx, block.dir, entry) {
            return Self::None;
        }
        let geometry = &cx.volume.geometry;
        let mut raw = vec![0; geometry.inode_size as usize];
        let offset = inode_offset(entry.inode, geometry, &cx.volume.groups);
        let read = offset.and_then(|offset| cx.volume.device.read_at(offset, &mut raw).ok());
        let own = read.and_then(|()| Backpointer::of(&raw));
        let is_own = own.is_some_and(|own| own.fits(block.dir, entry.name));
        if is_own { Self::Allowed } else { Self::Refused }
    }
}

/// Whether an entry is that of a lot's reservation file, whatever the record of the lot says: `region.LOT` in
/// `/.cubes/c0`, for an inode of that lot.
fn is_reservation(cx: &DirCx<'_>, dir: InodeNr, entry: &DirEntry<'_>) -> bool {
    let volume = cx.volume;
    let lot = entry.name.strip_prefix(b"region.").and_then(|lot| str::from_utf8(lot).ok());
    let lot = lot.and_then(|lot| lot.parse::<u32>().ok());
    let lot_groups = volume.cubes.as_ref().map_or(0, |cubes| cubes.lot_groups());
    let place = volume.geometry.place_of(entry.inode);
    let home = place.and_then(|(group, _)| group.0.checked_div(lot_groups));
    if lot.is_none() || lot != home {
        return false;
    }
    let files = volume.files();
    let path = [b"/", HOME_NAME, b"/", ROOT_CUBE_NAME].concat();
    files.lookup(&path, Follow::NotLast).is_ok_and(|folder| folder.number == dir)
}

/// Whether the inode of an entry is none that can be named: `Some(None)` if the inode pass said so.
pub(crate) fn unusable_inode(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    entry: &DirEntry<'_>,
    facts: Facts,
) -> Option<Option<Problem>> {
    let (dir, logical, offset_bytes) = (block.dir, block.logical(), entry.offset);
    let inode_named = entry.inode;
    if facts.is_bad() {
        if facts.is_used() {
            return Some(None);
        }
        let name = Name::new(entry.name);
        return Some(Some(Problem::DirentInodeOnBadBlock {
            dir,
            logical,
            offset_bytes,
            inode_named,
            name,
        }));
    }
    if facts.is_used() {
        return None;
    }
    let name = Name::new(entry.name);
    let volume = cx.volume;
    Some(Some(match volume.geometry.place_of(inode_named) {
        Some((group, at)) if at >= volume.used_inodes_bound(group) => {
            if volume.group(group).inode_uninit() {
                Problem::DirentInodeInUninitGroup {
                    group,
                    dir,
                    logical,
                    offset_bytes,
                    inode_named,
                    name,
                }
            } else {
                Problem::DirentInodeInUnusedArea {
                    group,
                    dir,
                    logical,
                    offset_bytes,
                    inode_named,
                    name,
                }
            }
        }
        _ => Problem::DirentInodeUnused { dir, logical, offset_bytes, inode_named, name },
    }))
}

/// Judges an entry of an encrypted directory: long enough a name, and the directory's own policy.
fn check_encrypted(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    entry: &DirEntry<'_>,
    facts: Facts,
) -> Option<Problem> {
    let (dir, logical, offset_bytes) = (block.dir, block.logical(), entry.offset);
    let inode_named = entry.inode;
    let name = || Name::new(entry.name);
    if entry.name.len() < MIN_NAME_LEN {
        let name = name();
        return Some(Problem::EncryptedNameTooShort {
            dir,
            logical,
            offset_bytes,
            inode_named,
            name,
        });
    }
    let of_dir = cx.policies.get(dir)?;
    let Some(of_file) = cx.policies.get(inode_named) else {
        let ordinary = matches!(
            facts.file_type(),
            Some(FileType::Regular | FileType::Directory | FileType::Symlink)
        );
        let name = name();
        return ordinary.then_some(Problem::EncryptedDirPlainFile {
            dir,
            logical,
            offset_bytes,
            inode_named,
            name,
        });
    };
    (!of_dir.agrees_with(of_file)).then(|| Problem::EncryptedDirPolicyMismatch {
        dir,
        logical,
        offset_bytes,
        inode_named,
        name: name(),
    })
}
