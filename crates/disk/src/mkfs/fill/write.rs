//! Writes a file system and the files of its tree with several threads.

use std::io;
use std::ops::Range;
use std::time::Duration;

use floe_blockdev::WriteBlocks;
use floe_exec::{Accumulator, Pool, Progress, Shape, Work};
use floe_ext4::map::block_map::MappedRun;
use floe_format::{BlockNr, BlockRun, GroupNr, LogicalBlock};

use super::data::{among_names, read};
use super::{MAPPED, TreePlan};
use crate::mkfs::tree::Contents;
use crate::mkfs::write::{Output, WriteError, WriteOptions};

/// Bytes that a worker buffers before it writes them.
const BUFFER_BYTES: usize = 4 << 20;
/// Files of a unit of work, and bytes of their data.
const UNIT_FILES: usize = 512;
const UNIT_BYTES: u64 = 4 << 20;

/// The phases of [`fill`]: bytes of files and directories, and inode tables by groups.
const WRITE: &str = "write";
const TABLES: &str = "inode tables";
/// Time per byte of data and per inode, for one thread: only their proportion matters.
const BYTE_NS: f64 = 0.5;
const INODE_NS: f64 = 1000.0;

/// How a tree is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct FillOptions<'p> {
    /// Number of workers; 0 counts as 1.
    pub threads: usize,
    /// How the file system is written.
    pub write: WriteOptions,
    /// Progress made by [`fill_progress`], which the run updates.
    pub progress: Option<&'p Progress>,
}

/// Progress of [`fill`]: bytes in the phase `write`, groups in the phase `inode tables`.
pub fn fill_progress() -> Progress {
    Progress::new(&[WRITE, TABLES])
}

/// Why a file system was not filled. It has no superblock then.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    /// The device returned an error.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// Its path in the tree.
        path: String,
        /// The error of its source.
        source: io::Error,
    },
}

/// Writes a planned file system, with the data of its files.
///
/// # Errors
/// If the device fails, or a file cannot be read: the first one in the order of the tree.
pub fn fill(
    plan: &TreePlan<'_>,
    contents: &dyn Contents,
    device: &dyn WriteBlocks,
    options: FillOptions<'_>,
) -> Result<(), FillError> {
    let out = Output::new(plan.plan(), device, options.write);
    let pool = Pool::new(options.threads.max(1));
    let units = plan.units();
    if let Some(progress) = options.progress {
        plan.expect(progress);
        progress.begin(WRITE);
    }
    out.begin()?;
    out.pieces()?;
    let writer = Writer { plan, contents, out: &out, progress: options.progress };
    let failed: FirstFailure = pool.run(&units, |failed: &mut FirstFailure, unit| {
        failed.note(unit.first(), writer.unit(unit));
    });
    failed.result()?;
    let groups: Vec<GroupNr> = (0..plan.plan.geometry().group_count).map(GroupNr).collect();
    let fill = |group, first, bytes: &mut [u8]| plan.fill_table(group, first, bytes, contents);
    if let Some(progress) = options.progress {
        progress.begin(TABLES);
    }
    let pool = pool.watched(options.progress);
    let failed: FirstFailure = pool.run(&groups, |failed: &mut FirstFailure, group| {
        failed.note((0, group.0 as usize), out.table(*group, fill));
    });
    failed.result()?;
    out.finish()?;
    if let Some(progress) = options.progress {
        progress.end();
    }
    Ok(())
}

/// A unit of work.
#[derive(Debug)]
enum Unit {
    /// Directories, symbolic links and attribute blocks of a range of the order.
    Names(Range<usize>),
    /// Small files of a range of the order.
    Files(Range<usize>),
    /// A part of a large file.
    Part(usize, MappedRun),
}

impl Unit {
    fn first(&self) -> (u8, usize) {
        match self {
            Self::Names(range) => (0, range.start),
            Self::Files(range) => (1, range.start),
            Self::Part(at, _) => (1, *at),
        }
    }
}

/// The failure that comes first in the order of the units, whichever worker met it first.
#[derive(Debug, Default)]
struct FirstFailure(Option<((u8, usize), FillError)>);

impl FirstFailure {
    fn note(&mut self, at: (u8, usize), done: Result<(), FillError>) {
        if let Err(error) = done {
            self.merge(Self(Some((at, error))));
        }
    }

    fn result(self) -> Result<(), FillError> {
        self.0.map_or(Ok(()), |(_, error)| Err(error))
    }
}

