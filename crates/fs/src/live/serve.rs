//! A file system on a disk as a store: reads, changes, and what concerns cubes.

use floe_blockdev::WriteBlocks;
use floe_ext4::files::Attribute;
use floe_format::InodeNr;
use floe_sync::Arc;

use super::{Live, caller_of};
use crate::cubes::{CubeCall, Gates};
use crate::error::twice;
use crate::file_system::kept_time;
use crate::memory::Above;
use crate::op::{Applied, Op, OpKind};
use crate::store::{SeekFor, Space, Store};
use crate::{Attributes, Directory, FsError, Timestamp};

impl<D: WriteBlocks> Store for Live<'_, '_, D> {
    fn attributes(&self, inode: InodeNr) -> Result<Attributes, FsError> {
        self.watch(inode, |image| image.attributes(inode))
    }

    fn directory(&self, inode: InodeNr) -> Result<Arc<Directory>, FsError> {
        let directory = self.watch(inode, |image| image.read_directory(inode))?;
        if let Some(error) = directory.error(inode) {
            self.meet(&error);
        }
        Ok(Arc::new(directory))
    }

    fn read(&self, inode: InodeNr, offset_bytes: u64, into: &mut [u8]) -> Result<usize, FsError> {
        self.watch(inode, |image| image.read(inode, offset_bytes, into))
    }

    fn seek(&self, inode: InodeNr, offset_bytes: u64, what: SeekFor) -> Result<u64, FsError> {
        self.watch(inode, |image| image.seek(inode, offset_bytes, what))
    }

    fn target(&self, inode: InodeNr) -> Result<Vec<u8>, FsError> {
        self.watch(inode, |image| image.target(inode))
    }

    fn extended_attributes(&self, inode: InodeNr) -> Result<Vec<Attribute>, FsError> {
        self.watch(inode, |image| image.extended_attributes(inode))
    }

    fn extended_attribute(&self, inode: InodeNr, name: &[u8]) -> Result<Option<Vec<u8>>, FsError> {
        self.watch(inode, |image| image.extended_attribute(inode, name))
    }

    fn extended_attribute_names(&self, inode: InodeNr) -> Result<Vec<Vec<u8>>, FsError> {
        self.watch(inode, |image| image.extended_attribute_names(inode))
    }

    fn space(&self) -> Space {
        let room = self.work().volume.room();
        Space {
            free_blocks: room.free_blocks,
            available_blocks: room.available_blocks.saturating_sub(self.image.kept_blocks()),
            free_inodes: room.free_inodes,
            ..self.space
        }
    }

    fn block_bytes(&self) -> u32 {
        self.image.block_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.faults.is_read_only()
    }

    fn kept_time(&self, time: Timestamp) -> Timestamp {
        kept_time(time, self.image.files().geometry().inode_size > 128)
    }

    fn apply(&self, op: &Op<'_>) -> Result<Applied, FsError> {
        match op.kind {
            OpKind::Change { .. } => self.change(&caller_of(op), &op.kind)?,
            OpKind::Write { inode, offset_bytes, bytes } => {
                self.write(&caller_of(op), inode, offset_bytes, bytes)?
            }
            OpKind::Range { inode, mode, ref bytes } => {
                self.image.forget(inode);
                self.steps(inode, |volume, tx| {
                    let caller = caller_of(op);
                    volume.change_range(tx, self.disk, &caller, inode, mode, bytes.clone())
                })?
            }
            _ => {
                let applied = self.apply_in_one(op)?;
                if let Some(inode) = applied.created {
                    // Its number may have been another's.
                    self.image.forget(inode);
                }
                return Ok(applied);
            }
        }
        Ok(Applied::default())
    }

    fn gates(&self) -> Option<&Gates> {
        Some(&self.gates)
    }

    fn is_named(&self, inode: InodeNr, directory: InodeNr, name: Option<&[u8]>) -> bool {
        let node = self.image.files().node(inode).ok().filter(|node| node.checksum_ok);
        let own = node.and_then(|node| node.backpointer());
        own.is_some_and(|own| match name {
            Some(name) => own.fits(directory, name),
            None => own.parent == directory.0,
        })
    }

    fn note_damage(&self, error: &FsError) {
        self.meet(error);
    }

    fn note_panic(&self, cube: u32, what: &str) {
        if cube > 0 {
            self.fail_cube(cube, format!("a fault of Floe itself: {what}"));
        } else {
            self.faults.end_writing();
        }
    }

    fn cube_call(&self, call: &CubeCall<'_>) -> Result<Vec<u8>, FsError> {
        Live::cube_call(self, call)
    }

    fn space_of(&self, inode: InodeNr) -> Option<Space> {
        self.space_of_cube(inode).or_else(|| self.space_of_project(inode))
    }

    fn tend_cubes(&self) -> Vec<u32> {
        self.run_jobs(&Above::NOBODY)
    }

    fn release(&self, inode: InodeNr) -> Result<(), FsError> {
        if self.is_read_only() || self.gates.has_failed(self.gates.of_inode(inode)) {
            // It stays an orphan, which the next mount deletes.
            return Ok(());
        }
        // It would keep its space until the next mount.
        twice(|| self.finish_orphan(inode, crate::now()))
    }

    fn trim(&self, bytes: std::ops::Range<u64>, least_bytes: u64) -> Result<u64, FsError> {
        self.trim_groups(bytes, least_bytes)
    }

    fn why_ended(&self) -> Option<String> {
        self.work().ended.clone()
    }

    fn sync(&self) -> Result<(), FsError> {
        self.make_durable()?;
        self.tell_lost_cubes()
    }

    fn sync_inode(&self, inode: InodeNr) -> Result<(), FsError> {
        self.sync_for(inode, 1)
    }
}
