//! Decides whether the outputs of a command line may be written.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::identity::Identity;
use super::named::{Files, Named, Stream};
use super::ours::is_ours;
use crate::exit::Outcome;

/// Options whose output may go to standard output, called `-`. All others keep what is needed later, in a form that
/// is no text.
const STREAMED: [&str; 4] = ["--html", "--metrics", "--bmap", "--output"];

/// Whether an output is standard output.
pub(crate) fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Suffixes of files written beside an output: the incomplete output, and the undo file of an
/// external journal.
const BESIDE: [&str; 3] = [floe_blockdev::UNFINISHED, ".journal", ".journal.unfinished"];

/// An output by its option and its path, which standard output and numbers of files do not have.
fn with_path(output: &str, path: &Path) -> String {
    if path.as_os_str().is_empty() {
        return output.to_owned();
    }
    format!("{output} {}", path.display())
}

/// Why a command line is refused. Nothing has been opened for writing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// An output is also an input.
    #[error(
        "{} would overwrite {input}, {}. {NOTHING}", with_path(output, path), place.display()
    )]
    IsInput { output: String, path: PathBuf, input: String, place: PathBuf },
    /// Two outputs are one file.
    #[error(
        "{output} and {other} would write to the same file, {}. {NOTHING}", path.display()
    )]
    IsOutput { output: String, other: String, path: PathBuf },
    /// An output is a block device.
    #[error(
        "{output} {}: this is a block device, whose content would be lost. Choose a file. {NOTHING}",
        path.display()
    )]
    IsDevice { output: String, path: PathBuf },
    /// An output is a folder.
    #[error("{output} {}: this is a folder. Choose a file in it. {NOTHING}", path.display())]
    IsFolder { output: String, path: PathBuf },
    /// An output that must be a file is `-`.
    #[error(
        "{output} -: this is standard output, but a file is needed; for one of that name, write ./-. \
         {NOTHING}"
    )]
    IsStandardOutput { output: String },
    /// An output would replace a file that Floe did not create.
    #[error(
        "{output} {}: a file that Floe did not make is in the way. Move it, or choose another. \
         {NOTHING}",
        path.display()
    )]
    InTheWay { output: String, path: PathBuf },
}

impl Refused {
    /// The outcome of a refused command line.
    pub(crate) const fn outcome(&self) -> Outcome {
        match self {
            // An existing file is an operational error, not a usage error.
            Self::InTheWay { .. } => Outcome::FAILED,
            _ => Outcome::USAGE,
        }
    }
}

const NOTHING: &str = "Nothing was looked at or changed";

/// The outputs that may be written, given the known inputs.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    inputs: Vec<Place>,
    outputs: Vec<Place>,
}

/// A file, and the name used for it in messages.
#[derive(Clone, Debug)]
struct Place {
    named: Named,
    /// The file itself, and files read or written along with it.
    files: Vec<Identity>,
}

impl Place {
    fn of_output(named: &Named) -> Self {
        let beside = BESIDE.iter().map(|suffix| Identity::of(&with_suffix(&named.path, suffix)));
        let files = std::iter::once(Identity::of(&named.path)).chain(beside).collect();
        Self { named: named.clone(), files }
    }

    fn of_input(named: &Named) -> Self {
        let files = std::iter::once(Identity::of(&named.path))
            .chain(Identity::behind_loop(&named.path))
            .collect();
        Self { named: named.clone(), files }
    }

    fn meets(&self, other: &Self) -> bool {
        self.files.iter().any(|file| other.files.contains(file))
    }
}

/// `path` with `suffix` appended to its name.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

