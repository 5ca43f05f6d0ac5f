//! `floe export`: writes files of an image as a tar archive.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::Context;
use floe_archive::{Entry, Kind, Part, Writer};
use floe_ext4::files::{
    Content, FileFault, Files, Follow, Node, SegmentKind, Step, is_usable_target, printable,
};
use floe_format::InodeNr;
use floe_format::ext::inode::FileType;

use crate::exit::Outcome;
use crate::image_files::{Complaints, ImageArgs, LOST_TARGET, place};
use crate::input::files::{OutputPath, is_standard_output};
use crate::message::message;

/// Bytes copied at once.
const PIECE_BYTES: usize = 1 << 20;

/// Write files of an image as a tar archive, to standard output or a file.
///
/// Reads the image directly, without a mount or root privileges. The archive is in PAX format,
/// sorted by name, and reproducible: modes, numeric owners, modification times with nanoseconds,
/// attributes, ACLs, capabilities, hard links, devices, holes. Sockets cannot be archived and are
/// skipped. Unreadable blocks become zeroes and are reported on standard error; the exit code is
/// then 4.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// A directory of the image, whose entries become the archive, or a file
    #[arg(value_name = "PATH", default_value = "/")]
    path: OsString,
    /// Write to FILE, which must not exist yet
    #[arg(long, short, value_name = "FILE")]
    output: Option<OutputPath>,
}

impl Args {
    pub(crate) fn run(self, _: &mut impl Write) -> anyhow::Result<Outcome> {
        match self.file() {
            Some(path) => self.image.source.refuse_own_mount("--output", path)?,
            None => self.image.source.refuse_own_mount_of_stdout()?,
        }
        let result = self.image.view(|files, complaints| {
            let path = place::bytes(&self.path);
            let node = match files.lookup(path, Follow::Last) {
                Ok(node) => node,
                Err(error) => {
                    complaints.failure(path, error);
                    return Ok(());
                }
            };
            let archive = Writer::new(BufWriter::with_capacity(PIECE_BYTES, self.target()?));
            let written = archive_tree(files, complaints, path, node, archive);
            if let (Err(_), Some(path)) = (&written, self.file()) {
                // Half an archive is none, and would be in the way of the next one.
                let _ = fs::remove_file(path);
            }
            written.with_context(|| self.place())
        });
        match result {
            // The reader of the pipe closed it. Like tar, fail without a message.
            Err(error) if self.file().is_none() && is_closed_pipe(&error) => Ok(Outcome::FAILED),
            result => result,
        }
    }

    /// The file that is written; `None` for standard output.
    fn file(&self) -> Option<&Path> {
        self.output.as_deref().filter(|path| !is_standard_output(path))
    }

    /// The place of the archive, for messages.
    fn place(&self) -> String {
        let path = self.file();
        path.map_or_else(|| "standard output".to_owned(), |path| path.display().to_string())
    }

    fn target(&self) -> anyhow::Result<File> {
        match self.file() {
            Some(path) => File::create_new(path)
                .with_context(|| format!("{}: cannot be created", path.display())),
            // Unbuffered by lines, and with errors reported.
            None => Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?)),
        }
    }
}

/// Writes `node` and everything below it; `base` is its path in the image, for messages.
pub(crate) fn archive_tree<W: Write>(
    files: &Files<'_>,
    complaints: &Complaints,
    base: &[u8],
    node: Node,
    archive: Writer<W>,
) -> anyhow::Result<()> {
    Exporter { files, complaints, base, archive, links: HashMap::new() }.run(node)
}

/// Whether the reader of a pipe closed it.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<io::Error>();
    cause.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

struct Exporter<'a, 'f, 'd, W: Write> {
    files: &'f Files<'d>,
    complaints: &'a Complaints,
    base: &'a [u8],
    archive: Writer<W>,
    /// First path in the archive of each file with several names.
    links: HashMap<InodeNr, Vec<u8>>,
}

