//! A disk that is a table in memory: to measure the file system above by itself, and, because it makes each change at once and
//! in order, the sequential model that the file system above is compared with.

mod changes;
#[cfg(all(test, feature = "shuttle"))]
mod cubes;

use std::collections::{BTreeMap, BTreeSet};

use floe_disk::ops::{NewInode, Reserved};
use floe_ext4::files::Attribute;
use floe_format::InodeNr;
use floe_format::ext::inode::FileType;
use floe_format::ext::superblock::Superblock;
use floe_sync::{Alone, Arc, Entered, Slots};

use super::lower::{Carried, Deed, Facts, Lower};
use crate::cubes::Gates;
use crate::directory::{Directory, Entry, NameHash};
use crate::op::{Applied, Op, OpKind, Place};
use crate::store::{SeekFor, Space, Store};
use crate::{Attributes, FsError, Timestamp};

const BLOCK_BYTES: u32 = 4096;
/// Sectors of a block.
const SECTORS: u64 = BLOCK_BYTES as u64 / 512;

/// A disk that keeps everything in tables, and loses it when it is dropped.
#[derive(Debug)]
pub struct NullDisk {
    tables: Slots<Tables, ()>,
    /// Cubes, in tests of them.
    gates: Option<Arc<Gates>>,
}

#[derive(Clone, Debug)]
struct Tables {
    hash: NameHash,
    files: BTreeMap<InodeNr, File>,
    reserved: BTreeSet<InodeNr>,
    next: u32,
    /// Inodes of a cube; 0 without cubes.
    inodes_per_cube: u32,
    free_inodes: u64,
    free_blocks: u64,
}

#[derive(Clone, Debug)]
struct File {
    attributes: Attributes,
    names: BTreeMap<Box<[u8]>, InodeNr>,
    parent: InodeNr,
    bytes: Vec<u8>,
    /// Pages that were written: the others are holes.
    pages: BTreeSet<u64>,
    extended: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl File {
    /// Sectors are those of the pages that were written.
    fn count_sectors(&mut self) {
        self.attributes.sectors = self.pages.len() as u64 * SECTORS;
    }
}

impl NullDisk {
    /// An empty file system with so many free inodes and blocks of 4 KiB. Blocks are never used up.
    pub fn new(free_inodes: u64, free_blocks: u64) -> Self {
        let mut superblock = Superblock::decode(&[0; 1024]);
        superblock.def_hash_version = 1;
        let mut tables = Tables {
            hash: NameHash::of(&superblock),
            files: BTreeMap::new(),
            reserved: BTreeSet::new(),
            next: 12,
            inodes_per_cube: 0,
            free_inodes,
            free_blocks,
        };
        let by = Op { uid: 0, gid: 0, time: Timestamp::default(), kind: OpKind::Unlink(ROOT) };
        tables.add(&by, InodeNr::ROOT, 0, &NewInode::directory(0o755), InodeNr::ROOT);
        Self { tables: Slots::new(tables), gates: None }
    }

    /// A copy of all that it has.
    pub fn snapshot(&self) -> Self {
        Self { tables: Slots::new(self.tables().clone()), gates: self.gates.clone() }
    }

    fn tables(&self) -> Entered<'_, Tables, ()> {
        self.tables.enter()
    }

    fn tables_mut(&self) -> Alone<'_, Tables, ()> {
        self.tables.alone()
    }
}

const ROOT: Place<'static> = Place { directory: InodeNr::ROOT, name: b"/" };

impl Store for NullDisk {
    fn attributes(&self, inode: InodeNr) -> Result<Attributes, FsError> {
        Ok(self.tables().file(inode)?.attributes)
    }

    fn directory(&self, inode: InodeNr) -> Result<Arc<Directory>, FsError> {
        let tables = self.tables();
        let file = tables.file(inode)?;
        if file.attributes.kind != FileType::Directory {
            return Err(FsError::NotADirectory);
        }
        let mut directory = Directory::new(tables.hash, false, file.parent);
        for (name, inode) in &file.names {
            let kind = Some(tables.file(*inode)?.attributes.kind);
            directory.insert(Entry { inode: *inode, kind, name: name.clone() });
        }
        Ok(Arc::new(directory))
    }

