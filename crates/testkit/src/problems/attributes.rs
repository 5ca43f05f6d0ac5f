//! Attributes, inline data, symlinks, special files and times: recipes with one fault each, for
//! Floe and e2fsck.

use crate::Profile;
use crate::recipe::{self, Edit, Recipe, inode, xattr_block};
use floe_format::ext::crypt;
use floe_format::ext::xattr::{Chars, INDEX_ENCRYPTION, MAGIC, entry_hash};

use super::Case;

/// Offset of the first attribute in an inode with 32 extra bytes.
pub(super) const FIRST: usize = 128 + 32 + 4;
/// Offset of the first attribute in an attribute block.
const BLOCK_FIRST: usize = 32;
const EXTENTS: u32 = 0x0008_0000;
const INLINE: u32 = 0x1000_0000;
const ENCRYPT: u32 = 0x0800;
const INDEX: u32 = 0x1000;
const IMMUTABLE: u32 = 0x10;
const CASEFOLD: u32 = 0x4000_0000;
const EA_INODE: u32 = 0x0020_0000;

/// The checker that must find the ids of a recipe.
#[derive(Clone, Copy, PartialEq)]
enum Who {
    Both,
    /// Only Floe, because e2fsck 1.47.0 finds no damage, for this reason.
    Floe(&'static str),
    /// Only Floe, as a remark and not as damage.
    Remark,
}
use Who::{Both, Floe, Remark};

fn case(name: &str, profile: Profile, edit: impl Into<Edit>) -> Recipe {
    Recipe::new(format!("attributes: {name}")).on(profile).edit(edit)
}

fn put16(path: &'static str, at: usize, value: u16) -> recipe::InodeEdit {
    inode(path).raw(move |raw| raw[at..at + 2].copy_from_slice(&value.to_le_bytes()))
}

fn put32(path: &'static str, at: usize, value: u32) -> recipe::InodeEdit {
    inode(path).raw(move |raw| raw[at..at + 4].copy_from_slice(&value.to_le_bytes()))
}

/// Gives an inode an encryption context, and sets the flag.
pub(super) fn context(path: &'static str, value: &'static [u8]) -> recipe::InodeEdit {
    let edit = inode(path).raw(move |raw| {
        raw[128..130].copy_from_slice(&32u16.to_le_bytes());
        raw[160..].fill(0);
        raw[160..164].copy_from_slice(&MAGIC.to_le_bytes());
        let (name, end) = (crypt::ATTRIBUTE_NAME, raw.len());
        let at = end - value.len().next_multiple_of(4);
        raw[at..at + value.len()].copy_from_slice(value);
        raw[FIRST] = name.len() as u8;
        raw[FIRST + 1] = INDEX_ENCRYPTION;
        raw[FIRST + 2..FIRST + 4].copy_from_slice(&((at - FIRST) as u16).to_le_bytes());
        raw[FIRST + 8..FIRST + 12].copy_from_slice(&(value.len() as u32).to_le_bytes());
        let hash = entry_hash(name, value, Chars::Unsigned);
        raw[FIRST + 12..FIRST + 16].copy_from_slice(&hash.to_le_bytes());
        raw[FIRST + 16..FIRST + 16 + name.len()].copy_from_slice(name);
    });
    edit.set_flags(ENCRYPT)
}

pub(super) fn number_at(raw: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]])
}

/// The recipes of this module.
pub(super) fn cases() -> Vec<Case> {
    [
        attributes_in_the_inode(),
        attributes_in_a_block(),
        values_in_inodes(),
        inline_data(),
        exclusive_flags(),
        symlinks_and_special_files(),
        encryption_casefold_and_times(),
    ]
    .into_iter()
    .flatten()
    .map(|(who, recipe)| match who {
        Both => Case::from(recipe).same_codes(),
        Remark => recipe.into(),
        Floe(reason) => Case::from(recipe).unlike_e2fsck(reason),
    })
    .collect()
}

