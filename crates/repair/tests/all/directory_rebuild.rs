//! Rebuilt directories in real images, judged by e2fsck, debugfs and the kernel; and compared leaf
//! by leaf with the result of `e2fsck -fyD`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use floe_blockdev::FileDevice;
use floe_check::{CheckOptions, JournalUse, check};
use floe_ext4::dir::{DirFormat, Directory, Entry, Rebuilt, gather, rebuild};
use floe_format::InodeNr;
use floe_format::ext::htree::DxBlock;
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::layout::le32_at;
use floe_testkit::kernel::{Mounted, mount_available};
use floe_testkit::problems::write_context;
use floe_testkit::{Image, Profile, Rng, Volume, build, oracle, tool};

/// FIFOs that entries name.
const TARGETS: usize = 8;

/// A constant fscrypt version 1 context: modes, flags, key, nonce.
const CONTEXT: [u8; 28] = [1; 28];

/// A kind of directory on a kind of file system.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    mke2fs: &'static [&'static str],
    size_mib: u64,
    /// debugfs commands to run first.
    script: &'static str,
    encrypted: bool,
    casefolded: bool,
    /// Whether this machine's kernel can judge the image: it needs small blocks and no encryption
    /// keys.
    kernel: bool,
    names: usize,
    name_len: usize,
}

impl Case {
    const fn new(name: &'static str, mke2fs: &'static [&'static str], size_mib: u64) -> Self {
        Self {
            name,
            mke2fs,
            size_mib,
            script: "",
            encrypted: false,
            casefolded: false,
            kernel: true,
            names: 600,
            name_len: 40,
        }
    }

    const fn of(profile: Profile) -> Self {
        Self::new(profile.name(), profile.mke2fs_args(), profile.size_mib())
    }
}

fn cases() -> Vec<Case> {
    use Profile::*;
    vec![
        Case { names: 1500, name_len: 100, ..Case::of(Ext4K1) },
        Case::of(Ext4K2),
        Case { names: 2000, ..Case::of(Ext4) },
        Case::of(Ext3),
        Case::of(Ext2Plain),
        Case::of(NoDirIndex),
        Case { names: 1500, name_len: 100, ..Case::of(NoCsum) },
        Case { name: "tea", script: "ssv def_hash_version tea\n", ..Case::of(Ext4K1) },
        Case { name: "legacy", script: "ssv def_hash_version legacy\n", ..Case::of(Ext4K1) },
        Case { name: "one-block", names: 6, ..Case::of(Ext4K1) },
        Case { name: "empty", names: 0, ..Case::of(Ext4K1) },
        Case { casefolded: true, ..Case::of(Casefold) },
        Case { encrypted: true, kernel: false, ..Case::of(Encrypt) },
        Case {
            encrypted: true,
            casefolded: true,
            kernel: false,
            ..Case::new(
                "encrypted-casefold",
                &["-t", "ext4", "-b", "1024", "-O", "encrypt,casefold", "-E", "encoding=utf8"],
                8,
            )
        },
        Case {
            names: 6000,
            kernel: false,
            ..Case::new("64k", &["-t", "ext4", "-b", "65536", "-N", "64"], 128)
        },
        Case {
            names: 5000,
            kernel: false,
            ..Case::new(
                "64k-no-csum",
                &["-t", "ext4", "-b", "65536", "-N", "64", "-O", "^metadata_csum"],
                128,
            )
        },
    ]
}

/// An image with FIFOs `/t0`.. and a directory `/d`, and the state for writing to it.
struct Stage {
    image: Image,
    case: Case,
    targets: Vec<InodeNr>,
    dir: Directory,
    format: DirFormat,
}

impl Stage {
    fn new(case: Case) -> Self {
        let image = Image::empty(case.size_mib << 20).unwrap();
        build::mke2fs(image.path(), case.mke2fs).unwrap();
        let mut script = format!("{}mkdir d\n", case.script);
        (0..TARGETS).for_each(|at| script.push_str(&format!("mknod t{at} p\n")));
        build::debugfs(&image, &script).unwrap();
        let volume = Volume::open(&image).unwrap();
        let targets =
            (0..TARGETS).map(|at| volume.lookup(&format!("/t{at}")).unwrap()).collect::<Vec<_>>();
        let inode = volume.lookup("/d").unwrap();
        let dir = Directory {
            inode,
            parent: InodeNr::ROOT,
            generation: le32_at(&volume.inode_bytes(inode).unwrap(), 0x64).unwrap(),
            encrypted: case.encrypted,
            casefolded: case.casefolded,
        };
        let format = DirFormat::of(&volume.superblock, &volume.geometry);
        Self { image, case, targets, dir, format }
    }

