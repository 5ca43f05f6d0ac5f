//! Fills a new file system from a [`Tree`]. The whole layout is computed before anything is
//! written, so the same tree gives the same bytes, whatever the source, its order, and the number
//! of threads.
//!
//! Inodes are numbered, and files placed, in the order of [`Tree::ordered`]: directories and
//! attribute blocks first and together, then the data of files consecutively.

mod attributes;
mod data;
mod fit;
mod inline;
mod inodes;
mod names;
mod place;
mod values;
mod write;

use std::collections::HashMap;

use floe_ext4::map::block_map::MappedRun;
use floe_format::ext::inode::FileType;
use floe_format::features::{Compat, RoCompat};
use floe_format::native::identity::HOME_NAME;
use floe_format::{BlockNr, InodeNr};

use super::params::{Params, PlanError};
use super::plan::Plan;
use super::system::LOST_FOUND;
use super::tree::{NodeId, Tree};

use attributes::SetForm;
use values::Values;

pub use write::{FillError, FillOptions, fill, fill_progress};

/// Name of the directory in which e2fsck puts files without a name.
const LOST_FOUND_NAME: &[u8] = b"lost+found";
/// Most hard links of a file (`EXT4_LINK_MAX`).
const MOST_LINKS: u32 = 65_000;

/// The place of a file's own blocks, if they are contiguous.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// First block; 0 if it has none, or if [`TreePlan::mapped`] has them.
    start: u64,
    /// Blocks of data, without map and attributes.
    blocks: u32,
    /// [`INDEXED`], [`MAPPED`], [`INLINE`], and the number of subdirectories above bit 8.
    flags: u32,
}

/// The directory has an index.
const INDEXED: u32 = 1;
/// Its blocks are not contiguous, or its map needs blocks.
const MAPPED: u32 = 2;
/// Its content lies in the inode.
const INLINE: u32 = 4;
/// Position of the number of subdirectories in the flags.
const SUBDIRECTORIES: u32 = 8;

/// The map of a file that is not a single run of blocks.
#[derive(Clone, Debug)]
struct Mapped {
    runs: Vec<MappedRun>,
    /// `i_block`.
    root: [u8; 60],
    /// Number of mapping blocks.
    nodes: u64,
}

/// The layout of a file system filled from a tree.
#[derive(Debug)]
pub struct TreePlan<'t> {
    plan: Plan,
    tree: &'t Tree,
    /// Nodes in inode order: the root, lost+found if the tree has one, the others.
    order: Vec<NodeId>,
    /// Whether `order[1]` is lost+found.
    has_lost_found: bool,
    /// Position (see [`Numbers`](super::native::Numbers)) of the inode of the first of the other nodes.
    first: u32,
    /// Inode numbers by [`NodeId::index`]; 0 for a node without a name.
    numbers: Vec<u32>,
    /// Indexed as `order`.
    places: Vec<Place>,
    mapped: HashMap<u32, Mapped>,
    attribute_blocks: HashMap<u32, BlockNr>,
    sets: Vec<SetForm>,
    values: Values,
}

impl<'t> TreePlan<'t> {
    /// Plans a file system with these parameters and the files of a tree. Adds a directory
    /// lost+found if the tree has none.
    ///
    /// # Errors
    /// If the parameters cannot be met, the tree does not fit, or a file cannot be stored; nothing
    /// was written.
    pub fn new(params: &Params, tree: &'t Tree) -> Result<Self, PlanError> {
        let params = needed_features(params, tree);
        let plan = Plan::tables(&params)?;
        let (sets, values) = attributes::forms(&plan, tree)?;
        let mut all = Self {
            plan,
            tree,
            order: tree.ordered(),
            has_lost_found: false,
            first: 0,
            numbers: vec![0; tree.bound()],
            places: Vec::new(),
            mapped: HashMap::new(),
            attribute_blocks: HashMap::new(),
            sets,
            values,
        };
        all.lost_found_first()?;
        all.refuse_reserved_name()?;
        let quotas = all.system_files()?;
        all.number()?;
        all.number_values()?;
        all.place_names()?;
        all.place_data()?;
        all.place_values()?;
        all.settle_quotas(quotas)?;
        all.plan.finish()?;
        Ok(all)
    }

    /// The plan of the file system itself.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The inode assigned to a node; `None` if it has none.
    pub fn inode_of(&self, node: NodeId) -> Option<InodeNr> {
        self.numbers.get(node.index()).copied().filter(|nr| *nr != 0).map(InodeNr)
    }

    /// Moves lost+found directly behind the root, so that it gets the first inode that is not
    /// reserved.
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

    /// Refuses a tree whose root has the name that a native file system keeps for its own files.
    fn refuse_reserved_name(&self) -> Result<(), PlanError> {
        let node = self.tree.look_up(self.tree.root(), HOME_NAME);
        match node.filter(|_| self.plan.params.native.is_some()) {
            Some(node) => {
                Err(self.refuse(node, "a native file system keeps this name for its own files"))
            }
            None => Ok(()),
        }
    }

    /// Assigns an inode number to every node.
    fn number(&mut self) -> Result<(), PlanError> {
        let own = 1 + usize::from(self.has_lost_found);
        let numbers = self.plan.numbers;
        self.first = numbers.position(self.plan.last_inode) + 1;
        let wanted = (self.order.len() - own) as u64;
        let all = numbers.position(InodeNr(self.plan.geometry.inodes_count));
        let have = u64::from(all + 1 - self.first);
        if wanted > have {
            return Err(PlanError::NoInodes { have, wanted });
        }
        for (at, node) in self.order.iter().enumerate() {
            // The number of nodes was just checked.
            let number = match at {
                0 => InodeNr::ROOT.0,
                1 if self.has_lost_found => LOST_FOUND.0,
                _ => numbers.at(self.first + (at - own) as u32).0,
            };
            self.numbers[node.index()] = number;
        }
        if wanted > 0 {
            self.plan.last_inode = numbers.at(self.first + wanted as u32 - 1);
        }
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

    /// The inode of the node at an index of the order.
    fn number_at(&self, at: usize) -> InodeNr {
        InodeNr(self.numbers[self.order[at].index()])
    }

    /// The index in the order of an inode; `None` for inodes of the file system itself.
    fn place_of(&self, number: InodeNr) -> Option<usize> {
        let own = 1 + usize::from(self.has_lost_found);
        match number {
            InodeNr::ROOT => Some(0),
            LOST_FOUND if self.has_lost_found => Some(1),
            _ => {
                let position = self.plan.numbers.position(number);
                let at = position.checked_sub(self.first)? as usize + own;
                let is_kept = self.plan.numbers.is_kept(number);
                (at < self.order.len() && !is_kept).then_some(at)
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

/// Enables the features that the tree needs.
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
