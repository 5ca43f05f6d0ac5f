//! Pointers that lead elsewhere and states that cannot be, with right checksums; and calls that are wrong.

use floe_blockdev::{ReadBlocks, WriteBlocks};
use floe_check::Problem;
use floe_check::problem::Evidence;
use floe_ext4::alloc::Space as _;
use floe_ext4::fs::FileSystem as Volume;
use floe_ext4::inode_table::{desc_place, read_inode};
use floe_format::crc::crc32c;
use floe_format::ext::group_desc::{DescChecksum, GroupDesc};
use floe_format::ext::inode::{Inode, OwnedInode};
use floe_format::native::cube::{State, SubSuperblock};
use floe_format::native::identity::Identity;
use floe_format::native::lot::LotRecord;
use floe_format::{GroupNr, InodeNr};
use floe_fs::{
    Caller, FileSystem, FsError, NewInode, OpKind, Place, RenameMode, SeekFor, SetMode, Store,
};

use super::faults::{Fault, How, Kind};
use super::struck::{BLOCK, find, make, op, set, used, write};
use super::{blocks, edit};

/// Makes something wrong.
pub(crate) type Edit = Box<dyn Fn(&dyn WriteBlocks)>;

/// The bytes of a device.
pub(crate) fn all_of(device: &dyn ReadBlocks) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(device.size_bytes()).unwrap()];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Consequences outside of the cube: totals of the file system, which count what a cube says, and the entry of its directory.
pub(crate) fn follows(problem: &Problem) -> bool {
    let id = problem.row().id;
    let is_entry =
        matches!(id, "dirent-type-wrong" | "dirent-inode-unused" | "inode-link-count-wrong");
    let in_root =
        problem.evidence().iter().any(|(_, value)| *value == Evidence::Inode(InodeNr::ROOT));
    // Two names of one directory: which of them is at fault, no check can know.
    let is_second = id == "directory-hard-link";
    id.contains("free") && id.contains("total") || is_entry && in_root || is_second
}

/// The directory of a name that a finding is about.
pub(crate) fn directory_of(problem: &Problem) -> Option<InodeNr> {
    problem.evidence().into_iter().find_map(|(field, value)| match value {
        Evidence::Inode(inode) if field == "dir" => Some(inode),
        _ => None,
    })
}

/// Places to which nothing of cube `/a` may lead: behind the end, the superblock, and blocks of `/a` and `/b` that are in use.
fn wrong_places(device: &dyn ReadBlocks, b: InodeNr, own: GroupNr) -> Vec<u64> {
    let volume = Volume::open(device).unwrap();
    let descs = volume.space.groups().descs();
    let place = volume.geometry().place_of(b).unwrap().0;
    let (mine, other) = (descs[own.0 as usize], descs[place.0 as usize]);
    let theirs = blocks(device, b)[0].1;
    vec![0, 0x7f7f_7f7f, mine.inode_table.0, mine.block_bitmap.0, other.inode_table.0, theirs]
}

/// All of them.
pub(crate) fn faults(device: &dyn ReadBlocks) -> Vec<Fault> {
    let copy = floe_blockdev::MemDevice::new(all_of(device));
    let ([top, file, dir, spread, b], closed) = used(&copy, |fs| {
        let top = find(fs, InodeNr::ROOT, "a").unwrap();
        let inner = |name: &str| find(fs, top, name).unwrap();
        let file = inner(&format!("file3{}", "-".repeat(180)));
        let other = find(fs, InodeNr::ROOT, "b").unwrap();
        [top, file, inner("dir5"), inner("spread"), other]
    });
    closed.unwrap();
    let own = Volume::open(device).unwrap().geometry().place_of(top).unwrap().0;
    let mut all = Vec::new();
    for place in wrong_places(device, b, own) {
        let low = (place as u32).to_le_bytes();
        // The first extent of a leaf, or the node of a root.
        for (what, inode, at) in [
            ("map of a file", file, 20),
            ("map of a directory", dir, 20),
            ("map of the top", top, 20),
            ("root of a tree", spread, 16),
        ] {
            let how =
                of_inode(inode, move |inode| inode.base.block[at..at + 4].copy_from_slice(&low));
            all.push(Fault { kind: Kind::Pointer, what, how });
        }
        let how = of_inode(file, move |inode| inode.base.file_acl_lo = place as u32);
        all.push(Fault { kind: Kind::Pointer, what: "attributes of a file", how });
    }
    for number in [1, 0x7fff_ffff, b.0, own.0, file.0 + 5000] {
        let how = of_names(top, move |block| block[..4].copy_from_slice(&number.to_le_bytes()));
        all.push(Fault { kind: Kind::Pointer, what: "name", how });
    }
    all.extend(inode_states([("file", file), ("directory", dir), ("top", top), ("tree", spread)]));
    all.extend(other_states(own, top, b));
    all
}

