//! Opening an image for a mount, and serving it.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use floe_blockdev::image::{Format, format_of};
use floe_blockdev::{
    FileDevice, OpenError as DeviceError, ReadBlocks, Use, WriteBlocks, mounted_at,
};
use floe_check::open::{WhichSuperblock, good_backups};
use floe_check::{CheckOptions, JournalUse, Problem, view};
use floe_disk::journal::JournalError;
use floe_disk::volume::{ReadOnly, Volume, judge};
use floe_ext4::fs::read_superblock;
use floe_format::ext::inode::FileType;
use floe_format::ext::superblock::{MAGIC, OFFSET_BYTES, STATE_ERROR, STATE_VALID, Superblock};
use floe_format::features::RoCompat;
use floe_format::native::is_locked;
use floe_format::{BlockNr, InodeNr};
use floe_fs::{Disk, DiskError, FileSystem, Gates, Image, Live, MemFs, Mode, OnError, Store, now};
use floe_fuse::mount::{MountOptions, MountPoint, mount, unmount};
use floe_fuse::{DevFuse, ServeOptions, serve};
use floe_sync::Arc;

use super::daemon::{self, Log};
use super::options::Options;
use super::watch::Watch;
use super::{Args, address_space, descriptors, threads};
use super::{log_status_on_signal, notify, unmount_on_signals};
use crate::commands::umount::is_dead;
use crate::input::device::InUse;
use crate::message::message;
use crate::terminal::failure;
use crate::terminal::panics::Caught;

/// A disk that is written until the mount ends, or why its file system is only read.
enum Access {
    Writing(Disk<Box<dyn WriteBlocks>>, Box<Volume>),
    Reading(String),
}

impl Args {
    /// Opens the image, mounts it and serves until it is unmounted, and holds the lock file meanwhile.
    pub(super) fn open_and_serve(&self, options: &Options) -> Result<()> {
        let Some(path) = &options.lock_file else { return self.open_and_serve_unlocked(options) };
        let path = std::path::absolute(path)?;
        let locked = std::fs::File::options().write(true).create_new(true).open(&path);
        locked.with_context(|| format!("cannot create the lock file {}", path.display()))?;
        let served = self.open_and_serve_unlocked(options);
        let removed = std::fs::remove_file(&path);
        served?;
        removed.with_context(|| format!("cannot remove the lock file {}", path.display()))
    }

    fn open_and_serve_unlocked(&self, options: &Options) -> Result<()> {
        let wanted = options.read_only;
        address_space::judge(options.memory, self.serving(options).threads)?;
        match self.access(options)? {
            Access::Writing(disk, volume) => self.serve_writing(disk, *volume, options),
            Access::Reading(why) if wanted == Some(false) => {
                bail!("cannot be mounted read-write: {why}")
            }
            Access::Reading(why) => self.serve_reading(options, wanted.is_none().then_some(&why)),
        }
    }

