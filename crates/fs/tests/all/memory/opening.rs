//! A mount of a large file system reads its descriptors a few times, in large pieces, and little else.

use floe_blockdev::Counted;
use floe_ext4::fs::read_superblock;
use floe_fs::{Limits, Store};
use floe_testkit::{Image, build, tool};

use super::live::mounted;

/// How often the descriptors may be read: whoever changes them reads and verifies all, and the journal is found by the first.
const MOST_PASSES: u64 = 1;

#[test]
fn a_large_file_system_is_opened_with_few_reads() {
    if tool::missing() {
        return;
    }
    let image = Image::empty(2 << 40).unwrap();
    let few = ["-N", "262144", "-J", "size=4", "-m", "0"];
    build::mke2fs(image.path(), &[&["-q", "-t", "ext4"][..], &few].concat()).unwrap();
    let (_, geometry) = read_superblock(&image).unwrap();
    let table_bytes = u64::from(geometry.desc_blocks) * u64::from(geometry.block_size);
    assert!(table_bytes >= 1 << 20, "{table_bytes} bytes of descriptors");
    let device = Counted::new(image);
    let counts = mounted(&device, Limits::default(), |memory| {
        memory.attributes(floe_format::InodeNr::ROOT)?;
        Ok(device.counts())
    })
    .unwrap();
    let most_bytes = MOST_PASSES * table_bytes + (1 << 20);
    assert!(counts.bytes <= most_bytes, "{counts:?}, {table_bytes} bytes of descriptors");
    assert!(counts.reads <= 100, "{counts:?}");
}
