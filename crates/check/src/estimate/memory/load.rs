//! The formula: what a file system contains, as far as memory depends on it, and the bytes that follow from it.

use floe_blockdev::ReadBlocks;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::{Geometry, GroupNr};

use super::mapped::Mapped;
use crate::evidence::accounting::Accounting;
use crate::evidence::block_set::CHUNK_BITS;
use crate::evidence::choice::{InodeUse, LinkStructure, TREE_ENTRY_BYTES};
use crate::evidence::common_claims;
use crate::evidence::inode_facts::CHUNK_INODES;
use crate::scan::inode_tables::TablePart;
use crate::volume::open::Opened;
use crate::volume::used_inodes_bound;

/// Whether the allocator is musl's, which allocates little more than is requested and returns freed
/// memory. Glibc's allocator retains more of both, and programs linked with it are larger.
const LEAN: bool = cfg!(target_env = "musl");
/// The program itself, its first stack, and what any check reads once.
const BASE_BYTES: u64 = if LEAN { 5 << 20 } else { 6 << 20 };
/// Buffers, stack and allocator of a thread.
const THREAD_BYTES: u64 = 640 << 10;
/// A chunk of clusters, without its bits.
const CHUNK_PLACE_BYTES: u64 = 16;
/// A run of adjacent static metadata.
const METADATA_RUN_BYTES: u64 = 16;
/// Sums of a group that one thread keeps (clusters, inodes, links).
const SUMS_BYTES: u64 = 48;
/// Numbers of directories and inodes in use of a group, where there are sums.
const COUNTS_BYTES: u64 = 28;
/// A random number of the sums.
const NUMBER_BYTES: u64 = 16;
/// Bytes per chunk of inodes, whatever it holds: its place in a worker's list and in the merged
/// list.
const CHUNK_BYTES: u64 = 104;
/// An inode that is not like most of its chunk, at most; and any inode where they are all different.
const UNUSUAL_BYTES: u64 = 8;
const INODE_BYTES: u64 = 3;
/// Bytes per chunk of inodes of the bitmap that counts links: the bits, and the chunk's place.
const LINK_CHUNK_BYTES: u64 = 256 + 16 + 32;
/// A directory: its inode and size, a run of blocks, its rank, parent, `..` and number of children.
const DIRECTORY_BYTES: u64 = if LEAN { 64 } else { 76 };
/// A block of a directory besides the first: its range of hashes, and the entry of the index.
const DIRECTORY_BLOCK_BYTES: u64 = 32;
/// Bytes of an entry with a name of common length, with some room left in each block.
const ENTRY_BYTES: u64 = 40;

/// The contents of a file system, as far as memory depends on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Groups.
    pub groups: u64,
    /// Clusters of a group.
    pub group_clusters: u64,
    /// Inodes of a group.
    pub group_inodes: u64,
    /// Groups with clusters in use.
    pub written_groups: u64,
    /// Chunks of clusters, used or not.
    pub chunks: u64,
    /// Those chunks that may need bits ([`Mapped::chunks`]).
    pub mapped_chunks: u64,
    /// Groups with inodes in use.
    pub inode_groups: u64,
    /// Runs of adjacent static metadata, about.
    pub metadata_runs: u64,
    /// Slots of inode tables that are read.
    pub slots: u64,
    /// Parts in which they are read.
    pub parts: u64,
    /// How inodes are used.
    pub inodes: InodeUse,
    /// Blocks of directories; a guess until they are counted.
    pub directory_blocks: u64,
    /// Bytes of evidence that no descriptor tells of; 0 until it is counted.
    pub other_bytes: u64,
    /// Whether edits follow, which copy descriptors and what is in use.
    pub edits: bool,
}

/// A way to check: what memory depends on besides the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Workers.
    pub threads: usize,
    /// Whether cross-checks are proved by sums.
    pub sums: bool,
    /// The structure that counts links.
    pub links: LinkStructure,
}

impl Way {
    /// The accounting as an option that names it.
    pub const fn accounting(self) -> Accounting {
        if self.sums { Accounting::Fingerprint } else { Accounting::Exact }
    }
}

/// The bytes of each kind of evidence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// The program and its threads.
    pub program: u64,
    /// Descriptors, places of metadata, parts of tables.
    pub layout: u64,
    /// Sums, with their random numbers.
    pub sums: u64,
    /// Which clusters are in use.
    pub claims: u64,
    /// Types and link counts of inodes.
    pub facts: u64,
    /// Links counted.
    pub links: u64,
    /// Directories and their tree.
    pub directories: u64,
    /// Copies of it that edits make.
    pub edits: u64,
    /// Memory that does not depend on the descriptors.
    pub other: u64,
}

