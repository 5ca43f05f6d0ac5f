//! Faults of all kinds of the paper's Table 2 in all structures of a cube: each stays there, while another cube and the root are
//! read and written with unchanged results. For contrast, the same in one cube that two tenants share.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::states::{self, Edit};
use super::struck::{Strike, Struck, Tenants, WANTED, at, laid_out, load, used};
use super::{blocks, names};
use floe_blockdev::{MemDevice, ReadBlocks};
use floe_check::cube::{CubeName, Cubes, check_cube};
use floe_check::problem::Weight;
use floe_check::{CheckOptions, check};
use floe_disk::ops::panic_message;
use floe_disk::recovery::recover;
use floe_ext4::alloc::Space as _;
use floe_ext4::fs::FileSystem as Volume;
use floe_ext4::inode_table::read_inode;
use floe_format::ext::inode::Inode;
use floe_format::native::cube::{OnError, Policies, SubSuperblock};
use floe_format::native::identity::Identity;
use floe_format::{GroupNr, InodeNr};
use floe_fs::{FileSystem, FsError, Mode, Store};
use floe_sync::atomic::Ordering;
use floe_sync::thread;

/// The rows of the paper's Table 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    MetadataRead,
    MetadataWrite,
    MetadataCorruption,
    Pointer,
    Interface,
    Memory,
    Synchronization,
    Logic,
    UnexpectedState,
}

/// A fault.
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    /// The structure that it concerns, or the call.
    pub(crate) what: &'static str,
    pub(crate) how: How,
}

pub(crate) enum How {
    /// The device strikes at a block while it is used.
    Struck(u64, Strike),
    /// Metadata are wrong, with the right checksum, before the mount.
    Edited(Edit),
    /// A program asks for something that is wrong.
    Asked(usize),
}

/// The result of one.
#[derive(Debug, Default)]
struct Outcome {
    is_met: bool,
    /// The cube said so: a call failed, or it is not served as before.
    is_noticed: bool,
    /// Errors of the other tenant.
    other: Vec<String>,
}

/// The blocks of the first tenant by the structure that they hold.
pub(crate) fn structures(device: &dyn ReadBlocks, layout: Tenants) -> Vec<(&'static str, u64)> {
    let volume = Volume::open(device).unwrap();
    let (geo, descs) = (volume.geometry(), volume.space.groups().descs());
    let scope = Cubes::of(device, &CheckOptions::default()).unwrap();
    let scope = scope.find(&CubeName::Number(1)).unwrap();
    let mut all: Vec<(&str, u64)> = Vec::new();
    let file = InodeNr(Identity::of(&volume.superblock).unwrap().super_inode);
    let [first, second] = SubSuperblock::places(1);
    for (logical, block) in blocks(device, file) {
        match logical {
            _ if logical == first => all.push(("first sub-superblock", block)),
            _ if logical == second => all.push(("second sub-superblock", block)),
            _ => {}
        }
    }
    let groups: Vec<GroupNr> = scope.groups().collect();
    all.push(("descriptors", geo.primary_desc_block(groups[0].0 / 4).0));
    for group in groups {
        let desc = descs[group.0 as usize];
        all.push(("block bitmap", desc.block_bitmap.0));
        all.push(("inode bitmap", desc.inode_bitmap.0));
        let table = (0..2).map(|at| ("inode table", desc.inode_table.0 + at));
        all.extend(table);
        all.extend(geo.superblock_of(group).map(|block| ("superblock copy", block.0)));
    }
    if scope.sub.journal.inode > 0 {
        let log = blocks(device, InodeNr(scope.sub.journal.inode));
        all.push(("superblock of the journal", log[0].1));
        all.extend(log[1..4].iter().map(|(_, block)| ("log", *block)));
        all.push(("orphans", log[log.len() - 1].1));
    }
    for number in inodes(device, layout.paths()[0]) {
        let raw = read_inode(number, device, geo, descs).unwrap();
        let inode = Inode::decode(&raw).unwrap();
        let is_dir = inode.base.mode & 0o170_000 == 0o040_000;
        let what = if is_dir { "directory block" } else { "data" };
        all.extend(blocks(device, number).into_iter().take(40).map(|(_, block)| (what, block)));
        if inode.base.file_acl_lo > 0 {
            all.push(("attribute block", u64::from(inode.base.file_acl_lo)));
        }
        // The root of a tree names its node.
        if inode.base.block[6] > 0 {
            let node = u32::from_le_bytes(*inode.base.block[16..20].first_chunk().unwrap());
            all.push(("extent node", u64::from(node)));
        }
    }
    all
}