    fn read(&self, inode: InodeNr, offset_bytes: u64, into: &mut [u8]) -> Result<usize, FsError> {
        let tables = self.tables();
        let file = tables.file(inode)?;
        let rest = usize::try_from(offset_bytes).ok().and_then(|at| file.bytes.get(at..));
        let rest = rest.unwrap_or_default();
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn seek(&self, inode: InodeNr, offset_bytes: u64, what: SeekFor) -> Result<u64, FsError> {
        let (tables, block) = (self.tables(), u64::from(BLOCK_BYTES));
        let file = tables.file(inode)?;
        let size = file.attributes.size_bytes;
        if offset_bytes >= size {
            return Err(FsError::PastEnd);
        }
        let first = offset_bytes / block;
        let mut written = file.pages.range(first..);
        match what {
            SeekFor::Data => {
                let page = written.next().ok_or(FsError::PastEnd)?;
                Ok(offset_bytes.max(page * block))
            }
            SeekFor::Hole => {
                let run = (first..).zip(written).take_while(|(page, next)| page == *next).count();
                Ok(offset_bytes.max((first + run as u64) * block).min(size))
            }
        }
    }

    fn target(&self, inode: InodeNr) -> Result<Vec<u8>, FsError> {
        Ok(self.tables().file(inode)?.bytes.clone())
    }

    fn extended_attributes(&self, inode: InodeNr) -> Result<Vec<Attribute>, FsError> {
        let tables = self.tables();
        let all = tables.file(inode)?.extended.iter();
        let attribute = |(name, value): (&Vec<u8>, &Vec<u8>)| Attribute {
            name: name.clone(),
            value: value.clone(),
        };
        Ok(all.map(attribute).collect())
    }

    fn space(&self) -> Space {
        let tables = self.tables();
        Space {
            block_bytes: BLOCK_BYTES,
            blocks: tables.free_blocks,
            free_blocks: tables.free_blocks,
            available_blocks: tables.free_blocks,
            inodes: tables.free_inodes + tables.files.len() as u64,
            free_inodes: tables.free_inodes,
        }
    }

    fn block_bytes(&self) -> u32 {
        BLOCK_BYTES
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn apply(&self, op: &Op<'_>) -> Result<Applied, FsError> {
        self.tables_mut().apply(op)
    }

    fn release(&self, inode: InodeNr) -> Result<(), FsError> {
        let mut tables = self.tables_mut();
        if tables.file(inode)?.attributes.links == 0 {
            tables.files.remove(&inode);
            tables.free_inodes += 1;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), FsError> {
        Ok(())
    }

    fn gates(&self) -> Option<&Gates> {
        self.gates.as_deref()
    }
}

impl Lower for NullDisk {
    fn facts(&self) -> Facts {
        let (hash, inodes_per_cube) = {
            let tables = self.tables();
            (tables.hash, tables.inodes_per_cube)
        };
        Facts {
            hash,
            extents: true,
            has_crtime: true,
            cluster_blocks: 1,
            inodes_per_group: match inodes_per_cube {
                0 => u32::MAX,
                own => own,
            },
            quotas: super::quotas::Quotas::None,
            immediate: None,
        }
    }

    fn shared_gates(&self) -> Option<Arc<Gates>> {
        self.gates.clone()
    }

    fn reserve_inodes(
        &self,
        directory: InodeNr,
        _is_directory: bool,
        most: usize,
    ) -> Result<Vec<Reserved>, FsError> {
        let mut tables = self.tables_mut();
        let most = most.min(usize::try_from(tables.free_inodes).unwrap_or(usize::MAX));
        if most == 0 {
            return Err(FsError::NoSpace);
        }
        (0..most)
            .map(|_| {
                let inode = tables.draw(directory)?;
                tables.reserved.insert(inode);
                Ok(Reserved { inode, generation: inode.0 })
            })
            .collect()
    }

    fn give_back(&self, inode: InodeNr) {
        self.tables_mut().reserved.remove(&inode);
    }

    fn make(&self, deeds: &[Deed<'_>], _content: Carried) -> (usize, Result<(), FsError>) {
        let one = |deed: &Deed<'_>| match deed {
            Deed::Apply(op) | Deed::Erase(op, _) => self.apply(op).map(drop),
            Deed::Create(op, reserved) => {
                let OpKind::Create { place, new } = &op.kind else { return Err(FsError::Invalid) };
                self.tables_mut().create(op, place, new, Some(*reserved)).map(drop)
            }
            Deed::Release(inode) => self.release(*inode),
        };
        let failed = |(made, deed)| one(deed).err().map(|error| (made, Err(error)));
        deeds.iter().enumerate().find_map(failed).unwrap_or((deeds.len(), Ok(())))
    }
}
