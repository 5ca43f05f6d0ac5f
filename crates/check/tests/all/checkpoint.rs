//! A check that is ended and goes on from its checkpoint says what an uninterrupted one says: wherever
//! it is ended, with any number of threads before and after, on sound and on damaged images, and
//! whatever became of the checkpoint meanwhile.

use std::cell::Cell;
use std::hash::Hasher;
use std::io::{self, Read, Write};

use floe_blockdev::ReadBlocks;
use floe_check::checkpoint::{Keeper, MAGIC, Notice, Refusal};
use floe_check::{Accounting, CheckError, CheckOptions, Checkpoints, JournalUse, Tuning, check};
use floe_exec::Interrupt;
use floe_sync::Mutex;
use floe_sync::atomic::{AtomicUsize, Ordering};
use floe_testkit::rng::Rng;
use floe_testkit::{Image, Profile, build, damage, subjects, tool};
use floe_workload::fill::aged::{Aged, Map};
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::outcome;

/// A checkpoint in memory. A leg ends after each unit; the check is ended after some of them.
#[derive(Default)]
struct Memory {
    bytes: Mutex<Option<Vec<u8>>>,
    interrupt: Interrupt,
    /// Legs that may still be kept before somebody wants to stop.
    legs_left: AtomicUsize,
    legs: AtomicUsize,
    restart: bool,
    /// Nothing can be appended any more.
    full: bool,
    notices: Mutex<Vec<String>>,
}

impl Memory {
    fn new(bytes: Option<Vec<u8>>, legs: usize) -> Self {
        Self { bytes: Mutex::new(bytes), legs_left: AtomicUsize::new(legs), ..Self::default() }
    }

    fn bytes(&self) -> Option<Vec<u8>> {
        self.bytes.lock().unwrap().clone()
    }

    fn notices(&self) -> String {
        self.notices.lock().unwrap().join("\n")
    }
}

impl Keeper for Memory {
    fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    fn due(&self) -> bool {
        true
    }

    fn restart(&self) -> bool {
        self.restart
    }

    fn stored(&self) -> io::Result<Option<Box<dyn Read + '_>>> {
        Ok(self.bytes().map(|bytes| Box::new(io::Cursor::new(bytes)) as Box<dyn Read>))
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        *self.bytes.lock().unwrap() = Some(bytes.to_vec());
        Ok(())
    }

    fn resume(&self, bytes: u64) -> io::Result<()> {
        let mut own = self.bytes.lock().unwrap();
        own.as_mut().unwrap().truncate(usize::try_from(bytes).unwrap());
        Ok(())
    }

    fn append(&self, write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        if self.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        write(self.bytes.lock().unwrap().as_mut().unwrap())?;
        self.legs.fetch_add(1, Ordering::Relaxed);
        if self.legs_left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.interrupt.ask();
        }
        Ok(())
    }

    fn tell(&self, notice: &Notice) {
        self.notices.lock().unwrap().push(format!("{notice:?}"));
    }
}

/// The device and options of a check.
struct Subject<'a> {
    device: &'a dyn ReadBlocks,
    accounting: Accounting,
    name: String,
}

impl Subject<'_> {
    /// The result of a check, without anything that depends on the clock, or its error.
    fn check(
        &self,
        threads: usize,
        key: u8,
        keeper: Option<&Memory>,
    ) -> Result<String, CheckError> {
        let options = CheckOptions {
            threads,
            tuning: Tuning {
                accounting: self.accounting,
                key: Some([key; 16]),
                ..Tuning::default()
            },
            checkpoints: kept(keeper),
            ..CheckOptions::default()
        };
        check(self.device, &options).map(|report| outcome::describe(&report))
    }

    /// The verdict of an uninterrupted check.
    fn verdict(&self) -> String {
        self.check(1, 7, None).unwrap_or_else(|error| error.to_string())
    }

    /// Ends a check after `legs` legs, again and again, until it ends by itself; comes back with how
    /// often it was ended.
    fn in_pieces(&self, legs: usize, rng: &mut Rng, expected: &str) -> usize {
        let mut bytes = None;
        for pieces in 0.. {
            let keeper = Memory::new(bytes, legs);
            // Another key each time: that of the first run counts.
            let (threads, key) =
                (1 + rng.below(MOST_THREADS as u64) as usize, rng.below(250) as u8);
            match self.check(threads, key, Some(&keeper)) {
                Err(CheckError::Stopped) => {}
                outcome => {
                    let said = outcome.unwrap_or_else(|error| error.to_string());
                    let what = || format!("{}, {legs} legs, {pieces} pieces", self.name);
                    assert!(said == expected, "{}:\n{expected}\nresumed: {said}", what());
                    return pieces;
                }
            }
            if pieces > 0 {
                assert!(keeper.notices().starts_with("Resumed"), "{}", keeper.notices());
            }
            bytes = keeper.bytes();
        }
        0
    }

    /// The checkpoint as it is when the check has ended by itself, and how many records it has.
    fn whole(&self) -> Option<(Vec<u8>, usize)> {
        let keeper = Memory::new(None, usize::MAX);
        // One thread: of several each may do a unit before a leg ends, so that there are fewer legs.
        self.check(1, 9, Some(&keeper)).ok()?;
        Some((keeper.bytes()?, keeper.legs.into_inner()))
    }
}