fn of_inode(number: InodeNr, change: impl Fn(&mut OwnedInode) + 'static) -> How {
    How::Edited(Box::new(move |device| edit(device, number, &change)))
}

/// Changes the first leaf of a directory, with the right checksum.
fn of_names(dir: InodeNr, change: impl Fn(&mut [u8]) + 'static) -> How {
    How::Edited(Box::new(move |device| {
        let volume = Volume::open(device).unwrap();
        let raw =
            read_inode(dir, device, volume.geometry(), volume.space.groups().descs()).unwrap();
        let generation = Inode::decode(&raw).unwrap().base.generation;
        let place = blocks(device, dir).last().unwrap().1 * BLOCK;
        let mut block = vec![0; BLOCK as usize];
        device.read_at(place, &mut block).unwrap();
        change(&mut block);
        let end = block.len() - 12;
        let sum = crc32c(volume.superblock.seed().of_inode(dir, generation), &block[..end]);
        block[end + 8..].copy_from_slice(&sum.to_le_bytes());
        device.write_at(place, &block).unwrap();
    }))
}

/// Changes an inode.
type Change = fn(&mut OwnedInode);

/// Inodes in states that cannot be.
fn inode_states(targets: [(&'static str, InodeNr); 4]) -> Vec<Fault> {
    let changes: [Change; 13] = [
        |inode| inode.base.mode = 0,
        |inode| inode.base.mode |= 0o170_000,
        |inode| inode.base.mode = 0o120_777,
        |inode| inode.base.links_count = 0,
        |inode| inode.base.dtime = 1_700_000_000,
        |inode| inode.set_size_bytes(1 << 60),
        |inode| inode.base.block[..2].fill(0),
        |inode| inode.base.block[6] = 7,
        |inode| inode.base.block[2] = 200,
        |inode| inode.base.flags |= 0x1000_0000,
        |inode| inode.base.flags &= !0x8_0000,
        |inode| inode.base.generation ^= 5,
        |inode| inode.base.block[16..18].fill(0xff),
    ];
    let mut all = Vec::new();
    for (what, inode) in targets {
        let each = changes.iter().map(|change| of_inode(inode, *change));
        all.extend(each.map(|how| Fault { kind: Kind::UnexpectedState, what, how }));
    }
    let names: [fn(&mut [u8]); 4] = [
        |block| block[4..6].fill(0),
        |block| block[6] = 255,
        |block| block[7] = 9,
        |block| block[4..6].copy_from_slice(&[0xfd, 0x0f]),
    ];
    let top = targets[2].1;
    all.extend(names.map(|change| Fault {
        kind: Kind::UnexpectedState,
        what: "names",
        how: of_names(top, change),
    }));
    all
}

/// Changes a sub-superblock.
type SubChange = Box<dyn Fn(&mut SubSuperblock)>;

/// Sub-superblocks, bitmaps and records of lots in states that cannot be.
fn other_states(own: GroupNr, top: InodeNr, b: InodeNr) -> Vec<Fault> {
    let subs: Vec<SubChange> = vec![
        Box::new(|sub| sub.top_inode = 0),
        Box::new(move |sub| sub.top_inode = b.0),
        Box::new(move |sub| sub.top_inode = top.0 + 1),
        Box::new(|sub| sub.policies.limit_blocks = 1),
        Box::new(|sub| sub.path = b"/b".to_vec()),
        Box::new(|sub| sub.lots = vec![0, 1, 2, 900]),
        Box::new(|sub| sub.epoch = u64::MAX),
        Box::new(|sub| sub.state = State::Failed),
    ];
    let kind = Kind::UnexpectedState;
    let subs = subs.into_iter().map(|change| Fault {
        kind,
        what: "sub-superblock",
        how: How::Edited(Box::new(move |device| of_sub(device, &*change))),
    });
    let mut all: Vec<Fault> = subs.collect();
    let descs: [fn(&mut GroupDesc); 3] = [
        |desc| desc.free_blocks_count = 0xffff,
        |desc| desc.free_inodes_count = 0xffff,
        |desc| desc.used_dirs_count = 0xffff,
    ];
    all.extend(descs.map(|change| Fault {
        kind,
        what: "descriptor",
        how: How::Edited(Box::new(move |device| {
            of_desc(device, own, |raw| {
                let mut desc = GroupDesc::of(raw);
                change(&mut desc);
                desc.seal(raw, own, DescChecksum::of(&Volume::open(device).unwrap().superblock));
            });
        })),
    }));
    let records: [fn(&mut LotRecord); 3] = [
        |record| record.region_start = 3,
        |record| record.region_inode = 2,
        |record| record.epoch = u64::MAX,
    ];
    all.extend(records.map(|change| Fault {
        kind,
        what: "record of a lot",
        how: How::Edited(Box::new(move |device| {
            of_desc(device, own, |raw| {
                let mut record = LotRecord::of(raw).unwrap();
                change(&mut record);
                record.put(raw);
                let checksum = DescChecksum::of(&Volume::open(device).unwrap().superblock);
                GroupDesc::of(raw).seal(raw, own, checksum);
            });
        })),
    }));
    all
}

fn of_sub(device: &dyn WriteBlocks, change: &dyn Fn(&mut SubSuperblock)) {
    let volume = Volume::open(device).unwrap();
    let file = InodeNr(Identity::of(&volume.superblock).unwrap().super_inode);
    let places = SubSuperblock::places(1);
    for (_, block) in blocks(device, file).into_iter().filter(|(at, _)| places.contains(at)) {
        let mut bytes = Box::new([0; BLOCK as usize]);
        device.read_at(block * BLOCK, &mut bytes[..]).unwrap();
        let mut sub = SubSuperblock::decode(&bytes).unwrap();
        change(&mut sub);
        device.write_at(block * BLOCK, &sub.encode()[..]).unwrap();
    }
}

fn of_desc(device: &dyn WriteBlocks, group: GroupNr, change: impl Fn(&mut [u8])) {
    let volume = Volume::open(device).unwrap();
    let (block, at) = desc_place(group, volume.geometry());
    let mut raw = vec![0; volume.geometry().desc_size as usize];
    let place = block.0 * BLOCK + at as u64;
    device.read_at(place, &mut raw).unwrap();
    change(&mut raw);
    device.write_at(place, &raw).unwrap();
}

/// Wrong calls in the first tenant.
pub(crate) const CALLS: &[&str] = &[
    "a name of 256 bytes",
    "an empty name",
    "a write far behind the end",
    "an attribute that is too long",
    "an attribute without a namespace",
    "a directory that is read as a file",
    "a file that is listed",
    "a seek behind the end",
    "a directory that is renamed below itself",
    "a rename into another tenant",
    "an unused inode",
    "an inode behind the last one",
    "a target of no link",
    "an unlink of a directory",
];

/// Makes one of them; returns its error, if it has one.
pub(crate) fn ask<S: Store>(
    fs: &FileSystem<S>,
    [a, b]: [InodeNr; 2],
    call: usize,
) -> Option<FsError> {
    let place = |directory, name| Place { directory, name };
    let rename = |from, to| {
        let mode = RenameMode::Replace;
        fs.apply(&op(OpKind::Rename { from, to, mode })).map(drop)
    };
    let file = NewInode::regular(0o644);
    let spread = find(fs, a, "spread").ok()?;
    let asked = match call {
        0 => make(fs, a, &"n".repeat(256), file).map(drop),
        1 => make(fs, a, "", file).map(drop),
        2 => write(fs, spread, u64::MAX - 10, &[1; 5]),
        3 => set(fs, spread, &[1; 70_000]),
        4 => {
            let kind =
                OpKind::SetAttribute { inode: spread, name: b"x", value: b"", mode: SetMode::Any };
            fs.apply(&op(kind)).map(drop)
        }
        5 => fs.read(a, 0, &mut [0; 9]).map(drop),
        6 => fs.list(&Caller::Judged, spread, 0, |_| true),
        7 => fs.seek(spread, u64::MAX, SeekFor::Data).map(drop),
        8 => rename(place(a, b"dir1"), place(find(fs, a, "dir1").ok()?, b"x")),
        9 => rename(place(a, b"spread"), place(b, b"x")),
        10 => fs.attributes(InodeNr(a.0 + 900)).map(drop),
        11 => fs.attributes(InodeNr(u32::MAX)).map(drop),
        12 => fs.target(spread).map(drop),
        _ => fs.apply(&op(OpKind::Unlink(place(a, b"dir1")))).map(drop),
    };
    asked.err()
}
