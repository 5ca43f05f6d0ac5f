//! Inodes that hold the value of an attribute: whatever field of such an inode was overwritten, the repair keeps the value
//! where hash and size prove it, and gives the attribute up only where Linux cannot read it. e2fsck and Linux judge the result; a
//! second repair finds nothing.

use std::fmt;
use std::fs::{self, File};
use std::process::Command;

use floe_blockdev::ReadBlocks;
use floe_check::CheckOptions;
use floe_format::InodeNr;
use floe_format::ext::xattr::{
    Chars, INDEX_ACL_ACCESS, INDEX_USER, NewValue, NewXattr, XattrArea, entry_hash_of_inode,
    write_inode,
};
use floe_repair::policy::Yes;
use floe_repair::{Repair, RepairOptions, repair};
use floe_testkit::kernel::{Mounted, mount_available};
use floe_testkit::recipe::{Recipe, superblock};
use floe_testkit::tree::{Tree, digest, mounted, stored};
use floe_testkit::{Image, Profile, Volume, build, oracle, tool};

/// Where attributes begin in an inode with 32 extra bytes, with their magic.
const AREA: usize = 128 + 32;

/// Damage of one inode.
#[derive(Clone)]
struct Damage {
    field: &'static str,
    at: usize,
    bytes: Vec<u8>,
    /// Whether the checksum of the inode is computed again.
    sealed: bool,
}

impl fmt::Display for Damage {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            to,
            "{} := {:02x?}{}",
            self.field,
            self.bytes,
            if self.sealed { "" } else { ", stale" }
        )
    }
}

/// Fields of an inode: name, first byte, bytes. Flags and mode have lists of their own.
const FIELDS: [(&str, usize, usize); 27] = [
    ("uid", 0x02, 2),
    ("size_lo", 0x04, 4),
    ("atime (hash)", 0x08, 4),
    ("ctime (references)", 0x0c, 4),
    ("mtime", 0x10, 4),
    ("dtime", 0x14, 4),
    ("gid", 0x18, 2),
    ("links", 0x1a, 2),
    ("blocks_lo", 0x1c, 4),
    ("version (references)", 0x24, 4),
    ("extent header", 0x28, 12),
    ("first extent", 0x34, 12),
    ("unused extents", 0x40, 36),
    ("generation", 0x64, 4),
    ("file_acl_lo", 0x68, 4),
    ("size_high", 0x6c, 4),
    ("faddr", 0x70, 4),
    ("blocks_high", 0x74, 2),
    ("file_acl_high", 0x76, 2),
    ("uid_high", 0x78, 2),
    ("gid_high", 0x7a, 2),
    ("extra_isize", 0x80, 2),
    ("ctime_extra", 0x84, 4),
    ("crtime", 0x90, 8),
    ("version_hi", 0x98, 4),
    ("projid", 0x9c, 4),
    ("attributes", AREA, 96),
];

/// Damage of a sound inode that is tried: all of mode and flags, and one for each other field, or, if the environment has
/// `FLOE_ALL`, four.
fn damages(whole: &[u8]) -> Vec<Damage> {
    let is_thorough = std::env::var_os("FLOE_ALL").is_some();
    let mut all = Vec::new();
    let mut add = |field, at: usize, bytes: Vec<u8>| {
        if whole[at..at + bytes.len()] != bytes {
            all.push(Damage { field, at, bytes, sealed: true });
        }
    };
    for kind in 0..16u16 {
        add("mode", 0, ((kind << 12) | (0o644 * (kind & 1))).to_le_bytes().to_vec());
    }
    let flags = u32::from_le_bytes([whole[0x20], whole[0x21], whole[0x22], whole[0x23]]);
    for bit in 0..32 {
        add("flags", 0x20, (flags ^ 1 << bit).to_le_bytes().to_vec());
    }
    for flags in [0, u32::MAX] {
        add("flags", 0x20, flags.to_le_bytes().to_vec());
    }
    for (field, at, len) in FIELDS {
        let old = &whole[at..at + len];
        let flipped = |byte: usize, bits: u8| {
            let mut bytes = old.to_vec();
            bytes[byte] ^= bits;
            bytes
        };
        let hostile = [vec![0xff; len], vec![0; len], flipped(len - 1, 0x80), flipped(0, 1)];
        for (which, bytes) in hostile.into_iter().enumerate() {
            if is_thorough || which == 0 {
                add(field, at, bytes);
            }
        }
    }
    let mut marked = whole[AREA..].to_vec();
    marked[..4].copy_from_slice(&0xea02_0000_u32.to_le_bytes());
    add("attributes (none, marked)", AREA, marked);
    all
}

