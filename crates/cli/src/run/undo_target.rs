//! The undo file of a repair, and the treatment of an existing file.

use std::path::Path;

use anyhow::{Context, bail};
use floe_blockdev::{UndoFile, UndoReadError, UndoWriter, WriteBlocks};
use floe_format::words::agree;
use floe_repair::undo::{Standing, standing, undo};
use floe_report::human::size;

use crate::message::message;

/// Ensures that an undo file can be created at `path`, before the long work begins.
///
/// An existing undo file of an interrupted repair is applied first, so that the repair starts from
/// the original state and ends as if it had never been interrupted. A file that would undo nothing
/// is removed; any other file stays, and this returns an error.
pub(crate) fn make_way(path: &Path, device: &dyn WriteBlocks) -> anyhow::Result<()> {
    let file = match UndoFile::open(path) {
        Ok(file) => file,
        Err(UndoReadError::Read { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            return Ok(UndoWriter::probe(path)?);
        }
        Err(error) => bail!("{error}; it is in the way of a new undo file. Choose another name"),
    };
    let shown = path.display();
    match standing(&file, &device)? {
        Standing::Untouched => {}
        Standing::Partly => {
            let restored = undo(&file, device)?;
            message!(
                "floe: an earlier repair was cut off; {shown} undid it ({}). Repairing again.",
                size(restored.bytes)
            );
            if let Some(first) = file.not_saved().first() {
                let blocks = format!("{} blocks", file.not_saved().len());
                message!(
                    "floe: warning: what was in {} before that repair, the first at byte {first}, \
                     could not be read then and cannot be restored: its writes may still be there.",
                    agree(&blocks)
                );
            }
        }
        Standing::Committed | Standing::Changed { .. } | Standing::Foreign => bail!(
            "{shown}: exists already, and is needed to undo an earlier change. Name another undo \
             file"
        ),
    }
    std::fs::remove_file(path).with_context(|| format!("cannot remove {shown}"))?;
    Ok(UndoWriter::probe(path)?)
}
