//! Single edits of directories in real images, checked by e2fsck: inserting and removing entries,
//! blocks without names, inline directories, and salvage of broken blocks.

use std::collections::BTreeSet;

use floe_ext4::dir::{self as build_dir, AreaForm, DirFormat, Directory, Entry, Sealed, inline};
use floe_format::ext::dirent::DirCursor;
use floe_format::ext::inline_data::InlineData;
use floe_format::ext::inode::{FileType, Inode};
use floe_format::layout::{le16_at, le32_at};
use floe_format::{BlockNr, InodeNr};
use floe_testkit::{Image, Profile, Rng, Volume, build, oracle, tool};

fn clean(image: &Image, what: &str) {
    let verdict = oracle::e2fsck(image).unwrap();
    assert!(verdict.clean(), "{what}: {}", verdict.text);
}

/// A directory of an image, with the format of its file system.
fn directory(volume: &Volume<'_>, path: &str) -> (DirFormat, Directory) {
    let inode = volume.lookup(path).unwrap();
    let parent = volume.lookup(path.rsplit_once('/').map_or("/", |(above, _)| above));
    let dir = Directory {
        inode,
        parent: parent.unwrap_or(InodeNr::ROOT),
        generation: le32_at(&volume.inode_bytes(inode).unwrap(), 0x64).unwrap(),
        encrypted: false,
        casefolded: false,
    };
    (DirFormat::of(&volume.superblock, &volume.geometry), dir)
}

fn add_links(volume: &Volume<'_>, inode: InodeNr, more: i32) {
    let mut raw = volume.inode_bytes(inode).unwrap();
    let links = i32::from(le16_at(&raw, 0x1a).unwrap()) + more;
    raw[0x1a..0x1c].copy_from_slice(&u16::try_from(links).unwrap().to_le_bytes());
    volume.put_inode(inode, &raw).unwrap();
    volume.fix_inode(inode).unwrap();
}

/// The blocks of a directory, in order.
fn blocks(volume: &Volume<'_>, inode: InodeNr) -> Vec<BlockNr> {
    volume.map(inode).unwrap().data.into_values().collect()
}

#[test]
fn entries_come_and_go_in_every_profile() {
    if tool::missing() {
        return;
    }
    for &profile in Profile::ALL.iter().filter(|profile| !profile.has("inline_data")) {
        let image = build::base(profile).unwrap();
        let volume = Volume::open(&image).unwrap();
        let (format, dir) = directory(&volume, "/dir/sub");
        let file = volume.lookup("/file").unwrap();
        let (form, seed) = (dir.form(&format), dir.inode_seed(&format));
        let block = blocks(&volume, dir.inode)[0];
        let mut bytes = volume.block(block).unwrap();
        let mut places = Vec::new();
        for at in 0.. {
            let name = format!("new-{at:04}-{}", "y".repeat(at % 60)).into_bytes();
            let entry = Entry::new(file, name, FileType::Regular as u8);
            let Some(offset) = build_dir::insert(&mut bytes, form, &entry) else { break };
            places.push(offset);
        }
        assert!(places.len() > 10, "{profile}");
        let sealed = build_dir::seal(&mut bytes, seed);
        assert_eq!(sealed == Sealed::Leaf, seed.is_some(), "{profile}");
        volume.put_block(block, &bytes).unwrap();
        add_links(&volume, file, places.len() as i32);
        clean(&image, &format!("{profile}, full"));
        for (at, offset) in places.iter().enumerate().filter(|(at, _)| at % 3 != 0) {
            if at % 2 == 0 {
                build_dir::remove(&mut bytes, form, *offset).unwrap();
            } else {
                build_dir::clear(&mut bytes, *offset).unwrap();
            }
            add_links(&volume, file, -1);
        }
        build_dir::seal(&mut bytes, seed);
        volume.put_block(block, &bytes).unwrap();
        clean(&image, &format!("{profile}, thinned out"));
    }
}

