//! `floe cube`: directories of a native file system with lots of their own.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::{Subcommand, ValueEnum};
use floe_blockdev::{ReadBlocks, WriteBlocks};
use floe_check::cube::CubeName;
use floe_disk::ops::Caller;
use floe_disk::volume::{ReadOnly, Volume, judge};
use floe_ext4::files::Files;
use floe_ext4::fs::{FileSystem, read_superblock};
use floe_format::ext::superblock::STATE_ERROR;
use floe_format::native::cube::{FsyncMode, JournalMode, OnError, Recovery};
use floe_format::native::identity::Identity;
use floe_fs::{Disk, Live, Settings, now};
use floe_report::human::{plural, size};
use serde_json::{Value, json};

use crate::exit::{Ended, Outcome};
use crate::image_files::place;
use crate::input::device::{InUse, Source};
use crate::input::files::OutputPath;
use crate::input::size::bytes;
use crate::message::message;
use crate::terminal::{failure, signals};

mod image;
mod live;
mod move_in;
mod room;

use image::{CubeImage, normal};
use move_in::Moved;

/// Create, list, change and remove cubes of a native file system, unmounted (IMAGE PATH) or mounted by Floe (DIRECTORY).
///
/// A cube is a directory with lots of its own (`floe mkfs -t native`): Floe puts its files there, and
/// nothing else. It grows by free lots. Renames and hard links across cubes fail (EXDEV). See
/// docs/cubes.md.
///
/// Exit codes: 0 done, 8 failed (nothing was changed), 16 usage error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Output JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create a directory that is a cube, with one free lot
    Create {
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        new: NewArgs,
    },
    /// List all cubes
    List {
        #[command(flatten)]
        source: Source,
    },
    /// Show one cube
    Show {
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Change a cube. A limit below its present size only keeps it from growing
    Set {
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        settings: SettingsArgs,
    },
    /// Remove a cube whose directory is empty, and the directory
    Remove {
        #[command(flatten)]
        place: PlaceArgs,
        /// Keep the directory with all its files; its lots belong to nobody afterwards
        #[arg(long)]
        keep_files: bool,
    },
    /// Hold the free blocks of all cubes for them, before another system, such as Linux's ext4, mounts the image: it puts nothing
    /// there then. On a mount, this happens when it is unmounted. The next mount by Floe takes them back
    Fence {
        #[command(flatten)]
        source: Source,
    },
    /// Move a file or directory with all below it into a cube: copied, made durable, renamed, and then removed where it was.
    /// A run that was cut off is undone or finished by the same command
    MoveIn {
        #[command(flatten)]
        source: Source,
        /// Path of the file or directory in the image; for a mount, the directory of the cube
        from: OsString,
        /// Directory of the cube in the image, or `cube:` and its number; left out for a mount
        cube: Option<OsString>,
    },
    /// Check a cube of a mounted file system while the others are served
    Check {
        /// A directory of the cube, or the mount
        directory: OsString,
        /// If a mount is named: `cube:` and the number of the cube
        cube: Option<OsString>,
    },
    /// Check and repair a cube of a mounted file system while the others are served
    Repair {
        /// A directory of the cube, or the mount
        directory: OsString,
        /// If a mount is named, because the directory cannot be read: `cube:` and the number of the cube
        cube: Option<OsString>,
        /// Save the old content of all overwritten blocks in a new file FILE
        #[arg(long, value_name = "FILE")]
        undo: Option<OutputPath>,
    },
}

/// A cube: IMAGE and a path in it, or a directory below a mount of `floe mount`.
#[derive(Debug, clap::Args)]
struct PlaceArgs {
    #[command(flatten)]
    source: Source,
    /// Directory of the cube in the image, or `cube:` and its number; left out if the first argument is a directory below a mount
    path: Option<OsString>,
}

#[derive(Clone, Copy, Debug, Default, clap::Args)]
struct SettingsArgs {
    /// Most bytes of its lots, or `none`
    #[arg(long, value_name = "BYTES", value_parser = limit)]
    max_size: Option<u64>,
    /// Reaction to a failure: it is only read (`ro`), nothing of it is answered (`crash`), or it is repaired while the others
    /// are served (`repair`: the same as `ro` with --recovery online)
    #[arg(long, value_name = "WHAT", value_enum)]
    on_error: Option<OnErrorArg>,
    /// The journal of the cube logs metadata, with content in its place before (`ordered`), or content, too, so that each
    /// write is there as a whole after a crash, or not at all (`data`)
    #[arg(long, value_name = "MODE", value_enum)]
    journal_mode: Option<JournalModeArg>,
    /// fsync makes a file durable (`strict`), or does nothing (`off`): a crash then takes the last seconds, and leaves the cube
    /// consistent
    #[arg(long, value_name = "MODE", value_enum)]
    fsync: Option<FsyncArg>,
    /// Repaired by the administrator (`manual`), or the mount, at once (`online`)
    #[arg(long, value_name = "WHO", value_enum)]
    recovery: Option<RecoveryArg>,
}

