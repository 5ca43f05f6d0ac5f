//! Journals made by debugfs, in every checksum version, damaged ones, and hostile ones.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use floe_blockdev::{FileDevice, MemDevice, ReadBlocks};
use floe_check::Problem;
use floe_ext4::journal::{self, JournalEvent, JournalPlace, OrphanFault, RecoveryFault};
use floe_format::crc::crc32c;
use floe_format::ext::jbd2::JournalSuperblock;
use floe_format::features::RoCompat;
use proptest::prelude::*;

use crate::journal_support::{
    copy, debugfs, differing_kib, dump, find, open, recover, recovers_in_spite_of_wrong_inodes,
    replayed_by_e2fsck, run, run_ok,
};

/// An image of 8 MiB with blocks of 1 KiB, a journal of 1024 blocks and a few files.
fn image(dir: &Path, mke2fs: &[&str]) -> PathBuf {
    let files = dir.join("files");
    std::fs::create_dir_all(files.join("sub")).unwrap();
    for index in 0..8 {
        std::fs::write(files.join(format!("file{index}")), vec![b'x'; index * 700]).unwrap();
    }
    let image = dir.join("work.img");
    std::fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
    let mut args =
        vec!["-q", "-F", "-t", "ext4", "-b", "1024", "-I", "256", "-d", files.to_str().unwrap()];
    args.extend(mke2fs);
    args.push(image.to_str().unwrap());
    run_ok("mke2fs", &args);
    image
}

/// Where a block of the journal lies.
fn journal_block(image: &Path, log_block: u32) -> u64 {
    let command = format!("bmap <8> {log_block}");
    let text = run_ok("debugfs", &["-R", &command, image.to_str().unwrap()]);
    let number = text.lines().find_map(|line| line.trim().parse().ok());
    number.unwrap_or_else(|| panic!("no block in {text:?}"))
}

