//! Damaged images as short recipes: a base profile, edits of objects given by path, and the
//! problems that the edits must raise.
//!
//! ```no_run
//! use floe_testkit::Profile;
//! use floe_testkit::recipe::{Recipe, entry, inode};
//!
//! # fn main() -> anyhow::Result<()> {
//! let recipe = Recipe::new("two-names-lost")
//!     .on(Profile::Ext4)
//!     .edit(inode("/dir/file").links(7))
//!     .edit(entry("/hard-a").inode(0))
//!     .expect(&["inode-link-count-wrong"]);
//! let image = recipe.build()?;
//! # Ok(()) }
//! ```
//!
//! Paths are those of [`crate::build`]'s base images; `<8>` names inode 8. Each edit updates the
//! checksums, unless it is [`stale`](InodeEdit::stale).

mod edits;

use anyhow::{Context, Result};

use crate::build;
use crate::image::Image;
use crate::profile::Profile;
use crate::volume::Volume;

pub use edits::{
    BlockEdit, EntryEdit, InodeEdit, backup, block_bits, block_of, bytes, debugfs, descriptor,
    dir_block, entry, inode, inode_bits, journal_superblock, map_node, mmp, orphan_block,
    superblock, xattr_block,
};

/// One change of an image.
pub struct Edit(Change);

type Change = Box<dyn Fn(&Volume<'_>) -> Result<()> + Send + Sync>;

impl Edit {
    /// An arbitrary change, for which no specific edit exists.
    pub fn new(change: impl Fn(&Volume<'_>) -> Result<()> + Send + Sync + 'static) -> Self {
        Self(Box::new(change))
    }
}

/// A damaged image, and the problems that a check must find.
pub struct Recipe {
    name: String,
    profile: Profile,
    populated: bool,
    edits: Vec<Edit>,
    expected: Vec<&'static str>,
    size_bytes: Option<u64>,
}

impl Recipe {
    /// A recipe on [`Profile::Ext4K1`] without edits.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            profile: Profile::Ext4K1,
            populated: true,
            edits: Vec::new(),
            expected: Vec::new(),
            size_bytes: None,
        }
    }

    /// The feature set of the base image.
    #[must_use]
    pub fn on(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// Starts from an image as mke2fs makes it, without any files.
    #[must_use]
    pub fn empty(mut self) -> Self {
        self.populated = false;
        self
    }

    /// Adds a change; changes are applied in order.
    #[must_use]
    pub fn edit(mut self, edit: impl Into<Edit>) -> Self {
        self.edits.push(edit.into());
        self
    }

    /// Finally truncates the image file to `size_bytes`.
    #[must_use]
    pub fn cut(mut self, size_bytes: u64) -> Self {
        self.size_bytes = Some(size_bytes);
        self
    }

    /// Ids of problems that a check of the image must find; it may find more.
    #[must_use]
    pub fn expect(mut self, ids: &[&'static str]) -> Self {
        self.expected.extend_from_slice(ids);
        self
    }

    /// The recipe's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The feature set of the base image.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Ids of problems that a check of the image must find.
    pub fn expected(&self) -> &[&'static str] {
        &self.expected
    }

    /// The image before its edits.
    ///
    /// # Errors
    /// It cannot be built.
    pub fn base(&self) -> Result<Image> {
        if self.populated { build::base(self.profile) } else { build::empty(self.profile) }
    }

    /// Whether it starts from the populated image and keeps its size.
    pub fn is_whole(&self) -> bool {
        self.populated && self.size_bytes.is_none()
    }

    /// Applies its edits to an image, on the objects that [`Volume::view`] selects.
    ///
    /// # Errors
    /// An edit does not find its object.
    pub fn apply(&self, volume: &Volume<'_>) -> Result<()> {
        for (at, Edit(change)) in self.edits.iter().enumerate() {
            change(volume).with_context(|| format!("edit {} of {}", at + 1, self.name))?;
        }
        Ok(())
    }

    /// Builds the image.
    ///
    /// # Errors
    /// The base image cannot be built, or an edit does not find its object.
    pub fn build(&self) -> Result<Image> {
        let mut image = self.base()?;
        self.apply(&Volume::open(&image)?)?;
        if let Some(size_bytes) = self.size_bytes {
            image.set_size(size_bytes)?;
        }
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{oracle, tool};

    /// Every kind of edit makes e2fsck find the intended problem.
    #[test]
    fn edits_do_what_they_say() {
        if tool::missing() {
            return;
        }
        let k1 = || Recipe::new("a test");
        let cases: Vec<(Recipe, u32)> = vec![
            (k1().edit(inode("/dir/file").links(7)), 0x04_0003),
            (k1().edit(inode("/dir/file").links(7).stale()), 0x01_0068),
            (k1().edit(entry("/dir/file").inode(0)), 0x04_0002),
            (k1().edit(entry("/dir/file").file_type(2)), 0x02_0028),
            (k1().edit(entry("/dir/file").file_type(2).stale()), 0x02_004d),
            (k1().edit(superblock(|sb| sb.free_inodes_count = 1)), 0x05_000d),
            (k1().edit(descriptor(1, |desc| desc.free_inodes_count += 1)), 0x05_000b),
            (k1().edit(descriptor(1, |desc| desc.checksum ^= 1)), 0x00_0035),
            (k1().edit(block_bits("/blocks", 3, 2, false)), 0x05_0006),
            (k1().edit(inode_bits("/empty", false)), 0x05_0009),
            (k1().edit(inode("/blocks").extent(0, |extent| extent.len += 1)), 0x01_000d),
            (k1().edit(map_node("/fragmented", 1).extent(3, |extent| extent.len = 0)), 0x01_0066),
            (k1().edit(xattr_block("/ea-block").put32(0, 5)), 0x01_003a),
            (k1().edit(journal_superblock().put(0, [0, 0, 0, 0])), 0x00_000f),
            (k1().edit(dir_block("/big", 0).put(28, [99])), 0x01_004a),
            (k1().edit(debugfs("sif empty dtime 1704067100")), 0x01_0005),
            (Recipe::new("a test").on(Profile::Mmp).edit(mmp().put32(0, 5)), 0x00_0043),
            (
                Recipe::new("a test").on(Profile::Ext3).edit(inode("/blocks").block_word(2, 1)),
                0x01_1001,
            ),
        ];
        let mut faults = Vec::new();
        for (at, (recipe, code)) in cases.iter().enumerate() {
            let image = recipe.build().expect("every edit finds its object");
            let codes = oracle::e2fsck(&image).expect("e2fsck runs").codes();
            if !codes.contains(code) {
                faults.push(format!("case {at}: {code:#08x} is not in {codes:x?}"));
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}
