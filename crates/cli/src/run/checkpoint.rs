//! `--checkpoint FILE`: the file, and the messages about it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use floe_blockdev::{NewFile, open_at_once};
use floe_check::checkpoint::{Keeper, MAGIC, Notice};
use floe_exec::Interrupt;
use floe_sync::atomic::{AtomicU64, Ordering};
use floe_sync::{Arc, Mutex, PoisonError};

use crate::input::clock::now_seconds;
use crate::input::files::OutputPath;
use crate::message::message;

/// Options for a resumable check.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckpointArgs {
    /// Save intermediate results in FILE: if the check is killed, the same command resumes it. FILE
    /// is removed when the check is complete (see docs/resume.md)
    #[arg(long, value_name = "FILE", conflicts_with = "online")]
    checkpoint: Option<OutputPath>,
    /// Update the checkpoint every SECONDS
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "checkpoint",
        default_value = "30",
        value_parser = seconds
    )]
    checkpoint_every: Duration,
    /// Ignore an existing checkpoint and start over
    #[arg(long, requires = "checkpoint")]
    checkpoint_restart: bool,
}

/// Maximum seconds between two records: one day.
const MOST_SECONDS: f64 = 86_400.0;

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "it is not a number".to_owned())?;
    if (0.0..=MOST_SECONDS).contains(&number) {
        Ok(Duration::from_secs_f64(number))
    } else {
        Err(format!("it must be between 0 and {MOST_SECONDS}"))
    }
}

impl CheckpointArgs {
    /// The requested checkpoint.
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

/// Minimum pause between two records, as a multiple of the time for writing the last one.
const PAUSE: u32 = 20;

/// A checkpoint file.
pub(crate) struct CheckpointFile {
    path: PathBuf,
    every: Duration,
    restart: bool,
    interrupt: Arc<Interrupt>,
    start: Instant,
    /// Time of the next record, in nanoseconds since the start.
    next_ns: AtomicU64,
    open: Mutex<Option<Appended>>,
}

/// A file to which records are appended.
struct Appended {
    file: File,
    /// End of the last complete record.
    good_bytes: u64,
}

impl CheckpointFile {
    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The interrupt flag, shared with the signal handler.
    pub(crate) fn shared_interrupt(&self) -> Arc<Interrupt> {
        Arc::clone(&self.interrupt)
    }

    /// Removes the file when the check is complete.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Schedules the next record: after the usual interval, or later if this one took long.
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

/// Opens the file for reading. Fails if other users can write to it, because its content is
/// trusted.
pub(crate) fn open_own(path: &Path) -> io::Result<Option<File>> {
    let file = match open_at_once(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let metadata = file.metadata()?;
    let refused = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if !metadata.is_file() {
        return refused("it is not a regular file");
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return refused("it belongs to another user, who could have forged it");
    }
    if metadata.mode() & 0o002 != 0 {
        return refused("it is writable by all users");
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
        // The file contains the key of the fingerprints, so other users must not read it.
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
            // A truncated record would also be detected on reading.
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
                let mut text = format!("going on from {file}, started {begun}: ");
                if *done == *all && *runs > 0 {
                    text += &format!("all inodes and {runs} runs of directory blocks");
                } else {
                    let percent = (*done as u64 * 100).checked_div(*all as u64).unwrap_or(100);
                    text += &format!("{percent} % of the inode tables");
                }
                text += " were checked before";
                if *cut {
                    text += "; its last record is truncated or damaged, and that part is repeated";
                }
                message!("floe: {text}");
            }
            Notice::Restarted { why } => {
                message!("floe: {file} is not used, because {why}; the check starts over");
            }
            Notice::Lost(error) => {
                message!("floe: {file} cannot be written: {error}; the check continues without it");
            }
        }
    }
}

/// A duration in words.
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
        // Remains of a run that was killed.
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
        assert!(keeper(&path).stored().is_err_and(|error| error.to_string().contains("writable")));
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