/// Changes bytes of a file in place.
fn patch(image: &Path, offset: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(image).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

/// Blocks written, revoked, written again; one that must be escaped; and a transaction without an
/// end.
fn transactions(dir: &Path, open_with: &str) -> String {
    let escaped = dir.join("escaped");
    let mut block = vec![0x55; 1024];
    block[..4].copy_from_slice(&[0xc0, 0x3b, 0x39, 0x98]);
    std::fs::write(&escaped, block).unwrap();
    let random = dir.join("random");
    std::fs::write(&random, (0..8192u32).map(|n| ((n * n) >> 5) as u8).collect::<Vec<_>>())
        .unwrap();
    let (escaped, random) = (escaped.display(), random.display());
    format!(
        "jo {open_with}\njw -b 7000,7001,7002,7003,7004 {random}\njw -r 7001,7003\n\
         jw -b 7003,7005 {random}\njw -b 7006 {escaped}\njw -b 7007 -c {random}\njc\n"
    )
}

#[test]
fn every_checksum_version_equals_e2fsck() {
    let plain = "^64bit,^metadata_csum,^metadata_csum_seed";
    let cases = [
        (plain, ""),
        (plain, "-c -v 1"),
        ("64bit,metadata_csum", "-c -v 2"),
        ("^64bit,metadata_csum", "-c -v 2"),
        ("64bit,metadata_csum", "-c -v 3"),
        ("^64bit,metadata_csum", "-c -v 3"),
    ];
    for (features, open_with) in cases {
        let scratch = tempfile::tempdir().unwrap();
        let image = image(scratch.path(), &["-O", features]);
        let mut script = transactions(scratch.path(), open_with);
        let mut expected = (6, 2);
        if open_with.ends_with("-v 1") {
            // debugfs writes checksums of version 1 that do not fit where blocks are revoked.
            script = script.replace("jw -r 7001,7003\n", "");
            expected = (8, 0);
        }
        debugfs(&image, &script);
        let replay = recover(&image, None);
        assert_eq!(replay.events, [], "{features} {open_with}");
        assert_eq!((replay.blocks, replay.revoked_blocks), expected, "{features} {open_with}");
        let oracle = FileDevice::open(&replayed_by_e2fsck(&image, None)).unwrap();
        assert_eq!(differing_kib(&replay.overlay, &oracle), [0u64; 0], "{features} {open_with}");
        let mut block = [0; 4];
        replay.overlay.read_at(7006 * 1024, &mut block).unwrap();
        assert_eq!(block, [0xc0, 0x3b, 0x39, 0x98]);
    }
}

/// Linux refuses such a journal, and e2fsck resets or misreads it: what was committed is replayed all the same.
#[test]
fn wrong_bounds_of_the_log_lose_nothing_that_was_committed() {
    let scratch = tempfile::tempdir().unwrap();
    let whole = image(scratch.path(), &["-O", "^64bit,^metadata_csum,^metadata_csum_seed"]);
    debugfs(&whole, &transactions(scratch.path(), ""));
    let expected = recover(&whole, None);
    let superblock = journal_block(&whole, 0);
    // `s_first` and `s_maxlen`, as stored and as it must be.
    for (at, value, right) in
        [(0x14, 0, 1), (0x14, 5, 1), (0x14, u32::MAX >> 1, 1), (0x10, 1, 1024)]
    {
        let image = copy(&whole, "bounds");
        patch(&image, superblock * 1024 + at, &u32::to_be_bytes(value));
        let (found, events) = find(&image, None);
        assert!(matches!(events[..], [JournalEvent::BoundsWrong { .. }]), "{at:#x}: {events:?}");
        let bounds = found.unwrap().superblock;
        assert_eq!(if at == 0x14 { bounds.first } else { bounds.maxlen }, right);
        let replay = recover(&image, None);
        assert_eq!((replay.blocks, replay.transactions), (expected.blocks, expected.transactions));
        // The emptied journal has the right value, too.
        let differing = differing_kib(&replay.overlay, &expected.overlay);
        assert_eq!(differing, [0u64; 0], "{at:#x} {value:#x}");
    }
}

fn is_commit(image: &Path, at: u64) -> bool {
    let mut header = [0; 8];
    FileDevice::open(image).unwrap().read_at(at, &mut header).unwrap();
    header == [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2]
}

fn is_control(event: &JournalEvent) -> bool {
    matches!(event, JournalEvent::RecoveryFailed(RecoveryFault::ControlChecksum { .. }))
}

#[test]
fn a_damaged_log_equals_e2fsck_block_by_block() {
    for (features, open_with) in [("^metadata_csum", "-c -v 1"), ("metadata_csum", "-c -v 3")] {
        let scratch = tempfile::tempdir().unwrap();
        let whole = image(scratch.path(), &["-O", features]);
        debugfs(&whole, &transactions(scratch.path(), open_with));
        for log_block in 1..18 {
            let at = journal_block(&whole, log_block) * 1024;
            for offset in [5, 17, 600] {
                let image = copy(&whole, "damaged");
                let mut byte = [0];
                FileDevice::open(&image).unwrap().read_at(at + offset, &mut byte).unwrap();
                patch(&image, at + offset, &[byte[0] ^ 0x21]);
                let replay = recover(&image, None);
                let oracle = FileDevice::open(&replayed_by_e2fsck(&image, None)).unwrap();
                let mut differing = differing_kib(&replay.overlay, &oracle);
                // How far the number of the next transaction is advanced after a failure is of no
                // consequence: the journal is empty.
                differing.retain(|&kib| kib != journal_block(&image, 0));
                let context = format!("{open_with}: block {log_block} byte {offset}");
                if offset == 600 && is_commit(&whole, at) && open_with == "-c -v 3" {
                    // Linux replays what is torn behind its fields, and e2fsck does not.
                    assert!(replay.events.is_empty() && !differing.is_empty(), "{context}");
                    continue;
                }
                if replay.events.iter().any(is_control) && replay.transactions > 0 {
                    // e2fsck drops the transactions before the damage, too.
                    assert!(!differing.is_empty(), "{context}");
                    continue;
                }
                assert_eq!(differing, [0u64; 0], "{context}: {:?}", replay.events);
            }
        }
    }
}

/// Between a mount and the first transaction a journal is empty and the file system wants recovery.
#[test]
fn an_empty_journal_that_wants_recovery_equals_e2fsck() {
    let scratch = tempfile::tempdir().unwrap();
    let image = image(scratch.path(), &[]);
    debugfs(&image, "feature needs_recovery\n");
    let replay = recover(&image, None);
    assert_eq!((replay.blocks, replay.transactions), (0, 0));
    let oracle = FileDevice::open(&replayed_by_e2fsck(&image, None)).unwrap();
    assert_eq!(differing_kib(&replay.overlay, &oracle), [0u64; 0]);
}

/// Blocks of the log, the free totals and the orphan file are looked at with what opening proved.
#[test]
fn a_wrong_number_of_inodes_of_a_group_changes_no_replay() {
    let scratch = tempfile::tempdir().unwrap();
    let image = image(scratch.path(), &["-O", "orphan_file,metadata_csum"]);
    debugfs(&image, &transactions(scratch.path(), "-c -v 3"));
    // Linux sets orphan_present when it mounts; the totals are those of the last unmounting.
    debugfs(&image, "ssv feature_ro_compat 0x10469\nssv free_blocks_count 77\n");
    for change in [|count| count + 1, |count| count * 2, |count| count / 2] {
        let damaged = recovers_in_spite_of_wrong_inodes(&image, change);
        let was_proved = |problem: &Problem| matches!(problem, Problem::InodesPerGroupWrong { .. });
        assert!(damaged.opening.iter().any(was_proved), "{:?}", damaged.opening);
        let superblock = open(&damaged.overlay).sb;
        let features = superblock.features().ro_compat;
        assert!(!features.contains(RoCompat::ORPHAN_PRESENT), "{features:?}");
        assert_ne!(superblock.free_blocks_count_lo, 77);
    }
}

/// Linux says so of every orphan file from mounting to unmounting: after a power failure that is no
/// damage, at any other time it is.
#[test]
fn an_orphan_file_said_to_be_in_use_is_damage_only_without_recovery() {
    let scratch = tempfile::tempdir().unwrap();
    let image = image(scratch.path(), &["-O", "orphan_file"]);
    let stale = |image: &Path| {
        let device = FileDevice::open(image).unwrap();
        let report = floe_check::check(&device, &floe_check::CheckOptions::default()).unwrap();
        report.found.iter().any(|found| found.to_string().contains("orphan file is empty"))
    };
    debugfs(&image, "feature orphan_present\n");
    assert!(stale(&image));
    debugfs(&image, "feature needs_recovery\n");
    assert!(!stale(&image));
    // Once it is recovered, nobody else may find it.
    let recovered = copy(&image, "recovered");
    dump(&recover(&image, None).overlay, &recovered);
    run_ok("e2fsck", &["-fn", recovered.to_str().unwrap()]);
}

#[test]
fn an_external_journal_is_replayed() {
    let scratch = tempfile::tempdir().unwrap();
    let journal = scratch.path().join("journal.img");
    std::fs::File::create(&journal).unwrap().set_len(2 << 20).unwrap();
    run_ok("mke2fs", &["-q", "-F", "-b", "1024", "-O", "journal_dev", journal.to_str().unwrap()]);
    let image = image(scratch.path(), &["-O", "^has_journal"]);
    let device = FileDevice::open(&journal).unwrap();
    let mut uuid = [0; 16];
    device.read_at(1024 + 0x68, &mut uuid).unwrap();
    let text = floe_format::ext::superblock::uuid_text(&uuid);
    debugfs(&image, &format!("feature has_journal\nssv journal_uuid {text}\n"));
    // The journal knows its user.
    patch(&journal, 2 * 1024 + 0x40, &1u32.to_be_bytes());
    patch(&journal, 2 * 1024 + 0x100, &open(&FileDevice::open(&image).unwrap()).sb.uuid);
    let (found, events) = find(&image, None);
    assert!(found.is_none() && codes(&events) == [0x11] && is_fatal(&events[0]));
    let (found, events) = find(&image, Some(&image));
    assert!(found.is_none() && codes(&events) == [0x12], "{events:?}");
    let script = transactions(scratch.path(), &format!("-f {}", journal.display()));
    debugfs(&image, &script);
    let (found, events) = find(&image, Some(&journal));
    assert_eq!((found.unwrap().place, &events[..]), (JournalPlace::External, &[][..]));
    let replay = recover(&image, Some(&journal));
    assert_eq!((replay.blocks, replay.revoked_blocks, &replay.events[..]), (6, 2, &[][..]));
    let oracle = FileDevice::open(&replayed_by_e2fsck(&image, Some(&journal))).unwrap();
    assert_eq!(differing_kib(&replay.overlay, &oracle), [0u64; 0]);
    patch(&journal, 1024 + 0x68, &[!uuid[0]]);
    assert_eq!(codes(&find(&image, Some(&journal)).1), [0x13]);
}

fn codes(events: &[JournalEvent]) -> Vec<u32> {
    events.iter().filter_map(code_of).collect()
}

/// e2fsck's code for the condition; `None` if it has none.
fn code_of(event: &JournalEvent) -> Option<u32> {
    Some(match event {
        JournalEvent::InodeInvalid { .. } => 0x0f,
        JournalEvent::MultipleUsers { .. } => 0x10,
        JournalEvent::ExternalNotFound { .. } => 0x11,
        JournalEvent::ExternalNotAJournal => 0x12,
        JournalEvent::ExternalUuidMismatch { .. } => 0x13,
        JournalEvent::SuperblockCorrupt { .. } => 0x15,
        JournalEvent::PresentWithoutFeature => 0x16,
        JournalEvent::NeedsRecoveryWithoutJournal => 0x17,
        JournalEvent::DataWithoutNeedsRecovery => 0x18,
        JournalEvent::Orphan { .. } => 0x20,
        JournalEvent::UnknownRoCompat { .. } => 0x25,
        JournalEvent::UnknownIncompat { .. } => 0x26,
        JournalEvent::UnknownVersion { .. } => 0x27,
        JournalEvent::InodeNotReserved { .. } => 0x28,
        JournalEvent::StaleV2Fields => 0x2a,
        JournalEvent::InodeBackupStale { .. } => 0x2d,
        JournalEvent::TransactionCorrupt { .. } => 0x3a,
        JournalEvent::ExternalChecksum => 0x4a,
        JournalEvent::OrphansDamaged(fault) => match fault {
            OrphanFault::Head(_) => 0x23,
            OrphanFault::Next { .. } => 0x24,
            OrphanFault::Hole(_) => 0x52,
            OrphanFault::Magic(_) => 0x53,
            OrphanFault::Checksum(_) => 0x54,
            OrphanFault::Unaligned { .. } => 0x55,
            OrphanFault::Loop(_)
            | OrphanFault::Unreadable(_)
            | OrphanFault::Slot(_)
            | OrphanFault::Stray { .. } => {
                return None;
            }
        },
        JournalEvent::InodeFromBackup { .. }
        | JournalEvent::SuperblockBit { .. }
        | JournalEvent::SuperblockRebuilt { .. }
        | JournalEvent::BoundsWrong { .. }
        | JournalEvent::ErrorRecorded { .. }
        | JournalEvent::EndsEarly { .. }
        | JournalEvent::RecoveryFailed(_) => return None,
    })
}

/// Whether e2fsck ends the run for it.
fn is_fatal(event: &JournalEvent) -> bool {
    matches!(code_of(event), Some(0x10..=0x13 | 0x25..=0x27))
}

/// A change to a valid image, and the codes that it must raise.
struct Case {
    debugfs: &'static str,
    /// Bytes of the journal superblock, big-endian words.
    journal: &'static [(u64, u32)],
    codes: &'static [u32],
}

#[test]
fn conditions_of_the_journal_have_their_codes() {
    let case = |debugfs, journal, codes| Case { debugfs, journal, codes };
    let cases = [
        case("", &[], &[]),
        case("ssv journal_inum 0\n", &[], &[0x0f]),
        case("ssv journal_inum 99999\n", &[], &[0x0f]),
        case("sif <8> mode 040600\nssv jnl_backup_type 0\n", &[], &[0x0f]),
        // The copy in the superblock saves it.
        case("sif <8> mode 040600\n", &[], &[]),
        case("sif <8> size 1000\nssv jnl_backup_type 0\n", &[], &[0x0f]),
        // More than is mapped: to e2fsck, a size from 2^31 on is negative; Linux minds neither.
        case("sif <8> size 0x10000000\nssv jnl_backup_type 0\n", &[], &[0x0f]),
        case("sif <8> size 0x7fffffff\n", &[], &[]),
        case("sif <8> size 0x80000000\n", &[], &[]),
        case("sif <8> size 0xfffffc00\n", &[], &[]),
        case("sif <8> size 0x100100000\n", &[], &[]),
        case("", &[(0, 0)], &[0x0f]),
        case("", &[(4, 1)], &[0x15]),
        case("", &[(0x0c, 4096)], &[0x15]),
        case("", &[(0x10, 5000)], &[0x15]),
        case("", &[(0x28, 0x18)], &[0x15]),
        case("", &[(0x28, 0x20)], &[0x15]),
        case("feature -has_journal\n", &[], &[0x16]),
        case("feature -has_journal\nssv journal_inum 0\nfeature needs_recovery\n", &[], &[0x17]),
        case("feature -has_journal\nfeature needs_recovery\n", &[], &[0x16, 0x17]),
        case("", &[(0x1c, 1)], &[0x18]),
        case("", &[(0x2c, 1)], &[0x25]),
        case("", &[(0x28, 0x80)], &[0x26]),
        case("", &[(4, 9)], &[0x27]),
        case("", &[(4, 3), (0x28, 1)], &[0x2a]),
        case("", &[(0x40, 2)], &[0x2a]),
        case("ssv jnl_backup_type 0\n", &[], &[0x2d]),
    ];
    let scratch = tempfile::tempdir().unwrap();
    let whole = image(scratch.path(), &["-O", "^metadata_csum,^64bit"]);
    let superblock = journal_block(&whole, 0) * 1024;
    for Case { debugfs: commands, journal, codes: expected } in cases {
        let image = copy(&whole, "damaged");
        debugfs(&image, commands);
        for (offset, word) in journal {
            patch(&image, superblock + offset, &word.to_be_bytes());
        }
        let (found, events) = find(&image, None);
        assert_eq!(codes(&events), expected, "{commands:?} {journal:?}: {events:?}");
        let fatal = events.iter().any(is_fatal);
        assert!(!fatal || found.is_none());
        // e2fsck repairs it, or stops, where there is something to say; for these it exits with 0.
        let judged = copy(&image, "judged");
        let status = run("e2fsck", &["-y", judged.to_str().unwrap()]).status.code();
        let says = status != Some(0) || [&[0x18][..], &[0x2a], &[0x2d]].contains(&expected);
        let saved =
            events.iter().any(|event| matches!(event, JournalEvent::InodeFromBackup { .. }));
        assert_eq!(
            says,
            saved || !expected.is_empty(),
            "{commands:?} {journal:?}: e2fsck says {status:?}"
        );
    }
}

/// The bytes of an image whose journal holds transactions and has room for fast commits; where the
/// journal's blocks lie; and the transaction that fast commits must name.
struct Hostile {
    bytes: Vec<u8>,
    log: Vec<u64>,
    expected: u32,
}

fn hostile() -> &'static Hostile {
    static IMAGE: OnceLock<Hostile> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let scratch = tempfile::tempdir().unwrap();
        let image =
            image(scratch.path(), &["-O", "fast_commit", "-J", "size=1,fast_commit_size=32"]);
        let before = transactions(scratch.path(), "-c -v 3");
        debugfs(&image, &before);
        let (found, _) = find(&image, None);
        let found = found.unwrap();
        let log: Vec<_> = (0..found.blocks).map(|at| journal_block_of(&image, at)).collect();
        let mut bytes = std::fs::read(&image).unwrap();
        // The kernel sets the feature when it mounts.
        let raw = bytes[log[0] as usize * 1024..].first_chunk_mut::<1024>().unwrap();
        let mut superblock = JournalSuperblock::decode(raw);
        superblock.feature_incompat |= 0x20;
        superblock.num_fc_blks = 32;
        superblock.encode_into(raw);
        superblock.checksum = JournalSuperblock::compute_checksum(raw);
        superblock.encode_into(raw);
        let replay = recover(&image, None);
        let expected = found.superblock.sequence + replay.transactions;
        Hostile { bytes, log, expected }
    })
}

