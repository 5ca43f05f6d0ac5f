//! One check by many machines says what one machine says: for any number of shards, with any number of threads each,
//! their parts in any order, on sound and on damaged images. Parts that do not belong together are refused by name.

mod attributes;

use std::io::{self, Read};

use floe_blockdev::{Counted, ReadBlocks};
use floe_check::checkpoint::{PartRefusal, Parts, Share};
use floe_check::{
    Accounting, CheckError, CheckOptions, Checkpoints, Tuning, check, check_shard, refine_shard,
};
use floe_ext4::fs::FileSystem;
use floe_sync::atomic::{AtomicUsize, Ordering};
use floe_testkit::rng::Rng;
use floe_testkit::{Image, Profile, build, damage, subjects, tool};

use crate::outcome;

/// Parts in memory, with their names.
struct Memory(Vec<(String, Vec<u8>)>);

impl Parts for Memory {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn name(&self, at: usize) -> String {
        self.0[at].0.clone()
    }
    fn open(&self, at: usize) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(&self.0[at].1[..]))
    }
}

impl Memory {
    fn shuffle(&mut self, rng: &mut Rng) {
        for at in (1..self.0.len()).rev() {
            self.0.swap(at, rng.below(at as u64 + 1) as usize);
        }
    }
}

/// An image and the way to check it.
fn merging(parts: &Memory) -> Checkpoints<'_> {
    Checkpoints { parts: Some(parts), keeper: None }
}

struct Subject<'a> {
    device: &'a dyn ReadBlocks,
    accounting: Accounting,
    name: String,
}

impl Subject<'_> {
    fn options(&self, threads: usize, key: u8) -> CheckOptions<'static> {
        let (accounting, key) = (self.accounting, Some([key; 16]));
        let tuning = Tuning { accounting, key, ..Tuning::default() };
        CheckOptions { threads, tuning, ..CheckOptions::default() }
    }

    /// The result of a check, without anything that depends on the clock, or its error.
    fn said(&self, options: &CheckOptions<'_>) -> Result<String, CheckError> {
        check(self.device, options).map(|report| outcome::describe(&report))
    }

    /// The verdict of one machine.
    fn verdict(&self) -> String {
        self.said(&self.options(1, 7)).unwrap_or_else(|error| error.to_string())
    }

    /// The part of one shard.
    fn part(&self, index: u32, count: u32, threads: usize) -> Result<Vec<u8>, CheckError> {
        let share = Share::new(index, count).unwrap();
        let part = check_shard(self.device, &self.options(threads, 7), share)?;
        let mut bytes = Vec::new();
        part.write(&mut bytes).unwrap();
        Ok(bytes)
    }

    /// The parts of all shards.
    fn parts(&self, count: u32, rng: &mut Rng) -> Result<Memory, CheckError> {
        let part = |index| {
            let threads = 1 + rng.below(3) as usize;
            Ok((format!("part {index}"), self.part(index, count, threads)?))
        };
        (0..count).map(part).collect::<Result<_, _>>().map(Memory)
    }

    /// Adds the parts of the next round of refinement, by `count` shards.
    fn refine(&self, parts: &mut Memory, count: u32, rng: &mut Rng) -> Result<(), CheckError> {
        let part = |index| {
            let options = self.options(1 + rng.below(3) as usize, 99);
            let options = CheckOptions { checkpoints: merging(parts), ..options };
            let part = refine_shard(self.device, &options, Share::new(index, count).unwrap())?;
            let mut bytes = Vec::new();
            part.write(&mut bytes).unwrap();
            Ok((format!("{:?} {index}", part.round()), bytes))
        };
        let round: Vec<_> = (0..count).map(part).collect::<Result<_, CheckError>>()?;
        parts.0.extend(round);
        Ok(())
    }

    /// The report of the merge as text. Its options have another key, which must not matter.
    fn merged(&self, parts: &Memory, threads: usize) -> Result<String, CheckError> {
        self.said(&CheckOptions { checkpoints: merging(parts), ..self.options(threads, 99) })
    }

    /// Asserts that `count` shards report what one machine reports.
    fn in_shards(&self, count: u32, rng: &mut Rng, expected: &str) {
        let mut parts = Memory(Vec::new());
        let outcome = self.parts(count, rng).and_then(|of_shards| {
            parts = of_shards;
            parts.shuffle(rng);
            self.merged(&parts, 1 + rng.below(3) as usize)
        });
        let could = outcome.is_ok();
        self.compare(outcome, expected, &format!("{count} shards"));
        for round in 1..=u32::from(could) * 2 {
            let of_round = 1 + rng.below(5) as u32;
            let outcome = self.refine(&mut parts, of_round, rng).and_then(|()| {
                parts.shuffle(rng);
                self.merged(&parts, 1 + rng.below(3) as usize)
            });
            let how = format!("{count} shards, round {round} of refinement by {of_round}");
            self.compare(outcome, expected, &how);
        }
    }

    fn compare(&self, outcome: Result<String, CheckError>, expected: &str, how: &str) {
        let said = outcome.unwrap_or_else(|error| error.to_string());
        let Self { name, accounting, .. } = self;
        assert!(said == expected, "{name}, {accounting:?}, {how}:\n{expected}\nmerged: {said}");
    }
}