    /// Opens the disk for writing, and claims it, if that is wanted and safe.
    fn access(&self, options: &Options) -> Result<Access> {
        if let Some(why) = self.why_never_written(options)? {
            return Ok(Access::Reading(why));
        }
        self.source.mind_users(InUse::RefuseMount)?;
        let device = match self.source.open_for_writing(false) {
            Ok((device, _)) => device,
            Err(error) => match error.downcast_ref() {
                // As mount(8) does for a write-protected disk.
                Some(
                    DeviceError::ReadOnly { .. }
                    | DeviceError::NoPermission { .. }
                    | DeviceError::Protected { .. },
                ) => {
                    return Ok(Access::Reading("the device or file is write-protected".to_owned()));
                }
                _ => return Err(error),
            },
        };
        // A device too damaged to be opened here may still be readable.
        let damaged = || "its superblock or descriptors are damaged".to_owned();
        let Ok((superblock, _)) = read_superblock(&device) else {
            let has_none = !has_magic(&device) && good_backups(&device).is_empty();
            let none = || "no ext2, ext3 or ext4 file system was found in it".to_owned();
            return Ok(Access::Reading(if has_none { none() } else { damaged() }));
        };
        if superblock.state & STATE_ERROR != 0 {
            let why = "errors were found in it before; `floe repair` mends them";
            return Ok(Access::Reading(why.to_owned()));
        }
        // Judged before the journal is replayed, because that writes.
        match judge(&superblock, device.size_bytes()) {
            Ok(()) | Err(ReadOnly::NeedsRecovery) => {}
            Err(error) => return Ok(Access::Reading(error.to_string())),
        }
        // Journals of cubes are recovered whether or not that of inode 8 holds something.
        if is_locked(&superblock)
            && let Err(error) = Volume::open_unrecovered(&device)
        {
            return Ok(Access::Reading(error.to_string()));
        }
        if superblock.state & STATE_VALID == 0 {
            let name = self.source.name();
            message!("floe: {name}: it was not unmounted cleanly; check it with `floe check`");
        }
        let opened = match options.async_commits {
            true => Disk::open_with_async_commits(device),
            false => Disk::open(device),
        };
        match opened {
            Ok((disk, volume)) => {
                disk.set_dependencies(options.dependencies);
                Ok(Access::Writing(disk, Box::new(volume)))
            }
            // The descriptors are damaged, or the journal held a superblock that says otherwise.
            Err(DiskError::Open(error)) => Ok(Access::Reading(error.to_string())),
            Err(DiskError::Journal(JournalError::FileSystem(_))) => Ok(Access::Reading(damaged())),
            Err(error @ (DiskError::Journal(JournalError::Io { .. }) | DiskError::Device(_))) => {
                Err(error).context(
                    "it cannot be recovered here; `-o ro` shows its files and writes nothing",
                )
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Why the image is only read, as far as the options and its format tell.
    fn why_never_written(&self, options: &Options) -> Result<Option<String>> {
        if options.read_only == Some(true) {
            return Ok(Some("`ro` was asked for".to_owned()));
        }
        if options.no_recovery {
            return Ok(Some("the journal is not to be replayed".to_owned()));
        }
        if options.superblock_kib.is_some() || self.source.superblock.is_some() {
            return Ok(Some("a backup of the superblock is used".to_owned()));
        }
        let format = match self.source.format {
            Some(format) => format,
            None => format_of(&self.source.device)?,
        };
        if format != Format::Raw {
            return Ok(Some(format!("it is a {format} image")));
        }
        let elsewhere = self.external_journal.is_some();
        Ok(elsewhere.then(|| "its journal is elsewhere".to_owned()))
    }

    /// Serves a disk, which stays locked until the last write.
    fn serve_writing<D: WriteBlocks>(
        &self,
        disk: Disk<D>,
        volume: Volume,
        options: &Options,
    ) -> Result<()> {
        let served = self.serve_disk(&disk, volume, options);
        // If closing fails, the next mount recovers the journal.
        let closed = disk.close();
        served.and(closed.map_err(Into::into))
    }

    fn serve_disk<D: WriteBlocks>(
        &self,
        disk: &Disk<D>,
        mut volume: Volume,
        options: &Options,
    ) -> Result<()> {
        let counts = volume.superblock().features().ro_compat.contains(RoCompat::QUOTA);
        if !options.quotas.is_empty() && !counts {
            let name = self.source.name();
            message!("floe: {name}: it lacks the feature quota, so limits do not count");
        }
        volume.enforce_limits(options.quotas.clone());
        if options.colocate {
            volume.colocate();
        }
        let files = disk.files_of(&volume)?;
        let on_error = options.on_error.unwrap_or_else(|| OnError::of(volume.superblock()));
        let live = Live::new(disk, &files, volume, now())?.on_error(on_error);
        self.tell_failures(live.gates());
        let live = match options.memory.limit_bytes() {
            Some(bytes) => live.within(bytes),
            None => live,
        };
        let live = live.discard_freed(options.discard);
        // One thread is left for the other cubes while calls wait for one that is checked or repaired.
        live.gates().let_wait(self.serving(options).threads.saturating_sub(1));
        let fs = FileSystem::new(MemFs::new(live, options.limits()));
        let caught = Caught::begin();
        let served = self.serve(&fs, options);
        drop(caught);
        let finished = fs.into_store().finish().and_then(|(live, lost)| {
            live.finish(now())?;
            lost
        });
        served.and(finished.context("the last changes cannot be written"))
    }

    /// Tells which cubes are not served as usual.
    fn tell_failures(&self, gates: &Gates) {
        let name = self.source.name();
        for (cube, mode, why) in gates.failures() {
            let how = if mode == Mode::ReadOnly { "only read" } else { "not served" };
            message!("floe: {name}: cube {cube} is {how}: {why}");
        }
    }

    /// Serves an image that is only read; `why` is told once it turned out to hold a file system.
    fn serve_reading(&self, options: &Options, why: Option<&String>) -> Result<()> {
        self.source.mind_users(InUse::WarnClaimant)?;
        // Keeps writers out until the mount ends.
        let claim = self.source.claim_for_reading()?;
        let device = self.source.open()?;
        let journal = self.external_journal.as_deref().map(FileDevice::open).transpose()?;
        let superblock = match options.superblock_kib {
            // In units of 1 KiB; whoever gives it gives the block size, or it is found out.
            Some(kib) => Some(kib / (u64::from(self.source.block_size.unwrap_or(1024)) >> 10)),
            None => self.source.superblock,
        };
        let check = CheckOptions {
            superblock: WhichSuperblock {
                block: superblock.map(BlockNr),
                block_size: self.source.block_size,
            },
            external_journal: journal.as_ref().map(|device| device as &dyn ReadBlocks),
            journal: if options.no_recovery { JournalUse::Ignore } else { JournalUse::Replay },
            ..CheckOptions::default()
        };
        let name = self.source.name();
        let served = view(&device, &check, |files, found| {
            if let Some(why) = why {
                message!("floe: {name}: mounting read-only: {why}");
            }
            // The reason says so already.
            let is_told = |problem: &&Problem| {
                why.is_some() && matches!(problem, Problem::FilesystemExceedsDevice { .. })
            };
            for problem in found.iter().filter(|problem| !is_told(problem)) {
                message!("floe: {name}: {problem}");
            }
            let image = match options.memory.limit_bytes() {
                Some(bytes) => Image::new(files).within(bytes),
                None => Image::new(files),
            };
            self.serve(&FileSystem::new(image), options)
        });
        drop(claim);
        served.map_err(|error| anyhow!(failure::of_check(&error, &device, &name, "--memory=")))?
    }

    /// Mounts a file system and serves it until it is unmounted.
    fn serve<S: Store>(&self, fs: &FileSystem<S>, options: &Options) -> Result<()> {
        let place = MountPoint::of(Path::new(&self.directory));
        if let MountPoint::Directory(directory) = &place {
            is_usable(directory)?;
        }
        let root = fs.attributes(InodeNr::ROOT).context("its root directory cannot be read")?;
        if root.kind != FileType::Directory {
            bail!("its root is not a directory; `floe repair` mends it");
        }
        let log = Arc::new(Log::new(self.source.name(), self.serve));
        // Without links, and before the mount, because nobody answers there yet.
        let mount_point = match &place {
            MountPoint::Directory(directory) => std::fs::canonicalize(directory).ok(),
            MountPoint::Descriptor(_) => None,
        };
        let serving = self.serving(options);
        descriptors::judge(serving.threads)?;
        threads::judge(serving.threads)?;
        let carrier = mount(&place, &self.mounting(options, fs.is_read_only()))?;
        let served =
            self.serve_mounted(fs, &carrier, &place, mount_point.as_deref(), &serving, &log);
        if let (Err(_), MountPoint::Directory(directory)) = (&served, &place) {
            // A mount without a server answers nobody; it may be gone already.
            let _ = unmount(directory, true);
        }
        served
    }

    fn serve_mounted<S: Store>(
        &self,
        fs: &FileSystem<S>,
        carrier: &DevFuse,
        place: &MountPoint,
        mount_point: Option<&Path>,
        serving: &ServeOptions,
        log: &Arc<Log>,
    ) -> Result<()> {
        if self.serve {
            daemon::leave_session()?;
        }
        // The server of a read-only mount asks nothing of the kernel.
        let _watch = (!fs.is_read_only()).then(|| Watch::begin(mount_point, carrier, log));
        if let Some(Use::Mounted { device, .. }) = mount_point.and_then(mounted_at) {
            carrier.know_device(device.major, device.minor);
        }
        unmount_on_signals(place, log)?;
        log_status_on_signal(place, log)?;
        let ready = || {
            notify::ready();
            if !self.serve {
                return;
            }
            // All that the command line names is open.
            descriptors::close(&self.inherited);
            if let Err(error) = daemon::tell_ready() {
                log.line(&format!("cannot close the standard streams: {error}"));
            }
        };
        Ok(serve(carrier, fs, serving, &|text| log.line(text), ready)?)
    }

    fn mounting(&self, options: &Options, read_only: bool) -> MountOptions {
        let as_root = rustix::process::getuid().is_root();
        // Programs look this name up, and do so in another folder.
        let absolute = || std::path::absolute(&self.source.device);
        let device = || absolute().unwrap_or_else(|_| self.source.device.to_path_buf()).into();
        MountOptions {
            fsname: options.fsname.clone().map_or_else(device, OsString::from),
            subtype: options.subtype.clone().unwrap_or_else(|| "floe".to_owned()),
            read_only,
            allow_other: options.allow_other.unwrap_or(as_root),
            no_suid: options.no_suid,
            no_devices: options.no_devices,
            no_exec: options.no_exec,
            no_atime: options.no_atime,
            synchronous: options.synchronous,
            judged: !options.everybody,
            transport: self.transport.unwrap_or(options.transport),
        }
    }

    fn serving(&self, options: &Options) -> ServeOptions {
        let standard = ServeOptions::default();
        let threads = if self.single_thread { Some(1) } else { options.threads };
        ServeOptions {
            threads: threads.unwrap_or(standard.threads),
            commit_every: options.commit_seconds.map_or(standard.commit_every, Duration::from_secs),
            debug: self.debug,
            writeback: !options.write_through,
            open_fast: options.open_fast,
            access_times: (options.access_times.0, !options.access_times.1),
            synchronous: options.synchronous,
            group_of_directory: options.group_of_directory,
            mapped_ids: options.mapped_ids,
            judged: !options.everybody,
            // Nobody else changes the image.
            ..standard
        }
    }
}

/// Whether the primary superblock can be read and has the magic number.
fn has_magic(device: &dyn ReadBlocks) -> bool {
    let mut bytes = [0; Superblock::SIZE];
    device.read_at(OFFSET_BYTES, &mut bytes).is_ok() && Superblock::decode(&bytes).magic == MAGIC
}

/// Fails where nothing can be mounted at a directory, and says why.
fn is_usable(directory: &Path) -> Result<()> {
    let name = directory.display();
    match std::fs::metadata(directory) {
        Ok(found) if found.is_dir() => Ok(()),
        Err(error) if is_dead(&error) => {
            bail!(
                "at {name} still lies a mount whose server is gone; `floe umount {name}` takes it away"
            )
        }
        Err(error) if error.kind() != ErrorKind::NotFound => bail!("{name}: {error}"),
        _ => bail!("{name} is not a directory"),
    }
}