/// The journal of a fresh image lies in one piece, but for the blocks around it.
fn journal_block_of(image: &Path, at: u32) -> u64 {
    static STARTS: OnceLock<Vec<u64>> = OnceLock::new();
    let starts = STARTS.get_or_init(|| {
        let commands: String = (0..1200).map(|at| format!("bmap <8> {at}\n")).collect();
        let script = image.with_extension("map");
        std::fs::write(&script, commands).unwrap();
        let args = ["-f", script.to_str().unwrap(), image.to_str().unwrap()];
        let text = run_ok("debugfs", &args);
        text.lines().filter_map(|line| line.trim().parse().ok()).collect()
    });
    starts[at as usize]
}

/// Finds and replays; must not panic and must end.
fn survive(bytes: Vec<u8>) -> Vec<JournalEvent> {
    let device = MemDevice::new(bytes);
    let opened = open(&device);
    let (journal, mut events) =
        journal::find(&device, &opened.sb, &opened.geo, &opened.groups, None);
    if let Some(journal) = journal {
        let replay = journal::replay(&device, &opened.geo, &journal, None);
        events.extend(replay.events);
        let after = open(&replay.overlay);
        journal::find_orphans(&replay.overlay, &after.sb, &after.geo, &after.groups);
    }
    events
}

