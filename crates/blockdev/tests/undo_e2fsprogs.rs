//! Undo files are compatible both ways: `e2undo` reads ours, and Floe reads those of e2fsprogs.

#![allow(clippy::unwrap_used, clippy::panic)] // a test may

use std::fs;
use std::path::{Path, PathBuf};

use floe_blockdev::{
    ReadBlocks, RestoreError, UndoFile, UndoWriter, UndoWriterOptions, Window, WritableFile,
    WriteBlocks,
};
use floe_testkit::{Image, Profile, build, tool};

/// An image of a profile and a folder for undo files, or `None` with a printed reason to skip the
/// test.
fn image(profile: &str) -> Option<(Image, tempfile::TempDir)> {
    if tool::missing() {
        return None;
    }
    let image = build::base(Profile::by_name(profile).unwrap()).unwrap();
    Some((image, tool::scratch("floe-undo-").unwrap()))
}

/// Everything from `offset` on of the file at `path`, as a device.
fn device(path: &Path, offset: u64) -> Window<WritableFile> {
    Window::new(WritableFile::open(path).unwrap(), offset, None).unwrap()
}

fn superblock_of(device: &dyn ReadBlocks) -> [u8; 1024] {
    let mut superblock = [0; 1024];
    device.read_at(1024, &mut superblock).unwrap();
    superblock
}

/// Saves and overwrites pages all over a file system, and its superblock.
fn change(path: &Path, offset: u64, block_bytes: u32, undo: &Path) {
    let device = device(path, offset);
    let page = u64::from(block_bytes);
    let super_page = 1024 / page * page;
    let mut first = vec![0; block_bytes as usize];
    device.read_at(super_page, &mut first).unwrap();
    // Any change of the superblock will do, as long as the undo file announces it.
    let label = (1024 - super_page + 0x78) as usize;
    first[label..label + 4].copy_from_slice(b"floe");
    let mut superblock_after = [0; 1024];
    superblock_after.copy_from_slice(&first[label - 0x78..][..1024]);
    floe_format::ext::superblock::Superblock::write_checksum(&mut superblock_after);
    first[label - 0x78..][..1024].copy_from_slice(&superblock_after);

    let options = UndoWriterOptions { block_bytes, fs_offset_bytes: offset, superblock_after };
    let mut writer = UndoWriter::create(undo, &options).unwrap();
    let pages = device.size_bytes() / page;
    let scattered: Vec<u64> = (3..pages).step_by(7).take(700).collect();
    let mut old = vec![0; block_bytes as usize];
    for &at in &scattered {
        device.read_at(at * page, &mut old).unwrap();
        writer.save(at * page, &old).unwrap();
    }
    device.read_at(super_page, &mut old).unwrap();
    writer.save(super_page, &old).unwrap();
    // A list that e2undo ignores.
    writer.not_saved(&[4 * page, 5 * page]).unwrap();
    writer.finish().unwrap();
    assert_eq!(UndoFile::open(undo).unwrap().not_saved(), [4 * page, 5 * page]);

    for &at in &scattered {
        device.write_at(at * page, &vec![at as u8; block_bytes as usize]).unwrap();
    }
    device.write_at(super_page, &first).unwrap();
}

fn e2undo_restores(profile: &str, block_bytes: u32, offset: u64) {
    let Some((image, folder)) = image(profile) else { return };
    let whole = folder.path().join("whole");
    let mut before = vec![0xa7; offset as usize];
    before.extend(image.to_vec().unwrap());
    fs::write(&whole, &before).unwrap();
    let undo = folder.path().join("undo");
    change(&whole, offset, block_bytes, &undo);
    let after = fs::read(&whole).unwrap();
    assert!(after != before);
    let says = tool::must("e2undo", &[Path::new("-h"), &undo, &whole], &[1]).unwrap();
    assert!(says.text.contains(&format!("fs block size:\t{block_bytes}")), "{}", says.text);
    assert_eq!(says.text.contains(&format!("fs offset:\t{offset}")), offset != 0, "{}", says.text);
    let copy = folder.path().join("copy");
    fs::write(&copy, &after).unwrap();
    let says = tool::must("e2undo", &[undo.as_path(), &copy], &[0]).unwrap();
    assert!(fs::read(&copy).unwrap() == before, "{profile} {block_bytes}: {}", says.text);
    // Floe restores the same bytes.
    let file = UndoFile::open(&undo).unwrap();
    assert_eq!(file.fs_offset_bytes().unwrap_or(0), offset);
    assert_eq!(&superblock_of(&device(&whole, offset)), file.superblock_after());
    file.restore(&device(&whole, offset)).unwrap();
    assert!(fs::read(&whole).unwrap() == before, "{profile} {block_bytes}");
}

