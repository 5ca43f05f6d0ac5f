//! Journals whose superblock is damaged: of cubes, of inode 8, further ones of the root cube, and of stock file systems. All that fsync
//! acknowledged stays, whichever bit is wrong, and nobody writes anything who was not asked to.

use floe_blockdev::{MemDevice, ReadBlocks, WriteBlocks};
use floe_check::lacks_changes;
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_ext4::files::{Files, Follow};
use floe_ext4::fs::FileSystem as Layout;
use floe_ext4::journal::SuperblockDamage;
use floe_format::InodeNr;
use floe_format::ext::jbd2::{COMMIT_BLOCK, DESCRIPTOR_BLOCK, JournalSuperblock};
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::native::cube::Policies;
use floe_fs::{Disk, Mode, NewInode, Store as _};
use floe_repair::commit::{CommitOptions, Seen};
use floe_repair::policy::Preen;
use floe_repair::{RepairOptions, repair};
use floe_testkit::{Image, oracle, tool};

use super::journals::{damage, ids, repaired};
use super::struck::{MIB, NOW, Tenants, laid_out, make, used};
use super::weighed::{Grown, HOMES, ROUNDS, grown, grown_by, logs};
use crate::memory::with_journals;

/// A file system with these directories in its root.
pub(crate) fn with_tops(base: Vec<u8>, tops: &[&str]) -> Vec<u8> {
    let device = MemDevice::new(base);
    let ((), closed) = used(&device, |fs| {
        for top in tops {
            make(fs, InodeNr::ROOT, top, NewInode::directory(0o755)).unwrap();
        }
    });
    closed.unwrap();
    device.to_vec()
}

pub(crate) fn stock(block_bytes: &str) -> Vec<u8> {
    let mut options = Options::of_type(FsType::Ext4);
    for (letter, value) in [('J', "size=4"), ('N', "1000"), ('b', block_bytes)] {
        options.set(letter, value).unwrap();
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: NOW };
    let params = options.params(24 * MIB, None, &fresh).unwrap();
    let device = MemDevice::new(vec![0; (24 * MIB) as usize]);
    mkfs::write(&Plan::new(&params).unwrap(), &device).unwrap();
    device.to_vec()
}

/// The kind of native file systems whose commits take one flush.
const ONE_FLUSH: &str = "native, one flush";

/// A file system of a kind, grown.
fn grown_as(kind: &str, base: Vec<u8>, tops: &'static [&'static str]) -> Grown {
    if kind == ONE_FLUSH {
        return grown_by(|device| Disk::open_with_async_commits(device), base, tops);
    }
    grown(base, tops)
}