/// A record of a fast commit with plausible numbers.
fn record() -> impl Strategy<Value = Vec<u8>> {
    let inode = prop_oneof![4 => 11u32..24, 1 => Just(2u32), 1 => any::<u32>()];
    let small = prop_oneof![4 => 0u32..40, 1 => any::<u32>()];
    let block = prop_oneof![4 => 4000u32..8192, 1 => any::<u32>()];
    let name = proptest::collection::vec(b'a'..b'h', 1..4);
    let mode = prop_oneof![Just(0o100_644u16), Just(0o040_755), Just(0o120_777), any::<u16>()];
    (1u16..8, inode.clone(), inode, small.clone(), small, block, name, mode).prop_map(
        |(tag, inode, parent, logical, len, block, name, mode)| {
            let mut value = match tag {
                3..=5 => [parent.to_le_bytes(), inode.to_le_bytes()].concat(),
                _ => inode.to_le_bytes().to_vec(),
            };
            match tag {
                1 => {
                    value.extend(logical.to_le_bytes());
                    value.extend((len as u16 % 70).to_le_bytes());
                    value.extend([0, 0]);
                    value.extend(block.to_le_bytes());
                }
                2 => {
                    value.extend(logical.to_le_bytes());
                    value.extend(len.to_le_bytes());
                }
                3..=5 => value.extend(name),
                6 => {
                    let mut raw = [0u8; 160];
                    raw[..2].copy_from_slice(&mode.to_le_bytes());
                    raw[4..8].copy_from_slice(&(logical % 9000).to_le_bytes());
                    raw[0x1a] = (len % 4) as u8;
                    raw[0x20..0x24].copy_from_slice(&0x8_0000u32.to_le_bytes());
                    raw[128] = 32;
                    value.extend(raw);
                }
                _ => {}
            }
            let len = u16::try_from(value.len()).unwrap();
            [&tag.to_le_bytes()[..], &len.to_le_bytes(), &value].concat()
        },
    )
}

