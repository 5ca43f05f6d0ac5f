//! An examination that looks again at what was edited, and takes the rest over from the one before, leaves
//! what one leaves that looks at everything: whatever was changed, where nobody said, too.

use std::collections::BTreeSet;

use floe_blockdev::{MemDevice, Overlay, ReadBlocks, WriteBlocks};
use floe_check::open::open;
use floe_check::problem::Findings;
use floe_check::rescan::{Before, Earlier, Since};
use floe_check::{CheckOptions, Examination, JournalUse, examine, examine_again};
use floe_format::InodeNr;
use floe_format::ext::inode::write_checksum;
use floe_format::features::RoCompat;
use floe_testkit::rng::Rng;
use floe_testkit::volume::{Volume, survey};
use floe_testkit::{Image, Profile, build, damage, tool};

use crate::examined::describe;

const OPTIONS: fn(usize) -> CheckOptions<'static> =
    |threads| CheckOptions { threads, journal: JournalUse::Ignore, ..CheckOptions::default() };

/// An image in memory, and where on it things are.
struct Subject {
    overlay: Overlay<MemDevice>,
    /// Ranges of bytes of metadata.
    places: Vec<(u64, usize)>,
    /// Inodes in use, and the bytes at which each begins.
    inodes: Vec<(InodeNr, u64)>,
    seed: floe_format::crc::Seed,
    inode_bytes: usize,
    with_checksums: bool,
}

impl Subject {
    /// `base` says where things are; `image` is that, damaged or not.
    fn new(base: &Image, image: &Image) -> Self {
        let volume = Volume::open(base).unwrap();
        let places = survey(&volume).unwrap().into_iter();
        let used = volume.used_inodes().unwrap().into_iter();
        let device = MemDevice::new(image.to_vec().unwrap());
        Self {
            overlay: Overlay::new(device, volume.geometry.block_size),
            places: places.map(|place| volume.range_of(place).unwrap()).collect(),
            inodes: used.map(|inode| (inode, volume.inode_offset(inode).unwrap())).collect(),
            seed: volume.superblock.seed(),
            inode_bytes: volume.geometry.inode_size as usize,
            with_checksums: volume.geometry.features.ro_compat.contains(RoCompat::METADATA_CSUM),
        }
    }

    fn whole(&self) -> Option<Examination<'_>> {
        let opened = open(&self.overlay, OPTIONS(2).superblock).ok()?;
        examine(&self.overlay, opened, Findings::default(), &OPTIONS(2)).ok()
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.overlay.write_at(at, bytes).unwrap();
    }

    /// Changes words of an inode, mostly with a checksum that fits.
    fn change_inode(&self, rng: &mut Rng, (inode, at): (InodeNr, u64)) {
        let mut bytes = vec![0; self.inode_bytes];
        self.overlay.read_at(at, &mut bytes).unwrap();
        match rng.below(6) {
            0 => bytes.fill(0),
            // The map of another inode: blocks are claimed twice.
            1 => {
                let (_, other) = *rng.pick(&self.inodes).unwrap();
                self.overlay.read_at(other + 0x1c, &mut bytes[0x1c..0x64]).unwrap();
            }
            _ => {
                let word = rng.index(32) * 4;
                let new = if rng.chance(2) { 0 } else { rng.next_u64() as u32 };
                bytes[word..word + 4].copy_from_slice(&new.to_le_bytes());
            }
        }
        if self.with_checksums && !rng.chance(4) {
            write_checksum(&mut bytes, self.seed, inode).unwrap();
        }
        self.write(at, &bytes);
    }

    /// Changes something that nobody named.
    fn change_anything(&self, rng: &mut Rng) {
        let (at, len) = *rng.pick(&self.places).unwrap();
        let mut bytes = [0; 4];
        rng.fill(&mut bytes);
        let len = len.min(4);
        let within = rng.below(4.max(len as u64)).min(4);
        self.write(at + within / 4 * 4, &bytes[..len]);
    }
}

/// Names some inodes, changes them and perhaps something else, and compares; returns whether the short
/// examination was one.
fn change_and_compare(base: &Image, image: &Image, rng: &mut Rng, what: &str) -> Vec<bool> {
    let subject = Subject::new(base, image);
    let mut short = Vec::new();
    let Some(mut last) = subject.whole() else { return short };
    for step in 0..3 {
        let named: Vec<_> =
            (0..1 + rng.below(3)).map(|_| *rng.pick(&subject.inodes).unwrap()).collect();
        let inodes: BTreeSet<InodeNr> = named.iter().map(|(inode, _)| *inode).collect();
        let before = Before::look(&last, &inodes, 100, 2);
        subject.overlay.watch();
        for inode in &named {
            subject.change_inode(rng, *inode);
        }
        if rng.chance(3) {
            subject.change_anything(rng);
        }
        let changed = subject.overlay.take_changed().unwrap();
        let earlier = before.and_then(|before| Earlier::new(last, before));
        let since = earlier.map(|earlier| Since { earlier, changed });
        let Ok(opened) = open(&subject.overlay, OPTIONS(2).superblock) else { return short };
        let found = Findings::default();
        let again = examine_again(&subject.overlay, opened, found, &OPTIONS(2), since);
        let (again, whole) = match (again, subject.whole()) {
            (Ok(again), Some(whole)) => (again, whole),
            (Err(_), None) => return short,
            _ => panic!("{what}, step {step}: one of two examinations failed"),
        };
        short.push(again.rescanned_parts.is_some());
        let again_parts = again.rescanned_parts;
        let (left, right) = (describe(&again), describe(&whole));
        assert!(
            left == right,
            "{what}, step {step}, {named:?}, {again_parts:?} parts:\nagain: {left}\nwhole: {right}"
        );
        // The next one goes on from this one, short or not.
        last = again;
    }
    short
}

#[test]
fn a_short_examination_leaves_what_a_whole_one_leaves() {
    if tool::missing() {
        return;
    }
    let rounds: u64 = std::env::var("FLOE_RESCAN_ROUNDS").map_or(2, |text| text.parse().unwrap());
    let mut short = Vec::new();
    for &profile in Profile::ALL {
        let base = build::base(profile).unwrap();
        for seed in 0..rounds {
            let mut rng = Rng::new(seed);
            let image = base.copy().unwrap();
            if seed % 2 == 1 {
                damage::damage(&image, seed).unwrap();
            }
            let what = format!("{profile}, seed {seed}");
            short.extend(change_and_compare(&base, &image, &mut rng, &what));
        }
    }
    let taken = short.iter().filter(|short| **short).count();
    println!("{taken} short ones of {}", short.len());
    // Both kinds, or nothing is shown.
    assert!(taken * 5 > short.len() && taken < short.len(), "{taken} of {}", short.len());
}