    /// Entries with random names.
    fn entries(&self, seed: u64) -> Vec<Entry<'static>> {
        let mut rng = Rng::new(seed);
        let entry = |at: usize| {
            let len = self.case.name_len + rng.below(17) as usize;
            let mut name = format!("N{at:05}-{:x}-", rng.below(1 << 20)).into_bytes();
            name.resize(len, b'x');
            let inode = self.targets[at % TARGETS];
            let mut entry = Entry::new(inode, name, FileType::Fifo as u8);
            if self.dir.hashed() {
                // So few hashes that some leaves begin in the middle of one.
                entry.hash = Some(((rng.below(64) as u32) << 26, rng.below(1 << 30) as u32));
            }
            entry
        };
        (0..self.case.names).map(entry).collect()
    }

    /// Writes the content of `/d`, and sets its size, map and link counts.
    fn install(&self, content: &[u8], indexed: bool) {
        let block_size = self.format.block_size;
        let blocks = content.len() / block_size;
        build::debugfs(&self.image, &"expand_dir d\n".repeat(blocks.saturating_sub(1))).unwrap();
        let volume = Volume::open(&self.image).unwrap();
        let map = volume.map(self.dir.inode).unwrap().data;
        assert_eq!(map.len(), blocks, "{}: debugfs gave other blocks", self.case.name);
        for (bytes, block) in content.chunks_exact(block_size).zip(map.values()) {
            volume.put_block(*block, bytes).unwrap();
        }
        self.install_head(content, indexed);
    }

    /// Sets the flags and link counts of `/d`, whose blocks are in place.
    fn install_head(&self, content: &[u8], indexed: bool) {
        let volume = Volume::open(&self.image).unwrap();
        let change = |inode: InodeNr, change: &dyn Fn(&mut [u8])| {
            let mut raw = volume.inode_bytes(inode).unwrap();
            change(&mut raw);
            volume.put_inode(inode, &raw).unwrap();
            volume.fix_inode(inode).unwrap();
        };
        let mut flags = InodeFlags::empty();
        flags.set(InodeFlags::INDEX, indexed);
        flags.set(InodeFlags::ENCRYPT, self.case.encrypted);
        flags.set(InodeFlags::CASEFOLD, self.case.casefolded);
        change(self.dir.inode, &|raw| {
            if self.case.encrypted {
                write_context(raw, CONTEXT);
            }
            let old = le32_at(raw, 0x20).unwrap() & !InodeFlags::INDEX.bits();
            raw[0x20..0x24].copy_from_slice(&(old | flags.bits()).to_le_bytes());
        });
        let mut links: BTreeMap<InodeNr, u16> = self.targets.iter().map(|at| (*at, 1)).collect();
        for entry in gather(content, &self.format, &self.dir) {
            *links.entry(entry.inode).or_default() += 1;
        }
        for (inode, count) in links {
            change(inode, &|raw| raw[0x1a..0x1c].copy_from_slice(&count.to_le_bytes()));
        }
    }

    fn clean(&self, what: &str) {
        let verdict = oracle::e2fsck(&self.image).unwrap();
        assert!(verdict.clean(), "{} {what}: {}", self.case.name, verdict.text);
        let device = FileDevice::open(self.image.path()).unwrap();
        let options =
            CheckOptions { threads: 1, journal: JournalUse::Ignore, ..Default::default() };
        let found = check(&device, &options).unwrap().found;
        let damage = found
            .iter()
            .filter(|problem| problem.row().weight != floe_check::problem::Weight::Remark);
        assert_eq!(damage.count(), 0, "{} {what}: {found:?}", self.case.name);
    }
}

