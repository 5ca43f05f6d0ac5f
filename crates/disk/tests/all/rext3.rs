//! rext3 file systems as mkfs makes and fills them: the layout of the paper, which others refuse and leave as it is.

use std::io;

use floe_blockdev::{MemDevice, ReadBlocks};
use floe_check::{CheckOptions, check};
use floe_disk::mkfs::tree::{Attributes, Body, ContentId, Contents, Timestamp, Tree};
use floe_disk::mkfs::{
    FillOptions, Fresh, FsType, Options, Params, Plan, PlanError, TreePlan, fill, write,
};
use floe_ext4::files::{Files, Follow};
use floe_ext4::fs::FileSystem;
use floe_ext4::map::walk::{Depths, Entry, Fault, Go, Visitor, has_map, walk};
use floe_ext4::tx::DirectTx;
use floe_format::ext::indirect::Header;
use floe_format::ext::inode::FileType;
use floe_format::rext3::{Record, region_blocks, region_of};
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr, InodeNr};
use floe_testkit::{Image, kernel, oracle, tool};

const MIB: u64 = 1 << 20;

/// Blocks of a file.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) inode: InodeNr,
    pub(crate) run: BlockRun,
    pub(crate) kind: Kind,
    /// Whether one of them lies in a region.
    pub(crate) in_region: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An indirect block.
    Node {
        level: u32,
        header: Option<Header>,
    },
    Directory,
    Data,
}

impl Place {
    /// Whether the paper would have it there, and with that header.
    pub(crate) fn is_right(&self) -> bool {
        match self.kind {
            Kind::Node { level, header } => {
                self.in_region && header == Some(Header { inode: self.inode.0, level })
            }
            Kind::Directory => self.in_region,
            Kind::Data => !self.in_region,
        }
    }
}

/// Notes the blocks of one map.
struct Notes<'n> {
    device: &'n MemDevice,
    geometry: &'n Geometry,
    regions: &'n [BlockRun],
    inode: (InodeNr, bool),
    places: Vec<Place>,
}

impl Notes<'_> {
    fn is_in_region(&self, run: BlockRun) -> bool {
        self.regions.iter().any(|region| region.start < run.end() && run.start < region.end())
    }
}

impl Visitor for Notes<'_> {
    fn read(&mut self, node: BlockNr) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.geometry.block_size as usize];
        self.device.read_at(self.geometry.offset_bytes(node), &mut bytes).ok()?;
        Some(bytes)
    }

    fn entry(&mut self, entry: &Entry) -> Go {
        let (run, (inode, is_directory)) = (entry.extent.run, self.inode);
        let in_region = self.is_in_region(run);
        let kind = match entry.level {
            0 if is_directory => Kind::Directory,
            0 => Kind::Data,
            level => {
                let bytes = self.read(run.start).unwrap();
                let header = self.geometry.indirect().header(&bytes);
                Kind::Node { level: u32::from(level), header }
            }
        };
        self.places.push(Place { inode, run, kind, in_region });
        Go::On
    }

    fn fault(&mut self, fault: Fault) -> Go {
        panic!("{fault:?}");
    }
}

/// The blocks of all files, those of the file system itself as well.
pub(crate) fn places(device: &MemDevice) -> Vec<Place> {
    let fs = FileSystem::open(device).unwrap();
    let geometry = fs.geometry();
    let blocks = region_blocks(&fs.superblock).unwrap();
    let regions: Vec<BlockRun> = (0..)
        .map(GroupNr)
        .zip(fs.space.groups.descs())
        .map(|(group, desc)| region_of(geometry, group, desc, blocks))
        .collect();
    let mut tx = DirectTx::new(device, geometry.clone());
    let mut all = Vec::new();
    for number in (1..=geometry.inodes_count).map(InodeNr) {
        let Ok(inode) = fs.inode(&mut tx, number) else { continue };
        if inode.base.links_count == 0 || !has_map(&inode.base) {
            continue;
        }
        let is_directory = inode.file_type() == Some(FileType::Directory);
        let (inode_of, places) = ((number, is_directory), Vec::new());
        let mut notes = Notes { device, geometry, regions: &regions, inode: inode_of, places };
        walk(&inode.base.block, inode.flags(), geometry.indirect(), Depths::Agree, &mut notes);
        let block = inode.file_acl(false);
        if block.0 > 0 {
            let run = BlockRun::new(block, 1);
            let in_region = notes.is_in_region(run);
            notes.places.push(Place { inode: number, run, kind: Kind::Data, in_region });
        }
        all.extend(notes.places);
    }
    all
}