/// Puts records with right checksums into the fast-commit area, four to a fast commit.
fn with_fast_commits(records: &[Vec<u8>]) -> Vec<u8> {
    let Hostile { bytes, log, expected } = hostile();
    let mut bytes = bytes.clone();
    let superblock =
        JournalSuperblock::decode(bytes[log[0] as usize * 1024..].first_chunk().unwrap());
    let first = superblock.maxlen - superblock.fast_commit_blocks() + 1;
    for (index, chunk) in records.chunks(4).enumerate() {
        let mut stream = Vec::new();
        if index == 0 {
            stream.extend([9, 0, 8, 0, 0, 0, 0, 0]);
            stream.extend(expected.to_le_bytes());
        }
        stream.extend(chunk.concat());
        stream.extend([8, 0]);
        let rest = u16::try_from(1024 - stream.len() - 2).unwrap();
        stream.extend(rest.to_le_bytes());
        stream.extend(expected.to_le_bytes());
        let crc = crc32c(0, &stream);
        stream.extend(crc.to_le_bytes());
        stream.resize(1024, 0);
        let at = log[first as usize + index] as usize * 1024;
        bytes[at..at + 1024].copy_from_slice(&stream);
    }
    bytes
}

#[test]
fn crafted_fast_commits_are_taken() {
    // A new empty file "new", inode 23, in the root directory.
    let mut raw = [0u8; 160];
    raw[..2].copy_from_slice(&0o100_644u16.to_le_bytes());
    raw[0x1a] = 1;
    raw[0x20..0x24].copy_from_slice(&0x8_0000u32.to_le_bytes());
    raw[128] = 32;
    let inode = [&[6, 0, 164, 0, 23, 0, 0, 0][..], &raw].concat();
    let creat = [&[3, 0, 11, 0, 2, 0, 0, 0, 23, 0, 0, 0][..], b"new"].concat();
    let device = MemDevice::new(with_fast_commits(&[inode, creat]));
    let opened = open(&device);
    let (journal, _) = journal::find(&device, &opened.sb, &opened.geo, &opened.groups, None);
    let replay = journal::replay(&device, &opened.geo, &journal.unwrap(), None);
    assert_eq!((replay.fast_commit_tags, &replay.events[..]), (4, &[][..]));
    let wild = [&[1, 0, 16, 0, 23, 0, 0, 0][..], &[0xff; 12]].concat();
    let events = survive(with_fast_commits(&[wild]));
    let inode = floe_format::InodeNr(23);
    let fault = RecoveryFault::FastCommitImpossible { inode };
    assert_eq!(events, [JournalEvent::RecoveryFailed(fault)]);
}

