//! Directory entries, and the inodes that they name.

use crate::Profile;
use crate::recipe::{Edit, Recipe, debugfs, dir_block, entry, inode, superblock};

use super::Case;
use super::edits::{context, entry_to_ea_inode};

fn case(name: &str, edit: impl Into<Edit>, ids: &[&'static str]) -> Case {
    on(name, Profile::Ext4K1, edit, ids)
}

fn on(name: &str, profile: Profile, edit: impl Into<Edit>, ids: &[&'static str]) -> Case {
    Recipe::new(name).on(profile).edit(edit).expect(ids).into()
}

/// The recipes of this module.
pub(super) fn cases() -> Vec<Case> {
    [dots(), targets(), names(), blocks(), encrypted(), inodes(), devices()]
        .into_iter()
        .flatten()
        .collect()
}

fn dots() -> Vec<Case> {
    vec![
        case("dot wrong", entry("/dir/.").inode(2), &["dot-entry-wrong-inode"]),
        case("dot gone", entry("/dir/.").inode(0), &["dot-entry-missing"]),
        case("dot named", entry("/dir/.").name("x"), &["first-entry-not-dot"]),
        case(
            "dot unended",
            entry("/dir/.").raw(|entry| entry[9] = 1),
            &["dot-entry-not-terminated"],
        ),
        // The record also spans `..`: the next one is the second entry.
        case(
            "dot oversized",
            dir_block("/dir", 0).raw(|block| {
                block.copy_within(12..24, 28);
                block.copy_within(12..24, 40);
                block[4] = 28;
            }),
            &["dot-entry-oversized"],
        ),
        case("dotdot gone", entry("/dir/sub/..").inode(0), &["dotdot-entry-missing"]),
        case("dotdot named", entry("/dir/sub/..").name("yy"), &["second-entry-not-dotdot"]),
        case(
            "dotdot unended",
            entry("/dir/sub/..").raw(|entry| entry[10] = 1),
            &["dotdot-entry-not-terminated"],
        ),
        case("second dot", entry("/dir/file").name("."), &["dot-entry-duplicate"]),
        case("second dotdot", entry("/dir/file").name(".."), &["dotdot-entry-duplicate"]),
    ]
}

fn targets() -> Vec<Case> {
    use Profile::*;
    vec![
        case("illegal", entry("/dir/file").inode(5), &["dirent-inode-illegal"]),
        on("unused", NoCsum, entry("/dir/file").inode(700), &["dirent-inode-unused"]),
        case(
            "in an uninit group",
            entry("/dir/file").inode(1000),
            &["dirent-inode-in-uninit-group"],
        ),
        case("in an unused area", entry("/dir/file").inode(255), &["dirent-inode-in-unused-area"]),
        case("to itself", entry("/dir/file").inode_of("/dir"), &["dirent-links-to-own-directory"]),
        case("to root", entry("/dir/file").inode(2), &["dirent-links-to-root"]),
        on("to a value", EaInode, entry_to_ea_inode("/dir/file"), &["dirent-links-to-ea-inode"]),
        case(
            "second name",
            entry("/dir/file").inode_of("/many").file_type(2),
            &["directory-hard-link"],
        ),
    ]
}

fn names() -> Vec<Case> {
    use Profile::*;
    vec![
        case("slash", entry("/dir/file").name("fi/e"), &["dirent-name-illegal-char"]),
        case("no name", entry("/dir/file").name_len(0), &["dirent-name-empty"]),
        case("type", entry("/dir/file").file_type(2), &["dirent-type-wrong"]),
        case("type unset", entry("/dir/file").file_type(0), &["dirent-type-unset"]),
        on(
            "type unsupported",
            Ext2Plain,
            entry("/dir/file").file_type(1),
            &["dirent-type-unsupported"],
        ),
        case("twice", entry("/many/f001").name("f002"), &["dirent-duplicate-in-block"]),
        on(
            "a zero in text",
            CasefoldStrict,
            entry("/fold/Mixed-Case-File-Number-01").name(b"Mixed-Case\0File-Number-01"),
            &["dirent-name-illegal-char"],
        ),
        on(
            "no text",
            CasefoldStrict,
            entry("/fold/Mixed-Case-File-Number-01").name(b"Mixed-Case-File-Number-\xff\xff"),
            &["casefold-name-invalid-encoding"],
        ),
    ]
}

fn blocks() -> Vec<Case> {
    use Profile::*;
    vec![
        case("too short", entry("/many/f001").rec_len(8), &["dirent-structure-corrupt"]),
        // The following records reveal their lengths.
        case("no length", entry("/many/f001").rec_len(0), &["dirent-structure-corrupt"]),
        case("dotdot without length", entry("/dir/..").rec_len(0), &["dirent-structure-corrupt"]),
        case(
            "checksum of a block",
            entry("/dir/file").name("fill").stale(),
            &["dir-block-checksum-bad"],
        ),
        case(
            "no tail",
            dir_block("/dir", 0)
                .raw(|block| {
                    let len = block.len();
                    block[len - 12..].fill(0);
                    block[len - 8] = 12;
                })
                .stale(),
            &["dir-block-checksum-tail-missing"],
        ),
        on("hole", Ext3, inode("/big").block_word(2, 0), &["directory-hole"]),
        on(
            "inline size",
            InlineEaInode,
            inline_size("/dir/sub", 66),
            &["inline-directory-size-bad"],
        ),
    ]
}

/// Sets the length of the inline data of a directory; 60 bytes of it lie in `i_block`.
fn inline_size(path: &'static str, size_bytes: u64) -> Edit {
    const FIRST: usize = 164;
    inode(path)
        .size(size_bytes)
        .raw(move |raw| {
            // Beside another damage, `system.data` may not come first any more.
            if raw[FIRST..FIRST + 2] != [4, 7] {
                return;
            }
            let at = (raw.len() - FIRST - 8) as u16;
            raw[FIRST + 2..FIRST + 4].copy_from_slice(&at.to_le_bytes());
            raw[FIRST + 8] = (size_bytes - 60) as u8;
        })
        .into()
}

fn encrypted() -> Vec<Case> {
    let recipe =
        |name: &str| Recipe::new(name).on(Profile::Encrypt).edit(context("/dir/sub", policy(7)));
    let long = "a name of 16 byte";
    vec![
        recipe("encrypted name").expect(&["encrypted-name-too-short"]).into(),
        // To e2fsck its names are too short.
        Recipe::new("encrypted root")
            .on(Profile::Encrypt)
            .edit(context("/", policy(7)))
            .expect(&["root-directory-encrypted"])
            .into(),
        recipe("plain file")
            .edit(debugfs(format!("ln file \"/dir/sub/{long}\"\nsif file links_count 182")))
            .expect(&["encrypted-dir-plain-file"])
            .into(),
        recipe("other policy")
            .edit(debugfs("ln empty /dir/sub/a-name-of-16-bytes\nsif empty links_count 2"))
            .edit(context("/empty", policy(8)))
            .expect(&["encrypted-dir-policy-mismatch"])
            .into(),
    ]
}

/// A version 1 encryption context with the given key.
fn policy(key: u8) -> [u8; 28] {
    let mut bytes = [1; 28];
    bytes[5] = key;
    bytes
}

fn inodes() -> Vec<Case> {
    use Profile::*;
    let put16 = |path: &'static str, at: usize, value: u16| {
        inode(path).raw(move |raw| raw[at..at + 2].copy_from_slice(&value.to_le_bytes()))
    };
    let hurd = |name: &str, value, id| -> Case {
        Recipe::new(name)
            .on(Ext2K1)
            .edit(superblock(|sb| sb.creator_os = 1))
            .edit(put16("/file", 0x74, value))
            .expect(&[id])
            .into()
    };
    vec![
        case(
            "fragment address",
            inode("/file").base(|base| base.faddr = 1),
            &["inode-faddr-nonzero"],
        ),
        case(
            "no attributes",
            superblock(|sb| sb.feature_compat &= !8),
            &["inode-file-acl-without-xattr-feature"],
        ),
        case(
            "huge directory",
            inode("/dir").base(|base| base.size_high = 1),
            &["directory-size-high-nonzero"],
        ),
        hurd("fragment number", 1, "inode-frag-nonzero"),
        hurd("fragment size", 0x100, "inode-fsize-nonzero"),
        case("mode", inode("/file").mode(0o070_644), &["inode-mode-illegal"]),
        case(
            "far attributes",
            inode("/file").base(|base| base.file_acl_lo = 1 << 30),
            &["inode-file-acl-out-of-range"],
        ),
        on("many blocks", Ext3, put16("/file", 0x74, 1), &["inode-blocks-high-nonzero"]),
        on("high attributes", Bit32, put16("/ea-block", 0x76, 1), &["inode-file-acl-high-nonzero"]),
        case(
            "nanoseconds",
            inode("/file").extra(|extra| extra.ctime_extra = !3),
            &["timestamp-nanoseconds-bad"],
        ),
    ]
}

fn devices() -> Vec<Case> {
    use Profile::*;
    const EXTENTS: u32 = 0x8_0000;
    vec![
        on("char device", Ext3, inode("/char").set_flags(EXTENTS), &["char-device-invalid"]),
        on("block device", Ext3, inode("/block").set_flags(EXTENTS), &["block-device-invalid"]),
        on("fifo", Ext3, inode("/fifo").set_flags(EXTENTS), &["fifo-invalid"]),
        on("socket", Ext3, inode("/socket").set_flags(EXTENTS), &["socket-invalid"]),
        case("symlink", inode("/fast-link").size(0), &["symlink-invalid"]),
    ]
}
