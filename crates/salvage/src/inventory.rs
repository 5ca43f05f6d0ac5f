//! The state of every rebuilt object, by its path.

use std::ops::Range;

use floe_ext4::files::{FileFault, FileMap, Node, Step, Visit, is_usable_target};
use floe_ext4::map::walk::has_map;
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};

use crate::{Provenance, Salvaged};

/// How much is known of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Inode and map are intact. (Data blocks carry no checksums in ext4, so their content is never
    /// proved.)
    Whole,
    /// Everything was rebuilt, but something about it is uncertain: an old copy of the inode, an
    /// unknown size, an unknown mode.
    Unsure,
    /// Parts of the content are lost, and read as zeroes.
    Partial,
    /// Only the name is left, or a symbolic link without its target, or a file whose content is encrypted.
    NameOnly,
}

impl State {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Whole, Self::Unsure, Self::Partial, Self::NameOnly];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Unsure => "unsure",
            Self::Partial => "partial",
            Self::NameOnly => "name-only",
        }
    }
}

/// One object of the rebuilt tree.
#[derive(Debug)]
pub struct Object {
    /// Its path, without a leading `/`; that of the root is `.`.
    pub path: Vec<u8>,
    /// Its inode; `None` if only the name is left.
    pub inode: Option<InodeNr>,
    /// Its type; `None` if unknown.
    pub file_type: Option<FileType>,
    /// How much is known of it.
    pub state: State,
    /// Where it came from, unless it is simply in its place.
    pub provenance: Option<Provenance>,
    /// Its damage.
    pub faults: Vec<FileFault>,
    /// Bytes of a regular file that are lost and read as zeroes: ranges in the file, sorted, that do
    /// not adjoin. Blocks after the last known one of a file without an inode are not listed.
    pub missing: Vec<Range<u64>>,
    /// Some of its blocks may have the bytes of others, because a piece of the image is missing before or behind them.
    pub is_beside_cut: bool,
}

