//! `floe cat`: writes the content of files in an image.

use std::ffi::OsString;
use std::io::Write;

use floe_ext4::files::{Content, Files, Follow};

use crate::exit::Outcome;
use crate::image_files::{Complaints, ImageArgs, place};

/// Bytes copied at once.
const PIECE_BYTES: usize = 1 << 20;

/// Write the content of files in an image to standard output.
///
/// Reads the image directly, without a mount or root privileges. Symbolic links are followed inside
/// the image. Unreadable blocks become zeroes and are reported on standard error; the exit code is
/// then 4.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Files in the image
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
}

impl Args {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<Outcome> {
        self.image.view(|files, complaints| {
            for path in &self.paths {
                write_file(files, place::bytes(path), complaints, out)?;
            }
            Ok(())
        })
    }
}

fn write_file(
    files: &Files<'_>,
    path: &[u8],
    complaints: &Complaints,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let node = match files.lookup(path, Follow::Last) {
        Ok(node) => node,
        Err(error) => {
            complaints.failure(path, error);
            return Ok(());
        }
    };
    complaints.faults(path, &node.faults());
    match files.content(&node) {
        Ok((content, faults)) => {
            complaints.faults(path, &faults);
            write_content(&content, path, complaints, out)?;
        }
        Err(error) => complaints.failure(path, error),
    }
    Ok(())
}

/// Writes the complete content, with holes as zeroes.
pub(crate) fn write_content(
    content: &Content<'_, '_>,
    path: &[u8],
    complaints: &Complaints,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let mut piece = vec![0; PIECE_BYTES.min(usize::try_from(content.size_bytes())?.max(1))];
    let mut faults = Vec::new();
    let mut at = 0;
    loop {
        let len = content.read_at(at, &mut piece, &mut faults);
        if len == 0 {
            break;
        }
        out.write_all(&piece[..len])?;
        at += len as u64;
    }
    complaints.faults(path, &faults);
    Ok(())
}