impl Accumulator for FirstFailure {
    fn merge(&mut self, other: Self) {
        let Self(failure) = other;
        if let Some((at, _)) = &failure
            && self.0.as_ref().is_none_or(|(first, _)| at < first)
        {
            self.0 = failure;
        }
    }
}

impl TreePlan<'_> {
    /// Announces the work to the progress.
    fn expect(&self, progress: &Progress) {
        let blocks: u64 = self.places.iter().map(|place| u64::from(place.blocks)).sum();
        let bytes = blocks * u64::from(self.plan.geometry().block_size);
        let model = |nanoseconds: f64| Work {
            // A file system has fewer than 2^64 bytes and inodes.
            busy: Duration::from_nanos(nanoseconds as u64),
            ..Work::default()
        };
        if let Some(phase) = progress.named(WRITE) {
            phase.plan(model(bytes as f64 * BYTE_NS), 0, Shape::default());
            phase.expect(bytes);
        }
        if let Some(phase) = progress.named(TABLES) {
            phase.plan(model(self.order.len() as f64 * INODE_NS), 0, Shape::default());
        }
    }

    /// All units of work, in order.
    fn units(&self) -> Vec<Unit> {
        let count = self.order.len();
        let mut units: Vec<Unit> = (0..count)
            .step_by(UNIT_FILES)
            .map(|start| Unit::Names(start..(start + UNIT_FILES).min(count)))
            .collect();
        let (mut start, mut bytes) = (0, 0);
        for at in 0..count {
            let is_large = !among_names(self.file_type(at)) && self.is_large(at);
            if is_large || at - start >= UNIT_FILES || bytes >= UNIT_BYTES {
                units.push(Unit::Files(start..at));
                (start, bytes) = (at, 0);
            }
            if is_large {
                units.extend(self.parts(at).into_iter().map(|part| Unit::Part(at, part)));
                start = at + 1;
            } else {
                bytes +=
                    u64::from(self.places[at].blocks) * u64::from(self.plan.geometry().block_size);
            }
        }
        units.push(Unit::Files(start..count));
        units.retain(|unit| !matches!(unit, Unit::Files(range) if range.is_empty()));
        units
    }

    fn is_large(&self, at: usize) -> bool {
        let place = self.places[at];
        let bytes = u64::from(place.blocks) * u64::from(self.plan.geometry().block_size);
        place.flags & MAPPED != 0 || bytes > UNIT_BYTES
    }

    /// The runs of a file, split to the size of a unit.
    fn parts(&self, at: usize) -> Vec<MappedRun> {
        let most = UNIT_BYTES / u64::from(self.plan.geometry().block_size);
        let mut parts = Vec::new();
        for MappedRun { logical, run } in self.runs_of(at) {
            let mut done = 0;
            while done < run.len_blocks {
                let len = most.min(run.len_blocks - done);
                parts.push(MappedRun {
                    logical: LogicalBlock(logical.0 + done),
                    run: BlockRun::new(BlockNr(run.start.0 + done), len),
                });
                done += len;
            }
        }
        parts
    }

    /// Writes the inodes of the tree in a part of a table.
    fn fill_table(
        &self,
        group: GroupNr,
        first: u32,
        bytes: &mut [u8],
        contents: &dyn Contents,
    ) -> Result<(), FillError> {
        let geometry = self.plan.geometry();
        let size = geometry.inode_size as usize;
        for (index, raw) in (first..).zip(bytes.chunks_exact_mut(size)) {
            let number = geometry.inode_at(group, index);
            if let Some(at) = self.place_of(number) {
                let mut inode = self.inode(at);
                let filled = self.set_inline(at, contents, &mut inode);
                filled.map_err(|source| self.unreadable(at, source))?;
                inode.encode(&self.plan.form, number, raw);
            }
        }
        Ok(())
    }

    fn unreadable(&self, at: usize, source: io::Error) -> FillError {
        let path = String::from_utf8_lossy(&self.tree.path(self.order[at])).into_owned();
        FillError::Read { path, source }
    }
}

/// The state of a worker.
struct Writer<'a> {
    plan: &'a TreePlan<'a>,
    contents: &'a dyn Contents,
    out: &'a Output<'a>,
    progress: Option<&'a Progress>,
}

/// A buffer of adjacent blocks that are written together.
struct Buffer<'a> {
    out: &'a Output<'a>,
    bytes: Vec<u8>,
    /// Offset on the device of the first one.
    start: u64,
}