/// A subject that is checked object by object.
fn exact(device: &dyn ReadBlocks) -> Subject<'_> {
    Subject { device, accounting: Accounting::Exact, name: String::new() }
}

/// How many rounds a random test has: `FLOE_CHECKPOINT_ROUNDS`, for a longer run by hand.
fn rounds(usual: u64) -> u64 {
    std::env::var("FLOE_CHECKPOINT_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

const ACCOUNTINGS: [Accounting; 2] = [Accounting::Exact, Accounting::Fingerprint];

/// Threads of one piece of a check.
const MOST_THREADS: usize = 3;

/// A check of at least so many units cannot end in fewer pieces of `legs` legs, however its threads run: each does one
/// unit in a leg, and the next one if it had to prepare that.
fn least_pieces(units: usize, legs: usize) -> usize {
    units.div_ceil(2 * MOST_THREADS * legs) - 1
}

#[test]
fn sound_images_in_pieces() {
    if tool::missing() {
        return;
    }
    let mut rng = Rng::new(1);
    let mut pieces = 0;
    for &profile in Profile::ALL {
        let image = build::base(profile).unwrap();
        for accounting in ACCOUNTINGS {
            let name = format!("{} {accounting:?}", profile.name());
            let subject = Subject { device: &image, accounting, name };
            let expected = subject.verdict();
            let legs = 1 + rng.below(3) as usize;
            pieces += subject.in_pieces(legs, &mut rng, &expected);
        }
    }
    // Most have a leg for all inodes and one for all directories; the larger ones have more.
    assert!(pieces > Profile::ALL.len(), "{pieces} pieces");
}

#[test]
fn damaged_images_in_pieces() {
    if tool::missing() {
        return;
    }
    let mut rng = Rng::new(2);
    for damaged in subjects::damaged(700_000..700_000 + rounds(3)) {
        let (seed, subjects::Subject { image, name, .. }) = damaged.unwrap();
        let accounting = ACCOUNTINGS[(seed % 2) as usize];
        let subject = Subject { device: &image, accounting, name };
        let expected = subject.verdict();
        for legs in [1, 2 + rng.below(6) as usize] {
            subject.in_pieces(legs, &mut rng, &expected);
        }
    }
}

/// Every kind of finding is written down and read again.
#[test]
fn the_image_of_every_problem_in_pieces() {
    if tool::missing() {
        return;
    }
    let mut rng = Rng::new(3);
    for (at, of_problem) in subjects::of_every_problem().enumerate() {
        let of_problem = of_problem.unwrap();
        let (device, name) = (of_problem.device(), of_problem.name.clone());
        let subject = Subject { device: &device, accounting: ACCOUNTINGS[at % 2], name };
        let expected = subject.verdict();
        subject.in_pieces(1, &mut rng, &expected);
    }
}

/// A tree with so many directories that their pass has many legs.
fn many_directories() -> Option<Image> {
    if tool::missing() {
        return None;
    }
    let folder = tool::scratch("floe-many-").unwrap();
    for at in 0..1500 {
        let path = folder.path().join(format!("{}/{}", at % 30, at));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join(format!("file-{at}")), format!("{at}")).unwrap();
    }
    let image = Image::empty(64 << 20).unwrap();
    let source = folder.path().to_str().unwrap().to_owned();
    let options = ["-F", "-q", "-t", "ext4", "-b", "1024", "-N", "16384", "-d", source.as_str()];
    build::mke2fs(image.path(), &options).unwrap();
    Some(image)
}

#[test]
fn directories_in_pieces() {
    let Some(image) = many_directories() else { return };
    damage::damage(&image, 4).unwrap();
    let mut rng = Rng::new(4);
    for accounting in ACCOUNTINGS {
        let subject = Subject { device: &image, accounting, name: format!("{accounting:?}") };
        let expected = subject.verdict();
        let (_, records) = subject.whole().unwrap();
        assert!(records >= 10, "{records} records");
        for legs in 1..5 {
            let pieces = subject.in_pieces(legs, &mut rng, &expected);
            assert!(pieces >= least_pieces(records, legs), "{pieces} pieces of {legs} legs");
        }
    }
}

/// Files in so many pieces that workers claim their clusters in a bitmap that they have in common, which is settled
/// after each leg.
#[test]
fn aged_files_in_pieces() {
    if tool::missing() {
        return;
    }
    let mut rng = Rng::new(5);
    let folder = tool::scratch("floe-aged-").unwrap();
    let mut aged = Aged::new(Map::Extents, 9000, 4, &folder.path().join("aged")).unwrap();
    aged.age(40_000).unwrap();
    let (files, fragments, _) = aged.counts();
    assert!(fragments > 3 * files, "{fragments} pieces of {files} files");
    let image = aged.write(&folder.path().join("image")).unwrap();
    for seed in 0..1 + rounds(3) {
        if seed > 0 {
            damage::damage(&image, seed).unwrap();
        }
        let name = format!("{seed} times damaged");
        let subject = Subject { accounting: Accounting::Exact, name, device: &image };
        let expected = subject.verdict();
        // There is a leg for inodes and one for directories at least.
        for legs in [1, 2] {
            let pieces = subject.in_pieces(legs, &mut rng, &expected);
            assert!(pieces > 0, "all in {legs} legs");
        }
    }
}

/// Killed at any moment: of what was being written, any part may be there.
#[test]
fn a_checkpoint_cut_anywhere_is_gone_on_from() {
    let Some(image) = many_directories() else { return };
    let subject = exact(&image);
    let (expected, (bytes, _)) = (subject.verdict(), subject.whole().unwrap());
    let mut rng = Rng::new(5);
    let (mut resumed, mut restarted) = (0, 0);
    for round in 0..rounds(60) {
        let cut = if round < 12 {
            [7, 8, 9, 11, 12, 20, 40, 80, 150, 200, 250, bytes.len() - 1][round as usize]
        } else {
            rng.below(bytes.len() as u64) as usize
        };
        let keeper = Memory::new(Some(bytes[..cut].to_vec()), usize::MAX);
        let said = match subject.check(2, 1, Some(&keeper)) {
            // Not even the magic: nobody knows whose it is.
            Err(CheckError::Checkpoint(Refusal::NotOurs)) if cut < 8 => continue,
            outcome => outcome.unwrap(),
        };
        assert!(said == expected, "cut at {cut}");
        let notices = keeper.notices();
        resumed += u32::from(notices.contains("Resumed"));
        restarted += u32::from(notices.contains("damaged"));
    }
    assert!(resumed > 30 && restarted > 5, "{resumed} {restarted}");
}

/// Changed bytes are never believed, wherever they are.
#[test]
fn a_damaged_checkpoint_changes_no_verdict() {
    let Some(image) = many_directories() else { return };
    for accounting in ACCOUNTINGS {
        let subject = Subject { device: &image, accounting, name: "changed".to_owned() };
        let (expected, (bytes, _)) = (subject.verdict(), subject.whole().unwrap());
        let mut rng = Rng::new(6);
        for round in 0..rounds(60) {
            let mut bytes = bytes.clone();
            let at = rng.below(bytes.len() as u64) as usize;
            match round % 4 {
                0 => bytes[at] ^= 1 << rng.below(8),
                1 => bytes[at] = rng.below(256) as u8,
                2 => drop(bytes.drain(at..(at + 1 + rng.below(300) as usize).min(bytes.len()))),
                _ => {
                    let from = rng.below(bytes.len() as u64) as usize;
                    let piece = bytes[from..(from + 64).min(bytes.len())].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
            let ours = bytes.starts_with(MAGIC);
            let keeper = Memory::new(Some(bytes.clone()), usize::MAX);
            match subject.check(1, 1, Some(&keeper)) {
                Err(CheckError::Checkpoint(Refusal::NotOurs)) if !ours => {
                    assert!(keeper.bytes() == Some(bytes), "something of others was changed");
                }
                outcome => assert!(outcome.unwrap() == expected, "round {round}, at {at}"),
            }
        }
    }
}

#[test]
fn what_is_no_checkpoint_is_left_alone() {
    let Some(image) = many_directories() else { return };
    let subject = exact(&image);
    for bytes in [&b""[..], b"FLOE", b"root:x:0:0:root:/root:/bin/sh\n", &[0; 4096]] {
        for restart in [false, true] {
            let keeper = Memory { restart, ..Memory::new(Some(bytes.to_vec()), usize::MAX) };
            let error = subject.check(1, 1, Some(&keeper)).unwrap_err();
            assert!(matches!(error, CheckError::Checkpoint(Refusal::NotOurs)), "{error}");
            assert_eq!(keeper.bytes().unwrap(), bytes);
        }
    }
}

/// The checkpoint of a check that was ended after some legs.
fn ended(subject: &Subject<'_>, legs: usize) -> Vec<u8> {
    let keeper = Memory::new(None, legs);
    assert!(matches!(subject.check(2, 9, Some(&keeper)), Err(CheckError::Stopped)));
    keeper.bytes().unwrap()
}

#[test]
fn a_file_system_that_was_changed_is_checked_anew() {
    let Some(image) = many_directories() else { return };
    let bytes = ended(&exact(&image), 4);
    let anew = |image: &Image, why: &str| {
        let subject = exact(image);
        let keeper = Memory::new(Some(bytes.clone()), usize::MAX);
        assert_eq!(subject.check(1, 3, Some(&keeper)).unwrap(), subject.verdict());
        assert!(keeper.notices().contains(why), "{why}: {}", keeper.notices());
    };
    let commands = [
        ("ssv mtime 20240229120000", "mount"),
        ("ssv volume_name changed", "superblock"),
        ("set_bg 0 free_blocks_count 1", "descriptors"),
    ];
    for (command, why) in commands {
        let image = image.copy().unwrap();
        build::debugfs(&image, command).unwrap();
        anew(&image, why);
    }
    // Something in an inode table, behind the back of superblock and descriptors: each part was read,
    // and there are fewer of them than witnesses.
    let changed = image.copy().unwrap();
    let volume = floe_testkit::volume::Volume::open(&changed).unwrap();
    let root = floe_format::InodeNr::ROOT;
    let mut inode = volume.inode_bytes(root).unwrap();
    inode[8] ^= 1;
    volume.put_inode(root, &inode).unwrap();
    anew(&changed, "block");
}

#[test]
fn other_file_systems_and_options_are_refused() {
    let Some(image) = many_directories() else { return };
    let subject = exact(&image);
    let bytes = ended(&subject, 2);
    let refused = |subject: &Subject<'_>| {
        let keeper = Memory::new(Some(bytes.clone()), usize::MAX);
        let error = subject.check(1, 1, Some(&keeper)).unwrap_err();
        assert!(keeper.bytes().unwrap() == bytes && keeper.notices().is_empty());
        // Unless that is what is wanted.
        let keeper = Memory { restart: true, ..Memory::new(Some(bytes.clone()), usize::MAX) };
        assert_eq!(subject.check(1, 1, Some(&keeper)).unwrap(), subject.verdict());
        assert!(keeper.bytes().unwrap() != bytes);
        error
    };
    let other = Image::empty(8 << 20).unwrap();
    let uuid = "12345678-1234-4234-8234-123456789abc";
    build::mke2fs(other.path(), &["-t", "ext4", "-U", uuid]).unwrap();
    let error = refused(&Subject { device: &other, ..subject });
    assert!(matches!(error, CheckError::Checkpoint(Refusal::OtherFileSystem { .. })), "{error}");
    let error = refused(&Subject {
        device: &image,
        accounting: Accounting::Fingerprint,
        name: String::new(),
    });
    assert!(matches!(error, CheckError::Checkpoint(Refusal::OtherOptions { .. })), "{error}");
    let keeper = Memory::new(Some(bytes.clone()), usize::MAX);
    let options = CheckOptions {
        journal: JournalUse::Ignore,
        tuning: Tuning { accounting: Accounting::Exact, ..Tuning::default() },
        checkpoints: kept(Some(&keeper)),
        ..CheckOptions::default()
    };
    let error = check(&image, &options).err().unwrap();
    let text = error.to_string();
    assert!(text.contains("with the journal") && text.contains("without the journal"), "{text}");
}

fn kept(keeper: Option<&Memory>) -> Checkpoints<'_> {
    Checkpoints { keeper: keeper.map(|keeper| keeper as &dyn Keeper), parts: None }
}

/// The time of a resumed check is that of its beginning: so are its findings about times.
#[test]
fn the_present_is_when_the_check_was_begun() {
    let Some(image) = many_directories() else { return };
    let now = Cell::new(0);
    let at = |seconds: i64, keeper: Option<&Memory>| {
        now.set(seconds);
        let options = CheckOptions {
            now_seconds: now.get(),
            tuning: Tuning { accounting: Accounting::Exact, ..Tuning::default() },
            checkpoints: kept(keeper),
            ..CheckOptions::default()
        };
        check(&image, &options).map(|report| format!("{:?}", report.found))
    };
    let (early, late) = (at(1000, None).unwrap(), at(1 << 40, None).unwrap());
    assert_ne!(early, late, "the image is from the future of 1970");
    let keeper = Memory::new(None, 3);
    assert!(matches!(at(1000, Some(&keeper)), Err(CheckError::Stopped)));
    let keeper = Memory::new(keeper.bytes(), usize::MAX);
    assert_eq!(at(1 << 40, Some(&keeper)).unwrap(), early);
}

#[test]
fn a_checkpoint_that_cannot_be_written_ends_no_check() {
    let Some(image) = many_directories() else { return };
    let subject = exact(&image);
    let keeper = Memory { full: true, ..Memory::new(None, usize::MAX) };
    assert_eq!(subject.check(2, 1, Some(&keeper)).unwrap(), subject.verdict());
    assert_eq!(keeper.notices().matches("Lost").count(), 1, "{}", keeper.notices());
}

/// The sizes that docs/resume.md states: bytes for each inode and directory.
#[test]
fn a_checkpoint_is_small() {
    let Some(image) = many_directories() else { return };
    let subject = exact(&image);
    let (bytes, _) = subject.whole().unwrap();
    // 1531 directories and as many files; a few witnesses and the frames of each leg besides.
    assert!(bytes.len() < 3000 * 30, "{} bytes", bytes.len());
}

/// The hash that ties a frame to what was before it (`saved/frames.rs`).
fn link(chain: u128, word: u32, payload: &[u8]) -> u128 {
    let mut hasher = SipHasher24::new_with_key(b"floe checkpoint ");
    hasher.write(&chain.to_le_bytes());
    hasher.write(&word.to_le_bytes());
    hasher.write(payload);
    hasher.finish128().as_u128()
}

/// The same frames with some bytes changed behind the header, and hashes that fit.
fn forge(bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
    let (mut forged, mut rest, mut chain) = (bytes[..8].to_vec(), &bytes[8..], 0);
    let changed = 1 + rng.below(3) as usize;
    let frames = {
        let (mut count, mut rest) = (0, rest);
        while !rest.is_empty() {
            let word = u32::from_le_bytes(rest[..4].try_into().unwrap());
            rest = &rest[20 + (word & 0x7fff_ffff) as usize..];
            count += 1;
        }
        count
    };
    let chosen: Vec<u64> = (0..changed).map(|_| 1 + rng.below(frames - 1)).collect();
    for frame in 0..frames {
        let word = u32::from_le_bytes(rest[..4].try_into().unwrap());
        let len = (word & 0x7fff_ffff) as usize;
        let mut payload = rest[4..4 + len].to_vec();
        for _ in chosen.iter().filter(|&&chosen| chosen == frame) {
            let at = rng.below(len as u64) as usize;
            payload[at] = match rng.below(3) {
                0 => payload[at] ^ 1 << rng.below(8),
                1 => payload[at].wrapping_add(2),
                _ => rng.below(256) as u8,
            };
        }
        chain = link(chain, word, &payload);
        forged.extend_from_slice(&word.to_le_bytes());
        forged.extend_from_slice(&payload);
        forged.extend_from_slice(&chain.to_le_bytes());
        rest = &rest[20 + len..];
    }
    forged
}

/// Whoever may write the file can make a check say anything, but not have it go astray.
#[test]
fn a_forged_checkpoint_ends_no_check_badly() {
    let Some(image) = many_directories() else { return };
    let mut rng = Rng::new(8);
    let (mut resumed, mut total) = (0, 0);
    for accounting in ACCOUNTINGS {
        let subject = Subject { device: &image, accounting, name: "forged".to_owned() };
        let (bytes, _) = subject.whole().unwrap();
        for _ in 0..rounds(60) {
            let keeper = Memory::new(Some(forge(&bytes, &mut rng)), usize::MAX);
            subject.check(2, 1, Some(&keeper)).unwrap();
            resumed += u32::from(keeper.notices().contains("Resumed"));
            total += 1;
        }
    }
    assert!(resumed > total / 4, "{resumed} of {total} were gone on from");
}