/// Fields without which the value cannot be found: neither Linux nor e2fsck does.
const MAP: [&str; 2] = ["extent header", "first extent"];

fn options() -> RepairOptions<'static> {
    let check =
        CheckOptions { threads: 2, now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    RepairOptions { check, ..RepairOptions::default() }
}

fn staged(device: &dyn ReadBlocks) -> Repair<'_> {
    repair(device, &options(), &mut Yes).unwrap()
}

/// The inode with the value of `/ea-big`.
fn value_inode(volume: &Volume<'_>) -> InodeNr {
    let raw = volume.inode_bytes(volume.lookup("/ea-big").unwrap()).unwrap();
    let area = XattrArea::of_inode(&raw[AREA..]).unwrap();
    area.entries().find_map(|entry| entry.unwrap().value_inode).unwrap()
}

/// Whether `/ea-big` has an attribute whose value lies in an inode, whatever is there.
fn has_attribute(image: &Image) -> bool {
    let volume = Volume::open(image).unwrap();
    let raw = volume.inode_bytes(volume.lookup("/ea-big").unwrap()).unwrap();
    let area = XattrArea::of_inode(&raw[AREA..]);
    area.is_some_and(|area| area.entries().any(|entry| entry.unwrap().value_inode.is_some()))
}

fn damaged(base: &Image, damages: &[&Damage]) -> Image {
    let image = base.copy().unwrap();
    let volume = Volume::open(&image).unwrap();
    let inode = value_inode(&volume);
    let mut raw = volume.inode_bytes(inode).unwrap();
    for Damage { at, bytes, .. } in damages {
        raw[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    volume.put_inode(inode, &raw).unwrap();
    if damages.iter().all(|damage| damage.sealed) {
        volume.fix_inode(inode).unwrap();
    }
    image
}

/// The findings of a check.
fn codes(image: &Image) -> Vec<&'static str> {
    let found = floe_check::check(image, &options().check).unwrap().found;
    found.iter().map(|problem| problem.row().id).collect()
}

/// Repairs an image. Returns what is wrong with the result, if anything; `tree` is what must be there.
fn fault(image: &Image, tree: Option<&Tree>) -> Option<String> {
    let first = staged(image);
    if !first.is_clean() || !first.left.is_empty() {
        return Some(format!("left: {:?}", first.left));
    }
    image.write_staged(&first.staged).unwrap();
    let deeds = first.deeds.len();
    drop(first);
    let second = staged(image);
    if !second.before.is_clean() || !second.deeds.is_empty() {
        return Some(format!("again: {:?} {:?}", second.before.found, second.deeds));
    }
    let verdict = oracle::e2fsck(image).unwrap();
    if !verdict.clean() {
        return Some(format!("e2fsck: {}", verdict.text));
    }
    let after = stored(image).unwrap();
    match tree {
        Some(before) if *before != after => Some(format!(
            "lost after {deeds} changes: {:?}",
            before
                .iter()
                .filter(|(path, node)| after.get(*path) != Some(*node))
                .map(|(path, _)| { String::from_utf8_lossy(path).into_owned() })
                .collect::<Vec<_>>()
        )),
        _ => None,
    }
}

/// Whether Linux reads the big attribute.
fn linux_reads(image: &Image, value: &[u8]) -> bool {
    let Ok(mount) = Mounted::new(image.path(), "ro") else { return false };
    let tree = mounted(mount.path());
    mount.unmount().unwrap();
    let read = tree.ok().and_then(|tree| {
        let bytes = tree.get(&b"/ea-big"[..])?.xattrs.get(&b"user.big"[..]).cloned()?;
        Some(digest(&bytes))
    });
    read.is_some_and(|read| read.as_bytes() == value)
}

#[test]
fn a_value_outlives_every_field_of_its_inode() {
    if tool::missing() {
        return;
    }
    let with_kernel = mount_available().is_ok();
    let base = build::base(Profile::EaInode).unwrap();
    let before = stored(&base).unwrap();
    let value = before[&b"/ea-big"[..]].xattrs[&b"user.big"[..]].clone();
    assert!(!with_kernel || linux_reads(&base, &value));
    let volume = Volume::open(&base).unwrap();
    let whole = volume.inode_bytes(value_inode(&volume)).unwrap();
    let mut faults = Vec::new();
    for (index, damage) in damages(&whole).iter().enumerate() {
        let image = damaged(&base, &[damage]);
        let in_map = MAP.contains(&damage.field);
        // Mounts are slow: of those fields that repairs do not lose, a few are enough.
        let asks = with_kernel && (damage.field == "mode" || in_map || index % 16 == 0);
        let was_read = asks && in_map && linux_reads(&image, &value);
        let expected = (!in_map || was_read).then_some(&before);
        let finds = codes(&image).contains(&"xattr-value-unreadable");
        if asks && in_map && finds == was_read {
            faults.push(format!("{damage}: Linux reads it: {was_read}, a finding: {finds}"));
        }
        if let Some(fault) = fault(&image, expected) {
            faults.push(format!("{damage}: {fault}"));
        } else if asks && expected.is_some() && !linux_reads(&image, &value) {
            faults.push(format!("{damage}: Linux does not read it"));
        } else if has_attribute(&image)
            && !stored(&image).unwrap()[&b"/ea-big"[..]].xattrs.contains_key(&b"user.big"[..])
        {
            faults.push(format!("{damage}: the attribute stays, with other bytes"));
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// A value that is in use is no orphan, whatever the list says: e2fsck releases it, and Linux does not mount it cleanly.
#[test]
fn a_value_outlives_the_list_of_orphans() {
    if tool::missing() {
        return;
    }
    let base = build::base(Profile::EaInode).unwrap();
    let before = stored(&base).unwrap();
    for links in [0, 1] {
        let image = base.copy().unwrap();
        let volume = Volume::open(&image).unwrap();
        let inode = value_inode(&volume);
        let mut raw = volume.inode_bytes(inode).unwrap();
        raw[0x1a..0x1c].copy_from_slice(&[links, 0]);
        volume.put_inode(inode, &raw).unwrap();
        volume.fix_inode(inode).unwrap();
        let listed = superblock(move |sb| sb.last_orphan = inode.0);
        Recipe::new("listed").edit(listed).apply(&volume).unwrap();
        assert_eq!(fault(&image, Some(&before)), None, "{links} links");
    }
}

/// Two fields at once, of those that say that the inode holds a value.
#[test]
fn a_value_outlives_a_wrong_mode_beside_another_wrong_field() {
    if tool::missing() {
        return;
    }
    let base = build::base(Profile::EaInode).unwrap();
    let before = stored(&base).unwrap();
    let volume = Volume::open(&base).unwrap();
    let whole = volume.inode_bytes(value_inode(&volume)).unwrap();
    let all = damages(&whole);
    let (modes, others): (Vec<_>, Vec<_>) = all.iter().partition(|damage| damage.field == "mode");
    let others: Vec<_> = others.into_iter().filter(|damage| !MAP.contains(&damage.field)).collect();
    let mut faults = Vec::new();
    for (index, other) in others.iter().enumerate() {
        // Each with another type; directories as often as all others together.
        let directory = modes.iter().find(|mode| mode.bytes[1] == 0x40).unwrap();
        let mode = if index % 2 == 0 { directory } else { modes[index * 7 % modes.len()] };
        if let Some(fault) = fault(&damaged(&base, &[mode, other]), Some(&before)) {
            faults.push(format!("{mode}, {other}: {fault}"));
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// `/ea-big` with a small attribute before the big one and one behind it.
fn with_neighbours() -> Image {
    let image = build::base(Profile::EaInode).unwrap().copy().unwrap();
    let volume = Volume::open(&image).unwrap();
    let (owner, holder) = (volume.lookup("/ea-big").unwrap(), value_inode(&volume));
    let raw = volume.inode_bytes(holder).unwrap();
    let number = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
    let value = NewValue::Inode { inode: holder, size_bytes: number(4), hash: number(8) };
    let new = |name, value| NewXattr { name_index: INDEX_USER, name, value };
    let all = [
        new(&b"a"[..], NewValue::Here(b"first")),
        new(b"big", value),
        new(b"c", NewValue::Here(b"last")),
    ];
    let mut bytes = volume.inode_bytes(owner).unwrap();
    write_inode(&mut bytes[AREA..], &all).unwrap();
    volume.put_inode(owner, &bytes).unwrap();
    volume.fix_inode(owner).unwrap();
    image
}

/// Damage of the bytes, not of the inode: e2fsck calls each image clean but for bitmaps and counts.
#[test]
fn bytes_of_a_value_that_linux_refuses_are_a_finding_and_cost_one_attribute() {
    if tool::missing() {
        return;
    }
    let with_kernel = mount_available().is_ok();
    let base = with_neighbours();
    let before = stored(&base).unwrap();
    let volume = Volume::open(&base).unwrap();
    let raw = volume.inode_bytes(value_inode(&volume)).unwrap();
    let start = u32::from_le_bytes(raw[0x3c..0x40].try_into().unwrap());
    let other = volume.map(volume.lookup("/dir/file").unwrap()).unwrap();
    let other = u32::try_from(other.data.values().next().unwrap().0).unwrap() + 1;
    let len = u16::from_le_bytes([raw[0x38], raw[0x39]]);
    let at = |field, at, bytes: &[u8]| Damage { field, at, bytes: bytes.to_vec(), sealed: true };
    let damages = [
        at("a block of another file", 0x3c, &other.to_le_bytes()),
        at("outside", 0x3c, &99_999_999_u32.to_le_bytes()),
        at("elsewhere", 0x3c, &(start + 1).to_le_bytes()),
        at("shorter", 0x38, &(len - 1).to_le_bytes()),
    ];
    let value = &before[&b"/ea-big"[..]].xattrs[&b"user.big"[..]];
    for damage in &damages {
        let image = damaged(&base, &[damage]);
        assert!(!with_kernel || !linux_reads(&image, value), "{damage}");
        let all = codes(&image);
        assert!(all.contains(&"xattr-value-unreadable"), "{damage}: {all:?}");
        assert_eq!(fault(&image, None), None, "{damage}");
        let mut expected = before.clone();
        expected.get_mut(&b"/ea-big"[..]).unwrap().xattrs.remove(&b"user.big"[..]);
        let mut after = stored(&image).unwrap();
        // There is what is left of the value.
        after.retain(|path, _| !path.starts_with(b"/lost+found/"));
        assert_eq!(after, expected, "{damage}");
    }
    // An extent that counts as unwritten: Linux reads it.
    let image = damaged(&base, &[&at("unwritten", 0x38, &(len | 0x8000).to_le_bytes())]);
    assert!(codes(&image).is_empty());

    assert!(!with_kernel || linux_reads(&image, value));
}

/// The value is an access list: it is not just dropped, because then the group's bits, which were those of the mask, would count.
#[test]
fn an_unreadable_access_list_opens_the_file_to_nobody() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::EaInode).unwrap().copy().unwrap();
    let volume = Volume::open(&image).unwrap();
    let holder = value_inode(&volume);
    let raw = volume.inode_bytes(holder).unwrap();
    let number = |at: usize| u32::from_le_bytes(raw[at..at + 4].try_into().unwrap());
    let value = NewValue::Inode { inode: holder, size_bytes: number(4), hash: number(8) };
    let owner = volume.lookup("/ea-big").unwrap();
    let mut bytes = volume.inode_bytes(owner).unwrap();
    let list = NewXattr { name_index: INDEX_ACL_ACCESS, name: b"", value };
    let other = NewXattr { name_index: INDEX_USER, name: b"c", value: NewValue::Here(b"last") };
    bytes[0..2].copy_from_slice(&0o100_664_u16.to_le_bytes());
    write_inode(&mut bytes[AREA..], &[list, other]).unwrap();
    volume.put_inode(owner, &bytes).unwrap();
    volume.fix_inode(owner).unwrap();
    let block = *volume.map(holder).unwrap().data.values().next().unwrap();
    let mut content = volume.block(block).unwrap();
    content[0] ^= 1;
    volume.put_block(block, &content).unwrap();
    let found = staged(&image).before.found;
    let named = found.iter().any(|problem| {
        let text = problem.to_string();
        text.contains("system.posix_acl_access") && text.contains(&owner.to_string())
    });
    assert!(named, "{found:?}");
    assert_eq!(fault(&image, None), None);
    let node = stored(&image).unwrap()[&b"/ea-big"[..]].clone();
    // Linux refused all but the owner.
    let raw = Volume::open(&image).unwrap().inode_bytes(owner).unwrap();
    assert_eq!(u16::from_le_bytes([raw[0], raw[1]]), 0o100_600);
    assert!(node.xattrs.contains_key(&b"user.c"[..]), "{:?}", node.xattrs.keys());
}

#[test]
fn a_lost_value_costs_only_its_own_attribute() {
    if tool::missing() {
        return;
    }
    let base = with_neighbours();
    assert!(oracle::e2fsck(&base).unwrap().clean());
    let before = stored(&base).unwrap();
    // Each makes the value one that nothing proves.
    type Fields = &'static [(usize, &'static [u8])];
    let damages: [(&str, Fields); 4] = [
        ("no links, no mark", &[(0x1a, &[0; 2]), (0x20, &[0; 4])]),
        (
            "no mode, no hash",
            &[(0x00, &[0; 2]), (0x08, &[0; 4]), (0x40, &[1; 4]), (0x28, &[0; 12])],
        ),
        ("all zero", &[(0x00, &[0; 128])]),
        ("no size", &[(0x04, &[0; 4])]),
    ];
    for (name, fields) in damages {
        let damages: Vec<_> = fields
            .iter()
            .map(|(at, bytes)| Damage { field: "", at: *at, bytes: bytes.to_vec(), sealed: true })
            .collect();
        let image = damaged(&base, &damages.iter().collect::<Vec<_>>());
        assert_eq!(fault(&image, None), None, "{name}");
        let after = stored(&image).unwrap();
        let (path, mut expected) = (&b"/ea-big"[..], before[&b"/ea-big"[..]].clone());
        if name != "no size" {
            expected.xattrs.remove(&b"user.big"[..]);
        }
        assert_eq!(after[path], expected, "{name}");
    }
}

/// In the entry of the attribute itself: the others stay, whatever is wrong with it.
#[test]
fn a_wrong_entry_costs_only_its_own_attribute() {
    if tool::missing() {
        return;
    }
    let base = with_neighbours();
    let before = stored(&base).unwrap();
    let volume = Volume::open(&base).unwrap();
    let owner = volume.lookup("/ea-big").unwrap();
    let raw = volume.inode_bytes(owner).unwrap();
    let area = XattrArea::of_inode(&raw[AREA..]).unwrap();
    let entries: Vec<_> = area.entries().map(|entry| entry.unwrap().offset).collect();
    assert_eq!(
        area.entries().nth(1).unwrap().unwrap().hash,
        entry_hash_of_inode(
            b"big",
            u32::from_le_bytes(
                volume.inode_bytes(value_inode(&volume)).unwrap()[8..12].try_into().unwrap()
            ),
            Chars::Unsigned
        ),
    );
    // The entry, byte of the entry, its new value.
    let damages = [
        (0, 9, 1),
        (0, 2, 0xff),
        (0, 3, 0x40),
        (1, 4, 0xee),
        (1, 8, 1),
        (1, 12, 7),
        (2, 10, 1),
        (2, 3, 1),
    ];
    for (index, byte, value) in damages {
        let image = base.copy().unwrap();
        let volume = Volume::open(&image).unwrap();
        let mut raw = volume.inode_bytes(owner).unwrap();
        raw[AREA + 4 + entries[index] + byte] = value;
        volume.put_inode(owner, &raw).unwrap();
        volume.fix_inode(owner).unwrap();
        assert_eq!(fault(&image, None), None, "byte {byte} of attribute {index}");
        let after = stored(&image).unwrap()[&b"/ea-big"[..]].xattrs.clone();
        let lost: Vec<_> = before[&b"/ea-big"[..]]
            .xattrs
            .keys()
            .filter(|name| !after.contains_key(*name))
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect();
        let own = ["user.a", "user.big", "user.c"][index];
        assert!(lost.is_empty() || lost == [own], "byte {byte} of attribute {index}: {lost:?}");
    }
}

/// The attribute that goes on with inline data overlaps another: the data before it stay, with names of a directory in them.
#[test]
fn an_overlap_with_inline_data_costs_no_directory() {
    if tool::missing() {
        return;
    }
    let base = build::base(Profile::InlineEaInode).unwrap();
    let before = stored(&base).unwrap();
    for path in ["/dir", "/dir/sub"] {
        let image = base.copy().unwrap();
        let volume = Volume::open(&image).unwrap();
        let inode = volume.lookup(path).unwrap();
        let list = NewXattr { name_index: INDEX_USER, name: b"a", value: NewValue::Here(b"list") };
        let data = NewXattr { name_index: 7, name: b"data", value: NewValue::Here(b"") };
        let mut raw = volume.inode_bytes(inode).unwrap();
        write_inode(&mut raw[AREA..], &[data, list]).unwrap();
        let area = XattrArea::of_inode(&raw[AREA..]).unwrap();
        let list = area.entries().nth(1).unwrap().unwrap();
        // Its value is six bytes from those of the other on, and the size of the directory says so, too.
        let (at, offset) = (AREA + 4, list.value_offs - 4);
        raw[at + 2..at + 4].copy_from_slice(&offset.to_le_bytes());
        raw[at + 8..at + 12].copy_from_slice(&6u32.to_le_bytes());
        raw[4..8].copy_from_slice(&66u32.to_le_bytes());
        volume.put_inode(inode, &raw).unwrap();
        volume.fix_inode(inode).unwrap();
        assert!(codes(&image).contains(&"xattr-ibody-overlap"), "{path}: {:?}", codes(&image));
        assert_eq!(fault(&image, None), None, "{path}");
        let after = stored(&image).unwrap();
        for (name, node) in &before {
            let same = after.get(name).is_some_and(|now| now.kind == node.kind);
            assert!(same, "{path}: {} is gone", String::from_utf8_lossy(name));
        }
    }
}

/// Files that are deleted while open, at a crash of Linux: their values go with them, as at Linux's own recovery, unless another file
/// has the same value. (e2fsck -p leaves them unattached.)
#[test]
fn values_of_orphans_go_with_them() {
    if tool::missing() {
        return;
    }
    if mount_available().is_err() || Command::new("setfattr").arg("--version").output().is_err() {
        eprintln!("skipped: it takes a mount by Linux, and setfattr");
        return;
    }
    let image = Image::empty(32 << 20).unwrap();
    build::mke2fs(image.path(), &["-q", "-t", "ext4", "-O", "ea_inode"]).unwrap();
    let mount = Mounted::new(image.path(), "").unwrap();
    let set = |name: &str, value: &str| {
        let path = mount.path().join(name);
        fs::write(&path, name).unwrap();
        for (attribute, value) in [("user.big", value.repeat(20_000)), ("user.small", "1".into())] {
            let mut set = Command::new("setfattr");
            set.args(["-n", attribute, "-v", &value]).arg(&path);
            assert!(set.status().unwrap().success());
        }
        path
    };
    let kept = set("kept", "s");
    let gone = [set("alone", "a"), set("sharing", "s"), set("other", "o")];
    let held: Vec<File> = gone.iter().map(|path| File::open(path).unwrap()).collect();
    gone.iter().for_each(|path| fs::remove_file(path).unwrap());
    rustix::fs::syncfs(&held[0]).unwrap();
    let crashed = image.copy().unwrap();
    drop(held);
    assert!(kept.exists());
    mount.unmount().unwrap();
    let expected = stored(&image).unwrap();
    assert_eq!(fault(&crashed, Some(&expected)), None);
}
