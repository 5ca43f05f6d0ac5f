//! Shared by the tests of the journal: images, e2fsck as the oracle, and comparing bytes.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    clippy::panic
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use floe_blockdev::{FileDevice, MemDevice, ReadBlocks};
use floe_check::report::JournalState;
use floe_check::{CheckOptions, JournalUse, Problem};
use floe_ext4::journal::{self, Journal, JournalEvent, Replay};
use floe_format::Geometry;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::geometry::Strictness;

/// Superblock, geometry and descriptors of a device.
pub struct Opened {
    pub sb: Superblock,
    pub geo: Geometry,
    pub groups: Vec<GroupDesc>,
}

pub fn open(device: &dyn ReadBlocks) -> Opened {
    let mut bytes = [0; 1024];
    device.read_at(OFFSET_BYTES, &mut bytes).unwrap();
    let sb = Superblock::decode(&bytes);
    let geo = Geometry::new(&sb, Strictness::Relaxed).unwrap();
    let per_block = (geo.block_size / geo.desc_size) as usize;
    let mut block = vec![0; geo.block_size as usize];
    let mut groups = Vec::new();
    for index in 0..geo.desc_blocks {
        device.read_at(geo.offset_bytes(geo.primary_desc_block(index)), &mut block).unwrap();
        for raw in block.chunks_exact(geo.desc_size as usize).take(per_block) {
            let hi = raw.get(32..64).and_then(|hi| hi.first_chunk());
            groups.push(GroupDesc::decode(raw.first_chunk().unwrap(), hi));
        }
    }
    groups.truncate(geo.group_count as usize);
    Opened { sb, geo, groups }
}

/// Finds the journal of an image.
pub fn find(image: &Path, external: Option<&Path>) -> (Option<Journal>, Vec<JournalEvent>) {
    let device = FileDevice::open(image).unwrap();
    let external = external.map(|path| FileDevice::open(path).unwrap());
    let external = external.as_ref().map(|device| device as &dyn ReadBlocks);
    let Opened { sb, geo, groups } = open(&device);
    journal::find(&device, &sb, &geo, &groups, external)
}

/// Finds and replays the journal of an image, which must have a usable one.
pub fn recover(image: &Path, external: Option<&Path>) -> Replay<FileDevice> {
    let device = FileDevice::open(image).unwrap();
    let external = external.map(|path| FileDevice::open(path).unwrap());
    let external = external.as_ref().map(|device| device as &dyn ReadBlocks);
    let Opened { sb, geo, groups } = open(&device);
    let (journal, events) = journal::find(&device, &sb, &geo, &groups, external);
    let journal = journal.unwrap_or_else(|| panic!("no journal in {image:?}: {events:?}"));
    journal::replay(device, &geo, &journal, external)
}

/// Runs a program; its output, whatever its status.
pub fn run(program: &str, args: &[&str]) -> Output {
    let output = Command::new(program).args(args).env("LC_ALL", "C").output();
    output.unwrap_or_else(|error| panic!("cannot run {program}: {error}"))
}

/// Runs a program that must succeed.
pub fn run_ok(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    let text = text_of(&output);
    assert!(output.status.success(), "{program} {args:?} failed: {text}");
    text
}

pub fn text_of(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat()
}