/// Inodes and names in `/d`, in on-disk order.
fn listing(image: &Image, dir: &Directory, format: &DirFormat) -> Vec<(u32, Vec<u8>)> {
    let volume = Volume::open(image).unwrap();
    let map = volume.map(dir.inode).unwrap().data;
    let content: Vec<u8> = map.values().flat_map(|block| volume.block(*block).unwrap()).collect();
    gather(&content, format, dir)
        .into_iter()
        .map(|entry| (entry.inode.0, entry.name.into_owned()))
        .collect()
}

fn is_indexed(image: &Image, dir: &Directory) -> bool {
    let raw = Volume::open(image).unwrap().inode_bytes(dir.inode).unwrap();
    Inode::decode(&raw).unwrap().flags().contains(InodeFlags::INDEX)
}

#[test]
fn e2fsck_and_floe_find_nothing_wrong_with_what_was_built() {
    if tool::missing() {
        return;
    }
    for case in cases() {
        let begin = std::time::Instant::now();
        let stage = Stage::new(case);
        let entries = stage.entries(1);
        let rebuilt = rebuild(&stage.format, &stage.dir, 9, false, entries.clone());
        stage.install(&rebuilt.content, rebuilt.indexed);
        stage.clean("as built");
        let expect_index = case.names > 6 && stage.format.dir_index;
        assert_eq!(rebuilt.indexed, expect_index, "{}", case.name);
        debugfs_reads(&stage, &rebuilt, &entries);
        same_as_e2fsck(&stage, &rebuilt);
        eprintln!("{}: {:?}", case.name, begin.elapsed());
    }
}

/// Sizes around the limit of one block.
#[test]
fn the_smallest_index_is_in_order() {
    if tool::missing() {
        return;
    }
    let mut indexed = BTreeSet::new();
    for profile in [Profile::Ext4K1, Profile::Ext3] {
        for (names, name_len) in (14..20).flat_map(|names| [(names, 36), (names, 40)]) {
            let stage = Stage::new(Case { names, name_len, ..Case::of(profile) });
            let rebuilt = rebuild(&stage.format, &stage.dir, 2, false, stage.entries(5));
            stage.install(&rebuilt.content, rebuilt.indexed);
            stage.clean(&format!("{names} names"));
            indexed.insert((rebuilt.indexed, rebuilt.content.len() / 1024));
        }
    }
    assert_eq!(indexed.into_iter().collect::<Vec<_>>(), [(false, 1), (true, 3)]);
}

