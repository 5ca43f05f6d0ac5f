//! Exact and fingerprint accounting give the same findings on a file system of many groups, where most of
//! it is not looked at a second time.

use floe_check::{Accounting, CheckOptions, Report, Tuning, check};
use floe_format::{GroupNr, InodeNr};
use floe_testkit::rng::Rng;
use floe_testkit::volume::Volume;
use floe_testkit::{Image, tool};
use floe_workload::fill::{Shape, fill, share_block};

/// First inode of the first directory that holds files; each has 99.
const FIRST_DIR: u32 = 76;

fn describe(report: &Report) -> String {
    format!(
        "{:#?}\n{:?}\n{}\n{:?}",
        report.found, report.totals, report.clusters_used, report.paths
    )
}

fn run(image: &Image, accounting: Accounting, threads: usize) -> Report {
    let tuning = Tuning { accounting, ..Tuning::default() };
    check(image, &CheckOptions { tuning, threads, ..Default::default() }).unwrap()
}

/// An image, and what was in the places that were written over.
struct Damaged<'a> {
    volume: Volume<'a>,
    saved: Vec<(u64, Vec<u8>)>,
    inodes: u32,
    rng: Rng,
}

impl Damaged<'_> {
    fn save(&mut self, offset_bytes: u64, len: usize) {
        let mut bytes = vec![0; len];
        self.volume.image.read(offset_bytes, &mut bytes).unwrap();
        self.saved.push((offset_bytes, bytes));
    }

    fn restore(mut self) {
        while let Some((offset_bytes, bytes)) = self.saved.pop() {
            self.volume.image.write(offset_bytes, &bytes).unwrap();
        }
    }

    fn below(&mut self, end: u32) -> u32 {
        self.rng.below(u64::from(end)) as u32
    }

    fn any_inode(&mut self) -> InodeNr {
        InodeNr(FIRST_DIR + self.below(self.inodes))
    }

    fn any_dir(&mut self) -> InodeNr {
        InodeNr(FIRST_DIR + self.below(self.inodes / 100) * 100)
    }

    /// Changes a field of an inode; its checksum is right every other time.
    fn inode(&mut self) -> String {
        const FIELDS: [usize; 9] = [0x00, 0x02, 0x04, 0x14, 0x1a, 0x1c, 0x20, 0x28 + 4, 0x28 + 20];
        let inode = if self.below(4) == 0 { self.any_dir() } else { self.any_inode() };
        self.save(self.volume.inode_offset(inode).unwrap(), 256);
        let mut bytes = self.volume.inode_bytes(inode).unwrap();
        let (at, value) = (FIELDS[self.below(9) as usize], self.below(5) as u8);
        bytes[at] = if self.below(3) == 0 { bytes[at] ^ 0x40 } else { value };
        self.volume.put_inode(inode, &bytes).unwrap();
        if self.below(2) == 0 {
            self.volume.fix_inode(inode).unwrap();
        }
        format!("byte {at:#x} of {inode}")
    }

    /// Changes the inode, the type, the length or a byte of the name of an entry.
    fn entry(&mut self) -> String {
        let dir = self.any_dir();
        let block = *self.volume.map(dir).unwrap().data.values().next().unwrap();
        let size = u64::from(self.volume.geometry.block_size);
        self.save(block.0 * size, size as usize);
        let mut bytes = self.volume.block(block).unwrap();
        let (wanted, mut at) = (self.below(12), 0);
        for _ in 0..wanted {
            at += usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]));
        }
        let what = self.below(8);
        match what {
            0 => bytes[at + 7] = self.below(9) as u8,
            1 => bytes[at + 4] ^= 4,
            2 => bytes[at + 8] ^= 1,
            3 => bytes[at..at + 4].fill(0),
            4 => bytes[at..at + 4].copy_from_slice(&self.any_dir().0.to_le_bytes()),
            5 => {
                // Behind the last one that is in use, and perhaps in a table that was never written.
                let inode = FIRST_DIR + self.inodes + self.below(9000);
                bytes[at..at + 4].copy_from_slice(&inode.to_le_bytes());
            }
            _ => bytes[at..at + 4].copy_from_slice(&self.any_inode().0.to_le_bytes()),
        }
        self.volume.put_block(block, &bytes).unwrap();
        if self.below(4) > 0 {
            self.volume.fix_dir_block(dir, block).unwrap();
        }
        format!("entry {wanted} of {dir} ({what})")
    }

    /// Flips a bit of a bitmap.
    fn bitmap(&mut self) -> String {
        let group = GroupNr(self.below(self.volume.geometry.group_count));
        let desc = self.volume.desc(group).unwrap();
        self.save(self.volume.desc_offset(group), 64);
        let of_blocks = self.below(2) == 0;
        let block = if of_blocks { desc.block_bitmap } else { desc.inode_bitmap };
        let size = u64::from(self.volume.geometry.block_size);
        self.save(block.0 * size, size as usize);
        let mut bytes = self.volume.block(block).unwrap();
        let at = self.below(900) as usize;
        bytes[at] ^= 1 << self.below(8);
        self.volume.put_block(block, &bytes).unwrap();
        if self.below(2) == 0 {
            self.volume.fix_bitmaps(group).unwrap();
        }
        format!("byte {at} of the bitmap of {group} ({of_blocks})")
    }

    /// Lets two files claim a block.
    fn shared(&mut self) -> String {
        let (one, other) = (self.any_dir(), self.any_dir());
        let (one, other) = (InodeNr(one.0 + 1 + self.below(99)), InodeNr(other.0 + 7));
        self.save(self.volume.inode_offset(other).unwrap(), 256);
        match share_block(self.volume.image, one, other) {
            Ok(_) => format!("{one} and {other} share a block"),
            Err(_) => "nothing".to_owned(),
        }
    }
}

fn seeds() -> u64 {
    let seeds = std::env::var("FLOE_ACCOUNTING_SEEDS").ok();
    seeds.and_then(|text| text.parse().ok()).unwrap_or(60)
}

#[test]
fn groups_that_are_not_proved() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-accounting-").unwrap();
    let shape = Shape { size_bytes: 1 << 30, ..Shape::file_intensive(30_000) };
    let image = fill(&folder.path().join("image"), shape).unwrap();
    let clean = run(&image, Accounting::Fingerprint, 1);
    assert_eq!((clean.rescanned_groups, clean.found.len()), (Some(0), 0));
    let (mut found, mut groups) = (0, 0);
    for seed in 0..seeds() {
        let volume = Volume::open(&image).unwrap();
        let inodes = shape.dirs * 100;
        let mut damaged = Damaged { volume, saved: Vec::new(), inodes, rng: Rng::new(seed) };
        let edits: Vec<String> = (0..=damaged.below(3))
            .map(|_| match damaged.below(8) {
                0..=2 => damaged.inode(),
                3..=5 => damaged.entry(),
                6 => damaged.bitmap(),
                _ => damaged.shared(),
            })
            .collect();
        let exact = run(&image, Accounting::Exact, 1);
        let summed = run(&image, Accounting::Fingerprint, 1 + seed as usize % 3);
        let (one, other) = (describe(&exact), describe(&summed));
        assert!(one == other, "seed {seed}, {edits:?}:\nexact: {one}\nsums: {other}");
        found += u64::from(!exact.found.is_empty());
        groups += u64::from(summed.rescanned_groups.unwrap());
        damaged.restore();
    }
    assert!(
        found * 4 > seeds() * 3 && groups > seeds() / 2,
        "{found} with findings, {groups} groups"
    );
    let again = run(&image, Accounting::Exact, 1);
    assert!(again.found.is_empty(), "the image was not restored");
}
