//! Messages about images in their own formats: that one is unpacked, and why one is not repaired.

use std::fmt::Write;
use std::path::Path;

use floe_blockdev::image::Format;

use crate::message::message;
use crate::terminal::shell;

/// Announces on standard error that the content is unpacked first, because that takes time and
/// space.
pub(crate) fn tell_unpacking(name: &str, format: Format) {
    message!(
        "floe: {name}: unpacking the {format} file to a temporary file in {} (TMPDIR), which is \
         removed after the check",
        std::env::temp_dir().display()
    );
}

/// Why an image is not repaired, and how to repair it.
pub(crate) fn no_repair(image: &Path, format: Format, partition: Option<u32>) -> String {
    let (name, word) = (image.display(), shell::quoted_path(image));
    let mut text = format!(
        "{name} is a {format} image. It can be checked directly, but repairs support only raw \
         images and block devices. Nothing was looked at or changed. "
    );
    // Writing to a String cannot fail.
    let _ = if format.is_packed() {
        let program = if format == Format::Gzip { "gunzip --keep" } else { "unzstd" };
        write!(text, "Unpack it and repair the result:\n    {program} {word}")
    } else {
        let driver = if format == Format::Vhd { "vpc" } else { format.name() };
        let part = partition.map_or_else(String::new, |number| format!("p{number}"));
        write!(
            text,
            "Attach it as a block device and repair that:\n    \
             modprobe nbd max_part=16\n    \
             qemu-nbd --format={driver} --connect=/dev/nbd0 {word}\n    \
             floe repair /dev/nbd0{part}\n    \
             qemu-nbd --disconnect /dev/nbd0"
        )
    };
    text
}
