//! Fills a new file system from a [`Tree`]: all of it is laid out before anything is written, so
//! the same tree gives the same bytes, whatever the source, its order, and the number of threads.
//!
//! Inodes are numbered, and files placed, in the order of [`Tree::ordered`]: directories and
//! attribute blocks first and together, then the data of files, one behind the other.

mod attributes;
mod data;
mod fit;
mod inline;
mod inodes;
mod names;
mod place;
mod write;

use std::collections::HashMap;

use floe_ext4::map::block_map::MappedRun;
use floe_format::ext::inode::FileType;
use floe_format::features::{Compat, RoCompat};
use floe_format::{BlockNr, InodeNr};

use super::params::{Params, PlanError};
use super::plan::Plan;
use super::system::LOST_FOUND;
use super::tree::{NodeId, Tree};

use attributes::SetForm;

pub use write::{FillError, FillOptions, fill, fill_progress};

/// Name of the directory that e2fsck puts files without a name into.
const LOST_FOUND_NAME: &[u8] = b"lost+found";
/// Most hard links of a file (`EXT4_LINK_MAX`).
const MOST_LINKS: u32 = 65_000;

/// Where a file's own blocks are, if they lie together.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// First block; 0: it has none, or [`TreePlan::mapped`] says.
    start: u64,
    /// Blocks of data, without map and attributes.
    blocks: u32,
    /// [`INDEXED`], [`MAPPED`], [`INLINE`], and the number of subdirectories above bit 8.
    flags: u32,
}

/// The directory has an index.
const INDEXED: u32 = 1;
/// Its blocks do not lie together, or its map needs blocks.
const MAPPED: u32 = 2;
/// Its content lies in the inode.
const INLINE: u32 = 4;
/// Where the number of subdirectories begins.
const SUBDIRECTORIES: u32 = 8;

/// The map of a file that is not simply one run of blocks.
#[derive(Clone, Debug)]
struct Mapped {
    runs: Vec<MappedRun>,
    /// `i_block`.
    root: [u8; 60],
    /// Blocks of the map itself.
    nodes: u64,
}

/// The layout of a file system that is filled from a tree.
#[derive(Debug)]
pub struct TreePlan<'t> {
    plan: Plan,
    tree: &'t Tree,
    /// Nodes in the order of their inodes: the root, lost+found if the tree has one, the others.
    order: Vec<NodeId>,
    /// Whether `order[1]` is lost+found.
    has_lost_found: bool,
    /// Inode of the first of the others.
    first: InodeNr,
    /// Inode numbers by [`NodeId::index`]; 0: no name leads there.
    numbers: Vec<u32>,
    /// By place in `order`.
    places: Vec<Place>,
    mapped: HashMap<u32, Mapped>,
    attribute_blocks: HashMap<u32, BlockNr>,
    sets: Vec<SetForm>,
}

impl<'t> TreePlan<'t> {
    /// Plans a file system with these parameters and the files of a tree. A directory lost+found is
    /// added if the tree has none.
    ///
    /// # Errors
    /// The parameters cannot be met, the tree does not fit, or a file cannot be stored; nothing was
    /// written.
    pub fn new(params: &Params, tree: &'t Tree) -> Result<Self, PlanError> {
        let params = needed_features(params, tree);
        let plan = Plan::tables(&params)?;
        let sets = attributes::forms(&plan, tree)?;
        let mut all = Self {
            plan,
            tree,
            order: tree.ordered(),
            has_lost_found: false,
            first: InodeNr(0),
            numbers: vec![0; tree.bound()],
            places: Vec::new(),
            mapped: HashMap::new(),
            attribute_blocks: HashMap::new(),
            sets,
        };
        all.lost_found_first()?;
        let quotas = all.system_files()?;
        all.number()?;
        all.place_names()?;
        all.place_data()?;
        all.settle_quotas(quotas)?;
        all.plan.finish();
        Ok(all)
    }

    /// The plan of the file system itself.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Inodes and blocks of the tree: what was laid out.
    pub fn inode_of(&self, node: NodeId) -> Option<InodeNr> {
        self.numbers.get(node.index()).copied().filter(|nr| *nr != 0).map(InodeNr)
    }

    /// Moves lost+found behind the root: it gets the first inode that is not reserved.
    fn lost_found_first(&mut self) -> Result<(), PlanError> {
        let Some(node) = self.tree.look_up(self.tree.root(), LOST_FOUND_NAME) else {
            return Ok(());
        };
        if !self.tree.node(node).is_directory() {
            return Err(self.refuse(node, "lost+found must be a directory"));
        }
        self.has_lost_found = true;
        if let Some(at) = self.order.iter().position(|other| *other == node) {
            self.order[1..=at].rotate_right(1);
        }
        Ok(())
    }

    /// Gives every node its inode.
    fn number(&mut self) -> Result<(), PlanError> {
        let own = 1 + usize::from(self.has_lost_found);
        self.first = InodeNr(self.plan.last_inode.0 + 1);
        let wanted = (self.order.len() - own) as u64;
        let have = u64::from(self.plan.geometry.inodes_count - self.plan.last_inode.0);
        if wanted > have {
            return Err(PlanError::NoInodes { have, wanted });
        }
        for (at, node) in self.order.iter().enumerate() {
            // It was just seen to fit.
            let number = match at {
                0 => InodeNr::ROOT.0,
                1 if self.has_lost_found => LOST_FOUND.0,
                _ => self.first.0 + (at - own) as u32,
            };
            self.numbers[node.index()] = number;
        }
        self.plan.last_inode.0 += wanted as u32;
        self.places = vec![Place::default(); self.order.len()];
        for (at, node) in self.order.iter().enumerate() {
            let found = self.tree.node(*node);
            if found.is_directory() {
                let number = self.number_at(at);
                if let Some((group, _)) = self.plan.geometry.place_of(number) {
                    *self.plan.directories.entry(group).or_default() += 1;
                }
            } else if found.link_count() > MOST_LINKS {
                return Err(self.refuse(*node, "it has more than 65000 hard links"));
            }
        }
        Ok(())
    }

    /// The inode of the node at a place in the order.
    fn number_at(&self, at: usize) -> InodeNr {
        InodeNr(self.numbers[self.order[at].index()])
    }

    /// The place in the order of an inode; `None` for inodes of the file system itself.
    fn place_of(&self, number: InodeNr) -> Option<usize> {
        let own = 1 + usize::from(self.has_lost_found);
        match number {
            InodeNr::ROOT => Some(0),
            LOST_FOUND if self.has_lost_found => Some(1),
            _ => {
                let at = number.0.checked_sub(self.first.0)? as usize + own;
                (at < self.order.len()).then_some(at)
            }
        }
    }

    fn refuse(&self, node: NodeId, why: &str) -> PlanError {
        let path = String::from_utf8_lossy(&self.tree.path(node)).into_owned();
        PlanError::File { path, why: why.to_owned() }
    }

    fn is_type(&self, at: usize, file_type: FileType) -> bool {
        self.tree.node(self.order[at]).file_type() == file_type
    }
}

/// Switches on what the tree cannot do without.
fn needed_features(params: &Params, tree: &Tree) -> Params {
    let mut params = params.clone();
    if params.old_revision {
        return params;
    }
    if tree.xattr_sets() > 1 {
        params.features.compat |= Compat::EXT_ATTR;
    }
    if tree.largest_file() >= 1 << 31 {
        params.features.ro_compat |= RoCompat::LARGE_FILE;
    }
    params
}
