//! Native file systems as mkfs makes them: e2fsck, Floe, Linux and the tools of e2fsprogs judge them.

use std::io;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use floe_blockdev::{ReadBlocks, WritableFile};
use floe_check::{CheckOptions, check};
use floe_disk::mkfs::tree::{Attributes, Body, ContentId, Contents, Timestamp, Tree};
use floe_disk::mkfs::{FillOptions, Fresh, FsType, Options, Params, Plan, TreePlan, fill, write};
use floe_ext4::fs::FileSystem;
use floe_ext4::inode_table::desc_place;
use floe_ext4::tx::DirectTx;
use floe_format::ext::inode::Inode;
use floe_format::native::identity::Identity;
use floe_format::native::lot::LotRecord;
use floe_format::{BlockNr, GroupNr, InodeNr};
use floe_testkit::{Image, kernel, oracle, tool};

const MIB: u64 = 1 << 20;

fn params(bytes: u64, options: &[(char, &str)]) -> Result<Params> {
    let mut all = Options::of_type(FsType::Native);
    for (letter, value) in options {
        all.set(*letter, value)?;
    }
    let now = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now };
    Ok(all.params(bytes, None, &fresh)?)
}

fn empty(folder: &Path, bytes: u64, options: &[(char, &str)]) -> Result<Image> {
    let path = folder.join("native");
    let plan = Plan::new(&params(bytes, options)?)?;
    let device = WritableFile::create(&path, bytes)?;
    write(&plan, &device)?;
    Image::open(&path)
}

/// e2fsck and Floe find nothing.
fn judge(image: &Image) -> Result<()> {
    let judged = oracle::e2fsck(image)?;
    // Its clock stands still, so times that Linux sets are in its future.
    let of_time = |line: &str| line.contains("is in the future");
    let silent = judged.problems.is_empty() || judged.text.lines().any(of_time);
    ensure!(judged.clean() && silent, "e2fsck: {}", judged.text);
    let device = WritableFile::open(image.path())?;
    let report = check(&device, &CheckOptions::default())?;
    ensure!(report.found.is_empty(), "floe: {:?}", report.found);
    Ok(())
}

/// Every lot of a sealed image: its records are equal and say where its region and reservation file are.
/// Returns the number of lots.
fn judge_lots(image: &Image) -> Result<u32> {
    let device = WritableFile::open(image.path())?;
    let fs = FileSystem::open(&device)?;
    ensure!(Identity::is_sealed(&fs.superblock), "it is not sealed");
    let identity = Identity::of(&fs.superblock).context("no identity")?;
    let geo = fs.geometry().clone();
    let per_lot = geo.block_size / geo.desc_size;
    let mut records: Vec<LotRecord> = Vec::new();
    for group in (0..geo.group_count).map(GroupNr) {
        let (block, at) = desc_place(group, &geo);
        let mut raw = vec![0; geo.desc_size as usize];
        device.read_at(geo.offset_bytes(block) + at as u64, &mut raw)?;
        let record = LotRecord::of(&raw).with_context(|| format!("{group} has no record"))?;
        ensure!(record.lot == group.0 / per_lot && record.epoch == identity.epoch, "{record:?}");
        match records.last() {
            Some(last) if last.lot == record.lot => ensure!(*last == record, "{group}"),
            _ => records.push(record),
        }
    }
    for record in &records {
        let lot = geo.group_start(GroupNr(record.lot * per_lot))
            ..geo.blocks_of(GroupNr(((record.lot + 1) * per_lot).min(geo.group_count) - 1)).end();
        let end = BlockNr(record.region_start + u64::from(record.region_blocks));
        ensure!(lot.start.0 <= record.region_start && end <= lot.end, "{record:?}");
        if record.region_blocks == 0 {
            continue;
        }
        let inode = InodeNr(record.region_inode);
        let raw = floe_ext4::inode_table::read_inode(inode, &device, &geo, fs.space.groups.descs());
        let raw = raw.context("no inode")?;
        let inode = Inode::decode(&raw).context("inode")?;
        let free = record.region_blocks - record.region_used;
        let sectors = inode.base.blocks_lo;
        ensure!(sectors == free * 8, "{record:?} reserves {sectors} sectors");
    }
    Ok(records.len() as u32)
}