/// A directory and all in it; directories in it are empty.
fn inodes(device: &dyn ReadBlocks, path: &str) -> Vec<InodeNr> {
    let copy = MemDevice::new(states::all_of(device));
    let (all, closed) = used(&copy, |fs| {
        let top = at(fs, path).unwrap();
        let own = names(fs, top).into_iter().filter(|name| !name.starts_with('.'));
        let own = own.map(|name| super::find(fs, top, &name).unwrap());
        [top].into_iter().chain(own).collect()
    });
    closed.unwrap();
    all
}

/// All faults of a layout.
fn all_faults(bytes: &[u8], layout: Tenants) -> Vec<Fault> {
    use Strike::{
        Answer, Flipped, Garbage, NoMemory, Panic, ReadError, WriteError, WritePanic, Zeroed,
    };
    let device = MemDevice::new(bytes.to_vec());
    let mut all = Vec::new();
    for (what, block) in structures(&device, layout) {
        let mut add =
            |kind, strike| all.push(Fault { kind, what, how: How::Struck(block, strike) });
        add(Kind::MetadataRead, ReadError);
        add(Kind::Interface, Answer(io::ErrorKind::TimedOut));
        add(Kind::Interface, Answer(io::ErrorKind::UnexpectedEof));
        add(Kind::Memory, Answer(io::ErrorKind::OutOfMemory));
        // Copies of the superblock are read and written by the journal of inode 8 alone: a bug there is no cube's.
        if what != "superblock copy" {
            add(Kind::Memory, NoMemory);
            add(Kind::Logic, Panic);
            add(Kind::Synchronization, Panic);
        }
        // Data have no checksums: nobody can notice other bytes.
        if what != "data" {
            add(Kind::MetadataCorruption, Flipped);
            add(Kind::MetadataCorruption, Zeroed);
            add(Kind::MetadataCorruption, Garbage);
        }
        // The journal of inode 8 is everybody's: whatever it cannot write home ends it. So is the block of the first copy.
        if layout == Tenants::Apart && what != "first sub-superblock" {
            add(Kind::MetadataWrite, WriteError);
            if what != "superblock copy" {
                add(Kind::Synchronization, WritePanic);
            }
        }
    }
    if layout != Tenants::Together {
        all.extend(states::faults(&device));
        let calls = (0..states::CALLS.len()).map(|at| Fault {
            kind: Kind::Interface,
            what: states::CALLS[at],
            how: How::Asked(at),
        });
        all.extend(calls);
    }
    all
}

/// Uses the first tenant wrongly, or lets the device strike, while both tenants and the root are used.
fn turns<S: Store>(
    fs: &FileSystem<S>,
    fault: &Fault,
    tops: [Option<InodeNr>; 2],
    turn: u32,
) -> [Vec<FsError>; 3] {
    let [Some(first), Some(second)] = tops else {
        // Nobody finds the first one.
        return [
            vec![FsError::NotFound],
            load_of(fs, tops[1], turn),
            load(fs, InodeNr::ROOT, turn),
        ];
    };
    let tops = [first, second];
    if fault.kind == Kind::Synchronization {
        // At the same time, so that whoever is hit holds what others wait for.
        return thread::scope(|scope| {
            let own = scope.spawn(move || load(fs, tops[0], turn));
            let other = load(fs, tops[1], turn);
            let root = load(fs, InodeNr::ROOT, turn);
            [own.join().unwrap(), other, root]
        });
    }
    let mut own = load(fs, tops[0], turn);
    if let How::Asked(at) = fault.how {
        own.extend(states::ask(fs, tops, at));
    }
    [own, load(fs, tops[1], turn), load(fs, InodeNr::ROOT, turn)]
}

fn load_of<S: Store>(fs: &FileSystem<S>, top: Option<InodeNr>, turn: u32) -> Vec<FsError> {
    top.map_or_else(|| vec![FsError::NotFound], |top| load(fs, top, turn))
}

