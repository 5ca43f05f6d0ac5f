//! The undo file of a run.

use std::path::PathBuf;

use anyhow::Context;

use super::Fsck;

/// The default folder of undo files, the same as e2fsck's.
const UNDO_FOLDER: &str = "/var/lib/e2fsprogs";

impl Fsck<'_> {
    /// Path of the undo file. An empty name selects a new file in the default folder.
    pub(super) fn undo_file(&self) -> anyhow::Result<Option<PathBuf>> {
        let Some(named) = &self.options.undo else { return Ok(None) };
        if !named.as_os_str().is_empty() {
            return Ok(Some(named.to_path_buf()));
        }
        let folder = match std::env::var_os("E2FSPROGS_UNDO_DIR") {
            Some(folder) if folder == "none" => return Ok(None),
            Some(folder) => PathBuf::from(folder),
            None => self.conf.undo_dir.clone().unwrap_or_else(|| UNDO_FOLDER.into()),
        };
        let device = self.device.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let numbers =
            std::iter::once(String::new()).chain((1..).map(|number| format!(".{number}")));
        let mut names =
            numbers.map(|number| folder.join(format!("e2fsck-{device}.e2undo{number}")));
        // Keep the files of earlier runs.
        let free = names.find(|path| !path.exists()).context("no free name for an undo file")?;
        Ok(Some(free))
    }
}
