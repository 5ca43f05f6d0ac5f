//! `floe mkfs --from`: the source of the files in a new file system.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use floe_blockdev::{FileDevice, ReadBlocks};
use floe_check::{CheckOptions, lacks_changes, view};
use floe_disk::mkfs::RootOptions;
use floe_disk::mkfs::tree::{Contents, Timestamp, Tree};
use floe_disk::source::{self, BoxedContents, Changes, IdMap, Loaded, Spooled};
use floe_format::ext::superblock::{MAGIC, OFFSET_BYTES, Superblock};

use crate::exit::Outcome;
use crate::input::device::Source;
use crate::input::files::InputPath;
use crate::message::message;
use crate::terminal::failure;

/// A source, and changes to its files.
#[derive(Debug, clap::Args)]
pub(super) struct FromArgs {
    /// Fill the file system from SOURCE: dir:FOLDER, tar:FILE (plain, gzip or zstd; - is standard
    /// input), oci:LAYOUT or oci:LAYOUT:NAME, image:FILE (another ext4 file system), or a path
    /// whose type is detected
    #[arg(long, short = 'd', value_name = "SOURCE", value_parser = origin)]
    from: Option<Origin>,
    /// Make the image as small as the source permits, plus N percent. The default if SIZE is not
    /// given and the image does not exist
    #[arg(
        long,
        value_name = "+N%",
        requires = "from",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "+0%",
        value_parser = spare
    )]
    pub(super) fit: Option<u32>,
    /// Derive UUID and hash seed from this UUID, so that equal sources give equal bytes
    #[arg(long, value_name = "UUID", requires = "from")]
    pub(super) seed: Option<String>,
    /// The time of the run, in seconds since 1970; later modification times are reduced to it
    /// [default: SOURCE_DATE_EPOCH, if set]
    #[arg(long, value_name = "SECONDS", requires = "from", allow_negative_numbers = true)]
    epoch: Option<i64>,
    /// Owner of all files
    #[arg(long, value_name = "USER:GROUP", requires = "from", value_parser = owner)]
    owner: Option<(u32, u32)>,
    /// Map ranges of user ids; an id in no range is an error
    #[arg(long, value_name = "FROM:TO:COUNT,...", requires = "from")]
    uid_map: Option<IdMap>,
    /// Map ranges of group ids; an id in no range is an error
    #[arg(long, value_name = "FROM:TO:COUNT,...", requires = "from")]
    gid_map: Option<IdMap>,
    /// Take owners, modes, times and special files from this mtree(5) specification, before other
    /// changes
    #[arg(long, value_name = "FILE", requires = "from")]
    metadata: Option<InputPath>,
    /// Number of threads; by default all processors. The result does not depend on it
    #[arg(long, value_name = "N", requires = "from", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

/// A source of files.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    Folder(PathBuf),
    /// `-`: standard input.
    Archive(PathBuf),
    Oci(PathBuf, Option<String>),
    Image(PathBuf),
    /// A path whose type is to be detected.
    Any(PathBuf),
}

fn origin(text: &str) -> Result<Origin, String> {
    let Some((kind, path)) = text.split_once(':') else {
        return Ok(Origin::Any(text.into()));
    };
    Ok(match kind {
        "dir" => Origin::Folder(path.into()),
        "tar" => Origin::Archive(path.into()),
        "image" => Origin::Image(path.into()),
        "oci" => match path.rsplit_once(':') {
            Some((folder, name)) if !Path::new(path).exists() => {
                Origin::Oci(folder.into(), Some(name.to_owned()))
            }
            _ => Origin::Oci(path.into(), None),
        },
        // A file name that contains a colon.
        _ if Path::new(text).exists() => Origin::Any(text.into()),
        _ => return Err(format!("{kind:?} is not a kind of source: dir, tar, oci, image")),
    })
}

fn spare(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix('+').unwrap_or(text);
    let number = number.strip_suffix('%').unwrap_or(number);
    match number.parse() {
        Ok(percent) if percent <= 10_000 => Ok(percent),
        _ => Err("is not a percentage such as +10%".to_owned()),
    }
}

fn owner(text: &str) -> Result<(u32, u32), String> {
    let ids = text
        .split_once(':')
        .and_then(|(user, group)| Some((user.parse().ok()?, group.parse().ok()?)));
    ids.ok_or_else(|| "is not a numeric USER:GROUP".to_owned())
}

/// A callback that uses the loaded tree.
type Use<'u> = dyn FnMut(&Tree, &dyn Contents) -> anyhow::Result<Outcome> + 'u;

impl FromArgs {
    /// Whether a source is given.
    pub(super) fn is_given(&self) -> bool {
        self.from.is_some()
    }

    /// All paths to read, with the options that name them.
    pub(super) fn read(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let source = self.from.as_ref().map(|origin| match origin {
            Origin::Archive(path) | Origin::Any(path) if is_standard_input(path) => {
                ("--from", Path::new(STANDARD_INPUT))
            }
            Origin::Folder(path)
            | Origin::Archive(path)
            | Origin::Oci(path, _)
            | Origin::Image(path)
            | Origin::Any(path) => ("--from", path.as_path()),
        });
        let metadata = self.metadata.as_deref().map(|path| ("--metadata", path));
        source.into_iter().chain(metadata)
    }