/// Three fast commits, some blocks of which are damaged at a byte: the tags that are replayed, and whether damage is told.
fn damaged_fast_commits(damage: &[(u32, usize)]) -> (u64, bool) {
    changed_fast_commits(|commit, block| {
        damage.iter().filter(|(of, _)| *of == commit).for_each(|(_, byte)| block[*byte] ^= 0x10);
    })
}

/// The same for blocks that are changed.
fn changed_fast_commits(change: impl Fn(u32, &mut [u8])) -> (u64, bool) {
    let padding = [7, 0, 4, 0, 0, 0, 0, 0];
    let mut bytes = with_fast_commits(&vec![padding.to_vec(); 12]);
    let Hostile { log, .. } = hostile();
    let raw = bytes[log[0] as usize * 1024..].first_chunk().unwrap();
    let superblock = JournalSuperblock::decode(raw);
    let first = superblock.maxlen - superblock.fast_commit_blocks() + 1;
    for commit in 0..3 {
        let at = log[(first + commit) as usize] as usize * 1024;
        change(commit, &mut bytes[at..at + 1024]);
    }
    let device = MemDevice::new(bytes);
    let opened = open(&device);
    let (journal, _) = journal::find(&device, &opened.sb, &opened.geo, &opened.groups, None);
    let replay = journal::replay(&device, &opened.geo, &journal.unwrap(), None);
    let damaged = JournalEvent::RecoveryFailed(RecoveryFault::FastCommitDamaged);
    assert!(replay.events.is_empty() || replay.events == [damaged], "{:?}", replay.events);
    (replay.fast_commit_tags, !replay.events.is_empty())
}