impl Judged {
    pub(super) fn new(files: &Files) -> Result<Self, Refused> {
        let inputs: Vec<Place> = files.inputs.iter().map(Place::of_input).collect();
        let mut judged = Self { inputs: inputs.clone(), outputs: Vec::new() };
        let mut to_stdout = files.json.then(|| "--json".to_owned());
        for output in &files.outputs {
            if is_standard_output(&output.path) {
                let option = output.option.clone();
                if !STREAMED.contains(&option.as_str()) {
                    return Err(Refused::IsStandardOutput { output: option });
                }
                if let Some(other) = to_stdout.replace(option.clone()) {
                    let path = output.path.clone();
                    return Err(Refused::IsOutput { output: option, other, path });
                }
                continue;
            }
            let place = Place::of_output(output);
            let (option, path) = (output.option.clone(), output.path.clone());
            if let Some(input) = inputs.iter().find(|input| input.meets(&place)) {
                return Err(is_input(&place, &input.named));
            }
            if let Some(other) = judged.outputs.iter().find(|other| other.meets(&place)) {
                let other = other.named.option.clone();
                return Err(Refused::IsOutput { output: option, other, path });
            }
            let unfinished = with_suffix(&path, floe_blockdev::UNFINISHED);
            if unfinished.is_file() && !is_ours(&unfinished).unwrap_or(true) {
                return Err(Refused::InTheWay { output: option, path: unfinished });
            }
            if let Ok(found) = fs::metadata(&path) {
                let kind = found.file_type();
                if kind.is_block_device() {
                    return Err(Refused::IsDevice { output: option, path });
                }
                if kind.is_dir() {
                    return Err(Refused::IsFolder { output: option, path });
                }
                // Leave unreadable files to the writer: the cause may be missing permission.
                if kind.is_file() && !is_ours(&path).unwrap_or(true) {
                    return Err(Refused::InTheWay { output: option, path });
                }
            }
            judged.outputs.push(place);
        }
        // Also standard streams, which the shell may have redirected.
        let out = Stream::new("standard output", io::stdout());
        let err = Stream::new("standard error", io::stderr());
        for stream in files.streams.iter().chain(&out).chain(&err) {
            judged.judge_stream(stream, &inputs)?;
        }
        Ok(judged)
    }

    fn judge_stream(&self, stream: &Stream, inputs: &[Place]) -> Result<(), Refused> {
        let name = stream.name.clone();
        if stream.is_device {
            return Err(Refused::IsDevice { output: name, path: PathBuf::new() });
        }
        if let Some(input) = inputs.iter().find(|input| input.files.contains(&stream.file)) {
            let (input, place) = (input.named.option.clone(), input.named.path.clone());
            return Err(Refused::IsInput { output: name, path: PathBuf::new(), input, place });
        }
        match self.outputs.iter().find(|output| output.files.contains(&stream.file)) {
            Some(Place { named: Named { option, path }, .. }) => {
                let (output, path) = (option.clone(), path.clone());
                Err(Refused::IsOutput { output, other: name, path })
            }
            None => Ok(()),
        }
    }

    /// Judges an output whose path depends on more than an option, such as a copied file. The
    /// caller decides about other existing files.
    ///
    /// # Errors
    /// [`Refused`] if it is an input or a block device.
    pub(crate) fn refuse_output(&self, what: &str, path: &Path) -> Result<(), Refused> {
        let named = Named { option: what.to_owned(), path: path.to_owned() };
        let place = Place { files: vec![Identity::of(path)], named };
        if let Some(input) = self.inputs.iter().find(|input| input.meets(&place)) {
            return Err(is_input(&place, &input.named));
        }
        match fs::metadata(path) {
            Ok(found) if found.file_type().is_block_device() => {
                Err(Refused::IsDevice { output: what.to_owned(), path: path.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Whether the file with this device and inode is an input, and so must not be replaced.
    pub(crate) fn reads(&self, dev: u64, ino: u64) -> bool {
        self.inputs.iter().any(|input| input.files.contains(&Identity::Exists { dev, ino }))
    }

    /// Judges an input that became known only later, such as a snapshot.
    ///
    /// # Errors
    /// [`Refused`] if an output would overwrite it.
    pub(crate) fn admit(&self, what: &str, path: &Path) -> Result<(), Refused> {
        let named = Named { option: what.to_owned(), path: path.to_owned() };
        let input = Place::of_input(&named);
        // An output name may have been unused before, and lead to the input now.
        let meets =
            |output: &&Place| output.meets(&input) || Place::of_output(&output.named).meets(&input);
        match self.outputs.iter().find(meets) {
            Some(output) => Err(is_input(output, &input.named)),
            None => Ok(()),
        }
    }
}

/// Compares a device to be overwritten with a source to be read.
///
/// # Errors
/// [`Refused`] if they are the same.
pub(crate) fn refuse_same(written: (&str, &Path), read: (&str, &Path)) -> Result<(), Refused> {
    let named =
        |(option, path): (&str, &Path)| Named { option: option.to_owned(), path: path.to_owned() };
    let (written, read) = (Place::of_input(&named(written)), Place::of_input(&named(read)));
    if written.meets(&read) { Err(is_input(&written, &read.named)) } else { Ok(()) }
}

/// Whether two paths lead to one file that exists.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let one = Identity::of(one);
    matches!(one, Identity::Exists { .. }) && one == Identity::of(other)
}

fn is_input(output: &Place, input: &Named) -> Refused {
    Refused::IsInput {
        output: output.named.option.clone(),
        path: output.named.path.clone(),
        input: input.option.clone(),
        place: input.path.clone(),
    }
}