#[test]
fn blocks_without_names_are_in_order() {
    if tool::missing() {
        return;
    }
    // debugfs does not count quotas.
    let other = |profile: &&Profile| !profile.has("inline_data") && !profile.has("quota");
    for &profile in Profile::ALL.iter().filter(other) {
        let image = build::empty(profile).unwrap();
        build::debugfs(&image, "mkdir d\nexpand_dir d\n").unwrap();
        let volume = Volume::open(&image).unwrap();
        let (format, dir) = directory(&volume, "/d");
        let of_dir = blocks(&volume, dir.inode);
        volume.put_block(of_dir[0], &build_dir::first_block(&format, &dir)).unwrap();
        volume.put_block(of_dir[1], &build_dir::empty_block(&format, &dir)).unwrap();
        clean(&image, profile.name());
        // A rebuilt lost+found keeps its blocks.
        let (format, found) = directory(&volume, "/lost+found");
        let of_found = blocks(&volume, found.inode);
        let size = of_found.len() as u64;
        let rebuilt = build_dir::rebuild(&format, &found, size, true, Vec::new());
        assert_eq!(rebuilt.content.len(), of_found.len() * format.block_size);
        for (block, bytes) in of_found.iter().zip(rebuilt.content.chunks(format.block_size)) {
            volume.put_block(*block, bytes).unwrap();
        }
        clean(&image, &format!("{profile}, lost+found"));
    }
}

#[test]
fn the_parent_is_set_in_an_index_root_too() {
    if tool::missing() {
        return;
    }
    for profile in [Profile::Ext4, Profile::Ext4K1, Profile::NoCsum, Profile::Ext2Plain] {
        let image = build::base(profile).unwrap();
        let volume = Volume::open(&image).unwrap();
        let (format, dir) = directory(&volume, "/big");
        let block = blocks(&volume, dir.inode)[0];
        let mut bytes = volume.block(block).unwrap();
        let whole = bytes.clone();
        assert_eq!(build_dir::set_parent(&mut bytes, dir.inode), Some(InodeNr::ROOT));
        let sealed = build_dir::seal(&mut bytes, dir.inode_seed(&format));
        assert!(sealed == Sealed::Index || format.seed.is_none());
        volume.put_block(block, &bytes).unwrap();
        let codes: Vec<u32> = oracle::e2fsck(&image).unwrap().codes().into_iter().collect();
        assert!(codes.contains(&0x03_0005) && !codes.contains(&0x02_0049), "{codes:x?}");
        build_dir::set_parent(&mut bytes, InodeNr::ROOT).unwrap();
        build_dir::seal(&mut bytes, dir.inode_seed(&format));
        assert_eq!(bytes, whole);
    }
}

#[test]
fn inline_directories_take_entries() {
    if tool::missing() {
        return;
    }
    for profile in [Profile::InlineData, Profile::InlineEaInode] {
        let image = build::base(profile).unwrap();
        let volume = Volume::open(&image).unwrap();
        let (format, dir) = directory(&volume, "/dir/sub");
        let file = volume.lookup("/file").unwrap();
        let mut raw = volume.inode_bytes(dir.inode).unwrap();
        let (start, len) = {
            let inode = Inode::decode(&raw).unwrap();
            let data = InlineData::of(&inode).expect("an inline directory");
            // An empty value has no storage.
            match data.in_xattr {
                [] => (raw.len(), 0),
                value => (value.as_ptr().addr() - raw.as_ptr().addr(), value.len()),
            }
        };
        let form = dir.inline_form(&format);
        let (before, value) = raw.split_at_mut(start);
        let (in_block, value) = (&mut before[0x28..0x64], &mut value[..len]);
        assert_eq!(inline::parent(in_block), dir.parent);
        let old = inline::gather(in_block, value, form).len();
        let mut added = 0;
        for at in 0.. {
            let entry = Entry::new(file, format!("n{at}").into_bytes(), FileType::Regular as u8);
            if inline::insert(in_block, value, form, &entry).is_none() {
                break;
            }
            added += 1;
        }
        assert!(added > 0);
        let block = inline::to_blocks(in_block, value, &format, &dir);
        assert_eq!(build_dir::gather(&block.content, &format, &dir).len(), old + added);
        volume.put_inode(dir.inode, &raw).unwrap();
        volume.fix_inode(dir.inode).unwrap();
        add_links(&volume, file, added as i32);
        clean(&image, profile.name());
    }
}