#[test]
fn a_sound_fast_commit_proves_that_damage_before_it_is_no_end() {
    assert_eq!(damaged_fast_commits(&[]), (16, false));
    // A tag, padding, the transaction in the tail, its checksum.
    for byte in [0, 5, 36, 40] {
        assert_eq!(damaged_fast_commits(&[(1, byte)]), (6, true), "byte {byte}");
        // No crash leaves one wrong bit.
        assert_eq!(damaged_fast_commits(&[(2, byte)]), (11, true), "byte {byte}");
        assert_eq!(damaged_fast_commits(&[(1, byte), (2, byte)]), (6, true), "byte {byte}");
    }
    // The same behind the head, and the tag and the transaction in the head.
    for byte in [0, 8, 17, 48, 52] {
        assert_eq!(damaged_fast_commits(&[(0, byte)]), (0, true), "byte {byte}");
    }
}

/// Where the area of fast commits begins, the head of the first one tells.
#[test]
fn fast_commits_are_found_without_the_superblock_of_the_journal() {
    let padding = [7, 0, 4, 0, 0, 0, 0, 0];
    let mut bytes = with_fast_commits(&vec![padding.to_vec(); 12]);
    let at = hostile().log[0] as usize * 1024;
    bytes[at..at + 1024].fill(0);
    let device = MemDevice::new(bytes);
    let opened = open(&device);
    let (journal, events) = journal::find(&device, &opened.sb, &opened.geo, &opened.groups, None);
    let is_told = matches!(events[..], [JournalEvent::SuperblockRebuilt { .. }]);
    assert!(is_told, "{events:?}");
    let replay = journal::replay(&device, &opened.geo, &journal.unwrap(), None);
    assert_eq!((replay.fast_commit_tags, &replay.events[..]), (16, &[][..]));
}

