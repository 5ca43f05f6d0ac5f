//! `--checkpoint FILE`: the file, and what people are told of it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use floe_blockdev::NewFile;
use floe_check::checkpoint::{Keeper, MAGIC, Notice};
use floe_exec::Interrupt;
use floe_sync::atomic::{AtomicU64, Ordering};
use floe_sync::{Arc, Mutex, PoisonError};

use crate::clock::now_seconds;
use crate::files::OutputPath;

/// Where a check keeps what it found, so that it can go on.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckpointArgs {
    /// Keep what was found so far in FILE: a check that was killed goes on from there when the same
    /// command is given again. FILE is removed when the check is complete (see docs/resume.md)
    #[arg(long, value_name = "FILE", conflicts_with = "online")]
    checkpoint: Option<OutputPath>,
    /// Add to the checkpoint every SECONDS
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "checkpoint",
        default_value = "30",
        value_parser = seconds
    )]
    checkpoint_every: Duration,
    /// Begin anew, whatever checkpoint there is
    #[arg(long, requires = "checkpoint")]
    checkpoint_restart: bool,
}

/// Most seconds between two records: a day.
const MOST_SECONDS: f64 = 86_400.0;

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "it is no number".to_owned())?;
    if (0.0..=MOST_SECONDS).contains(&number) {
        Ok(Duration::from_secs_f64(number))
    } else {
        Err(format!("it must be between 0 and {MOST_SECONDS}"))
    }
}

impl CheckpointArgs {
    /// The checkpoint that was asked for.
    pub(crate) fn keeper(&self) -> Option<CheckpointFile> {
        Some(CheckpointFile {
            path: self.checkpoint.as_deref()?.to_owned(),
            every: self.checkpoint_every,
            restart: self.checkpoint_restart,
            interrupt: Arc::new(Interrupt::new()),
            start: Instant::now(),
            next_ns: AtomicU64::new(0),
            open: Mutex::new(None),
        })
    }
}

/// Time between two records, in times of what the last one took to be written.
const PAUSE: u32 = 20;

/// A checkpoint in a file.
pub(crate) struct CheckpointFile {
    path: PathBuf,
    every: Duration,
    restart: bool,
    interrupt: Arc<Interrupt>,
    start: Instant,
    /// When the next record is due, in nanoseconds since the start.
    next_ns: AtomicU64,
    open: Mutex<Option<Appended>>,
}

/// A file to which records are added.
struct Appended {
    file: File,
    /// Where the last whole record ends.
    good_bytes: u64,
}

impl CheckpointFile {
    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The wish to stop, for whoever receives signals.
    pub(crate) fn shared_interrupt(&self) -> Arc<Interrupt> {
        Arc::clone(&self.interrupt)
    }

    /// The check is complete.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The next record is due after the usual time, or later if this one took long.
    fn put_off(&self, took: Duration) {
        let pause = if self.every.is_zero() { self.every } else { self.every.max(took * PAUSE) };
        let next = self.start.elapsed().saturating_add(pause);
        let next_ns = u64::try_from(next.as_nanos()).unwrap_or(u64::MAX);
        self.next_ns.store(next_ns, Ordering::Relaxed);
    }

    fn open(&self, file: File, good_bytes: u64) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Appended { file, good_bytes });
        self.put_off(Duration::ZERO);
    }
}

/// Opens a file to read it. Others must not be able to write to it: what a checkpoint says is believed.
fn open_own(path: &Path) -> io::Result<Option<File>> {
    // No pipe is waited for.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let metadata = file.metadata()?;
    let refused = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if !metadata.is_file() {
        return refused("it is no regular file");
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return refused("it belongs to another user, who could have made it up");
    }
    if metadata.mode() & 0o002 != 0 {
        return refused("everybody may write to it");
    }
    Ok(Some(file))
}

impl Keeper for CheckpointFile {
    fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    fn due(&self) -> bool {
        self.start.elapsed().as_nanos() >= u128::from(self.next_ns.load(Ordering::Relaxed))
    }

    fn restart(&self) -> bool {
        self.restart
    }

