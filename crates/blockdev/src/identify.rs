//! Names the content of a device that is not an ext file system, for error messages.
//!
//! Signatures and their offsets are facts of the formats, taken from their own documentation and
//! headers; no other field of a format is read.

use crate::partition::is_plain_mbr;

/// Bytes from the start of a device that [`identify`] should be given. Fewer are allowed.
pub const IDENTIFY_BYTES: usize = 1 << 20;
/// Bytes from the start in which all signatures lie. The rest of [`IDENTIFY_BYTES`] shows whether a device is empty.
pub const SIGNATURE_BYTES: usize = 256 << 10;

/// A guess at the content of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// The content, as a noun phrase for "this looks like ...": "an XFS file system".
    pub name: &'static str,
    /// How to reach an ext file system that may be inside, if one may be.
    pub advice: Option<&'static str>,
}

/// An offset, the bytes expected there, and the content they identify.
type Signature = (usize, &'static [u8], Content);

const fn is(name: &'static str) -> Content {
    Content { name, advice: None }
}

const fn holds(name: &'static str, advice: &'static str) -> Content {
    Content { name, advice: Some(advice) }
}

const DECOMPRESS: &str = "decompress it first";
const CONVERT: &str = "convert it to a raw image first (qemu-img convert -O raw)";
/// Advice if the file was opened as raw, because [`crate::image`] can read these formats.
const SAY_FORMAT: &str = "leave out --format raw, or say what it is (--format qcow2, vhd, vhdx)";
const SAY_PACKED: &str = "leave out --format raw, or say what it is (--format gzip, zstd)";
const ASSEMBLE: &str = "assemble the array and check the md device";
const PARTITION: &str = "choose a partition with --partition (or by its device, with fsck)";

const LVM: Content =
    holds("an LVM2 physical volume", "activate its volume group and check a logical volume");
const ZFS: Content = is("a member of a ZFS pool");
const GPT: Content = holds("a disk with a GPT partition table", PARTITION);
const MBR: Content = holds("a disk with an MBR partition table", PARTITION);
const SWAP: Content = is("swap space");
const HIBERNATED: Content = is("swap space with a hibernated system in it");

/// The most specific first: a disk image may match several (an ISO image often has a partition
/// table).
const SIGNATURES: &[Signature] = &[
    (0, b"XFSB", is("an XFS file system")),
    (0x1_0040, b"_BHRfS_M", is("a Btrfs file system")),
    (
        0,
        b"LUKS\xba\xbe",
        holds("a LUKS encrypted volume", "open it with cryptsetup and check the mapped device"),
    ),
    (3, b"-FVE-FS-", is("a BitLocker encrypted volume")),
    (3, b"NTFS    ", is("an NTFS file system")),
    (3, b"EXFAT   ", is("an exFAT file system")),
    (54, b"FAT12   ", is("a FAT file system")),
    (54, b"FAT16   ", is("a FAT file system")),
    (82, b"FAT32   ", is("a FAT file system")),
    (1024, b"\x10\x20\xf5\xf2", is("an F2FS file system")),
    (1024, b"\xe2\xe1\xf5\xe0", is("an EROFS file system")),
    // Revision 2.0 and the magic, which is too short to be matched alone.
    (1024, b"\x02\x00\x00\x00\x00\x00\x34\x34", is("a NILFS2 file system")),
    (1024, b"H+\x00\x04", is("an HFS+ file system")),
    (1024, b"HX\x00\x05", is("an HFS+ file system")),
    (32, b"NXSB", is("an APFS container")),
    (0x8000, b"JFS1", is("a JFS file system")),
    (0x1_0034, b"ReIsErFs", is("a ReiserFS file system")),
    (0x1_0034, b"ReIsEr2Fs", is("a ReiserFS file system")),
    (0x1_0034, b"ReIsEr3Fs", is("a ReiserFS file system")),
    (0, b"hsqs", is("a squashfs file system")),
    (0, b"\x45\x3d\xcd\x28", is("a cramfs file system")),
    // struct bch_sb: two checksum words, two versions and padding before the magic. Old versions
    // used bcache's magic, the second one here.
    (
        4096 + 24,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
        is("a bcachefs file system"),
    ),
    (
        4096 + 24,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        is("a bcache device"),
    ),
    (0, b"\xfc\x4e\x2b\xa9", holds("a member of an md RAID array", ASSEMBLE)),
    (4096, b"\xfc\x4e\x2b\xa9", holds("a member of an md RAID array", ASSEMBLE)),
    (0x8001, b"CD001", is("an ISO 9660 image")),
    (0x8001, b"BEA01", is("a UDF image")),
    (0, b"\x1f\x8b\x08", holds("a gzip archive", SAY_PACKED)),
    (0, b"\x28\xb5\x2f\xfd", holds("a zstd archive", SAY_PACKED)),
    (0, b"\xfd7zXZ\x00", holds("an xz archive", DECOMPRESS)),
    (0, b"BZh", holds("a bzip2 archive", DECOMPRESS)),
    (0, b"\x04\x22\x4d\x18", holds("an LZ4 archive", DECOMPRESS)),
    (0, b"PK\x03\x04", holds("a zip archive", "extract the image first")),
    (257, b"ustar", holds("a tar archive", "extract the image first")),
    (0, b"QFI\xfb", holds("a qcow2 disk image", SAY_FORMAT)),
    (0, b"KDMV", holds("a VMDK disk image", CONVERT)),
    (0, b"vhdxfile", holds("a VHDX disk image", SAY_FORMAT)),
    (0, b"conectix", holds("a VHD disk image", SAY_FORMAT)),
    (64, b"\x7f\x10\xda\xbe", holds("a VDI disk image", CONVERT)),
    (0, b"QED\x00", holds("a QED disk image", CONVERT)),
    (0, b"WithoutFreeSpace", holds("a Parallels disk image", CONVERT)),
    (0, b"WithouFreSpacExt", holds("a Parallels disk image", CONVERT)),
    (
        0,
        b"\x3a\xff\x26\xed",
        holds("an Android sparse image", "convert it to a raw image first (simg2img)"),
    ),
    (0, b"E2UNDO02", is("an undo file of e2fsprogs")),
];

/// Names the format of `head`, the first bytes of a device (best [`IDENTIFY_BYTES`] of them).
/// `None` if it matches no known format, and for ext file systems.
///
/// Formats that only the end of a device identifies are not found: old md arrays, fixed VHD images,
/// and the backup of a lost GPT.
pub fn identify(head: &[u8]) -> Option<Content> {
    let at = |offset: usize, bytes: &[u8]| {
        head.get(offset..).is_some_and(|rest| rest.starts_with(bytes))
    };
    // These first: their signatures are long or in several places, and the data inside them may
    // carry signatures of its own.
    if (0..4).any(|sector| at(sector * 512, b"LABELONE") && at(sector * 512 + 24, b"LVM2 001")) {
        return Some(LVM);
    }
    let known = SIGNATURES.iter().find(|(offset, bytes, _)| at(*offset, bytes));
    if let Some(&(_, _, content)) = known {
        return Some(content);
    }
    if let Some(content) = swap(&at) {
        return Some(content);
    }
    if is_zfs(head) {
        return Some(ZFS);
    }
    if head.first_chunk().is_some_and(is_plain_mbr) {
        return Some(MBR);
    }
    if at(512, b"EFI PART") || at(4096, b"EFI PART") {
        return Some(GPT);
    }
    uniform(head)
}

/// Whether a device that begins so is an image of a disk in a format that maps blocks and that is not read here: what looks like
/// a file system's block in it lies elsewhere than on the disk.
pub fn is_foreign_disk_image(head: &[u8]) -> bool {
    identify(head).is_some_and(|content| content.advice == Some(CONVERT))
}

/// The signature of swap space is at the end of its first page, for any page size.
fn swap(at: &impl Fn(usize, &[u8]) -> bool) -> Option<Content> {
    for page_end in [4096, 8192, 16_384, 32_768, 65_536] {
        let place = page_end - 10;
        if at(place, b"SWAPSPACE2") || at(place, b"SWAP-SPACE") {
            return Some(SWAP);
        }
        if at(place, b"S1SUSPEND\x00") || at(place, b"LINHIB0001") {
            return Some(HIBERNATED);
        }
    }
    None
}

/// A ZFS label keeps its uberblocks, of at least 1 KiB each, in its second 128 KiB; any of them may
/// be unused.
fn is_zfs(head: &[u8]) -> bool {
    const MAGIC: u64 = 0x00ba_b10c;
    let Some(ring) = head.get(128 << 10..SIGNATURE_BYTES) else { return false };
    ring.chunks(1024)
        .filter_map(|slot| slot.first_chunk())
        .any(|bytes| u64::from_le_bytes(*bytes) == MAGIC || u64::from_be_bytes(*bytes) == MAGIC)
}

fn uniform(head: &[u8]) -> Option<Content> {
    let all = |byte: u8| head.iter().all(|&other| other == byte);
    if head.is_empty() {
        Some(is("empty"))
    } else if all(0) {
        Some(is("all zeroes at its start"))
    } else if all(0xff) {
        Some(is("erased flash memory (all bits set at its start)"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;
    use std::process::Command;

    fn name(head: &[u8]) -> Option<&'static str> {
        identify(head).map(|content| content.name)
    }

    #[test]
    fn each_signature_is_found_in_its_place_alone() {
        for &(offset, bytes, content) in SIGNATURES {
            let mut head = vec![0x11; 80 << 10];
            head[offset..offset + bytes.len()].copy_from_slice(bytes);
            assert_eq!(identify(&head), Some(content));
            assert_eq!(identify(&head[..offset + bytes.len() - 1]), None, "{}", content.name);
            assert_eq!(identify(&[&[0x11], &head[..]].concat()), None, "{}", content.name);
        }
    }

    #[test]
    fn what_is_not_a_single_signature() {
        let mut head = vec![0; IDENTIFY_BYTES];
        assert_eq!(name(&head), Some("all zeroes at its start"));
        assert_eq!(name(&[]), Some("empty"));
        assert_eq!(name(&[0xff; 100]), Some("erased flash memory (all bits set at its start)"));
        head[(128 << 10) + 5 * 1024..][..8].copy_from_slice(&0x00ba_b10c_u64.to_be_bytes());
        assert_eq!(identify(&head), Some(ZFS));
        let mut head = vec![0; 4096];
        head[512..520].copy_from_slice(b"LABELONE");
        assert_eq!(name(&head), None);
        head[536..544].copy_from_slice(b"LVM2 001");
        assert_eq!(identify(&head), Some(LVM));
        let mut head = vec![0; 16_384];
        head[16_374..].copy_from_slice(b"S1SUSPEND\x00");
        assert_eq!(identify(&head), Some(HIBERNATED));
    }

    proptest! {
        #[test]
        fn any_bytes_have_an_answer(head in prop::collection::vec(any::<u8>(), 0..6000)) {
            let _ = identify(&head);
        }
    }

    /// An image of 4 MiB made by a program of this system; `None` if the program is missing.
    fn made_by(program: &str, args: &[&str], result: &str) -> Option<Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(4 << 20).unwrap();
        let path = ["", "/usr/sbin/", "/sbin/"]
            .iter()
            .map(|dir| format!("{dir}{program}"))
            .find(|path| Command::new(path).arg("--version").output().is_ok());
        let Some(path) = path else {
            println!("skipped: no {program} here");
            return None;
        };
        let output = Command::new(path).args(args).arg(&image).output().unwrap();
        assert!(output.status.success(), "{program}: {output:?}");
        let mut bytes = std::fs::read(Path::new(&format!("{}{result}", image.display()))).unwrap();
        bytes.truncate(IDENTIFY_BYTES);
        Some(bytes)
    }

    #[test]
    fn what_other_programs_make_is_recognised() {
        for (program, args, result, expected) in [
            ("mkswap", &[][..], "", Some("swap space")),
            ("gzip", &[], ".gz", Some("a gzip archive")),
            ("xz", &[], ".xz", Some("an xz archive")),
            ("zstd", &["-q"], ".zst", Some("a zstd archive")),
            ("bzip2", &[], ".bz2", Some("a bzip2 archive")),
            ("mkfs.vfat", &[], "", Some("a FAT file system")),
            ("mkfs.ntfs", &["-F", "-Q"], "", Some("an NTFS file system")),
            ("sgdisk", &["-n", "1:0:0"], "", Some("a disk with a GPT partition table")),
            ("mke2fs", &["-q", "-F"], "", None),
        ] {
            if let Some(bytes) = made_by(program, args, result) {
                assert_eq!(name(&bytes), expected, "{program}");
            }
        }
    }
}
