//! Compares empty file systems of every profile with those of mke2fs.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use floe_blockdev::{FileDevice, ReadBlocks, WritableFile};
use floe_disk::mkfs::tree::Timestamp;
use floe_disk::mkfs::{Fresh, FsType, Options, Plan, write};
use floe_ext4::fs::read_superblock;
use floe_ext4::inode_table::desc_place;
use floe_format::ext::superblock::Superblock;
use floe_format::features::Incompat;
use floe_format::{BlockNr, GroupNr};
use floe_testkit::profile::Profile;
use floe_testkit::rng::Rng;
use floe_testkit::{oracle, tool};

/// The content of Debian's mke2fs.conf, so that the result does not depend on the machine's.
const CONF: &str = "[defaults]
base_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
default_mntopts = acl,user_xattr
enable_periodic_fsck = 0
blocksize = 4096
inode_size = 256
inode_ratio = 16384
[fs_types]
ext3 = {
features = has_journal
}
ext4 = {
features = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize
}
small = {
blocksize = 1024
inode_ratio = 4096
}
floppy = {
blocksize = 1024
inode_ratio = 8192
}
big = {
inode_ratio = 32768
}
huge = {
inode_ratio = 65536
}
news = {
inode_ratio = 4096
}
largefile = {
inode_ratio = 1048576
blocksize = -1
}
largefile4 = {
inode_ratio = 4194304
blocksize = -1
}
";
const UUID: &str = "f10e0000-0001-4002-8003-000000000004";
const HASH_SEED: &str = "f10e0000-0005-4006-8007-000000000008";
const NOW: i64 = 1_700_000_000;

/// Makes a file system like mke2fs with these options.
fn floe(path: &Path, bytes: u64, args: &[&str]) -> Result<()> {
    let mut options = Options::of_type(FsType::Ext2);
    for pair in args.chunks(2) {
        let letter = pair[0].chars().nth(1).context("a letter")?;
        match pair {
            [_, value] => options.set(letter, value)?,
            _ => anyhow::bail!("{pair:?}"),
        }
    }
    options.set('U', UUID)?;
    options.set('E', &format!("hash_seed={HASH_SEED}"))?;
    let now = Timestamp { seconds: NOW, nanoseconds: 0 };
    let fresh = Fresh { uuid: [0; 16], hash_seed: [0; 16], now };
    let plan = Plan::new(&options.params(bytes, None, &fresh)?)?;
    let device = WritableFile::create(path, bytes)?;
    write(&plan, &device)?;
    Ok(())
}

/// Whether mke2fs makes a file system with these options.
fn mke2fs(folder: &Path, path: &Path, bytes: u64, args: &[&str]) -> Result<bool> {
    let conf = folder.join("mke2fs.conf");
    std::fs::write(&conf, CONF)?;
    std::fs::File::create(path)?.set_len(bytes)?;
    // mke2fs uses only the last -E.
    let mut extended = format!("hash_seed={HASH_SEED},lazy_itable_init=0");
    let mut command = tool::command("mke2fs");
    command.env("MKE2FS_CONFIG", &conf).env("E2FSPROGS_FAKE_TIME", NOW.to_string());
    command.args(["-q", "-F", "-U", UUID]);
    for pair in args.chunks(2) {
        if pair[0] == "-E" {
            extended.push(',');
            extended.push_str(pair[1]);
        } else {
            command.args(pair);
        }
    }
    command.args(["-E", &extended]).arg(path);
    Ok(tool::run(&command, 120)?.expect("mke2fs", &[0, 1])?.exit == Some(0))
}

fn dumpe2fs(path: &Path) -> Result<Vec<String>> {
    let mut command = tool::command("dumpe2fs");
    command.arg(path);
    let text = tool::run(&command, 120)?.expect("dumpe2fs", &[0])?;
    let differs = |line: &&str| {
        // Lines that must differ: the lifetime writes, which Floe does not record; checksums of
        // blocks that contain them; and when and by which host the MMP block was written.
        !line.starts_with("Lifetime writes")
            && !line.starts_with("Checksum:  ")
            && !line.trim_start().starts_with("mmp_update")
            && !line.trim_start().starts_with("mmp_node_name")
            && !line.trim_start().starts_with("mmp_device_name")
    };
    Ok(text.text.lines().filter(differs).map(str::to_owned).collect())
}

