//! A log that is damaged in the middle, over home blocks of each age that a crash may leave: the best of the states that it leaves
//! is taken, and only on request.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use floe_blockdev::{MemDevice, ReadBlocks};
use floe_check::{CheckOptions, JournalUse, Problem};
use floe_format::ext::jbd2::{self, COMMIT_BLOCK, DESCRIPTOR_BLOCK, REVOKE_BLOCK};
use floe_repair::policy::{Preen, Yes};
use floe_repair::{RepairOptions, repair};
use floe_testkit::{Profile, build, tool};

const BLOCK: usize = 1024;
const TRANSACTIONS: usize = 3;
/// Inodes that each transaction makes: more than a block of the table has.
const FILES: usize = 20;

/// A file system that grew in three transactions, all of which are in its log.
struct Grown {
    /// With the log, and everything at home.
    bytes: Vec<u8>,
    /// The file system before the first transaction, and after each.
    states: Vec<Vec<u8>>,
    /// Blocks that the log has.
    logged: BTreeSet<usize>,
    /// Inodes in use after each transaction, and before the first.
    inodes: Vec<u64>,
}

fn options() -> RepairOptions<'static> {
    let check = CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    RepairOptions { check, random: [7; 16], ..RepairOptions::default() }
}

fn grown() -> Grown {
    let image = build::base(Profile::by_name("ext4-1k").unwrap()).unwrap();
    let folder = tool::scratch("floe-log-").unwrap();
    let debugfs = |script: &str| {
        build::debugfs_that_tells(&image, script).unwrap();
        image.to_vec().unwrap()
    };
    let content = folder.path().join("content");
    std::fs::write(&content, vec![0x5a; 3 * BLOCK]).unwrap();
    let mut states = vec![image.to_vec().unwrap()];
    let (mut log, mut logged) = ("jo -c -v 3\n".to_owned(), BTreeSet::new());
    for transaction in 1..=TRANSACTIONS {
        let script = (0..FILES).fold(String::new(), |mut script, file| {
            writeln!(script, "write {} t{transaction}-{file}", content.display()).unwrap();
            script
        });
        let after = debugfs(&script);
        let before = states.last().unwrap();
        let blocks = (0..after.len() / BLOCK).filter(|at| {
            let range = at * BLOCK..(at + 1) * BLOCK;
            // The superblock says that the log is in use.
            *at != 1 && before[range.clone()] != after[range]
        });
        let blocks: Vec<usize> = blocks.collect();
        let copies: Vec<u8> =
            blocks.iter().flat_map(|at| after[at * BLOCK..(at + 1) * BLOCK].to_vec()).collect();
        let file = folder.path().join(format!("copies-{transaction}"));
        std::fs::write(&file, copies).unwrap();
        let numbers: Vec<String> = blocks.iter().map(ToString::to_string).collect();
        writeln!(log, "jw -b {} {}", numbers.join(","), file.display()).unwrap();
        if transaction == 2 {
            // debugfs commits no transaction with both.
            writeln!(log, "jw -r 7000").unwrap();
        }
        logged.extend(blocks);
        states.push(after);
    }
    let bytes = debugfs(&(log + "jc\n"));
    let inodes = states.iter().map(|state| {
        let device = MemDevice::new(state.clone());
        floe_check::check(&device, &options().check).unwrap().totals.inodes_used
    });
    let inodes = inodes.collect();
    Grown { bytes, states, logged, inodes }
}

impl Grown {
    /// Home blocks of the ages that `age` gives each of them.
    fn with_home(&self, age: impl Fn(usize) -> usize) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for (nr, at) in self.logged.iter().enumerate() {
            let range = at * BLOCK..(at + 1) * BLOCK;
            bytes[range.clone()].copy_from_slice(&self.states[age(nr)][range]);
        }
        bytes
    }

    /// Byte of the device at which the second block of a kind lies in the log; there is one revoke block.
    fn control(&self, kind: u32) -> usize {
        let blocks = self.bytes.chunks(BLOCK).map(jbd2::header).enumerate();
        let is_it = |header: &jbd2::BlockHeader| header.blocktype == kind;
        let places = blocks.filter(|(_, header)| header.as_ref().is_some_and(is_it));
        let nth = usize::from(kind != REVOKE_BLOCK);
        places.map(|(at, _)| at * BLOCK).nth(nth).unwrap()
    }
}

