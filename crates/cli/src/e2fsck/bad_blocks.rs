//! `-c`, `-l` and `-L`: finds the bad blocks.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use floe_blockdev::{FileDevice, ReadBlocks};
use floe_check::open::open;
use floe_format::BlockNr;
use floe_repair::BadBlocks;

use super::options::Options;
use crate::input::device::Source;
use crate::message::message;
use crate::terminal::failure;

/// Bytes per read while no error occurs.
const STRIDE_BYTES: u64 = 1 << 20;

/// The blocks that the options list or find on the device. `None` without such an option, and where no
/// superblock opens, which is told.
///
/// # Errors
/// The list cannot be read, or the scan fails.
pub(crate) fn wanted(options: &Options, source: &Source) -> anyhow::Result<Option<BadBlocks>> {
    let device = source.open()?;
    let geometry = match open(&device, source.which()) {
        Ok(opened) => opened.geometry,
        Err(error) => {
            let text = failure::of_check(&error, &device, &source.name(), "-E memory=");
            message!("floe: {text}");
            return Ok(None);
        }
    };
    let (block_size, blocks_count) = (geometry.block_size, geometry.blocks_count);
    let device = &source.device;
    let (blocks, replace) = if let Some(file) = &options.add_list {
        (read_list(file)?, false)
    } else if let Some(file) = &options.set_list {
        (read_list(file)?, true)
    } else if options.scan > 0 {
        (scan(device, block_size, blocks_count, options.scan > 1)?, !options.keep)
    } else {
        return Ok(None);
    };
    for block in blocks.iter().filter(|block| block.0 >= blocks_count) {
        message!("floe fsck: block {} is outside the file system: ignored", block.0);
    }
    Ok(Some(BadBlocks { blocks, replace }))
}

/// Reads a list of blocks, one number per line, as written by `badblocks`. Ignores other lines.
fn read_list(path: &Path) -> anyhow::Result<Vec<BlockNr>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut blocks = Vec::new();
    for line in text.lines() {
        match number(line) {
            Some(block) => blocks.push(block),
            // Half a list is not used.
            None if looks_like_a_number(line) => {
                bail!("{}: {} is no block number: nothing was changed", path.display(), line.trim())
            }
            None => {}
        }
    }
    Ok(blocks)
}

fn looks_like_a_number(line: &str) -> bool {
    let text = line.trim_start();
    text.strip_prefix(['-', '+']).unwrap_or(text).starts_with(|first: char| first.is_ascii_digit())
}

fn number(line: &str) -> Option<BlockNr> {
    line.split_whitespace().next()?.parse().ok().map(BlockNr)
}

/// Scans for bad blocks: with the program `badblocks` if installed, else by reading everything.
/// `writing`: a non-destructive read-write test of each block, which requires the program.
fn scan(
    device: &Path,
    block_size: u32,
    blocks_count: u64,
    writing: bool,
) -> anyhow::Result<Vec<BlockNr>> {
    match program("badblocks") {
        Some(program) => ask(&program, device, block_size, blocks_count, writing),
        None if writing => {
            bail!("-cc needs the program badblocks (of e2fsprogs), which is not installed")
        }
        None => read_all(&FileDevice::open(device)?, block_size, blocks_count),
    }
}

/// Finds a program in the usual folders, because PATH may be incomplete in boot scripts.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/sbin".into(), "/usr/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

fn ask(
    program: &Path,
    device: &Path,
    block_size: u32,
    blocks_count: u64,
    writing: bool,
) -> anyhow::Result<Vec<BlockNr>> {
    let shown = program.display();
    let mut command = Command::new(program);
    command.arg("-b").arg(block_size.to_string());
    if writing {
        command.arg("-n");
    }
    let Some(last) = blocks_count.checked_sub(1) else { return Ok(Vec::new()) };
    let mut child = command
        .arg(device)
        .arg(last.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {shown}"))?;
    let mut found = Vec::new();
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).lines() {
            found.extend(number(&line.with_context(|| shown.to_string())?));
        }
    }
    let status = child.wait().with_context(|| shown.to_string())?;
    if !status.success() {
        bail!("{shown} failed ({status}): the bad block list was not changed");
    }
    Ok(found)
}

/// Reads the whole device, and returns the unreadable blocks.
fn read_all(
    device: &dyn ReadBlocks,
    block_size: u32,
    blocks_count: u64,
) -> anyhow::Result<Vec<BlockNr>> {
    let block_bytes = u64::from(block_size);
    let end = device.size_bytes().min(blocks_count.saturating_mul(block_bytes));
    let mut buffer = vec![0; usize::try_from(STRIDE_BYTES)?];
    let mut found = Vec::new();
    let mut offset = 0;
    while offset < end {
        let len = STRIDE_BYTES.min(end - offset);
        if device.read_at(offset, &mut buffer[..usize::try_from(len)?]).is_err() {
            for at in (offset..offset + len).step_by(usize::try_from(block_bytes)?) {
                let len = usize::try_from(block_bytes.min(end - at))?;
                if device.read_at(at, &mut buffer[..len]).is_err() {
                    found.push(BlockNr(at / block_bytes));
                }
            }
        }
        offset += len;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io;

    /// A device with two unreadable blocks.
    struct Scratched;

    impl ReadBlocks for Scratched {
        fn size_bytes(&self) -> u64 {
            3 * STRIDE_BYTES + 1024
        }

        fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
            let read = offset_bytes..offset_bytes + into.len() as u64;
            let scratches = [5 * 1024 + 7, STRIDE_BYTES + 1024];
            match scratches.iter().any(|at| read.contains(at)) {
                true => Err(io::Error::other("scratched")),
                false => Ok(()),
            }
        }
    }

    #[test]
    fn a_scan_finds_what_cannot_be_read() {
        let found = read_all(&Scratched, 1024, 3 * 1024).unwrap();
        assert_eq!(found, [BlockNr(5), BlockNr(1025)]);
        let of_4096 = read_all(&Scratched, 4096, 700).unwrap();
        assert_eq!(of_4096, [BlockNr(1), BlockNr(256)]);
    }

    #[test]
    fn lists_are_numbers_on_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list");
        std::fs::write(&path, "7\n# no block\n 9 \n\nten\n4294967296\n").unwrap();
        let blocks = [BlockNr(7), BlockNr(9), BlockNr(1 << 32)];
        assert_eq!(read_list(&path).unwrap(), blocks);
        assert!(read_list(&folder.path().join("none")).is_err());
    }
}
