//! Cubes on a disk that is a table, for tests of threads.

use std::collections::BTreeMap;

use floe_disk::ops::NewInode;
use floe_format::ext::superblock::Superblock;
use floe_format::geometry::Strictness;
use floe_format::native::cube::{OnError, Policies};
use floe_format::{Geometry, InodeNr};
use floe_sync::Arc;

use super::NullDisk;
use crate::cubes::Gates;
use crate::op::{Op, OpKind, Place};
use crate::store::Store;
use crate::{FsError, Timestamp};

/// Inodes of a cube.
const INODES: u32 = 1000;

impl NullDisk {
    /// A disk with the cubes `/a` (1) and `/b` (2), and what follows on a failure of them.
    pub(in crate::memory) fn with_cubes(on_error: OnError) -> Result<Self, FsError> {
        let mut superblock = Superblock::decode(&[0; 1024]);
        (superblock.magic, superblock.rev_level, superblock.inode_size) = (0xef53, 1, 128);
        (superblock.log_block_size, superblock.blocks_per_group) = (2, INODES);
        (superblock.clusters_per_group, superblock.log_cluster_size) = (INODES, 2);
        (superblock.blocks_count_lo, superblock.first_ino) = (3 * INODES, 11);
        (superblock.inodes_per_group, superblock.inodes_count) = (INODES, 3 * INODES);
        let geometry = Geometry::new(&superblock, Strictness::Relaxed);
        let gates = Gates::new(1, &geometry.map_err(|_| FsError::Invalid)?);
        gates.set_owners(&BTreeMap::from([(1, 1), (2, 2)]));
        let disk = Self { gates: Some(Arc::new(gates)), ..Self::new(2000, 100_000) };
        disk.tables_mut().inodes_per_cube = INODES;
        for (cube, name) in [(1, b"a"), (2, b"b")] {
            let policies = Policies { on_error, ..Policies::default() };
            disk.gates.iter().for_each(|gates| gates.know(cube, policies, false));
            let place = Place { directory: InodeNr::ROOT, name };
            let kind = OpKind::Create { place, new: NewInode::directory(0o755) };
            let made = disk.apply(&Op { uid: 0, gid: 0, time: Timestamp::default(), kind })?;
            disk.move_inode(made.created.ok_or(FsError::NotFound)?, name, Self::top(cube))?;
        }
        Ok(disk)
    }

    /// The directory of a cube.
    pub(in crate::memory) const fn top(cube: u32) -> InodeNr {
        InodeNr(cube * INODES + 1)
    }

    /// Gives something in the root directory another number.
    fn move_inode(&self, from: InodeNr, name: &[u8], to: InodeNr) -> Result<(), FsError> {
        let mut tables = self.tables_mut();
        let mut file = tables.files.remove(&from).ok_or(FsError::NotFound)?;
        file.attributes.inode = to;
        tables.files.insert(to, file);
        let root = tables.files.get_mut(&InodeNr::ROOT).ok_or(FsError::NotFound)?;
        root.names.insert(name.into(), to);
        Ok(())
    }
}