fn strike(bytes: &[u8], layout: Tenants, fault: &Fault) -> Outcome {
    let kind = if let How::Struck(_, strike) = fault.how { strike } else { Strike::ReadError };
    let context = match fault.how {
        How::Struck(block, strike) => format!("{strike:?} of {} in block {block}", fault.what),
        _ => format!("{:?}: {}", fault.kind, fault.what),
    };
    let device = Struck::new(bytes.to_vec(), kind);
    if let How::Edited(edit) = &fault.how {
        edit(&device.base);
    }
    let apart = layout != Tenants::Together;
    let (outcome, closed) = used(&device, |fs| {
        let tops = layout.paths().map(|path| at(fs, path).ok());
        if let How::Struck(block, _) = fault.how {
            device.arm(block);
        }
        let (mut own, mut other) = (Vec::new(), Vec::new());
        for turn in 0..3 {
            let [first, second, root] = turns(fs, fault, tops, turn);
            own.extend(first);
            other.extend(second.iter().map(ToString::to_string));
            assert!(root.is_empty() || !apart, "{context}: the root failed, too: {root:?}");
        }
        let gates = fs.store().gates().unwrap();
        let is_noticed = !own.is_empty() || gates.state(1).0 != Mode::Serving;
        if apart {
            assert!(other.is_empty(), "{context}: the other failed, too: {other:?}");
            assert_eq!(gates.state(2).0, Mode::Serving, "{context}");
            assert!(!fs.is_read_only(), "{context}: all is read-only");
            // Said once each, where changes of the cube are dropped, and where some that waited cannot be written.
            let is_own = |error: &FsError| match error {
                FsError::CubeFailed { cube } => *cube == 1,
                FsError::Lost { inode, .. } => gates.of_inode(*inode) == 1,
                _ => false,
            };
            let told = (0..4).map_while(|_| fs.sync().err()).inspect(|error| {
                assert!(is_own(error), "{context}: {error}");
            });
            assert!(told.count() < 4, "{context}: no end of errors");
        }
        // A bug that is met again when the mount ends leaves a journal to recover, as a crash does.
        if matches!(kind, Strike::Panic | Strike::NoMemory | Strike::WritePanic) {
            device.disarm();
        }
        Outcome { is_met: device.hits.load(Ordering::SeqCst) > 0, is_noticed, other }
    });
    if apart {
        // Blocks go home from the journal of all when it is closed.
        let is_home = !matches!(fault.kind, Kind::MetadataWrite | Kind::MetadataRead);
        assert!(closed.is_ok() || !is_home || layout == Tenants::Shared, "{context}: {closed:?}");
        // On a sound medium everything of the others is there.
        recover(&device.base).unwrap_or_else(|error| panic!("{context}: {error}"));
        let options = CheckOptions::default();
        let checked = check_cube(&device.base, &options, &CubeName::of(b"/b"));
        let (report, _) = checked.unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(report.found.is_empty(), "{context}: {:?}", report.found);
        judge_root(&device.base, &format!("{context}; {closed:?}"));
    }
    let is_struck = matches!(fault.how, How::Struck(..));
    Outcome { is_met: outcome.is_met || !is_struck, ..outcome }
}

/// Nothing is wrong outside of cube 1; totals of the file system count what is wrong in it.
fn judge_root(device: &dyn ReadBlocks, context: &str) {
    let options = CheckOptions::default();
    let found = check(device, &options).unwrap().found;
    let own: BTreeSet<String> = match check_cube(device, &options, &CubeName::Number(1)) {
        Ok((report, _)) => report.found.iter().map(ToString::to_string).collect(),
        Err(_) => BTreeSet::new(),
    };
    let cubes = Cubes::of(device, &options).unwrap();
    let scope = cubes.find(&CubeName::Number(1)).ok();
    let others = found.iter().filter(|problem| {
        problem.row().weight > Weight::Remark
            && !own.contains(&problem.to_string())
            && !scope.as_ref().is_some_and(|scope| scope.concerns(problem))
            && !states::follows(problem)
            // A name in the cube, wherever it leads.
            && !states::directory_of(problem)
                .is_some_and(|dir| scope.as_ref().is_some_and(|scope| scope.holds_inode(dir)))
    });
    let others: Vec<_> = others.collect();
    assert!(others.is_empty(), "{context}: {others:?}");
}

