//! Committed transactions that are damaged in the log: a repair loses them only where it may, and none that Linux replays.

use floe_blockdev::{MemDevice, ReadBlocks, WriteBlocks};
use floe_check::{CheckOptions, Problem};
use floe_format::ext::jbd2::JournalSuperblock;
use floe_format::ext::superblock::{OFFSET_BYTES, STATE_ERROR, Superblock};
use floe_repair::edit::{Edit, JournalEdit};
use floe_repair::escalation::{Allowance, Escalated, Stage, escalate};
use floe_repair::policy::Policy;
use floe_repair::{Fate, RepairOptions, repair};
use floe_testkit::problems::cases;
use floe_testkit::{Profile, build, tool};

const BLOCK: u64 = 1024;
/// Two transactions of three blocks each, with descriptor and commit block, from block 1 of the log on.
const FIRST_COMMIT: u64 = 5;
const REPLAYED: [u64; 2] = [7002, 7005];

/// A file system with a journal that has checksums, and holds both; and where its journal lies.
fn two_transactions() -> (Vec<u8>, u64) {
    let image = build::base(Profile::by_name("ext4-1k").unwrap()).unwrap();
    let folder = tool::scratch("floe-log-").unwrap();
    let blocks = folder.path().join("blocks");
    std::fs::write(&blocks, vec![0x5a; 3 * BLOCK as usize]).unwrap();
    let blocks = blocks.display();
    let script =
        format!("jo -c -v 3\njw -b 7000,7001,7002 {blocks}\njw -b 7003,7004,7005 {blocks}\njc\n");
    build::debugfs_that_tells(&image, &script).unwrap();
    let bytes = image.to_vec().unwrap();
    // The superblock of a journal is the only block that begins so and says that it is one.
    let begins = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 4];
    let at = bytes.chunks(BLOCK as usize).position(|block| block.starts_with(&begins)).unwrap();
    (bytes, at as u64 * BLOCK)
}

fn options() -> RepairOptions<'static> {
    let check = CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    RepairOptions { check, random: [7; 16], ..RepairOptions::default() }
}

/// The repair in these stages, without any loss; `None` if nothing may be written. Whether the blocks of each transaction came.
fn without_loss(device: &MemDevice, stages: &[Stage]) -> Option<[bool; 2]> {
    let nothing = Allowance { things: Some(0), bytes: Some(0) };
    let stage = |policy: &mut dyn Policy| repair(device, &options(), policy);
    let repair = escalate(stages, &nothing, device, stage).unwrap().repair;
    if !repair.changes() {
        assert!(!repair.is_clean() && !repair.left.is_empty() && repair.deeds.is_empty());
        return None;
    }
    assert!(repair.is_clean());
    Some(replayed(&repair.staged))
}

fn replayed(device: &dyn ReadBlocks) -> [bool; 2] {
    REPLAYED.map(|block| {
        let mut byte = [0];
        device.read_at(block * BLOCK, &mut byte).unwrap();
        byte == [0x5a]
    })
}

#[test]
fn damaged_transactions_are_given_up_only_on_request() {
    if tool::missing() {
        return;
    }
    let (mut bytes, journal) = two_transactions();
    let whole = MemDevice::new(bytes.clone());
    assert_eq!(without_loss(&whole, &[Stage::Safe]), Some([true, true]));
    // The sequence number of the first data block's commit: within its fields.
    bytes[(journal + FIRST_COMMIT * BLOCK) as usize + 16] ^= 0xff;
    let device = MemDevice::new(bytes);
    for stages in [&[Stage::Safe][..], &[Stage::Preen], &[Stage::Preen, Stage::Safe, Stage::All]] {
        assert_eq!(without_loss(&device, stages), None, "{stages:?}");
    }
    let preened = on_request(&device);
    // Each block of it has a checksum of its own.
    assert_eq!(replayed(&preened.repair.staged), [true, true]);
    let lost = Edit::Journal(JournalEdit::LoseTransactions);
    let deed = preened.repair.deeds.iter().find(|deed| deed.edit == lost).unwrap();
    assert_eq!(deed.fate(), Some(Fate::Transactions));
}

#[test]
fn damaged_fast_commits_are_given_up_only_on_request() {
    if tool::missing() {
        return;
    }
    let case = cases().into_iter().find(|case| case.recipe.name() == "fast commits").unwrap();
    let device = MemDevice::new(case.recipe.build().unwrap().to_vec().unwrap());
    for stages in [&[Stage::Safe][..], &[Stage::Preen], &[Stage::Preen, Stage::Safe, Stage::All]] {
        assert_eq!(without_loss(&device, stages), None, "{stages:?}");
    }
    let asked = on_request(&device);
    let lost = Edit::Journal(JournalEdit::LoseFastCommits);
    let deed = asked.repair.deeds.iter().find(|deed| deed.edit == lost).unwrap();
    assert_eq!(deed.fate(), Some(Fate::Transactions));
}

