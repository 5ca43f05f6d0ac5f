//! Values of attributes that lie in inodes of their own (feature ea_inode): equal ones in one, behind the inodes of the tree.

use std::collections::HashMap;

use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::{BlockNr, BlockRun, InodeNr};

use super::TreePlan;
use super::attributes::SetForm;
use crate::mkfs::inode::NewInode;
use crate::mkfs::map;
use crate::mkfs::params::PlanError;

/// All values, each once.
#[derive(Debug, Default)]
pub(super) struct Values {
    all: Vec<PlannedValue>,
    places: HashMap<Box<[u8]>, usize>,
    /// Places of those that somebody has, in the order of their inodes.
    used: Vec<usize>,
}

#[derive(Debug)]
struct PlannedValue {
    bytes: Box<[u8]>,
    hash: u32,
    inode: InodeNr,
    users: u64,
    /// User and group of the first inode that has it, as Linux sets them.
    owner: (u32, u32),
}

impl Values {
    /// Adds a value with its hash; returns its place.
    pub(super) fn add(&mut self, bytes: &[u8], hash: u32) -> usize {
        if let Some(at) = self.places.get(bytes) {
            return *at;
        }
        let at = self.all.len();
        self.places.insert(bytes.into(), at);
        let (inode, users, owner) = (InodeNr(0), 0, (0, 0));
        self.all.push(PlannedValue { bytes: bytes.into(), hash, inode, users, owner });
        at
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

impl TreePlan<'_> {
    /// Assigns an inode number to each value that a node has, in the order of the nodes.
    pub(super) fn number_values(&mut self) -> Result<(), PlanError> {
        for at in 0..self.order.len() {
            let set = self.tree.xattrs_of(self.order[at]).index();
            for place in self.sets.get(set).into_iter().flat_map(SetForm::values) {
                let value = &mut self.values.all[place];
                value.users += 1;
                if value.users == 1 {
                    value.inode = self.plan.next_inode()?;
                    let attributes = self.tree.node(self.order[at]).attributes();
                    value.owner = (attributes.uid, attributes.gid);
                    self.values.used.push(place);
                }
            }
        }
        let values = &self.values.all;
        self.sets.iter_mut().for_each(|set| set.settle(|at| values[at].inode));
        Ok(())
    }

    /// Places the blocks of values, and adds their inodes.
    pub(super) fn place_values(&mut self) -> Result<(), PlanError> {
        let mut cursor = BlockNr(0);
        for place in std::mem::take(&mut self.values.used) {
            let value = &self.values.all[place];
            let (bytes, number) = (value.bytes.to_vec(), value.inode);
            let mut inode = NewInode::new(FileType::Regular.mode(0o600), self.plan.time());
            (inode.uid, inode.gid) = value.owner;
            inode.value = Some((value.hash, value.users));
            inode.flags = InodeFlags::EA_INODE;
            inode.size = bytes.len() as u64;
            let blocks = inode.size.div_ceil(u64::from(self.plan.geometry.block_size));
            let data = self.plan.allocate(cursor, blocks)?;
            cursor = data.last().map_or(cursor, |run| run.end());
            map::attach(&mut self.plan, number, &mut inode, &data, &map::Nodes::Behind)?;
            self.put_value(&data, bytes);
            self.plan.add_inode(number, inode);
        }
        Ok(())
    }

    fn put_value(&mut self, data: &[BlockRun], mut bytes: Vec<u8>) {
        let size = self.plan.geometry.block_size as usize;
        bytes.resize(bytes.len().next_multiple_of(size), 0);
        self.plan.put(data, bytes);
    }

    /// Clusters that the node at an index of the order has in values.
    pub(super) fn value_clusters(&self, at: usize) -> u64 {
        let geometry = &self.plan.geometry;
        let cluster = u64::from(geometry.block_size) * u64::from(geometry.cluster_blocks);
        let places = self.set_of(at).into_iter().flat_map(SetForm::values);
        places.map(|place| (self.values.all[place].bytes.len() as u64).div_ceil(cluster)).sum()
    }
}