#[test]
fn e2undo_restores_what_we_saved() {
    for (profile, block_bytes, offset) in [
        ("ext4", 4096, 0),
        ("ext4-1k", 1024, 0),
        ("ext2-1k", 1024, 1 << 20),
        ("ext4", 4096, 63 * 512),
        // Pages smaller and larger than blocks.
        ("ext4", 1024, 0),
        ("ext4-1k", 4096, 0),
    ] {
        e2undo_restores(profile, block_bytes, offset);
    }
}

/// Runs a tool that writes an undo file; e2undo and Floe must restore the same bytes.
fn we_restore(profile: &str, program: &str, arguments: &[&str], prepare: &[&str]) {
    let Some((image, folder)) = image(profile) else { return };
    let path = image.path();
    if let [program, arguments @ ..] = prepare {
        let mut line: Vec<PathBuf> = arguments.iter().map(PathBuf::from).collect();
        line.push(path.to_owned());
        tool::must(program, &line, &[0, 1]).unwrap();
    }
    let before = image.to_vec().unwrap();
    let undo = folder.path().join("undo");
    let mut line = vec![PathBuf::from("-z"), undo.clone()];
    line.extend(arguments.iter().map(PathBuf::from));
    line.push(path.to_owned());
    tool::must(program, &line, &[0, 1]).unwrap();
    let after = image.to_vec().unwrap();
    assert!(after != before, "{program} {arguments:?} changed nothing");
    let theirs = folder.path().join("theirs");
    fs::write(&theirs, &after).unwrap();
    tool::must("e2undo", &[undo.as_path(), &theirs], &[0]).unwrap();
    let file = UndoFile::open(&undo).unwrap();
    let device = device(path, 0);
    assert_eq!(&superblock_of(&device), file.superblock_after());
    assert!(!file.differing(&device).unwrap().is_empty());
    file.restore(&device).unwrap();
    assert!(file.differing(&device).unwrap().is_empty());
    assert!(image.to_vec().unwrap() == fs::read(&theirs).unwrap(), "{program} {arguments:?}");
    if program == "tune2fs" {
        assert!(image.to_vec().unwrap() == before, "{program} {arguments:?}");
    }
}

#[test]
fn we_restore_what_tools_of_e2fsprogs_saved() {
    for profile in ["ext4", "ext2-1k", "bigalloc"] {
        we_restore(profile, "tune2fs", &["-L", "a label"], &[]);
        we_restore(profile, "e2fsck", &["-fyD"], &["debugfs", "-w", "-R", "clri <12>"]);
    }
    we_restore("ext4-1k", "tune2fs", &["-O", "^metadata_csum"], &[]);
    we_restore("ext4", "mke2fs", &["-F", "-q", "-b", "1024"], &[]);
}

#[test]
fn files_cut_off_by_a_smaller_device_are_told() {
    let Some((mut image, folder)) = image("ext4-1k") else { return };
    let undo = folder.path().join("undo");
    change(image.path(), 0, 1024, &undo);
    image.set_size(4 << 20).unwrap();
    let file = UndoFile::open(&undo).unwrap();
    let cut = image.to_vec().unwrap();
    let error = file.restore(&device(image.path(), 0)).unwrap_err();
    assert!(matches!(error, RestoreError::TooSmall { .. }), "{error}");
    assert!(image.to_vec().unwrap() == cut);
}