/// The names that survive in a broken block, by Floe's salvage and by `e2fsck -fy`.
#[test]
fn no_name_is_lost_that_e2fsck_saves_from_a_broken_block() {
    if tool::missing() {
        return;
    }
    let seeds = std::env::var("FLOE_SALVAGE_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    // Seed 1105 once lost a name.
    for seed in (0..seeds.unwrap_or(40)).chain([1105]) {
        for profile in [Profile::Ext2Plain, Profile::Ext4K1] {
            broken_block(profile, seed);
        }
    }
}

fn broken_block(profile: Profile, seed: u64) {
    let image = build::base(profile).unwrap();
    build::debugfs(&image, "mkdir d\n").unwrap();
    let volume = Volume::open(&image).unwrap();
    let (format, dir) = directory(&volume, "/d");
    let file = volume.lookup("/file").unwrap();
    let (form, inode_seed) = (dir.form(&format), dir.inode_seed(&format));
    let block = blocks(&volume, dir.inode)[0];
    let mut bytes = build_dir::first_block(&format, &dir);
    let mut offsets = vec![0, 12];
    for at in 0..24 {
        let name = format!("name-{at:02}{}", "z".repeat(at * 7 % 30)).into_bytes();
        let entry = Entry::new(file, name, format.dir_type().min(1));
        offsets.extend(build_dir::insert(&mut bytes, form, &entry));
    }
    let mut rng = Rng::new(seed);
    for _ in 0..1 + rng.below(3) {
        let at = *rng.pick(&offsets).unwrap() as usize;
        // Lengths of records and names, and a few random bytes.
        let (field, value) = match rng.below(6) {
            0 => (4, (rng.below(40) * 4) as u8),
            1 => (4, rng.below(256) as u8),
            2 => (5, rng.below(5) as u8),
            3 => (6, rng.below(256) as u8),
            4 => (4, 8),
            _ => (rng.below(8) as usize, rng.below(256) as u8),
        };
        bytes[at + field] = value;
    }
    build_dir::seal(&mut bytes, inode_seed);
    volume.put_block(block, &bytes).unwrap();
    let (_, repaired) = oracle::e2fsck_repair(&image).unwrap();
    let theirs = Volume::open(&repaired).unwrap();
    let theirs = match theirs.lookup("/d") {
        Ok(inode) => theirs.entries(inode).unwrap(),
        Err(_) => Vec::new(),
    };
    let saved: BTreeSet<Vec<u8>> = theirs
        .into_iter()
        .filter(|entry| entry.inode == file && !entry.name.contains(&b'~'))
        .map(|entry| entry.name)
        .collect();
    let ours = mend(&mut bytes, form, &dir, &format);
    let file_names: BTreeSet<Vec<u8>> =
        ours.iter().filter(|(inode, _)| *inode == file).map(|(_, name)| name.clone()).collect();
    let lost: Vec<_> =
        saved.difference(&file_names).map(|name| name.escape_ascii().to_string()).collect();
    assert!(lost.is_empty(), "{profile} seed {seed}: {lost:?}");
}

/// The edits for a broken first block; inodes and names that survive.
fn mend(
    bytes: &mut [u8],
    form: AreaForm,
    dir: &Directory,
    format: &DirFormat,
) -> Vec<(InodeNr, Vec<u8>)> {
    let inodes = format.inodes_count;
    build_dir::mend_first_block(bytes, form, dir.inode, dir.parent, inodes).unwrap();
    let entries: Vec<(u32, InodeNr, Vec<u8>)> = DirCursor::new(bytes)
        .ending_at(form.end(bytes.len()))
        .map(Result::unwrap)
        .filter(|entry| entry.in_use())
        .map(|entry| (entry.offset, entry.inode, entry.name.to_vec()))
        .collect();
    assert_eq!((entries[0].2.as_slice(), entries[1].2.as_slice()), (&b"."[..], &b".."[..]));
    for (offset, _, _) in &entries {
        build_dir::replace_illegal_bytes(bytes, *offset).unwrap();
    }
    DirCursor::new(bytes)
        .ending_at(form.end(bytes.len()))
        .map(Result::unwrap)
        .map(|entry| (entry.inode, entry.name.to_vec()))
        .collect()
}