/// The file system's own inodes and their blocks, without times and checksums.
fn system_inodes(path: &Path) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for inode in [1, 2, 3, 4, 7, 8, 11, 12] {
        let mut command = tool::command("debugfs");
        command.arg("-R").arg(format!("stat <{inode}>")).arg(path);
        let text = tool::run(&command, 120)?.expect("debugfs", &[0])?.text;
        let differs = |line: &&str| {
            let line = line.trim_start();
            ["atime", "ctime", "mtime", "crtime", "Inode checksum", "Generation", "debugfs"]
                .iter()
                .any(|start| line.starts_with(start))
        };
        lines.extend(
            text.lines().filter(|line| !differs(line)).map(|line| format!("<{inode}> {line}")),
        );
    }
    Ok(lines)
}

/// Bytes of a superblock that differ, as `docs/mkfs.md` says: the lifetime writes, the checksum, which covers all, and entries of
/// the copy of the journal's map (`s_jnl_blocks`) that are not in use.
fn different(superblock: &[u8]) -> [Range<usize>; 3] {
    let word = |at: usize| usize::from(u16::from_le_bytes([superblock[at], superblock[at + 1]]));
    // A root of extents has a head and entries of 12 bytes each.
    let unused = if word(0x10c) == 0xf30a { 0x10c + 12 * (1 + word(0x10e)) } else { 0x148 };
    [0x178..0x180, 0x3fc..0x400, unused..0x148]
}

/// All bytes of superblocks, backups too, and of descriptors in which two file systems differ, those aside that must.
fn bytes_that_differ(ours: &Path, theirs: &Path) -> Result<Vec<String>> {
    let (one, other) = (FileDevice::open(ours)?, FileDevice::open(theirs)?);
    let (_, geometry) = read_superblock(&other)?;
    let mut faults = Vec::new();
    let mut compare = |what: String, offset: u64, len: usize| {
        let (mut a, mut b) = (vec![0; len], vec![0; len]);
        one.read_at(offset, &mut a)?;
        other.read_at(offset, &mut b)?;
        let different = if len == Superblock::SIZE { different(&b).to_vec() } else { Vec::new() };
        let differs =
            |at: &usize| a[*at] != b[*at] && !different.iter().any(|range| range.contains(at));
        for at in (0..len).filter(differs) {
            faults
                .push(format!("{what}, byte {at:#x}: floe {:#04x}, mke2fs {:#04x}", a[at], b[at]));
        }
        anyhow::Ok(())
    };
    for group in (0..geometry.group_count).map(GroupNr) {
        let Some(block) = geometry.superblock_of(group) else { continue };
        let offset = if group.0 == 0 { 1024 } else { geometry.offset_bytes(block) };
        compare(format!("superblock of {group}"), offset, Superblock::SIZE)?;
    }
    for group in (0..geometry.group_count).map(GroupNr) {
        let (block, at) = desc_place(group, &geometry);
        let offset = geometry.offset_bytes(block) + at as u64;
        compare(format!("descriptor of {group}"), offset, geometry.desc_size as usize)?;
        if geometry.features.incompat.contains(Incompat::META_BG) {
            continue;
        }
        let nth = block.0 - geometry.group_desc_run(GroupNr(0)).start.0;
        for backup in (1..geometry.group_count).map(GroupNr) {
            if geometry.superblock_of(backup).is_none() {
                continue;
            }
            let copy = BlockNr(geometry.group_desc_run(backup).start.0 + nth);
            let offset = geometry.offset_bytes(copy) + at as u64;
            let what = format!("descriptor of {group} behind the backup of {backup}");
            compare(what, offset, geometry.desc_size as usize)?;
        }
    }
    Ok(faults)
}

