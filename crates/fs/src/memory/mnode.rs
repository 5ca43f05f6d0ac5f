//! An inode in memory.

use floe_disk::ops::{NewInode, NewKind, Reserved};
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_sync::Arc;

use super::content::{Content, PAGE_BYTES};
use super::lower::Facts;
use crate::op::Op;
use crate::{Attributes, Directory};

/// Flags under which a change has no effects but the ones that memory knows.
const SIMPLE: InodeFlags = InodeFlags::EXTENTS
    .union(InodeFlags::INDEX)
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::HUGE_FILE);

/// Mode bit of directories whose children get their group.
const SETGID: u16 = 0o2000;
/// Targets of links below this many bytes lie in the inode.
const FAST_TARGET_BYTES: usize = 60;

/// Access lists of an inode, which change what its permissions mean.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lists {
    pub(crate) access: bool,
    pub(crate) default: bool,
}

impl Lists {
    pub(crate) fn of(attributes: &[floe_ext4::files::Attribute]) -> Self {
        let has = |name: &[u8]| attributes.iter().any(|one| one.name == name);
        Self { access: has(b"system.posix_acl_access"), default: has(b"system.posix_acl_default") }
    }
}

/// An inode in memory.
#[derive(Debug)]
pub(crate) struct Mnode {
    /// As programs see them, but for the sectors of content that has none yet.
    pub(crate) attributes: Attributes,
    /// Names of a directory, once somebody asked for them.
    pub(crate) names: Option<Arc<Directory>>,
    /// Target of a symbolic link that the disk has not got.
    pub(crate) target: Option<Box<[u8]>>,
    /// Content of a regular file.
    pub(crate) content: Content,
    /// Size of the file on the disk.
    pub(crate) disk_bytes: u64,
    /// Size of the file on the disk when the flush under way, if there is one, is over.
    pub(crate) stored_bytes: u64,
    /// Access lists, once somebody asked for them.
    pub(crate) lists: Option<Lists>,
    /// The disk has no such inode yet.
    pub(crate) unborn: bool,
    /// A flush has changes of it that are not known to be on the disk.
    pub(crate) in_flight: bool,
}

impl Mnode {
    /// An inode as the disk has it.
    pub(crate) const fn loaded(attributes: Attributes) -> Self {
        Self {
            attributes,
            names: None,
            target: None,
            content: Content::on_disk(),
            disk_bytes: attributes.size_bytes,
            stored_bytes: attributes.size_bytes,
            lists: None,
            unborn: false,
            in_flight: false,
        }
    }

    /// Something new in a directory, by the rules of the disk's own operation as far as they concern a directory with
    /// [simple](Mnode::is_simple) flags.
    pub(crate) fn born(
        op: &Op<'_>,
        new: &NewInode<'_>,
        parent: &Attributes,
        reserved: Reserved,
        facts: &Facts,
        block_bytes: u32,
    ) -> Self {
        let kind = new.kind.file_type();
        let is_directory = kind == FileType::Directory;
        let inherits_group = parent.permissions & SETGID != 0;
        let umask = if kind == FileType::Symlink { 0 } else { new.umask & 0o777 };
        let mut permissions = new.permissions & 0o7777 & !umask;
        if inherits_group && is_directory {
            permissions |= SETGID;
        }
        let target = if let NewKind::Symlink(target) = new.kind { Some(target) } else { None };
        let long = target.is_some_and(|target| target.len() >= FAST_TARGET_BYTES);
        let has_blocks = is_directory || long;
        let mapped = has_blocks || kind == FileType::Regular;
        let size_bytes = match target {
            Some(target) => target.len() as u64,
            None if is_directory => u64::from(block_bytes),
            None => 0,
        };
        let cluster_bytes = u64::from(block_bytes) * u64::from(facts.cluster_blocks);
        let attributes = Attributes {
            inode: reserved.inode,
            generation: reserved.generation,
            kind,
            permissions,
            links: 1 + u32::from(is_directory),
            uid: op.uid,
            gid: if inherits_group { parent.gid } else { op.gid },
            size_bytes,
            sectors: if has_blocks { cluster_bytes / 512 } else { 0 },
            atime: op.time,
            mtime: op.time,
            ctime: op.time,
            crtime: facts.has_crtime.then_some(op.time),
            device: None,
            flags: if mapped && facts.extents { InodeFlags::EXTENTS } else { InodeFlags::empty() },
            project: 0,
        };
        let names = is_directory.then(|| Arc::new(Directory::new(facts.hash, false, parent.inode)));
        Self {
            names,
            target: target.map(Into::into),
            content: Content::new_file(),
            disk_bytes: 0,
            stored_bytes: 0,
            lists: Some(Lists::default()),
            unborn: true,
            ..Self::loaded(attributes)
        }
    }

    /// Whether its flags forbid nothing and are handed on to nobody.
    pub(crate) fn is_simple(&self) -> bool {
        SIMPLE.contains(self.attributes.flags)
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.attributes.kind == FileType::Directory
    }

    /// Whether its content may wait in memory: maps of extents take any size that is asked for here.
    pub(crate) fn may_keep_content(&self) -> bool {
        self.attributes.kind == FileType::Regular
            && self.is_simple()
            && self.attributes.flags.contains(InodeFlags::EXTENTS)
    }

    /// The attributes as programs see them. Content in memory counts as stored in clusters of so many bytes, so that no
    /// program takes it for a hole, and `du` says what it will take.
    pub(crate) fn shown(&self, cluster_bytes: u64) -> Attributes {
        if !self.content.is_dirty() {
            return self.attributes;
        }
        let sectors = |bytes: u64| bytes.next_multiple_of(cluster_bytes) / 512;
        let size = self.attributes.size_bytes;
        let kept = self.attributes.sectors.min(sectors(self.content.kept_bytes(self.disk_bytes)));
        let new = self.content.pages_from(self.disk_bytes) * PAGE_BYTES / 512;
        let room = sectors(size).saturating_sub(kept);
        Attributes { sectors: kept + new.min(room), ..self.attributes }
    }
}
