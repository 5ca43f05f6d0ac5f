//! One damaged image for each problem of the table, as recipes; what to think of each image is up
//! to the tests that judge them (`floe-check`) or repair them (`floe-repair`).

mod attributes;
mod bad_blocks;
mod bitmaps;
mod block_maps;
mod connectivity;
mod directories;
mod edits;
mod extents;
mod external;
mod groups;
mod htrees;
mod index_roots;
mod inodes;
mod journals;
mod linux_refuses;
mod orphans;
mod quotas;
mod shared_blocks;
mod superblocks;
mod unreadable;
mod variants;

use floe_format::BlockNr;

pub use edits::write_context;
pub use variants::{Mixture, Recipes, Variant};

use crate::image::Image;
use crate::recipe::Recipe;
use crate::volume::Volume;

/// A recipe, and under which circumstances its image is judged.
pub struct Case {
    /// The image, and the ids of the problems it must raise.
    pub recipe: Recipe,
    /// Why e2fsck's verdict differs from ours, where it does.
    pub unlike_e2fsck: Option<&'static str>,
    /// Why e2fsck's verdict is not asked for, where it cannot be had.
    pub not_by_e2fsck: Option<&'static str>,
    /// Whether the journal is replayed first; e2fsck's `-n` never does.
    pub recovered: bool,
    /// Whether e2fsck must find all of what is expected, too.
    pub same_codes: bool,
    /// What counts as now; `None`: far in the future.
    pub now_seconds: Option<i64>,
    /// The device of the journal.
    pub external_journal: Option<Image>,
    unreadable: Option<FindBlocks>,
}

/// Finds blocks of an image.
type FindBlocks = Box<dyn Fn(&Volume<'_>) -> Vec<BlockNr> + Send + Sync>;

impl From<Recipe> for Case {
    fn from(recipe: Recipe) -> Self {
        Self {
            recipe,
            unlike_e2fsck: None,
            not_by_e2fsck: None,
            recovered: false,
            same_codes: false,
            now_seconds: None,
            external_journal: None,
            unreadable: None,
        }
    }
}

impl Case {
    /// Whether blocks of the device cannot be read.
    pub fn has_unreadable_blocks(&self) -> bool {
        self.unreadable.is_some()
    }

    /// Blocks of the recipe's image that the device must refuse to read.
    ///
    /// # Panics
    /// The image has no superblock, which a recipe with unreadable blocks must leave alone.
    pub fn unreadable_blocks(&self, image: &Image) -> Vec<BlockNr> {
        match &self.unreadable {
            Some(find) => find(&Volume::open(image).expect("the image is whole")),
            None => Vec::new(),
        }
    }

    /// e2fsck 1.47 judges the image otherwise, for this reason.
    fn unlike_e2fsck(mut self, reason: &'static str) -> Self {
        self.unlike_e2fsck = Some(reason);
        self
    }

    /// e2fsck asks about it before its first pass, and forgets the answer no: `-n` exits with 0.
    fn forgotten(self) -> Self {
        self.unlike_e2fsck("it forgets what it was not allowed to repair before its first pass")
    }

    /// Judge the file system as it is after recovery, which e2fsck does only while it repairs.
    fn recovered(mut self) -> Self {
        self.recovered = true;
        self.not_by_e2fsck = Some("it recovers only while it repairs");
        self
    }

    /// Judge the times by this clock.
    fn at(mut self, now_seconds: i64) -> Self {
        self.now_seconds = Some(now_seconds);
        self
    }

    /// The journal lies on this device.
    fn with_journal(mut self, device: Image) -> Self {
        self.external_journal = Some(device);
        self.not_by_e2fsck = Some("it finds journals among the devices of the machine only");
        self
    }

    /// Some blocks cannot be read.
    fn unreadable(
        mut self,
        find: impl Fn(&Volume<'_>) -> Vec<BlockNr> + Send + Sync + 'static,
    ) -> Self {
        self.unreadable = Some(Box::new(find));
        self.not_by_e2fsck = Some("files can be read");
        self
    }

    /// e2fsck, too, must find each problem that is expected; and nothing expected means no damage.
    fn same_codes(mut self) -> Self {
        self.same_codes = true;
        self
    }
}

/// All cases, at least one for each problem that an image can raise.
pub fn cases() -> Vec<Case> {
    [
        attributes::cases(),
        bad_blocks::cases(),
        bitmaps::cases(),
        block_maps::cases(),
        connectivity::cases(),
        directories::cases(),
        extents::cases(),
        external::cases(),
        groups::cases(),
        htrees::cases(),
        index_roots::cases(),
        inodes::cases(),
        journals::cases(),
        linux_refuses::cases(),
        orphans::cases(),
        quotas::cases(),
        shared_blocks::cases(),
        superblocks::cases(),
        unreadable::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