/// How many rounds a random test has: `FLOE_SHARDS_ROUNDS`, for a longer run by hand.
fn rounds(usual: u64) -> u64 {
    std::env::var("FLOE_SHARDS_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

const ACCOUNTINGS: [Accounting; 2] = [Accounting::Exact, Accounting::Fingerprint];
const COUNTS: [u32; 4] = [1, 2, 5, 16];

#[test]
fn sound_images_in_shards() {
    if tool::missing() {
        return;
    }
    let mut rng = Rng::new(1);
    for &profile in Profile::ALL {
        let image = build::base(profile).unwrap();
        for accounting in ACCOUNTINGS {
            let name = profile.name().to_owned();
            let subject = Subject { device: &image, accounting, name };
            let expected = subject.verdict();
            COUNTS.into_iter().for_each(|count| subject.in_shards(count, &mut rng, &expected));
        }
    }
}

#[test]
fn damaged_images_in_shards() {
    if tool::missing() {
        return;
    }
    let mut rng = Rng::new(2);
    for damaged in subjects::damaged(800_000..800_000 + rounds(2)) {
        let (_, subjects::Subject { image, name, .. }) = damaged.unwrap();
        for accounting in ACCOUNTINGS {
            let subject = Subject { device: &image, accounting, name: name.clone() };
            let expected = subject.verdict();
            COUNTS.into_iter().for_each(|count| subject.in_shards(count, &mut rng, &expected));
        }
    }
}

/// Every kind of finding is written into a part and read again.
#[test]
fn the_image_of_every_problem_in_shards() {
    if tool::missing() {
        return;
    }
    let mut rng = Rng::new(3);
    for of_problem in subjects::of_every_problem() {
        let of_problem = of_problem.unwrap();
        for accounting in ACCOUNTINGS {
            let (device, name) = (of_problem.device(), of_problem.name.clone());
            let subject = Subject { device: &device, accounting, name };
            let expected = subject.verdict();
            let count = COUNTS[1 + rng.below(3) as usize];
            subject.in_shards(count, &mut rng, &expected);
        }
    }
}

/// Many groups and directories, so that each shard has some, and names lead from one to another.
fn many_directories() -> Option<Image> {
    if tool::missing() {
        return None;
    }
    let folder = tool::scratch("floe-many-").unwrap();
    for at in 0..1500 {
        let path = folder.path().join(format!("{}/{}", at % 30, at));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join(format!("file-{at}")), format!("{at}")).unwrap();
        // Directories that are large enough for an index.
        std::fs::write(folder.path().join(format!("{}/a-long-name-{at:064}", at % 30)), "")
            .unwrap();
    }
    let image = Image::empty(64 << 20).unwrap();
    let source = folder.path().to_str().unwrap().to_owned();
    let options = [
        "-F",
        "-q",
        "-t",
        "ext4",
        "-b",
        "1024",
        "-g",
        "1024",
        "-N",
        "16384",
        "-d",
        source.as_str(),
    ];
    build::mke2fs(image.path(), &options).unwrap();
    Some(image)
}

#[test]
fn many_groups_in_shards() {
    let Some(image) = many_directories() else { return };
    let mut rng = Rng::new(4);
    for seed in 0..1 + rounds(4) {
        if seed > 0 {
            damage::damage(&image, seed).unwrap();
        }
        for accounting in ACCOUNTINGS {
            let name = format!("{seed} times damaged");
            let subject = Subject { device: &image, accounting, name };
            let expected = subject.verdict();
            COUNTS.into_iter().for_each(|count| subject.in_shards(count, &mut rng, &expected));
        }
    }
}

/// The refusal of a merge of these parts.
fn refusal(subject: &Subject<'_>, parts: Vec<(&str, Vec<u8>)>) -> PartRefusal {
    let parts = parts.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
    match subject.merged(&Memory(parts), 1) {
        Err(CheckError::Parts(refusal)) => refusal,
        other => panic!("merged: {other:?}"),
    }
}

#[test]
fn lost_repeated_and_foreign_parts_are_named() {
    let Some(image) = many_directories() else { return };
    let by_sums = |device| {
        let (accounting, name) = (Accounting::Fingerprint, String::new());
        Subject { device, accounting, name }
    };
    let subject = by_sums(&image);
    let part = |index| subject.part(index, 3, 1).unwrap();
    let (a, b, c) = (part(0), part(1), part(2));
    // A shard that is run again, with other threads, may take the place of an earlier run.
    let again = subject.part(1, 3, 3).unwrap();
    let whole = Memory([&c, &again, &a].map(|part| (String::new(), part.clone())).to_vec());
    assert_eq!(subject.merged(&whole, 1).unwrap(), subject.verdict());

    let text = refusal(&subject, vec![("a", a.clone()), ("c", c.clone())]).to_string();
    assert_eq!(text, "parts are missing: of 3 shards there is none of 1");
    let all = vec![("a", a.clone()), ("b", b.clone()), ("c", c.clone()), ("b2", again)];
    let text = refusal(&subject, all).to_string();
    assert_eq!(text, "b2 and b are both of shard 1/3: give only one of them");
    let with = |bytes: Vec<u8>| vec![("a", a.clone()), ("b", b.clone()), ("other", bytes)];
    let foreign = |bytes| match refusal(&subject, with(bytes)) {
        PartRefusal::Foreign { name, how } if name == "other" => how,
        other => panic!("{other}"),
    };
    let of_four = subject.part(2, 4, 1).unwrap();
    assert_eq!(foreign(of_four), "it is of 4 shards, a of 3");
    let share = Share::new(2, 3).unwrap();
    let with_options = |options: &CheckOptions<'_>| {
        let mut bytes = Vec::new();
        check_shard(&image, options, share).unwrap().write(&mut bytes).unwrap();
        bytes
    };
    let options = subject.options(1, 7);
    let tuned = |tuning| CheckOptions { tuning, ..options };
    assert_eq!(
        foreign(with_options(&tuned(Tuning { key: Some([8; 16]), ..options.tuning }))),
        "its key is not that of a"
    );
    let later = CheckOptions { now_seconds: options.now_seconds + 1, ..options };
    assert!(foreign(with_options(&later)).contains("another time"));
    let exact = tuned(Tuning { accounting: Accounting::Exact, ..options.tuning });
    assert!(foreign(with_options(&exact)).contains("object by object, in 3 shards"));
    let other = Image::empty(64 << 20).unwrap();
    let uuid =
        ["-F", "-q", "-t", "ext4", "-b", "1024", "-U", "01234567-89ab-cdef-0123-456789abcdef"];
    build::mke2fs(other.path(), &uuid).unwrap();
    let how = foreign(by_sums(&other).part(2, 3, 1).unwrap());
    assert!(how.contains("another file system"), "{how}");
    for (cut, how) in [(c.len() - 1, "truncated"), (c.len() / 2, "truncated"), (40, "truncated")] {
        let text = refusal(&subject, with(c[..cut].to_vec())).to_string();
        assert_eq!(text, format!("other is {how}: run its shard again"), "{cut}");
    }
    let mut rng = Rng::new(5);
    for _ in 0..rounds(40) {
        let (mut bytes, at) = (c.clone(), 8 + rng.below(c.len() as u64 - 8) as usize);
        bytes[at] ^= 1 << rng.below(8);
        let refusal = refusal(&subject, with(bytes));
        assert!(matches!(refusal, PartRefusal::Damaged { .. }), "{at}: {refusal}");
    }
    for bytes in [&b""[..], b"FLOE", &[0; 4096], &[&c[..], b"x"].concat()] {
        let refusal = refusal(&subject, with(bytes.to_vec()));
        assert!(matches!(refusal, PartRefusal::NotOurs { .. } | PartRefusal::Damaged { .. }));
    }
}

