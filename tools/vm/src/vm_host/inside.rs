//! The first process of a guest: writes records to its disk, and says which are durable.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, mount};

use crate::guest::disk;
use crate::guest::inside::{self, one_line, say};

/// Records that are kept: a newer one takes the place of the oldest.
const KEPT: u64 = 400;
/// Size of a record: its number again and again.
const RECORD_BYTES: usize = 64 << 10;

/// Options of the guest's program.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The last record that was acknowledged
    #[arg(long)]
    from: u64,
    /// Look at the records, and end
    #[arg(long)]
    last: bool,
}

/// Writes records until the disk fails. Returns only outside of a guest, where there is nothing to shut down.
pub(crate) fn run(args: &Args) -> Result<()> {
    inside::run("vm-host", || work(args))
}

fn work(args: &Args) -> Result<()> {
    let folder = Path::new("/mnt");
    mount(disk(0), folder, "ext4", MountFlags::NODEV, Some(c"errors=remount-ro"))
        .context("mounting the disk")?;
    for number in args.from.saturating_sub(KEPT - 1).max(1)..=args.from {
        let path = place(folder, number);
        let bytes = fs::read(&path).with_context(|| format!("record {number}"))?;
        let found = bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        // The next one of that place may be durable without having been acknowledged.
        ensure!(found >= number && bytes == record(found), "record {number} is lost");
    }
    say(&format!("kept {}", args.from));
    if args.last {
        return Ok(());
    }
    for number in args.from + 1.. {
        if let Err(error) = write(folder, number) {
            say(&format!("stopped {}", one_line(&error)));
            break;
        }
        say(&format!("wrote {number}"));
    }
    Ok(())
}

/// Writes a record as programs do that must not lose it: under another name first.
fn write(folder: &Path, number: u64) -> Result<()> {
    let new = folder.join("new");
    let mut file = File::create(&new).context("creating a file")?;
    file.write_all(&record(number)).context("writing")?;
    file.sync_all().context("fsync")?;
    fs::rename(&new, place(folder, number)).context("renaming")?;
    File::open(folder)?.sync_all().context("fsync of the directory")
}

fn place(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("record-{}", number % KEPT))
}

fn record(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(RECORD_BYTES / size_of::<u64>())
}