/// Makes one file system with each program; returns the differences. `None`: mke2fs refuses.
fn compare(bytes: u64, args: &[&str]) -> Result<Option<Vec<String>>> {
    let folder = tool::scratch("floe-mkfs-")?;
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    if !mke2fs(folder.path(), &theirs, bytes, args)? {
        return Ok(None);
    }
    floe(&ours, bytes, args)?;
    if let Ok(keep) = std::env::var("FLOE_KEEP") {
        std::fs::copy(&ours, format!("{keep}/ours"))?;
        std::fs::copy(&theirs, format!("{keep}/theirs"))?;
    }
    let (mut one, mut other) = (dumpe2fs(&ours)?, dumpe2fs(&theirs)?);
    one.extend(system_inodes(&ours)?);
    other.extend(system_inodes(&theirs)?);
    let mut faults = Vec::new();
    for line in one.iter().filter(|line| !other.contains(line)) {
        faults.push(format!("floe:   {line}"));
    }
    for line in other.iter().filter(|line| !one.contains(line)) {
        faults.push(format!("mke2fs: {line}"));
    }
    faults.extend(bytes_that_differ(&ours, &theirs)?);
    let judged = oracle::run(&ours, &["-fn"])?;
    if judged.exit != Some(0) {
        faults.push(format!("e2fsck {:?}: {}", judged.exit, judged.text));
    }
    ensure!(!one.is_empty(), "dumpe2fs says nothing");
    Ok(Some(faults))
}

fn judge(cases: &[(String, u64, Vec<&str>)]) {
    let mut faults = Vec::new();
    for (name, bytes, args) in cases {
        match compare(*bytes, args) {
            Ok(None) => faults.push(format!("{name}: mke2fs refuses")),
            Ok(Some(found)) if found.is_empty() => {}
            Ok(Some(found)) => faults.push(format!("{name}:\n  {}", found.join("\n  "))),
            Err(error) => faults.push(format!("{name}: {error:#}")),
        }
    }
    assert!(faults.is_empty(), "{} of {}\n{}", faults.len(), cases.len(), faults.join("\n"));
}

#[test]
fn every_profile_is_what_mke2fs_makes() {
    if tool::missing() {
        return;
    }
    let only = std::env::var("FLOE_PROFILE").ok();
    let cases: Vec<_> = Profile::ALL
        .iter()
        .filter(|profile| only.as_deref().is_none_or(|only| only == profile.name()))
        .map(|profile| {
            (profile.name().to_owned(), profile.size_mib() << 20, profile.mke2fs_args().to_vec())
        })
        .collect();
    judge(&cases);
}

#[test]
fn sizes_and_usage_types_are_those_of_mke2fs() {
    if tool::missing() {
        return;
    }
    let cases: Vec<(u64, &[&str])> = vec![
        (1, &["-t", "ext4"]),
        (2, &["-t", "ext2"]),
        (3, &["-t", "ext4"]),
        (64, &["-t", "ext3"]),
        (511, &["-t", "ext4"]),
        (512, &["-t", "ext4"]),
        (1100, &["-t", "ext4"]),
        (1100, &["-t", "ext4", "-T", "news", "-m", "0.3"]),
        (1100, &["-t", "ext4", "-T", "largefile4", "-O", "orphan_file,metadata_csum_seed"]),
        (1100, &["-t", "ext3", "-J", "size=16", "-e", "panic", "-L", "label"]),
        (100, &["-t", "ext4", "-b", "1024", "-J", "size=5,fast_commit_size=1000"]),
        (100, &["-t", "ext2", "-J", "fast_commit_size=1000"]),
        (64, &["-t", "ext4", "-O", "casefold", "-E", "encoding_flags=nostrict"]),
        (2170, &["-t", "ext4"]),
        (9000, &["-t", "ext4", "-G", "4", "-E", "stride=16,stripe_width=64"]),
        (5000, &["-t", "ext4", "-E", "resize=4000000,root_owner=70000:5"]),
        (60, &["-t", "ext4", "-N", "200018", "-b", "4096"]),
        (300, &["-t", "ext4", "-N", "200018", "-b", "4096"]),
        (200 << 10, &["-t", "ext4"]),
        // Descriptors that would take more than three quarters of a group.
        (61, &["-t", "ext4", "-b", "1024", "-g", "256"]),
        (700, &["-t", "ext4", "-b", "1024", "-g", "256", "-O", "^resize_inode,^has_journal"]),
        (900, &["-t", "ext4", "-b", "1024", "-g", "256", "-O", "^resize_inode,^has_journal"]),
        (8, &["-t", "ext4", "-O", "quota,project,orphan_file,mmp,fast_commit"]),
        (700, &["-t", "ext4", "-E", "packed_meta_blocks=1"]),
        (60, &["-t", "ext2", "-O", "quota", "-E", "root_owner=5:7"]),
    ];
    let cases: Vec<_> = cases
        .into_iter()
        .map(|(mib, args)| (format!("{mib} MiB {args:?}"), mib << 20, args.to_vec()))
        .collect();
    judge(&cases);
}