#[derive(Clone, Copy, Debug, Default, clap::Args)]
struct NewArgs {
    #[command(flatten)]
    settings: SettingsArgs,
    /// Blocks of a journal of its own (64 or more), in which changes of the cube are logged; 0:
    /// in the file system's journal. After a crash, only a mount by Floe recovers such journals
    #[arg(long, value_name = "N", default_value_t = 0)]
    journal_blocks: u32,
}

impl NewArgs {
    fn settings(&self) -> Settings {
        let journal_blocks = (self.journal_blocks > 0).then_some(self.journal_blocks);
        Settings { journal_blocks, ..self.settings.settings() }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnErrorArg {
    Ro,
    Crash,
    Repair,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RecoveryArg {
    Manual,
    Online,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum JournalModeArg {
    Ordered,
    Data,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FsyncArg {
    Strict,
    Off,
}

impl From<RecoveryArg> for Recovery {
    fn from(recovery: RecoveryArg) -> Self {
        match recovery {
            RecoveryArg::Manual => Self::Manual,
            RecoveryArg::Online => Self::Online,
        }
    }
}

impl SettingsArgs {
    const fn is_empty(&self) -> bool {
        let modes = self.journal_mode.is_none() && self.fsync.is_none();
        modes && self.max_size.is_none() && self.on_error.is_none() && self.recovery.is_none()
    }

    fn settings(&self) -> Settings {
        let (mut on_error, mut own_recovery) = (None, None);
        match self.on_error {
            Some(OnErrorArg::Ro) => on_error = Some(OnError::ReadOnly),
            Some(OnErrorArg::Crash) => on_error = Some(OnError::Crash),
            Some(OnErrorArg::Repair) => {
                (on_error, own_recovery) = (Some(OnError::ReadOnly), Some(Recovery::Online));
            }
            None => {}
        }
        let recovery = self.recovery.map(Recovery::from).or(own_recovery);
        let journal_mode = self.journal_mode.map(|mode| match mode {
            JournalModeArg::Ordered => JournalMode::Ordered,
            JournalModeArg::Data => JournalMode::Data,
        });
        let fsync_mode = self.fsync.map(|mode| match mode {
            FsyncArg::Strict => FsyncMode::Strict,
            FsyncArg::Off => FsyncMode::Off,
        });
        let (max_bytes, journal_blocks) = (self.max_size, None);
        Settings { max_bytes, on_error, recovery, journal_mode, fsync_mode, journal_blocks }
    }
}

impl Verb {
    /// Does what is asked for; returns descriptions of the cubes that it concerns.
    fn shown(&self) -> Result<Vec<Value>> {
        Ok(match self {
            Verb::Create { place: PlaceArgs { source, path }, new } => match path {
                None => live::create(&source.device, new.settings())?,
                Some(path) => {
                    let path = normal(place::bytes(path))?;
                    change(source, |image, live| image.create(live, &path, new.settings()))?
                }
            },
            Verb::List { source } if source.device.is_dir() => live::list(&source.device)?,
            Verb::List { source } => view(source, |image| Ok(image.all()))?,
            Verb::Show { place: PlaceArgs { source, path } } => match path {
                None => live::show(&source.device)?,
                Some(path) => view(source, |image| {
                    let sub = image.cube(place::bytes(path))?;
                    Ok(vec![image.describe(sub.cube)])
                })?,
            },
            Verb::Set { place: PlaceArgs { source, path }, settings } => match path {
                None => live::set(&source.device, settings.settings())?,
                Some(path) => change(source, |image, live| {
                    let sub = image.cube(place::bytes(path))?;
                    let has_journal = sub.journal.inode > 0;
                    let policies =
                        image.policies(settings.settings(), sub.policies, has_journal)?;
                    live.set_cube(&Caller::system(now()), sub.cube, policies)?;
                    Ok(sub.cube)
                })?,
            },
            Verb::Remove { place: PlaceArgs { source, path }, keep_files } => match path {
                None => live::remove(&source.device, *keep_files)?,
                Some(path) => {
                    let path = place::bytes(path);
                    change(source, |image, live| image.remove(live, path, *keep_files))?
                }
            },
            Verb::Fence { source } if source.device.is_dir() => {
                live::fence(&source.device)?;
                Vec::new()
            }
            Verb::Fence { source } => change(source, |_, live| {
                live.ask_for_fence();
                Ok(0)
            })?,
            Verb::MoveIn { .. } | Verb::Check { .. } | Verb::Repair { .. } => Vec::new(),
        })
    }
}

/// A limit in bytes; 0 for `none`.
fn limit(text: &str) -> Result<u64, String> {
    match text {
        "none" => Ok(0),
        _ => match bytes(text)? {
            0 => Err("must be at least one lot; `none` for no limit".to_owned()),
            limit => Ok(limit),
        },
    }
}

impl Args {
    pub(crate) fn run(self, out: &mut impl Write) -> Result<Outcome> {
        if let Verb::Set { settings, .. } = &self.verb
            && settings.is_empty()
        {
            return Err(Ended::usage("nothing is to be changed; see `floe cube set --help`"));
        }
        match &self.verb {
            Verb::MoveIn { source, from, cube } => {
                let moved = match cube {
                    Some(cube) => move_in_image(source, place::bytes(from), place::bytes(cube))?,
                    None => move_in::mounted::run(&source.device, Path::new(from))?,
                };
                return moved.tell(self.json, out);
            }
            Verb::Check { directory, cube } => {
                return live::check(Path::new(directory), cube.as_deref(), false, None, out);
            }
            Verb::Repair { directory, cube, undo } => {
                let undo = undo.as_deref();
                return live::check(Path::new(directory), cube.as_deref(), true, undo, out);
            }
            _ => {}
        }
        let shown = self.verb.shown()?;
        if let (Verb::Fence { source }, false) = (&self.verb, self.json) {
            let when = if source.device.is_dir() { "from the unmount on" } else { "from now on" };
            writeln!(
                out,
                "free blocks of all cubes are held for them {when}, until Floe writes again"
            )?;
            return Ok(Outcome::CLEAN);
        }
        if self.json {
            let table = json!({ "schema": "floe-cubes", "version": 1, "cubes": shown });
            writeln!(out, "{table:#}")?;
            return Ok(Outcome::CLEAN);
        }
        if shown.is_empty() && matches!(self.verb, Verb::List { .. }) {
            writeln!(out, "no cubes")?;
        }
        shown.iter().try_for_each(|cube| write_text(out, cube))?;
        Ok(Outcome::CLEAN)
    }
}

fn write_text(out: &mut impl Write, cube: &Value) -> Result<()> {
    let number = |name: &str| cube[name].as_u64().unwrap_or(0);
    let most = match number("max_size_bytes") {
        0 => "no limit".to_owned(),
        most => format!("at most {}", size(most)),
    };
    let lots = cube["lots"].as_array().map_or(0, Vec::len);
    let s = plural(lots as u64);
    writeln!(
        out,
        "cube {}: {}, {lots} lot{s}, {} ({} free), {most}",
        number("cube"),
        cube["path"]
            .as_str()
            .unwrap_or("path unknown: both copies of its sub-superblock are damaged"),
        size(number("size_bytes")),
        size(number("free_bytes")),
    )?;
    let word = |name: &str| cube[name].as_str().unwrap_or_default();
    let (on_error, recovery, mode) = (word("on_error"), word("recovery"), word("mode"));
    if !on_error.is_empty() && (on_error, recovery) != ("ro", "manual") {
        writeln!(out, "  on error: {on_error}; recovery: {recovery}")?;
    }
    let (journal_mode, fsync) = (word("journal_mode"), word("fsync"));
    if !journal_mode.is_empty() && (journal_mode, fsync) != ("ordered", "strict") {
        writeln!(out, "  journal mode: {journal_mode}; fsync: {fsync}")?;
    }
    let coupled = cube["coupled"].as_array().map_or(&[][..], Vec::as_slice);
    if !coupled.is_empty() {
        let others: Vec<String> = coupled.iter().map(Value::to_string).collect();
        writeln!(out, "  shares files with cube {}, and fails with it", others.join(", "))?;
    }
    if !matches!(mode, "" | "serving" | "sound") {
        let why = word("why");
        writeln!(out, "  {mode}{}{why}", if why.is_empty() { "" } else { ": " })?;
    }
    Ok(())
}

/// Passes the cubes of an image that is only read.
fn view(
    source: &Source,
    look: impl FnOnce(&CubeImage<'_, '_>) -> Result<Vec<Value>>,
) -> Result<Vec<Value>> {
    source.mind_users(InUse::WarnClaimant)?;
    let claim = source.claim_for_reading()?;
    let device = source.open()?;
    let fs = FileSystem::open(&device);
    let fs = fs.map_err(|refusal| failure::of_superblock(refusal, &device, &source.name()))?;
    let (geometry, groups) = (fs.geometry().clone(), fs.space.groups.descs().to_vec());
    if geometry.features.incompat.contains(floe_format::features::Incompat::RECOVER) {
        message!("floe: {}: its journal needs recovery; what it holds is not shown", source.name());
    }
    let files = Files::new(&device, fs.superblock, geometry, groups);
    let shown = CubeImage::of(&device, &files).and_then(|image| look(&image));
    drop(claim);
    shown.with_context(|| source.name())
}

/// Opens an image for writing, changes its cubes, seals it, and shows the cube that was changed.
fn change(
    source: &Source,
    change: impl FnOnce(&CubeImage<'_, '_>, &Live<'_, '_, Box<dyn WriteBlocks>>) -> Result<u32>,
) -> Result<Vec<Value>> {
    written(source, |disk, volume| change_disk(disk, volume, change))
}

/// Moves a file or directory of an image into a cube, and seals the image.
fn move_in_image(source: &Source, from: &[u8], cube: &[u8]) -> Result<Moved> {
    let from = normal(from)?;
    written(source, |disk, volume| {
        let files = disk.files()?;
        // Looked up before anything is written.
        let (to, tops) = {
            let image = CubeImage::of(disk, &files)?;
            let path = match CubeName::of(cube) {
                CubeName::Number(_) => image.cube(cube)?.path.clone(),
                CubeName::Path(path) => normal(&path)?,
            };
            image.cube(&path)?;
            let tops = image.subs.values().map(|sub| sub.top_inode.into()).collect();
            (path, tops)
        };
        let live = Live::new(disk, &files, volume, now())?;
        move_in::image::run(live, &from, &to, &tops)
    })
}

/// Opens an image for writing, changes it, and closes it.
fn written<T>(
    source: &Source,
    change: impl FnOnce(&Disk<Box<dyn WriteBlocks>>, Volume) -> Result<T>,
) -> Result<T> {
    source.mind_users(InUse::RefuseMount)?;
    let name = source.name();
    let interrupt = signals::end_between_writes()?;
    let hold = interrupt.hold().map_err(|_| anyhow::anyhow!("interrupted; nothing was written"))?;
    let (device, _) = source.open_for_writing(false)?;
    let read = read_superblock(&device);
    let (superblock, _) =
        read.map_err(|refusal| failure::of_superblock(refusal, &device, &name))?;
    if let Err(error @ ReadOnly::CutOff { .. }) = judge(&superblock, device.size_bytes()) {
        bail!("{name}: {error}");
    }
    let layout = FileSystem::open(&device).with_context(|| name.clone())?;
    if Identity::of(&layout.superblock).is_none() {
        bail!("{name}: it is not a native file system; `floe mkfs -t native` makes one");
    }
    if layout.superblock.state & STATE_ERROR != 0 {
        bail!("{name}: errors were found in it before; `floe repair` mends them");
    }
    let (disk, volume) = Disk::open(device).with_context(|| name.clone())?;
    let changed = change(&disk, volume).with_context(|| name.clone());
    disk.close().with_context(|| name.clone())?;
    drop(hold);
    changed
}

fn change_disk(
    disk: &Disk<Box<dyn WriteBlocks>>,
    volume: Volume,
    change: impl FnOnce(&CubeImage<'_, '_>, &Live<'_, '_, Box<dyn WriteBlocks>>) -> Result<u32>,
) -> Result<Vec<Value>> {
    let files = disk.files()?;
    let live = Live::new(disk, &files, volume, now())?;
    let changed = CubeImage::of(disk, &files).and_then(|image| change(&image, &live));
    live.finish(now())?;
    let cube = changed?;
    let files = disk.files()?;
    let image = CubeImage::of(disk, &files)?;
    let is_known = image.subs.contains_key(&cube);
    Ok(if is_known { vec![image.describe(cube)] } else { Vec::new() })
}