/// The repair for a person who asks for it. Nobody else gets one, whatever may be lost: e2fsck -p gives up transactions.
fn on_request(device: &MemDevice) -> Escalated<'_> {
    let anyhow = Allowance::default();
    let stage = |policy: &mut dyn Policy| repair(device, &options(), policy);
    let preened = escalate(&[Stage::Preen], &anyhow, device, stage).unwrap();
    assert!(!preened.repair.changes() && preened.repair.deeds.is_empty());
    let halted = repair(device, &options(), &mut floe_repair::policy::Preen).unwrap();
    assert!(halted.halted.is_some() && !halted.changes());
    let asked = escalate(&[Stage::All], &anyhow, device, stage).unwrap();
    assert!(asked.repair.is_clean() && asked.toll.uncounted);
    asked
}

/// Linux and e2fsck take it for the end of the log; but no transaction is sound behind the end of one.
#[test]
fn a_header_that_is_damaged_before_later_commits_is_no_end() {
    if tool::missing() {
        return;
    }
    let (sound, journal) = two_transactions();
    let header = |block: u64, byte: u64| (journal + block * BLOCK + byte) as usize;
    // The magic and the number of the commit block, and those of the descriptor.
    for (block, byte, by, first) in [
        (FIRST_COMMIT, 3, 1, true),
        (FIRST_COMMIT, 11, 9, true),
        (1, 3, 1, true),
        // More than one bit: its blocks have no home any more.
        (1, 11, 9, false),
    ] {
        let mut bytes = sound.clone();
        bytes[header(block, byte)] += by;
        let device = MemDevice::new(bytes);
        for stages in [&[Stage::Safe][..], &[Stage::Preen, Stage::Safe, Stage::All]] {
            assert_eq!(without_loss(&device, stages), None, "{block} {byte}");
        }
        let preened = on_request(&device);
        assert_eq!(replayed(&preened.repair.staged), [first, true], "{block} {byte}");
        // Transactions that are left in the log must not pass for new ones.
        let mut superblock = [0; 1024];
        preened.repair.staged.read_at(journal, &mut superblock).unwrap();
        let superblock = JournalSuperblock::decode(&superblock);
        assert_eq!(superblock.start, 0);
        let last = u32::from_be_bytes(*sound[header(10, 8)..].first_chunk().unwrap());
        assert!(superblock.sequence > last, "{} {last}", superblock.sequence);
    }
    // The end of the log, with what an earlier turn of the ring left behind it: lower numbers, or an earlier time.
    for byte in [8, 0x30] {
        let mut bytes = sound.clone();
        bytes[header(FIRST_COMMIT, 3)] += 1;
        bytes[header(10, byte)..][..4].fill(0);
        let format = JournalSuperblock::decode(bytes[journal as usize..].first_chunk().unwrap());
        let commit = &mut bytes[header(10, 0)..][..BLOCK as usize];
        let sum = commit_sum(format.format().seed, commit);
        commit[0x10..0x14].copy_from_slice(&sum.to_be_bytes());
        let device = MemDevice::new(bytes);
        assert_eq!(without_loss(&device, &[Stage::Safe]), Some([false, false]), "{byte}");
    }
}

/// Linux does not mount such a file system, and e2fsck drops the whole log; but all before the descriptor is sound.
#[test]
fn transactions_before_a_damaged_descriptor_are_kept() {
    if tool::missing() {
        return;
    }
    let (mut bytes, journal) = two_transactions();
    bytes[(journal + (FIRST_COMMIT + 1) * BLOCK) as usize + 500] ^= 0xff;
    let device = MemDevice::new(bytes);
    for stages in [&[Stage::Safe][..], &[Stage::Preen, Stage::Safe, Stage::All]] {
        assert_eq!(without_loss(&device, stages), None, "{stages:?}");
    }
    assert_eq!(replayed(&on_request(&device).repair.staged), [true, false]);
}

/// Another UUID in the primary superblock than the descriptors have: Linux judges them before it replays the log, which holds the
/// right one, and does not mount. e2fsck finds the journal of another file system.
#[test]
fn a_superblock_with_another_uuid_is_found_beside_a_dirty_log() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::by_name("ext4-1k").unwrap()).unwrap();
    let folder = tool::scratch("floe-log-").unwrap();
    let write = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let debugfs = |script: &str| build::debugfs_that_tells(&image, script).unwrap();
    // As Linux logs it: a file system whose journal is in use says so.
    debugfs("feature needs_recovery\n");
    let logged = write("superblock", &image.to_vec().unwrap()[BLOCK as usize..][..BLOCK as usize]);
    debugfs(&format!("jo -c -v 3\njw -b 1 {}\njc\n", logged.display()));
    let device = MemDevice::new(image.to_vec().unwrap());
    // A backup would prove the UUID of the descriptors, too.
    for at in (0..image.to_vec().unwrap().len() as u64).step_by(BLOCK as usize) {
        let mut block = [0; Superblock::SIZE];
        device.read_at(at, &mut block).unwrap();
        let decoded = Superblock::decode(&block);
        if decoded.magic == 0xef53 && decoded.block_group_nr > 0 {
            device.write_at(at, &[0; Superblock::SIZE]).unwrap();
        }
    }
    let found = |device: &MemDevice| floe_check::check(device, &options().check).unwrap().found;
    let other = Problem::PrimarySuperblockUuidWrong;
    assert!(!found(&device).contains(&other));
    let mut superblock = [0; Superblock::SIZE];
    device.read_at(OFFSET_BYTES, &mut superblock).unwrap();
    let mut decoded = Superblock::decode(&superblock);
    let right = decoded.uuid;
    decoded.uuid[3] ^= 0x40;
    decoded.encode_with_checksum(&mut superblock);
    device.write_at(OFFSET_BYTES, &superblock).unwrap();
    assert!(found(&device).contains(&other), "{:?}", found(&device));
    let mended = repair(&device, &options(), &mut floe_repair::policy::Yes).unwrap();
    assert!(mended.is_clean(), "{:?}", mended.left);
    mended.staged.read_at(OFFSET_BYTES, &mut superblock).unwrap();
    assert_eq!(Superblock::decode(&superblock).uuid, right);
}

