//! Cubes of a new native file system (`--cube`).

use anyhow::{Context, Result, bail};
use floe_blockdev::WriteBlocks;
use floe_disk::ops::{Caller, NewCube};
use floe_ext4::files::Follow;
use floe_format::native::cube::Policies;
use floe_format::native::identity::Identity;
use floe_fs::{Disk, FsError, Live, Settings, now};

use crate::image_files::place;
use crate::input::size::bytes;

/// A cube to be made: its path, and how it is to behave.
#[derive(Clone, Debug)]
pub(super) struct CubeOption {
    path: String,
    settings: Settings,
}

/// Reads `/DIR[:max_size=SIZE,on_error=..,recovery=..]`.
pub(super) fn parse(text: &str) -> Result<CubeOption, String> {
    let (path, words) = text.split_once(':').unwrap_or((text, ""));
    let normal = place::normal(path.as_bytes()).filter(|_| !path.ends_with('/'));
    let normal = normal.and_then(|path| String::from_utf8(path).ok());
    let path = normal
        .ok_or("a cube is a path that starts with /, ends with a name, and has no . or ..")?;
    let mut known = Vec::new();
    for word in words.split(',').filter(|word| !word.is_empty()) {
        known.push(match word.strip_prefix("max_size=").filter(|value| *value != "none") {
            Some(value) => format!("max_size={}", bytes(value)?),
            None => word.to_owned(),
        });
    }
    let settings = Settings::parse(&known.join(" ")).map_err(|_| {
        "settings are max_size=SIZE|none, on_error=ro|crash|repair, recovery=manual|online, \
         journal_mode=ordered|data, fsync=strict|off, journal_blocks=N"
            .to_owned()
    })?;
    let has_journal = settings.journal_blocks.is_some();
    if let Some(why) = settings.over(Policies::default(), 1).objection(has_journal) {
        return Err(why.to_owned());
    }
    Ok(CubeOption { path, settings })
}

/// Makes cubes on a device that holds a new native file system.
pub(super) fn make(device: &dyn WriteBlocks, cubes: &[CubeOption]) -> Result<()> {
    let (disk, volume) = Disk::open(device)?;
    if Identity::of(volume.superblock()).is_none() {
        bail!(
            "--cube needs a native file system (-t native); the file system was made without cubes"
        );
    }
    let block_bytes = volume.geometry().block_size;
    let made = (|| {
        let files = disk.files()?;
        let live = Live::new(&disk, &files, volume, now())?;
        for cube in cubes {
            let at = cube.path.rfind('/').unwrap_or(0);
            let (parent, name) = (&cube.path[..at.max(1)], &cube.path[at + 1..]);
            let parent = files.lookup(parent.as_bytes(), Follow::Last)?.number;
            let policies = cube.settings.over(Policies::default(), block_bytes);
            let (path, name) = (cube.path.as_bytes(), name.as_bytes());
            let journal_blocks = cube.settings.journal_blocks.unwrap_or(0);
            let new = NewCube { parent, name, path, permissions: 0o755, journal_blocks, policies };
            live.make_cube(&Caller::system(now()), &new).map_err(|error| match error {
                FsError::NoSpace => anyhow::anyhow!("{}: there is no free lot", cube.path),
                FsError::Invalid => anyhow::anyhow!("{}: its size is one lot at least", cube.path),
                error => anyhow::Error::new(error).context(cube.path.clone()),
            })?;
        }
        live.finish(now())?;
        Ok(())
    })();
    disk.close().context("the new file system cannot be closed")?;
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_format::native::cube::OnError;

    #[test]
    fn cubes_are_paths_with_settings() {
        let cube = parse("/web:max_size=64m,on_error=crash,journal_blocks=64").unwrap();
        assert_eq!(cube.path, "/web");
        assert_eq!(cube.settings.max_bytes, Some(64 << 20));
        assert_eq!(cube.settings.on_error, Some(OnError::Crash));
        assert!(parse("/a/b").is_ok());
        let refused = ["/a:on_error=crash", "/a:on_error=crash,recovery=online,journal_blocks=64"];
        let wrong = ["web", "/", "/a/", "/a:size=1", "/a:max_size=x", "/..", "/../a"];
        for wrong in wrong.into_iter().chain(refused) {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