impl Bytes {
    /// All together.
    pub fn total(&self) -> u64 {
        let Self { program, layout, sums, claims, facts, links, directories, edits, other } = *self;
        [program, layout, sums, claims, facts, links, directories, edits, other]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// Bytes that the allocator uses for a power of two: its size classes exceed the request, by a
/// seventh for musl, by less for glibc.
const fn allocated(bytes: u64) -> u64 {
    bytes + bytes.div_ceil(7)
}

impl Load {
    /// A file system without the groups, which [`Load::add`] adds.
    pub fn new(geometry: &Geometry, log_groups_per_flex: u8) -> Self {
        let groups = u64::from(geometry.group_count);
        // Metadata of a flexible group lies together; copies of the descriptors lie alone.
        let flex = 1u64.checked_shl(u32::from(log_groups_per_flex)).unwrap_or(1).max(1);
        Self {
            groups,
            group_clusters: u64::from(geometry.clusters_per_group),
            group_inodes: u64::from(geometry.inodes_per_group),
            chunks: geometry.clusters_count().div_ceil(CHUNK_BITS),
            metadata_runs: groups.div_ceil(flex) * 2,
            ..Self::default()
        }
    }

    /// Adds a group; `slots` of its table are read. Values of a damaged descriptor are limited to
    /// the size of a group.
    pub fn add(&mut self, geometry: &Geometry, desc: &GroupDesc, slots: u32) {
        let of_group = InodeUse::of_groups(geometry, std::slice::from_ref(desc));
        self.inodes.total += of_group.total;
        let slots = u64::from(slots);
        let used = of_group.used.min(slots);
        self.inodes.used += used;
        self.inodes.directories += of_group.directories.min(used);
        self.slots += slots;
        self.parts += slots.div_ceil(u64::from(CHUNK_INODES));
        self.inode_groups += u64::from(used > 0);
        self.written_groups += u64::from(u64::from(desc.free_blocks_count) < self.group_clusters);
        let full_blocks = self.inodes.used * ENTRY_BYTES / u64::from(geometry.block_size);
        self.directory_blocks = self.inodes.directories.max(full_blocks);
    }

    /// The contents according to the descriptors of a file system.
    pub fn of(opened: &Opened) -> Self {
        let geometry = &opened.geometry;
        let mut load = Self::new(geometry, opened.superblock.log_groups_per_flex);
        let mut mapped = Mapped::default();
        for (group, desc) in (0..).map(GroupNr).zip(&opened.groups) {
            load.add(geometry, desc, used_inodes_bound(geometry, desc));
            mapped.add(geometry, group, desc);
        }
        load.mapped_chunks = mapped.chunks(geometry);
        load.metadata_runs = opened.layout.clusters.bytes() as u64 / METADATA_RUN_BYTES;
        load
    }

    /// The contents according to the descriptors on a device, which are read one block at a time
    /// and not kept. Unreadable descriptors count as empty.
    pub(super) fn stream(
        device: &dyn ReadBlocks,
        geometry: &Geometry,
        log_groups_per_flex: u8,
    ) -> Self {
        let mut load = Self::new(geometry, log_groups_per_flex);
        let mut mapped = Mapped::default();
        let mut block = vec![0; geometry.block_size as usize];
        let per_block = geometry.descs_per_block();
        let mut left = geometry.group_count;
        for index in 0..geometry.desc_blocks {
            let place = geometry.primary_desc_block(index);
            if device.read_at(geometry.offset_bytes(place), &mut block).is_err() {
                block.fill(0);
            }
            let descriptors = block.chunks_exact(geometry.desc_size as usize);
            let first = geometry.group_count - left;
            for (group, raw) in (first..geometry.group_count).zip(descriptors) {
                let desc = GroupDesc::of(raw);
                load.add(geometry, &desc, used_inodes_bound(geometry, &desc));
                mapped.add(geometry, GroupNr(group), &desc);
            }
            left = left.saturating_sub(per_block);
        }
        load.mapped_chunks = mapped.chunks(geometry);
        load
    }

    /// The formula: most memory that is taken at a time.
    pub fn bytes(&self, way: Way) -> Bytes {
        let threads = way.threads.max(1) as u64;
        let layout = self.groups * size_of::<GroupDesc>() as u64
            + self.metadata_runs * METADATA_RUN_BYTES
            + self.parts * size_of::<TablePart>() as u64;
        let InodeUse { used, directories, .. } = self.inodes;
        let more_blocks = self.directory_blocks.saturating_sub(directories);
        let mut bytes = Bytes {
            program: BASE_BYTES + threads * THREAD_BYTES,
            layout,
            directories: directories * DIRECTORY_BYTES + more_blocks * DIRECTORY_BLOCK_BYTES,
            other: self.other_bytes,
            ..Bytes::default()
        };
        if way.sums {
            // Sums of clusters are added where inodes are read and where bitmaps are; each thread may
            // meet any group.
            let numbers = self.group_clusters + 2 * self.group_inodes;
            let touched = self.written_groups.max(self.inode_groups);
            bytes.sums = numbers * NUMBER_BYTES
                + touched * SUMS_BYTES * (1 + threads)
                + self.inode_groups * COUNTS_BYTES;
            // One group, that of the reserved inodes, is kept in any case.
            let one = self.of_groups(1, Way { sums: false, ..way });
            (bytes.claims, bytes.facts, bytes.links) = (one.claims, one.facts, one.links);
        } else {
            bytes.claims = self.claims_bytes(self.mapped_chunks, threads);
            bytes.facts = self.facts_bytes(self.slots, used, directories);
            bytes.links = self.links_bytes(way.links, threads);
        }
        if self.edits {
            // Logs of threads are gone by then.
            let of_one = match way.sums {
                true => bytes.claims,
                false => self.claims_bytes(self.mapped_chunks, 1),
            };
            bytes.edits = self.groups * size_of::<GroupDesc>() as u64 + of_one;
        }
        bytes
    }

    /// Evidence of `groups` full groups that is kept object by object.
    pub fn of_groups(&self, groups: u64, way: Way) -> Bytes {
        let threads = way.threads.max(1) as u64;
        let slots = groups * self.group_inodes;
        Bytes {
            claims: self.claims_bytes(self.chunks_of(groups), threads),
            facts: self.facts_bytes(slots, slots, slots),
            links: threads * slots.div_ceil(u64::from(CHUNK_INODES)) * LINK_CHUNK_BYTES,
            ..Bytes::default()
        }
    }

    /// Most chunks of clusters that so many groups lie in.
    fn chunks_of(&self, groups: u64) -> u64 {
        (groups * self.group_clusters.div_ceil(CHUNK_BITS)).min(self.chunks)
    }

    /// One bit a cluster of so many chunks; of each thread that reads inodes the places of all chunks, and a
    /// log, if there are several.
    fn claims_bytes(&self, chunks: u64, threads: u64) -> u64 {
        let threads = threads.min(self.parts.max(1));
        // In common, chunks have places, too.
        let (places, logs) = if threads > 1 { (threads + 1, threads) } else { (1, 0) };
        let of_places = places * self.chunks * CHUNK_PLACE_BYTES;
        chunks * allocated(CHUNK_BITS / 8) + of_places + logs * common_claims::LOG_BYTES
    }

    /// Types and link counts: little where inodes of a chunk are alike.
    pub(super) fn facts_bytes(&self, slots: u64, used: u64, directories: u64) -> u64 {
        let chunks = slots.div_ceil(u64::from(CHUNK_INODES));
        // Directories among files, free inodes among those in use, or the other way round.
        let unusual =
            directories.min(used - directories.min(used)) + (slots - used.min(slots)).min(used);
        chunks * CHUNK_BYTES + (unusual * UNUSUAL_BYTES).min(slots * INODE_BYTES)
    }

    /// Links counted in a structure, by each thread.
    pub(crate) fn links_bytes(&self, links: LinkStructure, threads: u64) -> u64 {
        let InodeUse { used, directories, .. } = self.inodes;
        match links {
            LinkStructure::Bits => threads * self.parts * LINK_CHUNK_BYTES,
            LinkStructure::Array => threads * self.inodes.array_bytes(),
            // Links of directories are not counted here, so that each directory ends a run of files.
            // The deltas of all threads together have as many runs.
            LinkStructure::TwinTree => {
                let files = used.saturating_sub(directories);
                let runs = files.min(directories + self.inode_groups * threads);
                2 * runs * TREE_ENTRY_BYTES
            }
        }
    }
}
