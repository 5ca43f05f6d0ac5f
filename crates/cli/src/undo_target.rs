//! The undo file that a repair is to write, and what to do if its name is taken.

use std::path::Path;

use anyhow::{Context, bail};
use floe_blockdev::{UndoFile, UndoReadError, UndoWriter, WriteBlocks};
use floe_repair::undo::{Standing, standing, undo};

/// Makes sure that an undo file can be made at `path`, before the long work begins.
///
/// An undo file is there already if a repair was cut off: then what was half written is undone
/// first, so that the repair starts from what was there before, and ends as if it had not been cut
/// off. A file that would undo nothing may go; any other stays, and this is an error.
pub(crate) fn make_way(path: &Path, device: &dyn WriteBlocks) -> anyhow::Result<()> {
    let file = match UndoFile::open(path) {
        Ok(file) => file,
        Err(UndoReadError::Read { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            return Ok(UndoWriter::probe(path)?);
        }
        Err(error) => bail!("{error}; it is in the way of a new undo file. Name another one"),
    };
    let shown = path.display();
    match standing(&file, &device)? {
        Standing::Untouched => {}
        Standing::Partly => {
            let restored = undo(&file, device)?;
            eprintln!(
                "floe: an earlier repair was cut off; {shown} undid it ({} bytes). Repairing anew.",
                restored.bytes
            );
            if let Some(first) = file.not_saved().first() {
                eprintln!(
                    "floe: warning: {} blocks, the first at byte {first}, could not be read before that \
                     repair and so not be undone: they may hold what it wrote.",
                    file.not_saved().len()
                );
            }
        }
        Standing::Committed | Standing::Foreign => bail!(
            "{shown}: exists already, and is needed to undo an earlier change. Name another undo \
             file"
        ),
    }
    std::fs::remove_file(path).with_context(|| format!("cannot remove {shown}"))?;
    Ok(UndoWriter::probe(path)?)
}