/// Parts of which others take the place when each of them was opened once.
struct Replaced {
    before: Memory,
    after: Memory,
    opened: AtomicUsize,
}

impl Parts for Replaced {
    fn count(&self) -> usize {
        self.before.count()
    }
    fn name(&self, at: usize) -> String {
        self.before.name(at)
    }
    fn open(&self, at: usize) -> io::Result<Box<dyn Read + '_>> {
        let opened = self.opened.fetch_add(1, Ordering::Relaxed);
        if opened < self.count() { self.before.open(at) } else { self.after.open(at) }
    }
}

/// Parts are opened twice: for their places first.
#[test]
fn parts_that_change_while_they_are_read_are_refused() {
    let Some(image) = many_directories() else { return };
    let (accounting, name) = (Accounting::Fingerprint, String::new());
    let subject = Subject { device: &image, accounting, name };
    let before = || subject.parts(2, &mut Rng::new(10)).unwrap();
    let said = |after: Memory| {
        let parts = Replaced { before: before(), after, opened: AtomicUsize::new(0) };
        let checkpoints = Checkpoints { parts: Some(&parts), keeper: None };
        subject.said(&CheckOptions { checkpoints, ..subject.options(1, 99) })
    };
    assert_eq!(said(before()).unwrap(), subject.verdict(), "a shard that ran again");
    let mut other_shards = before();
    other_shards.0.swap(0, 1);
    let other_check = Memory(subject.parts(3, &mut Rng::new(10)).unwrap().0[..2].to_vec());
    for after in [other_shards, other_check] {
        let text = said(after).unwrap_err().to_string();
        let how = "part 0 is no part of this check: it was replaced while parts were read";
        assert!(text.ends_with(how), "{text}");
    }
}

