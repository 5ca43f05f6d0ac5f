//! A small tree of files that tests change through a journal: enough of a file system to fill directories, free their
//! blocks and write data, each change in one transaction.

use std::collections::BTreeMap;

use floe_blockdev::WriteBlocks;
use floe_disk::journal::{Journal, TransactionId};
use floe_ext4::alloc::{self, Allocate};
use floe_ext4::dir::edit::DirEditor;
use floe_ext4::dir::{self, DirFormat, Directory, Entry};
use floe_ext4::fs::FileSystem;
use floe_ext4::map::extent_tree::{self, NodeForm};
use floe_ext4::map::runs::BlockMap;
use floe_ext4::map::walk::Depths;
use floe_ext4::tx::Tx;
use floe_format::ext::extent::Extent;
use floe_format::ext::inode::{FileType, InodeFlags, OwnedInode, TimeField, Timestamp};
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

/// Credits of a change: more than any needs.
pub(crate) const CREDITS: u32 = 60;

/// The file system, and what its root directory should hold beside what it held before.
pub(crate) struct Changes {
    fs: FileSystem,
    /// Credits that each change reserves.
    pub(crate) credits: u32,
    /// Content goes through the log.
    pub(crate) logs_content: bool,
    /// Names in the root directory; directories have no content.
    pub(crate) model: BTreeMap<String, Option<Vec<u8>>>,
}

impl Changes {
    pub(crate) fn open<D: WriteBlocks>(journal: &Journal<D>) -> Self {
        let fs = FileSystem::open(journal).unwrap();
        Self { fs, credits: CREDITS, logs_content: false, model: BTreeMap::new() }
    }

    fn root(&self, tx: &mut dyn Tx) -> OwnedInode {
        self.fs.inode(tx, InodeNr::ROOT).unwrap()
    }

    /// Maps one block, the first of a file.
    fn map_one(&self, inode: &mut OwnedInode, run: BlockRun) {
        let geo = self.fs.geometry();
        if geo.features.incompat.contains(Incompat::EXTENTS) {
            let extent = Extent { logical: LogicalBlock(0), run, unwritten: false };
            let form = NodeForm::of(geo.block_size, self.fs.seed(), inode.number, 0);
            inode.base.block = extent_tree::build(&[extent], form, &[]).unwrap().root;
            inode.set_flags(InodeFlags::EXTENTS, true);
        } else {
            assert!(inode.set_block_word(0, u32::try_from(run.start.0).unwrap()));
        }
        let cluster = geo.cluster_blocks;
        inode.set_blocks(u64::from(geo.block_size / 512) * u64::from(cluster));
    }

    fn new_inode(&mut self, tx: &mut dyn Tx, mode: u16, run: BlockRun, size: usize) -> OwnedInode {
        let is_dir = mode & 0o170_000 == 0o040_000;
        let groups = &mut self.fs.space.groups;
        let number = alloc::inode(groups, tx, InodeNr::ROOT, is_dir).unwrap();
        let inode_size = self.fs.geometry().inode_size as usize;
        let mut inode = OwnedInode::new(number, inode_size, 32).unwrap();
        (inode.base.mode, inode.base.links_count) = (mode, if is_dir { 2 } else { 1 });
        inode.set_size_bytes(size as u64);
        for field in [TimeField::Access, TimeField::Change, TimeField::Modification] {
            inode.set_time(field, Timestamp { seconds: 1_700_000_000, nanoseconds: 0 });
        }
        self.map_one(&mut inode, run);
        inode
    }

    fn link(&mut self, tx: &mut dyn Tx, name: &str, inode: &OwnedInode) {
        let mut root = self.root(tx);
        let kind = inode.file_type().unwrap();
        if kind == FileType::Directory {
            root.base.links_count += 1;
        }
        let filetype = self.fs.geometry().features.incompat.contains(Incompat::FILETYPE);
        let byte = if filetype { kind as u8 } else { 0 };
        let mut editor = DirEditor::open(tx, &mut self.fs, &mut root, InodeNr::ROOT).unwrap();
        editor.insert(&Entry::new(inode.number, name.as_bytes(), byte)).unwrap();
        self.fs.put_inode(tx, &mut root).unwrap();
    }

