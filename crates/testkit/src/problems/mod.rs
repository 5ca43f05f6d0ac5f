//! One damaged image for each problem of the table, as recipes. The tests that check (`floe-check`)
//! or repair (`floe-repair`) them define the expected results.

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
mod proofs;
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

/// A recipe, and the conditions under which its image is judged.
pub struct Case {
    /// The image, and the ids of the problems it must raise.
    pub recipe: Recipe,
    /// Why e2fsck's verdict differs from ours, if it does.
    pub unlike_e2fsck: Option<&'static str>,
    /// Why e2fsck cannot judge the image, if so.
    pub not_by_e2fsck: Option<&'static str>,
    /// Whether the journal is replayed first; e2fsck's `-n` never does.
    pub recovered: bool,
    /// Whether e2fsck must find all expected codes too.
    pub same_codes: bool,
    /// The current time; `None`: far in the future.
    pub now_seconds: Option<i64>,
    /// The external journal device.
    pub external_journal: Option<Image>,
    unreadable: Option<FindBlocks>,
}

/// Selects blocks of an image.
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
    /// Whether the device has unreadable blocks.
    pub fn has_unreadable_blocks(&self) -> bool {
        self.unreadable.is_some()
    }

    /// Blocks of the recipe's image that the device must not read.
    ///
    /// # Panics
    /// The image has no valid superblock, which a recipe with unreadable blocks must not damage.
    pub fn unreadable_blocks(&self, image: &Image) -> Vec<BlockNr> {
        match &self.unreadable {
            Some(find) => find(&Volume::open(image).expect("the image is whole")),
            None => Vec::new(),
        }
    }

    /// Declares that e2fsck 1.47's verdict differs, for this reason.
    fn unlike_e2fsck(mut self, reason: &'static str) -> Self {
        self.unlike_e2fsck = Some(reason);
        self
    }

    /// e2fsck asks about it before pass 1, and forgets the answer no: `-n` exits with 0.
    fn forgotten(self) -> Self {
        self.unlike_e2fsck("it forgets what it was not allowed to repair before its first pass")
    }

    /// Judges the file system after recovery, which e2fsck performs only while repairing.
    fn recovered(mut self) -> Self {
        self.recovered = true;
        self.not_by_e2fsck = Some("it recovers only while it repairs");
        self
    }

    /// Judges the times by this clock.
    fn at(mut self, now_seconds: i64) -> Self {
        self.now_seconds = Some(now_seconds);
        self
    }

    /// Sets the external journal device.
    fn with_journal(mut self, device: Image) -> Self {
        self.external_journal = Some(device);
        self.not_by_e2fsck = Some("it searches only the machine's block devices for journals");
        self
    }

    /// Makes some blocks unreadable.
    fn unreadable(
        mut self,
        find: impl Fn(&Volume<'_>) -> Vec<BlockNr> + Send + Sync + 'static,
    ) -> Self {
        self.unreadable = Some(Box::new(find));
        self.not_by_e2fsck = Some("it reads the file, which has no unreadable blocks");
        self
    }

    /// Requires e2fsck to find each expected problem too; no expected problem means no damage.
    fn same_codes(mut self) -> Self {
        self.same_codes = true;
        self
    }
}

/// All cases: at least one for each problem that an image can raise.
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
        proofs::cases(),
        quotas::cases(),
        shared_blocks::cases(),
        superblocks::cases(),
        unreadable::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