#[test]
fn parts_of_a_file_system_that_was_changed_are_refused() {
    let Some(image) = many_directories() else { return };
    let (accounting, name) = (Accounting::Fingerprint, String::new());
    let subject = Subject { device: &image, accounting, name };
    // So few that all witnesses are asked.
    let parts = subject.parts(2, &mut Rng::new(6)).unwrap();
    let commands = [
        ("ssv mtime 20240229120000", "mount"),
        ("ssv volume_name changed", "superblock"),
        ("set_bg 0 free_blocks_count 1", "descriptors"),
        ("sif / mtime 20240229120000", "what is in block"),
    ];
    for (command, why) in commands {
        let changed = image.copy().unwrap();
        build::debugfs(&changed, command).unwrap();
        let subject = Subject { device: &changed, name: String::new(), ..subject };
        match subject.merged(&parts, 1) {
            Err(CheckError::Parts(refusal @ PartRefusal::Changed { .. })) => {
                assert!(refusal.to_string().contains(why), "{refusal}");
            }
            other => panic!("{command}: {other:?}"),
        }
    }
}

/// Limits the bytes of parts, and the bytes that shards and the merge read.
#[test]
fn parts_are_small_and_the_merge_reads_little() {
    let Some(image) = many_directories() else { return };
    let counted = Counted::new(&image);
    let (accounting, name) = (Accounting::Fingerprint, String::new());
    let subject = Subject { device: &counted, accounting, name };
    let expected = subject.verdict();
    let alone = counted.counts().bytes;
    let parts = subject.parts(16, &mut Rng::new(7)).unwrap();
    let shards = counted.counts().bytes - alone;
    assert_eq!(subject.merged(&parts, 1).unwrap(), expected);
    let merge = counted.counts().bytes - alone - shards;
    let bytes: usize = parts.0.iter().map(|(_, part)| part.len()).sum();
    // 4,541 inodes, 1,531 of them directories; 16 times the header.
    assert!(bytes < 120_000, "{bytes} bytes of parts");
    assert!(merge * 10 < alone, "{merge} bytes read by the merge, {alone} by one check");
    // Each shard reads all descriptors and a few places twice; here there are few inodes to each.
    assert!(shards * 10 < alone * 12, "{shards} bytes read by 16 shards, {alone} by one check");
    println!(
        "{alone} bytes read by one check, {shards} by shards, {merge} by the merge; parts {bytes}"
    );
}

