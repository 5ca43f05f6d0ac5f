//! Devices that stack: `cargo run -p floe-blockdev --example try_and_undo -- disk.img 1 undo-file`
//!
//! Stages a change of a file system in a partition in memory, saves the old bytes to an undo file,
//! writes the change, and undoes it. Unless an error occurs, the image ends as it began.

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;

use floe_blockdev::{
    Overlay, PartitionTable, ReadBlocks, UndoFile, UndoWriter, UndoWriterOptions, WritableFile,
    WriteBlocks,
};

/// Offset of an ext superblock, and of the label in it.
const SUPERBLOCK: u64 = 1024;
const LABEL: usize = 120;
/// Bytes that are staged, saved and written at once.
const PAGE: u32 = 4096;

pub(crate) fn show(
    path: &Path,
    number: u32,
    undo: &Path,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    // Opened exclusively, and a window on one partition of it.
    let disk = WritableFile::open_exclusive(path)?;
    let partition = PartitionTable::read(&disk, None)?.open(disk, number)?;
    writeln!(out, "partition {number}: {} bytes", partition.size_bytes())?;

    // An overlay on top: writes stay in memory.
    let staged = Overlay::new(&partition, PAGE);
    staged.write_at(SUPERBLOCK + LABEL as u64, b"tried\0")?;
    let label = |device: &dyn ReadBlocks| -> io::Result<String> {
        let mut bytes = [0; 16];
        device.read_at(SUPERBLOCK + LABEL as u64, &mut bytes)?;
        let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(bytes).into_owned())
    };
    writeln!(out, "on the disk {:?}, staged {:?}", label(&partition)?, label(&staged)?)?;

    // The old bytes first, complete and durable; then the new bytes.
    let mut superblock_after = [0; 1024];
    staged.read_at(SUPERBLOCK, &mut superblock_after)?;
    let options = UndoWriterOptions { block_bytes: PAGE, fs_offset_bytes: 0, superblock_after };
    let mut saved = UndoWriter::create(undo, &options)?;
    let mut page = vec![0; PAGE as usize];
    for offset in staged.staged_offsets() {
        partition.read_at(offset, &mut page)?;
        saved.save(offset, &page)?;
    }
    saved.finish()?;
    for offset in staged.staged_offsets() {
        staged.read_at(offset, &mut page)?;
        partition.write_at(offset, &page)?;
    }
    partition.flush()?;
    writeln!(out, "written: on the disk {:?}", label(&partition)?)?;

    UndoFile::open(undo)?.restore(&partition)?;
    writeln!(out, "undone: on the disk {:?}", label(&partition)?)?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, number, undo] = arguments.as_slice() else {
        return Err("usage: try_and_undo IMAGE PARTITION UNDO-FILE".into());
    };
    show(path.as_ref(), number.parse()?, undo.as_ref(), &mut io::stdout())
}