fn params(bytes: u64, options: &[(char, &str)]) -> anyhow::Result<Params> {
    let mut all = Options::of_type(FsType::Rext3);
    for (letter, value) in options {
        all.set(*letter, value)?;
    }
    let now = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now };
    Ok(all.params(bytes, None, &fresh)?)
}

/// Blocks of directories and maps lie in regions and nothing else, headers are right, and Floe finds nothing.
fn judge(device: &MemDevice, what: &str) -> (usize, usize) {
    let report = check(device, &CheckOptions::default()).unwrap();
    assert_eq!(report.found, [], "{what}");
    judge_places(device, what)
}

/// The same without a check: how many blocks of maps and of directories there are.
pub(crate) fn judge_places(device: &MemDevice, what: &str) -> (usize, usize) {
    let all = places(device);
    let wrong: Vec<&Place> = all.iter().filter(|place| !place.is_right()).collect();
    assert!(wrong.is_empty(), "{what}: {wrong:?}");
    let nodes = all.iter().filter(|place| matches!(place.kind, Kind::Node { .. })).count();
    (nodes, all.iter().filter(|place| place.kind == Kind::Directory).count())
}

#[test]
fn every_size_has_the_layout_of_the_paper() {
    type Case = (u64, &'static [(char, &'static str)], u32);
    let cases: [Case; 5] = [
        // The paper's: 2 MiB of a group of 128 MiB.
        (600 * MIB, &[('N', "5000")], 512),
        (300 * MIB, &[('N', "3000"), ('E', "region_size=8m"), ('b', "4096")], 2048),
        (30 * MIB, &[], 128),
        (40 * MIB, &[('b', "1024"), ('g', "1024"), ('N', "2000"), ('E', "region_size=64k")], 64),
        (50 * MIB, &[('b', "2048"), ('I', "128")], 256),
    ];
    for (bytes, options, blocks) in cases {
        let device = MemDevice::new(vec![0; bytes as usize]);
        let plan = Plan::new(&params(bytes, options).unwrap()).unwrap();
        write(&plan, &device).unwrap();
        let what = format!("{} MiB {options:?}", bytes / MIB);
        let fs = FileSystem::open(&device).unwrap();
        assert_eq!(region_blocks(&fs.superblock), Some(blocks), "{what}");
        for (group, desc) in (0..).map(GroupNr).zip(fs.space.groups.descs()) {
            let geo = fs.geometry();
            let region = region_of(geo, group, desc, blocks);
            let table = desc.inode_table.0 + u64::from(geo.inode_table_blocks);
            assert_eq!(region.start.0, table, "{what}: {group}");
            if geo.blocks_of(group).len_blocks == u64::from(geo.blocks_per_group) {
                assert_eq!(region.len_blocks, u64::from(blocks), "{what}: {group}");
            }
            // Backups know it, too.
            if let Some(block) = geo.superblock_of(group) {
                let mut raw = [0; 1024];
                let at = if group.0 == 0 { 1024 } else { geo.offset_bytes(block) };
                device.read_at(at, &mut raw).unwrap();
                let copy = floe_format::ext::superblock::Superblock::decode(&raw);
                assert_eq!(Record::of(&copy), Some(Record::new(blocks)), "{what}: {group}");
            }
        }
        // The journal has indirect blocks, and the root and lost+found have directory blocks.
        let (nodes, directories) = judge(&device, &what);
        assert!(nodes >= 1 && directories >= 3, "{what}: {nodes}, {directories}");
    }
}

#[test]
fn options_that_cannot_be_are_refused() {
    let refused: &[&[(char, &str)]] = &[
        &[('O', "extent")],
        &[('O', "metadata_csum")],
        &[('O', "resize_inode")],
        &[('O', "^has_journal")],
        &[('O', "^rext3")],
        &[('O', "quota")],
        &[('E', "lot_size=8m")],
        &[('E', "region_size=100m")],
        &[('E', "region_size=1k")],
        &[('E', "stride=16")],
    ];
    for options in refused {
        let options: Vec<_> = options.iter().copied().chain([('b', "4096")]).collect();
        let plan = params(1 << 30, &options).and_then(|params| Ok(Plan::new(&params)?));
        assert!(plan.is_err(), "{options:?}");
    }
    let mut stock = Options::of_type(FsType::Ext3);
    stock.set('O', "rext3").unwrap();
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: Timestamp::default() };
    let params = stock.params(64 * MIB, None, &fresh).unwrap();
    assert_eq!(
        Plan::new(&params).unwrap_err(),
        PlanError::Parameter("the feature rext3 needs -t rext3")
    );
}