/// Random options of mke2fs (letters and values in turns), and the size of the device.
///
/// Known differences are left out: tables packed without flexible groups, flexible groups of tiny
/// groups, and bigalloc, where mke2fs leaves more bitmaps to the kernel.
fn random_options(seed: u64) -> (u64, Vec<String>) {
    const FEATURES: &str = "has_journal ext_attr resize_inode dir_index filetype extent 64bit flex_bg \
        sparse_super large_file huge_file uninit_bg dir_nlink extra_isize metadata_csum meta_bg \
        inline_data quota project sparse_super2 large_dir ea_inode metadata_csum_seed \
        orphan_file casefold encrypt verity stable_inodes mmp";
    let mut rng = Rng::new(seed);
    let mut args = Vec::new();
    let mut add = |letter: &str, value: String| args.extend([format!("-{letter}"), value]);
    let mut pick = |from: &str| {
        let words: Vec<&str> = from.split_whitespace().collect();
        rng.pick(&words).copied().unwrap_or_default().to_owned()
    };
    add("t", pick("ext2 ext3 ext4 ext4 ext4"));
    // From 512 KiB to 2 GiB, evenly by magnitude, and no round number.
    let magnitude: u32 = pick("9 10 11 12 13 14 15 16 17 18 19 20").parse().unwrap_or(10);
    let odd: u64 = pick("0 1 2 3 5 77 100 129 255").parse().unwrap_or(0);
    let kib = (1 << magnitude) + (odd << magnitude) / 256;
    let block = pick("1024 2048 4096 4096 4096");
    let features: Vec<String> = (0..pick("0 0 1 2 3 4").parse().unwrap_or(0))
        .map(|_| pick("^ _").replace('_', "") + &pick(FEATURES))
        .collect();
    add("b", block);
    for (letter, values) in [
        ("g", "2048 4096 8192 16384 32768"),
        ("I", "128 256 512 1024"),
        ("i", "1024 4096 8192 16384 65536 1048576"),
        ("N", "9 40 333 5000"),
        ("m", "0 1 5 0.5 20 49"),
        ("G", "2 4 16 32 64"),
        ("T", "small news largefile floppy big huge default largefile4"),
        ("J", "size=1 size=4 size=8 size=32"),
    ] {
        if pick("0 1 2 3") == "0" {
            add(letter, pick(values));
        }
    }
    if !features.is_empty() {
        add("O", features.join(","));
    }
    if pick("0 1 2") == "0" {
        add(
            "E",
            pick("stride=4 stride=128 resize=1000000 resize=1 num_backup_sb=1 root_owner=5:7"),
        );
    }
    (kib << 10, args)
}

/// The seeds of `FLOE_MKFS_SEEDS=FIRST-END`, or the usual ones.
fn seeds(usual: Range<u64>) -> Range<u64> {
    let Ok(given) = std::env::var("FLOE_MKFS_SEEDS") else { return usual };
    let (first, end) = given.split_once('-').expect("FIRST-END");
    first.parse().expect("a number")..end.parse().expect("a number")
}

/// 40 file systems; `FLOE_MKFS_SEEDS=FIRST-END` tries others.
#[test]
fn random_options_are_those_of_mke2fs() {
    if tool::missing() {
        return;
    }
    let seeds = seeds(0..40);
    let (mut made, mut faults, count) = (0, Vec::new(), seeds.end - seeds.start);
    for seed in seeds {
        let (bytes, args) = random_options(seed);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let fault = match compare(bytes, &args) {
            // Options that exclude each other, or do not fit the size.
            Ok(None) => continue,
            Ok(Some(found)) => found.join("\n  "),
            Err(error) => format!("{error:#}"),
        };
        made += 1;
        if !fault.is_empty() {
            faults.push(format!("seed {seed}, {bytes} bytes, {args:?}:\n  {fault}"));
        }
    }
    assert!(faults.is_empty(), "{} of {made}\n{}", faults.len(), faults.join("\n"));
    assert!(made * 3 > count, "only {made} of {count} were made");
}

