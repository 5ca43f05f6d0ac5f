//! The roofline: reads every used inode and directory block once, verifies checksums, walks them
//! and marks a bitmap, but checks nothing. A lower bound for the time of a check with one thread on
//! this machine.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use floe_format::crc::crc32c;
use floe_format::ext::extent::ExtentNode;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::superblock::Superblock;
use floe_format::geometry::Strictness;
use floe_format::layout::{le16_at, le32_at};
use floe_format::{Geometry, GroupNr};

/// Maximum directory blocks per read.
const MOST_BLOCKS: usize = 512;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The image
    image: PathBuf,
}

/// Totals, printed so that the compiler cannot remove the walk.
#[derive(Debug, Default)]
struct Walked {
    files: u64,
    dirs: u64,
    dir_blocks: u64,
    entries: u64,
    bytes: u64,
    checksums: u64,
}

/// Runs the probe, and prints the totals and the time.
pub(crate) fn run(args: &Args) -> Result<()> {
    let begin = Instant::now();
    let walked = walk(&args.image)?;
    println!("{walked:?} in {:.3} s", begin.elapsed().as_secs_f64());
    Ok(())
}

fn walk(image: &Path) -> Result<Walked> {
    let file = File::open(image).with_context(|| image.display().to_string())?;
    let mut bytes = [0; 1024];
    file.read_exact_at(&mut bytes, 1024)?;
    let geometry = Geometry::new(&Superblock::decode(&bytes), Strictness::Strict)
        .map_err(|fault| anyhow!("{} is {}", fault.field, fault.value))?;
    let mut walked = Walked::default();
    let mut probe = Probe {
        blocks: vec![0; usize::try_from(geometry.blocks_count / 8 + 1)?],
        dir_blocks: Vec::new(),
        buffer: Vec::new(),
        file,
        geometry,
    };
    probe.inodes(&mut walked)?;
    probe.directories(&mut walked)?;
    Ok(walked)
}

struct Probe {
    file: File,
    geometry: Geometry,
    /// One bit per claimed block.
    blocks: Vec<u8>,
    dir_blocks: Vec<u64>,
    buffer: Vec<u8>,
}

impl Probe {
    fn inodes(&mut self, walked: &mut Walked) -> Result<()> {
        let desc_size = self.geometry.desc_size as usize;
        let block_size = u64::from(self.geometry.block_size);
        let mut descs = vec![0; self.geometry.desc_blocks as usize * block_size as usize];
        for (index, block) in descs.chunks_mut(block_size as usize).enumerate() {
            let at = self.geometry.offset_bytes(self.geometry.primary_desc_block(index as u32));
            self.file.read_exact_at(block, at)?;
        }
        let inode_size = self.geometry.inode_size as usize;
        for group in (0..self.geometry.group_count).map(GroupNr) {
            let bytes = &descs[group.0 as usize * desc_size..];
            let high = if desc_size >= 64 { bytes[32..].first_chunk() } else { None };
            let desc = GroupDesc::decode(bytes.first_chunk().context("a descriptor")?, high);
            let used = self.geometry.inodes_per_group.saturating_sub(desc.itable_unused) as usize;
            if desc.inode_uninit() || used == 0 {
                continue;
            }
            let mut table = std::mem::take(&mut self.buffer);
            table.resize(used * inode_size, 0);
            self.file.read_exact_at(&mut table, self.geometry.offset_bytes(desc.inode_table))?;
            walked.bytes += table.len() as u64;
            for raw in table.chunks_exact(inode_size) {
                self.inode(raw, walked);
            }
            self.buffer = table;
        }
        Ok(())
    }

    fn inode(&mut self, raw: &[u8], walked: &mut Walked) {
        if le16_at(raw, 26) == Some(0) {
            return;
        }
        walked.checksums = walked.checksums.wrapping_add(u64::from(crc32c(0, raw)));
        walked.files += 1;
        let is_dir = le16_at(raw, 0).is_some_and(|mode| mode & 0xf000 == 0x4000);
        walked.dirs += u64::from(is_dir);
        let Some(node) = ExtentNode::new(&raw[40..100]) else { return };
        let header = node.header();
        if header.magic != 0xf30a || header.depth != 0 {
            return;
        }
        for at in 0..header.entries.min(4) {
            let run = node.extent(at).run;
            for block in run.start.0..run.end().0.min(self.geometry.blocks_count) {
                self.blocks[(block >> 3) as usize] |= 1 << (block & 7);
                if is_dir {
                    self.dir_blocks.push(block);
                }
            }
        }
    }

    /// Directory blocks in the order of their inodes, with contiguous ones merged.
    fn directories(&mut self, walked: &mut Walked) -> Result<()> {
        let size = self.geometry.block_size as usize;
        let mut at = 0;
        while let Some(&first) = self.dir_blocks.get(at) {
            let run = self.dir_blocks[at..]
                .iter()
                .zip(first..)
                .take(MOST_BLOCKS)
                .take_while(|&(&block, wanted)| block == wanted)
                .count();
            self.buffer.resize(run * size, 0);
            self.file.read_exact_at(&mut self.buffer, first * size as u64)?;
            walked.bytes += self.buffer.len() as u64;
            for block in self.buffer.chunks_exact(size) {
                walked.checksums = walked.checksums.wrapping_add(u64::from(crc32c(1, block)));
                walked.dir_blocks += 1;
                walked.entries += entries(block);
            }
            at += run;
        }
        Ok(())
    }
}

fn entries(block: &[u8]) -> u64 {
    let (mut at, mut count) = (0, 0);
    while let Some(rec_len) = le16_at(block, at + 4).filter(|&rec_len| rec_len >= 8) {
        count += u64::from(le32_at(block, at) != Some(0));
        at += usize::from(rec_len);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_testkit::tool;
    use floe_workload::fill::{Shape, fill};

    #[test]
    fn everything_is_walked() {
        if tool::missing() {
            return;
        }
        let folder = tool::scratch("floe-roofline-").expect("a folder");
        let path = folder.path().join("image");
        let shape = Shape { size_bytes: 1 << 30, ..Shape::file_intensive(5000) };
        fill(&path, shape).expect("a filled image");
        let walked = walk(&path).expect("readable");
        // In addition to ours: the root, the resize inode, the journal, lost+found.
        assert_eq!(walked.files, u64::from(shape.inodes().expect("few")) + 4);
        assert_eq!(walked.dirs, u64::from(shape.dirs) + 64 + 2);
        assert!(walked.entries > walked.files);
    }
}