fn attributes_in_the_inode() -> Vec<(Who, Recipe)> {
    let on = Profile::Ext4K1;
    let entry = |name: &str, at: usize, value: u8, ids: &[&'static str]| {
        let edit = inode("/ea").raw(move |raw| raw[FIRST + at] = value);
        (Both, case(name, on, edit).expect(ids))
    };
    vec![
        (Both, case("nothing", on, inode("/ea").raw(|_| ()))),
        entry("long name", 0, 200, &["xattr-ibody-overlap"]),
        entry("value in the middle of entries", 2, 8, &["xattr-ibody-overlap"]),
        entry("value behind the end", 3, 1, &["xattr-ibody-overlap"]),
        entry("huge value", 10, 1, &["xattr-value-size-bad"]),
        entry("hash", 12, 0x55, &["xattr-hash-bad"]),
        (Both, case("no hash", on, put32("/ea", FIRST + 12, 0))),
        // The value and its hash are unchanged: 1.47.0 turns the empty inode into a value inode.
        (
            Both,
            case("value elsewhere", on, put32("/ea", FIRST + 4, 200))
                .expect(&["xattr-ea-inode-number-bad"]),
        ),
        (Both, case("extra 3", on, put16("/ea", 128, 3)).expect(&["inode-extra-isize-bad"])),
        (Both, case("extra 130", on, put16("/ea", 128, 130)).expect(&["inode-extra-isize-bad"])),
        (Both, case("extra 128", on, put16("/ea", 128, 128))),
        (Both, case("extra 0", on, put16("/ea", 128, 0))),
        (Both, case("no magic", on, put32("/ea", 160, 0))),
    ]
}

fn attributes_in_a_block() -> Vec<(Who, Recipe)> {
    let on = Profile::Ext4K1;
    let shared = |name: &str, at: usize, value: u32, ids: &[&'static str]| {
        (Both, case(name, on, xattr_block("/ea-shared-a").put32(at, value)).expect(ids))
    };
    let own = |name: &str, at: usize, value: u8, ids: &[&'static str]| {
        let edit = xattr_block("/ea-block").put(BLOCK_FIRST + at, [value]);
        (Both, case(name, on, edit).expect(ids))
    };
    vec![
        shared("magic", 0, 7, &["xattr-block-magic-bad"]),
        shared("too many users", 4, 3, &["xattr-block-refcount-wrong"]),
        shared("too few users", 4, 1, &["xattr-block-refcount-wrong"]),
        shared("two blocks", 8, 2, &["xattr-block-count-bad"]),
        shared("hash of the block", 12, 2, &[]),
        own("no class", 1, 0, &["xattr-block-name-bad"]),
        own("block: value behind the end", 3, 4, &["xattr-block-value-bad"]),
        own("value over the header", 2, 8, &["xattr-block-overlap"]),
        own("block: hash", 12, 0x55, &["xattr-hash-bad"]),
        (
            Both,
            case("checksum", on, xattr_block("/ea-block").stale().put32(16, 7))
                .expect(&["xattr-block-checksum-bad"]),
        ),
        (
            Both,
            case("no such block", on, put32("/ea-block", 0x68, 0x7fff_ffff))
                .expect(&["inode-file-acl-out-of-range", "inode-block-count-wrong"]),
        ),
        (
            Both,
            case("high half", Profile::Bit32, put16("/ea-block", 0x76, 1))
                .expect(&["inode-file-acl-high-nonzero"]),
        ),
        (
            Both,
            case("no ext_attr feature", on, recipe::superblock(|sb| sb.feature_compat &= !0x8))
                .expect(&["inode-file-acl-without-xattr-feature"]),
        ),
        (
            Both,
            case(
                "no ext_attr feature, no attributes",
                on,
                recipe::superblock(|sb| {
                    sb.feature_compat &= !0x8;
                }),
            )
            .edit(xattr_block("/ea-block").put32(0, 7))
            .expect(&["inode-file-acl-without-xattr-feature"]),
        ),
    ]
}