/// Feeds commands to `debugfs -w`.
pub fn debugfs(image: &Path, commands: &str) {
    let script = image.with_extension("cmd");
    std::fs::write(&script, commands).unwrap();
    run_ok("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
}

/// A sparse copy beside the image.
pub fn copy(image: &Path, extension: &str) -> PathBuf {
    let to = image.with_extension(extension);
    run_ok("cp", &["--sparse=always", image.to_str().unwrap(), to.to_str().unwrap()]);
    to
}

/// A copy that e2fsck has replayed the journal of, and did nothing else to.
pub fn replayed_by_e2fsck(image: &Path, external: Option<&Path>) -> PathBuf {
    let replayed = copy(image, "oracle");
    let mut args = vec!["-y", "-E", "journal_only"];
    let journal = external.map(|path| copy(path, "oracle-journal"));
    if let Some(journal) = &journal {
        args.extend(["-j", journal.to_str().unwrap()]);
    }
    args.push(replayed.to_str().unwrap());
    let output = run("e2fsck", &args);
    let code = output.status.code().unwrap_or(-1);
    assert!(code & !1 == 0, "e2fsck on {image:?} ended with {code}: {}", text_of(&output));
    replayed
}

/// Blocks of 1 KiB in which two devices differ, the primary superblock left out.
pub fn differing_kib(one: &dyn ReadBlocks, other: &dyn ReadBlocks) -> Vec<u64> {
    assert_eq!(one.size_bytes(), other.size_bytes());
    let mut differing = Vec::new();
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    while at < one.size_bytes() {
        let len = (one.size_bytes() - at).min(1 << 20) as usize;
        one.read_at(at, &mut left[..len]).unwrap();
        other.read_at(at, &mut right[..len]).unwrap();
        for (index, (a, b)) in left[..len].chunks(1024).zip(right[..len].chunks(1024)).enumerate() {
            let kib = at / 1024 + index as u64;
            if a != b && kib != 1 {
                differing.push(kib);
            }
        }
        at += len as u64;
    }
    differing
}

/// Writes a device into a file, holes for zeroes.
pub fn dump(device: &dyn ReadBlocks, to: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(to).unwrap();
    file.set_len(device.size_bytes()).unwrap();
    let mut buffer = vec![0; 1 << 16];
    let mut at = 0;
    while at < device.size_bytes() {
        let len = (device.size_bytes() - at).min(1 << 16) as usize;
        device.read_at(at, &mut buffer[..len]).unwrap();
        if buffer[..len].iter().any(|&byte| byte != 0) {
            file.write_all_at(&buffer[..len], at).unwrap();
        }
        at += len as u64;
    }
}

/// A copy whose superblock, with a right checksum, says that a group has another number of inodes.
pub fn with_other_inodes_per_group(image: &Path, change: impl Fn(u32) -> u32) -> PathBuf {
    use std::os::unix::fs::FileExt;
    let damaged = copy(image, "inodes");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&damaged).unwrap();
    let mut bytes = [0; 1024];
    file.read_exact_at(&mut bytes, OFFSET_BYTES).unwrap();
    let mut sb = Superblock::decode(&bytes);
    sb.inodes_per_group = change(sb.inodes_per_group);
    sb.encode_with_checksum(&mut bytes);
    file.write_all_at(&bytes, OFFSET_BYTES).unwrap();
    damaged
}

/// Demands that recovery of an image with a wrong number of inodes of a group leads to the same as
/// without that damage, but for the number itself. Comes back with what the two replays did.
pub fn recovers_in_spite_of_wrong_inodes(image: &Path, change: impl Fn(u32) -> u32) -> Recovered {
    let sound = recovered(image);
    let damaged = recovered(&with_other_inodes_per_group(image, &change));
    let superblock = |recovered: &Recovered| superblock_of(&recovered.overlay);
    let (wanted, mut got) = (superblock(&sound), superblock(&damaged));
    if got.inodes_per_group != wanted.inodes_per_group {
        assert_eq!(got.inodes_per_group, change(wanted.inodes_per_group));
    }
    got.inodes_per_group = wanted.inodes_per_group;
    got.checksum = wanted.checksum;
    assert_eq!(got, wanted);
    assert_eq!(differing_kib(&sound.overlay, &damaged.overlay), [0u64; 0]);
    assert_eq!((sound.state, &sound.found), (damaged.state, &damaged.found));
    damaged
}

/// The result of recovery of an image that was opened as a check opens it.
pub struct Recovered {
    pub overlay: MemDevice,
    pub state: JournalState,
    pub found: Vec<Problem>,
    /// Problems found while opening it.
    pub opening: Vec<Problem>,
}

fn recovered(image: &Path) -> Recovered {
    let device = FileDevice::open(image).unwrap();
    let options = CheckOptions { journal: JournalUse::Replay, ..CheckOptions::default() };
    let opened = floe_check::open::open(&device, options.superblock).unwrap();
    let recovery = floe_check::recovery::recover(&device, &opened, &options);
    let overlay = recovery.overlay.expect("there is a journal to replay");
    let mut bytes = vec![0; usize::try_from(overlay.size_bytes()).unwrap()];
    overlay.read_at(0, &mut bytes).unwrap();
    let (found, opening) = (recovery.found.0, opened.found.0);
    Recovered { overlay: MemDevice::new(bytes), state: recovery.state, found, opening }
}

fn superblock_of(device: &dyn ReadBlocks) -> Superblock {
    let mut bytes = [0; 1024];
    device.read_at(OFFSET_BYTES, &mut bytes).unwrap();
    Superblock::decode(&bytes)
}