/// Kinds of file systems before anything is synced, each with its directories.
fn bases() -> Vec<(&'static str, Vec<u8>, &'static [&'static str])> {
    const SIX: &[&str] = &["1", "2", "3", "4", "5", "6"];
    vec![
        ("stock", with_tops(stock("1024"), &["a", "b"]), &["a", "b"]),
        ("native", laid_out(Tenants::Shared, Policies::default()), &["a", "b"]),
        (ONE_FLUSH, laid_out(Tenants::Shared, Policies::default()), &["a", "b"]),
        ("cubes", laid_out(Tenants::Apart, Policies::default()), &["a", "b"]),
        ("several", with_tops(with_journals(2).to_vec(), SIX), SIX),
    ]
}

fn flip(device: &MemDevice, at: u64, bit: u32) {
    let at = at + u64::from(bit / 8);
    let mut byte = [0];
    device.read_at(at, &mut byte).unwrap();
    device.write_at(at, &[byte[0] ^ 1 << (bit % 8)]).unwrap();
}

/// The journals of a device: number of the cube, inode and place of the superblock.
fn places(device: &dyn ReadBlocks) -> Vec<(u32, InodeNr, u64)> {
    let of = |(cube, inode, journal): (u32, InodeNr, floe_ext4::journal::Journal)| {
        (cube, inode, journal.offset_bytes(0).unwrap())
    };
    logs(device).into_iter().map(of).collect()
}

/// A mount that writes serves all but one cube, whose log waits for a repair, and the unmount is no error.
fn waits(device: &MemDevice, cube: u32, context: &str) {
    let ((), closed) = used(device, |fs| {
        let gates = fs.store().gates().unwrap();
        assert_eq!(gates.state(cube).0, Mode::Failed, "{context}");
        let failed: Vec<u32> = gates.failures().into_iter().map(|(cube, ..)| cube).collect();
        assert_eq!(failed, [cube], "{context}");
        let file = make(fs, InodeNr::ROOT, "beside", NewInode::regular(0o644)).unwrap();
        fs.sync_inode(file, None).unwrap();
    });
    closed.unwrap();
}

/// An unattended repair writes nothing, nor does a mount beside a damaged log of the root cube.
fn is_left_alone(device: &MemDevice, cube: u32, context: &str) {
    let before = device.to_vec();
    let mounted = MemDevice::new(before.clone());
    if cube == 0 {
        assert!(Disk::open(&mounted).is_err(), "{context}: it is mounted");
        assert!(mounted.holds(&before), "{context}: the mount wrote something");
    } else {
        waits(&mounted, cube, context);
    }
    let preened = repair(device, &RepairOptions::default(), &mut Preen).unwrap();
    assert!(!preened.changes() && !preened.is_clean(), "{context}: {:?}", preened.deeds);
}

/// A repair with consent, after which all that was synced is there.
fn is_mended(grown: &Grown, device: &MemDevice, kind: &str, context: &str) {
    repaired(device);
    assert!(damage(device).is_empty(), "{context}");
    assert_eq!(grown.right(device), vec![ROUNDS; grown.tops.len()], "{context}");
    if kind == "stock" && !tool::missing() {
        let image = Image::of(&device).unwrap();
        let verdict = oracle::e2fsck(&image).unwrap();
        assert!(verdict.clean(), "{context}: {}", verdict.text);
    }
}

/// The bits of all fields, and some behind them.
fn bits() -> impl Iterator<Item = u32> {
    (0..0x5c * 8)
        .chain(0xfc * 8..0x100 * 8)
        .chain((0x5c * 8..0xfc * 8).step_by(97))
        .chain((2048..8192).step_by(613))
}

#[test]
fn a_log_is_read_whichever_bit_of_its_superblock_is_wrong() {
    for (kind, base, tops) in bases() {
        let grown = grown_as(kind, base, tops);
        let device = MemDevice::new(grown.crashed.clone());
        let sound = logs(&device);
        for (nr, (_, inode, at)) in places(&device).into_iter().enumerate() {
            for bit in bits() {
                flip(&device, at, bit);
                let found = logs(&device);
                let context = format!("{kind}, {inode}, bit {bit:#x}");
                assert_eq!(found.len(), sound.len(), "{context}");
                assert!(found[nr].2.superblock == sound[nr].2.superblock, "{context}");
                assert_eq!(found[nr].2.damage, Some(SuperblockDamage::Bit(bit)), "{context}");
                flip(&device, at, bit);
            }
        }
    }
}

/// A bit of each field: magic, kind, block size, length, first block, sequence, start, error, features, UUID, users, kind of checksum,
/// fast commits, head, checksum, and the rest.
const EACH_FIELD: [u32; 21] = [
    0x03, 0x07, 0x0e, 0x12, 0x17, 0x1b, 0x1f, 0x23, 0x27, 0x29, 0x2b, 0x2d, 0x3a, 0x43, 0x46, 0x50,
    0x51, 0x56, 0x5b, 0xfe, 0x180,
];

#[test]
fn one_wrong_bit_in_the_superblock_of_a_journal_costs_nothing() {
    for (kind, base, tops) in bases() {
        let grown = grown_as(kind, base, tops);
        let device = MemDevice::new(grown.crashed.clone());
        for (cube, inode, at) in places(&device) {
            for (nr, byte) in EACH_FIELD.into_iter().enumerate() {
                let bit = byte * 8 + nr as u32 * 5 % 8;
                let device = MemDevice::new(grown.crashed.clone());
                flip(&device, at, bit);
                let context = format!("{kind}, {inode}, bit {bit:#x}");
                is_left_alone(&device, cube, &context);
                let told = damage(&device);
                assert!(ids(&told).contains(&"journal-superblock-bit"), "{context}: {told:?}");
                is_mended(&grown, &device, kind, &context);
            }
        }
    }
}

/// Nothing is lost with an empty log, so that anybody may correct it but a mount.
#[test]
fn a_wrong_bit_beside_an_empty_log_is_corrected_unattended() {
    // Asynchronous commits end with each unmount.
    for (kind, base, _) in bases().into_iter().filter(|(kind, ..)| *kind != ONE_FLUSH) {
        for (nr, (_, inode, at)) in places(&MemDevice::new(base.clone())).into_iter().enumerate() {
            for byte in [0x03, 0x1b, 0x1f, 0x2b, 0x2d, 0xfe] {
                let device = MemDevice::new(base.clone());
                let sound = logs(&device);
                flip(&device, at, byte * 8 + 5);
                let context = format!("{kind}, {inode}, byte {byte:#x}");
                let told = damage(&device);
                assert_eq!(ids(&told), ["empty-journal-superblock-bit"], "{context}");
                let seen = Seen::of(&device);
                let preened = repair(&device, &RepairOptions::default(), &mut Preen).unwrap();
                assert!(preened.is_clean(), "{context}: {:?}", preened.left);
                preened.commit(&device, &CommitOptions::of(&seen)).unwrap();
                drop(preened);
                assert!(damage(&device).is_empty(), "{context}");
                assert_eq!(logs(&device)[nr].2.superblock, sound[nr].2.superblock, "{context}");
            }
        }
    }
}

/// A copy of the superblock from before the first transaction, with a right checksum; in stock file systems features may come with that
/// transaction.
fn empty_log(device: &MemDevice, at: u64, is_bare: bool) {
    let mut bytes = [0; 1024];
    device.read_at(at, &mut bytes).unwrap();
    let mut old = JournalSuperblock { start: 0, ..JournalSuperblock::decode(&bytes) };
    if is_bare {
        (old.feature_compat, old.feature_incompat) = (0, 0);
    }
    old.encode_into(&mut bytes);
    let sum = JournalSuperblock::compute_checksum(&bytes);
    bytes[0xfc..0x100].copy_from_slice(&sum.to_be_bytes());
    device.write_at(at, &bytes).unwrap();
}

/// Each log is cut off behind each of its transactions. Where a check tells damage of a log, because others show it, a mount and an
/// unattended repair write nothing.
#[test]
fn nothing_is_written_unattended_beside_a_log_that_a_check_calls_damaged() {
    let mut told = 0;
    for (kind, base, tops) in bases() {
        let grown = grown_as(kind, base, tops);
        let crashed = MemDevice::new(grown.crashed.clone());
        for (_, inode, log) in logs(&crashed) {
            let descriptors = grown.control(&log, DESCRIPTOR_BLOCK);
            for (nr, from) in descriptors.iter().enumerate().rev() {
                let device = MemDevice::new(grown.crashed.clone());
                // With its commit block; transactions follow each other in the log, which has not gone round.
                let until = log.offset_bytes(log.blocks - 1).unwrap();
                device.write_at(*from, &vec![0; (until - from) as usize]).unwrap();
                let context = format!("{kind}, {inode}, transaction {nr}");
                let (damage, of) = (damage(&device), Layout::open(&device).unwrap());
                if damage.iter().any(|one| lacks_changes(one, &of.superblock)) {
                    told += 1;
                    is_left_alone(&device, 0, &context);
                    repaired(&device);
                    assert!(self::damage(&device).is_empty(), "{context}");
                }
            }
        }
    }
    assert!(told > 0);
}

/// Transactions prove each other, so the log is found again. Where home blocks are from mixed times, the log cannot tell where it begins
/// but for the stored place; then a repair takes what leaves more. `FLOE_KIND` names one kind of file systems alone.
#[test]
fn a_log_whose_superblock_is_lost_is_found_again() {
    let only = std::env::var("FLOE_KIND").ok();
    for (kind, base, tops) in bases() {
        if only.as_deref().is_some_and(|only| only != kind) {
            continue;
        }
        let grown = grown_as(kind, base, tops);
        let crashed = MemDevice::new(grown.crashed.clone());
        for (nr, (cube, inode, at)) in places(&crashed).into_iter().enumerate() {
            for (home, age) in HOMES {
                for damage_of in ["zeroes", "garbage", "two bits", "features", "an old copy"] {
                    let device = grown.with_home(age);
                    let log = &logs(&crashed)[nr].2;
                    let is_short = grown.control(log, COMMIT_BLOCK).len() < 2;
                    if damage_of == "an old copy" && is_short {
                        continue;
                    }
                    match damage_of {
                        "zeroes" => device.write_at(at, &[0; 1024]).unwrap(),
                        "garbage" => device.write_at(at, &[0xa5; 1024]).unwrap(),
                        "an old copy" => empty_log(&device, at, kind == "stock" && home == "old"),
                        // Ones that nobody knows.
                        "features" => {
                            [0x2a * 8 + 6, 0x2d * 8 + 1]
                                .into_iter()
                                .for_each(|bit| flip(&device, at, bit));
                        }
                        // In the sequence and in the start.
                        _ => [0x1b, 0x1f].into_iter().for_each(|byte| flip(&device, at, byte * 8)),
                    }
                    let context = format!("{kind}, {inode}, {damage_of}, home {home}");
                    let told = damage(&device);
                    let ids = ids(&told);
                    assert!(ids.contains(&"journal-superblock-lost"), "{context}: {told:?}");
                    let before = device.to_vec();
                    let preened = repair(&device, &RepairOptions::default(), &mut Preen).unwrap();
                    let is_alone = !preened.changes() && !preened.is_clean();
                    assert!(is_alone, "{context}: {:?}", preened.deeds);
                    drop(preened);
                    if log.superblock.start != 0 && home == "old" {
                        let mounted = MemDevice::new(before.clone());
                        if cube == 0 {
                            assert!(Disk::open(&mounted).is_err(), "{context}: it is mounted");
                            assert!(mounted.holds(&before), "{context}: the mount wrote");
                        } else {
                            waits(&mounted, cube, &context);
                            is_mended(&grown, &mounted, kind, &context);
                        }
                    }
                    is_mended(&grown, &device, kind, &context);
                }
            }
        }
    }
}

/// A layout in which two files were lost once: home blocks were as transactions had them that the log had let go of. In a process of
/// its own, for which the layout is chosen.
#[test]
fn a_lost_superblock_costs_no_file_in_a_rare_layout() {
    const NAME: &str = "cubes::superblocks::a_log_whose_superblock_is_lost_is_found_again";
    let mut own = std::process::Command::new(std::env::current_exe().unwrap());
    own.args(["--exact", NAME]).env("FLOE_KIND", "several").env("FLOE_LAYOUT", "1077");
    let ran = own.output().unwrap();
    let told = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && told.contains("1 passed"), "{told}");
}

