//! Prints what a superblock says: `cargo run -p floe-format --example features -- disk.img`
//!
//! The crate does no I/O, so the caller reads the 1024 bytes.

use std::error::Error;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use floe_format::Geometry;
use floe_format::ext::superblock::{MAGIC, OFFSET_BYTES, Superblock};
use floe_format::geometry::Strictness;

/// Decodes the primary superblock of an image and prints its label, size and features.
pub(crate) fn show(path: &Path, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let mut bytes = [0; 1024];
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(OFFSET_BYTES))?;
    file.read_exact(&mut bytes)?;
    // Any bytes can be decoded. The magic and `Geometry::new` tell whether they are a superblock.
    let superblock = Superblock::decode(&bytes);
    if superblock.magic != MAGIC {
        return Err(format!("{}: no superblock of ext2, ext3 or ext4", path.display()).into());
    }
    let sum = if Superblock::checksum_ok(&bytes) { "right" } else { "wrong" };
    writeln!(out, "label {:?}, UUID {}", superblock.label(), superblock.uuid_text())?;
    writeln!(out, "checksum {sum}, features: {}", superblock.features().names().join(" "))?;
    match Geometry::new(&superblock, Strictness::Strict) {
        Ok(geometry) => writeln!(
            out,
            "{} blocks of {} bytes in {} groups",
            geometry.blocks_count, geometry.block_size, geometry.group_count
        )?,
        Err(fault) => writeln!(out, "the field {} says {}: unusable", fault.field, fault.value)?,
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    for path in std::env::args().skip(1) {
        show(path.as_ref(), &mut io::stdout())?;
    }
    Ok(())
}