impl Buffer<'_> {
    /// Returns `len` bytes of buffer for an offset on the device, not necessarily zeroed.
    fn room(&mut self, place: u64, len: usize) -> Result<&mut [u8], WriteError> {
        let adjoins = place == self.start + self.bytes.len() as u64;
        if !adjoins || self.bytes.len() + len > BUFFER_BYTES {
            self.flush()?;
            self.start = place;
        }
        let before = self.bytes.len();
        self.bytes.resize(before + len, 0);
        Ok(&mut self.bytes[before..])
    }

    fn flush(&mut self) -> Result<(), WriteError> {
        if !self.bytes.is_empty() {
            self.out.put("the data of files", self.start, &self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }
}

impl Writer<'_> {
    fn unit(&self, unit: &Unit) -> Result<(), FillError> {
        let mut buffer = Buffer { out: self.out, bytes: Vec::new(), start: 0 };
        match unit {
            Unit::Names(range) => {
                for at in range.clone() {
                    self.names(at, &mut buffer)?;
                }
            }
            Unit::Files(range) => {
                for at in range.clone() {
                    if !among_names(self.plan.file_type(at)) && self.plan.has_blocks(at) {
                        for run in self.plan.runs_of(at) {
                            self.data(at, run, &mut buffer)?;
                        }
                    }
                }
            }
            Unit::Part(at, run) => self.data(*at, *run, &mut buffer)?,
        }
        buffer.flush()?;
        if let Some(phase) = self.progress.and_then(|progress| progress.named(WRITE)) {
            phase.advance(self.bytes_of(unit));
        }
        Ok(())
    }

    /// Bytes of the blocks that a unit writes, except those of attributes.
    fn bytes_of(&self, unit: &Unit) -> u64 {
        let of_names = |at: &usize| among_names(self.plan.file_type(*at));
        let blocks = |at: usize| u64::from(self.plan.places[at].blocks);
        let blocks: u64 = match unit {
            Unit::Names(range) => range.clone().filter(of_names).map(blocks).sum(),
            Unit::Files(range) => range.clone().filter(|at| !of_names(at)).map(blocks).sum(),
            Unit::Part(_, part) => part.run.len_blocks,
        };
        blocks * u64::from(self.plan.plan.geometry().block_size)
    }

    /// Writes the blocks of a directory, a symbolic link, or attributes.
    fn names(&self, at: usize, buffer: &mut Buffer<'_>) -> Result<(), FillError> {
        use floe_format::ext::inode::FileType;
        let geometry = self.plan.plan.geometry();
        if self.plan.has_blocks(at) {
            match self.plan.file_type(at) {
                FileType::Directory => {
                    let content = self.plan.directory_content(at).content;
                    let mut rest = &content[..];
                    for MappedRun { run, .. } in self.plan.runs_of(at) {
                        let len = (run.len_blocks * u64::from(geometry.block_size)) as usize;
                        let (own, behind) = rest.split_at(len.min(rest.len()));
                        let room = buffer.room(geometry.offset_bytes(run.start), own.len())?;
                        room.copy_from_slice(own);
                        rest = behind;
                    }
                }
                FileType::Symlink => {
                    for run in self.plan.runs_of(at) {
                        self.data(at, run, buffer)?;
                    }
                }
                _ => {}
            }
        }
        if let Some((block, bytes)) = self.plan.attribute_block(at) {
            buffer.room(geometry.offset_bytes(block), bytes.len())?.copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// Writes a run of a file's data.
    fn data(&self, at: usize, part: MappedRun, buffer: &mut Buffer<'_>) -> Result<(), FillError> {
        let geometry = self.plan.plan.geometry();
        let block_size = u64::from(geometry.block_size);
        let node = self.plan.order[at];
        let len = (part.run.len_blocks * block_size) as usize;
        let room = buffer.room(geometry.offset_bytes(part.run.start), len)?;
        read(self.plan.tree.node(node), self.contents, part.logical.0 * block_size, room)
            .map_err(|source| self.plan.unreadable(at, source))
    }
}

#[cfg(test)]
mod laws {
    use super::*;

    floe_exec::accumulator_laws!(
        FirstFailure,
        (0u8..3, 0usize..50),
        |all: &mut FirstFailure, at| {
            let path = format!("{at:?}");
            all.note(at, Err(FillError::Read { path, source: io::Error::other("x") }));
        },
        |all: FirstFailure| all.0.map(|(at, error)| (at, error.to_string())),
    );
}