impl<W: Write> Exporter<'_, '_, '_, W> {
    fn run(mut self, root: Node) -> anyhow::Result<()> {
        let files = self.files;
        for step in files.walk(root).without_own() {
            match step {
                Step::Visit(visit) => self
                    .add(&visit.path, &visit.node)
                    .with_context(|| printable(&place::join(self.base, &visit.path)))?,
                step => self.complaints.step(self.base, &step),
            }
        }
        self.archive.finish()?;
        Ok(())
    }

    fn add(&mut self, path: &[u8], node: &Node) -> anyhow::Result<()> {
        let full = place::join(self.base, path);
        self.complaints.faults(&full, &node.faults());
        let name = match (path, node.is_directory()) {
            (b"", true) => b"./".to_vec(),
            (b"", false) => place::last_name(self.base).unwrap_or(b"file").to_vec(),
            (path, true) => [b"./", path, b"/"].concat(),
            (path, false) => [b"./", path].concat(),
        };
        let Some(mut entry) = self.entry(&full, name, node) else { return Ok(()) };
        if entry.kind == Kind::HardLink {
            return Ok(self.archive.append(&entry)?);
        }
        if node.links() > 1 && !node.is_directory() {
            self.links.insert(node.number, entry.path.clone());
        }
        let (attributes, faults) = self.files.attributes(node);
        self.complaints.faults(&full, &faults);
        entry.attributes =
            attributes.into_iter().map(|attribute| (attribute.name, attribute.value)).collect();
        if entry.kind == Kind::File {
            return self.file(&full, entry, node);
        }
        Ok(self.archive.append(&entry)?)
    }

    /// The archive entry of a node, without attributes and content; `None` if it cannot be
    /// archived.
    fn entry(&self, full: &[u8], name: Vec<u8>, node: &Node) -> Option<Entry> {
        let kind = match node.file_type() {
            Some(FileType::Regular) => Kind::File,
            Some(FileType::Directory) => Kind::Directory,
            Some(FileType::Symlink) => Kind::SymbolicLink,
            Some(FileType::CharDevice) => Kind::CharDevice,
            Some(FileType::BlockDevice) => Kind::BlockDevice,
            Some(FileType::Fifo) => Kind::Fifo,
            Some(FileType::Socket) => {
                message!("floe: {}: skipped, because it is a socket", printable(full));
                return None;
            }
            None => {
                self.complaints.damage(full, "has an unknown type and is skipped");
                return None;
            }
        };
        let mut entry = Entry {
            mode: node.permissions(),
            uid: node.uid(),
            gid: node.gid(),
            mtime: node.mtime(),
            device: node.device_number().unwrap_or((0, 0)),
            ..Entry::new(&name, kind)
        };
        if let Some(first) = self.links.get(&node.number) {
            entry.kind = Kind::HardLink;
            entry.link.clone_from(first);
        } else if kind == Kind::SymbolicLink {
            match self.files.target(node) {
                Ok((target, faults)) => {
                    self.complaints.faults(full, &faults);
                    if !is_usable_target(&target) {
                        self.complaints.damage(full, LOST_TARGET);
                        return None;
                    }
                    entry.link = target;
                }
                Err(error) => {
                    self.complaints.failure(full, format!("{error}; it is skipped"));
                    return None;
                }
            }
        }
        Some(entry)
    }

    fn file(&mut self, full: &[u8], mut entry: Entry, node: &Node) -> anyhow::Result<()> {
        let (content, faults) = match self.files.content(node) {
            Ok(found) => found,
            Err(error) => {
                self.complaints.failure(full, format!("{error}; it is skipped"));
                return Ok(());
            }
        };
        self.complaints.faults(full, &faults);
        entry.size = content.size_bytes();
        let data = content.segments().filter(|segment| segment.kind == SegmentKind::Data);
        let parts = data.map(|part| Part { at: part.offset_bytes, len: part.len_bytes, from: 0 });
        entry.parts = joined(parts);
        let stored: u64 = entry.parts.iter().map(|part| part.len).sum();
        let mut faults = Vec::new();
        if stored == entry.size {
            self.archive.append(&entry)?;
        } else {
            self.archive.append_sparse(&entry)?;
        }
        for part in &entry.parts {
            self.copy(&content, part, &mut faults)?;
        }
        self.complaints.faults(full, &faults);
        Ok(())
    }

    fn copy(
        &mut self,
        content: &Content<'_, '_>,
        part: &Part,
        faults: &mut Vec<FileFault>,
    ) -> anyhow::Result<()> {
        let mut piece = vec![0; part.len.min(PIECE_BYTES as u64) as usize];
        let mut done = 0;
        while done < part.len {
            let len = (part.len - done).min(PIECE_BYTES as u64) as usize;
            content.read_at(part.at + done, &mut piece[..len], faults);
            self.archive.write_all(&piece[..len])?;
            done += len as u64;
        }
        Ok(())
    }
}

/// Merges contiguous parts.
fn joined(parts: impl Iterator<Item = Part>) -> Vec<Part> {
    let mut all: Vec<Part> = Vec::new();
    for part in parts {
        match all.last_mut() {
            Some(last) if last.at + last.len == part.at => last.len += part.len,
            _ => all.push(part),
        }
    }
    all
}
