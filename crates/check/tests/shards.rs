//! One check by many machines says what one machine says: for any number of shards, with any number of threads each,
//! their parts in any order, on sound and on damaged images. Parts that do not belong together are refused by name.

#![allow(clippy::unwrap_used, clippy::panic)] // a test may

use std::io::{self, Read};

use floe_blockdev::ReadBlocks;
use floe_check::checkpoint::{PartRefusal, Parts, Share};
use floe_check::{Accounting, CheckError, CheckOptions, check, check_shard};
use floe_testkit::rng::Rng;
use floe_testkit::{Image, Profile, build, damage, subjects, tool};

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

/// What is checked, and how.
struct Subject<'a> {
    device: &'a dyn ReadBlocks,
    accounting: Accounting,
    name: String,
}

impl Subject<'_> {
    fn options(&self, threads: usize, key: u8) -> CheckOptions<'static> {
        let (accounting, key) = (self.accounting, Some([key; 16]));
        CheckOptions { threads, accounting, key, ..CheckOptions::default() }
    }

    /// What a check says, without what depends on the clock.
    fn said(&self, options: &CheckOptions<'_>) -> Result<String, CheckError> {
        let report = check(self.device, options)?;
        Ok(format!(
            "{:?}\n{:?}\n{:?}\n{:?}\n{:#?}\n{:?}\n{:?}\n{:?}\n{:?}",
            report.verdict(),
            report.superblock,
            report.used_backup,
            report.journal,
            report.found,
            report.totals,
            report.clusters_used,
            report.paths,
            report.rescanned_groups
        ))
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

    /// What the merge of parts says. It has a key of its own, which must be of no importance.
    fn merged(&self, parts: &Memory, threads: usize) -> Result<String, CheckError> {
        self.said(&CheckOptions { parts: Some(parts), ..self.options(threads, 99) })
    }

    /// Whether `count` shards say what one machine says.
    fn in_shards(&self, count: u32, rng: &mut Rng, expected: &str) {
        let outcome = self.parts(count, rng).and_then(|mut parts| {
            for at in (1..parts.0.len()).rev() {
                parts.0.swap(at, rng.below(at as u64 + 1) as usize);
            }
            self.merged(&parts, 1 + rng.below(3) as usize)
        });
        let said = outcome.unwrap_or_else(|error| error.to_string());
        let Self { name, accounting, .. } = self;
        assert!(said == expected, "{name}, {accounting:?}, {count} shards:\n{expected}\nmerged: {said}");
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
        std::fs::write(folder.path().join(format!("{}/a-long-name-{at:064}", at % 30)), "").unwrap();
    }
    let image = Image::empty(64 << 20).unwrap();
    let source = folder.path().to_str().unwrap().to_owned();
    let options =
        ["-F", "-q", "-t", "ext4", "-b", "1024", "-g", "1024", "-N", "16384", "-d", source.as_str()];
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