/// The checksum of a commit block, its own field counted as zero.
fn commit_sum(seed: u32, block: &[u8]) -> u32 {
    let sum = floe_format::crc::crc32c(seed, &block[..0x10]);
    floe_format::crc::crc32c(floe_format::crc::crc32c(sum, &[0; 4]), &block[0x14..])
}

/// As `jbd2_commit_block_csum_verify_partial` of Linux, which e2fsck lacks.
#[test]
fn a_commit_block_that_is_torn_behind_its_fields_counts() {
    if tool::missing() {
        return;
    }
    let (mut bytes, journal) = two_transactions();
    bytes[(journal + FIRST_COMMIT * BLOCK) as usize + 600] = 0xff;
    assert_eq!(without_loss(&MemDevice::new(bytes), &[Stage::Safe]), Some([true, true]));
}

/// Linux looks at no number of users; e2fsck drops features and with them the log.
#[test]
fn a_number_of_users_costs_no_transaction() {
    if tool::missing() {
        return;
    }
    let (mut bytes, journal) = two_transactions();
    let superblock: &mut [u8; 1024] = bytes[journal as usize..].first_chunk_mut().unwrap();
    let mut decoded = JournalSuperblock::decode(superblock);
    decoded.nr_users = 2;
    decoded.encode_into(superblock);
    decoded.checksum = JournalSuperblock::compute_checksum(superblock);
    decoded.encode_into(superblock);
    let device = MemDevice::new(bytes);
    assert_eq!(without_loss(&device, &[Stage::Safe]), Some([true, true]));
}

/// Where errors are recorded, nobody works off the orphan list: neither may it stay for the next mount.
#[test]
fn a_clean_file_system_keeps_no_orphan_list() {
    if tool::missing() {
        return;
    }
    let (bytes, _) = two_transactions();
    let device = MemDevice::new(bytes);
    let mut superblock = [0; Superblock::SIZE];
    device.read_at(OFFSET_BYTES, &mut superblock).unwrap();
    let mut decoded = Superblock::decode(&superblock);
    (decoded.last_orphan, decoded.state) = (14, decoded.state | STATE_ERROR);
    decoded.encode_with_checksum(&mut superblock);
    device.write_at(OFFSET_BYTES, &superblock).unwrap();
    let mended = repair(&device, &options(), &mut floe_repair::policy::Yes).unwrap();
    assert!(mended.is_clean());
    mended.staged.read_at(OFFSET_BYTES, &mut superblock).unwrap();
    assert_eq!(Superblock::decode(&superblock).last_orphan, 0);
}

/// Nothing is lost with the damaged map of a journal that holds nothing; one in use is for a person.
#[test]
fn an_empty_journal_does_not_wait_for_a_person() {
    if tool::missing() {
        return;
    }
    for (profile, field) in [
        ("ext4-1k", "block[0] 0"),
        ("ext4-1k", "block[1] 90"),
        ("ext4-1k", "block[5] 99999999"),
        ("ext3", "block[3] 99999999"),
        ("ext3", "block[IND] 99999999"),
        // A block of descriptors, as a block of pointers.
        ("ext3", "block[DIND] 2"),
    ] {
        for (state, halts) in [
            ("", false),
            // It is made anew.
            ("ssv jnl_backup_type 0\n", false),
            // The log is read by the copy of the map.
            ("feature needs_recovery\n", false),
            ("feature needs_recovery\nssv jnl_backup_type 0\n", true),
        ] {
            let image = build::base(Profile::by_name(profile).unwrap()).unwrap();
            let script = format!("sif <8> {field}\n{state}");
            build::debugfs_that_tells(&image, &script).unwrap();
            let device = MemDevice::new(image.to_vec().unwrap());
            let repair = repair(&device, &options(), &mut floe_repair::policy::Preen).unwrap();
            let halted = repair.halted.is_some();
            assert_eq!(halted, halts, "{profile} {field} {state}: {:?}", repair.halted);
            assert_eq!(repair.changes(), !halted, "{profile} {field} {state}");
            assert!(halted || repair.is_clean(), "{profile} {field} {state}: {:?}", repair.left);
        }
    }
}