    fn stored(&self) -> io::Result<Option<Box<dyn Read + '_>>> {
        let file = open_own(&self.path)?;
        Ok(file.map(|file| Box::new(BufReader::new(file)) as Box<dyn Read>))
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        // The key of the sums is in it: nobody else is to read it.
        let new = NewFile::replacing(&self.path, 0o600, MAGIC)?;
        new.file().write_all(bytes)?;
        self.open(new.finish()?, bytes.len() as u64);
        Ok(())
    }

    fn resume(&self, bytes: u64) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).open(&self.path)?;
        file.set_len(bytes)?;
        io::Seek::seek(&mut file, io::SeekFrom::Start(bytes))?;
        self.open(file, bytes);
        Ok(())
    }

    fn append(&self, write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let begun = Instant::now();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Appended { file, good_bytes }) = &mut *open else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let mut out = BufWriter::new(&mut *file);
        let written = write(&mut out).and_then(|()| out.flush());
        drop(out.into_parts());
        if let Err(error) = written.and_then(|()| file.sync_data()) {
            // What is cut off would be noticed, too.
            let _ = file.set_len(*good_bytes);
            return Err(error);
        }
        *good_bytes = io::Seek::stream_position(file)?;
        drop(open);
        self.put_off(begun.elapsed());
        Ok(())
    }

    fn tell(&self, notice: &Notice) {
        let file = self.path.display();
        match notice {
            Notice::Resumed { begun_seconds, parts: (done, all), runs, cut } => {
                let begun = ago(now_seconds().saturating_sub(*begun_seconds));
                let mut text = format!("going on from {file}, begun {begun}: ");
                if *done == *all && *runs > 0 {
                    text += &format!("all inodes and {runs} runs of directory blocks");
                } else {
                    let percent = (*done as u64 * 100).checked_div(*all as u64).unwrap_or(100);
                    text += &format!("{percent} % of the inode tables");
                }
                text += " were checked before";
                if *cut {
                    text += "; its end was cut off or damaged, and is done again";
                }
                eprintln!("floe: {text}");
            }
            Notice::Restarted { why } => {
                eprintln!("floe: {file} is not used, for {why}; the check begins anew");
            }
            Notice::Lost(error) => {
                eprintln!("floe: {file} cannot be written: {error}; the check goes on without it");
            }
        }
    }
}

/// A time that has passed, as people say it.
fn ago(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{} s ago", seconds.max(0)),
        120..7200 => format!("{} minutes ago", seconds / 60),
        7200..172_800 => format!("{} hours ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper(path: &Path) -> CheckpointFile {
        let args = CheckpointArgs {
            checkpoint: Some(path.into()),
            checkpoint_every: Duration::from_secs(30),
            checkpoint_restart: false,
        };
        args.keeper().unwrap()
    }

    fn made() -> Vec<u8> {
        [&MAGIC[..], b"1 and more"].concat()
    }

    #[test]
    fn a_file_is_made_added_to_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("check");
        let file = keeper(&path);
        assert!(file.stored().unwrap().is_none());
        file.replace(&made()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(!file.due(), "the first record is not due at once");
        file.append(&mut |out| out.write_all(b" one")).unwrap();
        let failed = file.append(&mut |out| {
            out.write_all(&[b'x'; 100_000])?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), [&made()[..], b" one"].concat());
        let other = keeper(&path);
        other.resume(made().len() as u64).unwrap();
        other.append(&mut |out| out.write_all(b" two")).unwrap();
        let mut stored = Vec::new();
        other.stored().unwrap().unwrap().read_to_end(&mut stored).unwrap();
        assert_eq!(stored, [&made()[..], b" two"].concat());
        other.remove().unwrap();
        other.remove().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_in_the_way_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("check");
        let new = folder.path().join("check.unfinished");
        fs::write(&new, b"something else").unwrap();
        assert!(keeper(&path).replace(&made()).unwrap_err().to_string().contains("in the way"));
        assert_eq!(fs::read(&new).unwrap(), b"something else");
        // Of a run that was killed.
        for remains in [&b""[..], &MAGIC[..3], &made()] {
            fs::write(&new, remains).unwrap();
            keeper(&path).replace(&made()).unwrap();
            assert!(!new.exists());
        }
    }

    #[test]
    fn only_own_files_are_believed() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("check");
        fs::write(&path, made()).unwrap();
        assert!(keeper(&path).stored().unwrap().is_some());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(keeper(&path).stored().is_err_and(|error| error.to_string().contains("write")));
        assert!(keeper(folder.path()).stored().is_err());
        assert!(keeper(Path::new("/dev/null")).stored().is_err());
    }

    #[test]
    fn seconds_are_read() {
        assert_eq!(seconds("0.5").unwrap(), Duration::from_millis(500));
        for bad in ["-1", "NaN", "inf", "1e9", "often"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        assert_eq!(
            [3, 300, 9000, 400_000].map(ago),
            ["3 s ago", "5 minutes ago", "2 hours ago", "4 days ago"]
        );
    }
}
