//! `floe cp`: copies files out of an image.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::bail;
use floe_ext4::files::{Files, Follow};

use crate::exit::{Ended, Outcome};
use crate::image_files::copy::{Copier, Keep};
use crate::image_files::{Complaints, ImageArgs, place};
use crate::input::files::Judged;

/// Copy files out of an image.
///
/// Reads the image directly, without a mount or root privileges. Holes stay holes. Writes nothing
/// outside TARGET, whatever names and links the image contains, and replaces nothing without
/// --force. Unreadable blocks become zeroes and are reported on standard error; the exit code is
/// then 4.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Paths in the image, then a directory to copy into, or for a single path a new name
    #[arg(value_names = ["PATH", "TARGET"], num_args = 2.., required = true)]
    paths: Vec<OsString>,
    /// Copy directories recursively, and links and special files as such
    #[arg(long, short)]
    recursive: bool,
    /// Preserve modes, times, and as far as permitted, owners and attributes
    #[arg(long, short)]
    preserve: bool,
    /// The same as -r -p
    #[arg(long, short)]
    archive: bool,
    /// Replace existing files
    #[arg(long, short)]
    force: bool,
}

impl Args {
    pub(crate) fn run(self, judged: &Judged, _: &mut impl Write) -> anyhow::Result<Outcome> {
        let Some((target, paths)) = self.paths.split_last() else {
            bail!("a path and a target are needed");
        };
        if target.is_empty() {
            return Err(Ended::usage("the target is empty: name a directory or a file"));
        }
        let target = Path::new(target);
        let into = target.is_dir();
        if !into && paths.len() > 1 {
            bail!("{} is not a directory, and there are several paths", target.display());
        }
        for path in paths {
            let name = place::last_name(place::bytes(path)).filter(|_| into);
            let made = name.map(|name| target.join(OsStr::from_bytes(name)));
            let made = made.as_deref().unwrap_or(target);
            judged.refuse_output("TARGET", made)?;
            self.image.source.refuse_own_mount("TARGET", made)?;
        }
        self.image.view(|files, complaints| {
            for path in paths {
                self.copy(files, complaints, judged, place::bytes(path), (target, into))?;
            }
            Ok(())
        })
    }

    fn copy(
        &self,
        files: &Files<'_>,
        complaints: &Complaints,
        judged: &Judged,
        path: &[u8],
        (target, into): (&Path, bool),
    ) -> anyhow::Result<()> {
        let recursive = self.recursive || self.archive;
        let follow = if recursive { Follow::NotLast } else { Follow::Last };
        let node = match files.lookup(path, follow) {
            Ok(node) => node,
            Err(error) => {
                complaints.failure(path, error);
                return Ok(());
            }
        };
        if node.is_directory() && !recursive {
            complaints.failure(path, "is a directory; use -r to copy it");
            return Ok(());
        }
        let keep = if self.preserve || self.archive { Keep::All } else { Keep::Mode };
        let replace = self.force.then_some(judged);
        let copier = Copier::new(files, complaints, path, keep, replace, recursive);
        let name = if into { place::last_name(path) } else { None };
        match (into, name) {
            (true, Some(name)) => copier.run(node, target, name),
            // The entries of the root go into the directory itself.
            (true, None) => copier.run_into(node, target),
            (false, _) => {
                let folder = match target.parent() {
                    Some(folder) if !folder.as_os_str().is_empty() => folder,
                    _ => Path::new("."),
                };
                let Some(name) = target.file_name() else {
                    bail!("{} has no name for a new file", target.display());
                };
                copier.run(node, folder, place::bytes(name))
            }
        }
    }
}