/// The result of many.
#[derive(Debug, Default)]
struct Sum {
    faults: u32,
    met: u32,
    noticed: u32,
    felt: u32,
    by_kind: BTreeMap<Kind, u32>,
    structures: BTreeSet<&'static str>,
    /// Faults that did not stay where they belong.
    escaped: Vec<String>,
}

/// Lets faults happen in an image: `most` of each kind in each structure.
fn run(layout: Tenants, most: u32, wanted: impl Fn(&Sum, &Fault) -> bool) -> Sum {
    let _quiet = quiet();
    let ro = laid_out(layout, Policies::default());
    // Only a cube with a journal of its own can drop its changes.
    let crash = match layout {
        Tenants::Apart => {
            laid_out(layout, Policies { on_error: OnError::Crash, ..Policies::default() })
        }
        _ => ro.clone(),
    };
    let (mut sum, mut counts) = (Sum::default(), BTreeMap::new());
    for fault in all_faults(&ro, layout) {
        let how =
            if let How::Struck(_, strike) = fault.how { Some(format!("{strike:?}")) } else { None };
        let count = counts.entry((fault.kind, fault.what, how)).or_insert(0);
        *count += 1;
        if *count > most || !wanted(&sum, &fault) {
            continue;
        }
        let bytes = if sum.faults % 2 == 0 { &ro } else { &crash };
        sum.faults += 1;
        let outcome = match catch_unwind(AssertUnwindSafe(|| strike(bytes, layout, &fault))) {
            Ok(outcome) => outcome,
            Err(panic) => {
                sum.escaped.push(panic_message(&*panic));
                Outcome::default()
            }
        };
        sum.met += u32::from(outcome.is_met);
        sum.noticed += u32::from(outcome.is_noticed);
        sum.felt += u32::from(!outcome.other.is_empty());
        *sum.by_kind.entry(fault.kind).or_insert(0) += 1;
        sum.structures.insert(fault.what);
    }
    sum
}

/// A few of each kind, and each structure.
#[test]
fn faults_stay_in_their_cube() {
    let sum = run(Tenants::Apart, 1, |sum, fault| {
        let few = sum.by_kind.get(&fault.kind).is_none_or(|count| *count < 2);
        few || matches!(fault.how, How::Struck(..)) && !sum.structures.contains(fault.what)
    });
    assert!(sum.escaped.is_empty(), "{:#?}", sum.escaped);
    // Which of them are met depends on what is read again: those that are met must be noticed, mostly.
    let is_noticed = sum.met > 8 && sum.noticed * 4 >= sum.met * 3;
    assert!(sum.by_kind.len() == 9 && sum.faults > 25 && is_noticed, "{sum:?}");
}

/// More than 300, and the same in one cube: `cargo xtask faults`.
#[test]
#[ignore = "minutes; run by cargo xtask faults"]
fn three_hundred_faults_stay_in_their_cube() {
    let apart = run(Tenants::Apart, 3, |_, _| true);
    println!("cubes with journals of their own: {apart:?}");
    let shared = run(Tenants::Shared, 2, |_, _| true);
    println!("cubes that share the journal: {shared:?}");
    let together = run(Tenants::Together, 2, |_, _| true);
    println!("one cube: the other tenant felt {} of {}", together.felt, together.noticed);
    let escaped = [&apart.escaped[..], &shared.escaped, &together.escaped].concat();
    assert!(escaped.is_empty(), "{} escaped: {escaped:#?}", escaped.len());
    assert!(apart.faults >= 300 && apart.met >= 200 && apart.by_kind.len() == 9);
    assert!(apart.felt == 0 && shared.felt == 0 && together.felt * 4 >= together.noticed);
}

/// Messages of panics that are wanted are left out.
fn quiet() -> impl Drop {
    struct Loud;
    impl Drop for Loud {
        fn drop(&mut self) {
            if !thread::panicking() {
                let _ = std::panic::take_hook();
            }
        }
    }
    std::panic::set_hook(Box::new(|info| {
        if !is_wanted(&info.to_string()) {
            eprintln!("{info}");
        }
    }));
    Loud
}

fn is_wanted(text: &str) -> bool {
    text.contains(WANTED) || text.contains("capacity overflow")
}
