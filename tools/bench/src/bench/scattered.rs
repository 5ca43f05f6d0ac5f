//! Scattered damage for `bench --repair`: one regular file in ten thousand has one wrong field.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use floe_format::ext::inode::{FileType, Inode};
use floe_format::{InodeNr, layout};
use floe_testkit::Image;
use floe_testkit::volume::Volume;

use super::kept;

/// Inodes for each damaged one.
const INODES_PER_DAMAGE: u32 = 10_000;

/// Byte offset of an inode field, and the damaged value.
const DAMAGE: [(usize, &[u8]); 6] = [
    // i_links_count, i_blocks, i_mode, the start of the first extent, i_faddr, i_dtime.
    (0x1a, &[7, 0]),
    (0x1c, &[0xe7, 3, 0, 0]),
    (0x00, &[0, 0]),
    (0x28 + 20, &[0xf0, 0xff, 0xff, 0xff]),
    (0x70, &[55, 0, 0, 0]),
    (0x14, &[77, 0, 0, 0]),
];

/// The damaged copy of an image, created if it does not exist yet. Checksums stay wrong, as after a
/// stray write.
pub(crate) fn damaged(image: &Path, inodes: u32) -> Result<PathBuf> {
    let path = image.with_extension("damaged.img");
    kept(&path, |path| {
        copy(image, path)?;
        let damaged = Image::open(path)?;
        let volume = Volume::open(&damaged)?;
        let kinds = DAMAGE.iter().cycle();
        // The image may have fewer inodes.
        let inodes = inodes.min(volume.superblock.inodes_count);
        let wanted = (1..inodes / INODES_PER_DAMAGE).map(|at| at * INODES_PER_DAMAGE);
        for (first, &(at, bytes)) in wanted.zip(kinds) {
            // The first regular file from there on.
            for number in (first..inodes.min(first + 200)).map(InodeNr) {
                let raw = volume.inode_bytes(number)?;
                let is_file = Inode::decode(&raw).is_some_and(|inode| {
                    inode.file_type() == Some(FileType::Regular)
                        && inode.base.links_count == 1
                        && layout::le16_at(&raw, 0x28) == Some(0xf30a)
                });
                if is_file {
                    let offset = volume.inode_offset(number)? + at as u64;
                    damaged.write(offset, bytes)?;
                    break;
                }
            }
        }
        Ok(())
    })?;
    Ok(path)
}

/// Copies an image sparsely over an existing file.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = Command::new("cp").arg("--sparse=always").arg(from).arg(to).status()?;
    ensure!(copied.success(), "cannot write {}", to.display());
    Ok(())
}