/// Inodes in use after a repair of which a person was asked. Without one nothing is written.
fn mended(bytes: Vec<u8>, context: &str) -> u64 {
    let device = MemDevice::new(bytes.clone());
    assert!(floe_disk::recovery::recover(&device).is_err(), "a mount: {context}");
    let mut now = vec![0; bytes.len()];
    device.read_at(0, &mut now).unwrap();
    assert!(now == bytes, "{context}");
    // Whoever only looks, as fsck -n, does not call it clean either.
    let look = CheckOptions { journal: JournalUse::Read, ..options().check };
    let seen = floe_check::check(&device, &look).unwrap().found;
    let is_of_log = |problem: &Problem| {
        matches!(
            problem,
            Problem::JournalTransactionCorrupt { .. } | Problem::JournalEndsEarly { .. }
        )
    };
    assert!(seen.iter().any(is_of_log), "{context}: {seen:?}");
    let preened = repair(&device, &options(), &mut Preen).unwrap();
    assert!(preened.halted.is_some() && !preened.changes(), "{context}");
    let mended = repair(&device, &options(), &mut Yes).unwrap();
    assert!(mended.is_clean(), "{context}: {:?}", mended.left);
    let told = |problem: &Problem| matches!(problem, Problem::DamagedLogWeighed { .. });
    assert!(mended.before.found.iter().any(told), "{context}");
    let notes = mended.deeds.iter().flat_map(|deed| &deed.notes);
    assert!(notes.clone().any(|note| note.contains("is damaged, and")), "{context}");
    mended.after.totals.inodes_used
}

#[test]
fn one_wrong_bit_in_a_log_costs_nothing_whatever_is_at_home() {
    if tool::missing() {
        return;
    }
    let grown = grown();
    let kinds = [DESCRIPTOR_BLOCK, REVOKE_BLOCK, COMMIT_BLOCK];
    // Magic, number, content, checksum of the commit block.
    for (kind, byte) in
        kinds.into_iter().flat_map(|kind| [1, 11, 40, 17].map(move |byte| (kind, byte)))
    {
        let homes: [(&str, &dyn Fn(usize) -> usize); 3] =
            [("old", &|_| 0), ("new", &|_| TRANSACTIONS), ("mixed", &|nr| nr * 7 % 4)];
        for (home, age) in homes {
            let mut bytes = grown.with_home(age);
            bytes[grown.control(kind) + byte] ^= 0x10;
            if kind == COMMIT_BLOCK && byte == 40 {
                // Linux takes it for torn, and so for whole.
                continue;
            }
            let context = format!("kind {kind}, byte {byte}, home {home}");
            assert_eq!(mended(bytes, &context), grown.inodes[TRANSACTIONS], "{context}");
        }
    }
}

/// Linux and e2fsck take it for the end of the log.
#[test]
fn a_commit_block_without_its_descriptor_is_damage_at_the_end_as_well() {
    if tool::missing() {
        return;
    }
    let grown = grown();
    for (home, least) in [(0, TRANSACTIONS - 1), (TRANSACTIONS, TRANSACTIONS)] {
        let mut bytes = grown.with_home(|_| home);
        let mut descriptors = bytes.chunks(BLOCK).map(jbd2::header).enumerate();
        let is_it = |header: &jbd2::BlockHeader| header.blocktype == DESCRIPTOR_BLOCK;
        let last = descriptors.rfind(|(_, header)| header.as_ref().is_some_and(is_it));
        let (last, _) = last.unwrap();
        bytes[last * BLOCK..][..BLOCK].fill(0);
        let inodes = mended(bytes, &format!("home {home}"));
        assert!(inodes >= grown.inodes[least], "home {home}: {inodes}");
    }
}

/// Copies before the damage are not written over newer blocks (e2fsck drops the log then), and are where home is older (e2fsck
/// drops them all the same).
#[test]
fn a_descriptor_that_is_gone_costs_no_more_than_it_must() {
    if tool::missing() {
        return;
    }
    let grown = grown();
    for damage in [0x10..0x30, 0..BLOCK] {
        let destroyed = |home: &dyn Fn(usize) -> usize| {
            let mut bytes = grown.with_home(home);
            bytes[grown.control(DESCRIPTOR_BLOCK)..][damage.clone()].fill(0xa5);
            mended(bytes, &format!("{damage:?}"))
        };
        assert_eq!(destroyed(&|_| TRANSACTIONS), grown.inodes[TRANSACTIONS]);
        assert!(destroyed(&|_| 0) >= grown.inodes[1]);
        // The second one is at home, the third one only in the log.
        assert!(destroyed(&|_| 2) >= grown.inodes[2]);
    }
}
