//! Reads a tar archive.

use std::io;

use floe_archive::{Archive, ArchiveError, ArchiveFault, Reader};

use crate::mkfs::tree::{Attributes, ContentId, Contents, Tree};

use super::apply::Applier;
use super::spool::Spooled;
use super::{BoxedContents, Loaded, SourceError};

/// Reads the files of an archive. If several entries have one path, the last one counts;
/// directories without an entry are owned by root and have mode 0755; hard links may come before
/// their targets.
///
/// # Errors
/// If the archive is damaged or has invalid paths; see [`SourceError`].
pub fn tar(archive: Spooled) -> Result<Loaded<BoxedContents>, SourceError> {
    if archive.size_bytes() == 0 {
        let source = ArchiveError { offset_bytes: 0, fault: ArchiveFault::Empty };
        return Err(SourceError::Archive { path: archive.path, source });
    }
    let mut tree = Tree::new(Attributes::root());
    let mut applier = Applier::new(&mut tree, false);
    let doubt = match apply(&mut applier, &archive, 0)? {
        End::Whole => None,
        End::Missing => Some(format!(
            "{}: the archive may be cut off, because it lacks the blocks that end one",
            archive.path.display()
        )),
        End::Followed => Some(followed(&archive)),
    };
    let contents: BoxedContents = Box::new(TarContents { archives: vec![archive] });
    Ok(Loaded { tree, contents, doubt })
}

/// The end of an archive.
pub(super) enum End {
    /// Blocks of zeroes, and nothing behind them.
    Whole,
    /// It has none.
    Missing,
    /// Bytes follow that are not zero.
    Followed,
}

/// A sentence on an archive that something follows.
pub(super) fn followed(archive: &Spooled) -> String {
    format!(
        "{}: more follows the end of the archive, and is left out (`tar -i` reads archives that were joined)",
        archive.path.display()
    )
}

/// Applies all entries of an archive; `number` becomes the id of its contents.
pub(super) fn apply(
    applier: &mut Applier<'_>,
    archive: &Spooled,
    number: u64,
) -> Result<End, SourceError> {
    let mut reader = Reader::new(archive);
    loop {
        let entry = reader.next_entry();
        let entry = entry.map_err(|source| archive.fault(source))?;
        let Some(entry) = entry else { break };
        applier.add(entry, ContentId(number))?;
    }
    applier.finish()?;
    if !reader.has_end() {
        return Ok(End::Missing);
    }
    let more = reader.holds_more();
    let more = more.map_err(|source| SourceError::Read { path: archive.path.clone(), source })?;
    Ok(if more { End::Followed } else { End::Whole })
}

/// Contents that lie in archives: a content id is the number of an archive.
pub(super) struct TarContents {
    pub(super) archives: Vec<Spooled>,
}

impl Contents for TarContents {
    fn read_at(&self, content: ContentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let index = usize::try_from(content.0).unwrap_or(usize::MAX);
        let archive = self.archives.get(index).ok_or(io::ErrorKind::NotFound)?;
        archive.read_at(offset, into).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", archive.path.display()))
        })
    }
}
