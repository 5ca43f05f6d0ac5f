//! The bytes of a file, with its holes, and the target of a symbolic link.

use floe_format::ext::inline_data::InlineData;
use floe_format::ext::inode::{FileType, InodeFlags};

use super::{FileFault, FileMap, Files, FilesError, Node};

/// The targets of symbolic links are shorter than this in Linux.
const MOST_TARGET_BYTES: u64 = 64 << 10;
/// Bytes of the longest path in Linux (`PATH_MAX`), with the zero byte at its end.
const MOST_PATH_BYTES: usize = 4096;
/// Targets shorter than this are stored in the inode (fast symbolic links).
const FAST_LINK_BYTES: u64 = 60;

/// The content of a regular file or symbolic link, with random access.
#[derive(Debug)]
pub struct Content<'f, 'd> {
    files: &'f Files<'d>,
    size_bytes: u64,
    form: Form,
}

#[derive(Debug)]
enum Form {
    /// In the inode: inline data, fast symbolic link.
    Bytes(Vec<u8>),
    Mapped(FileMap),
}

/// A piece of a file: data, a hole, or unwritten blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First byte in the file.
    pub offset_bytes: u64,
    /// Bytes, at least 1.
    pub len_bytes: u64,
    /// Its kind.
    pub kind: SegmentKind,
}

/// The kind of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// Stored bytes.
    Data,
    /// A hole: it reads as zeroes.
    Hole,
    /// Allocated, but never written: it reads as zeroes.
    Unwritten,
}

impl std::fmt::Debug for Files<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("geometry", &self.geometry).finish_non_exhaustive()
    }
}

impl<'d> Files<'d> {
    /// The content of a regular file or symbolic link, and the damage of its mapping.
    ///
    /// # Errors
    /// [`FilesError::NoContent`], [`FilesError::Encrypted`].
    pub fn content(&self, node: &Node) -> Result<(Content<'_, 'd>, Vec<FileFault>), FilesError> {
        let inode = node.number;
        let is_link = match node.file_type() {
            Some(FileType::Regular) => false,
            Some(FileType::Symlink) => true,
            _ => return Err(FilesError::NoContent { inode }),
        };
        if node.flags().contains(InodeFlags::ENCRYPT) {
            return Err(FilesError::Encrypted { inode });
        }
        Ok(self.stored(node, is_link))
    }

    /// The content of any inode that has some, whatever its type.
    pub(super) fn stored(&self, node: &Node, is_link: bool) -> (Content<'_, 'd>, Vec<FileFault>) {
        let (decoded, size_bytes) = (node.inode(), node.size_bytes());
        let flags = decoded.flags();
        let of = |form| Content { files: self, size_bytes, form };
        if flags.contains(InodeFlags::INLINE_DATA) {
            let inline = InlineData::of(&decoded);
            let bytes = inline.as_ref().map(|data| data.content(size_bytes).concat());
            // Linux before 6.18 lets a size grow past the room for inline data, and reads zeroes there.
            let may_end_early = !is_link && inline.is_some();
            let mut bytes = bytes.unwrap_or_default();
            let mut faults = Vec::new();
            if bytes.len() as u64 != size_bytes && !may_end_early {
                faults.push(FileFault::InlineDamaged);
                // A hostile size must not exhaust memory: inline content is never larger than an
                // inode.
                bytes.resize(size_bytes.min(u64::from(self.geometry.inode_size)) as usize, 0);
            }
            let size_bytes = if may_end_early { size_bytes } else { bytes.len() as u64 };
            return (Content { files: self, size_bytes, form: Form::Bytes(bytes) }, faults);
        }
        if is_link && size_bytes < FAST_LINK_BYTES && !flags.contains(InodeFlags::EXTENTS) {
            // Less than 60 bytes.
            let target = decoded.base.block.get(..size_bytes as usize).unwrap_or_default();
            return (of(Form::Bytes(target.to_vec())), Vec::new());
        }
        let mut map = self.map(node);
        let faults = std::mem::take(&mut map.faults);
        (of(Form::Mapped(map)), faults)
    }

    /// The bytes of an inode that holds the value of an attribute. Linux reads them by the map alone, and from unwritten
    /// extents, too.
    pub(super) fn value(&self, node: &Node) -> (Content<'_, 'd>, Vec<FileFault>) {
        let mut map = self.map(node);
        let faults = std::mem::take(&mut map.faults);
        for extent in &mut map.extents {
            extent.unwritten = false;
        }
        let form = Form::Mapped(map);
        (Content { files: self, size_bytes: node.size_bytes(), form }, faults)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// Those of [`Files::content`]; [`FilesError::NoContent`] for anything but a symbolic link.
    pub fn target(&self, node: &Node) -> Result<(Vec<u8>, Vec<FileFault>), FilesError> {
        if node.file_type() != Some(FileType::Symlink) {
            return Err(FilesError::NoContent { inode: node.number });
        }
        let (content, mut faults) = self.content(node)?;
        let len = content.size_bytes.min(MOST_TARGET_BYTES);
        let mut target = vec![0; len as usize];
        content.read_at(0, &mut target, &mut faults);
        Ok((target, faults))
    }
}

/// Whether a target can be that of a symbolic link: not empty, no zero bytes, and below the 4096
/// bytes of the longest path of Linux.
pub fn is_usable_target(target: &[u8]) -> bool {
    (1..MOST_PATH_BYTES).contains(&target.len()) && !target.contains(&0)
}

impl Content<'_, '_> {
    /// Bytes of the file.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The segments of the file from its first to its last byte, none of them empty. Adjacent ones
    /// may be of the same kind.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        self.segments_from(0)
    }