    /// Makes an empty directory.
    pub(crate) fn mkdir<D: WriteBlocks>(
        &mut self,
        journal: &Journal<D>,
        name: &str,
    ) -> TransactionId {
        let mut tx = journal.begin(self.credits).unwrap();
        let block = self.fs.space.block(&mut tx, BlockNr(0)).unwrap();
        let size = self.fs.geometry().block_size as usize;
        let mut inode = self.new_inode(&mut tx, 0o040_755, BlockRun::new(block, 1), size);
        let format = DirFormat::of(&self.fs.superblock, self.fs.geometry());
        let dir = Directory {
            inode: inode.number,
            parent: InodeNr::ROOT,
            generation: 0,
            encrypted: false,
            casefolded: false,
        };
        let bytes = dir::first_block(&format, &dir);
        tx.zeroed(block).unwrap().copy_from_slice(&bytes);
        self.fs.put_inode(&mut tx, &mut inode).unwrap();
        self.link(&mut tx, name, &inode);
        self.fs.finish(&mut tx).unwrap();
        self.model.insert(name.to_owned(), None);
        tx.finish().unwrap()
    }

    /// Makes a file of at most one block.
    pub(crate) fn create<D: WriteBlocks>(
        &mut self,
        journal: &Journal<D>,
        name: &str,
        content: &[u8],
    ) -> TransactionId {
        let mut tx = journal.begin(self.credits).unwrap();
        let block = self.fs.space.block(&mut tx, BlockNr(0)).unwrap();
        let mut bytes = vec![0; self.fs.geometry().block_size as usize];
        bytes[..content.len()].copy_from_slice(content);
        if self.logs_content {
            tx.zeroed(block).unwrap().copy_from_slice(&bytes);
        } else {
            journal.write_data(self.fs.geometry().offset_bytes(block), &bytes).unwrap();
        }
        let run = BlockRun::new(block, 1);
        let mut inode = self.new_inode(&mut tx, 0o100_644, run, content.len());
        self.fs.put_inode(&mut tx, &mut inode).unwrap();
        self.link(&mut tx, name, &inode);
        self.fs.finish(&mut tx).unwrap();
        self.model.insert(name.to_owned(), Some(content.to_vec()));
        tx.finish().unwrap()
    }

    /// Removes a file or an empty directory. Its block is not handed out again: when that may be, the tests of rule R7 say.
    pub(crate) fn remove<D: WriteBlocks>(
        &mut self,
        journal: &Journal<D>,
        name: &str,
    ) -> (TransactionId, BlockRun) {
        let mut tx = journal.begin(self.credits).unwrap();
        let mut root = self.root(&mut tx);
        let mut editor = DirEditor::open(&mut tx, &mut self.fs, &mut root, InodeNr::ROOT).unwrap();
        let number = editor.remove(name.as_bytes()).unwrap().unwrap();
        let mut inode = self.fs.inode(&mut tx, number).unwrap();
        let is_dir = inode.file_type() == Some(FileType::Directory);
        root.base.links_count -= u16::from(is_dir);
        self.fs.put_inode(&mut tx, &mut root).unwrap();
        let mut read = |node| tx.block(node).ok().map(|bytes| bytes.to_vec());
        let (words, flags) = (inode.base.block, inode.flags());
        let map = BlockMap::follow(&words, flags, self.fs.geometry(), Depths::Agree, 1, &mut read);
        let run = BlockRun::new(map.unwrap().block(0).unwrap(), 1);
        self.fs.space.release(&mut tx, run).unwrap();
        self.fs.space.withhold([run]);
        self.fs.space.groups.mark_inode(&mut tx, number, false, is_dir).unwrap();
        (inode.base.links_count, inode.base.dtime) = (0, 1_700_000_001);
        self.fs.put_inode(&mut tx, &mut inode).unwrap();
        self.fs.finish(&mut tx).unwrap();
        self.model.remove(name);
        (tx.finish().unwrap(), run)
    }
}