    /// The folder to read, if `device` is a file in it, which would become a part of itself. A new file is made when all is read.
    pub(super) fn folder_around(&self, device: &Path) -> Option<&Path> {
        let folder = match self.from.as_ref()? {
            Origin::Folder(path) => path,
            Origin::Any(path) if path.is_dir() => path,
            _ => return None,
        };
        // The node of a device has no content.
        let is_file = std::fs::metadata(device).is_ok_and(|found| found.is_file());
        let place = std::fs::canonicalize(device).ok()?;
        let is_inside = place.starts_with(std::fs::canonicalize(folder).ok()?);
        (is_file && is_inside).then_some(folder)
    }

    pub(super) fn workers(&self) -> usize {
        self.threads.map_or_else(floe_exec::default_threads, usize::from)
    }

    /// The time of the run, if given.
    pub(super) fn now(&self) -> anyhow::Result<Option<Timestamp>> {
        let secs = match (self.epoch, std::env::var("SOURCE_DATE_EPOCH")) {
            (Some(secs), _) => secs,
            (None, Ok(text)) => {
                text.trim().parse().with_context(|| format!("SOURCE_DATE_EPOCH={text}"))?
            }
            (None, Err(_)) => return Ok(None),
        };
        Ok(Some(Timestamp { seconds: secs, nanoseconds: 0 }))
    }

    /// Loads the tree of the source, without file contents, and passes it to `use_it`, with this root.
    pub(super) fn load(&self, root: RootOptions, use_it: &mut Use<'_>) -> anyhow::Result<Outcome> {
        let scratch = std::env::temp_dir();
        let loaded = match self.from.as_ref() {
            None => bail!("no source is given"),
            Some(Origin::Image(path)) => return self.load_image(path, root, use_it),
            Some(Origin::Any(path)) if path.is_dir() => source::directory(path)?,
            Some(Origin::Any(path)) if is_file_system(path) => {
                return self.load_image(path, root, use_it);
            }
            Some(Origin::Folder(path)) => source::directory(path)?,
            Some(Origin::Archive(path) | Origin::Any(path)) => archive(path, &scratch)?,
            Some(Origin::Oci(path, name)) => source::oci(path, name.as_deref(), &scratch)?,
        };
        if let Some(doubt) = &loaded.doubt {
            message!("floe mkfs: warning: {doubt}");
        }
        self.change(loaded.tree, &*loaded.contents, root, use_it)
    }

    fn load_image(
        &self,
        path: &Path,
        root: RootOptions,
        use_it: &mut Use<'_>,
    ) -> anyhow::Result<Outcome> {
        let device = Source::whole(path).open()?;
        let looked = view(&device, &CheckOptions::default(), |files, found| {
            if let Some(damage) = found.iter().find(|one| lacks_changes(one, files.superblock())) {
                bail!("{}: {damage}. `floe export` reads the intact rest", path.display());
            }
            let Loaded { tree, contents, .. } = source::image(files)?;
            self.change(tree, &contents, root, use_it)
        });
        looked.unwrap_or_else(|error| {
            let name = path.display().to_string();
            Err(anyhow::anyhow!(failure::of_check(&error, &device, &name, "--memory=")))
        })
    }

    fn change(
        &self,
        mut tree: Tree,
        contents: &dyn Contents,
        root: RootOptions,
        use_it: &mut Use<'_>,
    ) -> anyhow::Result<Outcome> {
        if let Some(file) = &self.metadata {
            let text = std::fs::read(file).with_context(|| file.display().to_string())?;
            source::apply_mtree(&mut tree, &text).with_context(|| file.display().to_string())?;
        }
        let changes = Changes {
            owner: self.owner,
            users: self.uid_map.clone().unwrap_or_default(),
            groups: self.gid_map.clone().unwrap_or_default(),
            latest: self.now()?,
            root,
        };
        changes.apply(&mut tree)?;
        use_it(&tree, contents)
    }
}

/// The file at standard input, by a path.
const STANDARD_INPUT: &str = "/proc/self/fd/0";

fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

fn archive(path: &Path, scratch: &Path) -> anyhow::Result<Loaded<BoxedContents>> {
    let archive = if is_standard_input(path) {
        source::standard_input(&mut io::stdin().lock(), scratch)?
    } else {
        Spooled::open(path, scratch)?
    };
    Ok(source::tar(archive)?)
}

/// Whether a file starts with an ext superblock.
fn is_file_system(path: &Path) -> bool {
    let mut bytes = [0; Superblock::SIZE];
    let read =
        FileDevice::open(path).is_ok_and(|file| file.read_at(OFFSET_BYTES, &mut bytes).is_ok());
    read && Superblock::decode(&bytes).magic == MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_and_numbers_are_read() {
        assert_eq!(origin("tar:-"), Ok(Origin::Archive("-".into())));
        assert_eq!(
            origin("oci:/no/where:tag"),
            Ok(Origin::Oci("/no/where".into(), Some("tag".into())))
        );
        assert_eq!(origin("/usr"), Ok(Origin::Any("/usr".into())));
        assert!(origin("zip:x").is_err());
        assert_eq!((spare("+15%"), spare("3"), spare("0%")), (Ok(15), Ok(3), Ok(0)));
        assert!(spare("-5%").is_err() && spare("x").is_err());
        assert_eq!(owner("1000:100"), Ok((1000, 100)));
        assert!(owner("root:root").is_err());
    }
}
