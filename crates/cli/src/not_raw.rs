//! What is said about images in formats of their own: that one is unpacked, and why one is not
//! repaired.

use std::fmt::Write;
use std::path::Path;

use floe_blockdev::image::Format;

use crate::shell;

/// Says on standard error that the content is unpacked first, for that takes time and room.
pub(crate) fn tell_unpacking(name: &str, format: Format) {
    eprintln!(
        "floe: {name}: unpacking the {format} file to a temporary file in {} (TMPDIR); it goes when \
         the check ends",
        std::env::temp_dir().display()
    );
}

/// Why an image is not repaired, and how it can be.
pub(crate) fn no_repair(image: &Path, format: Format, partition: Option<u32>) -> String {
    let (name, word) = (image.display(), shell::quoted_path(image));
    let mut text = format!(
        "{name}: is a {format} image. It can be checked as it is, but a repair writes to raw images \
         and block devices only. Nothing was looked at or changed. "
    );
    // A String takes everything.
    let _ = if format.is_packed() {
        let program = if format == Format::Gzip { "gunzip --keep" } else { "unzstd" };
        write!(text, "Unpack it and repair what comes out:\n    {program} {word}")
    } else {
        let driver = if format == Format::Vhd { "vpc" } else { format.name() };
        let part = partition.map_or_else(String::new, |number| format!("p{number}"));
        write!(
            text,
            "Have it shown as a block device and repair that:\n    \
             modprobe nbd max_part=16\n    \
             qemu-nbd --format={driver} --connect=/dev/nbd0 {word}\n    \
             floe repair /dev/nbd0{part}\n    \
             qemu-nbd --disconnect /dev/nbd0"
        )
    };
    text
}
