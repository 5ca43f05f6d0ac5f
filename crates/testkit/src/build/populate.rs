//! The content of every base image. Recipes refer to these paths:
//!
//! | Path | What it is |
//! |---|---|
//! | `/file`, `/empty`, `/tiny`, `/medium` | 1500, 0, 40 and 120 bytes (the last two inline where that is on) |
//! | `/blocks` | 20 adjacent blocks |
//! | `/fragmented` | 400 blocks with holes between them: a deep extent tree, or a single indirect block |
//! | `/far` | blocks behind the single, double and triple indirect blocks (block maps only) |
//! | `/unwritten` | two blocks of data, then ten allocated but not written (extents only) |
//! | `/dir/file`, `/dir/sub/deep/file` | nested directories |
//! | `/many/f000`.. | 60 files |
//! | `/big/` | enough names for an index; with blocks of 1 KiB and extents of two levels (`ext4-1k`) |
//! | `/hard-a`, `/hard-b` | two names of one file |
//! | `/fast-link`, `/slow-link`, `/long-link` | targets of 4, 60 and 200 bytes |
//! | `/char`, `/block`, `/fifo`, `/socket` | special files |
//! | `/ea`, `/ea-block`, `/ea-shared-a`, `/ea-shared-b` | attributes in the inode, in a block, in one block of two files |
//! | `/ea-big` | an attribute in an inode of its own (`ea_inode`) |
//! | `/acl`, `/dir` | an access list; a default access list |
//! | `/fold/` | a case-folded directory (`casefold`) |
//! | `/owned` | owner 1000, group 100, project 7 (`quota`) |
//!
//! `/gone` was there and was removed.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use floe_format::ext::inode::{InodeBase, InodeExtra};
use floe_format::features::Incompat;
use floe_format::{BlockNr, InodeNr};

use crate::image::Image;
use crate::profile::Profile;
use crate::tool;
use crate::volume::Volume;

/// Fills a new image; `e2fsck -fyD` then corrects link counts and quotas and builds the indexes.
pub(super) fn populate(profile: Profile, image: &Image) -> Result<()> {
    let folder = tool::scratch("floe-populate-")?;
    write_sources(folder.path(), profile)?;
    let mut script = String::new();
    plain_files(&mut script, profile)?;
    directories(&mut script, profile)?;
    special_files(&mut script)?;
    if profile != Profile::Ext2Rev0 {
        attributes(&mut script, profile)?;
    }
    debugfs(image.path(), folder.path(), &script)?;
    if profile != Profile::Ext2Rev0 {
        share_attributes(image, folder.path())?;
    }
    Ok(())
}

/// Runs a debugfs script in `folder`, and returns what debugfs tells.
pub(super) fn run_debugfs(image: &Path, folder: &Path, script: &str) -> Result<String> {
    let file = folder.join("script");
    fs::write(&file, script)?;
    let mut command = tool::command("debugfs");
    command.args(["-w", "-f"]).arg(&file).arg(image).current_dir(folder);
    Ok(tool::run(&command, 120)?.expect("debugfs", &[0])?.text)
}

/// The same, which fails on any complaint.
pub(super) fn debugfs(image: &Path, folder: &Path, script: &str) -> Result<String> {
    let text = run_debugfs(image, folder, script)?;
    // debugfs always exits with 0, so look for lines that do not echo a command.
    let complaint = text.lines().find(|line| {
        !line.is_empty() && !line.starts_with("debugfs") && !line.starts_with("Allocated inode")
    });
    match complaint {
        Some(complaint) => bail!("debugfs: {complaint}"),
        None => Ok(text),
    }
}