/// debugfs lists all names and finds them through the index.
fn debugfs_reads(stage: &Stage, rebuilt: &Rebuilt, entries: &[Entry<'_>]) {
    let run = |command: &str| {
        let path = stage.image.path().to_str().unwrap();
        tool::must("debugfs", &["-R", command, path], &[0]).unwrap().text
    };
    let mut texts = vec![run("ls -p /d")];
    if rebuilt.indexed {
        texts.push(run("htree_dump /d"));
    }
    if stage.case.encrypted {
        // debugfs does not show encrypted names and hashes as stored.
        return;
    }
    for text in texts {
        let words: BTreeSet<&str> =
            text.split(|c: char| !c.is_alphanumeric() && c != '-').collect();
        let missing: Vec<_> = entries
            .iter()
            .map(|entry| String::from_utf8_lossy(&entry.name).into_owned())
            .filter(|name| !words.contains(name.as_str()))
            .collect();
        assert!(missing.is_empty(), "{}: {missing:?} not in {text}", stage.case.name);
    }
}

/// `e2fsck -fyD` produces the same leaves from our directory.
fn same_as_e2fsck(stage: &Stage, rebuilt: &Rebuilt) {
    let name = stage.case.name;
    let copy = stage.image.copy().unwrap();
    let verdict = oracle::run(copy.path(), &["-fyD"]).unwrap();
    assert!(matches!(verdict.exit, Some(0 | 1)), "{name}: {}", verdict.text);
    let ours = listing(&stage.image, &stage.dir, &stage.format);
    let theirs = listing(&copy, &stage.dir, &stage.format);
    assert_eq!(is_indexed(&copy, &stage.dir), rebuilt.indexed, "{name}");
    if rebuilt.indexed {
        assert_eq!(ours, theirs, "{name}: another order");
        let blocks =
            |image: &Image| Volume::open(image).unwrap().map(stage.dir.inode).unwrap().data.len();
        assert_eq!(blocks(&stage.image), blocks(&copy), "{name}: another number of blocks");
    } else {
        // e2fsck leaves the order of two names of one inode open.
        let sorted = |list: Vec<_>| list.into_iter().collect::<BTreeSet<_>>();
        assert_eq!(sorted(ours), sorted(theirs), "{name}");
    }
}

/// The kernel finds each name, adds and removes others, and e2fsck accepts the result.
#[test]
fn the_kernel_finds_each_name_and_can_go_on() {
    if tool::missing() {
        return;
    }
    if let Err(reason) = mount_available() {
        eprintln!("skipped: {reason}");
        return;
    }
    for case in cases().into_iter().filter(|case| case.kernel) {
        let stage = Stage::new(case);
        let entries = stage.entries(2);
        let rebuilt = rebuild(&stage.format, &stage.dir, 9, false, entries.clone());
        stage.install(&rebuilt.content, rebuilt.indexed);
        let mounted = match Mounted::new(stage.image.path(), "") {
            Ok(mounted) => mounted,
            Err(refusal) => {
                // Some kernels lack casefolding.
                assert!(case.casefolded, "{}: {refusal:#}", case.name);
                eprintln!("skipped {}: {refusal:#}", case.name);
                continue;
            }
        };
        let folder = mounted.path().join("d");
        let path = |name: &[u8]| folder.join(OsStr::from_bytes(name));
        for entry in &entries {
            let name: Vec<u8> =
                if case.casefolded { entry.name.to_ascii_uppercase() } else { entry.name.to_vec() };
            let found = std::fs::symlink_metadata(path(&name));
            assert!(found.is_ok(), "{}: {:?}: {found:?}", case.name, entry.name);
        }
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), entries.len(), "{}", case.name);
        for at in 0..120 {
            std::fs::hard_link(mounted.path().join("t0"), path(format!("new-{at:060}").as_bytes()))
                .unwrap();
        }
        for entry in entries.iter().step_by(3) {
            std::fs::remove_file(path(&entry.name)).unwrap();
        }
        mounted.unmount().unwrap();
        let verdict = oracle::e2fsck(&stage.image).unwrap();
        assert!(verdict.clean(), "{}: {}", case.name, verdict.text);
    }
}

/// An index with two interior levels: too many blocks for debugfs to add one by one, so the content
/// arrives as a file that swaps its map with the directory.
#[test]
fn the_deepest_index_is_read_too() {
    if tool::missing() {
        return;
    }
    let case = Case {
        names: 123 * 126 * 4,
        name_len: 238,
        ..Case::new(
            "large-dir",
            &["-t", "ext4", "-b", "1024", "-N", "64", "-O", "large_dir,^has_journal"],
            48,
        )
    };
    let stage = Stage::new(case);
    let entries = stage.entries(4);
    let rebuilt = rebuild(&stage.format, &stage.dir, 9, false, entries.clone());
    let levels = DxBlock::root_info(&rebuilt.content).unwrap().indirect_levels;
    assert_eq!((levels, rebuilt.needs_large_dir), (2, false));
    let folder = tool::scratch("floe-large-dir-").unwrap();
    let file = folder.path().join("content");
    std::fs::write(&file, &rebuilt.content).unwrap();
    build::debugfs(&stage.image, &format!("write {} f\n", file.display())).unwrap();
    change_places(&stage);
    stage.install_head(&rebuilt.content, rebuilt.indexed);
    stage.clean("as built");
    if let Err(reason) = mount_available() {
        eprintln!("skipped: {reason}");
        return;
    }
    let mounted = Mounted::new(stage.image.path(), "").unwrap();
    for entry in &entries {
        let path = mounted.path().join("d").join(OsStr::from_bytes(&entry.name));
        assert!(std::fs::symlink_metadata(path).is_ok(), "{:?}", entry.name);
    }
    mounted.unmount().unwrap();
}