/// With clusters mke2fs lays out tables otherwise, so only e2fsck judges; what Floe makes is clean, or refused.
/// 60 file systems; `FLOE_MKFS_SEEDS=FIRST-END` tries others.
#[test]
fn random_options_with_clusters_are_clean_or_refused() {
    if tool::missing() {
        return;
    }
    let seeds = seeds(0..60);
    let (mut made, mut faults, count) = (0, Vec::new(), seeds.end - seeds.start);
    let folder = tool::scratch("floe-mkfs-").expect("a folder");
    let image = folder.path().join("image");
    for seed in seeds {
        let (bytes, mut args) = random_options(seed);
        let mut rng = Rng::new(seed);
        let more =
            rng.pick(&["", ",quota", ",quota,project", ",orphan_file", ",inline_data,ea_inode"]);
        let cluster = rng.pick(&["16384", "32768", "65536", "524288", "1048576"]);
        let more = format!("extent,bigalloc{}", more.expect("a feature"));
        args.extend(["-O".to_owned(), more, "-C".to_owned(), cluster.expect("a size").to_string()]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        // Options that exclude each other, or do not fit the size.
        if floe(&image, bytes, &args).is_err() {
            let _ = std::fs::remove_file(&image);
            continue;
        }
        made += 1;
        let judged = oracle::run(&image, &["-fn"]).expect("a verdict");
        std::fs::remove_file(&image).expect("an image");
        if judged.exit != Some(0) {
            faults.push(format!("seed {seed}, {bytes} bytes, {args:?}:\n  {}", judged.text));
        }
    }
    assert!(faults.is_empty(), "{} of {made}\n{}", faults.len(), faults.join("\n"));
    assert!(made * 4 > count, "only {made} of {count} were made");
}

/// A device that cannot discard keeps no signature of its earlier content, and no stale metadata.
#[test]
fn old_signatures_are_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    std::fs::write(&path, vec![0xa5; 24 << 20]).expect("an old image");
    let mut options = Options::of_type(FsType::Ext4);
    options.set('b', "4096").expect("a block size");
    let now = Timestamp { seconds: NOW, nanoseconds: 0 };
    let fresh = Fresh { uuid: [1; 16], hash_seed: [2; 16], now };
    let params = options.params(24 << 20, None, &fresh).expect("parameters");
    let device = WritableFile::open(&path).expect("the image");
    write(&Plan::new(&params).expect("a plan"), &device).expect("a file system");
    let bytes = std::fs::read(&path).expect("the image");
    assert_eq!(bytes[..1024], [0; 1024]);
    let tail = &bytes[bytes.len() - (64 << 10)..];
    assert!(tail.iter().all(|byte| *byte == 0));
    if !tool::missing() {
        let judged = oracle::run(&path, &["-fn"]).expect("a verdict");
        assert_eq!(judged.exit, Some(0), "{}", judged.text);
    }
}

/// Every size has units; without one it counts what mke2fs counts.
#[test]
fn sizes_with_units_are_those_in_numbers() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = |name: &str, args: &[&str]| {
        let path = folder.path().join(name);
        floe(&path, 32 << 20, args).expect("a file system");
        std::fs::read(path).expect("the image")
    };
    let numbers = ["-t", "ext4", "-O", "fast_commit", "-b", "1024", "-I", "1024", "-i", "16384"];
    let units = ["-t", "ext4", "-O", "fast_commit", "-b", "1K", "-I", "1k", "-i", "16KiB"];
    let journals = ["size=4,fast_commit_size=256", "size=4M,fast_commit_size=256K"];
    let with = |args: &[&'static str], journal| [args, &["-J", journal]].concat();
    let [numbers, units] = [with(&numbers, journals[0]), with(&units, journals[1])];
    let by_numbers = made("numbers", &numbers);
    assert!(by_numbers == made("units", &units));
    assert!(by_numbers != made("default", &numbers[..8]));
}