impl Salvaged<'_> {
    /// Calls `look` with every object below the root, parents first, names sorted; before them with the
    /// root, as `.`, if it is not whole. Reads metadata only.
    pub fn inventory(&self, mut look: impl FnMut(Object)) {
        let Ok(root) = self.files.node(InodeNr::ROOT) else { return };
        for step in self.files.walk(root).without_own() {
            match step {
                Step::Visit(mut visit) if visit.path.is_empty() => {
                    visit.path.push(b'.');
                    let root = self.object(visit);
                    if root.state != State::Whole {
                        look(root);
                    }
                }
                Step::Visit(visit) => look(self.object(visit)),
                Step::Lost { path, .. } => look(Object {
                    path,
                    inode: None,
                    file_type: None,
                    state: State::NameOnly,
                    provenance: None,
                    faults: Vec::new(),
                    missing: Vec::new(),
                    is_beside_cut: false,
                }),
                _ => {}
            }
        }
    }

    fn object(&self, Visit { path, node }: Visit) -> Object {
        let (number, file_type) = (node.number, node.file_type());
        let provenance = self.summary.provenance.get(&number).copied();
        let mut faults = node.faults();
        let mut missing = Vec::new();
        let mut is_partial = self.summary.losses.partial_directories.contains(&number);
        let (mut is_usable, mut is_beside_cut) = (true, false);
        match file_type {
            Some(FileType::Regular) if node.inode().flags().contains(InodeFlags::ENCRYPT) => {
                is_usable = false;
            }
            Some(FileType::Regular) if has_map(&node.inode().base) => {
                let map = self.files.map(&node);
                missing = self.missing(&node, &map);
                is_beside_cut = self.is_beside_cut(&map);
                faults.extend(map.faults);
                is_partial |= self.summary.losses.lost_blocks.contains_key(&number);
            }
            Some(FileType::Regular) => {
                faults.extend(self.files.content(&node).map(|found| found.1).unwrap_or_default());
            }
            Some(FileType::Symlink) => {
                // The targets of encrypted links stay encrypted.
                if let Ok((target, found)) = self.files.target(&node) {
                    is_usable = is_usable_target(&target);
                    faults.extend(found);
                }
            }
            _ => {}
        }
        is_partial |= !missing.is_empty() || faults.iter().any(is_loss);
        let state = match is_usable {
            false => State::NameOnly,
            true if is_partial => State::Partial,
            true if is_beside_cut => State::Unsure,
            true => state_of(provenance, &faults),
        };
        let inode = Some(number);
        Object { path, inode, file_type, state, provenance, faults, missing, is_beside_cut }
    }

    /// Whether a file has blocks where a piece of the image may be missing.
    fn is_beside_cut(&self, map: &FileMap) -> bool {
        let Some(cut) = &self.summary.losses.cut else { return false };
        let doubtful = cut.doubtful(self.files.geometry());
        let (start, end) = (doubtful.start, doubtful.end());
        map.extents.iter().any(|extent| extent.run.start < end && extent.run.end() > start)
    }

    /// The bytes of a file that are lost: those that its map does not reach, and those in unreadable
    /// blocks.
    fn missing(&self, node: &Node, map: &FileMap) -> Vec<Range<u64>> {
        let mut lost: Vec<Range<u64>> =
            self.summary.losses.lost_blocks.get(&node.number).cloned().unwrap_or_default();
        for fault in &map.faults {
            match fault {
                FileFault::MapDamaged { logical } | FileFault::MapUnreadable { logical, .. } => {
                    // Up to the next block that is mapped.
                    let next = map.extents.partition_point(|one| one.logical.0 < logical.0);
                    let next = map.extents.get(next).map_or(u64::MAX, |extent| extent.logical.0);
                    lost.push(logical.0..next);
                }
                FileFault::MapOutside { logical, run } => {
                    lost.push(logical.0..logical.0.saturating_add(run.len_blocks));
                }
                _ => {}
            }
        }
        let unreadable = &self.summary.losses.unreadable;
        for extent in map.extents.iter().filter(|extent| !extent.unwritten) {
            let (start, end) = (extent.run.start, extent.run.end());
            let first = unreadable.partition_point(|run| run.end() <= start);
            for run in unreadable[first..].iter().take_while(|run| run.start < end) {
                let from = run.start.max(start).0 - start.0;
                let to = run.end().min(end).0 - start.0;
                lost.push(extent.logical.0 + from..extent.logical.0 + to);
            }
        }
        let block_size = u64::from(self.files.geometry().block_size);
        let size = node.size_bytes();
        let byte = |block: u64| block.saturating_mul(block_size).min(size);
        joined(lost.into_iter().map(|blocks| byte(blocks.start)..byte(blocks.end)).collect())
    }
}

/// Sorts ranges, leaves out empty ones, and joins those that overlap or adjoin.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let meets = next.start <= range.end;
        if meets {
            range.end = range.end.max(next.end);
        }
        meets
    });
    ranges
}

/// Whether a fault means that something is lost. A wrong checksum alone says only that something
/// may have changed.
pub(crate) const fn is_loss(fault: &FileFault) -> bool {
    !matches!(
        fault,
        FileFault::InodeChecksum
            | FileFault::MapChecksum { .. }
            | FileFault::DirectoryChecksum { .. }
    )
}

/// The state of an object of which nothing is lost.
fn state_of(provenance: Option<Provenance>, faults: &[FileFault]) -> State {
    match provenance {
        None | Some(Provenance::Extended | Provenance::Map { .. }) if faults.is_empty() => {
            State::Whole
        }
        _ => State::Unsure,
    }
}

#[cfg(test)]
mod tests {
    use super::joined;

    #[test]
    fn ranges_are_joined() {
        assert_eq!(joined(vec![7..9, 1..2, 4..4, 2..3, 8..8, 5..8]), [1..3, 5..9]);
        assert_eq!(joined(Vec::new()), []);
    }
}
