//! Images and staged changes for the tests of commits.

use floe_blockdev::{Overlay, ReadBlocks, WriteBlocks};
use floe_format::ext::jbd2;
use floe_format::ext::superblock::{STATE_VALID, Superblock};
use floe_testkit::{Profile, Rng, build, tool};

/// An image, and the locations of some structures in it.
pub(crate) struct Scene {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) before: Vec<u8>,
    pub(crate) block_bytes: u32,
    /// Byte offset of a block that looks like the superblock of a journal in use.
    pub(crate) journal_superblock: u64,
    /// Byte offset of a page that [`staged_changes`] changes.
    pub(crate) a_changed_page: u64,
    pub(crate) pages_changed: usize,
    pub(crate) after_superblock: [u8; 1024],
}

impl Scene {
    /// Byte offset of the first block of group descriptors.
    pub(crate) fn descriptors(&self) -> u64 {
        let block = u64::from(self.block_bytes);
        (1024 / block + 1) * block
    }

    /// The image of a profile; prints why the test is skipped if there is none.
    pub(crate) fn of(profile: &str) -> Option<Self> {
        if tool::missing() {
            return None;
        }
        let image = build::base(Profile::by_name(profile).unwrap()).unwrap();
        let mut before = image.to_vec().unwrap();
        let raw: [u8; 1024] = before[1024..2048].try_into().unwrap();
        let mut sb = Superblock::decode(&raw);
        let block_bytes = 1024 << sb.log_block_size;
        sb.state = STATE_VALID;
        // A typical repair: times, and perhaps counts.
        sb.wtime += 1000;
        sb.lastcheck += 1000;
        let mut after_superblock = raw;
        sb.encode_with_checksum(&mut after_superblock);
        let journal_superblock = busy_journal(&mut before, block_bytes as usize);
        let folder = tool::scratch("floe-commit-").unwrap();
        let a_changed_page = u64::from(block_bytes) * 100;
        Some(Self {
            folder,
            before,
            block_bytes,
            journal_superblock,
            a_changed_page,
            pages_changed: 25 + 3 * 40 + 3,
            after_superblock,
        })
    }
}

/// Marks the journal of an image as in use; without a journal, turns a block in the middle into a
/// journal superblock.
fn busy_journal(image: &mut [u8], block: usize) -> u64 {
    let magic = jbd2::MAGIC.to_be_bytes();
    let is_superblock = |at: &usize| image[*at..*at + 4] == magic && image[*at + 7] == 4;
    let found = (0..image.len()).step_by(block).find(is_superblock);
    let at = found.unwrap_or(image.len() / 2 / block * block);
    image[at..at + 4].copy_from_slice(&magic);
    image[at + 4..at + 8].copy_from_slice(&jbd2::SUPERBLOCK_V2.to_be_bytes());
    image[at + 0x1c..at + 0x20].copy_from_slice(&5u32.to_be_bytes());
    at as u64
}

/// Stages typical changes: scattered blocks, long runs, copies of other blocks (some of which
/// change as well), unchanged blocks, an emptied journal, and the superblock.
pub(crate) fn staged_changes(scene: &Scene, staged: &Overlay<&dyn ReadBlocks>) {
    let block = u64::from(scene.block_bytes);
    let mut rng = Rng::new(9);
    let mut page = vec![0; block as usize];
    let mut write = |number: u64| {
        rng.fill(&mut page);
        staged.write_at(number * block, &page).unwrap();
    };
    (0..25).for_each(|index| write(100 + index * 17));
    for run in 0..3 {
        (0..40).for_each(|index| write(700 + run * 100 + index));
    }
    // A copy of a block that stays, and of one that is overwritten.
    staged.stage_copy(600 * block, 20 * block).unwrap();
    staged.stage_copy(601 * block, 710 * block).unwrap();
    // The same bytes as on the device.
    for number in [50u64, 51, 120] {
        let mut same = vec![0; block as usize];
        staged.base().read_at(number * block, &mut same).unwrap();
        staged.write_at(number * block, &same).unwrap();
    }
    staged.write_at(scene.descriptors() + 12, &[1, 2]).unwrap();
    staged.write_at(scene.journal_superblock + 0x1c, &[0; 4]).unwrap();
    staged.write_at(1024, &scene.after_superblock).unwrap();
}