fn write_sources(folder: &Path, profile: Profile) -> Result<()> {
    let block_size = profile.block_size() as usize;
    let text = |bytes: usize| -> Vec<u8> { (0..bytes).map(|at| b'a' + (at % 23) as u8).collect() };
    let source = |name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes);
    source("small", &text(1500))?;
    source("empty", b"")?;
    source("tiny", &text(40))?;
    source("medium", &text(120))?;
    source("blocks", &text(20 * block_size))?;
    source("ea-value", &text(block_size * 7 / 8))?;
    source("ea-big-value", &text(3 * block_size))?;
    source("acl-value", &access_list())?;
    let fragmented = File::create(folder.join("fragmented"))?;
    for piece in 0..400 {
        fragmented.write_all_at(&text(block_size), piece * 2 * block_size as u64)?;
    }
    // One block behind each level of pointers; the rest are holes.
    let far = File::create(folder.join("far"))?;
    let pointers = block_size as u64 / 4;
    for first in [0, 12, 12 + pointers, 12 + pointers + pointers * pointers] {
        far.write_all_at(&text(block_size), first * block_size as u64)?;
    }
    Ok(())
}

/// An ACL in the format of `linux/posix_acl_xattr.h`: owner, user 1000, group, mask, others.
fn access_list() -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in [
        (1u16, 6u16, u32::MAX),
        (2, 4, 1000),
        (4, 4, u32::MAX),
        (16, 4, u32::MAX),
        (32, 4, u32::MAX),
    ] {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn plain_files(script: &mut String, profile: Profile) -> Result<()> {
    for (source, name) in [
        ("small", "file"),
        ("empty", "empty"),
        ("tiny", "tiny"),
        ("medium", "medium"),
        ("blocks", "blocks"),
        ("fragmented", "fragmented"),
        ("small", "hard-a"),
        ("small", "gone"),
    ] {
        writeln!(script, "write {source} {name}")?;
    }
    if profile.extents() {
        writeln!(script, "write small unwritten\nfallocate unwritten 10 19")?;
        writeln!(script, "sif unwritten size {}", 20 * profile.block_size())?;
    } else {
        writeln!(script, "write far far")?;
    }
    writeln!(script, "ln hard-a hard-b\nsif hard-a links_count 2\nrm gone")?;
    if profile == Profile::Quota {
        writeln!(script, "write small owned\nsif owned uid 1000\nsif owned gid 100")?;
        writeln!(script, "sif owned projid 7")?;
    }
    Ok(())
}

fn directories(script: &mut String, profile: Profile) -> Result<()> {
    writeln!(script, "mkdir dir\nmkdir dir/sub\nmkdir dir/sub/deep\nmkdir many\nmkdir big")?;
    for folder in ["/dir", "/dir/sub/deep"] {
        writeln!(script, "cd {folder}\nwrite small file")?;
    }
    writeln!(script, "cd /many")?;
    for file in 0..60 {
        writeln!(script, "write {} f{file:03}", if file % 3 == 0 { "tiny" } else { "empty" })?;
    }
    writeln!(script, "cd /")?;
    // A root of 1 KiB indexes 123 leaves of nine names of this length.
    let (entries, name_len) =
        if profile == Profile::Ext4K1 { (1500_u64, 100_usize) } else { (200, 40) };
    // debugfs does not extend a directory for a link, so extend it first; e2fsck frees the surplus.
    for _ in 0..entries * (name_len as u64 + 20) / profile.block_size() {
        writeln!(script, "expand_dir big")?;
    }
    for entry in 0..entries {
        // Every tenth name is a file of its own, so that entries and inodes vary.
        let name = format!("{:x<name_len$}", format!("entry-{entry:04}-"));
        if entry % 10 == 0 && entry < 200 {
            writeln!(script, "cd /big\nwrite empty {name}\ncd /")?;
        } else {
            writeln!(script, "ln file big/{name}")?;
        }
    }
    if profile.has("casefold") {
        writeln!(script, "mkdir fold\nsif fold flags 0x40080000")?;
        writeln!(script, "cd /fold")?;
        for file in 0..40 {
            writeln!(script, "write empty Mixed-Case-File-Number-{file:02}")?;
        }
        writeln!(script, "cd /")?;
    }
    Ok(())
}

fn special_files(script: &mut String) -> Result<()> {
    writeln!(script, "symlink fast-link file")?;
    writeln!(script, "symlink slow-link {}", "s".repeat(60))?;
    writeln!(script, "symlink long-link {}", "long/".repeat(40))?;
    writeln!(script, "mknod char c 5 1\nmknod block b 8 300\nmknod fifo p\nmknod socket p")?;
    writeln!(script, "sif socket mode 0140644")?;
    Ok(())
}

fn attributes(script: &mut String, profile: Profile) -> Result<()> {
    for name in ["ea", "ea-block", "ea-shared-a", "ea-shared-b", "acl"] {
        writeln!(script, "write tiny {name}")?;
    }
    writeln!(script, "ea_set ea user.small value\nea_set ea user.other another")?;
    writeln!(script, "ea_set -f ea-value ea-block user.large")?;
    writeln!(script, "ea_set -f ea-value ea-shared-a user.shared")?;
    writeln!(script, "ea_set -f acl-value acl system.posix_acl_access")?;
    writeln!(script, "ea_set -f acl-value dir system.posix_acl_default")?;
    if profile.has("ea_inode") {
        writeln!(script, "write tiny ea-big\nea_set -f ea-big-value ea-big user.big")?;
    }
    Ok(())
}

/// Makes `/ea-shared-b` use the attribute block of `/ea-shared-a`; e2fsck corrects the counts.
fn share_attributes(image: &Image, folder: &Path) -> Result<()> {
    let block = {
        let volume = Volume::open(image)?;
        let bytes = volume.inode_bytes(volume.lookup("/ea-shared-a")?)?;
        let base = InodeBase::decode(bytes.first_chunk().context("an inode has 128 bytes")?);
        base.file_acl_lo
    };
    if block == 0 {
        // Inodes of 1 KiB hold the attribute themselves.
        return Ok(());
    }
    debugfs(image.path(), folder, &format!("sif ea-shared-b file_acl {block}\n"))?;
    Ok(())
}

/// Sets all times of all inodes to a fixed value, because some tools ignore the fixed clock.
pub(super) fn still_clock(image: &Image) -> Result<()> {
    let volume = Volume::open(image)?;
    if volume.geometry.features.incompat.contains(Incompat::MMP) {
        // Time, node name and device name, after magic and sequence number.
        let block = BlockNr(volume.superblock.mmp_block);
        let mut bytes = volume.block(block)?;
        bytes[8..0x70].fill(0);
        volume.put_block(block, &bytes)?;
        volume.fix_mmp(block)?;
    }
    for inode in volume.used_inodes()? {
        let mut bytes = volume.inode_bytes(inode)?;
        let base_bytes = bytes.first_chunk_mut().context("an inode has 128 bytes")?;
        let mut base = InodeBase::decode(base_bytes);
        // EA inodes store a hash and a reference count in their times.
        let ea_inode = base.flags & 0x0020_0000 != 0;
        if ea_inode || (base.mode == 0 && inode != InodeNr::RESIZE) {
            continue;
        }
        (base.atime, base.ctime, base.mtime) = (tool::NOW, tool::NOW, tool::NOW);
        base.encode_into(base_bytes);
        if let Some(extra_bytes) = bytes.get_mut(128..).and_then(|rest| rest.first_chunk_mut()) {
            let mut extra = InodeExtra::decode(extra_bytes);
            if extra.extra_isize >= 24 {
                (extra.atime_extra, extra.ctime_extra, extra.mtime_extra) = (0, 0, 0);
                (extra.crtime, extra.crtime_extra) = (tool::NOW, 0);
                extra.encode_into(extra_bytes);
            }
        }
        volume.put_inode(inode, &bytes)?;
        volume.fix_inode(inode)?;
    }
    Ok(())
}
