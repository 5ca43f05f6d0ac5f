//! Damage that Linux refuses and e2fsck 1.47 accepts.

use anyhow::Context;

use crate::Profile;
use crate::recipe::{Edit, InodeEdit, Recipe, inode, journal_superblock, superblock, xattr_block};
use floe_format::ext::extent::{Extent, ExtentHeader, Index, MAGIC};
use floe_format::ext::inode::InodeFlags;
use floe_format::ext::xattr::{self, Chars, entry_hash};
use floe_format::features::Compat;
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use super::Case;
use super::attributes::{FIRST, number_at};
use super::edits::{change_ea_inode, ea_inode};

/// `EA_INODE_FL` of `i_flags`.
const EA_INODE: u32 = InodeFlags::EA_INODE.bits();
/// The inode of the orphan file in the base images.
const ORPHAN_FILE: &str = "<12>";
/// Why e2fsck's verdict differs.
const LINUX_KNOWS: &str = "Linux refuses it, and e2fsck does not look";

/// The recipes of this module.
pub(super) fn cases() -> Vec<Case> {
    [
        superblocks(),
        journal_bounds(),
        fast_commit_areas(),
        special_inodes(),
        orphan_files(),
        attributes(),
        files(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn stricter(name: &str, profile: Profile, edit: impl Into<Edit>, ids: &[&'static str]) -> Case {
    Case::from(Recipe::new(name).on(profile).edit(edit).expect(ids)).unlike_e2fsck(LINUX_KNOWS)
}

/// Sets `i_extra_isize`.
fn extra_size(path: &str, bytes: u16) -> InodeEdit {
    inode(path).raw(move |raw| raw[128..130].copy_from_slice(&bytes.to_le_bytes()))
}

/// Sets the number of the attribute block.
fn attribute_block(path: &str, block: u32) -> InodeEdit {
    inode(path).base(move |base| base.file_acl_lo = block)
}

/// An in-inode attribute area with a valid magic number and unreadable entries.
fn own_attributes(path: &str) -> InodeEdit {
    inode(path).raw(|raw| {
        raw[128..130].copy_from_slice(&32u16.to_le_bytes());
        raw[160..164].copy_from_slice(&0xea02_0000_u32.to_le_bytes());
        raw[164..].fill(0xff);
    })
}

fn superblocks() -> Vec<Case> {
    use Profile::*;
    let hurd = || superblock(|sb| sb.creator_os = 1);
    vec![
        stricter(
            "two journals",
            Ext4K1,
            superblock(|sb| sb.journal_dev = 0x801),
            &["journal-device-beside-inode"],
        ),
        stricter("made by the Hurd", Ext4K1, hurd(), &["hurd-with-linux-features"]),
        stricter(
            "level of encryption",
            Encrypt,
            superblock(|sb| sb.encryption_level = 0x40),
            &["encryption-level-unknown"],
        ),
    ]
}

/// `s_first` (0x14) and `s_maxlen` (0x10) of the journal superblock, big-endian.
fn journal_bounds() -> Vec<Case> {
    let bound = |name: &str, at: usize, value: u32| {
        let edit = journal_superblock().put(at, value.to_be_bytes());
        stricter(name, Profile::Ext4K1, edit, &["journal-bounds-wrong"])
    };
    vec![
        bound("log begins late", 0x14, 5),
        bound("log begins behind its end", 0x14, 0x7fff_ffff),
        bound("log begins at its superblock", 0x14, 0),
        bound("journal of one block", 0x10, 1),
    ]
}

/// `s_num_fc_blks` (0x54) of the journal superblock in a file system with fast commits.
fn fast_commit_areas() -> Vec<Case> {
    let area = |name: &str, blocks: u32| {
        let edit = journal_superblock().put(0x54, blocks.to_be_bytes());
        stricter(name, Profile::FastCommit, edit, &["fast-commit-area-too-large"])
    };
    let switched_on = superblock(|sb| sb.feature_compat |= Compat::FAST_COMMIT.bits());
    let version_1 = journal_superblock().raw(|raw| {
        raw[0x04..0x08].copy_from_slice(&3u32.to_be_bytes());
        raw[0x24..].fill(0);
    });
    vec![
        area("area of fast commits leaves 1023 blocks", 17),
        area("area of fast commits leaves nothing", 1040),
        area("area of fast commits longer than the journal", u32::MAX),
        // As `tune2fs -O fast_commit` leaves it.
        stricter(
            "fast commits in a short journal",
            Profile::Ext4K1,
            switched_on,
            &["fast-commit-area-too-large"],
        ),
        stricter(
            "fast commits in a journal of version 1",
            Profile::FastCommit,
            version_1,
            &["journal-version-too-old"],
        ),
    ]
}

fn special_inodes() -> Vec<Case> {
    use Profile::*;
    let mut all = Vec::new();
    for (path, role, profile) in [
        ("<8>", "journal", Ext4K1),
        ("<7>", "resize", Ext4),
        ("<3>", "user quota", Quota),
        ("<4>", "group quota", Quota),
    ] {
        let case = |what: &str, edit: InodeEdit, id| {
            stricter(&format!("{what} of the {role} inode"), profile, edit, &[id])
        };
        all.extend([
            case("extra size", extra_size(path, 48798), "special-inode-extra-size-bad"),
            case("odd extra size", extra_size(path, 31), "special-inode-extra-size-bad"),
            case(
                "attribute block",
                attribute_block(path, 0xff_ffff),
                "special-inode-attribute-block-bad",
            ),
            case("own attributes", own_attributes(path), "special-inode-attributes-bad"),
            case("value flag", inode(path).set_flags(EA_INODE), "special-inode-flag-bad"),
        ]);
    }
    let encrypted = inode("<3>").set_flags(InodeFlags::ENCRYPT.bits());
    all.extend([
        stricter("encrypted quota", Quota, encrypted, &["special-inode-flag-bad"]),
        stricter("unlinked quota", Quota, inode("<4>").links(0), &["quota-inode-without-links"]),
    ]);
    all
}

/// Makes the superblock name another inode as the orphan file.
fn orphan_file_is(inode: u32) -> Edit {
    superblock(move |sb| sb.orphan_file_inum = inode)
}

/// Makes the superblock name a user's file as the orphan file.
fn orphan_file_is_path(path: &'static str) -> Edit {
    Edit::new(move |volume| {
        let inode = volume.lookup(path)?;
        super::edits::change_superblock(volume, |sb| sb.orphan_file_inum = inode.0)
    })
}

/// The superblock names a user's file as the orphan file of a file system that has none.
fn without_orphan_file() -> Edit {
    Edit::new(|volume| {
        let inode = volume.lookup("/dir/file")?;
        super::edits::change_superblock(volume, |sb| {
            sb.feature_compat &= !Compat::ORPHAN_FILE.bits();
            sb.orphan_file_inum = inode.0;
        })
    })
}

fn orphan_files() -> Vec<Case> {
    use Profile::OrphanFile;
    let wrong = &["orphan-file-inode-wrong", "orphan-file-lost"];
    let case = |name: &str, edit: Edit, ids| -> Case {
        Recipe::new(name).on(OrphanFile).edit(edit).expect(ids).into()
    };
    vec![
        case("orphan file is the root", orphan_file_is(InodeNr::ROOT.0), wrong),
        case("orphan file is the journal", orphan_file_is(InodeNr::JOURNAL.0), wrong),
        case("orphan file is nothing", orphan_file_is(1 << 30), wrong),
        case("orphan file is a file", orphan_file_is_path("/dir/file"), wrong),
        case("orphan file is a directory", orphan_file_is_path("/dir"), wrong),
        case("orphan file is a file, but there is none", without_orphan_file(), &wrong[..1]),
        case(
            "orphan file of 513 blocks",
            inode(ORPHAN_FILE).size(513 << 10).into(),
            &["orphan-file-too-long", "orphan-file-hole"],
        ),
        stricter(
            "orphan file as a value",
            OrphanFile,
            inode(ORPHAN_FILE).set_flags(EA_INODE),
            &["special-inode-flag-bad"],
        ),
    ]
}

/// The inode of an attribute's value has no links.
fn deleted_value() -> Case {
    let edit = Edit::new(|volume| {
        let raw = volume.inode_bytes(volume.lookup("/ea-big")?)?;
        let value = InodeNr(number_at(&raw, FIRST + 4));
        let mut raw = volume.inode_bytes(value)?;
        raw[26..28].fill(0);
        volume.put_inode(value, &raw)?;
        volume.fix_inode(value)
    });
    // e2fsck finds its bits and blocks in use, and frees them.
    Recipe::new("deleted inode of a value")
        .on(Profile::EaInode)
        .edit(edit)
        .expect(&["ea-inode-deleted"])
        .into()
}

/// The inode of an attribute's value has another type, or attributes.
fn misread_values() -> [Case; 3] {
    let of_mode = |name: &str, mode: u16| {
        Case::from(
            Recipe::new(name)
                .on(Profile::EaInode)
                .edit(change_ea_inode(move |base| base.mode = mode))
                .expect(&["ea-inode-mode-bad", "ea-inode-flag-on-non-regular"]),
        )
    };
    let marked = Edit::new(|volume| {
        let raw = volume.inode_bytes(volume.lookup("/ea-big")?)?;
        let value = InodeNr(number_at(&raw, FIRST + 4));
        let mut raw = volume.inode_bytes(value)?;
        raw[FIRST - 4..FIRST].copy_from_slice(&xattr::MAGIC.to_le_bytes());
        volume.put_inode(value, &raw)?;
        volume.fix_inode(value)
    });
    [
        of_mode("directory as a value", 0o40_755),
        of_mode("pipe as a value", 0o10_644),
        stricter("value with attributes", Profile::EaInode, marked, &["ea-inode-with-attributes"]),
    ]
}

/// The bytes of an attribute's value are others, or part of them is lost.
fn unreadable_values() -> [Case; 2] {
    const UNREADABLE: [&str; 1] = ["xattr-value-unreadable"];
    let changed = Edit::new(|volume| {
        let map = volume.map(ea_inode(volume)?)?;
        let block = *map.data.values().next().context("the value has no block")?;
        let mut bytes = volume.block(block)?;
        bytes[7] ^= 1;
        volume.put_block(block, &bytes)
    });
    // The first extent has one block less: e2fsck minds the block count alone.
    let lost = change_ea_inode(|base| base.block[16] = base.block[16].saturating_sub(1));
    [
        stricter("value with other bytes", Profile::EaInode, changed, &UNREADABLE),
        Recipe::new("value that lost a block")
            .on(Profile::EaInode)
            .edit(lost)
            .expect(&["xattr-value-unreadable", "inode-block-count-wrong"])
            .into(),
    ]
}

fn attributes() -> Vec<Case> {
    use Profile::*;
    let mut all: Vec<Case> = misread_values().into();
    all.extend(unreadable_values());
    all.extend([
        deleted_value(),
        stricter(
            "attribute with a zero in its name",
            Ext4K1,
            // The second letter of the first name.
            inode("/ea").raw(|raw| {
                raw[0x80 + 32 + 4 + 17] = 0;
                let Some(hash) = entry_hash_of_first(&raw[0xa4..]) else { return };
                raw[0xa4 + 12..0xa4 + 16].copy_from_slice(&hash.to_le_bytes());
            }),
            &["xattr-name-with-zero"],
        ),
        stricter(
            "attribute in a block as an access list",
            Ext4K1,
            xattr_block("/ea-block").put(32 + 1, [2]),
            &["xattr-acl-with-name"],
        ),
        stricter(
            "access list of another version",
            Ext4K1,
            list_of("/acl", |value| value[0] = 2),
            &["xattr-list-unreadable"],
        ),
        stricter(
            "access list without room for another",
            Ext4K1,
            inode("/acl").raw(|raw| {
                raw[0xa4 + 8..0xa4 + 12].copy_from_slice(&15u32.to_le_bytes());
                reseal_first(raw);
            }),
            &["xattr-list-unreadable"],
        ),
        stricter(
            "access list with others in front",
            Ext4K1,
            list_of("/acl", |value| swap_words(value, 4, 24)),
            &["xattr-list-misread"],
        ),
        stricter(
            "access list with its mask before the group",
            Ext4K1,
            list_of("/acl", |value| swap_words(value, 16, 20)),
            &["xattr-list-misread"],
        ),
        stricter(
            "access list without others",
            Ext4K1,
            list_of("/acl", |value| value[24] = 1),
            &["xattr-list-misread"],
        ),
        stricter(
            "default access list without the group",
            Ext4K1,
            list_of("/dir", |value| value[16] = 1),
            &["xattr-list-misread"],
        ),
        stricter(
            "default access list with an unknown entry",
            Ext4K1,
            list_of("/dir", |value| value[4] = 0x40),
            &["xattr-list-unreadable"],
        ),
    ]);
    all
}

fn files() -> Vec<Case> {
    use Profile::*;
    let depth = |path: &str, depth| inode(path).extent_header(move |header| header.depth = depth);
    vec![
        stricter(
            "extent past the last block",
            Ext4K1,
            inode("/unwritten").extent(1, |extent| extent.block = 0xffff_fff8),
            &["extent-past-file-limit"],
        ),
        stricter(
            "larger than Linux opens by extents",
            Ext4,
            inode("/file").size((1 << 44) - 1),
            &["inode-size-beyond-linux"],
        ),
        stricter(
            "larger than Linux opens by a block map",
            Ext2K4,
            inode("/many/f013").size(1 << 42),
            &["inode-size-beyond-linux"],
        ),
        stricter(
            "immutable link",
            Ext4K1,
            inode("/fast-link").set_flags(InodeFlags::IMMUTABLE.bits()),
            &["symlink-immutable-flag"],
        ),
        stricter(
            "append-only long link",
            Ext4K1,
            inode("/long-link").set_flags(InodeFlags::APPEND.bits()),
            &["symlink-immutable-flag"],
        ),
        stricter(
            "named value",
            Ext4K1,
            inode("/dir/file").set_flags(EA_INODE),
            &["ea-inode-flag-on-named-file"],
        ),
        stricter(
            "hash of new directories",
            Ext4K1,
            superblock(|sb| sb.def_hash_version = 6),
            &["default-hash-version-bad"],
        ),
        stricter(
            "journal of version 1",
            Ext4K1,
            journal_superblock().raw(|raw| {
                raw[0x04..0x08].copy_from_slice(&3u32.to_be_bytes());
                raw[0x24..].fill(0);
            }),
            &["journal-version-too-old"],
        ),
        stricter(
            "verity without the feature",
            Ext4K1,
            inode("/dir/file").set_flags(InodeFlags::VERITY.bits()),
            &["verity-flag-unsupported"],
        ),
        stricter("depth of nothing", Ext4K1, depth("/empty", 3), &["extent-root-depth-bad"]),
        stricter("six levels", Ext4K1, six_levels("/blocks"), &["extent-tree-beyond-linux"]),
    ]
}

/// The hash of the first attribute of an area behind its magic; `None` where another recipe has left none that lies in it.
fn entry_hash_of_first(area: &[u8]) -> Option<u32> {
    let len = usize::from(area[0]);
    let at = usize::from(u16::from_le_bytes([area[2], area[3]]));
    let size = usize::from(u16::from_le_bytes([area[8], area[9]]));
    Some(entry_hash(area.get(16..16 + len)?, area.get(at..at + size)?, Chars::Unsigned))
}

/// Makes the hash of an inode's first attribute right, if it has one.
fn reseal_first(raw: &mut [u8]) {
    let Some(hash) = entry_hash_of_first(&raw[0xa4..]) else { return };
    let stored = &mut raw[0xa4 + 12..0xa4 + 16];
    if stored.iter().any(|&byte| byte != 0) {
        stored.copy_from_slice(&hash.to_le_bytes());
    }
}

/// Changes the value of an inode's first attribute.
fn list_of(path: &'static str, change: fn(&mut [u8])) -> InodeEdit {
    inode(path).raw(move |raw| {
        let at = usize::from(u16::from_le_bytes([raw[0xa4 + 2], raw[0xa4 + 3]]));
        // Another recipe on the same image may have left no list there.
        if let Some(value) = raw.get_mut(0xa4 + at..).filter(|value| value.len() >= 28) {
            change(value);
            reseal_first(raw);
        }
    })
}

/// Swaps two short entries of an access list.
fn swap_words(value: &mut [u8], one: usize, other: usize) {
    (0..4).for_each(|at| value.swap(one + at, other + at));
}

/// Gives a file of twenty contiguous blocks a tree of six levels, with nodes in the last six
/// blocks.
fn six_levels(path: &'static str) -> Edit {
    const LEVELS: u16 = 6;
    const DATA: u64 = 14;
    let header = |depth, max| ExtentHeader { magic: MAGIC, entries: 1, max, depth, generation: 0 };
    Edit::new(move |volume| {
        let number = volume.lookup(path)?;
        let map = volume.map(number)?;
        let start = map.data[&LogicalBlock(0)];
        let extent =
            Extent { logical: LogicalBlock(0), run: BlockRun::new(start, DATA), unwritten: false };
        let mut entry = [0; 12];
        extent.to_raw().expect("a small extent").encode_into(&mut entry);
        let max = (volume.geometry.block_size as u16 - 12) / 12;
        for level in 0..LEVELS {
            let block = BlockNr(start.0 + DATA + u64::from(level));
            let mut node = volume.block(block)?;
            node.fill(0);
            header(level, max).encode_into(node.first_chunk_mut().expect("a block"));
            node[12..24].copy_from_slice(&entry);
            volume.put_block(block, &node)?;
            volume.fix_extent_node(number, block)?;
            let index = Index { logical: LogicalBlock(0), node: block };
            index.to_raw().expect("a low block").encode_into(&mut entry);
        }
        let mut raw = volume.inode_bytes(number)?;
        let root = &mut raw[0x28..0x64];
        root.fill(0);
        header(LEVELS, 4).encode_into(root.first_chunk_mut().expect("sixty bytes"));
        root[12..24].copy_from_slice(&entry);
        volume.put_inode(number, &raw)?;
        volume.fix_inode(number)
    })
}