#[test]
fn every_size_and_lot_is_approved() {
    if tool::missing() {
        return;
    }
    let cases: &[(u64, &[(char, &str)])] = &[
        (24 * MIB, &[]),
        (64 * MIB, &[]),
        (500 * MIB, &[('N', "5000")]),
        (513 * MIB, &[]),
        (1100 * MIB, &[('m', "0"), ('L', "label")]),
        (5000 * MIB, &[('E', "region_size=64m")]),
        (200 * MIB, &[('E', "lot_size=32m,region_size=1m")]),
        (100 * MIB, &[('E', "lot_size=8m,region_size=256k"), ('N', "3000")]),
        (99 * MIB + 81_920, &[('E', "lot_size=4m"), ('J', "size=4"), ('N', "2000")]),
        (300 * MIB, &[('E', "region_size=0"), ('I', "512"), ('O', "metadata_csum_seed")]),
        (40 * MIB, &[('E', "lot_size=16m,root_owner=5:7"), ('O', "fast_commit,casefold")]),
        (2500 * MIB, &[('E', "lot_size=1g")]),
        (150 * MIB, &[('G', "16"), ('g', "2048"), ('N', "3000")]),
        (9000 * MIB, &[('E', "lot_size=4g"), ('i', "4194304")]),
    ];
    let mut faults = Vec::new();
    for (bytes, options) in cases {
        let done = || -> Result<()> {
            let folder = tool::scratch("floe-native-")?;
            let image = empty(folder.path(), *bytes, options)?;
            judge(&image)?;
            ensure!(judge_lots(&image)? > 0, "no lots");
            Ok(())
        };
        if let Err(error) = done() {
            faults.push(format!("{} MiB {options:?}: {error:#}", bytes / MIB));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn options_that_cannot_be_are_refused() {
    let refused: &[&[(char, &str)]] = &[
        &[('b', "1024")],
        &[('O', "bigalloc")],
        &[('O', "^meta_bg")],
        &[('O', "^has_journal,^orphan_file")],
        &[('O', "quota")],
        &[('O', "inline_data")],
        &[('I', "128")],
        &[('G', "2")],
        &[('G', "64")],
        &[('E', "lot_size=2m")],
        &[('E', "lot_size=1536m")],
        &[('E', "lot_size=8g")],
        &[('E', "lot_size=1g"), ('G', "8")],
        &[('E', "region_size=200m")],
        &[('E', "lot_size=64m"), ('g', "4096")],
    ];
    for options in refused {
        let plan = params(1 << 30, options).and_then(|params| Ok(Plan::new(&params)?));
        assert!(plan.is_err(), "{options:?}");
    }
    let small = params(4 * MIB, &[]).and_then(|params| Ok(Plan::new(&params)?));
    assert!(small.is_err(), "no journal fits");
    let mut stock = Options::of_type(FsType::Ext4);
    stock.set('E', "lot_size=64m").expect("a known option");
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: Timestamp::default() };
    assert!(stock.params(1 << 30, None, &fresh).is_err());
}

/// Bytes determined by a content's number and the offset alone.
struct MadeUp;

impl Contents for MadeUp {
    fn read_at(&self, content: ContentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        for (at, byte) in (offset..).zip(into) {
            *byte = ((content.0 << 7) ^ at.wrapping_mul(167)) as u8 | 1;
        }
        Ok(())
    }
}

/// Directories with files, enough for several lots of 8 MiB, and one directory that a region cannot hold.
fn tree() -> Result<Tree> {
    let mut tree = Tree::new(Attributes { mode: 0o755, ..Attributes::default() });
    let root = tree.root();
    let own = |mode| Attributes { mode, ..Attributes::default() };
    for dir in 0..70u64 {
        let name = format!("dir {dir}");
        let parent = tree.insert(root, name.as_bytes(), own(0o755), Body::Directory)?;
        let files = if dir == 69 { 6000 } else { 40 };
        for file in 0..files {
            let size = if dir == 69 { 0 } else { (file * 7919) % 20_000 };
            let name = format!("{file} {}", "n".repeat((file % 90) as usize));
            let body = Body::file(size, ContentId(dir * 1000 + file), 0);
            tree.insert(parent, name.as_bytes(), own(0o644), body)?;
        }
    }
    Ok(tree)
}

fn filled(plan: &TreePlan<'_>, path: &Path, threads: usize) -> Result<Image> {
    let _ = std::fs::remove_file(path);
    let device = WritableFile::create(path, plan.plan().bytes())?;
    fill(plan, &MadeUp, &device, FillOptions { threads, ..FillOptions::default() })?;
    Image::open(path)
}

#[test]
fn trees_are_whole_and_the_same_for_any_number_of_threads() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-native-").expect("a folder");
    let made = || -> Result<()> {
        let tree = tree()?;
        let options = [('E', "lot_size=8m,region_size=256k"), ('N', "13000")];
        let params = params(100 * MIB, &options)?;
        let fitted = TreePlan::fitted(&params, &tree, 0)?;
        for plan in [TreePlan::new(&params, &tree)?, fitted] {
            let one = filled(&plan, &folder.path().join("one"), 1)?;
            let many = filled(&plan, &folder.path().join("many"), 8)?;
            ensure!(std::fs::read(one.path())? == std::fs::read(many.path())?, "bytes differ");
            judge(&one)?;
            ensure!(judge_lots(&one)? > 3, "the tree fits in few lots");
            let stored = floe_testkit::tree::stored(&one)?;
            for node in tree.ordered() {
                let path = tree.path(node);
                let shown = String::from_utf8_lossy(&path).into_owned();
                let found = stored.get(&path).with_context(|| format!("no {shown}"))?;
                let wanted = tree.node(node);
                if let Body::File { size, data } = wanted.body() {
                    let mut bytes = vec![0; *size as usize];
                    if let floe_disk::mkfs::tree::Data::Whole { content, from } = data {
                        MadeUp.read_at(*content, *from, &mut bytes)?;
                    }
                    let same = found.content == floe_testkit::tree::digest(&bytes);
                    ensure!(found.size_bytes == *size && same, "{shown} has other content");
                }
            }
        }
        Ok(())
    };
    made().unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn a_tree_cannot_have_the_name_of_the_own_files() {
    let mut tree = Tree::new(Attributes::default());
    let root = tree.root();
    tree.insert(root, b".cubes", Attributes::default(), Body::empty_file()).expect("an entry");
    let params = params(64 * MIB, &[]).expect("parameters");
    let refused = TreePlan::new(&params, &tree).expect_err("the name is taken").to_string();
    assert!(refused.contains("/.cubes"), "{refused}");
}

/// Linux writes to a sealed image until it is full: the seal is broken, nothing is damaged, and the region
/// files are as before.
#[test]
fn linux_writes_to_it() {
    if let Err(reason) = tool::available().and_then(|()| kernel::mount_available()) {
        eprintln!("skipped: {reason}");
        return;
    }
    let folder = tool::scratch("floe-native-").expect("a folder");
    let options = [('E', "lot_size=16m,region_size=512k"), ('N', "4000")];
    let image = empty(folder.path(), 64 * MIB, &options).expect("an image");
    let mount = kernel::Mounted::new(image.path(), "").expect("Linux mounts it read-write");
    let own = mount.path().join(".cubes/c0");
    assert!(std::fs::write(own.join("new"), "x").is_err(), "the directory is immutable");
    assert!(std::fs::remove_file(own.join("region.1")).is_err(), "the file is immutable");
    for at in 0..200 {
        let dir = mount.path().join(format!("d{at}"));
        std::fs::create_dir(&dir).expect("a directory");
        std::fs::write(dir.join("file"), vec![at as u8; 70_000]).expect("a file");
    }
    let full = std::fs::write(mount.path().join("all"), vec![1; 70_000_000]);
    assert!(full.is_err(), "64 MiB hold more than they have");
    std::fs::remove_dir_all(mount.path().join("d7")).expect("removal");
    mount.unmount().expect("the mount is not in use");
    judge(&image).unwrap_or_else(|error| panic!("{error:#}"));
    let device = WritableFile::open(image.path()).expect("the image");
    let fs = FileSystem::open(&device).expect("a file system");
    assert!(Identity::of(&fs.superblock).is_some() && !Identity::is_sealed(&fs.superblock));
    for (lot, inode) in [(1, 1), (2, 2), (3, 3)].map(|(lot, at): (u32, u32)| (lot, at * 1024 + 1)) {
        let stat = format!("stat /.cubes/c0/region.{lot}");
        let path = image.path().to_str().expect("a plain path");
        let shown = tool::must("debugfs", &["-R", &stat, path], &[0]).expect("debugfs").text;
        assert!(shown.contains(&format!("Inode: {inode} ")), "{shown}");
        assert!(shown.contains("(0-127[u])"), "{shown}");
    }
}

#[test]
fn tools_of_e2fsprogs_work_on_it() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-native-").expect("a folder");
    let run = || -> Result<()> {
        let options = [('E', "lot_size=32m,region_size=1m"), ('N', "8000")];
        let image = empty(folder.path(), 100 * MIB, &options)?;
        let path = image.path().to_str().context("a plain path")?;
        let grow = std::fs::OpenOptions::new().write(true).open(image.path())?;
        grow.set_len(200 * MIB)?;
        tool::must("resize2fs", &[path], &[0])?;
        judge(&Image::open(image.path())?).context("after resize2fs")?;
        tool::must("tune2fs", &["-L", "name", "-m", "1", path], &[0])?;
        judge(&Image::open(image.path())?).context("after tune2fs")?;
        tool::must("debugfs", &["-w", "-R", "mkdir /made", path], &[0])?;
        judge(&Image::open(image.path())?).context("after debugfs")?;
        tool::must("e2fsck", &["-fyD", path], &[0, 1])?;
        judge(&Image::open(image.path())?).context("after e2fsck -fyD")?;
        tool::must("resize2fs", &["-M", path], &[0])?;
        judge(&Image::open(image.path())?).context("after resize2fs -M")?;
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}

/// Changes the private bytes of the superblock or of descriptors, with right checksums, and says what Floe finds.
fn found_after(
    image: &Image,
    change: impl Fn(&mut FileSystem, &mut DirectTx<'_, WritableFile>),
) -> Vec<String> {
    let device = WritableFile::open(image.path()).expect("the image");
    let mut fs = FileSystem::open(&device).expect("a file system");
    let mut tx = DirectTx::new(&device, fs.geometry().clone());
    change(&mut fs, &mut tx);
    tx.commit().expect("the changes are written");
    let report = check(&device, &CheckOptions::default()).expect("a report");
    assert!(!report.is_clean(), "private bytes that are wrong are damage");
    report.found.iter().map(|problem| problem.row().id.to_owned()).collect()
}

#[test]
fn damaged_private_bytes_are_found() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-native-").expect("a folder");
    let options = [('E', "lot_size=16m"), ('N', "4096")];
    let edits: [fn(&mut LotRecord); 5] = [
        |record| record.lot += 1,
        |record| record.region_start += 100_000,
        |record| record.region_inode = 0,
        |record| record.epoch += 1,
        |record| record.magic = 0,
    ];
    for (at, edit) in edits.into_iter().enumerate() {
        let image = empty(folder.path(), 64 * MIB, &options).expect("an image");
        let found = found_after(&image, |fs, tx| {
            let groups = if at == 4 { 6..7 } else { 4..8 };
            for group in groups.map(GroupNr) {
                let private = |raw: &mut [u8]| {
                    let mut record = LotRecord::of(raw).expect("a record");
                    edit(&mut record);
                    record.put(raw);
                };
                fs.space.groups.edit_private(tx, group, private).expect("a descriptor");
            }
        });
        assert_eq!(found, ["lot-record-wrong"], "edit {at}");
        std::fs::remove_file(image.path()).expect("removal");
    }
    let image = empty(folder.path(), 64 * MIB, &options).expect("an image");
    let found = found_after(&image, |fs, tx| {
        let identity = Identity::of(&fs.superblock).expect("an identity");
        Identity { home_inode: 0, ..identity }.put_sealed(&mut fs.superblock);
        fs.finish(tx).expect("the superblock");
    });
    assert_eq!(found, ["native-identity-wrong"]);
}