fn values_in_inodes() -> Vec<(Who, Recipe)> {
    let on = Profile::EaInode;
    let number = |value: u32| put32("/ea-big", FIRST + 4, value);
    vec![
        (Both, case("reserved", on, number(5)).expect(&["xattr-ea-inode-number-bad"])),
        // e2fsck exits with an error here.
        (Both, case("none", on, number(u32::MAX)).expect(&["xattr-ea-inode-number-bad"])),
        (Both, case("root file", on, number(12)).expect(&["xattr-ea-inode-number-bad"])),
        (
            Floe("1.47.0 does not compare these sizes"),
            case("size of a value inode", on, put32("/ea-big", FIRST + 8, 1))
                .expect(&["xattr-value-size-bad"]),
        ),
        (
            Both,
            case("hash of a value inode", on, put32("/ea-big", FIRST + 12, 1))
                .expect(&["xattr-hash-bad"]),
        ),
        (
            Both,
            case(
                "flag",
                on,
                Edit::new(|volume| {
                    let raw = volume.inode_bytes(volume.lookup("/ea-big")?)?;
                    let value = number_at(&raw, FIRST + 4);
                    let value = floe_format::InodeNr(value);
                    let mut raw = volume.inode_bytes(value)?;
                    let flags = number_at(&raw, 32) & !EA_INODE;
                    raw[32..36].copy_from_slice(&flags.to_le_bytes());
                    volume.put_inode(value, &raw)?;
                    volume.fix_inode(value)
                }),
            )
            .expect(&["xattr-ea-inode-flag-missing"]),
        ),
        (
            Floe("e2fsck looks for the feature since 1.47.1"),
            case("no ea_inode feature", on, recipe::superblock(|sb| sb.feature_incompat &= !0x400))
                .expect(&["ea-inode-feature-missing"]),
        ),
    ]
}

fn inline_data() -> Vec<(Who, Recipe)> {
    let on = Profile::InlineData;
    vec![
        (
            Both,
            case("no data, nowhere", on, put16("/ea", FIRST + 2, 400))
                .expect(&["inline-data-attr-missing"]),
        ),
        // After the name of `system.data`, at the place of the end marker: a name of zero length.
        (
            Both,
            case("another's data, nowhere", on, put16("/tiny", FIRST + 20 + 2, 0x2000))
                .expect(&["inline-data-attr-missing"]),
        ),
        (
            Both,
            case("attribute", on, put32("/medium", 160, 0)).expect(&["inline-data-attr-missing"]),
        ),
        (Both, case("shorter file", on, inode("/medium").size(100))),
        (Both, case("longer file", on, inode("/medium").size(1000))),
        (Both, case("directory", on, inode("/dir/sub").size(64)).expect(&["inode-size-wrong"])),
        (
            Both,
            case("indexed directory", on, inode("/dir/sub").set_flags(INDEX))
                .expect(&["htree-root-invalid"]),
        ),
        (
            Both,
            case(
                "no inline_data feature",
                on,
                recipe::superblock(|sb| sb.feature_incompat &= !0x8000),
            )
            .expect(&["inline-data-feature-missing"]),
        ),
        (
            Both,
            case("neither", Profile::Ext4K1, inode("/file").clear_flags(EXTENTS).set_flags(INLINE))
                .expect(&["inline-data-flag-unsupported"]),
        ),
    ]
}

/// Inline data and extents at once, and inline data in an unused inode.
fn exclusive_flags() -> Vec<(Who, Recipe)> {
    let on = Profile::InlineData;
    let both_flags = |path| inode(path).set_flags(INLINE | EXTENTS);
    vec![
        (
            Both,
            case("extents", on, both_flags("/file"))
                .expect(&["inline-and-extents-flags-extent-root"]),
        ),
        (
            Both,
            case("small", on, both_flags("/medium"))
                .expect(&["inline-and-extents-flags-small-file"]),
        ),
        (
            Both,
            case("junk", on, both_flags("/medium").size(100_000))
                .expect(&["inline-and-extents-flags-junk"]),
        ),
        (
            Both,
            case("map", on, both_flags("/medium").size(100_000).raw(|raw| raw[40..100].fill(0)))
                .expect(&["inline-and-extents-flags-block-map"]),
        ),
        (
            Both,
            case(
                "too large, of an inode without use",
                on,
                inode("<6>").set_flags(INLINE).size(1 << 60),
            )
            .expect(&["inode-size-wrong"]),
        ),
        (
            Both,
            case("small, of an inode without use", on, both_flags("<6>"))
                .expect(&["inline-and-extents-flags-small-file"]),
        ),
        (
            Both,
            case(
                "junk, of an inode without use",
                on,
                both_flags("<9>").size(100_000).block_word(3, 99_999),
            )
            .expect(&["inline-and-extents-flags-junk"]),
        ),
    ]
}

