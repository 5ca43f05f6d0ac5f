//! `floe mkfs --bmap`: the block map of an image.

use std::io::Write;

use anyhow::Context;
use floe_blockdev::{NewFile, ReadBlocks};
use floe_disk::mkfs::{BLOCK_MAP_HEAD, Plan, block_map};

use super::Args;
use crate::exit::Outcome;
use crate::input::files::{self, is_standard_output};

/// Mode of a block map file, before the umask.
const MODE: u32 = 0o666;

impl Args {
    /// Creates the block map file, before anything else is written.
    pub(super) fn open_block_map(&self) -> anyhow::Result<Option<NewFile>> {
        let Some(path) = self.bmap.as_deref().filter(|path| !is_standard_output(path)) else {
            return Ok(None);
        };
        let made = NewFile::replacing(path, MODE, BLOCK_MAP_HEAD);
        made.map(Some).with_context(|| path.display().to_string())
    }

    /// Writes the block map of a finished image.
    pub(super) fn write_block_map(
        &self,
        plan: &Plan,
        image: &dyn ReadBlocks,
        file: Option<NewFile>,
    ) -> anyhow::Result<Outcome> {
        let Some(path) = &self.bmap else { return Ok(Outcome::CLEAN) };
        let text = block_map(plan, image, self.from.workers())
            .with_context(|| format!("cannot read back {}", self.device.display()))?;
        let written = match file {
            Some(file) => {
                file.file().write_all(text.as_bytes()).and_then(|()| file.finish()).map(drop)
            }
            None => files::replace(path, MODE, BLOCK_MAP_HEAD, text.as_bytes()),
        };
        written.with_context(|| path.display().to_string())?;
        Ok(Outcome::CLEAN)
    }
}
