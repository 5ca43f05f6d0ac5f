//! Blocks longer than a page of most machines: a fresh file system is sound.

use floe_blockdev::FileDevice;
use floe_check::{CheckOptions, check};

use crate::journal_support::run_ok;

/// The resize inode is as long as its map could reach: longer than any file that Linux would open.
#[test]
fn a_resize_inode_of_large_blocks_is_sound() {
    for block in ["32768", "65536"] {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
        let image = image.to_str().unwrap();
        let features = "resize_inode,^has_journal,^sparse_super2";
        run_ok("mke2fs", &["-q", "-F", "-t", "ext4", "-b", block, "-O", features, image]);
        let report =
            check(&FileDevice::open(image.as_ref()).unwrap(), &CheckOptions::default()).unwrap();
        assert_eq!(report.found, [], "{block}");
        assert!(
            report
                .superblock
                .features()
                .compat
                .contains(floe_format::features::Compat::RESIZE_INODE)
        );
    }
}