fn symlinks_and_special_files() -> Vec<(Who, Recipe)> {
    let on = Profile::Ext4K1;
    let link = |name: &str, edit: recipe::InodeEdit| {
        (Both, case(name, on, edit).expect(&["symlink-invalid"]))
    };
    vec![
        // Once the data is in place, the link is valid.
        (
            Both,
            case("long, all flags", on, inode("/long-link").set_flags(INLINE | EXTENTS | INDEX))
                .expect(&["inline-and-extents-flags-extent-root"]),
        ),
        link("fast, too short", inode("/fast-link").size(3)),
        link("fast, too long", inode("/fast-link").size(5)),
        link("fast, empty", inode("/fast-link").size(0)),
        link("fast, index", inode("/fast-link").set_flags(INDEX)),
        link("fast, huge", inode("/fast-link").size(1 << 33)),
        link("long, too short", inode("/long-link").size(199)),
        link("long, too long", inode("/long-link").size(201)),
        link("long, cut", inode("/long-link").size(20)),
        link("long, more than a block", inode("/long-link").size(2000)),
        link("long, elsewhere", inode("/long-link").extent(0, |extent| extent.block = 1)),
        (
            Both,
            case("fast, extents", on, inode("/fast-link").set_flags(EXTENTS))
                .expect(&["fast-symlink-extents-flag"]),
        ),
        (
            Both,
            case("size of a fifo", on, inode("/fifo").size(1))
                .expect(&["special-file-size-nonzero"]),
        ),
        (Both, case("locked", on, inode("/fifo").set_flags(IMMUTABLE))),
        (Both, case("rubbish", on, inode("/char").block_word(7, 9))),
        (
            Both,
            case("locked rubbish", on, inode("/char").block_word(7, 9).set_flags(IMMUTABLE))
                .expect(&["char-device-invalid"]),
        ),
        (Both, case("b", on, inode("/block").set_flags(EXTENTS)).expect(&["block-device-invalid"])),
        (Both, case("p", on, inode("/fifo").set_flags(INDEX)).expect(&["fifo-invalid"])),
        (Both, case("s", on, inode("/socket").set_flags(EXTENTS)).expect(&["socket-invalid"])),
        (
            Both,
            case("old flags", Profile::Ext3, inode("/fifo").set_flags(INLINE | EXTENTS))
                .expect(&["fifo-invalid"]),
        ),
        (
            Both,
            case("inline", Profile::InlineData, inode("/fifo").set_flags(INLINE | EXTENTS))
                .expect(&["special-file-extents-or-inline-flag"]),
        ),
    ]
}

fn encryption_casefold_and_times() -> Vec<(Who, Recipe)> {
    let on = Profile::Encrypt;
    let mut v1 = [1; 28];
    v1[5] = 7;
    let v1: &'static [u8; 28] = Box::leak(Box::new(v1));
    let corrupt = &["encryption-context-corrupt"];
    vec![
        (Both, case("version 1", on, context("/file", v1))),
        (Both, case("version 2", on, context("/file", &[2; 40]))),
        (Both, case("version 3", on, context("/file", &[3; 5]))),
        (Both, case("short", on, context("/file", &v1[..27])).expect(corrupt)),
        (Both, case("version 0", on, context("/file", &[0; 28])).expect(corrupt)),
        (
            Both,
            case("no context", on, inode("/ea-block").set_flags(ENCRYPT))
                .expect(&["encrypt-flag-without-context"]),
        ),
        (
            Both,
            case("no directory", Profile::Casefold, inode("/file").set_flags(CASEFOLD))
                .expect(&["casefold-flag-on-non-directory"]),
        ),
        (
            Both,
            case("no casefold feature", on, inode("/dir").set_flags(CASEFOLD))
                .expect(&["casefold-flag-unsupported"]),
        ),
        (
            Both,
            case(
                "epoch",
                on,
                inode("/file").base(|base| base.mtime = 0x8000_0001).extra(|extra| {
                    extra.mtime_extra = 3;
                }),
            )
            .expect(&["inode-time-epoch-misencoded"]),
        ),
        (
            Remark,
            case("nanoseconds", on, inode("/file").extra(|extra| extra.ctime_extra = !3))
                .expect(&["timestamp-nanoseconds-bad"]),
        ),
    ]
}