/// The last one may have been torn, the first one, too: no program was told that it is durable. e2fsck takes it for the end as well.
#[test]
fn a_torn_fast_commit_is_the_end() {
    for torn in 0..3 {
        // Part of it was written; all behind it is of an earlier time.
        let told = changed_fast_commits(|commit, block| match commit {
            _ if commit == torn => block[20..].fill(0x5a),
            _ if commit > torn => block.fill(0),
            _ => {}
        });
        assert_eq!(told, ([0, 6, 11][torn as usize], false), "fast commit {torn}");
        // A sound one behind it proves damage.
        let told = changed_fast_commits(|commit, block| {
            if commit == torn {
                block[20..].fill(0x5a);
            }
        });
        assert_eq!(told.1, torn < 2, "fast commit {torn}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn random_bytes_in_the_log_are_survived(
        edits in proptest::collection::vec((0..40usize, 0..1024usize, any::<u8>()), 1..40),
    ) {
        let Hostile { bytes, log, .. } = hostile();
        let mut bytes = bytes.clone();
        for (block, offset, value) in edits {
            bytes[log[block] as usize * 1024 + offset] = value;
        }
        survive(bytes);
    }

    #[test]
    fn a_hostile_journal_superblock_is_survived(
        edits in proptest::collection::vec((0..24usize, any::<u32>(), 0..32u32), 1..6),
    ) {
        let Hostile { bytes, log, .. } = hostile();
        let mut bytes = bytes.clone();
        let at = log[0] as usize * 1024;
        for (word, value, shift) in edits {
            let place = at + 12 + word * 4;
            bytes[place..place + 4].copy_from_slice(&(value >> shift).to_be_bytes());
        }
        let raw = bytes[at..].first_chunk_mut::<1024>().unwrap();
        let crc = JournalSuperblock::compute_checksum(raw);
        raw[0xfc..0x100].copy_from_slice(&crc.to_be_bytes());
        survive(bytes);
    }

    #[test]
    fn a_hostile_journal_map_is_survived(
        edits in proptest::collection::vec((0..64usize, any::<u8>()), 1..8),
        flags: bool,
    ) {
        let mut bytes = hostile().bytes.clone();
        let opened = open(&MemDevice::new(bytes.clone()));
        let at = opened.groups[0].inode_table.0 as usize * 1024 + 7 * 256;
        bytes[1024 + 0xfd] = 0;
        if flags {
            bytes[at + 0x22] ^= 0x08;
        }
        for (offset, value) in edits {
            bytes[at + 0x28 + offset] = value;
        }
        survive(bytes);
    }

    #[test]
    fn any_fast_commits_are_survived(
        records in proptest::collection::vec(record(), 1..48),
    ) {
        survive(with_fast_commits(&records));
    }

    #[test]
    fn any_orphan_list_ends(
        head: u32,
        links in proptest::collection::vec((11u32..60, 0u32..70), 1..30),
    ) {
        let mut bytes = hostile().bytes.clone();
        let opened = open(&MemDevice::new(bytes.clone()));
        bytes[1024 + 0xe8..1024 + 0xec].copy_from_slice(&(head % 70).to_le_bytes());
        for (inode, next) in links {
            let at = opened.groups[0].inode_table.0 as usize * 1024 + (inode as usize - 1) * 256;
            bytes[at + 0x14..at + 0x18].copy_from_slice(&next.to_le_bytes());
        }
        let device = MemDevice::new(bytes);
        let opened = open(&device);
        let (orphans, _) =
            journal::find_orphans(&device, &opened.sb, &opened.geo, &opened.groups);
        prop_assert!(orphans.is_sorted());
    }
}