/// Swaps the blocks of `/d` and `/f`.
fn change_places(stage: &Stage) {
    let volume = Volume::open(&stage.image).unwrap();
    let [mut one, mut other] =
        ["/d", "/f"].map(|path| volume.inode_bytes(volume.lookup(path).unwrap()).unwrap());
    // Size, number of blocks, map.
    for field in [0x04..0x08, 0x1c..0x20, 0x28..0x64] {
        one[field.clone()].swap_with_slice(&mut other[field]);
    }
    for (path, raw) in [("/d", one), ("/f", other)] {
        let inode = volume.lookup(path).unwrap();
        volume.put_inode(inode, &raw).unwrap();
        volume.fix_inode(inode).unwrap();
        for node in volume.map(inode).unwrap().nodes {
            volume.fix_extent_node(inode, node.block).unwrap();
        }
    }
}

/// Duplicate names are resolved as e2fsck does.
#[test]
fn twins_are_settled_as_by_e2fsck() {
    if tool::missing() {
        return;
    }
    for case in [Profile::Ext4K1, Profile::Ext2Plain, Profile::Casefold, Profile::Encrypt] {
        let case = Case {
            casefolded: case == Profile::Casefold,
            encrypted: case == Profile::Encrypt,
            names: 60,
            ..Case::of(case)
        };
        let stage = Stage::new(case);
        let mut entries = stage.entries(3);
        let mut rng = Rng::new(9);
        for at in 0..30 {
            let twin = entries[at].clone();
            let mut name = twin.name.into_owned();
            if case.casefolded && rng.chance(2) {
                name.make_ascii_uppercase();
            }
            let inode = if rng.chance(3) { twin.inode } else { stage.targets[(at + 3) % TARGETS] };
            entries.push(Entry::new(inode, name, twin.file_type));
        }
        // Written without looking for duplicates: two directories of unique names, concatenated.
        let mut content = Vec::new();
        let mut left = entries.clone();
        while !left.is_empty() {
            let mut seen = BTreeSet::new();
            let (now, later): (Vec<_>, Vec<_>) =
                left.into_iter().partition(|entry| seen.insert(entry.name.to_ascii_lowercase()));
            left = later;
            let part = rebuild(&stage.format, &stage.dir, 1, false, now);
            content.extend(part.content);
        }
        // Only the first block may begin with `.` and `..`.
        let dots = stage.format.block_size;
        let mut at = dots;
        while at < content.len() {
            blank_dots(&mut content[at..at + dots], &stage);
            at += dots;
        }
        stage.install(&content, false);
        let repaired = stage.image.copy().unwrap();
        let verdict = oracle::run(repaired.path(), &["-fyD"]).unwrap();
        assert_eq!(verdict.exit, Some(1), "{}: {}", case.name, verdict.text);
        let mut theirs = listing(&repaired, &stage.dir, &stage.format);
        let gathered = gather(&content, &stage.format, &stage.dir);
        assert_eq!(gathered.len(), entries.len());
        let blocks = (content.len() / dots) as u64;
        let rebuilt = rebuild(&stage.format, &stage.dir, blocks, false, gathered);
        let mut ours: Vec<_> = gather(&rebuilt.content, &stage.format, &stage.dir)
            .into_iter()
            .map(|entry| (entry.inode.0, entry.name.into_owned()))
            .collect();
        for list in [&mut ours, &mut theirs] {
            list.iter_mut().for_each(|(_, name)| shorten(name));
            list.sort();
        }
        assert_eq!(ours, theirs, "{}: {}", case.name, verdict.text);
        assert_eq!(rebuilt.indexed, is_indexed(&repaired, &stage.dir), "{}", case.name);
        assert!(!rebuilt.settled.is_empty());
    }
}

/// Shortens a name to the range in which both programs agree: e2fsck overwrites the last characters
/// of some names, which Floe never does.
fn shorten(name: &mut Vec<u8>) {
    if name.ends_with(b"~0") {
        name.truncate("N00000-".len());
        name.extend(b"~0");
    }
}

/// Clears `.` and `..` of a block that is not the first.
fn blank_dots(block: &mut [u8], stage: &Stage) {
    use floe_ext4::dir::{clear, seal};
    if block[8] == b'.' && block[6] == 1 {
        clear(block, 0).unwrap();
        clear(block, 12).unwrap();
        seal(block, stage.dir.inode_seed(&stage.format));
    }
}
