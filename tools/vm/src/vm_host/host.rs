//! The host's file system: a native one with a cube for the disk of each guest.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use floe_format::BlockNr;
use floe_format::ext::extent::ExtentNode;
use floe_testkit::Image;
use floe_testkit::tool;
use floe_testkit::volume::{Node, NodeKind, Volume};

use super::GUESTS;

const IMAGE_SIZE: &str = "768m";
/// Size of a guest's disk.
const DISK_SIZE: &str = "64m";
const BLOCK_BYTES: usize = 4096;

/// The mounted file system. Dropping it unmounts it.
pub(super) struct Host {
    floe: String,
    image: PathBuf,
    mount: PathBuf,
    /// The leaves of the maps of the disks, before the guests began.
    leaves: Vec<Vec<BlockNr>>,
}

impl Host {
    /// Makes the file system and the disks, and mounts it.
    pub(super) fn new(floe: &Path, folder: &Path) -> Result<Self> {
        let [image, mount] = ["image", "mount"].map(|name| folder.join(name));
        std::fs::create_dir(&mount)?;
        let mut host = Self { floe: text(floe), image, mount, leaves: Vec::new() };
        let mut args =
            ["mkfs", "-q", "-t", "native", "-E", "lot_size=32m"].map(str::to_owned).to_vec();
        for guest in 0..GUESTS {
            let settings = "max_size=192m,on_error=repair,journal_blocks=1024";
            args.extend(["--cube".to_owned(), format!("/guest{guest}:{settings}")]);
        }
        args.extend([text(&host.image), IMAGE_SIZE.to_owned()]);
        tool::must(&host.floe, &args, &[0])?;
        let new = text(&folder.join("new-disk"));
        tool::must("mke2fs", &["-q", "-t", "ext4", &new, DISK_SIZE], &[0])?;
        host.mount()?;
        for guest in 0..GUESTS {
            scatter(Path::new(&new), &host.disk(guest))?;
        }
        // Mounted anew, it reads each node of the disks' maps when it needs it.
        tool::must(&host.floe, &["umount", &text(&host.mount)], &[0])?;
        host.leaves = leaves(&host.image)?;
        host.mount()?;
        Ok(host)
    }

    fn mount(&self) -> Result<()> {
        tool::must(&self.floe, &["mount", &text(&self.image), &text(&self.mount)], &[0]).map(drop)
    }

    /// The file that is the disk of a guest.
    pub(super) fn disk(&self, guest: usize) -> PathBuf {
        self.mount.join(format!("guest{guest}/disk"))
    }

    /// Makes the checksums wrong of all leaves of the map of a guest's disk, below the mount. Returns how many there are.
    pub(super) fn strike(&self, guest: usize) -> Result<usize> {
        let device = OpenOptions::new().read(true).write(true).open(&self.image)?;
        let mut struck = 0;
        for leaf in &self.leaves[guest] {
            let start = leaf.0 * BLOCK_BYTES as u64;
            let mut bytes = [0; BLOCK_BYTES];
            device.read_exact_at(&mut bytes, start)?;
            // Those that became something else since the mount began stay whole.
            let is_leaf = |node: ExtentNode<'_>| node.header_ok() && node.header().depth == 0;
            if ExtentNode::new(&bytes).is_some_and(is_leaf) {
                let checksum = bytes.len() - 4;
                bytes[checksum..].iter_mut().for_each(|byte| *byte = !*byte);
                device.write_all_at(&bytes[checksum..], start + checksum as u64)?;
                struck += 1;
            }
        }
        ensure!(struck > 0, "the map of the disk has no leaves");
        Ok(struck)
    }

    /// Whether the cube of a guest is served as usual.
    pub(super) fn is_sound(&self, guest: usize) -> Result<bool> {
        let folder = text(&self.mount.join(format!("guest{guest}")));
        let shown = tool::must(&self.floe, &["cube", "show", "--json", &folder], &[0])?.text;
        let shown: serde_json::Value = serde_json::from_str(&shown).context("floe cube show")?;
        Ok(shown["failure"].is_null())
    }

    /// Unmounts, and returns the image.
    pub(super) fn unmounted(self) -> Result<PathBuf> {
        // 8: what the guest wrote when its cube failed was refused, and the command says so again.
        tool::must(&self.floe, &["umount", &text(&self.mount)], &[0, 8])?;
        Ok(self.image.clone())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Without effect if it is unmounted.
        let _ = tool::must("umount", &["-l", &text(&self.mount)], &[0]);
    }
}

/// Copies a disk into a file that lies in many pieces, as that of a guest which has run for years: every other block of what is empty is a
/// hole.
fn scatter(from: &Path, to: &Path) -> Result<()> {
    let bytes = std::fs::read(from)?;
    let file = OpenOptions::new().write(true).create_new(true).open(to)?;
    file.set_len(bytes.len() as u64)?;
    for (at, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
        if at % 2 == 0 || block.iter().any(|byte| *byte != 0) {
            file.write_all_at(block, (at * BLOCK_BYTES) as u64)?;
        }
    }
    file.sync_all().context("the disk of a guest")
}

/// The leaves of the maps of all disks.
fn leaves(image: &Path) -> Result<Vec<Vec<BlockNr>>> {
    let image = Image::open(image)?;
    let volume = Volume::open(&image)?;
    let of_guest = |guest| {
        let map = volume.map(volume.lookup(&format!("/guest{guest}/disk"))?)?;
        let is_leaf = |node: &&Node| matches!(node.kind, NodeKind::Extent { depth: 0 });
        Ok(map.nodes.iter().filter(is_leaf).map(|node| node.block).collect())
    };
    (0..GUESTS).map(of_guest).collect()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
