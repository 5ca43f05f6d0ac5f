//! A DataNode's disk: an image of a native file system with four cubes, mounted by Floe.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floe_testkit::tool;
use rustix::fs::{FallocateFlags, fallocate};

/// Size of an image, in bytes and for the command line.
const IMAGE_BYTES: u64 = 768 << 20;
const IMAGE_SIZE: &str = "768m";
/// Cubes of an image, each a volume.
const CUBES: u32 = 4;
const BLOCK_BYTES: u64 = 4096;

/// The disk of a DataNode. Dropping it unmounts it.
pub(crate) struct Node {
    floe: PathBuf,
    disk: PathBuf,
    mount: PathBuf,
    /// The places of the cubes' journals.
    journals: Vec<(u64, u64)>,
}

impl Node {
    /// Makes and mounts the disk, on a tmpfs of its own that has room for the image and little else.
    pub(crate) fn new(floe: &Path, folder: &Path, number: u32) -> Result<Self> {
        let [disk, mount] = ["disk", "mount"].map(|name| folder.join(format!("{name}{number}")));
        for folder in [&disk, &mount] {
            std::fs::create_dir(folder)?;
        }
        let size = format!("size={}", IMAGE_BYTES + (8 << 20));
        tool::must("mount", &["-t", "tmpfs", "-o", &size, "none", &text(&disk)], &[0])?;
        let mut node = Self { floe: floe.to_owned(), disk, mount, journals: Vec::new() };
        let mut args =
            ["mkfs", "-q", "-t", "native", "-E", "lot_size=32m"].map(str::to_owned).to_vec();
        for cube in 1..=CUBES {
            let settings = "max_size=192m,on_error=crash,journal_blocks=1024";
            args.extend(["--cube".to_owned(), format!("/v{cube}:{settings}")]);
        }
        args.extend([text(&node.image()), IMAGE_SIZE.to_owned()]);
        node.floe(&args)?;
        // All of the image has its memory, so that only what is taken away from it is missing.
        let image = OpenOptions::new().write(true).open(node.image())?;
        fallocate(&image, FallocateFlags::empty(), 0, IMAGE_BYTES).context("filling the image")?;
        node.journals = (1..=CUBES).map(|cube| node.journal(cube)).collect::<Result<_>>()?;
        node.floe(&["mount".to_owned(), text(&node.image()), text(&node.mount)])?;
        Ok(node)
    }

    fn image(&self) -> PathBuf {
        self.disk.join("image")
    }

    fn floe(&self, args: &[String]) -> Result<()> {
        tool::must(&text(&self.floe), args, &[0]).map(drop)
    }

    /// The directories of the cubes.
    pub(crate) fn volumes(&self) -> Vec<PathBuf> {
        (1..=CUBES).map(|cube| self.mount.join(format!("v{cube}"))).collect()
    }

    /// The first and the last block of a cube's journal, which must be in one piece.
    fn journal(&self, cube: u32) -> Result<(u64, u64)> {
        let asked = format!("blocks /.cubes/journal.{cube}");
        let found = tool::must("debugfs", &["-R", &asked, &text(&self.image())], &[0])?.text;
        let blocks: Vec<u64> =
            found.split_whitespace().filter_map(|block| block.parse().ok()).collect();
        let (first, last) = blocks.iter().min().zip(blocks.iter().max()).context("no journal")?;
        ensure!(last - first + 1 == blocks.len() as u64, "the journal is not in one piece");
        Ok((*first, *last))
    }

    /// Lets the part of the disk fail that holds the journal of a cube.
    pub(crate) fn fail(&self, cube: u32) -> Result<()> {
        let (first, last) = self.journals[cube as usize - 1];
        let image = OpenOptions::new().write(true).open(self.image())?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Its superblock stays, so that a repair knows which journal it was.
        let (offset, len) = ((first + 1) * BLOCK_BYTES, (last - first) * BLOCK_BYTES);
        fallocate(&image, flags, offset, len).context("taking away memory of the image")?;
        let mut taker = std::fs::File::create(self.taker())?;
        loop {
            match taker.write_all(&[0; BLOCK_BYTES as usize]) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The file that holds the memory which the image lacks.
    fn taker(&self) -> PathBuf {
        self.disk.join("taken")
    }

    /// Makes the disk whole, unmounts, and returns the image, which goes with the scratch folder.
    pub(crate) fn unmounted(self) -> Result<PathBuf> {
        let has_failed = self.taker().exists();
        if has_failed {
            std::fs::remove_file(self.taker())?;
        }
        // 8: changes of the failed cube that were not durable are dropped, and the command says so.
        let allowed = if has_failed { &[0, 8][..] } else { &[0] };
        tool::must(&text(&self.floe), &["umount", &text(&self.mount)], allowed)?;
        let copy = self.disk.with_extension("image");
        tool::must("cp", &["--sparse=always", &text(&self.image()), &text(&copy)], &[0])?;
        Ok(copy)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // After a failure, programs may still hold files.
        for folder in [&self.mount, &self.disk] {
            for _ in 0..20 {
                let unmounted = tool::must("umount", &["-l", &text(folder)], &[0]);
                if unmounted.is_ok() || !folder.exists() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
