//! Further journals of a new native file system (`-E journals=`).

use anyhow::{Context, Result};
use floe_blockdev::WriteBlocks;
use floe_disk::ops::Caller;
use floe_fs::{Disk, FsError, Live, now};

/// Makes them on a device that holds a new native file system.
pub(super) fn make(device: &dyn WriteBlocks, count: u32) -> Result<()> {
    let (disk, volume) = Disk::open(device)?;
    let made = (|| {
        let files = disk.files()?;
        let live = Live::new(&disk, &files, volume, now())?;
        live.make_journals(&Caller::system(now()), count).map_err(|error| match error {
            FsError::Invalid => anyhow::anyhow!(
                "-E journals={count}: there are fewer lots, or they are too short; \
                 the file system was made with fewer journals"
            ),
            error => anyhow::Error::new(error).context("making the journals"),
        })?;
        live.finish(now())?;
        Ok(())
    })();
    disk.close().context("the new file system cannot be closed")?;
    made
}