    /// Likewise from any byte on: the first stretch begins with that byte. Nothing from the end of the
    /// file on.
    pub fn segments_from(&self, offset_bytes: u64) -> impl Iterator<Item = Segment> + '_ {
        let mut at = offset_bytes;
        std::iter::from_fn(move || {
            let segment = self.segment_at(at)?;
            at += segment.len_bytes;
            Some(segment)
        })
    }

    /// The segment that starts at a byte; `None` from the end of the file on.
    fn segment_at(&self, at: u64) -> Option<Segment> {
        let rest = self.size_bytes.checked_sub(at).filter(|rest| *rest > 0)?;
        let map = match &self.form {
            Form::Mapped(map) => map,
            Form::Bytes(bytes) => {
                let data = (bytes.len() as u64).saturating_sub(at).min(rest);
                let (len_bytes, kind) =
                    if data > 0 { (data, SegmentKind::Data) } else { (rest, SegmentKind::Hole) };
                return Some(Segment { offset_bytes: at, len_bytes, kind });
            }
        };
        let block_size = u64::from(self.files.geometry.block_size);
        let Some(extent) = map.extents.get(map.from(at / block_size)) else {
            return Some(Segment { offset_bytes: at, len_bytes: rest, kind: SegmentKind::Hole });
        };
        let start = extent.logical.0.saturating_mul(block_size);
        let (end, kind) = if at < start {
            (start, SegmentKind::Hole)
        } else {
            let end = (extent.logical.0 + extent.run.len_blocks).saturating_mul(block_size);
            (end, if extent.unwritten { SegmentKind::Unwritten } else { SegmentKind::Data })
        };
        Some(Segment { offset_bytes: at, len_bytes: rest.min(end - at), kind })
    }

    /// Fills `into` with the bytes from `offset_bytes` on, as many as the file has, and returns
    /// their number. Holes and unreadable blocks read as zeroes; the latter are listed in `faults`.
    pub fn read_at(
        &self,
        offset_bytes: u64,
        into: &mut [u8],
        faults: &mut Vec<FileFault>,
    ) -> usize {
        let mut done = 0;
        while done < into.len() {
            let at = offset_bytes.saturating_add(done as u64);
            let Some(segment) = self.segment_at(at) else { break };
            let len = segment.len_bytes.min((into.len() - done) as u64) as usize;
            let part = &mut into[done..done + len];
            match (&self.form, segment.kind) {
                (Form::Bytes(bytes), SegmentKind::Data) => {
                    // A segment of data lies inside the bytes.
                    part.copy_from_slice(bytes.get(at as usize..at as usize + len).unwrap_or(&[]));
                }
                (Form::Mapped(map), SegmentKind::Data) => self.read_mapped(map, at, part, faults),
                (Form::Bytes(_) | Form::Mapped(_), _) => part.fill(0),
            }
            done += len;
        }
        done
    }

    /// Reads bytes of one extent.
    fn read_mapped(&self, map: &FileMap, at: u64, into: &mut [u8], faults: &mut Vec<FileFault>) {
        let geometry = &self.files.geometry;
        let block_size = u64::from(geometry.block_size);
        let Some(extent) = map.extents.get(map.from(at / block_size)) else { return into.fill(0) };
        let start = geometry.offset_bytes(extent.run.start);
        let place = start + (at - extent.logical.0 * block_size);
        if self.files.device.read_at(place, into).is_ok() {
            return;
        }
        // Read block by block, so that only the unreadable blocks are lost.
        let mut done = 0;
        while done < into.len() {
            let in_block = (at + done as u64) % block_size;
            let len = (block_size - in_block).min((into.len() - done) as u64) as usize;
            let part = &mut into[done..done + len];
            if let Err(source) = self.files.device.read_at(place + done as u64, part) {
                part.fill(0);
                let offset_bytes = at + done as u64;
                note_unreadable(faults, offset_bytes, len as u64, source);
            }
            done += len;
        }
    }
}

/// Extends the last fault if the unreadable bytes follow it, else adds a fault.
fn note_unreadable(
    faults: &mut Vec<FileFault>,
    offset_bytes: u64,
    len_bytes: u64,
    source: std::io::Error,
) {
    if let Some(FileFault::DataUnreadable { offset_bytes: from, len_bytes: len, .. }) =
        faults.last_mut()
        && *from + *len == offset_bytes
    {
        *len += len_bytes;
        return;
    }
    faults.push(FileFault::DataUnreadable { offset_bytes, len_bytes, source });
}