/// Files whose bytes follow from their number.
struct Numbered;

impl Contents for Numbered {
    fn read_at(&self, id: ContentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        for (at, byte) in (offset..).zip(into) {
            *byte = content(id.0, at);
        }
        Ok(())
    }
}

fn content(id: u64, at: u64) -> u8 {
    (at / 1000 + at + id * 7) as u8
}

/// Sizes up to two levels of indirect blocks of 1 KiB.
const SIZES: [u64; 5] = [0, 5_000, 12 * 1024, 100_000, 900_000];

fn some_tree() -> Tree {
    let mut tree = Tree::new(Attributes::root());
    let (root, own) = (tree.root(), Attributes::file(0o644));
    for dir in 0..30u64 {
        let name = format!("dir{dir}{}", "x".repeat(100)).into_bytes();
        let parent =
            tree.insert(root, &name, Attributes::directory(0o755), Body::Directory).unwrap();
        for file in 0..20u64 {
            let id = dir * 20 + file;
            let size = SIZES[id as usize % SIZES.len()] * u64::from(file < 5 || id % 2 == 0);
            let body = Body::file(size, ContentId(id), 0);
            tree.insert(parent, format!("{file}").as_bytes(), own, body).unwrap();
        }
        let target = Body::Symlink(vec![b't'; 200].into());
        tree.insert(parent, b"link", own, target).unwrap();
    }
    tree
}

#[test]
fn a_filled_file_system_reads_back() {
    let tree = some_tree();
    let params = params(0, &[('b', "1024"), ('g', "4096"), ('J', "size=1")]).unwrap();
    let plan = TreePlan::fitted(&params, &tree, 5).unwrap();
    let bytes = plan.plan().bytes();
    let device = MemDevice::new(vec![0; bytes as usize]);
    fill(&plan, &Numbered, &device, FillOptions { threads: 2, ..FillOptions::default() }).unwrap();
    let (nodes, directories) = judge(&device, "filled");
    assert!(nodes > 300 && directories > 40, "{nodes}, {directories}");
    let fs = FileSystem::open(&device).unwrap();
    let (geo, groups) = (fs.geometry().clone(), fs.space.groups.descs().to_vec());
    let files = Files::new(&device, fs.superblock.clone(), geo, groups);
    let mut read = 0;
    for dir in 0..30u64 {
        for file in 0..20u64 {
            let id = dir * 20 + file;
            let path = format!("/dir{dir}{}/{file}", "x".repeat(100));
            let node = files.lookup(path.as_bytes(), Follow::Last).unwrap();
            let (found, faults) = files.content(&node).unwrap();
            let (mut whole, mut unread) = (vec![0; found.size_bytes() as usize], Vec::new());
            assert_eq!(found.read_at(0, &mut whole, &mut unread), whole.len());
            assert!(faults.is_empty() && unread.is_empty(), "{path}");
            let expected: Vec<u8> = (0..whole.len() as u64).map(|at| content(id, at)).collect();
            assert!(whole == expected, "{path}");
            read += whole.len();
        }
    }
    assert!(read > 50_000_000, "{read}");
}

/// Neither e2fsck nor Linux touches it.
#[test]
fn others_refuse_it() {
    if tool::missing() {
        return;
    }
    let device = MemDevice::new(vec![0; 40 << 20]);
    write(&Plan::new(&params(40 * MIB, &[]).unwrap()).unwrap(), &device).unwrap();
    let image = Image::empty(0).unwrap();
    std::fs::write(image.path(), device.to_vec()).unwrap();
    let verdict = oracle::e2fsck(&image).unwrap();
    assert!(!verdict.clean() && verdict.text.contains("unsupported feature"), "{}", verdict.text);
    if kernel::mount_available().is_ok() {
        for options in ["ro", "ro,noload"] {
            assert!(kernel::verdict(&image, options).unwrap().is_err(), "{options}");
        }
    }
    assert!(std::fs::read(image.path()).unwrap() == device.to_vec());
}
