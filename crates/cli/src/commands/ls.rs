//! `floe ls`: lists files of an image.

use std::ffi::OsString;
use std::io::Write;

use floe_ext4::files::{Files, Follow, Node, Step, printable};
use floe_format::ext::inode::FileType;

use crate::exit::Outcome;
use crate::image_files::{Complaints, ImageArgs, long, place};

/// List files of an image.
///
/// Reads the image directly, without a mount or root privileges, after replaying the journal in
/// memory. Entries are sorted by name. Control characters in names are escaped; use -0 for scripts.
/// Exits with 4 if damage hides something, which is reported on standard error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Directories and files in the image
    #[arg(value_name = "PATH", default_value = "/")]
    paths: Vec<OsString>,
    /// Show mode, links, owner, group, size and time (UTC), and targets of symbolic links
    #[arg(long, short)]
    long: bool,
    /// Show inode numbers
    #[arg(long, short)]
    inode: bool,
    /// List recursively, with paths from the root of the image
    #[arg(long, short = 'R')]
    recursive: bool,
    /// List directories themselves instead of their entries
    #[arg(long, short, conflicts_with = "recursive")]
    directory: bool,
    /// End each name with a NUL byte, without escapes
    #[arg(long, short = '0')]
    null: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<Outcome> {
        self.image.view(|files, complaints| {
            let list = Lister { args: &self, files, complaints };
            for path in &self.paths {
                list.path(place::bytes(path), out)?;
            }
            Ok(())
        })
    }
}

struct Lister<'a, 'f, 'd> {
    args: &'a Args,
    files: &'f Files<'d>,
    complaints: &'a Complaints,
}

impl Lister<'_, '_, '_> {
    fn path(&self, path: &[u8], out: &mut impl Write) -> anyhow::Result<()> {
        // Like ls(1): long format shows a link itself.
        let args = self.args;
        let itself = args.long || args.directory;
        let follow = if itself { Follow::NotLast } else { Follow::Last };
        let node = match self.files.lookup(path, follow) {
            Ok(node) => node,
            Err(error) => {
                self.complaints.failure(path, error);
                return Ok(());
            }
        };
        if args.directory || !node.is_directory() {
            return self.line(path, path, &node, out);
        }
        let base = [b"/", path.strip_prefix(b"/").unwrap_or(path)].concat();
        if args.recursive { self.tree(&base, node, out) } else { self.entries(&base, &node, out) }
    }

    /// The entries of a directory.
    fn entries(&self, base: &[u8], node: &Node, out: &mut impl Write) -> anyhow::Result<()> {
        self.complaints.faults(base, &node.faults());
        let mut listing = self.files.list(node)?;
        listing.sort();
        self.complaints.faults(base, &listing.faults);
        for entry in listing.entries {
            let path = place::join(base, &entry.name);
            match self.files.node(entry.inode) {
                Ok(node) => self.line(&path, &entry.name, &node, out)?,
                Err(error) => self.complaints.damage(&path, error),
            }
        }
        Ok(())
    }

    /// Lists everything below a directory.
    fn tree(&self, base: &[u8], node: Node, out: &mut impl Write) -> anyhow::Result<()> {
        for step in self.files.walk(node) {
            match step {
                Step::Visit(visit) if visit.path.is_empty() => {
                    self.complaints.faults(base, &visit.node.faults());
                }
                Step::Visit(visit) => {
                    let path = place::join(base, &visit.path);
                    self.line(&path, &path, &visit.node, out)?;
                }
                step => self.complaints.step(base, &step),
            }
        }
        Ok(())
    }

    /// Prints one line; `path` is for messages about damage.
    fn line(
        &self,
        path: &[u8],
        shown: &[u8],
        node: &Node,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        self.complaints.faults(path, &node.faults());
        if self.args.inode {
            write!(out, "{:>8} ", node.number.0)?;
        }
        if self.args.long {
            write!(out, "{} ", long::line(node))?;
        }
        self.name(shown, out)?;
        if self.args.long && node.file_type() == Some(FileType::Symlink) {
            match self.files.target(node) {
                Ok((target, faults)) => {
                    self.complaints.faults(path, &faults);
                    write!(out, " -> ")?;
                    self.name(&target, out)?;
                }
                Err(error) => self.complaints.damage(path, error),
            }
        }
        out.write_all(if self.args.null { b"\0" } else { b"\n" })?;
        Ok(())
    }

    fn name(&self, name: &[u8], out: &mut impl Write) -> anyhow::Result<()> {
        match self.args.null {
            true => out.write_all(name)?,
            false => write!(out, "{}", printable(name))?,
        }
        Ok(())
    }
}