/// Also where the inode of the journal is lost with its backup: the others are recovered, and a new one is made.
#[test]
fn a_lost_journal_of_the_file_system_is_no_dead_end_for_others() {
    let grown = grown(laid_out(Tenants::Apart, Policies::default()), &["a", "b"]);
    let device = MemDevice::new(grown.crashed.clone());
    super::edit(&device, InodeNr(8), |inode| inode.base.mode = 0);
    let mut bytes = [0; 1024];
    device.read_at(OFFSET_BYTES, &mut bytes).unwrap();
    let mut superblock = Superblock::decode(&bytes);
    superblock.jnl_backup_type = 0;
    superblock.encode_with_checksum(&mut bytes);
    device.write_at(OFFSET_BYTES, &bytes).unwrap();
    is_left_alone(&device, 0, "");
    repaired(&device);
    let is_there = |files: &Files<'_>| {
        let paths = grown.tops.iter().flat_map(|top| {
            (0..ROUNDS).map(move |round| format!("/{top}/synced{round}").into_bytes())
        });
        paths.map(|path| files.lookup(&path, Follow::NotLast).is_ok()).collect::<Vec<_>>()
    };
    let found = floe_check::view(&device, &Default::default(), |files, _| is_there(files));
    assert_eq!(found.unwrap(), vec![true; 2 * ROUNDS]);
}