/// Every group is damaged. After both rounds the merge reads as little as that of a sound file system, because the
/// shards of the rounds have shared the closer look.
#[test]
fn refinement_leaves_the_merge_little_to_read() {
    let Some(image) = many_directories() else { return };
    let names: Vec<String> = (0..1500).step_by(7).map(|at| format!("/{}/{at}", at % 30)).collect();
    let commands: Vec<String> =
        names.iter().map(|name| format!("sif {name} links_count 9")).collect();
    build::debugfs(&image, &commands.join("\n")).unwrap();
    let counted = Counted::new(&image);
    let (accounting, name) = (Accounting::Fingerprint, String::new());
    let subject = Subject { device: &counted, accounting, name };
    let expected = subject.verdict();
    assert!(expected.contains("LinkCountWrong"), "{expected}");
    let mut rng = Rng::new(8);
    let mut parts = subject.parts(4, &mut rng).unwrap();
    let reads = |work: &mut dyn FnMut()| {
        let before = counted.counts().bytes;
        work();
        counted.counts().bytes - before
    };
    let merge =
        |parts: &Memory| reads(&mut || assert_eq!(subject.merged(parts, 1).unwrap(), expected));
    let alone = merge(&parts);
    let mut bytes = Vec::new();
    for shards in [3, 3] {
        let all = reads(&mut || subject.refine(&mut parts, shards, &mut rng).unwrap());
        bytes.push((all, merge(&parts)));
    }
    println!("{alone} bytes read by the merge alone; by a round and the merge after it: {bytes:?}");
    let [(_, after_inodes), (_, after_names)] = bytes[..] else { panic!("{bytes:?}") };
    assert!(after_inodes < alone, "{after_inodes} of {alone}");
    assert!(after_names * 3 < alone, "{after_names} of {alone}");
}

/// Changes the access time in each place of the inode tables.
fn change_each_inode(image: &Image) {
    let layout = FileSystem::open(image).unwrap();
    let geo = layout.geometry();
    let blocks = u64::from(geo.inodes_per_group) * u64::from(geo.inode_size);
    for group in layout.space.groups.descs() {
        let from = geo.offset_bytes(group.inode_table);
        for at in (from..from + blocks).step_by(geo.inode_size as usize) {
            let mut byte = [0];
            image.read(at + 8, &mut byte).unwrap();
            image.write(at + 8, &[byte[0] ^ 1]).unwrap();
        }
    }
}

#[test]
fn refinements_that_do_not_fit_are_refused() {
    let Some(image) = many_directories() else { return };
    damage::damage(&image, 11).unwrap();
    let (accounting, name) = (Accounting::Fingerprint, String::new());
    let subject = Subject { device: &image, accounting, name };
    let mut rng = Rng::new(9);
    let mut parts = subject.parts(3, &mut rng).unwrap();
    let said = |parts: &[&(String, Vec<u8>)]| {
        let parts = Memory(parts.iter().copied().cloned().collect());
        let text = subject.merged(&parts, 1).unwrap_err().to_string();
        text.strip_prefix("the parts cannot be merged: ").unwrap().to_owned()
    };
    subject.refine(&mut parts, 2, &mut rng).unwrap();
    let [a, b, c, inodes, other] = &parts.0[..] else { panic!() };
    assert_eq!(
        said(&[a, b, c, other]),
        "parts are missing: of 2 refinements (inodes) there is none of 0"
    );
    assert_eq!(said(&[inodes, other]), "parts are missing: of 1 shards there is none of 0");
    assert_eq!(
        said(&[a, b, c, inodes, other, other]),
        "Inodes 1 and Inodes 1 are both of refinement (inodes) 1/2: give only one of them"
    );
    subject.refine(&mut parts, 1, &mut rng).unwrap();
    let [a, b, c, inodes, _, names] = &parts.0[..] else { panic!() };
    assert!(said(&[a, b, c, names]).contains("refinements (inodes)"));
    assert!(said(&[a, b, c, inodes, names]).contains("there is none of 1"));
    let again = subject.refine(&mut parts, 1, &mut rng).unwrap_err().to_string();
    assert!(again.contains("merge them without --refine"), "{again}");
    // A file system that is another one in each place that may be asked about: which of them are is chosen at random.
    let mut rounds = Memory(parts.0[..3].to_vec());
    let other = image.copy().unwrap();
    change_each_inode(&other);
    let elsewhere = Subject { device: &other, name: String::new(), ..subject };
    let foreign = elsewhere.refine(&mut rounds, 1, &mut rng).unwrap_err();
    assert!(matches!(foreign, CheckError::Parts(_)), "{foreign}");
}
